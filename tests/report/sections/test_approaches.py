"""Ways to train together, side by side: the sentences follow the figures."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from wardround.report import Evidence, build_report, read_evidence, sections_of
from wardround.report.sections.approaches import approach_bars, approach_sentences, approach_table, approaches_of
from wardround.runs.folder import RunFolder

STUDY: dict[str, Any] = {
    "name": "ways",
    "data": {"source": "heart", "scale": "ranges", "public": True, "missing": "range"},
    "model": {"kind": "mlp", "hidden": [4]},
    "training": {"rounds": 2, "lr": 0.1},
    "topology": {
        "regions": {"europe": ["hungarian", "switzerland"], "america": ["cleveland", "va"]},
        "parties": {"clinic": ["age", "sex", "cp"], "laboratory": ["chol", "fbs"]},
    },
    "evaluation": {
        "seeds": {"count": 1},
        "test_share": 0.3,
        "validation_share": 0.1,
        "reference": "fedavg",
        "attack": "membership",
    },
    "arms": [
        {"name": "pooled", "algorithm": "pooled"},
        {"name": "local", "algorithm": "local"},
        {"name": "fedavg", "algorithm": "fedavg"},
        {"name": "fedprox", "algorithm": "fedprox"},
        {
            "name": "private",
            "algorithm": "fedprox",
            "privacy.example": {"epsilon": 8.0, "delta": 1e-4, "clip": 1.0},
            "privacy.secure_sum": "on",
        },
        {"name": "vertical", "algorithm": "split", "model.kind": "joined", "topology.kind": "vertical"},
        {
            "name": "hierarchical",
            "algorithm": "fedprox",
            "topology.kind": "hierarchical",
            "topology.regional_rounds": 2,
        },
    ],
}


@pytest.fixture(scope="module")
def evidence(ways_folder: Path) -> Evidence:
    return read_evidence(RunFolder(ways_folder))


def changed(evidence: Evidence, arm: str, difference: float, verdict: str) -> Evidence:
    results = deepcopy(dict(evidence.results))
    for test in results["tests"]:
        if test["arm"] == arm:
            test |= {"difference": difference, "verdict": verdict}
    return Evidence(results, evidence.study, evidence.environment, evidence.samples, evidence.attack)


def test_every_arm_is_a_way(evidence: Evidence) -> None:
    ways = {way.arm: way for way in approaches_of(evidence)}
    assert list(ways) == [arm["name"] for arm in STUDY["arms"]]
    assert ways["private"].how == "fedprox, noise for every patient, secure sum"
    assert ways["hierarchical"].how == "fedprox in regions"
    assert ways["vertical"].how == "parties with different columns"
    private = ways["private"].epsilon
    assert private is not None
    assert 0 < private <= 8
    assert all(way.epsilon is None for name, way in ways.items() if name != "private")
    assert all(way.attack is not None and 0 <= way.attack["mean"] <= 1 for way in ways.values())


def test_bytes_are_those_of_all_links(evidence: Evidence) -> None:
    ways = {way.arm: way for way in approaches_of(evidence)}
    top = evidence.arms["hierarchical"]["topology"]["cost"]["region_global"]
    between = top["bytes_down"] + top["bytes_up"]
    assert between > 0
    assert ways["hierarchical"].megabytes == (evidence.arms["hierarchical"]["cost"]["bytes"] + between) / 1e6
    assert ways["pooled"].megabytes == ways["local"].megabytes == 0


def test_what_chance_explains_is_not_recommended(evidence: Evidence) -> None:
    equal = approach_sentences(changed(evidence, "fedprox", 0.05, "no evidence"))
    assert any("fedavg will do. fedprox is not told apart from it" in sentence for sentence in equal)
    better = approach_sentences(changed(evidence, "fedprox", 0.05, "gains"))
    assert any("fedprox is the best of fedavg and fedprox" in sentence for sentence in better)
    worse = approach_sentences(changed(evidence, "fedprox", -0.05, "loses"))
    assert any("fedavg is the best of fedavg and fedprox" in sentence for sentence in worse)


def test_each_way_is_told_of_once(evidence: Evidence) -> None:
    words = approach_sentences(evidence)
    for beginning in ("The room between", "Same kind of rows", "A promise to every patient", "The same patients with"):
        assert sum(sentence.startswith(beginning) for sentence in words) == 1
    assert any("coordinator of all carries" in sentence for sentence in words)
    assert any("was trained on" in sentence for sentence in words)
    assert "one set of data with one seed" in words[-1]


def test_an_attack_counts_only_where_its_interval_leaves_out_a_guess(evidence: Evidence) -> None:
    attack = deepcopy(dict(evidence.attack or {}))
    for name, entry in attack["membership"].items():
        entry["threshold"]["interval"] = [0.52, 0.6] if name == "pooled" else [0.45, 0.55]
    changed_evidence = Evidence(evidence.results, evidence.study, evidence.environment, evidence.samples, attack)
    assert any(
        "better than by guessing in pooled; in local, fedavg" in sentence
        for sentence in approach_sentences(changed_evidence)
    )


def test_table_and_bars(evidence: Evidence) -> None:
    table = approach_table(evidence)
    assert len(table.rows) == len(STUDY["arms"])
    drawn = approach_bars(evidence)
    assert drawn is not None
    titles = [axes.get_title() for axes in drawn.axes]
    assert "epsilon (no bar: no promise)" in titles  # although one way alone has one
    for axes in drawn.axes:  # a bar that is cut off is not as long as what it stands for
        begin = 0.5 if "AUC" in axes.get_title() else 0.0
        assert {bar.get_x() for bar in axes.patches if isinstance(bar, Rectangle)} <= {begin}
        assert axes.get_xlim()[0] <= begin


def test_arms_of_one_kind_need_no_such_section(evidence: Evidence) -> None:
    results = deepcopy(dict(evidence.results))
    results["arms"] = {name: arm for name, arm in results["arms"].items() if name in ("pooled", "fedavg", "fedprox")}
    alike = Evidence(results, evidence.study, evidence.environment)
    assert "approaches" not in sections_of(alike)


@pytest.mark.slow
def test_the_report_has_the_section(ways_folder: Path) -> None:
    text = build_report(ways_folder).read_text(encoding="utf-8")
    assert "Which one should we use?" in text
    assert 'id="topology"' in text
    assert (ways_folder / "figures" / "ways.svg").is_file()
    assert (ways_folder / "tables" / "ways.csv").is_file()


def test_a_ways_epsilon_is_that_of_the_site_that_spent_most(evidence: Evidence) -> None:
    results = deepcopy(dict(evidence.results))
    spent = results["privacy"]["arms"]["private"]["sites"]
    for number, site in enumerate(spent.values()):
        site["epsilon"] = 2.0 + number
    other = Evidence(results, evidence.study, evidence.environment, evidence.samples, evidence.attack)
    assert {way.arm: way.epsilon for way in approaches_of(other)}["private"] == 2.0 + len(spent) - 1
