"""What importing the data modules loads."""

import subprocess
import sys
from pathlib import Path

import pytest

import keras_sslhsic

# The package without its own __init__, which imports everything else; TensorFlow loads some of the libraries by itself.
PROGRAM = """
import sys, types
import ml_collections, tensorflow
package = types.ModuleType("keras_sslhsic")
package.__path__ = [sys.argv[1]]
sys.modules["keras_sslhsic"] = package
for name in ("cv2", "PIL", "tensorflow_datasets", "sklearn", "matplotlib", "tqdm", "apache_beam", "keras"):
    sys.modules[name] = None  # importing it is an error
import keras_sslhsic.data
from keras_sslhsic.data import sources
images = keras_sslhsic.data.from_arrays(*keras_sslhsic.data.bundled.load()[0], batch_size=10)
print(len(next(iter(images.batches()))["image"]))
"""


def test_libraries_that_read_files_are_loaded_when_files_are_read():
    root = Path(keras_sslhsic.__file__).parent
    found = subprocess.run([sys.executable, "-c", PROGRAM, str(root)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "10\n"), found.stderr


def test_preparing_a_data_set_without_beam_says_what_to_install(monkeypatch, tmp_path):
    from keras_sslhsic.data import prepare

    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match=r"needs Apache Beam: pip install 'keras_sslhsic\[beam\]'"):
        prepare.prepare_folders("photos", {"train": tmp_path}, tmp_path)
    words = ["prepare", "--name=photos", f"--data_dir={tmp_path}", f"--split=train={tmp_path}"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(ImportError, match="needs Apache Beam"):
        prepare.main()
