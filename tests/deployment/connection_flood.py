"""Many strangers at once, each with a large body. Bounded in number and time, and on loopback only."""

import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

MEGABYTE = 2**20
PIECE = bytes(256 * 1024)
PROTOBUF = "content-type: application/protobuf\r\n"
LONGEST = 60.0  # seconds that a stranger takes


def resident(pid: int) -> float:
    """Memory of a process, in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def addresses(number: int) -> list[str]:
    return [f"127.0.7.{last}" for last in range(1, number + 1)]


def flood(place: tuple[str, int], ca: Path, sources: Sequence[str], connections: int, body: int) -> Counter[str]:
    """POST `body` bytes over so many connections at once; how often each ended how. Each ends within `LONGEST`."""
    context = ssl.create_default_context(cafile=str(ca))
    head = f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n{PROTOBUF}content-length: {body}\r\n\r\n".encode()
    together = threading.Barrier(connections)

    def post(number: int) -> str:
        together.wait(LONGEST)
        until = time.monotonic() + LONGEST
        try:
            with (
                socket.create_connection(place, LONGEST, (sources[number % len(sources)], 0)) as plain,
                context.wrap_socket(plain, server_hostname=place[0]) as stranger,
            ):
                stranger.sendall(head)
                sent = 0
                with suppress(OSError):
                    while sent < body and time.monotonic() < until:
                        sent += stranger.send(PIECE)
                answer = stranger.recv(100)
        except OSError:
            return "cut off"
        return answer.decode().split(" ")[1] if answer else "cut off"

    with ThreadPoolExecutor(connections) as threads:
        return Counter(threads.map(post, range(connections)))
