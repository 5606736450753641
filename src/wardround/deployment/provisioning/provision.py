"""Make the kits of a study: a certificate authority, the coordinator's certificate, and a key for each site.

    OUT/coordinator/   stays with the coordinator
    OUT/sites/NAME/    goes to that hospital over a trusted channel: it holds the hospital's private key
    OUT/regions/NAME/  goes to that region, where sites form regions: its own key for the coordinator of all, a systemd
                       unit and a compose file that start it (their restrictions are those of `services/` and
                       `containers/`), and in `coordinator/` the kit with which it coordinates its hospitals, which
                       trust it and nobody else

Everything is made in a temporary folder that is renamed to OUT at the end: there is a complete set of kits, or none.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import tomli_w

from wardround.core.errors import DeployError, suggest
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.deployment.provisioning.kit import (
    Address,
    Purpose,
    fill_site_kit,
    folder_of,
    make_coordinator_kit,
    make_key,
    read_keys,
    write_keys,
)
from wardround.deployment.provisioning.kit_files import DAYS, HOSTS, PORT, need_cryptography
from wardround.deployment.regional.regions import check_regions, regions_of
from wardround.runs.audit import AuditLog
from wardround.runs.catalog import families as known_families
from wardround.study.parser import Families, parse_study
from wardround.study.schema import Study
from wardround.study.starting import without_sources
from wardround.study.sweeps import NAME

MOST_DAYS = 3650
RESERVED = "pooled"  # what results call the site that has all rows
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
UNIT, COMPOSE = "wardround-region.service", "compose.yaml"  # with which a region is started
HOME = "/etc/wardround/region"  # where the unit expects the kit
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")


def provision(
    study: Study,
    sites: Sequence[str],
    out: Path,
    hosts: Sequence[str] = HOSTS,
    port: int = PORT,
    days: int = DAYS,
    families: Families | None = None,
    regions: Mapping[str, str] | None = None,
) -> Path:
    """The folder with all kits. `families` are needed if the study names models or sources of the caller's own;
    `regions` are the addresses of the regions' coordinators, as HOST:PORT."""
    hosts = list(dict.fromkeys(hosts))
    families = known_families() if families is None else families
    _check_sites(sites)
    _check_address(hosts, port)
    addresses = {name: _read_address(name, text) for name, text in (regions or {}).items()}
    if not 1 <= days <= MOST_DAYS:
        raise DeployError("provision: days", f"{days} is out of range", f"Write a number from 1 to {MOST_DAYS}.")
    refuse_undeployable(study, sites)
    check_regions(study, list(addresses), sites)
    _check_sites([*sites, *addresses])  # a region's name becomes a folder too
    document = _study_file(study, families)
    need_cryptography()
    out = out.absolute()
    if os.path.lexists(out):
        raise DeployError(str(out), "exists already", "Name a new folder: keys are never overwritten.")
    with _atomic_folder(out) as folder:
        purpose, address = Purpose(study, document, days), Address(tuple(hosts), port)
        public = {name: make_key(folder / "sites" / name) for name in sites}
        if addresses:
            make_region_kits(folder, purpose, public, address, addresses)
        else:
            trust = make_coordinator_kit(folder / "coordinator", purpose, address, public)
            for name in sites:
                fill_site_kit(folder / "sites" / name, purpose, sites, address, trust, public)
        log = AuditLog(folder / "coordinator" / "audit.jsonl")
        formed = {"regions": {name: str(address) for name, address in addresses.items()}} if addresses else {}
        log.add("kits made", study=study.hash, sites=list(sites), hosts=hosts, port=port, days=days, **formed)
    return out


def revoke(kit: Path, site: str, reason: str) -> None:
    """From now on the coordinator accepts nothing from this site. A running coordinator rereads the file."""
    folder = folder_of(kit)
    with _locked(folder):
        # reads only this file: a revocation must work with expired certificates and open permissions too
        keys = read_keys(folder)
        if site not in keys.sites:
            raise DeployError(
                str(folder), f"no site is called {site!r}", suggest(site, keys.sites, "Sites of this kit")
            )
        if site in keys.revoked:
            problem = f"{site} is revoked already: {keys.revoked[site]}"
            raise DeployError(str(folder), problem, "Nothing is left to do; a new kit would let it in again.")
        reason = " ".join(reason.split())
        revoked = {**keys.revoked, site: f"{date.today().isoformat()} {reason}".strip()}
        write_keys(folder, replace(keys, revoked=revoked))
        AuditLog(folder / "audit.jsonl").add("site revoked", site=site, reason=reason)


def _study_file(study: Study, families: Families) -> bytes:
    """The resolved study without the paths of this machine, which are not part of its hash."""
    paths = {str(path): path.name for arm in study.arms for path in _paths(arm.data.options)}
    raw = _replaced(without_sources(study.resolved), paths)
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
            # some file systems ignore case
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


def _read_address(region: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        problem = f"{text!r} is not an address"
        remedy = f"Write --region {region}=HOST:PORT, for instance {region}=10.0.0.5:9091."
        raise DeployError(f"provision: region {region}", problem, remedy)
    address = Address((host.removeprefix("[").removesuffix("]"),), int(port))
    _check_address(address.hosts, address.port)
    return address


def _is_host(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        # a name of digits only is a mistyped address
        return bool(HOST_NAME.fullmatch(host)) and not host.rpartition(".")[2].isdigit()
    return not (isinstance(address, IPv6Address) and address.scope_id)


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """A folder that is renamed to `out` at the end, or removed on failure."""
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
def _locked(folder: Path) -> Iterator[None]:
    """Holds a lock, so that of two simultaneous revocations neither is lost."""
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


def unit_text(study: str, region: str, port: int) -> str:
    return f"""\
# Coordinates the region {region} in the study {study}. It expects wardround in /opt/wardround/.venv, this kit in
# {HOME}, and a user `wardround` to whom the kit belongs; services/README.md says how.
[Unit]
Description=wardround: coordinator of the region {region}
Documentation=file:///opt/wardround/docs/how-to/regions.md
Wants=network-online.target
After=network-online.target time-sync.target
# Whatever goes wrong, it is tried again; there is no number of failures after which systemd gives up.
StartLimitIntervalSec=0

[Service]
Type=exec
User=wardround
Group=wardround
ExecStart=/opt/wardround/.venv/bin/wardround region {HOME}/region.toml --listen 0.0.0.0
WorkingDirectory=/var/lib/wardround
# It runs until it is stopped. Started again after a crash or a kill it goes on in the middle of the round it was in.
# The waits grow from systemd 254 on; an older one says that it does not know two lines, and waits for RestartSec.
Restart=always
RestartSec=5
RestartSteps=6
RestartMaxDelaySec=300
# What Ctrl-C does: every closed round is kept, and answers that had arrived.
KillSignal=SIGINT
KillMode=mixed
SuccessExitStatus=130
TimeoutStopSec=60

# It writes to its state, and to two places of `coordinator`: `link` is Flower's while it runs, and `provision revoke`
# writes coordinator.toml. Its hospitals connect to port {port}.
UMask=0077
StateDirectory=wardround
StateDirectoryMode=0700
ReadWritePaths=/var/lib/wardround {HOME}
# It speaks to its own SuperLink over loopback, which no proxy must see.
# Messages of a large model are copied several times; with large pages that costs a third less.
Environment=HOME=/tmp FLWR_HOME=/tmp/flwr MPLCONFIGDIR=/tmp/matplotlib NO_PROXY=127.0.0.1 \
GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4194304
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet={_capabilities(port)}
AmbientCapabilities={_capabilities(port)}
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def _capabilities(port: int) -> str:
    """None, unless the port is one that only root may open otherwise."""
    return "CAP_NET_BIND_SERVICE" if port < 1024 else ""


def compose_text(study: str, region: str, port: int) -> str:
    return f"""\
# Coordinates the region {region} in the study {study}, in a container. The image is that of containers/Dockerfile;
# its user, number 10001, must own this folder: chown -R 10001:10001 .
#
#     docker compose run --rm region region /kit/region.toml --listen 0.0.0.0 --check
#     docker compose up --detach
name: wardround-{_project(region)}

services:
  region:
    image: wardround
    command: [region, /kit/region.toml, --listen, 0.0.0.0]
    init: true
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    ports: ["{port}:{port}"]
    volumes:
      - .:/kit  # it writes to state, coordinator/link and, when a hospital is revoked, coordinator/coordinator.toml
"""


def _project(region: str) -> str:
    """Compose allows lower-case letters, digits, '-' and '_'."""
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in region.lower())


def make_region_kits(
    folder: Path, purpose: Purpose, public: Mapping[str, bytes], top: Address, addresses: Mapping[str, Address]
) -> None:
    """`public` are the hospitals' keys, in the order that numbers them; `addresses` are those of the regions."""
    sites = list(public)
    regions = regions_of(purpose.study, sites)
    keys = {region: make_key(folder / "regions" / region, "region") for region in regions}
    trust = make_coordinator_kit(folder / "coordinator", purpose, top, keys, sites)
    for region, members in regions.items():
        kit = folder / "regions" / region
        own = {site: public[site] for site in members}
        (kit / "region.toml").write_text(region_template(purpose, region, sites, top), encoding="utf-8")
        place = purpose.study.name, region, addresses[region].port
        (kit / UNIT).write_text(unit_text(*place), encoding="utf-8")
        (kit / COMPOSE).write_text(compose_text(*place), encoding="utf-8")
        for file, content in trust.items():
            (kit / file).write_bytes(content)
        trusted = make_coordinator_kit(kit / "coordinator", purpose, addresses[region], own)
        for site in members:
            fill_site_kit(folder / "sites" / site, purpose, sites, addresses[region], trusted, own)


def region_template(purpose: Purpose, region: str, hospitals: Sequence[str], top: Address) -> str:
    keys = {
        "name": region,
        "coordinator": str(top),
        "hospitals": list(hospitals),
        "ca": "ca.pem",
        "key": "region.key",
        "coordinator_key": "coordinator.pub",
        "kit": "coordinator",
        "state": "state",
    }
    title = f"# How the region {region} takes part in the study {purpose.study.name}: `wardround region region.toml`."
    hashed = f"# Hash of the study: {purpose.study.hash}"
    return "\n".join([title, hashed, "# Paths begin at this file's folder.", "", tomli_w.dumps(keys)])
