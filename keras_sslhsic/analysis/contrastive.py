"""InfoNCE of infinitely many samples, beside the HSIC that it approximates (Li et al. 2021, section 3.1, appendix B.1)."""

from typing import Any, NamedTuple

import numpy as np

from keras_sslhsic.analysis.matrices import label_matrix, matrix_of


class InfoNCE(NamedTuple):
    """InfoNCE and what it is made of. E_Z is over all rows, and the pairs of a row with itself are among them.

    Attributes:
        loss: E_Z log E_Z' exp k(Z, Z') - E_pos k(Z, Z').
        hsic_zy: E_pos k - E k, for Delta l = N.
        hsic_zz: E k^2 - 2 E_Z (E_Z' k)^2 + (E k)^2.
        variances: Var_Z' k(Z, Z') of each row, float64 [n].
    """

    loss: float
    hsic_zy: float
    hsic_zz: float
    variances: np.ndarray

    @property
    def gap(self) -> float:
        """loss + hsic_zy = E_Z log E_Z' exp(k - E_Z' k): what regularises in InfoNCE, at least 0."""
        return self.loss + self.hsic_zy

    @property
    def taylor(self) -> float:
        """-hsic_zy + E_Z Var_Z' k / 2, which InfoNCE is up to third moments."""
        return -self.hsic_zy + 0.5 * float(self.variances.mean())

    def lower_bound(self, gamma: float) -> float:
        """-hsic_zy + gamma hsic_zz - E_Z (gamma v)^2 / (1 + gamma v), v the variances: never above the loss.

        gamma is `bound_gamma` of the kernel's largest value, or 1/3 for kernels between 0 and 1. Theorem B.1 prints the last
        term with the other sign; log(1 + x) >= x - x^2 / (1 + x), from which it follows, gives this one.
        """
        scaled = gamma * self.variances
        return -self.hsic_zy + gamma * self.hsic_zz - float(np.mean(scaled**2 / (1.0 + scaled)))


def info_nce(k: Any, images: Any) -> InfoNCE:
    """InfoNCE and HSIC of a finite set of outputs, each image and each of its views equally likely.

    Args:
        k: the kernel matrix [n, n] of all outputs; a cosine over its temperature is one too.
        images: which image each row is a view of, integers [n]; equally many rows of each.

    Raises:
        ValueError: for other shapes, or images that have not equally many views.
    """
    k, images = matrix_of(k), np.asarray(images)
    if images.shape != k.shape[:1]:
        raise ValueError(f"Expected the image of each of {len(k)} rows, found the shape {images.shape}.")
    if len({*np.unique(images, return_counts=True)[1].tolist()}) != 1:
        raise ValueError("Expected equally many views of each image, found other numbers: leave some out.")
    same = label_matrix(images)
    positive = float(np.sum(same * k) / same.sum())
    mean = k.mean(1)
    excess = np.log(np.mean(np.exp(k - k.max(1, keepdims=True)), axis=1)) + k.max(1)
    zz = np.mean(k**2) - 2.0 * np.mean(mean**2) + mean.mean() ** 2
    return InfoNCE(float(excess.mean()) - positive, positive - float(mean.mean()), float(zz), k.var(1))


def bound_gamma(largest: float) -> float:
    """gamma of theorem B.1 for |k| <= `largest`: (1 + sqrt(1 - 4 gamma)) / (2 gamma) = max(2, 2 largest).

    0.0475 for a cosine over the temperature 0.1, 1/4 for kernels of at most 1.
    """
    end = 2.0 * max(1.0, largest)
    return (end - 1.0) / end**2
