"""Whatever people give Keras, to every entry point of a trainer: the right values, or a sentence that says what to do."""

import contextlib
import warnings
from pathlib import Path

import given
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic import LARS, SSLHSIC, callbacks, data, losses, strategy, views
from keras_sslhsic.encoders import with_preprocessing
from keras_sslhsic.training import streams

PACKAGE = str(Path(keras_sslhsic.__file__).parent)
N = 16
ARRAYS = {"array", "tensor", "dict", "HDF5", "memory map", "floats in [0, 255]", "float64", "int64"}
BATCHES = {"dataset", "dataset of pairs", "dataset of dicts", "dataset of floats"}
BATCHES |= {"PyDataset", "PyDataset of lists", "PyDataset of dicts", "PyDataset of floats"}
GENERATORS = {"generator", "generator of lists", "generator of dicts"}
ONCE = GENERATORS | {"dataset of unknown batches"}  # read to their end, in batches of any size
TAKEN = {
    "fit": ARRAYS | BATCHES | GENERATORS | {"handle"},
    "evaluate": ARRAYS | BATCHES | ONCE | {"handle"},
    "validation_data": ARRAYS | BATCHES | ONCE | {"handle"},
    "predict": ARRAYS
    | BATCHES
    | ONCE
    | {"handle", "dataset of one-hot labels", "a batch of one"}
    | {"dataset of unknown shape"},
    "call": ARRAYS | {"a batch of one"},
    "train_on_batch": ARRAYS,
    "test_on_batch": ARRAYS,
    "predict_on_batch": ARRAYS | {"a batch of one"},
}
LABELS = {"int64", "int32", "uint8", "list", "column", "floats", "booleans", "one class", "None"}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def network():
    images = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", use_bias=False)(images)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))


def build(**arguments):
    keras.utils.set_random_seed(1)
    small = {"projector_hidden": 8, "projection_dim": 4, "views": views.small_image(8)}
    return SSLHSIC(network(), **(small | arguments))


@pytest.fixture(scope="module")
def photos():
    return given.photos(N)


@pytest.fixture(scope="module")
def doors(photos):
    """{name: what a door makes of an argument}, of one model that begins anew each time."""
    model = build(num_classes=3, target=False)
    model.compile(LARS(0.1), losses.SSLHSICLoss(gamma=1.0), run_eagerly=True)
    variables = [*model.variables, *model.optimizer.variables, *model.objective.variables]
    start = [v.numpy() for v in variables]

    def fresh():
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        return model

    def fit(x, y=None, name="loss", **arguments):
        return fresh().fit(x, y, batch_size=given.BATCH, verbose=0, **arguments).history[name][0]

    return {
        "fit": fit,
        "evaluate": lambda x: fresh().evaluate(x, batch_size=given.BATCH, return_dict=True, verbose=0)["loss"],
        "validation_data": lambda x: fit(photos[0], name="val_loss", validation_data=x, steps_per_epoch=1),
        "predict": lambda x: fresh().predict(x, batch_size=given.BATCH, verbose=0),
        "call": lambda x: fresh()(x),
        "train_on_batch": lambda x: fresh().train_on_batch(x, return_dict=True)["loss"],
        "test_on_batch": lambda x: fresh().test_on_batch(x)[model.metrics_names.index("loss")],
        "predict_on_batch": lambda x: fresh().predict_on_batch(x),
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected(doors, photos):
    """door -> what it makes of the array, and of a dataset of its batches in their order."""
    values = {name: doors[name](photos[0]) for name in TAKEN}
    return values | {"batches": doors["fit"](given.dataset(*photos))}


def refused(function, *arguments, **named):
    """Runs what must raise a ValueError of the package, and returns its sentence."""
    with pytest.raises(ValueError) as caught:
        function(*arguments, **named)
    assert str(caught.traceback[-1].path).startswith(PACKAGE)
    message = str(caught.value)
    assert message.endswith(".") and len(message.split()) > 4
    return message


@pytest.mark.parametrize("form", given.FORMS)
@pytest.mark.parametrize("door", TAKEN)
def test_every_door_takes_every_form_or_says_what_to_do(doors, expected, photos, tmp_path, door, form):
    if (door, form) == ("validation_data", "None"):
        return  # nothing to validate on
    x = given.FORMS[form](*photos, tmp_path)
    if form not in TAKEN[door]:
        refused(doors[door], x)
        return
    value = doors[door](x)
    if form == "handle" and door in ("evaluate", "validation_data"):
        assert np.isfinite(value)  # its epoch has an order of its own
        return
    wanted = expected["batches"] if door == "fit" and form in BATCHES | ONCE else expected[door]
    np.testing.assert_allclose(value, wanted[: len(value)] if np.ndim(value) else wanted, **CLOSE)


@pytest.mark.parametrize("kind", given.LABELS)
def test_labels_of_every_kind(doors, photos, kind):
    x, y = photos
    labels = given.LABELS[kind](y)
    if kind not in LABELS:
        refused(doors["fit"], x, labels)
    elif kind == "None":
        assert np.isfinite(doors["fit"](x))
    else:
        wanted = np.asarray(labels).reshape(-1).astype(int)
        values = [doors["fit"](x, one, "classifier_loss", steps_per_epoch=1) for one in (labels, wanted)]
        assert values[0] == values[1]
    if labels is None or kind in ("too few", "list"):
        return
    batches = given.dataset(x, np.asarray(labels))
    if kind in LABELS:
        assert np.isfinite(doors["fit"](batches, name="classifier_loss", steps_per_epoch=1))
    else:
        refused(doors["fit"], batches)


def test_labels_of_more_classes_than_the_model_has(doors, photos, tmp_path):
    x, y = photos
    later = given.dataset(x, y + (np.arange(N) >= 8))  # in the second batch alone
    for door in ("fit", "validation_data"):
        assert "Labels must be below num_classes, 3, found 3" in refused(
            doors[door], {"image": x, "label": y + 1} if door == "fit" else (x, y + 1)
        )
    model = build(num_classes=3, target=False)
    model.compile(LARS(0.1), run_eagerly=True)
    for labels in (y + 1, y + np.arange(N)):
        refused(model.evaluate, x, labels)
        refused(model.train_on_batch, x, labels)
    found = model.evaluate(later, verbose=0, return_dict=True)
    assert np.isnan([found["classifier_loss"], found["online_accuracy"]]).all() and np.isfinite(found["loss"])
    for name in "abcd":
        (tmp_path / name).mkdir()
        keras.utils.save_img(tmp_path / name / "1.png", x[0])
    assert "found 3" in refused(model.fit, data.from_folder(tmp_path, batch_size=4, image_size=10))


class Uneven(keras.utils.PyDataset):
    """Batches of 6, a last one of 4; says when an epoch is over."""

    def __init__(self, images, batches=3):
        super().__init__()
        self.images, self.num_batches, self.epochs = images, batches, 0

    num_batches = None

    def __getitem__(self, index):
        return self.images[6 * index % N :][:6]

    def on_epoch_end(self):
        self.epochs += 1


@pytest.mark.parametrize(("size", "expected"), [(8, [8, 8, 6]), (7, [7, 7, 7])])
def test_evaluate_measures_all_images_of_a_handle(size, expected):
    """But for a last one, of which alone nothing can be measured; training leaves out what fills no batch."""
    images = data.from_arrays(np.arange(22, dtype=np.uint8).reshape(22, 1, 1, 1), batch_size=size)
    found = [batch["image"] for batch in streams.to_evaluate(images, 1).as_numpy_iterator()]
    assert [len(batch) for batch in found] == expected
    assert len({*np.concatenate(found).ravel().tolist()}) == sum(expected)


def test_a_last_batch_of_another_size_is_evaluated_and_not_trained_on(doors, photos):
    x, _ = photos
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that it ends is no surprise
        assert doors["predict"](Uneven(x)).shape == (N, 4)
    batches = Uneven(x)
    whole = tf.data.Dataset.from_tensor_slices(x[:12]).batch(6, drop_remainder=True)
    assert doors["fit"](batches) == doors["fit"](whole)
    assert batches.epochs >= 1


class Sized(keras.utils.PyDataset):
    """Batches of the given sizes."""

    def __init__(self, images, *sizes):
        super().__init__()
        self.batches, self.num_batches = [images[:size] for size in sizes], len(sizes)

    num_batches = None

    def __getitem__(self, index):
        return self.batches[index]


def test_batches_of_other_sizes_are_not_left_out_in_silence(doors, photos):
    x, _ = photos
    assert "6 images in the first and 8 in the last" in refused(doors["fit"], Sized(x, 6, 8, 8))
    with pytest.warns(UserWarning, match="Batches of 4 images are left out: the first has 6"):
        found = doors["fit"](Sized(x, 6, 4, 6, 3))
    assert found == doors["fit"](Sized(x, 6, 6))
    batches = (x[:size] for size in (6, 8, 6))
    with pytest.warns(UserWarning, match="Batches of 8 images"):
        assert doors["fit"](batches, steps_per_epoch=2) == found


def test_views_of_an_image_that_would_be_the_same_are_refused(photos):
    x, _ = photos
    model = build(views=None)
    model.compile(LARS(0.1), run_eagerly=True)
    assert "views=None" in refused(model.fit, x, batch_size=4)
    for door in (model.evaluate, model.train_on_batch):
        assert "views=None" in refused(door, x)
    pairs = tf.data.Dataset.from_tensor_slices((x, x[:, ::-1])).batch(4, drop_remainder=True)
    assert "'view1': one, 'view2': other" in refused(model.fit, pairs)


def test_a_classifier_without_labels_is_warned_of(photos):
    model = build(num_classes=3)
    model.compile(LARS(0.1), run_eagerly=True)
    with pytest.warns(UserWarning, match="classifier of 3 classes is not trained"):
        model.fit(photos[0], batch_size=given.BATCH, verbose=0)


def test_a_generator_keeps_its_first_batch(doors, photos):
    found = doors["fit"](given.FORMS["generator"](*photos, None), steps_per_epoch=2)
    assert found == doors["fit"](given.dataset(*photos))
    assert "read once" in refused(doors["fit"], given.FORMS["generator"](*photos, None), epochs=2)
    assert "empty" in refused(doors["predict"], iter_nothing())
    loader = given.FORMS["loader of another library"](*photos, None)
    assert "give a generator of its batches" in refused(doors["fit"], loader)


def test_batches_that_keras_could_not_read_are_named(doors, photos):
    x, y = photos
    names = np.array(["one.png"] * len(x))
    assert "'path' of <U7" in refused(doors["fit"], ({"image": x, "path": names} for _ in range(2)))
    assert "'path'" in refused(
        doors["predict"], given.Pairs(x, y, lambda a, b: {"image": a, "path": names[: len(a)]})
    )
    sizes = (x[:, :size, :size] for size in (10, 8))
    assert "10 x 10 x 3 and of others" in refused(doors["fit"], sizes, steps_per_epoch=2)


def test_arrays_stay_in_their_order_if_they_are_to(doors, photos):
    in_order = doors["fit"](*photos, shuffle=False)
    assert in_order == doors["fit"](given.dataset(*photos))
    assert in_order != doors["fit"](*photos, shuffle=True) == doors["fit"](*photos)


def iter_nothing():
    yield from ()


def test_what_has_no_end_is_read_for_the_steps_that_are_given(doors, photos):
    x, y = photos
    model = build()
    model.compile(LARS(0.1), run_eagerly=True)
    endless = (
        given.dataset(x).repeat(),
        data.from_arrays(x, y, batch_size=8, shuffle=False).batches(),
        Uneven(x, None),
    )
    for batches in endless:
        assert model.predict(batches, steps=2, verbose=0).shape == (
            16 if batches is not endless[2] else 12,
            4,
        )
        assert np.isfinite(model.evaluate(batches, steps=2, verbose=0, return_dict=True)["loss"])
        for door in (model.fit, model.evaluate, model.predict):
            assert "found none: give steps" in refused(door, batches)
    model.fit(endless[0], steps_per_epoch=2, validation_data=endless[1], validation_steps=1, verbose=0)
    assert int(model.step.numpy()) == 2
    assert "found none: give steps" in refused(model.fit, x, batch_size=8, validation_data=endless[1])


def test_batches_count_by_their_size_and_a_single_image_is_left_out(doors, photos):
    x, _ = photos
    whole, first, last = (doors["evaluate"](part) for part in (x[:11], x[:8], x[8:11]))
    assert whole == pytest.approx((8 * first + 3 * last) / 11, rel=1e-5)
    assert doors["evaluate"](x[:9]) == pytest.approx(first, rel=1e-6)
    unknown = tf.data.Dataset.from_tensor_slices(x[:9]).batch(8)
    assert doors["evaluate"](unknown) == pytest.approx(first, rel=1e-6)


def test_crops_in_arrays_come_in_batches_of_the_size_that_is_asked_for(doors, photos):
    x, y = photos
    crops = {"view1": x, "view2": x[:, ::-1], "label": y}
    model = build(views=None)
    model.compile(LARS(0.1), run_eagerly=True)
    for given_crops in (crops, {"view1": x / np.float32(255), "view2": x / np.float32(255)}):
        history = model.fit(given_crops, batch_size=4, verbose=0)
        assert history.params["steps"] == 4 and np.isfinite(history.history["loss"][0])
    assert np.isfinite(model.evaluate(crops, batch_size=8, verbose=0)[0])
    assert "crops are views to train on" in refused(model.predict, crops)
    assert "must lie in [0, 1]" in refused(model.fit, {"view1": x * 1.0, "view2": x * 1.0}, batch_size=4)
    assert "as many crops" in refused(model.fit, {"view1": x, "view2": x[:5]}, batch_size=4)


def test_replicas_leave_no_image_without_features_and_measure_what_they_can_share(photos):
    x, _ = photos
    with strategy("cpu:2").scope():
        model = build()
        model.compile(LARS(0.1))
    features = model.predict(x[:9], batch_size=8, verbose=0)
    one = build()
    np.testing.assert_allclose(features, one(x[:9]), **CLOSE)
    losses = [
        model.evaluate(part, batch_size=8, return_dict=True, verbose=0)["loss"] for part in (x[:9], x[:8])
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert "at least 2 images" in refused(model.evaluate, x[:1])


# Arguments ----------------------------------------------------------------------------------------------------------


class Subclassed(keras.Model):
    def call(self, x):
        return keras.ops.mean(x, (1, 2))


def _encoders():
    a, b, whole = keras.Input((8, 8, 3)), keras.Input((8, 8, 3)), keras.Input((8, 8, 3), dtype="uint8")
    pooled = keras.layers.GlobalAveragePooling2D()
    called = Subclassed()
    called(np.zeros([1, 8, 8, 3], "float32"))
    return {
        "subclassed": called,
        "never called": Subclassed(),
        "without input": keras.Sequential([keras.layers.Conv2D(4, 3), pooled]),
        "two outputs": keras.Model(a, [pooled(a), pooled(a)]),
        "named outputs": keras.Model(a, {"features": pooled(a)}),
        "two inputs": keras.Model([a, b], pooled(a) + pooled(b)),
        "maps": keras.Model(a, keras.layers.Conv2D(4, 3)(a)),
        "of integers": keras.Model(whole, pooled(whole)),
        "vectors": keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)]),
        "function": lambda x: x,
        "layer": keras.layers.Dense(3),
        "name": "r18_fashion",
        "None": None,
    }


@pytest.mark.parametrize("kind", _encoders())
def test_encoders_of_other_kinds_are_refused(kind):
    for door in (SSLHSIC, lambda encoder: with_preprocessing(encoder, 0.5, 0.2)):
        message = refused(door, _encoders()[kind])
        assert message.startswith("encoder must") and ("GlobalAveragePooling2D" in message) == (
            kind == "maps"
        )


def test_a_sequential_encoder_and_one_around_a_subclassed_model_are_taken():
    image = keras.Input((8, 8, 3))
    layers = [image, keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    for encoder in (keras.Sequential(layers), keras.Model(image, Subclassed()(image))):
        assert SSLHSIC(encoder, 8, 4)(np.zeros([2, 8, 8, 3], np.uint8)).shape[0] == 2


def test_a_network_that_cannot_be_copied_is_named():
    image = keras.Input((8, 8, 3))
    encoder = keras.Model(image, keras.layers.Lambda(lambda x: keras.ops.mean(x, (1, 2)))(image), name="mine")
    message = refused(SSLHSIC, encoder, 8, 4)
    assert message.startswith("The network 'mine' must be one that can be copied") and "keras.ops" in message
    assert SSLHSIC(encoder, 8, 4, target=False)(np.zeros([2, 8, 8, 3], np.uint8)).shape == (2, 3)


def test_integers_of_numpy(photos, tmp_path):
    model = build(
        num_classes=np.int64(3), projector_hidden=np.int32(8), projection_dim=np.int64(4), seed=np.int64(1)
    )
    model.compile(LARS(0.1), run_eagerly=True, steps_per_execution=np.int64(1))
    model.fit(*photos, batch_size=np.int64(8), epochs=np.int64(2), verbose=0)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").num_classes == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"class_weight": {0: 1.0, 1: 2.0}}, "class_weight is not supported"),
        ({"sample_weight": np.ones(N)}, "sample_weight is not supported"),
        ({"validation_split": 0.5}, "validation_split is not supported"),
        ({"validation_data": (1, 2, 3)}, "sample_weight is not supported"),
        ({"callbacks": callbacks.TargetEMA}, "must be objects of keras.callbacks.Callback"),
        ({"epochs": 1.5}, "epochs must be an integer"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be None or at least 1"),
        ({"x": (1, 2)}, "found a tuple: give the labels as y"),
        ({"x": given.dataset(np.zeros([8, 8, 8, 3], np.uint8)), "y": np.zeros(8)}, "found y beside"),
    ],
)
def test_arguments_that_have_no_meaning_here(photos, arguments, message):
    model = build(target=False)
    assert "compile" in refused(model.fit, photos[0])
    model.compile(LARS(0.1), run_eagerly=True)
    assert message in refused(model.fit, **({"x": photos[0], "batch_size": 8, "verbose": 0} | arguments))
    assert int(model.step.numpy()) == 0


def test_weights_of_samples_in_batches_are_refused(doors, photos):
    weighted = given.dataset(*photos).map(lambda x, y: (x, y, tf.ones(8)))
    for door in ("fit", "evaluate", "predict", "validation_data"):
        assert "leave out the weights of samples" in refused(doors[door], weighted)


@pytest.mark.parametrize("name", ["kernel_scale", "learn_kernel_scale"])
def test_arguments_of_before_say_where_they_went(name):
    assert f"{name} belongs to the loss now" in refused(build, **{name: 1})
    model = build()
    assert "kernel_optimizer belongs to the loss now" in refused(model.compile, kernel_optimizer="adam")
    assert "found metrics" in refused(model.compile, metrics=["accuracy"])
    assert "optimizer must be" in refused(model.compile, optimizer=None)
    model.compile("sgd", metrics=None)


def test_one_callback_and_validation_in_some_epochs(photos):
    model = build(target=False)
    model.compile(LARS(0.1), run_eagerly=True)
    epochs = []
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append("val_loss" in logs))
    model.fit(
        photos[0],
        batch_size=16,
        epochs=2,
        verbose=0,
        callbacks=told,
        validation_data=photos,
        validation_freq=2,
    )
    assert epochs == [False, True]
    model.predict(photos[0], verbose=0, callbacks=told)


def test_a_backup_that_goes_on_otherwise_is_warned_of(photos, tmp_path):
    model = build(target=False)
    model.compile(LARS(0.1), run_eagerly=True)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.warns(UserWarning, match=r"use keras_sslhsic\.callbacks\.Checkpoint"):
        model.fit(photos[0], batch_size=16, verbose=0, callbacks=[backup])


def test_files_and_exports(photos, tmp_path):
    model = build()
    with pytest.raises(ValueError, match=r"SSLHSIC is saved to NAME\.keras, found an HDF5 file"):
        model.save(tmp_path / "model.h5")
    with pytest.raises(ValueError, match=r"SSLHSIC is saved to NAME\.keras, found an HDF5 file"):
        keras.saving.save_model(model, tmp_path / "model.h5")
    (tmp_path / "model.h5").unlink()  # Keras opens it; what `save` refuses is not begun
    with pytest.raises(ValueError, match="choose that ending"):
        model.save(str(tmp_path / "other.hdf5"))
    model.compile(LARS(0.1), run_eagerly=True)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "model.h5")
    assert "choose that ending" in refused(model.fit, photos[0], batch_size=8, callbacks=[checkpoint])
    assert int(model.step.numpy()) == 0 and not list(tmp_path.iterdir())
    features = model.predict(photos[0], verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(photos[0].astype("float32")), features, **CLOSE)


@pytest.mark.parametrize("floatx", ["float32", "float64"])
def test_double_precision(photos, floatx, request):
    request.addfinalizer(lambda: keras.config.set_floatx("float32"))
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy("float64")
    model = build(num_classes=3, weight_ema=0.9)
    model.compile(LARS(0.1), run_eagerly=True)
    assert np.isfinite(model.fit(photos[0], batch_size=8, verbose=0).history["loss"][0])
    assert model.predict(photos[0], verbose=0).dtype == np.float64


@pytest.mark.slow
def test_features_of_half_precision_are_float32(photos):
    keras.config.set_dtype_policy("mixed_float16")
    model = build()
    features = model.predict(photos[0], verbose=0)
    np.testing.assert_array_equal(features, model.serving_encoder().predict(photos[0], verbose=0))
    assert features.dtype == np.float32


def test_single_batches_have_a_target_that_follows_at_its_base(photos):
    model = build()
    model.compile(LARS(0.1), run_eagerly=True)
    model.fit(photos[0], batch_size=8, verbose=0)
    for size in (8, 16):
        assert model.train_on_batch(photos[0][:size], return_dict=True)["tau"] == np.float32(0.99)
    assert int(model.step.numpy()) == 4
    assert "class_weight is not supported" in refused(model.train_on_batch, *photos, class_weight={0: 1.0})
    assert "sample_weight is not supported" in refused(model.test_on_batch, *photos, sample_weight=np.ones(N))
    with strategy("cpu:2").scope():
        shared = build()
        shared.compile(LARS(0.1))
    assert "found 2, and train_on_batch" in refused(shared.train_on_batch, photos[0])
    np.testing.assert_allclose(shared.predict_on_batch(photos[0][:3]), build()(photos[0][:3]), **CLOSE)


def test_channels_first_in_batches(doors, photos):
    first = np.moveaxis(photos[0], -1, 1)
    for batches in (given.Pairs(first, photos[1]), given.dataset(first)):
        assert "channels first: give np.moveaxis" in refused(doors["fit"], batches)
    assert "Channels come last: np.moveaxis" in refused(doors["predict"], first)


def test_several_steps_in_one_execution_change_nothing(photos):
    results = []
    for steps in (1, 2):
        model = build()
        model.compile(LARS(0.1), steps_per_execution=steps)
        x = photos[0][:11]
        results.append(
            [*model.evaluate(x, batch_size=4, verbose=0), *model.predict(x, batch_size=4, verbose=0).ravel()]
        )
    np.testing.assert_allclose(*results, **CLOSE)


def test_steps_that_do_not_divide_an_epoch_stay_within_it(photos):
    """Keras would run two calls of three steps in each epoch, on images of the next one."""
    weights = []
    for steps in (1, 3):
        model = build(target=False)
        model.compile(LARS(0.1), losses.SSLHSICLoss(gamma=1.0), run_eagerly=True, steps_per_execution=steps)
        with pytest.warns(UserWarning) if steps == 3 else contextlib.nullcontext() as told:
            model.fit(photos[0], batch_size=4, epochs=2, verbose=0)
        assert steps == 1 or any(
            "no multiple of steps_per_execution, 3: a call makes 2" in str(one.message) for one in told
        )
        assert int(model.optimizer.iterations) == 8 and model.steps_per_execution == steps
        weights.append(model.get_weights())
    for one, several in zip(*weights, strict=True):
        np.testing.assert_allclose(several, one, **CLOSE)


def test_a_decay_that_is_none_is_refused():
    for base, message in ((2.0, "base must be at most 1, found 2"), (-0.1, "base must be at least 0")):
        with pytest.raises(ValueError, match=message):
            callbacks.TargetEMA(base)
