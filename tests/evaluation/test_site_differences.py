"""Hospitals that count the same: made-up figures whose mean over sites is known, and what a report says of them."""

from typing import Any

import numpy as np
import pytest

import wardround
from tests.evaluation.test_benefit import FEDAVG, LOCAL, corrected_interval, scores, study
from wardround.evaluation.comparisons.benefit import site_differences
from wardround.report import Evidence
from wardround.report.sections.hospitals import site_difference_sentences
from wardround.report.sections.privacy.releases import compares_labels
from wardround.tasks.classes import AT_SITES

# of 40 rows, with seeds 1 to 4; "large" would not weigh more here if it had more rows
HITS = {
    ("fedavg", "a"): [30, 31, 30, 31],
    ("local", "a"): [20, 20, 21, 20],
    ("fedavg", "b"): [20, 20, 21, 20],
    ("local", "b"): [24, 23, 24, 23],
    ("common", "a"): [28, 29, 30, 28],
    ("common", "b"): [22, 22, 22, 22],
}
COMMON = {"name": "common", "algorithm": "fedprox"}


def entries(*arms: dict[str, Any], reference: str | None = None) -> list[dict[str, Any]]:
    evaluation: dict[str, Any] = {"seeds": {"first": 1, "count": 4}}
    if reference:
        evaluation["reference"] = reference
    parsed_study = study(*arms, evaluation=evaluation)
    names = [arm.name for arm in parsed_study.arms]
    hits = {key: line for key, line in HITS.items() if key[0] in names}
    return site_differences(parsed_study, scores(hits), names, AT_SITES)


def one(candidates: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (entry,) = [e for e in candidates if all(e[key] == value for key, value in wanted.items())]
    return entry


def test_the_mean_over_sites_is_of_paired_differences_with_their_corrected_interval() -> None:
    entry = one(entries(FEDAVG, LOCAL), arm="fedavg", kind="alone", metric="accuracy")
    gaps = [np.array(HITS["fedavg", s]) - np.array(HITS["local", s]) for s in "ab"]
    mean = np.mean(gaps, axis=0) / 40
    assert entry["site"] is None
    assert entry["difference"] == pytest.approx(mean.mean())
    assert entry["interval"] == pytest.approx(corrected_interval(mean))
    assert entry["verdict"] == "gains"


def test_each_site_is_compared_with_the_reference() -> None:
    differences = entries(FEDAVG, LOCAL, COMMON, reference="common")
    at_b = one(differences, arm="fedavg", kind="reference", site="b", metric="accuracy")
    assert at_b["difference"] == pytest.approx((-2 - 2 - 1 - 2) / 4 / 40)
    everywhere = one(differences, arm="fedavg", kind="reference", site=None, metric="accuracy")
    assert everywhere["difference"] == pytest.approx(((2 + 2 + 0 + 3) - (2 + 2 + 1 + 2)) / 8 / 40)
    assert not [e for e in differences if e["arm"] == "common" and e["kind"] == "reference"]
    assert one(differences, arm="local", kind="reference", site=None, metric="accuracy")["against"] == "common"


def test_where_the_reference_is_training_alone_it_is_said_once() -> None:
    differences = entries(FEDAVG, LOCAL, reference="local")
    assert {entry["kind"] for entry in differences} == {"alone"}


def evidence_of(differences: list[dict[str, Any]], benefit: list[dict[str, Any]]) -> Evidence:
    arm = {"variant": "", "train_at": None, "algorithm": {"name": "fedavg"}, "sites": {}}
    local = {**arm, "algorithm": {"name": "local"}}
    counts = {"a": {"train": 100, "validation": 0, "test": 20}, "b": {"train": 60, "validation": 0, "test": 20}}
    results = {
        "arms": {"fedavg": arm, "local": local},
        "site_differences": differences,
        "benefit": benefit,
        "sites": [{"sites": counts}],
        "primary_metric": "accuracy",
        "findings": [],
        "seeds": [1],
    }
    return Evidence(results, {}, {})


def entry(site: str | None, difference: float, interval: list[float] | None, verdict: str) -> dict[str, Any]:
    about = {"arm": "fedavg", "against": "local", "kind": "alone", "metric": "accuracy"}
    of_seeds = {"seeds": 1 if interval is None else 5, "sd": None, "comparisons": 3}
    return {**about, "site": site, "difference": difference, "interval": interval, "verdict": verdict, **of_seeds}


def test_an_arm_that_is_behind_is_said_to_be_and_where() -> None:
    mean = entry(None, -0.01, [-0.03, 0.01], "no evidence")
    sites = [entry("a", 0.02, [0, 0.04], "no evidence"), entry("b", -0.04, [-0.07, -0.01], "loses")]
    (sentence,) = site_difference_sentences(evidence_of([mean], sites))
    assert sentence == (
        "On average over sites, fedavg is behind training alone (-1.0 points, 95 % CI -3.0 to +1.0, corrected for 3 "
        "comparisons): no more than chance explains. Its mean is below at b (-4.0 points, 60 training rows), above at "
        "a."
    )


def test_an_arm_that_is_ahead_needs_no_reason() -> None:
    (sentence,) = site_difference_sentences(evidence_of([entry(None, 0.02, [0.01, 0.03], "gains")], []))
    assert sentence == (
        "On average over sites, each counting the same, the difference from training alone: fedavg (+2.0 points, 95 % "
        "CI +1.0 to +3.0, corrected for 3 comparisons)."
    )


def test_a_difference_is_not_told_as_none() -> None:
    (sentence,) = site_difference_sentences(evidence_of([entry(None, -0.0003, [-0.02, 0.02], "no evidence")], []))
    assert "is behind training alone (less than 0.1 points, 95 % CI -2.0 to +2.0, corrected" in sentence


def test_one_seed_says_nothing_of_chance() -> None:
    (sentence,) = site_difference_sentences(evidence_of([entry(None, -0.02, None, "cannot be told")], []))
    assert sentence == (
        "On average over sites, fedavg is behind training alone (-2.0 points; one seed gives no interval, so that this "
        "may be chance)."
    )


@pytest.mark.slow
def test_a_real_study_has_the_tables_and_sentences(tmp_path: Any) -> None:
    raw = {
        "name": "averages",
        "data": {"source": "heart"},
        "training": {"rounds": 2},
        "evaluation": {"seeds": {"count": 2}, "reference": "fedavg"},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "scaffold"}],
    }
    run = wardround.run_study(raw, tmp_path)
    within = run.results["arms"]["scaffold"]["within_sites"]["accuracy"]["mean"]
    sites = run.results["arms"]["scaffold"]["sites"]
    assert within == pytest.approx(np.mean([figures["accuracy"]["mean"] for figures in sites.values()]))
    page = wardround.build_report(run.folder).read_text(encoding="utf-8")
    assert "On average over sites" in page
    assert (run.folder / "tables" / "site-differences.csv").is_file()
    lines = (run.folder / "tables" / "against-reference.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 4


@pytest.mark.parametrize(
    ("protected", "asked", "compared"),
    [
        (None, {}, True),
        (None, {"deployment": {"compare_labels": False}}, False),
        ({"arms": {"fedavg": {"example": {"epsilon": 2.0}}}}, {}, False),
        ({"arms": {"fedavg": {"example": None}}}, {}, True),  # a secure sum alone promises patients nothing
    ],
)
def test_that_columns_were_compared_with_the_label_is_told_where_they_were(
    protected: dict[str, Any] | None, asked: dict[str, Any], compared: bool
) -> None:
    evidence = Evidence({"privacy": protected}, asked, {})
    assert compares_labels(evidence) is compared
