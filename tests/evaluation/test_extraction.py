import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.data import from_arrays
from keras_sslhsic.encoders import with_preprocessing
from keras_sslhsic.evaluation import extract_features, extract_labelled_features


def test_equals_the_encoder_on_all_images_at_once(make_encoder, pictures):
    encoder, images = make_encoder(), pictures[0][0]
    features = extract_features(encoder, images, batch_size=7)
    assert features.shape == (160, 8) and features.dtype == np.float32
    np.testing.assert_allclose(features, encoder(images, training=False), rtol=1e-5, atol=1e-6)


def test_a_variable_is_an_array_of_images(make_encoder, pictures):
    encoder, images = make_encoder(), pictures[0][0].astype("float32")
    for variable in (tf.Variable(images), keras.Variable(images)):
        np.testing.assert_array_equal(extract_features(encoder, variable), extract_features(encoder, images))
    with pytest.raises(ValueError, match="multiply by 255"):
        extract_features(encoder, tf.Variable(images / 255))


def test_an_encoder_says_who_takes_dicts_and_handles(make_encoder, pictures):
    encoder, images = with_preprocessing(make_encoder(), 0.5, 0.25), pictures[0][0]
    for given in (
        {"image": images},
        from_arrays(images, batch_size=8),
        tf.data.Dataset.from_tensor_slices({"image": images}).batch(8),
    ):
        with pytest.raises(
            ValueError, match=r"found a \w+: give it to keras_sslhsic.evaluation.extract_features"
        ):
            encoder.predict(given, verbose=0)
        assert extract_features(encoder, given).shape == (160, 8)


def test_an_array_of_objects_is_named_as_such(make_encoder, pictures):
    with pytest.raises(ValueError, match="found object"):
        extract_features(make_encoder(), pictures[0][0].astype(object))


def test_every_tensor_of_the_encoder_stays_bit_identical(make_encoder, pictures):
    encoder = make_encoder()
    before = [value.copy() for value in encoder.get_weights()]
    extract_features(encoder, pictures[0][0])
    assert all(np.array_equal(a, b) for a, b in zip(before, encoder.get_weights(), strict=True))


def test_functions_and_maps_are_encoders_too(pictures):
    images = pictures[0][0]
    features = extract_features(lambda x: tf.cast(x, tf.float64), images)
    np.testing.assert_array_equal(features, images.reshape(160, -1).astype(np.float32))


@pytest.mark.parametrize("form", ["dict", "tuple", "images"])
def test_datasets_of_every_form(make_encoder, pictures, form):
    encoder, (images, labels) = make_encoder(), pictures[0]
    parts = {"dict": {"image": images, "label": labels}, "tuple": (images, labels), "images": images}
    dataset = tf.data.Dataset.from_tensor_slices(parts[form]).batch(33)
    expected = extract_features(encoder, images)
    np.testing.assert_allclose(extract_features(encoder, dataset), expected, rtol=1e-5, atol=1e-6)
    if form == "images":
        with pytest.raises(ValueError, match="Labels are missing"):
            extract_labelled_features(encoder, dataset)
    else:
        features, found = extract_labelled_features(encoder, dataset)
        np.testing.assert_array_equal(found, labels)
        np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def test_replicas_keep_the_order(make_encoder, pictures, two_replicas):
    images, labels = pictures[0]
    with two_replicas.scope():
        encoder = make_encoder()
    alone = make_encoder()
    alone.set_weights(encoder.get_weights())
    # The last batch, of one image, leaves a replica without any.
    dataset = tf.data.Dataset.from_tensor_slices((images[: 161 - 32], labels[: 161 - 32])).batch(32)
    features, found = extract_labelled_features(encoder, dataset)
    np.testing.assert_array_equal(found, labels[:129])
    np.testing.assert_allclose(features, extract_features(alone, images[:129]), rtol=1e-5, atol=1e-6)


def test_cache_is_keyed_by_weights_structure_and_data(make_encoder, pictures, tmp_path):
    encoder, images = make_encoder(), pictures[0][0]
    first = extract_features(encoder, images, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    file = next(tmp_path.iterdir())
    np.save(file, first + 1)  # Tells reading from computing.
    np.testing.assert_array_equal(extract_features(encoder, images, cache_dir=tmp_path), first + 1)
    extract_features(encoder, images[:9], cache_dir=tmp_path)
    encoder.layers[-1].bias.assign_add(np.ones(8))
    changed = extract_features(encoder, images, cache_dir=tmp_path)
    np.testing.assert_allclose(changed, first + 1, rtol=1e-5, atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("left", [b"", b"no array", None])
def test_a_damaged_cache_is_written_again(make_encoder, pictures, tmp_path, left):
    encoder, images = make_encoder(), pictures[0][0]
    expected = extract_features(encoder, images, cache_dir=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] if left is None else left)
    np.testing.assert_array_equal(extract_features(encoder, images, cache_dir=tmp_path), expected)
    assert file.read_bytes() == whole


def test_a_cache_tells_encoders_that_differ_in_an_operation_alone(make_encoder, pictures, tmp_path):
    network = make_encoder()
    found = []
    for activation in (keras.ops.relu, keras.ops.sigmoid):
        encoder = keras.Model(network.inputs, activation(network.outputs[0]))
        found.append(extract_features(encoder, pictures[0][0], cache_dir=tmp_path))
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_a_cached_dataset_needs_a_name(make_encoder, pictures, tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices(pictures[0][0]).batch(40)
    encoder = make_encoder()
    with pytest.raises(ValueError, match="data_version"):
        extract_features(encoder, dataset, cache_dir=tmp_path)
    extract_features(encoder, dataset, cache_dir=tmp_path, data_version="pictures:1")
    assert len(list(tmp_path.iterdir())) == 1
    # Under one name, what is seen to differ is told apart.
    for data in (dataset.take(1), pictures[0][0][:7], pictures[0][0][:9]):
        rows = len(next(iter(data))) if isinstance(data, tf.data.Dataset) else len(data)
        assert len(extract_features(encoder, data, cache_dir=tmp_path, data_version="pictures:1")) == rows


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros([4, 9, 8, 1], np.uint8), r"\[B, 8, 8, 1\], found shape \[4, 9, 8, 1\]. Resize"),
        (np.zeros([4, 8, 8, 3], np.uint8), r"\[B, 8, 8, 1\], found shape \[4, 8, 8, 3\]"),
        (np.zeros([4, 8, 8], np.uint8), r"found shape \[4, 8, 8\]"),
        (np.zeros([0, 8, 8, 1], np.uint8), "is empty"),
    ],
)
def test_images_that_do_not_fit(make_encoder, images, message):
    with pytest.raises(ValueError, match=message):
        extract_features(make_encoder(), images)


def test_an_infinite_dataset_is_refused(make_encoder, pictures):
    dataset = tf.data.Dataset.from_tensor_slices(pictures[0][0]).batch(40).repeat()
    with pytest.raises(ValueError, match="infinite"):
        extract_features(make_encoder(), dataset)
