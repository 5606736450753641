"""The coordinator's part of a deployment: kit, SuperLink, study, run folder."""

from collections.abc import Callable
from pathlib import Path

from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import DeployError
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.coordinating.coordinator import Coordinator, log_results
from wardround.deployment.flat.flat_topology import flat_coordinator
from wardround.deployment.join import alone
from wardround.deployment.provisioning.kit import CoordinatorKit
from wardround.deployment.regional.regional_topology import coordinator_of_regions
from wardround.deployment.regional.regions import regions_of
from wardround.deployment.vertical.vertical_topology import coordinator_of_parties
from wardround.deployment.vertical.vertical_validation import is_vertical
from wardround.protocol.messages import Transport
from wardround.protocol.signing import read_key, read_public_key
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.study.parser import Families
from wardround.study.schema import Study
from wardround.training.validation import need_extras

LOOPBACK = "127.0.0.1"


def deployed_folder(study: Study, out: Path) -> RunFolder:
    """Next to a simulation of the same study, not in its place."""
    return RunFolder(out / f"{study.name}-{study.hash[:8]}-deployed")


def coordinate_study(
    study: Study,
    families: Families,
    kit: CoordinatorKit,
    out: Path,
    watch: Callable[[Step], None] = lambda step: None,
    listen: str = LOOPBACK,
    again: bool = False,
) -> RunFolder:
    """Run a study across the sites of a kit, from the start or from where it stopped."""
    if study.hash != kit.hash:
        problem = f"the kit was made for a study with hash {kit.hash[:12]}, and this one has {study.hash[:12]}"
        raise DeployError(str(kit.path), problem, "Name the study in the kit, or provision anew.")
    sites = [site for site in kit.sites if site not in kit.revoked]
    refuse_undeployable(study, kit.hospitals or sites)
    folder = deployed_folder(study, out)
    if folder.complete and not again:
        finish_up(study, folder)
        return folder
    for arm in study.trained_arms:  # now, and not when all hospitals have answered
        need_extras(arm.name, arm.privacy)
    from wardround.deployment.flower.superlink import SuperLink

    # of revoked sites too: what they sent before may be part of a sum that a restarted coordinator goes on with
    public = {site: read_public_key(kit.public_keys[site], f"{site}.pub") for site in kit.sites}
    coordinators: list[Coordinator] = []

    def notice(line: str) -> None:
        if coordinators:
            coordinators[0].messenger.lines.append(line)

    def run(transport: Transport) -> None:
        key = read_key(kit.signing_key)
        messenger = Messenger(study, families, sites, folder, transport, key, public, again, kit.revoked_now)
        if is_vertical(study):
            coordinator = coordinator_of_parties(messenger)
        elif kit.hospitals:
            regions = regions_of(study, kit.hospitals)
            hospitals = [name for name in kit.hospitals if any(name in regions[site] for site in sites)]
            coordinator = coordinator_of_regions(messenger, hospitals)
        else:
            coordinator = flat_coordinator(messenger)
        coordinators.append(coordinator)
        with reporting_full_disk(folder.path, "Make room, then start it again: it goes on where it stopped."):
            for step in coordinator.run():
                watch(step)

    with alone(kit.path / "link", "another process coordinates with this kit"):
        SuperLink(kit, listen, {site: public[site] for site in sites}, notice).carry(run)
    return folder


def finish_up(study: Study, folder: RunFolder) -> None:
    """Complete a run that died between writing its results and logging its end."""
    if (folder.path / "state").is_dir():
        log_results(study, folder, AuditLog(folder.path / "audit.jsonl"))
        folder.remove_state()
