"""Environments as `pip install 'wardround[EXTRA]'` makes them, without installing anything.

Each is a virtual environment of its own whose packages are links to those of this one: what wardround and one extra
ask for in pyproject.toml, and what that asks for in turn. Nothing else can be imported in it, and `importlib.metadata`
finds nothing else either. It is made in a fraction of a second.
"""

import sys
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_DEVELOPERS = ("dev", "all")
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - set(FOR_DEVELOPERS))
NOT_IN_ALL = ("mlflow", "tensorboard")  # heavy, and only for whoever has such a tool


def requirements(extra: str | None) -> list[str]:
    """What pyproject.toml asks for, with one extra or with none."""
    return [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else ())]


def is_here(extra: str) -> bool:
    """Whether this environment has it, so that others can be made with it: always, but for those outside `all`."""
    try:
        return bool(installed_with(requirements(extra)))
    except PackageNotFoundError:
        if extra in NOT_IN_ALL:
            return False
        raise


def installed_with(wanted: Iterable[str]) -> list[Distribution]:
    """The distributions that these requirements bring, and those that they need themselves."""
    distributions: dict[tuple[str, str], Distribution] = {}
    left = [(Requirement(text), "") for text in wanted]
    while left:
        requirement, of = left.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of}):
            continue
        for extra in ("", *requirement.extras):
            place = (canonicalize_name(requirement.name), extra)
            if place not in distributions:
                distributions[place] = distribution(requirement.name)
                left += [(Requirement(text), extra) for text in distributions[place].requires or ()]
    return list({name: package for (name, _), package in distributions.items()}.values())


def make_environment(folder: Path, extra: str | None) -> Path:
    """A virtual environment with wardround and one extra, or none. Returns its Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for package in installed_with(requirements(extra)):
        for name in top_level_names(package):
            (packages / name).symlink_to(Path(str(package.locate_file(name))))
    (packages / "wardround").symlink_to(ROOT / "src" / "wardround")
    described = packages / f"wardround-{PROJECT['version']}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(metadata(), encoding="utf-8")
    return folder / "bin" / "python"


def top_level_names(package: Distribution) -> set[str]:
    """Folders and files that it puts into `site-packages`."""
    recorded = (package.read_text("RECORD") or "").splitlines()  # `one.files` takes a second for torch
    return {line.split("/")[0].split(",")[0] for line in recorded} - {"..", "__pycache__"}


def metadata() -> str:
    """As the installed package says of itself: importlib.metadata reads it for versions and extras."""
    lines = ["Metadata-Version: 2.4", f"Name: {PROJECT['name']}", f"Version: {PROJECT['version']}"]
    lines += [f"Provides-Extra: {extra}" for extra in PROJECT["optional-dependencies"]]
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in required())]) + "\n"


def required() -> list[str]:
    """As `importlib.metadata.requires` gives it."""
    of_extras = PROJECT["optional-dependencies"].items()
    return [
        *PROJECT["dependencies"],
        *(f'{text}; extra == "{extra}"' for extra, wanted in of_extras for text in wanted),
    ]
