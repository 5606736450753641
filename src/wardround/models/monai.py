"""ResNet-18, ResNet-50 and DenseNet-121 from MONAI, imported only when a study asks for one."""

import re
from pathlib import Path
from types import ModuleType
from typing import Literal

from torch import nn

from wardround.core.extras import load
from wardround.models.image_network import Norm, image_model, image_size, keeps_statistics, normalised_by
from wardround.models.model import Model, ModelBuilder, Shape
from wardround.study.facts import ModelFacts, declares

RESNET = "He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. arXiv:1512.03385"
DENSENET = (
    "Huang, Liu, van der Maaten, Weinberger. Densely connected convolutional networks. CVPR 2017. arXiv:1608.06993"
)


def monai_nets(kind: str) -> ModuleType:
    return load("monai.networks.nets", "imaging", f"model: {kind}")


@declares(lambda options: ModelFacts(keeps_private=keeps_statistics(options), citation=RESNET))
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
            net = network(
                spatial_dims=2,
                n_input_channels=colours,
                num_classes=shape.outputs,
                conv1_t_stride=1 if stem == "small" else 2,
                no_max_pool=stem == "small",
                bias_downsample=False,  # as in torchvision; the normalisation behind it has a bias
            )
            return normalised_by(norm, net)  # MONAI's own `norm` does not reach into the blocks

        stages = ("layer1", "layer2", "layer3", "layer4")
        return image_model(module, shape, norm, "fc", weights, keep_head, stages)

    return build


@declares(lambda options: ModelFacts(keeps_private=keeps_statistics(options), citation=DENSENET))
def densenet(
    norm: Norm = "group",
    stem: Literal["small", "imagenet"] = "small",
    weights: Path | None = None,
    keep_head: bool = False,
) -> ModelBuilder:
    """Huang et al. (CVPR 2017, arXiv:1608.06993), with 121 layers. Weights may be named as torchvision names them.

    The stem "imagenet" makes an image four times smaller before the first block; "small" keeps its size, for images of
    up to 64 pixels. The kernels are the same, so that weights fit both.
    """

    def build(shape: Shape) -> Model:
        colours, _, _ = image_size("densenet", shape, smallest=8 if stem == "small" else 32)
        nets = monai_nets("densenet")

        def module() -> nn.Module:
            net = nets.DenseNet121(spatial_dims=2, in_channels=colours, out_channels=shape.outputs)
            if stem == "small":
                net.features.conv0.stride = (1, 1)
                net.features.pool0 = nn.Identity()
            return normalised_by(norm, net)

        stages = ("features.denseblock1", "features.denseblock2", "features.denseblock3", "class_layers.relu")
        return image_model(module, shape, norm, "class_layers.out", weights, keep_head, stages, own_name)

    return build


def own_name(name: str) -> str:
    """MONAI's name of what torchvision calls denselayer1.norm1, and called denselayer1.norm.1 in its early files."""
    return re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)
