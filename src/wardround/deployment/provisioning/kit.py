"""The coordinator's kit: the folder `coordinator/` that `wardround provision new` makes.

    coordinator.toml  study.toml  ca.pem  ca.key  coordinator.pem  coordinator.key  signing.key  sites/NAME.pub

`coordinator.toml` may be read again at any time: a revocation changes it, and it is replaced as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from wardround.core.errors import DeployError, suggest
from wardround.core.settings import Range, parse_settings, settings_of
from wardround.deployment.provisioning.kit_files import (
    as_deploy_errors,
    need_cryptography,
    read_table,
    require_file,
    require_private,
)
from wardround.study.sweeps import NAME

FILE = "coordinator.toml"
HOSTS = ("127.0.0.1", "localhost")
PORT = 9090
DAYS = 825  # how long certificates are valid
WARN_BEFORE = 30  # days
REMADE = "Make a new kit with `wardround provision new`, or bring the file back."


@dataclass(frozen=True)
class Keys:
    """`coordinator.toml` as it stands."""

    hash: str  # of the study
    hosts: tuple[str, ...]  # names and addresses in the certificate; sites are told the first
    port: Annotated[int, Range(low=1, high=2**16 - 1)]
    sites: tuple[str, ...]  # in the order that numbers them
    revoked: dict[str, str] = field(default_factory=dict)  # site: date and reason
    hospitals: tuple[
        str, ...
    ] = ()  # where the sites are regions: all of their hospitals, in the order that numbers them
    connections: Annotated[int, Range(low=16, high=2**16)] = 512  # at once, in all
    connections_per_address: Annotated[int, Range(low=4, high=2**16)] = 32  # of callers that showed no key yet


@dataclass(frozen=True)
class CoordinatorKit:
    path: Path  # the folder
    study: Path
    hash: str
    hosts: tuple[str, ...]
    port: int
    sites: Mapping[str, bytes]  # public key of each as PEM, in the order that numbers them; revoked ones too
    revoked: Mapping[str, str]
    ca: Path
    certificate: Path
    key: Path
    signing_key: Path
    hospitals: tuple[str, ...] = ()
    connections: int = Keys.connections
    connections_per_address: int = Keys.connections_per_address

    @classmethod
    def load(cls, path: Path) -> "CoordinatorKit":
        """`path` is the folder, the one around it, or coordinator.toml. A kit that cannot serve is refused."""
        folder = folder_of(path)
        keys = read_keys(folder)
        kit = cls(
            path=folder,
            study=require_file(folder / "study.toml", REMADE),
            hash=keys.hash,
            hosts=keys.hosts,
            port=keys.port,
            sites={name: require_file(folder / "sites" / f"{name}.pub", REMADE).read_bytes() for name in keys.sites},
            revoked=keys.revoked,
            ca=require_file(folder / "ca.pem", REMADE),
            certificate=require_file(folder / "coordinator.pem", REMADE),
            key=require_private(folder / "coordinator.key", REMADE),
            signing_key=require_private(folder / "signing.key", REMADE),
            hospitals=keys.hospitals,
            connections=keys.connections,
            connections_per_address=keys.connections_per_address,
        )
        if (folder / "ca.key").exists():  # it may be kept elsewhere: only new certificates need it
            require_private(folder / "ca.key", REMADE)
        if kit.expires <= datetime.now(UTC):
            problem = f"the certificate expired on {kit.expires:%Y-%m-%d}"
            raise DeployError(str(kit.certificate), problem, "Make a new kit with `wardround provision new`.")
        return kit

    @property
    def expires(self) -> datetime:
        """When the first of the two certificates does."""
        need_cryptography()
        from wardround.deployment.provisioning.certificates import expires

        found = []
        for path in (self.ca, self.certificate):
            try:
                found.append(expires(path.read_bytes()))
            except ValueError:
                raise DeployError(str(path), "is not a certificate in PEM", REMADE) from None
        return min(found)

    @property
    def days_left(self) -> int:
        """Below `WARN_BEFORE` the coordinator should be told."""
        return (self.expires - datetime.now(UTC)).days

    @property
    def active(self) -> tuple[str, ...]:
        """Sites that are not revoked."""
        return tuple(name for name in self.sites if name not in self.revoked)


def folder_of(path: Path) -> Path:
    path = path.absolute()
    if path.name == FILE and not path.is_dir():
        return path.parent
    inner = path / "coordinator"
    return inner if not (path / FILE).exists() and (inner / FILE).exists() else path


def read_keys(folder: Path) -> Keys:
    raw = read_table(folder / FILE, "a coordinator's kit, the folder `coordinator` that `provision new` made")
    with as_deploy_errors():
        keys = Keys(**parse_settings(settings_of(Keys), raw, FILE, folder))
    for name in (*keys.sites, *keys.hospitals):
        if not NAME.fullmatch(name):  # it becomes part of a path
            remedy = "Write it as the kit had it: letters, digits, '.', '_' and '-'."
            raise DeployError(f"{FILE}: sites", f"{name!r} is not a usable name", remedy)
    for key, values in (("hosts", keys.hosts), ("sites", keys.sites)):
        if not values or len({value.lower() for value in values}) < len(values):
            raise DeployError(f"{FILE}: {key}", "is empty, or names one twice", "Write it as the kit had it.")
    for name in keys.revoked:
        if name not in keys.sites:
            # an unknown name would leave the site that was meant at work
            problem = f"no site is called {name!r}"
            raise DeployError(f"{FILE}: revoked", problem, suggest(name, keys.sites, "Sites of this kit"))
    return keys
