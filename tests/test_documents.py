"""The Python and shell blocks of README and docs run as they stand there, block after block, in one folder.

A block that is not run says why in a comment right above it: <!-- not run: needs ImageNet -->
"""

import contextlib
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_sslhsic
from keras_sslhsic.encoders import with_preprocessing

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document):
    """(language, code, whether it is run) of every block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [(language, code, not reason) for reason, language, code in BLOCK.findall(text)]


def runnable(document):
    return [block for block in blocks(document) if block[0] in ("python", "sh") and block[2]]


@pytest.mark.slow
@pytest.mark.parametrize("document", [document for document in DOCUMENTS if runnable(document)])
def test_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names = reader_has()
    for number, (language, code, _) in enumerate(runnable(document)):
        if language == "python":
            exec(compile(code, f"{document}, block {number}", "exec"), names)
        else:
            done = subprocess.run(["bash", "-ec", code], capture_output=True, text=True)
            assert done.returncode == 0, f"{document}, block {number}:\n{code}\n{done.stderr[-3000:]}"


def reader_has():
    """The files and variables that the documents take for granted, small; returns the variables."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        file = Path("photos", "ab"[number % 2], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
        for kind, values in (("images", image[:32, :32]), ("masks", image[:32, :32, 0] // 128)):
            Path("cells", kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(Path("cells", kind, f"{number}.png"))
    shutil.copy(ROOT / "tests/data/checkpoint_tiny.npy", "checkpoint.npy")
    Path("configs").mkdir()
    Path("configs/fashion_small.py").write_text(f"""
from keras_sslhsic.runs import config

def get_config():
    found = config.load({str(ROOT / "configs/fashion_small.py")!r}, {SMALL})
    found.unlock()
    return found
""")
    encoder = keras_sslhsic.load_pretrained("r18_fashion")
    keras_sslhsic.save_pretrained(encoder, "runs/fashion_small")
    # For a run of the tutorial, which trains for minutes.
    network = keras_sslhsic.build_encoder("r18_1x", (None, None, 1), width=0.05, stem="imagenet")
    keras_sslhsic.save_pretrained(with_preprocessing(network, [0.29], [0.35]), "runs/garments")
    shutil.copy("runs/garments/encoder.keras", "runs/garments/initial_encoder.keras")
    images = keras_sslhsic.data.bundled.load()[1][0][:8]
    return {
        "encoder": encoder,
        "images": images,
        "images_uint8": images,
        "images_float": images.astype("float32"),
        "jpeg_or_png_strings": [path.read_bytes() for path in Path("photos").glob("*/*.png")],
    }


# Of configs/fashion_small.py: 500 images, a narrow network.
SMALL = [
    "epochs=2",
    "data.holdout=0.95",
    "encoder.width=0.05",
    "batch_size=100",
    "model.projector_hidden=16",
    "model.projection_dim=8",
    "loss.num_features=16",
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_names_its_language(document):
    unknown = {language for language, _, _ in blocks(document)} - {"python", "sh", "bibtex"}
    assert not unknown


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(
        r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / document).parent / target).exists()]
    assert not missing


PAGES = [*DOCUMENTS, "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/api/*.md"))]
PACKAGES = "callbacks|encoders|evaluation|export|hsic|losses|methods|training|views|zoo"
NAME = re.compile(rf"\bkeras_sslhsic((?:\.\w+)+)|`((?:{PACKAGES})(?:\.\w+)+)")


@pytest.mark.parametrize("document", [page for page in PAGES if (ROOT / page).exists()])
def test_names_of_the_package_are_those_of_something(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    names = {whole.removeprefix(".") or short for whole, short in NAME.findall(text)}
    # Names of files: keras_sslhsic.egg-info, losses.py.
    names = {name for name in names if not name.endswith((".py", "egg", ".json", ".png"))}
    assert not [name for name in names if not exists(name)]


def exists(name):
    """Whether `keras_sslhsic.NAME` is a module, or something in one."""
    found = keras_sslhsic
    for number, part in enumerate(parts := name.split("."), 1):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(".".join(["keras_sslhsic", *parts[:number]]))
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_no_public_name_hides_a_module():
    """`keras_sslhsic.evaluation.knn` can be a function or a module, not both: the docs could name nothing in it."""
    hidden = []
    for module in pkgutil.walk_packages(keras_sslhsic.__path__, "keras_sslhsic."):
        imported = importlib.import_module(module.name)
        package, _, name = module.name.rpartition(".")
        if getattr(sys.modules[package], name) is not imported:
            hidden.append(module.name)
    assert not hidden
