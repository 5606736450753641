"""What readers hand back, checked whole before anything is counted: the chain of the log, the list that it is of, and
every decision.

A chain without a secret shows changes of a file, and not who wrote it: whoever can write a file can chain it anew. The
page therefore shows its last hash, which the reader tells the study nurse.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wardround.core.errors import DataError, StudyError, shown
from wardround.review.make import FORMAT, KEY, PAGE
from wardround.runs.audit import file_hash, verify

BEGUN, DECIDED, FINISHED = "reading begun", "case decided", "reading finished"
FIELDS = ("case", "answer", "confidence", "refer", "milliseconds")
MOST_MILLISECONDS = 24 * 60 * 60 * 1000
MOST_BYTES = 16_000_000
AGAIN = "Ask the reader to save the file again, and keep this one."


@dataclass(frozen=True)
class Key:
    """key.json of a list."""

    list: str
    answers: tuple[str, ...]
    conditions: tuple[str, ...]
    cases: Mapping[str, Mapping[str, Any]]
    readers: Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class Decision:
    reader: str
    case: str
    condition: int
    answer: int
    confidence: int
    refer: bool
    seconds: float


@dataclass(frozen=True)
class Reading:
    reader: str
    decisions: tuple[Decision, ...]
    finished: bool
    head: str


def load_key(folder: Path) -> Key:
    """That of a list's folder, whose page must be the one that was made."""
    for name in (KEY, PAGE, "audit.jsonl"):
        if not (folder / name).is_file():
            raise DataError(str(folder), f"has no {name}", "Name a folder that `wardround review make` has made.")
    log = verify(folder / "audit.jsonl")
    if log.broken:
        raise DataError(str(folder / "audit.jsonl"), f"was changed: {log.broken}", "Keep it, and find out by whom.")
    made = json.loads((folder / "audit.jsonl").read_bytes().splitlines()[0])["detail"]["files"]
    for name, expected in made.items():
        if file_hash(folder / name) != expected:
            raise DataError(str(folder / name), "is not the file that was made", "Bring it back as it was.")
    content = json.loads((folder / KEY).read_bytes())
    if content["format"] != FORMAT:
        raise DataError(str(folder / KEY), "is of another version of this program", "Score it with that version.")
    return Key(
        content["list"],
        tuple(content["answers"]),
        tuple(content["conditions"]),
        content["cases"],
        content["readers"],
    )


def read_all(key: Key, files: Sequence[Path]) -> list[Reading]:
    if not files:
        raise StudyError("DECISIONS", "no file is named", "Name the files that readers have saved.")
    found: dict[str, Reading] = {}
    for file in files:
        reading = read_decisions(key, file)
        if reading.reader in found:
            raise DataError(str(file), f"is a second file of {reading.reader}", "Give the last one of each reader.")
        found[reading.reader] = reading
    return [found[name] for name in key.readers if name in found]


def read_decisions(key: Key, file: Path) -> Reading:
    if not file.is_file():
        raise DataError(str(file), "there is no such file", "Name a file that a reader has saved.")
    if file.stat().st_size > MOST_BYTES:
        raise DataError(str(file), "is too large for a file of decisions", AGAIN)
    log = verify(file)
    if log.broken:
        raise DataError(str(file), f"is not the log that the page has written: {log.broken}", AGAIN)
    entries = [json.loads(line) for line in file.read_bytes().splitlines()]
    reader = _reader(key, entries[0], str(file))
    decided, rest = entries[1:], []
    if decided and decided[-1]["event"] == FINISHED:
        decided, rest = decided[:-1], decided[-1:]
    turns = key.readers[reader]
    decisions = tuple(_decision(key, reader, turns, entry, file) for entry in decided)
    if rest and len(decisions) < len(turns):
        raise DataError(str(file), "is finished, though cases are left", AGAIN)
    return Reading(reader, decisions, bool(rest), log.head)


def _reader(key: Key, entry: Mapping[str, Any], where: str) -> str:
    detail = entry["detail"]
    if entry["event"] != BEGUN or not isinstance(detail, dict) or set(detail) != {"format", "list", "reader", "cases"}:
        raise DataError(where, "does not begin as a file of decisions does", "Name a file that a reader has saved.")
    if detail["list"] != key.list:
        raise DataError(where, "is of another reading list", "Give the folder of its own list.")
    reader = detail["reader"]
    if not isinstance(reader, str) or reader not in key.readers:
        raise DataError(where, f"is of {shown(reader)}, whom the list does not know", AGAIN)
    return reader


def _decision(key: Key, reader: str, turns: Sequence[Sequence[Any]], entry: Mapping[str, Any], file: Path) -> Decision:
    number, detail = entry["number"], entry["detail"]
    where = f"{file}, line {number + 1}"
    if entry["event"] != DECIDED or not isinstance(detail, dict) or set(detail) != set(FIELDS):
        raise DataError(where, "is no decision of a case", AGAIN)
    if number > len(turns):
        raise DataError(where, "is a decision more than the reader has cases", AGAIN)
    case, condition = turns[number - 1]
    if detail["case"] != case:
        problem = "is of another case than was due: one is missing, double or out of order"
        raise DataError(where, problem if detail["case"] in key.cases else "is of a case that is not known", AGAIN)
    sound = (
        _is_whole(detail["answer"], 0, len(key.answers) - 1)
        and _is_whole(detail["confidence"], 1, 5)
        and isinstance(detail["refer"], bool)
        and _is_whole(detail["milliseconds"], 0, MOST_MILLISECONDS)
    )
    if not sound:
        raise DataError(where, "has an answer, confidence, referral or time that cannot be", AGAIN)
    return Decision(
        reader, case, condition, detail["answer"], detail["confidence"], detail["refer"], detail["milliseconds"] / 1000
    )


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
