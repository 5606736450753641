"""Errors that a user can act on.

* WardroundError          printed without a traceback; each kind has its own exit code
  x StudyError      (3)   the study file is wrong: which key, what was found, what to write
  x DataError       (4)   a hospital's data cannot be read or used: which site, which column
  x CheckError      (5)   the data can be read, but the study must not be trained on them
  x RunError        (6)   a run folder or an engine is in a state that forbids what was asked
  x MachineError    (7)   this machine lacks something that the study needs
  x DeployError     (8)   a kit, a key, a site's policy or the network forbids what was asked
    x SiteError     (8)   a site has to leave a run: which one, why
  x BundleError     (10)  a bundle is damaged, from a newer version, or cannot be made: which file, why
  x HeldError       (11)  a run waits for people to decide about a site: which one, why
  x SecureSumError  (6)   updates cannot be added up without showing one of them: who asked for what

`where`, `problem` and `remedy` are arguments, so that no message can leave one of them out.
No value that came from data may be in one: counts, places (file, line, row, column) and the expected form only. A value
that a caller gave goes through `shown`, a path through `as_path`: either may turn out to be a table of patients.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sized
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

from wardround.core.notices import Notice, text_of

LONGEST_SHOWN = 100  # characters of a text that a message repeats
LONGEST_WORD = 1000  # to look for the nearest known one; difflib's time grows with the square
LONGEST_PATH, LONGEST_FILE_NAME = 4096, 255  # bytes, as Linux has them


class WardroundError(Exception):
    exit_code = 1

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        self.where, self.problem, self.remedy = map(_printable, (where, problem, remedy))
        super().__init__(self.where, self.problem, self.remedy)
        # The exception that was being handled may quote a cell, as those of pandas and Arrow do: no traceback shows it.
        self.__suppress_context__ = True

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}\n  {self.remedy}"


def _printable(text: str) -> str:
    """Without characters that steer a terminal, or that it cannot write. They come from names in files."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class StudyError(WardroundError):
    exit_code = 3


class DataError(WardroundError):
    exit_code = 4


class CheckError(WardroundError):
    """`notice` is the check that failed, where it was one."""

    exit_code = 5

    def __init__(self, where: str, problem: str, remedy: str, notice: Notice | None = None) -> None:
        super().__init__(where, problem, remedy)
        self.notice = notice


class RunError(WardroundError):
    exit_code = 6


class MachineError(WardroundError):
    exit_code = 7


class DeployError(WardroundError):
    exit_code = 8


class SiteError(DeployError):
    """A site has to leave a run; `notice` says which and why."""

    def __init__(self, notice: Notice, remedy: str) -> None:
        super().__init__(notice.site, text_of(notice), remedy)
        self.notice = notice

    def __reduce__(self) -> tuple[type["SiteError"], tuple[Any, ...]]:
        return type(self), (self.notice, self.remedy)


class BundleError(WardroundError):
    exit_code = 10


class HeldError(WardroundError):
    exit_code = 11


class SecureSumError(WardroundError):
    exit_code = 6


def suggest(word: object, known: Iterable[str], what: str = "Known") -> str:
    """The remedy for a misspelt name: the nearest valid one, and all of them where they are few."""
    known = sorted(known)
    guess = get_close_matches(word, known, 1, cutoff=0.5) if isinstance(word, str) and len(word) <= LONGEST_WORD else []
    listing = f"{what}: {', '.join(known)}." if known else "Nothing is known here."
    return f"Did you mean {guess[0]!r}? {listing}" if guess else listing


def refuse_strangers(
    names: Iterable[str],
    known: Collection[str],
    where: str,
    what: str,
    title: str,
    kind: type[WardroundError] = StudyError,
) -> None:
    """Refuse the first name that is not known: no `what` is called so. `title` introduces those that are known."""
    for name in names:
        if name not in known:
            raise kind(where, f"no {what} is called {name!r}", suggest(name, known, title))


def shown(value: object) -> str:
    """How a message names a value that a caller or a file gave.

    A short text, a number, a truth value, None and a path are repeated. Anything else, such as a table, an array, a
    list or a text of several lines, may hold patients' values: its type and size are told instead.
    """
    if isinstance(value, PurePath):
        value = str(value)
    if type(value) is str and len(value) <= LONGEST_SHOWN and value.isprintable():
        return repr(value)
    if type(value) is int and value.bit_length() > 64:
        return f"a whole number of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    return _type_and_size(value)


def name_of(error: BaseException) -> str:
    """How a message names an exception whose own text may hold a value: by its type, and a key that was looked for by
    name. Such a name stands in the code of a function that the exception came through, so that it is no value."""
    kind, frame = type(error).__name__, error.__traceback__
    if not (isinstance(error, KeyError) and error.args and isinstance(key := error.args[0], str)):
        return kind
    while frame is not None and key not in frame.tb_frame.f_code.co_consts:
        frame = frame.tb_next
    return kind if frame is None else f"{kind} {key!r}"


def _type_and_size(value: object) -> str:
    if isinstance(value, str):
        return f"a text of {len(value):,} characters"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and all(type(length) is int for length in shape):
        return f"an object of type {type(value).__name__} ({' x '.join(f'{length:,}' for length in shape)})"
    if isinstance(value, Mapping):
        return f"a table of {len(value):,} keys"
    if isinstance(value, Sized):
        return f"an object of type {type(value).__name__} ({len(value):,} entries)"
    return f"an object of type {type(value).__name__}"


def as_name(value: object, where: str, kind: type[WardroundError] = StudyError) -> str:
    """The name that a caller gave for `where`: of a column, a class, a hospital. Anything else is not shown."""
    if type(value) is str and len(value) <= LONGEST_SHOWN and value.isprintable():
        return value
    raise kind(where, f"expected a name, found {_type_and_size(value)}", "Give it as a text of one line.")


def as_person(value: object, where: str, kind: type[WardroundError]) -> str:
    """Who decides, as it is kept."""
    person = " ".join(value.split()) if isinstance(value, str) else ""
    if not person or not person.isprintable() or len(person) > LONGEST_SHOWN:
        raise kind(where, "nobody is named", 'Write --name "Dr. A. Example".')
    return person


def as_path(value: object, where: str, kind: type[WardroundError] = StudyError) -> Path:
    """The path that a caller gave for `where`. What cannot be one is refused and not shown: a table, or its text."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and _can_be_a_path(text):
            return Path(text)
        value = text
    problem = f"expected a path, found {_type_and_size(value)}"
    raise kind(where, problem, "Give the path of a file or folder, as a text or a Path.")


def _can_be_a_path(text: str) -> bool:
    if len(text) > LONGEST_PATH or any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        return False
    try:
        return all(len(os.fsencode(part)) <= LONGEST_FILE_NAME for part in text.split("/"))
    except UnicodeEncodeError:  # half of a letter
        return False
