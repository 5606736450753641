"""Plain data to typed values, with errors that name the key, what was found and what to write.

Two kinds of thing can be filled in from a study file: a frozen dataclass, and a factory function such as
`dirichlet(count: Count = 10, alpha: Positive = 0.5)`, whose signature is its list of settings. Types, ranges and
defaults stand there and nowhere else.
"""

import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.in_memory import InMemory


@dataclass(frozen=True)
class Range:
    """What a number may be; an open end excludes its limit."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def admits(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"{'above' if self.low_open else 'at least'} {self.low:g}"
        high = f"{'below' if self.high_open else 'at most'} {self.high:g}"
        return " and ".join(text for text, limit in ((low, self.low), (high, self.high)) if math.isfinite(limit))


UNIONS = (Union, types.UnionType)
TABLES = (dict, Mapping)  # of a signature that says what a table holds
Count = Annotated[int, Range(low=1)]
WholeNumber = Annotated[int, Range(low=0)]
NonNegative = Annotated[float, Range(low=0)]
Positive = Annotated[float, Range(low=0, low_open=True)]
Share = Annotated[float, Range(low=0, high=1, low_open=True)]  # of a whole: (0, 1]
Fraction = Annotated[float, Range(low=0, high=1, high_open=True)]  # of a whole that may be none: [0, 1)


@dataclass(frozen=True)
class Setting:
    name: str
    kind: Any
    default: Any = MISSING

    @property
    def required(self) -> bool:
        return self.default is MISSING


def settings_of(target: Any) -> dict[str, Setting]:
    """The settings that a dataclass or a factory function takes, by name."""
    hints = get_type_hints(target, include_extras=True)
    if is_dataclass(target):
        return {
            field.name: Setting(
                field.name,
                hints[field.name],
                field.default_factory() if field.default_factory is not MISSING else field.default,
            )
            for field in fields(target)
        }
    return {
        name: Setting(
            name, hints.get(name, Any), MISSING if parameter.default is Parameter.empty else parameter.default
        )
        for name, parameter in signature(target).parameters.items()
    }


def table_type(kind: Any) -> Any:
    """The dataclass that a table is read into, where `kind` is one or may be None instead; else None."""
    return next((option for option in alternatives(kind) if is_dataclass(option)), None)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    return get_args(kind) if get_origin(kind) in UNIONS else (kind,)


def parse(kind: Any, value: Any, where: str, base: Path = Path()) -> Any:
    """Turn plain data into `kind`. Relative paths are taken from `base`, the study file's folder."""
    if kind is Any:  # a user's own factory that does not say
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _in_range(parse(arguments[0], value, where, base), arguments[1], where)
    if origin in UNIONS:
        return parse(_alternative_for(value, arguments), value, where, base)
    if origin is Literal:
        if type(value) not in (str, int) or value not in arguments:
            remedy = suggest(value, map(str, arguments), "Possible values")
            raise StudyError(where, f"{shown(value)} is not a possible value", remedy)
        return value
    if origin is tuple:
        return _parse_list(arguments, value, where, base)
    if origin not in TABLES and not is_dataclass(kind):
        return _scalar(kind, value, where, base)
    if not isinstance(value, Mapping):
        raise _wrong_type("a table", value, where)
    if origin in TABLES:
        return {key: parse(arguments[1], item, f"{where}: {key}", base) for key, item in value.items()}
    return kind(**parse_settings(settings_of(kind), value, where, base))


def _alternative_for(value: Any, kinds: tuple[Any, ...]) -> Any:
    """A text is one of the words that may stand in place of a number, or a text in place of a table; a table is a
    table; rows in memory, or their mark, stand in place of a file; anything else is of the first kind."""
    candidates = [kind for kind in kinds if kind is not type(None)]
    if isinstance(value, InMemory) or InMemory.is_mark(value):
        fitting = [kind for kind in candidates if kind is InMemory]
    elif isinstance(value, str):
        fitting = [kind for kind in candidates if get_origin(kind) is Literal or kind is str]
    else:
        fitting = [kind for kind in candidates if isinstance(value, Mapping) and get_origin(kind) in TABLES]
    return (fitting or candidates)[0]


def _parse_list(kinds: tuple[Any, ...], value: Any, where: str, base: Path) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong_type("a list", value, where)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise StudyError(where, f"has {len(value)} values", f"Write exactly {len(kinds)}.")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(parse(kind, item, f"{where}[{i}]", base) for i, (kind, item) in pairs)


def parse_settings(known: Mapping[str, Setting], raw: Mapping[str, Any], where: str, base: Path) -> dict[str, Any]:
    """Every known setting, from `raw` or its default. Unknown and missing ones are errors, never warnings."""
    refuse_unknown(raw, known, where)
    values = {}
    for name, setting in known.items():
        if name in raw:
            values[name] = parse(setting.kind, raw[name], f"{where}: {name}", base)
        elif setting.required:
            raise StudyError(f"{where}: {name}", "missing", f"Add `{name} = ...` ({describe(setting.kind)}).")
        else:
            values[name] = setting.default
    return values


def refuse_unknown(raw: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in raw:
        if key not in known:
            raise StudyError(f"{where}: {key}", "no such setting", suggest(key, known, "Settings here"))


def describe(kind: Any) -> str:
    """A type in plain words, for messages and the reference."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{describe(arguments[0])}, {arguments[1]}"
    if origin in UNIONS:
        return " or ".join(describe(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(f'"{argument}"' for argument in arguments)
    if origin is tuple:
        return f"a list of {len(arguments) if arguments[-1] is not Ellipsis else 'values'}: {describe(arguments[0])}"
    if origin in TABLES:
        return f"a table of: {describe(arguments[1])}"
    names = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        Path: "a path",
        InMemory: "a DataFrame",
    }
    return names.get(kind, f"a table ({', '.join(settings_of(kind))})" if is_dataclass(kind) else str(kind))


def _scalar(kind: Any, value: Any, where: str, base: Path) -> Any:
    if kind is InMemory and InMemory.is_mark(value):
        return InMemory.from_mark(where.rpartition(": ")[2], value)
    if kind is Path and isinstance(value, str | Path):
        return (base / value).resolve() if not Path(value).is_absolute() else Path(value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise _wrong_type(describe(kind), value, where)
    if kind is float and not math.isfinite(value):
        raise StudyError(where, f"{shown(value)} is not a finite number", "Write an ordinary number.")
    return value


def _in_range(value: Any, limits: Range, where: str) -> Any:
    if not limits.admits(value):
        raise StudyError(where, f"{shown(value)} is out of range", f"Write a number that is {limits}.")
    return value


def _wrong_type(expected: str, value: Any, where: str) -> StudyError:
    return StudyError(where, f"expected {expected}, found {shown(value)}", f"Write {expected}.")


Factory = Callable[..., Any]
