"""What a site has answered before, so that two answers to one question do not give away the difference.

Whoever asks the same of 200 patients and then of the same 200 without one learns that one's values by subtraction. A
site therefore remembers, for each question, the patients of each answer: as keyed hashes, in a file that stays there
and is of no use without the key beside it. A new answer is refused where it and an earlier one differ by few patients.
Of counts in tables it remembers more: what it told and hid of the same patients, so that cells which one table hides
do not follow from another. Other differences that many answers together would give are not looked for: no memory of
this kind finds all of them.
"""

import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from wardround.core.atomic_files import PRIVATE_FOLDER, write_atomically
from wardround.core.errors import RunError
from wardround.privacy.disclosure.told_cells import ToldCells

FORMAT = 1
MARK_BYTES = 12


def differs_by_few(marks: frozenset[str], earlier: Sequence[frozenset[str]], smallest: int) -> bool:
    """Whether an earlier answer to the same question was about the same patients but for a few. An answer about exactly
    the same patients tells nothing new."""
    for before in earlier:
        added, gone = len(marks - before), len(before - marks)
        if 0 < max(added, gone) < smallest:
            return True
    return False


@dataclass(frozen=True)
class ReleaseMemory:
    """In a folder of the site that nobody else reads."""

    folder: Path

    def marks(self, people: Iterable[object]) -> frozenset[str]:
        """A keyed hash for each patient."""
        key = self._key()
        return frozenset(
            hmac.new(key, str(person).encode(), sha256).hexdigest()[: 2 * MARK_BYTES] for person in set(people)
        )

    def earlier(self, question: str) -> list[frozenset[str]]:
        return [frozenset(marks) for marks in self._read(question)]

    def remember(self, question: str, marks: frozenset[str]) -> None:
        """Before the answer leaves: one that was prepared and never left is remembered too, which is safe."""
        known = self._read(question)
        if sorted(marks) in known:
            return
        content = {"format": FORMAT, "question": question, "patients": [*known, sorted(marks)]}
        self._write(self._path(question), json.dumps(content).encode())

    def cells(self, marks: frozenset[str]) -> ToldCells:
        """Counts that were told of exactly these patients."""
        path = self._path_of_cells(marks)
        if not path.is_file():
            return ToldCells()
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError
            counts = {str(name): int(count) for name, count in content["counts"].items()}
            totals = {(str(whole), tuple(map(str, parts))): None for whole, parts in content["totals"]}
            return ToldCells(counts, set(map(str, content["hidden"])), totals)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path) from None

    def remember_cells(self, marks: frozenset[str], told: ToldCells) -> None:
        content = {"counts": told.counts, "hidden": sorted(told.hidden), "totals": list(told.totals)}
        self._write(self._path_of_cells(marks), json.dumps({"format": FORMAT, **content}).encode())

    def _path_of_cells(self, marks: frozenset[str]) -> Path:
        return self.folder / f"cells-{sha256(' '.join(sorted(marks)).encode()).hexdigest()[:32]}.json"

    def _read(self, question: str) -> list[list[str]]:
        path = self._path(question)
        if not path.is_file():
            return []
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT or content["question"] != question:
                raise ValueError
            return [[str(mark) for mark in marks] for marks in content["patients"]]
        except (ValueError, KeyError, TypeError):
            raise _damaged(path) from None

    def _path(self, question: str) -> Path:
        return self.folder / f"{sha256(question.encode()).hexdigest()[:32]}.json"

    def _key(self) -> bytes:
        path = self.folder / "key"
        if not path.is_file():
            self._write(path, secrets.token_bytes(32))
        return path.read_bytes()

    def _write(self, path: Path, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        write_atomically(path, content)


def _damaged(path: Path) -> RunError:
    problem = "is damaged, so that it is not known what was answered before"
    return RunError(str(path), problem, "Restore it from a backup. Without it no analysis is answered here.")
