"""What a gateway lets through: heads before bodies, and nobody for long. Real sockets and TLS, on loopback."""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_processes import heart_study, hospitals
from wardround.core.settings import settings_of
from wardround.deployment import CoordinatorKit, coordinate_study, revoke
from wardround.deployment.flower import gateway as gateways
from wardround.deployment.flower.gateway import Gateway, Limits, Receive, Scope, Send, Verdict, network_of
from wardround.deployment.provisioning import certificates
from wardround.deployment.provisioning.kit import Keys
from wardround.protocol.messages import Transport

HOST = "127.0.0.2"
LARGE = 60 * 2**20
KERNEL = 16 * 2**20  # bytes of a body that may be under way in the buffers of sockets on loopback
WITHIN = 10.0  # seconds for what takes a fraction of one


@dataclass
class Served:
    """A gateway in a thread, its address, and what came through it."""

    port: int
    ca: Path
    gateway: Gateway
    afterwards: float = 0.0  # seconds that the application takes after its answer
    judged: list[str] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)

    def connect(self, source: str = "127.0.7.1") -> socket.socket:
        return socket.create_connection((HOST, self.port), WITHIN, (source, 0))

    def secured(self, source: str = "127.0.7.1") -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.ca))
        return context.wrap_socket(self.connect(source), server_hostname=HOST)

    def wait(self, there: Callable[[], bool]) -> None:
        until = time.monotonic() + WITHIN
        while not there():
            assert time.monotonic() < until
            time.sleep(0.01)

    def nobody_is_left(self) -> None:
        self.wait(lambda: not self.gateway.unknown and not self.gateway.known and not self.gateway.homes)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit")
    key, authority = certificates.new_authority("study", 2)
    own, certificate = certificates.new_certificate("study", [HOST], 2, key, authority)
    (folder / "ca.pem").write_bytes(certificates.certificate_pem(authority))
    (folder / "own.pem").write_bytes(certificates.certificate_pem(certificate))
    (folder / "own.key").write_bytes(certificates.private_pem(own))
    return folder


@contextmanager
def served(
    kit: Path, limits: Limits | None = None, loop: str = "uvloop", tidy: Callable[[], object] = int
) -> Iterator[Served]:
    """It lets in whoever has a name."""
    runner: Any = pytest.importorskip(loop)
    listener = socket.create_server((HOST, 0))

    def judge(scope: Scope) -> Verdict:
        name = dict(scope["headers"]).get(b"name", b"").decode()
        here.judged.append(name)
        return Verdict(name) if name else Verdict(status=401)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message.get("more_body", False)
        here.bodies.append(len(message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        await asyncio.sleep(here.afterwards)

    tls = {"ssl_keyfile": str(kit / "own.key"), "ssl_certfile": str(kit / "own.pem")}
    gateway = Gateway(app, [listener], judge, limits or Limits(), tidy, lifespan="off", **tls)
    here = Served(listener.getsockname()[1], kit / "ca.pem", gateway)
    thread = threading.Thread(target=lambda: runner.run(gateway.serve()))
    thread.start()
    try:
        here.wait(lambda: gateway.started)
        yield here
    finally:
        gateway.should_exit = True
        thread.join(WITHIN)
    assert not thread.is_alive()


def head(size: int, name: str = "", **others: str) -> bytes:
    lines = {"host": HOST, "content-length": str(size), **({"name": name} if name else {}), **others}
    return ("POST / HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items()) + "\r\n").encode()


def status(connection: socket.socket) -> str:
    """Of the answer; `cut` where the connection ends without one."""
    with suppress(OSError):
        answer = connection.recv(1000)
        return answer.decode().split(" ")[1] if answer else "cut"
    return "cut"


def ask(connection: socket.socket, body: bytes, name: str) -> str:
    connection.sendall(head(len(body), name))
    connection.sendall(body)
    return status(connection)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_body_of_a_stranger_is_not_read(loop: str, kit: Path) -> None:
    with served(kit, loop=loop) as here:
        with here.secured() as stranger:
            stranger.sendall(head(LARGE))
            sent = 0
            with suppress(OSError):
                while sent < LARGE:
                    sent += stranger.send(bytes(2**18))
            assert sent < KERNEL
            assert status(stranger) in ("401", "cut")
        assert here.judged == [""]
        assert here.bodies == []
        here.nobody_is_left()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_bodies_of_those_who_are_known_pass_whole(loop: str, kit: Path) -> None:
    """Eight at once of the size of Flower's chunks, one after another on the same connection."""
    sizes = [0, 1, 70_000, 6 * 2**20]

    def post(number: int) -> list[str]:
        with here.secured(f"127.0.7.{number + 1}") as known:
            return [ask(known, bytes(size), "north") for size in sizes]

    with served(kit, loop=loop) as here:
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(post, range(8))) == [["200"] * len(sizes)] * 8
        assert sorted(here.bodies) == sorted(sizes * 8)
        here.nobody_is_left()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_large_request_may_follow_an_answer_at_once(loop: str, kit: Path) -> None:
    """Before the application has quite ended with the last: an answer is sent before that."""
    with served(kit, loop=loop) as here, here.secured() as known:
        here.afterwards = 0.3
        assert [ask(known, bytes(6 * 2**20), "north") for _ in range(3)] == ["200"] * 3
        assert here.bodies == [6 * 2**20] * 3


def test_who_is_refused_with_a_small_body_always_hears_why(kit: Path) -> None:
    with served(kit) as here:
        for _ in range(20):
            with here.secured() as stranger:
                stranger.sendall(head(1000))
                time.sleep(0.005)  # as a client does that sends head and body one after the other
                stranger.sendall(bytes(1000))
                assert status(stranger) == "401"
                assert status(stranger) == "cut"
        assert here.bodies == []


@pytest.mark.parametrize("others", [{"content-length": str(gateways.LARGEST + 1)}, {"transfer-encoding": "chunked"}])
def test_no_body_without_a_limit(others: dict[str, str], kit: Path) -> None:
    with served(kit) as here, here.secured() as known:
        lines = head(0, "north", **others)
        known.sendall(lines.replace(b"content-length: 0\r\n", b"") if "transfer-encoding" in others else lines)
        assert status(known) in ("403", "400")
        assert here.bodies == []


def test_requests_behind_one_another_are_judged_one_by_one(kit: Path) -> None:
    """uvicorn would begin with all of them, and a stranger gets only one."""
    with served(kit) as here:
        with here.secured() as stranger:
            stranger.sendall(head(0) * 500)
            assert status(stranger) in ("401", "cut")
        with here.secured() as known:
            known.sendall((head(3, "north") + b"abc") * 3)
            answers = b""
            while answers.count(b"200 OK") < 3:
                answers += known.recv(1000)
        assert here.judged == ["", "north", "north", "north"]
        assert here.bodies == [3, 3, 3]


# -- time


def trickle(connection: socket.socket, pieces: list[bytes], pause: float) -> str:
    with suppress(OSError):
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause)
    return status(connection)


def test_whoever_is_slow_with_a_head_is_sent_away(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "HEAD_WITHIN", 0.4)
    monkeypatch.setattr(gateways, "HANDSHAKE_WITHIN", 0.4)
    with served(kit) as here, ExitStack() as stack:
        began = time.monotonic()
        silent = stack.enter_context(here.connect())  # not even a handshake
        half = stack.enter_context(here.secured())
        half.sendall(head(5, "north")[:-2])
        later = stack.enter_context(here.secured())
        assert ask(later, b"hello", "north") == "200"
        assert trickle(later, [bytes([byte]) for byte in head(5, "north")], 0.05) == "cut"  # its second head
        assert status(half) == status(silent) == "cut"
        assert time.monotonic() - began < WITHIN / 2
        here.nobody_is_left()


def test_a_head_is_not_endless(kit: Path) -> None:
    with served(kit) as here, here.secured() as stranger:
        assert trickle(stranger, [b"POST / HTTP/1.1\r\n", *[b"a: " + b"b" * 1000 + b"\r\n"] * 40], 0) == "cut"
        assert here.judged == []


def test_whoever_stops_in_a_body_is_sent_away_and_who_is_only_slow_is_not(
    kit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "LONGEST_PAUSE", 0.4)
    with served(kit) as here:
        with here.secured() as slow, here.secured() as stopped:
            stopped.sendall(head(8, "north") + b"1234")
            assert trickle(slow, [head(8, "north"), *[b"1"] * 8], 0.1) == "200"
            assert status(stopped) == "cut"
        here.nobody_is_left()
        assert here.bodies[-1] == 8
        monkeypatch.setattr(gateways, "BODY_WITHIN", 0.3)
        began = time.monotonic()
        with here.secured() as endless:
            assert trickle(endless, [head(100, "north"), *[b"1"] * 99], 0.1) == "cut"
        assert time.monotonic() - began < WITHIN / 2


# -- number


def open_ones(connections: list[ssl.SSLSocket] | list[socket.socket]) -> int:
    """How many have not been ended by the other end."""
    count = 0
    for connection in connections:
        connection.settimeout(0.05)
        try:
            count += bool(connection.recv(1))
        except TimeoutError:
            count += 1
        except OSError:
            pass
        connection.settimeout(WITHIN)
    return count


def test_one_address_has_only_some_connections_and_others_are_not_shut_out(kit: Path) -> None:
    with served(kit, Limits(per_address=4, strangers=6)) as here, ExitStack() as stack:
        other = stack.enter_context(here.connect("127.0.7.2"))
        known = stack.enter_context(here.secured("127.0.7.3"))
        assert ask(known, b"hello", "north") == "200"
        flood = [stack.enter_context(here.connect("127.0.7.9")) for _ in range(30)]
        here.wait(lambda: open_ones(flood) == 4)
        assert open_ones([other]) == 1
        assert sum(map(len, here.gateway.unknown.values())) == 5
        assert ask(known, b"again", "north") == "200"
        with here.secured("127.0.7.9") as same:  # behind the same address as the flood, where the oldest must go
            assert ask(same, b"hello", "south") == "200"


def test_many_addresses_have_only_some_connections_together(kit: Path) -> None:
    with served(kit, Limits(per_address=4, strangers=6)) as here, ExitStack() as stack:
        known = stack.enter_context(here.secured("127.0.7.100"))
        assert ask(known, b"hello", "north") == "200"
        flood = [stack.enter_context(here.connect(f"127.0.7.{item + 1}")) for item in range(40)]
        here.wait(lambda: open_ones(flood) == 6)
        # where somebody is known, more may come: several chunks travel at once
        more = [stack.enter_context(here.secured("127.0.7.100")) for _ in range(4)]
        assert open_ones(more) == 4
        assert [ask(item, b"hello", "north") for item in more] == ["200"] * 4


def test_the_gateway_is_full_when_those_who_are_known_fill_it(kit: Path) -> None:
    with served(kit, Limits(connections=3)) as here, ExitStack() as stack:
        known = [stack.enter_context(here.secured()) for _ in range(3)]
        assert [ask(connection, b"hello", "north") for connection in known] == ["200"] * 3
        with here.connect() as another:
            assert status(another) == "cut"
        assert [ask(connection, b"hello", "north") for connection in known] == ["200"] * 3


def test_one_site_does_not_take_all(kit: Path) -> None:
    limits = Limits(per_caller=2, bytes_per_caller=2000)
    with served(kit, limits) as here, ExitStack() as stack:
        known = [stack.enter_context(here.secured()) for _ in range(4)]
        assert [ask(connection, b"hello", "north") for connection in known[:3]] == ["200", "200", "503"]
        assert ask(known[3], b"hello", "south") == "200"
        known[0].sendall(head(1500, "north"))
        here.wait(lambda: here.gateway.reading["north"] == 1500)
        assert ask(known[1], bytes(1000), "north") == "503"
        known[0].sendall(bytes(1500))
        assert status(known[0]) == "200"


def test_one_connection_is_one_sites(kit: Path) -> None:
    with served(kit) as here, here.secured() as known:
        assert ask(known, b"hello", "north") == "200"
        assert ask(known, b"hello", "south") == "403"


def test_strangers_are_told_of_in_one_line_and_memory_is_returned(
    kit: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateways, "REPORT_EVERY", 0.5)
    monkeypatch.setattr(gateways, "TIDY_AFTER", 0.3)
    tidied: list[float] = []
    with caplog.at_level(logging.WARNING), served(kit, tidy=lambda: tidied.append(0)) as here:
        for _ in range(5):
            with here.secured() as stranger:
                stranger.sendall(head(0))
                status(stranger)
        with here.connect() as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")  # without TLS
            status(stranger)
        here.wait(lambda: bool(caplog.messages) and bool(tidied))
        assert caplog.messages == ["6 connections of strangers ended, 6 of them from 127.0.7.1"]
    assert len(tidied) == 1


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_one_who_has_many_addresses_counts_as_one(address: str, network: str) -> None:
    assert network_of(address) == network


# -- settings


def test_a_coordinators_kit_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wardround.deployment.flower import superlink

    kits: list[CoordinatorKit] = []

    class Link:
        def __init__(self, kit: CoordinatorKit, *settings: Any) -> None:
            kits.append(kit)

        def carry(self, coordinate: Callable[[Transport], None]) -> None:
            pass

    monkeypatch.setattr(superlink, "SuperLink", Link)
    with hospitals(heart_study(("fedavg",)), tmp_path) as here:
        path = here.kit / "coordinator.toml"
        written = path.read_text(encoding="utf-8")
        assert "connections = 512\nconnections_per_address = 32\n" in written
        changed = written.replace("connections = 512", "connections = 99").replace("address = 32", "address = 7")
        path.write_text(changed, encoding="utf-8")
        revoke(here.kit, "va", "left the study")  # which writes the file anew
        coordinate_study(here.study, here.families, CoordinatorKit.load(here.kit), tmp_path / "runs")
    assert (kits[0].connections, kits[0].connections_per_address) == (99, 7)
    for name, default in (("connections", 512), ("connections_per_address", 32)):  # of kit and gateway alike
        assert Limits.__dict__[name.replace("connections_per", "per")] == default
        assert Keys.__dict__[name] == default


def test_every_key_of_a_coordinators_kit_is_in_the_reference() -> None:
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    for setting in settings_of(Keys):
        assert f"`{setting}`" in reference, setting
