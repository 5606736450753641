"""ResNet-18 and ResNet-50 from MONAI, with the normalisation that a study asks for."""

from pathlib import Path
from typing import Literal

from torch import nn

from wardround.models.images import image_model, image_size
from wardround.models.model import Model, ModelBuilder, Shape
from wardround.models.monai_nets import monai_nets
from wardround.models.norms import Norm, normalised_by


def resnet(
    depth: Literal[18, 50] = 18,
    norm: Norm = "group",
    stem: Literal["small", "imagenet"] = "small",
    weights: Path | None = None,
    keep_head: bool = False,
) -> ModelBuilder:
    """He et al. (CVPR 2016, arXiv:1512.03385). Its leaves are named as torchvision names them.

    The stem "imagenet" makes an image four times smaller before the first block; "small" keeps its size, for images of
    up to 64 pixels. The kernels are the same, so that weights fit both.
    """

    def build(shape: Shape) -> Model:
        colours, _, _ = image_size("resnet", shape, smallest=8 if stem == "small" else 32)
        nets = monai_nets("resnet")
        network = nets.resnet18 if depth == 18 else nets.resnet50

        def module() -> nn.Module:
            made = network(
                spatial_dims=2,
                n_input_channels=colours,
                num_classes=shape.outputs,
                conv1_t_stride=1 if stem == "small" else 2,
                no_max_pool=stem == "small",
                bias_downsample=False,  # as in torchvision; the normalisation behind it has a bias
            )
            return normalised_by(norm, made)  # MONAI's own `norm` does not reach into the blocks

        return image_model(module, shape, norm, "fc", weights, keep_head)

    return build
