"""What a run trains with where its config says no more than its images."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from keras_sslhsic import cli, views
from keras_sslhsic.runs import config, defaults, evaluate, folder, pretrain

ROOT = Path(__file__).parents[1]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Folders of 12 images of 40 x 30 pixels: with two classes, with train and test, without classes, gray ones."""
    rng = np.random.default_rng(0)
    for i in range(12):
        pixels = rng.integers(0, 256, (30, 40, 3), np.uint8)
        places = {
            "classes": "ab"[i % 2],
            "split/train": "ab"[i % 2],
            "split/test": "ab"[i % 2],
            "flat": "",
            "gray": "",
        }
        for name, label in places.items():
            path = tmp_path / name / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[..., 0] if name == "gray" else pixels).save(path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def chosen(photos, monkeypatch):
    """(words of the command `pretrain`) -> the completed config that is trained with."""
    ran = []

    def run(settings, workdir, resume, **options):
        ran.append(config.completed(settings))
        config.check(ran[0])
        Path(workdir).mkdir()
        return {"results": []}

    def command(*words):
        ran.clear()
        workdir = f"run{len(list(Path().glob('run*')))}"
        assert cli.main(["pretrain", *words, "--workdir", workdir]) == 0
        return ran[0]

    monkeypatch.setattr(pretrain, "run", run)
    return command


def test_a_folder_is_all_that_has_to_be_said(chosen, capsys):
    found = chosen("--data", "classes")
    assert (found.name, found.batch_size, found.model.num_classes) == ("run0", 2, 2)
    assert found.data.to_dict() == {
        "source": "folder", "path": "classes", "image_size": 30, "channels": 3, "cache": "decoded",
    }  # fmt: skip
    assert (found.views.size, found.encoder.input_shape) == (30, (None, None, 3))
    assert found.evals.to_dict() == {"knn": {}}
    told = capsys.readouterr().out
    assert "12 images of about 30 pixels, in colour, 2 classes" in told
    # The mean and deviation of the images: uniform numbers, whose standard error is 0.29 / sqrt(12 * 30 * 40).
    assert np.allclose(found.views.mean, 0.5, atol=5 * 0.29 / 120 + 5e-4)
    assert np.allclose(found.views.std, 12**-0.5, atol=0.02)
    for choice in (
        "views: 30 pixels",
        "encoder: r18_1x",
        "batch_size: 2",
        "optimizer: adamw, learning rate 6.25e-05",
        "loss: gamma",
    ):
        assert f"  {choice}" in told


def test_what_the_command_says_comes_before_what_suits(chosen, capsys):
    found = chosen(
        "--data",
        "classes",
        "--image-size",
        "16",
        "--epochs",
        "3",
        "--config.batch_size=4",
        "--config.model.target=False",
        "--config.encoder.width=0.125",
    )
    assert (found.views.size, found.data.image_size, found.epochs, found.batch_size) == (16, 18, 3, 4)
    assert found.model.target is False and found.model.projector_hidden == 1024
    told = capsys.readouterr().out
    assert "times 4/256" in told and "batch_size:" not in told
    assert "r18_1x of width 0.5, for 12 images; " in told and ", but encoder.width=0.125\n" in told
    found = chosen("--config", str(ROOT / "configs/folder.py"), "--data", "flat", "--config.views.size=16")
    assert (found.name, found.data.path, found.views.size) == ("folder", "flat", 16)
    assert "num_classes" not in found.model and not len(found.evals)
    assert found.data.image_size == 18


def test_images_of_12_bits_in_files_of_16_are_warned_of(chosen):
    for file in Path("gray").glob("*.png"):
        Image.fromarray(np.asarray(Image.open(file)).astype(np.uint16) << 4).save(file)
    with pytest.warns(
        UserWarning, match="Of 12 images no pixel is above 15 of 255. Of 16 bits the high byte"
    ):
        chosen("--data", "gray")


def test_another_optimizer_has_its_own_learning_rate_and_a_fast_stem_is_named(chosen, capsys):
    found = chosen("--data", "classes", "--config.optimizer.name=lars").optimizer
    assert (found.name, found.learning_rate, found.weight_decay) == ("lars", 0.4, 1e-6)
    told = capsys.readouterr().out
    assert "but optimizer.name=lars\n" in told and "encoder.stem=small sees" in told
    found = chosen("--data", "classes", "--config.optimizer.name=sgd", "--config.optimizer.learning_rate=0.1")
    assert (found.optimizer.learning_rate, found.optimizer.weight_decay) == (0.1, 1e-3)


def test_a_preset_of_views_leaves_what_else_suits(chosen, capsys):
    found = chosen("--data", "classes", "--config.views=small_image", "--config.views.flip=0.25")
    assert views.get(found.views) == dataclasses.replace(views.small_image(), flip=0.25)
    assert (found.batch_size, found.data.image_size, found.model.num_classes) == (2, 32, 2)
    assert found.evals.to_dict() == {"knn": {}} and found.encoder.width == 0.5
    told = capsys.readouterr().out
    assert "  views: 32 pixels, the size of the images, but views=small_image\n" in told
    assert chosen("--data", "gray", "--config.views=grayscale").data.channels == 1


@pytest.mark.filterwarnings("ignore:data.source=folder")
def test_a_config_that_names_its_network_is_taken_as_it_is(chosen, capsys):
    found = chosen("--config", str(ROOT / "configs/fashion_small.py"), "--data", "gray")
    assert (found.data.to_dict(), found.views.size) == (
        {"source": "folder", "path": "gray", "channels": 1},
        28,
    )
    assert "chosen" not in capsys.readouterr().out


def test_gray_images_have_one_channel_and_no_colour_is_changed(chosen):
    found = chosen("--data", "gray")
    assert (found.data.channels, found.encoder.input_shape[-1], len(found.views.mean)) == (1, 1, 1)
    assert (found.views.grayscale, found.views.jitter.hue, found.views.jitter.saturation) == (0, 0, 0)


def test_of_a_folder_with_train_and_test_the_first_is_trained_on(chosen):
    found = chosen("--data", "split")
    assert (found.data.path, found.evals.to_dict()) == ("split/train", {"knn": {"data": "split"}})
    (group,) = evaluate.groups_of(found)
    assert (group.data, len(group.splits["train"]), len(group.splits["test"])) == ("split", 12, 12)
    # Another evaluation is on the same images.
    groups = evaluate.groups_of(chosen("--data", "split", "--config.evals.logistic.seed=3"))
    assert [(g.data, [*g.evals], len(g.splits["test"])) for g in groups] == [
        ("split", ["knn"], 12), ("split", ["logistic"], 12),
    ]  # fmt: skip


def test_the_folder_one_is_in_has_no_name_and_is_measured_on(chosen, monkeypatch):
    monkeypatch.chdir("classes")
    found = chosen("--data", ".")
    assert evaluate.own_data(found)[0] == "."


def test_images_to_test_on_that_have_no_classes_are_not_read(chosen):
    for file in Path("split/test").glob("*/*.png"):
        file.rename(f"split/test/{file.name}")
    with pytest.warns(UserWarning, match="split/test has no folders of classes to measure on"):
        found = chosen("--data", "split")
    assert (found.data.path, found.evals.to_dict()) == ("split/train", {"knn": {}})
    (group,) = evaluate.groups_of(found)
    assert (group.data, len(group.splits["train"]), len(group.splits["test"])) == ("split/train", 10, 2)


def test_a_fifth_of_the_classes_of_a_folder_is_measured_on(chosen):
    (group,) = evaluate.groups_of(chosen("--data", "classes", "--image-size", "16"))
    assert (group.data, len(group.splits["train"]), len(group.splits["test"])) == ("classes", 10, 2)
    assert group.splits["test"].recipe() == {
        "image_size": 16, "short_side": 16, "resize": "blocks averaged, bicubic", "folder_held_out": 0.2,
    }  # fmt: skip


@pytest.mark.parametrize("data", ["classes", "split"])
def test_as_many_files_may_be_broken_where_it_is_measured_as_where_it_is_trained(data, chosen):
    folder = Path(data, "train" if data == "split" else "")
    (folder / "a" / "0.png").write_text("not a picture")
    found = chosen("--data", data, "--image-size", "16", "--config.data.max_broken=0.5")
    (group,) = evaluate.groups_of(found)
    split = group.splits["train"]
    assert sum(len(images) for images, _ in split.batches(4)) == len(split) - 1


def test_a_run_that_goes_on_keeps_what_was_chosen(photos):
    said = []
    first = config.completed(defaults.suited(ConfigDict({"data": {"path": "flat"}}), say=said.append))
    Path("flat/new.png").write_bytes(Path("flat/0.png").read_bytes())
    again = defaults.suited(ConfigDict({"data": {"path": "flat"}}), first, said.append)
    assert config.completed(again) == first
    assert len([line for line in said if "images of about" in line]) == 1
    other = defaults.suited(ConfigDict({"data": {"path": "flat"}, "views": {"size": 20}}), first)
    assert other.views.to_dict() == {**first.views.to_dict(), "size": 20}
    Path("run").mkdir()
    Path("run", folder.CONFIG).write_text(first.to_json())
    with pytest.raises(ValueError, match=r"differ in views\.size \(30 there, 20 now\)"):
        folder.check_folder(Path("run"), other, resume=True)


@pytest.mark.parametrize(
    "number, side, size, batch, encoder",
    [
        (8, 28, 28, 2, {"name": "r18_1x", "width": 0.5}),
        (510, 3000, 96, 64, {"name": "r18_1x", "width": 0.5}),
        (50_000, 32, 32, 128, {"name": "r18_1x", "width": 1.0}),
        (1_281_167, 400, 96, 256, {"name": "r50_1x"}),
    ],
)
def test_more_images_have_larger_batches_and_networks(number, side, size, batch, encoder):
    chosen, why = defaults._choose(defaults.Found(number, side, 3), size, "ssl_hsic", {})
    assert chosen["batch_size"] == batch and encoder.items() <= chosen["encoder"].items()
    assert views.get(chosen["views"]).size == size and chosen["data"]["image_size"] == (
        size if side == size else 110
    )
    assert 20 <= chosen["epochs"] <= 100 and 0 < chosen["loss"]["gamma"] <= 3
    assert (chosen["loss"]["gamma"] == 3) == (batch >= 128)
    # Decoded images are kept where they fit into half a gigabyte.
    assert (chosen["data"]["cache"] is None) == (number > 100_000)
    assert set(why) == {"views", "encoder", "batch_size", "epochs", "optimizer", "loss"}


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "Say what to train on: --data with a folder"),
        (["--data", "nowhere"], "nowhere is no folder, and TensorFlow Datasets has no data set of that name"),
        (["--data", "empty"], "empty holds no images"),
        (["--data", "flat", "--image-size", "0"], "image_size must be at least 1, found 0"),
        (["--data", "flat", "--method", "ssl_hsik"], "Unknown method 'ssl_hsik': did you mean ssl_hsic"),
        (["--data", "flat", "--config.views.size=0"], "views.size must be at least 1, found 0"),
        (["--data", "flat", "--config.batch_size=many"], "batch_size of the config must be an integer"),
        (["--data", "flat", "--config.batch_size=0"], "batch_size must be at least 1, found 0"),
        (["--data", "flat", "--config.data.channels=red"], "data.channels of the config must be"),
        (["--data", "flat", "--config.epoch=3"], "no field 'epoch'. The nearest ones: epochs"),
    ],
)
def test_what_cannot_be_trained_on_is_said_before_anything_is_written(words, message, photos, capsys):
    Path("empty").mkdir()
    before = sorted(Path().iterdir())
    assert cli.main(["pretrain", *words, "--workdir", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert sorted(Path().iterdir()) == before


@pytest.mark.slow
def test_a_folder_without_classes_ends_with_a_picture_of_neighbours(photos, capsys):
    small = [
        "--config.encoder.width=0.03",
        "--config.model.projector_hidden=8",
        "--config.model.projection_dim=4",
    ]
    command = ["pretrain", "--data", "flat", "--image-size", "8", "--epochs", "1", "--workdir", "run", *small]
    assert cli.main(command) == 0
    assert "neighbours.png" in capsys.readouterr().out
    with Image.open("run/neighbours.png") as picture:
        assert min(picture.size) > 100
    assert folder.load_config("run").views.size == 8
