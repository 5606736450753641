"""Gradients of single patients by layers are those of autograd, and where layers have no rule nothing is guessed."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.privacy.reference_gradients import IMAGES, TABLES, Batch, batch_for, length_of, params_of, patient_gradients
from tests.small_federations import assert_same_tree
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.models import Model, Shape, from_module
from wardround.models.patient_gradients import Patients
from wardround.privacy.dp.example_dp import BELOW, clipped_sum
from wardround.tasks import class_task, findings_task

PEOPLE = [4, 9, 4, 2, 9, 9, 7]  # in no order, with one to three rows each
ALONE = [4, 9, 1, 2, 8, 6, 7]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These models are so small that threads would only wait for each other."""
    with torch_threads(1):
        yield


def by_rule(model: Model, params: Tree, batch: Batch) -> tuple[Tensor, Callable[[Tensor], Tree]] | None:
    assert model.row_gradients is not None
    patients = Patients.of(batch.people)
    return model.row_gradients(params, batch.x, batch.y, batch.masks, patients)


def check_against_autograd(model: Model, batch: Batch, params: Tree | None = None, has_rule: bool = True) -> None:
    """Lengths, and sums with factors of all sorts, agree with gradients that autograd took one row at a time."""
    params = params_of(model) if params is None else params
    expected = patient_gradients(model, params, batch)
    numbers = sorted(expected)  # as torch.unique orders them
    lengths = torch.tensor([length_of(expected[number]) for number in numbers], dtype=batch.x.dtype)
    rule_result = by_rule(model, params, batch)
    assert (rule_result is not None) == has_rule
    if rule_result is not None:
        torch.testing.assert_close(rule_result[0], lengths, rtol=1e-10, atol=1e-12)
    for clip in (1e9, float(lengths.median())):
        total, before = clipped_sum(model, params, batch.x, batch.y, batch.masks, batch.people, clip)
        torch.testing.assert_close(before, lengths, rtol=1e-10, atol=1e-12)
        factors = [min(1.0, clip * BELOW / max(float(length), 1e-300)) for length in lengths]
        by_hand = {
            name: torch.stack([f * expected[n][name] for n, f in zip(numbers, factors, strict=True)]).sum(0)
            for name in params
        }
        assert_same_tree(total, by_hand, atol=1e-10)


@pytest.mark.parametrize("people", [PEOPLE, ALONE], ids=["several rows a patient", "one row each"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape((6,), class_task(2)),
        Shape((6,), class_task(3)),
        Shape((6,), findings_task(14)),
        Shape((6,), findings_task(1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, shape: Shape, people: list[int]) -> None:
    model = TABLES[name](shape)
    check_against_autograd(model, batch_for(model, shape, people, seed=1), has_rule=name != "without rules")


@pytest.mark.parametrize("people", [PEOPLE, ALONE], ids=["several rows a patient", "one row each"])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, people: list[int]) -> None:
    """Residual networks write over their activations: relu(inplace=True) right behind a normalisation."""
    shape = Shape((1, 8, 8), class_task(2))
    model = IMAGES[name](shape)
    check_against_autograd(model, batch_for(model, shape, people, seed=1))


CONVOLUTIONS = {
    "stride": nn.Conv2d(2, 3, 3, stride=2),
    "uneven stride, padding and dilation": nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
    "without bias": nn.Conv2d(2, 3, 3, padding=1, bias=False),
    "one pixel": nn.Conv2d(2, 3, 1),
    "few places, many weights": nn.Conv2d(2, 40, 5, stride=3),
    "few places, uneven": nn.Conv2d(2, 40, (5, 4), stride=3, padding=(1, 0), dilation=(1, 2)),
}


class Head(nn.Module):
    """Something, then a mean over places and scores."""

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.body(x)).flatten(2).mean(2))
        return scores


@pytest.mark.parametrize("people", [PEOPLE, ALONE], ids=["several rows a patient", "one row each"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_all_sorts(name: str, people: list[int]) -> None:
    layer, shape = CONVOLUTIONS[name], Shape((2, 9, 8), class_task(2))
    model = from_module(lambda: Head(layer, layer.out_channels), shape)
    check_against_autograd(model, batch_for(model, shape, people, seed=2))


@pytest.mark.parametrize("people", [PEOPLE, ALONE], ids=["several rows a patient", "one row each"])
def test_layers_on_sequences(people: list[int]) -> None:
    shape = Shape((4, 5), class_task(2))
    model = from_module(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 1)),
        shape,
    )
    check_against_autograd(model, batch_for(model, shape, people, seed=3))


def test_a_normalisation_over_two_axes_and_one_without_weights() -> None:
    shape = Shape((4, 5), class_task(2))
    model = from_module(
        lambda: nn.Sequential(
            nn.LayerNorm((4, 5)),
            nn.Linear(5, 3),
            nn.LayerNorm(3, elementwise_affine=False),
            nn.Flatten(),
            nn.Linear(12, 1),
        ),
        shape,
    )
    check_against_autograd(model, batch_for(model, shape, PEOPLE, seed=3))


def test_weights_that_are_frozen_are_no_part_of_the_vector() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        module[0].weight.requires_grad_(False)
        return module

    shape = Shape((6,), class_task(2))
    model = from_module(build, shape)
    assert set(params_of(model)) == {"0.bias", "2.weight", "2.bias"}
    check_against_autograd(model, batch_for(model, shape, PEOPLE, seed=4))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(torch.tanh(self.layer(x))))
        return scores


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(torch.tanh(self.first(x))))
        return scores


class Adapted(nn.Linear):
    """An adapter of low rank as part of a linear layer: what the layer's own rule says is not all."""

    def __init__(self) -> None:
        super().__init__(6, 1)
        self.down, self.up = nn.Parameter(torch.full((2, 6), 0.1)), nn.Parameter(torch.full((1, 2), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv1d(2, 4, 3, groups=2), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(x.reshape(len(x), 2, 3)).flatten(1))
        return scores


@pytest.mark.parametrize("kind", [Twice, Shared, Adapted, Grouped])
def test_what_has_no_rule_is_differentiated_row_by_row(kind: type[nn.Module]) -> None:
    shape = Shape((6,), class_task(2))
    model = from_module(kind, shape)
    check_against_autograd(model, batch_for(model, shape, PEOPLE, seed=5), has_rule=False)


class Mixing(nn.Module):
    """Rows are compared with their batch, without a single buffer that would give it away."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(0, keepdim=True)
        scores: Tensor = self.head(torch.where(torch.tensor(len(x) > 1), centred, x))
        return scores


def test_rows_that_reach_each_other_are_taken_one_by_one() -> None:
    """Else one patient would move the contribution of every other."""
    shape = Shape((6,), class_task(2))
    model = from_module(Mixing, shape)
    batch = batch_for(model, shape, list(range(30)), seed=6)
    batch.x[29] = -3000.0
    params = {name: torch.zeros_like(leaf) for name, leaf in params_of(model).items()}
    assert by_rule(model, params, batch) is None
    moved = difference(model, params, batch, 29, clip=0.1)
    assert moved <= 0.1


class AcrossTime(nn.Module):
    """Steps of time along the first axis where a rule expects rows; as many of them as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.layer(x.transpose(0, 1))).mean(0))
        return scores


class Flat(AcrossTime):
    """All rows' steps in one list."""

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.layer(x.reshape(-1, 3))).reshape(len(x), -1, 3)
        scores: Tensor = self.head(inner.mean(1))
        return scores


@pytest.mark.parametrize("kind", [AcrossTime, Flat])
def test_a_layer_that_does_not_see_rows_first_has_no_rule(kind: type[nn.Module]) -> None:
    shape = Shape((7, 3), class_task(2))
    model = from_module(kind, shape)
    check_against_autograd(model, batch_for(model, shape, PEOPLE, seed=7), has_rule=False)


def difference(model: Model, params: Tree, batch: Batch, patient: int, clip: float) -> float:
    """How far one patient moves the sum."""
    rest = batch.without(patient)
    with_all, _ = clipped_sum(model, params, batch.x, batch.y, batch.masks, batch.people, clip)
    without, _ = clipped_sum(model, params, rest.x, rest.y, rest.masks, rest.people, clip)
    return length_of({name: leaf.double() - without[name].double() for name, leaf in with_all.items()})


@pytest.mark.parametrize("clip", [1.0, 0.01])
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_rows_that_nearly_cancel_do_not_hide_a_length(name: str, clip: float) -> None:
    """A patient's two rows with opposite labels: in single precision little but rounding is left of their products,
    and a length that came out as nothing would have let 28 clips pass."""
    shape = Shape((6,), class_task(2))
    model = TABLES[name](shape)
    rng = torch.Generator().manual_seed(1)
    params = {k: leaf * 0 if name == "logistic" else leaf for k, leaf in params_of(model, torch.float32).items()}
    longest = 0.0
    for size in torch.logspace(-3, 1, 60).tolist():
        first = torch.randn(1, 6, generator=rng) * 1000
        x = torch.cat([first, first + torch.randn(1, 6, generator=rng) * size])
        total, _ = clipped_sum(model, params, x, torch.tensor([0, 1]), {}, torch.tensor([5, 5]), clip)
        longest = max(longest, length_of(total))
    assert clip / 2 < longest <= clip


def test_places_that_nearly_cancel_do_not_hide_a_length() -> None:
    """The same within one image: a kernel's gradient at one place undoes that at another."""

    class Opposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 40, 3, stride=3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            places = self.layer(x).flatten(2).sum(1)
            scores: Tensor = (places[:, :1] - places[:, 1:2]) * 100
            return scores

    model = from_module(Opposed, class_task(2))
    params = {"layer.weight": torch.zeros(40, 1, 3, 3)}
    rng, longest = torch.Generator().manual_seed(1), 0.0
    for size in torch.logspace(-4, 1, 60).tolist():
        left = torch.randn(1, 1, 3, 3, generator=rng) * 1000
        x = torch.cat([left, left + torch.randn(1, 1, 3, 3, generator=rng) * size], dim=3)
        batch = Batch(x, torch.tensor([0]), {}, torch.tensor([0]))
        assert by_rule(model, params, batch) is not None
        total, _ = clipped_sum(model, params, x, batch.y, {}, batch.people, 0.1)
        longest = max(longest, length_of(total))
    assert 0.05 < longest <= 0.1


def test_a_patients_mean_does_not_depend_on_the_order_of_rows() -> None:
    shape = Shape((6,), class_task(3))
    model = TABLES["mlp"](shape)
    params, batch = params_of(model), batch_for(model, shape, PEOPLE, seed=8)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    a, _ = clipped_sum(model, params, batch.x, batch.y, {}, batch.people, 0.05)
    b, _ = clipped_sum(model, params, batch.x[order], batch.y[order], {}, batch.people[order], 0.05)
    assert_same_tree(a, b, atol=1e-14)


def test_a_row_that_is_no_number_counts_nothing_and_spoils_nobody() -> None:
    shape = Shape((6,), class_task(2))
    for name in ("logistic", "mlp", "without rules"):
        model = TABLES[name](shape)
        params, batch = params_of(model), batch_for(model, shape, PEOPLE, seed=9)
        batch.x[3] = float("nan")  # the only row of patient 2
        batch.x[6, 0] = float("inf")  # and of patient 7
        rest = batch.without(2).without(7)
        total, _ = clipped_sum(model, params, batch.x, batch.y, {}, batch.people, 0.05)
        expected, _ = clipped_sum(model, params, rest.x, rest.y, {}, rest.people, 0.05)
        assert_same_tree(total, expected, atol=1e-12)


def test_gradients_too_long_to_be_squared_are_still_clipped_or_left_out() -> None:
    model = TABLES["logistic"](Shape((2,), class_task(2)))
    params = {name: torch.zeros_like(leaf) for name, leaf in params_of(model, torch.float32).items()}
    x = torch.tensor([[1e25, 0.0], [1.0, 2.0]])
    total, _ = clipped_sum(model, params, x, torch.tensor([0, 1]), {}, torch.tensor([0, 1]), 0.5)
    assert length_of(total) <= 1.0
    assert all(bool(leaf.isfinite().all()) for leaf in total.values())


def test_functional_layers_are_seen_by_nobody_and_need_no_weights() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(F.adaptive_avg_pool2d(F.relu_(self.layer(x)), 1).flatten(1))
            return scores

    shape = Shape((1, 6, 6), class_task(2))
    model = from_module(Pooled, shape)
    check_against_autograd(model, batch_for(model, shape, PEOPLE, seed=10))
