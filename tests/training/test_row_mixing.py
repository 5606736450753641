"""Mixed training rows: mixup against losses with soft labels, SMOTE against neighbours that scikit-learn finds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn import functional as F

from tests.small_federations import after, assert_same, ragged_sites, site, trial
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fedprox import fedprox
from wardround.core.errors import StudyError
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.data.site import Rows, Site
from wardround.engines.serial import leaves_of_run, order_of, restore_run
from wardround.models import MODELS, Model, Shape
from wardround.models.logistic import linear, logistic
from wardround.models.mlp import mlp
from wardround.models.model import SecondLabels
from wardround.study.schema import Preparation, RowMixing
from wardround.tasks import TASKS, Task, class_task, findings_task
from wardround.training.row_mixing import mixer, nearest_of_class, nominal_columns, refuse_unmixable
from wardround.training.trial import Trial

ROWS, FEATURES = 12, 5
SMOTE = RowMixing("smote", neighbours=3)


def some_batch(task: Task) -> tuple[Tensor, Tensor, SecondLabels]:
    rng = np.random.default_rng(0)
    shape = (ROWS, len(task.names)) if task.findings else (ROWS,)
    first, second = (torch.tensor(rng.integers(0, 2 if task.findings else len(task.names), shape)) for _ in range(2))
    x = torch.tensor(rng.normal(size=(ROWS, FEATURES)))
    return x, first, SecondLabels(second, torch.tensor(rng.random(ROWS)))


def soft_loss(scores: Tensor, task: Task, y: Tensor, second: SecondLabels) -> Tensor:
    """The cross-entropy with labels that are mixed themselves, by torch."""
    if task.findings or len(task.names) == 2:
        share = second.share.reshape(-1, *(1,) * (y.dim() - 1))
        soft = (1 - share) * y + share * second.y
        return F.binary_cross_entropy_with_logits(scores if task.findings else scores.squeeze(-1), soft.double())
    first, other = (F.one_hot(labels, len(task.names)).double() for labels in (y, second.y))
    return F.cross_entropy(scores, torch.lerp(first, other, second.share[:, None]))


@pytest.mark.parametrize("task", [class_task(2), class_task(4), findings_task(3)], ids=["two", "four", "findings"])
@pytest.mark.parametrize("build", [logistic(l2=0.1), mlp((6,))], ids=["closed gradient", "network"])
def test_the_gradient_is_that_of_soft_labels(task: Task, build: Any) -> None:
    model: Model = build(Shape((FEATURES,), task))
    x, y, second = some_batch(task)
    params = {name: leaf.double() + 0.1 for name, leaf in model.init(1)[0].items()}
    grad, loss, _ = model.gradient(params, {}, x, y, {}, second=second)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    expected = soft_loss(model.logits(leaves, {}, x, None)[0], task, y, second)
    expected = expected + (model.penalty(leaves) if model.penalty else 0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for name, theirs in zip(leaves, torch.autograd.grad(expected, list(leaves.values())), strict=True):
        torch.testing.assert_close(grad[name], theirs, rtol=1e-10, atol=1e-12)


def test_of_numbers_the_gradient_is_that_of_mixed_numbers() -> None:
    """(1 - s) (f - a)^2 + s (f - b)^2 and (f - (1 - s) a - s b)^2 differ by what does not depend on f."""
    task = TASKS["regression"](("days",))
    model = linear()(Shape((FEATURES,), task))
    rng = np.random.default_rng(1)
    x, share = torch.tensor(rng.normal(size=(ROWS, FEATURES))), torch.tensor(rng.random(ROWS))
    targets = [task.of_numbers(rng.normal(size=(ROWS, 1))) for _ in range(2)]
    scale = task.scale(task.target_sums(targets[0]))
    first, second = (torch.as_tensor(task.training_target(target, scale)) for target in targets)
    params = {name: leaf.double() + 0.2 for name, leaf in model.init(0)[0].items()}
    grad = model.gradient(params, {}, x, first, {}, second=SecondLabels(second, share))[0]
    mixed = torch.lerp(first, second, share.reshape(-1, *(1,) * (first.dim() - 1)))  # both have the same scale
    expected = model.gradient(params, {}, x, mixed, {})[0]
    for name, leaf in expected.items():
        torch.testing.assert_close(grad[name], leaf, rtol=1e-10, atol=1e-12)


def test_class_weights_are_those_of_either_label() -> None:
    task, weights = class_task(3), torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    model = logistic()(Shape((FEATURES,), task))
    x, y, second = some_batch(task)
    params = {name: leaf.double() + 0.1 for name, leaf in model.init(1)[0].items()}
    closed = model.gradient(params, {}, x, y, {}, weights, second)
    written_out = replace(model, closed_gradient=None).gradient(params, {}, x, y, {}, weights, second)
    torch.testing.assert_close(closed[1], written_out[1], rtol=1e-10, atol=0)
    for name in params:
        torch.testing.assert_close(closed[0][name], written_out[0][name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("inputs", [(4,), (1, 6, 6)])
def test_mixup_draws_partners_and_shares_as_the_paper_says(inputs: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x, y = torch.tensor(rng.normal(size=(9, *inputs))), torch.tensor(rng.integers(0, 2, 9))
    mix = mixer(RowMixing("mixup", alpha=0.4), site("a", x, y), np.random.default_rng(5))
    assert mix is not None
    again = np.random.default_rng(5)
    for batch in (torch.arange(6), torch.arange(6, 9)):
        new, second = mix(batch, x[batch], y[batch])
        partner, share = again.permutation(len(batch)), again.beta(0.4, 0.4, len(batch))
        assert second is not None
        assert torch.equal(second.y, y[batch][partner])
        for row in range(len(batch)):
            expected = share[row] * x[batch][row] + (1 - share[row]) * x[batch][partner[row]]
            torch.testing.assert_close(new[row], expected)
            assert second.share[row].item() == pytest.approx(1 - share[row])


# SMOTE


def numbers(rare: int = 12, common: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    y = np.repeat([1, 0, 2], [rare, common, 1])
    return rng.normal(size=(len(y), 3)) + y[:, None], y


def table_site(x: np.ndarray, y: np.ndarray, recipe: Recipe | None = None) -> Site:
    return replace(site("a", torch.tensor(x), torch.tensor(y)), recipe=recipe)


def test_numbers_move_towards_neighbours_as_imbalanced_learn_defines_it() -> None:
    """There: the neighbours of `NearestNeighbors(k + 1)` within the class without the row itself, and
    `row + step * (neighbour - row)`. Rows drawn for the first time in a pass, rows of the most common class and a class
    of one row stay as they are."""
    x, y = numbers()
    own = np.flatnonzero(y == 1)
    found = own[NearestNeighbors(n_neighbors=4).fit(x[own]).kneighbors(x[own], return_distance=False)[:, 1:]]
    mix = mixer(SMOTE, table_site(x, y), np.random.default_rng(6))
    assert mix is not None
    order = np.random.default_rng(7).choice(len(y), len(y), p=np.where(y == 0, 0.4 / 40, 0.6 / 13))
    again, seen, made = np.random.default_rng(6), set(), 0
    for rows in np.split(order, [20, 40]):
        new, second = mix(torch.tensor(rows), torch.tensor(x[rows]), torch.tensor(y[rows]))
        place, step = again.integers(2**31, size=len(rows)), again.random(len(rows))
        assert second is None  # a row keeps its class
        for number, row in enumerate(rows):
            expected = x[row]
            if row in seen and y[row] == 1:
                neighbour = found[list(own).index(row)][place[number] % 3]
                expected = x[row] + step[number] * (x[neighbour] - x[row])
                made += 1
            seen.add(row)
            np.testing.assert_allclose(new[number].numpy(), expected, rtol=0, atol=1e-12)
    assert made > 10


def test_each_pass_begins_with_the_rows_themselves() -> None:
    x, y = numbers()
    mix = mixer(SMOTE, table_site(x, y), np.random.default_rng(6))
    assert mix is not None
    order = np.zeros(len(y), dtype=np.int64)  # row 0, as often as there are rows
    for _ in range(2):
        new, _ = mix(torch.tensor(order), torch.tensor(x[order]), torch.tensor(y[order]))
        changed = (new.numpy() != x[order]).any(axis=1)
        assert not changed[0]
        assert changed[1:].all()


CATEGORIES = ("a", "b", "c")


def recipe_with_a_category() -> Recipe:
    column = Column("age"), Column("pressure"), Column("place", "categorical", levels=CATEGORIES)
    layout = Layout((Column("age"), Column("pressure")), {"place": CATEGORIES}, ())
    fit = Fit({}, {}, np.zeros(2), np.ones(2))
    return Recipe(column, layout, fit, Preparation())


def test_nominal_columns_are_categories_and_columns_of_two_values() -> None:
    x = np.array([[1.0, 5.0, 1, 0, 0], [2.0, 5.0, 0, 1, 0], [3.0, 6.0, 0, 0, 1]])
    rows = Rows(torch.tensor(x), torch.tensor([0, 0, 1]))
    assert nominal_columns(rows, recipe_with_a_category()) == ((2, 3, 4), (1,))
    assert nominal_columns(rows, None) == ((1,), (2,), (3,), (4,))


def test_categories_take_the_majority_of_the_neighbours_and_count_for_the_median_deviation() -> None:
    """Chawla et al., section 6.1, written out row by row: a category that differs adds the squared median of the
    standard deviations of the class's numbers to the squared distance."""
    rng = np.random.default_rng(8)
    y = np.repeat([0, 1], [30, 15])
    levels = rng.integers(0, 3, len(y))
    numbers = rng.normal(size=(len(y), 2))
    x = np.column_stack([numbers, np.eye(3)[levels]])
    nearest = nearest_of_class(Rows(torch.tensor(x), torch.tensor(y)), ((2, 3, 4),), 5)
    own = [row for row in range(len(y)) if y[row] == 1]
    median = np.median([np.std([numbers[row, column] for row in own]) for column in (0, 1)])
    changed = 0
    for row in own:
        away = {
            other: np.sum((numbers[row] - numbers[other]) ** 2) + (levels[row] != levels[other]) * median**2
            for other in own
            if other != row
        }
        expected = sorted(away, key=lambda other: away[other])[:5]
        assert nearest.rows[row].tolist() == expected
        often = [sum(levels[other] == level for other in expected) for level in range(3)]
        taken = int(nearest.majority[row, 2:].argmax())
        assert often[taken] == max(often)
        assert nearest.majority[row, 2:].sum() == 1
        changed += taken != levels[row]
    assert changed  # the row's own level does not count
    assert not nearest.count[:30].any()

    mix = mixer(SMOTE, table_site(x, y, recipe_with_a_category()), rng)
    assert mix is not None
    order = torch.full((len(y),), 40)
    new = mix(order, torch.tensor(x)[order], torch.tensor(y)[order])[0].numpy()
    assert (new[1:, 2:] == new[1, 2:]).all()
    assert set(np.unique(new[:, 2:])) == {0.0, 1.0}
    assert len(np.unique(new[:, 0])) > 20


@pytest.mark.parametrize("mix", [{"kind": "mixup", "alpha": 0.4}, {"kind": "smote", "neighbours": 2}])
def test_a_run_repeats_resumes_exactly_and_reads_training_rows_alone(mix: dict[str, Any]) -> None:
    def arm() -> Trial:
        sites = ragged_sites(inputs=(3,))
        damaged = Rows(torch.full((4, 3), torch.nan).double(), torch.zeros(4).long())
        sites = tuple(replace(one, validation=damaged, test=damaged) for one in sites)
        return trial(fedprox(0.1), sites, oversample=1.0, mix=RowMixing(**mix))

    whole = after(arm(), 4)
    assert_same(whole, after(arm(), 4))
    assert all(torch.isfinite(leaf).all() for leaf in whole.server["params"].values())
    round_number, leaves = leaves_of_run(after(arm(), 2))
    assert_same(whole, after(arm(), 4, restore_run([arm()], round_number, leaves)))
    plain = trial(fedprox(0.1), ragged_sites(inputs=(3,)), oversample=1.0)
    assert not torch.equal(whole.server["params"]["weight"], after(plain, 4).server["params"]["weight"])
    # the same patients are drawn, so that arms with and without it are paired
    orders = [torch.cat(order_of(one, one.sites[0], 1, 2)) for one in (arm(), plain)]
    assert torch.equal(*orders)


def test_smote_is_refused_where_there_is_no_neighbour_of_one_class() -> None:
    images = torch.zeros(4, 1, 8, 8).double()

    def refused(x: Tensor, model: Model, y: Tensor) -> str:
        with pytest.raises(StudyError) as caught:
            refuse_unmixable(trial(fedavg(), [site("a", x, y)], model, mix=RowMixing("smote")))
        return str(caught.value)

    labels = torch.zeros(4).long()
    assert "these data are images" in refused(images, MODELS["cnn"]()(Shape((1, 8, 8), class_task(2))), labels)
    findings = logistic()(Shape((3,), findings_task(2)))
    assert "may have several findings" in refused(torch.zeros(4, 3).double(), findings, torch.zeros(4, 2).long())
