"""Evaluating the encoder of a run, or any other, from the command line and at the end of a run."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_sslhsic import evaluation
from keras_sslhsic.data.sources import bundled_splits
from keras_sslhsic.encoders import with_preprocessing
from keras_sslhsic.files import display
from keras_sslhsic.methods import SSLHSIC
from keras_sslhsic.runs.build import initial_encoder
from keras_sslhsic.runs.folder import ENCODER, RESULTS, described_by, load_config
from keras_sslhsic.zoo import model_files


def serving_encoder(model: SSLHSIC, encoder: keras.Model) -> keras.Model:
    """An encoder with the normalisation of the model's views in front: images in [0, 255] to features."""
    return with_preprocessing(encoder, model.policy.mean, model.policy.std)


def compare(
    encoder: keras.Model,
    untrained: keras.Model,
    train: Any,
    test: Any,
    data: str = "",
    workdir: Path | None = None,
) -> list[dict[str, Any]]:
    """kNN (k = 20) and linear accuracy of the pretrained encoder, beside raw pixels and the untrained encoder.

    Args:
        encoder: keras.Model from images in [0, 255] to features.
        untrained: the same before training.
        train: (images uint8 [N, H, W, C], labels int [N]) to fit on.
        test: the same, to measure on.
        data: name of the images, for the records.
        workdir: the run folder, to whose results.jsonl the records are added; None keeps none.

    Returns:
        One {"features", "knn", "linear"} for each, accuracies in [0, 1].
    """
    name = "pretrained" if workdir is None else str(workdir)
    file = None if workdir is None else workdir / RESULTS
    known: list[dict[str, Any]] = []
    if file is not None and file.exists():
        with contextlib.suppress(
            FileNotFoundError
        ):  # no whole record: a run was killed while it wrote the first
            known = evaluation.results.read(file)
    rows: dict[str, dict[str, Any]] = {}
    for record in evaluation.compare(encoder, untrained, train, test, data=data, name=name):
        # A run that was killed after this, and went on, has them already.
        if file is not None and not any(evaluation.results.same(record, other) for other in known):
            evaluation.results.append(file, record)
        features = "pretrained" if record["encoder"] == name else record["encoder"]
        protocol = record["protocol"].removesuffix("_features")
        rows.setdefault(features, {"features": features})[protocol] = record["value"]
    return list(rows.values())


def untrained_encoder(workdir: str | os.PathLike) -> keras.Model:
    """The encoder that a run started from, normalisation inside."""
    config = load_config(workdir)
    with described_by(workdir):
        return initial_encoder(config)


def evaluate_run(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The table of a finished run, computed again; see `compare`.

    Raises:
        ValueError: if the folder holds no finished run, or its data have no labelled arrays.
    """
    workdir = Path(workdir)
    config = load_config(workdir)
    if config.data.source != "bundled":
        raise ValueError(
            f"The data of {display(workdir)} are not labelled arrays: name a protocol and --data."
        )
    if not (workdir / ENCODER).exists():
        raise ValueError(
            f"The run in {display(workdir)} is not finished: it has no {ENCODER}. Go on with it by --resume."
        )
    encoder = model_files.load(workdir / ENCODER)
    return compare(encoder, untrained_encoder(workdir), *bundled_splits(config.data.get("holdout", 0.0)))


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of `compare` as text, accuracies in per cent."""
    names = list(rows[0])
    cells = [[display(name) for name in names]] + [
        [f"{100 * row[name]:.1f}" if isinstance(row[name], float) else display(row[name]) for name in names]
        for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
