"""What importing the package does to a process, and what the program keras-sslhsic sets before it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_sslhsic import LARS, SSLHSIC, build_encoder, compat

HEAVY = ["sklearn", "matplotlib", "tensorflow_probability", "cv2", "tensorflow_datasets"]
SETTINGS = ["TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL"]


def run(code, **environment):
    """What a new Python prints, as JSON, with nothing in its environment that TensorFlow or Keras read."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("TF_", "KERAS_"))}
    done = subprocess.run(
        [sys.executable, "-c", f"import json, os, sys\n{code}"],
        env=clean | environment | {"CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def imported():
    """(modules that `import keras_sslhsic` adds to those of Keras and TensorFlow, variables of the environment)."""
    return run(
        """
import keras, tensorflow
before = set(sys.modules)
del os.environ["KERAS_BACKEND"]
import keras_sslhsic
print(json.dumps([sorted(set(sys.modules) - before), dict(os.environ)]))""",
        KERAS_BACKEND="tensorflow",
    )


@pytest.mark.parametrize("library", HEAVY)
def test_the_package_loads_no_library_before_it_is_needed(library, imported):
    # Keras itself imports the top of some of them.
    assert [module for module in imported[0] if module.split(".")[0] == library] == []


def test_the_package_changes_no_setting_of_tensorflow(imported):
    assert not {*SETTINGS} & {*imported[1]}
    assert imported[1]["KERAS_BACKEND"] == "tensorflow"


def test_every_public_folder_is_an_attribute():
    found = run(
        """
import keras_sslhsic, pkgutil
folders = {found.name for found in pkgutil.iter_modules(keras_sslhsic.__path__) if found.ispkg} | {"plots"}
print(json.dumps(sorted(folders - {"cli", "runs"} - {*dir(keras_sslhsic)})))"""
    )
    assert found == []


@pytest.mark.slow
def test_the_program_sets_what_training_wants_before_tensorflow_is_imported():
    code = f"""
import keras_sslhsic_command
assert "tensorflow" not in sys.modules
sys.argv = ["keras-sslhsic", "models"]
keras_sslhsic_command.main()
assert "tensorflow" in sys.modules
print(json.dumps([os.environ[name] for name in {SETTINGS}]))"""
    level = "1" if os.path.exists("/dev/nvidiactl") else "3"  # errors too where there is no driver
    assert run(code) == ["1", level]
    assert run(code, TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="0") == ["0", "0"]


@pytest.mark.parametrize(
    "before, message",
    [
        (
            'os.environ["KERAS_BACKEND"] = "none"',
            "needs the TensorFlow backend of Keras, and Keras runs on 'none': set",
        ),
        (
            'import keras; keras.config.set_image_data_format("channels_first")',
            "channels last, and Keras is set to",
        ),
    ],
)
def test_settings_of_keras_that_nothing_here_is_written_for_are_told(before, message):
    code = f"""
{before}
try:
    import keras_sslhsic
except ImportError as error:
    print(json.dumps(str(error)))"""
    assert message in run(code)


def test_a_saved_model_is_loaded_by_keras_when_the_package_is_imported(tmp_path: Path):
    model = SSLHSIC(
        build_encoder("r18_1x", (8, 8, 1), width=0.03), 4, 4, views={"size": 8, "mean": (0.5,), "std": (0.2,)}
    )
    model.compile(LARS(0.1))
    model.save(tmp_path / "model.keras")
    code = f"""
import keras, keras_sslhsic
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
print(json.dumps([type(model).__name__, type(model.optimizer).__name__]))"""
    assert run(code) == ["SSLHSIC", "LARS"]


@pytest.mark.parametrize("version", ["2.21.0", "2.21.0-rc1", "3.0.0"])
def test_a_tensorflow_that_computes_wrong_values_is_named(version):
    with pytest.warns(RuntimeWarning, match="pip install 'tensorflow>=2.20,<2.21'"):
        compat.warn_of_tensorflow(version)


def test_the_tested_tensorflow_is_no_reason_to_warn(recwarn):
    compat.warn_of_tensorflow("2.20.3")
    assert not recwarn
