"""Whether an update is what the study's algorithm makes: it comes from outside and goes into everybody's model."""

from collections.abc import Mapping
from hashlib import sha256
from numbers import Real
from typing import Any

import torch

from wardround import tree
from wardround.algorithms.algorithm import Work
from wardround.deploy.correspondence import UNUSABLE
from wardround.deploy.spool import Shape
from wardround.engines.letters import Letter
from wardround.errors import DeployError
from wardround.tree import Tree
from wardround.trial import Trial

NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}  # as safetensors calls them
REMEDY = "Install the same version of wardround everywhere."


def shapes_of(trial: Trial) -> dict[str, Shape]:
    """Name, type and shape of every tensor of an update, from the algorithm itself, without computing one."""
    params, _ = trial.model.init(0)
    shared = {
        name: torch.empty(leaf.shape, dtype=trial.dtype, device="meta")
        for name, leaf in params.items()
        if not trial.model.is_private(name)
    }
    one = torch.empty((), dtype=trial.dtype, device="meta")
    algorithm = trial.algorithm
    sent = algorithm.broadcast(algorithm.init(shared, len(trial.sites)), 0)
    update, _ = algorithm.finish(shared, sent, algorithm.init_memory(shared), Work(one, one, one, one))
    return {name: (NAMES[leaf.dtype], tuple(leaf.shape)) for name, leaf in tree.flatten(update).items()}


def leaves_hash(leaves: Tree) -> bytes:
    """Of all their numbers, types and shapes."""
    digest = sha256()
    for name in sorted(leaves):
        leaf = leaves[name].detach().contiguous().cpu()
        digest.update(f"{name}\x1f{leaf.dtype}\x1f{tuple(leaf.shape)}\x1f".encode() + leaf.numpy().tobytes())
    return digest.digest()


def check_update(site: str, letter: Letter, work: Mapping[int, int]) -> None:
    """One entry for each trial that was asked for, no more epochs than asked for, and numbers where numbers belong."""
    told: Any = letter.body["trials"]
    good = isinstance(told, dict) and set(told) == {str(number) for number in work}
    for number, epochs in work.items() if good else ():
        one = told[str(number)]
        good = good and isinstance(one, dict) and all(_is_number(one.get(name)) for name in ("loss", "length"))
        good = good and isinstance(one.get("moved"), bool) and one.get("epochs") in range(1, epochs + 1)
    if not good:
        raise DeployError(site, UNUSABLE, REMEDY)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, Real) and not isinstance(value, bool))
