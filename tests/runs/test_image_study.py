"""A whole study of images with several findings: every number in it from saved predictions, by scikit-learn alone."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import wardround
from tests.evaluation.finding_predictions import by_scikit_learn, macro_by_scikit_learn
from tests.noticed import noticed
from tests.representatives import represented
from wardround.algorithms import ALGORITHMS
from wardround.runs import checkpoint
from wardround.runs.execute import StudyRun, execute
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.tasks.class_metrics import METRICS

STUDY: dict[str, Any] = {
    "name": "phantoms",
    "data": {"source": "phantom", "rows": 240, "size": 32, "hospitals": 3},
    "sites": {"partition": "by-hospital"},
    "model": {"kind": "residual", "widths": [4, 8], "dropout": 0.1},
    "training": {
        "rounds": 2,
        "batch_size": 16,
        "lr": 0.05,
        "class_weights": "balanced",
        "oversample": 0.5,
        "augment": {"flip": "horizontal", "rotate": 10.0, "crop": 0.1, "noise": 0.02},
    },
    "evaluation": {
        "seeds": {"count": 1},
        "validation_share": 0.25,
        "on_training": True,
        "samples": 2,
        "reference": "fedavg",
    },
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "pooled"}],
}
ARMS = ("fedavg", "local", "pooled")
SIDES = ("predictions", "validation")


def planned() -> Plan:
    return wardround.load_plan(*wardround.load_study(STUDY))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("runs"))


class Told:
    """Saved predictions of one arm, as arrays."""

    def __init__(self, run: StudyRun, arm: str, side: str = "predictions") -> None:
        self.names = run.results["findings"]
        table = pd.read_parquet(run.folder / f"{side}.parquet")
        self.table = table[table["arm"] == arm].reset_index(drop=True)
        self.label = self.table[[f"label_{name}" for name in self.names]].to_numpy()
        self.score = self.table[[f"score_{name}" for name in self.names]].to_numpy()

    def thresholds(self) -> list[float]:
        """The highest score at which F1 is best; one half where no row has the finding."""
        cuts = []
        for f in range(len(self.names)):
            label, score = self.label[:, f], self.score[:, f]
            candidates = np.unique(score)[::-1]
            if not label.any():
                cuts.append(0.5)
                continue
            hits = np.array([(label[score >= cut]).sum() for cut in candidates])
            called = np.array([(score >= cut).sum() for cut in candidates])
            cuts.append(float(candidates[(2 * hits / (called + label.sum())).argmax()]))
        return cuts


def figures(content: dict[str, Any]) -> dict[str, float]:
    return {name: np.nan if figure["mean"] is None else figure["mean"] for name, figure in content.items()}


def same(expected: dict[str, float]) -> Any:
    return pytest.approx(expected, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("arm", represented(ARMS, by=["fedavg"]))
def test_every_figure_can_be_computed_from_saved_predictions(run: StudyRun, arm: str) -> None:
    from sklearn import metrics as sk

    predictions, content = Told(run, arm), run.results["arms"][arm]
    cuts = Told(run, arm, "validation").thresholds()
    assert figures(content["metrics"]) == same(macro_by_scikit_learn(predictions.label, predictions.score, cuts))
    for site, there in predictions.table.groupby("site").groups.items():
        expected = macro_by_scikit_learn(predictions.label[there], predictions.score[there], cuts)
        assert figures(content["sites"][site]) == same(expected)
    assert list(content["findings"]) == predictions.names
    for f, name in enumerate(predictions.names):
        described, label, score = content["findings"][name], predictions.label[:, f], predictions.score[:, f]
        assert described["threshold"]["mean"] == pytest.approx(cuts[f], abs=1e-9)
        assert (described["rows"], described["positives"]) == (len(label), label.sum())
        (tn, fp), (fn, tp) = sk.confusion_matrix(label, score >= np.float64(cuts[f]), labels=[0, 1])
        assert described["confusion"] == {"tp": tp, "fp": fp, "fn": fn, "tn": tn}
        assert figures(described["metrics"]) == same(by_scikit_learn(label, score, cuts[f]))
        for site, there in predictions.table.groupby("site").groups.items():
            expected = by_scikit_learn(label[there], score[there], cuts[f])
            mine = described["sites"][site]
            assert mine["positives"] == label[there].sum()
            assert figures(mine["metrics"]) == same({metric: expected[metric] for metric in mine["metrics"]})
    assert content["left_out"] == [
        name for f, name in enumerate(predictions.names) if not predictions.label[:, f].any()
    ]


@pytest.mark.parametrize("arm", represented(ARMS, by=["local"]))
def test_subgroups_are_those_of_the_rows_patients(run: StudyRun, arm: str) -> None:
    predictions, cuts = Told(run, arm), Told(run, arm, "validation").thresholds()
    groups = pd.read_parquet(run.folder / "groups.parquet").set_index("row").loc[predictions.table["row"]]
    subgroups = run.results["arms"][arm]["subgroups"]
    assert set(subgroups) == {"sex", "view", "age"}
    for kind, values in subgroups.items():
        for value, content in values.items():
            there = (groups[kind] == value).to_numpy()
            assert there.any()
            if there.sum() < 10:
                assert content == {"suppressed": True}
                continue
            assert content["rows"] == there.sum()
            assert figures(content["metrics"]) == same(
                macro_by_scikit_learn(predictions.label[there], predictions.score[there], cuts)
            )


def test_differences_and_benefits_are_those_of_the_figures(run: StudyRun) -> None:
    arms = run.results["arms"]
    assert {(test["arm"], test["reference"]) for test in run.results["tests"]} == {
        ("local", "fedavg"),
        ("pooled", "fedavg"),
    }
    for test in run.results["tests"]:
        assert test["within_sites"] == (test["metric"] == "auc")
        where = "within_sites" if test["within_sites"] else "metrics"
        means = [arms[test[key]][where][test["metric"]]["mean"] for key in ("arm", "reference")]
        assert test["difference"] == pytest.approx(means[0] - means[1], abs=1e-9)
        assert test["interval"][0] <= test["interval"][1]
    for entry in run.results["benefit"]:
        means = [arms[entry[key]]["sites"][entry["site"]][entry["metric"]]["mean"] for key in ("arm", "against")]
        if None not in means:
            assert entry["difference"] == pytest.approx(means[0] - means[1], abs=1e-9)
    for arm in arms.values():
        by_site = {name: site["auc"]["mean"] for name, site in arm["sites"].items()}
        assert arm["spread"]["sd"] == pytest.approx(np.std(list(by_site.values()), ddof=1), abs=1e-9)
        worst = min(by_site, key=lambda name: by_site[name])
        assert arm["spread"]["lowest"] == {"site": worst, "auc": pytest.approx(by_site[worst])}
        for metric in METRICS:
            low, high = arm["metrics"][metric]["interval"]
            assert low < arm["metrics"][metric]["mean"] < high
    assert run.results["interval"]["method"] == "bootstrap over patients"
    assert run.results["primary_metric"] == "auc"


@pytest.mark.parametrize("arm", ARMS)
def test_the_last_points_of_the_curves_are_those_of_saved_predictions(run: StudyRun, arm: str) -> None:
    """Curves call at one half; no label of a phantom is unknown, so that rows and findings give one accuracy."""
    from sklearn import metrics as sk

    curves = run.results["curves"][arm]
    assert curves["round"] == [1, 2]
    for side, prefix in (("predictions", "test"), ("validation", "validation")):
        predictions = Told(run, arm, side)
        aucs = [
            sk.roc_auc_score(predictions.label[:, f], predictions.score[:, f])
            for f in range(len(predictions.names))
            if 0 < predictions.label[:, f].sum() < len(predictions.label)
        ]
        assert curves[f"{prefix}_auc"][-1] == pytest.approx(np.mean(aucs), abs=1e-6)
        right = (predictions.score >= 0.5) == (predictions.label == 1)
        assert curves[f"{prefix}_accuracy"][-1] == pytest.approx(right.mean(), abs=1e-6)
        loss = sk.log_loss(predictions.label.ravel(), predictions.score.ravel().astype(float))
        assert curves[f"{prefix}_loss"][-1] == pytest.approx(loss, abs=1e-5)
    final = run.results["arms"][arm]["final"]
    assert set(final) == {f"{side}_{name}" for side in ("training", "validation") for name in ("accuracy", "loss")}
    assert final["validation_accuracy"] == curves["validation_accuracy"][-1]
    assert final["training_loss"] == curves["training_loss"][-1]
    assert curves["training_loss"][0] is None  # after the last round only


@pytest.mark.parametrize("arm", ["fedavg", "pooled"])
def test_saved_weights_give_the_saved_scores_and_the_figures_on_training_rows(run: StudyRun, arm: str) -> None:
    plan = planned()
    trial = plan.trial(plan.study.arm(arm), 42)
    leaves = RunFolder(run.folder).load_model(arm, 42)
    params = {name.removeprefix("server/params/"): leaf for name, leaf in leaves.items() if "server/params/" in name}
    predictions = Told(run, arm)
    hits, losses = [], []
    for site in trial.scored:
        x, _ = site.test.everything(torch.float32)
        score = torch.sigmoid(trial.model.logits(params, {}, x, None)[0])
        saved = predictions.score[(predictions.table["site"] == site.name).to_numpy()]
        np.testing.assert_allclose(score.numpy(), saved, atol=1e-6)
        x, y = site.train.everything(torch.float32)
        logits = trial.model.logits(params, {}, x, None)[0]
        hits.append(((logits >= 0) == (y == 1)).double().mean(1))
        each = torch.nn.functional.binary_cross_entropy_with_logits(logits, y.float(), reduction="none")
        losses.append(each.mean(1))
    final = run.results["arms"][arm]["final"]
    assert final["training_accuracy"] == pytest.approx(float(torch.cat(hits).mean()), abs=1e-6)
    assert final["training_loss"] == pytest.approx(float(torch.cat(losses).mean()), abs=1e-5)


def test_no_patient_is_on_two_sides_and_rows_are_those_of_the_source(run: StudyRun) -> None:
    plan = planned()
    records = plan.cohort_of(plan.study.arms[0]).records
    groups = pd.read_parquet(run.folder / "groups.parquet").set_index("row")["patient"]
    assert records.patient is not None
    assert groups.groupby(records.patient).nunique().max() == 1
    seen = {}
    for side in SIDES:
        predictions = Told(run, "fedavg", side)
        np.testing.assert_array_equal(predictions.label, records.target[predictions.table["row"]])
        assert predictions.table["site"].tolist() == records.hospital[predictions.table["row"]].tolist()
        seen[side] = set(groups[predictions.table["row"]])
        for arm in ARMS[1:]:
            assert Told(run, arm, side).table["row"].tolist() == predictions.table["row"].tolist()
    assert not seen["predictions"] & seen["validation"]
    splits = plan.splits(plan.study.arms[0], 42)
    trained = set(groups[np.concatenate([split.train for split in splits])])
    assert not trained & (seen["predictions"] | seen["validation"])


def test_what_is_said_of_the_sites_is_counted_in_the_source(run: StudyRun) -> None:
    plan = planned()
    records = plan.cohort_of(plan.study.arms[0]).records
    assert records.patient is not None
    (described,) = run.results["sites"]
    assert (described["rows"], described["patients"]) == (240, len(set(records.patient)))
    for site, content in described["sites"].items():
        there = records.hospital == site
        assert content["train"] + content["validation"] + content["test"] == there.sum()
        present = records.target[there] == 1
        expected = dict(zip(records.classes, present.sum(axis=0).tolist(), strict=True))
        assert content["classes"] == expected | {"no finding": int((~present.any(axis=1)).sum())}
        assert content["age"]["mean"] == pytest.approx(records.groups["age"][there].mean())
    assert run.results["synthetic"]


def test_samples_are_training_images_of_each_site_with_their_findings(run: StudyRun) -> None:
    plan = planned()
    records = plan.cohort_of(plan.study.arms[0]).records
    assert isinstance(records.features, np.ndarray)
    samples = RunFolder(run.folder).samples()
    splits = plan.splits(plan.study.arms[0], 42)
    assert samples["site"].tolist() == [split.site for split in splits for _ in range(2)]
    row_of = {image.tobytes(): row for row, image in enumerate(records.features)}
    trained = {split.site: set(split.train.tolist()) for split in splits}
    for image, site, caption in zip(samples["images"], samples["site"], samples["caption"], strict=True):
        row = row_of[image.tobytes()]
        assert row in trained[str(site)]
        names = [name for name, there in zip(records.classes, records.target[row] == 1, strict=True) if there]
        assert caption == (", ".join(names) or "no finding")


def test_wrong_calls_are_test_images_on_the_wrong_side_of_the_threshold(run: StudyRun) -> None:
    """Against the saved predictions and the study's own images."""
    calls = RunFolder(run.folder).wrong_calls()
    records = planned().cohort_of(planned().study.arms[0]).records
    assert isinstance(records.features, np.ndarray)
    row_of = {image[0].tobytes(): row for row, image in enumerate(records.features)}
    assert 4 < len(calls["images"]) <= 12
    assert set(calls["kind"]) == {"false positive", "false negative"}
    predictions = pd.read_parquet(run.folder / "predictions.parquet").set_index(["arm", "row"])
    arms = set()
    for number, (image, finding) in enumerate(zip(calls["images"], calls["finding"], strict=True)):
        row, kind = row_of[image.tobytes()], calls["kind"][number]
        own = predictions.xs(row, level="row")
        [arm] = own.index[np.isclose(own[f"score_{finding}"], calls["score"][number], atol=1e-7)][:1]
        arms.add(arm)
        assert own.loc[arm, f"label_{finding}"] == (kind == "false negative")
        assert (calls["score"][number] >= calls["threshold"][number]) == (kind == "false positive")
        threshold = run.results["arms"][arm]["findings"][finding]["threshold"]["mean"]
        assert calls["threshold"][number] == pytest.approx(threshold)
    assert len(arms) == 1
    for kind in ("false positive", "false negative"):
        assert len(set(calls["finding"][calls["kind"] == kind])) == (calls["kind"] == kind).sum()
    assert calls["heat"].shape == calls["images"].shape
    assert (calls["heat"] >= 0).all()
    missed = {number for number, kind in enumerate(calls["kind"]) if kind == "false negative"}
    assert set(calls["boxes"][:, 0].astype(int)) == missed  # a phantom's finding has a box, and what is not there none


def saved_bytes(folder: Path) -> dict[str, bytes]:
    """All that is computed; results.json and records.parquet say how long it took as well."""
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".parquet", ".safetensors", ".npz")]
    names = [path for path in paths if path.name != "records.parquet"]
    assert {path.name for path in names} >= {"predictions.parquet", "validation.parquet", "seed-42.safetensors"}
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


@pytest.mark.slow
def test_two_runs_have_the_same_bytes(run: StudyRun, tmp_path: Path) -> None:
    assert saved_bytes(wardround.run_study(STUDY, tmp_path).folder) == saved_bytes(run.folder)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every round."""
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(run: StudyRun, tmp_path: Path, rounds: int) -> None:
    plan = planned()
    folder = RunFolder.of(plan.study, tmp_path)
    steps = execute(plan, folder)
    for _ in range(rounds):
        next(steps)
    steps.close()
    assert not folder.complete
    wardround.resume_study(folder.path)
    assert saved_bytes(folder.path) == saved_bytes(run.folder)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(run: StudyRun, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps(STUDY))
    code = f"""
import json, wardround
from wardround.runs import checkpoint
checkpoint.SHORTEST_PAUSE, checkpoint.SHARE_OF_TIME = 0.0, 1e9
wardround.run_study(json.load(open({str(tmp_path / "study.json")!r})), {str(tmp_path)!r},
                    progress=lambda step: print(step.done, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(3):  # of six rounds
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert not list(tmp_path.glob("*/results.json"))
    assert saved_bytes(wardround.run_study(STUDY, tmp_path).folder) == saved_bytes(run.folder)


@pytest.mark.slow
def test_every_algorithm_trains_on_findings(tmp_path: Path) -> None:
    raw = {
        **STUDY,
        "data": {**STUDY["data"], "rows": 160},
        "training": {"rounds": 1, "lr": 0.05},
        "arms": [{"algorithm": name} for name in ALGORITHMS if name != "split"],  # which needs parties
    }
    content = wardround.run_study(raw, tmp_path).results
    assert set(content["arms"]) == set(ALGORITHMS) - {"split"}
    for arm in content["arms"].values():
        assert all(arm["metrics"][metric]["mean"] is not None for metric in METRICS)
        assert arm["final"]["training_loss"] > 0
        assert not noticed(content, "diverged")


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", pytest.param("fedbn", marks=pytest.mark.slow)])
def test_a_model_with_statistics_of_its_own_at_each_site_trains_on_findings(tmp_path: Path, norm: str) -> None:
    raw = {**STUDY, "model": {"kind": "residual", "widths": [4, 8], "norm": norm}}
    raw["training"] = {"rounds": 1, "lr": 0.05, "batch_size": 17}
    content = wardround.run_study(raw, tmp_path).results
    for arm in content["arms"].values():
        assert 0 < arm["metrics"]["auc"]["mean"] < 1
