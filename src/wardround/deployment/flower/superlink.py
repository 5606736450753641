"""The coordinator's SuperLink: started, watched, and restarted when it dies."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from wardround.core.errors import DeployError
from wardround.deployment.flower.adapter import LOST, CoordinatorConnection, ReconnectingGrid, lost_link
from wardround.deployment.flower.server_app import LinkLost, Standing, server_app
from wardround.deployment.provisioning.kit import CoordinatorKit
from wardround.deployment.provisioning.kit_files import write_private
from wardround.protocol.messages import Transport
from wardround.protocol.signing import PublicKey

LOOK_EVERY = 0.5  # seconds
# glibc: new memory is cleared page by page, a third of the work with a large model; large pages are cleared faster
LARGE_PAGES = "glibc.malloc.hugetlb=1"
# what a hospital frees in a round it uses again in the next; at the end of a run all is given back
SITE_MEMORY = {
    "GLIBC_TUNABLES": f"{LARGE_PAGES}:glibc.malloc.mmap_threshold={2**30}:glibc.malloc.trim_threshold={2**30}"
}
# the coordinator gives back at once what is free: what many threads leave between large blocks would pile up
COORDINATOR_MEMORY = {"GLIBC_TUNABLES": f"{LARGE_PAGES}:glibc.malloc.mmap_threshold={2**22}"}
# its SuperLink keeps room for the parts of one or two models, of 16 MB each, which come and go
LINK_MEMORY = {
    "GLIBC_TUNABLES": f"{LARGE_PAGES}:glibc.malloc.mmap_threshold={2**26}:glibc.malloc.trim_threshold={2**28}"
}
START_WITHIN = 60.0
MOST_FAILURES = 5


@dataclass
class SuperLink:
    """Its own files are in the kit's folder `link` while it runs; owner-only."""

    kit: CoordinatorKit
    host: str
    sites: Mapping[str, PublicKey]
    notice: Callable[[str], None] = lambda line: None
    known: dict[str, Standing] = field(default_factory=dict)
    looked: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    connection: CoordinatorConnection | None = None
    failures: int = 0  # to start, one after another

    @property
    def folder(self) -> Path:
        return self.kit.path / "link"

    def carry(self, coordinate: Callable[[Transport], None]) -> None:
        """Run our app with a SuperLink, which is stopped in the end."""
        try:
            self._start()
            connection = self._connected()
            server_app(coordinate, self.look)(ReconnectingGrid(self._connected), connection.context)
        finally:
            self._stop()

    def look(self) -> Mapping[str, Standing]:
        if time.monotonic() - self.looked < LOOK_EVERY:
            return self.known
        if self._gone():
            self.notice("the SuperLink is gone; starting it again")
            self._stop()
            self._start_again()
        try:
            for site in self.kit.revoked_now():
                self._connected().expel(site)
            self.known = self._connected().standing()
        except LOST as error:
            raise LinkLost from error
        self.looked = time.monotonic()
        return self.known

    def _start_again(self) -> None:
        """It may fail again at once; it is given up only after repeated failures."""
        try:
            with lost_link():
                self._start()
        except DeployError as error:
            self.failures += 1
            if self.failures > MOST_FAILURES:
                raise
            self._stop()
            time.sleep(self.failures)
            raise LinkLost from error
        self.failures = 0

    def _gone(self) -> bool:
        ended = self.process is None or self.process.poll() is not None
        return ended or self.connection is None or self.connection.lost.is_set()

    def _connected(self) -> CoordinatorConnection:
        if self.connection is None:
            raise LinkLost
        return self.connection

    def _start(self) -> None:
        secret = secrets.token_bytes(32)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret_file = self.folder / "secret"
        secret_file.unlink(missing_ok=True)
        write_private(secret_file, secret)
        listener = socket.create_server(("127.0.0.1", 0))  # ours from the start: nobody else can answer on it
        port = int(listener.getsockname()[1])
        settings = {
            "host": self.host,
            "port": self.kit.port,
            "connections": self.kit.connections,
            "connections_per_address": self.kit.connections_per_address,
            "inner_door": listener.fileno(),
            "ca": str(self.kit.ca),
            "certificate": str(self.kit.certificate),
            "key": str(self.kit.key),
            "secret": secret.hex(),
            "secret_file": str(secret_file),
            "parent": os.getpid(),
        }
        log = (self.folder / "superlink.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wardround.deployment.flower.superlink_process"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **LINK_MEMORY, "FLWR_HOME": str(self.folder)},
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the coordinator, which then stops it
        )
        log.close()
        listener.close()
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(settings).encode())
            self.process.stdin.close()
        self._wait(port, secret.hex())
        revoked = self.kit.revoked_now()
        public = {site: key.public for site, key in self.sites.items() if site not in revoked}
        self.connection = CoordinatorConnection(f"127.0.0.1:{port}", secret, public)

    def _wait(self, port: int, secret: str) -> None:
        began = time.monotonic()
        while True:
            with suppress(httpx.HTTPError):
                shown = {"x-wardround-secret": secret}
                url = f"http://127.0.0.1:{port}/health"
                if httpx.get(url, headers=shown, timeout=2, trust_env=False).status_code == 200:
                    return
            if self.process is None or self.process.poll() is not None or time.monotonic() - began > START_WITHIN:
                tail = (self.folder / "superlink.log").read_text(encoding="utf-8", errors="replace").strip()
                reason = tail.splitlines()[-1] if tail else "no word"
                problem = f"the SuperLink did not start ({reason})"
                raise DeployError(f"{self.host}:{self.kit.port}", problem, "Is the port free, and may it be used?")
            time.sleep(0.05)

    def _stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(3)
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self.process = None
        (self.folder / "secret").unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
