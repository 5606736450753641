"""Which feature maps of a convolutional network an explanation looks at, and how a score changes with them."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.core.errors import StudyError, suggest
from wardround.explain.method import Scorer

AT_ONCE = 64  # rows, whose feature maps the memory holds together
FINE = 7  # cells a side that a map has in the networks of the papers: coarser ones tell little of a small image


def chosen_layer(scorer: Scorer, rows: Tensor, layer: str | None = None) -> str:
    """The one that is asked for; else the last whose maps have at least FINE cells a side, or the finest of all."""
    maps = scorer.model.feature_maps
    if maps is None:
        problem = "looks at feature maps, and this model has no convolutional layer that it names"
        raise StudyError("explain: method", problem, "Use occlusion or integrated-gradients.")
    if layer is not None:
        if layer not in maps.layers:
            remedy = suggest(layer, maps.layers, "From the image to the scores, there are")
            raise StudyError("explain: layer", f"{layer!r} is no layer with feature maps of this model", remedy)
        return layer
    sides: dict[str, int] = {}
    for name in reversed(maps.layers):
        sides[name] = min(with_maps(scorer, rows[:1], name)[1].shape[2:])
        if sides[name] >= FINE:
            return name
    return max(sides, key=sides.__getitem__)


def with_maps(scorer: Scorer, rows: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """The score (rows,), and the layer's maps (rows, channels, height, width) of which it is a function."""
    maps = scorer.model.feature_maps
    if maps is None:
        raise ValueError("a model with feature maps is needed")
    scores, found = maps.at(scorer.params, scorer.buffers, rows, layer)
    return scorer.model.task.on_link_scale(scores, scorer.scale)[:, scorer.output], found


def maps_and_slopes(scorer: Scorer, rows: Tensor, layer: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time: their maps A and dS/dA of the score S, (rows, channels, height, width)."""
    for part in torch.split(rows, AT_ONCE):
        with torch.enable_grad():
            score, maps = with_maps(scorer, part, layer)
            [slopes] = torch.autograd.grad(score.sum(), maps)  # no row's score depends on another row
        yield maps.detach(), slopes


def enlarged(maps: Tensor, rows: Tensor) -> Tensor:
    """(rows, height, width) of the images, with straight lines between the middles of the cells."""
    found = F.interpolate(maps[:, None].double(), rows.shape[2:], mode="bilinear", align_corners=False)
    return found[:, 0]
