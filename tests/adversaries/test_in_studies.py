"""Adversaries in a study: who they are in which arm, runs that repeat and go on to the bit, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import wardround
from tests.runs.test_resume import numbers
from wardround.core.errors import RunError, StudyError
from wardround.deployment import refuse_undeployable
from wardround.engines.serial import train_sites
from wardround.runs.catalog import load_study
from wardround.runs.execute import execute
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, load_plan
from wardround.study.robustness.adversary_validation import bad_sites, twin_of
from wardround.training.forging import with_forged
from wardround.training.rounds import start
from wardround.training.trial import Trial, assign

FLIP = {"sites": ["cleveland"], "kind": "label-flip"}
TURN = {"sites": ["va"], "kind": "sign-flip", "strength": 3}
HISTORY = {"sites": ["va", "cleveland"], "kind": "history-aware", "from_round": 2}


def study_with(*adversaries: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Three heart hospitals; `honest` is the twin of `fedavg`."""
    study: dict[str, Any] = {
        "name": "spoilt",
        "data": {"source": "heart", "hospitals": ["cleveland", "hungarian", "va"]},
        "training": {"rounds": 4, "lr": 0.1},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "fedavg"},
        "adversaries": list(adversaries),
        "arms": [{"algorithm": "fedavg"}, {"name": "honest", "algorithm": "fedavg", "adversaries": []}],
    }
    return study | changed


def plan_of(*adversaries: dict[str, Any], **changed: Any) -> Plan:
    return load_plan(*load_study(study_with(*adversaries, **changed)))


def trial_of(plan: Plan, name: str = "fedavg") -> Trial:
    return plan.trial(plan.study.arm(name), 1)


def test_a_study_without_adversaries_keeps_its_hash() -> None:
    bare = study_with()
    del bare["adversaries"], bare["arms"][1]["adversaries"]
    assert load_study(study_with())[0].hash == load_study(bare)[0].hash
    assert load_study(study_with(FLIP))[0].hash != load_study(bare)[0].hash
    assert load_study(study_with({**TURN, "strength": 2}))[0].hash != load_study(study_with(TURN))[0].hash


def test_arms_and_variants_replace_what_stands_above_them() -> None:
    variants = [{"name": "turned", "adversaries": [TURN]}, {"name": "as-it-is"}]
    study = load_study(study_with(FLIP, variants=variants))[0]
    kinds = {arm.name: [bad.kind.name for bad in arm.adversaries] for arm in study.arms}
    assert kinds == {
        "fedavg": ["label-flip"],
        "honest": [],
        "fedavg@turned": ["sign-flip"],
        "honest@turned": [],
        "fedavg@as-it-is": ["label-flip"],
        "honest@as-it-is": [],
    }
    assert bad_sites(study) == ("cleveland", "va")
    twin = twin_of(study, study.arm("fedavg@turned"))
    assert twin is not None
    assert twin.name == "honest", "the first arm that is the same without adversaries"
    assert twin_of(study, study.arm("honest")) is None


def test_rows_are_poisoned_for_training_and_nowhere_else() -> None:
    plan = plan_of(FLIP)
    bad, honest = (trial_of(plan, name) for name in ("fedavg", "honest"))
    for spoilt, clean in zip(bad.sites, honest.sites, strict=True):
        flipped = spoilt.name == "cleveland"
        assert torch.equal(spoilt.train.y, 1 - clean.train.y if flipped else clean.train.y)
        assert torch.equal(spoilt.train.x, clean.train.x)
        assert spoilt.test is clean.test
        assert spoilt.validation is clean.validation
        assert (spoilt is clean) != flipped
    for scored, clean in zip(bad.scored, honest.scored, strict=True):
        assert scored.test is clean.test


def test_rows_turn_bad_in_the_round_that_the_study_names() -> None:
    trial = trial_of(plan_of({**FLIP, "from_round": 3}))
    labels = [assign(trial, number)[0].site.train.y for number in range(4)]
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[2], 1 - labels[0])
    assert torch.equal(labels[2], labels[3])


def test_pooled_rows_are_poisoned_too_and_sites_alone_spoil_only_themselves() -> None:
    arms = [{"algorithm": "pooled"}, {"algorithm": "local"}]
    plan = plan_of({**FLIP, "from_round": 2}, TURN, arms=arms, evaluation={"seeds": {"count": 1}})
    pooled = trial_of(plan, "pooled")
    clean = torch.cat([site.train.y for site in trial_of(plan, "local").sites])
    assert torch.equal(pooled.sites[0].train.y, clean)
    later = pooled.sites_in(1)[0].train.y
    assert int((later != clean).sum()) == len(trial_of(plan, "local").sites[0].train)
    assert not pooled.forgers
    assert not trial_of(plan, "local").forgers
    told = [(notice.arm, notice.other_sites) for notice in plan.notices if notice.code == "idle-adversary"]
    assert told == [("pooled", ("va",)), ("local", ("va",))]


def test_what_bad_sites_send_is_forged_and_what_they_keep_is_not() -> None:
    trial = trial_of(plan_of(TURN))
    run = start(trial)
    outcomes = list(train_sites(trial, run, assign(trial, 0)))
    for (_, honest), (assignment, sent) in zip(outcomes, with_forged(trial, run, outcomes), strict=True):
        factor = -3.0 if assignment.site.name == "va" else 1.0
        for name, leaf in honest.update["params"].items():
            assert torch.equal(sent.update["params"][name], factor * leaf)
        assert sent.memory is honest.memory
        assert sent.moved is honest.moved


@pytest.mark.parametrize("adversaries", [(FLIP, TURN), (HISTORY,), ({**FLIP, "from_round": 3},)])
def test_a_stopped_run_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adversaries: tuple[dict[str, Any], ...]
) -> None:
    from wardround.runs import checkpoint

    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    study = study_with(*adversaries, sites={"partition": "iid", "count": 4})
    study["adversaries"] = [{**bad, "sites": ["site-01"]} for bad in adversaries]
    whole = wardround.run_study(study, tmp_path / "whole")
    plan = load_plan(*load_study(study))
    folder = RunFolder.of(plan.study, tmp_path / "stopped")
    for stop in (3, 2):
        running = execute(plan, folder, "auto", workers=1)
        for _ in range(stop):
            next(running)
        running.close()
        plan = load_plan(*load_study(study))
    for _ in execute(plan, folder, "auto", workers=1):
        pass
    assert numbers(folder.path) == numbers(whole.folder)


def test_poisoned_rows_train_alike_in_both_engines_and_forged_updates_in_one(tmp_path: Path) -> None:
    runs = {
        engine: wardround.run_study(study_with(FLIP), tmp_path / engine, engine=engine)
        for engine in ("serial", "stacked")
    }
    tables = [pd.read_parquet(run.folder / "predictions.parquet") for run in runs.values()]
    scores = [table.set_index(["arm", "seed", "site", "row"])["score"].sort_index() for table in tables]
    assert (scores[0] - scores[1]).abs().max() < 1e-5
    for bad in (TURN, {**FLIP, "from_round": 2}):
        with pytest.raises(RunError, match="adversaries that forge updates or turn bad later"):
            wardround.run_study(study_with(bad), tmp_path / "no", engine="stacked")


WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("kind", {**FLIP, "kind": "label-flop"}, {}, "'label-flop' is not known"),
    ("kind left out", {"sites": ["va"]}, {}, "kind: missing"),
    ("sites left out", {"kind": "label-flip"}, {}, "sites: missing"),
    ("no site", {**FLIP, "sites": []}, {}, "no site is named"),
    ("site twice", {**FLIP, "sites": ["va", "va"]}, {}, "'va' is named twice"),
    ("setting", {**FLIP, "strenght": 2}, {}, "strenght: no such setting"),
    ("strength", {**TURN, "strength": -1}, {}, "-1.0 is out of range"),
    ("round", {**FLIP, "from_round": 5}, {}, "comes after the last of 4 rounds"),
    ("round zero", {**FLIP, "from_round": 0}, {}, "out of range"),
    ("one attacker", {"sites": ["va"], "kind": "alie", "sees": "attackers"}, {}, "one does not"),
    ("alone", {"sites": ["va"], "kind": "alie", "sees": "own"}, {}, "'own' is not a possible value"),
    ("no table", {}, {"adversaries": "va"}, "expected tables"),
]


@pytest.mark.parametrize(("bad", "changed", "words"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_in_the_study_is_refused_where_it_stands(
    bad: dict[str, Any], changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(StudyError) as caught:
        load_study(study_with(bad, **changed))
    assert words in str(caught.value)
    assert "adversaries" in str(caught.value)


def test_two_forgers_of_one_update_are_refused() -> None:
    with pytest.raises(StudyError, match="va can send one update in a round"):
        load_study(study_with(TURN, {**TURN, "kind": "scaling"}))
    load_study(study_with({**FLIP, "sites": ["va"]}, TURN))  # but its rows may be poisoned as well


def test_what_the_sites_tell_is_refused_before_anything_trains() -> None:
    with pytest.raises(StudyError, match="no site is called 'vaa'"):
        trial_of(plan_of({**FLIP, "sites": ["vaa"]}))
    everyone = {**TURN, "sites": ["cleveland", "hungarian", "va"]}
    with pytest.raises(StudyError, match="nobody whom a rule could protect"):
        trial_of(plan_of(everyone))
    two, third = {**TURN, "sites": ["cleveland", "va"]}, {**FLIP, "sites": ["hungarian"]}
    with pytest.raises(StudyError, match="every site is bad in some arm"):
        trial_of(plan_of(two, variants=[{"name": "other", "adversaries": [third]}]))


def test_parties_have_nothing_to_spoil() -> None:
    vertical = {
        "name": "parties",
        "data": {"source": "heart"},
        "model": {"kind": "joined"},
        "topology": {"kind": "vertical", "parties": {"lab": ["chol"], "clinic": ["age", "cp"]}},
        "arms": [{"algorithm": "split"}],
        "adversaries": [FLIP],
    }
    with pytest.raises(StudyError, match="parties exchange embeddings"):
        load_study(vertical)


def test_a_study_with_adversaries_is_not_deployed() -> None:
    study = load_study(study_with(FLIP, arms=[{"algorithm": "fedavg"}]))[0]
    with pytest.raises(StudyError, match="adversaries are simulated"):
        refuse_undeployable(study, ["cleveland", "hungarian", "va"])
    honest = replace(study, arms=tuple(replace(arm, adversaries=()) for arm in study.arms))
    refuse_undeployable(honest, ["cleveland", "hungarian", "va"])


def test_no_bundle_is_made_of_a_spoilt_model(tmp_path: Path) -> None:
    run = wardround.run_study(study_with(FLIP), tmp_path)
    with pytest.raises(StudyError, match="spoilt on purpose"):
        wardround.make_bundle(run.folder, arm="fedavg", site="va", out=tmp_path / "bundle")
    wardround.make_bundle(run.folder, arm="honest", site="va", out=tmp_path / "bundle")


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova", "fedadam", "clustered", "fedprox-adaptive"])
def test_every_algorithm_takes_forged_updates(tmp_path: Path, algorithm: str) -> None:
    arms = [{"algorithm": algorithm}]
    study = study_with(TURN, arms=arms, evaluation={"seeds": {"count": 1}}, training={"rounds": 2})
    run = wardround.run_study(study, tmp_path)
    assert list(run.results["adversaries"]["arms"]) == [algorithm]
