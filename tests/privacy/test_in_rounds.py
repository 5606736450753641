"""Whole rounds with privacy: every algorithm, what is charged, told and remembered, secure sums, stops and resumes."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wardround
from tests.privacy.reference_gradients import length_of
from tests.representatives import represented
from tests.runs.test_resume import numbers
from tests.small_federations import assert_same, assert_same_tree, ragged_sites, site, trial
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.scaffold import scaffold
from wardround.core import tree
from wardround.data.site import Rows
from wardround.engines import serial
from wardround.engines.serial import leaves_of_run, restore_run
from wardround.models import MODELS, Shape
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.secure_sum.fixed_point import encoding_of
from wardround.runs import checkpoint
from wardround.runs.execute import execute
from wardround.runs.folder import RunFolder
from wardround.study.schema import AdaptiveClip, Augmentation, ExamplePrivacy, Privacy, SecureSum, Stragglers
from wardround.tasks import class_task
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.trial import Run, Trial

DELTA = 1e-5
EXAMPLE = ExamplePrivacy(4.0, DELTA, 0.5)
FEDERATED = ("fedavg", "fedprox", "fednova", "scaffold", "fedadam", "fedyogi", "fedadagrad")


def private_trial(algorithm: Algorithm | None = None, privacy: Privacy | None = None, **training: Any) -> Trial:
    experiment = trial(fedavg() if algorithm is None else algorithm, **{"rounds": 4, **training})
    return replace(experiment, privacy=Privacy(example=EXAMPLE) if privacy is None else privacy)


def every_round(experiment: Trial, run: Run | None = None) -> Iterator[tuple[Run, RoundRecord]]:
    return rounds(start(experiment) if run is None else run, experiment, serial.train_sites)


# for each patient


@pytest.mark.parametrize(
    "name",
    represented([*FEDERATED, "clustered", "local", "pooled"], by=["fedavg", "scaffold", "fedadam", "local", "pooled"]),
)
def test_every_algorithm_trains_and_charges(name: str) -> None:
    experiment = private_trial(ALGORITHMS[name]())
    history = [(run, record) for run, record in every_round(experiment)]
    assert len(history) == 4
    for _, record in history:
        assert record.loss is None
        assert set(record.charges) == {
            hospital.name for hospital in experiment.scored
        }  # whose patients they are, pooled or not
        assert record.stopped == ()
        assert record.failed == ""
    for hospital in experiment.scored:
        spent = epsilon([Charge(*record.charges[hospital.name]) for _, record in history], DELTA)
        assert 0.97 * 4 < spent <= 4
    last = history[-1][0]
    leaves = [leaf for _, leaf in leaves_of_run(last)[1].items()]
    assert all(bool(leaf.isfinite().all()) for leaf in leaves if leaf.is_floating_point())


def test_losses_are_in_no_outcome() -> None:
    experiment = private_trial()
    run = start(experiment)
    for _, outcome in serial.train_sites(experiment, run, wardround.training.trial.assign(experiment, 0)):
        assert outcome.loss.isnan()


def test_a_huge_clip_and_no_noise_to_speak_of_are_full_batch_descent() -> None:
    """Every row in every step: w <- w - lr x the mean gradient, as many times as epochs, averaged by rows."""
    experiment = private_trial(
        privacy=Privacy(example=ExamplePrivacy(1e6, DELTA, 1e6, noise=1e-15)), batch_size=64, rounds=1, local_epochs=3
    )
    experiment = replace(experiment, privacy=Privacy(example=ExamplePrivacy(math.inf, DELTA, 1e6, noise=1e-15)))
    after, _ = next(every_round(experiment))
    begin = start(experiment).server["params"]
    total, weight = tree.zeros_like(begin), 0
    for hospital in experiment.sites:
        at = begin
        for _ in range(3):
            grad, _, _ = experiment.model.gradient(at, {}, hospital.train.x, hospital.train.y, {})
            at = tree.sub(at, tree.scale(grad, experiment.training.lr))
        total = tree.add(total, tree.scale(tree.sub(at, begin), len(hospital.train)))
        weight += len(hospital.train)
    assert_same_tree(after.server["params"], tree.add(begin, tree.scale(total, 1 / weight)), atol=1e-8)


def test_steps_that_draw_nobody_work_with_dropout_and_images() -> None:
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.random((12, 1, 8, 8)), dtype=torch.float32), torch.tensor(rng.integers(0, 2, 12))
    model = MODELS["cnn"](channels=(2, 2), hidden=4, kernel=3, norm="group", dropout=0.5)(
        Shape((1, 8, 8), class_task(2))
    )
    experiment = trial(
        fedavg(), [site("one", x, y), site("two", x, y)], model, rounds=1, batch_size=1, precision="float32"
    )
    experiment = replace(experiment, privacy=Privacy(example=ExamplePrivacy(4.0, DELTA, 0.5, noise=1.0)))
    order = serial.order_of(experiment, experiment.sites[0], 0, experiment.training.local_epochs)
    assert any(len(step) == 0 for step in order)
    experiment = replace(experiment, privacy=Privacy(example=replace(EXAMPLE, noise=None)))
    after, _ = next(every_round(experiment))
    assert all(bool(leaf.isfinite().all()) for leaf in after.server["params"].values())


def test_the_same_study_gives_the_same_bits_and_another_seed_others() -> None:
    experiment = private_trial(scaffold())
    *_, (first, _) = every_round(experiment)
    *_, (second, _) = every_round(experiment)
    *_, (other, _) = every_round(replace(experiment, batch_seed=8))
    assert_same(first, second)
    assert not torch.equal(first.server["params"]["weight"], other.server["params"]["weight"])


def test_several_rows_of_a_patient_are_one_unit_in_a_round() -> None:
    """Sixty copies of one row, all of one patient among twenty, move no more than one clip over the expected number."""
    rng = np.random.default_rng(1)
    x = torch.tensor(np.concatenate([rng.normal(size=(19, 3)), np.full((60, 3), 9.0)]))
    y = torch.tensor([0, 1] * 9 + [0] + [1] * 60)
    people = torch.tensor([*range(19), *[19] * 60])
    quiet = Privacy(example=ExamplePrivacy(math.inf, DELTA, 0.01, noise=1e-15))

    def after_one(rows: Rows) -> dict[str, torch.Tensor]:
        hospital = replace(site("one", x, y), train=rows)
        experiment = replace(trial(fedavg(), [hospital], batch_size=500, rounds=1, local_epochs=1), privacy=quiet)
        return next(every_round(experiment))[0].server["params"]

    whole = after_one(Rows(x, y, patients=people))
    rest = after_one(Rows(x[:19], y[:19], patients=people[:19]))
    lr = trial(fedavg()).training.lr
    # divisors are 20 and 19 patients, which are public; the sums differ by one clip
    sums = {name: whole[name] / lr * 20 - rest[name] / lr * 19 for name in whole}
    assert length_of(sums) <= 0.01 * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_what_stays_at_a_site_is_clipped_and_noised_as_well(kind: str) -> None:
    """With a clip of a billionth a leaf that never leaves its site moves by noise of that size, and not by patients."""
    shape = Shape((3,), class_task(2))
    model = MODELS["logistic"](intercept="private")(shape)
    own: tuple[str, ...] = ("bias",)
    if kind == "mlp":
        own = ("3.weight", "3.bias")
        model = replace(MODELS["mlp"](hidden=(4,))(shape), private=own)
    experiment = replace(
        trial(fedavg(), model=model, rounds=2), privacy=Privacy(example=ExamplePrivacy(4.0, DELTA, 1e-9))
    )
    before = start(experiment)
    *_, (after, _) = every_round(experiment)
    for name, memory in after.memories.items():
        assert set(memory.private) == set(own)
        moved = length_of(tree.sub(memory.private, before.memories[name].private))
        assert 0 < moved < 1e-6


def test_with_given_noise_sites_stop_and_records_say_so() -> None:
    experiment = private_trial(privacy=Privacy(example=ExamplePrivacy(1.0, DELTA, 0.5, noise=2.0)), rounds=25)
    records = [record for _, record in every_round(experiment)]
    stops = {hospital.name: experiment.stops(number) for number, hospital in enumerate(experiment.sites)}
    assert min(stops.values()) < 25
    for number, record in enumerate(records):
        assert set(record.sites) == {name for name, stop in stops.items() if number < stop} == set(record.charges)
        assert set(record.stopped) == {name for name, stop in stops.items() if number >= stop}
    for name in stops:
        spent = [Charge(*record.charges[name]) for record in records if name in record.charges]
        assert epsilon(spent, DELTA) <= 1.0


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_only_work_that_was_done_is_charged(policy: Any) -> None:
    experiment = private_trial(share=0.5, stragglers=Stragglers(0.5, policy), rounds=8, local_epochs=3)
    records = [record for _, record in every_round(experiment)]
    for number, record in enumerate(records):
        drawn = experiment.roster(number)
        working = set(drawn.numbers) - drawn.dropped
        assert set(record.charges) == {experiment.sites[n].name for n in working} == set(record.sites)
        for n in working:
            assert record.charges[experiment.sites[n].name][2] == experiment.sampling(n).steps * drawn.epochs[n]
    for hospital in experiment.sites:
        spent = epsilon([Charge(*r.charges[hospital.name]) for r in records if hospital.name in r.charges], DELTA)
        assert 0.97 * 4 < spent <= 4


# the clip that follows


ADAPTIVE = Privacy(example=replace(EXAMPLE, adaptive=AdaptiveClip(rate=0.5)))


def test_a_clip_that_moves_is_remembered_from_round_to_round() -> None:
    experiment = private_trial(privacy=ADAPTIVE, share=0.5, stragglers=Stragglers(0.5, "drop"), rounds=6)
    before = {hospital.name: 0.5 for hospital in experiment.sites}
    moved = worked = 0
    for run, record in every_round(experiment):
        worked += len(record.sites)
        for name, memory in run.memories.items():
            clip = float(memory.protection["clip"])
            assert (clip != before[name]) == (name in record.sites)  # who is dropped or absent keeps the old one
            moved += clip != before[name]
            before[name] = clip
    assert moved == worked == 6  # of three sites in each round, two are dropped
    assert start(private_trial()).memories["site-1"].protection == {}


def test_the_remembered_clip_is_the_one_that_is_used() -> None:
    experiment = private_trial(privacy=ADAPTIVE, rounds=2)
    first, _ = next(every_round(experiment))
    forgot = replace(
        first,
        memories={
            name: replace(memory, protection=start(experiment).memories[name].protection)
            for name, memory in first.memories.items()
        },
    )
    second, _ = next(every_round(experiment, first))
    other, _ = next(every_round(experiment, forgot))
    assert not torch.equal(second.server["params"]["weight"], other.server["params"]["weight"])


@pytest.mark.parametrize("name", ["scaffold", "fedadam"])
@pytest.mark.parametrize("stop", represented([1, 3], by=[1]))
def test_a_run_that_is_written_down_and_read_goes_on_to_the_same_bits(name: str, stop: int) -> None:
    privacy = replace(ADAPTIVE, secure_sum=SecureSum())
    experiment = private_trial(ALGORITHMS[name](), privacy, rounds=5)
    whole = list(every_round(experiment))
    number, leaves = leaves_of_run(whole[stop - 1][0])
    resumed = restore_run([experiment], number, {key: leaf.clone() for key, leaf in leaves.items()})
    rest = list(every_round(experiment, resumed))
    assert_same(rest[-1][0], whole[-1][0])
    for hospital in experiment.sites:
        assert torch.equal(
            rest[-1][0].memories[hospital.name].protection["clip"],
            whole[-1][0].memories[hospital.name].protection["clip"],
        )
    assert [record for _, record in rest] == [record for _, record in whole[stop:]]


# secure sums


@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_secure_sum_gives_what_the_plain_sum_gives(name: str, precision: str) -> None:
    """To the fixed-point resolution: sums of six sites are off by three steps at most, and weights are exact."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    experiment = trial(ALGORITHMS[name](), ragged_sites(dtype=dtype), rounds=1, precision=precision)
    secure = replace(experiment, privacy=Privacy(secure_sum=SecureSum()))
    plain, record = next(every_round(experiment))
    masked, told_less = next(every_round(secure))
    off = 3 * encoding_of(SecureSum(), 6).resolution / 6  # of a mean over weights that sum to six or more
    rounding = 8 * torch.finfo(dtype).eps
    work = 12.0 if name == "fednova" else 1.0  # which its server multiplies the mean with
    gain = 200.0 if name in ("fedadam", "fedyogi", "fedadagrad") else 1.0  # they divide by roots of squares above tau
    for part, leaves in plain.server.items():
        for leaf, value in leaves.items():
            atol = gain * work * (off + rounding)
            assert torch.allclose(masked.server[part][leaf], value, rtol=1e-6, atol=atol), (part, leaf)
    assert record.loss is not None
    assert (told_less.loss, told_less.update_norm, told_less.divergence) == (None, None, None)
    assert told_less.sites == record.sites
    assert told_less.bytes_up > 0


def test_stragglers_that_are_dropped_are_dropouts_of_the_sum() -> None:
    experiment = trial(scaffold(), rounds=3, stragglers=Stragglers(0.33, "drop"))
    secure = replace(experiment, privacy=Privacy(secure_sum=SecureSum(threshold=4)))
    for (plain, record), (masked, also) in zip(every_round(experiment), every_round(secure), strict=True):
        assert len(record.dropped) == 2
        assert also.dropped == record.dropped
        assert also.failed == ""
        assert_same(plain, masked, atol=1e-7)


def test_below_the_threshold_a_round_fails_closed() -> None:
    """Four of six answer where five must: the model stays, and so does what every site remembers; it was paid for."""
    experiment = trial(scaffold(), rounds=3, stragglers=Stragglers(0.33, "drop"))
    secure = replace(experiment, privacy=Privacy(example=ADAPTIVE.example, secure_sum=SecureSum(threshold=5)))
    before = start(secure)
    for run, record in every_round(secure):
        assert "a sum takes 5" in record.failed
        assert_same(replace(run, round=0), before)
        assert all(
            torch.equal(m.protection["clip"], torch.tensor(0.5, dtype=torch.float64)) for m in run.memories.values()
        )
        assert record.sites == ()
        assert (record.loss, record.update_norm, record.divergence) == (None, None, None)
        assert record.change == 0
        assert len(record.charges) == 4


def test_an_update_beyond_the_cap_fails_the_round_and_says_whose_it_was() -> None:
    experiment = private_trial(privacy=Privacy(secure_sum=SecureSum(largest=1e-9)), rounds=1)
    before = start(experiment)
    run, record = next(every_round(experiment))
    assert record.failed.startswith("site-1: the update has an element beyond the cap")
    assert_same(replace(run, round=0), before)


# whole studies

STUDY: dict[str, Any] = {
    "name": "all-at-once",
    "data": {"source": "heart", "missing": "range", "indicator": False, "scale": "ranges", "public": True},
    "sites": {"partition": "by-hospital"},
    "model": {"kind": "logistic", "l2": 0.001},
    "training": {"rounds": 3, "batch_size": 64, "lr": 0.5},
    "privacy": {"example": {"epsilon": 2.0, "delta": DELTA, "clip": 1.0}, "secure_sum": {}},
    "evaluation": {"seeds": {"first": 1, "count": 1}, "reference": "neither"},
    "arms": [
        {"name": "both", "algorithm": "fedprox", "mu": 0.1},
        {"name": "open-sum", "algorithm": "fedprox", "mu": 0.1, "privacy.secure_sum": "off"},
        {"name": "sum-only", "algorithm": "fedprox", "mu": 0.1, "privacy.example": "off"},
        {
            "name": "neither",
            "algorithm": "fedprox",
            "mu": 0.1,
            "privacy.example": "off",
            "privacy.secure_sum": "off",
        },
        {"name": "adaptive", "algorithm": "scaffold", "privacy.example.adaptive": {"rate": 0.5}},
    ],
}


def records_of(folder: Path) -> dict[str, list[RoundRecord]]:
    by_arm: dict[str, list[RoundRecord]] = {}
    for record in wardround.read_records(folder):
        by_arm.setdefault(record.arm, []).append(record)
    return by_arm


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("whole")).folder


def test_fedprox_with_privacy_and_secure_sums_in_one_study_and_each_switched_off(whole: Path) -> None:
    records = records_of(whole)
    for arm, private in {"both": True, "open-sum": True, "sum-only": False, "neither": False, "adaptive": True}.items():
        assert len(records[arm]) == 3
        assert [bool(record.charges) for record in records[arm]] == [private] * 3, arm
        assert [record.loss is None for record in records[arm]] == [arm != "neither"] * 3, arm
        assert not any(record.failed for record in records[arm])
    for both, alone in zip(records["both"], records["open-sum"], strict=True):
        assert both.charges == alone.charges
        assert both.change == pytest.approx(alone.change, rel=1e-4)
    for summed, alone in zip(records["sum-only"], records["neither"], strict=True):
        assert summed.change == pytest.approx(alone.change, rel=1e-4)


@pytest.mark.parametrize("rounds_before", [2, pytest.param(14, marks=pytest.mark.slow)])
def test_a_private_study_that_is_stopped_goes_on_to_the_same_bits(
    whole: Path, tmp_path: Path, rounds_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    folder = RunFolder.of(plan.study, tmp_path)
    steps = execute(plan, folder)
    for _ in range(rounds_before):
        next(steps)
    steps.close()
    assert not folder.complete
    assert wardround.resume_study(folder.path).fresh
    assert numbers(folder.path) == numbers(whole)


@pytest.mark.slow
def test_augmented_steps_that_draw_nobody_work() -> None:
    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.integers(0, 255, (12, 1, 8, 8)), dtype=torch.uint8), torch.tensor(rng.integers(0, 2, 12))
    model = MODELS["cnn"](channels=(2, 2), hidden=4, kernel=3)(Shape((1, 8, 8), class_task(2)))
    augment = Augmentation(flip="both", rotate=5.0, crop=0.1, noise=0.01)
    experiment = trial(
        fedavg(), [site("one", x, y)], model, rounds=1, batch_size=1, precision="float32", augment=augment
    )
    experiment = replace(experiment, privacy=Privacy(example=EXAMPLE))
    assert any(
        len(step) == 0 for step in serial.order_of(experiment, experiment.sites[0], 0, experiment.training.local_epochs)
    )
    after, _ = next(every_round(experiment))
    assert all(bool(leaf.isfinite().all()) for leaf in after.server["params"].values())
