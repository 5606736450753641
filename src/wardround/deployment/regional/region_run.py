"""A region's side, put together: its SuperLink for its own hospitals, and its connection to the coordinator of all."""

from collections.abc import Callable, Mapping

from wardround.core.errors import DeployError
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.deployment.common.messaging import Step
from wardround.deployment.coordinate import LOOPBACK
from wardround.deployment.join import ShowLine, alone, trust
from wardround.deployment.provisioning.kit import CoordinatorKit, read_keys
from wardround.deployment.provisioning.region_file import RegionFile
from wardround.deployment.regional.region_handler import OwnSites, RegionWork
from wardround.deployment.regional.regions import regions_of
from wardround.protocol.messages import Transport
from wardround.protocol.signing import read_key, read_public_key
from wardround.runs.catalog import families as known_families
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Study


def study_of(kit: CoordinatorKit, families: Families) -> Study:
    study = parse_study(read_study_file(kit.study), families, kit.study.name, kit.study.parent)
    if study.hash != kit.hash:
        problem = f"has hash {study.hash[:12]}, and the kit was made for {kit.hash[:12]}"
        raise DeployError(str(kit.study), problem, "Bring the kit's own study.toml back, or ask for a new kit.")
    return study


def hospitals_of(region: RegionFile, study: Study, families: Families) -> tuple[str, ...]:
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
    sites = hospitals_of(region, study, families)
    if not kit.active:
        remedy = "Without hospitals there is no region: ask the coordinator of all for a study without it."
        raise DeployError(str(kit.path), f"all hospitals of {region.name} are revoked", remedy)
    public = {site: read_public_key(kit.sites[site], f"{site}.pub") for site in sites}
    coordinator_key = read_public_key(region.coordinator_key.read_bytes(), region.coordinator_key)

    trust(region.ca)

    def revoked() -> Mapping[str, str]:
        return read_keys(kit.path).revoked

    def run(transport: Transport) -> None:
        own = OwnSites(sites, transport, read_key(kit.signing_key), public, revoked)
        key = read_key(region.key)
        work = RegionWork(region.name, region.state, study, families, own, key, coordinator_key, notice, watch)
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
        SuperLink(
            host=listen,
            port=kit.port,
            ca=kit.ca,
            certificate=kit.certificate,
            key=kit.key,
            sites={site: key.public for site, key in public.items()},
            folder=kit.path / "link",
            connections=kit.connections,
            connections_per_address=kit.connections_per_address,
            revoked=revoked,
            notice=notice,
        ).carry(run)
