"""A progress bar for the whole of a training, with the time left."""

from typing import Any

import keras
from tqdm.auto import tqdm

_SHOWN = ("loss", "feature_std", "online_accuracy")


class Progress(keras.callbacks.Callback):
    """Shows one bar over all epochs and steps, the main metrics beside it."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.bar: tqdm | None = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        steps = self.params.get("steps")
        if self.bar is None:
            total = steps and steps * self.params["epochs"]
            self.bar = tqdm(
                total=total, initial=epoch * (steps or 0), unit="step", mininterval=0.5, dynamic_ncols=True
            )
        self.bar.set_description(f"epoch {epoch + 1}/{self.params['epochs']}")
        self.done = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        assert self.bar is not None
        # One call stands for all the steps of an execution.
        self.bar.update(batch + 1 - self.done)
        self.done = batch + 1
        if logs:
            names = (*_SHOWN, *self.model.objective.latest)
            shown = {name: f"{float(logs[name]):.3g}" for name in names if name in logs}
            self.bar.set_postfix(shown, refresh=False)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.bar is not None:
            self.bar.close()
