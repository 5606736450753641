"""A network for features that several parties hold: a part for each of them, and a top that joins their embeddings.

Each party's part turns its numbers of a row (an image, or columns) into an embedding. The top joins the embeddings into
scores. It can be trained whole, where all numbers are at one place, or in parts, each where its numbers are (split
learning; Vepakomma et al. 2018, arXiv:1812.00564). A learned embedding stands in for that of a missing party; with
`absent`, parties are left out at random in training too.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wardround.core import seeds
from wardround.core.errors import StudyError, refuse_strangers, suggest
from wardround.core.settings import Count, Fraction, parse_settings, settings_of
from wardround.core.tree import Tree
from wardround.data.site import Block
from wardround.models.cnn import cnn
from wardround.models.mlp import mlp
from wardround.models.model import Cut, Dropout, Model, ModelBuilder, Shape, from_module
from wardround.models.residual import residual
from wardround.study.facts import ModelFacts, declares
from wardround.tasks import findings_task

BOTTOMS: dict[str, Callable[..., ModelBuilder]] = {"cnn": cnn, "residual": residual, "mlp": mlp}
FOR_IMAGES: Mapping[str, Any] = {"kind": "cnn", "channels": [16, 32], "hidden": 64, "kernel": 3, "norm": "group"}
FOR_COLUMNS: Mapping[str, Any] = {"kind": "mlp", "hidden": [16]}
TOP, MISSING = "top.", "absent."


@declares(ModelFacts(seeds=5, in_parts=True))
def joined(
    embedding: Count = 16,
    hidden: Count = 32,
    dropout: Fraction = 0.0,
    absent: Fraction = 0.0,
    bottoms: dict[str, dict[str, Any]] | None = None,
    weights: Path | None = None,
) -> ModelBuilder:
    """`bottoms` by party: `kind` and the settings of that model. `weights` are first ones of the part for images."""

    def build(shape: Shape) -> Model:
        if not shape.parts:
            problem = "joins what several parties hold, and the study names no parties"
            raise StudyError("model: joined", problem, "Add [topology.parties], or choose another model.")
        known = [part.party for part in shape.parts]
        refuse_strangers(bottoms or {}, known, "model: bottoms", "party with features", "Parties with features")
        if weights is not None and not any(len(part.shape) == 3 for part in shape.parts):
            raise StudyError("model: weights", "are for images, and no party has one", "Leave `weights` out.")
        models = {p.party: bottom(p, embedding, (bottoms or {}).get(p.party), weights) for p in shape.parts}
        others = [part.party for part in shape.parts if part.present is not None]

        def top() -> nn.Module:
            # SiLU, because ReLU has no slope at zero, where the stand-in for a missing party starts
            layers: list[nn.Module] = [nn.SiLU(), nn.Linear(embedding * len(models), hidden), nn.ReLU()]
            if dropout:
                layers.append(Dropout(dropout, (hidden,)))
            return nn.Sequential(*layers, nn.Linear(hidden, shape.outputs))

        return whole(shape, models, from_module(top, shape), others, embedding, absent)

    return build


def whole(
    shape: Shape, bottoms: Mapping[str, Model], top: Model, others: list[str], embedding: int, absent: float
) -> Model:
    """The parts as one model. Leaves are named PARTY.leaf, top.leaf and absent.PARTY."""

    def init(seed: int) -> tuple[Tree, Tree]:
        params, buffers = top.init(seeds.number(seed, "top") >> 1)
        params, buffers = prefixed(params, TOP), prefixed(buffers, TOP)
        for party, part in bottoms.items():
            own, own_buffers = part.init(seeds.number(seed, "bottom", site=party) >> 1)
            params |= prefixed(own, f"{party}.")
            buffers |= prefixed(own_buffers, f"{party}.")
        # the stand-in for a missing party's embedding starts at zero
        return params | {MISSING + party: torch.zeros(embedding) for party in others}, buffers

    def joined_scores(
        params: Tree,
        embeddings: Mapping[str, Tensor],
        present: Mapping[str, Tensor],
        masks: Tree | None,
        buffers: Tree | None = None,
    ) -> Tensor:
        """`buffers` are the top's: masks that stay while many rows are predicted."""
        seen = []
        for part in shape.parts:
            embedded = embeddings[part.party]
            if part.party in present:
                there = present[part.party] > 0
                if masks is not None and MISSING + part.party in masks:
                    there = there & (masks[MISSING + part.party] > 0)
                embedded = torch.where(there[:, None], embedded, params[MISSING + part.party])
            seen.append(embedded)
        own = None if masks is None else below(masks, TOP)
        return top.logits(below(params, TOP), buffers or {}, torch.cat(seen, dim=1), own)[0]

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        embeddings: dict[str, Tensor] = {}
        after: Tree = {}
        for part in shape.parts:
            prefix = f"{part.party}."
            own = None if masks is None else below(masks, prefix)
            embeddings[part.party], new = bottoms[part.party].logits(
                below(params, prefix), below(buffers, prefix), numbers_of(part, x), own
            )
            after |= prefixed(new, prefix)
        return joined_scores(params, embeddings, presence(shape.parts, x), masks, below(buffers, TOP)), after

    shapes = {f"{p}.{name}": mask for p, part in bottoms.items() for name, mask in part.mask_shapes.items()}
    shapes |= {TOP + name: mask for name, mask in top.mask_shapes.items()}
    if absent:
        shapes |= {MISSING + party: (absent, ()) for party in others}
    always = [part.party for part in shape.parts if part.present is None]
    cut = Cut(shape.parts, always[0] if always else None, bottoms, joined_scores, embedding)
    return Model(init, logits, shape.task, mask_shapes=shapes, cut=cut)


def numbers_of(part: Block, x: Tensor) -> Tensor:
    """A party's own numbers of a batch, as an image where they are one."""
    own = x[:, part.start : part.stop].reshape(-1, *part.shape)
    # a row by itself gains nothing from it, and torch cannot do it where rows are differentiated one by one
    return own.to(memory_format=torch.channels_last) if own.dim() == 4 and len(own) > 1 else own


def presence(parts: tuple[Block, ...], x: Tensor) -> dict[str, Tensor]:
    """For each party that may be missing, which rows have its numbers."""
    return {part.party: x[:, part.present] for part in parts if part.present is not None}


def bottom(part: Block, embedding: int, settings: Mapping[str, Any] | None, weights: Path | None) -> Model:
    image, where = len(part.shape) == 3, f"model: bottoms: {part.party}"
    options = {**((FOR_IMAGES if image else FOR_COLUMNS) if settings is None else settings)}
    kind = options.pop("kind", "cnn" if image else "mlp")
    if kind not in BOTTOMS:
        raise StudyError(f"{where}: kind", f"{kind!r} is not known", suggest(str(kind), BOTTOMS, "Possible values"))
    factory = BOTTOMS[kind]
    values = parse_settings(settings_of(factory), options, where, Path())
    if image and weights is not None:
        if "weights" not in values:
            raise StudyError(f"{where}: kind", f"{kind} takes no weights from a file", "Use cnn or residual.")
        values["weights"] = weights
    built = factory(**values)(Shape(part.shape, findings_task(embedding)))
    if built.private:
        problem = "keeps weights apart for each site, and a party's part is one for all"
        raise StudyError(f"{where}: norm", problem, 'Choose another than "fedbn".')
    return built


def prefixed(leaves: Tree, prefix: str) -> Tree:
    return {prefix + name: leaf for name, leaf in leaves.items()}


def below(leaves: Tree, prefix: str) -> Tree:
    """The leaves whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
