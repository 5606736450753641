"""Answers of a round as files, as they arrive: none is lost when the coordinator dies, and none waits in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Generic

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import State
from wardround.deployment.common.messaging import Answered, B
from wardround.protocol.messages import Sealed, read_head
from wardround.runs.folder import write_atomically

with needs("deploy", "a study across hospitals"):
    from msgspec import MsgspecError, Struct, json, msgpack

NOT_FINITE = "an update with numbers that are not finite, or too large to be added up"
MASKED = "masked"  # the only tensor that leaves a site in a secure sum
Shape = tuple[str, tuple[int, ...]]  # type and shape of a tensor


@dataclass(frozen=True)
class Entry(Generic[B]):
    """One site's answer. Its tensors are read when needed, one trial at a time."""

    body: B
    order: Sequence[str]
    log: str  # head of the site's audit log
    message: str  # its hash
    size: int
    path: Path  # of its tensors

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
    if not leaf.is_floating_point():
        return True
    flat = leaf.flatten()
    return bool(flat.dot(flat).isfinite())  # squares of a large model by themselves would be as large as the model


class Signed(Struct):
    """What came beside the tensors, byte for byte."""

    head: bytes
    signature: bytes
    hash: str  # of the whole message


class Spool:
    """Answers are kept as they came, and read again as any answer is that comes over the network."""

    def __init__(self, folder: Path, wave: int, round_number: int) -> None:
        self.folder = folder / f"wave-{wave:05}-round-{round_number:06}"

    def add(
        self,
        site: str,
        answered: Answered[B],
        expected: Mapping[str, Shape] | None = None,
        problem_in: Callable[[Entry[B]], str] = lambda entry: "",
    ) -> None:
        """DeployError if the tensors are not as expected, or if `problem_in` finds what is wrong with their numbers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, sealed = self._tensors(site), answered.sealed
        write_atomically(path, sealed.tensors)
        shapes = shapes_in(path)
        if shapes is None or set(shapes) != set(answered.names) or (expected is not None and shapes != dict(expected)):
            self.remove(site)
            raise DeployError(site, "sent tensors that are not an update of its study", "Install the same version.")
        entry = Entry(answered.body, answered.names, answered.log, sealed.hash, sealed.size, path)
        if problem := NOT_FINITE if not all_finite(path) else problem_in(entry):
            self.remove(site)
            raise DeployError(site, f"sent {problem}", "Find out what happened there before it takes part again.")
        signed = Signed(sealed.head, sealed.signature, sealed.hash)
        write_atomically(self._signed(site), msgpack.encode(signed))  # last: it makes the entry count

    def sealed(self, site: str) -> Sealed | None:
        """The answer as it came; None if there is none."""
        try:
            signed = msgpack.decode(self._signed(site).read_bytes(), type=Signed)
            return Sealed(signed.head, self._tensors(site).read_bytes(), signed.signature)
        except (OSError, MsgspecError):
            return None

    def remove(self, site: str) -> None:
        for path in (self._signed(site), self._tensors(site)):
            path.unlink(missing_ok=True)

    def entries(self, sites: Sequence[str], answer: type[B]) -> dict[str, Entry[B]]:
        """In the order of the sites, whatever the order of arrival."""
        entries = {}
        for site in sites:
            if not self._signed(site).is_file():
                continue
            path = self._tensors(site)
            signed = msgpack.decode(self._signed(site).read_bytes(), type=Signed)
            head = read_head(signed.head, site)
            size = len(signed.head) + path.stat().st_size + len(signed.signature)
            body = json.decode(head.body, type=answer)
            entries[site] = Entry(body, head.order, head.log, signed.hash, size, path)
        return entries

    def _signed(self, site: str) -> Path:
        return self.folder / f"{site}.answer"

    def _tensors(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"

    def clear(self) -> None:
        rmtree(self.folder, ignore_errors=True)
