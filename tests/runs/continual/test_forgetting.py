"""What was forgotten at the old hospitals: both models, the same rows, none that the new one has seen."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tests.runs.continual.chained_studies import NEW, OLD, after, run, study
from wardround.core.errors import CheckError
from wardround.runs.execute import StudyRun
from wardround.runs.folder import RunFolder

FIVE = {"evaluation": {"seeds": {"first": 1, "count": 5}}}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def old(out: Path) -> StudyRun:
    return run(study("old", training={"rounds": 20}, **FIVE), out)


@pytest.fixture(scope="module")
def other(old: StudyRun, out: Path) -> StudyRun:
    """Other hospitals, and a learning rate with which much is forgotten."""
    arms = [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "pooled"}]
    return run(after(old, hospitals=NEW, arms=arms, training={"rounds": 20, "lr": 2.0}, **FIVE), out)


def predictions(later: StudyRun) -> pd.DataFrame:
    return pd.read_parquet(later.folder / "forgetting.parquet")


def test_the_old_model_predicts_what_the_old_run_saved(old: StudyRun, other: StudyRun) -> None:
    table = predictions(other)
    ours = table[(table["model"] == "old") & (table["arm"] == "fedavg")]
    saved = RunFolder(old.folder).predictions()
    keys = ["seed", "site", "row"]
    joined = ours.merge(saved[saved["arm"] == "fedavg"], on=keys, suffixes=("", "_saved"))
    assert len(joined) == len(saved) == len(ours)
    assert (joined["label"] == joined["label_saved"]).all()
    assert np.abs(joined["score"] - joined["score_saved"]).max() < 1e-6  # rows of all sites at once, or one by one


def test_figures_are_those_of_the_saved_predictions(other: StudyRun) -> None:
    table, content = predictions(other), other.results["start_from"]["fedavg"]["forgetting"]
    for site in OLD:
        differences = []
        for seed in range(1, 6):
            auc = {}
            for model in ("old", "new"):
                chosen = table[(table["arm"] == "fedavg") & (table["seed"] == seed) & (table["model"] == model)]
                rows = chosen[chosen["site"] == site]
                auc[model] = roc_auc_score(rows["label"], rows["score"])
            differences.append(auc["new"] - auc["old"])
        entry = content["sites"][site]["difference"]["auc"]
        assert entry["difference"] == pytest.approx(np.mean(differences))
        assert entry["sd"] == pytest.approx(np.std(differences, ddof=1))
        assert entry["comparisons"] == 3  # two hospitals and their mean
        assert entry["interval"][0] < entry["difference"] < entry["interval"][1]
    means = [content["sites"][site]["difference"]["auc"]["difference"] for site in OLD]
    assert content["mean"]["difference"]["auc"]["difference"] == pytest.approx(np.mean(means))


def test_what_is_forgotten_is_said(other: StudyRun) -> None:
    content = other.results["start_from"]["fedavg"]["forgetting"]
    verdicts = {site: content["sites"][site]["difference"]["auc"]["verdict"] for site in OLD}
    assert content["mean"]["difference"]["auc"]["verdict"] == "loses"
    assert content["sentence"].startswith("fedavg: forgot: -")
    worse = [site for site, verdict in verdicts.items() if verdict == "loses"]
    assert ("It is worse at" in content["sentence"]) == bool(worse)


def test_without_training_nothing_is_forgotten(old: StudyRun, tmp_path: Path) -> None:
    later = run(after(old, hospitals=NEW, training={"rounds": 1, "lr": 1e-12}, **FIVE), tmp_path)
    content = later.results["start_from"]["fedavg"]["forgetting"]
    assert content["mean"]["difference"]["auc"]["difference"] == 0
    assert content["mean"]["difference"]["auc"]["verdict"] == "no evidence"
    assert content["sentence"].startswith("fedavg: no evidence that it forgot: 0.0 points of AUC")


def test_hospitals_without_a_new_model_are_left_out(other: StudyRun) -> None:
    """Each new hospital has a model for itself in `local`, and none is that of an old hospital."""
    local = other.results["start_from"]["local"]
    assert local["forgetting"] is None
    assert local["not_measured"] == "no old hospital has a new model, or the new ones know all their test patients"
    assert set(other.results["start_from"]["pooled"]["forgetting"]["sites"]) == set(OLD)


def test_patients_on_whom_the_new_model_was_trained_are_left_out(old: StudyRun, tmp_path: Path) -> None:
    """Another split of the same patients: most old test rows train now."""
    document = after(old, start={"seed": 1}, evaluation={"seeds": {"first": 7, "count": 3}})
    with pytest.raises(CheckError, match="too good"):
        run(document, tmp_path)
    document["evaluation"]["accept"] = ["start-leak"]
    later = run(document, tmp_path)
    (notice,) = [notice for notice in later.results["notices"] if notice["code"] == "start-leak"]
    assert 0.3 < notice["counts"]["rows"] / notice["counts"]["of"] < 1  # three of four old patients trained
    content = later.results["start_from"]["fedavg"]
    assert content["both"] == list(OLD)
    saved = RunFolder(old.folder).predictions()
    saved = saved[saved["seed"] == 1]
    table, tested = predictions(later), RunFolder(later.folder).predictions()
    for seed in (7, 8, 9):
        for site in OLD:
            now = set(tested[(tested["seed"] == seed) & (tested["site"] == site)]["row"])
            before = set(saved[saved["site"] == site]["row"])
            scored = set(table[(table["seed"] == seed) & (table["site"] == site)]["row"])
            assert scored <= before & now  # equal rows of other patients may be fewer still
            assert len(before & now) - len(scored) <= 3
    left_out = content["forgetting"]["left_out"]
    assert set(left_out) == set(OLD)
    for site in OLD:
        rows = content["forgetting"]["sites"][site]["rows"] + left_out[site]
        assert rows == pytest.approx((saved["site"] == site).sum())
    # seeds that share one set of test rows are no new splits
    assert content["forgetting"]["sites"][OLD[0]]["difference"]["auc"]["method"].startswith("bootstrap over patients")


def test_a_common_scale_is_the_new_one(tmp_path: Path) -> None:
    """The new model was trained on rows in units of the new sites."""
    data = {"scale": "federated", "missing": "mean", "indicator": False, "public": False}
    first = run(study("first", data=data), tmp_path)
    later = run(after(first, hospitals=(*OLD, "va"), data=data), tmp_path)
    table, tested = predictions(later), RunFolder(later.folder).predictions()
    both = table[table["model"] == "new"].merge(tested, on=["seed", "site", "row"], suffixes=("", "_tested"))
    assert len(both) > 50
    # the same model on the same rows, but for how the old hospital fills its gaps
    assert np.median(np.abs(both["score"] - both["score_tested"])) < 1e-6


@pytest.mark.parametrize("gone", ["file", "rows"])
def test_it_is_said_when_the_old_rows_are_not_at_hand(gone: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"x": rng.normal(size=60), "y": np.tile([0, 1, 1], 20)})
    for name in ("first-a", "first-b", "later-a", "later-b"):
        rows.assign(x=rng.normal(size=60)).to_csv(tmp_path / f"{name}.csv", index=False)

    def document(name: str, **model: Any) -> dict[str, Any]:
        files = {hospital: str(tmp_path / f"{name}-{hospital}.csv") for hospital in ("a", "b")}
        data = {"source": "csv", "files": files, "target": "y"}
        return {
            "name": name,
            "data": data,
            "model": {"kind": "logistic", **model},
            "training": {"rounds": 2},
            "evaluation": {"seeds": {"count": 1}},
            "arms": [{"algorithm": "fedavg"}],
        }

    first = run(document("first"), tmp_path)
    if gone == "file":
        (tmp_path / "first-a.csv").unlink()
    else:
        rows.to_csv(tmp_path / "first-a.csv", index=False)
    later = run(document("later", start_from={"run": str(first.folder), "arm": "fedavg"}), tmp_path)
    content = later.results["start_from"]["fedavg"]
    assert content["forgetting"] is None
    expected = {
        "file": "the rows of the old run cannot be opened (there is no such file)",
        "rows": "the old run was trained on other data than are here now",
    }
    assert expected[gone] in content["not_measured"]
