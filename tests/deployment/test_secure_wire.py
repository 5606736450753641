"""Secure sums over the wire: the simulation's bits, whoever dies or leaves at whichever stage, or no sum at all."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.coordinator_restarts import Place, dies_once, until_finished
from tests.deployment.in_process_federation import Federation, body_of, kind_of
from tests.deployment.parity import assert_parity
from tests.deployment.private_studies import KNOWN, begin, private
from tests.representatives import represented
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment import replay
from wardround.deployment.common.secure_wave import vector_of
from wardround.engines import serial
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.runs.prediction_tables import saved_leaves
from wardround.training.rounds import rounds, start
from wardround.training.trial import assign

STAGES = ("keys", "shares", "train", "confirm", "unmask")
SITES = ("alder", "birch", "cedar", "dogwood")
DEADLINE = 1000.0


def summed(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    return private(
        arms or [{"algorithm": "fedprox", "mu": 0.1}, "scaffold"], **{"privacy": {"secure_sum": {}}, **changes}
    )


def model_of(network: Federation, arm: str) -> Tree:
    return network.folder.load_model(arm, 3)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    network = begin(tmp_path_factory.mktemp("quiet"), summed())
    network.run()
    return network


def assert_same_models(network: Federation, quiet: Federation) -> None:
    for arm in network.messenger.study.arms:
        assert_same_tree(model_of(network, arm.name), model_of(quiet, arm.name))


# -- the same bits, and nothing but masks


def test_deployed_and_simulated_are_the_same_bits(tmp_path: Path) -> None:
    """Arms with and without memory, at three of the sites, without a secure sum, and alone."""
    arms = [
        {"algorithm": "scaffold"},
        {"algorithm": "fedavg", "train_at": ["alder", "birch", "dogwood"]},
        {"name": "plain", "algorithm": "fedavg", "privacy.secure_sum": "off"},
        "local",
    ]
    content = summed(arms, data={"source": "wards", "public": False, "scale": "per-site", "missing": "median"})
    both = assert_parity(content, tmp_path)
    replayed = replay(both.plan, both.deployed.folder)
    assert (replayed.equal, replayed.models) == (True, 3)
    records = both.deployed.folder.records()
    hidden = records[records["arm"].isin(["scaffold", "fedavg"])]
    assert hidden[["loss", "update_norm", "divergence"]].isna().all(axis=None)
    assert records[records["arm"] == "plain"]["loss"].notna().all()


def test_records_are_those_of_the_simulation(quiet: Federation) -> None:
    plan = load_plan(*load_study(summed(), sources=KNOWN))
    for arm in plan.study.arms:
        trial = plan.trial(arm, 3)
        simulated = [vars(record) for _, record in rounds(start(trial), trial, serial.train_sites)]
        round_records = quiet.folder.records()
        deployed = round_records[round_records["arm"] == arm.name].to_dict("records")
        for name in ("round", "change", "bytes_up", "bytes_down", "failed"):
            assert [row[name] for row in deployed] == [row[name] for row in simulated]
        assert [list(row["sites"]) for row in deployed] == [list(row["sites"]) for row in simulated]


@pytest.mark.parametrize(("protected", "delta"), represented([("example", 1e-5), ("site", 1e-3)], by=[("site", 1e-3)]))
def test_with_noise_for_patients_or_whole_sites_as_well(protected: str, delta: float, tmp_path: Path) -> None:
    """FedProx, noise for patients and a secure sum together; and noise for whole sites on a secure sum."""
    privacy = {protected: {"epsilon": 2.0, "delta": delta, "clip": 1.0}, "secure_sum": {}}
    network = begin(tmp_path, summed([{"algorithm": "fedprox", "mu": 0.1}], privacy=privacy))
    network.run()
    assert not network.lines
    records = network.folder.records()
    assert (records["failed"] == "").all()
    assert records["sites"].map(len).tolist() == [4, 4, 4]


def test_nothing_but_masked_vectors_reaches_the_coordinator(quiet: Federation) -> None:
    """Neither an update nor its encoding is anywhere in what a site sent; a block of 8 bytes would give it away."""
    plan = load_plan(*load_study(summed(), sources=KNOWN))
    trials = {n: plan.trial(arm, 3) for n, arm in enumerate(plan.study.arms)}
    updates: dict[str, dict[int, Any]] = {}
    for n, trial in trials.items():
        for assignment, outcome in serial.train_sites(trial, start(trial), assign(trial, 0)):
            updates.setdefault(assignment.site.name, {})[n] = outcome.update
    everything = b"".join(answer.head + answer.tensors for _, _, answer in quiet.transport.carried)
    for site, own in updates.items():
        vector = vector_of(trials, 0, site, own)
        plain = [
            leaf.numpy().tobytes() for update in own.values() for part in update.values() for leaf in part.values()
        ]
        secrets = [*(whole for whole in plain if len(whole) >= 8), *(word.tobytes() for word in vector if word)]
        assert len(secrets) > 10
        assert not any(secret in everything for secret in secrets)
    answers = [(sealed, answer) for _, sealed, answer in quiet.transport.carried if kind_of(sealed) == "train"]
    assert len(answers) == 12
    for _, answer in answers:
        trial_answers = body_of(answer)["trials"].values()
        assert all(
            (trial_answer["loss"], trial_answer["length"], trial_answer["moved"]) == (None, None, False)
            for trial_answer in trial_answers
        )
        assert json.loads(answer.head)["order"] == ["masked"]


def test_sums_differ_by_what_a_site_adds(quiet: Federation) -> None:
    """The masked vectors themselves say nothing: no two have a number in common."""
    tensors = [answer.tensors for _, sealed, answer in quiet.transport.carried if kind_of(sealed) == "train"]
    words = [word for content in tensors for word in np.frombuffer(content[-8 * 10 :], dtype=np.uint64).tolist()]
    assert len(set(words)) == len(words)


# -- whoever dies


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_dies_at_every_message(when: str, tmp_path: Path) -> None:
    """Three sites, all of which are needed: what one of them refuses would end the run."""
    few = SITES[:3]
    content = summed(["scaffold"], training={"rounds": 2 if when == "after" else 1}, data={"hospitals": list(few)})
    seen: set[Place] = set()
    _, network = until_finished(begin(tmp_path, content, hospitals=few), dies_once(seen, when))
    assert {kind for kind, _, _ in seen} >= set(STAGES)
    assert not network.lines
    assert replay(load_plan(*load_study(content, sources=KNOWN)), network.folder).equal


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_sites_die_at_every_message(when: str, quiet: Federation, tmp_path: Path) -> None:
    network = begin(tmp_path, summed())

    def before(site: str, sealed: Sealed) -> bool:
        network.restart_site(site)
        return True

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        network.restart_site(site)
        return answer

    if when == "before":
        network.transport.before = before
    else:
        network.transport.after = after
    network.run()
    assert_same_models(network, quiet)


def test_answers_are_lost_and_messages_come_twice(quiet: Federation, tmp_path: Path) -> None:
    network, lost = begin(tmp_path, summed(["scaffold"])), set()

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed | None:
        network.transport.sites[site].answer(sealed)
        place = kind_of(sealed), body_of(sealed).get("round"), site
        if place in lost:
            return answer
        lost.add(place)
        return None

    network.transport.after = after
    network.run()
    assert_same_models(network, quiet)


# -- whoever leaves


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("flat.flat_rounds", "common.messaging"):
        monkeypatch.setattr(f"wardround.deployment.{module}.time", clock)
    return clock


def away_at(network: Federation, clock: Clock, stage: str, sites: set[str], number: int = 1) -> None:
    """In this round these sites hear nothing from this stage on, until the round is over."""

    def before(site: str, sealed: Sealed) -> bool:
        late = body_of(sealed).get("round") == number and STAGES.index(kind_of(sealed)) >= STAGES.index(stage)
        if kind_of(sealed) in STAGES and late and site in sites:
            clock.ahead += 2 * DEADLINE
            return False
        return True

    network.transport.before = before


def waiting(quorum: int) -> dict[str, Any]:
    return {"quorum": quorum, "deadline": DEADLINE, "smallest_cell": 1}


@pytest.mark.parametrize("stage", represented(STAGES, by=["unmask"]))
def test_one_of_four_may_be_gone_at_each_stage(stage: str, clock: Clock, tmp_path: Path) -> None:
    """Three are enough. Whose vector had arrived before it went is in the sum; the replay has the same bits."""
    network = begin(tmp_path, summed(deployment=waiting(3)))
    away_at(network, clock, stage, {"birch"})
    network.run()
    expected = 4 if stage in ("confirm", "unmask") else 3
    records = network.folder.records()
    assert records[records["arm"] == "fedprox"]["sites"].map(len).tolist() == [4, expected, 4]
    assert (records["failed"] == "").all()
    assert replay(load_plan(*load_study(summed(deployment=waiting(3)), sources=KNOWN)), network.folder).equal


@pytest.mark.parametrize("stage", represented(STAGES, by=["train"]))
def test_with_two_gone_the_round_comes_to_nothing(stage: str, clock: Clock, tmp_path: Path) -> None:
    """The model stays as it was, and so does SCAFFOLD's memory: the next round goes on from the one before."""
    content = summed(deployment=waiting(2))
    network = begin(tmp_path, content)
    away_at(network, clock, stage, {"birch", "cedar"})
    network.run()
    records = network.folder.records()
    lost = records[records["round"] == 2]
    assert lost["sites"].map(len).tolist() == [0, 0]
    assert lost["failed"].str.contains("takes 3").all()
    assert (lost["change"] == 0).all()
    assert records[records["round"] == 3]["sites"].map(len).tolist() == [4, 4]
    assert [line for line in network.lines if "came to nothing" in line]
    plan = load_plan(*load_study(content, sources=KNOWN))
    for arm in plan.study.arms:
        trial = plan.trial(arm, 3)
        *_, (last, _) = rounds(start(trial), trial, _but_for_the_second)
        assert_same_tree(model_of(network, arm.name), saved_leaves(replace(last, memories={})))


def _but_for_the_second(trial: Any, run: Any, assignments: Any) -> Any:
    return iter(()) if run.round == 1 else serial.train_sites(trial, run, assignments)


def test_a_run_ends_where_too_few_sites_are_left_for_any_sum(tmp_path: Path) -> None:
    revoked: dict[str, str] = {}
    network = begin(tmp_path, summed(deployment={"quorum": 2, "smallest_cell": 1}))
    network.messenger.revoked = lambda: revoked

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if body_of(sealed).get("round") == 0 and kind_of(sealed) == "unmask":
            revoked.update(birch="stolen", cedar="stolen")
        return answer

    network.transport.after = after
    with pytest.raises(DeployError, match="2 sites are left for a secure sum that takes 3 of 4"):
        network.run()


def test_a_revoked_site_is_in_no_further_sum(tmp_path: Path) -> None:
    revoked: dict[str, str] = {}
    network = begin(tmp_path, summed(deployment={"quorum": 3, "smallest_cell": 1}))
    network.messenger.revoked = lambda: revoked

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if body_of(sealed).get("round") == 0 and kind_of(sealed) == "unmask":
            revoked["birch"] = "stolen"
        return answer

    network.transport.after = after
    network.run()
    rosters = [
        body_of(sealed)["sum"]["roster"] for _, sealed, _ in network.transport.carried if kind_of(sealed) == "keys"
    ]
    assert rosters == [list(SITES)] * 4 + [["alder", "cedar", "dogwood"]] * 6
