"""Strangers who send much: what a SuperLink holds of it, and whether a study notices. All of them are on loopback."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.deployment.connection_flood import MEGABYTE, addresses, flood, resident
from tests.deployment.federation_processes import heart_study, hospitals
from tests.deployment.outsider_attacks import attempt_to_join, events
from tests.deployment.superlink_fixtures import ask, echo, joined, made_linked
from wardround.protocol.messages import Sealed, Transport
from wardround.protocol.signing import read_key
from wardround.runs.audit import verify

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's matter
RETURNED = 15.0  # seconds after which memory has gone back
WRONG_CLOCK = "the coordinator does not accept this site's key, or this clock is wrong (5 s ahead, 5 min behind)"
UNKNOWN_KEY = "the coordinator does not know this site's key yet, or it was revoked"


@contextmanager
def watched(pid: int) -> Iterator[list[float]]:
    """The largest memory of a process in the meantime, in megabytes, beyond what it had."""
    before, ended = resident(pid), threading.Event()
    largest = [0.0]

    def watch() -> None:
        while not ended.wait(0.02):
            largest[0] = max(largest[0], resident(pid) - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_a_superlink_holds_nothing_of_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all of it, since it takes seconds to start."""
    linked, done = made_linked(tmp_path), []

    def coordinate(transport: Transport) -> None:
        place = (linked.host, linked.kit.port)
        with joined(linked, tmp_path, "north", echo):
            message = Sealed(b"head", os.urandom(12 * MEGABYTE), b"signature")  # in three chunks
            assert ask(transport, {"north": message}) == {"north": message}
            with watched(linked.process.pid) as largest:
                ended = flood(place, linked.kit.ca, addresses(6), 60, 20 * MEGABYTE)
                assert ended.keys() <= {"401", "cut off"}
            assert largest[0] < 60
            assert ask(transport, {"north": message}) == {"north": message}
        nobody_repeats_a_request(linked, tmp_path)
        a_site_whose_clock_is_an_hour_off_is_refused(linked, tmp_path, monkeypatch)
        linked._connected().expel("south")
        assert first_words(linked, tmp_path, "south") == UNKNOWN_KEY
        done.append(True)

    linked.carry(coordinate)
    assert done


def first_words(linked: Any, folder: Path, site: str) -> str:
    key = read_key(folder / "kits" / "sites" / site / "site.key").private
    return attempt_to_join(f"{linked.host}:{linked.kit.port}", linked.kit.ca, key, folder)


def nobody_repeats_a_request(linked: Any, folder: Path) -> None:
    """Somebody who has seen one whole, which TLS prevents, sends it again."""
    import ssl

    import httpx

    from wardround.deployment.flower.adapter import SiteConnection

    key = read_key(folder / "kits" / "sites" / "south" / "site.key").private
    connection = SiteConnection(f"{linked.host}:{linked.kit.port}", linked.kit.ca.read_bytes(), key, None)
    seen: list[httpx.Request] = []
    connection.client._client.event_hooks["request"].append(seen.append)
    assert connection.receive() is None
    context = ssl.create_default_context(cafile=str(linked.kit.ca))
    with httpx.Client(verify=context, trust_env=False) as other:
        repeated = other.post(seen[0].url, headers=seen[0].headers, content=seen[0].read())
    assert repeated.status_code == 401
    assert connection.receive() is None  # who signs anew is heard
    connection.close()


def a_site_whose_clock_is_an_hour_off_is_refused(linked: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode import node_auth_http_interceptor as flowers

    for hours in (-1, 1):
        monkeypatch.setattr(flowers, "now", lambda hours=hours: datetime.now(UTC) + timedelta(hours=hours))
        assert first_words(linked, folder, "south") == WRONG_CLOCK
    monkeypatch.undo()
    assert first_words(linked, folder, "south") == "connected"


@pytest.mark.slow
@pytest.mark.parametrize("sources", [1, 50])
def test_500_strangers_neither_fill_the_memory_nor_delay_a_study(sources: int, tmp_path: Path) -> None:
    """60 MB each. The study does not lose a connection and is not delayed by more than a round. A round takes seconds
    here: strangers, hospitals and coordinator share the processors of one machine, so that 500 TLS handshakes alone
    cost the study a second."""
    document = heart_study(("fedavg",), training={"rounds": 6, "local_epochs": 2_000})
    with hospitals(document, tmp_path, ("127.0.0.2", "127.0.0.1")) as here:
        coordinator, sites = here.coordinate(), here.join_all()
        log = here.run_folder().path / "audit.jsonl"
        sites["va"].wait_for("round 2: trained")
        superlink = coordinator.superlink()
        before = resident(superlink)
        began = datetime.now(UTC)
        with watched(superlink) as largest:
            ended = flood((here.host, here.port), here.kit / "ca.pem", addresses(sources), 500, 60 * MEGABYTE)
        over = datetime.now(UTC)
        assert ended.keys() <= {"401", "cut off"}
        assert largest[0] < 200
        until = time.monotonic() + RETURNED
        while resident(superlink) > before + 40 and time.monotonic() < until:
            time.sleep(0.2)
        assert resident(superlink) < before + 40

        assert coordinator.ended() == 0, coordinator.said
        for site in sites.values():
            assert site.said.count(": connected") == 1  # and never again
        assert "site left" not in events(log)
        assert verify(log).broken is None
        assert here.parity().equal
        rounds = ends_of_rounds(log)
        lengths = [(end - begin).total_seconds() for begin, end in rounds]
        meanwhile = [
            length for length, (begin, end) in zip(lengths, rounds, strict=True) if begin < over and end > began
        ]
        calm = median(lengths)
        assert sum(meanwhile) - len(meanwhile) * calm < calm, (meanwhile, lengths)


def ends_of_rounds(log: Path) -> list[tuple[datetime, datetime]]:
    """Of each round but the first: the end of the one before, and its own."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    closed = [datetime.fromisoformat(entry["time"]) for entry in entries if entry["event"] == "round closed"]
    return list(pairwise(closed))


@pytest.mark.slow
def test_a_model_of_25_million_parameters_passes_while_strangers_knock(tmp_path: Path) -> None:
    linked, done = made_linked(tmp_path), []

    def coordinate(transport: Transport) -> None:
        message = Sealed(b"head", os.urandom(100 * MEGABYTE), b"signature")

        def knock() -> None:
            flood((linked.host, linked.kit.port), linked.kit.ca, addresses(20), 200, 20 * MEGABYTE)

        with joined(linked, tmp_path, "north", echo), joined(linked, tmp_path, "south", echo):
            strangers = threading.Thread(target=knock)
            strangers.start()
            assert ask(transport, {"north": message, "south": message}) == {"north": message, "south": message}
            strangers.join()
        done.append(True)

    linked.carry(coordinate)
    assert done
