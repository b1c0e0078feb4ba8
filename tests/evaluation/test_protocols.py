from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.data import from_folder
from keras_sslhsic.evaluation import PROTOCOLS, FinetuneRecipe, evaluate, labelled_splits
from keras_sslhsic.evaluation.benchmark import benchmark_bundled
from keras_sslhsic.evaluation.protocols import arguments
from keras_sslhsic.evaluation.streams import count_classes
from keras_sslhsic.evaluation.sweep import Candidate, Recipe

OPTIONS = {
    "knn": {"k": 5},
    "linear_features": {"epochs": 10},
    "logistic": {"l2_grid": [0.1, 1.0]},
    "linear": {"candidates": [Candidate(0.3)], "recipe": Recipe(20, 40), "crop_area": None},
    "finetune": {"recipe": FinetuneRecipe(20, 40, crop_area=None)},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_beats_chance_on_pictures(make_encoder, pictures, protocol):
    result = evaluate(protocol, make_encoder(), *pictures, **OPTIONS[protocol])
    assert result.interval[0] > 0.25 and result.num_test == 80


def test_datasets_give_what_arrays_give(make_encoder, pictures):
    encoder = make_encoder()
    datasets = [tf.data.Dataset.from_tensor_slices(part).batch(32) for part in pictures]
    assert evaluate("knn", encoder, *datasets, k=5) == evaluate("knn", encoder, *pictures, k=5)


@pytest.mark.parametrize("protocol", ["knn", "linear", "finetune"])
def test_folders_whose_classes_are_not_the_same_are_refused(protocol, make_encoder, pictures, tmp_path):
    splits = {"train": "abc", "test": "ac", "validation": "abc"}
    for split, classes in splits.items():
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pictures[0][0][0].squeeze()).save(tmp_path / split / name / "x.png")
    data = {
        split: from_folder(tmp_path / split, batch_size=2, image_size=8, epochs=1, drop_remainder=False)
        for split in (splits if protocol == "linear" else ("train", "test"))
    }
    with pytest.raises(
        ValueError, match="classes of train and test are not the same: b in one of them alone"
    ):
        evaluate(protocol, make_encoder(), **data)


def test_classes_are_counted_by_their_names():
    named = SimpleNamespace(class_names=["a", "b", "c"])
    assert count_classes(train=named, validation=5, test=named) == 3
    assert count_classes(train=(1, 2), test=SimpleNamespace(class_names=None)) is None


@pytest.fixture
def folder(tmp_path, pictures):
    """Pictures, brighter from class to class, as files, and as arrays in the order of the files."""
    arrays = []
    for split, (images, labels) in zip(("train", "test"), pictures, strict=True):
        images = images // 4 + (45 * labels[:, None, None, None]).astype(np.uint8)
        order = np.argsort(labels, kind="stable")
        arrays.append((images[order], labels[order]))
        for number, row in enumerate(order):
            path = tmp_path / split / str(labels[row]) / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row, ..., 0]).save(path)
    return tmp_path, arrays


def test_linear_evaluation_of_a_folder_gives_what_its_images_give_as_arrays(make_encoder, folder):
    """The same hold-out, order and crops: the same classifier, not only the same accuracy to 0.3 points."""
    path, arrays = folder
    splits = labelled_splits(str(path), "linear", {}, image_size=8, short_side=8, channels=1)
    assert set(splits) == {"train", "test"}
    encoder, options = make_encoder(), arguments("linear", batch_size=50, epochs=(10,), seed=4)
    one, other = (evaluate("linear", encoder, *data, **options) for data in (splits.values(), arrays))
    assert abs(one.top1 - other.top1) <= 0.003 and one.top1 > 0.6
    assert (one.top5, one.validation_top1, one.learning_rate, one.weight_decay) == (
        other.top5, other.validation_top1, other.learning_rate, other.weight_decay
    )  # fmt: skip


def test_test_images_of_a_folder_are_those_of_the_paper(folder):
    """Short side 256 for 224 where networks are trained on images; 224 for features."""
    path, _ = folder
    for protocol, short_side in {"linear": 256, "finetune": 256, "knn": 224, "logistic": 224}.items():
        images = labelled_splits(str(path), protocol, {}, channels=1)["test"]
        assert images.recipe() == {"image_size": 224, "short_side": short_side, "resize": "bicubic"}
    small = labelled_splits(str(path), "linear", {}, image_size=28, channels=1)["test"]
    assert small.short_side == 32


def test_the_settings_of_a_command():
    linear_of_own = arguments("linear", batch_size=512, weight_decays=(0.0,))
    assert linear_of_own["recipe"] == Recipe(90, 512)
    rates = [c.learning_rate for c in linear_of_own["candidates"]]
    assert rates == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert arguments("linear", learning_rates=(0.1, 0.2), weight_decays=(0.0,), epochs=(5,)) == {
        "candidates": (Candidate(0.1), Candidate(0.2)), "recipe": Recipe(5, 4096)
    }  # fmt: skip
    (one,) = arguments("finetune", steps=7, learning_rates=(0.5,), batch_size=8)["recipe"]
    assert one == FinetuneRecipe(7, 8, 0.5, 0.5)
    assert {r.epochs for r in arguments("finetune", learning_rates=(0.5,))["recipe"]} == {30, 50}
    assert len(arguments("transfer_finetune", batch_size=128)["recipe"]) == 56
    assert arguments("transfer", batch_size=3, seed=None) == {"encoding_batch": 3}
    assert arguments("knn", k=3) == {"k": 3} and arguments("finetune", seed=1) == {"seed": 1}


def rates(given):
    swept = given.get("candidates") or given["recipe"]
    return sorted({getattr(one, "learning_rate", None) or one.encoder_learning_rate for one in swept})


@pytest.mark.parametrize(
    "protocol, batch",
    [("linear", 4096), ("linear_features", 256), ("finetune", 1024), ("transfer_finetune", 256)],
)
def test_default_learning_rates_follow_the_batch_size(protocol, batch):
    whole, small = (rates(arguments(protocol, batch_size=size)) for size in (batch, batch // 16))
    np.testing.assert_allclose(np.divide(whole, 16), small)
    assert rates(arguments(protocol, batch_size=16, learning_rates=0.3)) == [0.3]


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_another_number_of_classes_than_there_are_is_refused(protocol, make_encoder, folder, pictures):
    path, _ = folder
    splits = labelled_splits(str(path), protocol, {}, image_size=8, short_side=8, channels=1)
    with pytest.raises(
        ValueError, match="num_classes is 3, but train has 4 classes, 0, 1, 2, 3: leave it out"
    ):
        evaluate(protocol, make_encoder(), **splits, num_classes=3)
    with pytest.raises(
        ValueError, match="num_classes is 3, but the train labels go up to 3: give at least 4"
    ):
        evaluate(protocol, make_encoder(), *pictures, num_classes=3)


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_too_few_images_to_hold_any_out_are_named(protocol, make_encoder, pictures):
    (images, labels), test = pictures
    few = images[:4], labels[:4]
    message = "^4 training images are too few to hold any out.*One learning rate and one length need none"
    with pytest.raises(ValueError, match=message):
        evaluate(protocol, make_encoder(), few, test)


@pytest.mark.parametrize(
    "protocol, given, message",
    [
        ("knn", {"epochs": (3,)}, "knn has no --epochs; it has --batch-size, --k, --temperature"),
        ("linear", {"fraction": 0.1}, "linear has no --fraction; it has --batch-size, --epochs"),
        ("linear", {"epochs": (3, 4)}, "linear has one number of epochs, found 3, 4"),
        ("linear", {"learning_rates": (0.0,)}, "learning_rates must be above 0, found 0"),
        ("finetune", {"weight_decays": (-1.0,)}, "weight_decays must be at least 0, found -1"),
        ("finetune", {"epochs": (3,), "steps": 5}, "Give either steps or epochs, found 5 and 3"),
        ("linear", {"learning_rates": ()}, "learning_rates is empty"),
        ("linear", {"learning_rates": ("0.1",)}, "learning_rates must be a finite number, found '0.1'"),
        ("finetune", {"learning_rates": (0.1, np.inf)}, "learning_rates must be a finite number, found inf"),
        ("finetune", {"weight_decays": np.inf}, "weight_decays must be a finite number, found inf"),
        ("finetune", {"epochs": "30"}, "epochs must be an integer, found '30'"),
        ("finetune", {"num_classes": 1}, "num_classes must be at least 2, found 1"),
        ("knn", {"temperature": "0.1"}, "temperature must be a finite number, found '0.1'"),
        ("knn", {"protocol": "linear"}, "knn has no --protocol"),
        ("knn", {"batch_size": 0}, "batch_size must be at least 1, found 0"),
        ("logistic", {"encoding_batch": 3}, "logistic has no --encoding-batch; it has --batch-size, --seed"),
        ("linear", {"epochs": (0,)}, "epochs must be at least 1, found 0"),
        ("linear_features", {"batch_size": 0}, "batch_size must be at least 1, found 0"),
    ],
)
def test_settings_that_cannot_be_are_named(protocol, given, message):
    with pytest.raises(ValueError, match=message):
        arguments(protocol, **given)


def test_unknown_protocol(make_encoder, pictures):
    with pytest.raises(ValueError, match="knn, linear_features"):
        evaluate("svm", make_encoder(), *pictures)


def test_benchmark_yields_a_row_for_each_protocol(make_encoder, monkeypatch, pictures):
    module = __import__("sys").modules[benchmark_bundled.__module__]
    monkeypatch.setattr(module.bundled, "load", lambda: pictures)
    encoder = make_encoder()
    rows = list(benchmark_bundled(encoder, recipes={0.1: FinetuneRecipe(3, 8)}))
    found = [(row["encoder"], row["protocol"]) for row in rows]
    common = ["knn", "linear_features", "logistic"]
    expected = [("pretrained", name) for name in (*common, "finetune")] + [
        ("raw pixels", name) for name in common
    ]
    assert found == expected
    assert all(np.isfinite(row["value"]) and row["data"] for row in rows)
    assert "encoder_hash" in rows[0] and "encoder_hash" not in rows[-1]
    # As `evaluate` says it, so that both are one column of a report.
    assert rows[0]["recipe"] == evaluate("knn", encoder, *pictures).recipe
    assert all(row["recipe"]["image_size"] == 8 for row in rows)
