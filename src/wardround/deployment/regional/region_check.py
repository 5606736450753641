"""`wardround region --check`: everything that can be known of a region before it starts, without sending anything."""

import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from wardround.core.errors import DeployError, WardroundError
from wardround.core.extras import needs
from wardround.core.health import Condition
from wardround.deployment.join import connection_to
from wardround.deployment.provisioning.kit import WARN_BEFORE
from wardround.deployment.provisioning.region_file import RegionFile
from wardround.deployment.regional.region_run import hospitals_of, study_of
from wardround.protocol.signing import read_key, read_public_key
from wardround.runs.catalog import families as known_families

with needs("deploy", "a study across hospitals"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AS_MADE = "Use the kit as it was made, or ask the coordinator of all for a new one."


def preflight_region(region: RegionFile, listen: str) -> list[Condition]:
    """Study, hospitals, keys, certificates, where its hospitals connect, where it writes, and the way to the top."""
    return [
        _tried("study", lambda: _study(region)),
        _hospitals(region),
        _tried("keys", lambda: _keys(region)),
        *_certificates(region),
        _port(region, listen),
        _name(region),
        _written(region),
        _connection(region),
    ]


def _tried(name: str, look: Callable[[], str]) -> Condition:
    try:
        return Condition(name, True, look())
    except WardroundError as error:
        return Condition(name, False, f"{error.where}: {error.problem}", error.remedy)


def _study(region: RegionFile) -> str:
    families = known_families()
    study = study_of(region.kit, families)
    sites = hospitals_of(region, study, families)
    return f"{study.name} ({study.hash[:12]}), {region.name} with {', '.join(sites)}"


def _hospitals(region: RegionFile) -> Condition:
    kit = region.kit
    if not kit.active:
        remedy = "Without hospitals there is no region: ask the coordinator of all for a study without it."
        return Condition("hospitals", False, f"all are revoked: {', '.join(kit.sites)}", remedy)
    out = f"; revoked: {', '.join(kit.revoked)}" if kit.revoked else ""
    return Condition("hospitals", True, f"{', '.join(kit.active)}{out}")


def _keys(region: RegionFile) -> str:
    """Whether all can be read, and whether the public key beside its own belongs to it: the other side has that one."""
    own, public = read_key(region.key), region.key.with_suffix(".pub")
    read_key(region.kit.signing_key)
    read_public_key(region.coordinator_key.read_bytes(), region.coordinator_key)
    for site, content in region.kit.sites.items():
        read_public_key(content, f"{site}.pub")
    if public.is_file():
        there = read_public_key(public.read_bytes(), public).public
        if _pem(there) != _pem(own.private.public_key()):
            raise DeployError(str(region.key), f"does not belong to {public.name}", AS_MADE)
    return f"its own, the coordinator's and those of {len(region.kit.sites)} hospitals"


def _certificates(region: RegionFile) -> list[Condition]:
    """That of the coordinator of all, and its own towards hospitals."""
    kit = region.kit
    found = [_lasting("certificate of the top", region.ca)]
    try:
        authority, own = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (kit.ca, kit.certificate))
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        problem = f"{kit.certificate} is not of this kit's authority: no hospital would connect"
        return [*found, Condition("certificate", False, problem, AS_MADE)]
    try:
        mine = _pem(read_key(kit.key).private.public_key())
    except WardroundError as error:
        return [*found, Condition("certificate", False, f"{error.where}: {error.problem}", error.remedy)]
    key = own.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or _pem(key) != mine:
        return [*found, Condition("certificate", False, f"{kit.key} does not belong to {kit.certificate}", AS_MADE)]
    return [*found, _lasting("certificate", kit.certificate, f" for {', '.join(kit.hosts)}")]


def _lasting(name: str, path: Path, what: str = "") -> Condition:
    try:
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ValueError:
        return Condition(name, False, f"{path} is not a certificate in PEM", AS_MADE)
    left = (until - datetime.now(UTC)).days
    if until <= datetime.now(UTC):
        return Condition(name, False, f"expired on {until:%Y-%m-%d}", "Ask for new kits.")
    words = f"valid until {until:%Y-%m-%d}{what}"
    if left < WARN_BEFORE:
        return Condition(name, False, f"{words}: {left} days are left", "Ask for new kits in time.", needed=False)
    return Condition(name, True, words)


def _port(region: RegionFile, listen: str) -> Condition:
    """Whether hospitals could connect: the port must be free, unless this region is running already."""
    where = f"{listen}:{region.kit.port}"
    if _is_running(region.state):
        return Condition("port", True, f"this region is running; its hospitals connect to port {region.kit.port}")
    try:
        family, kind, *_, address = socket.getaddrinfo(listen, region.kit.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        remedy = "Stop what uses it, or name an address of this machine with --listen."
        return Condition("port", False, f"{where} cannot be used ({error.strerror or type(error).__name__})", remedy)
    return Condition("port", True, f"{where} is free")


def _is_running(state: Path) -> bool:
    """Whether another process holds the lock of the state (`join.alone`)."""
    with suppress(OSError), (state / ".lock").open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _name(region: RegionFile) -> Condition:
    """A note, because hospitals may know names that this machine does not."""
    host = region.kit.hosts[0]
    try:
        found = socket.getaddrinfo(host, region.kit.port, type=socket.SOCK_STREAM)
    except OSError as error:
        problem = f"{host}, which hospitals are told, is not known here ({error.strerror or type(error).__name__})"
        remedy = "Hospitals must know it: enter it in their name service, or ask for kits with another --region."
        return Condition("address", False, problem, remedy, needed=False)
    told = dict.fromkeys(str(one[4][0]) for one in found)
    words = f"hospitals are told {host}" + ("" if host in told else f", which is {', '.join(told)} here")
    return Condition("address", True, words, needed=False)


def _written(region: RegionFile) -> Condition:
    closed = [path for path in (region.state, region.kit.path / "link") if not _may_write(path)]
    if closed:
        problem = f"{', '.join(map(str, closed))} cannot be written to by this user"
        return Condition("state", False, problem, "Give these folders to the user that runs the region.")
    return Condition("state", True, f"{region.state} may be written to")


def _may_write(path: Path) -> bool:
    there = next(one for one in (path, *path.parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _connection(region: RegionFile) -> Condition:
    try:
        x509.load_pem_x509_certificate(region.ca.read_bytes())
    except ValueError:
        return Condition("connection", False, f"not tried, because of {region.ca.name}", AS_MADE)
    return connection_to(region.coordinator, region.ca)


def _pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
