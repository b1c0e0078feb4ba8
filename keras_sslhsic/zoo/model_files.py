"""Files of models, and the note that goes into them."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_sslhsic.files import written_whole

NOTE = "keras_sslhsic"  # attribute of a .weights.h5 file, member of a .keras file: JSON


def count_parameters(model: keras.Model) -> int:
    """Counts the trainable parameters, whether or not they are frozen at the moment: all but statistics."""
    return sum(int(np.prod(v.shape)) for v in model.weights if not v.name.startswith("moving_"))


def save_model(model: keras.Model, target: str | os.PathLike, note: dict[str, Any]) -> None:
    """Saves a model to ``NAME.keras``, or its weights to ``NAME.weights.h5``, with a note; never half."""
    target = Path(target)
    if target.suffix == ".keras":
        with written_whole(target, ".keras") as temporary:
            model.save(temporary)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.writestr(f"{NOTE}.json", json.dumps(note))
    else:
        with written_whole(target, ".weights.h5") as temporary:
            model.save_weights(temporary)
            with h5py.File(temporary, "r+") as file:
                file.attrs[NOTE] = json.dumps(note)


def read_note(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the note that `save_model` put into a file; empty if there is none.

    Raises:
        ValueError: if the file is damaged or of another kind.
    """
    try:
        if str(path).endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                member = f"{NOTE}.json"
                return json.loads(archive.read(member)) if member in archive.namelist() else {}
        with h5py.File(path, "r") as file:
            return json.loads(file.attrs.get(NOTE, "{}"))
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable model file: {error}") from error
