"""A model whose shared leaves are constants: what is trained are the private leaves of one site, and nothing else can
move, whatever the optimiser does with weights that it holds."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from wardround.core.tree import Tree
from wardround.models import Model


def with_constants(model: Model, shared: Tree, site: str, names: Sequence[str]) -> Model:
    """`names` are those of the site's features. The leaves are no longer called private: here they are the model."""
    penalty, extra = model.penalty, model.extra

    def init(seed: int) -> tuple[Tree, Tree]:
        first, buffers = model.init(seed)
        own = {} if model.at_site is None else model.at_site(seed, site, names)
        return {**{name: leaf for name, leaf in first.items() if model.is_private(name)}, **own}, buffers

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        return model.logits({**shared, **params}, buffers, x, masks)

    return replace(
        model,
        init=init,
        logits=logits,
        private=(),
        penalty=None if penalty is None else lambda params: penalty({**shared, **params}),
        extra=None if extra is None else lambda params, x: extra({**shared, **params}, x),
        closed_gradient=None,
        row_gradients=None,
        at_site=None,
    )
