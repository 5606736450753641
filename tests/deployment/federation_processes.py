"""Hospitals and a coordinator as processes of their own, on loopback: started, watched, killed, started again.

Whatever happens in a test, every process that was started here is ended with it.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wardround.deployment import Parity, SiteFile, approve, deployed_folder, provision, replay
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan
from wardround.study.parser import Families
from wardround.study.schema import Study

HEART = ("cleveland", "hungarian", "switzerland", "va")
LONGEST = 300.0  # seconds for anything that is waited for, as far as the machine has time for it
WARDROUND = ("-m", "wardround.cli.main")
# who has waited long for a coordinator looks for it once a minute: where runs follow each other, most of their time
EAGER = (
    "-c",
    "from wardround.cli.main import main; from wardround.deployment.flower import site_loop; "
    "site_loop.LONGEST_WAIT = 2.0; main()",
)


def heart_study(algorithms: Sequence[str], **changes: Any) -> dict[str, Any]:
    """One seed, small models. `changes` are merged into the tables of the file."""
    document: dict[str, Any] = {
        "name": "apart",
        "question": "The same model apart as on one machine?",
        "data": {"source": "heart", "hospitals": list(HEART)},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic", "l2": 0.01},
        "training": {"rounds": 4, "local_epochs": 1, "batch_size": 32, "lr": 0.1},
        "evaluation": {"test_share": 0.2, "seeds": {"first": 42, "count": 1}},
        "arms": [{"algorithm": algorithm} for algorithm in algorithms],
    }
    return {**document, **{key: {**document.get(key, {}), **table} for key, table in changes.items()}}


@dataclass
class Process:
    """A `wardround` command that runs."""

    name: str
    log: Path
    running: "subprocess.Popen[bytes]"

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, times: int = 1, also: "Process | None" = None) -> None:
        """Until it has said `words` so often. It must run till then, and `also` must."""

        def there() -> bool:
            ended = self.running.poll() is not None
            seen = self.said.count(words) >= times  # after looking whether it runs: its last words count
            assert seen or not ended, f"{self.name} ended without saying {words!r}:\n{self.said}"
            assert seen or also is None or also.running.poll() is None, f"{also.name} ended:\n{also.said}"
            return seen

        wait_until(there, f"{self.name} says {words!r}", lambda: self.said)

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        wait_until(lambda: self.running.poll() is not None, f"{self.name} ends", lambda: self.said)
        return self.running.wait()

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.running.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()

    def superlink(self) -> int:
        """The process id of a coordinator's SuperLink."""
        process_ids: list[int] = []

        def there() -> bool:
            process_ids[:] = [
                pid
                for pid in children(self.running.pid)
                if "wardround.deployment.flower.superlink_process" in command(pid)
            ]
            return bool(process_ids)

        wait_until(there, f"{self.name} has a SuperLink", lambda: self.said)
        return process_ids[0]


@dataclass
class Hospitals:
    """The kits of a study in a folder, and the processes that use them."""

    study: Study
    families: Families
    folder: Path
    host: str
    port: int
    sites: tuple[str, ...]
    processes: list[Process] = field(default_factory=list)
    program: Sequence[str] = WARDROUND

    @property
    def kit(self) -> Path:
        return self.folder / "coordinator"

    def site(self, name: str) -> SiteFile:
        return SiteFile.load(self.folder / "sites" / name)

    def coordinate(self, out: str = "runs", report: bool = False) -> Process:
        study, place = self.kit / "study.toml", ("--listen", self.host, "--out", self.folder / out)
        options = () if report else ("--no-report",)
        return self.start("coordinate", "coordinate", study, "--kit", self.kit, *place, *options)

    def join(self, site: str, *options: str) -> Process:
        return self.start(f"join {site}", "join", self.folder / "sites" / site / "site.toml", *options)

    def join_all(self) -> dict[str, Process]:
        return {site: self.join(site) for site in self.sites}

    def start(self, name: str, *words: str | Path, program: Sequence[str] = ()) -> Process:
        path = self.folder / f"{len(self.processes):03} {name}.log"
        with path.open("wb") as log:
            running = subprocess.Popen(
                [sys.executable, *(program or self.program), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.processes.append(Process(name, path, running))
        return self.processes[-1]

    def run_folder(self, out: str = "runs") -> RunFolder:
        return deployed_folder(self.study, self.folder / out)

    def parity(self, out: str = "runs") -> Parity:
        return replay(load_plan(self.study, self.families), self.run_folder(out))

    def end_all(self) -> None:
        for process in self.processes:
            process.kill()


@contextmanager
def hospitals(
    document: Mapping[str, Any],
    folder: Path,
    hosts: Sequence[str] = ("127.0.0.1",),
    others: Sequence[str] = (),
    unapproved: Sequence[str] = (),
    own: Sequence[str] = HEART,
) -> Iterator[Hospitals]:
    """Kits for the heart hospitals and `others`, which bring Cleveland's rows; filled in and approved."""
    study, families = load_study(document)
    sites = (*own, *others)
    network = Hospitals(study, families, folder / "kits", hosts[0], free_port(hosts[0]), sites)
    provision(study, sites, network.folder, hosts, network.port)
    for name in sites:
        fill_in(network.folder / "sites" / name / "site.toml", name if name in HEART else HEART[0])
        if name not in unapproved:
            approve(network.site(name), study, "Dr. Test")
    try:
        yield network
    finally:
        network.end_all()


def fill_in(site_file: Path, hospital: str) -> None:
    """Write `[data]` as a hospital would."""
    before, _, after = site_file.read_text(encoding="utf-8").partition("[data]\n")
    _, policy, rest = after.partition("[policy]\n")
    data = f'[data]\nsource = "heart"\nhospitals = ["{hospital}"]\n\n'
    site_file.write_text(before + data + policy + rest, encoding="utf-8")


def wait_until(there: Callable[[], bool], what: str, shown: Callable[[], str] = str) -> None:
    """A second counts as far as there is a processor for everybody: to start takes minutes where ten wait for one."""
    waited, before = 0.0, time.monotonic()
    while not there():
        assert waited < LONGEST, f"in {LONGEST:.0f} s it did not happen that {what}\n{shown()}"
        time.sleep(0.02)
        now = time.monotonic()
        waited += (now - before) * min(1.0, (os.cpu_count() or 1) / max(os.getloadavg()[0], 1e-9))
        before = now


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def children(parent: int) -> list[int]:
    process_ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()  # a name may hold anything, even blanks
        except OSError:
            continue  # it ended just now
        if int(after_name[1]) == parent:
            process_ids.append(int(stat.parent.name))
    return process_ids


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def listening(pid: int) -> list[tuple[str, int]]:
    """Addresses on which a process waits for connections."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            sockets.add(os.readlink(link))
    addresses = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
            address, port = words[1].split(":")
            addresses.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    return addresses
