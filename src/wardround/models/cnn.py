"""A small convolutional network for images such as 28 x 28: two convolutions with pooling, one hidden layer."""

from pathlib import Path
from typing import Literal

from torch import nn

from wardround.core.settings import Count, Fraction
from wardround.models.image_network import image_model, image_size, keeps_statistics, norm_layer
from wardround.models.model import Dropout, Model, ModelBuilder, Shape
from wardround.study.facts import ModelFacts, declares


@declares(lambda options: ModelFacts(keeps_private=keeps_statistics(options)))
def cnn(
    channels: tuple[Count, Count] = (32, 64),
    hidden: Count = 512,
    dropout: Fraction = 0.0,
    kernel: Literal[3, 5] = 5,
    norm: Literal["none", "group", "batch", "fedbn"] = "none",
    weights: Path | None = None,
    keep_head: bool = False,
) -> ModelBuilder:
    """Convolutions that keep the size, as in McMahan et al. (AISTATS 2017, arXiv:1602.05629), whose kernel is 5 x 5."""

    def build(shape: Shape) -> Model:
        colours, height, width = image_size("cnn", shape, smallest=4)

        def convolution(before: int, after: int) -> list[nn.Module]:
            layers: list[nn.Module] = [nn.Conv2d(before, after, kernel, padding=kernel // 2)]
            if norm != "none":
                layers.append(norm_layer(norm, after))
            return [*layers, nn.ReLU(), nn.MaxPool2d(2)]

        def module() -> nn.Module:
            layers = [
                *convolution(colours, channels[0]),
                *convolution(channels[0], channels[1]),
                nn.Flatten(),
                nn.Linear(channels[1] * (height // 4) * (width // 4), hidden),
                nn.ReLU(),
            ]
            if dropout:
                layers.append(Dropout(dropout, (hidden,)))
            return nn.Sequential(*layers, nn.Linear(hidden, shape.outputs))

        normed = norm != "none"
        head = 9 + 2 * normed + (dropout > 0)  # its place among the layers
        activations = (str(1 + normed), str(4 + 2 * normed))
        return image_model(module, shape, norm, str(head), weights, keep_head, activations)

    return build
