"""What a registry shows of its bundles, from their own files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from wardround.bundles.bundle import MISFITS
from wardround.bundles.registry.bundle_differences import headline
from wardround.bundles.registry.registry import Registry
from wardround.bundles.registry.versions import Version
from wardround.bundles.sealed_files import ABOUT, read_sealed


@dataclass(frozen=True)
class Row:
    """One version. What stands in its bundle.json is None where that file is not the one that was added, or does not
    say it."""

    name: str
    version: int
    in_use: bool
    id: str
    added: str
    as_added: bool  # every file
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
        _row(version, entry.in_use == version.version, registry.is_as_added(version))
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


def _row(version: Version, in_use: bool, as_added: bool) -> Row:
    base = Row(version.name, version.version, in_use, version.id, version.added, as_added)
    try:
        about = _about(version)
        if about is None:
            return replace(base, as_added=False)
        metric, mean, interval = headline(about) or (None, None, None)
        return replace(
            base,
            made=_text(about["made"]),
            study=_text(about["study"]["name"]),
            arm=_text(about["arm"]),
            site=_text(about["site"]),
            seed=int(about["seed"]),
            metric=metric,
            mean=mean,
            interval=interval,
        )
    except MISFITS:  # one bundle that another version let in must not hide the others
        return base


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError("this is not a text")
    return told


def _about(version: Version) -> Mapping[str, Any] | None:
    path = version.path / ABOUT
    if path.is_symlink() or not path.is_file():
        return None
    content = path.read_bytes()
    if sha256(content).hexdigest() != version.files.get(ABOUT):
        return None
    told: Mapping[str, Any] = json.loads(content)
    return told
