"""What networks for images have in common: normalisation layers, the sizes that they take, weights to start from.

Kinds of normalisation, and what of each leaves its site:

* group    GroupNorm (Wu and He, ECCV 2018, arXiv:1803.08494): nothing depends on the other rows of a batch, so that
           nothing is kept at a site and small batches do no harm. All of it is shared.
* batch    BatchNorm: its statistics are a site's own and stay there; its weights are shared.
* fedbn    BatchNorm of which the weights stay at their site as well (Li et al., ICLR 2021, arXiv:2102.07623).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from wardround.core.errors import StudyError
from wardround.models.model import Model, Shape, from_module
from wardround.models.starting_weights import starting_from

Norm = Literal["group", "batch", "fedbn"]
MOST_GROUPS = 16
LEAST_CHANNELS = 4  # of a group: one channel by itself would lose how bright it is


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    return nn.GroupNorm(groups_for(channels), channels) if kind == "group" else nn.BatchNorm2d(channels)


def groups_for(channels: int) -> int:
    """The most groups of equal size, within the limits above."""
    most = max(1, min(MOST_GROUPS, channels // LEAST_CHANNELS))
    return next(count for count in range(most, 0, -1) if channels % count == 0)


def normalised_by(kind: Norm, module: nn.Module) -> nn.Module:
    """The module, built with BatchNorm, with the layers that the study names."""
    for part in list(module.modules()):
        for name, child in part.named_children():
            if kind == "group" and isinstance(child, nn.BatchNorm2d):
                setattr(part, name, norm_layer(kind, child.num_features))
    return module


def private_norms(kind: str, build: Callable[[], nn.Module]) -> tuple[str, ...]:
    """Prefixes of the leaves that stay at their site: with `fedbn`, every BatchNorm by its exact name."""
    if kind != "fedbn":
        return ()
    with torch.device("meta"):  # names alone: no memory, no draws
        module = build()
    return tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, nn.BatchNorm2d))


def keeps_statistics(options: Mapping[str, Any]) -> bool:
    """Whether BatchNorm's statistics stay at each site, so that sites predict with models of their own."""
    return options.get("norm") in ("batch", "fedbn")


def image_size(kind: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of the images, where the network can take them."""
    if len(shape.inputs) != 3:
        data, other = ("signals", '"cnn1d" or "gru"') if len(shape.inputs) == 2 else ("a table", '"logistic" or "mlp"')
        raise StudyError("model: kind", f'"{kind}" needs images, but the data are {data}', f"Use {other}.")
    channels, height, width = shape.inputs
    if min(height, width) < smallest:
        problem = f'images of {height} x {width} are too small for "{kind}", which needs {smallest} x {smallest}'
        raise StudyError("model: kind", problem, 'Use larger images, or "mlp".')
    return channels, height, width


def image_model(
    module: Callable[[], nn.Module],
    shape: Shape,
    norm: str,
    head: str,
    weights: Path | None,
    keep_head: bool,
    feature_layers: tuple[str, ...],
    rename: Callable[[str], str] = str,
) -> Model:
    """`head` is the name of the last layer; `rename` turns a name in a file of weights into this network's own."""
    model = from_module(module, shape, private_norms(norm, module), feature_layers)
    return model if weights is None else starting_from(model, weights, head, keep_head, rename)
