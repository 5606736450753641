"""Transfer learning: a model's first weights from a file instead of a seed.

The file is safetensors: leaves by name, as `safetensors.torch.save_file(module.state_dict(), ...)` writes them, or as a
run folder holds them (`models/ARM/seed-N.safetensors`, of which the shared weights are taken).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import file_digest
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
    """In the model's precision. Weights for three colours are summed for a model of grey images."""
    if leaf.dim() == 4 and leaf.shape[1] == 3 and own.shape[1:2] == (1,):
        leaf = leaf.sum(1, keepdim=True)
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


def _filled(leaves: Tree, loaded: Tree) -> Tree:
    return {name: loaded[name].clone() if name in loaded else leaf for name, leaf in leaves.items()}


def _some(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return "; ".join(listed[:most]) + more
