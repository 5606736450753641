"""`region.toml`: how a region takes part, between the coordinator of all and its own hospitals.

name = "north"
coordinator = "coordinator.example.org:9090"   # of all
hospitals = ["a", "b", "c", "d"]               # of the study, in the order that numbers them
kit = "coordinator"                            # with which it coordinates its own
"""

from dataclasses import dataclass
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.core.settings import Setting, settings_of
from wardround.deployment.provisioning.kit import CoordinatorKit
from wardround.deployment.provisioning.kit_files import read_settings, require_file, require_private
from wardround.deployment.provisioning.site_file import FROM_KIT, check_address, refuse_unusable_name

NAME = "region.toml"


@dataclass(frozen=True)
class RegionFile:
    path: Path  # of the file itself
    name: str
    coordinator: str  # host:port of the coordinator of all
    hospitals: tuple[str, ...]
    kit: CoordinatorKit  # towards its own hospitals; in the file its folder
    ca: Path = Path("ca.pem")
    key: Path = Path("region.key")
    coordinator_key: Path = Path("coordinator.pub")
    state: Path = Path("state")

    @classmethod
    def load(cls, path: Path) -> "RegionFile":
        """`path` is the file, or the folder that holds it. A kit that cannot serve is refused."""
        path = (path / NAME if path.is_dir() else path).absolute()
        known = {name: setting for name, setting in settings_of(cls).items() if name != "path"}
        known["kit"] = Setting("kit", Path, Path("coordinator"))
        values = read_settings(known, path, f"a region's file ({NAME})")
        for name in (values["name"], *values["hospitals"]):
            refuse_unusable_name(name, path.name)
        check_address(values["coordinator"], path.name)
        region = cls(path, **{**values, "kit": CoordinatorKit.load(values["kit"])})
        foreign = [site for site in region.kit.sites if site not in region.hospitals]
        if foreign:
            problem = f"does not name {', '.join(foreign)}, whom this region coordinates"
            raise DeployError(f"{path.name}: hospitals", problem, "Write it as the kit had it.")
        require_file(region.ca, FROM_KIT)
        require_private(region.key, FROM_KIT)
        require_file(region.coordinator_key, FROM_KIT)
        return region
