"""Callbacks that belong to training: schedules of target and view size, evaluation weights, faults and collapse."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_sslhsic import checks, compat
from keras_sslhsic.training import schedules
from keras_sslhsic.training.schedules import TargetDecay
from keras_sslhsic.words import warn

_CHECK_EVERY = 50  # steps; the model itself notes the exact step of a fault


class TargetEMA(keras.callbacks.Callback):
    """Lets the target network follow the online network.

    The average is taken inside the training step, so it is exact for any `steps_per_execution`; this callback sets its
    schedule, tau = 1 - (1 - base) (cos(pi t / T) + 1) / 2 at the update t of T. Updates of the weights count, not the steps
    in which an optimizer only accumulates gradients; but those too that a loss scale skips, in which the target stands still,
    so that tau is 1 at the end.

    Of a method whose decay does not rise (MoCo's), tau stays at `base`.

    Args:
        base: tau at the first update, in [0, 1]; None is that of the method.
        total_steps: T. None counts those of one `fit`, from its beginning to its end: the epochs before its `initial_epoch`,
            or before the checkpoint that it goes on from, are trained already, and the next `fit` begins anew. A number
            counts all that the model has made since it was new, over several calls of `fit`, and a warning says when they
            are over. A dataset of unknown length needs a number.
    """

    def __init__(self, base: float | None = None, total_steps: int | None = None):
        super().__init__()
        if base is not None:
            checks.number("base", base, most=1.0)
        checks.integer("total_steps", total_steps, 1, optional=True)
        self.base = base
        self.total_steps = total_steps

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self._set_schedule()

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._set_schedule()

    def _set_schedule(self) -> None:
        # Keras hands over the model and the parameters in an order of its own, both before the step is traced.
        if self.model is None or not self.params:
            return
        if not self.model.target:
            raise ValueError(
                "TargetEMA needs a model with a target network, found one without: give it target=True."
            )
        total_steps = self.total_steps
        if total_steps is None and self.model.target_ema_rises:
            epochs, steps = self.params.get("epochs"), self.params.get("steps")
            if not epochs or not steps:
                raise ValueError(
                    "The number of training steps is not known, so the schedule of the target network has no end: give "
                    "TargetEMA(total_steps=...) or fit(..., steps_per_epoch=...)."
                )
            total_steps = max(epochs * steps // compat.accumulated(self.model.optimizer), 1)
        base = self.model.target_ema if self.base is None else self.base
        self.model.set_target_decay(TargetDecay(base, total_steps if self.model.target_ema_rises else None))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begun, self._warned = False, False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._begun:
            self._begun = True
            # The step is that of the checkpoint, if there is one, and so this is where the interrupted run began.
            step = self.model.step.numpy()
            self.model.target_begin.assign(0 if self.total_steps else step - epoch * self.params["steps"])
        made = int(self.model.updates)
        total = self.model.target_decay.total_steps and self.total_steps
        if total and not self._warned and made + _coming(self) > total:
            self._warned = True
            warn(
                f"The schedule of the target network, TargetEMA(total_steps={self.total_steps}), ends after {self.total_steps} "
                f"updates of the weights: the model has made {made}, training goes on, and the target stands still from then "
                "on. Give the updates of all its training, or TargetEMA() to begin anew in each fit.",
            )


class WatchRate(keras.callbacks.Callback):
    """Warns, once in a `fit`, where the schedule of the learning rate is over and training goes on."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._warned = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        schedule = compat.schedule(self.model.optimizer)
        total, made = schedules.length(schedule), int(compat.updates(self.model.optimizer))
        if total is not None and not self._warned and made + _coming(self) > total:
            self._warned = True
            warn(
                f"The schedule of the learning rate, {type(schedule).__name__}, ends after {total} updates of the weights: the "
                f"optimizer has made {made}, training goes on, and the rate stays at {float(schedule(total)):g} from then on. "
                "Give a schedule over all the training, or compile with a new optimizer to begin anew.",
            )


class ViewSizes(keras.callbacks.Callback):
    """Trains on small views first: their side grows over the epochs (progressive resizing).

    The sizes have equal parts of the epochs, the last of them what is left over, and each has a program of its own, which is
    compiled when its first epoch begins. A run that goes on takes the size of its epoch. Validation and probes see images at
    their full size throughout.

    Args:
        sizes: sides in pixels, from small to large; the last is `size` of the views.

    Raises:
        ValueError: for other sizes; at the beginning of `fit`, for views that cannot have them, `inputs.check_growing`.

    Example:
        model.fit(images, epochs=90, callbacks=[ViewSizes([128, 160, 192, 224])])
    """

    def __init__(self, sizes: Sequence[int]):
        super().__init__()
        for size in sizes:
            checks.integer("a size of views", size, 1)
        self.sizes = tuple(map(int, sizes))
        if not self.sizes or sorted({*self.sizes}) != [*self.sizes]:
            raise ValueError(
                f"The sizes of views must be one or more, from small to large, each once, found {[*self.sizes]}."
            )

    def at(self, epoch: int, epochs: int) -> int:
        """The size of an epoch, counted from 0, of so many."""
        return self.sizes[min(epoch * len(self.sizes) // epochs, len(self.sizes) - 1)]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.set_view_size(self.at(epoch, self.params["epochs"]))


def _coming(callback: keras.callbacks.Callback) -> int:
    """Updates of the weights in the epoch that begins; 1 if its length is not known."""
    steps = callback.params.get("steps")
    return steps // compat.accumulated(callback.model.optimizer) if steps else 1


class WeightEMA(keras.callbacks.Callback):
    """Keeps a moving average of the encoder's weights for evaluation, in `model.ema_encoder`.

    Updated inside the training step: average = decay * average + (1 - decay) * weight. BatchNorm statistics are those
    of the online encoder.

    Args:
        decay: in [0, 1); the released code's 0.999 suits long runs, a run of 1,000 steps wants 0.99.
    """

    def __init__(self, decay: float = 0.999):
        super().__init__()
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), found {decay}.")
        self.decay = decay

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if model.weight_ema != self.decay:
            with model.distribute_strategy.scope():
                model.keep_weight_ema(self.decay)
            model.train_function = None


class StopOnFault(keras.callbacks.Callback):
    """Stops training at a loss that is not finite, or at labels outside of the classes, and says at which step.

    Looks after the first batch of an epoch, every 50 steps from there, and at the end of the epoch; where more steps
    than that are made in one execution, after each execution.

    Raises:
        FloatingPointError: for the loss.
        ValueError: for labels.
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        # A fault that ended an earlier `fit` is not one of this.
        self.model.first_faults.assign([-1, -1])

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._next_look = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With several steps in one execution, this is called for the last of them alone.
        if batch >= self._next_look:
            self._next_look = batch + _CHECK_EVERY
            self._check()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._check()

    def _check(self) -> None:
        loss_step, label_step = (int(step) for step in self.model.first_faults.numpy())
        if loss_step >= 0:
            raise FloatingPointError(
                f"The loss became NaN or infinite at step {loss_step}. Lower the learning rate or warm up for longer; "
                "a checkpoint, if there is one, was written before this step."
            )
        if label_step >= 0:
            raise ValueError(
                f"A label at step {label_step} is outside of the {self.model.num_classes} classes of the online classifier "
                f"(0 to {self.model.num_classes - 1}): give num_classes the right number, or train without "
                "labels (data.labels=False in a config), as where some have none and are marked -1."
            )


class WatchCollapse(keras.callbacks.Callback):
    """Warns, once in a `fit`, when the outputs collapse into one point, and on request ends the training there.

    Outputs count as collapsed when the standard deviation of their directions, `feature_std`, is below a tenth of that of
    spread outputs: squared distances are then 0.02 on average. The loss is asked for advice, and where it says that they
    are on their way out (see `losses.Objective.advice_on_collapse`), no warning is given. `effective_rank` does not show a
    collapse.

    Looks every 50 steps and at the end of an epoch, at the means over the steps since the last look; where more steps
    are made in one execution, after each execution.

    Args:
        stop: whether to end the training, as `keras.callbacks.EarlyStopping` does.
        threshold: of `feature_std`, in (0, 1).

    Raises:
        ValueError: for another threshold.
    """

    def __init__(self, stop: bool = False, threshold: float = 0.1):
        super().__init__()
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"threshold must lie between 0 and 1, found {threshold}.")
        self.stop = stop
        self.threshold = threshold

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._warned = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps, self._looked_at = 0, 0
        self._sums: dict[str, float] = {}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps = batch + 1
        if self._steps - self._looked_at >= _CHECK_EVERY:
            self._look(logs or {})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._steps > self._looked_at:
            self._look(logs or {})

    def _look(self, logs: Mapping[str, float]) -> None:
        # The logs hold means since the beginning of the epoch, but for what is shown as it is.
        latest = (*self.model.latest, *self.model.objective.latest)
        sums = {name: float(value) * self._steps for name, value in logs.items() if name not in latest}
        recent = {
            name: (total - self._sums.get(name, 0.0)) / (self._steps - self._looked_at)
            for name, total in sums.items()
        }
        self._sums, self._looked_at = sums, self._steps
        if recent["feature_std"] < self.threshold and not self._warned:
            self._report(recent)

    def _report(self, recent: Mapping[str, float]) -> None:
        advice = self.model.objective.advice_on_collapse(recent)
        if advice is None:
            return
        message = (
            f"The outputs have collapsed: their standard deviation is {recent['feature_std']:.2g}, where that of spread "
            f"outputs is 1. {advice}"
        )
        self._warned = True
        warn(message.strip())
        if self.stop:
            self.model.stop_training = True
