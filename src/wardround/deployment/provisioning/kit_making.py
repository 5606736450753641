"""The parts of kits: what a coordinator needs, what whoever connects to it needs, and what each has of the other."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from wardround.deployment.provisioning.kit import FILE, Keys
from wardround.deployment.provisioning.kit_files import write_private
from wardround.deployment.provisioning.site_template import site_template
from wardround.runs.folder import write_atomically
from wardround.study.schema import Study

HEADER = "# The coordinator's kit. `wardround provision revoke` writes this file anew; it may be done during a run.\n"
Trust = Mapping[str, bytes]  # what whoever connects must have to trust a coordinator, by file name


@dataclass(frozen=True)
class Address:
    hosts: tuple[str, ...]  # names and addresses in the certificate
    port: int

    def __str__(self) -> str:
        """As those who connect are told."""
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
    """`connecting` are those who connect to this coordinator, with their public keys; `hospitals` are all of the study
    where these are regions."""
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
    """The public key of whoever gets this kit. The private one is in the kit and nowhere else."""
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
    """The rest of a hospital's kit, beside its key. `peers` are those with whom it is in a secure sum."""
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
