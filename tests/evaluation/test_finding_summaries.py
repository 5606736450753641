"""What hospitals tell of rows with several findings is enough for the results, and says nothing of few patients."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.finding_predictions import NAMES, a_study, label_names, predictions, records_of, score_names
from tests.figures_by_shape import metrics
from tests.noticed import noticed
from wardround.evaluation.deployed_results import deployed_results, withheld
from wardround.evaluation.findings import describe_findings
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.prediction import SitePrediction
from wardround.evaluation.scores import Scores
from wardround.evaluation.summaries.merged_summaries import gather_summaries, own_figures
from wardround.evaluation.summaries.site_summary import curve_figures, own_thresholds, site_summary
from wardround.evaluation.thresholds import best_threshold
from wardround.privacy.disclosure.small_cells import suppress_small_findings
from wardround.tasks import class_task, findings_task
from wardround.tasks.class_metrics import METRICS, auc, finding_metrics, mean_auc

SMALLEST = 5
RANKED = ("auc", "pr_auc")
TASK = findings_task(NAMES)


def prediction(label: np.ndarray, score: np.ndarray, site: str = "north") -> SitePrediction:
    right = ((score >= 0.5) == (label == 1)).mean(axis=1)
    return SitePrediction(
        site, np.arange(len(label)), label, score, np.zeros(len(label)), right, task=findings_task(label.shape[1])
    )


def summary_of(prediction: SitePrediction, names: Sequence[str], *rest: Any) -> dict[str, Any]:
    return site_summary(replace(prediction, task=findings_task(names)), *rest)


def lines_of(table: pd.DataFrame, smallest: int = 1, side: str = "test") -> list[dict[str, Any]]:
    """What each site would tell of each arm and seed, at one half."""
    lines = []
    for (arm, seed, site), part in table.groupby(["arm", "seed", "site"], sort=False):
        label, score = part[label_names()].to_numpy(), part[score_names()].to_numpy()
        summary = summary_of(prediction(label, score, str(site)), NAMES, {}, smallest)
        lines.append({"arm": arm, "seed": int(str(seed)), "site": site, "subset": side, **summary})
    return lines


# Figures over all sites


def test_every_figure_without_ranks_is_that_of_the_predictions() -> None:
    table, groups = predictions({"fedavg": 1.5, "local": 0.7}, seeds=(1, 2), rows=300)
    exact = Scores.of(table, groups)
    summaries = gather_summaries(lines_of(table), exact.arms, exact.seeds, TASK)
    places = [place for place, name in enumerate(METRICS) if name not in RANKED]
    area = METRICS.index("auc")
    for arm in exact.arms:
        np.testing.assert_allclose(summaries.overall[arm][:, places], exact.overall[arm][:, places], rtol=0, atol=1e-12)
        bound = summaries.auc_error_bound(arm)
        assert bound is not None
        assert 0 < bound < 0.1
        assert np.abs(summaries.overall[arm][:, area] - exact.overall[arm][:, area]).max() <= bound
        for site, figures in summaries.by_site[arm].items():
            np.testing.assert_allclose(figures, exact.by_site[arm][site], rtol=0, atol=1e-12)


def test_the_bound_of_a_mean_is_the_mean_of_the_bounds() -> None:
    table, _ = predictions({"a": 1.0}, rows=200)
    summaries = gather_summaries(lines_of(table), ["a"], [1], TASK)
    each = [summaries.parts[name].over_sites["a"][0][1] for name in NAMES]
    assert summaries.auc_error_bound("a") == pytest.approx(np.mean(each))


def test_one_site_alone_gives_all_its_figures() -> None:
    """As the party with the labels does: AUC and PR-AUC too, without any doubt."""
    table, groups = predictions({"a": 1.2}, rows=90)
    table = table.assign(site="north")
    exact = Scores.of(table, groups)
    summaries = gather_summaries(lines_of(table), ["a"], [1], TASK)
    np.testing.assert_allclose(summaries.overall["a"], exact.overall["a"], rtol=0, atol=1e-12)
    assert summaries.auc_error_bound("a") == 0


def test_a_finding_that_no_row_has_is_left_out() -> None:
    table, groups = predictions({"a": 1.0}, rows=80, unknown=0)
    table = table.assign(label_mass=0)
    content = results_of(table)
    arm = content["arms"]["fedavg"]
    assert arm["left_out"] == ["mass"]
    assert arm["findings"]["mass"]["positives"] == 0
    exact = Scores.of(table.assign(arm="fedavg"), groups).overall["fedavg"][0]
    for name in ("f1", "ppv", "sensitivity", "specificity"):
        assert arm["metrics"][name]["mean"] == pytest.approx(exact[METRICS.index(name)], abs=1e-12)


def results_of(table: pd.DataFrame, smallest: int = 1) -> dict[str, Any]:
    """Of one arm, `fedavg`."""
    table = table.assign(arm="fedavg")
    classes = dict.fromkeys((*NAMES, "no finding"), 30)
    facts = {site: {"train": 100, "validation": 0, "test": 60, "classes": classes} for site in ("north", "south")}
    sites = [{"sites": facts, "features": None, "arms": ["fedavg"]}]
    study = a_study(("fedavg",), seeds=int(table["seed"].nunique()))
    return deployed_results(study, TASK, lines_of(table, smallest), records_of(table), sites)


def test_findings_are_described_as_in_a_simulation() -> None:
    table, groups = predictions({"fedavg": 1.3}, seeds=(1, 2), rows=200)
    theirs = describe_findings(Scores.of(table, groups), "fedavg", Resampling(0.0))
    ours = results_of(table)["arms"]["fedavg"]["findings"]
    assert list(ours) == list(theirs)
    for name in NAMES:
        description, other = ours[name], theirs[name]
        assert set(description) == set(other)
        for key in ("rows", "positives", "confusion"):
            assert description[key] == pytest.approx(other[key])
        assert description["metrics"]["f1"]["mean"] == pytest.approx(other["metrics"]["f1"]["mean"], abs=1e-12)
        assert description["threshold"] == {"mean": None, "chosen": False}
        for site in ("north", "south"):
            assert description["sites"][site]["positives"] == other["sites"][site]["positives"]
            mean = other["sites"][site]["metrics"]["auc"]["mean"]
            assert description["sites"][site]["metrics"]["auc"]["mean"] == pytest.approx(mean, abs=1e-12)
        height = np.interp(np.linspace(0, 1, 21), description["roc"]["fpr"], description["roc"]["tpr"])
        expected = np.interp(np.linspace(0, 1, 21), other["roc"]["fpr"], other["roc"]["tpr"])
        assert np.abs(height - expected).max() < 0.1  # from histograms of twenty cells


def test_a_model_that_diverged_has_no_figures_of_any_finding() -> None:
    table, _ = predictions({"fedavg": 1.0}, seeds=(1, 2), rows=80)
    table.loc[(table["seed"] == 2) & (table["site"] == "north"), "score_air"] = np.nan
    content = results_of(table)
    assert content["arms"]["fedavg"]["metrics"]["auc"]["seeds"] == 1
    assert noticed(content, "diverged", arm="fedavg", seeds=[1, 2])


# Thresholds


def test_thresholds_are_those_of_the_sites_own_validation_rows() -> None:
    table, _ = predictions({"a": 1.5}, rows=150)
    label, score = table[label_names()].to_numpy(), table[score_names()].to_numpy()
    validation = prediction(label[:70], score[:70])
    cuts = own_thresholds(TASK, validation, SMALLEST)
    assert cuts is not None
    assert cuts.tolist() == [best_threshold(label[:70, f], score[:70, f]) for f in range(3)]
    summary = summary_of(prediction(label[70:], score[70:]), NAMES, {}, 1, cuts)
    for f, name in enumerate(NAMES):
        known = label[70:, f] >= 0
        wanted = finding_metrics(label[70:][known, f], score[70:][known, f], cuts[f])
        assert summary["findings"][name]["metrics"]["f1"] == pytest.approx(wanted["f1"], nan_ok=True)
        assert summary["findings"][name]["chosen"] is True
    assert "threshold" not in json.dumps(summary)
    assert own_thresholds(TASK, None, SMALLEST) is None


def test_no_threshold_is_chosen_by_few_patients() -> None:
    """Four validation rows have the finding: its threshold would be one of their scores."""
    label = np.zeros((40, 1), dtype=np.int64)
    label[:4] = 1
    score = np.linspace(0.9, 0.1, 40).reshape(-1, 1)
    thresholds = own_thresholds(findings_task(1), prediction(label, score), SMALLEST)
    assert thresholds is not None
    assert np.isnan(thresholds).all()
    thresholds = own_thresholds(findings_task(1), prediction(label, score), 4)
    assert thresholds is not None
    assert thresholds[0] == score[3, 0]
    summary = summary_of(prediction(label, score), ["air"], {}, 1, np.array([np.nan]))
    assert summary["findings"]["air"]["chosen"] is False
    assert summary["findings"]["air"]["sums"]["right"] == int(((score[:, 0] >= 0.5) == (label[:, 0] == 1)).sum())


# What must not be told


def test_the_curve_over_rounds_is_without_findings_of_few_rows() -> None:
    rng = np.random.default_rng(1)
    label = np.column_stack([np.arange(60) < 2, np.arange(60) < 58, rng.random(60) < 0.4]).astype(np.int64)
    score = rng.random((60, 3))
    site_prediction = prediction(label, score)
    assert curve_figures(site_prediction, SMALLEST)["rows"] == 60
    assert curve_figures(site_prediction, SMALLEST)["figures"]["auc"] == pytest.approx(
        auc(label[:, 2] == 1, score[:, 2])
    )
    assert curve_figures(site_prediction, 1)["figures"]["auc"] == pytest.approx(mean_auc(label, score))
    assert curve_figures(prediction(label[:, :2], score[:, :2]), SMALLEST) == {}


def test_a_curve_is_made_of_what_the_summary_tells() -> None:
    """Otherwise a difference between the two, of the same model, would be about the few rows that one of them hides."""
    rng = np.random.default_rng(4)
    label = (rng.random((80, 3)) < 0.4).astype(np.int64)
    label[:2, 0] = -1  # few are open, so that others are hidden with them
    label[3:, 1] = -1  # known of three rows: suppressed
    score = rng.random((80, 3))
    site_prediction = prediction(label, score)
    finding_figures = [
        entry["metrics"]
        for entry in summary_of(site_prediction, NAMES, {}, SMALLEST)["findings"].values()
        if "metrics" in entry
    ]
    assert len(finding_figures) == 2
    curve = curve_figures(site_prediction, SMALLEST)
    assert curve["rows"] == 80
    for name, value in curve["figures"].items():
        assert value == pytest.approx(np.mean([entry[name] for entry in finding_figures]), abs=1e-15)
    nothing = np.where(np.arange(80)[:, None] < 3, label, -1)
    assert curve_figures(prediction(nothing, score), SMALLEST) == {}
    assert curve_figures(prediction(label[:4], score[:4]), SMALLEST) == {}
    lost = curve_figures(prediction(label, np.full((80, 3), np.nan)), SMALLEST)
    assert lost == {"rows": 80, "figures": dict.fromkeys(("loss", "accuracy", "auc"))}


def test_of_a_finding_that_few_have_only_the_rows_are_told() -> None:
    """A model that calls nobody ill is right in all rows but those of the ill."""
    label = (np.arange(200) < 3).astype(np.int64).reshape(-1, 1)
    score = np.full((200, 1), 0.1)
    finding_summary = summary_of(prediction(label, score), ["mass"], {}, SMALLEST)["findings"]["mass"]
    assert finding_summary.pop("metrics") == dict.fromkeys(METRICS)
    assert finding_summary == {
        "rows": 200,
        "diverged": False,
        "small_classes": [1],
        "sums": None,
        "histogram": None,
        "chosen": False,
    }


def test_findings_count_patients_and_not_their_images() -> None:
    label = (np.arange(90) < 30).astype(np.int64).reshape(-1, 1)
    score = np.random.default_rng(0).random((90, 1))
    four = np.where(np.arange(90) < 30, np.arange(90) % 4, np.arange(90))  # thirty images of four patients
    site_prediction = replace(prediction(label, score), patients=four)
    assert summary_of(site_prediction, ["mass"], {}, SMALLEST)["findings"]["mass"]["sums"] is None
    thresholds = own_thresholds(findings_task(1), site_prediction, SMALLEST)
    assert thresholds is not None
    assert np.isnan(thresholds).all()
    assert curve_figures(site_prediction, SMALLEST) == {}
    opened = label.copy()
    opened[:30] = -1  # of four patients: one more is opened, with all of its images
    finding_summary = summary_of(replace(prediction(opened, score), patients=four), ["mass"], {}, SMALLEST)["findings"][
        "mass"
    ]
    assert finding_summary["rows"] == 59


def test_few_open_labels_are_hidden_among_others() -> None:
    """Two rows leave `air` open. Five do in what is told, the same ones for every model; of `mass` none."""
    label = np.tile([[1, 1], [0, 0]], (30, 1))
    label[7, 1] = label[20, 1] = -1
    first, second = (np.random.default_rng(draw).random((60, 2)) for draw in (1, 2))
    summary = summary_of(prediction(label, first), ["mass", "air"], {}, SMALLEST)
    assert summary["findings"]["mass"]["rows"] == 60
    assert summary["findings"]["air"]["rows"] == 55
    again = summary_of(prediction(label, second), ["mass", "air"], {}, SMALLEST)["findings"]["air"]
    positives = [
        sum(finding["sums"]["confusion"][0][c] for c in ("tp", "fn")) for finding in (summary["findings"]["air"], again)
    ]
    assert positives[0] == positives[1]
    enough = summary_of(prediction(label, first), ["mass", "air"], {}, 2)
    assert enough["findings"]["air"]["rows"] == 58


ROWS = st.lists(
    st.tuples(
        st.integers(-1, 1),
        st.integers(-1, 1),
        st.floats(0, 1, width=32),
        st.sampled_from(["female", "male", "other", None]),
    ),
    max_size=90,
)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.integers(2, 12))
def test_nothing_that_is_told_counts_fewer_patients_than_agreed(
    rows: list[tuple[int, int, float, str | None]], smallest: int
) -> None:
    label = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
    score = np.array([[row[2], 1 - row[2]] for row in rows], dtype=np.float32).reshape(-1, 2)
    sex = np.array([row[3] for row in rows], dtype=object)
    summary = summary_of(prediction(label, score), ["mass", "air"], {"sex": sex}, smallest)
    assert json.loads(json.dumps(summary)) == summary  # plain data
    if summary.get("suppressed"):
        assert len(rows) < smallest
        return
    for name in ("mass", "air"):
        whole = summary["findings"][name]
        assert not whole.get("suppressed") or (label[:, ("mass", "air").index(name)] >= 0).sum() < 2 * smallest
        parts = [subgroup["findings"][name] for subgroup in summary["groups"]["sex"].values()]
        for cells in counted([whole, *parts]):
            assert min(cells) >= smallest
        if whole.get("suppressed"):
            assert all(part.get("suppressed") for part in parts)
            continue
        is_open = len(rows) - whole["rows"]
        assert is_open == 0 or is_open >= smallest
        shown = [
            (subgroup["rows"], part["rows"])
            for subgroup, part in zip(summary["groups"]["sex"].values(), parts, strict=True)
            if "rows" in part
        ]
        for group, known in shown:  # rows of a group that leave it open
            assert group == known or group - known >= smallest
        left = whole["rows"] - sum(known for _, known in shown)
        assert not shown or left == 0 or left >= smallest
        by_class = [part for part in parts if part.get("histogram")]
        for number in (0, 1):
            if by_class and whole.get("histogram"):
                rest = count(whole, number) - sum(count(part, number) for part in by_class)
                assert rest == 0 or rest >= smallest


def counted(parts: list[Mapping[str, Any]]) -> Iterator[list[int]]:
    """Counts of patients in what is told: rows, and cells of histograms."""
    for part in parts:
        if "rows" in part:
            yield [part["rows"], *(cell["rows"] for cells in part["histogram"] or [] for cell in cells)]


def count(part: Mapping[str, Any], number: int) -> int:
    return sum(cell["rows"] for cell in part["histogram"][number])


def test_sites_with_few_rows_say_so_and_nothing_else() -> None:
    label, score = np.ones((4, 2), dtype=np.int64), np.full((4, 2), 0.7)
    assert summary_of(prediction(label, score), ["a", "b"], {"sex": np.full(4, "f", dtype=object)}, 5) == {
        "suppressed": True
    }
    lost = np.array([[0.5, np.nan]] * 9)
    assert summary_of(prediction(np.ones((9, 2), dtype=np.int64), lost), ["a", "b"], {}, 5) == {
        "rows": 9,
        "diverged": True,
    }


def test_one_notice_names_all_findings_of_a_site_by_the_number_of_seeds() -> None:
    small = {"small_classes": [1]}
    line = {"arm": "fedavg", "subset": "test", "site": "north", "diverged": False}
    study = a_study(("fedavg",), seeds=2)
    lines = [
        {**line, "seed": 1, "findings": {"mass": small, "fluid": {"suppressed": True}, "air": {"small_classes": []}}},
        {**line, "seed": 2, "findings": {"mass": small, "fluid": {"small_classes": []}, "air": {"small_classes": []}}},
    ]
    notices = [(notice.site, notice.classes, notice.seeds) for notice in withheld(study, lines, NAMES)]
    assert notices == [("north", ("mass",), None), ("north", ("fluid",), (1, 2))]


def test_a_sites_own_figures_are_means_over_what_it_tells() -> None:
    table, _ = predictions({"a": 1.0}, rows=60)
    label, score = table[label_names()].to_numpy(), table[score_names()].to_numpy()
    line = summary_of(prediction(label, score), NAMES, {}, 1)
    figures = own_figures(TASK, line)
    assert figures is not None
    assert figures == pytest.approx(metrics(label, score), abs=1e-12)
    told = {"rows": 9, "diverged": False}
    assert own_figures(class_task(2), {**told, "metrics": {"auc": 0.7}}) == {"auc": 0.7}
    assert own_figures(TASK, {"rows": 9, "diverged": True}) is None
    assert own_figures(TASK, {"suppressed": True}) is None
    assert own_figures(TASK, {**told, "findings": {"a": {"suppressed": True}}}) is None


def rows_with(**groups: int) -> np.ndarray:
    """(rows, 3): so many rows with the findings that a name is made of; `n` for none."""
    each = [[letter in name for letter in "abc"] for name, count in groups.items() for _ in range(count)]
    return np.array(each, dtype=bool)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (rows_with(a=14, ab=6, b=24, c=9, n=47), {"a": 20, "b": 30, "c": 9, "no finding": 47}),
        (rows_with(a=3, b=30, c=9, n=58), {"a": None, "b": 30, "c": 9, "no finding": None}),
        (rows_with(ab=30, a=68, n=2), {"a": None, "b": 30, "c": 0, "no finding": None}),
        (rows_with(a=20, n=80), {"a": 20, "b": 0, "c": 0, "no finding": 80}),
        # three have b and not a
        (rows_with(ab=12, a=8, b=3, n=77), {"a": 20, "b": 15, "c": 0, "no finding": None}),
        # two have both
        (rows_with(a=18, b=13, ab=2, n=67), {"a": 20, "b": 15, "c": 0, "no finding": None}),
        # of three findings, one row has two: 90 findings in 89 rows
        (rows_with(a=29, b=29, c=30, ab=1, n=11), {"a": 30, "b": 30, "c": 30, "no finding": None}),
        (rows_with(a=50, b=47, n=3), {"a": 50, "b": 47, "c": 0, "no finding": None}),
    ],
    ids=["all", "few have it", "few have it not", "one alone", "few others", "few both", "few several", "few none"],
)
def test_counts_of_findings_are_withheld(present: np.ndarray, expected: dict[str, int | None]) -> None:
    assert suppress_small_findings(present, np.arange(len(present)), "abc", SMALLEST) == expected


def test_counts_of_findings_count_patients() -> None:
    present = rows_with(a=20, b=20, n=60)
    people = np.concatenate([np.zeros(20, dtype=int), np.arange(1, 81)])  # all rows with `a` are one patient's
    assert suppress_small_findings(present, people, "abc", SMALLEST) == {"a": None, "b": 20, "c": 0, "no finding": None}


# What was told, put together


def test_a_mean_pr_auc_is_of_the_same_findings_as_the_mean_auc() -> None:
    """Of `mass` two sites tell, so that it has none over both; of `fluid` and `air` one does. Three findings' mean
    would be that of two."""
    table, _ = predictions({"a": 1.2}, rows=200)
    table.loc[table["site"] == "south", ["label_fluid", "label_air"]] = -1
    summaries = gather_summaries(lines_of(table, SMALLEST), ["a"], [1], TASK)
    area, precision = METRICS.index("auc"), METRICS.index("pr_auc")
    assert not np.isnan(summaries.overall["a"][0, area])
    assert np.isnan(summaries.overall["a"][0, precision])
    table.loc[table["site"] == "south", "label_mass"] = -1
    alone = gather_summaries(lines_of(table, SMALLEST), ["a"], [1], TASK)
    assert not np.isnan(alone.overall["a"][0, precision])


def test_counts_are_means_over_the_seeds_that_tell_them() -> None:
    """North has 12, 3 and 9 rows with a mass in three seeds: the second is withheld, and the mean is 10.5, not 7."""
    table, _ = predictions({"fedavg": 1.0}, seeds=(1, 2, 3), rows=200, unknown=0)
    for seed, wanted in ((1, 12), (2, 3), (3, 9)):
        mine = table.index[(table["site"] == "north") & (table["seed"] == seed)]
        table.loc[mine, "label_mass"] = (np.arange(len(mine)) < wanted).astype(np.int64)
        others = table.index[(table["site"] == "south") & (table["seed"] == seed)]
        table.loc[others, "label_mass"] = (np.arange(len(others)) < 20).astype(np.int64)
    finding_summary = results_of(table, SMALLEST)["arms"]["fedavg"]["findings"]["mass"]
    assert finding_summary["sites"]["north"]["positives"] == 10.5
    assert finding_summary["positives"] == pytest.approx((32 + 20 + 29) / 3)
    sites = table.groupby(["seed", "site"]).size()
    assert finding_summary["rows"] == pytest.approx((sites.sum() - sites[2, "north"]) / 3)


def test_an_arm_that_diverged_leaves_no_finding_out() -> None:
    table, _ = predictions({"fedavg": 1.0}, rows=80)
    lost = table.assign(**dict.fromkeys(score_names(), np.nan))
    assert results_of(lost)["arms"]["fedavg"]["left_out"] == []
    two, _ = predictions({"fedavg": 1.0}, seeds=(1, 2), rows=200)
    two.loc[two["seed"] == 2, score_names()] = np.nan
    assert results_of(two)["arms"]["fedavg"]["findings"]["air"]["roc"] is not None  # of the other seed
