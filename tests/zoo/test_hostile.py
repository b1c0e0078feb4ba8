"""Files of strangers: whatever they hold, loading ends soon, in a network or in an error of one sentence."""

import copy
import io
import json
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest

from keras_sslhsic import compat
from keras_sslhsic.encoders import Architecture, EncoderSpec, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.zoo import convert, model_files
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.save import save_pretrained

SHAPE = Architecture((1,), (2,), bottleneck=False, stem_channels=2)
SPEC = EncoderSpec(None, None, 3, 2, (8, 8), False, (0.5,) * 3, (0.25,) * 3, "tiny")
NOTE = {
    "architecture": None,
    "shape": SHAPE._asdict(),
    "stem": "small",
    "channels": 3,
    "spec": SPEC.to_dict(),
}
WRONG = [
    None,
    True,
    -1,
    0,
    2**40,
    1.5,
    float("nan"),
    "a\nb\x1b[31m",
    "x" * 10_000,
    [],
    [0],
    [[2]],
    ["a"],
    {},
    {"a": 1},
]


@pytest.fixture(scope="module")
def network():
    return resnet(SHAPE, (None, None, 3), "small", "tiny")


@pytest.fixture(scope="module")
def encoder():
    """The smallest one whose config has layers of several kinds."""
    images = keras.Input((4, 4, 3))
    x = keras.layers.Rescaling(1 / 255)(images)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3, name="conv")(x))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x), name="tiny")


@pytest.fixture
def weights(network, tmp_path):
    """A file of weights with a note; returns a function that writes another note into it."""
    path = tmp_path / "a.weights.h5"

    def write(note):
        model_files.save_model(network, path, note)
        return path

    write(NOTE)
    return write


@pytest.fixture
def archive(encoder, tmp_path):
    """A .keras file; returns a function that writes other members into it."""
    content = compat.archive(encoder)
    path = tmp_path / "a.keras"

    def write(compression=zipfile.ZIP_STORED, **members):
        with (
            zipfile.ZipFile(io.BytesIO(content)) as source,
            zipfile.ZipFile(path, "w", compression) as target,
        ):
            for name in source.namelist():
                target.writestr(name, members.pop(name.split(".")[0], source.read(name)))
            for name, data in members.items():
                target.writestr(name, data)
        return path

    write.config = json.loads(zipfile.ZipFile(io.BytesIO(content)).read("config.json"))
    write.weights = zipfile.ZipFile(io.BytesIO(content)).read("model.weights.h5")
    return write


def loads_or_says(path, name="a."):
    """Loads an encoder, or sees that the error is a sentence that names the file."""
    try:
        return load_pretrained(path)
    except (ValueError, OSError) as error:
        message = str(error)
        assert name in message and message.endswith("."), message
        assert message.isprintable() and len(message) < 2000, message
        return None


def with_value(tree, path, value):
    """The tree with another value at a place."""
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return tree


def places(tree, path=()):
    """Where a tree of JSON has values."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.slow
def test_every_field_of_a_note_may_be_wrong(weights):
    assert loads_or_says(weights(NOTE)) is not None
    note = json.loads(json.dumps(NOTE))
    for path in places(note):
        for value in WRONG[len(path) :: 4]:
            loads_or_says(weights(with_value(note, path, value)))
        if path[0] != "architecture":
            without = with_value(note, path, None)
            inner = without
            for key in path[:-1]:
                inner = inner[key]
            del inner[path[-1]]
            assert (
                loads_or_says(weights(without)) is None
                or path[0] == "spec"
                or path == ("shape", "stem_channels")
            )


@pytest.mark.slow
def test_every_field_of_a_spec_may_be_wrong(network, tmp_path):
    encoder = with_preprocessing(network, 0.5, [0.25, 0.5, 0.25], size=4)
    path = tmp_path / "a.keras"
    encoder.save(path)
    content = path.read_bytes()
    spec = json.loads(json.dumps(encoder.spec.to_dict()))

    def loaded(given):
        with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                own = json.dumps({"spec": given}) if name == f"{compat.NOTE}.json" else source.read(name)
                target.writestr(name, own)
        found = loads_or_says(path)
        if found is not None and found.spec.stages:
            found.maps()
        return found

    assert loaded(spec).spec == encoder.spec
    for field in ("channels", "feature_size", "stages"):
        assert loaded({name: value for name, value in spec.items() if name != field}) is None
    for place in places(spec):
        for value in WRONG[len(place) :: 4]:
            loaded(with_value(spec, place, value))
    for wrong in (
        "a\nb\x1b[31m",
        None,
        [],
        [0],
        {"a": 1},
        {**spec, "height": 7},
        {**spec, "feature_size": 3},
    ):
        assert loaded(wrong) is None


@pytest.mark.parametrize(
    "shape",
    [
        {"channels": [60000]},
        {"channels": [2**31]},
        {"blocks": [10**9]},
        {"blocks": [900]},
        {"stem_channels": 2**31},
        {"blocks": [1] * 10_000, "channels": [2] * 10_000},
    ],
)
def test_a_note_of_a_network_that_is_larger_than_its_file(weights, shape):
    with pytest.raises(
        ValueError, match=r"a\.weights\.h5 does not hold the weights of resnet, .* asks for more than the"
    ):
        load_pretrained(weights({**NOTE, "shape": {**SHAPE._asdict(), **shape}}))


@pytest.mark.parametrize("note", ["{", "[]", "[" * 5000, "3", b"\xff", np.zeros(3)])
def test_a_note_that_is_none(weights, note):
    path = weights(NOTE)
    with h5py.File(path, "r+") as file:
        file.attrs[compat.NOTE] = note
    with pytest.raises(ValueError, match=r"a\.weights\.h5 is not a readable model file: .*\."):
        load_pretrained(path)


def test_every_value_of_a_config_may_be_wrong(archive):
    assert loads_or_says(archive()) is not None
    paths = list(places(archive.config))
    rng = np.random.default_rng(0)
    for index in rng.permutation(len(paths))[:60]:
        value = WRONG[rng.integers(len(WRONG))]
        loads_or_says(archive(config=json.dumps(with_value(archive.config, paths[index], value))))


def test_bits_of_all_kinds_of_files_may_flip(archive, weights):
    rng = np.random.default_rng(0)
    for path in (weights(NOTE), archive()):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(15):
            flipped = content.copy()
            # Most of what is not numbers is at the beginning.
            flipped[rng.integers(0, rng.choice([200, 4000, len(content)]), 3)] ^= np.uint8(
                1 << rng.integers(8)
            )
            path.write_bytes(flipped.tobytes())
            loads_or_says(path)
            path.write_bytes(content[: rng.integers(len(content))].tobytes())
            assert loads_or_says(path) is None


def test_layers_larger_than_the_file(archive):
    config = copy.deepcopy(archive.config)
    conv = next(item for item in config["config"]["layers"] if item["name"] == "conv")
    conv["config"]["filters"] = 2**34
    with pytest.raises(
        ValueError, match=r"a\.keras is not a readable Keras model: it asks for more than the .* weights"
    ):
        load_pretrained(archive(config=json.dumps(config)))


def test_variables_are_counted_together_and_by_generators_with_a_state_too():
    def build(initializer):
        layers = [keras.layers.Dense(10, kernel_initializer=initializer) for _ in range(2)]
        return keras.Sequential([keras.Input((10,)), *layers])

    for initializer in (
        "glorot_uniform",
        keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(1)),
    ):
        with compat.variables_within(4, 220):
            build(initializer)
        for most in ((4, 219), (3, 220)):
            with pytest.raises(ValueError, match="asks for more than the"), compat.variables_within(*most):
                build(initializer)
    build("glorot_uniform")


def test_archives_that_inflate(archive):
    assert loads_or_says(archive(zipfile.ZIP_DEFLATED)) is not None
    for bomb in ({"config": b" " * 2**26}, {"extra": bytes(2**26)}):
        with pytest.raises(ValueError, match="would inflate to 67,"):
            load_pretrained(archive(zipfile.ZIP_DEFLATED, **bomb))
    with pytest.raises(ValueError, match=r"its config\.json has 8,"):
        load_pretrained(archive(config=json.dumps(archive.config).encode() + b" " * 8_000_000))


@pytest.mark.parametrize("kind", ["keras", "weights"])
def test_arrays_that_are_declared_and_not_there(archive, weights, kind):
    path = weights(NOTE)
    content = io.BytesIO(archive.weights if kind == "keras" else path.read_bytes())
    with h5py.File(content, "r+") as file:
        file.create_dataset("bomb", (2**20, 2**20), np.float32, chunks=(1024, 1024), compression="gzip")
    if kind == "keras":
        path = archive(model=content.getvalue())
    else:
        path.write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r"a\..* declare arrays of 4,398"):
        load_pretrained(path)


def test_arrays_of_other_files(weights, tmp_path):
    path = weights(NOTE)
    (tmp_path / "secret").write_bytes(bytes(400))
    with h5py.File(path, "r+") as file:
        file.create_dataset("link", (100,), np.float32, external=[(str(tmp_path / "secret"), 0, 400)])
    with pytest.raises(ValueError, match="lie in other files"):
        load_pretrained(path)


@pytest.mark.parametrize(
    "link", [h5py.ExternalLink("other.h5", "/a"), h5py.SoftLink("/layers"), h5py.SoftLink("/")]
)
@pytest.mark.parametrize("name", ["vars", "layers/vars"])
def test_links_are_refused_before_a_network_is_built(weights, archive, monkeypatch, tmp_path, link, name):
    monkeypatch.setattr(compat, "variables_within", lambda *limits: pytest.fail("A network is built."))
    path = weights(NOTE)
    with h5py.File(path, "r+") as file:
        file[f"{name}_of_another"] = link
    with pytest.raises(ValueError, match=rf"its {name}_of_another is a link, expected an array or a group"):
        load_pretrained(path)
    content = io.BytesIO(archive.weights)
    with h5py.File(content, "r+") as file:
        file[f"{name}_of_another"] = link
    with pytest.raises(ValueError, match=rf"its {name}_of_another is a link, expected an array or a group"):
        load_pretrained(archive(model=content.getvalue()))


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": {"x": [1]}},
        {"architecture": 3},
        {"shape": {"blocks": [], "channels": [2], "bottleneck": False}},
        {"shape": {"blocks": [], "channels": [], "bottleneck": False}},
        {"shape": {"blocks": [1, 1], "channels": [2], "bottleneck": False}},
    ],
)
def test_notes_that_name_no_network(weights, change):
    with pytest.raises(ValueError, match="has a note that names no network: convert the checkpoint again"):
        load_pretrained(weights(NOTE | change))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite(network, encoder, tmp_path, bad):
    for model, path in ((network, tmp_path / "a.weights.h5"), (encoder, tmp_path / "a.keras")):
        copied = keras.models.clone_model(model)
        values = copied.get_weights()
        values[1].flat[0] = bad
        copied.set_weights(values)
        model_files.save_model(copied, path, NOTE)
        with pytest.raises(ValueError, match=r"a\..* holds NaN or infinity in .*(gamma|bias)"):
            load_pretrained(path)


def test_variances_below_zero(network, tmp_path):
    """A square root of theirs would be NaN in every feature."""
    copied = keras.models.clone_model(network)
    copied.set_weights(network.get_weights())
    variance = next(v for v in copied.variables if v.name == "moving_variance")
    variance.assign(-variance.numpy())
    model_files.save_model(copied, tmp_path / "a.weights.h5", NOTE)
    with pytest.raises(ValueError, match=r"a\.weights\.h5 holds negative variances in .*bn"):
        load_pretrained(tmp_path / "a.weights.h5")


def test_layers_of_code_are_refused(tmp_path):
    images = keras.Input((4, 4, 3))
    features = keras.layers.Flatten()(keras.layers.Lambda(lambda x: x * 2)(images))
    keras.Model(images, features).save(tmp_path / "a.keras")
    with pytest.raises(ValueError, match=r"a\.keras is not a readable Keras model: .*"):
        load_pretrained(tmp_path / "a.keras")


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.npy", "a.pkl", "pretrained.json"])
def test_only_regular_files_are_opened(encoder, tmp_path, name):
    if name == "pretrained.json":
        save_pretrained(encoder, tmp_path)
        (tmp_path / name).unlink()
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(tmp_path / name)
        with pytest.raises(OSError, match=f"{name} is a (named pipe|device)"):
            load_pretrained(tmp_path if name == "pretrained.json" else tmp_path / name)
        (tmp_path / name).unlink()


def test_every_field_of_an_entry_may_be_wrong(encoder, tmp_path):
    save_pretrained(encoder, tmp_path / "a.saved", metrics={"kNN": 1.0}, width=0.5)
    file = tmp_path / "a.saved" / "pretrained.json"
    good = json.loads(file.read_text())
    for path in places(good):
        for value in WRONG:
            file.write_text(json.dumps(with_value(good, path, value)))
            loads_or_says(tmp_path / "a.saved")
    for text in ("", "{", "[]", "[" * 100_000, "\xff", '{"name": "a"}', '{"a\x1b": 1}', "null"):
        file.write_text(text, "latin1")
        assert loads_or_says(tmp_path / "a.saved", "pretrained.json is damaged") is None


@pytest.mark.parametrize(
    "change",
    [
        {"feature_size": "8"},
        {"channels": 0},
        {"input_size": 2**20},
        {"parameters": True},
        {"metrics": {"kNN": "high"}},
        {"mean": ["a"]},
        {"sha256": "12"},
        {"file": 3},
        {"width": -1},
        {"name": None},
    ],
)
def test_an_entry_says_what_is_wrong(change):
    fields = {"name": "a", "architecture": "r18_1x", "feature_size": 8, "parameters": 8}
    Entry.from_json(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"The {next(iter(change))} of a registry entry .*, found .*\."):
        Entry.from_json(json.dumps(fields | change))
    for field in fields:
        with pytest.raises(ValueError, match=f"needs the fields {field}"):
            Entry.from_json(json.dumps({key: value for key, value in fields.items() if key != field}))


def test_checkpoints_of_networks_that_are_not_there(data_folder):
    checkpoint = convert.read_checkpoint(data_folder / "checkpoint_tiny.npy")
    root = "tiny_res_net/~"
    changes = {
        "wide": {f"{root}/initial_conv": {"w": np.zeros((0, 7, 3, 2**40))}},
        "scalar": {f"{root}/initial_conv": {"w": np.zeros(())}},
        "far": {f"{root}/block_group_0/~/block_999999999/~/conv_1": {"w": np.zeros((3, 3, 8, 8))}},
        "missing": {f"{root}/block_group_5/~/block_0/~/conv_1": {"w": np.zeros((3, 3, 8, 8))}},
        "projector": {"projector/linear": {"w": np.zeros((8, 0)), "b": np.zeros(0)},
                      "projector/linear_1": {"w": np.zeros((0, 2**40))}},
    }  # fmt: skip
    for change in changes.values():
        with pytest.raises(ValueError):
            convert.networks_from_checkpoint(checkpoint._replace(params=checkpoint.params | change))


@pytest.mark.parametrize("average", [3, {}, {"kernel_params": {}, "online_params": {}}, {"online_params": 3}])
def test_checkpoints_without_an_average(data_folder, tmp_path, average):
    value = np.load(data_folder / "checkpoint_tiny.npy", allow_pickle=True).item()
    value["ema_state"] = average
    np.save(tmp_path / "c.npy", value)
    with pytest.raises(ValueError, match=r"c\.npy.* (ema_state|kernel parameter).*\."):
        convert.read_checkpoint(tmp_path / "c.npy")


def test_names_are_shown_escaped(encoder, tmp_path):
    folder = tmp_path / "a\n\x1b[31mb"
    save_pretrained(encoder, folder, name="x\x1b[31m", recipe="one\r\ntwo", metrics={"k\nNN": 1.0})
    card = (folder / "README.md").read_bytes().decode()
    assert "# x\\x1b[31m\n" in card and "Recipe: one\\r\ntwo\n" in card and "- k\\nNN: 1.00 %" in card
    load_pretrained(folder)
    for name, content in {"encoder.keras": b"x", "README.md": b"mine"}.items():
        (folder / name).write_bytes(content)
        with pytest.raises((ValueError, FileExistsError)) as raised:
            save_pretrained(encoder, folder)
        assert str(raised.value).isprintable()
    with pytest.raises(ValueError) as raised:
        load_pretrained(folder)
    assert str(raised.value).isprintable()
    with pytest.raises(FileNotFoundError) as raised:
        load_pretrained("r50_1x", folder / "c\nd")
    assert str(raised.value).isprintable()
