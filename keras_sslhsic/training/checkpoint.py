"""Checkpoints of a training run: one file each, written atomically, from which `fit` goes on exactly."""

import json
import os
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat

_NAME = "checkpoint-{:06d}.npz"
_PATTERN = re.compile(r"checkpoint-(\d{6,})\.npz")
_META = "meta.json"


class Checkpoint(keras.callbacks.Callback):
    """Saves the whole state of training after every epoch, and lets `fit` go on from it.

    The state is every variable of the model (networks, target, moving averages, kernel scale, step), the slots of both
    optimizers and the epoch. Views and feature draws are functions of the seed and the step, so with a data set whose
    order is a function of its seed and the epoch (`data.from_arrays` and its siblings), a run that was killed and started
    again ends with the same weights as one that was not.

    A file is written beside its final name, flushed to the disk and renamed: whoever finds it finds all of it. A file
    that cannot be read all the same is passed over with a warning, and the one before it taken.

    With several workers, the chief writes and all of them read, so the directory must be one that they share.

    Args:
        directory: where the files go, `checkpoint-<epoch>.npz`; made if it is missing.
        keep: how many of the newest files stay, >= 1.

    Raises:
        ValueError: if keep < 1.

    Example:
        model.fit(dataset, epochs=100, callbacks=[Checkpoint("runs/a/checkpoints")])   # again after a crash
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 2):
        super().__init__()
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}.")
        self.directory = Path(directory)
        self.keep = keep

    def on_epoch_end(self, epoch, logs=None):
        if not np.isfinite(float((logs or {}).get("loss", 0.0))):
            return  # the last good checkpoint stays the last
        if self.model.distribute_strategy.extended.should_checkpoint:
            self.save(self.model, epoch + 1)

    def save(self, model: keras.Model, epoch: int) -> Path:
        """Writes the state of a model that has finished `epoch` epochs; returns the file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        final = self.directory / _NAME.format(epoch)
        partial = final.with_suffix(".partial")
        meta = {"epoch": epoch, "step": int(compat.tensor(model.step).numpy()), "seed": model.seed}
        with open(partial, "wb") as file:
            arrays: dict[str, Any] = {name: compat.tensor(v).numpy() for name, v in _state(model).items()}
            arrays[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, final)
        for old in self.files()[: -self.keep]:
            old.unlink()
        return final

    def files(self) -> list[Path]:
        """The checkpoints in the directory, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(p for p in self.directory.iterdir() if _PATTERN.fullmatch(p.name))

    def restore(self, model: keras.Model) -> int:
        """Puts the newest readable checkpoint into a compiled model.

        Returns:
            The number of epochs that it has finished; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoint is of another model, or the workers of one run do not find the same one.
        """
        epoch = self._restore_newest(model)
        found = compat.of_all_replicas(model.distribute_strategy, epoch)
        if len(set(found)) > 1:
            raise ValueError(
                f"The workers would go on from different epochs, {found}: this one found {epoch} in {self.directory}. Give "
                "all of them one directory on a file system that they share."
            )
        return epoch

    def _restore_newest(self, model) -> int:
        for file in reversed(self.files()):
            try:
                with np.load(file) as archive:
                    arrays = {name: archive[name] for name in archive.files}
                meta = json.loads(arrays.pop(_META).tobytes())
            except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
                warnings.warn(
                    f"{file} cannot be read ({error}); trying the checkpoint before it.", stacklevel=2
                )
                continue
            _assign(model, arrays, file)
            return meta["epoch"]
        return 0


def _state(model) -> dict:
    groups = {
        "model": model.weights,
        "optimizer": model.optimizer.variables,
        "kernel_optimizer": model.kernel_optimizer.variables,
    }
    # The index keeps names apart that Keras made equal.
    return {f"{group}/{i:04d}/{compat.path(v)}": v for group, vs in groups.items() for i, v in enumerate(vs)}


def _assign(model, arrays, file):
    # Paths hold counters of the process (adam_1), so the position and the shape decide.
    state = {_position(name): v for name, v in _state(model).items()}
    saved = {_position(name): (name, value) for name, value in arrays.items()}
    if state.keys() != saved.keys():
        raise ValueError(
            f"{file} holds {len(saved)} variables and the model has {len(state)}: it is the checkpoint of another model or "
            "optimizer. Give another directory, or the configuration that wrote it."
        )
    for key, (name, value) in saved.items():
        if tuple(state[key].shape) != value.shape:
            raise ValueError(
                f"{file} holds {name} with shape {value.shape}, but the model's has {tuple(state[key].shape)}: it is the "
                "checkpoint of another model. Give another directory, or the configuration that wrote it."
            )
    for key, (_, value) in saved.items():
        state[key].assign(value)


def _position(name: str) -> str:
    """`optimizer/0003` of `optimizer/0003/lars/stem_conv_kernel_momentum`."""
    return "/".join(name.split("/")[:2])
