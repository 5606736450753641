"""Transfer learning: a model's first weights from elsewhere instead of from a seed.

`[model] weights` names a file, for some networks. It is safetensors: leaves by name, as
`safetensors.torch.save_file(module.state_dict(), ...)` writes them, or as a run folder holds them
(`models/ARM/seed-N.safetensors`, of which the shared weights are taken). Its head may be replaced.

`[model] start_from` names a trained model as a whole, for every network: all shared weights are taken, and what sites
keep for themselves by the sites of the same names.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import file_digest
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models.model import Model

WHERE = "model: weights"
SHARED = "server/params/"  # before the names of shared weights in a run folder's file
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


def starting_from(
    model: Model, path: Path, head: str, keep_head: bool = False, rename: Callable[[str], str] = str
) -> Model:
    """The model with all first weights from the file, but for its head, which stays as the seed makes it.

    The head is the last layer, called `head`: it answers the question of the study that made the file. With `keep_head`
    it is taken too. BatchNorm's statistics, and weights that stay at a site, are taken where the file has them.
    Anything else that is absent or of another shape is refused: the file is then another network's. Extra leaves are
    left alone. The file is read here, once.
    """
    stored = {rename(name): leaf for name, leaf in read_leaves(path).items()}
    params, buffers = model.init(0)

    own = {n: leaf for n, leaf in {**params, **buffers}.items() if keep_head or not n.startswith(f"{head}.")}
    loaded = {name: fitted(stored[name], leaf) for name, leaf in own.items() if name in stored}
    missing = [name for name in own if name not in stored and name in params and not model.is_private(name)]
    refuse_another_network(path, own, loaded, missing)

    def init(seed: int) -> tuple[Tree, Tree]:
        params, buffers = model.init(seed)
        return _filled(params, loaded), _filled(buffers, loaded)

    return replace(model, init=init)


def weights_digest(options: Mapping[str, Any]) -> str | None:
    """SHA-256 of the file that a model's settings name: a study that starts elsewhere is another study."""
    path = options.get("weights")
    if path is None:
        return None
    refuse_unreadable(path)
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_leaves(path: Path) -> Tree:
    """By name. Of a run folder's file, the shared weights alone."""
    refuse_unreadable(path)
    try:
        leaves: Tree = load_file(path)
    except SafetensorError:
        raise StudyError(WHERE, f"{path} is no safetensors file, or damaged", "Make or fetch the file again.") from None
    shared = {name.removeprefix(SHARED): leaf for name, leaf in leaves.items() if name.startswith(SHARED)}
    return shared or leaves


def refuse_unreadable(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise StudyError(
            WHERE,
            f"{path.name} is a pickle, which can run any program while it is opened; it is never opened here",
            "Where you trust the file, convert it once: safetensors.torch.save_file(torch.load(FILE, "
            'weights_only=True), "weights.safetensors").',
        )
    if path.suffix.lower() != ".safetensors":
        raise StudyError(WHERE, f"{path.name} is not a .safetensors file", "Give weights as safetensors.")
    if not path.is_file():
        raise StudyError(WHERE, f"there is no file {path}", "Correct the path; it begins at the study file's folder.")


def fitted(leaf: Tensor, own: Tensor) -> Tensor:
    """In the model's precision. Weights for three colours are summed for a model of grey images; those for grey images
    are shared out over three colours, so that a grey picture in three channels gives the same."""
    if leaf.dim() == 4 and leaf.shape[1] == 3 and own.shape[1:2] == (1,):
        leaf = leaf.sum(1, keepdim=True)
    if leaf.dim() == own.dim() == 4 and leaf.shape[1] == 1 and own.shape[1] == 3:
        leaf = leaf.expand(-1, 3, -1, -1) / 3
    return leaf.to(own.dtype)


def refuse_another_network(path: Path, own: Tree, loaded: Tree, missing: list[str]) -> None:
    if not loaded:
        problem = f"{path.name} has none of the model's {len(own)} leaves, such as {_some(own)}"
        raise StudyError(WHERE, problem, "Use a file of the same kind of network.")
    if other := [name for name, leaf in loaded.items() if leaf.shape != own[name].shape]:
        shapes = [f"{name} {tuple(loaded[name].shape)}, not {tuple(own[name].shape)}" for name in other]
        problem = f"{len(other)} of {len(loaded)} leaves in {path.name} have another shape: {_some(shapes)}"
        raise StudyError(WHERE, problem, "Give the model the settings and images with which the file was made.")
    if missing:
        problem = f"{path.name} lacks {len(missing)} of the model's {len(own)} leaves: {_some(missing)}"
        raise StudyError(WHERE, problem, "Give the model the settings with which the file was made.")
    if broken := [name for name, leaf in loaded.items() if not bool(torch.isfinite(leaf).all())]:
        problem = f"{len(broken)} of {len(loaded)} leaves in {path.name} are not finite numbers: {_some(broken)}"
        raise StudyError(WHERE, problem, "Use a file whose training did not diverge.")


@dataclass(frozen=True, eq=False)
class StartingModel:
    """The weights that training begins with, in place of those that a seed draws."""

    shared: Tree
    private: Mapping[str, Tree]  # by site
    buffers: Mapping[str, Tree]  # by site
    everywhere: str | None = None  # the one whose buffers all sites take: they are those of one model of all rows

    def first(self, params: Tree) -> Tree:
        """`params` are those that a seed draws."""
        return _filled(params, self.shared)

    def kept_at(self, site: str, private: Tree, buffers: Tree) -> tuple[Tree, Tree]:
        """What a site keeps for itself, in the precision and on the device of what it would have drawn."""
        statistics = self.buffers.get(site, self.buffers.get(self.everywhere or site, {}))
        return _alike(private, self.private.get(site, {})), _alike(buffers, statistics)


def starting_model(
    model: Model, params: Tree, private: Mapping[str, Tree], buffers: Mapping[str, Tree], where: str, pooled: str = ""
) -> StartingModel:
    """Refused unless every shared weight is there, in the model's shape, and a number, and no other one.

    `private` and `buffers` hold what sites keep, by site; of `private` only leaves that are private in the model count.
    """
    own, statistics = model.init(0)
    expected = {name: leaf for name, leaf in own.items() if not model.is_private(name)}
    shared = {name: leaf for name, leaf in params.items() if not model.is_private(name)}
    refuse_other_leaves(shared, expected, where)
    kept = {site: {n: leaf for n, leaf in leaves.items() if model.is_private(n)} for site, leaves in private.items()}
    there = {site: {n: leaf for n, leaf in leaves.items() if n in statistics} for site, leaves in buffers.items()}
    refuse_broken(chain([shared], kept.values(), there.values()), where)
    return StartingModel({name: shared[name] for name in expected}, kept, there, pooled or None)


def refuse_other_leaves(shared: Tree, expected: Tree, where: str) -> None:
    if missing := sorted(set(expected) ^ set(shared)):
        problem = f"its network has other weights than the model of this study: {_some(missing)}"
        raise StudyError(where, problem, "Give the model the settings with which that one was trained.")
    if other := [name for name, leaf in expected.items() if shared[name].shape != leaf.shape]:
        shapes = [f"{name} {tuple(shared[name].shape)}, not {tuple(expected[name].shape)}" for name in other]
        problem = f"{len(other)} of {len(expected)} weights have another shape: {_some(shapes)}"
        raise StudyError(where, problem, "Give the model the settings and data with which that one was trained.")


def refuse_broken(trees: Iterable[Tree], where: str) -> None:
    broken = [name for leaves in trees for name, leaf in leaves.items() if not bool(leaf.isfinite().all())]
    if broken:
        problem = f"{len(broken)} of its weights are not finite numbers: {_some(dict.fromkeys(broken))}"
        raise StudyError(where, problem, "Start from a model whose training did not diverge.")


def _alike(drawn: Tree, known: Tree) -> Tree:
    """A leaf of another shape is that of other columns, and is not used."""
    return {
        name: known[name].to(leaf.device, leaf.dtype).clone()
        if name in known and known[name].shape == leaf.shape
        else leaf
        for name, leaf in drawn.items()
    }


def _filled(leaves: Tree, loaded: Tree) -> Tree:
    return {name: loaded[name].clone() if name in loaded else leaf for name, leaf in leaves.items()}


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return "; ".join(listed[:most]) + more
