"""Whoever dies in the middle of split training goes on: the same weights, and nothing is asked that was not said."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.coordinator_restarts import Died, Place, place_of
from tests.deployment.forging import forge
from tests.deployment.in_process_federation import body_of, kind_of, reason_in
from tests.deployment.vertical_federation import Parties, document, federation, write
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common import messaging
from wardround.deployment.common.site_store import Store
from wardround.deployment.coordinate import finish_up
from wardround.protocol.messages import Message, Sealed, open_sealed
from wardround.runs.audit import verify

PARTS = ("clinic", "lab")
# two blocks in a round; Adam has a state, dropout is drawn, so that a step too many or too few would show
SETTINGS: dict[str, Any] = {
    "training": {"batch_size": 16, "rounds": 2, "optimiser": "adam", "momentum": 0.0, "lr": 0.01},
    "model": {"dropout": 0.3, "absent": 0.2},
}


def made_in(folder: Path, **changes: Any) -> tuple[Parties, dict[str, Any]]:
    files = write(folder / "data")
    parts = document(files)["topology"]
    content = document(files, **{**SETTINGS, "topology": {**parts, "block": 2}, **changes})
    return federation(content, folder, files), content


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tree]:
    network, _ = made_in(tmp_path_factory.mktemp("undisturbed"))
    network.run()
    return {party: network.part(party, "split", 1) for party in PARTS}


def assert_undisturbed(network: Parties, expected: dict[str, Tree]) -> None:
    for party in PARTS:
        assert_same_tree(network.part(party, "split", 1), expected[party], part=party)
    assert network.folder.records()["round"].tolist() == [1, 2]
    assert network.folder.complete
    for log in (network.folder.path / "audit.jsonl", *network.folder.path.parent.glob("sites/*/audit.jsonl")):
        assert verify(log).broken is None


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_coordinator_that_dies_at_every_message(tmp_path: Path, undisturbed: dict[str, Tree], when: str) -> None:
    network, _ = made_in(tmp_path)
    seen: set[Place] = set()

    def at(site: str, sealed: Sealed) -> None:
        if place_of(site, sealed) not in seen:
            seen.add(place_of(site, sealed))
            raise Died

    def before(site: str, sealed: Sealed) -> bool:
        at(site, sealed)
        return True

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        at(site, sealed)
        return answer

    deaths = 0
    while True:
        if when == "before":
            network.transport.before = before
        else:
            network.transport.after = after
        try:
            network.run()
            break
        except Died:
            deaths += 1
            if network.folder.complete:  # as `coordinate` does when it is started again
                finish_up(network.messenger.study, network.folder)
                break
            network = network.restart_coordinator()
    assert deaths == len(seen)
    assert {kind for kind, _, _ in seen} == {
        "hello", "match", "assign", "shape", "agree", "embed", "learn", "embed_last", "assess", "goodbye"
    }  # fmt: skip
    assert_undisturbed(network, undisturbed)


@pytest.mark.parametrize("begun", [False, True])
def test_what_all_give_may_be_corrected_until_the_first_block(
    tmp_path: Path, undisturbed: dict[str, Tree], begun: bool
) -> None:
    """A party that told it wrongly refuses what follows from it. The others, which have agreed, can still go on."""
    network, _ = made_in(tmp_path)
    reasons: list[str] = []

    def before(site: str, sealed: Sealed) -> bool:
        if site == "lab" and kind_of(sealed) == ("embed_last" if begun else "agree"):
            body = next(body_of(one) for to, one, _ in agreed if to == "clinic") if begun else body_of(sealed)
            shapes = {**body["shapes"], "clinic": [[shape[0] + 1] for shape in body["shapes"]["clinic"]]}
            asked = forge("agree", {**body, "shapes": shapes}, "coordinator", "lab")
            answer = network.transport.sites["lab"].answer(asked)
            reasons.append("" if kind_of(answer) == "agreed" else reason_in(body_of(answer)))
        return True

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "agree":
            agreed.append((site, sealed, answer))
        return answer

    agreed: list[tuple[str, Sealed, Sealed]] = []
    network.transport.before, network.transport.after = before, after
    network.run()
    assert_undisturbed(network, undisturbed)
    assert reasons == ["says otherwise what all parties give than it did before" if begun else ""]


@pytest.mark.parametrize("party", [pytest.param("clinic", marks=pytest.mark.slow), "lab"])
def test_a_party_that_dies_at_every_message(tmp_path: Path, undisturbed: dict[str, Tree], party: str) -> None:
    """After its answer was made, and before anybody had it: the same question is asked again of another process."""
    network, _ = made_in(tmp_path)
    lost: dict[Place, Sealed] = {}

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed | None:
        place = place_of(site, sealed)
        if site != party:
            return answer
        if place not in lost:
            lost[place] = answer
            network.restart_site(party)
            return None
        if kind_of(sealed) in ("embed", "learn", "embed_last"):
            assert answer == lost[place], "the same question gets the same bytes"
        return answer

    network.transport.after = after
    network.run()
    assert len(lost) > 10
    assert_undisturbed(network, undisturbed)


@pytest.mark.parametrize("party", ["clinic", pytest.param("lab", marks=pytest.mark.slow)])
def test_a_party_that_dies_between_its_two_files(
    tmp_path: Path, undisturbed: dict[str, Tree], party: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds after a block is written, its answer is not: the block is done again from the one before."""
    network, _ = made_in(tmp_path)
    keep = Store.keep_answer
    died: set[int] = set()

    def dying(self: Store, wave: int, round_number: int, asked: str, answer: Sealed) -> None:
        if self.folder.parent.name == party and round_number not in died:
            died.add(round_number)
            raise OSError(5, "power cut")
        keep(self, wave, round_number, asked, answer)

    monkeypatch.setattr(Store, "keep_answer", dying)
    for _ in range(20):
        try:
            network.run()
            break
        except DeployError as error:
            assert "power cut" in error.problem  # noqa: PT017 - it happens again and again
            network.restart_site(party)
            network = network.restart_coordinator()
    assert len(died) >= 4
    assert_undisturbed(network, undisturbed)


@pytest.mark.slow
def test_both_ends_die_in_the_middle_of_an_epoch(tmp_path: Path, undisturbed: dict[str, Tree]) -> None:
    network, _ = made_in(tmp_path)

    def die_at(step: int) -> Callable[[str, Sealed, Sealed], Sealed]:
        def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
            if kind_of(sealed) == "learn" and body_of(sealed)["round"] == step:
                raise Died
            return answer

        return after

    for step in (1, 2):
        network.transport.after = die_at(step)
        with pytest.raises(Died):
            network.run()
        network = network.restart_coordinator()
        for party in PARTS:
            network.restart_site(party)
    network.run()
    assert_undisturbed(network, undisturbed)


def test_a_party_that_is_away_is_waited_for(tmp_path: Path, undisturbed: dict[str, Tree]) -> None:
    network, _ = made_in(tmp_path)
    waited = 0
    for step in network.coordinator.run():
        if step.done == 1 and not waited:
            network.transport.away.add("lab")
        if "lab" in network.transport.away:
            assert step.sites["lab"] in ("not connected", "answered")
            waited += 1
        if waited == 5:
            network.transport.away.clear()
    assert waited == 5
    assert_undisturbed(network, undisturbed)


class Clock:
    """Hours may pass in it."""

    passed = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


def test_a_deadline_ends_the_wait_and_the_run_goes_on_later(
    tmp_path: Path, undisturbed: dict[str, Tree], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = made_in(tmp_path, deployment={"quorum": 2, "deadline": 3600})
    clock = Clock()
    monkeypatch.setattr(messaging, "time", clock)

    def while_lab_is_away() -> None:
        for step in network.coordinator.run():
            if step.done == 1:
                network.transport.away.add("lab")
            if "lab" in network.transport.away:
                clock.passed += 7200  # anew at each step: the wait for it may begin after the first

    with pytest.raises(DeployError) as caught:
        while_lab_is_away()
    assert caught.value.problem.startswith("lab did not answer within 3600 seconds")
    assert "goes on from here" in caught.value.remedy
    clock.passed = 0
    network = network.restart_coordinator()
    network.run()
    assert_undisturbed(network, undisturbed)


def test_a_file_that_changed_in_the_middle_is_refused(tmp_path: Path) -> None:
    network, _ = made_in(tmp_path)
    network.transport.before = lambda site, sealed: not (kind_of(sealed) == "learn" and _stop())
    with pytest.raises(Died):
        network.run()
    path = tmp_path / "data" / "lab.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("x\n", "y\n"), encoding="utf-8")
    network = network.restart_coordinator()
    network.restart_site("lab")
    with pytest.raises(DeployError, match="its rows are not those with which the run began"):
        network.run()


def _stop() -> bool:
    raise Died


def test_a_coordinator_cannot_ask_for_another_order(tmp_path: Path) -> None:
    """A block that was left out, or that comes with other gradients, or of another wave: refused, and nothing said."""
    network, _ = made_in(tmp_path)
    seen: list[tuple[str, Sealed]] = []

    def before(site: str, sealed: Sealed) -> bool:
        seen.append((site, sealed))
        if kind_of(sealed) == "embed" and body_of(sealed)["round"] == 2:
            raise Died
        return True

    network.transport.before = before
    with pytest.raises(Died):
        network.run()
    lab = network.transport.sites["lab"]
    third = seen[-1][1]
    second = next(s for site, s in seen if kind_of(s) == "embed" and body_of(s)["round"] == 1)

    def asked(message: Message, **changes: Any) -> dict[str, Any]:
        body = {**message.body, **changes}
        answer = lab.answer(network.messenger.sealed(Message(message.kind, body, message.tensors), "lab"))
        assert kind_of(answer) in ("failed", "refused")
        return body_of(answer)

    opened = {s: open_sealed(s, _Anybody(), "coordinator") for s in (second, third)}
    assert "cannot be opened" in reason_in(asked(Message("embed", opened[third].body, opened[second].tensors)))
    assert "after the last block is gone" in reason_in(asked(opened[third], round=3))
    assert "does not have" in reason_in(asked(opened[third], wave=4, round=0))
    assert "another one's work" in reason_in(asked(Message("learn", opened[third].body, {})))
    assert "over here" in reason_in(asked(Message("embed", {**opened[second].body, "round": 0}, {})))


class _Anybody:
    def verify(self, signature: bytes, content: bytes) -> bool:
        return True
