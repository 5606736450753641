"""Whole rounds with compressed updates: what is summed, what sites remember, what is counted, resumed and protected."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.small_federations import after, assert_same, assert_same_state, assert_same_tree, each_round, trial
from wardround.algorithms import ALGORITHMS
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.scaffold import scaffold
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.core.tree import State, Tree
from wardround.engines import serial
from wardround.engines.serial import leaves_of_run, restore_run
from wardround.study.schema import Compression, ExamplePrivacy, Privacy, SitePrivacy, Stragglers
from wardround.training.compression import (
    KINDS,
    compress_outcome,
    compressed_parts,
    first_residual,
    form_of,
    receive,
    update_like,
)
from wardround.training.local import Memory, Outcome
from wardround.training.rounds import start
from wardround.training.trial import Run, Trial, assign
from wardround.training.validation import refuse_unkept

HALVES, LARGEST = Compression("float16"), Compression("top-k", share=0.3)
KINDS_OF_ALL = [HALVES, LARGEST, Compression("quantised", bits=2), Compression("quantised", bits=8)]
NAMES = [f"{settings.kind} {settings.bits}" for settings in KINDS_OF_ALL]
ALIKE = [name for name, make in ALGORITHMS.items() if make().federated and make().needs == "mean" and not make().pools]
BITS = 8 * 4  # of the logistic model's four numbers in float64


def compressed(settings: Compression, algorithm: str = "fedavg", **training: Any) -> Trial:
    return replace(trial(ALGORITHMS[algorithm](), **training), compression=settings)


def outcomes(experiment: Trial, run: Run) -> list[Outcome]:
    return [outcome for _, outcome in serial.train_sites(experiment, run, assign(experiment, run.round))]


def outcome_of(update: State) -> Outcome:
    return Outcome(update, Memory(), None, torch.tensor(0.0))


# -- what is sent, and what becomes of it


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
@pytest.mark.parametrize("algorithm", ALIKE)
def test_what_arrives_is_made_of_what_was_sent_and_of_the_study_alone(algorithm: str, settings: Compression) -> None:
    experiment = compressed(settings, algorithm)
    run = after(experiment, 2)
    like = update_like(experiment.algorithm, run.server["params"], len(experiment.sites))
    for outcome in outcomes(experiment, run):
        assert outcome.sent is not None
        assert_same_state(receive(experiment, outcome.sent, like), outcome.update)
        sent, form = (tree.flatten(state) for state in (outcome.sent, form_of(experiment, like)))
        assert [(n, leaf.dtype, leaf.shape) for n, leaf in sent.items()] == [
            (n, leaf.dtype, leaf.shape) for n, leaf in form.items()
        ]


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
@pytest.mark.parametrize("algorithm", ALIKE)
def test_parts_that_must_be_exact_are_sent_as_they_are(algorithm: str, settings: Compression) -> None:
    experiment, plain = compressed(settings, algorithm), trial(ALGORITHMS[algorithm]())
    for outcome, before in zip(outcomes(experiment, start(experiment)), outcomes(plain, start(plain)), strict=True):
        exact = experiment.algorithm.exact | experiment.algorithm.data_free
        assert compressed_parts(experiment.algorithm, outcome.update) == ["params"]
        assert set(outcome.update) == {"params"} | exact
        for part in exact:
            assert_same_tree(outcome.update[part], before.update[part])
        assert outcome.sent is not None
        assert not torch.equal(
            torch.cat([leaf.flatten() for leaf in outcome.update["params"].values()]),
            torch.cat([leaf.flatten() for leaf in before.update["params"].values()]),
        )


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
def test_scaffolds_coordinator_keeps_the_mean_of_the_sites_controls(settings: Compression) -> None:
    experiment = replace(trial(scaffold(), share=0.5), compression=settings)
    run = after(experiment, 5)
    mean = {
        name: torch.stack([memory.algorithm["control"][name] for memory in run.memories.values()]).mean(0)
        for name in run.server["control"]
    }
    assert_same_tree(mean, run.server["control"], atol=1e-14)


def test_without_compression_every_bit_is_as_it_was() -> None:
    for algorithm in ALIKE:
        assert_same(after(trial(ALGORITHMS[algorithm]()), 4), after(compressed(Compression(), algorithm), 4))


def test_rounding_draws_anew_for_each_round_and_site_and_alike_in_each_repetition() -> None:
    experiment = compressed(Compression("quantised", bits=2))
    update = {"params": {"w": torch.full((1000,), 0.3).index_fill(0, torch.tensor([0]), 1.0)}}
    sent = [
        compress_outcome(experiment, outcome_of(update), {}, round_number, site).update["params"]["w"]
        for round_number, site in [(0, "a"), (0, "a"), (1, "a"), (0, "b")]
    ]
    assert torch.equal(sent[0], sent[1])
    for other in sent[2:]:
        # two independent draws of a coin with 0.3: unlike in 2 x 0.3 x 0.7 of the places
        assert float((sent[0] != other).float().mean()) == pytest.approx(0.42, abs=0.08)


# -- error feedback


def sums_over_rounds(experiment: Trial, updates: Sequence[Tree]) -> tuple[Tree, Tree]:
    """What a site has sent in all, and what it then remembers."""
    residual, total = first_residual(experiment, updates[0]), tree.zeros_like(updates[0])
    for number, update in enumerate(updates):
        outcome = compress_outcome(experiment, outcome_of({"params": update}), residual, number, "a")
        total, residual = tree.add(total, outcome.update["params"]), outcome.memory.residual
    return total, residual


def test_what_was_sent_and_what_is_remembered_make_up_all_updates_exactly() -> None:
    """With multiples of 1/64 no sum is rounded, so that not one bit may be missing."""
    drawn = torch.Generator().manual_seed(3)
    updates = [
        {"w": torch.randint(-64, 65, (8, 5), generator=drawn) / 64.0, "b": torch.randint(-9, 9, (5,)) / 64.0}
        for _ in range(12)
    ]
    total, residual = sums_over_rounds(compressed(Compression("top-k", share=0.1)), updates)
    truth = tree.zeros_like(updates[0])
    for update in updates:
        truth = tree.add(truth, update)
    assert any(bool(leaf.any()) for leaf in residual.values())
    assert_same_tree(tree.add(total, tree.unflatten(residual)["params"]), truth)


def test_a_number_that_is_never_among_the_largest_is_sent_once_enough_has_gathered() -> None:
    """0.3 beside 1, one number a round: 0.3, 0.6, 0.9 have gathered, and 1.2 beside 1 in the fourth round."""
    experiment = compressed(Compression("top-k", share=0.5))
    update = {"w": torch.tensor([1.0, 0.3], dtype=torch.float64)}
    residual, sent = first_residual(experiment, update), []
    for number in range(5):
        outcome = compress_outcome(experiment, outcome_of({"params": update}), residual, number, "a")
        residual = outcome.memory.residual
        sent.append([round(value, 9) for value in outcome.update["params"]["w"].tolist()])
    assert sent == [[1.0, 0.0]] * 3 + [[0.0, 1.2], [2.0, 0.0]]


def test_only_kinds_that_keep_what_they_lose_have_a_memory() -> None:
    for settings in KINDS_OF_ALL:
        memory = start(compressed(settings)).memories["site-1"]
        assert bool(memory.residual) == KINDS[settings.kind].keeps_error == (settings.kind == "top-k")
        assert all(not leaf.any() for leaf in memory.residual.values())


def test_an_update_that_does_not_count_leaves_the_old_residual_in_force() -> None:
    experiment = compressed(LARGEST, stragglers=Stragglers(0.5, "drop"))
    run = start(experiment)
    for reached, record in each_round(experiment, 5):
        for name, memory in reached.memories.items():
            changed = any(
                not torch.equal(leaf, run.memories[name].residual[key]) for key, leaf in memory.residual.items()
            )
            assert changed == (name in record.sites)
        assert record.dropped
        run = reached


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fednova"])
def test_a_run_that_is_saved_after_any_round_goes_on_to_the_same_bits(algorithm: str, settings: Compression) -> None:
    experiment = compressed(settings, algorithm, share=0.67)
    whole = [run for run, _ in each_round(experiment, 6)]
    for stop in (1, 3, 5):
        number, leaves = leaves_of_run(whole[stop - 1])
        resumed = restore_run([experiment], number, {key: leaf.clone() for key, leaf in leaves.items()})
        assert_same(resumed, whole[stop - 1])
        assert_same(after(experiment, 6, resumed), whole[-1])


# -- the record


def test_the_record_counts_the_bytes_that_are_sent() -> None:
    """Six sites with four numbers in float64, in two tensors. Halves: 4 x 2 + 2 x 2; the largest: (8 + 4) x 1; 8 bits:
    4 + 2 x 8; SCAFFOLD's control is sent whole."""
    expected = {None: 32, "float16": 12, "top-k": 12, "quantised": 20}
    for settings in (Compression(), HALVES, LARGEST, Compression("quantised")):
        size = expected[settings.kind if settings.kind != "none" else None]
        for algorithm, more in (("fedavg", 0), ("scaffold", 32), ("fednova", 8)):
            [(_, record)] = list(each_round(compressed(settings, algorithm), 1))
            assert record.bytes_up == 6 * (size + more)


def test_the_recorded_error_is_the_mean_over_sites_of_what_was_lost() -> None:
    experiment = compressed(LARGEST)
    run = start(experiment)
    errors, weights = [], []
    plain = trial(fedavg())
    for assignment, before in zip(assign(plain, 0), outcomes(plain, start(plain)), strict=True):
        flat = torch.cat([leaf.flatten() for leaf in before.update["params"].values()])
        lost = flat.abs().sort().values[:-1].norm()  # all but the largest of four: round(0.3 x 4) = 1
        errors.append(float(lost / flat.norm()))
        weights.append(len(assignment.site.train))
    [(_, record)] = list(each_round(experiment, 1, run))
    expected = sum(error * weight for error, weight in zip(errors, weights, strict=True)) / sum(weights)
    assert record.compression_error == pytest.approx(expected, rel=1e-12)
    [(_, record)] = list(each_round(compressed(Compression()), 1))
    assert record.compression_error is None


# -- protection


def private(settings: Compression, privacy: Privacy, **training: Any) -> Trial:
    return replace(compressed(settings, **training), privacy=privacy)


WHOLE_SITES = Privacy(site=SitePrivacy(3.0, 1e-3, 0.1))


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_no_update_that_is_summed_is_longer_than_the_clip(algorithm: str, settings: Compression) -> None:
    """Whatever compression makes of it: with 2 bits an update of equal numbers becomes much longer."""
    experiment = private(settings, WHOLE_SITES, algorithm=algorithm, lr=5.0)
    for run, record in each_round(experiment, 3):
        assert record.compression_error is None  # it would tell something about a site
        for outcome in outcomes(experiment, run):
            whole = tree.flatten(outcome.update)
            assert float(torch.cat([leaf.flatten() for leaf in whole.values()]).norm()) <= 0.1


def test_rounding_that_lengthens_an_update_is_clipped_on_arrival() -> None:
    """A thousand numbers of a third of the largest: with 2 bits their expected squared length is three times theirs."""
    experiment = private(Compression("quantised", bits=2), Privacy(site=SitePrivacy(3.0, 1e-3, 1.0)))
    update = {"params": {"w": torch.full((1000,), 1 / 3, dtype=torch.float64)}}
    update["params"]["w"][0] = 1.0
    outcome = compress_outcome(experiment, outcome_of(update), {}, 0, "a")
    assert outcome.sent is not None
    as_sent = KINDS["quantised"].decompress(outcome.sent["params"], update["params"], experiment.compression)["w"]
    assert float(as_sent.norm()) > 1.5
    assert 0.99 < float(outcome.update["params"]["w"].norm()) <= 1.0


def test_the_residual_of_clipped_updates_never_grows_beyond_what_the_largest_leave_out() -> None:
    """With share s what is left of v is at most sqrt(1 - s) of it, and v is clipped before: |residual| < C."""
    experiment = private(Compression("top-k", share=0.25), WHOLE_SITES, lr=50.0)
    for run, _ in each_round(experiment, 6):
        for memory in run.memories.values():
            assert float(tree.squared_norm(memory.residual).sqrt()) <= 0.1 * (1 - 0.25) ** 0.5 + 1e-12


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
@pytest.mark.parametrize(
    "privacy", [Privacy(example=ExamplePrivacy(4.0, 1e-5, 0.5)), WHOLE_SITES], ids=["patients", "sites"]
)
def test_compression_costs_no_privacy_and_saves_none(privacy: Privacy, settings: Compression) -> None:
    plain, small = private(Compression(), privacy), private(settings, privacy)
    for (_, before), (_, record) in zip(each_round(plain, 4), each_round(small, 4), strict=True):
        assert record.charges == before.charges
        assert record.site_charge == before.site_charge
        assert record.sites == before.sites
        assert bool(record.charges) == (privacy.example is not None)


@pytest.mark.parametrize("settings", KINDS_OF_ALL, ids=NAMES)
def test_with_patients_protected_what_is_compressed_is_the_update_that_has_its_noise(settings: Compression) -> None:
    """Post-processing: what leaves, and what is remembered, is a function of released updates and of public draws."""
    privacy = Privacy(example=ExamplePrivacy(4.0, 1e-5, 0.5))
    plain, small = private(Compression(), privacy), private(settings, privacy)
    for number, (before, outcome) in enumerate(
        zip(outcomes(plain, start(plain)), outcomes(small, start(small)), strict=True)
    ):
        site = small.sites[number].name
        again = compress_outcome(
            small, outcome_of(before.update), start(small).memories[site].residual, 0, site
        )  # from the noised update alone
        assert again.sent is not None
        assert outcome.sent is not None
        assert_same_state(again.sent, outcome.sent)
        assert_same_tree(again.memory.residual, outcome.memory.residual)


# -- what is refused


def test_an_algorithm_that_compares_updates_is_refused_what_changes_their_directions() -> None:
    for settings in KINDS_OF_ALL:
        experiment = compressed(settings, "clustered")
        if KINDS[settings.kind].keeps_directions:
            refuse_unkept(experiment)
            after(experiment, 2)
            continue
        with pytest.raises(StudyError) as refused:
            refuse_unkept(experiment)
        assert "compares the directions of single updates" in str(refused.value)
        assert 'Write "float16" or "none"' in str(refused.value)
