"""Stratified subsets of labelled data."""

import numpy as np

from keras_sslhsic.words import counted


def stratified_subset(labels: np.ndarray, fraction: float, seed: int = 0) -> np.ndarray:
    """Draws the same share of every class, at least one example of each.

    Subsets of one seed are nested: that of 1 % lies in that of 10 %.

    Returns:
        int [n], sorted indices of labels int [N].

    Raises:
        ValueError: if the fraction is not in (0, 1].
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
        ValueError: if the fraction is not in (0, 1), or a class has one example only or would be held out whole.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"The held-out fraction must be in (0, 1), found {fraction}.")
    held_out = stratified_subset(labels, fraction, seed)
    fit = np.setdiff1d(np.arange(len(labels)), held_out)
    missing = np.setdiff1d(labels, labels[fit])
    if len(missing):
        of, left = "every class", f"none of the classes {missing[:10].tolist()}"
        if not labels.any():  # perhaps of images without classes
            of, left = counted(len(labels), "image"), "none"
        raise ValueError(f"Holding out {fraction:g} of {of} leaves {left}: give more of them.")
    return fit, held_out


def hold_out(labels: np.ndarray, number: int | np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Splits into a part to fit on and a held-out part of a given size.

    Args:
        labels: int [N].
        number: examples to hold out in all, the same share of each class as nearly as whole examples allow (but
            never the last of a class); or int [C], how many of each class.
        seed: of the drawing.

    Returns:
        (int [n], int [m]), sorted indices.

    Raises:
        ValueError: if nothing would be held out, or nothing of a class would be left.
    """
    classes, counts = np.unique(labels, return_counts=True)  # they may be numbered sparsely
    if isinstance(number, int | np.integer):
        exact = number * counts / len(labels)
        numbers = np.floor(exact).astype(int)
        order = np.argsort(numbers - exact, kind="stable")  # the largest remainder first
        numbers[order[numbers[order] + 1 < counts[order]][: number - numbers.sum()]] += 1
    else:
        numbers = np.array([number[c] if c < len(number) else 0 for c in classes], int)
    few = np.flatnonzero((numbers >= counts) & (numbers > 0))
    if len(few) or not numbers.any():
        found = f"{len(labels)} training images are too few to hold any out for choosing"
        if len(few):
            names = classes[few][:10].tolist()
            found = f"Of {len(labels)} training images {number} cannot be held out: none would be left of the classes {names}"
        raise ValueError(f"{found}. Give more images, or a validation split of your own.")
    generator = np.random.default_rng(seed)
    held = [
        generator.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, numbers, strict=True)
    ]
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out
