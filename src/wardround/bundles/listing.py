"""What a registry shows of its bundles, from their own files. Weights are not read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from wardround.bundles.differences import headline
from wardround.bundles.files import ABOUT, read_sealed
from wardround.bundles.registry import Registry
from wardround.bundles.versions import Version


@dataclass(frozen=True)
class Row:
    """One version. What stands in its bundle.json is None where that file is not the one that was added."""

    name: str
    version: int
    in_use: bool
    id: str
    added: str
    as_added: bool  # bundle.json alone: `verify` looks at every file
    made: str | None = None
    study: str | None = None
    arm: str | None = None
    site: str | None = None
    seed: int | None = None
    metric: str | None = None
    mean: float | None = None
    interval: tuple[float, float] | None = None


def listing(registry: Registry) -> tuple[Row, ...]:
    """By name and version."""
    return tuple(
        _row(version, entry.in_use == version.version)
        for entry in registry.entries().values()
        for version in entry.versions
    )


def details(registry: Registry, name: str) -> dict[str, Any]:
    """All about one bundle, which must be as it was added."""
    version = registry.find(name)
    registry.refuse_changed(version)
    about, _ = read_sealed(version.path)
    entry = registry.entries()[version.name]
    return {
        "name": version.name,
        "version": version.version,
        "versions": len(entry.versions),
        "in_use": entry.in_use,
        "added": version.added,
        "path": version.path,
        "files": dict(version.files),
        "history": registry.history(version.name),
        "bundle": about,
        "card": (version.path / "card.md").read_text(encoding="utf-8"),
    }


def _row(version: Version, in_use: bool) -> Row:
    about = _about(version)
    base = (version.name, version.version, in_use, version.id, version.added)
    if about is None:
        return Row(*base, as_added=False)
    figure = headline(about) or (None, None, None)
    return Row(
        *base,
        as_added=True,
        made=about["made"],
        study=about["study"]["name"],
        arm=about["arm"],
        site=about["site"],
        seed=about["seed"],
        metric=figure[0],
        mean=figure[1],
        interval=figure[2],
    )


def _about(version: Version) -> Mapping[str, Any] | None:
    path = version.path / ABOUT
    if path.is_symlink() or not path.is_file():
        return None
    content = path.read_bytes()
    if sha256(content).hexdigest() != version.files.get(ABOUT):
        return None
    told: Mapping[str, Any] = json.loads(content)
    return told
