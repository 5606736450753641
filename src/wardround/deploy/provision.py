"""Make the kits of a study: a certificate authority, the coordinator's certificate, and a key for each site.

    OUT/coordinator/   stays with the coordinator
    OUT/sites/NAME/    goes to that hospital, over a way that both trust: it holds the hospital's private key

Everything is made in a folder beside OUT that becomes OUT in the end, so that there is a whole set of kits or none.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import tomli_w

from wardround.artifacts.audit import AuditLog
from wardround.artifacts.folder import write_atomically
from wardround.catalog import families as known_families
from wardround.deploy.deployable import refuse_undeployable
from wardround.deploy.files import need_cryptography, write_private
from wardround.deploy.kit import DAYS, FILE, HOSTS, PORT, Keys, folder_of, read_keys
from wardround.deploy.template import site_template
from wardround.errors import DeployError, suggest
from wardround.study import Study
from wardround.studyfile import Families, parse_study
from wardround.sweep import NAME

MOST_DAYS = 3650
RESERVED = "pooled"  # what results call the site that has all rows
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")
HEADER = "# The coordinator's kit. `wardround provision revoke` writes this file anew; it may be done during a run.\n"


def provision(
    study: Study,
    sites: Sequence[str],
    out: Path,
    hosts: Sequence[str] = HOSTS,
    port: int = PORT,
    days: int = DAYS,
    families: Families | None = None,
) -> Path:
    """The folder with all kits. `families` are needed where the study names models or sources of the caller's own."""
    hosts = list(dict.fromkeys(hosts))
    families = known_families() if families is None else families
    _check_sites(sites)
    _check_address(hosts, port)
    if not 1 <= days <= MOST_DAYS:
        raise DeployError("provision: days", f"{days} is out of range", f"Write a number from 1 to {MOST_DAYS}.")
    refuse_undeployable(study, families, sites)
    document = _study_file(study, families)
    need_cryptography()
    out = out.absolute()
    if os.path.lexists(out):
        raise DeployError(str(out), "exists already", "Name a new folder: keys are never overwritten.")
    with _made_whole(out) as folder:
        public = {name: _make_site_kit(folder / "sites" / name) for name in sites}
        trust = _make_coordinator_kit(folder / "coordinator", study.name, hosts, days)
        for name, key in public.items():
            (folder / "coordinator" / "sites" / f"{name}.pub").write_bytes(key)
        keys = Keys(study.hash, tuple(hosts), port, tuple(sites))
        _write_keys(folder / "coordinator", keys)
        address = f"[{hosts[0]}]:{port}" if ":" in hosts[0] else f"{hosts[0]}:{port}"
        for kit in (folder / "coordinator", *(folder / "sites" / name for name in sites)):
            (kit / "study.toml").write_bytes(document)
        for name in sites:
            kit = folder / "sites" / name
            for file, content in trust.items():
                (kit / file).write_bytes(content)
            (kit / "peers").mkdir(mode=0o700)
            for peer, key in public.items():
                (kit / "peers" / f"{peer}.pub").write_bytes(key)
            (kit / "site.toml").write_text(site_template(study, name, sites, address), encoding="utf-8")
        log = AuditLog(folder / "coordinator" / "audit.jsonl")
        log.add("kits made", study=study.hash, sites=list(sites), hosts=hosts, port=port, days=days)
    return out


def revoke(kit: Path, site: str, reason: str) -> None:
    """From now on the coordinator takes nothing from this site. A running one reads the file again."""
    folder = folder_of(kit)
    with _alone(folder):
        # expired certificates and open permissions do not stand in the way of a revocation: nothing else is read
        keys = read_keys(folder)
        if site not in keys.sites:
            raise DeployError(
                str(folder), f"no site is called {site!r}", suggest(site, keys.sites, "Sites of this kit")
            )
        if site in keys.revoked:
            problem = f"{site} is revoked already: {keys.revoked[site]}"
            raise DeployError(str(folder), problem, "Nothing is left to do; a new kit would let it in again.")
        words = " ".join(reason.split())
        revoked = {**keys.revoked, site: f"{date.today().isoformat()} {words}".strip()}
        _write_keys(folder, Keys(keys.hash, keys.hosts, keys.port, keys.sites, revoked))
        AuditLog(folder / "audit.jsonl").add("site revoked", site=site, reason=words)


def _make_coordinator_kit(folder: Path, study: str, hosts: Sequence[str], days: int) -> dict[str, bytes]:
    """What every site must have to trust this coordinator, by file name."""
    from wardround.deploy import certificates as made

    folder.mkdir(mode=0o700)
    (folder / "sites").mkdir(mode=0o700)
    authority_key, authority = made.new_authority(study, days)
    key, certificate = made.new_certificate(study, hosts, days, authority_key, authority)
    signing = made.new_key()
    for name, private in (("ca.key", authority_key), ("coordinator.key", key), ("signing.key", signing)):
        write_private(folder / name, made.private_pem(private))
    (folder / "ca.pem").write_bytes(made.certificate_pem(authority))
    (folder / "coordinator.pem").write_bytes(made.certificate_pem(certificate))
    return {"ca.pem": made.certificate_pem(authority), "coordinator.pub": made.public_pem(signing)}


def _make_site_kit(folder: Path) -> bytes:
    """The site's public key. The private one is in its kit and nowhere else."""
    from wardround.deploy import certificates as made

    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    key = made.new_key()
    write_private(folder / "site.key", made.private_pem(key))
    (folder / "site.pub").write_bytes(made.public_pem(key))
    return made.public_pem(key)


def _write_keys(folder: Path, keys: Keys) -> None:
    write_atomically(folder / FILE, (HEADER + tomli_w.dumps(asdict(keys))).encode())


def _study_file(study: Study, families: Families) -> bytes:
    """The resolved study without this machine's folders, which are no part of its hash and nobody's business."""
    paths = {str(path): path.name for arm in study.arms for path in _paths(arm.data.options)}
    raw = _replaced(study.resolved, paths)
    read_back = parse_study(raw, families, "study.toml")
    if read_back.hash != study.hash:
        problem = "its resolved form reads back as another study"
        raise DeployError(f"study {study.name}", problem, "This is a defect in wardround: please report it.")
    title = f"# Study {study.name}, with every default written out.\n# Hash: {study.hash}\n\n"
    return (title + tomli_w.dumps(raw)).encode()


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, texts) for item in value]
    return texts.get(value, value) if isinstance(value, str) else value


def _check_sites(sites: Sequence[str]) -> None:
    where = "provision: sites"
    if not sites:
        raise DeployError(where, "no site is named", "Write --sites north,south,east.")
    seen: dict[str, str] = {}
    for name in sites:
        if not NAME.fullmatch(name):
            remedy = "Use letters, digits, '.', '_' and '-', and begin with a letter or digit."
            raise DeployError(where, f"{name!r} is not a usable name", remedy)
        if name.lower() == RESERVED:
            raise DeployError(where, f"{name!r} is what results call all rows at one place", "Choose another name.")
        if name.lower() in seen:
            # some file systems tell them apart and some do not
            problem = f"{seen[name.lower()]!r} and {name!r} are the same name"
            raise DeployError(where, problem, "Give each site a name of its own.")
        seen[name.lower()] = name


def _check_address(hosts: Sequence[str], port: int) -> None:
    if not hosts:
        raise DeployError("provision: host", "no host is named", "Write --host coordinator.example.org.")
    for host in hosts:
        if not _is_host(host):
            remedy = "Write a DNS name in ASCII letters or an IP address, without port, for instance 10.0.0.5."
            raise DeployError("provision: host", f"{host!r} is neither a name nor an address", remedy)
    if not 1 <= port < 2**16:
        raise DeployError("provision: port", f"{port} is out of range", f"Write a number from 1 to {2**16 - 1}.")


def _is_host(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        # a name of digits only is a mistyped address
        return bool(HOST_NAME.fullmatch(host)) and not host.rpartition(".")[2].isdigit()
    return not (isinstance(address, IPv6Address) and address.scope_id)


@contextmanager
def _made_whole(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` at the end, or vanishes."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))  # owner-only
    except OSError as error:
        raise DeployError(str(out), f"cannot be made ({error.strerror})", "Name a folder you may write to.") from None
    try:
        yield folder
        folder.rename(out)
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two revocations at once must both last."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        remedy = "Give the folder `coordinator` that `provision new` made."
        raise DeployError(str(folder), f"cannot be read ({error.strerror})", remedy) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
