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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wardround.core.errors import DeployError, suggest
from wardround.core.settings import parse_settings, settings_of
from wardround.data.sources import Source
from wardround.deployment.governance.policy import Policy
from wardround.deployment.provisioning.hospital_file import refuse_unusable_name, source_of
from wardround.deployment.provisioning.kit_files import as_deploy_errors, read_table, require_file, require_private
from wardround.study.parser import Families

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
    data: Mapping[str, Any]  # as it stands: `open_source` makes a source of it
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
    return source_of(site.name, site.data, site.path, families)


def _check(keys: _Keys, where: str) -> None:
    for key, name in [("name", keys.name), *(("sites", name) for name in keys.sites)]:
        refuse_unusable_name(name, f"{where}: {key}")
    if keys.sites and keys.name not in keys.sites:
        problem = f"{keys.name!r} is not among the sites of the study"
        raise DeployError(f"{where}: name", problem, suggest(keys.name, keys.sites, "Sites"))
    check_address(keys.coordinator, where)


def check_address(address: str, where: str) -> None:
    found = ADDRESS.fullmatch(address)
    if not found or not 0 < int(found[2]) < 2**16:
        problem = f"{address!r} is not an address"
        raise DeployError(f"{where}: coordinator", problem, 'Write host:port, for instance "10.0.0.5:9090".')
