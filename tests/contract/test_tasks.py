"""What every task promises, with every algorithm and in either engine. A new one is tested here by standing in TASKS:
its target is drawn from what it reads, and its settings are tried one by one."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.representatives import represented
from tests.small_federations import RAGGED, after, assert_same, site, trial
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import StudyError
from wardround.core.settings import alternatives, settings_of
from wardround.data.site import Site
from wardround.engines.serial import SERIAL
from wardround.engines.stacked.stacked import STACKED
from wardround.models import MODELS, Model, Shape, built
from wardround.models.model import SecondLabels
from wardround.study.schema import RowMixing
from wardround.tasks import TASKS, Task, read_task
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

FEATURES = 4
NAMES = {"classes": ("a", "b", "c"), "numbers": ("n",)}


def examples() -> Iterator[tuple[str, Task]]:
    """Each task with its defaults, and with every other word and some other number of each of its settings."""
    for kind, task in TASKS.items():
        names = NAMES[task.reads][: task.name_count or (2 if task.wrong_names(NAMES[task.reads]) else None)]
        plain = task(names)
        yield kind, plain
        for name, setting in settings_of(task).items():
            for value in other_values(setting.kind):
                if name != "names" and value != getattr(plain, name):
                    yield f"{kind}, {name} = {value}", task(names, **{name: value})


def other_values(kind: Any) -> Iterator[Any]:
    """Words that a setting may have, and one number; text names a column or a unit, which changes no arithmetic."""
    for alternative in alternatives(kind):
        if get_origin(alternative) is Literal:
            yield from get_args(alternative)
        elif get_origin(alternative) is tuple:
            yield (0.0, 60.0)
        elif alternative is float or get_args(alternative)[:1] == (float,):
            yield 0.7


EXAMPLES = dict(examples())


def target_of(task: Task, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As a source of such a task would deliver it."""
    score = x @ np.linspace(-1, 1, x.shape[1]) + rng.normal(size=len(x))
    if task.reads == "numbers":
        exposure = rng.uniform(0.5, 2.0, len(x))
        value = np.round(3 * np.exp(score / 2)) * 1.0  # whole and above 0, so that it may be a count as well
        return task.of_numbers(np.column_stack([value, exposure]))
    if task.answers == "findings":
        found = (score[:, None] + rng.normal(size=(len(x), len(task.names))) > 0).astype(np.int64)
        found[0] = -1  # not known
        return found
    cuts = np.quantile(score, np.arange(1, len(task.names)) / len(task.names))
    return np.searchsorted(cuts, score)


def sites_of(task: Task, dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = RAGGED) -> tuple[Site, ...]:
    rng = np.random.default_rng(3)
    tables = [rng.normal(rng.normal(scale=0.5), 1, size=(size, FEATURES)) for size in sizes]
    targets = [target_of(task, x, rng) for x in tables]
    scale = task.scale(np.sum([task.target_sums(target) for target in targets], axis=0))
    return tuple(
        site(
            f"site-{number}",
            torch.tensor(x, dtype=dtype),
            torch.from_numpy(np.ascontiguousarray(task.training_target(target, scale))),
        )
        for number, (x, target) in enumerate(zip(tables, targets, strict=True), 1)
    )


def model_of(task: Task, name: str = "linear") -> Model:
    build = MODELS["linear"](l2=0.01) if name == "linear" else MODELS["mlp"](hidden=(5,))
    return built(build, Shape((FEATURES,), task))


def a_trial(task: Task, algorithm: str, model: str = "linear", **training: Any) -> Trial:
    settings = {"rounds": 4, "local_epochs": 2, "batch_size": 8, "lr": 0.1, **training}
    return trial(ALGORITHMS[algorithm](), sites_of(task), model_of(task, model), **settings)


def last(engine: Any, trials: list[Trial]) -> list[Run]:
    state = engine.start(trials)
    for reached, _ in engine.rounds(trials, state):
        state = reached
    return list(engine.runs(trials, state))


SOUND = [name for name, build in ALGORITHMS.items() if not build().vertical]
CASES = list(product(EXAMPLES, SOUND))
OFTEN = [(name, "fedavg") for name in EXAMPLES] + [(kind, "scaffold") for kind in TASKS]
EVERY_EXAMPLE = pytest.mark.parametrize("example", EXAMPLES)
EVERY_CASE = pytest.mark.parametrize(("example", "algorithm"), represented(CASES, by=OFTEN))


def test_the_examples_are_of_every_task_and_of_every_loss() -> None:
    assert {task.kind for task in EXAMPLES.values()} == set(TASKS)
    assert {"regression, loss = huber", "count, dispersion = 0.7", "count, dispersion = fitted"} <= set(EXAMPLES)
    for task in EXAMPLES.values():
        assert read_task(task.to_json()) == task


@EVERY_CASE
def test_stacked_equals_serial(example: str, algorithm: str) -> None:
    for model in ("linear", "mlp"):
        trials = [a_trial(EXAMPLES[example], algorithm, model, share=0.7) for _ in range(2)]
        fast = last(STACKED, trials)
        (slow,) = last(SERIAL, trials[:1])
        for run in fast:
            assert_same(run, slow, atol=1e-10)


@EVERY_CASE
def test_a_run_resumes_to_the_same_bits(example: str, algorithm: str) -> None:
    arm = a_trial(EXAMPLES[example], algorithm)
    whole = after(arm, 4)
    done, leaves = SERIAL.leaves(after(arm, 2))
    loaded = SERIAL.restore([arm], done, {key: leaf.clone() for key, leaf in leaves.items()})
    assert_same(after(arm, 4, loaded), whole)


@EVERY_EXAMPLE
def test_a_mixture_counts_for_either_label_by_its_share(example: str) -> None:
    """The loss of a mixed row is the mean of its losses with either label, whatever the task."""
    task = EXAMPLES[example]
    rows = sites_of(task)[1].train
    other, share = torch.flip(rows.y, [0]), torch.linspace(0, 1, len(rows), dtype=torch.float64)
    for name in ("linear", "mlp"):
        model = model_of(task, name)
        params = {key: leaf.double() + 0.05 for key, leaf in model.init(3)[0].items()}
        of_row = [model.losses(params, {}, rows.x, y, {})[0] for y in (rows.y, other)]
        expected = ((1 - share) * of_row[0] + share * of_row[1]).mean()
        penalty = model.penalty(params) if model.penalty else 0.0
        gradient, loss, _ = model.gradient(params, {}, rows.x, rows.y, {}, second=SecondLabels(other, share))
        assert loss.item() == pytest.approx(float(expected + penalty), rel=1e-9)
        assert all(torch.isfinite(leaf).all() for leaf in gradient.values())


@EVERY_EXAMPLE
def test_mixup_resumes_to_the_same_bits(example: str) -> None:
    arm = a_trial(EXAMPLES[example], "fedprox", mix=RowMixing("mixup", alpha=0.4))
    whole = after(arm, 4)
    done, leaves = SERIAL.leaves(after(arm, 2))
    loaded = SERIAL.restore([arm], done, {key: leaf.clone() for key, leaf in leaves.items()})
    assert_same(after(arm, 4, loaded), whole)


@EVERY_CASE
def test_predictions_are_finite_and_in_units(example: str, algorithm: str) -> None:
    task = EXAMPLES[example]
    arm = a_trial(task, algorithm, rounds=30)
    run = after(arm, 30)
    for number, own in enumerate(arm.sites):
        params, buffers = site_model(arm, run, number)
        x, y = own.train.everything(torch.float64)
        scores = arm.model.logits(params, buffers, x, None)[0]
        predicted, label = task.predictions(scores, y).numpy(), task.label(y).numpy()
        assert np.isfinite(predicted).all()
        assert len(predicted) == len(label)
        figures = task.figures(label, predicted)
        assert list(figures) == list(task.metric_names)
        if task.answers == "number":
            assert predicted.shape == label.shape
            assert 0.1 < predicted.mean() / label.mean() < 10  # from the middle of a public range some go slowly
        else:
            assert ((predicted >= 0) & (predicted <= 1)).all()


@EVERY_EXAMPLE
def test_no_function_of_a_task_writes_into_what_it_is_given(example: str) -> None:
    task, own = EXAMPLES[example], sites_of(EXAMPLES[example])[1]
    x, y = own.train.everything(torch.float64)
    model = model_of(task)
    params, buffers = model.init(0)
    scores = model.logits({name: leaf.double() + 0.1 for name, leaf in params.items()}, buffers, x, None)[0]
    label, score = task.label(y).numpy(), task.predictions(scores, y).numpy()
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (task.row_losses, (scores, y)),
        (task.losses_and_errors, (scores[:, : task.outputs], y)),
        (task.curvature, (scores[:, : task.outputs], y)),
        (task.predictions, (scores, y)),
        (task.row_figures, (scores, y)),
        (task.figures, (label, score)),
        (task.grouped_figures, (np.zeros(len(label), dtype=np.int64), 1, label, score)),
        (task.row_sums, (label, score)),
    ]
    for function, arguments in calls:
        before = list(map(copied, arguments))
        with suppress(StudyError):  # a loss may have no curvature that means anything
            function(*arguments)
        for value, old in zip(arguments, before, strict=True):
            np.testing.assert_array_equal(copied(value), old, err_msg=function.__qualname__)


def copied(value: Any) -> np.ndarray:
    return np.array(value.tolist() if isinstance(value, Tensor) else value)


@EVERY_EXAMPLE
def test_the_written_derivative_is_that_of_the_loss(example: str) -> None:
    """Row by row, as a linear model's gradient under differential privacy is taken; where the task has leaves of its
    own, its model differentiates."""
    task, own = EXAMPLES[example], sites_of(EXAMPLES[example])[1]
    if task.leaves:
        assert model_of(task).closed_gradient is None
        assert model_of(task).row_gradients is None
        return
    _, y = own.train.everything(torch.float64)
    scores = torch.randn(len(y), task.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores.requires_grad_()
    losses = task.row_losses(scores, y)
    (expected,) = torch.autograd.grad(losses.sum(), scores)
    written, errors = task.losses_and_errors(scores.detach(), y)
    torch.testing.assert_close(errors, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(written.reshape(len(y), -1).sum(1), losses.detach(), rtol=0, atol=1e-12)
