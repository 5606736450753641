"""Compression of updates: the stage between an algorithm's `finish` and what leaves the site.

    site         update + residual -> (clipped) -> compress -> what is sent; what is lost is the next residual
    coordinator  what is sent -> checked -> decompress -> (clipped) -> summed

Both clip where whole sites are protected.

A kind of compression works on one part of an update, such as `params`. Parts that the algorithm declares `exact` or
`data_free` are sent as they are. The form of what is sent (types and shapes) follows from the study alone, so that a
coordinator can check it before anything else. `docs/explanation/compression.md` has the errors and what they mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Work
from wardround.core import seeds, tree
from wardround.core.tree import State, Tree
from wardround.privacy.dp.protection import clipped_update
from wardround.study.schema import Compression
from wardround.training.local import Outcome
from wardround.training.trial import Trial

HALF_EXPONENT = 15  # the largest number of a tensor becomes one from 2^14 to 2^15
LEAST_EXPONENT, MOST_EXPONENT = -100, 1009  # of a power of two that the other precisions have
INT32_MOST = 2**31 - 1


@dataclass(frozen=True)
class Kind:
    """`like` are leaves of the types and shapes that the part has, whatever their values."""

    compress: Callable[[Tree, Compression, np.random.Generator], Tree]
    decompress: Callable[[Tree, Tree, Compression], Tree]  # what was sent, like
    form: Callable[[Tree, Compression], Tree]  # of what is sent, on the meta device
    problem: Callable[[Tree, Tree, Compression], str]  # what is impossible in something of this form; empty: nothing
    keeps_error: bool = False  # what is lost in a round is added to the update of the next
    keeps_directions: bool = False  # each number is changed by a fixed share of itself at most, so that angles stay


def compress_halves(leaves: Tree, settings: Compression, rng: np.random.Generator) -> Tree:
    """16-bit floats with one exponent for each tensor: updates are often so small that float16 alone would lose them.

    A number from the tensor's largest down to 2^-28 of it changes by 2^-11 of itself at most, a smaller one by 2^-39
    of the largest at most.
    """
    exponents = [_exponent(leaf) for leaf in leaves.values()]
    values = [(leaf * 2.0**-e).half().flatten() for leaf, e in zip(leaves.values(), exponents, strict=True)]
    return {"values": torch.cat(values), "exponents": torch.tensor(exponents, dtype=torch.int16)}


def decompress_halves(sent: Tree, like: Tree, settings: Compression) -> Tree:
    parts = _split(sent["values"], like)
    factors = [2.0**exponent for exponent in sent["exponents"].tolist()]
    return {
        name: part.to(like[name].dtype) * factor for (name, part), factor in zip(parts.items(), factors, strict=True)
    }


def form_of_halves(like: Tree, settings: Compression) -> Tree:
    return {"values": _blank(torch.float16, _count(like)), "exponents": _blank(torch.int16, len(like))}


def problem_in_halves(sent: Tree, like: Tree, settings: Compression) -> str:
    exponents = sent["exponents"]
    if bool(((exponents < LEAST_EXPONENT) | (exponents > MOST_EXPONENT)).any()):
        return "exponents that no update has"
    return ""


def compress_largest(leaves: Tree, settings: Compression, rng: np.random.Generator) -> Tree:
    """The largest numbers with their places, in the order of their places; of equal ones the first.

    With the residual that the site keeps: Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv:1809.07599.
    """
    flat = torch.cat([leaf.flatten() for leaf in leaves.values()])
    count = _largest(len(flat), settings)
    size = flat.abs().nan_to_num_(nan=math.inf)
    least = float(np.partition(size.cpu().numpy(), len(flat) - count)[len(flat) - count])
    above, equal = (size > least).nonzero().flatten(), (size == least).nonzero().flatten()
    places = torch.cat([above, equal[: count - len(above)]]).sort().values
    return {"values": flat[places], "places": places.to(_place_type(len(flat)))}


def decompress_largest(sent: Tree, like: Tree, settings: Compression) -> Tree:
    flat = torch.zeros(_count(like), dtype=sent["values"].dtype, device=sent["values"].device)
    flat[sent["places"].long()] = sent["values"]
    return _split(flat, like)


def form_of_largest(like: Tree, settings: Compression) -> Tree:
    count = _count(like)
    kept, dtype = _largest(count, settings), next(iter(like.values())).dtype
    return {"values": _blank(dtype, kept), "places": _blank(_place_type(count), kept)}


def problem_in_largest(sent: Tree, like: Tree, settings: Compression) -> str:
    places = sent["places"].long()
    if int(places.min()) < 0 or int(places.max()) >= _count(like):
        return "numbers at places that the model does not have"
    if bool((places[1:] <= places[:-1]).any()):
        return "two numbers for one place, or places out of order"
    return ""


def quantise(leaves: Tree, settings: Compression, rng: np.random.Generator) -> Tree:
    """Whole multiples of one scale for each tensor, rounded up or down at random so that the mean is the number itself.

    With the scale s = largest / (2^(bits - 1) - 1) a number changes by less than s, with a variance of s^2 f (1 - f)
    where f is how far it lies between two multiples. Alistarh et al., NeurIPS 2017, arXiv:1610.02132 (QSGD), with the
    largest number in place of the length; with 2 bits Wen et al., NeurIPS 2017, arXiv:1705.07878 (TernGrad).
    """
    levels = _levels(settings)
    codes, scales = [], []
    for leaf in leaves.values():
        largest = leaf.abs().max() if leaf.numel() else leaf.new_zeros(())
        scale = largest / levels
        steps = leaf.flatten() / torch.where(scale > 0, scale, torch.ones_like(scale))
        below = steps.floor()
        drawn = torch.from_numpy(rng.random(leaf.numel(), dtype=np.float32)).to(leaf.device)
        code = (below + (drawn < steps - below)).nan_to_num_(nan=0.0).clamp_(-levels, levels)
        codes.append(code.to(torch.int16))
        scales.append(scale)
    return {"codes": _packed(torch.cat(codes), settings), "scales": torch.stack(scales)}


def dequantise(sent: Tree, like: Tree, settings: Compression) -> Tree:
    parts = _split(_unpacked(sent["codes"], settings)[: _count(like)], like)
    scales = sent["scales"].unbind()
    return {name: part.to(like[name].dtype) * scale for (name, part), scale in zip(parts.items(), scales, strict=True)}


def form_of_quantised(like: Tree, settings: Compression) -> Tree:
    count, dtype = _count(like), next(iter(like.values())).dtype
    codes = _blank(torch.int16, count) if settings.bits == 16 else _blank(torch.uint8, -(-count * settings.bits // 8))
    return {"codes": codes, "scales": _blank(dtype, len(like))}


def problem_in_quantised(sent: Tree, like: Tree, settings: Compression) -> str:
    if not bool((sent["scales"] >= 0).all()):
        return "a scale below zero"
    codes = _unpacked(sent["codes"], settings)[: _count(like)]
    if bool((codes < -_levels(settings)).any() or (codes > _levels(settings)).any()):
        return f"numbers of more than {_levels(settings)} times their scale"
    return ""


KINDS: dict[str, Kind] = {
    "float16": Kind(compress_halves, decompress_halves, form_of_halves, problem_in_halves, keeps_directions=True),
    "top-k": Kind(compress_largest, decompress_largest, form_of_largest, problem_in_largest, keeps_error=True),
    "quantised": Kind(quantise, dequantise, form_of_quantised, problem_in_quantised),
}


# -- whole updates


def kind_of(trial: Trial) -> Kind | None:
    """None where updates are sent as they are."""
    return KINDS.get(trial.compression.kind)


def compress_outcome(trial: Trial, outcome: Outcome, residual: Tree, round_number: int, site: str) -> Outcome:
    """The outcome with what leaves the site, the update as it arrives, and what the site remembers of the difference.

    Random rounding needs no secret: its draws depend on nobody's data.
    """
    kind = kind_of(trial)
    if kind is None:
        return outcome
    parts, earlier = compressed_parts(trial.algorithm, outcome.update), tree.unflatten(residual)
    whole = {
        part: tree.add(leaves, earlier[part]) if part in earlier else leaves for part, leaves in outcome.update.items()
    }
    whole = _clipped(trial, whole)  # or the residual could grow without bound where updates are longer than the clip
    rng = seeds.generator(trial.batch_seed, "compression", round_number, site)
    sent = {
        part: kind.compress(leaves, trial.compression, rng) if part in parts else leaves
        for part, leaves in whole.items()
    }
    arrived = _decompressed(trial, sent, whole)
    lost = tree.flatten({part: tree.sub(whole[part], arrived[part]) for part in parts})
    error = _relative(lost, tree.flatten({part: whole[part] for part in parts}))
    memory = replace(outcome.memory, residual=lost) if kind.keeps_error else outcome.memory
    return replace(outcome, update=_clipped(trial, arrived), memory=memory, sent=sent, error=error)


def receive(trial: Trial, sent: State, like: State) -> State:
    """The update from what a site has sent. `like` is as `update_like` gives it.

    Where whole sites are protected, this update is clipped, not only the one before compression: rounding may make it
    longer, and its length is what the noise has to hide.
    """
    return sent if kind_of(trial) is None else _clipped(trial, _decompressed(trial, sent, like))


def problem_in(trial: Trial, sent: State, like: State) -> str:
    """What is impossible in what a site sends, if its types and shapes are right; empty if nothing is."""
    kind = kind_of(trial)
    if kind is None:
        return ""
    problems = (
        kind.problem(sent[part], like[part], trial.compression) for part in compressed_parts(trial.algorithm, like)
    )
    return next(filter(None, problems), "")


def form_of(trial: Trial, like: State) -> State:
    """Types and shapes of what leaves a site, on the meta device."""
    kind = kind_of(trial)
    if kind is None:
        return like
    parts = compressed_parts(trial.algorithm, like)
    return {part: kind.form(leaves, trial.compression) if part in parts else leaves for part, leaves in like.items()}


def update_like(algorithm: Algorithm, params: Tree, sites: int) -> State:
    """Types and shapes of an update, on the meta device: derived from the algorithm without computing one."""
    shared = {part: without_numbers(leaves) for part, leaves in _broadcast(algorithm, params, sites).items()}
    blank = without_numbers(params)
    one = torch.empty((), dtype=next(iter(params.values())).dtype, device="meta")
    memory = algorithm.init_memory(blank)
    return algorithm.finish(blank, shared, memory, Work(one, one, one, one))[0]


def without_numbers(leaves: Tree) -> Tree:
    """On the meta device."""
    return {name: torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for name, leaf in leaves.items()}


def first_residual(trial: Trial, params: Tree) -> Tree:
    """Zeros, where the kind of compression keeps what it loses."""
    kind = kind_of(trial)
    if kind is None or not kind.keeps_error:
        return {}
    like = update_like(trial.algorithm, params, len(trial.sites))
    parts = {part: like[part] for part in compressed_parts(trial.algorithm, like)}
    device = next(iter(params.values())).device
    return {
        name: torch.zeros(leaf.shape, dtype=leaf.dtype, device=device) for name, leaf in tree.flatten(parts).items()
    }


def compressed_parts(algorithm: Algorithm, update: State) -> list[str]:
    return [part for part in update if part not in algorithm.exact | algorithm.data_free]


def _decompressed(trial: Trial, sent: State, like: State) -> State:
    kind = KINDS[trial.compression.kind]
    parts = compressed_parts(trial.algorithm, like)
    return {
        part: kind.decompress(leaves, like[part], trial.compression) if part in parts else leaves
        for part, leaves in sent.items()
    }


def _clipped(trial: Trial, update: State) -> State:
    if trial.privacy.site is None:
        return update
    return clipped_update(update, trial.algorithm.data_free, trial.privacy.site.clip)


def _relative(lost: Tree, whole: Tree) -> float:
    """Length of what is lost over the length of the whole; 0 where there was nothing to lose."""
    length = float(tree.squared_norm(whole).sqrt())
    return float(tree.squared_norm(lost).sqrt()) / length if length else 0.0


def _broadcast(algorithm: Algorithm, params: Tree, sites: int) -> State:
    return algorithm.broadcast(algorithm.init(params, sites), 0)


def _blank(dtype: torch.dtype, length: int) -> Tensor:
    return torch.empty(length, dtype=dtype, device="meta")


def _count(like: Tree) -> int:
    return sum(leaf.numel() for leaf in like.values())


def _split(flat: Tensor, like: Tree) -> Tree:
    parts = torch.split(flat, [leaf.numel() for leaf in like.values()])
    return {name: part.reshape(leaf.shape) for (name, leaf), part in zip(like.items(), parts, strict=True)}


def _exponent(leaf: Tensor) -> int:
    largest = float(leaf.abs().max()) if leaf.numel() else 0.0
    return max(math.frexp(largest)[1] - HALF_EXPONENT, LEAST_EXPONENT)


def _largest(count: int, settings: Compression) -> int:
    return max(1, round(settings.share * count))


def _place_type(count: int) -> torch.dtype:
    return torch.int32 if count <= INT32_MOST else torch.int64


def _levels(settings: Compression) -> int:
    return int(2 ** (settings.bits - 1) - 1)


def _packed(codes: Tensor, settings: Compression) -> Tensor:
    """Codes of fewer than 16 bits as bytes, several to a byte: the first in the lowest bits."""
    if settings.bits == 16:
        return codes
    bytes_, each = (codes + _levels(settings)).to(torch.uint8), 8 // settings.bits
    rows = torch.nn.functional.pad(bytes_, (0, -len(bytes_) % each)).reshape(-1, each)
    packed = rows[:, 0].clone()
    for place in range(1, each):
        packed |= rows[:, place] << (settings.bits * place)
    return packed


def _unpacked(packed: Tensor, settings: Compression) -> Tensor:
    if settings.bits == 16:
        return packed.to(torch.int32)
    mask = 2**settings.bits - 1
    columns = [(packed >> shift) & mask for shift in range(0, 8, settings.bits)]
    return torch.stack(columns, 1).flatten().to(torch.int32) - _levels(settings)
