"""Clients that stall, or go away: each is given up in time, takes nobody's place, and is no defect of the server."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.bundles.untrained_bundles import write_bundle
from wardround.bundles import load_bundle
from wardround.serving import guard
from wardround.serving.app import make_app
from wardround.serving.serve import BUSY, settings_of

HEAD = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"rows": [{"age": 1, "crp": 2, "sodium": 3}]}'
Address = tuple[str, int]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """Of a server that has less patience than usual."""
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(guard, "STALLED_SECONDS", 0.5)
    monkeypatch.setattr(guard, "BODY_SECONDS", 1.5)
    app = make_app(load_bundle(write_bundle(tmp_path / "b")))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(settings_of(app))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive()


def connect(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=10)


def answer_to(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    answer = b""
    while part := connection.recv(65536):
        answer += part
    return answer


def predicts(address: Address) -> bool:
    with connect(address) as connection:
        connection.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % len(BODY) + BODY)
        return answer_to(connection).startswith(b"HTTP/1.1 200")


def test_a_body_that_stalls_is_given_up(address: Address) -> None:
    with connect(address) as connection:
        connection.sendall(HEAD % len(BODY) + BODY[:10])
        assert answer_to(connection).startswith(b"HTTP/1.1 408")
    assert predicts(address)


def trickle(connection: socket.socket, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        connection.sendall(b" ")
        time.sleep(0.1)


def test_a_body_that_trickles_is_given_up(address: Address) -> None:
    with connect(address) as connection:
        connection.sendall(HEAD % 10_000)
        began = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            trickle(connection, seconds=8)
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("begun", [b"", HEAD[:20]])
def test_a_head_that_does_not_come_takes_nobodys_place(address: Address, begun: bytes) -> None:
    waiting = [connect(address) for _ in range(BUSY)]
    for connection in waiting:
        connection.sendall(begun)
    for connection in waiting:
        assert answer_to(connection) == b""
        connection.close()
    assert predicts(address)


def test_a_second_request_on_a_connection_must_come_too(address: Address) -> None:
    with connect(address) as connection:
        connection.sendall(HEAD % len(BODY) + BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD[:20])
        began = time.monotonic()
        assert b"HTTP/1.1 200" not in answer_to(connection)
        assert time.monotonic() - began < 8


@pytest.mark.parametrize("sent", [HEAD % len(BODY), HEAD % len(BODY) + BODY[:10], HEAD % len(BODY) + BODY])
def test_a_client_that_goes_away_is_no_defect(address: Address, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        with connect(address) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_RDWR)
        limit = time.monotonic() + 5
        while "POST /predict" not in caplog.text and time.monotonic() < limit:
            time.sleep(0.02)
    assert "POST /predict" in caplog.text
    assert "defect" not in caplog.text
    assert " 500 " not in caplog.text
    assert "Traceback" not in caplog.text
    assert predicts(address)
