"""What a site keeps between messages, as files: its memory after each round, and its answers.

Memory is provisional until the coordinator confirms that the update counted. Every round's memory therefore has a file
of its own, named by the round; the next message names the last round that counted, and that file is the memory in
force. All others are removed. A repeated message is answered with the same bytes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree

from wardround.core.errors import DeployError
from wardround.deployment.common.update_checks import by_number
from wardround.protocol.messages import Sealed
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.folder import write_atomically
from wardround.training.local import Memory

NONE_YET = -1  # before any update has counted


class Store:
    """Of one run at one site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # what was read or written last, so that a file is read only after a restart: (wave, round) -> memories
        self.cached: dict[tuple[int, int], dict[int, Memory]] = {}

    def memories(self, wave: int, counted: int, first: Callable[[], dict[int, Memory]]) -> dict[int, Memory]:
        """The memory in force, by trial. `first` makes the initial memories."""
        self.forget(but=wave)  # waves come one after another
        memories = self.cached.get((wave, counted))
        self.cached = {(wave, counted): self._read(wave, counted, first()) if memories is None else memories}
        for path in self._wave(wave).glob("memory-*.safetensors"):
            if path != self._memory(wave, counted):
                path.unlink()
        return self.cached[wave, counted]

    def _read(self, wave: int, counted: int, first: dict[int, Memory]) -> dict[int, Memory]:
        if counted == NONE_YET or not any(memory.leaves() for memory in first.values()):
            return first
        path = self._memory(wave, counted)
        if not path.is_file():
            problem = f"its memory of round {counted + 1} is gone, without which it cannot go on to the same model"
            raise DeployError("this site", problem, "Restore the folder `state` from a backup, or begin the run anew.")
        of_trial = by_number(read_leaves(path)[0])
        return {number: Memory.of(of_trial.get(number, {})) for number in first}

    def keep_memories(self, wave: int, round_number: int, memories: Mapping[int, Memory]) -> None:
        """Written before the answer: every stored answer has its memory."""
        self.cached[wave, round_number] = dict(memories)
        leaves = {f"{n}/{name}": leaf for n, memory in memories.items() for name, leaf in memory.leaves().items()}
        if leaves:
            write_leaves(self._memory(wave, round_number), leaves, {"round": round_number})

    def keep_answer(self, wave: int, round_number: int, request: str, answer: Sealed) -> None:
        folder = self._wave(wave)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("answer-*"):
            if not old.name.startswith(f"answer-{round_number:06}."):
                old.unlink()
        write_atomically(folder / f"answer-{round_number:06}.tensors", answer.tensors)
        content = b"\n".join((request.encode(), answer.signature.hex().encode(), answer.head))
        write_atomically(folder / f"answer-{round_number:06}.head", content)

    def answer(self, wave: int, round_number: int, request: str) -> Sealed | None:
        """The stored answer to the same request."""
        path = self._wave(wave) / f"answer-{round_number:06}.head"
        if not path.is_file():
            return None
        before, signature, head = path.read_bytes().split(b"\n", 2)
        if before.decode() != request:
            return None
        return Sealed(head, path.with_suffix(".tensors").read_bytes(), bytes.fromhex(signature.decode()))

    def refuse_old(self, wave: int, round_number: int) -> None:
        """A message of an earlier round would use, and remove, memory that is still in force."""
        answered = [int(path.stem.removeprefix("answer-")) for path in self._wave(wave).glob("answer-*.head")]
        if round_number < max(answered, default=NONE_YET):
            problem = f"asks for round {round_number + 1}, which is over here"
            raise DeployError("coordinator", problem, "Nothing need be done, unless it comes again and again.")

    def forget(self, but: int | None = None) -> None:
        """Remove the files of training, of all waves except `but`."""
        for folder in self.folder.glob("wave-*"):
            if but is None or folder != self._wave(but):
                rmtree(folder, ignore_errors=True)
        if but is None:
            self.cached = {}

    def _wave(self, wave: int) -> Path:
        return self.folder / f"wave-{wave:05}"

    def _memory(self, wave: int, round_number: int) -> Path:
        return self._wave(wave) / f"memory-{round_number:06}.safetensors"
