"""Checkpoints of units, replaced atomically so that a crash leaves the old one or the new one.

`state/units/N.safetensors` holds a running unit's tensors and, as metadata, how many of its rounds are done and how
many records it had then; that of a finished unit has no tensors.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from wardround.core.atomic_files import as_os_error, replacing_as
from wardround.core.errors import RunError
from wardround.core.tree import Tree

SHARE_OF_TIME = 0.01  # checkpoints cost at most this part of a run
SHORTEST_PAUSE = 2.0  # seconds


@dataclass(frozen=True)
class Checkpoint:
    round: int = 0
    records: int = 0  # that it had written
    leaves: Tree = field(default_factory=dict)
    done: bool = False


def write_checkpoint(folder: Path, unit: int, checkpoint: Checkpoint) -> None:
    place = {"round": checkpoint.round, "records": checkpoint.records, "done": checkpoint.done}
    write_leaves(_path(folder, unit), checkpoint.leaves, place)


def write_leaves(path: Path, leaves: Tree, place: Mapping[str, Any]) -> None:
    """Tensors with metadata, replaced atomically."""
    # the file sorts its tensors; their order is saved too, because sums over leaves depend on it in the last bit
    metadata = json.dumps({**place, "order": list(leaves)})
    seen: set[int] = set()
    content = {}
    for name, leaf in leaves.items():
        plain = leaf.detach().contiguous()
        place_in_memory = plain.untyped_storage().data_ptr()
        content[name] = plain.clone() if place_in_memory in seen else plain  # the file holds each leaf by itself
        seen.add(place_in_memory)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_as(path) as (_, partial):
            save_file(content, partial, metadata={"place": metadata})
    except SafetensorError as error:
        raise as_os_error(error) or error from None


def read_leaves(path: Path) -> tuple[Tree, dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            place = json.loads(file.metadata()["place"])
            return {name: file.get_tensor(name) for name in place.pop("order")}, place
    except Exception as error:
        raise RunError(str(path), f"is damaged ({type(error).__name__})", "Start anew with --again.") from None


def read_checkpoint(folder: Path, unit: int) -> Checkpoint:
    """The start of the unit if it has none yet."""
    path = _path(folder, unit)
    if not path.is_file():
        return Checkpoint()
    leaves, place = read_leaves(path)
    return Checkpoint(place["round"], place["records"], leaves, place["done"])


def has_begun(folder: Path) -> bool:
    """Whether any unit has a checkpoint to go on from."""
    return any((folder / "state" / "units").glob("*.safetensors"))


class Pace:
    """When the next checkpoint is due: never so often that saving takes more than its share of the time."""

    def __init__(self) -> None:
        self.next = time.monotonic() + SHORTEST_PAUSE

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.next

    def saved(self, seconds: float) -> None:
        self.next = time.monotonic() + max(SHORTEST_PAUSE, seconds / SHARE_OF_TIME)


def _path(folder: Path, unit: int) -> Path:
    return folder / "state" / "units" / f"{unit:05}.safetensors"
