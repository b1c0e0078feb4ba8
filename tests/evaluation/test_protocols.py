"""Every protocol by its name: what can be set of it, and what it makes of arrays, folders and data sets."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.evaluation import PROTOCOLS, FinetuneRecipe
from keras_sslhsic.evaluation.compare import BUNDLED, QUICK, compare, raw_pixels
from keras_sslhsic.evaluation.images import count_classes, of_arrays
from keras_sslhsic.evaluation.settings import layered
from keras_sslhsic.evaluation.sweep import Candidate, Recipe
from keras_sslhsic.evaluation.transfer_sets import TransferSplits

SETTINGS = {
    "knn": {"k": 5},
    "linear_features": {"epochs": 10},
    "logistic": {"l2": (0.1, 1.0)},
    "linear": {"learning_rates": 0.3, "weight_decays": 0.0, "epochs": 20, "batch_size": 40, "crops": False},
    "finetune": {"learning_rates": 0.1, "steps": 20, "batch_size": 40, "crops": False},
    "transfer": {},
    "transfer_finetune": {
        "learning_rates": 0.1,
        "weight_decays": 0.0,
        "steps": 20,
        "batch_size": 40,
        "crops": False,
    },
}


def arguments(protocol, /, **given):
    return PROTOCOLS[protocol].arguments_of(given)


@pytest.fixture
def splits(pictures):
    return dict(zip(("train", "test"), pictures, strict=True))


def test_all_protocols_are_tested():
    assert {*PROTOCOLS} >= {*SETTINGS}


@pytest.mark.parametrize("protocol", SETTINGS)
@pytest.mark.filterwarnings("ignore:The best l2")
def test_every_protocol_beats_chance_on_pictures(make_encoder, splits, protocol):
    splits = TransferSplits("food101", splits) if "transfer" in protocol else splits
    if protocol == "transfer":  # nothing but 7,575 images are held out
        splits["validation"] = splits["train"]
    result = PROTOCOLS[protocol].run(make_encoder(), splits, **SETTINGS[protocol])
    assert result.interval[0] > 0.25 and result.num_test == 80
    assert (result.protocol, result.recipe["image_size"]) == (protocol, 8)


def test_datasets_give_what_arrays_give(make_encoder, splits):
    encoder = make_encoder()
    datasets = {name: tf.data.Dataset.from_tensor_slices(part).batch(32) for name, part in splits.items()}
    one, other = (PROTOCOLS["knn"].run(encoder, data, k=5) for data in (datasets, splits))
    assert one == other


@pytest.mark.parametrize("protocol", ["knn", "linear", "finetune"])
def test_folders_whose_classes_are_not_the_same_are_refused(protocol, make_encoder, pictures, tmp_path):
    for split, classes in {"train": "abc", "test": "ac", "validation": "abc"}.items():
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pictures[0][0][0].squeeze()).save(tmp_path / split / name / "x.png")
    data = PROTOCOLS[protocol].needs.load(str(tmp_path), channels=1, image_size=8, short_side=8)
    assert set(data) == ({"train", "test"} if protocol == "knn" else {"train", "test", "validation"})
    with pytest.raises(
        ValueError, match="classes of train and test are not the same: b in one of them alone"
    ):
        PROTOCOLS[protocol].run(make_encoder(), data)


def test_classes_are_counted_by_their_names(pictures):
    named, nameless = of_arrays(*pictures[0], ["a", "b", "c", "d"]), of_arrays(*pictures[1])
    assert count_classes({"train": named, "validation": 5, "test": named}) == 4
    assert count_classes({"train": pictures[0], "test": nameless}) is None


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
    protocol = PROTOCOLS["linear"]
    splits = protocol.needs.load(str(path), image_size=8, short_side=8, channels=1)
    assert set(splits) == {"train", "test"}
    encoder, settings = make_encoder(), {"batch_size": 50, "epochs": 10, "seed": 4}
    one = protocol.run(encoder, splits, **settings)
    other = protocol.run(encoder, dict(zip(splits, arrays, strict=True)), **settings)
    assert abs(one.top1 - other.top1) <= 0.003 and one.top1 > 0.6
    assert one.details == other.details


def test_test_images_of_a_folder_are_those_of_the_paper(folder):
    """Short side 256 for 224 where networks are trained on images; 224 for features."""
    path, _ = folder
    for protocol, short_side in {"linear": 256, "finetune": 256, "knn": 224, "logistic": 224}.items():
        images = PROTOCOLS[protocol].needs.load(str(path), channels=1)["test"]
        assert images.recipe() == {
            "image_size": 224,
            "short_side": short_side,
            "resize": "blocks averaged, bicubic",
        }
    small = PROTOCOLS["linear"].needs.load(str(path), image_size=28, channels=1)["test"]
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


def test_what_is_given_later_comes_first_and_a_length_replaces_one_in_another_unit():
    settings = PROTOCOLS["finetune"].settings
    assert layered(settings, {"epochs": (30, 50), "batch_size": 8}, {"steps": 2}) == {
        "batch_size": 8,
        "steps": 2,
    }
    assert layered(settings, {"steps": 5}, {"epochs": 1}, {"epochs": 2}) == {"epochs": 2}
    # In one layer both are there, to be refused.
    assert layered(settings, {"epochs": 1, "steps": 2}) == {"epochs": 1, "steps": 2}


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_another_number_of_classes_than_there_are_is_refused(protocol, make_encoder, folder, splits):
    protocol = PROTOCOLS[protocol]
    images = protocol.needs.load(str(folder[0]), image_size=8, short_side=8, channels=1)
    with pytest.raises(
        ValueError, match="num_classes is 3, but train has 4 classes, 0, 1, 2, 3: leave it out"
    ):
        protocol.run(make_encoder(), images, num_classes=3)
    with pytest.raises(
        ValueError, match="num_classes is 3, but the train labels go up to 3: give at least 4"
    ):
        protocol.run(make_encoder(), splits, num_classes=3)


@pytest.mark.parametrize(
    "protocol, settings, varied",
    [
        ("linear", {}, "24 candidates, with one value alone of --learning-rates, --weight-decays"),
        (
            "linear",
            {"learning_rate": 0.1, "epochs": 1},
            "4 candidates, with one value alone of --weight-decays",
        ),
        ("finetune", {}, "10 candidates, with one value alone of --epochs, --learning-rates"),
    ],
)
def test_too_few_images_to_hold_any_out_are_named(protocol, settings, varied, make_encoder, splits):
    images, labels = splits["train"]
    few = {**splits, "train": (images[:4], labels[:4])}
    message = f"^4 training images are too few to hold any out.*Or give one of the {varied}\\.$"
    with pytest.raises(ValueError, match=message):
        PROTOCOLS[protocol].run(make_encoder(), few, **settings)


@pytest.mark.parametrize(
    "protocol, given, message",
    [
        ("knn", {"epochs": (3,)}, "knn has no --epochs; it has --batch-size, --k, --temperature"),
        ("linear", {"fraction": 0.1}, "linear has no --fraction; it has --batch-size, --crops, --epochs"),
        ("linear", {"epochs": (3, 4)}, "A linear evaluation has one number of epochs, found 3, 4"),
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
        (
            "logistic",
            {"encoding_batch": 3},
            "logistic has no --encoding-batch; it has --batch-size, --holdout",
        ),
        ("linear", {"epochs": (0,)}, "epochs must be at least 1, found 0"),
        ("linear_features", {"batch_size": 0}, "batch_size must be at least 1, found 0"),
    ],
)
def test_settings_that_cannot_be_are_named(protocol, given, message):
    with pytest.raises(ValueError, match=message):
        arguments(protocol, **given)


def test_an_unknown_protocol_is_told_with_all_that_there_are():
    with pytest.raises(ValueError, match=r"Unknown protocol 'svm': there are .*knn.*transfer_finetune"):
        PROTOCOLS["svm"]


def test_images_of_another_set_are_no_transfer(make_encoder, splits):
    with pytest.raises(ValueError, match=r"one of food101, cifar10.*found images of another set"):
        PROTOCOLS["transfer"].run(make_encoder(), splits)


def test_encoders_beside_each_other(make_encoder, splits):
    """One result an encoder and evaluation; features once an encoder; what trains a network passes over pixels."""
    seen = []

    def counted(images):
        seen.append(1)
        return tf.cast(images, tf.float32)

    encoder = make_encoder()
    short = {"protocol": "finetune", "steps": 3, "batch_size": 8, "learning_rates": 0.1, "fraction": 0.1}
    evals = {**QUICK, "logistic": {"l2": (0.1, 1.0), "seed": 3}, "tuned": short}
    found = list(
        compare(
            {"a": encoder, "counted": counted, "raw pixels": raw_pixels},
            evals,
            splits,
            data="pictures",
            seed=7,
        )
    )
    on_features = ["knn", "linear", "logistic"]
    assert [(result.encoder, result.label) for result in found] == [
        ("a", label) for label in (*on_features, "tuned")
    ] + [(name, label) for name in ("counted", "raw pixels") for label in on_features]
    assert len(seen) == 2  # traced for the train and the test images
    assert all(result.data == "pictures" and result.time and 0 < result.value <= 1 for result in found)
    assert [result.seed for result in found[:4]] == [None, 7, 3, 7]
    assert found[0].encoder_hash and found[-1].encoder_hash is None
    assert "channels" not in found[0].details and found[-1].details["channels"] == 1
    alone = PROTOCOLS["knn"].run(encoder, splits, k=20)
    assert (found[0].value, found[0].recipe) == (alone.value, alone.recipe)


def test_the_table_of_the_bundled_images_is_trained_as_it_was():
    """The recipes of version 0.1.0, which were chosen on held-out images."""
    recipes = {}
    for given in BUNDLED.values():
        settings = dict(given)
        if settings.pop("protocol", None) == "finetune":
            made = arguments("finetune", **settings)
            recipes[made["fraction"]] = made["recipe"]
    assert recipes == {
        0.01: (FinetuneRecipe(100, 32, 0.03, 0.003, crop_area=None),),
        0.1: (FinetuneRecipe(200, 64, 0.03, 0.003, crop_area=None),),
        1.0: (FinetuneRecipe(313, 128, 0.1, 0.03, crop_area=None),),
    }
    logistic = arguments("logistic", **BUNDLED["logistic"])
    np.testing.assert_allclose(logistic.pop("l2_grid"), np.logspace(0, 3.5, 8))
    assert logistic == {"max_iter": 100, "validation": 0.1, "standardised": True}
