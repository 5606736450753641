"""Each end writes the head of the other's log into its own: whoever cuts or rewrites one is found out by the other."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import federation
from tests.deployment.parity import KNOWN
from wardround.runs.audit import AuditLog, heads_in, verify

SITES = ("alder", "birch", "cedar")
ROUNDS = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    content = study(["fedavg", "scaffold"], data={"hospitals": list(SITES)}, training={"rounds": ROUNDS})
    federation(content, folder, at_sites(SITES), known_sources=KNOWN).run()
    return folder


def log_of(folder: Path, end: str) -> Path:
    return folder / "run" / "audit.jsonl" if end == "coordinator" else folder / "sites" / end / "audit.jsonl"


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def hashes(path: Path) -> list[str]:
    return [entry["hash"] for entry in entries(path)]


def of(path: Path, event: str) -> list[dict[str, Any]]:
    return [entry["detail"] for entry in entries(path) if entry["event"] == event]


@pytest.mark.parametrize("site", SITES)
def test_the_coordinator_knows_each_sites_head_of_each_round(site: str, finished: Path) -> None:
    known = hashes(log_of(finished, site))
    closed = of(log_of(finished, "coordinator"), "round closed")
    heads = [entry["updates"][site]["head"] for entry in closed]
    heads += [entry["heads"][site] for entry in of(log_of(finished, "coordinator"), "wave finished")]
    assert len(heads) == ROUNDS + 1
    places = [known.index(head) for head in heads]
    assert places == sorted(set(places))  # each round a later line


@pytest.mark.parametrize("site", SITES)
def test_a_site_knows_the_coordinators_head_of_each_message(site: str, finished: Path) -> None:
    known = hashes(log_of(finished, "coordinator"))
    asked = of(log_of(finished, site), "asked")
    places = [known.index(entry["head"]) for entry in asked]
    assert places == sorted(places)
    rounds = [place for place, entry in zip(places, asked, strict=True) if entry["kind"] == "train"]
    assert len(set(rounds)) == ROUNDS


@pytest.mark.parametrize("site", SITES)
def test_messages_are_in_both_logs_by_their_hash(site: str, finished: Path) -> None:
    answered = {entry["message"]: entry for entry in of(log_of(finished, site), "answered")}
    for closed in of(log_of(finished, "coordinator"), "round closed"):
        update = closed["updates"][site]
        assert answered[update["message"]]["round"] == closed["round"]
        assert answered[update["message"]]["bytes"] == update["bytes"]


PAIRS = [(site, "coordinator") for site in SITES] + [("coordinator", site) for site in SITES]


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_whole_logs_agree(own: str, other: str, finished: Path) -> None:
    heads = heads_in(log_of(finished, other), log_of(finished, own))
    assert len(set(heads)) > ROUNDS
    assert verify(log_of(finished, own), heads).broken is None


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_a_tail_that_is_cut_shows_in_the_other_log(own: str, other: str, finished: Path, tmp_path: Path) -> None:
    """Up to the last head that the other end knows, which is never far from the end."""
    lines = log_of(finished, own).read_bytes().splitlines(keepends=True)
    heads = heads_in(log_of(finished, other), log_of(finished, own))
    known = [number for number, entry_hash in enumerate(hashes(log_of(finished, own))) if entry_hash in heads]
    assert len(lines) - known[-1] <= 8
    joined = next(number for number, entry in enumerate(entries(log_of(finished, own))) if entry["event"] != "asked")
    for cut in range(joined + 1, known[-1] + 1):
        path = tmp_path / "audit.jsonl"
        path.write_bytes(b"".join(lines[:cut]))
        assert verify(path).broken is None  # by itself it is in order
        assert "cut off" in str(verify(path, heads_in(log_of(finished, other), path)).broken), cut


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_a_log_that_is_written_anew_shows_too(own: str, other: str, finished: Path, tmp_path: Path) -> None:
    """The same events with one left out, chained again as if nothing were missing."""
    network = entries(log_of(finished, own))
    gone = next(
        number for number, log_entry in enumerate(network) if log_entry["event"] in ("round closed", "answered")
    )
    log = AuditLog(tmp_path / "audit.jsonl")
    for number, entry in enumerate(network):
        if number != gone:
            log.add(entry["event"], **entry["detail"])
    assert verify(log.path).broken is None
    assert verify(log.path, heads_in(log_of(finished, other), log.path)).broken is not None
