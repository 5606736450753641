"""`site.toml`: what a hospital brings to a study and what it demands of it. It stays at the hospital.

name = "north"
coordinator = "coordinator.example.org:9090"

[data]
source = "csv"
file = "patients.csv"
target = "died"

[policy]
least_sites = 3

A hospital outside a study has a file with `name` and `[data]` alone (`hospital_source`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import DataError, DeployError, suggest
from wardround.core.settings import Factory, parse_settings, settings_of
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment.governance.policy import Policy
from wardround.deployment.provisioning.kit_files import (
    as_deploy_errors,
    read_settings,
    read_table,
    require_file,
    require_private,
)
from wardround.study.facts import SourceFacts, facts_of
from wardround.study.parser import Families
from wardround.study.sweeps import NAME

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
FROM_KIT = "It comes with the kit; ask the coordinator for it."
TO_FILL_IN = "FILL IN"  # how a value begins that a hospital must still give
BY_HOSPITAL = ("targets", "patients")  # settings of the csv source that are given by hospital
BY_PARTY = ("holder", "patients", "visits")  # the same of the source csv-parties
GIVEN_BY_NAME = {"csv": BY_HOSPITAL, "csv-parties": BY_PARTY}


@dataclass(frozen=True)
class SiteFile:
    path: Path  # of the file itself
    name: str
    coordinator: str  # host:port
    data: dict[str, Any]  # as it stands: `open_source` makes a source of it
    ca: Path = Path("ca.pem")
    key: Path = Path("site.key")
    coordinator_key: Path = Path("coordinator.pub")
    peers: Path = Path("peers")  # folder with the public key of every hospital, for secure sums
    sites: tuple[str, ...] = ()  # the hospitals of the study as the kit names them; empty: not known
    state: Path = Path("state")  # memory, predictions and the audit log
    approved: Path = Path("approved")  # approved studies, and who approved them
    policy: Policy = field(default_factory=Policy)

    @classmethod
    def load(cls, path: Path) -> "SiteFile":
        """`path` is the file, or the folder that holds it. The kit's files must be there, the key owner-only."""
        path = (path / "site.toml" if path.is_dir() else path).absolute()
        known = {name: setting for name, setting in settings_of(cls).items() if name != "path"}
        site = cls(path, **read_settings(known, path, "a site file (site.toml)"))
        _check(site)
        require_file(site.ca, FROM_KIT)
        require_file(site.coordinator_key, FROM_KIT)
        require_private(site.key, FROM_KIT)
        return site


def open_source(site: SiteFile, families: Families) -> Source:
    """This hospital's rows, under its name. Nothing is read yet."""
    return source_of(site.name, site.data, site.path, families)


def _check(site: SiteFile) -> None:
    where = site.path.name
    for key, name in [("name", site.name), *(("sites", name) for name in site.sites)]:
        refuse_unusable_name(name, f"{where}: {key}")
    if site.sites and site.name not in site.sites:
        problem = f"{site.name!r} is not among the sites of the study"
        raise DeployError(f"{where}: name", problem, suggest(site.name, site.sites, "Sites"))
    check_address(site.coordinator, where)


def check_address(address: str, where: str) -> None:
    match = ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[2]) < 2**16:
        problem = f"{address!r} is not an address"
        raise DeployError(f"{where}: coordinator", problem, 'Write host:port, for instance "10.0.0.5:9090".')


def hospital_source(path: Path, families: Families) -> tuple[str, Source]:
    """A hospital's name and its rows, which are not read yet. Keys and certificates are not looked for.

    `path` is the file, or the folder that holds it as `site.toml`. The rest of a site file is ignored.
    """
    path = (path / "site.toml" if path.is_dir() else path).absolute()
    table = read_table(path, "a hospital's file with its `name` and `[data]`")
    known = {key: settings_of(SiteFile)[key] for key in ("name", "data")}
    with as_deploy_errors():
        values = parse_settings(known, {key: table[key] for key in known if key in table}, path.name, path.parent)
    refuse_unusable_name(values["name"], f"{path.name}: name")
    return values["name"], source_of(values["name"], values["data"], path, families)


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
    if kind not in GIVEN_BY_NAME:
        return parse_settings(settings, raw, where, base)
    # a hospital has one file and need not repeat its name
    own = {"file": replace(settings.pop("files"), name="file", kind=Path)}
    own |= {key: setting for key, setting in settings.items() if key not in GIVEN_BY_NAME[kind]}
    if kind == "csv":
        own["labels"] = replace(settings["labels"], kind=dict[str, str])
    values = parse_settings(own, raw, where, base)
    if kind == "csv" and values["labels"] is not None:
        values["labels"] = {name: values["labels"]}
    return {"files": {name: values.pop("file")}, **values}


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
