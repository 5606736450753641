"""How many bad updates a rule bears: as many as it says move its result a little, one more moves it as far as it
likes."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from wardround.aggregation import RULES, Rule
from wardround.aggregation.mixing import buckets, evenly, fewest, most_bad, nearest_neighbours
from wardround.study.robustness.preaggregation import Preaggregation

BY_ROOT = [name for name in RULES if RULES[name]().root]
WITHSTANDING = [name for name in RULES if RULES[name]().most_bad(99) and name not in BY_ROOT]
FAR = (1e3, 1e9)


def combined(rule: Rule, rows: Tensor, bad: int) -> Tensor:
    updates = evenly(rows, bad)
    if rule.root:
        updates = updates._replace(root=rows.median(0).values)
    return rule.combine(updates, rule.init(torch.zeros_like(rows[0])))[0]


def honest(count: int, width: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=width) + rng.normal(size=(count, width)))


def attacked(good: Tensor, bad: int, size: float, seed: int) -> list[Tensor]:
    """Bad updates that agree with each other, ones that do not, and ones in the direction opposite to the others."""
    rng = np.random.default_rng(seed)
    direction = torch.tensor(rng.normal(size=good.shape[1]))
    together = size * direction.repeat(bad, 1)
    apart = size * torch.tensor(rng.normal(size=(bad, good.shape[1])))
    opposite = (-size * good.mean(0)).repeat(bad, 1)
    return [torch.cat([good, more]) for more in (together, apart, opposite)]


@pytest.mark.parametrize("name", WITHSTANDING)
def test_as_many_bad_updates_as_a_rule_bears_keep_it_near_the_honest_ones(name: str) -> None:
    for count in range(3, 16):
        bad = RULES[name]().most_bad(count)
        rule, good = RULES[name](bad=bad), honest(count - bad, 5, count)
        # in no direction farther from the honest mean than a few times what they are from each other
        centre, reach = good.mean(0), float((good[:, None] - good[None]).norm(dim=2).max())
        for size in FAR:
            for rows in attacked(good, bad, size, count):
                away = float((combined(rule, rows, bad) - centre).norm())
                assert away <= 4 * reach + 4 * float(centre.norm()), (count, bad, size)


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "bulyan"])
def test_one_more_bad_update_than_half_moves_it_anywhere(name: str) -> None:
    for count in range(4, 12):
        bad = count // 2 + 1
        good = honest(count - bad, 5, count)
        rows = attacked(good, bad, 1e9, count)[0]
        rule = RULES[name](bad=RULES[name]().most_bad(count))
        assert float(combined(rule, rows, rule.bad).norm()) > 1e6, count


def test_a_single_bad_update_moves_the_mean_anywhere_and_a_bounded_one_by_its_bound() -> None:
    good = honest(9, 5, 1)
    rows = torch.cat([good, torch.full((1, 5), 1e9, dtype=torch.float64)])
    assert float(combined(RULES["mean"](), rows, 0).norm()) > 1e7
    bounded, without = (combined(RULES["norm-bound"](bound=1.0), part, 0) for part in (rows, good))
    assert float((bounded - without).norm()) <= 2 * 1.0 / 10 + 1e-9


def test_the_median_stays_between_the_honest_values() -> None:
    for count in range(1, 16):
        bad = RULES["median"]().most_bad(count)
        good = honest(count - bad, 30, count)
        for rows in attacked(good, bad, 1e6, count):
            for name in ("median", "trimmed-mean"):
                result = combined(RULES[name](bad=bad), rows, bad)
                assert bool((result >= good.min(0).values).all() and (result <= good.max(0).values).all()), (
                    name,
                    count,
                )


def test_krum_takes_an_honest_update_and_needs_what_its_theorem_asks_for() -> None:
    for bad in range(1, 5):
        count = 2 * bad + 3
        assert (RULES["krum"]().most_bad(count), RULES["krum"]().most_bad(count - 1)) == (bad, bad - 1)
        good = honest(count - bad, 20, bad)
        for rows in attacked(good, bad, 1e4, bad)[:2]:
            if rows[-1].equal(rows[-2]) and bad > 2:
                # n - f - 2 = f + 1 neighbours: f bad ones that agree are too few for a small score
                assert bad < count - bad - 2 + 1
            taken = combined(RULES["krum"](bad=bad), rows, bad)
            assert any(torch.equal(taken, row) for row in good)


def test_how_many_are_needed() -> None:
    none = Preaggregation()
    for bad in range(1, 6):
        needed = {name: fewest(RULES[name](bad=bad), none, bad) for name in WITHSTANDING}
        assert needed == {
            **dict.fromkeys(WITHSTANDING, 2 * bad + 1),
            "krum": 2 * bad + 3,
            "multi-krum": 2 * bad + 3,
            "bulyan": 4 * bad + 3,
        }
        in_pairs = Preaggregation("bucketing", 2)
        assert fewest(RULES["krum"](bad=bad), in_pairs, bad) == 2 * (2 * bad + 2) + 1
        assert most_bad(RULES["krum"](bad=bad), in_pairs, 2 * (2 * bad + 2)) < bad


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_updates_does_not_matter(name: str) -> None:
    for seed in range(5):
        rows = honest(11, 7, seed)
        rows[:2] *= 50
        order = torch.tensor(np.random.default_rng(seed).permutation(11))
        first, second = (combined(RULES[name](), part, 2 if RULES[name]().bad else 0) for part in (rows, rows[order]))
        assert torch.allclose(first, second, rtol=0, atol=1e-12)


def test_with_root_data_all_but_one_may_be_bad() -> None:
    """No update makes the result longer than the root's, and what turns away from it counts for nothing."""
    root = honest(1, 20, 5)[0]
    good = root + 0.1 * honest(1, 20, 6)[0]
    bad = torch.cat([-1e6 * root.repeat(5, 1), 1e9 * (torch.eye(20, dtype=torch.float64)[:1] * -root.sign()[0])])
    rule: Rule = RULES["fltrust"](bad=6)
    result, _ = rule.combine(evenly(torch.cat([good[None], bad]), 6)._replace(root=root), {})
    assert torch.allclose(result, good * root.norm() / good.norm(), rtol=0, atol=1e-9)
    nobody, _ = rule.combine(evenly(bad, 6)._replace(root=root), {})
    assert float(nobody.norm()) == 0
    mixed, _ = rule.combine(evenly(torch.cat([bad, 1e5 * honest(3, 20, 7)]), 6)._replace(root=root), {})
    assert float(mixed.norm()) <= float(root.norm()) + 1e-9
    assert (rule.most_bad(7), rule.most_bad(1)) == (6, 0)


@pytest.mark.parametrize("name", [name for name in RULES if name not in BY_ROOT])
def test_alike_updates_give_that_update(name: str) -> None:
    row = honest(1, 9, 0)
    rule: Rule = RULES[name]()
    options = {"centred-clipping": {"radius": 100.0}, "norm-bound": {"bound": 100.0}}.get(name, {})
    rule = RULES[name](**options)
    assert torch.allclose(combined(rule, row.repeat(9, 1), rule.bad), row[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_moves_with_its_updates(name: str) -> None:
    """The same updates twice as long and turned round give a result twice as long and turned round."""
    rows = honest(11, 6, 4)
    rule: Rule = RULES[name]()
    turned = combined(rule, -2 * rows, rule.bad)
    assert torch.allclose(turned, -2 * combined(rule, rows, rule.bad), rtol=0, atol=1e-10)


def test_mixing_brings_honest_updates_nearer_to_each_other() -> None:
    """With nearest neighbours their variance falls; buckets of s divide it by s, on average."""
    good = honest(20, 200, 3)
    rows = torch.cat([good, torch.full((4, 200), 30.0, dtype=torch.float64)])
    near = nearest_neighbours(evenly(rows, 4)).rows[:20]
    assert float(near.var(0).mean()) < 0.3 * float(good.var(0).mean())
    spread = []
    for size in (1, 2, 4):
        order = torch.tensor(np.random.default_rng(size).permutation(20))
        spread.append(float(buckets(evenly(good, 0), order, size).rows.var(0).mean()) * size)
    assert all(math.isclose(a, b, rel_tol=0.2) for a, b in pairwise(spread))
