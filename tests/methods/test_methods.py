"""Every method in the one trainer: its networks, state, files, schedule of the target, replicas."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic import LARS, callbacks, losses, methods, strategy, views
from keras_sslhsic.training import state

OTHERS = {
    "barlow_twins": {},
    "byol": {},
    "lejepa": {"num_slices": 16},
    "moco": {"queue_size": 20},
    "simclr": {},
    "simsiam": {},
    "swav": {"num_prototypes": 6, "frozen_steps": 2},
    "vicreg": {},
}
BATCH, STEPS = 8, 3
with_method = pytest.mark.parametrize("name", OTHERS)


def encoder(side=8):
    images = keras.Input((side, side, 3))
    x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False)(images)
    x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
    x = keras.layers.GlobalAveragePooling2D(dtype="float32")(keras.layers.ReLU()(x))
    return keras.Model(images, x)


def made(name, policy=None, side=8, **compile_arguments):
    keras.utils.set_random_seed(1)
    method = methods.METHODS[name]
    model = method(encoder(side), 12, 8, views=policy or views.small_image(8), num_classes=3)
    loss = method.default_loss(**OTHERS.get(name, {}))
    model.compile(LARS(0.5), loss=loss, **compile_arguments)
    return model


@pytest.fixture(scope="module")
def images():
    """uint8 [24, 10, 10, 3], each of a colour of its own."""
    rng = np.random.default_rng(0)
    colour = rng.uniform(40, 215, (BATCH * STEPS, 1, 1, 3))
    return np.clip(colour + rng.normal(0, 25, (BATCH * STEPS, 10, 10, 3)), 0, 255).astype("uint8")


def values(model):
    return state.arrays(state.variables(model))


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_every_method_is_here_and_says_what_it_is():
    named = {
        name: cls for name, cls in methods.METHODS.items() if cls.__module__.startswith("keras_sslhsic.")
    }
    assert set(named) == {"ssl_hsic", *OTHERS}
    for cls in named.values():
        assert "arXiv:" in cls.reference and getattr(methods, cls.__name__) is cls
        assert cls.default_loss in losses.LOSSES.values()


@pytest.mark.slow
@with_method
def test_a_run_that_goes_on_from_a_checkpoint_or_a_file_is_the_same_run(name, images, tmp_path):
    """Bit for bit, the queue and the prototypes among the rest."""
    whole = made(name)
    history = whole.fit(images, batch_size=BATCH, epochs=2, verbose=0).history
    assert all(np.all(np.isfinite(seen)) for seen in history.values())
    assert ("tau" in history) == (name in ("byol", "moco"))

    class Killed(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    half = made(name)
    with pytest.raises(KeyboardInterrupt):
        half.fit(
            images,
            batch_size=BATCH,
            epochs=2,
            verbose=0,
            callbacks=[callbacks.Checkpoint(tmp_path), Killed()],
        )
    half.save(tmp_path / "half.keras")
    resumed = made(name)
    resumed.fit(images, batch_size=BATCH, epochs=2, verbose=0, callbacks=[callbacks.Checkpoint(tmp_path)])
    assert_equal(values(resumed), values(whole))

    loaded = keras.models.load_model(tmp_path / "half.keras")
    assert type(loaded) is type(half) and loaded.get_config().keys() == half.get_config().keys()
    # The names of the optimizer's variables are those of the objects that they belong to.
    for kept, now in zip(values(half).values(), values(loaded).values(), strict=True):
        np.testing.assert_array_equal(kept, now)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "replicas", "sides"),
    [
        *((name, replicas, (8, 8)) for name in OTHERS for replicas in (2, 4)),
        *((name, 2, (8, 8, 5, 5)) for name in ("ssl_hsic", "swav", "lejepa")),
    ],
)
def test_replicas_train_as_one_device_does(name, replicas, sides, images):
    """Three steps of training; a factor of the number of replicas would change a move by tenths of it."""
    none, local, runs = views.get(None).to_dict(), sides.count(5), []
    off = {"probability": (0.0,) * len(sides)}
    policy = views.ViewPolicy.from_dict(
        none | {"size": 8, "local": {"count": local}, "blur": off, "solarize": off}
    )
    crops = {
        f"view{1 + index}": np.clip(images[:, :side, :side] + 9 * index, 0, 255).astype("uint8")
        for index, side in enumerate(sides)
    }
    for count in (1, replicas):
        with strategy(f"cpu:{count}").scope():
            model = made(name, policy, side=None)
        start = values(model)
        data = {**crops, "label": np.arange(24) % 3}
        history = model.fit(data, batch_size=BATCH, verbose=0).history
        runs.append((start, values(model), history))
    (start, one, history), (_, many, other) = runs
    for key, value in one.items():
        move = np.max(np.abs(value - start[key]), initial=0.0)
        np.testing.assert_allclose(many[key], value, rtol=0, atol=1e-3 * move + 1e-5, err_msg=key)
    for metric, value in history.items():
        np.testing.assert_allclose(other[metric], value, rtol=1e-3, atol=1e-4, err_msg=metric)


@pytest.mark.parametrize("name", ["moco", "swav"])
def test_the_state_of_a_loss_moves_with_the_steps_and_is_saved(name, images, tmp_path):
    model = made(name)
    before = values(model)
    model.fit(images, batch_size=BATCH, verbose=0)
    after = values(model)
    (variable, *_) = [key for key in after if key.startswith("objective/")]
    assert not np.array_equal(before[variable], after[variable])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(values(again)[variable], after[variable])


LOCAL = views.multi_crop(8, local_size=5, num_local=3)


@pytest.mark.parametrize("name", ["ssl_hsic", "simsiam", "swav"])
def test_local_views_pass_the_online_networks_together_and_no_others(name, images):
    """By moving statistics, so that one pass for several views is the same as one for each."""
    model = made(name, LOCAL, side=None)
    given = views.make_views(images[:4], LOCAL, [0, 1])
    found, features = model.hiddens(given, training=False)
    projections = [model.projector(model.encoder(x)) for x in given]
    online = projections if model.predictor is None else [model.predictor(x) for x in projections]
    target = projections[:2] if model.predictor is not None else None
    if model.target:
        target = [model.target_projector(model.target_encoder(x)) for x in given[:2]]
    assert found.num_global == 2 and (found.target is None) == (target is None)
    # Sums of at most 27 products, six layers after each other, on numbers below 10.
    close = {"rtol": 0, "atol": 6 * 27 * 10 * 2.0**-24}
    np.testing.assert_allclose(found.online, np.stack(online, axis=1), **close)
    if target is not None:
        np.testing.assert_allclose(found.target, np.stack(target, axis=1), **close)
    np.testing.assert_allclose(features, model.encoder(given[0]), **close)


@pytest.mark.slow
def test_every_method_trains_on_views_of_two_sizes(images, tmp_path):
    for name in ("ssl_hsic", *OTHERS):
        model = made(name, LOCAL, side=None)
        history = model.fit(images, batch_size=BATCH, verbose=0).history
        assert all(np.all(np.isfinite(seen)) for seen in history.values()), name
    with pytest.raises(ValueError, match="8 x 8 x 3, and the views are 5 x 5 x 3"):
        made("swav", LOCAL).fit(images, batch_size=BATCH, verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").policy == LOCAL


def test_prototypes_are_trained_with_the_networks_once_they_are_free(images):
    model = made("swav")
    prototypes, steps = model.objective.variables
    assert any(v is prototypes for v in model.trained_variables)
    before = prototypes.numpy()
    for step in range(3):
        model.train_on_batch(images[:8])
        moved = np.abs(prototypes.numpy() - before).max()
        # While they stay, they are divided by a norm near 1 and the decay of LARS makes them no more than shorter.
        assert (moved > 1e-4) == (step == 2), (step, moved)
    assert int(steps.numpy()) == 3


@pytest.mark.slow
def test_the_targets_decay_rises_to_one_or_stays_as_the_method_has_it(images):
    rates = {}
    for name in ("byol", "moco"):
        model = made(name)
        assert model.target_decay.base == type(model).target_ema
        rates[name] = model.fit(images, batch_size=BATCH, epochs=2, verbose=0).history["tau"]
    # The last of each epoch, at the updates 2 and 5 of 6.
    cosine = [1 - 0.004 * (np.cos(np.pi * t / 6) + 1) / 2 for t in (2, 5)]
    np.testing.assert_allclose(rates["byol"], cosine, rtol=1e-6)
    np.testing.assert_allclose(rates["moco"], 0.999, rtol=1e-6)
    model.fit(images, batch_size=BATCH, verbose=0, callbacks=[callbacks.TargetEMA(0.9)])
    assert float(model.target_decay(1000)) == np.float32(0.9)


HEADS = {
    "ssl_hsic": ["4096 bn relu", "256"],
    "byol": ["4096 bn relu", "256"],
    "simclr": ["2048 bn relu", "128 bn"],
    "moco": ["2048 relu", "128 bias"],
    "barlow_twins": ["8192 bn relu", "8192 bn relu", "8192"],
    "vicreg": ["8192 bn relu", "8192 bn relu", "8192"],
    "simsiam": ["2048 bn relu", "2048 bn relu", "2048 fixed bn"],
    "swav": ["2048 bn relu", "128 bias"],
    "lejepa": ["2048 bn relu", "2048 bn relu", "64 bias"],
}


def described(head):
    """The layers of a head, one a linear layer; the bias of a hidden layer goes without saying."""
    found = []
    for layer in head.layers:
        if isinstance(layer, keras.layers.Dense):
            found.append(f"{layer.units}" + (" bias" if layer.use_bias and layer.name == "output" else ""))
        elif isinstance(layer, keras.layers.BatchNormalization):
            found[-1] += " bn" if layer.scale and layer.center else " fixed bn"
        elif isinstance(layer, keras.layers.ReLU):
            found[-1] += " relu"
    return found


def test_heads_are_those_of_the_papers(monkeypatch):
    # Shapes alone are looked at.
    monkeypatch.setattr("keras_sslhsic.encoders.heads.fan_in_normal", lambda _: "zeros")
    monkeypatch.setattr(
        "keras_sslhsic.encoders.copying.copy_of", lambda network, name: keras.models.clone_model(network)
    )
    for name, expected in HEADS.items():
        model = methods.METHODS[name](encoder())
        assert described(model.projector) == expected, name
        assert (model.predictor is not None) == (name in ("ssl_hsic", "byol", "simsiam")), name
        assert model.target == (name in ("ssl_hsic", "byol", "moco")), name
        if model.predictor is not None:
            narrow = ["512 bn relu", "2048 bias"] if name == "simsiam" else expected
            assert described(model.predictor) == narrow, name


def test_the_page_on_curves_names_what_is_logged(images):
    logged = set()
    for name in methods.METHODS:
        model = made(name, run_eagerly=True)
        logged |= set(model.fit(images[:BATCH], np.arange(BATCH) % 3, batch_size=BATCH, verbose=0).history)
    page = (Path(__file__).parents[2] / "docs" / "curves.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", rows)) <= logged <= set(re.findall(r"`(\w+)`", page))
