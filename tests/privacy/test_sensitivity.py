"""One patient more moves the sum by no more than the clip, to the last digit, however many others are in the step.

The others are coherent: all pull in one direction and the new patient in the opposite one, so that whatever the new
patient does to what the others add is multiplied by their number.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.privacy.reference_gradients import DOUBLE, IMAGES, TABLES, Batch, length_of, params_of
from tests.representatives import represented
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.site import Block
from wardround.models import MODELS, Model, Shape, from_module
from wardround.privacy.dp.example_dp import BELOW, clipped_sum
from wardround.tasks import class_task

TABLE, IMAGE = Shape((6,), class_task(2)), Shape((1, 8, 8), class_task(2))
BOTH = Shape((70,), class_task(2), parts=(Block("imaging", 0, 64, (1, 8, 8), None), Block("clinic", 64, 69, (5,), 69)))
PATHS: dict[str, tuple[Shape, Callable[[Shape], Model]]] = {
    **{name: (TABLE, build) for name, build in TABLES.items()},
    "adapter": (TABLE, MODELS["adapter"](latent=4, hidden=(5,))),
    "adapter that is aligned": (TABLE, MODELS["adapter"](latent=4, hidden=(5,), align="coral")),
    **{name: (IMAGE, build) for name, build in IMAGES.items()},
    "logistic on images": (IMAGE, MODELS["logistic"]()),
    "deep convolution": (
        IMAGE,
        lambda shape: from_module(
            lambda: nn.Sequential(nn.Conv2d(1, 40, 5, stride=3), nn.Tanh(), nn.Flatten(), nn.Linear(160, 1)), shape
        ),
    ),
    "joined": (BOTH, MODELS["joined"](embedding=4, hidden=6)),
}
NETWORKS_ON_IMAGES = ("cnn", "residual", "residual without pooling", "deep convolution", "joined")
PRECISIONS = {"float32": torch.float32, "float64": DOUBLE}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def coherent(model: Model, shape: Shape, others: int, rows: int, dtype: torch.dtype, first: bool) -> Batch:
    """`others` with one and the same row, and one patient, 0 or the last, with `rows` rows that pull the other way."""
    rng = np.random.default_rng(7)
    row = torch.tensor(rng.normal(scale=5, size=(1, *shape.inputs)), dtype=dtype)
    count = others + rows
    is_new = torch.arange(count) < rows if first else torch.arange(count) >= others
    people = torch.where(is_new, 0 if first else others + 1, torch.arange(count) + (1 if first else 0))
    masks = {
        name: mask.expand(count, *mask.shape[1:]).contiguous() for name, mask in model.masks(rng, 1, dtype).items()
    }
    return Batch(row.expand(count, *shape.inputs).contiguous(), (~is_new).long(), masks, people)


def summed(model: Model, params: Tree, batch: Batch, clip: float) -> Tree:
    return clipped_sum(model, params, batch.x, batch.y, batch.masks, batch.people, clip)[0]


def clip_for(model: Model, params: Tree, batch: Batch) -> float:
    """So short that everybody is clipped."""
    some = [
        Batch(b.x[:1], b.y[:1], {k: m[:1] for k, m in b.masks.items()}, b.people[:1]) for b in (batch, _turned(batch))
    ]
    return 0.5 * min(length_of(summed(model, params, lone_batch, 1e9)) for lone_batch in some)


def _turned(batch: Batch) -> Batch:
    return Batch(batch.x.flip(0), batch.y.flip(0), {k: m.flip(0) for k, m in batch.masks.items()}, batch.people.flip(0))


def change(model: Model, params: Tree, batch: Batch, patient: int, clip: float) -> float:
    """How far the sum moves with one patient more, in clips."""
    whole, rest = summed(model, params, batch, clip), summed(model, params, batch.without(patient), clip)
    assert all(leaf.dtype == DOUBLE for leaf in whole.values())
    return length_of({name: leaf - rest[name] for name, leaf in whole.items()}) / clip


def check(name: str, precision: str, others: int) -> None:
    shape, build = PATHS[name]
    model, dtype = build(shape), PRECISIONS[precision]
    params = params_of(model, dtype)
    for rows, first in product((1, 3), (True, False)):
        batch = coherent(model, shape, others, rows, dtype, first)
        moved = change(model, params, batch, 0 if first else others + 1, clip_for(model, params, batch))
        # not above a clip, and not below what everybody is clipped to: then others lost what the patient gained
        assert BELOW - 1e-6 < moved <= 1, (rows, first)


# every model in the precision that rounds more, and one in the other
OFTEN = [*((name, "float32") for name in PATHS), ("logistic", "float64")]


@pytest.mark.parametrize(("name", "precision"), represented(product(PATHS, PRECISIONS), by=OFTEN))
def test_a_patient_among_many_who_pull_together(name: str, precision: str) -> None:
    check(name, precision, 256 if name in NETWORKS_ON_IMAGES else 16_384)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS_ON_IMAGES)
def test_a_patient_among_thousands_of_images(name: str, precision: str) -> None:
    check(name, precision, 16_384 if precision == "float32" and name != "joined" else 4096)


@pytest.mark.parametrize("others", [1, 15, 31, 32])
@pytest.mark.parametrize("name", ["cnn", "residual", "deep convolution"])
def test_a_patient_who_moves_others_to_another_block(name: str, others: int) -> None:
    check(name, "float32", others)


def company(shape: Shape, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same patients 1 to 40, some with several rows, alone and among others of all sorts."""
    rng = np.random.default_rng(2)
    people = 1 + torch.arange(50) % 40
    x = torch.tensor(rng.normal(size=(50, *shape.inputs)), dtype=dtype)
    y = torch.tensor(rng.integers(0, 2, 50))
    yield x, y, people
    for rows in (1, 2, 30):
        more = torch.tensor(rng.normal(scale=50, size=(rows, *shape.inputs)), dtype=dtype)
        label, patient = torch.tensor(rng.integers(0, 2, rows)), torch.zeros(rows, dtype=torch.int64)
        yield torch.cat([more, x]), torch.cat([label, y]), torch.cat([patient, people])
        yield torch.cat([x, more]), torch.cat([y, label]), torch.cat([people, patient])
        more = more * torch.nan
        yield torch.cat([more, x]), torch.cat([label, y]), torch.cat([patient, people])


@pytest.mark.parametrize("name", PATHS)
def test_a_patients_length_depends_on_nobody_else(name: str) -> None:
    """Nor on whether somebody else has several rows, or a gradient that is no number."""
    shape, build = PATHS[name]
    model = build(shape)
    params = params_of(model, torch.float32)
    length_sets = []
    for x, y, people in company(shape, torch.float32):
        masks = {
            key: mask.expand(len(x), *mask.shape[1:])
            for key, mask in model.masks(np.random.default_rng(0), 1, torch.float32).items()
        }
        length_sets.append(clipped_sum(model, params, x, y, masks, people, 1.0)[1][-40:])
    for lengths in length_sets[1:]:
        off = ((lengths - length_sets[0]) / length_sets[0]).abs()
        assert off.max() < (1e-5 if name in NETWORKS_ON_IMAGES and name != "joined" else 1e-12)


def test_a_patient_whose_gradient_is_no_number_moves_nobody() -> None:
    shape, build = PATHS["residual"]
    model = build(shape)
    params = params_of(model, torch.float32)
    batch = coherent(model, shape, 64, 1, torch.float32, first=False)
    batch.x[-1] = torch.nan
    clip = 1e-3
    assert change(model, params, batch, 65, clip) == 0
