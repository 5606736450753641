"""Whoever dies, whenever, and whatever the transport loses, repeats or delays: the models are those of a quiet run."""

import time
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch

from tests.deployment.coordinator_restarts import Died, Place, dies_once, place_of, until_finished
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.deployment.parity import KNOWN, kept_memories
from tests.representatives import represented
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment import replay
from wardround.deployment.common.parity import replay_trial
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan

SITES = ("alder", "birch", "cedar")
MESSAGES = (
    "hello",
    "facts",
    "fill_values",
    "moments",
    "prepare",
    "train",
    "evaluate",
    "goodbye",
)  # in the order of a run
DEADLINE = 1000.0  # seconds; a clock of the test's own lets them pass
PLACES: list[Place] = [
    (kind, number, site) for kind in MESSAGES for number in (range(3) if kind == "train" else [None]) for site in SITES
]


def document(**changes: Any) -> dict[str, Any]:
    """Both kinds of algorithm, with and without memory; an agreement that needs every kind of message."""
    return study(
        [{"algorithm": "fedprox", "mu": 0.1}, "scaffold"],
        data={"hospitals": list(SITES), "scale": "federated"},
        **changes,
    )


def begin(folder: Path, content: dict[str, Any] | None = None) -> Federation:
    return federation(content or document(), folder, at_sites(SITES), known_sources=KNOWN)


def digest(folder: Path) -> str:
    """Of all models, the shared ones and the sites' own."""
    files = [*(folder / "run" / "models").rglob("*.safetensors")]
    by_name = {str(path.relative_to(folder)): path for path in files}
    for path in (folder / "sites").rglob("models/*/*.safetensors"):
        parts = path.relative_to(folder).parts
        by_name["/".join(parts[:2] + parts[3:])] = path  # without the name of the run, which is drawn
    assert len(by_name) == 2 + 2 * len(SITES)
    return sha256(b"".join(name.encode() + by_name[name].read_bytes() for name in sorted(by_name))).hexdigest()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quiet")
    network = begin(folder)
    network.run()
    asked = [kind_of(sealed) for _, sealed, _ in network.transport.carried]
    assert list(dict.fromkeys(asked)) == list(MESSAGES)
    return digest(folder)


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_the_coordinator_dies_at_every_message_of_one_run(when: str, quiet: str, tmp_path: Path) -> None:
    """`before` and `after` the site has answered."""
    deaths, _ = until_finished(begin(tmp_path), dies_once(set(), when))
    assert deaths == len(PLACES)
    assert digest(tmp_path) == quiet


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place)))
def test_the_coordinator_dies_once(place: Place, when: str, quiet: str, tmp_path: Path) -> None:
    assert until_finished(begin(tmp_path), dies_once(set(PLACES) - {place}, when))[0] == 1
    assert digest(tmp_path) == quiet


def restarting(network: Federation, when: str, only: Place | None = None) -> list[Place]:
    """The site that is asked dies each time, or at one place; before it reads the message or when it has answered."""
    died: list[Place] = []

    def die(site: str, sealed: Sealed) -> None:
        if only in (None, place_of(site, sealed)):
            died.append(place_of(site, sealed))
            network.restart_site(site)

    def before(site: str, sealed: Sealed) -> bool:
        die(site, sealed)
        return True

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        die(site, sealed)
        return answer

    if when == "before":
        network.transport.before = before
    else:
        network.transport.after = after
    return died


@pytest.mark.parametrize("when", represented(["before", "after"], by=["after"]))
def test_sites_die_at_every_message(when: str, quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    died = restarting(network, when)
    network.run()
    assert set(died) == set(PLACES)
    assert digest(tmp_path) == quiet


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place)))
def test_a_site_dies_once_and_its_answer_is_lost(place: Place, quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    lost: list[Place] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed | None:
        if place_of(site, sealed) == place and place not in lost:
            lost.append(place)
            network.restart_site(site)
            return None
        return answer

    network.transport.after = after
    network.run()
    assert lost == [place]
    assert digest(tmp_path) == quiet


@pytest.mark.slow
def test_everybody_dies_at_every_message(quiet: str, tmp_path: Path) -> None:
    die = dies_once(set(), "after")

    def prepare(network: Federation) -> None:
        for site in SITES:
            network.restart_site(site)
        die(network)

    until_finished(begin(tmp_path), prepare)
    assert digest(tmp_path) == quiet


def test_every_answer_is_lost_once(quiet: str, tmp_path: Path) -> None:
    """Asked again, a site gives the same bytes, although the coordinator's log has gone on."""
    network = begin(tmp_path)
    lost: dict[Place, Sealed] = {}

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed | None:
        place = place_of(site, sealed)
        if place in lost and kind_of(sealed) == "train":
            assert answer == lost[place]
        return answer if lost.setdefault(place, answer) is not answer else None

    network.transport.after = after
    network.run()
    assert digest(tmp_path) == quiet


def test_every_message_is_delivered_twice(quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)

    def before(site: str, sealed: Sealed) -> bool:
        network.transport.sites[site].answer(sealed)
        return True

    network.transport.before = before
    network.run()
    assert digest(tmp_path) == quiet


@pytest.mark.parametrize("restarted", [False, True])
def test_old_messages_that_come_again_change_nothing(restarted: bool, quiet: str, tmp_path: Path) -> None:
    """Before each message a site gets every earlier one once more, the oldest last."""
    network = begin(tmp_path)
    old: dict[str, list[Sealed]] = {site: [] for site in SITES}

    def before(site: str, sealed: Sealed) -> bool:
        for message in reversed(old[site]):
            network.transport.sites[site].answer(message)
        if kind_of(sealed) in ("train", "evaluate"):
            old[site].append(sealed)
        if restarted:
            network.restart_site(site)
        return True

    network.transport.before = before
    network.run()
    assert digest(tmp_path) == quiet


def test_late_answers_of_earlier_rounds_count_for_nothing(quiet: str, tmp_path: Path) -> None:
    """They carry a valid signature; what they are about is another round, or another kind of question."""
    network = begin(tmp_path)
    earlier: dict[str, list[Sealed]] = {site: [] for site in SITES}
    shown: set[Place] = set()

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        place = place_of(site, sealed)
        if place not in shown and earlier[site]:
            shown.add(place)
            return earlier[site][-1]
        earlier[site].append(answer)
        return answer

    network.transport.after = after
    network.run()
    assert len(shown) == len(PLACES) - len(SITES)
    assert not network.messenger.left
    assert digest(tmp_path) == quiet


# -- a site's folder is gone


def lose_folder(network: Federation, folder: Path) -> None:
    """When the second round is asked, cedar's whole state is deleted and its process started again."""

    def before(site: str, sealed: Sealed) -> bool:
        if place_of(site, sealed) == ("train", 1, "cedar"):
            rmtree(folder / "sites" / "cedar")
            network.restart_site("cedar")
        return True

    network.transport.before = before


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_site_without_its_state_goes_on_where_no_memory_is_needed(algorithm: str, tmp_path: Path) -> None:
    content = study([algorithm], data={"hospitals": list(SITES)})
    network = begin(tmp_path / "lost", content)
    lose_folder(network, tmp_path / "lost")
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert "cedar" in stopped.value.problem
    assert "it knows nothing of this run" in stopped.value.problem
    again = network.restart_coordinator()  # it greets everybody, and cedar learns of the run
    if algorithm == "scaffold":
        with pytest.raises(DeployError) as stopped:
            again.run()
        assert "its memory of round 1 is gone" in stopped.value.problem
        assert [line for line in again.lines if line.startswith("cedar: failed: its memory of round 1 is gone")]
        assert "\n" not in stopped.value.problem
        return
    again.run()
    calm = begin(tmp_path / "quiet", content)
    calm.run()
    assert_same_tree(again.folder.load_model("fedavg", 3), calm.folder.load_model("fedavg", 3))


# -- a round closes without a site


class Clock:
    """The coordinator's, which goes on by itself only as far as this machine needs."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds

    def pass_deadline(self) -> None:
        self.ahead += 2 * DEADLINE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("flat.flat_rounds", "common.messaging"):
        monkeypatch.setattr(f"wardround.deployment.{module}.time", clock)
    return clock


def closing(rounds: int) -> dict[str, Any]:
    waits = {"quorum": 2, "deadline": DEADLINE, "smallest_cell": 1}
    return document(deployment=waits, training={"rounds": rounds})


def steps_of(network: Federation) -> None:
    """To the end, unless it goes round in circles."""
    for asked, step in enumerate(network.coordinator.run()):
        network.steps.append(step)
        assert asked < 1000, "the round never closes"


def assert_replayed(network: Federation, content: dict[str, Any]) -> None:
    """The deployed models are those of the recorded roster on one machine."""
    replayed = replay(load_plan(*load_study(content, sources=KNOWN)), network.folder)
    assert replayed.equal
    assert replayed.models == 2


def test_a_late_site_keeps_the_memory_of_its_last_update_that_counted(tmp_path: Path, clock: Clock) -> None:
    """cedar trains in round 2 and its answer comes too late: what it kept then is not in force in round 3."""
    content = closing(4)
    network = begin(tmp_path, content)
    late: list[Sealed] = []
    memories: dict[str, Tree] = {}

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed | None:
        if place_of(site, sealed) != ("train", 1, "cedar"):
            return answer
        late.append(answer)
        if len(late) > 1:
            clock.pass_deadline()
        return None

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "goodbye":
            memories[site] = kept_memories(tmp_path / "sites" / site)
        if kind_of(sealed) == "train" and site == "cedar":
            assert body_of(sealed)["counted"] == {0: -1, 1: 0, 2: 0, 3: 2}[body_of(sealed)["round"]]
        return True

    network.transport.before, network.transport.after = before, after
    steps_of(network)
    assert late[0] == late[1]
    assert any(line.startswith("cedar: did not answer in time (connected)") for line in network.lines)
    records = network.folder.records()
    assert [list(sites) for sites in records[records["round"] == 2]["sites"]] == [["alder", "birch"]] * 2
    entry = network.folder.read_json("results.json")["participation"]["cedar"]
    assert entry == {"joined": True, "rounds": 6, "of": 8, "scored": True, "reason": None}  # of two arms
    assert_replayed(network, content)
    plan = load_plan(*load_study(content, sources=KNOWN))
    happened: list[Any] = records[records["arm"] == "scaffold"].to_dict("records")
    run = replay_trial(plan.trial(plan.study.arm("scaffold"), 3), happened)
    for site in SITES:
        memory = {n.removeprefix("0/1/"): leaf for n, leaf in memories[site].items() if n.startswith("0/1/")}
        assert_same_tree(memory, run.memories[site].leaves(), part=site)


def test_scaffolds_control_stays_the_mean_of_the_sites_controls(tmp_path: Path, clock: Clock) -> None:
    """The invariant that an update which counts at one end only would break."""
    content = closing(4)
    network = begin(tmp_path, content)
    memories: dict[str, Tree] = {}

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "goodbye":
            memories[site] = kept_memories(tmp_path / "sites" / site)
        away = place_of(site, sealed)[:2] == ("train", 2)
        if away and not network.transport.away:
            clock.pass_deadline()
        network.transport.away = {"birch"} if away else set()
        return True

    network.transport.before = before
    steps_of(network)
    assert any(line.startswith("birch: did not answer in time (not connected)") for line in network.lines)
    assert_replayed(network, content)
    server = network.folder.load_model("scaffold", 3)
    for name in ("weight", "bias"):
        controls = [memories[site][f"0/1/algorithm/control/{name}"] for site in SITES]
        assert (server[f"server/control/{name}"] - torch.stack(controls).mean(dim=0)).abs().max() < 1e-6


def test_a_round_closes_with_a_quorum_when_the_coordinator_died_in_it(tmp_path: Path, clock: Clock) -> None:
    """The answers that had arrived before it died are part of the quorum."""
    content = closing(2)
    network = begin(tmp_path, content)

    def before(site: str, sealed: Sealed) -> bool:
        if place_of(site, sealed) == ("train", 1, "alder"):  # the last to be asked
            raise Died
        return True

    network.transport.before = before
    with pytest.raises(Died):
        network.run()
    again = network.restart_coordinator()

    def without_alder(site: str, sealed: Sealed) -> bool:
        if place_of(site, sealed) != ("train", 1, "alder"):
            return True
        clock.pass_deadline()
        return False

    again.transport.before = without_alder
    steps_of(again)
    assert_replayed(again, content)


def test_a_round_waits_for_its_quorum_whatever_the_deadline(tmp_path: Path, clock: Clock) -> None:
    """birch and cedar are away for a while, and one site is no quorum."""
    content = closing(2)
    network = begin(tmp_path, content)
    lost: list[str] = []

    def before(site: str, sealed: Sealed) -> bool:
        if place_of(site, sealed)[:2] != ("train", 1) or site == "alder" or len(lost) >= 8:
            return True
        clock.pass_deadline()
        lost.append(site)
        return False

    network.transport.before = before
    steps_of(network)
    assert len(lost) == 8
    records = network.folder.records()
    assert all(len(sites) >= 2 for sites in records["sites"])
    assert_replayed(network, content)
