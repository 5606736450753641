"""Small federations for tests: ragged hospitals, trials of a few rounds, and runs compared part by part."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.algorithms import Algorithm
from wardround.core.tree import State, Tree
from wardround.data.site import Rows, Site, join
from wardround.engines import serial
from wardround.models import Model, Shape
from wardround.models.logistic import logistic
from wardround.study.schema import Training
from wardround.tasks import class_task
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.trial import Run, Trial

RAGGED = (5, 23, 8, 14, 11, 19)  # rows per site: no two alike, and no batch size divides them all
NOWHERE = np.array([], dtype=np.int64)


def ragged_sites(
    classes: int = 2,
    sizes: Sequence[int] = RAGGED,
    inputs: tuple[int, ...] = (3,),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    flipped: int = 0,
) -> tuple[Site, ...]:
    """Sites that differ in size, in their features' mean and in their labels' rule.

    The labels of the last `flipped` sites are turned round, so that they contradict the others.
    """
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=(int(np.prod(inputs)), classes))
    sites = []
    for number, size in enumerate(sizes):
        x = rng.normal(rng.normal(scale=0.5), 1, size=(size, len(rule)))
        scores = x @ (rule + rng.normal(scale=0.5, size=rule.shape)) + rng.normal(size=(size, classes))
        y = scores.argmax(1)
        if number >= len(sizes) - flipped:
            y = classes - 1 - y
        sites.append(site(f"site-{number + 1}", torch.tensor(x, dtype=dtype).reshape(size, *inputs), torch.tensor(y)))
    return tuple(sites)


def site(name: str, x: Tensor, y: Tensor) -> Site:
    """All rows train; validation and test are empty."""
    nothing = Rows(x[:0], y[:0])
    return Site(name, Rows(x, y), nothing, nothing, NOWHERE, NOWHERE)


def pooled_site(sites: Sequence[Site]) -> Site:
    rows = join([hospital.train for hospital in sites])
    return site("pooled", rows.x, rows.y)


def trial(
    algorithm: Algorithm,
    sites: Sequence[Site] | None = None,
    model: Model | None = None,
    classes: int = 2,
    seed: int = 7,
    **training: Any,
) -> Trial:
    """Logistic regression with a penalty on ragged sites in float64, unless something else is asked for."""
    sites = ragged_sites(classes) if sites is None else sites
    if model is None:
        model = logistic(l2=0.01)(Shape(tuple(sites[0].train.x.shape[1:]), class_task(classes)))
    defaults: dict[str, Any] = {"rounds": 6, "local_epochs": 2, "batch_size": 4, "precision": "float64"}
    return Trial(
        arm="arm",
        seed=seed,
        algorithm=algorithm,
        model=model,
        training=Training(**{**defaults, **training}),
        sites=(pooled_site(sites),) if algorithm.pools else tuple(sites),
        scored=tuple(sites),
        batch_seed=seed,
        init_seed=seed,
    )


def after(trial: Trial, count: int, run: Run | None = None) -> Run:
    """The run when `count` rounds are over, from its beginning or from where `run` stands."""
    reached = start(trial) if run is None else run
    for reached, _ in each_round(trial, count, reached):  # noqa: B007, B020
        pass
    return reached


def each_round(trial: Trial, count: int, run: Run | None = None) -> Iterator[tuple[Run, RoundRecord]]:
    long_enough = replace(trial, training=replace(trial.training, rounds=count))
    return rounds(start(trial) if run is None else run, long_enough, serial.train_sites)


def parts_of(run: Run) -> dict[str, Tree]:
    """Every tree of a run, by a name that says where it is kept."""
    named = {f"server: {part}": leaves for part, leaves in run.server.items()}
    for owner, memory in run.memories.items():
        named |= {f"{owner}: memory: {part}": leaves for part, leaves in memory.algorithm.items()}
        named |= {f"{owner}: private": memory.private, f"{owner}: buffers": memory.buffers}
        named |= {f"{owner}: residual": memory.residual}
    return named


def assert_same(a: Run, b: Run, atol: float = 0.0) -> None:
    """Server and memories agree within `atol`; 0 asks for the same bits."""
    assert a.round == b.round
    first, second = parts_of(a), parts_of(b)
    assert first.keys() == second.keys()
    for part, leaves in first.items():
        assert_same_tree(leaves, second[part], atol, part)


def assert_same_tree(a: Tree, b: Tree, atol: float = 0.0, part: str = "tree") -> None:
    assert a.keys() == b.keys(), part
    for name, leaf in a.items():
        at = f"{part}: {name}: {leaf} is not {b[name]}"
        assert leaf.dtype == b[name].dtype, at
        assert leaf.shape == b[name].shape, at
        assert torch.allclose(leaf, b[name], rtol=0, atol=atol) if atol else torch.equal(leaf, b[name]), at


def assert_same_state(a: State, b: State, atol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for part, leaves in a.items():
        assert_same_tree(leaves, b[part], atol, part)
