import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.data.central import resize_then_crop
from keras_sslhsic.evaluation import logistic_regression, transfer, transfer_finetune
from keras_sslhsic.evaluation.fine_tuning import FinetuneRecipe, recipes
from keras_sslhsic.evaluation.images import of_arrays
from keras_sslhsic.evaluation.transfer_sets import SETS, TransferSplits, load

METRIC = {"aircraft", "pets", "caltech101", "flowers"}


def test_the_twelve_sets_and_their_metrics():
    assert len(SETS) == 12
    for name, dataset in SETS.items():
        expected = "map11" if name == "voc2007" else "mean_per_class" if name in METRIC else "top1"
        assert dataset.metric == expected
        assert (dataset.tfds is None) == (dataset.page is not None)


def test_names_are_those_of_tensorflow_datasets():
    import tensorflow_datasets as tfds

    for dataset in SETS.values():
        if dataset.tfds is not None:
            name, _, config = dataset.tfds.partition("/")
            known = tfds.builder_cls(name).builder_configs
            assert not config or config in known
    assert (
        "official partition number 1."
        in tfds.builder_cls("sun397").builder_configs[SETS["sun397"].tfds.partition("/")[2]].description
    )


@pytest.mark.parametrize("name", sorted(name for name, dataset in SETS.items() if dataset.tfds))
def test_a_set_that_is_not_prepared_is_said_and_not_downloaded(name, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=f"{SETS[name].tfds} is not prepared in .*download_and_prepare"
    ):
        load(name, data_dir=tmp_path / "sets")
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize(
    "name, counts, fit, held",
    [
        ("food101", [750] * 101, 68_175, [75] * 101),
        ("cifar10", [5000] * 10, 45_000, [500] * 10),
        ("cifar100", [500] * 100, 44_933, 5067),
        ("sun397", [50] * 397, 15_880, [10] * 397),
        ("cars", [40, 43] * 96 + [46, 47, 48, 35], 6494, 1650),
        ("pets", [100] * 20 + [99] * 16 + [96], 2940, [20] * 37),
        ("caltech101", [30] * 102, 2550, [5] * 102),
        ("birdsnap", [90, 80, 70], 225, [5, 4, 6]),
    ],
)
def test_hold_outs_are_those_of_the_paper(name, counts, fit, held):
    """Sizes of BYOL's table 10, to which the paper refers; Birdsnap has as many of a class as its test split."""
    labels = np.repeat(np.arange(len(counts)), counts)
    test_labels = np.repeat([0, 1, 2], [5, 4, 6])
    rows, held_out = SETS[name].hold_out(labels, test_labels, seed=1)
    assert len(rows) == fit and len(np.union1d(rows, held_out)) == len(labels) == fit + len(held_out)
    found = np.bincount(labels[held_out])
    assert found.sum() == held if isinstance(held, int) else found.tolist() == held
    assert not np.array_equal(held_out, SETS[name].hold_out(labels, test_labels, seed=2)[1])


@pytest.mark.parametrize("name", ["voc2007", "dtd", "aircraft", "flowers"])
def test_official_validation_splits_are_kept(name):
    assert SETS[name].validation == "validation"
    with pytest.raises(ValueError, match="official validation split"):
        SETS[name].hold_out(np.arange(4), np.arange(4))


def test_unknown_set():
    with pytest.raises(ValueError, match=r"Unknown transfer set 'iris'.*here are food101, cifar10"):
        load("iris")


def test_transfer_is_logistic_regression_on_features(make_encoder, pictures):
    encoder, (train, test) = make_encoder(), pictures
    splits = {
        name: tf.data.Dataset.from_tensor_slices(part).batch(32)
        for name, part in {"train": train, "test": test}.items()
    }
    result = transfer(encoder, TransferSplits("pets", splits), l2_grid=[0.1, 1.0], seed=2)
    fit, held = SETS["pets"].hold_out(train[1], test[1], seed=2)  # 20 of each class
    parts = (train[0][fit], train[1][fit]), test, (train[0][held], train[1][held])
    features = [(encoder(x, training=False).numpy(), y) for x, y in parts]
    expected = logistic_regression(*features, metric="mean_per_class", l2_grid=[0.1, 1.0], seed=2)
    assert (result.protocol, result.dataset, result.l2) == ("transfer", "pets", expected.l2)
    assert result.value == pytest.approx(expected.value, abs=0.02)
    assert result.recipe["held_out"] == 80 and result.num_train == 160


@pytest.fixture
def birds(tmp_path):
    generator = np.random.default_rng(0)
    for split, count in {"train": 6, "validation": 4, "test": 3}.items():
        for label, name in enumerate(("finch", "wren")):
            for data in ("birdsnap", "aircraft"):
                folder = tmp_path / data / split / name
                folder.mkdir(parents=True)
                for i in range(count):
                    pixels = generator.integers(0, 60, size=(40, 50, 3)) + 150 * label
                    Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path


@pytest.fixture
def average():
    """An encoder of 28 x 28 images: the means of the channels."""
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Rescaling(1 / 255)]
    return keras.Sequential([keras.Input((28, 28, 3)), *layers])


def test_a_set_from_files(birds, average):
    splits = load("birdsnap", image_size=28, data_dir=birds)
    assert set(splits) == {"train", "test"}  # the validation images are drawn
    images, labels = next(splits["train"].batches(20).as_numpy_iterator())
    assert images.shape == (12, 28, 28, 3) and labels.tolist() == [0] * 6 + [1] * 6
    # Bicubic, the short side and the central square of 28.
    np.testing.assert_array_equal(images[3], resize_then_crop(splits["train"].read(3), 28, 28))
    result = transfer(average, splits, l2_grid=[1.0])
    assert result.top1 == 1.0 and result.num_test == 6 and result.num_train == 12
    assert result.recipe["held_out"] == 6
    assert (result.recipe["image_size"], result.recipe["short_side"]) == (28, 28)


@pytest.mark.slow
def test_fine_tuning_on_a_set_from_files(birds, average):
    swept = recipes((0.3, 1.0), (0.0, 1e-4), steps=30, batch_size=6)
    where = {"training": True, "image_size": 28, "data_dir": birds}
    result = transfer_finetune(average, load("aircraft", **where), recipe=swept)
    assert (result.protocol, result.dataset, result.metric) == (
        "transfer_finetune",
        "aircraft",
        "mean_per_class",
    )
    assert result.value == 1.0 and result.steps == 30 and result.validation_value == 1.0
    assert result.num_train == 20 and result.recipe["held_out"] == 8  # the official validation split
    assert (result.recipe["image_size"], result.recipe["short_side"]) == (28, 32)
    drawn = transfer_finetune(average, load("birdsnap", **where), recipe=swept, seed=1)
    assert drawn.num_train == 12 and drawn.recipe["held_out"] == 6 and drawn.top1 == 1.0


@pytest.mark.parametrize("as_arrays", [True, False])
def test_images_of_several_classes_in_arrays(average, as_arrays):
    rng = np.random.default_rng(0)
    labels = rng.random((60, 3)) < 0.5
    images = (rng.integers(0, 60, (60, 28, 28, 3)) + 150 * labels[:, None, None]).astype(np.uint8)
    made = (lambda *split: split) if as_arrays else of_arrays
    parts = {"train": (0, 30), "validation": (30, 40), "test": (40, 60)}
    splits = {name: made(images[a:b], labels[a:b]) for name, (a, b) in parts.items()}
    voc = TransferSplits("voc2007", splits)
    assert transfer(average, voc, l2_grid=[0.1]).map11 > 0.95
    recipe = FinetuneRecipe(steps=100, batch_size=40, head_learning_rate=3.0, crop_area=None)
    result = transfer_finetune(average, voc, recipe=recipe)
    assert result.map11 > 0.95 and result.num_train == 40


def test_one_recipe_is_trained_on_all_images_of_a_set(birds, average):
    """Also where its test split has as many of a class as there are to train on: nothing is held out."""
    one = recipes((0.3,), steps=2, batch_size=6)
    for name, number in {"aircraft": 20, "birdsnap": 12}.items():
        result = transfer_finetune(average, load(name, image_size=28, data_dir=birds), recipe=one)
        assert (result.num_train, result.recipe["held_out"]) == (number, 0)


def test_sets_are_read_with_the_channels_of_the_encoder(birds):
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Rescaling(1 / 255)]
    gray = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    splits = load("birdsnap", image_size=28, data_dir=birds, channels=1)
    assert transfer(gray, splits, l2_grid=[1.0]).top1 == 1.0
    one = recipes((0.3,), steps=1, batch_size=6)
    assert transfer_finetune(gray, splits, recipe=one).num_train == 12


def test_images_of_several_classes(make_encoder, pictures):
    """As VOC2007's: classes in threes of four quadrants, by both protocols."""
    (images, labels), test = pictures
    classes = ~np.eye(4, dtype=bool)
    parts = {"train": (images[:100], labels[:100]), "validation": (images[100:], labels[100:]), "test": test}
    splits = TransferSplits("voc2007", {name: of_arrays(x, classes[y]) for name, (x, y) in parts.items()})
    encoder = make_encoder()
    linear = transfer(encoder, splits, l2_grid=[1e-3, 1.0])
    recipe = FinetuneRecipe(40, 50, crop_area=None)
    tuned = transfer_finetune(encoder, splits, recipe=recipe)
    for result in (linear, tuned):
        assert (result.metric, result.num_test) == ("map11", 80) and result.value > 0.9


def test_missing_files_say_where_they_go(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"birdsnap/SPLIT/CLASS.*data_dir="):
        load("birdsnap", data_dir=tmp_path)
