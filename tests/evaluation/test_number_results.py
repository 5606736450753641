"""What results.json tells of the uncertainty of numbers, from rows made up so that the figures are known."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import betabinom, spearmanr
from statsmodels.stats.proportion import proportion_confint

from wardround.evaluation.intervals import Resampling
from wardround.evaluation.uncertainty.number_results import (
    describe_intervals,
    describe_number_errors,
    describe_numbers,
    share_interval,
)
from wardround.evaluation.uncertainty.referral_results import reasons_of
from wardround.evaluation.uncertainty.uncertainty_results import score_uncertainty
from wardround.evaluation.uncertainty.uncertainty_rows import MEASURES, NumberRows, merge_members, numbers_of
from wardround.runs.catalog import load_study
from wardround.study.schema import Uncertainty
from wardround.tasks import Count, Regression
from wardround.tasks.summed import SummedTask
from wardround.uncertainty.decision import DOUBT, referred

DAYS, VISITS = Regression(("days",)), Count(("visits",))
NOBODY = pd.DataFrame({"row": []})  # patients are not known: each row is one
ONE, SEVERAL = Resampling(0.0), Resampling(0.25)
EACH = pytest.mark.parametrize("task", [DAYS, VISITS], ids=["regression", "count"])


def table(task: SummedTask, rows: int, seed: int, spread: bool = False, **columns: Any) -> pd.DataFrame:
    """Rows of one arm at one site. With a `spread`, errors are as large as it says."""
    rng = np.random.default_rng(seed)
    score = rng.uniform(2, 12, rows)
    size = rng.uniform(0.5, 4, rows) if spread else np.full(rows, 2.0)
    label = score + size * rng.normal(size=rows) if task is DAYS else rng.poisson(score).astype(float)
    cells: dict[str, Any] = {"arm": "arm", "seed": 1, "site": "here", "subset": "test", "row": np.arange(rows)}
    cells |= {"label": label, "score": score, **dict.fromkeys(MEASURES, np.nan)}
    cells |= {"spread": size, "epistemic": size} if spread else {}
    return pd.DataFrame(cells | columns)


def both_sides(task: SummedTask, rows: int = 400, tested: int = 400, seed: int = 0, **options: Any) -> pd.DataFrame:
    known = table(task, rows, 2 * seed, subset="validation", **options)
    new = table(task, tested, 2 * seed + 1, **options)
    new["row"] += rows
    return pd.concat([known, new], ignore_index=True)


def only(whole: pd.DataFrame, task: SummedTask, groups: pd.DataFrame = NOBODY, alpha: float = 0.1) -> NumberRows:
    [rows] = numbers_of(whole, groups, ensemble=False, task=task, alpha=alpha)
    return rows


@EACH
def test_intervals_hold_what_they_promise_where_rows_are_alike(task: SummedTask) -> None:
    rows = only(both_sides(task), task)
    intervals = describe_intervals([rows], 0.1, ONE)
    low, high = betabinom(400, 361, 40).ppf([0.005, 0.995]) / 400  # ceil(401 x 0.9) = 361
    assert intervals["sites"]["here"]["expected"] == pytest.approx([low, high])
    assert intervals["expected"] == pytest.approx(361 / 401)
    assert low <= intervals["conformal_coverage"] <= high
    assert intervals["sites"]["here"]["inside"] == 1
    assert intervals["coverage"]["mean"] == pytest.approx(intervals["conformal_coverage"])
    assert intervals["no_interval"] == 0
    assert intervals["sites"]["here"]["why"] == ""
    if task is DAYS:
        residuals = np.sort(np.abs(rows.validation.label - rows.validation.score))
        assert intervals["sites"]["here"]["cut"] == pytest.approx(residuals[360])
        assert intervals["width"] == pytest.approx(2 * residuals[360])
    assert json.loads(json.dumps(intervals)) == intervals


def test_each_site_has_a_cut_of_its_own_and_too_few_rows_give_none_and_say_why() -> None:
    sites = {"here": (400, 1.0), "there": (400, 3.0), "small": (8, 1.0)}
    parts = []
    for number, (site, (rows, times)) in enumerate(sites.items()):
        part = both_sides(DAYS, rows, 100, number).assign(site=site)
        part["label"] = part["score"] + times * (part["label"] - part["score"])
        part["row"] += 1000 * number
        parts.append(part)
    intervals = describe_intervals([only(pd.concat(parts, ignore_index=True), DAYS)], 0.1, ONE)
    at = intervals["sites"]
    assert at["there"]["width"] == pytest.approx(3 * at["here"]["width"], rel=0.2)
    assert at["small"]["why"] == "8 validation rows are too few: an interval that holds in 90 % of rows needs 9"
    assert at["small"]["coverage"]["mean"] is None
    assert at["small"]["width"] is None
    assert at["small"]["expected"] == [None, None]
    assert at["small"]["validation"] == 8
    assert intervals["no_interval"] == pytest.approx(1 / 3)
    # the mean over the rows of the two sites that have one
    assert intervals["width"] == pytest.approx((at["here"]["width"] + at["there"]["width"]) / 2)


def test_with_no_interval_anywhere_there_is_nothing_to_cover() -> None:
    intervals = describe_intervals([only(both_sides(DAYS, 5, 50), DAYS)], 0.1, ONE)
    assert intervals["coverage"]["mean"] is None
    assert intervals["expected"] is None
    assert intervals["no_interval"] == 1


def test_a_site_whose_test_rows_differ_falls_out_of_what_is_expected() -> None:
    whole = both_sides(DAYS)
    test = whole["subset"] == "test"
    whole.loc[test, "label"] = whole["score"] + 2 * (whole["label"] - whole["score"])
    site = describe_intervals([only(whole, DAYS)], 0.1, ONE)["sites"]["here"]
    assert site["coverage"]["mean"] < site["expected"][0]
    assert site["inside"] == 0


def test_over_seeds_the_interval_of_coverage_is_that_of_means_and_with_one_that_of_a_share() -> None:
    seeds = [only(both_sides(DAYS, seed=number).assign(seed=number), DAYS) for number in range(4)]
    each = [describe_intervals([rows], 0.1, ONE)["coverage"]["mean"] for rows in seeds]
    over = describe_intervals(seeds, 0.1, SEVERAL)["coverage"]
    assert over["mean"] == pytest.approx(np.mean(each))
    assert over["sd"] == pytest.approx(np.std(each, ddof=1))
    assert over["interval"][0] < over["mean"] < over["interval"][1] <= 1
    alone = describe_intervals(seeds[:1], 0.1, SEVERAL)["coverage"]
    wilson = proportion_confint(round(400 * each[0]), 400, method="wilson")
    assert alone["interval"] == pytest.approx(list(wilson))


def test_rows_of_a_patient_say_less_than_as_many_patients() -> None:
    inside = np.repeat(np.arange(60) % 6 != 0, 5)
    patients = np.repeat(np.arange(60), 5)
    assert share_interval(inside, patients) == pytest.approx(share_interval(inside[::5], patients[::5]))
    assert share_interval(inside, patients) == pytest.approx(proportion_confint(50, 60, method="wilson"))
    assert share_interval(np.ones(20, dtype=bool), np.arange(20)) == pytest.approx(
        proportion_confint(20, 20, method="wilson")
    )


def test_patients_who_are_tested_are_no_validation_rows() -> None:
    whole = both_sides(DAYS, 100, 50)
    groups = pd.DataFrame({"row": np.arange(150), "patient": np.append(np.arange(100), np.arange(50))})
    assert len(only(whole, DAYS, groups).validation) == 50


# Referral


def test_rows_are_referred_by_the_spread_of_passes_and_the_rest_is_nearer() -> None:
    rows = only(both_sides(DAYS, 1000, 1000, spread=True), DAYS)
    described = describe_numbers([rows], Uncertainty(method="dropout", passes=20, refer=0.2), ONE)
    assert described is not None
    at = described["referral"]["at"]
    assert at["referred"] == pytest.approx(0.2, abs=0.04)
    assert list(at["reasons"]) == [DOUBT.code]
    assert list(at["figures"]) == ["mae", "rmse"]
    mae = at["figures"]["mae"]
    assert mae["kept"]["mean"] < mae["all"]["mean"]
    assert mae["difference"]["interval"][1] < 0
    chosen = referred(reasons_of(rows, 0.2, 0.1))
    by_hand = np.abs(rows.test.label - rows.test.score)[~chosen].mean()
    assert mae["kept"]["mean"] == pytest.approx(by_hand)
    assert rows.test.measures["spread"][chosen].min() > rows.test.measures["spread"][~chosen].max()
    curve = described["referral"]["curve"]["mae"]
    assert curve[0] == pytest.approx(mae["all"]["mean"])
    assert curve[-1] < curve[0] / 2
    assert described["parts"]["epistemic"] == pytest.approx(rows.test.measures["spread"].mean())
    assert described["parts"]["aleatoric"] is None
    assert json.loads(json.dumps(described)) == described


def test_counts_without_passes_are_referred_by_the_width_of_their_interval() -> None:
    rows = only(both_sides(VISITS), VISITS)
    described = describe_numbers([rows], Uncertainty(method="none"), ONE)
    assert described is not None
    assert described["referral"]["at"]["referred"] == pytest.approx(0.2, abs=0.06)
    assert (described["passes"], described["sets"], described["calibration"]) == (1, None, None)
    chosen = referred(reasons_of(rows, 0.2, 0.1))
    assert rows.test.score[chosen].min() > rows.test.score[~chosen].max()  # their variance is their mean


def test_without_passes_no_row_of_a_regression_is_less_certain_than_another() -> None:
    described = describe_numbers([only(both_sides(DAYS), DAYS)], Uncertainty(method="none"), ONE)
    assert described is not None
    assert described["referral"] is None
    assert described["errors"] is None
    assert described["intervals"]["coverage"]["mean"] == pytest.approx(0.9, abs=0.05)


def test_whether_it_is_uncertain_where_it_is_wrong_is_a_rank_correlation() -> None:
    rows = only(both_sides(DAYS, spread=True), DAYS)
    error = np.abs(rows.test.label - rows.test.score)
    by_scipy = spearmanr(rows.test.measures["spread"], error).statistic
    described = describe_number_errors([rows], ONE)
    assert described is not None
    assert described["correlation"]["mean"] == pytest.approx(by_scipy)
    assert by_scipy > 0.2


def test_nobody_is_referred_where_a_site_has_no_interval() -> None:
    few = both_sides(VISITS, 5, 60).assign(site="small")
    few["row"] += 5000
    rows = only(pd.concat([both_sides(VISITS), few], ignore_index=True), VISITS)
    away = referred(reasons_of(rows, 0.2, 0.1))
    assert away[rows.test.site == "here"].any()
    assert not away[rows.test.site == "small"].any()


# Ensembles and studies


def test_members_of_an_ensemble_are_one_model_with_their_disagreement() -> None:
    first = both_sides(DAYS, 20, 20)
    second = first.assign(seed=2, score=first["score"] + np.arange(40))
    merged = merge_members(pd.concat([first, second], ignore_index=True), DAYS)
    merged = merged.sort_values(["subset", "row"], ascending=[False, True], ignore_index=True)
    assert merged["score"].to_numpy() == pytest.approx((first["score"] + np.arange(40) / 2).to_numpy())
    assert merged["spread"].to_numpy() == pytest.approx(np.arange(40) / 2)
    [rows] = numbers_of(pd.concat([first, second], ignore_index=True), NOBODY, True, DAYS, 0.1)
    assert rows.has_passes


def test_seeds_that_diverged_are_left_out_and_nothing_is_told_where_all_did() -> None:
    fine, lost = both_sides(DAYS), both_sides(DAYS).assign(seed=2, score=np.nan)
    seeds = list(numbers_of(pd.concat([fine, lost], ignore_index=True), NOBODY, False, DAYS, 0.1))
    assert [rows.seed for rows in seeds] == [1]
    assert list(numbers_of(lost, NOBODY, False, DAYS, 0.1)) == []
    assert describe_numbers([], Uncertainty(), ONE) is None


def test_a_studys_arms_have_the_uncertainty_of_their_task() -> None:
    study, *_ = load_study(
        {
            "name": "sure",
            "data": {"source": "heart"},
            "model": {"kind": "logistic"},
            "training": {"rounds": 1, "lr": 0.1},
            "evaluation": {"validation_share": 0.2},
            "uncertainty": {"method": "none", "alpha": 0.2},
            "arms": [{"name": "arm", "algorithm": "fedavg"}],
        }
    )
    content = {"arms": {"arm": {"own_models": False}}, "findings": []}
    described = score_uncertainty(content, study, both_sides(DAYS), NOBODY, DAYS)["arms"]["arm"]["uncertainty"]
    assert described["intervals"]["alpha"] == 0.2
    assert described["intervals"]["coverage"]["mean"] == pytest.approx(0.8, abs=0.07)
