"""Asynchronous rounds against a few lines of numpy, and against the synchronous rounds that they become."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_federations import after, assert_same, each_round, ragged_sites, trial
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.core import seeds
from wardround.engines import serial
from wardround.study.schema import Deployment, Privacy, SecureSum
from wardround.study.timing import Asynchronous, Late, Slow, Speed, Timing
from wardround.training.local import batches
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.schedule import recorded_rosters
from wardround.training.trial import Run, Trial, on_clock

L2, LR = 0.01, 0.1
DRAWN = Timing(Speed(kind="lognormal"))
Weights = np.ndarray


def clocked(algorithm: Algorithm, timing: Timing = DRAWN, agreed: Deployment | None = None, **training: Any) -> Trial:
    return on_clock(trial(algorithm, **{"rounds": 30, **training}), timing, agreed or Deployment())


def recorded(known: Trial) -> tuple[Run, list[RoundRecord]]:
    """The last state, and the records of all rounds."""
    steps = list(rounds(start(known), known, serial.train_sites))
    return steps[-1][0], [record for _, record in steps]


def gradient(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    p = 1 / (1 + np.exp(-x @ w))
    slope = x.T @ (p - y) / len(x)
    slope[:-1] += L2 * w[:-1]
    return np.asarray(slope)


def local_work(known: Trial, site: int, began: int, w: Weights, mu: float = 0.0) -> Weights:
    """Two epochs of SGD with FedProx's pull, in the batches of the round in which work began."""
    rows = known.sites[site].train
    x, y, first = np.c_[rows.x.numpy(), np.ones(len(rows))], rows.y.numpy(), w
    rng = seeds.generator(known.batch_seed, "batches", began, known.sites[site].name)
    for step in batches(len(rows), 2, 4, rng):
        w = w - LR * (gradient(w, x[step.numpy()], y[step.numpy()]) + mu * (w - first))
    return w


def order_of(known: Trial, records: Sequence[RoundRecord]) -> list[list[tuple[int, int]]]:
    """Of each update: the sites by number, and how many updates ago each began."""
    number = {site.name: n for n, site in enumerate(known.sites)}
    return [[(number[name], record.staleness[name]) for name in record.sites] for record in records]


def weights_of(run: Run) -> Weights:
    return np.concatenate([leaf.numpy().ravel() for leaf in run.server["params"].values()])


def test_fedasync_is_that_of_the_paper_over_the_recorded_order() -> None:
    """Xie et al., arXiv:1903.03934, Algorithm 1: x_t = (1 - alpha_t) x_(t-1) + alpha_t x_new."""
    settings = Asynchronous(buffer=1, mixing=0.7)
    known = clocked(ALGORITHMS["fedprox"](mu=0.5), asynchronous=settings)
    run, records = recorded(known)
    models = [np.zeros(4)]
    for t, [(site, staleness)] in enumerate(order_of(known, records)):
        new = local_work(known, site, t - staleness, models[t - staleness], mu=0.5)
        alpha = 0.7 * (1 + staleness) ** -0.5
        models.append((1 - alpha) * models[t] + alpha * new)
    assert max(staleness for [(_, staleness)] in order_of(known, records)) > 3
    np.testing.assert_allclose(weights_of(run), models[-1], atol=1e-12)


@pytest.mark.parametrize("staleness", ["polynomial", "hinge", "none"])
def test_fedbuff_is_that_of_the_paper_over_the_recorded_order(staleness: Any) -> None:
    """Nguyen et al., AISTATS 2022, arXiv:2106.06639, Algorithm 1, with the sites' rows as weights."""
    settings = Asynchronous(buffer=3, staleness=staleness, **({"free": 1} if staleness == "hinge" else {}))
    known = clocked(ALGORITHMS["fedavg"](server_lr=0.8), asynchronous=settings)
    run, records = recorded(known)

    def worth(s: int) -> float:
        if staleness == "hinge":
            return 1.0 if s <= 1 else 1 / (1 + 10 * (s - 1))
        return 1 / float(np.sqrt(1 + s)) if staleness == "polynomial" else 1.0

    models = [np.zeros(4)]
    for t, buffer in enumerate(order_of(known, records)):
        rows = np.array([len(known.sites[site].train) for site, _ in buffer])
        moved = [local_work(known, site, t - s, models[t - s]) - models[t - s] for site, s in buffer]
        total = sum(n * worth(s) * delta for n, (_, s), delta in zip(rows, buffer, moved, strict=True))
        models.append(models[t] + 0.8 * total / rows.sum())
    assert max(s for buffer in order_of(known, records) for _, s in buffer) > 1
    np.testing.assert_allclose(weights_of(run), models[-1], atol=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_buffer_of_all_sites_is_the_synchronous_study_bit_for_bit(name: str, share: float) -> None:
    algorithm = ALGORITHMS[name]()
    synchronous = trial(algorithm, share=share)
    buffer = round(share * len(synchronous.sites))
    for settings in (Asynchronous(buffer=buffer, staleness="none"), Asynchronous(buffer=buffer)):
        buffered = clocked(algorithm, share=share, asynchronous=settings)
        for (one, first), (other, second) in zip(each_round(synchronous, 6), each_round(buffered, 6), strict=True):
            assert_same(one, other)
            assert second.but(time=None, staleness={}) == first
            assert set(second.staleness.values()) == {0}
            assert not other.earlier


def test_speeds_alone_change_no_number() -> None:
    plain, timed = trial(ALGORITHMS["scaffold"](), share=0.5), clocked(ALGORITHMS["scaffold"](), share=0.5)
    assert_same(after(plain, 6), after(timed, 6))


def test_a_recorded_order_is_replayed_bit_for_bit() -> None:
    known = clocked(ALGORITHMS["fedadam"](), asynchronous=Asynchronous(buffer=2))
    run, records = recorded(known)
    names = [site.name for site in known.sites]
    order = recorded_rosters(
        known.training, names, [(dict.fromkeys(record.sites, 2), record.staleness) for record in records]
    )
    again, repeated = recorded(replace(known, clock=None, recorded=order))
    assert_same(run, again)
    assert [record.staleness for record in repeated] == [record.staleness for record in records]


def test_models_that_work_began_with_are_saved_and_their_number_is_bounded() -> None:
    known = clocked(ALGORITHMS["fedavg"](), asynchronous=Asynchronous(buffer=1, most_stale=4))
    steps = [run for run, _ in rounds(start(known), known, serial.train_sites)]
    assert 1 < max(len(run.earlier) for run in steps) <= 4
    for reached in steps[:-1]:
        restored = serial.restore_run([known], *serial.leaves_of_run(reached))
        assert restored.earlier.keys() == reached.earlier.keys()
        for last, _ in rounds(restored, known, serial.train_sites):  # noqa: B007
            pass
        assert_same(last, steps[-1])


def test_late_work_that_is_used_is_fedbuffs_and_dropped_work_leaves_no_trace() -> None:
    agreed = Deployment(quorum=3, deadline=30.0)
    slow = Timing(Speed(slow=Slow(share=0.3, times=10)))
    dropped, records = recorded(clocked(ALGORITHMS["fedavg"](), slow, agreed))
    assert any(record.dropped for record in records)
    assert all(set(record.sites) < {f"site-{n}" for n in range(1, 7)} for record in records)
    assert not any(record.staleness for record in records)
    known = clocked(ALGORITHMS["fedavg"](), slow, agreed, late=Late(exponent=1.0))
    used, records = recorded(known)
    assert max(s for record in records for s in record.staleness.values()) > 1
    assert not torch.equal(next(iter(used.server["params"].values())), next(iter(dropped.server["params"].values())))
    models = [np.zeros(4)]
    for t, arrived in enumerate(order_of(known, records)):
        rows = np.array([len(known.sites[site].train) for site, _ in arrived])
        moved = [local_work(known, site, t - s, models[t - s]) - models[t - s] for site, s in arrived]
        total = sum(n / (1 + s) * delta for n, (_, s), delta in zip(rows, arrived, moved, strict=True))
        models.append(models[t] + total / rows.sum())
    np.testing.assert_allclose(weights_of(used), models[-1], atol=1e-12)


def test_a_secure_sum_of_a_buffer_gives_what_its_updates_give_in_the_clear() -> None:
    known = clocked(ALGORITHMS["fedavg"](), asynchronous=Asynchronous(buffer=3), rounds=8)
    secure = replace(known, privacy=Privacy(secure_sum=SecureSum(most_rows=100, largest=100.0)))
    (one, records), (other, hidden) = recorded(known), recorded(secure)
    assert_same(one, other, atol=1e-9)
    assert [record.staleness for record in hidden] == [record.staleness for record in records]
    assert max(s for record in records for s in record.staleness.values()) > 0
    assert not any(record.failed for record in hidden)


def test_sites_of_different_size_are_all_heard_and_virtual_time_counts_their_rows() -> None:
    known = clocked(ALGORITHMS["fedavg"](), Timing(Speed()), asynchronous=Asynchronous(buffer=1), rounds=40)
    _, records = recorded(known)
    heard = {name for record in records for name in record.sites}
    assert heard == {site.name for site in ragged_sites()}
    assert records[0].sites == ("site-1",)  # 5 rows
    assert records[0].time == 5 * 2
