"""Errors that a user can act on.

* WardroundError          printed without a traceback; each kind has its own exit code
  x StudyError      (3)   the study file is wrong: which key, what was found, what to write
  x DataError       (4)   a hospital's data cannot be read or used: which site, which column
  x CheckError      (5)   the data can be read, but the study must not be trained on them
  x RunError        (6)   a run folder or an engine is in a state that forbids what was asked
  x MachineError    (7)   this machine lacks something that the study needs
  x DeployError     (8)   a kit, a key, a site's policy or the network forbids what was asked
  x BundleError     (10)  a bundle is damaged, from a newer version, or cannot be made: which file, why
  x SecureSumError  (6)   updates cannot be added up without showing one of them: who asked for what

`where`, `problem` and `remedy` are arguments, so that no message can leave one of them out.
Never put a patient's value into one: counts, column names and row numbers only.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class WardroundError(Exception):
    exit_code = 1

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where, self.problem, self.remedy = where, problem, remedy
        super().__init__(f"{where}: {problem}\n  {remedy}")

    def __reduce__(self) -> tuple[type["WardroundError"], tuple[str, str, str]]:
        return type(self), (self.where, self.problem, self.remedy)


class StudyError(WardroundError):
    exit_code = 3


class DataError(WardroundError):
    exit_code = 4


class CheckError(WardroundError):
    exit_code = 5


class RunError(WardroundError):
    exit_code = 6


class MachineError(WardroundError):
    exit_code = 7


class DeployError(WardroundError):
    exit_code = 8


class BundleError(WardroundError):
    exit_code = 10


class SecureSumError(WardroundError):
    exit_code = 6


def suggest(word: str, known: Iterable[str], what: str = "Known") -> str:
    """The remedy for a misspelt name: the nearest valid one, and all of them where they are few."""
    known = sorted(known)
    guess = get_close_matches(word, known, 1, cutoff=0.5)
    listing = f"{what}: {', '.join(known)}." if known else "Nothing is known here."
    return f"Did you mean {guess[0]!r}? {listing}" if guess else listing
