"""What all networks for images have in common: they refuse tables and too small images, and may start from a file."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from wardround.core.errors import StudyError
from wardround.models.model import Model, Shape, from_module
from wardround.models.norms import private_norms
from wardround.models.starting_weights import starting_from


def image_size(kind: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """Channels, height and width of the images, where the network can take them."""
    if len(shape.inputs) != 3:
        problem = f'"{kind}" needs images, but the data are a table'
        raise StudyError("model: kind", problem, 'Use "logistic" or "mlp".')
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
    rename: Callable[[str], str] = str,
) -> Model:
    """`head` is the name of the last layer; `rename` turns a name in a file of weights into this network's own."""
    model = from_module(module, shape, private_norms(norm, module))
    return model if weights is None else starting_from(model, weights, head, keep_head, rename)
