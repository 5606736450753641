"""Why does a model say so? Methods of explanation by name, one file each; `method.py` says what a method is.

A factory's signature is the list of the method's settings. Methods of installed packages are found under the entry
point group `wardround.explanations` (`core.registry`).
"""

from collections.abc import Callable

from wardround.explain.linear_shapley import linear_shapley
from wardround.explain.method import Attribution, Columns, Method, Scorer

METHODS: dict[str, Callable[..., Method]] = {
    "linear-shapley": linear_shapley,
}

__all__ = ["METHODS", "Attribution", "Columns", "Method", "Scorer"]
