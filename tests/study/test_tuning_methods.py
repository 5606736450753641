"""What each method tries next, from the scores so far."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from wardround.study.tuning import Bounds, Listed, Scale
from wardround.study.tuning_methods import METHODS, REDUCTION, Attempt, Task, chosen, rounds_of_rungs, rungs

SPACE: dict[str, Scale] = {
    "lr": Bounds(0.001, 1.0, log=True),
    "steps": Bounds(1, 9, whole=True),
    "kind": Listed(("a", ("b", 1))),
}
TASK = Task(SPACE, {"lr": 0.1, "steps": 1, "kind": "a"}, first_seed=7, seed=8, budget=12, rounds=27)


def played(method: str, task: Task, score: Callable[[Attempt], float | None]) -> tuple[list[Attempt], int]:
    """All attempts, and how many waves there were."""
    attempts: list[Attempt] = []
    waves = 0
    while asked := METHODS[method].next(task, attempts):
        attempts += [replace(attempt, score=score(attempt)) for attempt in asked]
        waves += 1
        assert waves < 100
    return attempts, waves


def bowl(attempt: Attempt) -> float:
    return float(-abs(math.log10(attempt.values["lr"]) + 1.7) - 0.01 * attempt.values["steps"])


def spent(attempts: list[Attempt]) -> int:
    reached: dict[int, int] = {}
    for attempt in attempts:
        reached[attempt.trial] = max(reached.get(attempt.trial, 0), attempt.rounds)
    return sum(reached.values())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_spends_what_it_says_and_no_more_than_the_budget(method: str) -> None:
    for budget, rounds in [(2, 1), (4, 2), (5, 9), (12, 27), (7, 30)]:
        task = replace(TASK, budget=budget, rounds=rounds)
        attempts, _ = played(method, task, bowl)
        assert spent(attempts) == METHODS[method].rounds(budget, rounds) <= budget * rounds
        assert len({a.trial for a in attempts}) == METHODS[method].trials(budget, rounds)
        assert attempts[0].values == task.written, "trial 0 is the arm as it is written"
        tried = [attempt.values for attempt in {a.trial: a for a in attempts}.values()]
        assert all(values not in tried[:place] for place, values in enumerate(tried))
        best = chosen(task, attempts)
        assert best.rounds == rounds
        assert best.score == max(a.score for a in attempts if a.rounds == rounds and a.score is not None)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_scores_ask_for_the_same_trials(method: str) -> None:
    assert played(method, TASK, bowl) == played(method, TASK, bowl)
    # a run that was stopped anywhere asks again with what it has, and is told the same
    attempts, _ = played(method, TASK, bowl)
    half = attempts[: next((n for n, a in enumerate(attempts) if n and a.rounds != attempts[0].rounds), 4)]
    assert METHODS[method].next(TASK, half) == METHODS[method].next(TASK, list(half))


def test_halving_keeps_the_best_third_and_pays_for_no_more() -> None:
    assert rungs(8, 9) == [(32, 1), (10, 3), (3, 9)]
    assert rounds_of_rungs(8, 9) == 32 + 10 * 2 + 3 * 6 <= 72
    assert rungs(8, 1) == [(8, 1)], "one round cannot be divided"
    attempts, waves = played("successive-halving", replace(TASK, budget=8, rounds=9), bowl)
    assert waves == 3
    for shorter, longer in [(1, 3), (3, 9)]:
        ranked = sorted((a for a in attempts if a.rounds == shorter), key=lambda a: -(a.score or 0.0))
        went_on = {a.trial for a in attempts if a.rounds == longer}
        assert went_on == {a.trial for a in ranked[: len(ranked) // REDUCTION]}


def test_ties_go_to_the_earlier_trial_and_a_diverged_one_is_never_chosen() -> None:
    attempts, _ = played("random", TASK, lambda attempt: 0.5)
    assert chosen(TASK, attempts).trial == 0
    attempts, _ = played("random", TASK, lambda attempt: None if attempt.trial < 3 else 0.5)
    assert chosen(TASK, attempts).trial == 3
    for method in METHODS:
        nothing, _ = played(method, TASK, lambda attempt: None)
        assert chosen(TASK, nothing) == Attempt(0, TASK.written, TASK.rounds)


def test_bayesian_trials_follow_the_scores() -> None:
    """After the first, drawn ones, it looks closer where scores were high than chance would."""
    task = replace(TASK, budget=24)

    def distance(method: str) -> float:
        attempts, _ = played(method, task, bowl)
        return sum(abs(math.log10(a.values["lr"]) + 1.7) for a in attempts[8:]) / 16

    assert distance("bayesian") < 0.75 * distance("random")
    outside = replace(task, written={"lr": 5.0, "steps": 1, "kind": "a"}, budget=6)  # written, and not in the space
    assert len(played("bayesian", outside, bowl)[0]) == 6


def test_a_small_space_is_tried_whole_without_a_repetition() -> None:
    small: dict[str, Any] = {"kind": Listed(("a", "b", "c")), "steps": Bounds(1, 2, whole=True)}
    task = Task(small, {"kind": "a", "steps": 1}, 1, 1, 6, 3)
    for method in ("random", "bayesian"):
        attempts, _ = played(method, task, lambda a: float(a.values["steps"]))
        assert {tuple(a.values.values()) for a in attempts} == {(k, s) for k in "abc" for s in (1, 2)}
