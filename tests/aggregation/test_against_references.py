"""Every rule against what its paper says, written down a second time in plain numpy and in float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from wardround.aggregation import RULES, Rule, Updates
from wardround.aggregation.mixing import buckets, evenly, nearest_neighbours
from wardround.aggregation.ordering import sorted_blocks

Reference = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def test_each_rule_has_a_reference() -> None:
    assert set(REFERENCES) == set(RULES)


def numpy_mean(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    return np.asarray(np.average(x, axis=0, weights=weights))


def numpy_norm_bound(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    lengths = np.sqrt((x**2).sum(1))
    return np.asarray(np.average(x * np.minimum(1, np.median(lengths) / lengths)[:, None], axis=0, weights=weights))


def numpy_median(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    return np.asarray(np.median(x, axis=0))


def numpy_trimmed_mean(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    return np.asarray(np.sort(x, axis=0)[bad : len(x) - bad].mean(0))


def numpy_geometric_median(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    """Algorithm 2 of RFA with equal weights: a point, and the distances from it."""
    apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(2))
    point = x[np.argsort(apart[np.argmin(apart.sum(1))], kind="stable")[: len(x) // 2 + 1]].mean(0)
    for _ in range(100):
        closeness = 1 / np.maximum(np.sqrt(((x - point) ** 2).sum(1)), 1e-6)
        point = (closeness[:, None] * x).sum(0) / closeness.sum()
    return np.asarray(point)


def numpy_krum_ranks(x: np.ndarray, bad: int) -> list[int]:
    scores = []
    for i in range(len(x)):
        apart = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append((sum(apart[: len(x) - bad - 2] or apart[:1]), sum(apart)))
    return sorted(range(len(x)), key=scores.__getitem__)


def numpy_krum(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    return np.asarray(x[numpy_krum_ranks(x, bad)[0]])


def numpy_multi_krum(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    best = numpy_krum_ranks(x, bad)[: len(x) - bad]
    return np.asarray(x[best].mean(0))


def numpy_bulyan(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    left, chosen = list(range(len(x))), list[int]()
    while len(chosen) < len(x) - 2 * bad:
        best = left[numpy_krum_ranks(x[left], bad)[0]]
        chosen.append(best)
        left.remove(best)
    values = x[chosen]
    away = np.abs(values - np.median(values, axis=0))
    nearest = np.argsort(away, axis=0, kind="stable")[: len(x) - 4 * bad]
    return np.asarray(np.take_along_axis(values, nearest, axis=0).mean(0))


def numpy_centred_clipping(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    """Two rounds of the same updates, three steps each, from where the first ended."""
    centre = np.zeros(x.shape[1])
    for _ in range(2 * 3):
        away = x - centre
        lengths = np.sqrt((away**2).sum(1))
        centre = centre + (away * np.minimum(1, np.median(lengths) / lengths)[:, None]).mean(0)
    return centre


def root_of(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.median(x, axis=0) + np.linspace(-0.5, 0.5, x.shape[1]))


def numpy_fltrust(x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    root = root_of(x)
    length = np.sqrt((root**2).sum())
    trust = [max(0.0, float(row @ root) / length / np.sqrt((row**2).sum())) for row in x]
    scaled = [score * length / np.sqrt((row**2).sum()) * row for score, row in zip(trust, x, strict=True)]
    return np.asarray(np.sum(scaled, axis=0) / sum(trust))


REFERENCES: dict[str, Reference] = {
    "fltrust": numpy_fltrust,
    "mean": numpy_mean,
    "norm-bound": numpy_norm_bound,
    "median": numpy_median,
    "trimmed-mean": numpy_trimmed_mean,
    "geometric-median": numpy_geometric_median,
    "krum": numpy_krum,
    "multi-krum": numpy_multi_krum,
    "bulyan": numpy_bulyan,
    "centred-clipping": numpy_centred_clipping,
}


def ours(name: str, x: np.ndarray, weights: np.ndarray, bad: int) -> np.ndarray:
    options = {"centred-clipping": {"iterations": 3}}.get(name, {})
    rule: Rule = RULES[name](**options)
    updates = Updates(torch.tensor(x), torch.tensor(weights / weights.sum()), bad, torch.tensor(root_of(x)))
    kept = rule.init(torch.zeros(x.shape[1], dtype=torch.float64))
    result, kept = rule.combine(updates, kept)
    if name == "centred-clipping":
        result, kept = rule.combine(updates, kept)
    return result.numpy()


def draw(rng: np.random.Generator, count: int, width: int, bad: int) -> tuple[np.ndarray, np.ndarray]:
    """Updates with much in common, some of them far away."""
    x = rng.normal(size=width) * 3 + rng.normal(size=(count, width))
    x[:bad] *= -10
    return x[rng.permutation(count)], rng.integers(1, 200, count).astype(np.float64)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_equals_its_reference(name: str) -> None:
    rng = np.random.default_rng(1)
    for bad in (0, 1, 2):
        for count in range(4 * bad + 3, 4 * bad + 7):
            for width in (2, 7, 300):
                x, weights = draw(rng, count, width, bad)
                wanted = REFERENCES[name](x, weights, bad)
                assert np.abs(ours(name, x, weights, bad) - wanted).max() < 1e-10, (count, bad, width)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_for_a_single_number_equals_its_reference(name: str) -> None:
    """The geometric median of an odd count of numbers is one of them. Its distance from itself, which is nothing, is
    what products in float64 know least of. Of an even count it is anything between the two in the middle."""
    rng = np.random.default_rng(4)
    for count in range(7, 20, 2):
        x, weights = draw(rng, count, 1, 1)
        wanted = REFERENCES[name](x, weights, 1)
        atol = 1e-6 if name == "geometric-median" else 1e-10
        assert np.abs(ours(name, x, weights, 1) - wanted).max() < atol, count


def test_the_geometric_median_has_the_smallest_sum_of_distances() -> None:
    x, weights = draw(np.random.default_rng(6), 9, 5, 2)
    found = ours("geometric-median", x, weights, 2)

    def total(point: np.ndarray) -> float:
        return float(np.sqrt(((x - point) ** 2).sum(1)).sum())

    best = minimize(total, np.median(x, axis=0), method="BFGS", options={"gtol": 1e-9})
    assert total(found) <= best.fun + 1e-9
    assert np.abs(found - best.x).max() < 1e-5


def test_rows_are_sorted_by_column() -> None:
    """A network of comparisons sorts everything if it sorts every sequence of zeros and ones."""
    for count in range(1, 12):
        every = (torch.arange(2**count)[None, :] >> torch.arange(count)[:, None]) & 1
        assert torch.equal(torch.cat(list(sorted_blocks(every.double())), 1), every.double().sort(0).values), count
    for count in (16, 21, 50, 64):
        rows = torch.randn(count, 200, generator=torch.Generator().manual_seed(count))
        before = rows.clone()
        assert torch.equal(torch.cat(list(sorted_blocks(rows)), 1), rows.sort(0).values), count
        assert torch.equal(rows, before)


def test_more_columns_than_a_block() -> None:
    rng = np.random.default_rng(2)
    x, weights = draw(rng, 7, 2**15 + 2**14 + 3, 1)
    for name in RULES:
        wanted = REFERENCES[name](x, weights, 1)
        assert np.abs(ours(name, x, weights, 1) - wanted).max() < 1e-10, name


def test_a_fixed_bound_and_a_bound_over_rounds() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    updates = evenly(rows, 0)
    fixed, _ = RULES["norm-bound"](bound=1.0).combine(updates, {})
    assert torch.allclose(fixed, torch.tensor([0.45, 0.6], dtype=torch.float64), rtol=0, atol=1e-12)
    rule, zeros = RULES["norm-bound"](window=3), torch.zeros(1, dtype=torch.float64)
    kept, bounds = rule.init(zeros), []
    for length in (8.0, 1.0, 3.0, 2.0):
        result, kept = rule.combine(evenly(torch.tensor([[length]] * 3, dtype=torch.float64), 0), kept)
        bounds.append(float(result))
    # medians of 8 | 8, 1 | 8, 1, 3 | 1, 3, 2; nothing gets longer
    assert bounds == [8.0, 1.0, 3.0, 2.0]
    assert torch.equal(kept["lengths"], torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64))
    result, _ = rule.combine(evenly(torch.tensor([[9.0]] * 3, dtype=torch.float64), 0), kept)
    assert float(result) == 3.0  # the median of 3, 2 and 9


def test_a_fixed_radius_is_kept_to() -> None:
    rule = RULES["centred-clipping"](radius=2.0)
    rows = torch.tensor([[1.0, 0.0], [0.0, 30.0], [-40.0, 0.0]], dtype=torch.float64)
    result, kept = rule.combine(evenly(rows, 0), rule.init(torch.zeros(2, dtype=torch.float64)))
    assert torch.allclose(result, torch.tensor([-1 / 3, 2 / 3], dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(kept["centre"], result)


def test_nearest_neighbours_are_mixed_as_in_the_paper() -> None:
    rng = np.random.default_rng(3)
    for count, bad in ((5, 1), (9, 3), (6, 0)):
        x, _ = draw(rng, count, 40, bad)
        wanted = []
        for i in range(count):
            order = np.argsort([((x[i] - x[j]) ** 2).sum() if i != j else 0 for j in range(count)], kind="stable")
            wanted.append(x[order[: count - bad]].mean(0))
        mixed = nearest_neighbours(evenly(torch.tensor(x), bad))
        assert np.abs(mixed.rows.numpy() - np.array(wanted)).max() < 1e-10
        assert mixed.bad == bad


def test_buckets_are_means_of_every_few() -> None:
    rows = torch.arange(7, dtype=torch.float64)[:, None]
    order = torch.tensor([6, 0, 3, 1, 5, 2, 4])
    mixed = buckets(evenly(rows, 2), order, 3)
    assert torch.allclose(
        mixed.rows.flatten(), torch.tensor([3.0, 8 / 3, 4.0], dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert (mixed.bad, float(mixed.weights.sum())) == (2, 1.0)
