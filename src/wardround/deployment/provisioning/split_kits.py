"""Kits for the sites of a split on disk, made when its coordinator first starts: each site file names its part."""

from collections.abc import Sequence
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.data.split_files.manifest import sites_at
from wardround.deployment.provisioning.kit import FILE, SPLIT, folder_of
from wardround.deployment.provisioning.kit_files import DAYS, HOSTS, PORT
from wardround.deployment.provisioning.provision import provision
from wardround.study.parser import Families
from wardround.study.schema import Study

KITS = "kits"  # beside the sites' files


def kits_of_split(
    study: Study, families: Families, kit: Path | None, hosts: Sequence[str] | None, port: int | None
) -> tuple[Path, bool]:
    """The folder of the kits, and whether they were made now. Without a `kit` they are those beside the split."""
    if kit is not None and (folder_of(kit) / FILE).is_file():
        return _known(kit, hosts, port), False
    if study.data.name != SPLIT:
        problem = "no kit is named, and only the sites of a split on disk are known without one"
        remedy = "Run `wardround provision new` and name its folder: --kit kits/coordinator."
        if kit is not None:
            problem = "there is no coordinator's kit here"
        raise DeployError("--kit" if kit is None else str(kit), problem, remedy)
    folder, manifest, _ = sites_at(study.data.options["path"])
    out = folder / KITS if kit is None else kit
    if (folder_of(out) / FILE).is_file():
        return _known(out, hosts, port), False
    names = [site.name for site in manifest.sites]
    return provision(study, names, out, hosts or HOSTS, PORT if port is None else port, DAYS, families), True


def _known(kit: Path, hosts: Sequence[str] | None, port: int | None) -> Path:
    if hosts or port is not None:
        problem = "the kits are made, and their certificates hold for the host and port that they were made for"
        raise DeployError(str(kit), problem, "Leave --host and --port out, or name a new folder with --kit.")
    return kit
