"""A whole deployment in real processes: checked, run, stopped with Ctrl-C at both ends, and gone on with."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.deployment.federation_processes import HEART, Hospitals, Process, heart_study, hospitals
from wardround.cli.rendering import INTERRUPTED
from wardround.deployment import CoordinatorKit, preflight
from wardround.runs.audit import changed_files, heads_in, verify

STUDY = heart_study(
    ("fedavg", "fedprox", "scaffold", "local", "clustered"),
    training={"rounds": 12},
    evaluation={"every": 3},
)
FIRST, LAST = HEART[0], HEART[-1]
SMALL = heart_study(
    ("fedavg", "scaffold", "local"), data={"hospitals": [FIRST, LAST]}, training={"rounds": 3}, evaluation={"every": 3}
)


def test_two_hospitals_in_processes_of_their_own_train_the_model_of_one_machine(tmp_path: Path) -> None:
    with hospitals(SMALL, tmp_path, own=(FIRST, LAST)) as here:
        check_sends_nothing(here)
        coordinator = here.coordinate()
        sites = here.join_all()
        assert coordinator.ended() == 0, coordinator.said
        for site in sites.values():
            site.wait_for("is finished")
            site.interrupt()
        assert [site.ended() for site in sites.values()] == [0, 0]
        the_model_is_that_of_one_machine(here, models=2, rounds=3)
        rows_stayed_where_they_are(here)
        logs_are_in_order(here, rounds=3)
        nothing_is_left_behind(here, list(sites.values()))


@pytest.mark.slow
def test_a_study_across_hospitals_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    with hospitals(STUDY, tmp_path) as here:
        check_sends_nothing(here)
        coordinator = here.coordinate()
        sites = {name: here.join(name) for name in HEART[1:]}
        coordinator.wait_for("waiting for sites")
        check_says_ok(here)
        assert "cleveland" in coordinator.said.strip().splitlines()[-1], "the check has joined"
        sites[FIRST] = here.join(FIRST)

        sites[FIRST].wait_for("round 3: trained")
        coordinator.interrupt()
        sites[LAST].interrupt()
        assert coordinator.ended() == INTERRUPTED
        assert "Every closed round is kept" in coordinator.said
        assert sites[LAST].ended() == 0
        assert "the same command goes on from there" in sites[LAST].said
        for stopped in (coordinator, sites[LAST]):
            assert "Traceback" not in stopped.said
        assert not here.run_folder().complete

        coordinator = here.coordinate(report=True)
        coordinator.wait_for("waiting for sites")  # alone it is up before sites wait long
        sites[LAST] = here.join(LAST)
        assert coordinator.ended() == 0, coordinator.said
        for site in sites.values():
            site.wait_for("is finished")
            site.interrupt()
        assert [site.ended() for site in sites.values()] == [0, 0, 0, 0]
        the_model_is_that_of_one_machine(here, models=4, rounds=12)
        assert (here.run_folder().path / "report.html").is_file()
        rows_stayed_where_they_are(here)
        logs_are_in_order(here, rounds=12)
        nothing_is_left_behind(here, list(sites.values()))


def check_says_ok(here: Hospitals) -> None:
    check = here.join(FIRST, "--check", "--json")
    assert check.ended() == 0, check.said
    report = json.loads(check.said)
    assert report["ok"]
    assert {"data", "approval", "policy", "rows", "connection"} <= {
        condition["name"] for condition in report["conditions"]
    }
    assert not (here.site(FIRST).state / "audit.jsonl").exists()


def check_sends_nothing(here: Hospitals) -> None:
    """A listener with the coordinator's own certificate hears a handshake, and then not one byte."""
    with listener(CoordinatorKit.load(here.kit), here.host) as heard:
        assert {condition.name for condition in preflight(here.site(FIRST)) if not condition.ok} == set()
    assert heard == [b""]


@contextmanager
def listener(kit: CoordinatorKit, host: str) -> Iterator[list[bytes]]:
    """What each connection said under TLS."""
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.certificate, kit.key)
    with socket.create_server((host, kit.port)) as door:

        def listen() -> None:
            with suppress(OSError):  # the door was closed
                while True:
                    connection, _ = door.accept()
                    with context.wrap_socket(connection, server_side=True) as secured:
                        heard.append(secured.recv(1))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield heard
        door.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def the_model_is_that_of_one_machine(here: Hospitals, models: int, rounds: int) -> None:
    parity = here.parity()
    assert parity.equal
    assert parity.models == models  # `local` has no model of all
    records = here.run_folder().records()
    assert set(records.groupby("arm")["round"].max()) == {rounds}
    assert all(set(sites) == set(here.sites) for sites in records["sites"])


def rows_stayed_where_they_are(here: Hospitals) -> None:
    run = here.run_folder().path
    for name in here.sites:
        [state] = [path for path in here.site(name).state.iterdir() if path.name.startswith(here.study.hash[:12])]
        assert list((state / "predictions").glob("*.parquet"))
        assert not list(state.glob("wave-*")), "what was only needed while training"
    coordinators = [path for folder in (run, here.kit) for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in coordinators if path.suffix == ".parquet"] == ["records.parquet"]  # of rounds
    assert not [path for path in coordinators if "prediction" in path.name]


def logs_are_in_order(here: Hospitals, rounds: int) -> None:
    """Each by itself, and each with the heads that the other end has kept of it."""
    run = here.run_folder().path / "audit.jsonl"
    assert verify(run).broken is None
    assert changed_files(run) == []
    for name in here.sites:
        site = here.site(name).state / "audit.jsonl"
        assert len(heads_in(run, site)) >= rounds
        assert verify(site, heads_in(run, site)).broken is None
        assert verify(run, heads_in(site, run)).broken is None


def nothing_is_left_behind(here: Hospitals, sites: list[Process]) -> None:
    assert not (here.kit / "link" / "secret").exists()
    assert not (here.run_folder().path / "state").exists()
    for process in sites:
        assert "Traceback" not in process.said
