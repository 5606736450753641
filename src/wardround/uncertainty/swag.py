"""SWAG: a normal distribution of all weights from the shared models of late rounds (Maddox et al., NeurIPS 2019,
arXiv:1902.02476).

After each of the later rounds the coordinator adds the model that it has just made to a running mean, a running sum of
squared deviations, and a window of the last RANK deviations:

    w ~ N(mean, scale^2 x (variance + D D' / (K - 1)) / 2)        K: deviations in the window

These moments are parts of the server's state. So they are saved in checkpoints and with the model, resumed exactly, and
the same in every engine and in a deployment, where they go out with the final model. They are functions of models that
the sites were sent anyway: under differential privacy they are post-processing and cost nothing, and a secure sum
hides of a site what it hid before. No site sends anything for them.

How far averaged models wander does not say how wide the posterior is: it depends on learning rate, batches and number
of sites. So `scale` is chosen on validation rows, as Laplace's prior is; it stays 1 where patients are protected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Arrival, setting
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.core.tree import State, Tree
from wardround.models import Model
from wardround.study.schema import Arm

LATE = 0.5  # of the rounds, whose models are collected
RANK = 10  # deviations that are kept
LEAST_ROUNDS = 4  # two models at least are needed for a deviation
SCALES = tuple(10.0 ** (exponent / 2) for exponent in range(-2, 5))  # tried, from 0.1 to 100
PASSES_OF_CHOICE = 10  # with which a scale is tried
CELLS = 2**22  # numbers of rows at a time, so that a network's activations fit into memory

COUNTS, MEAN, SQUARES, DEVIATION = "swag", "swag mean", "swag squares", "swag deviation"  # parts of the server's state


@dataclass(frozen=True, eq=False)
class Swag:
    mean: Tree
    variance: Tree
    deviations: tuple[Tree, ...]
    scale: float = 1.0


# Moments of the models of late rounds


def collecting(arm: Arm, algorithm: Algorithm, rounds: int) -> Algorithm:
    """The arm's algorithm, which also collects moments where the arm asks for them."""
    if arm.uncertainty is None or arm.uncertainty.method != "swag" or arm.held_out is not None:
        return algorithm
    problem = _unfit(algorithm, rounds)
    if problem:
        remedy = 'Write `"uncertainty.method" = "none"` in this arm, or use laplace, dropout or an ensemble.'
        raise StudyError(f"arms: {arm.name}: uncertainty: method", problem, remedy)
    return with_moments(algorithm, rounds - round(LATE * rounds))


def _unfit(algorithm: Algorithm, rounds: int) -> str:
    if algorithm.vertical:
        return "SWAG follows one model from round to round, and here parties have parts of one each"
    if algorithm.alone or algorithm.personal:
        return "SWAG follows the shared model, and in this arm sites predict with models of their own"
    if algorithm.regions is not None:
        return "SWAG follows the model of every round, and the model of all regions is made in some rounds only"
    if rounds < LEAST_ROUNDS:
        return f"SWAG needs the models of {LEAST_ROUNDS} rounds or more, and there are {rounds}"
    return ""


def with_moments(inner: Algorithm, first: int) -> Algorithm:
    """`inner`, whose state also has the moments of its models after the `first` ones."""

    def init(params: Tree, sites: int) -> State:
        zeros = tree.zeros_like(params)
        window = {f"{DEVIATION} {place}": zeros for place in range(RANK)}
        counts = {"seen": setting(0.0, params), "collected": setting(0.0, params)}
        return {**inner.init(params, sites), COUNTS: counts, MEAN: zeros, SQUARES: zeros, **window}

    def aggregate(server: State, mean: State, share: float) -> State:
        return _with_model(inner.aggregate(server, mean, share), first)

    def aggregate_each(server: State, arrivals: Sequence[Arrival]) -> State:
        assert inner.aggregate_each is not None  # noqa: S101 - only such an algorithm has this function
        return _with_model(inner.aggregate_each(server, arrivals), first)

    return replace(
        inner,
        init=init,
        aggregate=aggregate,
        aggregate_each=None if inner.aggregate_each is None else aggregate_each,
        posterior=moments,
    )


def moments(server: State) -> State:
    """The parts of a state that tell the distribution of its weights."""
    return {part: leaves for part, leaves in server.items() if part == COUNTS or part.startswith(f"{COUNTS} ")}


def _with_model(server: State, first: int) -> State:
    """Welford's update, which keeps its precision where models hardly differ. The same for a stack of runs."""
    seen = server[COUNTS]["seen"] + 1
    late = (seen > first).to(seen.dtype)
    collected = server[COUNTS]["collected"] + late
    before = tree.sub(server["params"], server[MEAN])
    mean = tree.add(server[MEAN], tree.scale(before, late / collected.clamp(min=1)))
    after = tree.sub(server["params"], mean)
    products = tree.apply(torch.mul, before, after)

    def shifted(place: int) -> Tree:
        newer = server[f"{DEVIATION} {place + 1}"] if place + 1 < RANK else after
        older = server[f"{DEVIATION} {place}"]
        return tree.apply(lambda new, old: torch.where(tree.align(late, new) > 0, new, old), newer, older)

    return {
        **server,
        COUNTS: {"seen": seen, "collected": collected},
        MEAN: mean,
        SQUARES: tree.add(server[SQUARES], tree.scale(products, late)),
        **{f"{DEVIATION} {place}": shifted(place) for place in range(RANK)},
    }


# The distribution


def fit_swag(server: State, params: Tree) -> Swag:
    """From the moments in a state. Where less than two models counted, all is at `params`."""
    collected = int(server[COUNTS]["collected"])
    if collected < 2:  # no update came in the later rounds
        return Swag(dict(params), tree.zeros_like(params), ())
    window = range(max(0, RANK - collected), RANK)
    return Swag(
        dict(server[MEAN]),
        tree.scale(server[SQUARES], 1 / collected),
        tuple(dict(server[f"{DEVIATION} {place}"]) for place in window),
    )


def swag_passes(fitted: Swag, model: Model, buffers: Tree, x: Tensor, passes: int, rng: np.random.Generator) -> Tensor:
    """(passes, rows, outputs), as `mc_dropout` gives them: scores of networks whose weights are drawn. All rows go
    through the same networks."""
    size = max(1, CELLS // max(1, x[:1].numel()))
    with torch.no_grad():
        networks = [drawn_weights(fitted, rng) for _ in range(passes)]
        parts = [
            torch.stack([model.logits(weights, buffers, part, None)[0] for weights in networks])
            for part in torch.split(x, size)
        ]
    return torch.cat(parts, dim=1)


def drawn_weights(fitted: Swag, rng: np.random.Generator) -> Tree:
    """By name, so that the order of leaves in a file does not matter."""
    along = rng.standard_normal(len(fitted.deviations))
    drawn = {}
    for name in sorted(fitted.mean):
        mean = fitted.mean[name]
        by_itself = torch.as_tensor(rng.standard_normal(tuple(mean.shape)), dtype=mean.dtype)
        deviation = fitted.variance[name].sqrt() * by_itself
        for factor, leaves in zip(along, fitted.deviations, strict=True):
            deviation = deviation + float(factor) / (len(along) - 1) ** 0.5 * leaves[name]
        drawn[name] = mean + fitted.scale / 2**0.5 * deviation
    return {name: drawn[name] for name in fitted.mean}


def choose_scale(
    fitted: Swag,
    model: Model,
    buffers: Tree,
    validation: Sequence[tuple[Tensor, Tensor]],
    draws: Callable[[], np.random.Generator],
) -> Swag:
    """With the scale under which validation rows, in batches, are most likely; the highest of equals. `draws` begins
    the same stream anew for each scale."""
    rows = sum(len(y) for _, y in validation)
    if not rows or not fitted.deviations:
        return fitted

    def loss(scale: float) -> float:
        tried, total, squares = replace(fitted, scale=scale), 0.0, 0.0
        of_batches = []
        for x, y in validation:
            scores = swag_passes(tried, model, buffers, x, PASSES_OF_CHOICE, draws()).double()
            of_batches.append((scores.mean(0), scores.var(0), y))
            if model.task.has_noise:
                squares += float(model.task.losses_and_errors(of_batches[-1][0], y)[1].square().sum())
        noise = max(squares / rows, torch.finfo(torch.float64).eps) if model.task.has_noise else 1.0
        for centre, variance, y in of_batches:
            total += float(model.task.expected_losses(centre, variance, y, noise).sum())
        return total / rows

    losses = {scale: loss(scale) for scale in SCALES}
    known = [scale for scale, value in losses.items() if np.isfinite(value)]
    return replace(fitted, scale=min(reversed(known), key=losses.__getitem__, default=1.0))
