"""The command line and a whole experiment, small."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_sslhsic_command
from keras_sslhsic import callbacks, cli, export
from keras_sslhsic.encoders import EncoderSpec
from keras_sslhsic.evaluation import PROTOCOLS, Result, results
from keras_sslhsic.runs import build, config, evaluate, folder, pretrain
from keras_sslhsic.zoo import extract

CONFIG = str(Path(__file__).parents[1] / "configs" / "fashion_small.py")
FOLDER = str(Path(__file__).parent / "data")
SMALL = [
    "--config.data.holdout=0.95",
    "--config.encoder.width=0.05",
    "--config.views.size=12",
    "--config.batch_size=100",
    "--config.model.projector_hidden=16",
    "--config.model.projection_dim=8",
    "--config.loss.num_features=16",
]  # fmt: skip


def test_help_says_what_every_command_does(capsys):
    commands = ("pretrain", "evaluate all", "config", "report", "extract", "export", "convert")
    for arguments in ([], *map(str.split, commands)):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*arguments, "--help"])
        assert stopped.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "one of depth, detection, finetune, linear_features" in told
    # Every setting of every protocol is a flag, said with its default and the protocols that have it.
    flags = {
        f"--{name.replace('_', '-')}" for p in PROTOCOLS.values() for name in (*p.settings, *p.needs.settings)
    }
    assert all(flag in told for flag in flags)
    assert (
        "updates, instead of epochs (default: 7500 (depth); 22500 (detection); 30000 (segmentation); 20000 "
        "(transfer_finetune)) [depth, detection, finetune, segmentation, transfer_finetune]" in told
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.epoch=5"], "no field 'epoch'. The nearest ones: epochs"),
        (["pretrain", "--config", "none.py", "--workdir", "x"], "no file or folder none.py"),
        (
            ["pretrain", "--config", CONFIG, "--workdir", "x", "--config.batch_size=20000"],
            "10,000 examples, fewer than one batch of 20000",
        ),
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.data.source=web"], "Unknown data source 'web'"),
        (
            ["pretrain", "--config", CONFIG, "--workdir", "x", "--config.loss.temperature=1"],
            "no field 'loss.temperature'. The nearest ones: ",
        ),
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.epochs=0"], "epochs must be at least 1, found 0"),
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.batch_size=1"], "A batch of 1 image: HSIC"),
        (["evaluate"], "Give either --run"),
        (["evaluate", "--run", ".", "--data", "cifar10"],
         "--data goes with one protocol, as the evaluations are the config's: name one of depth, detection"),
        (["evaluate", "--run", ".", "--epochs", "3", "--k", "7"], "--epochs, --k go with one protocol"),
        (["evaluate", "--encoder", "r18_fashion"], "Give a protocol with --encoder: one of depth, detection, finetune"),
        (["evaluate", "svm", "--encoder", "r18_fashion"], "Unknown protocol 'svm': there are depth, detection"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--k", "x"], "k must be an integer, found 'x'"),
        (["evaluate", "transfer", "--encoder", "r18_fashion", "--train-split", "x"],
         "transfer has no --train-split; it has --batch-size, --data-dir"),
        (["evaluate", "all", "--encoder", "r18_fashion", "--epochs", "1", "--k", "3", "--data", "nowhere", "--image-size", "9"],
         "--data, --epochs, --image-size, --k go with one protocol, as `all` measures on the bundled images"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--batch-size", "-3"], "batch_size must be at least 1, found -3"),
        (["evaluate", "logistic", "--encoder", "r18_fashion", "--validation-split", "x"], "logistic has no --validation-split"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--short-side", "0"], "short_side must be at least 1, found 0"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--temperature", "inf"], "temperature must be a finite number"),
        (["evaluate", "--run", "nowhere"], "no file or folder nowhere"),
        (["evaluate", "--run", "."], ". holds no run"),
        (["evaluate", "knn", "--encoder", "r51_1x"], "r50_1x"),
        (["evaluate", "knn", "--run", CONFIG], "is a file: give --run the folder of a run, or --encoder a file"),
        (["report", "nowhere"], "nowhere"),
        (["convert", "nowhere.npy", "--to", "x.weights.h5"], "no file or folder nowhere.npy"),
        (["extract", "--model", "r18_fashion", "--data", "nowhere", "--out", "x.npz"], "nowhere"),
        (["extract", "--model", "r18_fashion", "--data", "", "--out", "x.npz"], "the value of data is empty"),
        (["extract", "--model", "r18_fashion", "--data", "nowhere", "--out", f"{CONFIG}/x.npz"], "Not a directory"),
        (["convert", "nowhere.npy", "--to", FOLDER], "is a folder: give the name of a file"),
        (["convert", FOLDER, "--to", "x.keras"], "is a folder: expected checkpoint.npy"),
        (["export", "--model", "r18_fashion", "--out", f"{CONFIG}/x"], "Not a directory"),
        (["export", "--model", "r18_fashion", "--out", "/proc/x.tflite"], "/proc/x.tflite cannot be written: "),
        (["export", "--model", "r18_fashion", "--out", "x.h5"], "nothing is written to .h5 files"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--out", "/proc/x.jsonl"], "/proc/x.jsonl cannot be written: "),
        (["export", "--model", "none.keras", "--out", "x"], "no file or folder none.keras"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--data", "nowhere"], "nowhere is no folder, and"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--data", "../no where"], "no file or folder ../no where"),
        (["evaluate", "transfer", "--encoder", "r18_fashion"], "transfer needs images of another kind than a run has: name"),
        (["evaluate", "depth", "--encoder", "r18_fashion"], "depth needs images of another kind than a run has: name"),
        (["evaluate", "transfer", "--encoder", "r18_fashion", "--data", "web"], "Unknown transfer set 'web'"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--seed", "-1"], "seed must be None or at least 0, found -1"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--k", "0"], "k must be at least 1, found 0"),
        (["evaluate", "linear", "--encoder", "r18_fashion", "--learning-rate", "0"], "learning_rate must be above 0, found 0"),
        (["evaluate", "linear", "--encoder", "r18_fashion", "--seed", "3000000000"], "at most 2,147,483,647, found 3"),
        (["evaluate", "finetune", "--encoder", "r18_fashion", "--fraction", "1.5"], "fraction must be at most 1, found 1.5"),
        (["evaluate", "logistic", "--encoder", "r18_fashion", "--holdout", "1"], "holdout must be below 1, found 1"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--image-size", "20000"], "at most 16,384, found 20,000"),
        (["evaluate", "knn", "--encoder", "r18_fashion", "--short-side", "20"], "short_side must be None or at least 28"),
        (["extract", "--model", "r18_fashion", "--data", ".", "--out", "x.npz", "--image-size", "0"], "image_size must be"),
        (["export", "--model", "r18_fashion", "--out", "x", "--image-size", "-1"], "image_size must be at least 1"),
        (["inspect", ".", "--memory-mb", "0"], "memory_mb must be at least 1, found 0"),
        (["pretrain", "--workdir", "x", "--data", "nowhere"], "nowhere is no folder, and TensorFlow Datasets has no data"),
        (["pretrain", "--workdir", "x", "--data", "bundled", "--init", "none.keras"], "no file or folder none.keras"),
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.target_ema=2"], "target_ema must be at most 1, found 2"),
        (
            ["evaluate", "knn", "--encoder", "r18_fashion", "--epochs", "3"],
            "knn has no --epochs; it has --batch-size, --data-dir",
        ),
        (["evaluate", "finetune", "--encoder", "r18_fashion", "--epochs", "3", "--steps", "4"], "either steps or epochs"),
        (["evaluate", "transfer_finetune", "--encoder", "r18_fashion", "--data", "web"], "Unknown transfer set 'web'"),
        (["inspect", "nowhere"], "nowhere"),
        (["inspect", "nowhere", "--sheet", f"{CONFIG}/x.png"], "Not a directory"),
        (["report", CONFIG], "holds something else than results"),
        (["pretrain", "--resume", "--workdir", "x"], "x holds no run to go on with: name the folder of one."),
        (["pretrain", "--config", CONFIG, "--workdir", "x", "--config.chunks=3"], "cannot be trained on in chunks=3"),
        (
            ["reproduce", "claims", "--seeds", "3", "--scale", "small"],
            "reproduce claims takes no --scale, --seeds; it takes --records.",
        ),
        (["reproduce", "claims", "--records", CONFIG], f"Line 1 of {CONFIG} is no record of a training"),
        (["reproduce", "claims", "--records", f"{CONFIG}/x.jsonl"], "Not a directory"),
    ],
)  # fmt: skip
def test_bad_input_is_said_in_one_line_and_nothing_is_written(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert "--traceback" not in error
    assert os.listdir(tmp_path) == []


def test_a_current_folder_that_was_deleted_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    for words in (["inspect", "."], ["evaluate", "knn", "--encoder", "r18_fashion", "--data", "bundled"]):
        assert cli.main(words) == 2
        assert "the current folder was deleted: change to one that exists." in capsys.readouterr().err


LIGHT = """
import contextlib, io, os, sys
import keras_sslhsic_command

for words in {words}:
    sys.argv = ["keras-sslhsic", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            status = keras_sslhsic_command.main()
        except SystemExit as stopped:
            status = stopped.code
    print(status, "tensorflow" in sys.modules, out.getvalue().splitlines()[-1])
"""


def test_help_typos_and_missing_files_are_told_without_tensorflow(tmp_path):
    told = {
        ("--help",): "0 False",
        ("pretrain", "--help"): "0 False",
        ("evaluate", "--help"): "0 False",
        ("pretain",): "2 False keras-sslhsic: error: argument COMMAND: invalid choice",
        ("models", "--fast"): "2 False keras-sslhsic: error: unrecognized argument: --fast",
        (
            "config",
            "--config.epochs=3",
        ): "2 False keras-sslhsic: error: --config.epochs=3 changes a field of a config",
        (
            "pretrain",
            "--data",
            "no photos",
            "--workdir",
            "x",
        ): "2 False keras-sslhsic pretrain: there is no file or folder no",
        (
            "pretrain",
            "--data",
            "photos",
            "--workdir",
            "x",
        ): "2 False keras-sslhsic pretrain: photos is no folder, and",
        (
            "extract",
            "--model",
            "x",
            "--data",
            "photos",
            "--out",
            "x.npz",
        ): "2 False keras-sslhsic extract: there is no file",
        (
            "evaluate",
            "knn",
            "--run",
            "x",
            "--k",
            "3",
        ): "2 False keras-sslhsic evaluate: there is no file or folder x;",
    }
    code = LIGHT.format(words=list(told))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env=_environment(),
    )
    for expected, found in zip(told.values(), done.stdout.splitlines(), strict=True):
        assert found.startswith(expected)
    assert os.listdir(tmp_path) == []


def _environment():
    """That of a user, who set nothing of TensorFlow's."""
    root = str(Path(cli.__file__).parents[2])
    return {"PYTHONPATH": root} | {
        name: value for name, value in os.environ.items() if not name.startswith(("TF_", "CUDA_", "KERAS_"))
    }


def press_while_collecting():
    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    del [Collected()][0]
    time.sleep(60)
    print("It went on.")


def press_within_other_code():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise SystemError("bad argument to internal function") from None


def press_where_all_is_caught():
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
    time.sleep(60)
    print("It went on.")


def press_and_clean_up():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        try:
            raise ValueError
        except ValueError:
            time.sleep(0.5)  # many times as long as what was lost waits
        print("It is clean.")


@pytest.fixture
def interruptible():
    """Ctrl-C as a terminal has it: programs that a shell starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("press", "printed"),
    [
        (press_while_collecting, ""),
        (press_within_other_code, ""),
        (press_where_all_is_caught, ""),
        (press_and_clean_up, "It is clean.\n"),
    ],
)
def test_ctrl_c_stops_where_what_it_raises_is_lost(press, printed, monkeypatch, capsys):
    monkeypatch.setattr(cli.interrupts, "_AGAIN", 0.05)
    monkeypatch.setattr(cli.models, "_models", lambda options: press())
    assert cli.main(["models"]) == 130
    assert capsys.readouterr() == (printed, "\nStopped.\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_the_program_computes_and_says_nothing_of_graphics_cards(tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 50), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    command = ["extract", "--model", "r18_fashion", "--data", "photos", "--out", "features.npz"]
    done = subprocess.run(
        # Which begins keras_sslhsic_command.
        [sys.executable, "-m", "keras_sslhsic", *command],
        capture_output=True, text=True, cwd=tmp_path, check=True, env=_environment(),
    )  # fmt: skip
    assert "3 rows in features.npz, 3 of them computed now, of images of 28 pixels." in done.stdout
    assert "cuInit" not in done.stderr
    with np.load(tmp_path / "features.npz") as found:
        assert (found["features"].shape, found["image_size"]) == ((3, 256), "28")


def test_a_warning_of_the_program_is_its_sentence():
    assert (
        keras_sslhsic_command._sentence("It is so.", UserWarning, "cli.py", 3, "run()")
        == "Warning: It is so.\n"
    )
    code = "import keras_sslhsic_command, sys, warnings; sys.argv = ['', 'x']\n"
    code += "try: keras_sslhsic_command.main()\nexcept SystemExit: warnings.warn('It is so.')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment()
    )
    assert done.stderr.endswith("\nWarning: It is so.\n")


def test_what_is_printed_finds_a_stream_that_takes_it():
    """Where streams are closed, and none of their numbers is left to a file; and where an encoding has not every letter."""
    code = (
        "import keras_sslhsic_command, os, sys; sys.argv = ['', '--version']\n"
        "try: keras_sslhsic_command.main()\n"
        "except SystemExit: print('\\xe9', file=sys.stderr); print('\\xe9', os.open('.', os.O_RDONLY) > 2)"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" <&- 2>&-', sys.executable, code],
        capture_output=True, text=True, check=True, env=_environment() | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == r"\xe9 True"


def test_an_error_within_a_pipeline_that_keras_reads_is_its_sentence(monkeypatch, capsys):
    def fails(number):
        raise ValueError(f"The number {number} is odd.")

    numbers = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(fails, [number], tf.int64))

    def load(name):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.predict(numbers.batch(1), verbose=0)

    monkeypatch.setattr(cli.arguments, "load", load)
    assert cli.main(["export", "--model", "a", "--out", "b"]) == 2
    assert capsys.readouterr().err.startswith("keras-sslhsic export: The number 0 is odd.")


def test_an_error_of_one_operation_is_told_without_its_node(monkeypatch, capsys):
    def load(name):
        said = "{{function_node __wrapped__A_device_/job:localhost}} runs/logs; Not a directory [Op:A] name: "
        raise tf.errors.FailedPreconditionError(None, None, said)

    monkeypatch.setattr(cli.arguments, "load", load)
    assert cli.main(["export", "--model", "a", "--out", "b"]) == 2
    assert capsys.readouterr().err.startswith("keras-sslhsic export: runs/logs; Not a directory (")


def test_the_end_of_another_worker_is_a_sentence(monkeypatch, capsys):
    def load(name):
        said = "Graph execution error:\n\nCollective ops is aborted by: Socket closed\nAdditional GRPC error information"
        raise tf.errors.UnavailableError(None, None, said)

    monkeypatch.setattr(cli.arguments, "load", load)
    assert cli.main(["export", "--model", "a", "--out", "b"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("keras-sslhsic export: another worker has ended") and "Socket" not in said


@pytest.mark.parametrize("error", [ValueError("too many values"), RuntimeError("no kernel")])
def test_an_error_of_another_library_says_how_to_see_where_it_comes_from(error, monkeypatch, capsys):
    # As TensorFlow, scikit-learn and others raise it: not from a file of this package.
    foreign = {"error": error}
    exec(compile("def fails(*arguments):\n    raise error", "/lib/other.py", "exec"), foreign)
    monkeypatch.setattr(cli.arguments, "load", foreign["fails"])
    command = ["export", "--model", "a", "--out", "b"]
    assert cli.main(command) == 2
    assert capsys.readouterr().err == (
        f"keras-sslhsic export: {error} (keras-sslhsic --traceback export ... shows where.)\n"
    )
    assert cli.main(["--traceback", *command]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last)") and 'File "/lib/other.py"' in shown
    assert shown.endswith(f"{type(error).__name__}: {error}\n")


@pytest.mark.parametrize("name", ["a.tflite", "A.ONNX"])
def test_an_export_replaces_the_file_of_before(name, tmp_path, monkeypatch, capsys):
    (tmp_path / name).write_text("of before")
    written = []
    monkeypatch.setattr(export, "write", lambda model, path, *_: written.append(path))
    monkeypatch.setattr(cli.arguments, "load", lambda name: SimpleNamespace(spec=EncoderSpec(8, 8, 1, 4)))
    assert cli.main(["export", "--model", "a", "--out", str(tmp_path / name)]) == 0
    assert written == [str(tmp_path / name)]
    assert "it sees central squares, resized to 8 x 8 pixels." in capsys.readouterr().out
    classifier = SimpleNamespace(spec=EncoderSpec(8, 8, 1, 4, trained_at=8, short_side=9))
    monkeypatch.setattr(cli.arguments, "load", lambda name: classifier)
    assert cli.main(["export", "--model", "a", "--out", str(tmp_path / name)]) == 0
    assert "whose short side is resized to 9 pixels, of them the central 8 x 8" in capsys.readouterr().out
    (tmp_path / "folder.tflite").mkdir()
    assert cli.main(["export", "--model", "a", "--out", str(tmp_path / "folder.tflite")]) == 2
    assert "is a folder: give the name of a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, module",
    [
        (["extract", "--model", "a", "--data", ".", "--out", "x", "--runner", "DirectRunner"], "images"),
        (["index", "--features", ".", "--out", "x"], "images"),
        (["index", "--features", ".", "--out", "x.onnx"], "images"),
        (["export", "--model", "a", "--out", "x"], "models"),
        (["report", ".", "--out", "x"], "evaluation"),
    ],
)
def test_a_folder_that_a_command_wrote_is_taken_again(words, module, tmp_path, monkeypatch, capsys):
    """By the look at the arguments, before any work; a file in its place is refused."""
    monkeypatch.chdir(tmp_path)
    out = Path(words[words.index("--out") + 1])
    monkeypatch.setattr(getattr(cli, module), f"_{words[0]}", lambda options: out.mkdir(exist_ok=True))
    assert cli.main(words) == cli.main(words) == 0
    out.rmdir()
    out.touch()
    assert cli.main(words) == 2
    assert "is a file: give the name of a folder" in capsys.readouterr().err


def test_what_a_stopped_training_has_saved_is_said(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "run", stop)
    command = ["pretrain", "--config", CONFIG, "--workdir", str(tmp_path)]
    assert cli.main(command) == 130
    said = "same command with --resume"
    assert capsys.readouterr().err == f"\nNo epoch is saved yet; the {said} begins anew.\n\nStopped.\n"
    (tmp_path / folder.CHECKPOINTS).mkdir()
    (tmp_path / folder.CHECKPOINTS / "checkpoint-000003.npz").touch()
    assert cli.main(command) == 130
    assert capsys.readouterr().err == f"\nSaved: 3 epochs; the {said} goes on.\n\nStopped.\n"


def test_what_a_stopped_evaluation_keeps_is_said(tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "measure", stop)
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        for number in range(5):
            Image.linear_gradient("L").resize((32, 32)).point(lambda level: level // 128).save(
                tmp_path / kind / f"{number}.png"
            )
    command = ["evaluate", "segmentation", "--encoder", "r18_fashion", "--data", str(tmp_path)]
    assert cli.main([*command, "--crop-size", "32"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"
    assert cli.main([*command, "--crop-size", "32", "--work-dir", str(tmp_path / "work")]) == 130
    said = f"The same command goes on from what is kept in {tmp_path / 'work'}."
    assert capsys.readouterr().err == f"\n{said}\n\nStopped.\n"


def test_what_stopped_features_have_saved_is_said(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "extract", stop)
    out = tmp_path / "features.npz"
    command = ["extract", "--model", "r18_fashion", "--data", str(tmp_path), "--out", str(out)]
    assert cli.main(command) == 130
    assert capsys.readouterr().err == "\nStopped.\n"
    extract.parts_of(out).mkdir()
    assert cli.main(command) == 130
    assert (
        capsys.readouterr().err
        == f"\nWhat was computed is in {out}.parts; the same command goes on.\n\nStopped.\n"
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["methods"], ["--version"]])
def test_what_cannot_be_printed(words, unbuffered):
    """That a reader has enough is no error; a full disk is a sentence, also where it is found at the end."""
    command = [sys.executable, "-m", "keras_sslhsic_command", *words]
    environment = _environment() | {"PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(write)
    # argparse passes over what it cannot print at once.
    expected = 0 if words == ["--version"] and unbuffered else 128 + signal.SIGPIPE
    assert (done.returncode, done.stderr) == (expected, "")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "what is printed, or a file, cannot be written: No space left on device." in done.stderr


def test_no_folder_for_temporary_files_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    assert cli.main(["models"], prepare=tempfile.gettempdir) == 2  # as TensorFlow's import does
    assert (
        "models: no folder takes temporary files: make room on the disk, or set TMPDIR"
        in capsys.readouterr().err
    )


def test_the_environment_asks_for_tracebacks_of_every_error(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_SSLHSIC_TRACEBACK", "1")
    assert cli.main(["inspect", "nowhere"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


SETTINGS = """
def get_config():
    return {settings}
"""


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    """(words, settings of a config file) -> the settings that the protocol is run with."""
    asked = []

    def compare(encoders, evals, splits, **options):
        asked.extend(evals.values())
        yield Result(value=0.5, interval=(0.4, 0.6))

    def read(*words, **settings):
        path = tmp_path / "settings.py"
        path.write_text(SETTINGS.format(settings=repr(settings)))
        command = [
            "evaluate",
            *words,
            "--config",
            str(path),
            "--encoder",
            "x",
            "--out",
            str(tmp_path / "r.jsonl"),
        ]
        assert cli.main(command) == 0
        return asked.pop()

    monkeypatch.setattr("keras_sslhsic.runs.evaluate.compare", compare)
    monkeypatch.setattr(cli.arguments, "load", lambda name: SimpleNamespace(spec=EncoderSpec(28, 28, 1, 2)))
    return read


def test_a_command_comes_before_a_file_and_a_length_replaces_one_in_the_other_unit_too(settings_of, capsys):
    swept = {"learning_rates": (0.1,), "epochs": (30, 50)}
    for words in (["--steps", "2"], ["--config.steps=2"]):
        assert settings_of("finetune", *words, **swept) == {"learning_rates": (0.1,), "steps": 2}
    assert settings_of("finetune", "--epochs", "1", **swept) == {"learning_rates": (0.1,), "epochs": 1}
    assert settings_of("finetune", "--config.epochs=(1,)", steps=5) == {"epochs": (1,)}
    assert settings_of("finetune", "--config.seed=1", "--seed", "2") == {"seed": 2}
    assert settings_of("finetune", "--learning-rate", "0.2", **swept) == {
        "learning_rate": 0.2,
        "epochs": (30, 50),
    }
    words = ["--epochs", "1,2", "--learning-rates", "0.1,1e-3", "--crops", "False", "--image-size", "28"]
    assert settings_of("finetune", *words) == {
        "epochs": (1, 2),
        "learning_rates": (0.1, 0.001),
        "crops": False,
    }


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"epochs": 1, "steps": 3}, "either steps or epochs"),
        ({"learning_rate": 1, "learning_rates": 3}, "either learning_rate or learning_rates"),
        ({"epoch": 1}, "finetune has no --epoch; it has --batch-size, --crops"),
    ],
)
def test_a_file_with_settings_that_cannot_be_is_told(settings, message, tmp_path, capsys):
    (tmp_path / "settings.py").write_text(SETTINGS.format(settings=repr(settings)))
    assert (
        cli.main(["evaluate", "finetune", "--encoder", "x", "--config", str(tmp_path / "settings.py")]) == 2
    )
    assert message in capsys.readouterr().err


def test_a_protocol_of_ones_own(tmp_path, monkeypatch, capsys):
    """A file with a function, its registration and settings: its name and flags are known, and the report has its result."""
    monkeypatch.chdir(tmp_path)
    keras.Sequential(
        [keras.Input((28, 28, 1)), keras.layers.AveragePooling2D(7), keras.layers.Flatten()]
    ).save("mean.keras")
    toy = str(Path(__file__).parent / "data" / "toy_protocol.py")
    command = ["evaluate", "toy", "--config", toy, "--encoder", "mean.keras", "--data", "bundled"]
    assert cli.main(command) == cli.main([*command, "--power", "2"]) == 0
    first, second = results.read("results.jsonl")
    assert (first.protocol, first.recipe["power"], second.recipe["power"]) == ("toy", 1.5, 2)
    assert 0.5 < first.value < 1 and (first.data, first.num_test) == ("bundled", 2000)
    assert cli.main(["report", "."]) == 0
    assert "toy, power=1.5 |" in capsys.readouterr().out.replace("  ", "")
    assert cli.main([*command, "--power", "-1"]) == 2
    assert "power must be above 0, found -1" in capsys.readouterr().err


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Folders of a name with a space and umlauts: images of two classes to train and test; and broken files."""
    rng = np.random.default_rng(0)
    for name in ("Bilder für alle/train/a b/ä.png", "Bilder für alle/train/c/ö.png",
                 "Bilder für alle/test/a b/ä.png", "Bilder für alle/test/c/ö.png"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (28, 28, 3), np.uint8)).save(tmp_path / name)
    for name in ("broken/train/a", "broken/train/b", "broken/test/a", "broken/test/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.jpg").write_text("no image")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_with_spaces_umlauts_and_dots_are_read_and_written(photos):
    data = "empty/../Bilder für alle"
    assert cli.main(["extract", "--model", "r18_fashion", "--data", data, "--out", "x/../größe 1/f.npz"]) == 0
    with np.load("größe 1/f.npz") as archive:
        assert archive["files"][0] == os.path.join("test", "a b", "ä.png")
    assert cli.main(["evaluate", "knn", "--encoder", "r18_fashion", "--data", data, "--k", "1",
                     "--image-size", "28", "--out", "größe 1/r.jsonl"]) == 0  # fmt: skip
    assert cli.main(["inspect", data, "--sheet", "neu 2/s.png", "--json", "neu 2/s.json"]) == 0
    assert sorted(os.listdir("größe 1")) == ["f.npz", "r.jsonl"]
    assert sorted(os.listdir("neu 2")) == ["s.json", "s.png"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["extract", "--data", "empty", "--out", "new/f.npz"], "empty holds no images"),
        (["extract", "--data", "broken", "--out", "new/f.npz"], "None of the 4 images under broken can be read"),
        (["extract", "--data", "broken", "--out", "new/f.npz", "--batch-size", "0"], "batch_size must be at least 1"),
        (["evaluate", "knn", "--data", "empty"], "empty holds no images"),
        (["evaluate", "linear", "--data", "broken/test/a"], "has no two sub-folders of images to take classes from: give"),
        (["evaluate", "knn", "--data", "broken/train"], "Holding out 0.2 of every class leaves none of the classes [0, 1]"),
        (["evaluate", "knn", "--data", "Bilder für alle", "--test-share", "1"], "test_share must be below 1, found 1"),
        (["evaluate", "knn", "--data", "Bilder für alle", "--image-size", "0"], "image_size must be at least 1"),
        (["evaluate", "knn", "--data", "broken", "--out", "new/r.jsonl"], "evaluate: 1 of 2 files (50.0%) are broken"),
        (["evaluate", "knn", "--data", "broken", "--max-broken", "0.1"], "10.0% allowed"),
        (["evaluate", "knn", "--data", "broken", "--max-broken", "2"], "max_broken must be at most 1, found 2"),
    ],
)  # fmt: skip
def test_folders_without_images_are_named(arguments, message, photos, capsys):
    option = "--model" if arguments[0] == "extract" else "--encoder"
    assert cli.main([*arguments, option, "r18_fashion"]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert set(os.listdir()) - {"broken_images.log"} == {"Bilder für alle", "broken", "empty"}


def test_names_are_told_with_their_control_characters_escaped(photos, capsys):
    Path("Bilder für alle").rename("a\x1b[31m")
    assert cli.main(["evaluate", "knn", "--encoder", "r18_fashion", "--data", "a\x1b[31m", "--k", "1",
                     "--image-size", "28", "--out", "b\x1b.jsonl"]) == 0  # fmt: skip
    assert cli.main(["report", "b\x1b.jsonl", "--out", "c"]) == 0
    assert cli.main(["report", "empty\x1b"]) == 2
    Path("empty").rename("empty\x1b")
    assert cli.main(["report", "empty\x1b"]) == 2
    told = "".join(capsys.readouterr())
    assert "\x1b" not in told
    assert r"knn on a\x1b[31m at 28 pixels: top1" in told and r"The result is in b\x1b.jsonl." in told
    assert r"No results in empty\x1b: run an evaluation first." in told


def test_what_was_exported_is_named_with_control_characters_escaped(tmp_path, monkeypatch, capsys):
    from keras_sslhsic import export
    from keras_sslhsic.zoo import convert

    monkeypatch.chdir(tmp_path)
    free = SimpleNamespace(spec=EncoderSpec(None, None, 1, 4))
    monkeypatch.setattr(cli.arguments, "load", lambda name: free)
    monkeypatch.setattr(export, "write", lambda *arguments: None)
    monkeypatch.setattr(convert, "convert", lambda *arguments, **options: {"method": "a\x1b"})
    Path("a").touch()
    assert cli.main(["export", "--model", "a", "--out", "x\x1b"]) == 0
    assert cli.main(["convert", "a", "--to", "x\x1b.keras"]) == 0
    monkeypatch.setattr(
        cli.arguments, "load", lambda name: (_ for _ in ()).throw(ValueError("a\x1b is none."))
    )
    assert cli.main(["export", "--model", "a", "--out", "x"]) == 2
    out, error = capsys.readouterr()
    assert error.startswith("keras-sslhsic export: a\\x1b is none.")
    assert (
        out == "Wrote x\\x1b; it sees all of an image, as it is given.\nmethod: a\\x1b\nWrote x\\x1b.keras.\n"
    )


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """A folder of 24 bright and dark images a split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, level in (("bright", 120), ("dark", 0)):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(12):
                pixels = level + rng.integers(0, 100, (30, 36), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_protocols_of_a_folder_are_set_by_the_command_and_recorded(squares, capsys):
    evaluate = ["--encoder", "r18_fashion", "--data", "data", "--image-size", "28", "--out", "r.jsonl"]
    linear = [
        "--batch-size",
        "12",
        "--epochs",
        "2",
        "--learning-rates",
        "0.1,0.2,0.4",
        "--weight-decays",
        "0",
    ]
    assert cli.main(["evaluate", "linear", *evaluate, *linear]) == 0
    Path("settings.py").write_text(
        "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict("
        "{'steps': 9, 'learning_rates': (0.01,), 'batch_size': 9, 'fraction': 0.5})\n"
    )
    finetune = ["--config", "settings.py", "--config.batch_size=8", "--steps", "3", "--save-to", "kept.keras"]
    assert cli.main(["evaluate", "finetune", *evaluate, *finetune]) == 0
    assert "The classifier is in kept.keras." in capsys.readouterr().out
    assert cli.main(["extract", "--model", "kept.keras", "--data", "data/test", "--out", "classes.npz"]) == 0
    with np.load("classes.npz") as found:
        assert found["features"].shape == (24, 2) and found["image_size"] == "28"
        assert found["class_names"].tolist() == sorted(os.listdir("data/test"))
        right = [
            found["class_names"][row.argmax()] == Path(file).parent.name
            for file, row in zip(found["files"], found["features"], strict=True)
        ]
    first, second = map(json.loads, Path("r.jsonl").read_text().splitlines())
    assert second["value"] == np.mean(right)  # what measured it, the middle of an image, is what it sees
    images = {"image_size": 28, "short_side": 32, "resize": "blocks averaged, bicubic"}
    assert first["recipe"] == {
        **images, "batch_size": 12, "epochs": 2, "steps": 4, "learning_rates": [0.1, 0.2, 0.4], "weight_decays": [0.0],
        "warmup_steps": 0, "momentum": 0.9, "nesterov": True, "crop_area": [0.08, 1.0], "held_out": 4,
    }  # fmt: skip
    assert (first["num_train"], first["num_test"], first["protocol"]) == (24, 24, "linear")
    assert (second["fraction"], second["num_train"], second["steps"]) == (0.5, 12, 3)
    assert second["recipe"]["head_learning_rate"] == second["encoder_learning_rate"] == 0.01
    assert {key: second["recipe"][key] for key in images} == images
    for given, short_side in (([], 32), (["--short-side", "30"], 30)):
        words = ["--encoder", "kept.keras", "--data", "data", "--k", "3", "--out", "k.jsonl", *given]
        assert cli.main(["evaluate", "knn", *words]) == 0
        measured = json.loads(Path("k.jsonl").read_text().splitlines()[-1])
        assert measured["recipe"]["short_side"] == short_side  # without one, that of `extract`


@pytest.mark.slow
def test_fine_tuning_on_a_transfer_set_by_command(squares, tmp_path):
    (tmp_path / "data").rename(tmp_path / "birdsnap")
    keras.Sequential([keras.Input((28, 28, 3)), keras.layers.GlobalAveragePooling2D()]).save("average.keras")
    for path in (tmp_path / "birdsnap" / "test").glob("*/1?.png"):  # so that some can be held out of 12
        path.unlink()
    command = [
        "evaluate",
        "transfer_finetune",
        "--encoder",
        "average.keras",
        "--data",
        "birdsnap",
        "--data-dir",
        ".",
    ]
    settings = ["--image-size", "28", "--steps", "2", "--learning-rates", "1e-5", "--weight-decays", "0,1e-6"]
    with pytest.warns(UserWarning, match="24 images, where 256 were asked for"):
        assert cli.main([*command, *settings, "--out", "r.jsonl"]) == 0
    record = json.loads(Path("r.jsonl").read_text())
    assert (record["protocol"], record["data"], record["metric"]) == ("transfer_finetune", "birdsnap", "top1")
    assert (record["recipe"]["held_out"], record["num_train"], record["num_test"]) == (20, 24, 20)


GRAY_PHOTOS = """
from runpy import run_path

def get_config():
    config = run_path({config!r})["get_config"]()
    with config.ignore_type():
        config.data = {{"source": "folder", "path": "Bilder für alle", "image_size": 28, "labels": False, {channels}}}
        config.evals = {{}}
    return config
"""


def test_colour_images_for_gray_views_are_refused_before_anything_is_written(photos, capsys):
    Path("gray.py").write_text(GRAY_PHOTOS.format(config=CONFIG, channels='"channels": 3'))
    pretrain = ["pretrain", "--config", "gray.py", *SMALL[1:], "--config.batch_size=2", "--workdir", "run"]
    assert cli.main(pretrain) == 2
    assert "images with channels=1 (channels: 1 in the data of a config)" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_run_without_labels_names_no_accuracy_and_no_files_it_has_not(photos, capsys):
    Path("gray.py").write_text(GRAY_PHOTOS.format(config=CONFIG, channels=""))
    pretrain = ["pretrain", "--config", "gray.py", *SMALL[1:], "--config.batch_size=2", "--workdir", "run"]
    assert cli.main([*pretrain, "--config.epochs=2"]) == 0
    out, error = capsys.readouterr()
    assert "loss=" in error and "acc=" not in error
    assert "encoder.keras" in out and "features.png" not in out
    assert not {"online_accuracy", "classifier_loss"} & set(folder.read_history(Path("run/history.csv")))


FOUR_CHANNELS = """
from runpy import run_path
from keras_sslhsic import views

def get_config():
    config = run_path({config!r})["get_config"]()
    jitter = views.ColorJitter(saturation={saturation}, hue=0.0)
    policy = views.ViewPolicy(size=12, jitter=jitter, grayscale=0.0, mean=(0.5,) * 4, std=(0.2,) * 4)
    with config.ignore_type():
        config.data = {{"source": "folder", "path": "layers", "image_size": 28, "labels": False, "channels": 4}}
        config.encoder.input_shape = (None, None, 4)
        config.views = policy.to_dict()
        config.precision = "mixed_bfloat16"
        config.evals = {{}}
    return config
"""


@pytest.fixture
def four_channels(tmp_path, monkeypatch):
    """The command that trains on a folder of images with an alpha channel; what it is given ends it."""
    rng = np.random.default_rng(0)
    (tmp_path / "layers").mkdir()
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (28, 28, 4), np.uint8)).save(tmp_path / "layers" / f"{i}.png")
    monkeypatch.chdir(tmp_path)

    def pretrain(saturation, *overrides):
        Path("four.py").write_text(FOUR_CHANNELS.format(config=CONFIG, saturation=saturation))
        small = [o for o in SMALL if "views" not in o and "holdout" not in o]
        return cli.main(
            [
                "pretrain",
                "--config",
                "four.py",
                "--workdir",
                "run",
                *small,
                "--config.batch_size=2",
                *overrides,
            ]
        )

    return pretrain


def test_views_that_images_of_four_channels_cannot_have_are_refused_before_anything_is_written(
    four_channels, capsys
):
    assert four_channels(0.2) == 2
    assert "need 3 channels, and the images have 4: set jitter.saturation=0" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_run_of_images_of_four_channels_ends_and_leaves_no_precision_behind(four_channels):
    before = keras.config.dtype_policy()
    assert four_channels(0.0, "--config.epochs=1") == 0
    assert keras.config.dtype_policy() == before
    images = np.zeros((2, 28, 28, 4), "uint8")
    encoders = [keras.models.load_model(f"run/{name}.keras") for name in ("encoder", "initial_encoder")]
    assert [encoder(images).shape for encoder in encoders] == [(2, 26)] * 2
    assert {"views.png", "summary.json"} <= set(os.listdir("run"))


def test_the_history_of_several_sessions_adds_up(tmp_path):
    file = tmp_path / "history.csv"
    file.write_text("epoch,loss,gone\n0,0.5,1.0\n1,0.4,1.0\n2,0.3,1.0\n")
    saves = callbacks.Checkpoint(tmp_path)
    records = folder.HistoryFile(file, time.monotonic() - 5, saves)
    records.on_epoch_end(1, {"loss": 0.25, "new": 1})
    saves.seconds = 0.25
    records.on_epoch_end(2, {"loss": 0.125, "new": 2})
    history = folder.read_history(file)
    assert history["loss"] == [0.5, 0.25, 0.125] and history["epoch"] == [0, 1, 2]
    assert np.isnan(history["new"][0]) and history["new"][1:] == [1, 2]
    assert history["gone"][0] == 1.0 and np.isnan(history["gone"][1:]).all()
    assert 5 <= history["seconds"][1] < 15 and 0 <= history["seconds"][2] < 5
    assert history["checkpoint_seconds"][1:] == [0, 0.25]


def test_the_fields_of_a_config_are_printed_with_their_values(capsys):
    assert cli.main(["config", "--config", CONFIG, "--config.optimizer.warmup_epochs=3"]) == 0
    told = capsys.readouterr().out
    assert "- `epochs` = `20` (an integer, default 100): passes over the images." in told
    assert "- `warmup_epochs` = `3` (an integer, default 10): until the peak." in told
    assert "- `gamma` = `5.0` (a number, default 3.0): weight of" in told and "temperature" not in told
    assert cli.main(["config", "--config", CONFIG, "--config.loss.gamma=x"]) == 2
    assert "The field loss.gamma is float (5.0); 'x' is str" in capsys.readouterr().err


def test_unknown_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        cli.main(["models", "--fast"])
    assert "unrecognized argument: --fast" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("x")
    assert cli.main(["pretrain", "--config", CONFIG, "--workdir", str(tmp_path)]) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.slow
def test_a_run_killed_resumed_and_evaluated(tmp_path, capsys):
    run = tmp_path / "run"
    pretrain = ["pretrain", "--config", CONFIG, *SMALL, "--config.epochs=3", "--workdir", str(run)]
    process = subprocess.Popen([sys.executable, "-m", "keras_sslhsic", *pretrain], stderr=subprocess.DEVNULL)
    while not (run / "checkpoints" / "checkpoint-000001.npz").exists():
        assert process.poll() is None, "the run ended before its first checkpoint"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run / "summary.json").exists()

    assert cli.main(pretrain) == 2
    assert "Add --resume" in capsys.readouterr().err
    assert cli.main([*pretrain, "--config.seed=7", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "holds a run of another config; they differ in seed (0 there, 7 now)" in told
    assert "Give another --workdir" in told
    assert cli.main([*pretrain, "--config.evals.knn.k=5", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "evals.knn.k (20 there, 5 now). `keras-sslhsic evaluate PROTOCOL --run` measures" in told
    assert cli.main([*pretrain, "--resume"]) == 0
    table = capsys.readouterr().out

    expected = {
        "config.json", "summary.json", "history.csv", "encoder.keras", "model.keras", "encoder.weights.h5", "curves.png",
        "views.png", "features.png", "results.jsonl", "checkpoints", "logs",
    }  # fmt: skip
    assert expected <= set(os.listdir(run))
    history = (run / "history.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in history] == ["epoch", "0", "1", "2"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["seconds"] >= sum(folder.read_history(run / "history.csv")["seconds"])
    content = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert cli.main([*pretrain, "--resume"]) == 0
    again = capsys.readouterr().out
    lines = table[table.index("\nfeatures ") + 1 :].splitlines()[:5]
    assert "finished before; nothing was changed" in again and all(line in again for line in lines)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == content
    assert [row["features"] for row in summary["results"]] == ["pretrained", "untrained", "raw pixels"]
    assert all(0.1 < row[key] < 1 for row in summary["results"] for key in ("knn", "linear"))
    records = results.read(run)
    assert [record.encoder for record in records] == [
        name for name in (str(run), "untrained", "raw pixels") for _ in ("knn", "linear")
    ]
    assert [record.value for record in records[::2]] == [row["knn"] for row in summary["results"]]
    assert {record.data for record in records} == {"bundled, 0.95 of train held out"}
    assert len({record.encoder_hash for record in records}) == 3

    encoder = keras.models.load_model(run / "encoder.keras")
    assert encoder(np.zeros((2, 28, 28, 1), "uint8")).shape == (2, 26)
    assert cli.main(["evaluate", "--run", str(run)]) == 0
    again = capsys.readouterr().out
    assert all(line in again for line in lines)
    assert cli.main(["evaluate", "knn", "--run", str(run), "--k", "5"]) == 0
    *_, record = results.read(run)
    assert (record.protocol, record.k, record.num_test) == ("knn", 5, 2000)


@pytest.mark.slow
def test_without_averaged_weights_the_trained_encoder_stands_beside_the_first_one(tmp_path):
    overrides = [argument.removeprefix("--config.") for argument in SMALL]
    settings = config.load(CONFIG, [*overrides, "epochs=1", "model.weight_ema=None"])
    pretrain.run(settings, tmp_path / "run")
    images = np.arange(8 * 28 * 28, dtype=np.uint8).reshape(8, 28, 28, 1)
    encoders = list(evaluate.encoders_of(tmp_path / "run").values())[:2]
    pretrained, untrained = (encoder.predict(images, verbose=0) for encoder in encoders)
    assert not np.allclose(pretrained, untrained, atol=1e-3)
    # What a run of before, which did not keep it, is taken to have started from.
    first = build.initial_encoder(folder.load_config(tmp_path / "run")).predict(images, verbose=0)
    np.testing.assert_allclose(untrained, first, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_page_on_commands_is_that_of_the_parser():
    """In a process of its own: protocols that tests register have flags too."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, root / "tools" / "commands_page.py"], capture_output=True, text=True
    )
    page = (root / "docs" / "commands.md").read_text(encoding="utf-8")
    assert page == done.stdout, "Write it anew: python tools/commands_page.py > docs/commands.md"
