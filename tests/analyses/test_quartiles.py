"""Quartiles over hospitals: the true ones lie within the error that is stated, and no count of few patients is told."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from wardround.analyses.table_one.quantiles import bounds_below, edges_between, quantile, told_edges, told_in_groups

RNG = np.random.default_rng(3)
DRAWS: dict[str, Callable[[int], np.ndarray]] = {
    "normal": lambda n: RNG.normal(60, 10, n),
    "long tail": lambda n: RNG.lognormal(1, 1, n),
    "whole numbers": lambda n: np.asarray(RNG.poisson(3, n), dtype=float),
    "one value": lambda n: np.full(n, 7.0),
    "two values": lambda n: np.asarray(RNG.integers(0, 2, n), dtype=float),
}


def reach(values: np.ndarray) -> np.ndarray:
    far = np.sqrt(3) * values.std() + 1e-9
    return edges_between(values.mean() - far, values.mean() + far)


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("sizes", [(400, 30, 90), (7, 6, 8), (1000,)], ids=str)
def test_the_quartiles_of_all_rows_lie_within_their_error(kind: str, sizes: tuple[int, ...]) -> None:
    by_site = [DRAWS[kind](size) for size in sizes]
    together = np.concatenate(by_site)
    edges = reach(together)
    bounds = [bounds_below(values, edges, told_edges(values, np.arange(len(values)), edges, 5)) for values in by_site]
    low, high = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    for share in (0.25, 0.5, 0.75):
        truth = pd.Series(together).quantile(share)
        estimate = quantile(np.asarray(low), np.asarray(high), edges, len(together), share)
        assert estimate is not None or len(together) < 30
        if estimate is not None:
            assert abs(estimate.value - truth) <= estimate.error * (1 + 1e-9)
            if sizes == (1000,) and kind == "normal":
                assert estimate.error < 0.05 * together.std()


@pytest.mark.parametrize("visits", [1, 3])
def test_between_two_counts_that_are_told_there_are_enough_patients_or_nobody(visits: int) -> None:
    values = np.repeat(RNG.lognormal(1, 1, 80), visits) + RNG.normal(0, 0.01, 80 * visits)
    people, edges = np.repeat(np.arange(80), visits), reach(values)
    told = edges[told_edges(values, people, edges, 5)]
    assert len(told) > 5
    for least, most in zip([-np.inf, *told], [*told, np.inf], strict=True):
        inside = len(np.unique(people[(values >= least) & (values < most)]))
        assert inside == 0 or inside >= 5


def test_the_count_of_one_group_does_not_follow_from_those_of_all_and_the_other() -> None:
    values, few = RNG.normal(0, 1, 300), np.arange(300) < 20
    edges, people = reach(values), np.arange(300)
    overall, common = told_in_groups(values, people, [few, ~few], edges, 5)
    assert not (common & ~overall).any()
    assert overall.sum() > 3 * common.sum() > 0
    told = edges[common]
    for group in (few, ~few):
        for least, most in zip([-np.inf, *told], [*told, np.inf], strict=True):
            inside = int(((values[group] >= least) & (values[group] < most)).sum())
            assert inside == 0 or inside >= 5


def test_counts_that_are_not_told_are_bracketed_by_those_that_are() -> None:
    values, edges = np.array([1.0, 2, 3, 4, 5, 6]), np.array([0.5, 2.5, 4.5, 6.5])
    low, high = bounds_below(values, edges, np.array([True, False, True, True]))
    assert low.tolist() == [0, 0, 4, 6]
    assert high.tolist() == [0, 4, 4, 6]
