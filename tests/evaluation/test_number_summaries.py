"""What hospitals tell of predicted numbers is enough for every figure, and tells of no few patients."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wardround.evaluation.calibration_curves import residual_bins as bins_of_rows
from wardround.evaluation.prediction import SitePrediction
from wardround.evaluation.summaries.merged_summaries import gather_summaries, merge_summaries, own_figures
from wardround.evaluation.summaries.residual_cells import residual_bins, residual_cells
from wardround.evaluation.summaries.site_summary import curve_figures, own_thresholds, site_summary
from wardround.evaluation.summaries.summary_validation import Expected, Impossible, check_curve, check_summary
from wardround.privacy.disclosure.small_cells import patients_in
from wardround.privacy.disclosure.target_sums import exactly, scale_of
from wardround.tasks import Count, Regression, Task

SMALLEST = 5
DAYS: list[Task] = [Regression(("stay",)), Regression(("stay",), range=(0.0, 60.0))]
TASKS: list[Task] = [*DAYS, Count(("falls",)), Count(("falls",), dispersion=0.5)]
BY_KIND = pytest.mark.parametrize("task", TASKS, ids=["regression", "range", "poisson", "negative binomial"])


def prediction(task: Task, rows: int = 80, seed: int = 0, site: str = "north") -> SitePrediction:
    rng = np.random.default_rng(seed)
    mean = np.exp(rng.normal(1.0, 0.5, rows))
    label = rng.poisson(mean).astype(float) if task.kind == "count" else 4 + 2 * mean + rng.normal(0, 1.5, rows)
    score = mean * 1.1 if task.kind == "count" else 4.5 + 1.8 * mean
    return SitePrediction(site, np.arange(rows), label, score, (score - label) ** 2, np.abs(score - label), task=task)


def joined(parts: list[SitePrediction]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([p.label for p in parts]), np.concatenate([p.score for p in parts])


@BY_KIND
def test_every_figure_over_all_sites_is_that_of_the_rows(task: Task) -> None:
    parts = [prediction(task, 30 + 20 * n, n) for n in range(4)]
    summaries = [site_summary(part, {}, SMALLEST) for part in parts]
    merged, bound = merge_summaries(task, summaries)
    assert merged == pytest.approx(task.figures(*joined(parts)), rel=1e-9)
    assert math.isnan(bound)
    assert merged == merge_summaries(task, summaries[::-1])[0]  # to the last bit
    for part, summary in zip(parts, summaries, strict=True):
        assert own_figures(task, summary) == pytest.approx(task.figures(part.label, part.score), rel=1e-9)
        check_summary(json.loads(json.dumps(summary)), Expected(task, len(part.rows)))


@BY_KIND
def test_subgroups_and_curves_are_those_of_the_rows(task: Task) -> None:
    part = prediction(task, 90)
    sex = np.array(["female", "male", None], dtype=object)[np.arange(90) % 3]
    line = {"arm": "a", "seed": 1, "site": "north", **site_summary(part, {"sex": sex}, SMALLEST)}
    summaries = gather_summaries([line], ["a"], [1], task)
    (groups,) = summaries.subgroups()
    assert groups.values == ["female", "male"]
    for place, value in enumerate(groups.values):
        expected = task.figures(part.label[sex == value], part.score[sex == value])
        assert dict(zip(task.metric_names, groups.figures[0, 0, place], strict=True)) == pytest.approx(expected)
    check_summary(line_of(line), Expected(task, 90))
    curve = curve_figures(part, SMALLEST)
    assert curve["figures"]["mae"] == pytest.approx(np.abs(part.score - part.label).mean())
    check_curve(curve, 90, True, task)
    assert curve_figures(prediction(task, 4), SMALLEST) == {}
    assert summaries.decision_curve("a") is None
    assert summaries.auc_error_bound("a") is None
    assert own_thresholds(task, part, SMALLEST) is None
    assert own_thresholds(task, part, SMALLEST, 0.3) is None


def line_of(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("arm", "seed", "site")}


@BY_KIND
def test_residuals_are_plotted_by_groups_of_patients(task: Task) -> None:
    """With one site the bins have the rows that a simulation puts into them."""
    part = prediction(task, 200)
    line = {"arm": "a", "seed": 1, "site": "north", **site_summary(part, {}, SMALLEST)}
    calibration = gather_summaries([line], ["a"], [1], task).calibration("a")
    assert calibration is not None
    assert calibration["slope"] is None
    expected = bins_of_rows(part.label, part.score)
    assert [own["rows"] for own in calibration["bins"]] == [own["rows"] for own in expected]
    for own, other in zip(calibration["bins"], expected, strict=True):
        assert own == pytest.approx(other)
    two = [prediction(task, 120, seed) for seed in (1, 2)]
    cells = [cell for p in two for cell in residual_cells(p.label, p.score, p.people, SMALLEST)]
    bins = residual_bins(cells)
    assert sum(own["rows"] for own in bins) == 240
    assert [own["score"] for own in bins] == sorted(own["score"] for own in bins)


def test_a_patient_of_many_rows_is_no_group() -> None:
    task = Regression(("stay",))
    part = replace(prediction(task, 200), patients=np.arange(200) // 20)  # ten patients, twenty rows each
    assert len(residual_cells(part.label, part.score, part.people, SMALLEST)) == 1
    spread = replace(prediction(task, 400), patients=np.arange(400) % 40)
    order = np.argsort(spread.score, kind="stable")
    cells = residual_cells(spread.label, spread.score, spread.people, SMALLEST)
    assert 1 < len(cells) <= 4
    begin = 0
    for cell in cells:
        assert patients_in(spread.people[order[begin : begin + cell["rows"]]]) >= 10
        begin += cell["rows"]


ROWS = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 20), st.sampled_from(["a", "b", None])),
    min_size=1,
    max_size=90,
)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(1, 12))
def test_nothing_that_is_told_counts_fewer_patients_than_agreed(
    rows: list[tuple[float, float, int, str | None]], smallest: int
) -> None:
    """And what an honest hospital tells is never refused."""
    label, score = (np.array([row[place] for row in rows], dtype=float) for place in (0, 1))
    people, groups = np.array([row[2] for row in rows]), np.array([row[3] for row in rows], dtype=object)
    task = Regression(("stay",))
    nothing = np.zeros(len(rows))
    part = SitePrediction("north", np.arange(len(rows)), label, score, nothing, nothing, task=task, patients=people)
    summary = json.loads(json.dumps(site_summary(part, {"sex": groups}, smallest)))
    check_summary(summary, Expected(task, len(rows)))
    if patients_in(people) < smallest:
        assert summary == {"suppressed": True}
        return
    for value in summary["groups"]["sex"]:
        assert patients_in(people[groups == value]) >= max(smallest, 10)
    released = np.isin(groups.astype(str), list(summary["groups"]["sex"]))
    rest = patients_in(people[~released])
    assert rest == 0 or rest >= smallest or not released.any()
    order, begin = np.argsort(score, kind="stable"), 0
    for cell in summary["cells"]:
        told = people[order[begin : begin + cell["rows"]]]
        assert patients_in(told) >= max(smallest, 10) or len(summary["cells"]) == 1
        begin += cell["rows"]


def test_predictions_that_have_left_the_numbers_are_told_as_such() -> None:
    for task, value in ((TASKS[0], math.inf), (TASKS[0], 1e200), (TASKS[0], math.nan), (TASKS[2], 0.0)):
        part = prediction(task)
        score = part.score.copy()
        score[3] = value
        assert site_summary(replace(part, score=score), {}, SMALLEST) == {"rows": 80, "diverged": True}


def test_what_no_rows_can_give_is_named() -> None:
    task = TASKS[0]
    honest = site_summary(prediction(task), {}, SMALLEST)
    for wrong, words in (
        ({"terms": honest["terms"][:-1]}, "another number of sums"),
        ({"terms": [81.0, *honest["terms"][1:]]}, "sums of another number of rows"),
        ({"rows": 81}, "a number of rows other than agreed"),
        ({"cells": honest["cells"][::-1]}, "not in the order of their predictions"),
        ({"cells": honest["cells"][1:]}, "do not add up to the rows"),
        ({"histogram": None}, "do not belong together"),
    ):
        with pytest.raises(Impossible, match=words):
            check_summary({**honest, **wrong}, Expected(task, 80))


# -- the scale of the target


def test_sums_are_added_up_without_rounding_whoever_adds_first() -> None:
    """In floating point (1e16 + 1) + 1 is not 1e16 + (1 + 1)."""
    sites = [[[1e16], [3.0]], [[1.0], [0.1]], [[1.0], [0.2]], [[-1e16], [0.3]]]
    flat = exactly(sites)
    assert flat[0] == [2.0]
    for cut in (1, 2, 3):
        regions = [exactly(sites[:cut]), exactly(sites[cut:])]
        assert exactly(regions) == flat
    assert exactly([[[0.0]], [[0.0]]]) == [[0.0]]
    assert exactly([]) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(0.01, 1e6), min_size=3, max_size=20), min_size=2, max_size=6))
def test_the_scale_is_that_of_all_rows_however_regions_are_formed(targets: list[list[float]]) -> None:
    task = Regression(("stay",))
    sums = [[[number] for number in task.target_sums(np.array(target)).tolist()] for target in targets]
    whole = scale_of(task, sums)
    task.check_scale(whole)
    assert whole == scale_of(task, [exactly(sums[:1]), exactly(sums[1:])])
    everything = np.concatenate([np.array(target) for target in targets])
    assert whole[0] == pytest.approx(everything.mean())
    for target in targets:
        task.check_target_sums(task.target_sums(np.array(target)).tolist(), len(target))
