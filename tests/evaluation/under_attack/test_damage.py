"""`adversaries` of results.json, recomputed by hand from the predictions of the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround

BACKDOOR = {"sites": ["va"], "kind": "backdoor-columns", "columns": {"chol": 800}, "target": "disease", "share": 0.6}
STUDY: dict[str, Any] = {
    "name": "damaged",
    "data": {"source": "heart"},
    "training": {"rounds": 8, "lr": 0.3},
    "evaluation": {"seeds": {"first": 1, "count": 3}, "threshold": 0.5, "reference": "fedavg"},
    "arms": [
        {"algorithm": "fedavg"},
        {"algorithm": "local"},
        {
            "name": "turned",
            "algorithm": "fedavg",
            "adversaries": [{"sites": ["va"], "kind": "sign-flip", "strength": 20}],
        },
        {"name": "spoilt", "algorithm": "fedavg", "adversaries": [BACKDOOR]},
        {"name": "untwinned", "algorithm": "fedprox", "adversaries": [{"sites": ["va"], "kind": "label-flip"}]},
        {"name": "alone", "algorithm": "local", "adversaries": [{"sites": ["va"], "kind": "label-flip"}]},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("damaged"))


def auc(part: pd.DataFrame) -> float:
    positive, negative = (part.loc[part["label"] == label, "score"].to_numpy() for label in (1, 0))
    pairs = positive[:, None] - negative[None, :]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_every_figure_is_that_of_the_sites_that_are_bad_in_no_arm(run: wardround.StudyRun) -> None:
    for arm in run.results["arms"].values():
        assert "va" not in arm["sites"]
    assert "va" not in run.results["decision"]["sites"]
    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    assert "va" in set(predictions["site"]), "its predictions are kept"
    honest = predictions[(predictions["arm"] == "fedavg") & (predictions["site"] != "va")]
    by_seed = [auc(part) for _, part in honest.groupby("seed")]
    assert run.results["arms"]["fedavg"]["metrics"]["auc"]["mean"] == pytest.approx(np.mean(by_seed))


def test_damage_is_the_paired_difference_from_the_twin(run: wardround.StudyRun) -> None:
    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    described = run.results["adversaries"]["arms"]
    figures = {
        key: auc(part) for key, part in predictions[predictions["site"] != "va"].groupby(["arm", "seed", "site"])
    }
    for name in ("turned", "spoilt"):
        assert described[name]["twin"] == "fedavg"
        damage = described[name]["damage"]["auc"]
        sites = [
            np.nanmean([figures[name, seed, site] - figures["fedavg", seed, site] for seed in (1, 2, 3)])
            for site in damage["sites"]
        ]
        assert list(damage["sites"]) == ["cleveland", "hungarian", "switzerland"]
        for told, expected in zip(damage["sites"].values(), sites, strict=True):
            assert told["difference"] == pytest.approx(expected)
        assert len({told["comparisons"] for told in damage["sites"].values()}) == 1, "one family"
        assert damage["mean"]["comparisons"] == 1
    assert described["turned"]["damage"]["auc"]["mean"]["difference"] < -0.05
    assert described["untwinned"]["twin"] is None
    assert described["untwinned"]["damage"] == {}


def test_arms_that_nobody_else_can_spoil_are_left_out(run: wardround.StudyRun) -> None:
    assert list(run.results["adversaries"]["arms"]) == ["turned", "spoilt", "untwinned"]
    assert run.results["answer"][0]["about"] == "adversaries"
    assert run.results["answer"][0]["text"].startswith("This study simulates adversaries: va is bad in 3 of 6 ways")


def test_patients_of_bad_sites_are_told_apart(run: wardround.StudyRun) -> None:
    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    own = predictions[(predictions["arm"] == "turned") & (predictions["site"] == "va")]
    by_seed = [auc(part) for _, part in own.groupby("seed")]
    told = run.results["adversaries"]["arms"]["turned"]["at_bad_sites"]["va"]
    assert told["mean"] == pytest.approx(np.mean(by_seed))


def test_a_backdoor_is_measured_with_and_without_its_trigger_and_on_an_honest_model(run: wardround.StudyRun) -> None:
    triggered, plain = (pd.read_parquet(run.folder / f"{name}.parquet") for name in ("triggered", "predictions"))
    target = run.results["classes"].index("disease")

    def rate(table: pd.DataFrame, arm: str) -> float:
        rows = table[(table["arm"] == arm) & (table["site"] != "va") & (table["label"] != target)]
        called = (rows["score"] >= 0.5).astype(int) == target
        return float(called.groupby(rows["seed"]).mean().mean())

    (told,) = run.results["adversaries"]["arms"]["spoilt"]["backdoors"]
    assert told["success"]["mean"] == pytest.approx(rate(triggered, "spoilt"))
    assert told["without_trigger"]["mean"] == pytest.approx(rate(plain, "spoilt"))
    assert told["honest_model"]["mean"] == pytest.approx(rate(triggered, "fedavg"))
    assert told["success"]["mean"] > told["without_trigger"]["mean"] + 0.2
    assert run.results["adversaries"]["arms"]["turned"]["backdoors"] == []


def test_one_seed_has_intervals_over_patients(tmp_path: Path) -> None:
    one = wardround.run_study({**STUDY, "evaluation": {"seeds": {"count": 1}}, "training": {"rounds": 2}}, tmp_path)
    mean = one.results["adversaries"]["arms"]["turned"]["damage"]["auc"]["mean"]
    assert mean["interval"][0] < mean["difference"] < mean["interval"][1]
