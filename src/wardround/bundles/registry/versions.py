"""The bundles of a registry as its log has them: names, versions, which is in use."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wardround.core.errors import BundleError
from wardround.runs.audit import BEGINNING, wrong_line
from wardround.study.sweeps import NAME

LOG = "audit.jsonl"
ADDED, PROMOTED, WITHDRAWN = "bundle added", "bundle promoted", "bundle withdrawn"
MOST_LETTERS = 150  # of a name, so that it can be that of a folder everywhere


@dataclass(frozen=True)
class Version:
    """One bundle of the registry, as the log has it."""

    name: str
    version: int
    id: str
    added: str  # UTC
    files: Mapping[str, str]  # sha256 of each
    path: Path

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Withdrawn:
    """A version that was in use and was taken out of use, when none has been promoted since."""

    version: int
    time: str  # UTC
    by: str | None
    reason: str | None

    def __str__(self) -> str:
        by = "" if self.by is None else f" by {self.by}"
        why = "no reason was given" if self.reason is None else self.reason
        return f"version {self.version} was withdrawn on {self.time[:10]} at {self.time[11:16]} UTC{by} ({why})"


@dataclass(frozen=True)
class Entry:
    """All versions under one name, and the one in use."""

    name: str
    versions: tuple[Version, ...]
    in_use: int | None = None
    withdrawn: Withdrawn | None = None

    @property
    def shown(self) -> Version:
        """The one in use; where none is, the newest."""
        return self.versions[(self.in_use or len(self.versions)) - 1]


def parse_name(text: str) -> tuple[str, int | None]:
    """NAME@VERSION as its two parts; the version is None where there is none."""
    name, at, number = text.partition("@")
    refuse_name(name)
    if at and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise BundleError(text, "names no version", f"Write {name}@1, or {name} for the one in use.")
    return name, int(number) if at else None


def default_name(about: Mapping[str, Any]) -> str:
    """The bundle's own, which says study, arm and site; in letters that can begin a path, and not too many."""
    plain = "".join(letter if NAME.fullmatch(f"a{letter}") else "-" for letter in str(about["name"]))
    return plain.lstrip("._-")[:MOST_LETTERS] or "bundle"


def refuse_name(name: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MOST_LETTERS or name == LOG:
        remedy = f"Use letters, digits, '.', '_' and '-', at most {MOST_LETTERS}, beginning with a letter or digit."
        raise BundleError(repr(name), "is not a name for a bundle", remedy)


def read_events(log: Path) -> list[dict[str, Any]]:
    """Of a log that is in order. An unfinished last line never happened; no log is no event."""
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BundleError(str(log), f"cannot be read ({error.strerror})", "Name another registry.") from None
    before, events = BEGINNING, []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]):
        problem = wrong_line(line, number, before)
        if problem:
            raise _not_in_order(log, f"line {number + 1}: {problem}")
        events.append(json.loads(line))
        before = events[-1]["hash"]
    return events


def replay(events: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Entry]:
    """What a registry holds after these events, by name in alphabetical order."""
    entries: dict[str, Entry] = {}
    for event in events:
        if event["event"] not in (ADDED, PROMOTED, WITHDRAWN):
            continue
        try:
            entry = _after(entries, event, folder)
        except (AttributeError, KeyError, TypeError, ValueError, BundleError):
            problem = f"line {event['number'] + 1}: is not an event of a registry"
            raise _not_in_order(folder / LOG, problem) from None
        entries[entry.name] = entry
    return dict(sorted(entries.items()))


def _after(entries: Mapping[str, Entry], event: Mapping[str, Any], folder: Path) -> Entry:
    kind, detail = event["event"], event["detail"]
    name, number = detail["name"], detail["version"]
    if kind == ADDED:
        refuse_name(name)  # a forged one would lead out of the folder
        entry = entries.get(name, Entry(name, ()))
        if number != len(entry.versions) + 1:
            raise ValueError("versions are counted")
        made = Version(
            name, number, str(detail["bundle"]), event["time"], dict(detail["files"]), folder / name / str(number)
        )
        return replace(entry, versions=(*entry.versions, made))
    if not 1 <= number <= len(entries[name].versions):
        raise ValueError("there is no such version")
    if kind == PROMOTED:
        return replace(entries[name], in_use=number, withdrawn=None)
    withdrawn = Withdrawn(number, str(event["time"]), detail.get("by"), detail.get("reason"))
    return replace(entries[name], in_use=None, withdrawn=withdrawn)


def _not_in_order(log: Path, problem: str) -> BundleError:
    remedy = f"Look at it with `wardround bundles verify --registry {log.parent}`; a copy elsewhere may be whole."
    return BundleError(str(log), f"is not as it was written: {problem}", remedy)
