"""Where a wave of split training stands at the coordinator: one file that is the old one or the new one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from wardround.core.tree import Tree
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.training.trial import RoundRecord, Trial

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class ExchangeState:
    """Between two blocks. `back` are gradients that the parties are still to be sent, sealed: TRIAL/PARTY."""

    step: int = 0
    back: Tree = field(default_factory=dict)
    up: Mapping[str, int] = field(default_factory=dict)  # bytes of the round so far, by trial
    down: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)  # records whose model is scored when the wave ends
    records: int = 0  # bytes of the records that are valid
    done: bool = False

    def next(self, active: Sequence[int], given: Tree, back: Tree, seconds: float) -> "ExchangeState":
        """After a block of the trials that are `active`."""
        up, down, took = dict(self.up), dict(self.down), dict(self.seconds)
        for place in active:
            own = str(place)
            up[own] = up.get(own, 0) + _bytes(given, own)
            down[own] = down.get(own, 0) + _bytes(back, own)
            took[own] = took.get(own, 0.0) + seconds / len(active)
        return replace(self, step=self.step + 1, back=back, up=up, down=down, seconds=took, pending=list(self.pending))

    def written(self, records: int) -> "ExchangeState":
        return replace(self, records=records)

    def finished(self, records: int) -> "ExchangeState":
        return ExchangeState(step=self.step, records=records, done=True)


def round_record(
    state: ExchangeState, place: int, trial: Trial, number: int, loss: float, exchanges: int
) -> tuple[dict[str, Any], ExchangeState]:
    """A round's record as a simulation has it, and the state without what was counted for it."""
    own = str(place)
    record = RoundRecord(
        round=number,
        loss=loss,
        update_norm=None,
        divergence=None,
        change=None,
        sites=tuple(trial.topology.parties),
        dropped=(),
        bytes_down=state.down.get(own, 0),
        bytes_up=state.up.get(own, 0),
        settings={},
        exchanges=exchanges,
    )
    epochs = dict.fromkeys(trial.topology.parties, trial.training.local_epochs)
    place_of = {"trial": place, "arm": trial.arm, "seed": trial.seed}
    told = {**place_of, **vars(record), "epochs": epochs, "seconds": state.seconds.get(own, 0.0)}
    return told, replace(state, up=_less(state.up, own), down=_less(state.down, own), seconds=_less(state.seconds, own))


def write_exchange(path: Path, state: ExchangeState) -> None:
    place = {name: value for name, value in vars(state).items() if name != "back"}
    write_leaves(path, state.back, place)


def read_exchange(path: Path) -> ExchangeState:
    """The beginning, where there is no file."""
    if not path.is_file():
        return ExchangeState()
    back, place = read_leaves(path)
    return ExchangeState(back=back, **place)


def _less(counted: Mapping[str, Number], place: str) -> dict[str, Number]:
    return {key: value for key, value in counted.items() if key != place}


def _bytes(tensors: Tree, place: str) -> int:
    return sum(leaf.numel() for name, leaf in tensors.items() if name.split("/", 1)[0] == place)
