"""A small convolutional network for images such as 28 x 28: two convolutions with pooling, one hidden layer."""

from torch import nn

from wardround.errors import StudyError
from wardround.models.dropout import Dropout
from wardround.models.model import Model, ModelBuilder, Shape, from_module
from wardround.settings import Count, Fraction


def cnn(channels: tuple[Count, Count] = (32, 64), hidden: Count = 512, dropout: Fraction = 0.0) -> ModelBuilder:
    """Kernels of 5 x 5 that keep the size, as in McMahan et al. (AISTATS 2017, arXiv:1602.05629)."""

    def build(shape: Shape) -> Model:
        if len(shape.inputs) != 3:
            raise StudyError("model: kind", '"cnn" needs images, but the data are a table', 'Use "logistic" or "mlp".')
        colours, height, width = shape.inputs
        if min(height, width) < 4:
            raise StudyError("model: kind", f"images of {height} x {width} are too small", 'Use "mlp".')

        def module() -> nn.Module:
            layers: list[nn.Module] = [
                nn.Conv2d(colours, channels[0], 5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(channels[0], channels[1], 5, padding=2),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(channels[1] * (height // 4) * (width // 4), hidden),
                nn.ReLU(),
            ]
            if dropout:
                layers.append(Dropout(dropout, (hidden,)))
            return nn.Sequential(*layers, nn.Linear(hidden, shape.outputs))

        return from_module(module, shape.classes)

    return build
