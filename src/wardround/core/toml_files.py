"""TOML files, and the same content as dicts, checked for size and shape before anything else reads them.

A file with thousands of nested tables or a million keys is no study: it is refused quickly, and later code need not
expect it.
"""

import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from wardround.core.errors import StudyError, WardroundError, shown
from wardround.core.in_memory import InMemory

MOST_BYTES = 1 << 20
MOST_VALUES = 50_000  # keys and entries of lists, all together
DEEPEST = 32  # tables and lists within each other
LONGEST_KEY, LONGEST_TEXT = 200, 100_000  # characters
LARGEST = 1 << 63  # whole numbers; TOML has no larger ones
_PLAIN = (str, int, float, bool, datetime, date, time, type(None))
# tomllib takes time that grows with the square of the number of parts of a dotted key
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*+"|\'[^\'\n]*+\'')
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")


def read_toml(path: Path, remedy: str, kind: type[WardroundError] = StudyError) -> dict[str, Any]:
    """The content of a file. `remedy` says what to do if there is none; errors are of this `kind`."""
    try:
        if path.exists() and not path.is_file():  # asked first, because reading a pipe or a device may never end
            raise kind(str(path), "is a folder" if path.is_dir() else "is not a file", remedy)
        if path.stat().st_size > MOST_BYTES:
            raise kind(str(path), f"is larger than {MOST_BYTES >> 20} MB", remedy)
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise kind(str(path), "no such file", remedy) from None
    except OSError as error:
        raise kind(str(path), f"cannot be read ({error.strerror})", remedy) from None
    except UnicodeDecodeError as error:
        raise kind(str(path), f"is not UTF-8 text (byte {error.start})", "Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise kind(str(path), f"is not valid TOML: {_position(error)}", "Correct the file at that line.") from None


def parse_toml(text: str) -> dict[str, Any]:
    """As `tomllib.loads`, with a TOMLDecodeError also where its parser raises something else."""
    if _LONG_KEY.search(_QUOTED.sub("q", text)):
        raise tomllib.TOMLDecodeError(f"a dotted key has more than {DEEPEST} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("tables or lists are nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # a whole number of more digits than Python reads, or a date such as 0000-00-00
        raise tomllib.TOMLDecodeError("a number or date is out of range") from None


def _position(error: tomllib.TOMLDecodeError) -> str:
    text = str(error)
    if len(text) <= LONGEST_KEY and text.isprintable():
        return text
    place = re.search(r"\(at [^()]*\)$", text)  # without the key that it repeats
    return f"it cannot be read {place[0]}" if place else "it cannot be read"


def refuse_unplain(raw: object, where: str) -> None:
    """Refuse what TOML could not hold, and what is too deep, too long or too much. No value is shown."""
    remedy = "Give what a TOML file can hold: texts, numbers, true or false, dates, lists and tables of them."
    smaller = "Make it smaller: this is no study that could be meant."
    waiting: list[tuple[object, str, int]] = [(raw, where, 0)]
    seen = 0
    while waiting:
        value, place, depth = waiting.pop()
        if depth > DEEPEST:
            raise StudyError(where, f"tables or lists are nested more than {DEEPEST} deep", smaller)
        if isinstance(value, Mapping):
            inner = []
            for key, item in value.items():
                if type(key) is not str or len(key) > LONGEST_KEY or not key.isprintable():
                    kind = shown(key) if type(key) is str else f"an object of type {type(key).__name__}"
                    problem = f"expected a name as key, found {kind}"
                    raise StudyError(place, problem, f"Write keys of at most {LONGEST_KEY} printable characters.")
                inner.append((item, f"{place}: {key}"))
        elif isinstance(value, list | tuple):
            inner = [(item, place) for item in value]
        else:
            _refuse_scalar(value, place, remedy)
            continue
        seen += len(inner)
        if seen > MOST_VALUES:
            raise StudyError(where, f"has more than {MOST_VALUES:,} keys and values", smaller)
        waiting += [(item, name, depth + 1) for item, name in reversed(inner)]


def _refuse_scalar(value: object, where: str, remedy: str) -> None:
    if not isinstance(value, Path | InMemory) and type(value) not in _PLAIN:
        raise StudyError(where, f"found {shown(value)}", remedy)
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise StudyError(where, f"found {shown(value)}", f"Write at most {LONGEST_TEXT:,} characters.")
    if type(value) is int and not -LARGEST <= value < LARGEST:
        raise StudyError(where, f"found {shown(value)}", "Write a number of at most 63 bits.")
