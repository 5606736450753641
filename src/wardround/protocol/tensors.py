"""Tensors of a message as bytes: the format of safetensors, written and read with one copy.

The library makes several, and a model of 100 MB passes through six processes in a round.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from wardround.core.extras import needs
from wardround.core.tree import Tree

with needs("deploy", "a study across hospitals"):
    import msgspec

Buffer = bytes | memoryview
TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {kind: name for name, kind in TYPES.items()}
LENGTH = 8  # bytes of the number before the header
ALIGNED = 64  # bytes: the header is filled up with spaces, so that numbers begin where processors like it
SMALL = 2**20  # bytes up to which the result is plain `bytes`


class Place(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def pack(tensors: Tree) -> Buffer:
    """Empty where there are none."""
    if not tensors:
        return b""
    flat = {name: leaf.detach().contiguous().reshape(-1) for name, leaf in tensors.items()}
    names = sorted(flat, key=lambda name: (-flat[name].element_size(), name))  # the order of the library
    places, end = {}, 0
    for name in names:
        start, end = end, end + flat[name].numel() * flat[name].element_size()
        places[name] = Place(NAMES[flat[name].dtype], list(tensors[name].shape), (start, end))
    header = msgspec.json.encode(places)
    header += b" " * (-(LENGTH + len(header)) % ALIGNED)
    head = len(header).to_bytes(LENGTH, "little") + header
    whole = torch.empty(len(head) + end, dtype=torch.uint8)
    whole[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for name, place in places.items():
        start, end = (len(head) + offset for offset in place.data_offsets)
        whole[start:end] = flat[name].view(torch.uint8)
    view = memoryview(whole.numpy().data)
    return bytes(view) if len(view) <= SMALL else view


def unpack(content: Buffer) -> Tree:
    """ValueError where it is not the format, whole: types, shapes, and every byte of one tensor."""
    if not content:
        return {}
    start = LENGTH + int.from_bytes(content[:LENGTH], "little")
    if not LENGTH <= start <= len(content):
        raise ValueError("tensors without a header")
    try:
        places = msgspec.json.decode(content[LENGTH:start], type=dict[str, Place])
    except msgspec.MsgspecError as error:
        raise ValueError("tensors with another header") from error
    _check(places, len(content) - start)
    whole = np.frombuffer(content, dtype=np.uint8)
    return {name: _tensor(whole, place, start) for name, place in places.items()}


def _check(places: Mapping[str, Place], size: int) -> None:
    """One after another without a gap, each as long as its shape says."""
    ordered = sorted(place.data_offsets for place in places.values())
    if any(before[1] != after[0] for before, after in pairwise([(0, 0), *ordered, (size, size)])):
        raise ValueError("tensors with gaps between them")
    for place in places.values():
        start, end = place.data_offsets
        kind = TYPES.get(place.dtype)
        if kind is None or any(length < 0 for length in place.shape):
            raise ValueError("tensors of an unknown form")
        if end - start != math.prod(place.shape) * kind.itemsize:
            raise ValueError("tensors of another length than their shape")


def _tensor(whole: np.ndarray, place: Place, start: int) -> Tensor:
    """In memory of its own, which begins where a computed one would."""
    first, last = (start + offset for offset in place.data_offsets)
    leaf = torch.empty(place.shape, dtype=TYPES[place.dtype])
    leaf.reshape(-1).view(torch.uint8).numpy()[:] = whole[first:last]
    return leaf
