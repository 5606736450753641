"""Regions in whole studies: what is refused, what results.json and the report tell, and fifty sites in five regions."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import equal

import wardround
from wardround.core.errors import StudyError
from wardround.evaluation.regional import cost_of_links
from wardround.report import read_evidence
from wardround.report.sections.topology import (
    link_table,
    privacy_sentences,
    region_sentences,
    region_table,
    regional_models,
    regions_tree,
)
from wardround.runs.execute import StudyRun
from wardround.runs.folder import RunFolder
from wardround.runs.record_form import frame_of, table_of
from wardround.tasks.class_metrics import METRICS
from wardround.training.round_record import RoundRecord

REGIONS = {"europe": ["hungarian", "switz*"], "america": ["cleveland", "va"]}
HEART: dict[str, Any] = {
    "name": "regions",
    "data": {"source": "heart"},
    "training": {"rounds": 4, "local_epochs": 1, "lr": 0.1},
    "topology": {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "fedavg"},
    "arms": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "mu": [0.0, 1.0]},
        {"name": "flat", "algorithm": "fedavg", "topology.kind": "flat"},
        {"algorithm": "local"},
        {"algorithm": "pooled"},
    ],
}
FIFTY: dict[str, Any] = {
    "name": "fifty",
    "data": {"source": "synthetic", "count": 50, "largest": 60, "features": 5, "classes": 2},
    "training": {"rounds": 4, "local_epochs": 1, "lr": 0.05},
    "topology": {
        "kind": "hierarchical",
        "regional_rounds": 2,
        "regions": {f"r{n}": [f"site-?{n}", f"site-?{n + 5}"] for n in range(5)},
    },
    "evaluation": {"seeds": {"first": 1, "count": 1}},
    "arms": [{"algorithm": "fedavg"}, {"name": "flat", "algorithm": "fedavg", "topology.kind": "flat"}],
}


ONCE = {"seeds": {"count": 1}}


def changed(study: dict[str, Any] = HEART, **tables: Any) -> dict[str, Any]:
    return {**study, **tables}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    study_run = wardround.run_study(HEART, tmp_path_factory.mktemp("runs"))
    wardround.build_report(study_run.folder)
    return study_run


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return wardround.run_study(FIFTY, tmp_path_factory.mktemp("runs"), engine="serial")


def test_regional_models_are_kept_and_scored_on_their_own_sites(run: StudyRun) -> None:
    from sklearn.metrics import accuracy_score, roc_auc_score

    regional = pd.read_parquet(run.folder / "regional.parquet")
    whole = pd.read_parquet(run.folder / "predictions.parquet")
    topology = run.results["arms"]["fedavg"]["topology"]
    assert {region: region_results["sites"] for region, region_results in topology["regions"].items()} == {
        "europe": ["hungarian", "switzerland"],
        "america": ["cleveland", "va"],
    }
    for region_results in topology["regions"].values():
        auc: dict[str, list[float]] = {"regional": [], "global": []}
        for kind, table in (("regional", regional), ("global", whole)):
            mine = table[(table["arm"] == "fedavg") & table["site"].isin(region_results["sites"])]
            assert len(mine) == 2 * region_results["test"]
            for _, part in mine.groupby("seed"):
                auc[kind].append(roc_auc_score(part["label"], part["score"]))
            accuracy = [accuracy_score(p["label"], p["score"] >= 0.5) for _, p in mine.groupby("seed")]
            figures = region_results["metrics"][kind]
            assert set(figures) == set(METRICS)
            assert figures["auc"]["mean"] == pytest.approx(np.mean(auc[kind]))
            assert figures["accuracy"]["mean"] == pytest.approx(np.mean(accuracy))
        entry = region_results["difference"]["auc"]
        assert entry["difference"] == pytest.approx(np.mean(np.subtract(auc["regional"], auc["global"])))
        assert entry["seeds"] == 2
    leaves = RunFolder(run.folder).load_model("fedavg", 1)
    own, of_all = leaves["server/region europe/weight"], leaves["server/params/weight"]
    assert own.shape == of_all.shape
    assert not equal(own, of_all)


def test_arms_without_regions_have_none(run: StudyRun) -> None:
    for name in ("flat", "local", "pooled"):
        assert run.results["arms"][name]["topology"] is None
    assert set(pd.read_parquet(run.folder / "regional.parquet")["arm"]) == {
        "fedavg",
        "fedprox[mu=0.0]",
        "fedprox[mu=1.0]",
    }


def test_the_cost_of_each_kind_of_link(run: StudyRun) -> None:
    topology = run.results["arms"]["fedavg"]["topology"]
    flat = run.results["arms"]["flat"]["cost"]
    assert (topology["regional_rounds"], topology["global_rounds"]) == (2, 2)
    size = flat["bytes_up"] / 16  # four sites in four rounds
    # two regions, twice down and twice up
    top = {"messages_down": 4, "messages_up": 4, "bytes_down": 4 * size, "bytes_up": 4 * size}
    below = {"messages_down": 16, "messages_up": 16, "bytes_down": 16 * size, "bytes_up": 16 * size}
    assert topology["cost"] == {"site_region": below, "region_global": top, "flat": below}
    assert flat["bytes_down"] == topology["cost"]["flat"]["bytes_down"]


def test_records_without_regions_have_no_cost_between_them() -> None:
    record = RoundRecord("fedavg", 1, 1, sites=("a",), dropped=("b",), bytes_down=8, bytes_up=4)
    costs = cost_of_links(frame_of(table_of([record])))
    assert costs["region_global"] == dict.fromkeys(("messages_down", "messages_up", "bytes_down", "bytes_up"), 0.0)
    assert costs["site_region"] == {"messages_down": 2, "messages_up": 1, "bytes_down": 8, "bytes_up": 4}


def test_the_report_tells_of_regions_where_there_are_any(run: StudyRun) -> None:
    page = (run.folder / "report.html").read_text()
    section = page[page.index('id="topology"') : page.index('id="statistics"')]
    assert "4 sites form 2 regions: europe (2 sites) and america (2 sites)" in section
    assert "after every 2 rounds" in section
    for name in ("figure-regions", "figure-regional-models", "table-links", "table-regions"):
        assert f'id="{name}"' in section
    assert "arXiv:1905.06641" in page
    assert "the coordinator of all sees the regions" in page
    assert not re.findall(r"\b(nan|None|NaN)\b", re.sub(r"<svg.*?</svg>", "", section, flags=re.DOTALL))


def test_the_report_of_an_older_run_has_no_such_section(run: StudyRun) -> None:
    evidence = read_evidence(RunFolder(run.folder))
    arms = {name: {k: v for k, v in arm.items() if k != "topology"} for name, arm in evidence.results["arms"].items()}
    older = replace(evidence, results={**evidence.results, "arms": arms})
    assert region_sentences(evidence)
    assert region_sentences(older) == privacy_sentences(older) == []
    assert not region_table(older).rows
    assert not link_table(older).rows
    assert regions_tree(older) is regional_models(older) is None


def test_fifty_sites_in_five_regions(fifty: StudyRun) -> None:
    topology = fifty.results["arms"]["fedavg"]["topology"]
    assert [len(region_results["sites"]) for region_results in topology["regions"].values()] == [10] * 5
    assert sum(region_results["train"] for region_results in topology["regions"].values()) == sum(
        site["train"] for site in fifty.results["sites"][0]["sites"].values()
    )
    top, flat = topology["cost"]["region_global"], topology["cost"]["flat"]
    # 5 regions x 2 averages against 50 sites x 4 rounds
    assert (top["messages_up"], flat["messages_up"]) == (10, 200)
    assert flat["bytes_up"] / top["bytes_up"] == 20
    for region_results in topology["regions"].values():  # one seed: intervals over patients
        entry = region_results["difference"]["accuracy"]
        low, high = entry["interval"]
        assert low <= entry["difference"] <= high
        assert entry["method"] == "bootstrap over patients"
        assert region_results["metrics"]["regional"]["accuracy"]["interval"] is not None


def test_both_engines_give_the_same_study(fifty: StudyRun, tmp_path: Path) -> None:
    fast = wardround.run_study(FIFTY, tmp_path, engine="stacked")
    for name in ("predictions.parquet", "regional.parquet"):
        predictions, other = (pd.read_parquet(study_run.folder / name) for study_run in (fifty, fast))
        order = ["arm", "seed", "site", "row"]
        predictions, other = (table.sort_values(order).reset_index(drop=True) for table in (predictions, other))
        pd.testing.assert_frame_equal(predictions, other, atol=1e-5, rtol=0)


def test_privacy_of_patients_is_unchanged_in_one_region(tmp_path: Path) -> None:
    """Noise and sampling are the site's business: one region gives the flat study's models bit for bit."""
    study = changed(
        name="private",
        data={"source": "heart", "scale": "ranges", "missing": "range", "public": True},
        training={"rounds": 2, "local_epochs": 1, "lr": 0.1},
        privacy={"example": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}},
        topology={"kind": "hierarchical", "regions": {"all": ["*"]}},
        evaluation={"seeds": {"first": 1, "count": 1}},
        arms=[{"algorithm": "fedprox"}, {"name": "flat", "algorithm": "fedprox", "topology.kind": "flat"}],
    )
    run = wardround.run_study(study, tmp_path)
    ours, flat = (RunFolder(run.folder).load_model(name, 1) for name in ("fedprox", "flat"))
    for name in (name for name in flat if name.startswith("server/params")):
        assert equal(ours[name], flat[name])
    spent = run.results["privacy"]["arms"]
    assert spent["fedprox"]["sites"] == spent["flat"]["sites"]


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no region": ({"topology": {"kind": "hierarchical"}}, "none is named", "topology.regions"),
    "no sites": ({"topology": {"kind": "hierarchical", "regions": {"a": []}}}, "has no sites", "leave the region out"),
    "not hierarchical": ({"topology": {"regions": REGIONS}}, "no arm is hierarchical", 'kind = "hierarchical"'),
    "rounds alone": ({"topology": {"regional_rounds": 2}}, "there are no regions", 'kind = "hierarchical"'),
    "a bad name": ({"topology": {"kind": "hierarchical", "regions": {"a/b": ["*"]}}}, "'a/b'", "letters"),
    "named twice": ({"topology": {"kind": "hierarchical", "regions": {"a": ["va", "va"]}}}, "called 'va'", "once"),
    "no multiple": (
        {"topology": {"kind": "hierarchical", "regional_rounds": 3, "regions": REGIONS}},
        "no multiple of 3",
        "training.rounds = 3 or 6",
    ),
    "whole sites": (
        {"privacy": {"site": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}}},
        "regions have sums of their own",
        "privacy.example",
    ),
    **{
        name: ({"arms": [{"algorithm": name}], "evaluation": {}}, f"{name} ", "Use fedavg or fedprox")
        for name in ("scaffold", "fednova", "fedprox-adaptive", "fedadam", "fedyogi", "fedadagrad", "clustered")
    },
}


@pytest.mark.parametrize("case", BAD)
def test_what_regions_do_not_go_with_is_refused_before_data_are_read(case: str) -> None:
    tables, problem, remedy = BAD[case]
    with pytest.raises(StudyError) as refused:
        wardround.load_study(changed(**tables))
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


UNKNOWN: dict[str, tuple[dict[str, list[str]], str, str]] = {
    "in none": ({"a": ["va"], "b": ["cleveland", "hungarian"]}, "switzerland is in no region", "Add each site"),
    "unknown": ({"a": ["va", "clevland"], "b": ["*"]}, "no site is called 'clevland'", "'cleveland'"),
    "in two": ({"a": ["*"], "b": ["va"]}, "va is in 'a' and in 'b'", "one region"),
    "no match": ({"a": ["*"], "b": ["x-*"]}, "fits no site", "cleveland"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_regions_that_do_not_fit_the_sites_are_refused_before_anything_trains(case: str, tmp_path: Path) -> None:
    regions, problem, remedy = UNKNOWN[case]
    study = changed(topology={"kind": "hierarchical", "regional_rounds": 2, "regions": regions})
    with pytest.raises(StudyError) as refused:
        wardround.run_study(study, tmp_path)
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy
    assert refused.value.where.startswith("arms: fedavg: topology: regions")
    assert not list(tmp_path.iterdir())


def test_a_secure_sum_needs_three_sites_in_each_region(tmp_path: Path) -> None:
    study = changed(privacy={"secure_sum": {}}, arms=[{"algorithm": "fedavg"}])
    with pytest.raises(StudyError, match="in some round of region america") as refused:
        wardround.run_study(study, tmp_path)
    assert refused.value.where.endswith("secure_sum")


@pytest.mark.slow
def test_a_region_of_which_no_site_trains_in_an_arm_takes_no_part_in_it(tmp_path: Path) -> None:
    study = changed(
        arms=[{"algorithm": "fedavg", "train_at": ["hungarian", "cleveland"]}], evaluation={"seeds": {"count": 1}}
    )
    topology = wardround.run_study(study, tmp_path).results["arms"]["fedavg"]["topology"]
    assert {region: region_results["sites"] for region, region_results in topology["regions"].items()} == {
        "europe": ["hungarian"],
        "america": ["cleveland"],
    }
    study = changed(
        arms=[{"algorithm": "fedavg", "train_at": ["hungarian", "switzerland"]}], evaluation={"seeds": {"count": 1}}
    )
    assert list(wardround.run_study(study, tmp_path).results["arms"]["fedavg"]["topology"]["regions"]) == ["europe"]


def test_regional_rounds_may_be_swept() -> None:
    study, _ = wardround.load_study(
        changed(
            arms=[{"algorithm": "fedavg", "topology.regional_rounds": [1, 2, 4]}], evaluation={"seeds": {"count": 1}}
        )
    )
    assert [arm.topology.regional_rounds for arm in study.arms] == [1, 2, 4]
    assert [arm.name for arm in study.arms] == [f"fedavg[regional_rounds={n}]" for n in (1, 2, 4)]
