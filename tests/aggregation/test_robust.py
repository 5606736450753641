"""A rule in the place of the mean: what it is given, what it keeps, and what happens when too few updates come."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_federations import after, assert_same_tree, each_round, ragged_sites, trial
from wardround.aggregation import RULES
from wardround.aggregation.robust import BUCKETS, KEPT, MOMENTUM, with_rule
from wardround.algorithms import ALGORITHMS, Algorithm, Arrival
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fednova import fednova
from wardround.core import tree
from wardround.core.tree import State
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.training.intake import Intake
from wardround.training.local import Memory, Outcome
from wardround.training.rounds import start
from wardround.training.trial import assign

NONE = Preaggregation()
SITES = 6


def robust(name: str, before: Preaggregation = NONE, inner: Algorithm | None = None, **options: Any) -> Algorithm:
    return with_rule(inner or fedavg(), RULES[name](**options), before, SITES, seed=7)


def arrivals(rows: list[list[float]], weights: list[float] | None = None, **parts: list[float]) -> list[Arrival]:
    """Updates of two leaves: the first number, and the others."""
    return [
        Arrival(
            number,
            1.0 if weights is None else weights[number],
            {
                "params": {"a": torch.tensor(row[0]), "b": torch.tensor([row[1:]])},
                **{part: {"value": torch.tensor(values[number])} for part, values in parts.items()},
            },
        )
        for number, row in enumerate(rows)
    ]


def first_state(algorithm: Algorithm) -> State:
    return algorithm.init({"a": torch.tensor(0.0), "b": torch.zeros(1, 2)}, SITES)


def moved(algorithm: Algorithm, came: list[Arrival], server: State | None = None) -> tuple[list[float], State]:
    assert algorithm.aggregate_each is not None
    before = first_state(algorithm) if server is None else server
    now = algorithm.aggregate_each(before, came)
    change = tree.sub(now["params"], before["params"])
    return [float(change["a"]), *change["b"].flatten().tolist()], now


ROWS = [[1.0, 2.0, 3.0], [2.0, 1.0, 4.0], [100.0, -100.0, 5.0]]


def test_the_model_changes_by_what_the_rule_makes_of_all_its_leaves() -> None:
    assert moved(robust("median"), arrivals(ROWS))[0] == [2.0, 1.0, 4.0]
    assert moved(robust("krum", bad=0), arrivals([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [9.0, 9.0, 9.0]]))[0] == [0, 0, 1]


def test_each_site_counts_once_except_in_a_mean() -> None:
    """A bad site says itself how many rows it has."""
    weights = [1.0, 1.0, 98.0]
    for name in (name for name in RULES if not RULES[name]().root):
        options: dict[str, Any] = {"bad": 0} if RULES[name]().bad else {}
        options |= {"bound": 1e6} if name == "norm-bound" else {}
        plain, _ = moved(robust(name, **options), arrivals(ROWS))
        heavy, _ = moved(robust(name, **options), arrivals(ROWS, weights))
        assert (plain == heavy) == (not RULES[name]().weighs), name
    assert moved(robust("norm-bound", bound=1e6), arrivals(ROWS, weights))[0] == pytest.approx([98.03, -97.97, 4.97])


def test_of_what_sites_say_beside_the_model_the_median_counts() -> None:
    """FedNova's number of steps: one site that claims a million of them moves nothing."""
    algorithm = robust("median", inner=fednova())
    came = [
        replace(arrival, update={**arrival.update, "work": {"weight": torch.tensor(steps)}})
        for arrival, steps in zip(arrivals(ROWS), (2.0, 3.0, 1e6), strict=True)
    ]
    assert moved(algorithm, came)[0] == [6.0, 3.0, 12.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_no_number_is_left_out_and_is_one_of_the_bad(value: float) -> None:
    rows = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [6.0, 6.0, 6.0], [value, 0.0, 0.0], [5.0, 9.0, -9.0]]
    change, _ = moved(robust("trimmed-mean", bad=2), arrivals(rows))
    assert change == [3.5, 4.0, 1.5]  # of four updates, one more is bad
    said = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [7.0, 7.0, 7.0]]
    assert moved(robust("median"), arrivals(said, loss=[0.1, value, 0.3]))[0] == [4.0, 4.0, 4.0]
    none = [[value] * 3] * 3
    assert moved(robust("median"), arrivals(none))[0] == [0.0, 0.0, 0.0]


def test_momentum_is_that_of_each_site() -> None:
    algorithm = robust("trimmed-mean", Preaggregation(momentum=0.75), bad=0)
    first, server = moved(algorithm, arrivals([[4.0, 0.0, 0.0], [8.0, 0.0, 0.0]]))
    assert first == [1.5, 0.0, 0.0]  # a quarter of 4 and of 8
    second, server = moved(algorithm, arrivals([[0.0, 0.0, 0.0]]), server)  # the second site is away
    assert second == [0.75, 0.0, 0.0]
    assert server[MOMENTUM]["updates"][:, 0].tolist() == [0.75, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_buckets_are_drawn_anew_in_each_round() -> None:
    algorithm = robust("krum", Preaggregation("bucketing", 2), bad=0)
    rng = np.random.default_rng(0)
    came = arrivals(rng.normal(size=(6, 3)).round(2).tolist())
    server, results = first_state(algorithm), []
    for number in range(4):
        assert int(server[BUCKETS]["round"]) == number
        change, server = moved(algorithm, came, {**server, "params": tree.zeros_like(server["params"])})
        results.append(tuple(change))
    assert len(set(results)) > 1
    again = first_state(algorithm)
    assert moved(algorithm, came, again)[0] == list(results[0])


def test_a_rule_that_keeps_something_keeps_it_in_the_servers_state() -> None:
    for name, factory in RULES.items():
        state = first_state(robust(name))
        assert (KEPT in state) == factory().keeps, name
        assert (MOMENTUM in state, BUCKETS in state) == (False, False)


def test_a_round_with_too_few_updates_fails_and_changes_nothing() -> None:
    """A site that has spent its epsilon, or an answer that did not come, is not foreseen in the study."""
    arm = trial(robust("krum", bad=1), ragged_sites())
    run, assignments = start(arm), assign(trial(robust("krum", bad=1)), 0)
    update = {"params": tree.apply(torch.ones_like, run.server["params"])}
    outcome = Outcome(update, Memory(), update["params"], torch.tensor(0.5))
    for count, failed in ((4, "4 updates came, and the rule needs 5"), (5, "")):
        intake = Intake(arm, run, assignments)
        intake.take([(assignment, outcome) for assignment in assignments[:count]])
        server = intake.aggregate(run.server)
        record = intake.record(server, 0)
        assert (record.failed, len(record.sites), len(intake.memories)) == (
            failed,
            0 if failed else 5,
            0 if failed else 5,
        )
        changed = not torch.equal(server["params"]["weight"], run.server["params"]["weight"])
        assert changed == (not failed)


def test_a_mean_bounded_so_high_that_nothing_is_shortened_is_the_mean() -> None:
    plain = after(trial(fedavg()), 3)
    bounded = after(trial(robust("norm-bound", bound=1e6)), 3)
    assert_same_tree(plain.server["params"], bounded.server["params"], atol=1e-12)


def test_sites_bound_their_updates_themselves_where_nobody_else_sees_them() -> None:
    bound, longest = 0.01, 0.0
    arm = replace(trial(fedavg()), bound=bound)
    for _, record in each_round(arm, 3):
        assert record.change is not None
        longest = max(longest, record.change)
    assert 0.2 * bound < longest <= bound


def inverted(arm: Any, options: Mapping[str, Any]) -> float:
    """How well the model fits the honest sites' rows: the share of them that it gets right."""
    run = after(arm, 20)
    right = total = 0
    for site in arm.sites[:-2]:
        logits, _ = arm.model.logits(run.server["params"], {}, site.train.x, None)
        guess = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
        right += int((guess == site.train.y.flatten()).sum())
        total += len(site.train)
    return right / total


def test_two_large_hospitals_with_inverted_labels_ruin_the_mean_and_not_the_rules() -> None:
    sites = ragged_sites(sizes=(30, 30, 30, 30, 30, 30, 30, 200, 200), flipped=2)
    plain = inverted(trial(fedavg(), sites, lr=0.5), {})
    for name in ("median", "trimmed-mean", "geometric-median", "multi-krum", "centred-clipping"):
        rule = with_rule(fedavg(), RULES[name](bad=2), NONE, len(sites))
        assert inverted(trial(rule, sites, lr=0.5), {}) > plain + 0.1, name


def test_every_algorithm_says_whether_a_rule_can_stand_before_it() -> None:
    refusing = {name for name, factory in ALGORITHMS.items() if factory().not_robust}
    assert refusing == {"scaffold", "clustered", "split", "qfedavg", "afl"}
    assert {name for name, factory in ALGORITHMS.items() if factory().needs == "each"} <= refusing
