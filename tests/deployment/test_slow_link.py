"""A thin, slow line between hospitals and coordinator, and a model of 25 million parameters."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.deployment.federation_processes import heart_study, hospitals

BYTES_A_SECOND = 6_000_000  # of each direction of each connection: 48 Mbit/s
DELAY = 0.04  # seconds, each way
PIECE = 64 * 1024


@contextmanager
def slow_line(port: int) -> Iterator[int]:
    """A port that leads to another one, slowly. It ends with the test."""
    listening = socket.create_server(("127.0.0.1", 0))
    open_sockets = [listening]

    def carry(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                time.sleep(DELAY / 8 if len(piece) < PIECE else len(piece) / BYTES_A_SECOND)
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", port))
                except ConnectionRefusedError:  # the coordinator is not there yet
                    near.close()
                    continue
                time.sleep(DELAY)
                open_sockets.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        for connection in open_sockets:
            with suppress(OSError):
                connection.close()


@pytest.mark.slow
def test_a_large_model_over_a_slow_line(tmp_path: Path) -> None:
    """100 MB each way at 6 MB/s take a quarter of a minute: no timeout, and both ends show that something happens."""
    document = heart_study(
        ["fedavg"],
        data={"categories": "codes", "indicator": False},
        model={"kind": "mlp", "hidden": [5000, 4985]},
        training={"rounds": 1, "batch_size": 1024, "lr": 0.01},
        evaluation={"every": 0, "test_share": 0.7},
    )
    document["model"].pop("l2")
    with hospitals(document, tmp_path) as here, slow_line(here.port) as port:
        for site in here.sites:
            path = here.folder / "sites" / site / "site.toml"
            text = path.read_text(encoding="utf-8")
            slower = re.sub(r'(?m)^coordinator = ".*"', f'coordinator = "127.0.0.1:{port}"', text)
            path.write_text(slower, encoding="utf-8")
        coordinator = here.coordinate()
        sites = here.join_all()
        assert coordinator.ended() == 0, coordinator.said
        for joined in sites.values():
            assert "connection lost" not in joined.said.split("is finished")[0], joined.said
            assert re.search(r"sent \d+ of \d+ parts", joined.said), joined.said
            assert joined.said.count("trained") == 1
        assert here.parity().close
