"""Groups with a secure sum each across hospitals: the bits of a simulation with the groups that they drew, whoever dies
or leaves, and one draw for a study."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deployment.coordinator_restarts import Place, dies_once, until_finished
from tests.deployment.grouped_federation import GROUPS, KNOWN, SITES, begin, grouped, seed_of_groups
from tests.deployment.in_process_federation import Federation, body_of, kind_of
from tests.deployment.parity import simulated
from tests.small_federations import assert_same_tree
from wardround.privacy.secure_sum.groups import draw_groups
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.training.trial import Run

ARMS: list[Any] = [
    {"algorithm": "fedprox", "mu": 0.1},
    {"algorithm": "fednova", "aggregation.rule": "trimmed-mean"},
    {"algorithm": "fedadam", "aggregation.rule": "centred-clipping", "aggregation.momentum": 0.5},
    {"algorithm": "fedavg", "aggregation.rule": "mean"},
    {"algorithm": "local"},
]


def as_simulated(network: Federation, document: dict[str, Any], arm: str) -> Run:
    """With the groups that the hospitals drew."""
    plan = load_plan(*load_study(document, sources=KNOWN))
    trial = plan.trial(plan.study.arm(arm), 3)
    if trial.groups:
        names = [site.name for site in trial.sites]
        trial = replace(trial, groups=draw_groups(seed_of_groups(network), names, GROUPS))
    return simulated(trial)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    network = begin(tmp_path_factory.mktemp("quiet"), grouped(ARMS))
    network.run()
    return network


def test_the_bits_of_a_simulation(quiet: Federation) -> None:
    for arm in quiet.messenger.study.arms:
        if arm.algorithm.facts.federated:
            run = as_simulated(quiet, grouped(ARMS), arm.name)
            assert_same_tree(
                {
                    name.removeprefix("server/params/"): leaf
                    for name, leaf in quiet.folder.load_model(arm.name, 3).items()
                    if name.startswith("server/params/")
                },
                run.server["params"],
                part=arm.name,
            )


def test_each_site_is_in_one_sum_with_its_group_and_sends_nothing_but_masks(quiet: Federation) -> None:
    drawn = draw_groups(seed_of_groups(quiet), SITES, GROUPS)
    together = {
        frozenset(site for site, of in zip(SITES, drawn, strict=True) if of == group) for group in range(GROUPS)
    }
    rosters: dict[int, set[frozenset[str]]] = {}
    for _, sealed, answer in quiet.transport.carried:
        body = body_of(sealed)
        if kind_of(sealed) == "keys":
            rosters.setdefault(body["wave"], set()).add(frozenset(body["sum"]["roster"]))
        if kind_of(sealed) == "train" and body.get("sum") is not None:
            assert b"masked" in answer.head
    assert together in rosters.values()
    assert {frozenset(SITES)} in rosters.values()  # of the arm with the mean


def test_records_are_those_of_a_simulation(quiet: Federation) -> None:
    records = quiet.folder.records()
    grouped_arm = records[records["arm"] == "fedprox"]
    assert grouped_arm["loss"].isna().all()
    assert (grouped_arm["failed"] == "").all()
    assert grouped_arm["sites"].map(len).eq(len(SITES)).all()


def test_a_second_run_has_the_same_groups(quiet: Federation, tmp_path: Path) -> None:
    """A hospital's number outlives runs, so that no coordinator can draw until it likes what it sees."""
    first = begin(tmp_path, grouped())
    first.run()
    second = begin(tmp_path, grouped())
    second.messenger.again = True
    second.run()
    assert seed_of_groups(first) == seed_of_groups(second)
    assert seed_of_groups(first) != seed_of_groups(quiet)  # other hospitals, other numbers
    assert_same_tree(first.folder.load_model("fedprox", 3), second.folder.load_model("fedprox", 3))


@pytest.mark.slow
def test_a_coordinator_that_dies_at_every_message_goes_on_with_the_same_groups(tmp_path: Path) -> None:
    document = grouped(training={"rounds": 2})
    seen: set[Place] = set()
    deaths, network = until_finished(begin(tmp_path, document), dies_once(seen, "after"))
    assert deaths == len(seen)
    assert {kind for kind, _, _ in seen} >= {"commit", "open", "keys", "shares", "train", "confirm", "unmask"}
    run = as_simulated(network, document, "fedprox")
    ours = network.folder.load_model("fedprox", 3)["server/params/weight"]
    assert torch.equal(ours, run.server["params"]["weight"])
