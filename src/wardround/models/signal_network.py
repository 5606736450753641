"""What networks for signals have in common: gaps and padding that count nothing, and a normalisation that keeps to it.

A row is (channels, samples), NaN where nothing was measured: in a gap, and after a short recording's end. A network
sees zeros there and, as further channels, which numbers were measured. A recording ends with its last measured sample;
what comes after it is padding, and no number of it reaches a score.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from wardround.core.errors import StudyError
from wardround.models.image_network import groups_for
from wardround.models.model import Shape

SignalNorm = Literal["group", "none"]
EPSILON = 1e-5


def refuse_signals(kind: str, shape: Shape) -> None:
    """For models of one number a column: they would take a gap for a number."""
    if len(shape.inputs) == 2:
        problem = f'"{kind}" takes columns or pixels, and the data are signals, with gaps and of unequal lengths'
        remedy = 'Use "cnn1d" or "gru", or let the source give `summary = true`: a table of summary features.'
        raise StudyError("model: kind", problem, remedy)


def signal_size(kind: str, shape: Shape) -> tuple[int, int]:
    """Channels and samples of a row, where the network can take them."""
    if len(shape.inputs) != 2:
        data = "images" if len(shape.inputs) == 3 else "a table"
        other = '"cnn" or "residual"' if len(shape.inputs) == 3 else '"logistic" or "mlp"'
        raise StudyError("model: kind", f'"{kind}" needs signals, but the data are {data}', f"Use {other}.")
    channels, samples = shape.inputs
    return channels, samples


def with_measured(x: Tensor) -> tuple[Tensor, Tensor]:
    """The signals with as many channels again that say what was measured, and which samples are not padding: (rows, 1,
    samples)."""
    known = ~torch.isnan(x)
    measured = known.to(x.dtype)
    numbers = torch.where(known, x, torch.zeros((), dtype=x.dtype, device=x.device))
    later = measured.sum(1, keepdim=True).flip(-1).cumsum(-1).flip(-1)  # measured numbers from here to the end
    return torch.cat([numbers, measured], dim=1), (later > 0).to(x.dtype)


def mean_over(x: Tensor, inside: Tensor) -> Tensor:
    """Of each channel, over samples that are not padding; 0 for a row without any."""
    return (x * inside).sum(-1) / inside.sum(-1).clamp(min=1)


class SignalGroupNorm(nn.Module):
    """GroupNorm (Wu and He, ECCV 2018, arXiv:1803.08494) whose mean and variance are those of the recording: the
    padding of torch's would change the scale of all that was measured."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.groups = groups_for(channels)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        rows, channels, samples = x.shape
        grouped, counted = x.reshape(rows, self.groups, -1, samples), inside.unsqueeze(1)
        count = inside.sum(-1).clamp(min=1).reshape(rows, 1, 1, 1) * (channels // self.groups)
        centred = (grouped - (grouped * counted).sum((2, 3), keepdim=True) / count) * counted
        variance = centred.square().sum((2, 3), keepdim=True) / count
        normal = (centred * torch.rsqrt(variance + EPSILON)).reshape(rows, channels, samples)
        return normal * self.weight[:, None] + self.bias[:, None]
