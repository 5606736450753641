"""The privacy ledger: one entry for each site and round, appended and never changed.

A ledger is an audit log (`runs.audit`), so that tampering shows:

    {"number": 7, "time": "...", "event": "charged", "detail": {"entries": [{...}, ...]}, "before": "...", "hash": ...}

A charge is on disk before `charge` returns, and nothing noisy may leave before that. A round that is requested again
after a crash is charged once; with another model or at another price it is refused.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from wardround.core.errors import DeployError, RunError
from wardround.privacy.dp.accountant import Charge, epsilon, together
from wardround.privacy.dp.epsilons import to_json
from wardround.runs.audit import BEGINNING, AuditLog, wrong_line

CHARGED = "charged"
TOGETHER = 50  # entries in a line, at most: the log looks for its last line in the last 64 KiB
Part = Literal["patients", "run", "study", "arm", "seed"]
EACH: tuple[Part, ...] = ("study", "arm", "seed")
REMEDY = "Look at it with `wardround log verify`, keep it, and ask who changed it. What it says cannot be relied on."


@dataclass(frozen=True, slots=True)
class Entry:
    """One site's charge in one round."""

    run: str
    study: str  # hash
    study_name: str
    arm: str  # with its swept value, as in fedprox[mu=0.1]
    seed: int
    site: str
    round: int
    rate: float
    noise: float
    steps: int
    delta: float  # that the study aims at; it does not change what was spent
    patients: str  # fingerprint of the rows that were charged
    question: str = ""  # hash of the request, so that another request in the same place shows
    guarantee: bool = False  # False: a simulation, whose noise anybody can draw again

    def __post_init__(self) -> None:
        Charge(self.rate, self.noise, self.steps)  # this and the next refuse what cannot be accounted for
        epsilon([], self.delta)

    @property
    def place(self) -> tuple[str, str, int, int, str]:
        return self.run, self.arm, self.seed, self.round, self.site


@dataclass(frozen=True)
class Spent:
    """What some of a site's entries cost together. A part is None where the entries of all its values are counted."""

    site: str
    patients: str | None
    run: str | None
    study: str | None
    study_name: str | None
    arm: str | None
    seed: int | None
    rounds: int
    steps: int
    delta: float
    add_remove: float  # epsilon, where a neighbour has one patient more or less
    replace: float  # epsilon, where a neighbour has one patient exchanged
    guarantee: bool  # whether every entry carries one


class Ledger:
    """Entries in a file. Processes write one at a time, and each reads what the others wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = Lock()
        self._known: dict[tuple[str, str, int, int, str], Entry] = {}
        self._read, self._lines, self._head = 0, 0, BEGINNING  # bytes and lines that were read, and the last hash

    def charge(self, entry: Entry) -> bool:
        """True if it was charged now, False if the same was charged before. On disk in both cases."""
        return self.charge_all([entry]) == [entry]

    def charge_all(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that were charged now. All or none: where one is refused, nothing is written."""
        with self._alone():
            self._read_on()
            new: dict[tuple[str, str, int, int, str], Entry] = {}
            for entry in entries:
                known = self._known.get(entry.place) or new.get(entry.place)
                if known is None:
                    new[entry.place] = entry
                elif known != entry:
                    raise _refused(known, entry)
            if entries:
                self._write(list(new.values()))
            self._read_on()
        return list(new.values())

    def entries(self) -> list[Entry]:
        """In the order in which they were charged. RunError where the file was changed."""
        with self._threads:
            self._read_on()
            return list(self._known.values())

    def spent(self, site: str | None = None, by: Sequence[Part] = (), delta: float | None = None) -> list[Spent]:
        """See `spent_by`, for one site or for all."""
        return spent_by([entry for entry in self.entries() if site in (None, entry.site)], by, delta)

    @property
    def head(self) -> str:
        """Hash of the last line. Kept elsewhere, it shows whether lines were cut off since."""
        self.entries()
        return self._head

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other writers between looking up a charge and writing it."""
        with self._threads, _as_run_errors(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.with_name(f"{self.path.name}.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    def _write(self, entries: list[Entry]) -> None:
        first = not self.path.exists()
        for begin in range(0, len(entries), TOGETHER):
            AuditLog(self.path).add(CHARGED, entries=[asdict(entry) for entry in entries[begin : begin + TOGETHER]])
        if first and entries:
            sync(self.path.parent)  # the file's name must be on disk too
        elif not entries:
            sync(self.path)  # whoever wrote the line may have died before it was on disk

    def _read_on(self) -> None:
        """Read the lines that came since, and check that each follows from the one before.

        A last line that a dying process left half written does not count: its charge was never confirmed. The log
        removes it when it is written to again.
        """
        with _as_run_errors(self.path, "read"):
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < self._read:
                raise RunError(str(self.path), "is shorter than it was: charges were cut off", REMEDY)
            if size == self._read:
                return
            with self.path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        for line in content.split(b"\n")[:-1]:
            if problem := wrong_line(line, self._lines, self._head):
                raise RunError(str(self.path), f"line {self._lines + 1} {problem}", REMEDY)
            logged = json.loads(line)
            if logged["event"] == CHARGED:
                for entry in self._entries_of(logged["detail"]):
                    if self._known.setdefault(entry.place, entry) != entry:
                        raise RunError(str(self.path), f"line {self._lines + 1} charges a round anew", REMEDY)
            self._read, self._lines, self._head = self._read + len(line) + 1, self._lines + 1, logged["hash"]

    def _entries_of(self, detail: dict[str, Any]) -> list[Entry]:
        names = [field.name for field in fields(Entry)]
        for raw in detail["entries"]:
            if list(raw) != names:
                problem = f"line {self._lines + 1} has other fields than an entry of this version"
                raise RunError(str(self.path), problem, "Read it with the version of wardround that wrote it.")
        return [Entry(**raw) for raw in detail["entries"]]


def spent_by(entries: Iterable[Entry], by: Sequence[Part] = (), delta: float | None = None) -> list[Spent]:
    """A row for each site, over all arms, swept values, seeds and studies; or for each value of `by` at each site.

    All entries of a row compose, whatever patients they name: a fingerprint changes with one row more, so that two
    fingerprints may well share patients. `by=["patients"]` separates them, for data that are known to share none.
    Epsilons are at one delta: the given one, or the smallest that any of the entries aims at.
    """
    entries = list(entries)
    at = min((entry.delta for entry in entries), default=1.0) if delta is None else delta
    groups: dict[tuple[str | int, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.site, *(getattr(entry, part) for part in by)), []).append(entry)
    return [_row(group, by, at) for group in groups.values()]


def plain(row: Spent) -> dict[str, Any]:
    return {**asdict(row), "add_remove": to_json(row.add_remove), "replace": to_json(row.replace)}


def charges_of(entries: Iterable[Entry]) -> list[Charge]:
    """One charge for each rate and noise: there are few of them, however many entries."""
    return list(together(Charge(entry.rate, entry.noise, entry.steps) for entry in entries))


def _row(entries: list[Entry], by: Sequence[Part], delta: float) -> Spent:
    first, charges = entries[0], charges_of(entries)
    return Spent(
        site=first.site,
        patients=first.patients if "patients" in by else None,
        run=first.run if "run" in by else None,
        study=first.study if "study" in by else None,
        study_name=first.study_name if "study" in by else None,
        arm=first.arm if "arm" in by else None,
        seed=first.seed if "seed" in by else None,
        rounds=len(entries),
        steps=sum(charge.steps for charge in charges),
        delta=delta,
        add_remove=epsilon(charges, delta),
        replace=epsilon(charges, delta, "replace"),
        guarantee=all(entry.guarantee for entry in entries),
    )


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(known: Entry, requested: Entry) -> DeployError:
    run, arm, seed, number, site = known.place
    where = f"{site}, run {run}, arm {arm}, seed {seed}, round {number}"
    if known.question != requested.question:
        problem = "asks again for a round that was answered, with another model"
        return DeployError(where, problem, "Begin a new run: two answers would cost what was charged for one.")
    changed = [field.name for field in fields(Entry) if getattr(known, field.name) != getattr(requested, field.name)]
    problem = f"asks again for a round that was charged, with another {' and '.join(changed)}"
    return DeployError(where, problem, "Begin a new run: what was charged once is not changed.")


@contextmanager
def _as_run_errors(path: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"cannot be {done} ({error.strerror}), and what is not charged must not leave"
        raise RunError(str(path), problem, "Make room, or let this program write there, and repeat.") from None
