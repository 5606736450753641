"""Models by the name that a study gives. A factory takes the study's settings; what it returns takes a data shape."""

from collections.abc import Callable

from wardround.models.adapter import adapter
from wardround.models.cnn import cnn
from wardround.models.cnn1d import cnn1d
from wardround.models.gru import gru
from wardround.models.joined import joined
from wardround.models.logistic import linear, logistic
from wardround.models.mlp import mlp
from wardround.models.model import (
    SMALL_MODEL,
    Dropout,
    FeatureMaps,
    Model,
    ModelBuilder,
    Shape,
    built,
    from_module,
    with_scores,
)
from wardround.models.monai import densenet, resnet
from wardround.models.residual import residual
from wardround.models.starting_weights import weights_digest

MODELS: dict[str, Callable[..., ModelBuilder]] = {
    "logistic": logistic,
    "linear": linear,
    "mlp": mlp,
    "adapter": adapter,
    "joined": joined,
    "cnn": cnn,
    "cnn1d": cnn1d,
    "gru": gru,
    "residual": residual,
    "resnet": resnet,
    "densenet": densenet,
}

__all__ = [
    "MODELS",
    "SMALL_MODEL",
    "Dropout",
    "FeatureMaps",
    "Model",
    "ModelBuilder",
    "Shape",
    "built",
    "from_module",
    "weights_digest",
    "with_scores",
]
