"""A family of members that a study can name: models, sources, algorithms or partitions.

Shipped members are in a plain dict. The caller's own are Python objects; those of other packages are found through
entry points, which are imported only when a study names them. Neither can replace a shipped member. Nothing is ever
imported by a dotted string from a study file.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypedDict

from wardround.core.errors import StudyError
from wardround.core.settings import Factory


class Members(TypedDict, total=False):
    """What a caller gives beside a study: members of his own, by the name that the study gives them, and tables."""

    models: Mapping[str, Factory] | None
    sources: Mapping[str, Factory] | None
    algorithms: Mapping[str, Factory] | None
    partitions: Mapping[str, Factory] | None
    tables: Mapping[str, Any] | None  # DataFrames by site, of a study in whose file their marks stand


class Registry(Mapping[str, Factory]):
    """Shipped members, then the caller's own, then those that installed packages offer under `wardround.FAMILY`."""

    def __init__(self, family: str, shipped: Mapping[str, Factory], own: Mapping[str, Factory] | None = None) -> None:
        self.group = f"wardround.{family}"
        if clash := sorted(set(shipped) & set(own or {})):
            raise StudyError(self.group, f"{clash[0]!r} is a shipped name", "Give your own object another name.")
        self.loaded: dict[str, Factory] = {**shipped, **(own or {})}

    @cached_property
    def offered(self) -> dict[str, EntryPoint]:
        """By installed packages. Looked up when a name is not known otherwise, because it takes a while."""
        return {entry.name: entry for entry in entry_points(group=self.group)}

    def __getitem__(self, name: str) -> Factory:
        if name not in self.loaded and name in self.offered:
            self.loaded[name] = self.offered[name].load()
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.loaded or name in self.offered

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded)  # a listing imports no package

    def __len__(self) -> int:
        return len(self.loaded)
