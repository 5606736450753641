"""A whole study: the run folder, its contract, and every number in it from saved predictions."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import wardround
from wardround.core.errors import CheckError, MachineError, RunError, StudyError
from wardround.core.notices import Notice
from wardround.data.checks.before_training import check_splits
from wardround.data.cohort import split_sites
from wardround.runs import plan
from wardround.runs.execute import Progress, StudyRun, execute
from wardround.runs.folder import RunFolder
from wardround.tasks.class_metrics import METRICS

STUDY: dict[str, Any] = {
    "name": "small",
    "question": "Is it quick?",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "training": {"rounds": 3, "local_epochs": 2, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "fedavg", "validation_share": 0.1, "threshold": 0.5},
    "arms": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "mu": [0.1, 1]},
        {"algorithm": "local"},
        {"algorithm": "pooled"},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("runs"))


def test_any_number_of_processes_looks_at_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MANY_SETS", 2)
    drawn = {"name": "disjoint", "text": "other rows", "sites.partition": "iid", "sites.count": 3}
    study = {**STUDY, "evaluation": {**STUDY["evaluation"], "seeds": {"first": 1, "count": 3}}, "variants": [drawn]}
    alone, together = (wardround.load_plan(*wardround.load_study(study)) for _ in range(2))
    alone.check_all()
    together.check_all(2)
    assert together.check_notices == alone.check_notices
    assert [len(of_seed) for of_seed in alone.check_notices.values()] == [3, 3]
    for name in alone.check_notices:
        for seed in (1, 2, 3):
            sites = [each.sites_of(name, seed) for each in (alone, together)]
            assert [site.name for site in sites[0]] == [site.name for site in sites[1]]
            for ours, theirs in zip(*sites, strict=True):
                assert torch.equal(ours.train.x, theirs.train.x)
                assert np.array_equal(ours.test_rows, theirs.test_rows)


@pytest.mark.parametrize("refused", [2, 3])
def test_the_first_refusal_is_the_same_with_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Seed 2 is looked at by the other process, seed 3 by this one; with seed 4 rows cannot even be drawn."""
    draw, judge = split_sites, check_splits
    drawn: list[int] = []

    def drawing(cohort: Any, partitioner: Any, evaluation: Any, seed: int) -> Any:
        if seed == 4:
            raise StudyError("sites", "there are no rows with this seed", "Take another.")
        drawn.append(seed)
        return draw(cohort, partitioner, evaluation, seed)

    def judging(*args: Any) -> Any:
        leak = Notice("leak", "error", f"drawn-with-{drawn[-1]}")
        return (*judge(*args), *([leak] if drawn[-1] >= refused else []))

    monkeypatch.setattr(plan, "MANY_SETS", 2)
    monkeypatch.setattr(plan, "split_sites", drawing)
    monkeypatch.setattr(plan, "check_splits", judging)
    study = {**STUDY, "evaluation": {**STUDY["evaluation"], "seeds": {"first": 1, "count": 4}}}
    messages = []
    for workers in (1, 2):
        with pytest.raises(CheckError) as error:
            wardround.load_plan(*wardround.load_study(study)).check_all(workers)
        messages.append(str(error.value))
    assert messages[1] == messages[0]
    assert messages[0].startswith(f"drawn-with-{refused}: leak")


def test_the_folder_is_named_by_the_study_and_its_hash_and_holds_everything(run: StudyRun) -> None:
    study, _ = wardround.load_study(STUDY)
    assert run.folder.name == f"small-{study.hash[:8]}"
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {
        "study.toml",
        "environment.json",
        "records.parquet",
        "predictions.parquet",
        "results.json",
        "models",
    }
    assert not [path for path in run.folder.rglob("*") if path.name.endswith(".partial")]
    again, _ = wardround.load_study(run.folder / "study.toml")
    assert again.hash == study.hash


def test_results_have_the_documented_skeleton(run: StudyRun) -> None:
    results = json.loads((run.folder / "results.json").read_text())
    assert results["schema_version"] == 1
    assert list(results["arms"]) == ["fedavg", "fedprox[mu=0.1]", "fedprox[mu=1.0]", "local", "pooled"]
    for arm in results["arms"].values():
        assert set(arm["metrics"]) == set(METRICS)
        assert set(arm["metrics"]["accuracy"]) == {"mean", "sd", "interval", "seeds"}
        assert set(arm["sites"]) == {"cleveland", "hungarian"}
        assert set(arm["cost"]) >= {"rounds", "bytes", "seconds"}
        assert set(arm["subgroups"]) == {"sex", "age"}
    assert {test["arm"] for test in results["tests"]} == set(results["arms"]) - {"fedavg"}
    assert all(set(notice) >= {"code", "severity", "text"} for notice in results["notices"])
    assert results["sites"][0]["heterogeneity"]["gini"] >= 0


def test_every_figure_can_be_computed_from_the_saved_predictions(run: StudyRun) -> None:
    from sklearn.metrics import accuracy_score, roc_auc_score

    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    assert list(predictions.columns) == ["arm", "seed", "site", "row", "label", "score"]
    for name, arm in run.results["arms"].items():
        mine = predictions[predictions["arm"] == name]
        accuracy = [accuracy_score(p["label"], p["score"] >= 0.5) for _, p in mine.groupby("seed")]
        auc = [roc_auc_score(p["label"], p["score"]) for _, p in mine.groupby("seed")]
        assert arm["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(accuracy))
        assert arm["metrics"]["accuracy"]["sd"] == pytest.approx(np.std(accuracy, ddof=1))
        assert arm["metrics"]["auc"]["mean"] == pytest.approx(np.mean(auc))
        for site, figures in arm["sites"].items():
            there = [roc_auc_score(p["label"], p["score"]) for _, p in mine[mine["site"] == site].groupby("seed")]
            assert figures["auc"]["mean"] == pytest.approx(np.mean(there))


def _mean_over_sites(part: pd.DataFrame, metric: Any) -> list[float]:
    return [
        float(np.mean([metric(q) for _, q in p.groupby("site") if q["label"].nunique() == 2]))
        for _, p in part.groupby("seed")
    ]


def test_every_test_can_be_computed_from_the_saved_predictions(run: StudyRun) -> None:
    """Both p-values, the interval and the corrections, with SciPy and scikit-learn alone."""
    from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, log_loss, roc_auc_score

    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    metrics: dict[str, Any] = {
        "accuracy": lambda p: accuracy_score(p["label"], p["score"] >= 0.5),
        "auc": lambda p: roc_auc_score(p["label"], p["score"]),
        "f1": lambda p: f1_score(p["label"], p["score"] >= 0.5),
        "brier": lambda p: brier_score_loss(p["label"], p["score"]),
        "loss": lambda p: log_loss(p["label"], p["score"].astype(float)),
    }
    for name, metric in metrics.items():
        figures = {arm: [metric(p) for _, p in part.groupby("seed")] for arm, part in predictions.groupby("arm")}
        tests = [test for test in run.results["tests"] if test["metric"] == name]
        assert len(tests) == 4
        sites = (
            {arm: _mean_over_sites(part, metric) for arm, part in predictions.groupby("arm")} if name == "auc" else {}
        )
        for test in tests:
            # where sites have models of their own, scores of two sites are not of one scale
            assert test["within_sites"] == (name == "auc")
            chosen = sites if test["within_sites"] else figures
            a, b = np.array(chosen[test["arm"]]), np.array(chosen[test["reference"]])
            difference, count = a - b, len(a)
            assert test["difference"] == pytest.approx(difference.mean(), abs=1e-6)
            # test share 0.2, validation share 0.1: Nadeau and Bengio's variance of the mean
            error = np.sqrt((1 / count + 0.2 / 0.7) * difference.var(ddof=1))
            if error < 1e-12:
                continue
            bound = np.inf if name in ("brier", "loss") else 1.0  # as far as figures can differ
            p_value = 2 * stats.t.sf(abs(difference.mean()) / error, count - 1)
            alone = {"interval": test["uncorrected"]["interval"], "p_value": test["uncorrected"]["p_value"]}
            for outcome, comparisons in ((alone, 1), (test, test["comparisons"])):
                half = stats.t.ppf(1 - 0.05 / comparisons / 2, count - 1) * error
                limits = np.clip([difference.mean() - half, difference.mean() + half], -bound, bound)
                assert outcome["interval"] == pytest.approx(limits, abs=1e-3 * max(1, half))
                assert outcome["p_value"] == pytest.approx(min(1, comparisons * p_value), abs=1e-3 * comparisons)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # two seeds may be nearly alike
                assert test["p_value_independent"] == pytest.approx(stats.ttest_ind(a, b).pvalue, abs=1e-4)
                assert test["p_value_paired"] == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=1e-4)
        # with every arm's differences at each site and in the mean: one family
        everything = [
            e for key in ("tests", "benefit", "site_differences") for e in run.results[key] if e["metric"] == name
        ]
        distinct = {
            (round(abs(e["difference"]), 12), round(e["standard_error"], 12)) for e in everything if e["interval"]
        }
        assert {e["comparisons"] for e in everything} == {len(distinct - {(0.0, 0.0)})}


def test_all_arms_are_tested_on_the_same_rows(run: StudyRun) -> None:
    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    rows = {arm: part.set_index(["seed", "site", "row"])["label"] for arm, part in predictions.groupby("arm")}
    for other in rows.values():
        pd.testing.assert_series_equal(rows["fedavg"], other)


def test_records_have_one_row_per_arm_seed_and_round(run: StudyRun) -> None:
    records = run.records()
    assert len(records) == 5 * 2 * 3
    assert records.groupby(["arm", "seed"])["round"].apply(list).map(lambda r: r == [1, 2, 3]).all()
    assert {"loss", "update_norm", "divergence", "change", "test_accuracy", "validation_loss"} <= set(records.columns)


def test_bytes_are_those_of_the_tensors_that_travel(run: StudyRun) -> None:
    """Two sites, three rounds, float32: down and up each hold every parameter once; FedProx is sent mu as well.

    The seeds' training rows differ in which categories occur, and so their models in size: costs are means over seeds.
    """
    sizes = [sum(leaf.numel() for leaf in RunFolder(run.folder).load_model("local", s).values()) / 2 for s in (1, 2)]
    parameters = sum(sizes) / 2
    arms = run.results["arms"]
    assert arms["fedavg"]["cost"]["bytes_up"] == 2 * 3 * 4 * parameters
    assert arms["fedavg"]["cost"]["bytes_down"] == 2 * 3 * 4 * parameters
    assert arms["fedprox[mu=0.1]"]["cost"]["bytes_down"] == 2 * 3 * 4 * (parameters + 1)
    assert arms["local"]["cost"]["bytes"] == 0
    assert arms["pooled"]["cost"]["bytes"] == 0


def test_a_saved_model_gives_the_saved_predictions(run: StudyRun) -> None:
    study, known = wardround.load_study(STUDY)
    plan = wardround.load_plan(study, known)
    trial = plan.trial(study.arm("fedavg"), 2)
    leaves = RunFolder(run.folder).load_model("fedavg", 2)
    site = trial.scored[1]
    logits = site.test.x @ leaves["server/params/weight"].T + leaves["server/params/bias"]
    saved = pd.read_parquet(run.folder / "predictions.parquet").query(
        "arm == 'fedavg' and seed == 2 and site == 'hungarian'"
    )
    np.testing.assert_allclose(torch.sigmoid(logits[:, 0]).numpy(), saved["score"], atol=1e-6)


def test_the_same_study_gives_the_same_predictions(run: StudyRun, tmp_path: Path) -> None:
    again = wardround.run_study(STUDY, tmp_path)
    first, second = (pd.read_parquet(folder / "predictions.parquet") for folder in (run.folder, again.folder))
    pd.testing.assert_frame_equal(first, second, check_exact=True)


def test_a_complete_run_is_shown_not_repeated_and_other_data_are_refused(run: StudyRun) -> None:
    before = (run.folder / "results.json").stat().st_mtime_ns
    shown = wardround.run_study(STUDY, run.folder.parent)
    assert not shown.fresh
    assert (run.folder / "results.json").stat().st_mtime_ns == before
    environment = run.folder / "environment.json"
    original = environment.read_text()
    environment.write_text(original.replace('"data_fingerprint": "', '"data_fingerprint": "0'))
    with pytest.raises(RunError, match="on other data"):
        wardround.run_study(STUDY, run.folder.parent)
    environment.write_text(original)


def test_progress_counts_every_round(tmp_path: Path) -> None:
    seen: list[Progress] = []
    wardround.run_study(STUDY, tmp_path, changes={"evaluation.seeds.count": 1}, progress=seen.append)
    # one stack for the two values of mu, one each for the three other arms
    assert [step.done for step in seen] == [1, 2, 3, 5, 7, 9, 10, 11, 12, 13, 14, 15]
    assert {step.total for step in seen} == {15}


def test_two_processes_cannot_run_one_folder(tmp_path: Path) -> None:
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    folder = RunFolder.of(plan.study, tmp_path)
    with folder.locked(), pytest.raises(RunError, match="another process"):
        next(execute(plan, folder))


def test_what_checks_refuse_is_never_trained_and_leaves_no_folder(tmp_path: Path) -> None:
    raw = {**STUDY, "sites": {"partition": "age-windows", "disjoint": False}}
    wardround.run_study(raw, tmp_path / "overlap", changes={"training.rounds": 1})  # by design: a warning
    csv = "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40))
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(csv)
    files = {name: str(tmp_path / f"{name}.csv") for name in ("a", "b")}
    copied = {**STUDY, "data": {"source": "csv", "target": "y", "files": files}}
    with pytest.raises(CheckError) as refused:
        wardround.run_study(copied, tmp_path / "copied")
    assert refused.value.notice is not None
    assert (refused.value.notice.code, refused.value.notice.counts["rows"]) == ("shared-rows", 40)
    assert not (tmp_path / "copied").exists()


def test_subgroups_under_ten_rows_are_suppressed(run: StudyRun) -> None:
    predictions = pd.read_parquet(run.folder / "predictions.parquet")
    groups = pd.read_parquet(run.folder / "groups.parquet")
    joined = predictions[predictions["arm"] == "fedavg"].merge(groups, on="row")
    for kind in ("sex", "age"):
        for value, content in run.results["arms"]["fedavg"]["subgroups"][kind].items():
            largest = joined[joined[kind] == value].groupby("seed").size().max()
            assert ("suppressed" in content) == (largest < 10)


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MachineError, match="no usable CUDA device"):
        wardround.run_study(STUDY, tmp_path, changes={"training.device": "cuda"})


@pytest.mark.slow
def test_images_run_through_the_same_path(tmp_path: Path) -> None:
    from wardround.data.records import Records
    from wardround.data.sources import Source

    def stripes() -> Source:
        """Three classes: a bright band at one of three heights."""
        rng = np.random.default_rng(0)
        label = np.arange(120) % 3
        images = rng.integers(0, 80, (120, 1, 12, 12), dtype=np.uint8)
        for image, where in zip(images, label, strict=True):
            image[0, 4 * where : 4 * where + 4] += 150
        return Source(lambda: Records(images, label, ("low", "mid", "high"), np.array(["all"] * 120, dtype=object)))

    raw = {
        "name": "stripes",
        "data": {"source": "stripes"},
        "sites": {"partition": "iid", "count": 3},
        "model": {"kind": "cnn", "channels": [4, 8], "hidden": 16, "dropout": 0.2},
        "training": {"rounds": 6, "local_epochs": 2, "batch_size": 8, "lr": 0.1},
        "arms": [{"algorithm": "fedavg"}],
    }
    run = wardround.run_study(raw, tmp_path, sources={"stripes": stripes})
    assert run.results["arms"]["fedavg"]["metrics"]["accuracy"]["mean"] > 0.8
    columns = pd.read_parquet(run.folder / "predictions.parquet").columns
    assert list(columns)[-4:] == ["label", "score_low", "score_mid", "score_high"]


@pytest.mark.slow
def test_three_lines_from_a_notebook_work_in_a_fresh_process(tmp_path: Path) -> None:
    code = """
import wardround
run = wardround.run_study("heart-fedprox", quick=True, changes={"training.rounds": 1})
print(run.table().shape)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(36, 10)"  # 11 arms and the selected one, in three variants
