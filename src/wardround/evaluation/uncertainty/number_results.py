"""`uncertainty` of results.json for a number: whether intervals hold the outcome, how wide they are, and what referring
the least certain rows would leave."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from wardround.evaluation.intervals import CONFIDENCE, Resampling, summarise
from wardround.evaluation.uncertainty.referral_results import describe_referral
from wardround.evaluation.uncertainty.shifted_results import describe_shifted
from wardround.evaluation.uncertainty.uncertainty_rows import PARTS, NumberRows, sites_of
from wardround.evaluation.uncertainty.uncertainty_scores import expected_coverage
from wardround.study.schema import Uncertainty
from wardround.tasks.class_metrics import defined_mean
from wardround.uncertainty.conformal import rank
from wardround.uncertainty.intervals import interval_coverage, prediction_intervals, shown_intervals


def describe_method(settings: Uncertainty, members: int | None) -> dict[str, Any]:
    """`members` are those of an ensemble."""
    passes = {"none": 1, "ensemble": members}.get(settings.method, settings.passes)
    return {"method": settings.method, "passes": passes}


def describe_numbers(
    seeds: Sequence[NumberRows], settings: Uncertainty, resampling: Resampling, members: int | None = None
) -> dict[str, Any] | None:
    """None where every seed's model has diverged. All in the units of the target."""
    if not seeds:
        return None
    referral = None
    if any(_differs(rows) for rows in seeds):
        referral = describe_referral(seeds, settings.refer, settings.alpha, resampling, within=False)
    return {
        **describe_method(settings, members),
        "seeds": len(seeds),
        "parts": {
            **{name: _mean([float(rows.test.measures[name].mean()) for rows in seeds]) for name in PARTS},
            "findings": {},
        },
        "calibration": None,
        "sets": None,
        "intervals": describe_intervals(seeds, settings.alpha, resampling),
        "referral": referral,
        "errors": describe_number_errors(seeds, resampling),
        "shifted": describe_shifted(seeds[0]),
    }


def _differs(rows: NumberRows) -> bool:
    """Whether some rows of a site are less certain than others: without passes, rows of a regression are all alike."""
    doubt = rows.doubt(rows.test)
    return any(np.ptp(doubt[rows.test.site == site]) > 0 for site in rows.sites)


# Intervals


def describe_intervals(seeds: Sequence[NumberRows], alpha: float, resampling: Resampling) -> dict[str, Any]:
    """Of test rows at sites that have an interval; `no_interval` is the share of rows at the others. `expected` is what
    is to be expected where no two rows are equally far from their prediction."""
    whole = [_Covered(rows, [site for site in rows.sites if not rows.cuts[site].why]) for rows in seeds]
    return {
        "alpha": alpha,
        **_described(whole, resampling),
        "expected": _mean([_expectation(rows, alpha) for rows in seeds]),
        "no_interval": _mean([1 - len(own.label) / len(rows.test) for own, rows in zip(whole, seeds, strict=True)]),
        "sites": {
            site: _at_site([rows for rows in seeds if site in rows.sites], site, alpha, resampling)
            for site in sites_of(seeds)
        },
    }


class _Covered:
    """Test rows of some sites, each with the interval of its own site."""

    def __init__(self, rows: NumberRows, sites: Sequence[str]) -> None:
        at = [(rows.cuts[site], rows.test.at(site)) for site in sites]
        task, none = rows.task, np.zeros(0)
        self.label = np.concatenate([none, *(own.label for _, own in at)])
        self.patient = np.concatenate([rows.test.patient[:0], *(own.patient for _, own in at)])
        conformal = [prediction_intervals(task, cut, own.score) for cut, own in at]
        shown = [shown_intervals(task, cut, own.score) for cut, own in at]
        self.low, self.high = (np.concatenate([none, *(pair[end] for pair in shown)]) for end in (0, 1))
        ends = [np.concatenate([none, *(pair[end] for pair in conformal)]) for end in (0, 1)]
        self.conformal_coverage = interval_coverage(ends[0], ends[1], self.label)

    @property
    def inside(self) -> np.ndarray:
        return (self.label >= self.low) & (self.label <= self.high)

    @property
    def width(self) -> float | None:
        return float((self.high - self.low).mean()) if len(self.label) else None


def _described(parts: Sequence[_Covered], resampling: Resampling) -> dict[str, Any]:
    """One part for each seed."""
    known = [part for part in parts if len(part.label)]
    coverage = summarise([float(part.inside.mean()) for part in known], resampling)
    if known and coverage["interval"] is None:
        inside, patient = (np.concatenate([getattr(part, name) for part in known]) for name in ("inside", "patient"))
        coverage["interval"] = list(share_interval(inside, patient))
    elif coverage["interval"] is not None:
        low, high = coverage["interval"]
        coverage["interval"] = [max(0.0, low), min(1.0, high)]
    return {
        "coverage": coverage,
        "conformal_coverage": _mean([part.conformal_coverage for part in known]),
        "width": _mean([part.width for part in known]),
    }


def share_interval(inside: np.ndarray, patient: np.ndarray) -> tuple[float, float]:
    """Wilson's interval of a share of rows (JASA 1927), of as many rows as would say what these patients say: rows of a
    patient are alike."""
    share, people = float(inside.mean()), np.unique(patient, return_inverse=True)[1]
    rows = float(people.max() + 1)
    apart = np.bincount(people, weights=inside - share)
    if 0 < share < 1 and np.square(apart).sum() > 0:
        rows = share * (1 - share) * len(inside) ** 2 / float(np.square(apart).sum())
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle, half = share + z**2 / (2 * rows), z * np.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    low, high = (middle - half) / (1 + z**2 / rows), (middle + half) / (1 + z**2 / rows)
    return max(0.0, float(low)), min(1.0, float(high))


def _at_site(seeds: Sequence[NumberRows], site: str, alpha: float, resampling: Resampling) -> dict[str, Any]:
    """`why` says why there is no interval; empty where there is one with any seed."""
    cuts = [rows.cuts[site] for rows in seeds]
    usable = [rows for rows, cut in zip(seeds, cuts, strict=True) if not cut.why]
    parts = [_Covered(rows, [site]) for rows in usable]
    bands = [_band(rows, site, alpha) for rows in usable]
    inside = [
        float(low - 1e-9 <= part.conformal_coverage <= high + 1e-9)
        for part, (low, high) in zip(parts, bands, strict=True)
    ]
    return {
        "validation": defined_mean([float(cut.rows) for cut in cuts]),
        "test": defined_mean([float((rows.test.site == site).sum()) for rows in seeds]),
        **_described(parts, resampling),
        "expected": [_mean([band[end] for band in bands]) for end in (0, 1)],
        "inside": _mean(inside),
        "cut": _mean([cut.value for cut in cuts if not cut.why]),
        "why": "" if usable else cuts[0].why,
    }


def _band(rows: NumberRows, site: str, alpha: float) -> tuple[float, float]:
    """Between which shares coverage lies in 99 of 100 runs. A patient counts once, with however many rows."""
    people = [len(np.unique(side.at(site).patient)) for side in (rows.validation, rows.test)]
    return expected_coverage(((people[0], people[1]),), alpha)


def _expectation(rows: NumberRows, alpha: float) -> float:
    """ceil((n + 1)(1 - alpha)) / (n + 1), on average over the test rows of sites with an interval."""
    usable = {site: cut.rows for site, cut in rows.cuts.items() if not cut.why}
    counts = [int((rows.test.site == site).sum()) for site in usable]
    shares = [rank(known, alpha) / (known + 1) for known in usable.values()]
    return float(np.average(shares, weights=counts)) if sum(counts) else float("nan")


# Errors


def describe_number_errors(seeds: Sequence[NumberRows], resampling: Resampling) -> dict[str, Any] | None:
    """Whether predictions that are less certain are farther from the outcome: Spearman's rank correlation of doubt and
    absolute error. None where all rows of a site are equally certain."""
    each = []
    for rows in seeds:
        doubt, error = rows.doubt(rows.test), np.abs(rows.test.label - rows.test.score)
        if _differs(rows) and np.ptp(error) > 0:
            each.append(float(stats.spearmanr(doubt, error).statistic))
    return {"correlation": summarise(each, resampling)} if each else None


def _mean(values: Sequence[float | None]) -> float | None:
    """None where there is none to average."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.mean(known)) if known else None
