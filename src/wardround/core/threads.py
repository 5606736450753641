"""How many threads torch should use.

A small model's step is far shorter than waking a second thread; on a busy machine the waiting threads cost up to
a hundred times the work itself. A large model's step is worth all processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
