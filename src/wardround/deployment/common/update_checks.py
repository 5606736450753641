"""Whether an update is what the study's algorithm makes: it comes from outside and enters the shared model."""

from collections.abc import Iterable, Mapping

import torch

from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.tree import State, Tree
from wardround.core.tree import leaves_hash as leaves_hash
from wardround.deployment.common.spool import NOT_FINITE, Shape, is_finite
from wardround.training.compression import form_of, problem_in, receive, update_like, without_numbers
from wardround.training.trial import Trial

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.uint8: "U8",
}  # as safetensors calls them


def shapes_of(trial: Trial) -> dict[str, Shape]:
    """Name, type and shape of every tensor of an update as it is sent, from the study without computing one."""
    return _shapes(form_of(trial, update_like(trial.algorithm, _without_numbers(trial)[0], len(trial.sites))))


def arrived_update(trial: Trial, server: State, sent: State) -> State:
    """The update that a site has sent, decompressed where the study compresses."""
    return receive(trial, sent, _like(trial, server)) if trial.compression.kind != "none" else sent


def problem_in_sent(trial: Trial, server: State, sent: State) -> str:
    """What is wrong with a compressed update of the right types and shapes; empty if nothing is."""
    if trial.compression.kind == "none":
        return ""
    like = _like(trial, server)
    if problem := problem_in(trial, sent, like):
        return f"a compressed update with {problem}"
    if not all(map(is_finite, tree.flatten(receive(trial, sent, like)).values())):
        return NOT_FINITE
    return ""


def _like(trial: Trial, server: State) -> State:
    params = without_numbers(trial.algorithm.broadcast(server, 0)["params"])
    return update_like(trial.algorithm, params, len(trial.sites))


def broadcast_shapes(trial: Trial, final: bool = False) -> dict[str, Shape]:
    """With the `final` model comes what is known of the distribution of its weights."""
    shared, broadcast = _without_numbers(trial)
    if final and trial.algorithm.posterior is not None:
        broadcast = broadcast | trial.algorithm.posterior(trial.algorithm.init(shared, len(trial.sites)))
    return _shapes(broadcast)


def _without_numbers(trial: Trial) -> tuple[Tree, State]:
    """A model on the meta device, and its broadcast."""
    params, _ = trial.model.blank
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
