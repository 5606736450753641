"""A restarted coordinator takes the answers that it has stored as it takes new ones; and what it says of an end whose
answers it cannot use, or that is gone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.deployment.coordinator_restarts import Died
from tests.deployment.forging import changed
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, key, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.regional_federation import hierarchy
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common import messaging
from wardround.deployment.common.messaging import Answered
from wardround.deployment.common.spool import Spool
from wardround.protocol.catalogue import PROTOCOL
from wardround.protocol.messages import Sealed

SITES = ("alder", "birch", "cedar")
Answers = dict[tuple[str, int], Sealed]  # to `train`, by site and round


def begin(folder: Path, **changes: Any) -> Federation:
    content = study(["fedavg"], data={"hospitals": list(SITES)}, **changes)
    return federation(content, folder, at_sites(SITES), known_sources=KNOWN)


def dies_with_one_answer(network: Federation) -> tuple[str, Answers]:
    """The coordinator dies in the second round, with one answer stored: whose, and all answers so far."""
    answers: Answers = {}
    stored: list[str] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "train":
            number = body_of(sealed)["round"]
            if number == 1 and stored:
                raise Died
            answers[site, number] = answer
            stored.extend([site] * (number == 1))
        return answer

    network.transport.after = after
    with pytest.raises(Died):
        network.run()
    return stored[0], answers


def resumed(network: Federation) -> tuple[Federation, list[str]]:
    """The run to its end after a restart, and who was asked to train in the second round once more."""
    again, asked = network.restart_coordinator(), []

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and body_of(sealed)["round"] == 1:
            asked.append(site)
        return True

    again.transport.before = before
    again.run()
    return again, sorted(asked)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Of a coordinator that did not die."""
    return begin(tmp_path_factory.mktemp("calm")).run().load_model("fedavg", 3)


def test_a_stored_answer_is_not_asked_for_again(tmp_path: Path, model: Tree) -> None:
    network = begin(tmp_path)
    site, _ = dies_with_one_answer(network)
    again, asked = resumed(network)
    assert asked == sorted({*SITES} - {site})
    assert_same_tree(again.folder.load_model("fedavg", 3), model)


def with_another_update(spool: Spool, site: str, answers: Answers) -> None:
    path = spool.folder / f"{site}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def of_the_round_before(spool: Spool, site: str, answers: Answers) -> None:
    store(spool, site, answers[site, 0])


def that_its_check_refuses(spool: Spool, site: str, answers: Answers) -> None:
    def more_epochs(body: dict[str, Any], tensors: Tree) -> None:
        body["trials"]["0"]["epochs"] = 10**5

    store(spool, site, changed(answers[site, 1], site, more_epochs))


def with_another_shape(spool: Spool, site: str, answers: Answers) -> None:
    def shorter(body: dict[str, Any], tensors: Tree) -> None:
        tensors.update({name: leaf.flatten()[:1] for name, leaf in tensors.items()})

    store(spool, site, changed(answers[site, 1], site, shorter))


def half_written(spool: Spool, site: str, answers: Answers) -> None:
    path = spool.folder / f"{site}.answer"
    path.write_bytes(path.read_bytes()[:-9])


def store(spool: Spool, site: str, sealed: Sealed) -> None:
    names = tuple(orjson.loads(sealed.head)["order"])
    spool.add(site, Answered[Any](None, names, "", sealed))


@pytest.mark.parametrize(
    "damage", [with_another_update, of_the_round_before, that_its_check_refuses, with_another_shape, half_written]
)
def test_a_stored_answer_that_cannot_be_used_is_asked_for_again(
    damage: Callable[[Spool, str, Answers], None], tmp_path: Path, model: Tree
) -> None:
    """Signature, place, type, checks and tensors: all that a new answer goes through. The site has done nothing wrong,
    and stays."""
    network = begin(tmp_path)
    site, answers = dies_with_one_answer(network)
    damage(Spool(network.folder.path / "state", 0, 1), site, answers)
    again, asked = resumed(network)
    assert asked == sorted(SITES)
    assert not again.messenger.left
    assert_same_tree(again.folder.load_model("fedavg", 3), model)
    line = f"{site}: its answer as it is stored here cannot be used; asking again"
    assert (line in again.lines) == (damage is not half_written)  # that one counts as none


# -- one clear sentence each


def one_field_too_many(answer: Sealed, site: str) -> Sealed:
    def add(body: dict[str, Any], tensors: Tree) -> None:
        body["extra"] = 1

    return changed(answer, site, add)


def another_version(answer: Sealed, site: str) -> Sealed:
    head = orjson.dumps({**orjson.loads(answer.head), "protocol": PROTOCOL + 1})
    unsigned = Sealed(head, answer.tensors, b"")
    return Sealed(head, answer.tensors, key(site).sign(unsigned.digest))


@pytest.mark.parametrize("kind", ["hello", "train", "evaluate"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (one_field_too_many, "nobody here knows its field `extra`"),
        (
            another_version,
            f"speaks version {PROTOCOL + 1} of the protocol and this machine {PROTOCOL}; install",
        ),
    ],
)
def test_an_answer_of_another_kind_of_program_is_named(
    change: Callable[[Sealed, str], Sealed], sentence: str, kind: str, tmp_path: Path
) -> None:
    network = begin(tmp_path)
    network.transport.after = lambda site, sealed, answer: (
        change(answer, site) if site == "birch" and kind_of(sealed) == kind else answer
    )
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert sentence in stopped.value.problem
    assert "birch" in stopped.value.problem
    assert len([line for line in network.lines if sentence in line]) == 1


class Clock:
    ahead = 0.0
    runs = False  # by a quarter of an hour whenever somebody looks at it

    def monotonic(self) -> float:
        self.ahead += 900.0 * self.runs
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


def test_a_region_whose_coordinator_dies_is_named_with_its_hospitals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(messaging, "time", clock)
    regions = {"north": ["alder", "birch"], "south": ["cedar", "dogwood"]}
    content = study(
        ["fedavg"],
        topology={"kind": "hierarchical", "regions": regions},
        deployment={"quorum": 1, "deadline": 1000.0, "smallest_cell": 1},
    )
    network = hierarchy(content, tmp_path, at_sites(), known_sources=KNOWN)

    def before(region: str, sealed: Sealed) -> bool:
        if region == "south" and kind_of(sealed) == "train" and body_of(sealed)["round"] == 1:
            network.transport.away.add("south")
            clock.runs = True
        return region not in network.transport.away

    network.transport.before = before
    network.run()
    sentence = "south: did not answer in time (not connected); going on without it and its hospitals cedar, dogwood"
    assert sentence in network.lines
    assert network.run_folder.complete
