"""Whoever dies in a federation of regions, whenever: the models are those of a quiet run."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import body_of, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.regional_federation import Hierarchy, hierarchy
from wardround.core.errors import DeployError
from wardround.deployment import replay
from wardround.deployment.common import messaging as correspondence
from wardround.deployment.site.answering import SiteWork
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan

REGIONS = {"north": ["alder", "cedar"], "south": ["birch", "dogwood"]}
MESSAGES = ("hello", "facts", "fill_values", "moments", "prepare", "train", "evaluate", "goodbye")
Place = tuple[str, Any, str]


class Died(BaseException):
    """In place of a power cut: nothing on the way catches it."""


def document(**changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
    arms = [{"algorithm": "fedprox", "mu": 0.1}, "local"]
    return study(arms, topology=topology, training={"rounds": 4}, data={"scale": "federated"}, **changes)


def begin(folder: Path, **changes: Any) -> Hierarchy:
    return hierarchy(document(**changes), folder, at_sites(), known_sources=KNOWN)


def digest(folder: Path) -> str:
    """Of all models, the shared ones and the sites' own."""
    by_name = {str(path.relative_to(folder)): path for path in (folder / "run" / "models").rglob("*.safetensors")}
    for path in (folder / "sites").rglob("models/*/*.safetensors"):
        parts = path.relative_to(folder).parts
        by_name["/".join(parts[:2] + parts[3:])] = path  # without the name of the run, which is drawn
    assert len(by_name) == 2 + 2 * len(NAMES)
    return sha256(b"".join(name.encode() + by_name[name].read_bytes() for name in sorted(by_name))).hexdigest()


def place_of(who: str, sealed: Sealed) -> Place:
    return kind_of(sealed), body_of(sealed).get("round"), who


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quiet")
    network = begin(folder)
    network.run()
    assert tuple(dict.fromkeys(kind_of(sealed) for _, sealed, _ in network.transport.carried)) == MESSAGES
    assert tuple(dict.fromkeys(kind_of(sealed) for _, sealed, _ in network.transports["south"].carried)) == MESSAGES
    return digest(folder)


def dying(seen: set[Place]) -> Callable[[str, Sealed], None]:
    def at(who: str, sealed: Sealed) -> None:
        if (place := place_of(who, sealed)) not in seen:
            seen.add(place)
            raise Died

    return at


def before_or_after(transport: Any, when: str, at: Callable[[str, Sealed], None]) -> None:
    def before(who: str, sealed: Sealed) -> bool:
        at(who, sealed)
        return True

    def after(who: str, sealed: Sealed, answer: Sealed) -> Sealed:
        at(who, sealed)
        return answer

    if when == "before":
        transport.before = before
    else:
        transport.after = after


class Reborn:
    """A region's process that is started again whenever it dies; then the message comes again, as Flower brings it."""

    def __init__(self, network: Hierarchy, region: str) -> None:
        self.network, self.region, self.deaths = network, region, 0
        self.work: SiteWork = network.open_region(region)

    def answer(self, sealed: Sealed) -> Sealed:
        while True:
            try:
                return self.work.answer(sealed)
            except Died:
                self.deaths += 1
                self.work = self.network.open_region(self.region)


def until_finished(network: Hierarchy, most: int = 200) -> int:
    for deaths in range(most):
        try:
            network.run()
            return deaths
        except Died:
            network.restart_top()
    raise AssertionError("it does not come to an end")


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_of_all_dies_at_every_message(when: str, quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    before_or_after(network.transport, when, dying(set()))
    assert until_finished(network) == 2 * (len(MESSAGES) + 1)  # two regions, and twice two rounds
    assert digest(tmp_path) == quiet


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_regions_die_at_every_message_to_their_sites(when: str, quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    reborn = {region: Reborn(network, region) for region in REGIONS}
    network.transport.sites |= reborn  # type: ignore[arg-type]
    for transport in network.transports.values():
        before_or_after(transport, when, dying(set()))
    network.run()
    assert [reborn_region.deaths for reborn_region in reborn.values()] == [
        2 * (len(MESSAGES) + 3)
    ] * 2  # two sites, four rounds
    assert digest(tmp_path) == quiet


@pytest.mark.slow
def test_sites_die_at_every_message(quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)

    def before(site: str, sealed: Sealed) -> bool:
        network.restart_site(site)
        return True

    for transport in network.transports.values():
        transport.before = before
    network.run()
    assert digest(tmp_path) == quiet


@pytest.mark.slow
def test_everybody_dies_at_every_message(quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.transport.sites |= {region: Reborn(network, region) for region in REGIONS}  # type: ignore[misc]
    before_or_after(network.transport, "after", dying(set()))
    for transport in network.transports.values():
        before_or_after(transport, "after", dying(set()))
    for site in NAMES:
        network.restart_site(site)
    until_finished(network)
    assert digest(tmp_path) == quiet


def test_a_question_that_comes_again_gets_the_same_bytes_and_no_site_is_asked(tmp_path: Path) -> None:
    network = begin(tmp_path)
    repeats: list[bool] = []

    def after(region: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "train":
            carried = len(network.transports[region].carried)
            network.restart_region(region)
            again = network.transport.sites[region].answer(sealed)
            repeats.append(again == answer and len(network.transports[region].carried) == carried)
        return answer

    network.transport.after = after
    network.run()
    assert repeats == [True] * 4


def test_answers_of_regions_that_had_arrived_are_not_asked_for_again(quiet: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    asked: list[Place] = []

    def before(region: str, sealed: Sealed) -> bool:
        asked.append(place_of(region, sealed))
        if asked.count(("train", 2, "north")) == 1 and asked[-1] == ("train", 2, "north"):
            raise Died  # south, which is asked first, has answered
        return True

    network.transport.before = before
    assert until_finished(network) == 1
    assert (asked.count(("train", 2, "north")), asked.count(("train", 2, "south"))) == (2, 1)
    assert digest(tmp_path) == quiet


# -- who stays away


CLOSING: dict[str, Any] = {"deployment": {"quorum": 1, "deadline": 1000.0, "smallest_cell": 1}}


class Clock:
    """Of the coordinators alone: deadlines pass when a test says so."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(correspondence, "time", clock)
    return clock


@pytest.mark.slow
def test_a_region_that_stays_away_is_left_out_by_the_quorum_and_comes_back(tmp_path: Path, clock: Clock) -> None:
    """For one average it has no say; then it goes on from the model of all."""
    network = begin(tmp_path, **CLOSING)

    def before(region: str, sealed: Sealed) -> bool:
        away = place_of(region, sealed) == ("train", 0, "south")
        clock.ahead += 1e4 * away
        return not away

    network.transport.before = before
    folder = network.run()
    records = folder.records()
    shared = records[records["arm"] == "fedprox"]
    assert [sorted(entry) for entry in shared["sites"]] == [["alder", "cedar"]] * 2 + [sorted(NAMES)] * 2
    assert [sorted(entry) for entry in shared["dropped"]] == [["birch", "dogwood"]] * 2 + [[]] * 2
    assert [tuple(entry) for entry in shared["region_messages"]] == [(2, 0), (0, 1), (2, 0), (0, 2)]
    replayed = replay(load_plan(*load_study(document(**CLOSING), sources=KNOWN)), folder)
    assert replayed.largest < 1e-6
    assert any("south: did not answer in time" in line for line in network.lines)


@pytest.mark.slow
def test_a_site_that_stays_away_is_left_out_by_its_region(tmp_path: Path, clock: Clock) -> None:
    network = begin(tmp_path, **CLOSING)

    def before(site: str, sealed: Sealed) -> bool:
        away = place_of(site, sealed) == ("train", 1, "birch")
        clock.ahead += 1100 * away  # one deadline of the region, and not the three of the coordinator of all
        return not away

    network.transports["south"].before = before
    folder = network.run()
    records = folder.records()
    shared = records[records["arm"] == "fedprox"].sort_values("round")
    assert [list(sites) for sites in shared["dropped"]] == [[], ["birch"], [], []]
    replayed = replay(load_plan(*load_study(document(**CLOSING), sources=KNOWN)), folder)
    assert replayed.largest < 1e-6


@pytest.mark.slow
def test_without_a_quorum_a_region_that_failed_ends_the_run_and_it_goes_on_when_it_is_settled(
    quiet: str, tmp_path: Path
) -> None:
    network = begin(tmp_path)
    broken = [True]

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if broken[0] and place_of(site, sealed) == ("train", 1, "birch"):
            return Sealed(b"{}", b"", b"")
        return answer

    network.transports["south"].after = after
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert "1 of 2 sites are left and 2 are needed (south failed: 1 of 2 sites are left and 2 are needed (birch" in (
        stopped.value.problem
    )
    broken[0] = False
    network.restart_top()
    network.run()
    assert digest(tmp_path) == quiet
