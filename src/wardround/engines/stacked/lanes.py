"""Batches for a stack of sites. A lane is one site of one trial.

Lanes of the same rows, seed and number of epochs (the values of a sweep, say) take the same batches: they are copies of
one another, drawn and fetched once. Lanes are sorted by their number of steps, the longest first, so that at every step
the lanes that still work are the first few. A short batch is filled up with rows that count nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import Tree
from wardround.data.site import Rows, as_numbers, scaled
from wardround.models.model import Model
from wardround.training.local import orders

# Rows are fetched for several steps at once, as long as they fit into the processor's cache or nearly so.
MOST_STEPS = 256
MOST_CELLS = 2**22
SMALL_ORDER = 2048  # orders of up to so many rows are kept for the next stack


class RowPool:
    """The rows of many sites as one tensor. Sites that share rows point into it; nothing is copied twice."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = list({id(part): part for part in parts}.values())  # held, so that their ids stay unique
        wholes = list({(id(part.x), id(part.y)): part for part in self.parts}.values())  # one for each different tensor
        self.x = wholes[0].x if len(wholes) == 1 else torch.cat([whole.x for whole in wholes])
        self.y = wholes[0].y if len(wholes) == 1 else torch.cat([whole.y for whole in wholes])
        places = self._places(wholes)
        self.rows = {id(part): own.numpy() for part, own in zip(self.parts, places, strict=True)}
        self.index: Tensor | None = None  # which row of `x` each pooled row is, where rows have levels of their own
        self.levels: Tensor | None = None
        if any(part.levels is not None for part in self.parts):
            # one image may be scaled in several ways: by each seed's training rows, as each arm asks, or not at all
            self.index = torch.cat(places)
            self.levels = torch.cat([_levels(part) for part in self.parts])
            ends = np.cumsum([len(part) for part in self.parts])
            self.rows = {id(p): np.arange(end - len(p), end) for p, end in zip(self.parts, ends, strict=True)}

    def _places(self, wholes: Sequence[Rows]) -> list[Tensor]:
        """The places of each part's rows in `x`, which has the rows of `wholes` one after another."""
        starts = np.cumsum([0, *(len(whole.x) for whole in wholes)])
        start = {(id(whole.x), id(whole.y)): int(at) for whole, at in zip(wholes, starts, strict=False)}
        return [
            start[id(part.x), id(part.y)] + (torch.arange(len(part)) if part.index is None else part.index)
            for part in self.parts
        ]

    def of(self, part: Rows) -> np.ndarray:
        return self.rows[id(part)]

    def take(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        flat = rows.flatten()
        chosen = flat if self.index is None else self.index[flat]
        x = as_numbers(self.x.index_select(0, chosen), dtype)
        x = scaled(x, None if self.levels is None else self.levels[flat])
        y = self.y.index_select(0, chosen)
        return x.reshape(*rows.shape, *x.shape[1:]), y.reshape(*rows.shape, *y.shape[1:])


def _levels(part: Rows) -> Tensor:
    """Centre 0 and spread 1 leave a row as it is, to the last bit."""
    return torch.tensor([0.0, 1.0]).expand(len(part), 2) if part.levels is None else part.levels


@dataclass(frozen=True)
class Lane:
    """One site's work in one round, as far as its batches are concerned."""

    seed: int
    site: str
    rows: Rows
    size: int
    epochs: int
    ago: int = 0  # rounds since its work began

    @property
    def key(self) -> tuple[int, str, int, int, int]:
        return self.seed, self.site, id(self.rows), self.epochs, self.ago


@dataclass(frozen=True)
class LaneBatch:
    """`x`, `y` and `share` hold one batch for all copies of a lane; `copies` says how many there are."""

    x: Tensor
    y: Tensor
    share: Tensor  # of each row in its batch's mean; 0 for a row that fills up
    masks: Tree
    copies: int


class LaneOrder:
    """Which lanes work and in which order. The same from round to round as long as the same sites do the same work."""

    def __init__(self, lanes: Sequence[Lane], batch_size: int) -> None:
        keys = [lane.key for lane in lanes]
        distinct = list(dict(zip(keys, lanes, strict=True)).values())
        steps = np.array([-(-lane.size // batch_size) * lane.epochs for lane in distinct], dtype=np.int64)
        by_steps = np.argsort(-steps, kind="stable")
        self.batch_size = batch_size
        self.width = min(batch_size, max((lane.size for lane in lanes), default=1))  # no batch is longer
        self.distinct = [distinct[i] for i in by_steps]
        self.distinct_steps = steps[by_steps]
        place = {lane.key: i for i, lane in enumerate(self.distinct)}
        of_lane = np.array([place[key] for key in keys], dtype=np.int64)
        self.order = np.argsort(of_lane, kind="stable")  # positions of the given lanes: longest first, copies together
        self.of_lane = torch.from_numpy(of_lane[self.order])
        self.steps = self.distinct_steps[of_lane[self.order]]
        counts = np.bincount(of_lane)
        self.copies = int(counts[0]) if len(set(counts.tolist())) == 1 else 0  # 0: not the same for all
        self.groups: dict[int, list[int]] = {}  # places of the distinct lanes of each size
        for i, lane in enumerate(self.distinct):
            self.groups.setdefault(lane.size, []).append(i)
        self.known_shares: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def shares(self, begin: int, end: int, at_work: int, dtype: torch.dtype) -> Tensor:
        """(steps, lanes, batch): of each row in its batch's mean, the same in every round."""
        key = (begin, end, dtype)
        if key not in self.known_shares:
            share = np.zeros((end - begin, at_work, self.width))
            for size, members in self.groups.items():
                real = self.real(size)
                inside = [place for place in members if place < at_work]
                of_step = (real / real.sum(axis=1, keepdims=True))[np.arange(begin, end) % len(real)]
                share[:, inside] = of_step[:, None]
            self.known_shares[key] = torch.from_numpy(share).to(dtype)
        return self.known_shares[key]

    def real(self, size: int) -> np.ndarray:
        """(steps of an epoch, batch): which rows of a site of this size do not only fill up."""
        per_epoch = -(-size // self.batch_size)
        return (np.arange(per_epoch * self.width) < size).reshape(per_epoch, self.width)

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """(first step, last step + 1, lanes that work) with the same lanes at work throughout."""
        first = 0
        for last in np.unique(self.steps):
            yield first, int(last), int((self.steps > first).sum())
            first = int(last)


class LaneBatches:
    """All batches of one round."""

    def __init__(self, order: LaneOrder, round_number: int, pool: RowPool) -> None:
        self.order, self.pool, self.round = order, pool, round_number
        self.masks: list[np.random.Generator] = []
        self.drawn = [self._draw(size, members) for size, members in order.groups.items()]

    def _draw(self, size: int, members: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """For lanes of one size: their places and their rows (lanes, steps, batch)."""
        lanes = [self.order.distinct[i] for i in members]
        epochs, per_epoch = max(lane.epochs for lane in lanes), -(-size // self.order.batch_size)
        width = per_epoch * self.order.width
        rows = np.zeros((len(members), epochs, width), dtype=np.int64)
        for j, lane in enumerate(lanes):
            draw = _small_orders if size * lane.epochs <= SMALL_ORDER else _orders
            order = draw(lane.seed, self.round - lane.ago, lane.site, size, lane.epochs)
            rows[j, : lane.epochs, :size] = self.pool.of(lane.rows)[order]
        rows[:, :, size:] = rows[:, :1, :1]
        return np.array(members), rows.reshape(len(members), epochs * per_epoch, self.order.width)

    def between(self, first: int, last: int, model: Model, dtype: torch.dtype) -> Iterator[LaneBatch]:
        """The batches of steps `first` to `last`, for the lanes that then work."""
        at_work = int((self.order.distinct_steps > first).sum())
        lanes = self.order.of_lane[: int((self.order.steps > first).sum())]
        shared = self.order.copies if model.closed_gradient is not None else int(self.order.copies == 1)
        cells = at_work * self.order.width * max(1, self.pool.x[0].numel())
        at_a_time = max(1, min(MOST_STEPS, MOST_CELLS // cells))
        for begin in range(first, last, at_a_time):
            end = min(begin + at_a_time, last)
            x, y = self.pool.take(torch.from_numpy(self._rows(begin, end, at_work)), dtype)
            shares = self.order.shares(begin, end, at_work, dtype)
            of_steps = zip(x.unbind(), model.task.for_loss(y, dtype).unbind(), shares.unbind(), strict=True)
            for x_of_step, y_of_step, share in of_steps:
                masks = self._masks(model, share, dtype)
                batch = LaneBatch(x_of_step, y_of_step, share, masks, max(shared, 1))
                yield batch if shared else _spread(batch, lanes)

    def _rows(self, begin: int, end: int, at_work: int) -> np.ndarray:
        """(steps, lanes, batch)"""
        rows = np.zeros((end - begin, at_work, self.order.width), dtype=np.int64)
        for members, of_group in self.drawn:
            inside = int(np.searchsorted(members, at_work))  # members are in order
            if inside:
                rows[:, members[:inside]] = of_group[:inside, begin:end].transpose(1, 0, 2)
        return rows

    def _masks(self, model: Model, share: Tensor, dtype: torch.dtype) -> Tree:
        """Dropout masks, from the stream that a site alone would draw them from."""
        if not model.mask_shapes:
            return {}
        if not self.masks:
            began = ((lane, self.round - lane.ago) for lane in self.order.distinct)
            self.masks = [seeds.generator(lane.seed, "dropout", number, lane.site) for lane, number in began]
        drawn = []
        for stream, part in zip(self.masks, share, strict=False):
            rows = int((part > 0).sum())
            masks = model.masks(stream, rows, dtype)
            # rows that only fill up need a mask of the right shape and no more
            drawn.append({n: torch.cat([m, m.new_ones(len(part) - rows, *m.shape[1:])]) for n, m in masks.items()})
        return {name: torch.stack([masks[name] for masks in drawn]) for name in model.mask_shapes}


def _orders(seed: int, round_number: int, site: str, rows: int, epochs: int) -> np.ndarray:
    return orders(rows, epochs, seeds.generator(seed, "batches", round_number, site))


# arms and variants with one seed take the same batches: what one stack has drawn serves the next
_small_orders = lru_cache(maxsize=2**14)(_orders)


def _spread(batch: LaneBatch, lanes: Tensor) -> LaneBatch:
    """A batch of distinct lanes, repeated for all lanes that share it."""
    masks = {name: leaf.index_select(0, lanes) for name, leaf in batch.masks.items()}
    x, y, share = (tensor.index_select(0, lanes) for tensor in (batch.x, batch.y, batch.share))
    return LaneBatch(x, y, share, masks, 1)
