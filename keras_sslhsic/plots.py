"""Pictures of a run: curves of the training, and a map of the features."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keras_sslhsic import pictures
from keras_sslhsic.files import display

if TYPE_CHECKING:
    import keras
    from matplotlib.figure import Figure

# The quantities of every method; what else a loss or an evaluation logs gets a panel of its own.
_PANELS = (
    ("Loss", ("loss",)),
    ("HSIC(Z, Y) and sqrt HSIC(Z, Z)", ("hsic_zy", "sqrt_hsic_zz")),
    ("HSIC(Z, Y) / sqrt HSIC(Z, Z)", ("dependence_ratio",)),
    ("Kernel scale", ("kernel_scale",)),
    ("Effective rank of the outputs", ("effective_rank",)),
    ("Standard deviation of the outputs", ("feature_std",)),
    ("Alignment of the views", ("alignment",)),
    ("MMD^2 of the outputs to uniform", ("mmd_to_uniform",)),
    ("Dimensions off centre", ("off_centre",)),
    ("Learning rate", ("learning_rate",)),
    ("Gradient norm", ("grad_norm",)),
    ("Target decay tau", ("tau",)),
    ("Online accuracy", ("online_accuracy",)),
)
_NOT_DRAWN = {"epoch", "seconds", "checkpoint_seconds", "hsic_zz"}  # whose square root is


def curves(
    history: "Mapping[str, Sequence[float]] | keras.callbacks.History", path: str | Path | None = None
) -> "Figure":
    """Draws what `fit` logged, a panel a quantity, and saves the picture if a path is given.

    Args:
        history: what `model.fit` returns, or {name: a value an epoch}.
        path: of the picture.

    Raises:
        ValueError: if nothing was logged.
    """
    from matplotlib.figure import Figure

    values_of = getattr(history, "history", history)
    series = {name: np.asarray(values, float) for name, values in values_of.items()}
    if not any(values.size for values in series.values()):
        raise ValueError("Nothing was logged: give what `fit` returns after an epoch at least.")
    if "hsic_zz" in series:
        series["sqrt_hsic_zz"] = np.sqrt(np.maximum(series["hsic_zz"], 0.0))
    known = {name for _, names in _PANELS for name in names} | _NOT_DRAWN
    others = [(name.replace("_", " "), (name,)) for name in series if name not in known]
    panels = [(title, [n for n in names if n in series]) for title, names in (*_PANELS, *others)]
    panels = [panel for panel in panels if panel[1]]
    columns, rows = 3, max(1, -(-len(panels) // 3))
    figure = Figure(figsize=(4.2 * columns, 2.8 * rows), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        for name in names:
            epochs = np.arange(1, len(series[name]) + 1)
            marker = "." if len(epochs) < 40 else None
            made = ~np.isnan(series[name])  # evaluations are not made in every epoch
            axes.plot(epochs[made], series[name][made], marker=marker, label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch", fontsize=8)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=8)
    for axes in figure.axes[len(panels) :]:
        axes.set_axis_off()
    if path is not None:
        pictures.save(figure, path)
    return figure


def feature_map(
    features: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str] | None = None,
    path: str | Path | None = None,
    seed: int = 0,
) -> "Figure":
    """Draws features in two dimensions (t-SNE of their directions), coloured by class.

    Args:
        features: [N, F].
        labels: int [N].
        class_names: names for the legend.
        path: as in `curves`.
        seed: of t-SNE.

    Raises:
        ValueError: for fewer than 2 images, or another number of labels, or a label without a name.
    """
    from matplotlib.figure import Figure
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from sklearn.preprocessing import normalize

    if len(features) < 2 or np.shape(labels) != (len(features),):
        raise ValueError(
            f"Expected features [N, F] of 2 images or more and labels [N], found the shapes {np.shape(features)} and "
            f"{np.shape(labels)}."
        )
    if class_names is not None and np.max(labels) >= len(class_names):
        raise ValueError(
            f"Expected a name for each class, found {len(class_names)} and label {np.max(labels)}."
        )
    directions = normalize(features)
    if directions.shape[1] > 50:
        directions = PCA(min(50, len(directions)), random_state=seed).fit_transform(directions)
    perplexity = min(30.0, max(1.0, (len(features) - 1) / 4))
    points = TSNE(2, init="pca", perplexity=perplexity, random_state=seed).fit_transform(directions)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    axes = figure.subplots()
    classes = np.unique(labels)
    for index, label in enumerate(classes):
        rows = labels == label
        name = display(class_names[label]) if class_names is not None else str(label)
        color = f"C{index}" if len(classes) <= 10 else None
        axes.scatter(points[rows, 0], points[rows, 1], s=7, color=color, alpha=0.8, linewidths=0, label=name)
    axes.set_axis_off()
    axes.set_title("t-SNE of the features of test images")
    if len(classes) <= 20:
        legend = axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=2.5, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name with dollar signs is no formula
    if path is not None:
        pictures.save(figure, path)
    return figure


def neighbours(
    images: np.ndarray,
    features: Mapping[str, np.ndarray],
    path: str | Path | None = None,
    queries: int = 8,
    count: int = 5,
) -> "Figure":
    """Draws the nearest neighbours of some images among all of them, by the features of several encoders side by side.

    Args:
        images: uint8 [N, H, W, C].
        features: name of an encoder -> [N, F].
        path: as in `curves`.
        queries: rows.
        count: neighbours of each.

    Raises:
        ValueError: for fewer than 2 images, or features of another number of images or without a name.
    """
    from matplotlib.figure import Figure

    if not isinstance(features, Mapping):
        raise ValueError(f"features must be {{name: features [N, F]}}, found a {type(features).__name__}.")
    shapes = {name: np.shape(values) for name, values in features.items()}
    if len(images) < 2 or any(shape[:1] != (len(images),) for shape in shapes.values()):
        raise ValueError(
            f"Expected 2 images or more, and features [N, F] of each encoder, found {len(images)} images and {shapes}."
        )
    chosen = np.linspace(0, len(images) - 1, min(queries, len(images))).round().astype(int)
    count = min(count, len(images) - 1)
    columns = 1 + len(features) * (count + 1)  # an empty one before each encoder's
    figure = Figure(figsize=(columns, len(chosen) + 0.5), layout="constrained")
    axes = figure.subplots(len(chosen), columns, squeeze=False)
    for panel in axes.flat:
        panel.set_axis_off()
    axes[0, 0].set_title("image", fontsize=8)
    for number, (name, values) in enumerate(features.items()):
        directions = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        similar = directions[chosen] @ directions.T
        similar[np.arange(len(chosen)), chosen] = -np.inf
        nearest = np.argsort(-similar, axis=1, kind="stable")[:, :count]
        first = 2 + number * (count + 1)
        for row, found in enumerate(nearest):
            for column, image in ((0, chosen[row]), *enumerate(found, first)):
                pixels = images[image][..., 0] if images.shape[-1] == 1 else images[image]
                axes[row, column].imshow(pixels, cmap="gray", vmin=0, vmax=255)
        axes[0, first].set_title(f"nearest, {name}", fontsize=8, loc="left")
    if path is not None:
        pictures.save(figure, path)
    return figure


def sheet(
    images: Sequence[np.ndarray], captions: Sequence[str], path: str | Path | None = None, columns: int = 6
) -> "Figure":
    """Draws images, each under its caption, in rows.

    Args:
        images: uint8 [H, W, C] each, of any size.
        captions: as many.
        path: as in `curves`.
        columns: images in a row.

    Raises:
        ValueError: unless there are as many captions as images.
    """
    from matplotlib.figure import Figure

    if len(images) != len(captions):
        raise ValueError(f"Expected a caption for each of {len(images)} images, found {len(captions)}.")
    lines = -(-len(images) // columns)
    figure = Figure(figsize=(1.8 * columns, 2.1 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flat
    for panel in axes:
        panel.set_axis_off()
    for panel, image, caption in zip(figure.axes, images, captions, strict=False):
        panel.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
        panel.set_title(display(caption), fontsize=7, parse_math=False)
    if path is not None:
        pictures.save(figure, path)
    return figure
