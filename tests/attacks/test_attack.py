"""Attacks on whole runs, through Python and through the command."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from tests.attacks.studies import heart
from tests.cli.test_commands import wardround
from tests.small_federations import site
from tests.small_federations import trial as small_trial
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.local_only import local
from wardround.algorithms.pooled import pooled
from wardround.attacks import canary
from wardround.attacks.attack import attack_run, chosen_sites
from wardround.attacks.figures import draw
from wardround.attacks.inversion import Picture
from wardround.attacks.membership import (
    CandidateRows,
    auc,
    confidence_scores,
    likelihood_ratio,
    losses,
    membership_by_site,
    shadow_losses,
    subset,
    train,
)
from wardround.attacks.target import Target, open_target, total_charges
from wardround.core.errors import RunError
from wardround.data.site import Rows, Site
from wardround.evaluation.prediction import predict
from wardround.models import Shape
from wardround.models.mlp import mlp
from wardround.privacy.dp.accountant import Charge
from wardround.privacy.dp.example_dp import PrivateGradient
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder
from wardround.tasks import class_task
from wardround.training.trial import Trial


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_study(heart(), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def attacked(run: Path) -> dict[str, Any]:
    return attack_run(run, quick=True, shadows=0)


def test_every_arm_is_attacked_and_the_claim_holds(attacked: dict[str, Any], run: Path) -> None:
    assert attacked["passed"] is True
    assert set(attacked["membership"]) == {"plain", "private", "local"}
    assert list(attacked["canary"]) == ["private"]
    [audit] = attacked["canary"]["private"]
    assert audit["claim"] == pytest.approx(8.0, rel=0.01)
    assert 2.0 < audit["bound"] <= audit["claim"] < audit["limit"]
    rows = attacked["inversion"]["arms"]
    assert (rows["plain"]["without"]["recovered"], rows["plain"]["with"]) == (1, None)
    assert (rows["private"]["without"]["recovered"], rows["private"]["with"]["recovered"]) == (1, 0)
    assert rows["local"] == {"note": "no update leaves a site in this arm"}
    saved = json.loads((run / "attack.json").read_text())
    assert saved["canary"]["private"][0]["bound"] == audit["bound"]
    assert saved["schema"] == 1


def test_figures_are_drawn_and_no_picture_of_a_table(attacked: dict[str, Any], run: Path) -> None:
    names = {path.name for path in (run / "figures").glob("attack_*")}
    kinds = ("inversion", "membership", "canary")
    assert names == {f"attack_{kind}.{suffix}" for kind in kinds for suffix in ("svg", "png")}


@pytest.mark.parametrize(
    ("synthetic", "samples", "allowed"),
    [((True,), 0, True), ((False,), 0, False), ((True, False), 0, False), ((False,), 3, True)],
)
def test_patients_images_are_drawn_only_where_the_study_shows_some(
    synthetic: tuple[bool, ...], samples: int, allowed: bool
) -> None:
    cohorts = {str(n): SimpleNamespace(records=SimpleNamespace(synthetic=flag)) for n, flag in enumerate(synthetic)}
    study = SimpleNamespace(evaluation=SimpleNamespace(samples=samples))
    plan: Any = SimpleNamespace(cohorts=cohorts, study=study)
    assert Target(RunFolder(Path()), plan, (), 1).pictures_allowed is allowed


def test_pictures_are_drawn_side_by_side_and_synthetic_ones_are_labelled(tmp_path: Path) -> None:
    image = np.linspace(0, 1, 64).reshape(1, 8, 8)
    picture = Picture(image, image, {"without protection": image, "epsilon 8": 1 - image})
    assert draw({"synthetic": True}, [picture, picture], tmp_path / "figures") == ["attack_pictures"]
    drawn = (tmp_path / "figures" / "attack_pictures.svg").read_text()
    assert "SYNTHETIC: no patient" in drawn
    assert drawn.count("<image") == 8
    assert draw({"synthetic": False}, [], tmp_path / "figures") == []
    assert not list((tmp_path / "figures").iterdir())  # of the earlier attack


@pytest.mark.slow
def test_the_same_run_attacked_again_gives_the_same_numbers(attacked: dict[str, Any], run: Path) -> None:
    first, again = (attack_run(run, quick=True, shadows=2, arms=["plain"], only=["membership"]) for _ in range(2))
    assert first == again
    assert first["membership"]["plain"]["threshold"] == attacked["membership"]["plain"]["threshold"]
    assert first["membership"]["plain"]["likelihood_ratio"]["shadows"] == 2


def test_saved_models_predict_what_the_run_predicted(run: Path) -> None:
    target = open_target(run)
    saved = target.folder.predictions()
    for arm in target.arms:
        trial = target.trial(arm)
        scores = np.concatenate([prediction.score for prediction in predict(trial, target.run(trial))])
        np.testing.assert_allclose(scores, saved[saved["arm"] == arm.name]["score"], atol=1e-6)


def test_a_trained_model_s_update_reveals_a_row_too(run: Path) -> None:
    inversion = attack_run(run, quick=True, only=["inversion"], at="trained", arms=["plain", "private"])["inversion"]
    assert inversion["at"] == "trained"
    assert inversion["arms"]["plain"]["method"] == "quotient"
    assert inversion["arms"]["plain"]["without"]["recovered"] == 1
    assert inversion["arms"]["private"]["with"]["recovered"] == 0


def test_a_claim_that_does_not_hold_is_exit_code_9(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is removed from the program's own releases; everything else stays as it is."""

    def without_noise(model: Any, rule: Any, stream: Any) -> Any:
        return PrivateGradient(model, replace(rule, noise=0.0), stream)

    monkeypatch.setattr(canary, "PrivateGradient", without_noise)
    done = wardround("attack", run, "--only", "canary", "--quick")
    assert done.returncode == 9
    assert "THE AUDIT FAILED" in done.stdout
    assert "FAILS" in done.stdout


def test_the_command_reports_its_results(run: Path) -> None:
    done = wardround("attack", run, "--quick", "--shadows", "0", "--arm", "plain", "--arm", "private")
    assert done.returncode == 0, done.stderr
    assert "No claim was refuted" in done.stdout
    assert "1 of 1 rows" in done.stdout
    assert "local" not in done.stdout
    shown = json.loads(wardround("attack", run, "--quick", "--only", "canary", "--json").stdout)
    assert shown["folder"] == str(run)
    assert "membership" not in shown


def test_a_study_is_run_first(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(tomli_w.dumps(heart(arms=heart()["arms"][:1])))
    done = wardround("attack", study, "--out", tmp_path / "runs", "--only", "inversion", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (Path(content["folder"]) / "results.json").is_file()
    assert content["inversion"]["arms"]["plain"]["without"]["recovered"] == 5
    assert content["passed"] is None  # no claim was tested


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 3, "no such study"),
        (["RUN", "--arm", "privat"], 3, "Did you mean 'private'?"),
        (["RUN", "--only", "canarry"], 3, "Did you mean 'canary'?"),
        (["RUN", "--at", "halfway"], 3, "initial or trained"),
        (["RUN", "--set", "training.rounds=3"], 3, "has its settings already"),
    ],
)
def test_what_cannot_be_attacked_is_refused_with_an_explanation(
    run: Path, arguments: list[str], code: int, words: str
) -> None:
    done = wardround("attack", *[str(run) if argument == "RUN" else argument for argument in arguments])
    assert done.returncode == code
    assert words in done.stderr


def test_folders_without_rows_models_or_end_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        open_target(tmp_path)
    (tmp_path / "study.toml").write_text((run / "study.toml").read_text())
    with pytest.raises(RunError, match="is not complete"):
        open_target(tmp_path)
    (tmp_path / "summaries.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match="rows are not here"):
        open_target(tmp_path)


def test_charges_of_rounds_are_added_up_by_kind() -> None:
    rounds = [{"a": (0.1, 2.0, 3)}, {}, {"a": (0.1, 2.0, 3), "b": (0.2, 1.0, 5)}, {"a": (0.1, 1.0, 1)}]
    assert total_charges(rounds) == {
        "a": [Charge(0.1, 2.0, 6), Charge(0.1, 1.0, 1)],
        "b": [Charge(0.2, 1.0, 5)],
    }
    same = {"a": [Charge(0.1, 2.0, 6)], "b": [Charge(0.1, 2.0, 6)], "c": [Charge(0.3, 1.0, 2)]}
    assert list(chosen_sites(same, 4)) == ["c", "a"]
    assert list(chosen_sites(same, 1)) == ["c"]


def memorised(algorithm: Any, lr: float, rounds: int) -> Trial:
    """Random labels, so that nothing can be learnt but the rows themselves."""
    rng = np.random.default_rng(3)
    sites = []
    for name in ("one", "two"):
        x = torch.tensor(rng.normal(size=(60, 10)))
        y = torch.tensor(rng.integers(0, 2, 60))
        whole = site(name, x, y)
        held = Rows(x[30:], y[30:])
        sites.append(Site(name, Rows(x[:30], y[:30]), whole.validation, held, whole.validation_rows, np.arange(30)))
    model = mlp(hidden=(64,))(Shape((10,), class_task(2)))
    arm = small_trial(algorithm, sites, model, lr=lr, rounds=rounds, batch_size=30)
    return replace(arm, scored=tuple(sites))


def test_an_untrained_model_reveals_nothing_and_a_memorising_one_nearly_everything() -> None:
    for lr, low, high in ((1e-9, 0.35, 0.65), (1.0, 0.8, 1.0)):
        trial = memorised(fedavg(), lr, rounds=60)
        candidates = CandidateRows.of(trial)
        [run] = train([trial])
        membership = membership_by_site(trial, candidates, [-loss for loss in losses(trial, run, candidates)])
        assert low < membership["auc"] <= high
        assert set(membership["sites"]) == {"one", "two"}
        assert (membership["members"], membership["others"]) == (60, 60)


def test_shadow_models_tell_more_than_a_threshold() -> None:
    trial = memorised(fedavg(), lr=0.3, rounds=25)
    candidates = CandidateRows.of(trial)
    [run] = train([trial])
    target = losses(trial, run, candidates)
    shadows, present = shadow_losses(trial, candidates, 16)
    member = np.concatenate(candidates.member)
    ratio = np.concatenate(
        [
            likelihood_ratio(confidence_scores(a), confidence_scores(b), c)
            for a, b, c in zip(target, shadows, present, strict=True)
        ]
    )
    loss = np.concatenate(target)
    assert auc(ratio[member], ratio[~member]) > auc(-loss[member], -loss[~member]) + 0.02


@pytest.mark.parametrize("algorithm", [local(), pooled()])
def test_shadow_models_of_local_and_pooled_training(algorithm: Any) -> None:
    trial = memorised(algorithm, lr=0.1, rounds=2)
    shadows, present = shadow_losses(trial, CandidateRows.of(trial), 2)
    assert [losses.shape for losses in shadows] == [(2, 60), (2, 60)]
    assert all((chosen.sum(1) == 30).all() for chosen in present)


def test_a_subset_of_shared_rows_is_not_a_copy() -> None:
    x, y = torch.arange(12).reshape(6, 2), torch.arange(6)
    shared = Rows(x, y, torch.tensor([5, 3, 1]), torch.tensor([[0.0, 1], [2, 3], [4, 5]]), torch.tensor([7, 8, 9]))
    part = subset(shared, np.array([2, 0]))
    assert part.x is x
    assert part.labels.tolist() == [1, 5]
    assert part.people.tolist() == [9, 7]
    assert part.levels is not None
    assert part.levels.tolist() == [[4, 5], [0, 1]]
    owned = subset(Rows(x, y), np.array([4]))
    assert owned.x.tolist() == [[8, 9]]
    assert owned.labels.tolist() == [4]
