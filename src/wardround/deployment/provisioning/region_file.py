"""`region.toml`: how a region takes part, between the coordinator of all and its own hospitals.

name = "north"
coordinator = "coordinator.example.org:9090"   # of all
hospitals = ["a", "b", "c", "d"]               # of the study, in the order that numbers them
kit = "coordinator"                            # with which it coordinates its own
"""

from dataclasses import dataclass
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.core.settings import parse_settings, settings_of
from wardround.deployment.provisioning.hospital_file import refuse_unusable_name
from wardround.deployment.provisioning.kit import CoordinatorKit
from wardround.deployment.provisioning.kit_files import as_deploy_errors, read_table, require_file, require_private
from wardround.deployment.provisioning.site_file import FROM_KIT, check_address

NAME = "region.toml"


@dataclass(frozen=True)
class _Keys:
    """The file as it stands. Paths are relative to it."""

    name: str
    coordinator: str
    hospitals: tuple[str, ...]
    ca: Path = Path("ca.pem")
    key: Path = Path("region.key")
    coordinator_key: Path = Path("coordinator.pub")
    kit: Path = Path("coordinator")
    state: Path = Path("state")


@dataclass(frozen=True)
class RegionFile:
    path: Path
    name: str
    coordinator: str  # host:port of the coordinator of all
    hospitals: tuple[str, ...]
    ca: Path
    key: Path
    coordinator_key: Path
    kit: CoordinatorKit  # towards its own hospitals
    state: Path

    @classmethod
    def load(cls, path: Path) -> "RegionFile":
        """`path` is the file, or the folder that holds it. A kit that cannot serve is refused."""
        path = (path / NAME if path.is_dir() else path).absolute()
        raw = read_table(path, f"a region's file ({NAME})")
        with as_deploy_errors():
            keys = _Keys(**parse_settings(settings_of(_Keys), raw, path.name, path.parent))
        for name in (keys.name, *keys.hospitals):
            refuse_unusable_name(name, path.name)
        check_address(keys.coordinator, path.name)
        folder = path.parent
        kit = CoordinatorKit.load(folder / keys.kit)
        foreign = [site for site in kit.sites if site not in keys.hospitals]
        if foreign:
            problem = f"does not name {', '.join(foreign)}, whom this region coordinates"
            raise DeployError(f"{path.name}: hospitals", problem, "Write it as the kit had it.")
        return cls(
            path=path,
            name=keys.name,
            coordinator=keys.coordinator,
            hospitals=keys.hospitals,
            ca=require_file(folder / keys.ca, FROM_KIT),
            key=require_private(folder / keys.key, FROM_KIT),
            coordinator_key=require_file(folder / keys.coordinator_key, FROM_KIT),
            kit=kit,
            state=folder / keys.state,
        )
