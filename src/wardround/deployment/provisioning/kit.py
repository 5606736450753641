"""The coordinator's kit: the folder `coordinator/` that `wardround provision new` makes.

    coordinator.toml  study.toml  ca.pem  ca.key  coordinator.pem  coordinator.key  signing.key  sites/NAME.pub

`coordinator.toml` may be read again at any time: a revocation changes it, and it is replaced as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import tomli_w

from wardround.core.errors import DeployError, suggest
from wardround.core.settings import Range, parse_settings, settings_of
from wardround.deployment.provisioning.kit_files import DAYS as DAYS
from wardround.deployment.provisioning.kit_files import HOSTS as HOSTS
from wardround.deployment.provisioning.kit_files import PORT as PORT
from wardround.deployment.provisioning.kit_files import (
    as_deploy_errors,
    need_cryptography,
    read_table,
    require_file,
    require_private,
    write_private,
)
from wardround.deployment.provisioning.site_template import site_template
from wardround.runs.folder import write_atomically
from wardround.study.schema import Study
from wardround.study.sweeps import NAME

FILE = "coordinator.toml"
WARN_BEFORE = 30  # days
REMADE = "Make a new kit with `wardround provision new`, or bring the file back."


@dataclass(frozen=True)
class Keys:
    """The content of `coordinator.toml`."""

    hash: str  # of the study
    hosts: tuple[str, ...]  # names and addresses in the certificate; sites connect to the first
    port: Annotated[int, Range(low=1, high=2**16 - 1)]
    sites: tuple[str, ...]  # in the order of their numbers
    revoked: dict[str, str] = field(default_factory=dict)  # site: date and reason
    hospitals: tuple[str, ...] = ()  # if the sites are regions: all of their hospitals, in the order of their numbers
    connections: Annotated[int, Range(low=16, high=2**16)] = 512  # at once, in all
    connections_per_address: Annotated[int, Range(low=4, high=2**16)] = 32  # of callers that have not authenticated yet


@dataclass(frozen=True)
class CoordinatorKit:
    path: Path  # the folder
    study: Path
    hash: str
    hosts: tuple[str, ...]
    port: int
    sites: Mapping[str, bytes]  # public key of each as PEM, in the order of their numbers; revoked ones too
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
        """When the first of the two certificates expires."""
        need_cryptography()
        from wardround.deployment.provisioning.certificates import expires

        dates = []
        for path in (self.ca, self.certificate):
            try:
                dates.append(expires(path.read_bytes()))
            except ValueError:
                raise DeployError(str(path), "is not a certificate in PEM", REMADE) from None
        return min(dates)

    @property
    def days_left(self) -> int:
        """Below `WARN_BEFORE` the coordinator is warned."""
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
            raise DeployError(f"{FILE}: {key}", "is empty, or has a duplicate", "Write it as the kit had it.")
    for name in keys.revoked:
        if name not in keys.sites:
            # with a typo in its name, the site that was meant would remain active
            problem = f"no site is called {name!r}"
            raise DeployError(f"{FILE}: revoked", problem, suggest(name, keys.sites, "Sites of this kit"))
    return keys


HEADER = "# The coordinator's kit. `wardround provision revoke` writes this file anew; it may be done during a run.\n"
Trust = Mapping[str, bytes]  # files by which a kit trusts its coordinator, by file name


@dataclass(frozen=True)
class Address:
    hosts: tuple[str, ...]  # names and addresses in the certificate
    port: int

    def __str__(self) -> str:
        """HOST:PORT, as written into the kits of those who connect."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True)
class Purpose:
    """What all kits of one `provision` are for."""

    study: Study
    document: bytes  # the study file that goes into each of them
    days: int  # how long certificates are valid


def make_coordinator_kit(
    folder: Path, purpose: Purpose, address: Address, connecting: Mapping[str, bytes], hospitals: Sequence[str] = ()
) -> Trust:
    """`connecting` are the public keys of those who connect to this coordinator; if these are regions, `hospitals` are
    all hospitals of the study."""
    from wardround.deployment.provisioning import certificates as made

    folder.mkdir(mode=0o700)
    (folder / "sites").mkdir(mode=0o700)
    study, days = purpose.study, purpose.days
    authority_key, authority = made.new_authority(study.name, days)
    key, certificate = made.new_certificate(study.name, address.hosts, days, authority_key, authority)
    signing = made.new_key()
    for name, private in (("ca.key", authority_key), ("coordinator.key", key), ("signing.key", signing)):
        write_private(folder / name, made.private_pem(private))
    (folder / "ca.pem").write_bytes(made.certificate_pem(authority))
    (folder / "coordinator.pem").write_bytes(made.certificate_pem(certificate))
    for name, public in connecting.items():
        (folder / "sites" / f"{name}.pub").write_bytes(public)
    write_keys(folder, Keys(study.hash, address.hosts, address.port, tuple(connecting), hospitals=tuple(hospitals)))
    (folder / "study.toml").write_bytes(purpose.document)
    return {"ca.pem": made.certificate_pem(authority), "coordinator.pub": made.public_pem(signing)}


def make_key(folder: Path, name: str = "site") -> bytes:
    """The public key of whoever gets this kit. The private key is written into the kit and nowhere else."""
    from wardround.deployment.provisioning import certificates as made

    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    key = made.new_key()
    write_private(folder / f"{name}.key", made.private_pem(key))
    (folder / f"{name}.pub").write_bytes(made.public_pem(key))
    return made.public_pem(key)


def fill_site_kit(
    folder: Path, purpose: Purpose, sites: Sequence[str], coordinator: Address, trust: Trust, peers: Mapping[str, bytes]
) -> None:
    """Everything in a hospital's kit but its key. `peers` are the other members of its secure sums."""
    (folder / "study.toml").write_bytes(purpose.document)
    for file, content in trust.items():
        (folder / file).write_bytes(content)
    (folder / "peers").mkdir(mode=0o700)
    for peer, key in peers.items():
        (folder / "peers" / f"{peer}.pub").write_bytes(key)
    text = site_template(purpose.study, folder.name, sites, str(coordinator))
    (folder / "site.toml").write_text(text, encoding="utf-8")


def write_keys(folder: Path, keys: Keys) -> None:
    content = {name: value for name, value in asdict(keys).items() if name != "hospitals" or value}
    write_atomically(folder / FILE, (HEADER + tomli_w.dumps(content)).encode())
