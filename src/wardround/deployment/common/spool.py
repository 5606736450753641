"""Answers of a round as files, as they arrive: none is lost when the coordinator dies, and none waits in memory."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.tree import State
from wardround.protocol.messages import Message, Sealed
from wardround.runs.folder import write_atomically

NOT_FINITE = "an update with numbers that are not finite, or too large to be added up"
MASKED = "masked"  # the only tensor that leaves a site in a secure sum
Shape = tuple[str, tuple[int, ...]]  # type and shape of a tensor


@dataclass(frozen=True)
class Entry:
    """One site's answer. Its tensors are read when needed, one trial at a time."""

    site: str
    body: dict[str, Any]
    order: Sequence[str]
    log: str  # head of the site's audit log
    message: str  # its hash
    size: int
    path: Path

    def update(self, trial: int) -> State:
        mine = [name for name in self.order if name.startswith(f"{trial}/")]
        if not mine:
            return {}
        with safe_open(self.path, framework="pt") as file:
            return tree.unflatten({name.split("/", 1)[1]: file.get_tensor(name) for name in mine})

    def masked(self) -> Tensor:
        """The masked vector of all trials together."""
        with safe_open(self.path, framework="pt") as file:
            vector: Tensor = file.get_tensor(MASKED)
        return vector


def shapes_in(path: Path) -> dict[str, Shape] | None:
    """Type and shape of every tensor; None if this is not a safetensors file."""
    if not path.stat().st_size:
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        return {name: (tensor.get_dtype(), tuple(tensor.get_shape())) for name, tensor in slices.items()}
    except SafetensorError:
        return None


def all_finite(path: Path) -> bool:
    """Reads one tensor at a time."""
    if not path.stat().st_size:
        return True
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no dict
            leaf: Tensor = file.get_tensor(name)
            if not is_finite(leaf):
                return False
    return True


def is_finite(leaf: Tensor) -> bool:
    """Including its squared length, which overflows for numbers that are too large to be added up. Those of 16 bits are
    never added up as they are: they get their exponents first."""
    if leaf.dtype == torch.float16:
        return bool(leaf.isfinite().all())
    return not leaf.is_floating_point() or bool(leaf.square().sum().isfinite())


class Spool:
    def __init__(self, folder: Path, wave: int, round_number: int) -> None:
        self.folder = folder / f"wave-{wave:05}-round-{round_number:06}"

    def add(
        self,
        site: str,
        sealed: Sealed,
        message: Message,
        expected: Mapping[str, Shape] | None = None,
        problem_in: Callable[[Entry], str] = lambda entry: "",
    ) -> None:
        """DeployError if the tensors are not as expected, or if `problem_in` finds what is wrong with their numbers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{site}.safetensors"
        write_atomically(path, sealed.tensors)
        names, shapes = message.names or tuple(message.tensors), shapes_in(path)
        if shapes is None or set(shapes) != set(names) or (expected is not None and shapes != dict(expected)):
            path.unlink()
            raise DeployError(site, "sent tensors that are not an update of its study", "Install the same version.")
        entry = Entry(site, dict(message.body), list(names), message.log, sealed.hash, sealed.size, path)
        if problem := NOT_FINITE if not all_finite(path) else problem_in(entry):
            path.unlink()
            raise DeployError(site, f"sent {problem}", "Find out what happened there before it takes part again.")
        content = {name: value for name, value in vars(entry).items() if name != "path"}
        write_atomically(self.folder / f"{site}.json", json.dumps(content).encode())  # last: it makes the entry count

    def entries(self, sites: Sequence[str]) -> dict[str, Entry]:
        """In the order of the sites, whatever the order of arrival."""
        entries = {}
        for site in sites:
            path = self.folder / f"{site}.json"
            if path.is_file():
                entries[site] = Entry(**json.loads(path.read_bytes()), path=path.with_suffix(".safetensors"))
        return entries

    def clear(self) -> None:
        rmtree(self.folder, ignore_errors=True)
