import io
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
import tiny
from PIL import Image

from keras_sslhsic import export
from keras_sslhsic.data.decode import decode
from keras_sslhsic.encoders import Encoder, encoder_of, with_preprocessing
from keras_sslhsic.export import export_litert, export_onnx, export_saved_model, formats
from keras_sslhsic.export.served import check_answer
from keras_sslhsic.zoo.extract import extract


@pytest.fixture(scope="module")
def saved_model(encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model"
    export_saved_model(encoder, path)
    return path


def test_signature_gives_the_same_features(encoder, real_images, saved_model):
    served = tf.saved_model.load(str(saved_model)).signatures["serving_default"]
    assert served.structured_input_signature[1]["image"] == tf.TensorSpec(
        (None, None, None, 3), tf.uint8, "image"
    )
    for images in real_images:
        features = served(image=tf.constant(images))["features"]
        np.testing.assert_allclose(features, encoder(images), atol=1e-4)


def test_no_images_have_no_features(encoder, saved_model):
    served = tf.saved_model.load(str(saved_model)).signatures
    of_pixels = served["serving_default"](image=np.zeros((0, 32, 32, 3), np.uint8))["features"]
    of_files = served["encoded"](bytes=tf.constant([], tf.string))["features"]
    assert of_pixels.shape == of_files.shape == (0, encoder.spec.feature_size)


def test_every_weight_is_written_once(encoder, saved_model):
    convolutions = [layer for layer in encoder._flatten_layers() if isinstance(layer, keras.layers.Conv2D)]
    weights = sum(layer.count_params() + layer.filters for layer in convolutions)
    data = saved_model / "variables" / "variables.data-00000-of-00001"
    assert 4 * weights <= data.stat().st_size < 4 * weights + 20_000


def test_encoded_files_of_any_size_in_one_batch(encoder, real_images, saved_model):
    served = tf.saved_model.load(str(saved_model)).signatures["encoded"]
    png = [tf.io.encode_png(images[0]) for images in real_images]
    jpeg = tf.io.encode_jpeg(real_images[1][1], quality=95)
    features = served(bytes=tf.stack([*png, jpeg]))["features"]
    expected = [encoder(tiny.served(images[:1], 32))[0] for images in real_images]
    expected.append(encoder(tiny.served([decode(jpeg.numpy())], 32))[0])
    np.testing.assert_allclose(features, expected, atol=1e-4)


def test_encoded_files_of_different_sizes_for_an_encoder_of_any_size(encoder, real_images, tmp_path):
    free = with_preprocessing(encoder.get_layer("tiny"), 0.5, 0.25)
    export_saved_model(free, tmp_path / "free")
    served = tf.saved_model.load(str(tmp_path / "free")).signatures["encoded"]
    png = [tf.io.encode_png(images[0]) for images in real_images]
    expected = [free(images[:1])[0] for images in real_images]
    np.testing.assert_allclose(served(bytes=tf.stack(png))["features"], expected, atol=1e-4)


def test_an_animation_is_an_error(encoder, saved_model):
    file = io.BytesIO()
    frames = [Image.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (0, 90, 200)]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    served = tf.saved_model.load(str(saved_model)).signatures["encoded"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Animated WebP"):
        served(bytes=tf.constant([file.getvalue()]))


@pytest.mark.slow
@pytest.mark.parametrize("sides", [(40, 40), (None, 40)])
def test_encoders_of_a_fixed_size_that_resize(sides, real_images, tmp_path):
    pixels = keras.Input((*sides, 3))
    resized = keras.ops.image.resize(pixels, (20, 20))
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(resized))
    encoder = keras.Model(pixels, features)
    extracted, served = [], []
    (tmp_path / "images").mkdir()
    for i, images in enumerate(real_images):
        Image.fromarray(images[0]).save(tmp_path / "images" / f"{i}.png")
        stretched = tf.image.resize(images[:1], (images.shape[1], 40))
        extracted.append(encoder(tiny.extracted(images[:1], 40) if sides[0] else stretched)[0])
        served.append(encoder(tiny.served(images[:1], 40) if sides[0] else stretched)[0])
    found = np.load(extract(encoder, tmp_path / "images", tmp_path / "out.npz").out)["features"]
    np.testing.assert_allclose(found, extracted, rtol=1e-4)
    export_saved_model(encoder, tmp_path / "model")
    encoded = tf.saved_model.load(str(tmp_path / "model")).signatures["encoded"]
    files = tf.stack([tf.io.encode_png(images[0]) for images in real_images])
    np.testing.assert_allclose(encoded(bytes=files)["features"], served, rtol=1e-4)


def test_encoders_of_whole_numbers(real_images, tmp_path):
    pixels = keras.Input((None, None, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 60.0, -2.0)(keras.ops.image.resize(pixels, (21, 24)))
    encoder = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x))
    export_saved_model(encoder, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["encoded"]
    files = tf.stack([tf.io.encode_png(images[0]) for images in real_images])
    expected = [encoder(images[:1])[0] for images in real_images]
    np.testing.assert_allclose(served(bytes=files)["features"], expected, rtol=1e-5)


RESIZING = {
    "bilinear": {},
    "antialias": {"antialias": True},
    "bicubic": {"interpolation": "bicubic"},
    "nearest": {"interpolation": "nearest"},
    "lanczos": {"interpolation": "lanczos3"},
    "padded": {"pad_to_aspect_ratio": True, "fill_value": 9.0},
    "cropped": {"crop_to_aspect_ratio": True},
    "of maps": {"maps": True},
    "read twice": {"twice": True},
}


@pytest.mark.parametrize("kind", RESIZING)
@pytest.mark.parametrize("normalise", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_images_of_any_size_are_resized_as_the_model_does(kind, normalise, real_images, tmp_path):
    options = dict(RESIZING[kind])
    maps, twice = options.pop("maps", False), options.pop("twice", False)
    pixels = keras.Input((None, None, 3))
    x = keras.layers.Rescaling(1 / 60, [-1.0, -2.0, -0.5])(pixels) if normalise else pixels
    x = keras.layers.Conv2D(4, 3, padding="same")(x) if maps else x
    resized = keras.ops.image.resize(x, (12, 12), **options)
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(resized))
    if twice:
        features += keras.ops.max(x, (1, 2))[:, :1]
    encoder = keras.Model(pixels, features)
    for i, images in enumerate(real_images):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(images[0]).save(tmp_path / "images" / f"{i}.png")
    expected = np.concatenate([encoder(images[:1].astype(np.float32)) for images in real_images])
    extracted = extract(encoder, tmp_path / "images", tmp_path / "out.npz").out
    np.testing.assert_allclose(np.load(extracted)["features"], expected, rtol=1e-4, atol=1e-4)
    export_saved_model(encoder, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["encoded"]
    files = tf.stack([tf.io.encode_png(images[0]) for images in real_images])
    np.testing.assert_allclose(served(bytes=files)["features"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encoded_files_of_every_kind(channels, tmp_path):
    pixels = keras.Input((16, 16, channels))
    encoder = keras.Model(pixels, keras.layers.Flatten()(keras.layers.Rescaling(1.0)(pixels)))
    export_saved_model(encoder, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["encoded"]
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    compared = 0
    kept = np.where(np.arange(16)[:, None, None] < 8, 255, 128).astype(np.uint8).repeat(16, 1)
    for mode in ("RGB", "L", "RGBA", "LA", "CMYK", "transparent"):
        for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP"):
            file = io.BytesIO()
            try:
                if mode == "transparent":
                    image = Image.fromarray(np.concatenate([colours, kept], -1))
                else:
                    image = Image.fromarray(colours).convert(mode)
                image.save(file, kind, lossless=True, exact=True)
            except (OSError, ValueError):  # there are no such files
                continue
            features = served(bytes=tf.constant([file.getvalue()]))["features"]
            expected = decode(file.getvalue(), channels).reshape(1, -1)
            # Pillow reads the luma of a JPEG as it is stored.
            levels = 1 if (channels, kind) == (1, "JPEG") else 0
            np.testing.assert_allclose(features, expected, atol=levels, err_msg=f"{mode} {kind}")
            compared += 1
    assert compared >= 18


def test_encoders_of_other_channels_take_pixels_alone(tmp_path):
    pixels = keras.Input((8, 8, 5))
    export_saved_model(keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(pixels)), tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model"))
    assert list(served.signatures) == ["serving_default"]
    assert served.signatures["serving_default"](image=tf.ones((2, 8, 8, 5), tf.uint8))["features"].shape == (
        2,
        5,
    )


@pytest.mark.slow
def test_a_sequential_encoder_is_served(tmp_path):
    layers = keras.layers
    network = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()]
    encoder = keras.Sequential([keras.Input((32, 32, 3)), *network])
    export_saved_model(encoder, tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    served = tf.saved_model.load(str(tmp_path / "model")).signatures
    expected = encoder(images.astype(np.float32))
    np.testing.assert_allclose(
        served["serving_default"](image=tf.constant(images))["features"], expected, rtol=1e-5
    )
    png = tf.stack([tf.io.encode_png(image) for image in images])
    np.testing.assert_allclose(served["encoded"](bytes=png)["features"], expected, rtol=1e-5)


LOAD_ALONE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras_sslhsic", "tensorflow_probability"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
data = np.load(sys.argv[2])
for key in data.files:
    if key.startswith("x"):
        features = model.signatures["serving_default"](image=tf.constant(data[key]))["features"]
        assert np.abs(features - data["y" + key[1:]]).max() < 1e-4
images = tf.cast(data["x1"], tf.float32)
first = None
for _ in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model.train(images) - 1.0) ** 2)
    for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
        v.assign_sub(0.01 * g)
    first = loss if first is None else first
assert loss < first, (loss, first)
features = model.signatures["serving_default"](image=tf.constant(data["x1"]))["features"]
assert np.abs(features - 1.0).mean() < np.abs(data["y1"] - 1.0).mean()
assert np.abs(features - data["y1"]).max() > 1e-3
assert "keras_sslhsic" not in sys.modules
print("served and fine-tuned", len(model.trainable_variables))
"""


@pytest.mark.parametrize("keep_batch_norm", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_serves_and_fine_tunes_where_this_package_is_not(
    encoder, real_images, saved_model, tmp_path, keep_batch_norm
):
    trained = sum(2 * isinstance(layer, keras.layers.Conv2D) for layer in encoder._flatten_layers())
    if keep_batch_norm:
        saved_model, trained = tmp_path / "kept", len(encoder.trainable_variables)
        export_saved_model(encoder, saved_model, keep_batch_norm=True)
    arrays = {f"x{i}": images for i, images in enumerate(real_images)}
    arrays |= {f"y{i}": encoder(images) for i, images in enumerate(real_images)}
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "load.py").write_text(LOAD_ALONE)
    run = subprocess.run(
        [sys.executable, tmp_path / "load.py", saved_model, tmp_path / "data.npz"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert f"served and fine-tuned {trained}\n" in run.stdout
    assert "custom gradients" not in run.stderr


def test_an_earlier_export_is_replaced_by_that_of_a_frozen_encoder(encoder, saved_model, tmp_path):
    flags = [layer.trainable for layer in encoder._flatten_layers()]
    shutil.copytree(saved_model, tmp_path / "model")
    before = (tmp_path / "model" / "saved_model.pb").stat().st_ino
    frozen = Encoder(encoder.inputs[0], encoder.outputs[0], encoder.spec)
    frozen.trainable = False
    try:
        export_saved_model(frozen, tmp_path / "model")
        assert frozen.trainable_variables == []  # as it was
        bn = next(layer for layer in frozen._flatten_layers() if layer.name == "stem_bn")
        assert bn.synchronized and not bn.trainable
    finally:
        for layer, flag in zip(list(encoder._flatten_layers()), flags, strict=True):
            layer.trainable = flag
    assert (tmp_path / "model" / "saved_model.pb").stat().st_ino != before
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert len(loaded.trainable_variables) == len(tf.saved_model.load(str(saved_model)).trainable_variables)


def test_other_things_are_not_replaced(encoder, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for path, message in ((tmp_path, "holds thesis.tex, and"), (tmp_path / "thesis.tex", "is a file")):
        with pytest.raises(ValueError, match=message):
            export_saved_model(encoder, path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    tf.saved_model.save(tf.Module(), str(tmp_path / "foreign"))
    with pytest.raises(ValueError, match="holds a SavedModel of something else"):
        export_saved_model(encoder, tmp_path / "foreign")


def test_a_name_that_tensorflow_cannot_take_is_refused_before_work(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"udcff is not UTF-8"):
        export_saved_model(encoder, tmp_path / os.fsdecode(b"a\xff"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("file", ["notes.txt", "assets/words.txt", "assets.extra/tf_serving_warmup_requests"])
def test_what_lies_in_an_export_is_not_lost(file, encoder, saved_model, tmp_path):
    shutil.copytree(saved_model, tmp_path / "model")
    (tmp_path / "model" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "model" / file).write_text("mine")
    with pytest.raises(ValueError, match=f"holds {file.split('/')[0]}.*only an earlier export is replaced"):
        export_saved_model(encoder, tmp_path / "model")
    assert (tmp_path / "model" / file).read_text() == "mine"


@pytest.mark.slow
def test_a_link_stays_one(encoder, saved_model, tmp_path):
    shutil.copytree(saved_model, tmp_path / "1")
    (tmp_path / "current").symlink_to(tmp_path / "1")
    (tmp_path / "next").symlink_to(tmp_path / "2")  # leads nowhere yet
    for name in ("current", "next"):
        export_saved_model(encoder, tmp_path / name)
        assert (tmp_path / name).is_symlink() and (tmp_path / name / "saved_model.pb").exists()


@pytest.mark.parametrize("function", [export_litert, export_onnx])
def test_a_folder_in_the_way_of_a_file(function, encoder, tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder: give the name of a file"):
        function(encoder, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, None])
@pytest.mark.parametrize("channels", [1, 3])
def test_litert_gives_the_same_features(encoder, real_images, tmp_path, size, channels):
    """Of encoders that resize images, and of those that take them as they are, in every size; gray ones, too."""
    network = encoder.get_layer("tiny")
    if channels == 1:
        given = keras.Input((None, None, 1))
        maps = keras.layers.Conv2D(8, 3, activation="relu")(given)
        network = keras.Model(given, keras.layers.GlobalAveragePooling2D()(maps))
    encoder = with_preprocessing(network, 0.5, 0.25, size=size)
    export_litert(encoder, tmp_path / "square.tflite", image_size=32)  # which is held against the encoder
    export_litert(encoder, tmp_path / "model.tflite")
    interpreter = tf.lite.Interpreter(str(tmp_path / "model.tflite"))
    (given,), (returned,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert given["dtype"] == np.uint8
    # A batch whose size is computed within the file lets XNNPACK spoil memory.
    assert "CONCATENATION" not in {operation["op_name"] for operation in interpreter._get_ops_details()}
    for images in real_images:
        images = images[..., :channels]
        interpreter.resize_tensor_input(given["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], images)
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_tensor(returned["index"]), encoder(images), atol=1e-4)


@pytest.mark.parametrize("file", ["a.tflite", "a.onnx"])
def test_half_precision_is_refused_in_one_line(file, tmp_path):
    images = keras.Input((8, 8, 3))
    network = keras.layers.Conv2D(2, 3, dtype="mixed_bfloat16")(images)
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D(dtype="float32")(network))
    with pytest.raises(ValueError, match="computes in bfloat16: build it in float32"):
        export.write(encoder, tmp_path / file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_litert_cannot_express_is_an_error(encoder, tmp_path):
    inner = encoder.get_layer("tiny")
    antialiased = with_preprocessing(inner, 0.5, 0.25, size=32, antialias=True)
    with pytest.raises(
        ValueError, match=r"LiteRT cannot express this encoder: it has no operation [A-Z]\w+\.$"
    ):
        export_litert(antialiased, tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("convolution", [{"activation": "gelu"}, {"groups": 3}])
def test_what_onnx_runtime_cannot_load_is_an_error(convolution, tmp_path):
    images = keras.Input((8, 8, 3))
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(6, 3, **convolution)(images))
    with pytest.raises(ValueError, match="ONNX cannot express this encoder"):
        export_onnx(keras.Model(images, features), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda expected: expected + 0.1, "off by 0.1"),
        (lambda expected: expected * np.nan, "off by nan"),
        (lambda expected: 1 / 0, "cannot run this encoder: division by zero"),
    ],
)
def test_a_converted_file_that_answers_otherwise_is_refused(answer, message):
    pixels = keras.Input((4, 4, 3))
    mean = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(pixels)))
    check_answer(encoder_of(mean), None, lambda image: image.mean((1, 2)) / 255, "LiteRT")
    with pytest.raises(ValueError, match=f"LiteRT .*{message}"):
        check_answer(encoder_of(mean), None, lambda image: answer(image.mean((1, 2)) / 255), "LiteRT")


def test_layers_that_cannot_be_copied_are_served_unfolded(tmp_path):
    images = keras.Input((8, 8, 3))
    maps = keras.layers.Conv2D(4, 3)(keras.layers.Lambda(lambda x: x / 255)(images))
    maps = keras.layers.BatchNormalization()(maps)
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(maps))
    with pytest.warns(UserWarning, match="not folded, .* as a layer cannot be copied: .*Lambda"):
        export.write(encoder, tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    features = served(image=tf.constant(pixels))["features"]
    np.testing.assert_allclose(features, encoder(pixels.astype(np.float32)), atol=1e-5)


def test_onnx_gives_the_same_features(encoder, real_images, tmp_path):
    export_onnx(encoder, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert [i.name for i in session.get_inputs()] == ["image"]
    for images in real_images:
        (features,) = session.run(["features"], {"image": images})
        np.testing.assert_allclose(features, encoder(images), atol=1e-4)


def test_onnx_without_tf2onnx_says_what_to_install(encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'keras_sslhsic\[onnx\]'"):
        export_onnx(encoder, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("path", "function"),
    [
        *[(path, "export_litert") for path in ("a.tflite", "A.TFLITE")],
        *[(path, "export_onnx") for path in ("a.onnx", "a.ONNX")],
        *[(path, "export_saved_model") for path in ("a", "a/1", "a/v1.2", "a.v2", "a.savedmodel")],
    ],
)
def test_export_goes_by_the_ending(path, function, encoder, monkeypatch):
    calls = []
    monkeypatch.setattr(formats, function, lambda *arguments, **_: calls.append(arguments))
    export.write(encoder, path)
    assert [call[:2] for call in calls] == [(encoder, path)]


@pytest.mark.parametrize("path", ["a.h5", "a.pb", "a.keras", "a.tflight"])
def test_other_endings_are_refused(path, encoder, tmp_path):
    with pytest.raises(ValueError, match=r"nothing is written to \.\w+ files\. Give NAME\.tflite"):
        export.write(encoder, tmp_path / path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["a.tflite", "a.onnx"])
def test_files_have_no_batch_norm_to_keep(encoder, path):
    with pytest.raises(ValueError, match="keep_batch_norm is for SavedModels"):
        export.write(encoder, path, keep_batch_norm=True)


def test_only_encoders_of_images_are_exported(tmp_path):
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for function in (export_saved_model, export_litert):
        for given, found in ((dense, r"\(None, 4\)"), ("r18_fashion", "'r18_fashion'")):
            with pytest.raises(ValueError, match=f"Expected an encoder from images .* found .*{found}"):
                function(given, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
