"""How the next trials of an arm with a seed follow from the scores so far. Nothing else decides, so that a stopped run
that asks again is told the same.

A budget is so many trainings of full length. Successive halving (Jamieson and Talwalkar, AISTATS 2016,
arXiv:1502.07943) spends it on more trials, of which most stop early.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.core import seeds
from wardround.core.extras import needs
from wardround.study.tuning import Bounds, Scale, Space, Values, draw_values, holds

REDUCTION = 3  # of three trials one goes on, for three times as many rounds
RUNGS = 3  # lengths of training, at most
STARTUP = 4  # trials before a model of the scores can say anything


@dataclass(frozen=True)
class Attempt:
    """A trial's training up to a round. `score` is the higher the better, None until it is known or where none is."""

    trial: int
    values: Values
    rounds: int
    score: float | None = None


@dataclass(frozen=True)
class Task:
    """One arm with one seed."""

    space: Space
    written: Values
    first_seed: int  # of the study: draws are the same with all seeds
    seed: int
    budget: int
    rounds: int


@dataclass(frozen=True)
class Method:
    next: Callable[[Task, Sequence[Attempt]], list[Attempt]]  # none: the budget is spent
    trials: Callable[[int, int], int]  # of a budget and the rounds of a training: how many are tried
    rounds: Callable[[int, int], int] = lambda budget, rounds: budget * rounds  # that they take together
    packages: tuple[str, ...] = ()  # whose version decides what is tried
    load: Callable[[], Any] = lambda: None  # what it needs of an extra, so that a missing one is told before a run


def best_first(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Those without a score come last; of equals the earlier trial comes first."""
    return sorted(attempts, key=lambda a: (a.score is None, -(a.score or 0.0), a.trial))


def chosen(task: Task, attempts: Sequence[Attempt]) -> Attempt:
    """The best of those that trained to the end; trial 0 where none has a score."""
    whole = best_first([attempt for attempt in attempts if attempt.rounds == task.rounds])
    return whole[0] if whole[0].score is not None else Attempt(0, task.written, task.rounds)


def _random(task: Task, attempts: Sequence[Attempt]) -> list[Attempt]:
    return [] if attempts else _drawn(task, task.budget, task.rounds)


def _drawn(task: Task, count: int, rounds: int) -> list[Attempt]:
    values = draw_values(task.space, task.first_seed, count, task.written)
    return [Attempt(number, own, rounds) for number, own in enumerate(values)]


def rungs(budget: int, rounds: int) -> list[tuple[int, int]]:
    """How many trials train up to which round: as many as the budget pays for."""
    lengths = sorted({max(1, math.ceil(rounds / REDUCTION**step)) for step in range(RUNGS)})
    plan, start = [(1, rounds)], 1
    while True:
        counts = [max(1, start // REDUCTION**step) for step in range(len(lengths))]
        steps = [after - before for before, after in zip([0, *lengths], lengths, strict=False)]
        if sum(count * step for count, step in zip(counts, steps, strict=True)) > budget * rounds:
            return plan
        plan, start = list(zip(counts, lengths, strict=True)), start + 1


def rounds_of_rungs(budget: int, rounds: int) -> int:
    plan = rungs(budget, rounds)
    before = [0, *(length for _, length in plan)]
    return sum(count * (length - earlier) for (count, length), earlier in zip(plan, before, strict=False))


def _halving(task: Task, attempts: Sequence[Attempt]) -> list[Attempt]:
    plan = rungs(task.budget, task.rounds)
    if not attempts:
        return _drawn(task, *plan[0])
    reached = max(attempt.rounds for attempt in attempts)
    survivors = best_first([attempt for attempt in attempts if attempt.rounds == reached])
    return [
        Attempt(attempt.trial, attempt.values, length)
        for count, length in plan[_place(plan, reached) + 1 :][:1]
        for attempt in sorted(survivors[:count], key=lambda a: a.trial)
    ]


def _place(plan: Sequence[tuple[int, int]], reached: int) -> int:
    return [length for _, length in plan].index(reached)


def _bayesian(task: Task, attempts: Sequence[Attempt]) -> list[Attempt]:
    if not attempts:
        return _drawn(task, min(task.budget, max(STARTUP, task.budget // 4)), task.rounds)
    if len(attempts) >= task.budget:
        return []
    values = _suggested(task, attempts)
    if values in [attempt.values for attempt in attempts]:
        more = draw_values(task.space, task.first_seed, len(attempts) + 1, task.written)
        values = next(own for own in more if own not in [attempt.values for attempt in attempts])
    return [Attempt(len(attempts), values, task.rounds)]


def _optuna() -> Any:
    with needs("tuning", 'tuning: method = "bayesian"', 'write method = "random"'):
        import optuna
    return optuna


def _suggested(task: Task, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """By a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), made anew from the scores each time: it
    has no state that a stopped run could lose."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    number = seeds.number(task.seed, "tuning: suggestion", len(attempts)) % 2**32
    sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=1, multivariate=False)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    scales = {key: _distribution(optuna.distributions, scale) for key, scale in task.space.items()}
    scores = [attempt.score for attempt in attempts if attempt.score is not None]
    for attempt in attempts:
        if all(holds(scale, attempt.values[key]) for key, scale in task.space.items()):  # trial 0 may be outside
            told = {key: _as_told(task.space[key], value) for key, value in attempt.values.items()}
            score = min(scores, default=0.0) if attempt.score is None else attempt.score  # a diverged one is the worst
            study.add_trial(optuna.trial.create_trial(params=told, distributions=scales, value=score))
    suggested = study.ask(scales).params
    return {key: _as_meant(scale, suggested[key]) for key, scale in task.space.items()}


def _distribution(kinds: Any, scale: Scale) -> Any:
    if not isinstance(scale, Bounds):
        return kinds.CategoricalDistribution(range(len(scale.probes)))  # by place: a value may be a list
    kind = kinds.IntDistribution if scale.whole else kinds.FloatDistribution
    return kind(scale.low, scale.high, log=scale.log)


def _as_told(scale: Scale, value: Any) -> Any:
    return value if isinstance(scale, Bounds) else scale.probes.index(value)


def _as_meant(scale: Scale, value: Any) -> Any:
    return scale.rounded(value) if isinstance(scale, Bounds) else scale.probes[value]


METHODS: Mapping[str, Method] = {
    "random": Method(_random, lambda budget, rounds: budget),
    "successive-halving": Method(_halving, lambda budget, rounds: rungs(budget, rounds)[0][0], rounds_of_rungs),
    "bayesian": Method(_bayesian, lambda budget, rounds: budget, packages=("optuna",), load=_optuna),
}
