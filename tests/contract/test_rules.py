"""What every aggregation rule promises, with every algorithm that can do with one. A new rule is tested here by
standing in RULES.
"""

import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.representatives import represented
from tests.small_federations import (
    after,
    assert_same,
    assert_same_state,
    assert_same_tree,
    each_round,
    ragged_sites,
    trial,
)
from wardround.aggregation import RULES
from wardround.aggregation.mixing import fewest
from wardround.aggregation.robust import with_rule
from wardround.algorithms import ALGORITHMS, Arrival
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.hierarchical import hierarchical
from wardround.algorithms.regions import Regions
from wardround.core.tree import State
from wardround.engines.serial import SERIAL
from wardround.engines.stacked.stacked import STACKED
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import Stragglers
from wardround.training.rounds import start
from wardround.training.trial import Trial

SIZES = (5, 23, 8, 14, 11, 19, 9, 16, 12, 7, 21, 6, 10, 13, 18, 15, 17, 20)
BEFORE = [Preaggregation(), Preaggregation("bucketing", 2), Preaggregation("nearest-neighbours", momentum=0.5)]
ROBUST = [name for name, factory in ALGORITHMS.items() if factory().federated and not factory().not_robust]
NAMES = [name for name in RULES if not RULES[name]().is_mean and not RULES[name]().root]
EVERY = list(itertools.product(NAMES, ROBUST, range(len(BEFORE))))
# each rule with one algorithm, each algorithm with some rule, and everything before it with some of both
OFTEN = [
    (rule, algorithm, number % len(BEFORE))
    for number, (rule, algorithm) in enumerate(itertools.zip_longest(NAMES, ROBUST, fillvalue="fedavg"))
    if rule in NAMES
]
COMBINATIONS = pytest.mark.parametrize(("rule", "algorithm", "before"), represented(EVERY, by=OFTEN))


def a_trial(rule: str, algorithm: str, before: int, seed: int = 7, **training: Any) -> Trial:
    sites = training.pop("sites", None) or ragged_sites(sizes=SIZES)
    robust = with_rule(ALGORITHMS[algorithm](), RULES[rule](), BEFORE[before], len(sites), seed)
    return trial(robust, sites, seed=seed, **{"rounds": 5, "share": 0.8, "lr": 0.3, **training})


@COMBINATIONS
def test_the_engines_agree(rule: str, algorithm: str, before: int) -> None:
    trials = [a_trial(rule, algorithm, before, seed) for seed in (7, 8)]
    *_, (last, _) = STACKED.rounds(trials, STACKED.start(trials))
    for arm, run in zip(trials, STACKED.runs(trials, last), strict=True):
        assert_same_state(after(arm, 5).server, run.server, atol=1e-9)


@COMBINATIONS
def test_a_run_that_is_saved_and_loaded_carries_on_to_the_same_bits(rule: str, algorithm: str, before: int) -> None:
    sites = ragged_sites(sizes=SIZES, dtype=torch.float32)
    arm = a_trial(rule, algorithm, before, sites=sites, precision="float32")
    run = after(arm, 2)
    done, leaves = SERIAL.leaves(run)
    content = safetensors.torch.save({key: leaf.clone() for key, leaf in leaves.items()})
    loaded = SERIAL.restore([arm], done, safetensors.torch.load(content))
    assert_same(loaded, run)
    assert_same(after(arm, 5, loaded), after(arm, 5))


@COMBINATIONS
def test_a_rule_writes_into_nothing_that_it_is_given(rule: str, algorithm: str, before: int) -> None:
    arm = a_trial(rule, algorithm, before)
    aggregate = arm.algorithm.aggregate_each
    assert aggregate is not None

    def careful(server: State, came: Sequence[Arrival]) -> State:
        copies = deepcopy((server, came))
        result = aggregate(server, came)
        assert_same_state(server, copies[0])
        for arrival, copy in zip(came, copies[1], strict=True):
            assert_same_state(arrival.update, copy.update)
        return result

    guarded = replace(arm, algorithm=replace(arm.algorithm, aggregate_each=careful))
    assert_same(after(guarded, 3), after(arm, 3))


@pytest.mark.parametrize("rule", NAMES)
def test_a_rule_learns_where_all_sites_are_honest(rule: str) -> None:
    arm = a_trial(rule, "fedavg", 0, share=1.0, rounds=10)
    losses = [record.loss for _, record in each_round(arm, 10)]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_declares_what_it_needs(rule: str) -> None:
    facts = RULES[rule]()
    assert facts.citation or facts.is_mean
    most = [facts.most_bad(count) for count in range(60)]
    assert most == sorted(most)
    assert facts.root or all(2 * bad < count for count, bad in enumerate(most) if bad)
    for bad in range(1, max(most)):
        assert most[fewest(facts, Preaggregation(), bad)] >= bad


@pytest.mark.parametrize("rule", [name for name in NAMES if not RULES[name]().keeps])
def test_one_region_is_the_flat_federation_and_engines_agree_on_several(rule: str) -> None:
    flat = a_trial(rule, "fedavg", 0, share=1.0)
    one = replace(flat, algorithm=hierarchical(flat.algorithm, Regions(("all",), (0,) * len(SIZES), 2)))
    assert_same_tree(after(flat, 4).server["params"], after(one, 4).server["params"])
    apart = Regions(("a", "b"), tuple(number % 3 // 2 for number in range(len(SIZES))), 2)
    robust = with_rule(
        fedavg(), RULES[rule](**({"bad": 0} if flat.algorithm.fewest > 1 else {})), BEFORE[0], len(SIZES)
    )
    trials = [replace(a_trial(rule, "fedavg", 0, seed), algorithm=hierarchical(robust, apart)) for seed in (7, 8)]
    *_, (last, records) = STACKED.rounds(trials, STACKED.start(trials))
    for arm, run, record in zip(trials, STACKED.runs(trials, last), records, strict=True):
        *_, (serial, ours) = each_round(arm, 5)
        assert_same_state(serial.server, run.server, atol=1e-9)
        assert (ours.sites, ours.region_bytes) == (record.sites, record.region_bytes)


def test_a_region_with_too_few_updates_keeps_its_model_and_says_so() -> None:
    """Its round has failed, and the other region's has not."""
    robust = with_rule(fedavg(), RULES["krum"](bad=1), BEFORE[0], 9)
    arm = trial(
        hierarchical(robust, Regions(("a", "b"), (0, 0, 0, 0, 1, 1, 1, 1, 1), 1)), ragged_sites(sizes=SIZES[:9])
    )
    [(run, record)] = each_round(arm, 1)
    assert record.failed == "a: 4 updates came, and the rule needs 5"
    assert record.sites == tuple(f"site-{number}" for number in range(5, 10))
    assert_same_tree(run.server["region a"], start(arm).server["params"])
    assert_same_tree(run.server["params"], run.server["region b"])


def test_stragglers_that_are_dropped_are_not_asked() -> None:
    arm = a_trial("median", "fedprox", 0, share=1.0, stragglers=Stragglers(0.4, "drop"))
    assert [len(record.sites) for _, record in each_round(arm, 3)] == [11, 11, 11]
