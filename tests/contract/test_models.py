"""What every model promises, on each kind of data that it takes; then what `from_module` makes of a user's own."""

from copy import deepcopy
from dataclasses import replace
from inspect import signature
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.small_federations import after, assert_same, assert_same_tree, each_round, parts_of, ragged_sites, trial
from wardround.algorithms import ALGORITHMS
from wardround.algorithms.fedavg import fedavg
from wardround.core import seeds, tree
from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.data.site import Block
from wardround.models import MODELS, Dropout, Model, Shape, from_module
from wardround.models.logistic import logistic
from wardround.models.model import SecondLabels
from wardround.models.starting_weights import starting_model
from wardround.study.schema import Stragglers
from wardround.tasks import class_task
from wardround.training.local import batches
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial

TABLE, IMAGES, SIGNALS = (4,), (1, 8, 8), (2, 12)
START_AT_ZERO = {"logistic", "linear"}
HEAVY = {"resnet", "densenet"}  # images only; built when a test asks for them, because MONAI takes seconds to import
SMALL: dict[str, dict[str, Any]] = {
    "residual": {"widths": (4, 8), "reduce": 2},
    "cnn1d": {"widths": (4, 8), "kernel": 3},
    "gru": {"hidden": 4, "window": 2},
}  # defaults that are large for a test


def a_model(name: str, inputs: tuple[int, ...], classes: int = 2, **settings: Any) -> Model:
    # of a table's four numbers the last says whether the second party has the third
    parts = (Block("a", 0, 2, (2,), None), Block("b", 2, 3, (1,), 3))
    shape = Shape(inputs, class_task(classes), parts=parts if name == "joined" and inputs == TABLE else ())
    return MODELS[name](**{**SMALL.get(name, {}), **settings})(shape)


def takes(name: str, inputs: tuple[int, ...]) -> bool:
    if name in HEAVY:
        return inputs == IMAGES
    try:
        a_model(name, inputs)
    except StudyError:
        return False
    return True


PLACES = [(name, inputs) for name, inputs in product(MODELS, (TABLE, IMAGES, SIGNALS)) if takes(name, inputs)]
EVERY_MODEL = pytest.mark.parametrize(
    ("name", "inputs"),
    [pytest.param(name, inputs, marks=[pytest.mark.slow] if name in HEAVY else []) for name, inputs in PLACES],
)
EVERY_DROPOUT = pytest.mark.parametrize(
    ("name", "inputs"), [(name, inputs) for name, inputs in PLACES if "dropout" in signature(MODELS[name]).parameters]
)
CLASSES = pytest.mark.parametrize("classes", [2, 5])
EVERY_ALGORITHM = pytest.mark.parametrize("name", ALGORITHMS)


def test_every_model_takes_some_kind_of_data() -> None:
    assert {name for name, _ in PLACES} == set(MODELS)


def some_rows(inputs: tuple[int, ...], classes: int = 2, rows: int = 7) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    return torch.tensor(rng.normal(size=(rows, *inputs))), torch.tensor(rng.integers(0, classes, rows))


def weights_of(model: Model, seed: int = 1) -> tuple[Tree, Tree]:
    """Away from where the model starts, so that a start at zero hides nothing; in double precision."""
    params, buffers = model.init(seed)
    rng = np.random.default_rng(seed)
    noisy = {key: leaf.double() + torch.tensor(rng.normal(0, 0.1, tuple(leaf.shape))) for key, leaf in params.items()}
    return noisy, {key: leaf.double() if leaf.is_floating_point() else leaf for key, leaf in buffers.items()}


def masks_of(model: Model, rows: int, seed: int = 5) -> Tree:
    return model.masks(np.random.default_rng(seed), rows, torch.float64)


@EVERY_MODEL
def test_a_model_starts_from_a_trained_one(name: str, inputs: tuple[int, ...]) -> None:
    """With all its shared weights, and what a site of the same name kept."""
    model = a_model(name, inputs)
    trained, statistics = weights_of(model, 9)
    shared = {key: leaf for key, leaf in trained.items() if not model.is_private(key)}
    started = starting_model(model, shared, {"a": trained}, {"a": statistics}, "a test")
    params, buffers = model.init(2)
    begun = started.first(params)
    assert_same_tree({key: begun[key] for key in shared}, shared)
    private = {key: leaf.double() for key, leaf in params.items() if model.is_private(key)}
    for site, expected in (("a", {key: trained[key] for key in private}), ("b", private)):
        assert_same_tree(started.kept_at(site, private, buffers)[0], expected, part=site)
    broken = {**shared, next(iter(shared)): shared[next(iter(shared))] * float("inf")}
    with pytest.raises(StudyError, match="are not finite numbers"):
        starting_model(model, broken, {}, {}, "a test")


@EVERY_MODEL
def test_a_model_starts_as_its_seed_says(name: str, inputs: tuple[int, ...]) -> None:
    model, again = a_model(name, inputs), a_model(name, inputs)
    (first, _), (second, _), (other, _) = model.init(4), again.init(4), model.init(5)
    assert_same_tree(first, second)
    differs = any(not torch.equal(first[key], other[key]) for key in first)
    assert differs == (name not in START_AT_ZERO)
    if name in START_AT_ZERO:
        assert all(not leaf.any() for leaf in first.values())


@EVERY_MODEL
def test_weights_are_fresh_and_plain(name: str, inputs: tuple[int, ...]) -> None:
    model = a_model(name, inputs)
    params, _ = model.init(4)
    expected = tree.clone(params)
    for leaf in params.values():
        assert type(leaf) is Tensor
        assert not leaf.requires_grad
        leaf += 1
    assert_same_tree(model.init(4)[0], expected)


@EVERY_MODEL
@CLASSES
def test_scores_are_one_for_two_classes_and_one_each_for_more(name: str, inputs: tuple[int, ...], classes: int) -> None:
    model = a_model(name, inputs, classes)
    params, buffers = weights_of(model)
    scores, _ = model.logits(params, buffers, some_rows(inputs)[0], None)
    assert scores.shape == (7, 1 if classes == 2 else classes)
    assert scores.dtype == torch.float64


@EVERY_MODEL
@CLASSES
def test_the_gradient_is_the_slope_of_the_loss(name: str, inputs: tuple[int, ...], classes: int) -> None:
    """Central differences along random directions of length one. A step of 1e-6 leaves 1e-16 / 1e-6 of rounding, and is
    so short that no unit of a network changes sides.
    """
    model = a_model(name, inputs, classes)
    params, buffers = weights_of(model)
    x, y = some_rows(inputs, classes)
    masks = masks_of(model, len(x))
    gradient, loss, _ = model.gradient(params, buffers, x, y, masks)
    assert float(loss) == pytest.approx(float(model.loss(params, buffers, x, y, masks)[0]), rel=1e-12)
    assert {key: leaf.shape for key, leaf in gradient.items()} == {key: leaf.shape for key, leaf in params.items()}
    assert not any(leaf.requires_grad for leaf in (*gradient.values(), loss))
    rng = np.random.default_rng(6)
    for _ in range(3):
        drawn = {key: torch.tensor(rng.normal(size=tuple(leaf.shape))) for key, leaf in params.items()}
        step = tree.scale(drawn, 1e-6 / tree.squared_norm(drawn).sqrt())
        ahead, _ = model.loss(tree.add(params, step), buffers, x, y, masks)
        behind, _ = model.loss(tree.sub(params, step), buffers, x, y, masks)
        slope = sum(float((gradient[key] * step[key]).sum()) for key in params) / 1e-6
        assert slope == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-5, abs=1e-8)


@EVERY_MODEL
def test_of_mixed_rows_the_gradient_is_the_mean_over_either_label(name: str, inputs: tuple[int, ...]) -> None:
    """Both labels have the same x, so that with equal shares it is the mean of the two gradients."""
    model = a_model(name, inputs)
    params, buffers = weights_of(model)
    x, y = some_rows(inputs)
    masks = masks_of(model, len(x))
    half = SecondLabels(1 - y, torch.full((len(x),), 0.5, dtype=torch.float64))
    mixed = model.gradient(params, buffers, x, y, masks, second=half)
    first, other = (model.gradient(params, buffers, x, labels, masks) for labels in (y, 1 - y))
    torch.testing.assert_close(mixed[1], (first[1] + other[1]) / 2)
    for key in params:
        torch.testing.assert_close(mixed[0][key], (first[0][key] + other[0][key]) / 2, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("inputs", [TABLE, IMAGES])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_the_closed_gradient_of_logistic_regression_is_autograds(
    inputs: tuple[int, ...], classes: int, l2: float
) -> None:
    model = logistic(l2)(Shape(inputs, class_task(classes)))
    params, _ = weights_of(model)
    x, y = some_rows(inputs, classes)
    closed, closed_loss, _ = model.gradient(params, {}, x, y, {})
    automatic, loss, _ = replace(model, closed_gradient=None).gradient(params, {}, x, y, {})
    assert_same_tree(closed, automatic, atol=1e-14)
    assert float(closed_loss) == pytest.approx(float(loss), rel=1e-14)


def test_the_penalty_spares_the_intercept() -> None:
    """At weights (3, 4) and intercept 5 with l2 = 0.2 it is 0.1 x 25 = 2.5, with slopes 0.6 and 0.8."""
    with_penalty, without = logistic(l2=0.2)(Shape((2,), class_task(2))), logistic()(Shape((2,), class_task(2)))
    params = {"weight": torch.tensor([[3.0, 4.0]]).double(), "bias": torch.tensor([5.0]).double()}
    x, y = some_rows((2,))
    penalised, penalised_loss, _ = with_penalty.gradient(params, {}, x, y, {})
    plain, loss, _ = without.gradient(params, {}, x, y, {})
    assert float(penalised_loss - loss) == pytest.approx(2.5)
    assert (penalised["weight"] - plain["weight"]).tolist() == [pytest.approx([0.6, 0.8])]
    assert torch.equal(penalised["bias"], plain["bias"])


@EVERY_MODEL
@CLASSES
def test_a_prediction_does_not_depend_on_the_other_rows(name: str, inputs: tuple[int, ...], classes: int) -> None:
    model = a_model(name, inputs, classes)
    params, buffers = weights_of(model)
    x, _ = some_rows(inputs)
    together, new_buffers = model.logits(params, buffers, x, None)
    alone = torch.cat([model.logits(params, buffers, row, None)[0] for row in torch.split(x, 1)])
    backwards, _ = model.logits(params, buffers, x.flip(0), None)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-13)
    torch.testing.assert_close(backwards.flip(0), together, rtol=0, atol=1e-13)
    assert_same_tree(new_buffers, buffers)


@EVERY_MODEL
def test_nothing_writes_into_weights_buffers_or_rows(name: str, inputs: tuple[int, ...]) -> None:
    model = a_model(name, inputs)
    params, buffers = weights_of(model)
    x, y = some_rows(inputs)
    given = {"params": params, "buffers": buffers, "rows": {"x": x, "y": y}}
    before = deepcopy(given)
    model.gradient(params, buffers, x, y, masks_of(model, len(x)))
    model.logits(params, buffers, x, None)
    model.init(0)
    for part, leaves in given.items():
        assert_same_tree(leaves, before[part])


@EVERY_MODEL
def test_training_leaves_the_global_generators_alone(name: str, inputs: tuple[int, ...]) -> None:
    torch_before, numpy_before = torch.get_rng_state(), numpys_global_state()
    model = a_model(name, inputs, **dropout_if_any(name))
    sites = ragged_sites(inputs=inputs, sizes=(5, 8), dtype=torch.float32)
    after(trial(fedavg(), sites, model, precision="float32", local_epochs=1), 1)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert numpys_global_state() == numpy_before


def numpys_global_state() -> str:
    return repr(np.random.get_state(legacy=False))  # noqa: NPY002


def dropout_if_any(name: str) -> dict[str, Any]:
    return {"dropout": 0.5} if "dropout" in signature(MODELS[name]).parameters else {}


@EVERY_MODEL
def test_what_came_before_does_not_matter_to_a_run(name: str, inputs: tuple[int, ...]) -> None:
    """Neither other draws from torch's generator nor another run."""
    sites = ragged_sites(inputs=inputs, sizes=(5, 8), dtype=torch.float32)

    def run() -> Run:
        return after(
            trial(fedavg(), sites, a_model(name, inputs, **dropout_if_any(name)), precision="float32", local_epochs=1),
            1,
        )

    first = run()
    torch.rand(3)
    assert_same(run(), first)


@EVERY_DROPOUT
def test_dropout_masks_are_drawn_from_the_generator_that_is_given(name: str, inputs: tuple[int, ...]) -> None:
    model = a_model(name, inputs, dropout=0.25)
    masks, again, other = masks_of(model, 400), masks_of(model, 400), masks_of(model, 400, seed=6)
    assert masks
    assert_same_tree(masks, again)
    for key, mask in masks.items():
        assert not torch.equal(mask, other[key])
        assert set(torch.unique(mask).tolist()) == {0.0, 1 / 0.75}  # what is kept makes up for what is not
        assert float((mask == 0).double().mean()) == pytest.approx(0.25, abs=0.02)


@EVERY_DROPOUT
def test_masks_act_in_training_and_not_in_prediction(name: str, inputs: tuple[int, ...]) -> None:
    model = a_model(name, inputs, dropout=0.5)
    params, buffers = weights_of(model)
    x, _ = some_rows(inputs)
    masks = masks_of(model, len(x))
    predicted, _ = model.logits(params, buffers, x, None)
    trained, _ = model.logits(params, buffers, x, masks)
    unmasked, _ = model.logits(params, buffers, x, tree.apply(torch.ones_like, masks))
    assert not torch.allclose(trained, predicted)
    torch.testing.assert_close(unmasked, predicted, rtol=0, atol=1e-14)
    assert torch.equal(model.logits(params, buffers, x, masks)[0], trained)
    assert torch.equal(model.logits(params, buffers, x, None)[0], predicted)  # masks have left nothing behind


@EVERY_DROPOUT
def test_masks_are_not_part_of_a_models_state(name: str, inputs: tuple[int, ...]) -> None:
    model = a_model(name, inputs, dropout=0.5)
    params, buffers = model.init(0)
    assert model.mask_shapes
    assert not model.mask_shapes.keys() & (params.keys() | buffers.keys())


# A user's own module


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5), nn.FeatureAlphaDropout()])
def test_torchs_own_dropout_is_refused(layer: nn.Module) -> None:
    with pytest.raises(StudyError, match=r"model: 1\.0: \w+ draws from torch's global generator") as refused:
        from_module(lambda: nn.Sequential(nn.Linear(3, 4), nn.Sequential(layer), nn.Linear(4, 1)), class_task(2))
    assert "wardround.models.Dropout" in refused.value.remedy


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(3, 4, num_layers=2, dropout=0.5)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.recurrent(x)[0])
        return scores


@pytest.mark.parametrize("build", [lambda: nn.Sequential(nn.Linear(3, 1), nn.RReLU()), Recurrent])
def test_other_layers_that_draw_from_the_global_generator_are_refused(build: Any) -> None:
    with pytest.raises(StudyError):
        from_module(build, class_task(2))


def test_our_dropout_in_a_users_module_is_seeded() -> None:
    model = from_module(lambda: nn.Sequential(nn.Linear(3, 4), Dropout(0.5, (4,)), nn.Linear(4, 1)), class_task(2))
    assert model.mask_shapes == {"1.mask": (0.5, (4,))}
    arm = trial(fedavg(), model=model)
    assert_same(after(arm, 2), after(arm, 2))
    other = replace(arm, batch_seed=8)
    assert not torch.equal(after(arm, 1).server["params"]["0.weight"], after(other, 1).server["params"]["0.weight"])


def test_frozen_parameters_stay_as_they_are() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        module[0].requires_grad_(False)
        return module

    arm = trial(fedavg(), model=from_module(build, class_task(2)))
    assert set(after(arm, 1).server["params"]) == {"1.weight", "1.bias"}  # neither trained nor sent
    x = torch.zeros(2, 3, dtype=torch.float32)
    again = from_module(build, class_task(2))  # the same frozen weights whenever the module is built
    params, _ = again.init(5)
    assert torch.equal(arm.model.logits(params, {}, x, None)[0], again.logits(params, {}, x, None)[0])


def batch_norm() -> Model:
    return from_module(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)), class_task(2)
    )


STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
WEIGHTS = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
NUMBERS = 3 * 4 + 4 + 4 + 4 + 4 + 1  # of the weights


def norm_trial(name: str, **options: Any) -> Trial:
    sites = ragged_sites(sizes=(8, 12, 20))  # batches of four: none of a single row, which BatchNorm cannot take
    return trial(ALGORITHMS[name](), sites, batch_norm(), **options)


@EVERY_ALGORITHM
def test_batch_norms_statistics_stay_at_their_site(name: str) -> None:
    arm = norm_trial(name, share=0.7)
    begun = start(arm)
    run, record = next(each_round(arm, 1))
    for leaves in (*run.server.values(), *arm.algorithm.broadcast(run.server, 0).values()):
        assert not STATISTICS & leaves.keys()
    for site in arm.sites:
        assert run.memories[site.name].buffers.keys() == STATISTICS
        assert not any(STATISTICS & leaves.keys() for leaves in run.memories[site.name].algorithm.values())
        changed = not torch.equal(
            run.memories[site.name].buffers["1.running_mean"], begun.memories[site.name].buffers["1.running_mean"]
        )
        assert changed == (site.name in record.sites)
    if not arm.algorithm.pools:
        first, second = (run.memories[site].buffers["1.running_mean"] for site in record.sites)
        assert not torch.equal(first, second)


def test_an_update_has_exactly_the_bytes_of_the_weights() -> None:
    _, record = next(each_round(norm_trial("fedavg"), 1))
    assert record.bytes_up == record.bytes_down == 3 * NUMBERS * 8
    assert start(norm_trial("fedavg")).server["params"].keys() == WEIGHTS


def test_statistics_are_those_that_torch_keeps() -> None:
    """One site, two rounds: FedAvg goes on where the site stopped, so a module trained in place has the same ones."""
    arm = replace(norm_trial("fedavg"), sites=ragged_sites(sizes=(12,)))
    run = after(arm, 2)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    module.load_state_dict(start(arm).server["params"], strict=False)
    optimiser = torch.optim.SGD(module.parameters(), lr=arm.training.lr)
    x, y = arm.sites[0].train.everything(torch.float64)
    for round_number in range(2):
        for rows in batches(12, 2, 4, seeds.generator(arm.batch_seed, "batches", round_number, "site-1")):
            optimiser.zero_grad()
            scores = module(x[rows]).squeeze(1)
            torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(scores, y[rows].double()))
            optimiser.step()
    params, buffers = site_model(arm, run, 0)
    assert_same_tree({**params, **buffers}, dict(module.state_dict()), atol=1e-12)


def test_a_site_predicts_with_its_own_statistics_which_prediction_leaves_alone() -> None:
    arm = norm_trial("fedavg")
    run = after(arm, 2)
    x, _ = arm.sites[0].train.everything(torch.float64)
    scores = []
    for number in range(2):
        params, buffers = site_model(arm, run, number)
        before = tree.clone(buffers)
        scores.append(arm.model.logits(params, buffers, x, None)[0])
        alone = torch.cat([arm.model.logits(params, buffers, row, None)[0] for row in torch.split(x, 1)])
        torch.testing.assert_close(alone, scores[-1], rtol=0, atol=1e-13)
        assert_same_tree(buffers, before)
    assert not torch.allclose(scores[0], scores[1])


def test_a_dropped_site_keeps_its_old_statistics() -> None:
    arm = norm_trial("fedavg", stragglers=Stragglers(0.4, "drop"))
    run, record = next(each_round(arm, 1))
    (dropped,) = record.dropped
    assert_same_tree(run.memories[dropped].buffers, start(arm).memories[dropped].buffers)


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x))
        return scores


HEAD, BODY = {"head.weight", "head.bias"}, {"body.weight", "body.bias"}


@EVERY_ALGORITHM
def test_private_leaves_stay_in_their_sites_memory(name: str) -> None:
    arm = trial(ALGORITHMS[name](), model=from_module(TwoParts, class_task(2), private=("head",)), share=0.5)
    sent = seen_by_server(arm)
    assert not any(HEAD & leaves.keys() for leaves in sent)
    begun = start(arm)
    run, record = next(each_round(arm, 1))
    assert not any(HEAD & leaves.keys() for part, leaves in parts_of(run).items() if not part.endswith("private"))
    for site in arm.sites:
        private = run.memories[site.name].private
        assert private.keys() == HEAD
        changed = not torch.equal(private["head.weight"], begun.memories[site.name].private["head.weight"])
        assert changed == (site.name in record.sites)
    assert site_model(arm, run, 0)[0].keys() == HEAD | BODY
    if not arm.algorithm.pools:
        first, second, *_ = (run.memories[site].private["head.weight"] for site in record.sites)
        assert not torch.equal(first, second)


def seen_by_server(arm: Trial) -> list[Tree]:
    """Every tree that travels in three rounds, in either direction."""
    travelled: list[Tree] = []

    def broadcast(server: Any, site: int) -> Any:
        shared = arm.algorithm.broadcast(server, site)
        travelled.extend(shared.values())
        return shared

    def finish(*arguments: Any) -> Any:
        update, new_memory = arm.algorithm.finish(*arguments)
        travelled.extend(update.values())
        return update, new_memory

    after(replace(arm, algorithm=replace(arm.algorithm, broadcast=broadcast, finish=finish)), 3)
    return travelled


def test_private_leaves_cost_no_bytes() -> None:
    arm = trial(fedavg(), model=from_module(TwoParts, class_task(2), private=("head",)), precision="float64")
    _, record = next(each_round(arm, 1))
    assert record.bytes_up == record.bytes_down == len(arm.sites) * (3 * 4 + 4) * 8


def test_private_leaves_are_trained_as_shared_ones_are() -> None:
    """With a single site it makes no difference where a leaf is kept."""
    sites = ragged_sites(sizes=(11,))
    for options in ({}, {"momentum": 0.9}, {"optimiser": "adam"}):
        private = trial(fedavg(), sites, from_module(TwoParts, class_task(2), private=("head",)), **options)
        shared = trial(fedavg(), sites, from_module(TwoParts, class_task(2)), **options)
        params, _ = site_model(private, after(private, 1), 0)
        expected, _ = site_model(shared, after(shared, 1), 0)
        assert_same_tree(params, {name: expected[name] for name in params}, atol=1e-14)
