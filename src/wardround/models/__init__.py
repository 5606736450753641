"""Models by the name that a study gives. A factory takes the study's settings; what it returns takes a data shape."""

from collections.abc import Callable

from wardround.models.cnn import cnn
from wardround.models.dropout import Dropout
from wardround.models.logistic import logistic
from wardround.models.mlp import mlp
from wardround.models.model import SMALL_MODEL, Model, ModelBuilder, Shape, from_module

MODELS: dict[str, Callable[..., ModelBuilder]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}

__all__ = ["MODELS", "SMALL_MODEL", "Dropout", "Model", "ModelBuilder", "Shape", "from_module"]
