"""Where a run stands, as one file that is either the old one or the new one, whenever the process dies.

`state/checkpoint.safetensors` holds the running unit's tensors and, as metadata, which unit it is, how many of its
rounds are done and how long `records.jsonl` was then. Predictions of finished units wait in `state/predictions/`.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save

from wardround.artifacts.folder import write_atomically
from wardround.errors import RunError
from wardround.tree import Tree

SHARE_OF_TIME = 0.01  # checkpoints cost at most this part of a run
SHORTEST_PAUSE = 2.0  # seconds


@dataclass(frozen=True)
class Checkpoint:
    unit: int
    round: int  # of this unit
    records: int  # bytes of records.jsonl that are valid
    leaves: Tree


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    # the file sorts its tensors; their order is kept beside it, because sums over leaves depend on it in the last bit
    order = list(checkpoint.leaves)
    place = {"unit": checkpoint.unit, "round": checkpoint.round, "records": checkpoint.records, "order": order}
    leaves = {name: leaf.detach().contiguous().clone() for name, leaf in checkpoint.leaves.items()}
    (folder / "state").mkdir(exist_ok=True)
    write_atomically(_path(folder), save(leaves, metadata={"place": json.dumps(place)}))


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """None where a run has not come far enough to have one."""
    path = _path(folder)
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            place = json.loads(file.metadata()["place"])
            leaves = {name: file.get_tensor(name) for name in place["order"]}
    except Exception as error:
        raise RunError(str(path), f"is damaged ({type(error).__name__})", "Start anew with --again.") from error
    return Checkpoint(place["unit"], place["round"], place["records"], leaves)


class Pace:
    """When the next checkpoint is due: never so often that saving takes more than its share of the time."""

    def __init__(self) -> None:
        self.next = time.monotonic() + SHORTEST_PAUSE

    @property
    def due(self) -> bool:
        return time.monotonic() >= self.next

    def saved(self, seconds: float) -> None:
        self.next = time.monotonic() + max(SHORTEST_PAUSE, seconds / SHARE_OF_TIME)


def _path(folder: Path) -> Path:
    return folder / "state" / "checkpoint.safetensors"
