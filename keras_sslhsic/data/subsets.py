"""Stratified subsets of labelled data."""

import numpy as np


def stratified_subset(labels: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Draws the same share of every class, at least one example of each.

    Subsets of one seed are nested: that of 1 % lies in that of 10 %.

    Args:
        labels: int [N].
        fraction: in (0, 1].
        seed: of the drawing.

    Returns:
        int [n], sorted indices.

    Raises:
        ValueError: if the fraction is out of range.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], found {fraction}.")
    generator = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(chosen))


def stratified_split(labels: np.ndarray, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Splits into a part to fit on and a held-out part with `fraction` of every class.

    Returns:
        (int [n], int [m]), sorted indices. Every class is in both parts.

    Raises:
        ValueError: if the fraction is not in (0, 1), or a class has one example only or would be held out
            whole.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"The held-out fraction must be in (0, 1), found {fraction}.")
    held_out = stratified_subset(labels, fraction, seed)
    fit = np.setdiff1d(np.arange(len(labels)), held_out)
    missing = np.setdiff1d(labels, labels[fit])
    if len(missing):
        raise ValueError(
            f"Holding out {fraction:g} of every class leaves none to learn of the classes "
            f"{missing[:10].tolist()}: give a validation split of your own, or more images."
        )
    return fit, held_out
