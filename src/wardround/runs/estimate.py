"""How long a study will train: a few rounds of each kind of arm are run and scaled up. Nothing is kept of them."""

import time
from dataclasses import dataclass
from statistics import median

from wardround.runs.plan import Plan
from wardround.runs.units import Unit, cut, engine_named, total_rounds

ENOUGH_ROUNDS = 4
ENOUGH_SECONDS = 10.0  # of one kind; one round is run in any case


@dataclass(frozen=True)
class Kind:
    """Arms that do the same amount of work in a round."""

    title: str
    seconds: float  # of one round of one unit
    rounds: int  # over all units of this kind; a stack's trials take theirs together
    measured: int  # rounds

    @property
    def total(self) -> float:
        return self.seconds * self.rounds


def estimate(plan: Plan, engine: str = "auto") -> list[Kind]:
    """Training alone: predictions, figures and the report come on top."""
    kinds: dict[str, list[Unit]] = {}
    for unit in cut(plan, engine):
        arm = plan.study.arm(unit.members[0][0])
        kinds.setdefault(repr((unit.engine, arm.family, arm.model, arm.training, len(unit.members))), []).append(unit)
    return [_measured(plan, units) for units in kinds.values()]


def _measured(plan: Plan, units: list[Unit]) -> Kind:
    trials, engine = units[0].trials(plan), engine_named(units[0].engine)
    seconds: list[float] = []
    began = time.perf_counter()
    for _ in engine.rounds(trials, engine.start(trials)):
        seconds.append(time.perf_counter() - began)
        if len(seconds) >= ENOUGH_ROUNDS or sum(seconds) >= ENOUGH_SECONDS:
            break
        began = time.perf_counter()
    # the first round also fetches rows and warms up, which later ones need not
    per_round = median(seconds[1:] or seconds)
    rounds = total_rounds(plan, units) // len(units[0].members)
    return Kind(units[0].title, per_round, rounds, len(seconds))
