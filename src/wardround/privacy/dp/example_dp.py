"""DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133) with the patient as the unit: sample, clip, sum, add noise.

In each step every patient is drawn by itself with the same probability. A patient's gradient is that of the mean loss
over all rows of the patient, clipped as one vector over all leaves of the model, the private ones too: a leaf that
stayed at the site without noise would carry patients into later gradients of the others. The sum of the clipped
gradients gets Gaussian noise and is divided by the number of patients that is expected, never by the number drawn,
which would itself tell something. What comes after (penalty, proximal pull, controls, momentum) is post-processing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from wardround.core.tree import Tree, align
from wardround.models.model import Gradient, Model
from wardround.models.patient_gradients import Patients
from wardround.privacy.dp.noise import Stream, chosen, with_noise

CHUNK_BYTES = 64 * 2**20  # of gradients of single rows that are held at a time
# A clipped gradient stays so far below the clip that rounding cannot take the change of the sum above it: neither the
# rounding of its own length nor that of what the others add. In double precision that is next to nothing. A network on
# images in single precision may give the rows that fill no block (`models.rows.BLOCK`) other last digits in other
# company: at most 31 rows, each by some millionths of a clip.
BELOW = 1 - 1e-4
DOUBLE = torch.float64


@dataclass(frozen=True)
class Adaptation:
    """The clip follows a quantile of the lengths (Andrew et al., NeurIPS 2021, arXiv:1905.03871)."""

    quantile: float
    rate: float
    count_noise: float  # standard deviation on the number of lengths below the clip


@dataclass(frozen=True)
class Rule:
    """How one site protects its patients in one arm."""

    rate: float  # probability with which a patient is in a step
    noise: float  # standard deviation on the sum, in clips; with an adaptive clip of both releases together
    clip: float  # infinite where gradients are not clipped: then `noise` is the standard deviation itself
    patients: int
    adaptation: Adaptation | None = None

    @property
    def expected(self) -> float:
        return self.rate * self.patients

    @property
    def gradient_noise(self) -> float:
        """With an adaptive clip the count is a second release: the gradient gets so much more noise that both
        together cost what `noise` says (Andrew et al., theorem 1: z^-2 = z_gradient^-2 + (2 x count noise)^-2)."""
        if self.adaptation is None:
            return self.noise
        rest = self.noise**-2 - (2 * self.adaptation.count_noise) ** -2
        if rest <= 0:
            raise ValueError("the count of an adaptive clip costs more than both releases may")
        return float(rest**-0.5)

    def spread(self, clip: float) -> float:
        """Standard deviation of the noise on the sum of gradients that were cut to `clip`."""
        return self.gradient_noise * (clip if math.isfinite(clip) else 1.0)


def poisson_order(patients: Tensor, rate: float, steps: int, stream: Stream) -> list[Tensor]:
    """Row numbers of each step: all rows of every patient who is drawn. `patients` has the patient of each row."""
    _, place = np.unique(patients.numpy(), return_inverse=True)
    count = int(place.max()) + 1
    if count == len(place):  # one row each, the commonest case
        rows = np.argsort(place)
        return [torch.from_numpy(np.sort(rows[chosen(stream, count, rate)])) for _ in range(steps)]
    drawn = np.zeros(count, dtype=bool)
    order = []
    for _ in range(steps):
        drawn[:] = False
        drawn[chosen(stream, count, rate)] = True
        order.append(torch.from_numpy(np.flatnonzero(drawn[place])))
    return order


class PrivateGradient:
    """The noisy gradient of each step of a round. Remembers the clip, which may move from step to step."""

    def __init__(self, model: Model, rule: Rule, stream: Stream, clip: float | None = None) -> None:
        self.model, self.rule, self.stream = model, rule, stream
        self.clip = rule.clip if clip is None else clip

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, y: Tensor, masks: Tree, patients: Tensor) -> Gradient:
        clip = self.clip
        total, lengths = clipped_sum(self.model, params, x, y, masks, patients, clip)
        noisy = with_noise(self.stream, total, self.rule.spread(clip), _dtype(params))
        gradient = {name: leaf.div_(self.rule.expected) for name, leaf in noisy.items()}
        if self.model.penalty is not None:
            gradient = _with_penalty(self.model.penalty, params, gradient)
        if self.rule.adaptation is not None:
            self.clip = adapted(clip, lengths, self.rule, self.rule.adaptation, self.stream)
        # the loss depends on patients as much as the gradient does, and is not charged
        return gradient, torch.full((), math.nan, dtype=_dtype(params)), buffers


def adapted(clip: float, lengths: Tensor, rule: Rule, how: Adaptation, stream: Stream) -> float:
    """The next clip, from a noisy count of those below this one; centred, so that one patient changes it by a half."""
    centred = float(((lengths <= clip).double() - 0.5).sum())
    noisy = centred + how.count_noise * float(stream.normal(1, torch.float64)[0])
    below = min(1.0, max(0.0, noisy / rule.expected + 0.5))
    return clip * math.exp(-how.rate * (below - how.quantile))


def clipped_sum(
    model: Model, params: Tree, x: Tensor, y: Tensor, masks: Tree, patients: Tensor, clip: float
) -> tuple[Tree, Tensor]:
    """The sum of the patients' clipped gradients without penalty, and their lengths before clipping; both in double
    precision. In single precision a sum over thousands of patients rounds by more than what `BELOW` keeps back. A
    patient whose gradient is no number counts nothing, and changes nothing of what the others add."""
    if not len(x):
        return {name: torch.zeros_like(leaf, dtype=DOUBLE) for name, leaf in params.items()}, torch.zeros(0).double()
    groups = Patients.of(patients.to(x.device))
    if not _is_image_network(model, x):
        params, x, masks = _in_double(params), x.double(), _in_double(masks)
    gradients = model.row_gradients(params, x, y, masks, groups) if model.row_gradients is not None else None
    if gradients is None:
        return _row_by_row(model, _in_double(params), x.double(), y, _in_double(masks), groups, clip)
    lengths, summed = gradients
    finite = lengths.isfinite()
    if bool(finite.all()):
        total = summed(_factors(lengths, clip)[groups.place] * groups.part)
        return {name: total.get(name, torch.zeros_like(leaf, dtype=DOUBLE)) for name, leaf in params.items()}, lengths
    usable = finite[groups.place]
    own = {name: mask[usable] for name, mask in masks.items()}
    total, rest = clipped_sum(model, params, x[usable], y[usable], own, patients[usable], clip)
    return total, lengths.masked_scatter(finite, rest)


def _is_image_network(model: Model, x: Tensor) -> bool:
    """The one case that is not computed in double precision from the start: convolutions would take several times as
    long."""
    return x.dim() == 4 and model.closed_gradient is None


def _in_double(leaves: Tree) -> Tree:
    return {name: leaf.double() for name, leaf in leaves.items()}


def _row_by_row(
    model: Model, params: Tree, x: Tensor, y: Tensor, masks: Tree, groups: Patients, clip: float
) -> tuple[Tree, Tensor]:
    """For any model: every row's gradient is written down, so many at a time as fit."""
    total: Tree = {name: torch.zeros_like(leaf) for name, leaf in params.items()}
    lengths: list[Tensor] = []
    for part, of_patient in _chunks(groups, rows_at_a_time(params)):
        each = row_gradients(model, params, x[part], y[part], {name: mask[part] for name, mask in masks.items()})
        each = {name: of_patient.means(leaf) for name, leaf in each.items()}
        own = gradient_lengths(each)
        if not bool(own.isfinite().all()):
            each = {name: torch.where(align(own.isfinite(), leaf), leaf, 0) for name, leaf in each.items()}
        for name, leaf in each.items():
            total[name] += (_factors(own, clip) @ leaf.flatten(1)).reshape(leaf.shape[1:])
        lengths.append(own)
    return total, torch.cat(lengths)


def row_gradients(model: Model, params: Tree, x: Tensor, y: Tensor, masks: Tree) -> Tree:
    """Of each row's own loss, along a first axis, without the model's penalty."""

    def loss(params: Tree, x: Tensor, y: Tensor, masks: Tree) -> Tensor:
        masks = {name: mask.unsqueeze(0) for name, mask in masks.items()}
        return model.losses(params, {}, x.unsqueeze(0), y.unsqueeze(0), masks)[0].sum()

    gradients: Tree = vmap(grad(loss), in_dims=(None, 0, 0, 0))(params, x, y, masks)
    return {name: leaf.detach() for name, leaf in gradients.items()}


def gradient_lengths(each: Tree) -> Tensor:
    """Of each row's or patient's gradient, over all leaves as one vector."""
    squares = [torch.linalg.vector_norm(leaf.flatten(1), dim=1).square() for leaf in each.values()]
    return torch.stack(squares).sum(0).sqrt()


def rows_at_a_time(params: Tree) -> int:
    bytes_each = sum(leaf.numel() * leaf.element_size() for leaf in params.values())
    return max(1, CHUNK_BYTES // bytes_each)


def _factors(lengths: Tensor, clip: float) -> Tensor:
    """What each gradient is multiplied with. One that is no number counts nothing: it must not spoil the sum."""
    factors = (clip * BELOW / lengths).clamp(max=1)  # 0 / 0 cannot be: a length of 0 gives infinity, and so 1
    return torch.where(lengths.isfinite(), factors, 0)


def _chunks(groups: Patients, most: int) -> Iterator[tuple[Tensor, Patients]]:
    """Rows of whole patients, as many as fit, or one patient."""
    order = torch.argsort(groups.place, stable=True)
    ends = torch.bincount(groups.place).cumsum(0).tolist()
    begin = 0
    for number, end in enumerate(ends):
        if number + 1 == len(ends) or ends[number + 1] - begin > most:
            part = order[begin:end]
            yield part, Patients.of(groups.place[part])
            begin = end


def _with_penalty(penalty: Callable[[Tree], Tensor], params: Tree, gradient: Tree) -> Tree:
    """It does not depend on patients, so it needs no noise."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        own = torch.autograd.grad(penalty(leaves), list(leaves.values()), materialize_grads=True)
    return {name: leaf + more for (name, leaf), more in zip(gradient.items(), own, strict=True)}


def _dtype(params: Tree) -> torch.dtype:
    return next(iter(params.values())).dtype
