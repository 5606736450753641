"""Lengths and weighted sums of patients' gradients, from what is known of each row.

What a patient adds to the sum must depend on the patient's own rows and on nobody else's: else one patient more would
also change what thousands of others add. So everything here is in double precision, and each patient's length is
computed in the same way whether or not others have several rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wardround.core.tree import align

# 64 units of the last place of a sum of some thousand products: more than their square root
ROUNDING = 64 * torch.finfo(torch.float64).eps
AT_A_TIME = 2**18  # numbers that are turned into double precision at once: so many stay in a processor's cache


@dataclass(frozen=True)
class Patients:
    """Which rows of a batch belong together. `part` is each row's share of its patient's mean."""

    place: Tensor  # number of each row's patient
    count: int
    part: Tensor

    @classmethod
    def of(cls, patients: Tensor) -> "Patients":
        place = torch.unique(patients, return_inverse=True)[1]
        rows = torch.bincount(place) if len(place) else place
        return cls(place, len(rows), (1 / rows.double())[place] if len(place) else rows.double())

    @property
    def alone(self) -> bool:
        """Whether every patient has one row here."""
        return self.count == len(self.place)

    @cached_property
    def repeated(self) -> list[tuple[Tensor, Tensor]]:
        """For each number of rows above one that patients have: who has so many, and their rows, a patient a line."""
        if self.alone:
            return []
        order = torch.argsort(self.place, stable=True)
        rows = torch.bincount(self.place)
        begins = rows.cumsum(0) - rows
        groups = []
        for many in torch.unique(rows[rows > 1]).tolist():
            who = torch.nonzero(rows == many).squeeze(1)
            groups.append((who, order[begins[who].unsqueeze(1) + torch.arange(many, device=order.device)]))
        return groups

    def means(self, each: Tensor) -> Tensor:
        """Over each patient's rows; `each` has a row's gradient at each place of its first axis."""
        if self.alone:
            return each.new_empty(each.shape).index_copy_(0, self.place, each)
        scaled = each * align(self.part, each)
        return each.new_zeros(self.count, *each.shape[1:]).index_add_(0, self.place, scaled)

    def squared_lengths(self, single: Tensor, most: Tensor, of_means: Callable[[Tensor], Tensor], size: int) -> Tensor:
        """Of each patient's mean gradient. `single` are the rows' own, for patients who have but one, and `most` what
        a row's length is if nothing in it cancels. `of_means` gives those of patients with several rows, from the
        numbers of their rows, a patient a line; it works with `size` numbers for each row."""
        squares = single.new_empty(self.count).index_copy_(0, self.place, never_too_small(single, most))
        for who, rows in self.repeated:
            parts = torch.split(rows, max(1, AT_A_TIME // (size * rows.shape[1])))
            own = torch.cat([of_means(part) for part in parts])
            squares[who] = never_too_small(own, most[rows].mean(1))
        return squares

    def lengths_of(self, each: Tensor) -> Tensor:
        """Squared, where rows' gradients are written down."""
        each = each.flatten(1)
        parts = [each] if each.dtype == torch.float64 else chunks(each, each.shape[1])
        lengths = torch.cat([torch.linalg.vector_norm(part.double(), dim=1) for part in parts])

        def of_means(rows: Tensor) -> Tensor:
            means: Tensor = torch.linalg.vector_norm(each[rows].double().mean(1), dim=1)
            return means.square()

        return self.squared_lengths(lengths.square(), lengths, of_means, each.shape[1])

    def lengths_of_products(self, left: Tensor, right: Tensor) -> Tensor:
        """Squared, where a row's gradient is the outer product left x right, in double precision."""
        most = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)

        def of_means(rows: Tensor) -> Tensor:
            return of_pairs(left[rows], right[rows])[0] / rows.shape[1] ** 2

        return self.squared_lengths(most.square(), most, of_means, left.shape[1])


def of_pairs(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Of sums of outer products over places, (any, places, numbers) in double precision: squared lengths, and what the
    lengths are if nothing cancels. |sum of a_p b_p'|^2 is the sum over pairs of places of (a_p.a_q)(b_p.b_q)."""
    pairs = torch.bmm(left, left.mT).mul_(torch.bmm(right, right.mT))
    return pairs.sum((1, 2)), pairs.diagonal(dim1=1, dim2=2).sqrt().sum(1)


def never_too_small(squares: Tensor, most: Tensor) -> Tensor:
    """Where a patient's rows or places nearly cancel, rounding is all that is left of squares. A length that comes out
    too small would be a clip too large, so that what rounding may have taken is added: for everybody, always."""
    return squares.clamp(min=0).addcmul(most, most, value=ROUNDING)


def weighted_sum(factors: Tensor, each: Tensor) -> Tensor:
    """Of the rows of `each`, in double precision, without a copy of all of them in it."""
    flat = each.flatten(1)
    if flat.dtype == torch.float64:
        return (factors @ flat).reshape(each.shape[1:])
    total = factors.new_zeros(flat.shape[1])
    for own, part in zip(chunks(factors, flat.shape[1]), chunks(flat, flat.shape[1]), strict=True):
        total.addmv_(part.double().mT, own)
    return total.reshape(each.shape[1:])


def chunks(rows: Tensor, size: int) -> Iterator[Tensor]:
    """So many rows at a time that their numbers, `size` of each, stay in the cache in double precision."""
    return iter(torch.split(rows, max(1, AT_A_TIME // max(1, size))))
