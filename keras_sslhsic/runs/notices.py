"""What a run says before its first step, which is long in coming: what trains, on what, how long and how fast."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from keras_sslhsic import compat
from keras_sslhsic.data.images import Images
from keras_sslhsic.training.schedules import scaled_learning_rate
from keras_sslhsic.words import counted
from keras_sslhsic.zoo.model_files import count_parameters


def before_training(
    config: ConfigDict, images: Images, model: Any, trained: int, intended: int | None
) -> Iterator[str]:
    """The lines.

    Args:
        config: of the run, completed.
        images: that it trains on.
        model: the trainer, as it was when the last epoch ended.
        trained: epochs that are behind it.
        intended: epochs that the run was to have before, if it has others now.
    """
    epochs, steps = counted(config.epochs, "epoch"), counted(images.steps_per_epoch, "step")
    sizes = ", then ".join(map(str, config.view_sizes or [model.policy.size]))
    source = f", as {config.init} has it," if config.init else ""
    yield (
        f"{config.method} trains {model.encoder.name}{source} with {count_parameters(model.encoder):,} parameters on "
        f"{counted(images.num_examples, 'image')}: {epochs} of {steps}, {config.batch_size} "
        f"images a step, {model.policy.num_views} views of {sizes} pixels of each."
    )
    base, batch = config.optimizer.learning_rate, config.batch_size
    if batch != 256:
        yield (
            f"The learning rate, {base:g} for 256 images a step, is {scaled_learning_rate(base, batch):g} for {batch} at its "
            "peak."
        )
    if intended is not None:
        rate = float(compat.learning_rate(model.optimizer))
        yield (
            f"The run was to have {counted(intended, 'epoch')}, and goes on from {trained} to {config.epochs}: the "
            f"schedules of learning rate and target are over {config.epochs} epochs now, so that the rate goes on with "
            f"{rate:.3g}."
        )
    if trained < config.epochs:
        yield "The first step is traced now, which may take a minute; the time of an epoch is told after some steps."
