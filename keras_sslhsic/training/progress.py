"""A progress bar for the whole of a training, with the time left."""

import time
from typing import Any

import keras
from tqdm.auto import tqdm

_SHOWN = ("loss", "feature_std", "online_accuracy")
_MEASURED = 5  # seconds, and executions, from which the time of an epoch is told; the first two, which are slow, not counted


class Progress(keras.callbacks.Callback):
    """Shows one bar over all epochs and steps, the main metrics beside it, and tells once how long an epoch takes.

    `close` it after a training that failed, so that what is said of it has a line of its own.
    """

    bar: tqdm | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.executions: list[tuple[float, int]] = []  # time and step of their ends, until the time is told
        self.told = False

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
        self._tell(time.monotonic(), self.bar.n)
        if logs:
            names = (*_SHOWN, *self.model.objective.latest)
            shown = {name: f"{float(logs[name]):.3g}" for name in names if name in logs}
            self.bar.set_postfix(shown, refresh=False)

    def _tell(self, now: float, step: int) -> None:
        assert self.bar is not None
        if self.told or not self.bar.total:
            return
        self.executions.append((now, step))
        since, begun = self.executions[1] if len(self.executions) > _MEASURED else (now, step)
        if now - since < _MEASURED or step == self.bar.total:
            return
        self.told = True
        seconds, steps = (now - since) / (step - begun), self.params["steps"]
        left = f"{self.bar.total - step:,} steps that are left {_span(seconds * (self.bar.total - step))}"
        self.bar.write(f"An epoch takes {_span(seconds * steps)}, the {left}.")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _span(seconds: float) -> str:
    """A time in words, to two digits: 40 s, 12 min, 3.5 h."""
    unit, name = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return f"{float(f'{seconds / unit:.2g}'):g} {name}"
