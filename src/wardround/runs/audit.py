"""A tamper-evident log: one JSON line per event, each with the hash of the line before.

A changed, deleted, inserted or reordered line breaks the chain at that place. A cut tail does not break a chain: it
shows against a head that was saved elsewhere, such as in another log or on paper.

    {"number": 3, "time": "...", "event": "run finished", "detail": {...}, "before": "9f2c...", "hash": "41aa..."}

Events hold counts, hashes and names of sites and arms only, and nothing of a patient.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import ENOSPC
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from wardround.core.errors import RunError

BEGINNING = "0" * 64  # what stands before the first line
BEGUN, RESUMED, FINISHED = "run begun", "run resumed", "run finished"
NAMED = "site named"  # because its updates differ
HELD, DECIDED = "run held", "site decided"  # until people decide about sites that were named
NEAR_THE_END = 64 * 1024  # bytes that are read to find the last line: a log of years is not read for each event
KEYS = ("number", "time", "event", "detail", "before", "hash")


@dataclass(frozen=True)
class Audit:
    """The state of a log."""

    entries: int
    head: str  # hash of the last line that is in order
    broken: str | None  # where and how


class AuditLog:
    """Append events to a file. Each is on disk before `add` returns, and one process writes at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: str | None = None  # the head that this object wrote

    def add(self, event: str, **detail: Any) -> str:
        """The new head. A last line that a dying process left half written is cut off, and the cut is logged."""
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number, before, cut = _tail(file.fileno(), self.path)
            if cut:
                before = _append(file.fileno(), number, before, "unfinished line removed", {"bytes": cut})
                number += 1
            head = _append(file.fileno(), number, before, event, detail)
            os.fsync(file.fileno())
        self.last = head
        return head

    @property
    def head(self) -> str:
        if self.last is not None:
            return self.last
        return verify(self.path).head if self.path.is_file() else BEGINNING


def verify(path: Path, head: str | Collection[str] | None = None) -> Audit:
    """Read a whole log. With `head`, one or more hashes that were saved elsewhere, each must be that of a line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(str(path), f"cannot be read ({error.strerror})", "Name the file of an audit log.") from None
    unfinished = lines.pop()
    before, seen = BEGINNING, {BEGINNING}
    for number, line in enumerate(lines):
        if problem := wrong_line(line, number, before):
            return Audit(number, before, f"line {number + 1}: {problem}")
        before = json.loads(line)["hash"]
        seen.add(before)
    if not lines and not unfinished:
        return Audit(0, before, "is empty: no event was ever written, or all were removed")
    if unfinished:
        return Audit(len(lines), before, f"line {len(lines) + 1}: is not finished")
    for saved in [head] if isinstance(head, str) else head or ():
        if saved not in seen:
            problem = f"the head {saved[:12]}... is of no line: the log was cut off or written anew"
            return Audit(len(lines), before, problem)
    return Audit(len(lines), before, None)


def heads_in(other: Path, path: Path) -> list[str]:
    """Heads of the log at `path` that the other end of a run recorded in its own log. Both must be in order."""
    own = [(entry["event"], entry["detail"]) for entry in _entries(path)]
    sites = {detail["site"] for event, detail in own if event == "joined" and "site" in detail}
    runs = {detail["run"] for _, detail in own if "run" in detail}
    heads: list[Any] = []
    for entry in _entries(other):
        event, detail = entry["event"], entry["detail"]
        if sites:  # a site's log, against the coordinator's
            heads += _site_heads(event, detail, sites)
        elif event == "asked" and detail.get("run") in runs:
            heads.append(detail.get("head"))
    return [head for head in heads if isinstance(head, str)]


def _site_heads(event: str, detail: Mapping[str, Any], sites: Collection[str]) -> list[Any]:
    """What an entry of a coordinator's log says of these sites' logs."""
    heads = [(detail.get("site"), detail.get("head"))] if event == "site joined" else []
    heads += [(site, update["head"]) for site, update in detail.get("updates", {}).items() if site in sites]
    heads += detail.get("heads", {}).items()
    return [head for site, head in heads if site in sites]


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in path.read_bytes().splitlines()]
        if all(isinstance(entry["event"], str) and isinstance(entry["detail"], dict) for entry in entries):
            return entries
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    remedy = f"Look at it with `wardround log verify {path}`, and keep it."
    raise RunError(str(path), "is not an audit log, or was changed", remedy)


def changed_files(path: Path, names: Collection[str] | None = None) -> list[str]:
    """Files next to a log, all or some, that differ from what the last finished run logged. The log is in order."""
    entries = _entries(path)
    finished = [entry for entry in entries if entry["event"] == FINISHED]
    begun = [entry for entry in entries if entry["event"] == BEGUN]
    if not finished or (begun and begun[-1]["number"] > finished[-1]["number"]):
        return []  # nothing is finished, or it is being repeated
    wrong = []
    files = finished[-1]["detail"].get("files", {})
    for name, expected in files.items() if isinstance(files, dict) else ():
        if names is not None and name not in names:
            continue
        file = path.parent / Path(name).name
        if not file.is_file():
            wrong.append(f"{name} is missing")
        elif file_hash(file) != expected:
            wrong.append(f"{name} is not the file that the run made")
    return wrong


def wrong_line(line: bytes, number: int, before: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return "is not JSON"
    if not isinstance(entry, dict) or tuple(entry) != KEYS:
        return "has other fields than an event"
    if entry["number"] != number:
        return f"has number {entry['number']} where {number} is due: lines are missing, added or out of order"
    if entry["before"] != before:
        return "does not follow from the line before it"
    if entry["hash"] != _hash({key: entry[key] for key in KEYS[:-1]}) or line != _serialize(entry):
        return "was changed"
    return None


def _tail(descriptor: int, path: Path) -> tuple[int, str, int]:
    """The next number, the hash before it, and how many bytes of an unfinished line were cut off."""
    size = os.fstat(descriptor).st_size
    begin = max(0, size - NEAR_THE_END)
    content = os.pread(descriptor, size - begin, begin)
    if begin and content.count(b"\n") < 2:  # one line longer than that: read all
        begin, content = 0, path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    cut = len(content) - len(whole)
    if cut:
        os.ftruncate(descriptor, begin + len(whole))
    last = whole[:-1].rpartition(b"\n")[2]
    if not last:
        return 0, BEGINNING, cut
    try:
        entry = json.loads(last)
        return int(entry["number"]) + 1, str(entry["hash"]), cut
    except (ValueError, KeyError, TypeError):
        remedy = f"Look at it with `wardround log verify {path}`, keep it, and begin a new one."
        raise RunError(str(path), "is not an audit log, or was changed at its end", remedy) from None


def _append(descriptor: int, number: int, before: str, event: str, detail: Mapping[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"number": number, "time": now, "event": event, "detail": dict(detail), "before": before}
    hashed = _hash(entry)
    line = _serialize({**entry, "hash": hashed}) + b"\n"
    before_line = os.fstat(descriptor).st_size
    if os.write(descriptor, line) != len(line):  # a full disk: the head of a missing line must not be returned
        os.ftruncate(descriptor, before_line)
        raise OSError(ENOSPC, "no space left for the audit log")
    return hashed


def _hash(entry: Mapping[str, Any]) -> str:
    return sha256(_serialize(entry)).hexdigest()


def _serialize(entry: Mapping[str, Any]) -> bytes:
    """Canonical, so that bytes can be compared."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
