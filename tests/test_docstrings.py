"""The examples in docstrings run."""

import doctest
import importlib
import io
import pkgutil
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic.encoders import with_preprocessing

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CHECKPOINT = Path(__file__).parent / "data" / "checkpoint_tiny.npy"


def examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = pkgutil.walk_packages(keras_sslhsic.__path__, "keras_sslhsic.")
    names = sorted(module.name for module in modules if module.name != "keras_sslhsic.data.prepare")
    return [test for name in names for test in finder.find(importlib.import_module(name)) if test.examples]


@pytest.fixture(scope="module")
def names():
    """What the examples take for granted: a small encoder, its trainer, and images."""
    x = np.random.default_rng(0).integers(0, 256, (200, 28, 28, 1), dtype=np.uint8)
    y = np.arange(200) % 10
    encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(28, 28, 1), width=0.05, stem="imagenet")
    model = keras_sslhsic.SSLHSIC(encoder, 16, 8, views="grayscale")
    model.compile(keras_sslhsic.LARS(0.4), run_eagerly=False)
    return {
        "keras": keras,
        "np": np,
        "tf": tf,
        "load_pretrained": keras_sslhsic.load_pretrained,
        "network": encoder,
        "encoder": with_preprocessing(encoder, 0.286, 0.353),
        "model": model,
        "dataset": keras_sslhsic.data.from_arrays(x, batch_size=100),
        "x": x,
        "y": y,
        "x_train": x,
        "y_train": y,
        "x_test": x,
        "y_test": y,
        "images_uint8": x[:2],
        "normalised_images": np.zeros((2, 32, 32, 3), "float32"),
        "log_dir": "logs",
    }


@pytest.mark.slow
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example_runs(example, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(CHECKPOINT, "checkpoint.npy")
    # A module's own names count first.
    example.globs = names | example.globs
    report = io.StringIO()
    failed = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.write).failed
    assert not failed, report.getvalue()
