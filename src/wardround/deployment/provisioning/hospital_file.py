"""A hospital's own rows, as `[data]` of its file says: of a whole `site.toml`, or of a file with no more than this.

name = "north"

[data]
source = "csv"
file = "patients.csv"
target = "result"

[data.labels]
positive = "disease"
negative = "no disease"
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import DataError, DeployError, suggest
from wardround.core.settings import Factory, parse_settings, settings_of
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment.provisioning.kit_files import as_deploy_errors, read_table
from wardround.study.facts import SourceFacts, facts_of
from wardround.study.parser import Families
from wardround.study.sweeps import NAME

TO_FILL_IN = "FILL IN"  # how a value begins that a hospital must still give
BY_HOSPITAL = ("targets", "patients")  # settings of the csv source that tell hospitals apart
BY_PARTY = ("holder", "patients", "visits")  # the same of the source csv-parties


@dataclass(frozen=True)
class _Keys:
    name: str
    data: dict[str, Any]


def hospital_source(path: Path, families: Families) -> tuple[str, Source]:
    """A hospital's name and its rows, which are not read yet. Keys and certificates are not looked for.

    `path` is the file, or the folder that holds it as `site.toml`. What else a site file says is not looked at.
    """
    path = (path / "site.toml" if path.is_dir() else path).absolute()
    raw = read_table(path, "a hospital's file with its `name` and `[data]`")
    known = settings_of(_Keys)
    with as_deploy_errors():
        values = parse_settings(known, {key: raw[key] for key in known if key in raw}, path.name, path.parent)
    keys = _Keys(**values)
    refuse_unusable_name(keys.name, f"{path.name}: name")
    return keys.name, source_of(keys.name, keys.data, path, families)


def _elsewhere(factory: Factory) -> bool:
    return facts_of(SourceFacts, factory, {}).elsewhere


def source_of(name: str, data: Mapping[str, Any], path: Path, families: Families) -> Source:
    """The rows of the hospital `name`, whose file `path` has the table `data`. Nothing is read yet."""
    where = f"{path.name}: data"
    for key in _not_filled_in(data):
        raise DeployError(f"{where}: {key}", "is not filled in yet", f"Write what is true here into {path}.")
    raw = {key: value for key, value in data.items() if key != "source"}
    kind = data.get("source")
    if not isinstance(kind, str) or kind not in families.sources or _elsewhere(families.sources[kind]):
        problem = "missing" if kind is None else f"{kind!r} has no rows to give"
        known = [name for name, factory in families.sources.items() if not _elsewhere(factory)]
        raise DeployError(f"{where}: source", problem, suggest(str(kind or ""), known, "Sources"))
    with as_deploy_errors():
        options = _options(families.sources[kind], kind, raw, name, where, path.parent)
    with as_deploy_errors(f"{path.name}: "):
        source: Source = families.sources[kind](**options)
    return Source(lambda: _own_rows(source.load(), name, where))


def refuse_unusable_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        remedy = "Write it as the kit had it: letters, digits, '.', '_' and '-'."
        raise DeployError(where, f"{name!r} is not a usable name", remedy)


def _options(factory: Factory, kind: str, raw: Mapping[str, Any], name: str, where: str, base: Path) -> dict[str, Any]:
    settings = settings_of(factory)
    if kind == "csv-parties":
        file = replace(settings.pop("files"), name="file", kind=Path)
        own = {key: setting for key, setting in settings.items() if key not in BY_PARTY}
        values = parse_settings({"file": file, **own}, raw, where, base)
        return {"files": {name: values.pop("file")}, **values}
    if kind != "csv":
        return parse_settings(settings, raw, where, base)
    # a hospital has one file and need not repeat its name
    file = replace(settings.pop("files"), name="file", kind=Path)
    labels = replace(settings.pop("labels"), kind=dict[str, str])
    own = {key: setting for key, setting in settings.items() if key not in BY_HOSPITAL}
    values = parse_settings({"file": file, "labels": labels, **own}, raw, where, base)
    words = values.pop("labels")
    return {"files": {name: values.pop("file")}, "labels": None if words is None else {name: words}, **values}


def _own_rows(records: Records, name: str, where: str) -> Records:
    """Rows bear the site's name, from which the seeds of its split and batches derive."""
    names = records.hospitals
    if len(names) > 1:
        if name not in names:
            problem = f"has rows of {len(names)} hospitals, and none of them is called {name!r}"
            raise DataError(where, problem, "Name one hospital's rows: a site is one hospital.")
        records = records.take(np.flatnonzero(records.hospital == name))
    elif names:
        records = replace(records, recorded=_renamed(records.recorded, names[0], name))
        records = replace(records, vocabulary=_renamed(records.vocabulary, names[0], name))
    return replace(records, hospital=np.full(len(records), name, dtype=object))


def _renamed(table: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in table.items()}


def _not_filled_in(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from (f"{key}: {inner}" for inner in _not_filled_in(value))
        elif any(
            isinstance(item, str) and item.startswith(TO_FILL_IN)
            for item in (value if isinstance(value, list) else [value])
        ):
            yield key
