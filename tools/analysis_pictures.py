"""Makes the pictures of docs/analysis.md, from the bundled encoder on bundled images, within a minute.

python tools/analysis_pictures.py
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial.distance import pdist

import keras_sslhsic
from keras_sslhsic import analysis, pictures
from keras_sslhsic.analysis.independence import _null_moments
from keras_sslhsic.data import bundled
from keras_sslhsic.hsic.kernels import InverseMultiquadric
from keras_sslhsic.runs import claims

PICTURES = Path(__file__).parents[1] / "docs" / "images"
SHORT = [name.split("/")[0] for name in bundled.CLASS_NAMES]


def save(figure: Figure, name: str) -> None:
    pictures.save(figure, PICTURES / f"analysis_{name}.png")


def axes_of(figure: Figure, title: str, x: str, y: str = "") -> Axes:
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes


def matrix(values: np.ndarray, names: list[str], title: str, name: str) -> None:
    """A square of numbers with names on both sides."""
    figure = Figure(figsize=(5.6, 5.0), layout="constrained")
    axes = axes_of(figure, title, "")
    shown = axes.imshow(values, cmap="viridis")
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    middle = 0.5 * (values.min() + values.max())
    for row, column in np.ndindex(values.shape):
        color = "white" if values[row, column] < middle else "black"
        axes.text(
            column, row, f"{values[row, column]:.2f}", ha="center", va="center", color=color, fontsize=7
        )
    figure.colorbar(shown, shrink=0.8)
    save(figure, name)


def independence(features: np.ndarray, labels: np.ndarray) -> None:
    """The statistic of permuted labels, of the gamma approximation, and of the labels themselves with more and more noise."""
    x, y = features[:200], labels[:200]
    k, generator = (
        analysis.kernel_matrix(x, InverseMultiquadric(analysis.median_scale(x))),
        np.random.default_rng(0),
    )
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = axes_of(
        figure, "HSIC test: 200 images, features against labels", "n HSIC", "density under independence"
    )
    permuted = [
        analysis.hsic_test(k, analysis.label_matrix(generator.permutation(y)), "gamma").statistic
        for _ in range(500)
    ]
    axes.hist(permuted, bins=30, density=True, alpha=0.5, label="labels permuted")
    mean, variance = _null_moments(k, analysis.label_matrix(y))
    grid = np.linspace(min(permuted), max(permuted), 200)
    axes.plot(
        grid, stats.gamma.pdf(grid, mean**2 / variance, scale=variance / mean), label="gamma approximation"
    )
    for color, noise in zip(("C2", "C1", "C3"), (1.0, 0.9, 0.8), strict=True):
        noisy = np.where(generator.random(200) < noise, generator.integers(0, 10, 200), y)
        test = analysis.hsic_test(k, analysis.label_matrix(noisy), seed=1)
        label = f"{100 * (1 - noise):.0f} % of the labels kept, p = {test.p_value:.3f}"
        axes.axvline(test.statistic, color=color, label=label)
    axes.legend(fontsize=8)
    save(figure, "independence")


def two_samples(features: np.ndarray, labels: np.ndarray) -> None:
    """The MMD between classes."""
    kernel = InverseMultiquadric(analysis.median_scale(features))
    values = [
        [
            analysis.mmd2(features[labels == a], features[labels == b], kernel, unbiased=False)
            for a in range(10)
        ]
        for b in range(10)
    ]
    matrix(np.array(values), SHORT, "Squared MMD between the features of two classes", "mmd")


def similarities(representations: Mapping[str, np.ndarray], labels: np.ndarray) -> None:
    """CKA between representations and labels."""
    matrices = {name: analysis.kernel_matrix(x, "linear") for name, x in representations.items()}
    matrices["labels"] = analysis.label_matrix(labels)
    values = np.array([[analysis.cka(k, other) for other in matrices.values()] for k in matrices.values()])
    matrix(values, list(matrices), "CKA with linear kernels", "cka")


def sphere() -> None:
    """Distances of views of an image, and of all."""
    z = claims.outputs()
    flat = z.reshape(-1, z.shape[-1])
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    title = f"alignment {analysis.alignment(z):.2f}, uniformity {analysis.uniformity(flat):.2f}"
    axes = axes_of(figure, title, "squared distance of unit vectors", "density")
    same = np.concatenate([pdist(views, "sqeuclidean") for views in z])
    for values, label in ((same, "views of one image"), (pdist(flat, "sqeuclidean"), "all pairs")):
        axes.hist(values, bins=60, density=True, alpha=0.5, label=label)
    axes.axvline(2.0, color="gray", lw=1, ls=":", label="mean of the uniform distribution")
    axes.legend(fontsize=8)
    save(figure, "sphere")


def spectra(representations: Mapping[str, np.ndarray]) -> None:
    """Singular values and RankMe."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = axes_of(figure, "Singular values over the largest one", "index", "")
    for name, x in representations.items():
        values = analysis.singular_values(x)
        axes.semilogy(
            np.arange(1, len(values) + 1),
            values / values[0],
            label=f"{name}: RankMe {analysis.rankme(x):.0f} of {len(values)}",
        )
    axes.set_ylim(1e-5, 2)
    axes.legend(fontsize=8)
    save(figure, "spectrum")


def means(features: np.ndarray) -> None:
    """z of every dimension, of features as they are and with random signs, which make any distribution one of mean 0."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], [len(features), 1])
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = axes_of(figure, "Z-test of every dimension", "z", "density")
    for values, label in ((features * signs, "with random signs"), (features, "as they are")):
        test = analysis.z_test(values)
        label = f"{label}: {100 * test.rejected():.0f} % rejected"
        axes.hist(test.z, bins=40, density=True, alpha=0.5, label=label)
    grid = np.linspace(-5, 5, 200)
    axes.plot(grid, stats.norm.pdf(grid), color="black", lw=1, label="under mean 0")
    axes.legend(fontsize=8)
    save(figure, "centred")


def contrastive() -> None:
    """InfoNCE, its Taylor form and its bound, by temperature."""
    z = claims.outputs()
    flat, images = z.reshape(-1, z.shape[-1]), np.repeat(np.arange(len(z)), z.shape[1])
    temperatures = np.geomspace(0.1, 5.0, 25)
    found = [analysis.info_nce(flat @ flat.T / t, images) for t in temperatures]
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = axes_of(figure, "What InfoNCE adds to -HSIC(Z, Y)", "temperature of the cosine", "")
    axes.loglog(temperatures, [one.gap for one in found], label="InfoNCE + HSIC(Z, Y)")
    axes.loglog(
        temperatures, [0.5 * one.variances.mean() for one in found], "--", label="half the variance (Taylor)"
    )
    bounds = [
        one.lower_bound(analysis.bound_gamma(1 / t)) + one.hsic_zy
        for one, t in zip(found, temperatures, strict=True)
    ]
    axes.loglog(temperatures, bounds, ":", label="lower bound (theorem B.1)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, "info_nce")


def main() -> None:
    images, labels = bundled.load()[1]
    chosen = np.random.default_rng(0).permutation(len(images))[:1000]
    images, labels = images[chosen], labels[chosen]
    encoder = keras_sslhsic.load_pretrained("r18_fashion")
    features = encoder.predict(images, verbose=0)
    pixels = images.reshape(len(images), -1) / 255.0
    representations = {"pixels": pixels, "features": features}
    independence(features, labels)
    two_samples(features, labels)
    stages = encoder.maps().predict(images[:500], verbose=0)
    flat = {name: maps.reshape(500, -1) for name, maps in stages.items()}
    similarities({"pixels": pixels[:500], **flat, "features": features[:500]}, labels[:500])
    sphere()
    spectra(representations)
    means(features)
    contrastive()


if __name__ == "__main__":
    main()
