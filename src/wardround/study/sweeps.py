"""Arms as they stand in a study file, to one for each point of their sweeps.

    [[arms]]
    name = "fedprox"
    algorithm = "fedprox"
    mu = [0.01, 0.1]                 # a list where one value is expected is a sweep
    "sites.alpha" = [10, 0.1]        # a dotted key overrides the study for this arm
    train_at = ["north", "south"]    # only these sites train

gives four arms, named fedprox[alpha=0.1,mu=0.01] and so on: keys sorted, numbers as Python prints them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any, get_args, get_origin

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.settings import TABLES, UNIONS, Factory, alternatives, settings_of

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TRAIN_AT = "train_at"
MOST_POINTS = 1000  # of one arm's sweeps


@dataclass(frozen=True)
class Point:
    """One arm: an entry at one point of its sweeps."""

    name: str
    family: str
    algorithm: str
    options: Mapping[str, Any]  # the algorithm's own settings
    overrides: Mapping[str, Any]  # dotted keys of other sections
    train_at: list[str] | None


def points(
    entry: Mapping[str, Any], algorithms: Mapping[str, Factory], kinds: Mapping[str, Any], where: str
) -> list[Point]:
    """The arms that an entry stands for. `kinds` are the types of the dotted keys that it may override."""
    algorithm, family, where = _named(entry, algorithms, where)
    settings = flatten({key: value for key, value in entry.items() if key not in ("name", "algorithm")})
    own = {name: setting.kind for name, setting in settings_of(algorithms[algorithm]).items()}
    types = _types(settings, {**own, **kinds, TRAIN_AT: tuple[str, ...]}, where)
    swept = _sweeps(settings, types, where)
    labels = _labels(list(swept))
    swept = {key: swept[key] for key in sorted(swept, key=labels.__getitem__)}
    arms = []
    for values in product(*swept.values()):
        chosen = settings | dict(zip(swept, values, strict=True))
        label = ",".join(f"{labels[key]}={as_label(types[key], chosen[key])}" for key in swept)
        arms.append(
            Point(
                name=f"{family}[{label}]" if swept else family,
                family=family,
                algorithm=algorithm,
                options={key: value for key, value in chosen.items() if key in own},
                overrides={key: value for key, value in chosen.items() if key not in own and key != TRAIN_AT},
                train_at=chosen.get(TRAIN_AT),
            )
        )
    return arms


def _named(entry: Mapping[str, Any], algorithms: Mapping[str, Factory], where: str) -> tuple[str, str, str]:
    """The arm's algorithm and family, and where errors about it are."""
    algorithm = entry.get("algorithm")
    family = entry.get("name", algorithm)
    where = f"{where}: arms: {family if isinstance(family, str) and family else '?'}"
    return known_member(algorithm, algorithms, f"{where}: algorithm"), usable_name(family, f"{where}: name"), where


def known_member(name: Any, family: Mapping[str, Factory], where: str) -> str:
    if name is None:
        raise StudyError(where, "missing", suggest("", family, "Possible values"))
    if not isinstance(name, str) or name not in family:
        raise StudyError(where, f"{shown(name)} is not known", suggest(name, family, "Possible values"))
    return name


def usable_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise StudyError(where, f"{shown(name)} is not a usable name", "Use letters, digits, '.', '_' and '-'.")
    return name


def _types(settings: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    types = {key: known[key] if key in known else kind_within(key, known) for key in settings}
    for key, kind in types.items():
        if kind is None:
            raise StudyError(f"{where}: {key}", "no such setting", suggest(key, known, "Settings of an arm"))
    return types


def _sweeps(settings: Mapping[str, Any], types: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """The settings that have a list of values to try."""
    swept = {key: value for key, value in settings.items() if is_sweep(types[key], value)}
    for key, value in swept.items():
        if not value:
            raise StudyError(f"{where}: {key}", "an empty list sweeps over nothing", "List at least one value.")
    if prod(map(len, swept.values())) > MOST_POINTS:
        problem = f"its sweeps have more than {MOST_POINTS:,} points"
        raise StudyError(where, problem, "List fewer values, or divide the study.")
    return swept


def kind_within(key: str, kinds: Mapping[str, Any]) -> Any:
    """The type of an entry of a table whose keys the user chooses, such as topology.parties.clinic; else None."""
    parent, dot, _ = key.rpartition(".")
    if not dot:
        return None
    for option in alternatives(kinds[parent] if parent in kinds else kind_within(parent, kinds)):
        if get_origin(option) in TABLES:
            inner = get_args(option)[1]
            return tuple[Any, ...] if inner is Any else inner  # a list there is a value, never a sweep
    return None


def is_sweep(kind: Any, value: Any) -> bool:
    """A list is a sweep, unless the setting is itself a list: then a list of lists is one."""
    if not isinstance(value, list):
        return False
    return not _takes_list(kind) or (bool(value) and all(isinstance(item, list) for item in value))


def _takes_list(kind: Any) -> bool:
    if get_origin(kind) in (Annotated, *UNIONS):
        return any(_takes_list(argument) for argument in get_args(kind))
    return get_origin(kind) is tuple


def as_label(kind: Any, value: Any) -> str:
    """A swept value in the arm's name. A whole number for a setting of type float is printed as a float."""
    base = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if base is float and type(value) is int:
        value = float(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ("+" if all(isinstance(item, str) for item in value) else "x").join(map(str, value))
    return str(value)


def _labels(keys: list[str]) -> dict[str, str]:
    """The last word of each key, or the whole key where two end alike."""
    last = [key.rsplit(".", 1)[-1] for key in keys]
    return {key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables to dotted keys, so that `training.lr = 0.1` and `"training.lr" = 0.1` are one thing."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def set_path(tables: dict[str, Any], path: str, value: Any, where: str) -> None:
    *parents, last = path.split(".")
    place = tables
    for parent in parents:
        place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise StudyError(f"{where}: {path}", f"{parent!r} is a value, not a table", "Correct the dotted key.")
    place[last] = value
