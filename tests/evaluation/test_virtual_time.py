"""Time and participation, from records made by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from wardround.evaluation.intervals import Resampling
from wardround.evaluation.participation.virtual_time import (
    correlate,
    curve_over_time,
    describe_staleness,
    never_counted,
    participation_of,
    prevalences,
    times_to_equal,
)
from wardround.tasks import class_task

TASK = class_task(2)


def records(times: list[float], accuracy: list[float], seed: int = 1, **columns: Any) -> pd.DataFrame:
    count = len(times)
    filled = {"sites": [("a", "b")] * count, "dropped": [()] * count, "staleness": [{}] * count, **columns}
    return pd.DataFrame(
        {"seed": seed, "round": range(1, count + 1), "time": times, "test_accuracy": accuracy, **filled}
    )


def test_participation_counts_rounds_in_which_work_counted() -> None:
    table = records(
        [1, 2, 3, 4],
        [0.5] * 4,
        sites=[("a",), ("a", "b"), ("a",), ("a",)],
        dropped=[(), (), ("b",), ()],
        staleness=[{"a": 0}, {"a": 1, "b": 3}, {"a": 0}, {"a": 0}],
    )
    sites = {name: {"train": rows} for name, rows in (("a", 10), ("b", 20), ("c", 30))}
    found = participation_of(table, sites)
    assert found["a"] == {"rows": 10, "rounds": 4, "share": 1.0, "dropped": 0, "staleness": 0.25}
    assert found["b"] == {"rows": 20, "rounds": 1, "share": 0.25, "dropped": 1, "staleness": 3.0}
    assert found["c"]["rounds"] == 0
    assert describe_staleness(table) == {"mean": 0.8, "largest": 3, "histogram": [3, 1, 0, 1], "dropped": 1}
    (notice,) = never_counted({"arm": {"time": {"sites": found}}, "plain": {"time": None}}, 1)
    assert (notice.site, notice.arm) == ("c", "arm")


@pytest.mark.parametrize("count", [6, 30])
def test_rank_correlation_is_scipys(count: int) -> None:
    rng = np.random.default_rng(count)
    shares, sizes = rng.random(count), rng.integers(10, 20, count).astype(float)
    sizes[0], sizes[1] = 1.0, 2.0
    names = [f"s{number}" for number in range(count)]
    found = correlate(
        {name: {"share": share} for name, share in zip(names, shares, strict=True)},
        dict(zip(names, sizes.tolist(), strict=True)),
    )
    assert found is not None
    expected = stats.spearmanr(shares, sizes)
    assert found["rho"] == pytest.approx(expected.statistic)
    if count > 8:
        assert found["p"] == pytest.approx(expected.pvalue)
    else:
        exact = stats.permutation_test(
            (shares,), lambda x: stats.spearmanr(x, sizes).statistic, permutation_type="pairings", n_resamples=10**6
        )
        assert found["p"] == pytest.approx(exact.pvalue, abs=1e-9)
    low, high = found["interval"]
    assert low < found["rho"] < high


def test_the_interval_of_a_rank_correlation_covers_the_truth_as_often_as_it_says() -> None:
    rng, inside, truth = np.random.default_rng(1), 0, 0.5
    pearson = 2 * np.sin(np.pi * truth / 6)  # of normal numbers with this rank correlation
    names = [f"s{number}" for number in range(20)]
    for _ in range(400):
        x, y = rng.multivariate_normal([0, 0], [[1, pearson], [pearson, 1]], 20).T
        taking_part = {name: {"share": float(value)} for name, value in zip(names, x, strict=True)}
        found = correlate(taking_part, dict(zip(names, y.tolist(), strict=True)))
        assert found is not None
        inside += found["interval"][0] <= truth <= found["interval"][1]
    assert 0.91 < inside / 400 < 0.98


def test_nothing_is_said_of_few_sites_or_where_all_are_alike() -> None:
    shares = {name: {"share": 0.1 * number} for number, name in enumerate("abcdef")}
    assert correlate(shares, dict.fromkeys("abcd", 1.0) | {"a": 2.0}) is None
    assert correlate(shares, dict.fromkeys("abcdef", 1.0)) is None
    assert correlate({name: {"share": 1.0} for name in "abcdef"}, {n: float(i) for i, n in enumerate("abcdef")}) is None


def test_prevalence_is_that_of_the_second_of_two_classes() -> None:
    sites = {"a": {"classes": {"no": 30, "yes": 10}}, "b": {"classes": {"x": 1, "y": 1, "z": 1}}, "c": {}}
    assert prevalences(sites) == {"a": 0.25}


def test_a_curve_holds_each_model_until_the_next_one_is_there() -> None:
    curve = curve_over_time(TASK, records([10, 20, 30], [0.5, 0.7, 0.9]))
    at = dict(zip(np.round(curve["seconds"], 6), curve["test_accuracy"], strict=True))  # type: ignore[arg-type]
    known = {time: value for time, value in at.items() if value is not None}
    assert min(known) >= 10
    for time, value in known.items():
        assert value == (0.5 if time < 20 else 0.7 if time < 30 else 0.9)


def test_times_to_equal_are_those_at_which_the_synchronous_arms_last_figure_is_reached_first() -> None:
    waiting = pd.concat([records([100, 200, 300], [0.5, 0.8, 0.8], seed) for seed in (1, 2)])
    quick = pd.concat([records([10, 20, 50], [0.6, 0.7, 0.9], 1), records([10, 20, 50], [0.6, 0.8, 0.9], 2)])
    never = pd.concat([records([10, 20, 50], [0.6, 0.7, 0.7], seed) for seed in (1, 2)])
    arms = {
        name: {"variant": "", "time": {"kind": kind, "curve": {}, **{"curve": {"seconds": [0]}}}}
        for name, kind in (("waiting", "synchronous"), ("quick", "asynchronous"), ("never", "asynchronous"))
    }
    of_arm = {"waiting": waiting, "quick": quick, "never": never}
    found = times_to_equal(TASK, arms, of_arm, dict.fromkeys(arms, Resampling(0.25)))
    assert [entry["arm"] for entry in found] == ["quick", "never"]
    assert found[0]["ratio"] == pytest.approx(np.sqrt(200 / 50 * 200 / 20))
    assert (found[0]["reached"], found[0]["seeds"]) == (2, 2)
    assert found[0]["interval"][0] < found[0]["ratio"] < found[0]["interval"][1]
    assert (found[1]["reached"], found[1]["ratio"], found[1]["interval"]) == (0, None, None)
