"""What a release says of itself: one version, one address, a description that reads anywhere, requirements that are needed."""

import re
import subprocess
import sys
from email import message_from_string
from pathlib import Path

import pytest

from keras_sslhsic import __version__

ROOT = Path(__file__).parents[1]
PLACES = (
    "README.md",
    "CHANGELOG.md",
    "mkdocs.yml",
    "setup.py",
    "docs/**/*.md",
    "colab/*.ipynb",
    "examples/*.py",
    "keras_sslhsic/**/*.py",
)
# Modules of other names than what installs them.
MODULES = {"scikit-learn": "sklearn", "opencv-python-headless": "cv2", "pillow": "PIL"}
IMPORTED_BY_OTHERS = {"tf-keras"}


def address():
    (found,) = re.findall("^repository-code: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """What an index is told of the wheel."""
    folder = tmp_path_factory.mktemp("release")
    for name in (
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
        "keras_sslhsic",
    ):
        (folder / name).symlink_to(ROOT / name)
    (folder / "keras_sslhsic_command.py").symlink_to(ROOT / "keras_sslhsic_command.py")
    code = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return message_from_string((folder / done.stdout.splitlines()[-1] / "METADATA").read_text("utf-8"))


def test_one_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == __version__


def test_one_address():
    """Of what holds it as a text; tools/address.py changes it there."""
    owner = "/".join(address().split("/")[-2:])
    found = []
    for file in (file for pattern in PLACES for file in ROOT.glob(pattern)):
        named = re.findall(r"github(?:\.com)?/([\w.-]+/keras_sslhsic)", file.read_text("utf-8"))
        found += [(file.name, other) for other in named if other != owner]
    assert not found
    assert f"link: {address()}}}]\n" in (ROOT / "mkdocs.yml").read_text()


def test_the_description_reads_where_there_is_no_repository(metadata):
    text = metadata.get_payload()
    assert text.startswith("# keras_sslhsic")
    targets = re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert f"({address()}/raw/main/docs/images/features.png)" in text
    assert f"({address()}/blob/main/docs/methods.md)" in text
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_what_an_index_shows(metadata):
    assert metadata["Version"] == __version__
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert all(address() in url for url in metadata.get_all("Project-URL"))
    assert (ROOT / "keras_sslhsic" / "py.typed").exists()


def imports(pattern):
    """The modules of others that the package imports, where the pattern stands before them."""
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "keras_sslhsic").rglob("*.py"))
    found = re.findall(
        rf"{pattern}(?:import (\w+)(?:[., ].*)?|from (\w+)[\w.]* import .*)$", source, re.MULTILINE
    )
    return {one or other for one, other in found} - {"keras_sslhsic", *sys.stdlib_module_names}


def test_requirements_are_what_is_imported(metadata):
    """What the package needs as a whole is imported by it, and nothing else is without an extra."""
    lines = metadata.get_all("Requires-Dist")
    base = {re.match(r"[\w-]+", line)[0] for line in lines if "extra ==" not in line} - IMPORTED_BY_OTHERS
    modules = {MODULES.get(name, name.replace("-", "_")) for name in base}
    anywhere, at_once = imports(r"^\s*"), imports("^")
    assert modules - anywhere == set()
    assert at_once - modules == {"tensorflow_datasets"}, "data/prepare.py, the program that nothing imports"
    extras = {
        "tensorflow_datasets",
        "etils",
        "apache_beam",
        "huggingface_hub",
        "pyarrow",
        "tf2onnx",
        "onnxruntime",
        "faiss",
    }
    engine = {
        "official",
        "tf_keras",
        "pycocotools",
    }  # of evaluation/mask_rcnn.py, a program of another environment
    assert anywhere - modules == extras | engine
