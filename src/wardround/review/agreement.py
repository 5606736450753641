"""Agreement beyond chance, of weighted readings, so that resamples are weights."""

import numpy as np


def cohen_kappa(a: np.ndarray, b: np.ndarray, weights: np.ndarray, classes: int) -> float:
    """Cohen, Educational and Psychological Measurement 1960: 1 is full agreement, 0 that of chance. NaN where there is
    nothing to agree on, because both always say the same one thing."""
    table = np.bincount(a * classes + b, weights, minlength=classes * classes).reshape(classes, classes)
    total = table.sum()
    if not total:
        return float("nan")
    share = table / total
    expected = float(share.sum(1) @ share.sum(0))
    return float("nan") if expected >= 1 - 1e-12 else (float(np.trace(share)) - expected) / (1 - expected)


def fleiss_kappa(
    answers: np.ndarray, case: np.ndarray, reader_weight: np.ndarray, case_weight: np.ndarray, classes: int
) -> float:
    """Fleiss, Psychological Bulletin 1971, over pairs of readings of one case by different readers. A reader who was
    drawn twice does not agree with themselves. Cases that fewer than two read are left out."""
    counts, squares = np.zeros((len(case_weight), classes)), np.zeros((len(case_weight), classes))
    np.add.at(counts, (case, answers), reader_weight)
    np.add.at(squares, (case, answers), reader_weight**2)
    agreeing = (counts**2 - squares).sum(1)
    pairs = counts.sum(1) ** 2 - squares.sum(1)
    used = np.where(pairs > 0, case_weight, 0.0)
    if not (used @ pairs):
        return float("nan")
    # each case counts once, however many have read it
    each = agreeing[used > 0] / pairs[used > 0]
    observed = float(used[used > 0] @ each) / used.sum()
    share = used @ counts
    share = share / share.sum()
    expected = float(share @ share)
    return float("nan") if expected >= 1 - 1e-12 else (observed - expected) / (1 - expected)
