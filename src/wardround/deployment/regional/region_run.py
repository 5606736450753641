"""A region's side, put together: its SuperLink for its own hospitals, and its connection to the coordinator of all.

`preflight_region` is `wardround region --check`: everything that can be known before it starts, without sending
anything.
"""

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
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.coordinate import LOOPBACK
from wardround.deployment.join import ShowLine, alone, connection_to, trust
from wardround.deployment.provisioning.kit import WARN_BEFORE, CoordinatorKit
from wardround.deployment.provisioning.region_file import RegionFile
from wardround.deployment.regional.region_coordinator import RegionalCoordinator, region_coordinator
from wardround.deployment.regional.region_handler import Region
from wardround.deployment.regional.regions import regions_of
from wardround.deployment.site.answering import SiteWork
from wardround.protocol.messages import Transport
from wardround.protocol.signing import read_key, read_public_key
from wardround.runs.catalog import families as known_families
from wardround.runs.folder import RunFolder
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Study

with needs("deploy", "a study across hospitals"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

UNCHANGED = "Use the kit as it was made, or ask the coordinator of all for a new one."
NO_REGION = "Without hospitals there is no region: ask the coordinator of all for a study without it."


def study_of(kit: CoordinatorKit, families: Families) -> Study:
    study = parse_study(read_study_file(kit.study), families, kit.study.name, kit.study.parent)
    if study.hash != kit.hash:
        problem = f"has hash {study.hash[:12]}, and the kit was made for {kit.hash[:12]}"
        raise DeployError(str(kit.study), problem, "Bring the kit's own study.toml back, or ask for a new kit.")
    return study


def hospitals_of(region: RegionFile, study: Study) -> tuple[str, ...]:
    """Those of the region, in the order that numbers them; refused where study and kit do not fit."""
    refuse_undeployable(study, region.hospitals)
    sites = regions_of(study, region.hospitals).get(region.name, ())
    if set(sites) != set(region.kit.sites):
        problem = f"{region.name!r} has other hospitals in the study than in its kit"
        raise DeployError(str(region.path), problem, "Write `name` and `hospitals` as the kit had them.")
    return sites


def coordinate_region(
    region: RegionFile,
    notice: ShowLine,
    watch: Callable[[Step], None] = lambda step: None,
    listen: str = LOOPBACK,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Take part with this region's hospitals, until `stop` or a KeyboardInterrupt."""
    from wardround.deployment.flower.site_loop import SiteLoop
    from wardround.deployment.flower.superlink import SuperLink

    families, kit = known_families(), region.kit
    study = study_of(kit, families)
    sites = hospitals_of(region, study)
    if not kit.active:
        raise DeployError(str(kit.path), f"all hospitals of {region.name} are revoked", NO_REGION)
    public = {site: read_public_key(kit.public_keys[site], f"{site}.pub") for site in sites}
    coordinator_key = read_public_key(region.coordinator_key.read_bytes(), region.coordinator_key)

    trust(region.ca)

    def run(transport: Transport) -> None:
        def own(folder: RunFolder) -> RegionalCoordinator:
            keys = read_key(kit.signing_key), public
            return region_coordinator(
                Messenger(study, families, sites, folder, transport, *keys, revoked=kit.revoked_now)
            )

        key = read_key(region.key)
        topology = Region(region.state, study, own, notice, watch)
        work = SiteWork(region.name, region.state, topology, key, coordinator_key, notice)
        SiteLoop(
            address=region.coordinator,
            ca=region.ca,
            key=key.private,
            answer=work.answer,
            number_file=region.state / "connection",
            notice=notice,
            stop=stop,
        ).run()

    with alone(region.state):
        SuperLink(kit, listen, public, notice).carry(run)


def preflight_region(region: RegionFile, listen: str) -> list[Condition]:
    """Study, hospitals, keys, certificates, where its hospitals connect, where it writes, and the way to the top."""
    return [
        _condition("study", lambda: _study(region)),
        _hospitals(region),
        _condition("keys", lambda: _keys(region)),
        _validity("certificate of the top", region.ca),
        _condition("certificate", lambda: _own_certificate(region.kit)),
        _port(region, listen),
        _address(region),
        _state(region),
        _connection(region),
    ]


def _condition(name: str, check: Callable[[], str | Condition]) -> Condition:
    try:
        outcome = check()
    except WardroundError as error:
        return Condition(name, False, f"{error.where}: {error.problem}", error.remedy)
    return outcome if isinstance(outcome, Condition) else Condition(name, True, outcome)


def _study(region: RegionFile) -> str:
    study = study_of(region.kit, known_families())
    sites = hospitals_of(region, study)
    return f"{study.name} ({study.hash[:12]}), {region.name} with {', '.join(sites)}"


def _hospitals(region: RegionFile) -> Condition:
    kit = region.kit
    if not kit.active:
        return Condition("hospitals", False, f"all are revoked: {', '.join(kit.sites)}", NO_REGION)
    revoked = f"; revoked: {', '.join(kit.revoked)}" if kit.revoked else ""
    return Condition("hospitals", True, f"{', '.join(kit.active)}{revoked}")


def _keys(region: RegionFile) -> str:
    """All must be readable, and the region's public key must belong to its private one: the coordinator has a copy."""
    own, public = read_key(region.key), region.key.with_suffix(".pub")
    read_key(region.kit.signing_key)
    read_public_key(region.coordinator_key.read_bytes(), region.coordinator_key)
    for site, content in region.kit.public_keys.items():
        read_public_key(content, f"{site}.pub")
    if public.is_file() and read_public_key(public.read_bytes(), public).public != own.private.public_key():
        raise DeployError(str(region.key), f"does not belong to {public.name}", UNCHANGED)
    return f"its own, the coordinator's and those of {len(region.kit.sites)} hospitals"


def _own_certificate(kit: CoordinatorKit) -> Condition:
    try:
        authority, own = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (kit.ca, kit.certificate))
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        problem = f"{kit.certificate} is not of this kit's authority: no hospital would connect"
        return Condition("certificate", False, problem, UNCHANGED)
    if own.public_key() != read_key(kit.key).private.public_key():
        return Condition("certificate", False, f"{kit.key} does not belong to {kit.certificate}", UNCHANGED)
    return _validity("certificate", kit.certificate, f" for {', '.join(kit.hosts)}")


def _validity(name: str, path: Path, hosts: str = "") -> Condition:
    try:
        until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ValueError:
        return Condition(name, False, f"{path} is not a certificate in PEM", UNCHANGED)
    left = (until - datetime.now(UTC)).days
    if until <= datetime.now(UTC):
        return Condition(name, False, f"expired on {until:%Y-%m-%d}", "Ask for new kits.")
    text = f"valid until {until:%Y-%m-%d}{hosts}"
    if left < WARN_BEFORE:
        return Condition(name, False, f"{text}: {left} days are left", "Ask for new kits in time.", needed=False)
    return Condition(name, True, text)


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


def _address(region: RegionFile) -> Condition:
    """Not required: hospitals may know names that this machine does not."""
    host = region.kit.hosts[0]
    try:
        known = socket.getaddrinfo(host, region.kit.port, type=socket.SOCK_STREAM)
    except OSError as error:
        problem = f"{host}, which hospitals connect to, is not known here ({error.strerror or type(error).__name__})"
        remedy = "Hospitals must know it: enter it in their name service, or ask for kits with another --region."
        return Condition("address", False, problem, remedy, needed=False)
    addresses = dict.fromkeys(str(entry[4][0]) for entry in known)
    text = f"hospitals connect to {host}" + ("" if host in addresses else f", which is {', '.join(addresses)} here")
    return Condition("address", True, text, needed=False)


def _state(region: RegionFile) -> Condition:
    closed = [path for path in (region.state, region.kit.path / "link") if not _may_write(path)]
    if closed:
        problem = f"{', '.join(map(str, closed))} cannot be written to by this user"
        return Condition("state", False, problem, "Give these folders to the user that runs the region.")
    return Condition("state", True, f"{region.state} may be written to")


def _may_write(path: Path) -> bool:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _connection(region: RegionFile) -> Condition:
    try:
        x509.load_pem_x509_certificate(region.ca.read_bytes())
    except ValueError:
        return Condition("connection", False, f"not tried, because of {region.ca.name}", UNCHANGED)
    return connection_to(region.coordinator, region.ca)
