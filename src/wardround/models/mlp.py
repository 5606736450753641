"""A network of fully connected layers with ReLU."""

import math

from torch import nn

from wardround.core.settings import Count, Fraction
from wardround.models.model import Dropout, Model, ModelBuilder, Shape, from_module
from wardround.models.signal_network import refuse_signals
from wardround.study.facts import ModelFacts, declares


@declares(ModelFacts(seeds=10))
def mlp(hidden: tuple[Count, ...] = (64, 32), dropout: Fraction = 0.0) -> ModelBuilder:
    def build(shape: Shape) -> Model:
        refuse_signals("mlp", shape)

        def module() -> nn.Module:
            widths = [math.prod(shape.inputs), *hidden]
            layers: list[nn.Module] = [nn.Flatten()]
            for i in range(len(hidden)):
                layers += [nn.Linear(widths[i], widths[i + 1]), nn.ReLU()]
                if dropout:
                    layers.append(Dropout(dropout, (widths[i + 1],)))
            return nn.Sequential(*layers, nn.Linear(widths[-1], shape.outputs))

        return from_module(module, shape)

    return build
