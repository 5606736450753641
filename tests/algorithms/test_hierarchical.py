"""Regions: one is the flat federation bit for bit, one regional round is the flat one, and the rest by hand."""

from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.representatives import represented
from tests.small_federations import after, assert_same, assert_same_tree, each_round, ragged_sites, trial
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fedprox import fedprox
from wardround.algorithms.hierarchical import active_regions, as_merged, as_regional, hierarchical, part_of
from wardround.algorithms.regions import Regions, form_regions, traffic
from wardround.core.errors import StudyError
from wardround.core.tree import State
from wardround.engines.serial import SERIAL, train_sites
from wardround.engines.stacked.stacked import STACKED
from wardround.privacy.secure_sum.simulated_sum import sum_securely
from wardround.study.schema import Privacy, SecureSum, Stragglers
from wardround.training.intake import Intake
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial, assign

WITHIN: dict[str, Algorithm] = {"fedavg": fedavg(0.8), "fedprox": fedprox(0.3)}
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "everyone": {},
    "some, late": {"share": 0.7, "stragglers": Stragglers(0.4, "keep")},
    "some, dropped": {"share": 0.7, "stragglers": Stragglers(0.4, "drop")},
}
EVERY_CIRCUMSTANCE = pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
BOTH_ENGINES = pytest.mark.parametrize("engine", [SERIAL, STACKED], ids=["serial", "stacked"])
BOTH_ALGORITHMS = pytest.mark.parametrize("name", WITHIN)
# six ragged sites; regions are interleaved, so that no order of sites helps
IN_THREE = (0, 1, 2, 0, 1, 0)
IN_FIVE = (0, 1, 2, 3, 4, 1)


def regions(of_site: tuple[int, ...], rounds: int = 1) -> Regions:
    return Regions(tuple(f"r{number}" for number in range(max(of_site) + 1)), of_site, rounds)


def in_regions(name: str, of_site: tuple[int, ...], regional: int = 1, **training: Any) -> Trial:
    return trial(hierarchical(WITHIN[name], regions(of_site, regional)), lr=0.3, **training)


def last(engine: Any, trials: list[Trial]) -> tuple[list[Run], list[list[Any]]]:
    state, records = engine.start(trials), []
    for after_round, round_records in engine.rounds(trials, state):
        state = after_round
        records.append(round_records)
    return engine.runs(trials, state), records


@BOTH_ALGORITHMS
@BOTH_ENGINES
@EVERY_CIRCUMSTANCE
@pytest.mark.parametrize("precision", represented(["float32", "float64"], by=["float32"]))
@pytest.mark.parametrize("rounds", represented([1, 3], by=[3]))
def test_one_region_is_the_flat_federation_bit_for_bit(
    name: str, engine: Any, circumstance: str, precision: str, rounds: int
) -> None:
    dtype = torch.float32 if precision == "float32" else torch.float64
    options = {"sites": ragged_sites(dtype=dtype), "precision": precision, **CIRCUMSTANCES[circumstance]}
    seeds = [7, 8] if engine is STACKED else [7]
    flat = [trial(WITHIN[name], lr=0.3, seed=seed, **options) for seed in seeds]
    regional = [in_regions(name, (0,) * 6, rounds, seed=seed, **options) for seed in seeds]
    (plain, flat_records), (ours, ours_told) = last(engine, flat), last(engine, regional)
    for a, b in zip(plain, ours, strict=True):
        assert_same_tree(a.server["params"], b.server["params"])
    for row, other in zip(flat_records, ours_told, strict=True):
        for before, now in zip(row, other, strict=True):
            same = ("loss", "update_norm", "divergence", "sites", "dropped", "bytes_up", "bytes_down", "settings")
            assert [getattr(before, field) for field in same] == [getattr(now, field) for field in same]


@BOTH_ALGORITHMS
@BOTH_ENGINES
@EVERY_CIRCUMSTANCE
@pytest.mark.parametrize("of_site", [IN_THREE, pytest.param(IN_FIVE, marks=pytest.mark.slow)], ids=["three", "five"])
def test_one_regional_round_is_the_flat_federation_but_for_rounding(
    name: str, engine: Any, circumstance: str, of_site: tuple[int, ...]
) -> None:
    for precision, tolerance in (("float32", 1e-6), ("float64", 1e-14)):
        dtype = torch.float32 if precision == "float32" else torch.float64
        options = {"sites": ragged_sites(dtype=dtype), "precision": precision, **CIRCUMSTANCES[circumstance]}
        flat, _ = last(engine, [trial(WITHIN[name], lr=0.3, **options)])
        ours, _ = last(engine, [in_regions(name, of_site, **options)])
        assert_same_tree(flat[0].server["params"], ours[0].server["params"], tolerance)


@EVERY_CIRCUMSTANCE
@BOTH_ALGORITHMS
def test_the_fast_engine_equals_the_slow_one(name: str, circumstance: str) -> None:
    trials = [in_regions(name, IN_THREE, 2, seed=seed, **CIRCUMSTANCES[circumstance]) for seed in (3, 4)]
    fast, fast_told = last(STACKED, trials)
    for number, arm in enumerate(trials):
        (slow,), slow_records = last(SERIAL, [arm])
        assert_same(fast[number], slow, 1e-12)
        for row, other in zip(fast_told, slow_records, strict=True):
            now, before = row[number], other[0]
            for field in ("sites", "dropped", "bytes_down", "bytes_up", "region_messages", "region_bytes"):
                assert getattr(now, field) == getattr(before, field), field
            assert (now.change is None) == (before.change is None) == (before.round % 2 == 1)


def two_regions(rounds: int = 2) -> tuple[Algorithm, State]:
    """One weight, 1.0, in two regions of sites 0, 1 and 2, 3."""
    algorithm = hierarchical(fedavg(), Regions(("north", "south"), (0, 0, 1, 1), rounds))
    return algorithm, algorithm.init({"w": torch.tensor([1.0], dtype=torch.float64)}, 4)


def moved(by: float) -> State:
    return {"params": {"w": torch.tensor([by], dtype=torch.float64)}}


def test_regions_go_apart_and_are_averaged_by_what_came_since_the_last_time() -> None:
    algorithm, server = two_regions()
    assert algorithm.aggregate_regions is not None
    server = algorithm.aggregate_regions(server, [moved(2.0), moved(-4.0)], [30.0, 10.0], 0)
    # north 1 + 2 = 3 and south 1 - 4 = -3 go on apart; the model of all waits
    assert [float(algorithm.broadcast(server, site)["params"]["w"]) for site in range(4)] == [3, 3, -3, -3]
    assert float(server["params"]["w"]) == 1.0
    server = algorithm.aggregate_regions(server, [moved(1.0), None], [10.0, 0.0], 1)
    # north 3 + 1 = 4 weighs 30 + 10, south -3 weighs 10: (40 x 4 + 10 x -3) / 50 = 2.6
    assert [float(algorithm.broadcast(server, site)["params"]["w"]) for site in range(4)] == pytest.approx([2.6] * 4)
    assert [float(server[part_of(name)]["w"]) for name in ("north", "south")] == [4.0, -3.0]
    assert {name: float(weight) for name, weight in server["weight"].items()} == {"north": 40.0, "south": 10.0}
    server = algorithm.aggregate_regions(server, [None, moved(1.0)], [0.0, 5.0], 2)
    # the next cycle begins on the model of all, and weights begin anew
    assert float(server[part_of("north")]["w"]) == pytest.approx(2.6)
    assert float(server[part_of("south")]["w"]) == pytest.approx(3.6)
    server = algorithm.aggregate_regions(server, [None, None], [0.0, 0.0], 3)
    # nobody came, and the regions' rounds are over all the same; north had no update and has no say
    assert float(server["params"]["w"]) == pytest.approx(3.6)


def test_where_nobody_came_in_a_whole_cycle_the_model_stays() -> None:
    algorithm, server = two_regions(1)
    assert algorithm.aggregate_regions is not None
    server = algorithm.aggregate_regions(server, [None, None], [0.0, 0.0], 0)
    assert float(server["params"]["w"]) == 1.0


def test_a_site_predicts_with_the_model_of_all_and_its_regions_own_is_kept_beside_it() -> None:
    arm = in_regions("fedavg", IN_THREE, 2, rounds=4)
    run = after(arm, 4)
    for number in range(6):
        assert_same_tree(site_model(arm, run, number)[0], run.server["params"])
        at_home = run.server[part_of(f"r{IN_THREE[number]}")]
        assert_same_tree(site_model(arm, run, number, regional=True)[0], at_home)
    weights = torch.stack([run.server["weight"][f"r{number}"] for number in range(3)])
    for leaf, value in run.server["params"].items():
        own = torch.stack([run.server[part_of(f"r{number}")][leaf] for number in range(3)])
        torch.testing.assert_close((weights / weights.sum()) @ own.flatten(1), value.flatten(), rtol=0, atol=1e-14)
        assert (own.flatten(1) - own[0].flatten()).abs().max() > 1e-3  # they did go apart
    middle = after(arm, 3)
    assert_same_tree(site_model(arm, middle, 0)[0], after(arm, 2).server["params"])  # as it was last averaged


def test_the_pull_of_fedprox_is_towards_the_regions_model() -> None:
    algorithm = hierarchical(fedprox(2.0), Regions(("north", "south"), (0, 0, 1, 1), 2))
    server = algorithm.init({"w": torch.tensor([1.0], dtype=torch.float64)}, 4)
    assert algorithm.aggregate_regions is not None
    server = algorithm.aggregate_regions(server, [moved(2.0), moved(0.0)], [1.0, 1.0], 0)
    at = {"w": torch.tensor([3.5], dtype=torch.float64)}
    pulls = [
        float(algorithm.correct({"w": torch.zeros(1)}, at, algorithm.broadcast(server, site), {})["w"])
        for site in (0, 2)
    ]
    assert pulls == [2.0 * (3.5 - 3.0), 2.0 * (3.5 - 1.0)]


@BOTH_ENGINES
@pytest.mark.parametrize("interrupted", [2, 3, 4])
def test_a_run_that_is_saved_in_the_middle_of_a_cycle_carries_on_to_the_same_bits(
    engine: Any, interrupted: int
) -> None:
    trials = [in_regions("fedprox", IN_THREE, 3, share=0.7)]
    uninterrupted, _ = last(engine, trials)
    short = [replace(arm, training=replace(arm.training, rounds=interrupted)) for arm in trials]
    state = engine.start(short)
    for reached, _ in engine.rounds(short, state):
        state = reached
    done, leaves = engine.leaves(state)
    content = safetensors.torch.save({key: leaf.clone() for key, leaf in leaves.items()})
    state = engine.restore(trials, done, safetensors.torch.load(content))
    for reached, _ in engine.rounds(trials, state):
        state = reached
    assert_same(engine.runs(trials, state)[0], uninterrupted[0])


def test_what_comes_in_is_one_sum_for_each_region_and_no_update_is_kept() -> None:
    arm = in_regions("fedavg", IN_THREE)
    run, assignments = start(arm), assign(arm, 0)
    intake, sizes = Intake(arm, run, assignments), [len(site.train) for site in arm.sites]
    intake.take(train_sites(arm, run, assignments))
    assert not intake.arrivals
    assert intake.sum is None
    assert intake.region_weights == [sizes[0] + sizes[3] + sizes[5], sizes[1] + sizes[4], sizes[2]]
    assert len(intake.region_sums) == 3


def test_messages_and_bytes_of_both_kinds_of_link() -> None:
    arm = in_regions("fedprox", IN_THREE, 2, rounds=4)  # 4 weights and mu in float64
    records = [record for _, record in each_round(arm, 4)]
    size = sum(leaf.numel() * 8 for leaf in start(arm).server["params"].values())
    assert [(record.bytes_down, record.bytes_up) for record in records] == [(6 * (size + 8), 6 * size)] * 4
    # the model of all goes down to three regions before rounds 1 and 3, and theirs come up after rounds 2 and 4
    assert [record.region_messages for record in records] == [(3, 0), (0, 3)] * 2
    assert [record.region_bytes for record in records] == [(3 * size, 0), (0, 3 * size)] * 2


def test_a_secure_sum_in_each_region_is_the_plain_sum_but_for_rounding() -> None:
    of_site = (0, 1, 0, 1, 0, 1)
    plain = in_regions("fedavg", of_site, 2)
    secure = replace(plain, privacy=Privacy(secure_sum=SecureSum()))
    a, b = after(plain, 4), after(secure, 4)
    for part in ("params", part_of("r0"), part_of("r1")):
        assert_same_tree(a.server[part], b.server[part], 1e-6, part)
    (_, record), *_ = each_round(secure, 1)
    assert (record.loss, record.update_norm, record.divergence) == (None, None, None)
    assert len(record.sites) == 6


def test_a_region_whose_sum_comes_to_nothing_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Site 2 sends nothing, and with a threshold of 3 its region has no sum."""
    of_site = (0, 1, 0, 1, 0, 1)
    arm = replace(in_regions("fedavg", of_site, 2), privacy=Privacy(secure_sum=SecureSum(threshold=3)))

    def without_one(vectors: Any, *rest: Any) -> Any:
        return sum_securely(((site, vector) for site, vector in vectors if site != "site-2"), *rest)

    whole = after(arm, 1)
    monkeypatch.setattr("wardround.privacy.secure_sum.simulated_sum.sum_securely", without_one)
    (run, record), *_ = each_round(arm, 1)
    assert_same_tree(run.server[part_of("r1")], start(arm).server["params"])
    assert_same_tree(run.server[part_of("r0")], whole.server[part_of("r0")])
    assert record.sites == ("site-1", "site-3", "site-5")
    assert record.dropped == ("site-2", "site-4", "site-6")
    assert record.failed.startswith("r1: ")
    assert {name: float(weight) for name, weight in run.server["weight"].items()} == {"r0": 5 + 8 + 11, "r1": 0}


def test_states_that_show_one_model_or_the_other_leave_the_rest_alone() -> None:
    _, server = two_regions()
    for shown, merged in ((as_merged(server), True), (as_regional(server), False)):
        assert bool(shown["clock"]["merged"]) is merged
        assert {part: leaves for part, leaves in shown.items() if part != "clock"} == {
            part: leaves for part, leaves in server.items() if part != "clock"
        }
    flat = fedavg().init({"w": torch.ones(1)}, 2)
    assert as_merged(flat) is flat


SITES = ["a-1", "a-2", "b-1", "b-2"]


def test_patterns_and_names_make_regions_in_the_order_of_the_study() -> None:
    grouping = form_regions({"west": ["b-*"], "east": ["a-1", "a-2"]}, 2, SITES, SITES, "here")
    assert grouping == Regions(("west", "east"), (1, 1, 0, 0), 2)
    assert form_regions({"w": ["b-*"], "e": ["a-*"]}, 1, SITES, ["a-1", "a-2"], "here") == Regions(("e",), (0, 0), 1)


@pytest.mark.parametrize(
    ("named", "problem", "remedy"),
    [
        ({"east": ["a-*"], "west": ["b-1"]}, "b-2 is in no region", "Add each site"),
        ({"east": ["a-*"], "west": []}, "has no sites", "leave the region out"),
        ({"east": ["a-*"], "west": ["c-*"]}, "the pattern 'c-*' fits no site", "a-1, a-2"),
        ({"east": ["a-1", "a-3"], "west": ["b-*"]}, "no site is called 'a-3'", "Did you mean"),
        ({"east": ["a-*", "b-1"], "west": ["b-*"]}, "b-1 is in 'east' and in 'west'", "in one region"),
    ],
)
def test_regions_that_do_not_divide_the_sites_are_refused(
    named: dict[str, list[str]], problem: str, remedy: str
) -> None:
    with pytest.raises(StudyError) as refused:
        form_regions(named, 1, SITES, SITES, "here")
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy


def test_an_algorithm_within_keeps_nothing_but_its_model_and_settings() -> None:
    """What a region shares with the others must not change from round to round."""
    regional = [make() for make in ALGORITHMS.values() if make().federated and not make().not_regional]
    assert len(regional) >= 2
    for inner in regional:
        assert set(inner.init({"w": torch.ones(1)}, 2)) == {"params", "settings"}
        assert inner.init_memory({"w": torch.ones(1)}) == {}


@BOTH_ENGINES
def test_a_region_that_diverges_leaves_the_others_as_they_are(engine: Any) -> None:
    """A number beyond all bounds at one site of the first region, in a round after which nothing is averaged."""
    sites = list(ragged_sites())
    x = sites[0].train.x.clone()
    x[0, 0] = float("inf")
    spoilt = [replace(sites[0], train=replace(sites[0].train, x=x)), *sites[1:]]
    (bad,), _ = last(engine, [in_regions("fedavg", IN_THREE, 2, sites=spoilt, rounds=1)])
    (good,), _ = last(engine, [in_regions("fedavg", IN_THREE, 2, sites=sites, rounds=1)])
    assert any(not bool(leaf.isfinite().all()) for leaf in bad.server[part_of("r0")].values())
    for region in ("r1", "r2"):
        assert_same_tree(bad.server[part_of(region)], good.server[part_of(region)])


def test_a_region_that_heard_from_nobody_sends_nothing_up() -> None:
    """Nobody came in the south in two rounds: one model of 8 bytes goes up, and two came down before."""
    algorithm, server = two_regions()
    assert algorithm.aggregate_regions is not None
    for number in range(2):
        server = algorithm.aggregate_regions(server, [moved(1.0), None], [10.0, 0.0], number)
    assert int(active_regions(server)) == 1
    assert algorithm.regions is not None
    assert traffic(algorithm.regions, 0, 1, 8) == ((2, 0), (16, 0))
    assert traffic(algorithm.regions, 1, 1, 8) == ((0, 1), (0, 8))
