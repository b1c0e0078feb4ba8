"""The paper's way to the frequencies of the inverse multiquadric kernel: a grid of amplitudes from their density.

A reference for tests and comparisons, in NumPy and SciPy. Use `spectral.IMQFrequencies` for everything else: it is
exact, and needs no grid. Li et al. 2021 (appendix C) sample the amplitude a = c |w| of a frequency w in R^n from

    p(a) proportional to a^nu K_nu(a),   nu = (n - 1) / 2

on a grid with arbitrary-precision Bessel functions K_nu: up to a = 100 in their code, in their paper (appendix E) up
to 120, 150 and 200 from 1024, 2048 and 4096 dimensions on. Here the logarithm of K_nu is computed, so that ordinary
precision is enough.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate, special, stats

# Where the grid of the released code ends, and the paper's below 1024 dimensions.
GRID_END = 100.0


def paper_grid_end(dim: int) -> float:
    """Returns where the paper's grid of amplitudes ends in `dim` dimensions (appendix E)."""
    ends = {4096: 200.0, 2048: 150.0, 1024: 120.0}
    return next((end for least, end in ends.items() if dim >= least), GRID_END)


def log_bessel_k(order: float, x: np.ndarray) -> np.ndarray:
    """Logarithm of the modified Bessel function K_order(x), x > 0, for any order >= 0 without overflow.

    For orders above 30 it is the uniform asymptotic expansion (Abramowitz and Stegun 9.7.8), with a relative
    error of K below 1e-7.
    """
    x = np.asarray(x, np.float64)
    if order <= 30:
        return np.log(special.kve(order, x)) - x
    y = x / order
    root = np.hypot(1.0, y)
    t = 1.0 / root
    eta = root + np.log(y / (1.0 + root))
    u1 = (3 * t - 5 * t**3) / 24
    u2 = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    u3 = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = -u1 / order + u2 / order**2 - u3 / order**3
    return 0.5 * np.log(0.5 * math.pi * t / order) - order * eta + np.log1p(series)


def log_density(dim: int, amplitudes: np.ndarray) -> np.ndarray:
    """Logarithm of the density of the amplitude c |w| in `dim` dimensions, at positive amplitudes."""
    nu = 0.5 * (dim - 1)
    constant = (1.0 - nu) * math.log(2.0) - 0.5 * math.log(math.pi) - math.lgamma(0.5 * dim)
    return constant + nu * np.log(amplitudes) + log_bessel_k(nu, amplitudes)


def grid(dim: int, end: float = GRID_END, points: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Returns a grid of amplitudes on (0, end] and their probabilities, which sum to 1."""
    amplitudes = np.linspace(0.0, end, points + 1)[1:]
    log_p = log_density(dim, amplitudes)
    p = np.exp(log_p - log_p.max())
    return amplitudes, p / p.sum()


def sample_frequencies(
    dim: int, num_samples: int, generator: np.random.Generator, scale: float = 1.0, end: float = GRID_END
) -> np.ndarray:
    """Returns frequencies [num_samples, dim] of c / sqrt(c^2 + s): amplitudes from the grid, directions uniform."""
    amplitudes, p = grid(dim, end)
    directions = generator.standard_normal((num_samples, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return generator.choice(amplitudes, size=(num_samples, 1), p=p) * directions / scale


def lost_mass(dim: int, end: float = GRID_END) -> float:
    """Returns the probability of an amplitude beyond the end of the grid, P(|x| chi_n > end) with x ~ N(0, 1)."""

    def tail(x: float) -> float:
        return 2.0 * stats.norm.pdf(x) * stats.chi2.sf((end / x) ** 2, dim)

    centre = end / math.sqrt(dim)
    value, _ = integrate.quad(tail, 0.0, max(12.0, 2.0 * centre), points=[centre], limit=200)
    return value
