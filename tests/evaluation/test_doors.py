"""Whatever people give Keras, to encoders and evaluations: the right values, or a sentence that says what to do."""

from pathlib import Path

import given
import keras
import numpy as np
import pytest

import keras_sslhsic
from keras_sslhsic.callbacks import Evaluate
from keras_sslhsic.encoders import with_preprocessing
from keras_sslhsic.evaluation import (
    PROTOCOLS,
    FinetuneRecipe,
    extract_features,
    extract_labelled_features,
    finetune,
    knn,
    linear_features,
    logistic_regression,
)
from keras_sslhsic.evaluation.compare import compare

PACKAGE = str(Path(keras_sslhsic.__file__).parent)
N = 24
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
ARRAYS = {
    "array",
    "tensor",
    "dict",
    "HDF5",
    "memory map",
    "floats in [0, 255]",
    "float64",
    "int64",
    "a batch of one",
}
LABELLED = {"dataset of pairs", "dataset of dicts", "dataset of floats"}
BATCHES = LABELLED | {"dataset", "dataset of unknown batches", "dataset of one-hot labels"}
STREAMS = {"PyDataset", "PyDataset of floats", "PyDataset of lists"}
STREAMS |= {"generator", "generator of lists", "dataset of unknown shape"}
TAKEN = {
    "extract_features": ARRAYS
    | BATCHES
    | STREAMS
    | {"handle", "list of arrays", "nested lists", "PyDataset of dicts", "generator of dicts"},
    "extract_labelled_features": LABELLED | {"handle", "dataset of one-hot labels"},
    "call": ARRAYS - {"dict"},
    "predict_on_batch": ARRAYS - {"dict"},
    "predict": ARRAYS - {"dict"} | BATCHES - {"dataset of dicts"} | STREAMS - {"generator of lists"},
}
# By sentences of its own.
REFUSED_BY_KERAS = {("predict", "generator of lists"), ("predict", "generator of dicts")}
IMAGES = ARRAYS - {"a batch of one"}  # of as many labels


@pytest.fixture(scope="module")
def photos():
    return given.photos(N)


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(0)
    images = keras.Input((10, 10, 3))
    x = keras.layers.ReLU()(keras.layers.Conv2D(6, 3)(images))
    network = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))
    return with_preprocessing(network, [0.5] * 3, [0.2] * 3)


def refused(function):
    """Runs what must raise a ValueError of the package, and returns its sentence."""
    with pytest.raises(ValueError) as caught:
        function()
    assert str(caught.traceback[-1].path).startswith(PACKAGE), caught.traceback[-1]
    message = str(caught.value)
    assert message.endswith(".") and len(message.split()) > 4, message
    return message


@pytest.fixture(scope="module")
def doors(encoder):
    return {
        "extract_features": lambda x: extract_features(encoder, x),
        "extract_labelled_features": lambda x: extract_labelled_features(encoder, x)[0],
        "call": encoder,
        "predict_on_batch": encoder.predict_on_batch,
        "predict": lambda x: encoder.predict(x, verbose=0),
    }


@pytest.mark.parametrize("door", TAKEN)
def test_features_of_every_form(doors, photos, tmp_path, door):
    expected = doors["call"](photos[0])
    for form, make in given.FORMS.items():
        x = make(*photos, tmp_path)
        if (door, form) in REFUSED_BY_KERAS:
            with pytest.raises(ValueError, match="must return a tuple"):
                doors[door](x)
        elif form in TAKEN[door]:
            found = doors[door](x)
            np.testing.assert_allclose(found, expected[: len(found)], err_msg=form, **CLOSE)
        else:
            refused(lambda x=x: doors[door](x))


@pytest.mark.parametrize("form", given.FORMS)
def test_neighbours_of_every_form(encoder, photos, tmp_path, form):
    """Images and labels as people have them, for training and for test."""
    x, y = photos
    made = given.FORMS[form](x, y, tmp_path)
    data = made if form.startswith("dataset") else (made, y)

    def measure(train, test):
        return PROTOCOLS["knn"].run(encoder, {"train": train, "test": test}, k=3).value

    if form in IMAGES | LABELLED:
        assert measure(data, (x, y)) == measure((x, y), data) == measure((x, y), (x, y))
    else:
        refused(lambda: measure(data, (x, y)))
        if form != "a batch of one":
            refused(lambda: measure((x, y), data))


@pytest.mark.parametrize(
    "protocol, settings, number, sentence",
    [
        ("knn", {"k": N + 1}, N, "k must be in 1 ... 24"),
        ("logistic", {}, 4, "leaves none of the classes"),
        ("linear_features", {}, 4, "leaves none of the classes"),
        ("knn", {}, 1, "one class only"),
    ],
)
def test_what_the_labels_show_not_to_work_is_refused_before_any_feature(
    photos, protocol, settings, number, sentence
):
    images, labels = photos
    splits = {"train": (images[:number], labels[:number]), "test": photos}
    evals = {"first": {"protocol": "knn"}, "second": {"protocol": protocol, **settings}}

    def unused(images):
        raise AssertionError("Features were computed.")

    assert sentence in refused(lambda: PROTOCOLS[protocol].run(unused, splits, **settings))
    if number == N:
        assert sentence in refused(lambda: list(compare({"a": unused}, evals, splits, data="photos")))
        assert sentence in refused(lambda: Evaluate(protocol, splits, **settings))


def test_splits_have_their_names(encoder, photos):
    for splits in ({"train": photos}, {"train": photos, "test": photos, "val": photos}, (photos, photos)):
        with pytest.raises(
            ValueError, match=r'Expected splits "train" and "test", and perhaps "validation", found'
        ):
            PROTOCOLS["knn"].run(encoder, splits)
        with pytest.raises(ValueError, match="Expected splits"):
            Evaluate("knn", splits)


def test_an_encoder_in_the_place_of_features_is_refused_with_what_to_give(encoder, photos):
    for protocol in (knn, linear_features, logistic_regression):
        with pytest.raises(ValueError, match=r"extract_features\(encoder, images\)"):
            protocol(encoder, *(photos, photos, photos)[: 3 if protocol is linear_features else 2])


# What numbers classes, in any numbers.
COUNTED = {"int64", "int32", "uint8", "list", "column", "floats", "booleans", "sparse"}


@pytest.mark.parametrize("kind", given.LABELS)
@pytest.mark.parametrize("protocol", ["knn", "linear_features", "logistic"])
def test_labels_of_every_kind(encoder, photos, protocol, kind):
    x, y = photos
    labels = given.LABELS[kind](y)
    settings = {"knn": {"k": 3}, "linear_features": {}, "logistic": {}}[protocol]

    def measure(labels):
        data = {"train": (x, labels), "test": (x, labels)}
        return PROTOCOLS[protocol].run(encoder, data, **settings).value

    if kind in COUNTED:
        wanted = y > 0 if kind == "booleans" else y
        assert measure(labels) == measure(wanted.astype(int))
    else:
        refused(lambda: measure(labels))


@pytest.mark.parametrize("form", [form for form in given.FORMS if not form.startswith("dataset")])
def test_fine_tuning_refuses_what_it_cannot_read_before_it_trains(encoder, photos, tmp_path, form):
    if form in IMAGES:
        return  # trained on in test_finetune
    made = given.FORMS[form](*photos, tmp_path)
    recipe = FinetuneRecipe(steps=2, batch_size=8)
    refused(lambda: finetune(encoder, (made, photos[1]), photos, recipe=recipe))
