"""Why does a model say so? Methods of explanation by name, one file each; `method.py` says what a method is.

A factory's signature is the list of the method's settings. Methods of installed packages are found under the entry
point group `wardround.explanations` (`core.registry`).
"""

from collections.abc import Callable

from wardround.explain.exact_shapley import exact_shapley
from wardround.explain.images.grad_cam import grad_cam
from wardround.explain.images.grad_cam_plus_plus import grad_cam_plus_plus
from wardround.explain.images.integrated_gradients import integrated_gradients
from wardround.explain.images.occlusion import occlusion
from wardround.explain.lime import lime
from wardround.explain.linear_shapley import linear_shapley
from wardround.explain.method import Attribution, Columns, Method, Scorer
from wardround.explain.sampled_shapley import sampled_shapley

METHODS: dict[str, Callable[..., Method]] = {
    "linear-shapley": linear_shapley,
    "exact-shapley": exact_shapley,
    "sampled-shapley": sampled_shapley,
    "lime": lime,
    "integrated-gradients": integrated_gradients,
    "grad-cam": grad_cam,
    "grad-cam++": grad_cam_plus_plus,
    "occlusion": occlusion,
}

__all__ = ["METHODS", "Attribution", "Columns", "Method", "Scorer"]
