"""A few numbers in place of an update, whose inner products are those of the updates, nearly.

Every number of the update gets a random sign; then number i is added to place i modulo `SKETCH` (a count sketch:
Charikar, Chen and Farach-Colton, Theoretical Computer Science 2004; Weinberger et al., ICML 2009, arXiv:0902.2206). An
inner product of two sketches is that of the two updates, with an error of about 1/sqrt(SKETCH) of the product of their
lengths. Equal updates have equal sketches. An update that is no longer than a sketch is kept as it is.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import Tree

SKETCH = 1024


def sketch_of(update: Tree, seed: int) -> np.ndarray:
    """As numbers of double precision. `seed` is the study's: sketches of one trial have the same signs."""
    flat = torch.cat([leaf.detach().reshape(-1) for leaf in update.values()])
    size = len(flat)
    if size <= SKETCH:
        return np.asarray(flat.cpu().numpy(), dtype=np.float64)
    signed = flat.mul_(_signs(seed, size, flat.dtype).to(flat.device))  # `cat` has made a copy
    whole = size // SKETCH * SKETCH
    places = signed[:whole].reshape(-1, SKETCH).sum(0)
    places[: size - whole] += signed[whole:]
    return np.asarray(places.cpu().numpy(), dtype=np.float64)


@lru_cache(maxsize=4)
def _signs(seed: int, size: int, dtype: torch.dtype) -> Tensor:
    bits = seeds.generator(seed, "screening: signs").integers(0, 2, size, dtype=np.int8)
    return torch.from_numpy(2 * bits - 1).to(dtype)
