"""[contribution] in whole runs: what is refused, what is estimated, and that a resumed run is the same."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wardround
from tests.report.test_report import page_of
from wardround.core.errors import StudyError
from wardround.deployment import refuse_undeployable
from wardround.report import read_evidence
from wardround.report.sections.robustness.contribution import by_hospital, contribution_table, lines, terminal_lines
from wardround.runs.catalog import load_study
from wardround.runs.contribution.reconstruction import put_together, summed_updates
from wardround.runs.execute import execute
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan
from wardround.training.rounds import start


def study(method: str = "leave-one-out", hospitals: int = 4, **more: Any) -> dict[str, Any]:
    source = {"source": "synthetic", "count": hospitals, "iid": True, "features": 4, "classes": 2, "largest": 80}
    document: dict[str, Any] = {
        "name": "adds",
        "data": source,
        "training": {"rounds": 3},
        "evaluation": {"validation_share": 0.3, "seeds": {"first": 1, "count": 2}},
        "contribution": {"method": method},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
    }
    for name, value in more.items():
        document[name] = document.get(name, {}) | value if isinstance(value, dict) else value
    return document


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, wardround.StudyRun]:
    folder = tmp_path_factory.mktemp("adds")
    return {
        method: wardround.run_study(study(method), folder, workers=1)
        for method in ("leave-one-out", "shapley", "reconstruction")
    }


def test_no_number_of_the_study_s_own_arms_changes(runs: dict[str, wardround.StudyRun], tmp_path: Path) -> None:
    for run in runs.values():
        assert set(run.results["arms"]) == {"fedavg", "local"}
    plain = study()
    del plain["contribution"]
    document = wardround.run_study(plain, tmp_path, workers=1).results
    assert document["arms"]["fedavg"]["metrics"] == runs["shapley"].results["arms"]["fedavg"]["metrics"]
    assert "contribution" not in document
    assert document["study"]["hash"] != runs["shapley"].results["study"]["hash"]


def test_shapley_values_add_up_and_are_those_of_all_coalitions(runs: dict[str, wardround.StudyRun]) -> None:
    content = runs["shapley"].results["contribution"]
    assert content["exact"]
    assert content["trainings"] == 15
    total = sum(own["value"]["mean"] for own in content["sites"].values())
    assert total == pytest.approx(content["whole"] - content["nobody"], abs=1e-12)
    left_out = runs["leave-one-out"].results["contribution"]
    for site, own in content["sites"].items():
        assert own["leave_one_out"] == left_out["sites"][site]["value"], "the same trainings, whatever the method"
        assert own["to_others"] == left_out["sites"][site]["to_others"]
        by_seed = [content["by_seed"][seed][site] for seed in ("1", "2")]
        assert own["value"]["mean"] == pytest.approx(np.mean(by_seed))
        low, high = own["value"]["interval"]
        assert low < own["value"]["mean"] < high


def test_what_one_hospital_adds_is_the_difference_of_two_trainings(tmp_path: Path) -> None:
    """Against arms with `train_at`, scored on the same validation rows."""
    document = study(evaluation={"seeds": {"first": 1, "count": 1}, "metric": "auc", "threshold": 0.5})
    content = wardround.run_study(document, tmp_path, workers=1).results["contribution"]
    site, *others = content["sites"]
    plan = load_plan(*load_study(document))
    arm = plan.study.arm("fedavg")
    from dataclasses import replace

    from tests.deployment.parity import simulated
    from wardround.runs.contribution.worths import worth_of

    found = []
    for members, coalition in ((tuple(content["sites"]), 15), (tuple(others), 14)):
        plan.add_tuned(replace(arm, name="fedavg", train_at=members), 1)
        trial = plan.trial(arm, 1)
        assert [hospital.name for hospital in trial.sites] == list(members)
        found.append(worth_of(plan, trial, simulated(trial), tuple(content["sites"]), coalition))
    whole, without = found
    assert content["sites"][site]["value"]["mean"] == pytest.approx(whole.overall - without.overall, abs=1e-6)
    assert content["sites"][site]["to_others"]["mean"] == pytest.approx(
        whole.for_others[site] - without.for_others[site], abs=1e-6
    )


def test_a_lower_error_is_a_gain(tmp_path: Path) -> None:
    content = wardround.run_study(study("shapley", contribution={"metric": "brier"}), tmp_path, workers=1).results[
        "contribution"
    ]
    assert content["lower_is_better"]
    gained = content["nobody"] - content["whole"]
    assert gained > 0
    assert sum(own["value"]["mean"] for own in content["sites"].values()) == pytest.approx(gained, abs=1e-9)


def test_the_model_of_all_is_put_together_from_its_updates() -> None:
    plan = load_plan(*load_study(study("reconstruction")))
    trial = plan.trial(plan.study.arm("fedavg"), 1)
    first, moved, last = summed_updates(trial)
    whole = put_together(trial, first, moved, 15)
    for name, leaf in last.server["params"].items():
        np.testing.assert_allclose(whole[name].numpy(), leaf.numpy(), atol=1e-6)
    begun = start(trial).server["params"]
    assert all(np.array_equal(leaf, begun[name]) for name, leaf in put_together(trial, first, moved, 0).items())


def test_reconstruction_is_near_retraining(runs: dict[str, wardround.StudyRun]) -> None:
    exact, cheap = (runs[method].results["contribution"] for method in ("shapley", "reconstruction"))
    assert (cheap["trainings"], cheap["models"]) == (1, 15)
    assert cheap["whole"] == pytest.approx(exact["whole"], abs=1e-6)
    assert all(own["leave_one_out"] is None for own in cheap["sites"].values())
    total = sum(own["value"]["mean"] for own in cheap["sites"].values())
    assert total == pytest.approx(exact["whole"] - exact["nobody"], abs=1e-6)


def test_a_run_that_was_stopped_goes_on_to_the_same_results(tmp_path: Path) -> None:
    document = study("shapley", evaluation={"seeds": {"first": 1, "count": 1}})
    whole = wardround.run_study(document, tmp_path / "whole", workers=1)
    plan = load_plan(*load_study(document))
    folder = RunFolder.of(plan.study, tmp_path / "stopped")
    for steps, _ in enumerate(execute(plan, folder, workers=1)):
        if steps == 4:
            break
    resumed = wardround.resume_study(folder.path, workers=1)
    assert resumed.results["contribution"] == whole.results["contribution"]


def test_the_report_shows_it(runs: dict[str, wardround.StudyRun]) -> None:
    for method, run in runs.items():
        wardround.build_report(run.folder)
        page = page_of(run.folder)
        assert {"contribution", "figure-contribution", "table-contribution"} <= set(page.ids)
        evidence = read_evidence(RunFolder(run.folder))
        assert len(contribution_table(evidence).rows) == 4
        assert by_hospital(evidence) is not None
        assert "test rows had no part" in " ".join(lines(evidence))
        first, second = terminal_lines(evidence)
        assert {"leave-one-out": "is left out once", "shapley": "15 trainings", "reconstruction": "15 models"}[
            method
        ] in first
        assert len(re.findall("points", second)) == 4


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"evaluation": {"validation_share": 0.0}}, "there are no validation rows"),
        ({"arms": [{"algorithm": "local"}]}, "no arm has a coordinator"),
        ({"privacy": {"secure_sum": {}}}, "what one hospital adds is what that hides"),
        ({"contribution": {"arm": "local"}}, "arm"),
        ({"contribution": {"metod": "shapley"}}, "no such setting"),
        ({"contribution": {"method": "shapley"}, "aggregation": {"rule": "median"}}, "needs more sites"),
        ({"contribution": {"method": "reconstruction"}, "training": {"share": 0.5}}, "all work in each round"),
    ],
)
def test_what_is_refused_from_the_text(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(StudyError, match=problem):
        load_study(study(**change))


@pytest.mark.parametrize(
    ("change", "hospitals", "problem"),
    [
        ({"contribution": {"method": "shapley", "trainings": 20}}, 12, "20 are too few for 12 hospitals"),
        (
            {"contribution": {"method": "reconstruction"}, "arms": [{"algorithm": "scaffold"}]},
            4,
            "not the sum of what its sites send",
        ),
    ],
)
def test_what_is_refused_with_the_data(change: dict[str, Any], hospitals: int, problem: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=problem):
        wardround.run_study(study(hospitals=hospitals, **change), tmp_path)


def test_across_hospitals_it_is_refused() -> None:
    parsed, _ = load_study(study())
    with pytest.raises(StudyError, match="tell of that hospital alone"):
        refuse_undeployable(parsed, ["a", "b"])
