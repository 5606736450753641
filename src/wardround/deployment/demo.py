"""Four hospitals on one machine: provisioned, approved, joined and coordinated with the same commands as in
practice."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from wardround.core.errors import DeployError
from wardround.deployment.common.deployable import is_private
from wardround.deployment.common.parity import Parity, replay
from wardround.deployment.coordinate import deployed_folder
from wardround.deployment.governance.approvals import approve
from wardround.deployment.provisioning.provision import provision
from wardround.deployment.provisioning.site_file import SiteFile
from wardround.runs.catalog import find_study, load_study
from wardround.runs.ledger import Ledger, Spent
from wardround.runs.plan import load_plan
from wardround.runs.spending import LEDGER
from wardround.training.validation import need_extras

STUDY = "heart-deployed"
PRIVATE = "heart-deployed-private"
LONGEST = 600.0  # seconds


@dataclass(frozen=True)
class Demo:
    parity: Parity | None  # None: noise from secrets cannot be had again
    sites: tuple[str, ...]
    spent: tuple[Spent, ...]  # by each hospital's own ledger
    folder: Path | None = None  # None: everything was removed


def run_demo(out: Path | None, show_line: Callable[[str], None], private: bool = False) -> Demo:
    """`out` must not exist yet; without it everything is removed in the end."""
    name = PRIVATE if private else STUDY
    if out is not None:
        return replace(_run(name, out.absolute(), show_line), folder=out)
    with TemporaryDirectory(prefix="wardround-demo-") as folder:
        return _run(name, Path(folder) / "demo", show_line)


def _run(name_of_study: str, folder: Path, show_line: Callable[[str], None]) -> Demo:
    from wardround.deployment.flower.superlink import free_port

    study, families = load_study(name_of_study)
    for arm in study.trained_arms:
        need_extras(arm.name, arm.privacy)
    sites = tuple(study.data.options["hospitals"])
    provision(study, sites, folder, port=free_port())
    show_line(f"kits for {', '.join(sites)} in {folder}")
    for name in sites:
        prepare_site(folder / "sites" / name, f'source = "heart"\nhospitals = ["{name}"]\n')
        approve(SiteFile.load(folder / "sites" / name), study, "wardround demo")
    kit, runs = ("--kit", str(folder / "coordinator")), ("--out", str(folder / "runs"))
    command = ["coordinate", str(find_study(name_of_study)), *kit, *runs, "--no-report"]
    joins = [["join", str(folder / "sites" / name / "site.toml")] for name in sites]
    with started([command, *joins], folder) as processes:
        show_line(f"coordinator and {len(sites)} hospitals are running, each in a process of its own")
        wait_for(processes[0], processes[1:], folder / "coordinate.log", show_line)
    if is_private(study):
        show_line("the run is finished; what it cost patients is in each hospital's own ledger")
        ledgers = [Ledger(folder / "sites" / name / "state" / LEDGER) for name in sites]
        return Demo(None, sites, tuple(row for ledger in ledgers for row in ledger.spent()))
    show_line("the run is finished; the same rounds again on one machine")
    return Demo(replay(load_plan(study, families), deployed_folder(study, folder / "runs")), sites, ())


def prepare_site(folder: Path, data: str) -> None:
    """Fill in `[data]` of a kit's site.toml."""
    path = folder / "site.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"(?ms)^\[data\]\n.*?(?=^\[|\Z)", lambda _: f"[data]\n{data}\n", text), encoding="utf-8")


@contextmanager
def started(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each `wardround` command in a process of its own, with its output in a file; all are ended in the end."""
    from wardround.deployment.flower.superlink import COORDINATOR_MEMORY, SITE_MEMORY

    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            name = command[0] if number == 0 else f"{command[0]}-{Path(command[1]).parent.name}"
            with (folder / f"{name}.log").open("wb") as log:
                memory = COORDINATOR_MEMORY if command[0] == "coordinate" else SITE_MEMORY
                environment = {**os.environ, **memory, "OMP_NUM_THREADS": "1"}
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "wardround.cli.main", *command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment,
                    )
                )
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT if process.poll() is None else 0)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(
    coordinator: "subprocess.Popen[bytes]",
    sites: "Sequence[subprocess.Popen[bytes]]",
    log: Path,
    show_line: Callable[[str], None],
) -> None:
    began, shown = time.monotonic(), ""
    while coordinator.poll() is None:
        time.sleep(0.2)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines and lines[-1] != shown:
            shown = lines[-1]
            show_line(f"  {shown}")
        ended = [number for number, site in enumerate(sites) if site.poll() is not None]
        if ended or time.monotonic() - began > LONGEST:
            problem = "a hospital's process ended early" if ended else "did not finish in time"
            raise DeployError("demo", problem, f"Look at the logs beside {log}.")
    if coordinator.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise DeployError("demo", tail[-1] if tail else "the coordinator failed", f"Look at {log}.")
