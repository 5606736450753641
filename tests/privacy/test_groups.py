"""Groups of sites with a secure sum each: how they are drawn, what the rule between them is given, what is refused."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.small_federations import after, assert_same_tree, each_round, ragged_sites, trial
from wardround.aggregation import RULES
from wardround.aggregation.robust import with_rule
from wardround.algorithms.algorithm import Arrival
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.core.tree import State
from wardround.engines import serial
from wardround.privacy.secure_sum.groups import draw_groups, refuse_small_groups
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan, rehearse
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import Privacy, SecureSum
from wardround.training.intake import weight_of
from wardround.training.local import Outcome
from wardround.training.rounds import rounds, start
from wardround.training.trial import Run, Trial, assign

SIZES = (5, 23, 8, 14, 11, 19, 9, 16, 12, 7)
SECURE = Privacy(secure_sum=SecureSum())


def grouped(rule: str, count: int = 3, seed: int = 1, **training: Any) -> Trial:
    sites = ragged_sites(sizes=SIZES)
    robust = with_rule(fedavg(), RULES[rule](), Preaggregation(groups=count), count)
    groups = draw_groups(seed, [site.name for site in sites], count)
    return replace(trial(robust, sites, **training), privacy=SECURE, groups=groups)


def test_groups_differ_by_one_site_and_depend_on_the_seed_alone() -> None:
    for sites in range(6, 40):
        for count in range(2, sites // 3 + 1):
            sizes = Counter(draw_groups(sites, [f"s{number}" for number in range(sites)], count))
            assert sorted(sizes) == list(range(count))
            assert max(sizes.values()) - min(sizes.values()) <= 1
            assert min(sizes.values()) >= 3
    names = [f"s{number}" for number in range(12)]
    assert draw_groups(5, names, 3) == draw_groups(5, names, 3)
    drawn = {draw_groups(seed, names, 3) for seed in range(20)}
    assert len(drawn) == 20


def test_groups_of_fewer_than_three_are_refused() -> None:
    refuse_small_groups(9, 3, "here")
    with pytest.raises(StudyError) as refused:
        refuse_small_groups(11, 4, "here")
    assert "4 groups of 11 sites have 2 in the smallest" in refused.value.problem
    assert "at most 3" in refused.value.remedy


@pytest.mark.parametrize("rule", ["median", "geometric-median", "centred-clipping", "trimmed-mean"])
def test_the_rule_is_between_the_means_of_groups_in_the_clear(rule: str) -> None:
    """Up to what fixed point leaves out, over rounds."""
    arm = grouped(rule)
    secure = after(arm, 3)
    in_clear = start(arm)
    for number in range(3):
        assignments = assign(arm, number)
        outcomes = list(serial.train_sites(arm, in_clear, assignments))
        came = [mean_of_group(arm, group, outcomes) for group in range(3)]
        assert arm.algorithm.aggregate_each is not None
        memories = {assignment.site.name: outcome.memory for assignment, outcome in outcomes}
        in_clear = Run(number + 1, arm.algorithm.aggregate_each(in_clear.server, came), memories)
    assert_same_tree(secure.server["params"], in_clear.server["params"], atol=1e-7)


def mean_of_group(arm: Trial, group: int, outcomes: list[tuple[Any, Outcome]]) -> Arrival:
    total: State | None = None
    weight = 0.0
    for assignment, outcome in outcomes:
        if arm.groups[assignment.number] == group:
            own = weight_of(arm, assignment.site)
            weighted = tree.scale_state(outcome.update, own)
            total = weighted if total is None else tree.add_into(total, weighted)
            weight += own
    assert total is not None
    return Arrival(group, weight, tree.scale_state(total, 1 / weight))


def test_a_bad_site_spoils_its_group_and_no_other() -> None:
    arm = grouped("median", lr=0.3)
    bad = 4

    def poisoned(trial: Trial, run: Run, assignments: Any) -> Any:
        for assignment, outcome in serial.train_sites(trial, run, assignments):
            if assignment.number == bad:
                away = {"params": tree.apply(lambda leaf: torch.full_like(leaf, 100.0), outcome.update["params"])}
                yield assignment, replace(outcome, update=away)
            else:
                yield assignment, outcome

    once = replace(arm, training=replace(arm.training, rounds=1))
    [(_, record)] = rounds(start(once), once, poisoned)
    assert record.change is not None
    assert record.change < 5  # the median of three groups' means is that of an honest one, in each number
    assert not record.failed


def test_a_round_tells_of_groups_what_a_secure_sum_tells() -> None:
    for _, record in each_round(grouped("median"), 2):
        assert (record.loss, record.update_norm, record.divergence) == (None, None, None)
        assert sorted(record.sites) == sorted(f"site-{number}" for number in range(1, 11))
        assert record.bytes_up == 10 * 8 * 5  # four numbers and a weight


def test_a_group_whose_sum_fails_is_left_out_and_the_rule_goes_on_if_it_can() -> None:
    """Sites that are too late for their sum: theirs stays closed, and their memories stay as they were."""
    arm = grouped("median", seed=3)

    def without(gone: set[int]) -> tuple[Run, Any]:
        def late(trial: Trial, run: Run, assignments: Any) -> Any:
            here = [a for a in assignments if trial.groups[a.number] not in gone or a.number == keeps[0]]
            yield from serial.train_sites(trial, run, here)

        keeps = [number for number in range(len(SIZES)) if arm.groups[number] in gone]
        once = replace(arm, training=replace(arm.training, rounds=1))
        [(run, record)] = rounds(start(once), once, late)
        return run, record

    run, record = without({0})
    assert record.failed.startswith("group 1: ")
    assert "2 updates came, and the rule needs 3" in record.failed
    assert record.sites == ()
    assert_same_tree(run.server["params"], start(arm).server["params"])
    arm = replace(grouped("median", seed=3), algorithm=with_rule(fedavg(), RULES["median"](bad=0), Preaggregation(), 3))
    run, record = without({0})
    assert record.failed.startswith("group 1: ")
    assert {arm.groups[int(name.split("-")[1]) - 1] for name in record.sites} == {1, 2}
    assert not torch.equal(run.server["params"]["weight"], start(arm).server["params"]["weight"])


def study(**changes: Any) -> dict[str, Any]:
    data = {"source": "synthetic", "count": 9, "iid": True, "features": 4, "classes": 2, "largest": 60}
    blocks = {
        "aggregation": {"rule": "median", "groups": 3},
        "privacy": {"secure_sum": {}},
        "arms": [{"algorithm": "fedavg"}],
    }
    return {"name": "groups", "data": data, "evaluation": {"seeds": {"count": 2}}, **blocks, **changes}


def test_all_arms_and_seeds_have_the_same_groups() -> None:
    """With other groups in another arm, the first sums of the two would differ by single updates."""
    arms = [
        {"algorithm": "fedavg", "aggregation.rule": ["mean", "median", "geometric-median"]},
        {"algorithm": "fednova"},
    ]
    plan = load_plan(*load_study(study(arms=arms)))
    rehearse(plan)
    groups = {(arm.name, seed): plan.trial(arm, seed).groups for arm in plan.study.arms for seed in (42, 43)}
    assert len(set(groups.values()) - {()}) == 1
    assert {name for (name, _), of_site in groups.items() if not of_site} == {"fedavg[rule=mean]"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "in the clear": ({"privacy": {}}, "are for secure sums"),
    "a mean": ({"aggregation": {"rule": "mean", "groups": 3}}, "nothing is done before a mean"),
    "groups of two": ({"aggregation": {"rule": "median", "groups": 4}}, "have 2 in the smallest"),
    "more bad sites than groups withstand": (
        {"aggregation": {"rule": "median", "groups": 3, "bad": 2}},
        "median withstands 1 bad of 3 groups, each of which a bad site spoils; to withstand 2 it needs 5",
    ),
    "other groups in another arm": (
        {"arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "aggregation.groups": 2, "aggregation.bad": 0}]},
        "fedavg has 3 of them",
    ),
    "other sites in another arm": (
        {"arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "train_at": [f"site-0{n}" for n in range(1, 10)]}]},
        "other sites train than in fedavg",
    ),
    "rounds with few of a group": ({"training": {"share": 0.4}}, "in some round of group"),
    "regions": (
        {"topology": {"kind": "hierarchical", "regions": {"a": ["site-0[1-4]"], "b": ["site-0[5-9]"]}}},
        "regions have a secure sum each already",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_groups_cannot_be_is_refused(what: str) -> None:
    changes, problem = REFUSED[what]
    with pytest.raises(StudyError) as refused:
        rehearse(load_plan(*load_study(study(**changes))))
    assert problem in refused.value.problem
