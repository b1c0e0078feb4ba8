import dataclasses
import hashlib
import http.server
import multiprocessing
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

from keras_sslhsic import files
from keras_sslhsic.encoders import build_encoder, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.zoo import convert, download, load, model_files, registry, sources
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.save import save_pretrained

pytestmark = pytest.mark.filterwarnings("ignore:.* no hash of")

SMALL = Entry("small", "r18_1x", 32, 699_000, width=0.0625, input_size=32, method="SSL-HSIC", licence="MIT")


@pytest.fixture
def zoo(monkeypatch, tmp_path):
    """A zoo with one small network; returns a function that changes its entry."""
    monkeypatch.delenv(sources.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def change(**fields):
        entry = Entry(**{**vars(SMALL), **fields})
        monkeypatch.setattr(registry, "entries", lambda: {"small": entry})

    change()
    return change


@pytest.fixture
def weights(tmp_path):
    """Weights of the small network as Keras saves them."""
    (tmp_path / "mirror").mkdir()
    path = tmp_path / "mirror" / "small.weights.h5"
    build_encoder("r18_1x", width=0.0625).save_weights(path)
    return path


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `content`; announces `announce` more bytes than it sends."""

    content = b""
    announce = 0
    requests = 0

    def do_GET(self):
        type(self).requests += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content) + self.announce))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        handler.url = f"http://127.0.0.1:{running.server_port}"
        yield handler
        running.shutdown()
        thread.join()


def images(size=32):
    return np.random.default_rng(0).integers(0, 256, (2, size, size, 3), np.uint8)


def features(path):
    """What the small network with these weights makes of the images."""
    encoder = build_encoder("r18_1x", width=0.0625)
    encoder.load_weights(path)
    return encoder(((images() / 255 - SMALL.mean) / SMALL.std).astype(np.float32))


# What is loaded


def test_random_weights_are_explicit_and_any_size_goes(zoo):
    encoder = load_pretrained("small", weights="random")
    assert encoder.output_shape == (None, 32)
    for size in (32, 50, 224):
        assert encoder(images(size)).shape == (2, 32)
    np.testing.assert_allclose(encoder(images()), encoder(images().astype(np.float32)), atol=1e-5)


def test_r50_is_what_the_registry_says():
    encoder = load_pretrained("r50_1x", weights="random")
    entry = registry.get("r50_1x")
    assert encoder.output_shape == (None, entry.feature_size)
    assert model_files.count_parameters(encoder) == entry.parameters


def test_frozen_by_default_trainable_when_asked(zoo):
    frozen = load_pretrained("small", weights="random")
    assert frozen.trainable_variables == []
    np.testing.assert_array_equal(frozen(images(), training=True), frozen(images()))

    trainable = load_pretrained("small", weights="random", trainable=True)
    moving = [np.array(w) for w in trainable.non_trainable_variables]
    trainable(images(), training=True)
    assert any(np.any(a != b) for a, b in zip(moving, trainable.non_trainable_variables, strict=True))

    partly = load_pretrained("small", weights="random", trainable=True, freeze_batch_norm=True)
    assert {w.name for w in partly.trainable_variables} == {"kernel"}
    np.testing.assert_array_equal(partly(images(), training=True), partly(images()))


@pytest.mark.parametrize("how", ["file", "folder", "environment"])
def test_local_weights_by_name(zoo, weights, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv(sources.WEIGHTS_VARIABLE, str(weights.parent))
        encoder = load_pretrained("small")
    else:
        encoder = load_pretrained("small", weights if how == "file" else weights.parent)
    np.testing.assert_allclose(encoder(images()), features(weights), atol=1e-5)


def test_a_folder_of_save_pretrained_and_its_file(encoder, real_images, tmp_path):
    save_pretrained(encoder, tmp_path / "saved")
    for path in (tmp_path / "saved", tmp_path / "saved" / "encoder.keras"):
        np.testing.assert_allclose(load_pretrained(path)(real_images[1]), encoder(real_images[1]), atol=1e-6)


def test_a_loaded_encoder_can_be_saved_and_loaded_again(zoo, tmp_path):
    encoder = load_pretrained("small", weights="random")
    encoder.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    np.testing.assert_allclose(again(images()), encoder(images()), atol=1e-6)


def test_weights_say_how_their_network_is_built_and_what_it_reads(tmp_path):
    shape = load.named_architecture("r18_1x", 0.0625)
    network = resnet(shape, (None, None, 1), "small")
    own = with_preprocessing(network, 0.286, 0.353, size=(20, 24))
    path = tmp_path / "a.weights.h5"
    model_files.save_model(network, path, convert.weights_note(shape, own))
    loaded = load_pretrained(path)
    assert dataclasses.replace(loaded.spec, network=network.name) == own.spec
    given = np.random.default_rng(0).integers(0, 256, (2, 30, 28, 1), np.uint8)
    np.testing.assert_allclose(loaded(given), own(given), atol=1e-5)


# Where it comes from


def test_a_download_is_cached_and_works_offline(zoo, weights, server):
    server.content = weights.read_bytes()
    address = f"{server.url}/small.weights.h5"
    for _ in range(2):
        encoder = load_pretrained("small", weights=address)
        np.testing.assert_allclose(encoder(images()), features(weights), atol=1e-5)
    assert server.requests == 1


def test_without_a_home_folder_downloads_alone_are_refused(zoo, weights, server, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(
        os.path, "expanduser", lambda path: path
    )  # as for a user whom the system does not know
    assert load_pretrained("small", weights=weights).count_params() > 0
    zoo(url=f"{server}/small.weights.h5")
    with pytest.raises(
        FileNotFoundError, match=r"no home folder to keep small\.weights\.h5 in: set HOME or XDG_CACHE_HOME"
    ):
        load_pretrained("small")


def test_a_mirror_is_a_base_address(zoo, weights, server, monkeypatch, tmp_path):
    server.content = weights.read_bytes()
    monkeypatch.setenv(sources.WEIGHTS_VARIABLE, f"{server.url}/zoo/")
    encoder = load_pretrained("small", cache_dir=tmp_path / "elsewhere")
    np.testing.assert_allclose(encoder(images()), features(weights), atol=1e-5)
    assert any(p.name.endswith("small.weights.h5") for p in (tmp_path / "elsewhere").iterdir())


def test_an_altered_cached_file_is_fetched_again(zoo, weights, server, tmp_path):
    server.content = weights.read_bytes()
    address = f"{server.url}/small.weights.h5"
    load_pretrained("small", weights=address, cache_dir=tmp_path / "c")
    cached = next(p for p in (tmp_path / "c").iterdir() if p.name.endswith(".h5"))
    cached.write_bytes(cached.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="was altered"):
        load_pretrained("small", weights=address, cache_dir=tmp_path / "c")
    assert cached.read_bytes() == weights.read_bytes()


def test_a_published_pickle_is_converted_once(zoo, server, data_folder, monkeypatch, capsys, tmp_path):
    server.content = (data_folder / "checkpoint_tiny.npy").read_bytes()
    zoo(url=f"{server.url}/pretrain.pkl", licence="CC BY-NC 4.0", method="BYOL")
    # The golden network has no name, so its shape stands in for that of r18.
    from keras_sslhsic.encoders.resnet import Architecture
    from keras_sslhsic.zoo import convert

    shape = Architecture((1, 1, 1, 1), (8, 8, 8, 8), bottleneck=False)
    monkeypatch.setattr(load, "named_architecture", lambda name, width=None: shape)
    monkeypatch.setattr(convert, "architecture_name", lambda found: "r18_1x")
    for _ in range(2):
        encoder = load_pretrained("small", cache_dir=tmp_path / "c")
        assert encoder.output_shape == (None, 8)
    assert server.requests == 1
    assert "CC BY-NC 4.0" in capsys.readouterr().out


def test_bundled_files_are_verified(zoo, encoder, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "BUNDLED", tmp_path)
    encoder.save(tmp_path / "small.keras")
    parameters = model_files.count_parameters(encoder)
    fields = {"file": "small.keras", "feature_size": 8, "parameters": parameters}
    zoo(sha256=files.sha256(tmp_path / "small.keras"), **fields)
    assert load_pretrained("small").output_shape == (None, 8)
    zoo(sha256="0" * 64, **fields)
    with pytest.raises(ValueError, match="expected 0000"):
        load_pretrained("small")


@pytest.mark.parametrize("name", ["small.weights.h5", "small.keras"])
@pytest.mark.parametrize("damage", ["page", "cut", "other"])
def test_what_turned_out_unusable_is_fetched_again(zoo, weights, server, tmp_path, name, damage):
    encoder = build_encoder("r18_1x", width=0.0625)
    encoder.load_weights(weights)
    zoo(parameters=model_files.count_parameters(encoder))
    if name.endswith(".keras"):
        encoder.save(tmp_path / name)
    good = (tmp_path / name if name.endswith(".keras") else weights).read_bytes()
    other = build_encoder("r18_1x", width=0.125)
    other.save(tmp_path / f"other{name[5:]}") if name.endswith(".keras") else other.save_weights(
        tmp_path / f"other{name[5:]}"
    )
    bad = {
        "page": b"<html>",
        "cut": good[: len(good) // 2],
        "other": (tmp_path / f"other{name[5:]}").read_bytes(),
    }
    address, cache = f"{server.url}/{name}", tmp_path / "c"
    server.content = bad[damage]
    with pytest.raises(ValueError, match="removed from the cache"):
        load_pretrained("small", address, cache)
    assert list(cache.iterdir()) == []
    server.content = good
    np.testing.assert_allclose(
        load_pretrained("small", address, cache)(images()), features(weights), atol=1e-5
    )


def test_another_hash_is_another_file(zoo, weights, server, tmp_path):
    address, cache = f"{server.url}/small.weights.h5", tmp_path / "c"
    server.content = weights.read_bytes()
    load_pretrained("small", address, cache)
    build_encoder("r18_1x", width=0.0625).save_weights(weights)
    server.content = weights.read_bytes()
    updated = f"{address}#sha256={hashlib.sha256(server.content).hexdigest().upper()}"
    for _ in range(2):
        np.testing.assert_allclose(
            load_pretrained("small", updated, cache)(images()), features(weights), atol=1e-5
        )
    assert server.requests == 2


@pytest.mark.parametrize("end", ["#sha256=", "#md5=1", "#sha256=12"])
def test_what_is_no_hash_is_refused(zoo, end):
    with pytest.raises(ValueError, match="Expected #sha256= and 64 hexadecimal digits"):
        load_pretrained("small", f"http://127.0.0.1:9/small.weights.h5{end}")


# Downloads


@pytest.mark.parametrize(
    ("announce", "sha256", "message"),
    [
        (10, None, "cut short or altered: 1000 bytes, expected 1010"),
        (0, "0" * 64, "SHA-256 .* expected 0000"),
    ],
)
def test_a_bad_download_leaves_nothing(server, tmp_path, announce, sha256, message):
    server.content, server.announce = b"x" * 1000, announce
    with pytest.raises(ValueError, match=message):
        download.fetch(f"{server.url}/a.bin", tmp_path / "cache" / "a.bin", sha256)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_wrong_hash_in_the_address(zoo, weights, server, tmp_path):
    server.content = weights.read_bytes()
    good = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(ValueError, match="SHA-256"):
        load_pretrained("small", f"{server.url}/small.weights.h5#sha256={'1' * 64}", tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []
    assert load_pretrained("small", f"{server.url}/small.weights.h5#sha256={good}", tmp_path / "c")


def test_only_https(tmp_path):
    for url in ("http://example.org/a.h5", "ftp://example.org/a.h5", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="only downloaded over https"):
            download.fetch(url, tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_an_oserror_and_an_existing_file_stays(tmp_path):
    (tmp_path / "a.bin").write_text("before")
    with pytest.raises(OSError, match="Could not download"):
        download.fetch("http://127.0.0.1:9/a.bin", tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_many_at_once(server, tmp_path):
    server.content = np.random.default_rng(0).bytes(3_000_000)
    known = hashlib.sha256(server.content).hexdigest()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: download.fetch(f"{server.url}/a.bin", tmp_path / "a.bin", known), range(4)))
    assert (tmp_path / "a.bin").read_bytes() == server.content
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.slow
def test_two_processes_at_once(server, tmp_path):
    server.content = np.random.default_rng(0).bytes(3_000_000)
    context = multiprocessing.get_context("spawn")
    arguments = (f"{server.url}/a.bin", tmp_path / "a.bin", hashlib.sha256(server.content).hexdigest())
    processes = [context.Process(target=download.fetch, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "a.bin").read_bytes() == server.content
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


# Bad input


def test_no_published_weights_names_the_ways():
    with pytest.raises(FileNotFoundError) as error:
        load_pretrained("r50_2x")
    for way in ("keras-sslhsic convert", "pretrain --config", "KERAS_SSLHSIC_WEIGHTS", 'weights="random"'):
        assert way in str(error.value)


@pytest.mark.parametrize("name", [None, "", 3, b"r50_1x"])
def test_what_is_no_name(name):
    with pytest.raises(
        ValueError, match=r"Expected a name of the zoo or a path, found .*: the names are .*r50_1x"
    ):
        load_pretrained(name)


def test_unknown_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"'r50_1'.*Did you mean 'r50_1x'"):
        load_pretrained("r50_1")
    for path in ("../nowhere/encoder", "./nowhere", "/nowhere/encoder.keras"):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            load_pretrained(path)
    with pytest.raises(FileNotFoundError, match=r"holds no encoder\.keras"):
        load_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no r50_1x\.weights\.h5 or r50_1x\.keras"):
        load_pretrained("r50_1x", tmp_path)
    with pytest.raises(FileNotFoundError, match="no weights at missing"):
        load_pretrained("r50_1x", "missing")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match="no model file: expected"):
        load_pretrained(tmp_path / "a.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5", ".npy", ".pkl"])
def test_damaged_files_are_named(zoo, tmp_path, suffix):
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(b"garbage" * 10)
    with pytest.raises(ValueError, match=r"damaged"):
        load_pretrained("small", path)


def test_weights_of_another_architecture(zoo, encoder, data_folder, tmp_path):
    resnet(load.named_architecture("r18_1x", 0.125)).save_weights(tmp_path / "wide.weights.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"wide.*does not hold the weights of r18_1x"):
            load_pretrained("small", tmp_path / "wide.weights.h5")
    encoder.save(tmp_path / "tiny.keras")
    with pytest.raises(ValueError, match=r"another architecture than small: .* \(8, 3720\), expected \(32, "):
        load_pretrained("small", tmp_path / "tiny.keras")
    with pytest.raises(ValueError, match=r"another architecture.*expected r18_1x"):
        load_pretrained("small", data_folder / "checkpoint_tiny.npy")
    with pytest.raises(ValueError, match="does not say of which network"):
        load_pretrained(tmp_path / "wide.weights.h5")


@pytest.mark.parametrize("kind", ["divided", "nested", "raw", "four channels"])
def test_own_models_are_taken_as_they_are(kind, tmp_path):
    channels = 4 if kind == "four channels" else 3
    pixels = keras.Input((None, None, channels))
    nested = keras.Sequential([keras.layers.Rescaling(1 / 127.5, -1.0)])
    x = {"divided": lambda: pixels / 255.0, "nested": lambda: nested(pixels)}.get(kind, lambda: pixels)()
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(x))
    model = keras.Model(pixels, x)
    model.save(tmp_path / "own.keras")
    given = np.random.default_rng(0).integers(0, 256, (2, 20, 20, channels), np.uint8)
    np.testing.assert_allclose(
        load_pretrained(tmp_path / "own.keras")(given), model(given.astype(np.float32)), rtol=1e-5
    )


def test_a_network_without_preprocessing_gets_that_of_imagenet_and_a_warning(tmp_path):
    network = build_encoder("r18_1x", width=0.0625)
    network.save(tmp_path / "bare.keras")
    with pytest.warns(UserWarning, match="without normalisation: that of ImageNet"):
        encoder = load_pretrained(tmp_path / "bare.keras")
    given = images(224)
    expected = network(((given / 255 - registry.IMAGENET_MEAN) / registry.IMAGENET_STD).astype(np.float32))
    np.testing.assert_allclose(encoder(given), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(None, None, 1), (28, 28, 3)])
def test_other_networks_without_preprocessing_are_refused(shape, tmp_path):
    build_encoder("r18_1x", shape, "small", width=0.0625).save(tmp_path / "bare.keras")
    with pytest.raises(ValueError, match=r"without normalisation: save encoders\.with_preprocessing"):
        load_pretrained(tmp_path / "bare.keras")


def test_a_model_that_is_no_encoder(tmp_path):
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(tmp_path / "dense.keras")
    with pytest.raises(ValueError, match=r"dense\.keras: Expected an encoder"):
        load_pretrained(tmp_path / "dense.keras")


# Bad images


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            np.zeros((2, 32, 32, 1), np.uint8),
            r"Expected images \[B, H, W, 3\], found shape \[2, 32, 32, 1\].*np.repeat",
        ),
        (np.zeros((2, 32, 32, 4), np.uint8), r"alpha channel"),
        (np.zeros((32, 32, 3), np.uint8), r"batch axis"),
        (np.zeros((0, 32, 32, 3), np.uint8), r"batch of images is empty"),
        (np.full((1, 32, 32, 3), np.nan, np.float32), r"NaN or Inf"),
        (np.full((1, 32, 32, 3), np.inf, np.float32), r"NaN or Inf"),
        (np.ones((1, 32, 32, 3), bool), r"found bool"),
        (np.ones((1, 32, 32, 3), complex), r"found complex128"),
    ],
)
def test_bad_images_are_refused(zoo, bad, message):
    encoder = load_pretrained("small", weights="random")
    for call in (encoder, lambda x: encoder.predict(x, verbose=0)):
        with pytest.raises(ValueError, match=message):
            call(bad)


def test_a_list_is_no_array(zoo):
    with pytest.raises(ValueError, match=r"found a list: np\.stack"):
        load_pretrained("small", weights="random")([images()[0], images()[1]])


def test_images_in_0_1_are_refused_and_others_are_not(zoo):
    encoder = load_pretrained("small", weights="random")
    with pytest.raises(ValueError, match=r"expects \[0, 255\]: multiply by 255"):
        encoder(images().astype(np.float32) / 255)
    with pytest.raises(ValueError, match=r"expects \[0, 255\]: give 127"):
        encoder(images().astype(np.float32) / 127.5 - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder(images().astype(np.float32))
        encoder(images())
        encoder(np.zeros((1, 32, 32, 3), np.float32))  # a black image
