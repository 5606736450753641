"""Batches for a stack of sites. A lane is one site of one trial; lanes of one seed and site share their batches.

Lanes are sorted by their number of steps, the longest first, so that at every step the lanes that still work are the
first few. A short batch is filled up with rows that count nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wardround import seeds
from wardround.data.site import Rows
from wardround.local import orders
from wardround.models.model import Model
from wardround.tree import Tree

STEPS_AT_A_TIME = 256  # index tensors are made for so many steps, so that they stay small beside the data


class RowPool:
    """The rows of many sites as one tensor. Sites that share rows point into it; nothing is copied twice."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        distinct = list({id(part): part for part in parts}.values())
        if all(part.index is not None and part.x is distinct[0].x for part in distinct):
            self.x, self.y = distinct[0].x, distinct[0].y
            self.rows = {id(part): part.index.numpy() for part in distinct if part.index is not None}
        else:
            self.x = torch.cat([part.x for part in distinct])
            self.y = torch.cat([part.y for part in distinct])
            ends = np.cumsum([len(part) for part in distinct])
            self.rows = {id(p): np.arange(end - len(p), end) for p, end in zip(distinct, ends, strict=True)}
        self.parts = distinct  # kept, so that an id stays taken as long as it is used here

    def of(self, part: Rows) -> np.ndarray:
        return self.rows[id(part)]

    def take(self, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        flat = rows.flatten()
        x = self.x.index_select(0, flat).reshape(*rows.shape, *self.x.shape[1:])
        y = self.y.index_select(0, flat).reshape(rows.shape)
        return (x.to(dtype) / 255 if x.dtype == torch.uint8 else x), y


@dataclass(frozen=True)
class Lane:
    """One site's work in one round, as far as its batches are concerned."""

    seed: int
    site: str
    rows: Rows
    epochs: int

    @property
    def key(self) -> tuple[int, str, int, int]:
        return self.seed, self.site, id(self.rows), self.epochs


@dataclass(frozen=True)
class LaneBatch:
    x: Tensor
    y: Tensor
    share: Tensor  # of each row in its batch's mean; 0 for a row that fills up
    masks: Tree


class LaneBatches:
    """All batches of a round for lanes that differ in data and length. `order` sorts the given lanes."""

    def __init__(self, lanes: Sequence[Lane], batch_size: int, round_number: int, pool: RowPool, epochs: int) -> None:
        self.pool, self.batch_size, self.round = pool, batch_size, round_number
        keys = [lane.key for lane in lanes]
        self.distinct = list({lane.key: lane for lane in lanes}.values())
        per_epoch = np.array([-(-len(lane.rows) // batch_size) for lane in self.distinct])
        steps = per_epoch * [lane.epochs for lane in self.distinct]
        by_steps = np.argsort(-steps, kind="stable")
        self.distinct = [self.distinct[i] for i in by_steps]
        self.steps_distinct = steps[by_steps]
        place = {lane.key: i for i, lane in enumerate(self.distinct)}
        of_lane = np.array([place[key] for key in keys])
        self.order = np.argsort(of_lane, kind="stable")  # positions of the given lanes, longest first
        self.of_lane = torch.from_numpy(of_lane[self.order])
        self.steps = self.steps_distinct[of_lane[self.order]]
        self._groups = self._draw(epochs)

    def _draw(self, epochs: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For all lanes of one size: their places, their rows (lanes, steps, batch) and the shares (steps, batch)."""
        by_size: dict[int, list[int]] = {}
        for i, lane in enumerate(self.distinct):
            by_size.setdefault(len(lane.rows), []).append(i)
        groups = []
        for size, members in by_size.items():
            per_epoch = -(-size // self.batch_size)
            width = per_epoch * self.batch_size
            rows = np.zeros((len(members), epochs, width), dtype=np.int64)
            for j, i in enumerate(members):
                lane = self.distinct[i]
                rng = seeds.generator(lane.seed, "batches", self.round, lane.site)
                rows[j, : lane.epochs, :size] = self.pool.of(lane.rows)[orders(size, lane.epochs, rng)]
                rows[j, :, size:] = rows[j, 0, 0]
            real = (np.arange(width) < size).reshape(per_epoch, self.batch_size)
            share = np.tile(real / real.sum(axis=1, keepdims=True), (epochs, 1))
            groups.append((np.array(members), rows.reshape(len(members), epochs * per_epoch, self.batch_size), share))
        return groups

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """(first step, last step + 1, lanes that work) with the same lanes at work throughout."""
        first = 0
        for last in np.unique(self.steps):
            yield first, int(last), int((self.steps > first).sum())
            first = int(last)

    def batches(
        self, first: int, last: int, model: Model, dtype: torch.dtype, mask_rngs: "MaskStreams"
    ) -> Iterator[LaneBatch]:
        for begin in range(first, last, STEPS_AT_A_TIME):
            end = min(begin + STEPS_AT_A_TIME, last)
            at_work = int((self.steps_distinct > first).sum())
            rows = np.zeros((end - begin, at_work, self.batch_size), dtype=np.int64)
            share = np.zeros((end - begin, at_work, self.batch_size))
            for members, group_rows, group_share in self._groups:
                inside = members < at_work
                if inside.any():
                    rows[:, members[inside]] = group_rows[inside, begin:end].transpose(1, 0, 2)
                    share[:, members[inside]] = group_share[begin:end, None]
            lanes = self.of_lane[: int((self.steps > first).sum())]
            all_rows, all_share = torch.from_numpy(rows), torch.from_numpy(share).to(dtype)
            same = len(lanes) == at_work  # no two lanes share their batches
            for step in range(end - begin):
                x, y = self.pool.take(all_rows[step], dtype)
                masks = mask_rngs.draw(model, share[step], dtype)
                batch = LaneBatch(x, y, all_share[step], masks)
                yield batch if same else _spread(batch, lanes)


def _spread(batch: LaneBatch, lanes: Tensor) -> LaneBatch:
    """The batches of distinct lanes, repeated for all lanes that share them."""
    masks = {name: leaf.index_select(0, lanes) for name, leaf in batch.masks.items()}
    return LaneBatch(
        batch.x.index_select(0, lanes), batch.y.index_select(0, lanes), batch.share.index_select(0, lanes), masks
    )


class MaskStreams:
    """One stream of dropout masks for each distinct lane, the same that a site alone would draw."""

    def __init__(self, batches: LaneBatches) -> None:
        self.lanes, self.round = batches.distinct, batches.round
        self.streams: list[np.random.Generator] | None = None

    def draw(self, model: Model, share: np.ndarray, dtype: torch.dtype) -> Tree:
        if not model.mask_shapes:
            return {}
        if self.streams is None:
            self.streams = [seeds.generator(lane.seed, "dropout", self.round, lane.site) for lane in self.lanes]
        drawn = []
        for stream, part in zip(self.streams, share, strict=False):
            rows = int((part > 0).sum())
            masks = model.masks(stream, rows, dtype)
            # rows that only fill up need a mask of the right shape and no more
            drawn.append({n: torch.cat([m, m.new_ones(len(part) - rows, *m.shape[1:])]) for n, m in masks.items()})
        return {name: torch.stack([one[name] for one in drawn]) for name in model.mask_shapes}
