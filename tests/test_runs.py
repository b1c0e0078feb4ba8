"""A run folder: what a run leaves when it is stopped at any moment, and what it makes of damaged files."""

import json
import os
import re
import warnings
import zipfile

import crash
import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure
from ml_collections import ConfigDict
from PIL import Image

from keras_sslhsic import LARS, SSLHSIC, files, lock, pictures, plots, views
from keras_sslhsic.data import from_arrays
from keras_sslhsic.evaluation import Result, results
from keras_sslhsic.runs import build, evaluate, folder, pretrain
from keras_sslhsic.training import checkpoint, state

CONFIG = ConfigDict(
    {
        "name": "tiny",
        "seed": 0,
        "epochs": 2,
        "strategy": "one",
        "target_ema": 0.9,
        "data": {"source": "bundled"},
        "views": views.grayscale(8).to_dict(),
    }
)
FILES = [
    "checkpoints", "config.json", "curves.png", "encoder.keras", "encoder.weights.h5", "features.png", "history.csv",
    "initial_encoder.keras", "model.keras", "summary.json", "views.png",
]  # fmt: skip


@pytest.fixture(scope="module")
def trainer():
    """() -> always the same model, as it was when it was made: so that its step is traced once."""
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, use_bias=False)(images))
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
    model = SSLHSIC(encoder, 8, 4, views=views.grayscale(8), weight_ema=0.9)
    model.compile(LARS(0.5))
    variables = state.variables(model)
    first = state.arrays(variables)

    def reset():
        state.assign(variables, first)
        return model

    return reset


class Ends(keras.callbacks.Callback):
    """In the place of TensorBoard, whose files are not ours."""

    at_epoch_end = staticmethod(lambda model, epoch: None)

    def on_epoch_end(self, epoch, logs=None):
        self.at_epoch_end(self.model, epoch)


class Bar(keras.callbacks.Callback):
    def close(self):
        pass


@pytest.fixture
def run_of(trainer, monkeypatch):
    """`pretrain.run` of a tiny network on eight images, evaluation and drawing left out."""
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1), np.uint8)
    data = from_arrays(images, batch_size=4)
    monkeypatch.setattr(pretrain, "source", lambda *arguments, **options: data)
    monkeypatch.setattr(pretrain, "build_model", lambda *arguments: trainer())
    monkeypatch.setattr(pretrain, "evaluate_run", lambda *arguments: [{"features": "pretrained", "knn": 0.5}])
    monkeypatch.setattr(pretrain, "extract_features", lambda *arguments: np.zeros([8, 4]))
    for name in ("curves", "feature_map"):
        monkeypatch.setattr(plots, name, lambda *arguments: pictures.save(Figure(), arguments[-1]))
    monkeypatch.setattr(views, "show", lambda *arguments: Figure())
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: path.write_bytes(b"picture"))
    monkeypatch.setattr(keras.callbacks, "TensorBoard", lambda *arguments, **options: Ends())
    monkeypatch.setattr(pretrain, "Progress", Bar)
    return lambda workdir, resume=False, **fields: pretrain.run(
        ConfigDict(CONFIG.to_dict() | fields), workdir, resume
    )


def contents(run):
    """All that a run is for: weights of the last checkpoint and of the encoder, history and summary without times."""
    assert sorted(os.listdir(run)) == FILES
    _, values = checkpoint._read(run / "checkpoints" / "checkpoint-000002.npz")
    found = {name: value.tobytes() for name, value in values.items()}
    with zipfile.ZipFile(run / "encoder.keras") as archive, archive.open("model.weights.h5") as weights:
        archived = h5py.File(weights)
        archived.visititems(
            lambda name, item: found.update({name: item[()].tobytes()} if hasattr(item, "dtype") else {})
        )
    history, summary = folder.read_history(run / "history.csv"), folder.read_summary(run)
    timeless = dict.fromkeys(("seconds", "checkpoint_seconds"))
    return found, history | timeless, summary | {"seconds": None}


def test_the_bar_is_closed_before_a_fault_is_told(run_of, tmp_path, monkeypatch):
    closed = []

    class Failing(Bar):
        def on_epoch_end(self, epoch, logs=None):
            raise OSError("The disk is full.")

        def close(self):
            closed.append(True)

    monkeypatch.setattr(pretrain, "Progress", Failing)
    with pytest.raises(OSError, match="The disk is full"):
        run_of(tmp_path / "run")
    assert closed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_killed_at_any_operation_ends_as_one_that_was_not(run_of, tmp_path):
    run_of(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    place = tmp_path / "killed"
    place.mkdir()
    count = 0
    for point in crash.points(lambda: run_of(place / "run"), place):
        count += 1
        finished = folder.is_finished(place / "run")
        run_of(place / "run", resume=True)
        assert contents(place / "run") == whole, point
        # Nobody writes to a finished run, nor takes away the lock that it was killed with.
        assert set(crash.leftovers(place)) <= ({".run.lock"} if finished else set()), point
    assert count > 4 * len(FILES)


@pytest.mark.parametrize("left", [None, "views.png", "broken_images.log", "leftover"])
def test_a_run_killed_before_its_config_begins_anew(left, run_of, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    if left:
        name = f".config.json.{files._HOST}-{2**22 + 1}-0123abcd.partial" if left == "leftover" else left
        (run / name).write_text("{")
    run_of(run)
    assert {*FILES} <= {*os.listdir(run)}
    (run / "config.json").unlink()
    for path in run.iterdir():
        if path.name not in ("views.png", "broken_images.log") and path.is_file():
            path.unlink()
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    (run / "checkpoints").rmdir()
    with pytest.warns(UserWarning, match=r"run had not begun: it has no config\.json\. It begins now\."):
        run_of(run, resume=True)
    assert {*FILES} <= {*os.listdir(run)}


def test_a_run_opens_its_images_once_and_reads_eight_to_look_at(run_of, tmp_path, monkeypatch):
    opened, asked = pretrain.source, []

    def source(*arguments, **options):
        asked.append("source")
        images = opened(*arguments, **options)
        for name in ("sample", "batches"):
            monkeypatch.setattr(images, name, noted(name, getattr(images, name)))
        return images

    def noted(name, method):
        def called(*arguments, **options):
            asked.append((name, *arguments, *options.values()))
            return method(*arguments, **options)

        return called

    monkeypatch.setattr(pretrain, "source", source)
    run_of(tmp_path / "run")
    assert asked == ["source", ("sample", 8), ("batches", 0)]


TINY = {
    "seed": 3,
    "epochs": 2,
    "batch_size": 4,
    "steps_per_execution": 1,
    "chunks": 1,
    "precision": "mixed_bfloat16",
    "method": "ssl_hsic",
    "encoder": {"name": "r18_1x", "width": 0.03, "input_shape": (8, 8, 1)},
    "model": {"projector_hidden": 4, "projection_dim": 4, "target": False},
    "views": views.grayscale(8).to_dict(),
    "loss": {"name": "ssl_hsic", "gamma": 1.0},
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "warmup_epochs": 1},
}


def test_what_is_built_has_the_precision_and_the_seed_of_its_config_and_the_process_keeps_its_own():
    before = keras.config.dtype_policy()
    model = build.build_model(ConfigDict(TINY), 2, tf.distribute.get_strategy())
    initial = build.initial_encoder(ConfigDict(TINY))
    assert keras.config.dtype_policy() == before
    assert model.encoder.layers[1].compute_dtype == "bfloat16"
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    np.testing.assert_array_equal(model.serving_encoder()(images), initial(images))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"method": "ssl_hsik"}, "Unknown method 'ssl_hsik': did you mean ssl_hsic?"),
        ({"loss": {"name": "info_nca"}}, "Unknown loss 'info_nca': did you mean info_nce"),
        ({"optimizer": TINY["optimizer"] | {"name": "adam"}}, "Unknown optimizer 'adam': did you mean adamw"),
    ],
)
def test_unknown_names_in_a_config_say_the_nearest_ones(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build.build_model(ConfigDict(TINY | fields), 2, tf.distribute.get_strategy())


def test_a_folder_whose_name_tensorflow_cannot_take_is_not_begun_in(run_of, tmp_path):
    folder = tmp_path / os.fsdecode(b"run\xff")
    with pytest.raises(ValueError, match=r"run\\udcff is not UTF-8, .*: give another --workdir"):
        run_of(folder)
    assert not folder.exists()


def test_a_folder_with_other_files_is_not_begun_in(run_of, tmp_path):
    (tmp_path / "thesis\n.tex").touch()
    with pytest.raises(ValueError, match="holds no run"):
        run_of(tmp_path)
    with pytest.raises(ValueError, match=r"holds no run: it has no config\.json"):
        run_of(tmp_path, resume=True)
    assert os.listdir(tmp_path) == ["thesis\n.tex"]


def test_one_process_at_a_time_works_in_a_run(run_of, tmp_path):
    with (
        lock.held(tmp_path / "run"),
        pytest.raises(lock.InUseError, match=f"run is in use by process {os.getpid()}"),
    ):
        run_of(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_a_run_goes_on_with_its_own_images_alone(run_of, tmp_path, monkeypatch):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "views.png").write_bytes(b"of before")
    other = from_arrays(np.zeros([8, 8, 8, 1], np.uint8), batch_size=4)
    monkeypatch.setattr(pretrain, "source", lambda *arguments, **options: other)
    with pytest.raises(ValueError, match="trained on other images: there are 8 too now"):
        run_of(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "views.png").read_bytes() == b"of before"


def test_a_run_without_its_checkpoints_says_that_it_begins_with_the_first_epoch(run_of, tmp_path, trainer):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    with pytest.warns(UserWarning, match="training begins with the first epoch"):
        run_of(tmp_path / "run", resume=True)


def test_a_run_ends_with_the_encoder_of_the_best_epoch_too(run_of, tmp_path, monkeypatch):
    class Probe(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["knn_top1"] = (0.75, 0.5)[epoch]

    monkeypatch.setattr(pretrain, "callbacks", lambda groups: [Probe()])
    evals = {"knn": {"k": 5, "every": 1}}
    run_of(tmp_path / "run", evals=evals, checkpoints={"keep": 1, "best": "knn_top1"})
    assert sorted(os.listdir(tmp_path / "run")) == sorted([*FILES, "best_encoder.keras"])
    assert folder.read_summary(tmp_path / "run")["best"] == {"epochs": 1, "knn_top1": 0.75}
    for file, epoch in (("best_encoder.keras", 1), ("encoder.keras", 2)):
        _, values = checkpoint._read(tmp_path / "run" / "checkpoints" / f"checkpoint-{epoch:06d}.npz")
        expected = next(
            value for name, value in values.items() if name.startswith("model/ema_encoder/conv2d")
        )
        found = keras.models.load_model(tmp_path / "run" / file)
        kernels = [w.numpy() for w in found.weights if w.shape == expected.shape]
        np.testing.assert_array_equal(kernels, [expected])

    for best, watched in (("online_accuracy", evals), ("loss", evals), ("knn_top1", {})):
        with pytest.raises(ValueError, match=rf"checkpoints\.best of the config must be .* found '{best}'"):
            run_of(tmp_path / "other", evals=watched, checkpoints={"best": best})
    with pytest.raises(ValueError, match="cannot grow over the sizes 4, 8: the encoder reads 8 x 8 alone"):
        run_of(tmp_path / "other", view_sizes=[4, 8])
    assert not (tmp_path / "other" / "config.json").exists()


def test_a_run_does_not_finish_with_weights_that_are_not_finite(run_of, tmp_path, monkeypatch):
    def spoil(model, epoch):
        if epoch == 1:
            variable = model.projector.weights[0]
            variable.assign(variable * np.nan)

    monkeypatch.setattr(Ends, "at_epoch_end", staticmethod(spoil))
    with pytest.raises(
        FloatingPointError,
        match=r"model/projector/hidden/kernel became NaN .* in epoch 2, .* checkpoint is of epoch 1",
    ):
        run_of(tmp_path / "run")
    assert not {"encoder.keras", "summary.json"} & {*os.listdir(tmp_path / "run")}
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["checkpoint-000001.npz"]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("config.json", "{", r"config\.json is not readable JSON"),
        ("config.json", "[]", r"config\.json holds a list"),
        ("summary.json", "\x00", r"summary\.json is not readable JSON"),
        ("summary.json", "{}", r"summary\.json is not the summary of a run"),
        ("summary.json", '{"results": [1]}', r"summary\.json is not the summary of a run"),
        (
            "summary.json",
            '{"results": [{"features": "a", "knn": 0.5}, {"features": "b"}]}',
            r"summary\.json is not the su",
        ),
        (
            "summary.json",
            '{"results": [{"features": "a", "knn": [0.5]}]}',
            r"summary\.json is not the summary of a run",
        ),
        (
            "config.json",
            '{"views": "flying"}',
            r"config\.json is not the config of a run: .*views of the config cannot be made: Views must",
        ),
        ("config.json", '{"views": {"crop": 3}}', r"config\.json is not the config of a run"),
    ],
)
def test_damaged_files_of_a_finished_run_are_one_sentence(name, text, message, run_of, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    (run / "summary.json").write_text("{}")
    (run / "encoder.keras").touch()
    (run / name).write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        run_of(run, resume=True)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["", "checkpoints", "logs"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_file_in_the_place_of_a_folder_is_said_at_the_start(name, resume, run_of, tmp_path, monkeypatch):
    if name:
        (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).touch()
    monkeypatch.setattr(pretrain, "build_model", None)
    with pytest.raises(ValueError, match=rf"{name or 'run'} is no folder: remove it"):
        run_of(tmp_path / "run", resume)


@pytest.mark.parametrize("made", [True, False])
def test_where_no_run_has_begun_resuming_begins_one_and_says_so_once(made, run_of, tmp_path):
    if made:
        (tmp_path / "run").mkdir()
    with pytest.warns(UserWarning, match=r"run had not begun: it has no config\.json") as warned:
        run_of(tmp_path / "run", resume=True)
    assert len([w for w in warned if "had not begun" in str(w.message)]) == 1
    assert sorted(os.listdir(tmp_path / "run")) == FILES


def test_a_damaged_checkpoint_is_warned_of_once(run_of, tmp_path):
    run_of(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "checkpoints" / "checkpoint-000002.npz").write_bytes(b"x")
    with pytest.warns(UserWarning, match="trying the checkpoint before it") as warned:
        run_of(tmp_path / "run", resume=True)
    assert len([w for w in warned if "checkpoint before it" in str(w.message)]) == 1


def test_the_table_takes_values_by_their_names():
    rows = [{"features": "a", "knn": 0.5, "linear": 0.25}, {"linear": 0.75, "knn": 0.5, "features": "b\n"}]
    lines = evaluate.format_table(rows).splitlines()
    assert [line.split() for line in lines[2:]] == [["a", "50.0", "25.0"], ["b\\n", "50.0", "75.0"]]


def test_a_value_of_another_unit_than_shares_keeps_it(monkeypatch, tmp_path):
    group = evaluate.Group("rooms", {}, {"rms": {}})
    far = Result(
        protocol="rms", value=2.5, interval=(2.0, 3.0), num_test=4, unit="m", encoder="untrained", label="rms"
    )
    monkeypatch.setattr(evaluate, "encoders_of", lambda workdir: {"untrained": None})
    monkeypatch.setattr(evaluate, "measure", lambda *_, **__: [far])
    rows = evaluate.evaluate_run(tmp_path, [group])
    assert evaluate.format_table(rows).splitlines()[2].split() == ["untrained", "2.500", "m"]


@pytest.mark.parametrize(
    "text", ["epoch,loss\n0,half", "epoch,loss\n0", "epoch\n0,1\n", "epoch\n\xff", 'epoch\n"' + "x" * 200_000]
)
def test_a_damaged_history_is_one_sentence_before_training(text, run_of, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    (run / "history.csv").write_text(text, "latin1")
    with pytest.raises(ValueError, match=r"history\.csv is not the history of a run") as raised:
        run_of(run, resume=True)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize(
    "config", [{"epoch": 1}, {"data": 3}, {"views": {"size": 8, "mean": 3}}, {"optimizer": {"name": 3}}]
)
def test_a_config_that_describes_no_run_is_one_sentence(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "encoder.keras").touch()
    with pytest.raises(ValueError, match=r"config\.json is not the config of a run") as raised:
        evaluate.evaluate_run(tmp_path)
    assert "\n" not in str(raised.value)


def test_curves_of_nothing_are_no_picture():
    for history in ({}, {"loss": []}, keras.callbacks.History()):
        with pytest.raises(ValueError, match="Nothing was logged: give what `fit` returns"):
            plots.curves(history)


def test_curves_draw_whatever_was_logged():
    figure = plots.curves(
        {
            "epoch": [0, 1, 2],
            "loss": [1.0, 0.5, 0.4],
            "covariance": [3.0, 2.0, 1.0],
            "knn": [np.nan, 0.5, np.nan],
        }
    )
    drawn = {axes.get_title(): axes.lines[0].get_xydata().tolist() for axes in figure.axes if axes.lines}
    assert drawn == {
        "Loss": [[1, 1.0], [2, 0.5], [3, 0.4]],
        "covariance": [[1, 3.0], [2, 2.0], [3, 1.0]],
        "knn": [[2, 0.5]],
    }


def test_a_picture_larger_than_matplotlib_draws_is_drawn_coarser(tmp_path):
    pictures.save(Figure((1000, 1)), tmp_path / "long.png")  # 110,000 points of the usual size
    assert Image.open(tmp_path / "long.png").size == (65000, 65)


def test_pictures_are_written_whole(tmp_path, monkeypatch):
    history = keras.callbacks.History()  # what `fit` returns
    history.history = {"loss": [1.0, 0.5]}
    plots.curves(history, tmp_path / "curves.png")
    before = (tmp_path / "curves.png").read_bytes()

    def half(figure, path, **_):
        path.write_bytes(before[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match=r"curves\.png cannot be written: No space left"):
        plots.curves({"loss": [1.0, 0.5]}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes() == before
    assert os.listdir(tmp_path) == ["curves.png"]


@pytest.fixture
def squares(tmp_path):
    """A folder to train and test on, of images that are bright on the left or on the right."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, columns in (("left", slice(0, 4)), ("right", slice(4, 8))):
            (tmp_path / "squares" / split / name).mkdir(parents=True)
            for i in range(4):
                pixels = rng.integers(0, 100, (8, 8), np.uint8)
                pixels[:, columns] += 150
                Image.fromarray(pixels).save(tmp_path / "squares" / split / name / f"{i}.png")
    return str(tmp_path / "squares")


def test_a_run_ends_with_the_evaluations_of_its_config_and_logs_them_meanwhile(
    run_of, squares, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretrain, "evaluate_run", evaluate.evaluate_run)
    evals = {"near": {"protocol": "knn", "k": 1, "data": squares, "every": 2}, "logistic": {"data": squares}}
    rows = run_of(tmp_path / "run", evals=evals)["results"]
    assert [row["features"] for row in rows] == ["pretrained", "untrained", "raw pixels"]
    assert rows[2] == {"features": "raw pixels", "near": 1.0, "logistic": 1.0}
    history = folder.read_history(tmp_path / "run" / "history.csv")
    assert np.isnan(history["near_top1"][0]) and history["near_top1"][1] == rows[0]["near"]
    found = results.read(tmp_path / "run")
    assert {(r.label, r.protocol, r.data) for r in found if r.encoder == str(tmp_path / "run")} == {
        ("near", "knn", squares),
        ("logistic", "logistic", squares),
    }
    assert len(found) == 6 and len({r.encoder_hash for r in found}) == 3
    # Evaluated once more, nothing is added that the file has.
    assert evaluate.evaluate_run(tmp_path / "run") == rows
    assert len(results.read(tmp_path / "run")) == 6


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"protocol": "kn"}, "Unknown protocol 'kn': did you mean knn"),
        ({}, "Unknown protocol 'near'"),
        ({"protocol": "knn", "kk": 1}, "knn has no --kk"),
        ({"protocol": "knn", "k": 0}, "k must be at least 1, found 0"),
        ({"protocol": "knn", "every": 0}, "every must be None or at least 1, found 0"),
        ({"protocol": "knn", "data": "nowhere"}, "nowhere is no folder, and"),
        ({"protocol": "knn", "data": "."}, "holds no images"),
        ({"protocol": "finetune", "save_to": "a.keras"}, "`evaluate finetune --save-to` does it"),
    ],
)
def test_an_evaluation_that_cannot_be_made_is_said_before_anything_is_written(
    entry, message, run_of, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="The evaluation 'near' of the config cannot be made") as raised:
        run_of(tmp_path / "run", evals={"near": entry})
    assert message in str(raised.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("entry", [{"protocol": "kn"}, {"protocol": "knn", "k": 0}, {"protocol": "depth"}, 5])
def test_an_evaluation_that_there_is_not_is_said_before_images_are_opened(
    entry, run_of, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretrain, "source", lambda *_, **__: pytest.fail("images were opened"))
    with pytest.raises(ValueError, match="The evaluation 'near' of the config cannot be made"):
        run_of(tmp_path / "run", evals={"near": entry})


def test_neighbours_want_features_by_the_name_of_their_encoder():
    with pytest.raises(ValueError, match=r"\{name: features \[N, F\]\}, found a ndarray"):
        plots.neighbours(np.zeros([4, 8, 8, 3], np.uint8), np.ones([4, 2]))


def test_neighbours_are_drawn_beside_each_other():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8)
    angles = np.arange(6.0)[:, None]
    circle = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    for one, features in ((images, {"a": np.eye(3)}), (images[:1], {"a": np.eye(1)})):
        with pytest.raises(ValueError, match="Expected 2 images or more, and features"):
            plots.neighbours(one, features)
    figure = plots.neighbours(images, {"a": circle, "b": np.eye(3)[[0, 1, 2] * 2]}, queries=2, count=1)
    drawn = [[np.array_equal(axes.images[0].get_array(), image[..., 0]) for image in images].index(True)
             for axes in figure.axes if axes.images]  # fmt: skip
    assert drawn == [0, 1, 3, 5, 4, 2]


@pytest.mark.parametrize("left", ["", '{"protocol": "kn'])
def test_results_cut_short_by_a_kill_are_written_anew_and_once(tmp_path, monkeypatch, left):
    result = results.Result(
        value=0.5, interval=(0.4, 0.6), protocol="knn", encoder=str(tmp_path), data="a", label="knn"
    )
    monkeypatch.setattr(evaluate, "encoders_of", lambda workdir: {str(workdir): None})
    monkeypatch.setattr(evaluate, "compare", lambda *arguments, **options: [result])
    file = tmp_path / "results.jsonl"
    file.write_text(left)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the half line
            rows = evaluate.evaluate_run(tmp_path, [evaluate.Group("a", {})])
            assert results.read(file) == [result]
    assert rows == [{"features": "pretrained", "knn": 0.5}]


def test_a_map_of_few_images_is_drawn():
    features = np.random.default_rng(0).normal(size=(6, 64))
    assert len(plots.feature_map(features, np.arange(6) % 2, ["a", "b"]).axes[0].collections) == 2
    for arguments in ((features[:1], [0]), (features, [0]), (features, np.arange(6), ["a", "b"])):
        with pytest.raises(ValueError, match="Expected"):
            plots.feature_map(*arguments)
