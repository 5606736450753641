"""A small residual network for grey images of 28 to 128 pixels, made for the processors of an ordinary computer."""

from pathlib import Path
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from wardround.core.errors import StudyError
from wardround.core.settings import Count, Fraction
from wardround.models.image_network import Norm, image_model, image_size, keeps_statistics, norm_layer
from wardround.models.model import Dropout, Model, ModelBuilder, Shape
from wardround.study.facts import ModelFacts, declares


class Block(nn.Module):
    """Two convolutions beside a shortcut (He et al., CVPR 2016, arXiv:1512.03385)."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        # a convolution needs no bias before a normalisation, which would take it away again
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, after)
        # halved by averages, so that no pixel is passed over; an odd size is rounded up, as the convolution does it
        smaller: list[nn.Module] = [nn.AvgPool2d(stride, ceil_mode=True)] if stride > 1 else []
        wider: list[nn.Module] = [nn.Conv2d(before, after, 1, bias=False)] if before != after else []
        self.shortcut = nn.Sequential(*smaller, *wider)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)  # a twentieth faster than with memory of its own
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x), inplace=True)


class ResidualNetwork(nn.Module):
    def __init__(
        self,
        colours: int,
        outputs: int,
        widths: tuple[int, ...],
        blocks: int,
        norm: Norm,
        dropout: float,
        reduce: int,
        places: int = 1,
    ) -> None:
        """`places` are those of the last stage which the head tells apart; 1: it sees their mean."""
        super().__init__()
        first: list[nn.Module] = [
            nn.Conv2d(colours, widths[0], 5, stride=min(reduce, 2), padding=2, bias=False),
            norm_layer(norm, widths[0]),
            nn.ReLU(inplace=True),
        ]
        self.stem = nn.Sequential(*first, *([nn.MaxPool2d(2, ceil_mode=True)] if reduce == 4 else []))
        self.stages = nn.Sequential()
        before = widths[0]
        for stage, width in enumerate(widths):
            for place in range(blocks):
                stride = 2 if stage > 0 and place == 0 else 1
                self.stages.append(Block(before, width, stride, norm))
                before = width
        self.apart = places > 1
        self.thinned = Dropout(dropout, (before * places,)) if dropout else nn.Identity()
        self.head = nn.Linear(before * places, outputs)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        scores: Tensor = self.head(self.thinned(x.flatten(1) if self.apart else x.mean((2, 3))))
        return scores


def places_left(height: int, width: int, reduce: int, stages: int) -> int:
    """Height times width of the last stage: each halving rounds up."""
    shrink = reduce << (stages - 1)
    return -(-height // shrink) * -(-width // shrink)


CITATION = "He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. arXiv:1512.03385"


@declares(lambda options: ModelFacts(keeps_private=keeps_statistics(options), citation=CITATION))
def residual(
    widths: tuple[Count, ...] = (32, 64, 128, 256),
    blocks: Count = 1,
    norm: Norm = "group",
    dropout: Fraction = 0.0,
    reduce: Literal[1, 2, 4] = 4,
    pool: Literal["mean", "none"] = "mean",
    weights: Path | None = None,
    keep_head: bool = False,
) -> ModelBuilder:
    """A stage for each width, of `blocks` blocks; each after the first halves height and width.

    `reduce` is how many times smaller the first stage sees the image. With 4 a network twice as wide takes about as
    long as with 2. Images of 28 pixels want less: four stages after 4 leave them a single pixel.

    The head sees the mean of each channel over the image; with `pool = "none"` it has a weight for each channel at each
    place of the last stage, and so can learn where in the image a finding lies. It then fits images of one size.
    """

    def build(shape: Shape) -> Model:
        colours, height, width = image_size("residual", shape, smallest=8)
        if not widths:
            raise StudyError("model: widths", "is empty", "Write a width for each stage, such as [32, 64, 128].")

        places = 1 if pool == "mean" else places_left(height, width, reduce, len(widths))

        def module() -> nn.Module:
            return ResidualNetwork(colours, shape.outputs, widths, blocks, norm, dropout, reduce, places)

        ends = tuple(f"stages.{blocks * (stage + 1) - 1}" for stage in range(len(widths)))
        return image_model(module, shape, norm, "head", weights, keep_head, ends)

    return build
