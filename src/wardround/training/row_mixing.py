"""Training rows mixed with others of the same site: rare cases that are more than copies.

* mixup   each row of a batch with another of the batch, and so their labels (Zhang et al., ICLR 2018, arXiv:1710.09412)
* smote   a case of a rarer class that is drawn again moves towards one of its nearest neighbours of that class (Chawla
          et al., JAIR 16, 2002, arXiv:1106.1813); nominal columns take the majority of the neighbours (SMOTE-NC there)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.data.prepare import Recipe, encoded_levels
from wardround.data.site import Rows, Site
from wardround.models.model import SecondLabels
from wardround.study.schema import RowMixing
from wardround.training.trial import Trial

Mixer = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, SecondLabels | None]]  # row numbers of a batch, x, y


def mixer(settings: RowMixing | None, site: Site, rng: np.random.Generator) -> Mixer | None:
    """For one site's work in one round."""
    if settings is None:
        return None
    return _mixup(settings.alpha, rng) if settings.kind == "mixup" else _smote(settings.neighbours, site, rng)


def _mixup(alpha: float, rng: np.random.Generator) -> Mixer:
    def mix(batch: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, SecondLabels]:
        other = torch.from_numpy(rng.permutation(len(batch))).to(x.device)
        share = torch.from_numpy(rng.beta(alpha, alpha, len(batch))).to(x)
        of_row = share.reshape(-1, *(1,) * (x.dim() - 1))
        return of_row * x + (1 - of_row) * x[other], SecondLabels(y[other], 1 - share)

    return mix


def _smote(neighbours: int, site: Site, rng: np.random.Generator) -> Mixer:
    nearest = nearest_of_class(site.train, nominal_columns(site.train, site.recipe), neighbours)
    seen = np.zeros(len(site.train), dtype=bool)  # in this pass
    drawn = 0

    def mix(batch: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        nonlocal drawn
        place, step = (
            rng.integers(2**31, size=len(batch)),
            rng.random(len(batch)),
        )  # drawn for all, so that none depends
        rows = batch.cpu().numpy()
        again = np.zeros(len(rows), dtype=bool)
        for number, row in enumerate(rows):
            if drawn % len(seen) == 0:
                seen[:] = False
            again[number], seen[row], drawn = seen[row], True, drawn + 1
        made = np.flatnonzero(again & nearest.has[rows])
        if not len(made):
            return x, None
        base = rows[made]
        other = nearest.rows[base, place[made] % nearest.count[base]]
        start, end = nearest.values[base], nearest.values[other]
        new = np.where(nearest.nominal, nearest.majority[base], start + step[made, None] * (end - start))
        x = x.clone()
        x[torch.from_numpy(made)] = torch.from_numpy(new).to(x)
        return x, None

    return mix


@dataclass(frozen=True, eq=False)
class Nearest:
    """Of each training row of a class that is not the site's most common one."""

    values: np.ndarray  # (rows, columns), all training rows as they are prepared
    nominal: np.ndarray  # (columns,): which of them are not to be interpolated
    rows: np.ndarray  # (rows, neighbours): its nearest neighbours of the same class, the nearest first
    count: np.ndarray  # how many it has; 0 in rows of the most common class, or of a class of one row
    majority: np.ndarray  # (rows, columns): what most neighbours have in nominal columns

    @property
    def has(self) -> np.ndarray:
        return self.count > 0


@lru_cache(maxsize=64)
def nearest_of_class(train: Rows, nominal: tuple[tuple[int, ...], ...], neighbours: int) -> Nearest:
    """`nominal` are the columns that hold one nominal value together, such as those of a category's levels.

    Distances are Euclidean. Where a nominal value differs, it counts for the median of the standard deviations that the
    class has in the other columns (section 6.1 of the paper), or 1 where there are no others.
    """
    values, labels = (part.double().numpy() for part in (train.everything(torch.float64)[0].cpu(), train.labels.cpu()))
    is_nominal = np.zeros(values.shape[1], dtype=bool)
    is_nominal[[column for group in nominal for column in group]] = True
    codes = [np.unique(values[:, group], axis=0, return_inverse=True)[1].reshape(-1) for group in nominal]
    known, sizes = np.unique(labels, return_counts=True)
    rows, count = np.zeros((len(values), neighbours), dtype=np.int64), np.zeros(len(values), dtype=np.int64)
    majority = values.copy()
    for label in np.delete(known, np.argmax(sizes)):
        members = np.flatnonzero(labels == label)
        own = values[members][:, ~is_nominal]
        differs = np.median(own.std(axis=0)) if own.shape[1] else 1.0
        squares = ((own[:, None] - own[None]) ** 2).sum(-1)
        for code in codes:
            squares += differs**2 * (code[members][:, None] != code[members][None])
        np.fill_diagonal(squares, np.inf)
        many = min(neighbours, len(members) - 1)
        near = members[np.argsort(squares, axis=1, kind="stable")[:, :many]]
        rows[members, :many], count[members] = near, many
        for group, code in zip(nominal, codes, strict=True):
            for row, others in zip(members, near, strict=True):
                if many:
                    majority[row, group] = values[_of_the_most(others, code[others]), group]
    return Nearest(values, is_nominal, rows, count, majority)


def _of_the_most(others: np.ndarray, codes: np.ndarray) -> int:
    """The nearest row with the most frequent value; of values that are equally frequent, the nearest one's."""
    often = (codes[:, None] == codes[None]).sum(1)
    return int(others[np.argmax(often)])


def nominal_columns(train: Rows, recipe: Recipe | None) -> tuple[tuple[int, ...], ...]:
    """Levels of a category together; each other column that has two values at most at this site by itself."""
    groups: list[tuple[int, ...]] = []
    if recipe is not None:
        place = len(recipe.layout.numeric)
        for levels in recipe.layout.levels.values():
            width = len(encoded_levels(levels))
            groups.append(tuple(range(place, place + width)))
            place += width
    taken = {column for group in groups for column in group}
    values = train.everything(torch.float64)[0].cpu().numpy()
    two = (column for column in range(values.shape[1]) if len(np.unique(values[:, column])) <= 2)
    return (*groups, *((column,) for column in two if column not in taken))


def refuse_unmixable(trial: Trial) -> None:
    """Neighbours are looked for in a table, among rows of one class."""
    mix = trial.training.mix
    where = f"arms: {trial.arm}: training: mix"
    if mix is not None and trial.model.cut is not None:
        problem = "a model in parts is told which parts of a row are there, and a mixture has them by halves"
        raise StudyError(where, problem, "Leave it out.")
    if mix is None or mix.kind == "mixup":
        return
    if trial.sites[0].train.x.dim() != 2 or trial.sites[0].train.tabular is not None:
        raise StudyError(where, "SMOTE is for tables, and these data are images", 'Write `mix = { kind = "mixup" }`.')
    if trial.model.task.findings:
        problem = "SMOTE looks for neighbours of one class, and these rows may have several findings"
        raise StudyError(where, problem, 'Write `mix = { kind = "mixup" }`.')
