"""Losses by the equations of their papers, in NumPy float64, with loops where the papers have sums.

Each takes outputs [B, M, Q] of the online network and, where it compares with them, those of the target [B, M', Q], for the
first M' of the views: the global ones.
"""

from itertools import combinations

import numpy as np


def unit(z):
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def pairs(online, target):
    """Every view with every other one of the target."""
    return [(p, o) for p in range(online) for o in range(target) if p != o]


def byol(q, z):
    """Grill et al. 2020, equation 2, summed over both directions of two views."""
    distances = [
        np.sum((unit(q[:, p]) - unit(z[:, o])) ** 2, -1).mean() for p, o in pairs(q.shape[1], z.shape[1])
    ]
    return 2 * np.mean(distances)


def simsiam(p, z):
    """Chen and He 2021, equations 1 and 2."""
    cosines = [np.sum(unit(p[:, i]) * unit(z[:, j]), -1).mean() for i, j in pairs(p.shape[1], z.shape[1])]
    return -np.mean(cosines)


def nt_xent(z, temperature=0.1):
    """Chen et al. 2020, equation 1, for each positive of each view."""
    rows = unit(z).reshape(-1, z.shape[-1])
    image = np.repeat(np.arange(len(z)), z.shape[1])
    e = np.exp(rows @ rows.T / temperature)
    losses = []
    for a in range(len(rows)):
        others = sum(e[a, c] for c in range(len(rows)) if c != a)
        losses += [-np.log(e[a, b] / others) for b in np.flatnonzero(image == image[a]) if b != a]
    return np.mean(losses)


def moco(q, k, queue, temperature=0.2):
    """He et al. 2020, equation 1, for each pair of views."""
    losses = []
    for p, o in pairs(q.shape[1], k.shape[1]):
        for query, key in zip(unit(q[:, p]), unit(k[:, o]), strict=True):
            positive = np.exp(query @ key / temperature)
            losses.append(-np.log(positive / (positive + np.exp(queue @ query / temperature).sum())))
    return np.mean(losses)


def barlow_twins(z, redundancy=0.0051):
    """Zbontar et al. 2021, equations 1 and 2, through a batch normalisation with epsilon 1e-5."""
    total, size = 0.0, z.shape[-1]
    for p, o in combinations(range(z.shape[1]), 2):
        a, b = [(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) for x in (z[:, p], z[:, o])]
        c = np.array([[np.mean(a[:, i] * b[:, j]) for j in range(size)] for i in range(size)])
        on = sum((1 - c[i, i]) ** 2 for i in range(size))
        total += on + redundancy * sum(c[i, j] ** 2 for i in range(size) for j in range(size) if i != j)
    return total / len(list(combinations(range(z.shape[1]), 2)))


def vicreg(z, invariance=25.0, variance=25.0, covariance=1.0):
    """Bardes et al. 2022, equations 1 to 6, with the means of the authors' code."""
    _, views, size = z.shape
    apart = np.mean([np.mean((z[:, p] - z[:, o]) ** 2) for p, o in combinations(range(views), 2)])
    deviations = [np.sqrt(z[:, p].var(0, ddof=1) + 1e-4) for p in range(views)]
    narrow = np.mean([np.maximum(0, 1 - s).mean() for s in deviations])
    together = 0.0
    for p in range(views):
        c = np.cov(z[:, p].T)
        together += sum(c[i, j] ** 2 for i in range(size) for j in range(size) if i != j) / size
    return invariance * apart + variance * narrow + covariance * 2 * together / views


def sinkhorn(scores, epsilon=0.05, iterations=3):
    """Caron et al. 2020, appendix A: codes [B, K] of scores [B, K]."""
    q = np.exp(scores / epsilon).T
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(1, keepdims=True) * q.shape[0]
        q /= q.sum(0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


def swav(z, prototypes, temperature=0.1, epsilon=0.05, codes_of=None, num_global=None):
    """Caron et al. 2020, equations 1, 2 and 6, for each pair of views; the codes are those of other outputs on request."""
    scores = unit(z) @ prototypes.T
    coded = scores if codes_of is None else unit(codes_of) @ prototypes.T
    losses = []
    for p, o in pairs(z.shape[1], num_global or z.shape[1]):
        codes = sinkhorn(coded[:, o], epsilon)
        losses.append(-np.mean(np.sum(codes * np.log(softmax(scores[:, p] / temperature)), -1)))
    return np.mean(losses)


def epps_pulley(x, knots=17, limit=5.0):
    """Balestriero and LeCun 2025, algorithm 1, for numbers [B]: the whole quadrature, with complex numbers."""
    t = np.linspace(-limit, limit, knots)
    gaussian = np.exp(-0.5 * t**2)
    ecf = np.exp(1j * x[:, None] * t).mean(0)
    integrand = np.abs(ecf - gaussian) ** 2 * gaussian
    return len(x) * np.sum((integrand[1:] + integrand[:-1]) / 2 * np.diff(t))


def lejepa(z, directions, weight=0.05, num_global=None):
    """Balestriero and LeCun 2025, equation 10, for directions [S, Q] of unit norm."""
    prediction = np.mean((z - z[:, :num_global].mean(1, keepdims=True)) ** 2)
    sigreg = np.mean([epps_pulley(z[:, p] @ a) for p in range(z.shape[1]) for a in directions])
    return (1 - weight) * prediction + weight * sigreg


def imq_mmd(z, scale):
    """The squared MMD of points [B, Q] from N(0, I), of the kernel c / sqrt(c^2 + s), diagonal included.

    The kernel is a mixture of Gaussian ones, exp(-v s / (2 c^2)) for v of a chi-square law of one degree, and those have known
    means over N(0, I).
    """
    size = z.shape[1]
    # v = x^2 for a standard normal x: Gauss and Hermite's quadrature of a smooth function of x.
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    squares = np.sum((z[:, None] - z[None]) ** 2, -1)
    total = 0.0
    for x, w in zip(nodes, weights, strict=True):
        h = scale**2 / x**2  # exp(-s / (2 h))
        within = np.exp(-squares / (2 * h)).mean()
        across = (h / (h + 1)) ** (size / 2) * np.exp(-np.sum(z**2, -1) / (2 * (h + 1))).mean()
        total += w * (within - 2 * across + (h / (h + 2)) ** (size / 2))
    return total
