"""Networks for signals: what was not measured counts nothing, however long the row and whoever is beside it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models import MODELS, Model, Shape
from wardround.models.signal_network import SignalGroupNorm
from wardround.privacy.dp.example_dp import BELOW, clipped_sum
from wardround.tasks import class_task

NAN = float("nan")
NETWORKS: Mapping[str, dict[str, Any]] = {
    "cnn1d": {"widths": (8, 16, 16)},
    "cnn1d without norm": {"widths": (8, 16, 16), "norm": "none", "stride": 3},
    "gru": {"hidden": 12},
    "gru in windows": {"hidden": 12, "window": 7},
}
EVERY_NETWORK = pytest.mark.parametrize("name", NETWORKS)


def network(name: str, channels: int = 2, samples: int = 60) -> tuple[Model, Tree]:
    model = MODELS[name.partition(" ")[0]](**NETWORKS[name])(Shape((channels, samples), class_task(3)))
    params, _ = model.init(3)
    rng = np.random.default_rng(5)
    return model, {key: leaf + torch.tensor(rng.normal(0, 0.2, leaf.shape)).to(leaf) for key, leaf in params.items()}


def recordings(rows: int = 5, samples: int = 60) -> Tensor:
    """Of different lengths, with a gap in one channel and a gap in all."""
    x = torch.tensor(np.random.default_rng(1).normal(size=(rows, 2, samples)), dtype=torch.float32)
    x[1, :, 31:] = NAN
    x[2, 0, 10:20] = NAN
    x[3, :, 22:29] = NAN
    return x


def scores(model: Model, params: Tree, x: Tensor) -> Tensor:
    return model.logits(params, {}, x, None)[0]


@EVERY_NETWORK
@pytest.mark.parametrize("more", [1, 2, 3, 40, 199])
def test_padding_changes_no_score(name: str, more: int) -> None:
    model, params = network(name)
    x = recordings()
    longer = torch.cat([x, torch.full((len(x), 2, more), NAN)], dim=-1)
    torch.testing.assert_close(scores(model, params, longer), scores(model, params, x), rtol=0, atol=1e-6)


@EVERY_NETWORK
def test_a_batch_mates_length_does_not_matter(name: str) -> None:
    """A short recording scores the same by itself, cut to its length, and beside a long one."""
    model, params = network(name)
    x = recordings()
    together = scores(model, params, x)
    torch.testing.assert_close(scores(model, params, x[1:2, :, :31]), together[1:2], rtol=1e-5, atol=1e-5)
    changed = x.clone()
    changed[0] = 3 * changed[0].flip(-1)
    torch.testing.assert_close(scores(model, params, changed)[1:], together[1:], rtol=0, atol=1e-6)


@EVERY_NETWORK
def test_a_gap_is_neither_a_zero_nor_an_end(name: str) -> None:
    model, params = network(name)
    x = recordings()
    base = scores(model, params, x)
    zero = x.clone()
    zero[3, :, 22:29] = 0
    closed = torch.cat([x[3:4, :, :22], x[3:4, :, 29:]], dim=-1)
    assert not torch.allclose(scores(model, params, zero)[3], base[3], atol=1e-4)
    assert not torch.allclose(scores(model, params, closed)[0], base[3], atol=1e-4)
    assert base.isfinite().all()


@EVERY_NETWORK
def test_gradients_are_finite_where_nothing_was_measured(name: str) -> None:
    model, params = network(name)
    x = recordings()
    x[4] = NAN
    grads, loss, _ = model.gradient(params, {}, x, torch.tensor([0, 1, 2, 0, 1]), {})
    assert loss.isfinite()
    assert all(bool(leaf.isfinite().all()) for leaf in grads.values())


def test_a_gru_takes_torchs_steps() -> None:
    """Its states, and so its last one, are those of torch's own with the same weights, where nothing is missing."""
    model, params = network("gru")
    x = recordings()[:1]
    reference = nn.GRU(4, 12, batch_first=True)
    with torch.no_grad():
        for ours, theirs in (("inputs", "ih"), ("state", "hh")):
            for part in ("weight", "bias"):
                getattr(reference, f"{part}_{theirs}_l0").copy_(params[f"{ours}.{part}"])
        states, last = reference(torch.cat([x, torch.ones_like(x)], dim=1).transpose(1, 2))
    joined = torch.cat([last[0], states.mean(1)], dim=1)
    expected = joined @ params["head.weight"].T + params["head.bias"]
    torch.testing.assert_close(scores(model, params, x), expected, rtol=0, atol=1e-5)


def test_the_norm_is_torchs_where_nothing_is_padding() -> None:
    own, reference = SignalGroupNorm(16), nn.GroupNorm(4, 16)
    x = torch.randn(3, 16, 20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(own(x, torch.ones(3, 1, 20)), reference(x), rtol=1e-5, atol=1e-5)
    inside = torch.ones(3, 1, 20)
    inside[:, :, 14:] = 0
    short = own(x[..., :14], torch.ones(3, 1, 14))
    torch.testing.assert_close(own(x, inside)[..., :14], short, rtol=1e-5, atol=1e-5)


@EVERY_NETWORK
def test_a_patient_with_several_recordings_is_clipped_as_one(name: str) -> None:
    """Against autograd, patient by patient: the mean loss over a patient's rows, clipped, then summed."""
    model, params = network(name)
    params = {key: leaf.double() for key, leaf in params.items()}
    x, y, people = recordings().double(), torch.tensor([0, 1, 2, 0, 1]), torch.tensor([7, 4, 7, 9, 7])
    total, lengths = clipped_sum(model, params, x, y, {}, people, clip := 0.3)
    expected = {key: torch.zeros_like(leaf) for key, leaf in params.items()}
    own_lengths = []
    for patient in (4, 7, 9):
        rows = people == patient
        grads, _, _ = model.gradient(params, {}, x[rows], y[rows], {})
        length = torch.sqrt(sum((leaf.square().sum() for leaf in grads.values()), torch.zeros((), dtype=torch.float64)))
        own_lengths.append(float(length))
        for key, leaf in grads.items():
            expected[key] += leaf * min(1.0, clip * BELOW / float(length))
    np.testing.assert_allclose(sorted(lengths.tolist()), sorted(own_lengths), rtol=1e-6)
    for key, leaf in expected.items():
        np.testing.assert_allclose(total[key].numpy(), leaf.numpy(), atol=1e-6)


@pytest.mark.parametrize(("kind", "inputs"), [("cnn1d", (4,)), ("gru", (1, 8, 8)), ("mlp", (2, 30)), ("cnn", (2, 30))])
def test_models_refuse_data_of_another_kind(kind: str, inputs: tuple[int, ...]) -> None:
    with pytest.raises(StudyError, match="model: kind") as refused:
        MODELS[kind]()(Shape(inputs, class_task(2)))
    assert "Use" in refused.value.remedy
