"""Whether an update is what the study's algorithm makes: it comes from outside and enters the shared model."""

from collections.abc import Iterable, Mapping

import torch

from wardround.algorithms.algorithm import Work
from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.tree import State, Tree
from wardround.core.tree import leaves_hash as leaves_hash
from wardround.deployment.common.spool import Shape
from wardround.training.trial import Trial

NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}  # as safetensors calls them


def shapes_of(trial: Trial) -> dict[str, Shape]:
    """Name, type and shape of every tensor of an update, derived from the algorithm without computing one."""
    shared, broadcast = _without_numbers(trial)
    scalar = torch.empty((), dtype=trial.dtype, device="meta")
    update, _ = trial.algorithm.finish(
        shared, broadcast, trial.algorithm.init_memory(shared), Work(scalar, scalar, scalar, scalar)
    )
    return _shapes(update)


def broadcast_shapes(trial: Trial) -> dict[str, Shape]:
    return _shapes(_without_numbers(trial)[1])


def _without_numbers(trial: Trial) -> tuple[Tree, State]:
    """A model on the meta device, and its broadcast."""
    params, _ = trial.model.init(0)
    shared = {
        name: torch.empty(leaf.shape, dtype=trial.dtype, device="meta")
        for name, leaf in params.items()
        if not trial.model.is_private(name)
    }
    return shared, trial.algorithm.broadcast(trial.algorithm.init(shared, len(trial.sites)), 0)


def _shapes(state: State) -> dict[str, Shape]:
    return {name: (NAMES.get(leaf.dtype, ""), tuple(leaf.shape)) for name, leaf in tree.flatten(state).items()}


def check_broadcast(
    expected: Mapping[int, Mapping[str, Shape]], models: Mapping[int, State], needed: Iterable[int]
) -> None:
    """At a site: whether these are models of the approved study, before anything is done with them."""
    unlike = [
        number for number, model in models.items() if number not in expected or _shapes(model) != expected[number]
    ]
    missing = [number for number in needed if expected.get(number) and number not in models]
    if unlike or missing:
        problem = "sent another model than the study that was approved here has"
        raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was done with it.")


def by_number(leaves: Tree) -> dict[int, Tree]:
    """Leaves that are called NUMBER/NAME, as those of a wave's trials are, by number."""
    numbered: dict[int, Tree] = {}
    for name, leaf in leaves.items():
        number, rest = name.split("/", 1)
        numbered.setdefault(int(number), {})[rest] = leaf
    return numbered
