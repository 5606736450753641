"""What an engine is: how a group of trials starts, goes on, is saved and is read.

A unit is a list of trials that run together: one for the reference engine, many for the stacked one. An engine's state
is whatever it keeps between two rounds; `leaves` and `restore` turn it into named tensors and back, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from wardround.core.tree import Tree
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Run, Trial

EngineState = TypeVar("EngineState")


@dataclass(frozen=True)
class Engine(Generic[EngineState]):
    start: Callable[[Sequence[Trial]], EngineState]
    rounds: Callable[[Sequence[Trial], EngineState], Iterator[tuple[EngineState, list[RoundRecord]]]]
    leaves: Callable[[EngineState], tuple[int, Tree]]  # rounds done, and everything else
    restore: Callable[[Sequence[Trial], int, Tree], EngineState]
    runs: Callable[[Sequence[Trial], EngineState], list[Run]]
    part: Callable[[Tree, int], Tree] = lambda leaves, number: leaves  # of saved leaves: those of one trial
    joined: Callable[[Sequence[Tree]], Tree] = lambda parts: parts[0]  # and back, of trials that go on together
