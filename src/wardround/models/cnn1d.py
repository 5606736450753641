"""A convolutional network for signals such as ECGs: a convolution with a stride for each stage, then all of time.

What a score is made of are the mean and the highest value of each last channel over the recording, so that recordings
may be of any length.
"""

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wardround.core.errors import StudyError
from wardround.core.settings import Count, Fraction, Range
from wardround.models.model import Dropout, Model, ModelBuilder, Shape, from_module
from wardround.models.signal_network import SignalGroupNorm, SignalNorm, mean_over, signal_size, with_measured
from wardround.study.facts import ModelFacts, declares


class Stage(nn.Module):
    def __init__(self, before: int, after: int, kernel: int, stride: int, norm: SignalNorm) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(before, after, kernel, stride, padding=kernel // 2)
        self.norm = SignalGroupNorm(after) if norm == "group" else None

    def forward(self, x: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        inside = inside[..., :: self.stride]  # as many places as the convolution gives, centred where it is
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x, inside)
        return F.relu(x) * inside, inside


class SignalNetwork(nn.Module):
    def __init__(
        self, channels: int, outputs: int, widths: tuple[int, ...], kernel: int, stride: int, norm: SignalNorm, p: float
    ) -> None:
        super().__init__()
        before = [2 * channels, *widths]
        self.stages = nn.ModuleList(Stage(before[i], width, kernel, stride, norm) for i, width in enumerate(widths))
        self.thinned = Dropout(p, (2 * widths[-1],)) if p else nn.Identity()
        self.head = nn.Linear(2 * widths[-1], outputs)
        for part in self.modules():
            if isinstance(part, nn.Conv1d):  # from torch's own, nothing is learnt for hundreds of steps
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x, inside = with_measured(x)
        for stage in self.stages:
            x, inside = stage(x, inside)
        # after ReLU nothing is below the zeros of the padding
        scores: Tensor = self.head(self.thinned(torch.cat([mean_over(x, inside), x.amax(-1)], dim=1)))
        return scores


@declares(ModelFacts())
def cnn1d(
    widths: tuple[Count, ...] = (16, 32, 32, 64, 64),
    kernel: Annotated[int, Range(low=3, high=63)] = 7,
    stride: Annotated[int, Range(low=1, high=8)] = 2,
    norm: SignalNorm = "group",
    dropout: Fraction = 0.0,
) -> ModelBuilder:
    """A stage for each width; each sees the signal `stride` times coarser than the one before."""

    def build(shape: Shape) -> Model:
        channels, _ = signal_size("cnn1d", shape)
        if not widths:
            raise StudyError("model: widths", "is empty", "Write a width for each stage, such as [16, 32, 64].")
        if kernel % 2 == 0:
            raise StudyError("model: kernel", f"{kernel} has no middle", "Write an odd number.")

        def module() -> nn.Module:
            return SignalNetwork(channels, shape.outputs, widths, kernel, stride, norm, dropout)

        return from_module(module, shape)

    return build
