import collections
import pickle
import sys
import types

import numpy as np
import pytest

from keras_sslhsic.encoders import Architecture
from keras_sslhsic.zoo import convert, unpickle
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.model_files import read_note

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
ARCHITECTURES = {
    "tiny": Architecture((1, 1, 1, 1), (8, 8, 8, 8), bottleneck=False),
    "bottleneck": Architecture((1, 2, 1, 1), (16, 32, 32, 64), bottleneck=True),
}


@pytest.fixture(params=ARCHITECTURES)
def name(request):
    return request.param


@pytest.fixture
def golden(name, data_folder):
    return np.load(data_folder / f"train_{name}.npz")


def outputs(networks, view, training=False):
    images = ((view - MEAN) / STD).astype(np.float32)
    embedding = networks.encoder(images, training=training)
    projection = networks.projector(embedding, training=training)
    return {
        "embedding": embedding,
        "projection": projection,
        "prediction": networks.predictor(projection, training=training),
        "logits": networks.classifier(embedding),
    }


def test_outputs_are_those_of_the_released_code(name, golden, data_folder):
    networks = convert.networks_from_checkpoint(data_folder / f"checkpoint_{name}.npy")
    assert networks.architecture == ARCHITECTURES[name]
    for key, value in outputs(networks, golden["view1"]).items():
        np.testing.assert_allclose(value, golden[f"eval/{key}"], atol=1e-4, err_msg=key)
    for view in ("view1", "view2"):
        for key, value in outputs(networks, golden[view], training=True).items():
            np.testing.assert_allclose(
                value, golden[f"train/{key}_{view}"], atol=1e-4, err_msg=f"{key}_{view}"
            )


def tree(golden, what):
    """Haiku's tree of a part of the final network, e.g. online/params."""
    found = collections.defaultdict(dict)
    for key in golden.files:
        if key.startswith(f"{what}/"):
            module, leaf = key.removeprefix(f"{what}/").rsplit("/", 1)
            found[module][leaf] = golden[key]
    return dict(found)


def byol_pickle(golden, path, monkeypatch, protocol=2, suffix=""):
    """A BYOL checkpoint: a named tuple of another package, and the stem's names with a suffix."""
    fields = ["online_params", "target_params", "online_state", "target_state", "opt_state"]
    state = collections.namedtuple("_ByolExperimentState", fields)
    module = types.ModuleType("byol.byol_experiment")
    state.__module__, module._ByolExperimentState = module.__name__, state
    monkeypatch.setitem(sys.modules, "byol", types.ModuleType("byol"))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def renamed(what):
        names = {n: n.replace("initial_conv", f"initial_conv{suffix}") for n in tree(golden, what)}
        names = {n: m.replace("initial_batchnorm", f"initial_batchnorm{suffix}") for n, m in names.items()}
        return {names[n]: leaves for n, leaves in tree(golden, what).items()}

    parts = [renamed(f"{who}_final/{part}") for part in ("params", "state") for who in ("online", "target")]
    value = {"experiment_state": state(*parts, ()), "step": 3, "rng": np.zeros(2, np.uint32)}
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize(("protocol", "suffix"), [(2, ""), (4, "_1")])
def test_a_byol_pickle_converts_to_the_same_outputs(name, golden, tmp_path, monkeypatch, protocol, suffix):
    path = byol_pickle(golden, tmp_path / "byol.pkl", monkeypatch, protocol, suffix)
    networks = convert.networks_from_checkpoint(path)
    assert networks.kernel_scale is None
    for key, value in outputs(networks, golden["view1"]).items():
        np.testing.assert_allclose(value, golden[f"eval/{key}"], atol=1e-4, err_msg=key)


def test_the_moving_average_is_what_is_taken(data_folder, tmp_path):
    value = np.load(data_folder / "checkpoint_tiny.npy", allow_pickle=True).item()
    online = value["experiment_state"]["online_params"]
    for leaves in online.values():  # spoiled: only the average may be read
        for leaf in leaves:
            leaves[leaf] = leaves[leaf] + 1
    np.save(tmp_path / "c.npy", value)
    expected = convert.read_checkpoint(data_folder / "checkpoint_tiny.npy")
    found = convert.read_checkpoint(tmp_path / "c.npy")
    for module, leaves in expected.params.items():
        for leaf, array in leaves.items():
            np.testing.assert_array_equal(found.params[module][leaf], array)
    scale = value["ema_state"]["kernel_params"]["hsic_loss"]["scale"]
    assert found.kernel_scale == pytest.approx(float(scale))


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_converted_files_load_as_encoders_of_pixels(name, golden, data_folder, tmp_path, suffix):
    report = convert.convert(data_folder / f"checkpoint_{name}.npy", tmp_path / f"a{suffix}")
    assert read_note(tmp_path / f"a{suffix}")["kernel_scale"] == report["kernel_scale"]
    assert report["method"] == "SSL-HSIC"
    # Pixels of 224 are taken as they are.
    pixels = np.kron(golden["view1"] * 255, np.ones((1, 7, 7, 1))).astype(np.float32)
    networks = convert.networks_from_checkpoint(data_folder / f"checkpoint_{name}.npy")
    expected = networks.encoder(((pixels / 255 - MEAN) / STD).astype(np.float32))
    encoder = load_pretrained(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(encoder(pixels), expected, atol=1e-4)
    maps = encoder.maps()(pixels)
    assert list(maps) == ["P2", "P3", "P4", "P5"]
    np.testing.assert_allclose(np.mean(maps["P5"], (1, 2)), encoder(pixels), rtol=1e-5, atol=1e-6)
    assert [p.name for p in tmp_path.iterdir()] == [f"a{suffix}"]


def test_heads_go_into_one_model_of_pixels(name, golden, data_folder, tmp_path):
    import keras

    checkpoint = data_folder / f"checkpoint_{name}.npy"
    of_views = convert.networks_model(convert.networks_from_checkpoint(checkpoint))
    for key, value in of_views(((golden["view1"] - MEAN) / STD).astype(np.float32)).items():
        np.testing.assert_allclose(value, golden[f"eval/{key}"], atol=1e-4, err_msg=key)

    convert.convert(checkpoint, tmp_path / "a.keras", heads=True)
    pixels = np.kron(golden["view1"] * 255, np.ones((1, 7, 7, 1))).astype(np.float32)  # 224, and not resized
    expected = of_views(((pixels / 255 - MEAN) / STD).astype(np.float32))
    found = keras.models.load_model(tmp_path / "a.keras")(pixels)
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], atol=1e-4, err_msg=key)
    # Those that were converted before read normalised images.
    of_views.save(tmp_path / "before.keras")
    for file in ("a.keras", "before.keras"):
        np.testing.assert_allclose(load_pretrained(tmp_path / file)(pixels), expected["embedding"], atol=1e-4)


def spoil(data_folder, tmp_path, change):
    value = np.load(data_folder / "checkpoint_tiny.npy", allow_pickle=True).item()
    change(value["ema_state"]["online_params"], value["experiment_state"]["online_state"])
    np.save(tmp_path / "spoiled.npy", value)
    return tmp_path / "spoiled.npy"


ROOT = "tiny_res_net/~"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda p, s: p.update({"extra": {"w": np.zeros(3)}}),
            "1 arrays of the checkpoint fit nowhere: extra/w",
        ),
        (lambda p, s: s.update({"extra/~/mean_ema": {"average": np.zeros(3)}}), "extra/~/mean_ema/average"),
        (lambda p, s: p.pop(f"{ROOT}/initial_batchnorm"), "no 'tiny_res_net/~/initial_batchnorm/scale'"),
        (lambda p, s: s.pop("projector/batch_norm/~/var_ema"), "no 'projector/batch_norm/~/var_ema/average'"),
        (lambda p, s: p.pop("predictor/linear"), "no matrix 'predictor/linear/w'"),
        (
            lambda p, s: p["classifier"].update(b=np.zeros(6, np.float32)),
            r"classifier/b has shape \(6,\), expected \(5,\)",
        ),
        (lambda p, s: p["classifier"].update(w=np.full((8, 5), np.nan)), "classifier/w holds NaN"),
        (
            lambda p, s: s[f"{ROOT}/initial_batchnorm/~/var_ema"].update(
                average=-s[f"{ROOT}/initial_batchnorm/~/var_ema"]["average"]
            ),
            "var_ema/average holds negative variances",
        ),
        (lambda p, s: p["classifier"].update(b=np.array(list("abcde"))), "refused an array .* of dtype U1"),
        (lambda p, s: p["classifier"].update(b=np.ones(5, bool)), "classifier/b has dtype bool"),
        (lambda p, s: p["classifier"].update(b=np.ones(5, complex)), "classifier/b has dtype complex128"),
        (lambda p, s: p["classifier"].update(b=10**400), "classifier/b has dtype object"),
        (lambda p, s: p["classifier"].update(b=[1, 2, 3, 4, 5]), "classifier/b is a list, expected an array"),
        (lambda p, s: p["classifier"].update(b="x"), "classifier/b is a str, expected an array"),
        (lambda p, s: p["classifier"].update(b=None), "classifier/b is a NoneType, expected an array"),
        (
            lambda p, s: p["classifier"].update(b=np.zeros((0, 10**9))),
            r"classifier/b has shape \(0, 1000000000\)",
        ),
        (
            lambda p, s: p["classifier"].update(b=np.full(5, 1e39)),
            "classifier/b holds .* too large for float32",
        ),
        (lambda p, s: p.update(classifier=[np.zeros(3)]), "online_params: expected Haiku parameters"),
        (
            lambda p, s: p.update({f"m{i}": {"w": np.zeros(1)} for i in range(99)}),
            "99 arrays .*m17/w and 89 more",
        ),
        (
            lambda p, s: p.update({f"{ROOT}/initial_conv_1": p[f"{ROOT}/initial_conv"]}),
            "1 arrays of the checkpoint share their names",
        ),
        (
            lambda p, s: p.update({"b/~/initial_conv": {"w": np.zeros(1)}}),
            "one residual network, found 2: b, tiny",
        ),
        (lambda p, s: p[f"{ROOT}/initial_conv"].update(w=np.zeros(3)), "no kernel .*initial_conv/w"),
        (
            lambda p, s: p[f"{ROOT}/initial_conv"].update(w=np.zeros((5, 5, 3, 64))),
            "3x3 or 7x7 .*5, 5, 3, 64",
        ),
        # As wide as the last kernel says, the rest would take terabytes: shapes are compared before anything is built.
        (
            lambda p, s: p[f"{ROOT}/block_group_0/~/block_0/~/conv_1"].update(
                w=np.zeros((1, 1, 1, 10**6), np.int8)
            ),
            r"block_0/~/conv_0/w has shape \(3, 3, \d+, 8\), expected \(3, 3, \d+, 1000000\)",
        ),
        (
            lambda p, s: p["projector/linear"].update(w=np.zeros((8, 10**6), np.int8)),
            r"projector/linear_1/w has shape .* expected \(1000000, any\)",
        ),
        (
            lambda p, s: p["classifier"].update(w=np.zeros((10**6, 5), np.int8)),
            r"classifier/w has shape \(1000000, 5\), expected \(8, any\)",
        ),
        (
            lambda p, s: p.update({f"{ROOT}/block_group_0/~/block_{10**50}/~/conv_0": {"w": np.zeros(1)}}),
            "of at most 500 blocks",
        ),
        (lambda p, s: p.update({f"{ROOT}/block_group_7/~/block_0/~/conv_0": {"w": np.zeros(1)}}), "from 0"),
        (lambda p, s: p.update({f"{ROOT}/block_group_0/~/block_0/~/conv_9": {"w": np.zeros(1)}}), "found 10"),
        (lambda p, s: p.pop(f"{ROOT}/initial_conv"), "one residual network"),
        (
            lambda p, s: p.update(
                {f"{ROOT}/block_group_0/~/block_1/~/conv_0": {"w": np.zeros((3, 3, 8, 8))}}
            ),
            "no 'tiny_res_net/~/block_group_0/~/block_1/~/conv_0/w'|block_1",
        ),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_written(change, message, data_folder, tmp_path):
    source = spoil(data_folder, tmp_path, change)
    with pytest.raises(ValueError, match=message):
        convert.convert(source, tmp_path / "out" / "a.weights.h5")
    assert not (tmp_path / "out").exists()


def test_another_architecture_than_expected_is_an_error(data_folder, tmp_path):
    with pytest.raises(ValueError, match=r"channels=\(8, 8, 8, 8\).*expected r50_1x"):
        convert.convert(data_folder / "checkpoint_tiny.npy", tmp_path / "a.weights.h5", expect="r50_1x")
    with pytest.raises(ValueError, match=r"must end in .weights.h5 or .keras, found 'a.pt'"):
        convert.convert(data_folder / "checkpoint_tiny.npy", tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"need a .keras target"):
        convert.convert(data_folder / "checkpoint_tiny.npy", tmp_path / "a.weights.h5", heads=True)


@pytest.mark.parametrize("part", ["kernel_params", "online_params"])
@pytest.mark.parametrize("value", [None, 3, [], {}, {"hsic_loss": {"scale": np.ones(2)}}, {"a": {"b": {}}}])
def test_other_averages_are_said(part, value, data_folder, tmp_path):
    checkpoint = np.load(data_folder / "checkpoint_tiny.npy", allow_pickle=True).item()
    checkpoint["ema_state"][part] = value
    np.save(tmp_path / "c.npy", checkpoint)
    with pytest.raises(ValueError, match=r"[.]$"):
        convert.networks_from_checkpoint(tmp_path / "c.npy")
    checkpoint["ema_state"] = value
    np.save(tmp_path / "c.npy", checkpoint)
    with pytest.raises(ValueError, match=r"c\.npy has no kernel_params in its ema_state"):
        convert.read_checkpoint(tmp_path / "c.npy")
    del checkpoint["ema_state"]
    np.save(tmp_path / "c.npy", checkpoint)
    with pytest.raises(ValueError, match=r"c\.npy has a kernel, .* and no ema_state"):  # and is not BYOL's
        convert.read_checkpoint(tmp_path / "c.npy")


@pytest.mark.parametrize(
    "value",
    [
        *({"a": 1}, [1, 2], "text", None, {"experiment_state": None}, {"experiment_state": [1]}),
        {"experiment_state": {"online_params": {}}},
        {f"part{i}": i for i in range(10**5)},
    ],
)
def test_other_pickles_are_no_checkpoints(value, tmp_path):
    (tmp_path / "other.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(ValueError, match=r"other\.pkl is not an SSL-HSIC or BYOL checkpoint") as caught:
        convert.read_checkpoint(tmp_path / "other.pkl")
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_malicious_checkpoint_is_refused(tmp_path):
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(unpickle.UnsafePickleError, match=r"os\.system"):
        convert.convert(tmp_path / "evil.pkl", tmp_path / "a.weights.h5")


def test_haiku_names_of_every_layer():
    assert convert.haiku_name("stem_conv") == "initial_conv"
    assert convert.haiku_name("stem_bn") == "initial_batchnorm"
    assert convert.haiku_name("group2_block11_bn1") == "block_group_2/~/block_11/~/batchnorm_1"
    assert convert.haiku_name("group3_block0_shortcut_bn") == "block_group_3/~/block_0/~/shortcut_batchnorm"
