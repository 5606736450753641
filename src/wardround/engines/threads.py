"""How many threads torch should use.

A small model's step is far shorter than waking a second thread; on a busy machine the waiting threads cost up to
a hundred times the work itself. A large model's step is worth all processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wardround.models import SMALL_MODEL
from wardround.rounds import Run


def threads_for(run: Run) -> int:
    """One for a small model, as many as torch already has for a large one."""
    states = [run.server, *(memory.algorithm for memory in list(run.memories.values())[:1])]
    largest = max(
        (sum(leaf.numel() for leaf in tree.values()) for state in states for tree in state.values()), default=0
    )
    return 1 if largest < SMALL_MODEL else torch.get_num_threads()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
