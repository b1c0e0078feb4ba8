"""Views drawn in a grid, to look at a policy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.views import policy as policies

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show(
    images: tf.Tensor,
    policy: str | policies.ViewPolicy | Mapping[str, Any] = "byol",
    seed: tf.Tensor = (0, 0),
) -> "Figure":
    """Draws each image (left) beside its views, one row an image.

    Args:
        images: [B, H, W, C], uint8 or float in [0, 1]; of other than one or three channels, the first three are drawn, or
            the first of two.
        policy: a `ViewPolicy` or what `views.get` takes.
        seed: int [2].

    Returns:
        The matplotlib Figure, which a notebook shows; `figure.savefig(path)` keeps it. No display is needed.
    """
    from matplotlib.figure import Figure

    policy = policies.get(policy)
    views = policies.make_views(images, policy, tf.constant(seed))
    columns = [np.asarray(images), *(np.asarray(view) * policy.std + policy.mean for view in views)]
    titles = ["image", *(f"view {index + 1}" for index in range(policy.num_views))]
    figure = Figure(figsize=(1.6 * len(columns), 1.6 * len(images) + 0.3), layout="constrained")
    drawn = 3 if images.shape[-1] > 2 else 1
    for row, axes in enumerate(figure.subplots(len(images), len(columns), squeeze=False)):
        for axis, title, column in zip(axes, titles, columns, strict=True):
            top = 255 if column.dtype == np.uint8 else 1
            axis.imshow(np.clip(column[row, ..., :drawn], 0, top), cmap="gray", vmin=0, vmax=top)
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title)
    return figure
