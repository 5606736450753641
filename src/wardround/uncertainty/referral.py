"""Referral of the most uncertain rows to a clinician, and the model's figures on the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wardround.core.errors import StudyError

SHARES = tuple(round(0.05 * step, 2) for step in range(19))  # referred: none to 90 %
LEAST_ROWS = 30  # of validation: from fewer neither sets nor a cut for referral are chosen


@dataclass(frozen=True)
class ReferralCurve:
    """A figure of the rows that are not referred; NaN where it is not defined."""

    shares: tuple[float, ...]
    figures: tuple[float, ...]
    rows: tuple[int, ...]

    @property
    def area(self) -> float:
        """Mean of the figure over the shares, up to the last at which it is defined. Referring at random leaves it at
        `figures[0]` on average."""
        defined = [place for place, figure in enumerate(self.figures) if not np.isnan(figure)]
        if len(defined) < 2:
            return float("nan")
        shares, figures = np.array(self.shares)[defined], np.array(self.figures)[defined]
        return float(np.trapezoid(figures, shares) / (shares[-1] - shares[0]))

    @property
    def gain(self) -> float:
        """The area above that of referring at random."""
        return self.area - self.figures[0]


def referral_curves(
    uncertainty: np.ndarray,
    figures_of: Callable[[np.ndarray], Mapping[str, float]],
    metrics: Sequence[str],
    shares: tuple[float, ...] = SHARES,
) -> dict[str, ReferralCurve]:
    """By metric. Most uncertain rows first; of equals, those that come first. `uncertainty` has one number for each
    row: a row with findings is referred as a whole. `figures_of` has the figures of the rows at some places.
    """
    if uncertainty.shape != (len(uncertainty),):
        raise StudyError("uncertainty: referral", "needs one number for each row", "Average over findings first.")
    if np.isnan(uncertainty).any():
        raise StudyError("uncertainty: referral", "an uncertainty is no number", "A model that has diverged has none.")
    order = np.argsort(-uncertainty, kind="stable")
    retained = [order[referred_rows(len(order), share) :] for share in shares]
    figures, sizes = [figures_of(rows) for rows in retained], tuple(len(rows) for rows in retained)
    return {name: ReferralCurve(shares, tuple(of_share[name] for of_share in figures), sizes) for name in metrics}


def referred_rows(rows: int, share: float) -> int:
    """How many rows a share is, to the nearest; half a row is none."""
    return int(np.ceil(rows * share - 0.5 - 1e-9))


def referral_cut(uncertainty: np.ndarray, share: float) -> float:
    """The uncertainty above which rows are referred, so that of these validation rows a share is, or less with ties.
    It lies midway between two values that occur, so that rounding elsewhere changes nothing. Without any row nobody is
    referred."""
    if not 0 <= share <= 1:
        raise StudyError("uncertainty: refer", "is not a share", "Write 0.2 to refer one row in five.")
    ranked = np.sort(uncertainty.astype(np.float64))
    keep = len(ranked) - referred_rows(len(ranked), share)
    if keep == len(ranked):
        return np.inf
    if keep <= 0:
        return -np.inf
    above = ranked[ranked > ranked[keep - 1]]  # rows that are equally uncertain are kept together
    return float((ranked[keep - 1] + above[0]) / 2) if len(above) else np.inf


def refer(uncertainty: np.ndarray, cut: np.ndarray | float) -> np.ndarray:
    return uncertainty > cut
