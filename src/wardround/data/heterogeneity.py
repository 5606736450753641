"""How different the sites are: their labels, their features, their sizes.

* js    Jensen-Shannon divergence of the labels, base 2: 0 for equal shares of the classes, 1 for no class in common.
* kl    Kullback-Leibler divergence of the labels in nats, the mean of both directions. Half a row is added to each
        class of each site, because a class that one of them lacks would make it infinite.
* mmd   maximum mean discrepancy of the features (Gretton et al., "A Kernel Two-Sample Test", JMLR 13, 2012): the
        distance itself, not its square, by the biased estimate, which is never negative. Two samples of m and n rows
        from one distribution therefore give about sqrt((1/m + 1/n)(1 - mean kernel)) and not 0.
* gini  inequality of the sizes: 0 when all are equal.

js, kl and mmd are measured for each pair of sites; their averages count every pair alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist, pdist
from scipy.special import rel_entr

from wardround.core.errors import DataError
from wardround.tasks.multilabel import count_findings

SMOOTHING = 0.5  # rows added to each class before kl
KERNEL_ROWS = 500  # at most so many rows of a site enter mmd, whose cost grows with their square
BANDWIDTH_ROWS = 1000  # at most so many rows of all sites together set the bandwidth


def measure(
    labels: Mapping[str, np.ndarray],
    features: Mapping[str, np.ndarray] | None,
    class_count: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """`features` are prepared numbers, rows x columns, of the same sites; without them mmd is None."""
    counts = {site: class_counts(site, rows, class_count) for site, rows in labels.items()}
    discrepancies = {} if features is None else mmd_of_pairs({site: features[site] for site in labels}, rng)
    return measure_counts(counts, {site: len(rows) for site, rows in labels.items()}, discrepancies)


def measure_counts(
    counts: Mapping[str, np.ndarray | None],
    sizes: Mapping[str, int],
    discrepancies: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """`heterogeneity` of results.json: sizes, averages, and pairs with site_a, site_b, js, kl and mmd. JSON has no NaN:
    None stands for a number that cannot be had.

    From each site's rows of each class, or None where it withholds them: js and kl of its pairs are then None.
    `sizes` are the sites' rows, `discrepancies` the mmd of pairs, as far as known.
    """
    shares = {site: None if own is None else _shares(own) for site, own in counts.items()}
    smoothed = {site: None if own is None else _shares(own + SMOOTHING) for site, own in counts.items()}
    names = list(combinations(sizes, 2))
    pairs = pd.DataFrame(
        {
            "site_a": [a for a, _ in names],
            "site_b": [b for _, b in names],
            "js": _of_pairs(js_divergence, shares, names),
            "kl": _of_pairs(kl_divergence, smoothed, names),
            "mmd": np.array([discrepancies.get(pair, math.nan) for pair in names], dtype=np.float64),
        }
    )
    averages = {name: _or_none(float(pairs[name].mean())) for name in ("js", "kl", "mmd")}
    rows = [{str(key): _or_none(value) for key, value in row.items()} for row in pairs.to_dict("records")]
    return {"sizes": dict(sizes), **averages, "gini": _or_none(gini(list(sizes.values()))), "pairs": rows}


def _of_pairs(
    divergence: Callable[[np.ndarray, np.ndarray], float],
    shares: Mapping[str, np.ndarray | None],
    names: Sequence[tuple[str, str]],
) -> np.ndarray:
    both = [(shares[a], shares[b]) for a, b in names]
    return np.array([math.nan if p is None or q is None else divergence(p, q) for p, q in both], dtype=np.float64)


def class_counts(site: str, rows: np.ndarray, class_count: int) -> np.ndarray:
    """How many of a site's labels are of each class; or how many rows have each finding, and how many have none."""
    if len(rows) == 0:
        raise DataError(f"site {site}", "has no rows", "Leave it out, or change how the sites are formed.")
    strange = int(((rows < 0) | (rows >= class_count)).sum())
    if strange and rows.ndim == 1:
        problem = f"{strange} labels are not among the {class_count} classes"
        raise DataError(f"site {site}", problem, "Check the coding of the target.")
    return np.bincount(rows, minlength=class_count) if rows.ndim == 1 else count_findings(rows)


def _shares(counts: np.ndarray) -> np.ndarray:
    return np.asarray(counts / counts.sum())


def js_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Not SciPy's `jensenshannon`: rounding can make the sum just negative, and its square root is then NaN."""
    middle = (p + q) / 2
    nats = (rel_entr(p, middle).sum() + rel_entr(q, middle).sum()) / 2
    return float(np.clip(nats / math.log(2), 0, 1))


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """In nats, the mean of both directions; infinite where one has a class that the other lacks."""
    return float((rel_entr(p, q).sum() + rel_entr(q, p).sum()) / 2)


def gini(sizes: Sequence[float]) -> float:
    """The mean absolute difference of two sites drawn with replacement, over twice the mean size."""
    values = np.asarray(sizes, dtype=np.float64)
    return float(np.abs(values[:, None] - values).mean() / (2 * values.mean()))


def mmd_of_pairs(features: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[tuple[str, str], float]:
    """MMD of each pair of sites with one Gaussian kernel, exp(-d² / 2s²), so that pairs can be compared.

    s is the median distance between rows of all sites together, leaving out distances of 0: where most rows are
    alike, their median would be no scale.
    """
    samples = {site: _sample(_finite(site, rows), KERNEL_ROWS, rng) for site, rows in features.items()}
    gamma = 1 / (2 * _bandwidth(_sample(np.concatenate(list(samples.values())), BANDWIDTH_ROWS, rng)) ** 2)

    def mean_kernel(a: str, b: str) -> float:
        return float(np.exp(-gamma * cdist(samples[a], samples[b], "sqeuclidean")).mean())

    within = {site: mean_kernel(site, site) for site in samples}
    squares = {(a, b): within[a] + within[b] - 2 * mean_kernel(a, b) for a, b in combinations(samples, 2)}
    return {pair: math.sqrt(max(0.0, square)) for pair, square in squares.items()}  # rounding may fall just below 0


def _finite(site: str, rows: np.ndarray) -> np.ndarray:
    if strange := int((~np.isfinite(rows)).sum()):
        raise DataError(
            f"site {site}", f"{strange} prepared features are not finite", "Fill in or drop missing values."
        )
    return rows.astype(np.float64)


def _sample(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]


def _bandwidth(rows: np.ndarray) -> float:
    distances = pdist(rows)
    distances = distances[distances > 0]
    return float(np.median(distances)) if distances.size else 1.0  # all rows are equal: any scale gives an MMD of 0


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
