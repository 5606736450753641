"""Every algorithm against a few lines of numpy, written from its paper: sites are absent, late or dropped meanwhile.

A reference shares two things with the package: who works in a round (`assign`) and the order of rows (`batches`). The
gradient, the steps, the learning rate, the weights and the server's side it does by itself. Weights are one matrix with
a row per score; its last column is the intercept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.small_federations import after, each_round, ragged_sites, trial
from wardround.algorithms import ALGORITHMS
from wardround.core import seeds
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.study.schema import Decay, Stragglers
from wardround.training.local import batches
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial, assign

L2 = 0.01  # as in tests.small_federations.trial
ROUNDS = 6
CLOSE = 1e-10
LR, FACTOR, EVERY, MINIMUM = 0.3, 0.7, 2, 0.15  # 0.3 0.3 0.21 0.21 0.15 0.15, where 0.147 would be below the minimum

ABSENT = {"share": 0.5, "stragglers": None}
LATE = {"share": 0.5, "stragglers": Stragglers(0.7, "keep")}
DROPPED = {"share": 0.7, "stragglers": Stragglers(0.5, "drop")}
EVERYONE = {"share": 1.0, "stragglers": Stragglers(0.5, "keep")}
ROSTERS = pytest.mark.parametrize(
    ("roster", "classes"),
    [(ABSENT, 2), (LATE, 3), (DROPPED, 2), (EVERYONE, 3)],
    ids=["absent", "late", "dropped", "everyone"],
)

Weights = np.ndarray
Correction = Callable[[Weights], Weights]


@dataclass
class Visit:
    """One site's work in one round, as arrays."""

    site: int
    x: np.ndarray  # with a column of ones
    y: np.ndarray
    steps: list[np.ndarray]  # row numbers of each
    lr: float


class Federation:
    """What the references are told of a trial."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.x = [np.c_[site.train.x.numpy(), np.ones(len(site.train))] for site in trial.sites]
        self.y = [site.train.y.numpy() for site in trial.sites]
        self.start = np.zeros((trial.model.task.outputs, self.x[0].shape[1]))

    def visits(self, round_number: int) -> list[Visit]:
        """Of the sites whose work counts."""
        training = self.trial.training
        lr = max(LR * FACTOR ** (round_number // EVERY), MINIMUM)
        return [
            Visit(a.number, self.x[a.number], self.y[a.number], [step.numpy() for step in order], lr)
            for a in assign(self.trial, round_number)
            if a.counts
            for rng in [seeds.generator(self.trial.batch_seed, "batches", round_number, a.site.name)]
            for order in [batches(len(self.y[a.number]), a.epochs, training.batch_size, rng)]
        ]


def probability(w: Weights, x: np.ndarray) -> np.ndarray:
    """Of each class; of the second alone where there are two."""
    e = np.exp(x @ w.T)
    return np.asarray(e / (1 + e) if len(w) == 1 else e / e.sum(1, keepdims=True))


def gradient(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Of the mean cross-entropy plus L2/2 times the squared weights, without the intercepts."""
    label = y[:, None] if len(w) == 1 else np.eye(len(w))[y]
    slope = (probability(w, x) - label).T @ x / len(x)
    slope[:, :-1] += L2 * w[:, :-1]
    return np.asarray(slope)


def loss(w: Weights, x: np.ndarray, y: np.ndarray) -> float:
    p = probability(w, x)
    of_label = np.where(y == 1, p[:, 0], 1 - p[:, 0]) if len(w) == 1 else p[np.arange(len(y)), y]
    return float(-np.log(of_label).mean() + L2 / 2 * (w[:, :-1] ** 2).sum())


def descend(w: Weights, visit: Visit, correction: Correction = np.zeros_like, momentum: float = 0.0) -> Weights:
    velocity = np.zeros_like(w)
    for rows in visit.steps:
        velocity = momentum * velocity + gradient(w, visit.x[rows], visit.y[rows]) + correction(w)
        w = w - visit.lr * velocity
    return w


def mean(values: Iterable[Any], weights: list[int]) -> Any:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def fedavg(world: Federation, server_lr: float = 1.0, mu: float = 0.0, momentum: float = 0.0) -> Weights:
    """FedProx with mu: local steps on F_k(w) + mu/2 |w - w_t|^2."""
    w = world.start
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            ends = [descend(w, v, lambda at, w=w: mu * (at - w), momentum) for v in visits]  # type: ignore[misc]
            w = w + server_lr * (mean(ends, [len(v.y) for v in visits]) - w)
    return w


def fedprox_adaptive(world: Federation, mu: float, step: float, patience: int) -> tuple[Weights, list[float]]:
    """Section 5.3: mu rises when the loss rises and falls when it fell `patience` times in a row."""
    w, last, falls, used = world.start, np.nan, 0, []
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            rows = [len(v.y) for v in visits]
            now = mean([loss(w, v.x, v.y) for v in visits], rows)
            w = mean([descend(w, v, lambda at, w=w, mu=mu: mu * (at - w)) for v in visits], rows)  # type: ignore[misc]
            falls = falls + 1 if now < last else 0
            if now > last:
                mu += step
            if falls == patience:
                mu, falls = max(mu - step, 0.0), 0
            last = now
        used.append(mu)
    return w, used


def scaffold(world: Federation, server_lr: float) -> tuple[Weights, Weights, list[Weights]]:
    """Algorithm 1 with option II for the controls."""
    sites = len(world.y)
    x, c, controls = world.start, np.zeros_like(world.start), [np.zeros_like(world.start)] * sites
    for t in range(ROUNDS):
        moves, changes = [], []
        for v in world.visits(t):
            own = controls[v.site]
            y = descend(x, v, lambda at, own=own, c=c: c - own)  # type: ignore[misc]
            controls[v.site] = own - c + (x - y) / (len(v.steps) * v.lr)
            moves.append(y - x)
            changes.append(controls[v.site] - own)
        if moves:
            x = x + server_lr * np.mean(moves, axis=0)
            c = c + len(changes) / sites * np.mean(changes, axis=0)
    return x, c, controls


def fednova(world: Federation, server_lr: float, rho: float) -> Weights:
    """Equation 8 with the default tau_eff. For momentum the length of a_i has a closed form (section 4.2)."""
    x = world.start
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            p = [len(v.y) for v in visits]
            tau = np.array([len(v.steps) for v in visits])
            a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
            directions = [(x - descend(x, v, momentum=rho)) / (v.lr * a_i) for v, a_i in zip(visits, a, strict=True)]
            x = x - server_lr * mean(a, p) * visits[0].lr * mean(directions, p)
    return x


def fedopt(world: Federation, kind: str, eta: float, beta1: float, beta2: float, tau: float) -> Weights:
    """Algorithm 2, with sites weighted by their rows."""
    x, m, v = world.start, np.zeros_like(world.start), np.full_like(world.start, tau**2)
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            delta = mean([descend(x, visit) for visit in visits], [len(visit.y) for visit in visits]) - x
            m = beta1 * m + (1 - beta1) * delta
            v = {
                "fedadagrad": v + delta**2,
                "fedyogi": v - (1 - beta2) * delta**2 * np.sign(v - delta**2),
                "fedadam": beta2 * v + (1 - beta2) * delta**2,
            }[kind]
            x = x + eta * m / (np.sqrt(v) + tau)
    return x


def clustered(
    world: Federation, slots: int, ratio: float, gamma: float, warm_up: int, smallest_update: float
) -> dict[int, Weights]:
    """The model of each site. Every cut of a cluster is tried, where the package merges the most similar sites."""
    clusters, peak = [(list(range(len(world.y))), world.start)], 0.0
    for t in range(ROUNDS):
        groups: list[tuple[list[int], Weights]] = []
        new: list[tuple[list[int], Weights]] = []
        visits = world.visits(t)
        for members, start in clusters:
            here = [v for v in visits if v.site in members]
            moves = {v.site: descend(start, v) - start for v in here}
            end = start + mean(list(moves.values()), [len(v.y) for v in here]) if here else start
            largest = max((np.linalg.norm(move) for move in moves.values()), default=0.0)
            peak = max([peak, *(float(np.linalg.norm(move)) for move in moves.values())])
            pulled_apart = np.linalg.norm(end - start) < ratio * largest and largest > smallest_update * peak
            if t >= warm_up and len(here) == len(members) > 1 and pulled_apart and len(clusters) + len(new) < slots:
                across, leaving = min((cosine_across(moves, group), group) for group in groups_without_first(members))
                if gamma < np.sqrt((1 - across) / 2):
                    new.append((list(leaving), end))
                    members = [site for site in members if site not in leaving]
            groups.append((members, end))
        clusters = groups + new
    return {site: w for members, w in clusters for site in members}


def groups_without_first(members: list[int]) -> list[tuple[int, ...]]:
    return [group for size in range(1, len(members)) for group in combinations(members[1:], size)]


def cosine_across(moves: dict[int, Weights], group: tuple[int, ...]) -> float:
    """The largest similarity of a site in the group and one outside of it."""
    unit = {site: move.ravel() / np.linalg.norm(move) for site, move in moves.items()}
    return max(float(unit[a] @ unit[b]) for a in group for b in moves if b not in group)


def alone(world: Federation) -> list[Weights]:
    w = [world.start] * len(world.y)
    for t in range(ROUNDS):
        for v in world.visits(t):
            w[v.site] = descend(w[v.site], v)
    return w


def qfedavg(world: Federation, q: float) -> Weights:
    """Algorithm 2, lines 5 to 7. Sites are drawn evenly, so that their rows stand in the sums."""
    w = world.start
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            steepness = 1 / visits[0].lr  # L
            losses = [loss(w, v.x, v.y) for v in visits]
            changes = [steepness * (w - descend(w, v)) for v in visits]
            deltas = [f**q * change for f, change in zip(losses, changes, strict=True)]
            h = [
                q * f ** (q - 1) * np.sum(change**2) + steepness * f**q
                for f, change in zip(losses, changes, strict=True)
            ]
            rows = [len(v.y) for v in visits]
            w = w - sum(n * d for n, d in zip(rows, deltas, strict=True)) / np.dot(rows, h)
    return w


def afl(world: Federation, mixture_lr: float) -> tuple[Weights, np.ndarray]:
    """Figure 3 with local epochs; the shift that projects is found by halving an interval."""
    w, mixture = world.start, np.full(len(world.y), 1 / len(world.y))
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            here = [v.site for v in visits]
            old, total = mixture[here], mixture[here].sum()
            risen = old + mixture_lr * np.array([loss(w, v.x, v.y) for v in visits])
            w = mean([descend(w, v) for v in visits], list(old))
            low, high = risen.min() - total, risen.max()
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if np.maximum(risen - middle, 0).sum() > total else (low, middle)
            mixture[here] = np.maximum(risen - low, 0)
    return w, mixture


def ditto(world: Federation, lam: float) -> tuple[Weights, list[Weights]]:
    """Algorithm 1: FedAvg, and of each site a model with steps on F_k(v) + lam/2 |v - w_t|^2."""
    w, own = world.start, [world.start] * len(world.y)
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            for v in visits:
                own[v.site] = descend(own[v.site], v, lambda at, w=w: lam * (at - w))  # type: ignore[misc]
            w = mean([descend(w, v) for v in visits], [len(v.y) for v in visits])
    return w, own


def reptile(world: Federation, server_lr: float) -> tuple[Weights, list[Weights | None]]:
    tuned: list[Weights | None] = [None] * len(world.y)
    w = world.start
    for t in range(ROUNDS):
        ends = {v.site: descend(w, v) for v in world.visits(t)}
        for site, end in ends.items():
            tuned[site] = end
        if ends:
            w = w + server_lr * np.mean([end - w for end in ends.values()], axis=0)
    return w, tuned


def a_trial(name: str, classes: int, roster: dict[str, Any], flipped: int = 0, **settings: Any) -> Trial:
    training = {key: settings.pop(key) for key in ("optimiser", "momentum", "weight_decay") if key in settings}
    decay = Decay(FACTOR, EVERY, MINIMUM)
    sites = ragged_sites(classes, flipped=flipped)
    algorithm = ALGORITHMS[name](**settings)
    return trial(algorithm, sites, classes=classes, local_epochs=3, lr=LR, lr_decay=decay, **roster, **training)


def matrix(leaves: Tree) -> Weights:
    return np.hstack([leaves["weight"].numpy(), leaves["bias"].numpy()[:, None]])


def shared_model(run: Run) -> Weights:
    return matrix(run.server["params"])


def assert_close(actual: Weights, expected: Weights, atol: float = CLOSE) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
    assert np.abs(expected).max() > 0.05  # a model that has learnt something


@ROSTERS
def test_the_rosters_hold_what_their_names_say(roster: dict[str, Any], classes: int) -> None:
    """Otherwise the tests below would compare less than they claim."""
    arm = a_trial("fedavg", classes, roster)
    assigned = [a for t in range(ROUNDS) for a in assign(arm, t)]
    late = roster["stragglers"]
    assert (len(assigned) < ROUNDS * len(arm.sites)) == (roster["share"] < 1)
    assert any(a.epochs < 3 for a in assigned) == (late is not None)
    assert all(a.counts for a in assigned) == (late is None or late.policy == "keep")
    assert any(a.counts for a in assigned)


@ROSTERS
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_fedavg(roster: dict[str, Any], classes: int, server_lr: float) -> None:
    arm = a_trial("fedavg", classes, roster, server_lr=server_lr)
    assert_close(shared_model(after(arm, ROUNDS)), fedavg(Federation(arm), server_lr))


@ROSTERS
@pytest.mark.parametrize("mu", [0.0, 0.05, 1.0])
def test_fedprox(roster: dict[str, Any], classes: int, mu: float) -> None:
    arm = a_trial("fedprox", classes, roster, mu=mu, server_lr=0.9)
    assert_close(shared_model(after(arm, ROUNDS)), fedavg(Federation(arm), 0.9, mu))


@ROSTERS
@pytest.mark.parametrize(("mu", "patience"), [(0.0, 1), (0.25, 2)])
def test_fedprox_with_adaptive_mu(roster: dict[str, Any], classes: int, mu: float, patience: int) -> None:
    arm = a_trial("fedprox-adaptive", classes, roster, mu=mu, step=0.1, patience=patience)
    ended, used = fedprox_adaptive(Federation(arm), mu, 0.1, patience)
    runs = list(each_round(arm, ROUNDS))
    assert [float(run.server["settings"]["mu"]) for run, _ in runs] == pytest.approx(used, abs=CLOSE)
    assert_close(shared_model(runs[-1][0]), ended)
    assert len(set(used)) > 1 or roster is EVERYONE  # elsewhere mu has moved


@ROSTERS
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_scaffold(roster: dict[str, Any], classes: int, server_lr: float) -> None:
    arm = a_trial("scaffold", classes, roster, server_lr=server_lr)
    run = after(arm, ROUNDS)
    x, c, controls = scaffold(Federation(arm), server_lr)
    assert_close(shared_model(run), x)
    np.testing.assert_allclose(matrix(run.server["control"]), c, rtol=0, atol=CLOSE)
    for site, control in zip(arm.sites, controls, strict=True):
        np.testing.assert_allclose(matrix(run.memories[site.name].algorithm["control"]), control, rtol=0, atol=CLOSE)


@ROSTERS
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_fednova(roster: dict[str, Any], classes: int, momentum: float) -> None:
    arm = a_trial("fednova", classes, roster, server_lr=0.8, momentum=momentum)
    assert_close(shared_model(after(arm, ROUNDS)), fednova(Federation(arm), 0.8, momentum))


@ROSTERS
@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_fedopt(roster: dict[str, Any], classes: int, name: str) -> None:
    settings: dict[str, Any] = {"server_lr": 0.3, "beta1": 0.7, "tau": 0.02} | (
        {} if name == "fedadagrad" else {"beta2": 0.8}
    )
    arm = a_trial(name, classes, roster, **settings)
    assert_close(shared_model(after(arm, ROUNDS)), fedopt(Federation(arm), name, 0.3, 0.7, 0.8, 0.02))


@ROSTERS
def test_clustered(roster: dict[str, Any], classes: int) -> None:
    settings: dict[str, Any] = {"slots": 3, "ratio": 0.8, "gamma": 0.3, "warm_up": 2, "smallest_update": 0.3}
    arm = a_trial("clustered", classes, roster, flipped=3, **settings)
    run = after(arm, ROUNDS)
    models = clustered(Federation(arm), **settings)
    for site, expected in models.items():
        assert_close(matrix(arm.algorithm.broadcast(run.server, site)["params"]), expected)
    if roster is EVERYONE:
        assert len({w.tobytes() for w in models.values()}) == 3  # every slot is used


@ROSTERS
@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_qfedavg(roster: dict[str, Any], classes: int, q: float) -> None:
    arm = a_trial("qfedavg", classes, roster, q=q)
    assert_close(shared_model(after(arm, ROUNDS)), qfedavg(Federation(arm), q))


@ROSTERS
def test_afl(roster: dict[str, Any], classes: int) -> None:
    arm = a_trial("afl", classes, roster, flipped=1, mixture_lr=0.3)
    run, (w, mixture) = after(arm, ROUNDS), afl(Federation(arm), 0.3)
    assert_close(shared_model(run), w)
    np.testing.assert_allclose(run.server["mixture"]["weight"].numpy(), mixture, rtol=0, atol=CLOSE)
    assert (mixture == 0).any() or roster is not EVERYONE  # somebody has lost all weight


@ROSTERS
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_ditto(roster: dict[str, Any], classes: int, lam: float) -> None:
    arm = a_trial("ditto", classes, roster, lam=lam)
    run, (w, own) = after(arm, ROUNDS), ditto(Federation(arm), lam)
    assert_close(shared_model(run), w)
    for number, expected in enumerate(own):
        assert_close(matrix(site_model(arm, run, number)[0]), expected)


@ROSTERS
def test_reptile(roster: dict[str, Any], classes: int) -> None:
    arm = a_trial("reptile", classes, roster, server_lr=0.6)
    run, (w, tuned) = after(arm, ROUNDS), reptile(Federation(arm), 0.6)
    assert_close(shared_model(run), w)
    for number, expected in enumerate(tuned):
        assert_close(matrix(site_model(arm, run, number)[0]), w if expected is None else expected)


@ROSTERS
def test_local(roster: dict[str, Any], classes: int) -> None:
    arm = a_trial("local", classes, roster)
    run = after(arm, ROUNDS)
    for site, expected in zip(arm.sites, alone(Federation(arm)), strict=True):
        assert_close(matrix(run.memories[site.name].algorithm["params"]), expected)


@pytest.mark.parametrize(("roster", "classes"), [(ABSENT, 3), (EVERYONE, 2)], ids=["absent", "everyone"])
def test_pooled_is_gradient_descent_on_all_rows(roster: dict[str, Any], classes: int) -> None:
    arm = a_trial("pooled", classes, roster)
    world = Federation(arm)
    assert [len(y) for y in world.y] == [sum(len(site.train) for site in arm.scored)]
    assert_close(shared_model(after(arm, ROUNDS)), alone(world)[0])


@ROSTERS
def test_momentum_restarts_in_each_round(roster: dict[str, Any], classes: int) -> None:
    arm = a_trial("fedavg", classes, roster, momentum=0.9)
    assert_close(shared_model(after(arm, ROUNDS)), fedavg(Federation(arm), momentum=0.9))


OPTIMISERS = [
    pytest.param({}, CLOSE, id="sgd"),
    pytest.param({"momentum": 0.9}, CLOSE, id="momentum"),
    pytest.param({"weight_decay": 0.1}, CLOSE, id="weight-decay"),
    pytest.param({"momentum": 0.9, "weight_decay": 0.1}, CLOSE, id="momentum-and-weight-decay"),
    pytest.param({"optimiser": "adam"}, CLOSE, id="adam"),
    pytest.param({"optimiser": "adam", "weight_decay": 0.1}, CLOSE, id="adam-and-weight-decay"),
]


@pytest.mark.parametrize("roster", [LATE, DROPPED], ids=["late", "dropped"])
@pytest.mark.parametrize(("settings", "atol"), OPTIMISERS)
def test_local_optimisers_are_those_of_torch_begun_anew_each_round(
    settings: dict[str, Any], atol: float, roster: dict[str, Any]
) -> None:
    arm = a_trial("fedavg", 2, roster, **settings)
    assert_close(shared_model(after(arm, ROUNDS)), trained_with_torch(arm, settings), atol)


def test_adam_is_as_precise_as_the_study() -> None:
    arm = a_trial("fedavg", 2, ABSENT, optimiser="adam")
    assert_close(shared_model(after(arm, ROUNDS)), trained_with_torch(arm, {"optimiser": "adam"}))


def trained_with_torch(arm: Trial, settings: dict[str, Any]) -> Weights:
    world = Federation(arm)
    w = world.start
    for t in range(ROUNDS):
        visits = world.visits(t)
        if visits:
            with torch_threads(1):
                w = mean([step_with_torch(w, v, settings) for v in visits], [len(v.y) for v in visits])
    return w


def step_with_torch(w: Weights, visit: Visit, settings: dict[str, Any]) -> Weights:
    linear = nn.Linear(w.shape[1] - 1, 1, dtype=torch.float64)
    linear.load_state_dict({"weight": torch.tensor(w[:, :-1]), "bias": torch.tensor(w[:, -1])})
    options = {key: value for key, value in settings.items() if key != "optimiser"}
    kind = torch.optim.Adam if settings.get("optimiser") == "adam" else torch.optim.SGD
    optimiser = kind(linear.parameters(), lr=visit.lr, **options)
    for rows in visit.steps:
        scores = linear(torch.tensor(visit.x[rows, :-1])).squeeze(1)
        entropy = nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor(visit.y[rows]).double())
        optimiser.zero_grad()
        torch.autograd.backward(entropy + L2 / 2 * linear.weight.square().sum())
        optimiser.step()
    return matrix({name: leaf.detach() for name, leaf in linear.named_parameters()})
