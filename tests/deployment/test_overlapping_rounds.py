"""Asynchronous rounds and late work across hospitals: the order is recorded, and one machine repeats it bit for bit."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.coordinator_restarts import dies_once, until_finished
from tests.deployment.forging import changed
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import ByHand, Federation, body_of, federation, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.private_studies import begin as begin_private
from tests.deployment.private_studies import ledger, private
from tests.deployment.test_crashes_in_process import DEADLINE, Clock
from tests.deployment.test_log_heads import entries
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError, StudyError
from wardround.core.tree import Tree
from wardround.deployment import refuse_undeployable, replay
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan

SITES = ("alder", "birch", "cedar", "dogwood")
SLOW = {"cedar": 3, "dogwood": 1}  # answers arrive when so many rounds have closed since the work began
ROUNDS = 8


def document(arms: Any = ("fedavg",), **changes: Any) -> dict[str, Any]:
    training = {"rounds": ROUNDS, "asynchronous": {"buffer": 2}, **changes.pop("training", {})}
    return study(list(arms), training=training, **changes)


def begin(folder: Path, content: dict[str, Any], slow: Mapping[str, int] = SLOW) -> Federation:
    network = federation(content, folder, at_sites(SITES), known_sources=KNOWN)
    delay(network, slow)
    return network


def open_round(network: Federation) -> int:
    log = network.folder.path / "audit.jsonl"
    return sum(entry["event"] == "round closed" for entry in entries(log)) if log.is_file() else 0


def delay(network: Federation, slow: Mapping[str, int]) -> None:
    """By the rounds and not by the clock: the order stays the same, however often somebody dies."""
    deliver = network.transport.before

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and open_round(network) - body_of(sealed)["round"] < slow.get(site, 0):
            return False
        return deliver(site, sealed)

    network.transport.before = before


def model(network: Federation) -> Tree:
    return network.folder.load_model("fedavg", 3)


def order(network: Federation) -> list[tuple[dict[str, int], list[str]]]:
    """Of each round: the staleness of what counted, and whose work was dropped."""
    records = network.folder.records()
    return [(dict(row["staleness"]), list(row["dropped"])) for row in records.to_dict("records")]


def assert_replayed(network: Federation, content: dict[str, Any], count: int = 1) -> None:
    replayed = replay(load_plan(*load_study(content, sources=KNOWN)), network.folder)
    assert replayed.equal
    assert replayed.models == count


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    network = begin(tmp_path_factory.mktemp("quiet"), document())
    network.run()
    return network


def test_the_recorded_order_is_replayed_bit_for_bit(quiet: Federation) -> None:
    assert_replayed(quiet, document())
    staleness = [late for late, _ in order(quiet)]
    assert all(len(late) == 2 for late in staleness)  # a buffer, with each site once
    assert max(late.get("cedar", 0) for late in staleness) == 3
    assert not any(dropped for _, dropped in order(quiet))
    logged = [e["detail"] for e in entries(quiet.folder.path / "audit.jsonl") if e["event"] == "round closed"]
    assert [{s: e["round"] - b for s, b in e["began"].items()} for e in logged] == staleness


@pytest.mark.parametrize(
    ("arms", "changes"),
    [
        (["fedadam", {"algorithm": "fedprox", "mu": 0.1}], {}),
        (["fedavg"], {"training": {"asynchronous": {"buffer": 1, "staleness": "hinge", "free": 1}}}),
        (["fedavg"], {"compression": {"kind": "top-k", "share": 0.2}}),  # what was lost is remembered at the site
        (["fedavg"], {"training": {"asynchronous": {"buffer": 3, "most_stale": 1}}}),
        ([{"algorithm": "fedavg", "train_at": ["alder", "birch", "cedar"]}, "fedyogi"], {}),
    ],
)
def test_other_settings_are_replayed_too(arms: list[Any], changes: dict[str, Any], tmp_path: Path) -> None:
    content = document(arms, **changes)
    network = begin(tmp_path, content, {"cedar": 2})
    network.run()
    assert_replayed(network, content, len(arms))


def test_a_buffer_of_all_sites_gives_the_synchronous_bits(tmp_path: Path) -> None:
    buffered = begin(tmp_path / "buffered", document(training={"rounds": 3, "asynchronous": {"buffer": 4}}), {})
    buffered.run()
    plain = begin(tmp_path / "plain", study(["fedavg"]), {})
    plain.run()
    assert_same_tree(buffered.folder.load_model("fedavg", 3), plain.folder.load_model("fedavg", 3))


def test_work_that_is_too_stale_is_dropped_and_recorded(tmp_path: Path) -> None:
    content = document(training={"asynchronous": {"buffer": 2, "most_stale": 2}})
    network = begin(tmp_path, content)
    network.run()
    dropped = [names for _, names in order(network)]
    assert ["cedar"] in dropped
    assert not any(late.get("cedar") for late, _ in order(network))
    assert [line for line in network.lines if line.startswith("cedar: its update began 3 rounds ago and is dropped")]
    assert_replayed(network, content)


# -- whoever dies


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_coordinator_dies_at_every_message(when: str, quiet: Federation, tmp_path: Path) -> None:
    die = dies_once(set(), when)

    def prepare(network: Federation) -> None:
        die(network)
        delay(network, SLOW)

    deaths, network = until_finished(begin(tmp_path, document()), prepare)
    assert deaths > ROUNDS
    assert order(network) == order(quiet)
    assert_same_tree(model(network), model(quiet))


def test_the_coordinator_dies_where_work_is_dropped(tmp_path: Path) -> None:
    content = document(training={"asynchronous": {"buffer": 2, "most_stale": 2}})
    calm = begin(tmp_path / "calm", content)
    calm.run()
    die = dies_once(set(), "after")

    def prepare(network: Federation) -> None:
        die(network)
        delay(network, SLOW)

    _, network = until_finished(begin(tmp_path / "dying", content), prepare)
    assert order(network) == order(calm)
    assert_same_tree(model(network), model(calm))


def test_sites_die_at_every_message(quiet: Federation, tmp_path: Path) -> None:
    network = begin(tmp_path, document())

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        network.restart_site(site)
        return answer

    network.transport.after = after
    network.run()
    assert order(network) == order(quiet)
    assert_same_tree(model(network), model(quiet))


# -- hostile sites


class Twice(ByHand):
    """Every answer arrives twice."""

    def ask(self, messages: Mapping[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        for arrival in super().ask(messages):
            yield arrival
            yield arrival


def test_a_second_answer_to_one_request_counts_for_nothing(quiet: Federation, tmp_path: Path) -> None:
    network = begin(tmp_path, document())
    network.transport.__class__ = Twice
    network.run()
    assert order(network) == order(quiet)
    assert_same_tree(model(network), model(quiet))


@pytest.mark.parametrize("wrong", [0, 7, 999])
def test_an_update_of_another_round_than_was_asked_is_refused(wrong: int, tmp_path: Path) -> None:
    """dogwood says that its work began with another model, so that it would weigh more or less."""
    content = document()
    network = begin(tmp_path, content, {})
    lies: list[Sealed] = []

    def lie(body: dict[str, Any], tensors: Tree) -> None:
        body["round"] = wrong

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if site != "dogwood" or kind_of(sealed) != "train" or body_of(sealed)["round"] != 1:
            return answer
        lies.append(changed(answer, "dogwood", lie))
        return lies[-1]

    network.transport.after = after
    network.run()
    assert len(lies) > 1  # it is asked again and again
    assert "dogwood" in order(network)[0][0]
    assert not any("dogwood" in late for late, _ in order(network)[1:])
    assert_replayed(network, content)


def test_too_few_sites_end_the_run_with_the_reason(tmp_path: Path) -> None:
    network = begin(tmp_path, document(), {})

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if site == "dogwood" and kind_of(sealed) == "train":
            return changed(answer, "dogwood", lambda body, tensors: body.update(trials={}))
        return answer

    network.transport.after = after
    with pytest.raises(DeployError, match="3 of 4 sites are left and 4 are needed"):
        network.run()


# -- late for a deadline


def waiting(**late: Any) -> dict[str, Any]:
    waits = {"quorum": 2, "deadline": DEADLINE, "smallest_cell": 1}
    return document(deployment=waits, training={"rounds": 6, "asynchronous": "off", "late": late or "on"})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("flat.overlapping_rounds", "common.messaging"):
        monkeypatch.setattr(f"wardround.deployment.{module}.time", clock)
    return clock


def pass_deadlines(network: Federation, clock: Clock, slow: Mapping[str, int]) -> None:
    """The deadline is over when all have been asked who answer in time."""
    seen: set[tuple[int, str]] = set()
    deliver = network.transport.before

    def before(site: str, sealed: Sealed) -> bool:
        now = open_round(network)
        if kind_of(sealed) != "train" or now - body_of(sealed)["round"] >= slow.get(site, 0):
            return deliver(site, sealed)
        if (now, site) in seen:
            clock.pass_deadline()
        seen.add((now, site))
        return False

    network.transport.before = before


def test_late_work_counts_in_the_next_round_once(tmp_path: Path, clock: Clock) -> None:
    content = waiting()
    network = begin(tmp_path, content, {})
    pass_deadlines(network, clock, {"cedar": 1, "dogwood": 2})
    network.run()
    staleness = [late for late, _ in order(network)]
    assert [late.get("cedar") for late in staleness] == [None, 1, None, 1, None, 1]
    assert [late.get("dogwood") for late in staleness] == [None, None, 2, None, None, 2]
    assert all(late["alder"] == late["birch"] == 0 for late in staleness)
    assert_replayed(network, content)


def test_late_work_that_is_too_stale_is_dropped(tmp_path: Path, clock: Clock) -> None:
    content = waiting(most_stale=1)
    network = begin(tmp_path, content, {})
    pass_deadlines(network, clock, {"dogwood": 2})
    network.run()
    assert not any("dogwood" in late for late, _ in order(network))
    assert [names for _, names in order(network)].count(["dogwood"]) == 2
    assert_replayed(network, content)


# -- what is refused


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"privacy": {"secure_sum": {}}}, "add up under masks"),
        ({"training": {"asynchronous": {"buffer": 2}, "share": 0.5}}, "asked at once"),
        ({"training": {"asynchronous": {"buffer": 5}}}, "no buffer is ever full"),
    ],
)
def test_what_cannot_be_deployed_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(StudyError, match=problem):
        refuse_undeployable(load_study(document(**changes), sources=KNOWN)[0], SITES)


# -- privacy of patients


def test_a_hospitals_ledger_has_what_it_released_once(tmp_path: Path) -> None:
    content = private(training={"rounds": 5, "asynchronous": {"buffer": 2}})
    network = begin_private(tmp_path, content)
    delay(network, SLOW)
    die = dies_once(set(), "after")

    def prepare(network: Federation) -> None:
        die(network)
        delay(network, SLOW)

    _, network = until_finished(network, prepare)
    counted = dict.fromkeys(SITES, 0)
    for late, _ in order(network):
        for site in late:
            counted[site] += 1
    for site in SITES:
        charged = [entry.round for entry in ledger(tmp_path, site)]
        assert len(charged) == len(set(charged))  # a repeated request costs nothing
        assert counted[site] <= len(charged) <= counted[site] + 1  # and what was under way at the end
    assert sum(counted.values()) == 5 * 2
