"""Makes the pictures of docs/ that come from trainings: those of docs/tutorial.md and docs/curves.md.

    python tools/docs_pictures.py [FOLDER]

It takes some twenty minutes on two cores. FOLDER keeps the images and the runs.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import keras_sslhsic
from keras_sslhsic import pictures, plots, views
from keras_sslhsic.data import bundled

PICTURES = Path(__file__).parents[1] / "docs" / "images"
PROGRAM = [sys.executable, "-m", "keras_sslhsic_command"]


def folder_of_images(folder: Path, train: int = 200, test: int = 50) -> None:
    """FOLDER/train/CLASS/*.png and FOLDER/test/..., so many images of a class, from the bundled ones."""
    for split, (images, labels), count in zip(("train", "test"), bundled.load(), (train, test), strict=True):
        for label, name in enumerate(bundled.CLASS_NAMES):
            place = folder / split / name.replace("/", " or ")
            place.mkdir(parents=True, exist_ok=True)
            for number, pixels in enumerate(images[labels == label][:count]):
                Image.fromarray(pixels[..., 0]).save(place / f"{number:03}.png")


def tutorial(folder: Path) -> None:
    """What docs/tutorial.md does, at its size."""
    garments, run = folder / "garments", folder / "garments_run"
    folder_of_images(garments)
    if not (run / "summary.json").exists():
        command = ["pretrain", "--data", str(garments), "--epochs", "40", "--workdir", str(run)]
        subprocess.run([*PROGRAM, *command, *(["--resume"] if run.exists() else [])], check=True)
    for name in ("curves", "views"):
        shutil.copy(run / f"{name}.png", PICTURES / f"tutorial_{name}.png")

    images, labels, names = read(garments / "test")
    encoders = {
        name: keras_sslhsic.load_pretrained(run / file)
        for name, file in (("pretrained", "encoder.keras"), ("untrained", "initial_encoder.keras"))
    }
    features = {name: encoder.predict(images, verbose=0) for name, encoder in encoders.items()}
    plots.neighbours(images, features, PICTURES / "tutorial_neighbours.png", queries=6)
    plots.feature_map(features["pretrained"], labels, names, PICTURES / "tutorial_features.png")

    x, y, _ = read(garments / "train", count=20)
    accuracy = {}
    for name, file in (("pretrained", "encoder.keras"), ("untrained", "initial_encoder.keras")):
        keras.utils.set_random_seed(0)
        encoder = keras_sslhsic.load_pretrained(run / file, trainable=True)
        classifier = keras.Sequential([encoder, keras.layers.Dense(len(names))])
        classifier.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        classifier.fit(x, y, batch_size=32, epochs=15, verbose=0)
        accuracy[name] = classifier.evaluate(images, labels, verbose=0)[1]
        if name == "pretrained":
            predictions(images, labels, classifier.predict(images, verbose=0).argmax(1), names)
    print("fine-tuned on 20 labels a class:", accuracy)


def read(folder: Path, count: int | None = None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The images of a folder of classes, their labels and the names of those."""
    names = sorted(path.name for path in folder.iterdir())
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).iterdir())[:count]
    ]
    images = np.stack([np.asarray(Image.open(file))[..., None] for file, _ in files])
    return images, np.array([label for _, label in files]), names


def predictions(images: np.ndarray, labels: np.ndarray, predicted: np.ndarray, names: list[str]) -> None:
    """A picture of some test images with the class that each was given, the wrong ones in red."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    chosen = np.random.default_rng(0).permutation(len(images))[:24]
    for axes, image in zip(figure.subplots(3, 8).flat, chosen, strict=True):
        axes.imshow(images[image][..., 0], cmap="gray")
        right = predicted[image] == labels[image]
        axes.set_title(names[predicted[image]], fontsize=9, color="black" if right else "red")
        axes.set_axis_off()
    pictures.save(figure, PICTURES / "tutorial_classifier.png")


def curves() -> None:
    """A training that works and one that collapses: they differ in gamma alone."""
    (images, _), _ = bundled.load()
    policy = dataclasses.replace(  # that of the default run
        views.grayscale(28),
        crop=views.Crop(area=(0.7, 1.0), aspect=(0.9, 1.11), method="bilinear"),
        flip=0.0,
        jitter=views.ColorJitter(probability=1.0, brightness=0.3, contrast=0.8, saturation=0.0, hue=0.0),
        solarize=views.Solarize(probability=(0.0, 0.0)),
    )
    histories = {}
    for gamma in (1.0, 3.0):
        keras.utils.set_random_seed(0)
        encoder = keras_sslhsic.build_encoder("r18_1x", (None, None, 1), width=0.125, stem="imagenet")
        model = keras_sslhsic.SSLHSIC(encoder, 256, 64, target=False, views=policy, seed=0)
        model.compile(keras.optimizers.AdamW(4e-3), loss=keras_sslhsic.losses.SSLHSICLoss(gamma=gamma))
        histories[gamma] = model.fit(images[:2048], batch_size=128, epochs=12, verbose=2).history
    names = ("loss", "feature_std", "dependence_ratio", "effective_rank")
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    for axes, name in zip(figure.subplots(1, 4), names, strict=True):
        for color, (gamma, history) in zip(("C0", "C3"), histories.items(), strict=True):
            label = f"gamma = {gamma:g}" + (", collapses" if gamma == 3 else "")
            axes.plot(np.arange(1, 13), history[name], ".-", color=color, label=label)
            if name == "dependence_ratio":
                axes.axhline(gamma, color=color, ls=":", lw=1)
                axes.set_ylim(-1, 6)  # of collapsed outputs it is noise
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("epoch", fontsize=8)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    pictures.save(figure, PICTURES / "collapse.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        curves()
        tutorial(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
