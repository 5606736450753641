"""What a saved model is: its network, what its numbers mean, and whose rows it was trained on.

`models/ARM/seed-N.json` holds it beside the weights, so that another study can start from them without the rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from wardround.core.errors import RunError, StudyError
from wardround.core.settings import parse
from wardround.data.prepare import Layout
from wardround.study.parser import plain
from wardround.study.schema import Arm

FORMAT = 1
NOT_OF_THE_NETWORK = ("weights", "keep_head")  # settings that say where training begins, not what is trained
Charges = tuple[tuple[float, float, int], ...]  # rate, noise, steps


@dataclass(frozen=True)
class Generation:
    """One training that shaped a model: whose rows, and what protected them."""

    run: str
    study: str
    hash: str
    arm: str
    seed: int
    sites: tuple[str, ...]  # that trained
    hospitals: bool  # whether each of them is a hospital, so that names tell their patients apart
    data: str  # fingerprint of the rows; empty where they stayed at the hospitals
    example: bool = False  # whether patients had differential privacy
    site: bool = False  # whether hospitals had
    delta: float | None = None
    charges: dict[str, Charges] = field(default_factory=dict)  # by site

    @property
    def title(self) -> str:
        return f"{self.run}, arm {self.arm}"


@dataclass(frozen=True)
class Description:
    kind: str  # of network
    options: dict[str, Any]
    task: dict[str, Any]  # as `Task.to_json` writes it
    inputs: tuple[int, ...]  # shape of a row
    scale: str
    columns: tuple[str, ...] | None = None  # prepared ones, in their order; None: images, or columns of each site's own
    ranges: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # public ones, where columns are scaled by them
    parts: tuple[dict[str, Any], ...] = ()  # of parties that hold different columns
    own_columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by site, where each has its own
    shared: bool = True  # False: every site, or every cluster of them, has a model for itself
    target_scale: tuple[float, ...] = ()  # of a number: its centre and spread in training
    trained: tuple[Generation, ...] = ()  # the last training first

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides which numbers the weights give for a row, as plain data."""
        without = ("own_columns", "shared", "trained")
        return {key: value for key, value in plain(self).items() if key not in without}


def network_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model: without those that were not set, and without where training begins. Plain lists and tables."""
    kept = {key: value for key, value in options.items() if key not in NOT_OF_THE_NETWORK}
    return dict(json.loads(json.dumps(plain(kept))))


def public_ranges(layout: Layout, arm_scale: str) -> dict[str, tuple[float, float]]:
    if arm_scale != "ranges":
        return {}
    return {column.name: column.limits for column in layout.numeric if column.limits is not None}


def describe(
    arm: Arm,
    task: Mapping[str, Any],
    inputs: Sequence[int],
    layout: Layout | None,
    parts: Sequence[Mapping[str, Any]],
    own_columns: Mapping[str, Sequence[str]],
    target_scale: Sequence[float],
    trained: Sequence[Generation],
) -> Description:
    return Description(
        kind=arm.model.name,
        options=network_options(arm.model.options),
        task=dict(json.loads(json.dumps(task))),
        inputs=tuple(inputs),
        scale=arm.preparation.scale,
        columns=None if layout is None else layout.names,
        ranges={} if layout is None else public_ranges(layout, arm.preparation.scale),
        parts=tuple(dict(json.loads(json.dumps(part))) for part in parts),
        own_columns={site: tuple(names) for site, names in own_columns.items()},
        shared=not arm.algorithm.facts.personal,
        target_scale=tuple(target_scale),
        trained=tuple(trained),
    )


def as_text(description: Description) -> bytes:
    return orjson.dumps(
        {"format": FORMAT, **plain(description)}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )


def read_description(path: Path) -> Description:
    """RunError where it is missing, damaged, or of another version."""
    again = "Run that study again with --again."
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise RunError(str(path), "was written by another version of wardround, or changed", again)
        description: Description = parse(Description, content, str(path))
    except FileNotFoundError:
        problem = "is not there: an earlier version of wardround made the run, or its models were removed"
        raise RunError(str(path), problem, again) from None
    except (OSError, ValueError, RecursionError, StudyError):
        raise RunError(str(path), "is damaged, or cannot be read", again) from None
    return description
