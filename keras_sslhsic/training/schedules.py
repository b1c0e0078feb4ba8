"""Schedules: pure functions of the number of updates of the weights."""

import math
from typing import Any

import keras
import tensorflow as tf


def warmup_cosine(
    peak: float, total_steps: int, warmup_steps: int = 0
) -> keras.optimizers.schedules.CosineDecay:
    """Learning rate with linear warm-up and cosine decay to zero.

    At step t, with w warm-up steps out of T:

        t < w:   peak * t / w
        t >= w:  peak * (1 + cos(pi (t - w) / (T - w))) / 2

    The paper (section 4.1) takes peak = 0.4 * batch / 256 and 1000 epochs, see `scaled_learning_rate`; the ten epochs
    of warm-up are the released code's, and BYOL's.

    Args:
        peak: the highest learning rate, >= 0.
        total_steps: T, the steps of the whole training, >= 1.
        warmup_steps: w, 0 <= w < T.

    Raises:
        ValueError: for values outside of these ranges.
    """
    if peak < 0:
        raise ValueError(f"peak must be at least 0, found {peak}.")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps must be in [0, total_steps), found warmup_steps={warmup_steps} and total_steps={total_steps}: "
            "train longer, or warm up for fewer steps."
        )
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup_steps else float(peak),
        decay_steps=total_steps - warmup_steps,
        warmup_target=float(peak) if warmup_steps else None,
        warmup_steps=warmup_steps,
    )


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class TargetDecay:
    """Decay rate of the target network's moving average: tau = 1 - (1 - base) (cos(pi t / T) + 1) / 2.

    It rises from `base` to 1, at which the target stands still (section 4.1 of the paper, after BYOL).

    Args:
        base: tau at step 0, in [0, 1].
        total_steps: T, the steps of the whole training. None keeps tau at `base`.

    Raises:
        ValueError: for values outside of these ranges.
    """

    def __init__(self, base: float = 0.99, total_steps: int | None = None):
        if not 0.0 <= base <= 1.0:
            raise ValueError(f"base must be in [0, 1], got {base}.")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {total_steps}.")
        self.base = float(base)
        self.total_steps = None if total_steps is None else int(total_steps)

    def __call__(self, step: Any) -> tf.Tensor:
        if self.total_steps is None:
            return tf.constant(self.base, tf.float32)
        progress = tf.clip_by_value(tf.cast(step, tf.float32) / self.total_steps, 0.0, 1.0)
        return 1.0 - (1.0 - self.base) * 0.5 * (tf.cos(math.pi * progress) + 1.0)

    def get_config(self) -> dict[str, Any]:
        return {"base": self.base, "total_steps": self.total_steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "TargetDecay":
        return cls(**config)


def length(schedule: Any) -> int | None:
    """The number of steps after which a schedule of Keras stays where it is; None if it never does, or does not say."""
    if isinstance(schedule, keras.optimizers.schedules.CosineDecay):
        warmup = 0 if schedule.warmup_target is None else schedule.warmup_steps
        return int(schedule.decay_steps + warmup)
    if isinstance(schedule, keras.optimizers.schedules.PolynomialDecay) and not schedule.cycle:
        return int(schedule.decay_steps)
    return None


def scaled_learning_rate(base: float, batch_size: int) -> float:
    """The linear scaling rule of the paper (section 4.1): base * batch_size / 256."""
    return base * batch_size / 256
