"""Remarks about data or a run as structured values: code, place and counts. No decision depends on a sentence.

A notice holds names (of sites, columns, classes, arms, files) and counts, never a patient's value. The codes, and the
sentences that are made from them, are in `*_codes.py` beside this module.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Literal, get_args

Severity = Literal["info", "warning", "error"]
Plain = str | bool | int | float | tuple[str, ...]

LONGEST_TEXT = 500  # characters of a name that comes from a file or from another institution
MOST_NAMES = 50_000  # as many as columns of a message
LARGEST = 1e15
JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))  # words of some languages are written with them


@dataclass(frozen=True)
class Notice:
    code: str
    severity: Severity
    site: str = ""  # empty where it is about all sites, or about none
    columns: tuple[str, ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict, hash=False)
    per_column: Mapping[str, float] = field(default_factory=dict, hash=False)  # a number for each of some columns
    classes: tuple[str, ...] = ()
    other_sites: tuple[str, ...] = ()  # sites that it names beside `site`
    arm: str = ""
    variant: str = ""
    seeds: tuple[int, int] | None = None  # with how many of how many; None: with all, or seeds play no part
    files: tuple[str, ...] = ()
    details: Mapping[str, Plain] = field(default_factory=dict, hash=False)  # what else the code needs
    accepted: bool = False  # an error that the study accepts knowingly

    def to_json(self) -> dict[str, Any]:
        """Plain data, without empty fields."""
        plain: dict[str, Any] = {}
        for known in fields(self):
            value = getattr(self, known.name)
            if known.name in ("code", "severity") or value not in ("", (), {}, None, False):
                plain[known.name] = _to_plain(value)
        return plain

    @classmethod
    def from_json(cls, value: object) -> "Notice":
        """From a file or another institution. ValueError, without the content, if it is not a notice."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError("a notice is a table")
        content = {name: entry for name, entry in value.items() if name != "text"}  # rendered again by whoever shows it
        if unknown := set(content) - set(_READERS):
            raise ValueError(f"{len(unknown)} fields of a notice are not known")
        if "code" not in content or content.get("severity") not in get_args(Severity):
            raise ValueError("a notice needs a code and a severity")
        return cls(**{name: _READERS[name](entry) for name, entry in content.items()})


def errors_among(notices: Iterable[Notice]) -> list[Notice]:
    return [notice for notice in notices if notice.severity == "error"]


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.translate(JOINERS).isprintable():
        raise ValueError("a name in a notice is not a short printable text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MOST_NAMES:
        raise ValueError("names in a notice are not a list")
    return tuple(map(_text, value))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or abs(value) > LARGEST:
        raise ValueError("a count in a notice is not a number")
    return value


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > MOST_NAMES:
        raise ValueError("counts in a notice are not a table")
    return {_text(name): _number(entry) for name, entry in value.items()}


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("a mark in a notice is neither true nor false")
    return value


def _details(value: object) -> dict[str, Plain]:
    if not isinstance(value, Mapping) or len(value) > MOST_NAMES:
        raise ValueError("details of a notice are not a table")
    return {_text(name): _detail(entry) for name, entry in value.items()}


def _detail(value: object) -> Plain:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value)
    return _texts(value) if isinstance(value, list | tuple) else _text(value)


def _seeds(value: Any) -> tuple[int, int]:
    two = isinstance(value, list | tuple) and [type(entry) for entry in value] == [int, int]
    if two and 0 <= value[0] <= value[1] <= LARGEST:
        return value[0], value[1]
    raise ValueError("seeds in a notice are not two numbers")


_READERS: dict[str, Any] = {
    "code": _text,
    "severity": _text,
    "site": _text,
    "columns": _texts,
    "counts": _numbers,
    "per_column": _numbers,
    "classes": _texts,
    "other_sites": _texts,
    "arm": _text,
    "variant": _text,
    "seeds": _seeds,
    "files": _texts,
    "details": _details,
    "accepted": _flag,
}
