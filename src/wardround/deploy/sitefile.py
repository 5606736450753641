"""`site.toml`: what a hospital brings to a study and what it demands of it. It stays at the hospital.

name = "north"
coordinator = "coordinator.example.org:9090"

[data]
source = "csv"
file = "patients.csv"
target = "died"

[policy]
least_sites = 3
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deploy.files import as_deploy_errors, read_table, require_file, require_private
from wardround.deploy.policy import Policy
from wardround.errors import DataError, DeployError, suggest
from wardround.settings import Factory, parse_settings, settings_of
from wardround.studyfile import Families
from wardround.sweep import NAME

TO_FILL_IN = "FILL IN"  # how a value begins that a hospital must still give
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
FROM_KIT = "It comes with the kit; ask the coordinator for it."


@dataclass(frozen=True)
class _Keys:
    """The file as it stands. Paths are relative to it."""

    name: str
    coordinator: str
    data: dict[str, Any]
    ca: Path = Path("ca.pem")
    key: Path = Path("site.key")
    coordinator_key: Path = Path("coordinator.pub")
    peers: Path = Path("peers")
    sites: tuple[str, ...] = ()
    state: Path = Path("state")
    approved: Path = Path("approved")
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True)
class SiteFile:
    path: Path
    name: str
    coordinator: str  # host:port
    ca: Path
    key: Path
    coordinator_key: Path
    peers: Path  # folder with the public key of every hospital, for secure sums
    sites: tuple[str, ...]  # the hospitals of the study as the kit names them; empty: not known
    data: Mapping[str, Any]  # as it stands: `open_source` reads it
    policy: Policy
    state: Path  # memory, predictions and the audit log
    approved: Path  # approved studies, and who approved them

    @classmethod
    def load(cls, path: Path) -> "SiteFile":
        """`path` is the file, or the folder that holds it. The kit's files must be there, the key owner-only."""
        path = (path / "site.toml" if path.is_dir() else path).absolute()
        raw = read_table(path, "a site file (site.toml)")
        with as_deploy_errors():
            keys = _Keys(**parse_settings(settings_of(_Keys), raw, path.name, path.parent))
        _check(keys, path.name)
        site = cls(
            path=path,
            name=keys.name,
            coordinator=keys.coordinator,
            ca=path.parent / keys.ca,
            key=path.parent / keys.key,
            coordinator_key=path.parent / keys.coordinator_key,
            peers=path.parent / keys.peers,
            sites=keys.sites,
            data=keys.data,
            policy=keys.policy,
            state=path.parent / keys.state,
            approved=path.parent / keys.approved,
        )
        require_file(site.ca, FROM_KIT)
        require_file(site.coordinator_key, FROM_KIT)
        require_private(site.key, FROM_KIT)
        return site


def open_source(site: SiteFile, families: Families) -> Source:
    """This hospital's rows, under its name. Nothing is read yet."""
    where = f"{site.path.name}: data"
    for key in _not_filled_in(site.data):
        raise DeployError(f"{where}: {key}", "is not filled in yet", f"Write what is true here into {site.path}.")
    raw = {key: value for key, value in site.data.items() if key != "source"}
    name = site.data.get("source")
    if not isinstance(name, str) or name not in families.sources or name == "at-sites":
        problem = "missing" if name is None else f"{name!r} has no rows to give"
        known = [source for source in families.sources if source != "at-sites"]
        raise DeployError(f"{where}: source", problem, suggest(str(name or ""), known, "Sources"))
    with as_deploy_errors():
        options = _options(families.sources[name], name, raw, site, where)
    with as_deploy_errors(f"{site.path.name}: "):
        source: Source = families.sources[name](**options)
    return Source(lambda: _own_rows(source.load(), site))


def _options(factory: Factory, name: str, raw: Mapping[str, Any], site: SiteFile, where: str) -> dict[str, Any]:
    settings, base = settings_of(factory), site.path.parent
    if name != "csv":
        return parse_settings(settings, raw, where, base)
    # a hospital has one file and need not repeat its name
    file = replace(settings.pop("files"), name="file", kind=Path)
    values = parse_settings({"file": file, **settings}, raw, where, base)
    return {"files": {site.name: values.pop("file")}, **values}


def _own_rows(records: Records, site: SiteFile) -> Records:
    """Rows bear the site's name, from which the seeds of its split and batches derive."""
    names = records.hospitals
    if len(names) > 1:
        if site.name not in names:
            problem = f"has rows of {len(names)} hospitals, and none of them is called {site.name!r}"
            raise DataError(f"{site.path.name}: data", problem, "Name one hospital's rows: a site is one hospital.")
        records = records.take(np.flatnonzero(records.hospital == site.name))
    return replace(records, hospital=np.full(len(records), site.name, dtype=object))


def _not_filled_in(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from (f"{key}: {inner}" for inner in _not_filled_in(value))
        elif any(
            isinstance(item, str) and item.startswith(TO_FILL_IN)
            for item in (value if isinstance(value, list) else [value])
        ):
            yield key


def _check(keys: _Keys, where: str) -> None:
    for key, name in [("name", keys.name), *(("sites", name) for name in keys.sites)]:
        if not NAME.fullmatch(name):
            remedy = "Write it as the kit had it: letters, digits, '.', '_' and '-'."
            raise DeployError(f"{where}: {key}", f"{name!r} is not a usable name", remedy)
    if keys.sites and keys.name not in keys.sites:
        problem = f"{keys.name!r} is not among the sites of the study"
        raise DeployError(f"{where}: name", problem, suggest(keys.name, keys.sites, "Sites"))
    found = ADDRESS.fullmatch(keys.coordinator)
    if not found or not 0 < int(found[2]) < 2**16:
        problem = f"{keys.coordinator!r} is not an address"
        raise DeployError(f"{where}: coordinator", problem, 'Write host:port, for instance "10.0.0.5:9090".')
