"""Whether probabilities come true, and whether sets of answers hold the right one: overall, at each site, for each
finding."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.signal import fftconvolve

from wardround.evaluation.uncertainty.uncertainty_rows import SeedRows, Sided
from wardround.uncertainty.calibration import ece, error_by_chance, events, expected_error, log_loss, reliability_points
from wardround.uncertainty.conformal import coverage, held, rank, set_sizes
from wardround.uncertainty.decision import Answers

INSIDE = 0.99  # of runs, in which coverage lies within what is expected


# Calibration


def describe_calibration(seeds: Sequence[SeedRows], findings: Sequence[str]) -> dict[str, Any]:
    """Means over seeds. `ece` is before any correction, `ece_after` with each site's temperature."""
    told: dict[str, Any] = _errors([(one.test, one.after) for one in seeds])
    told["reliability"] = {
        "before": _points([events(one.test.label, one.test.score) for one in seeds]),
        "after": _points([events(one.test.label, one.after) for one in seeds]),
    }
    told["sites"] = {site: _at_site([one for one in seeds if site in one.sites], site) for site in _sites(seeds)}
    told["findings"] = {
        name: {
            "ece": _mean([expected_error(*events(one.test.label, one.test.score)[f]) for one in seeds]),
            "ece_after": _mean([expected_error(*events(one.test.label, one.after)[f]) for one in seeds]),
            "by_chance": _mean([error_by_chance(events(one.test.label, one.test.score)[f][1]) for one in seeds]),
        }
        for f, name in enumerate(findings)
    }
    return told


def _errors(pairs: Sequence[tuple[Sided, np.ndarray]]) -> dict[str, Any]:
    """Each pair is rows with the scores that they have before, and those after."""
    chance = [_mean([error_by_chance(said) for _, said in events(rows.label, rows.score)]) for rows, _ in pairs]
    return {
        "ece": _mean([ece(rows.label, rows.score) for rows, _ in pairs]),
        "ece_after": _mean([ece(rows.label, after) for rows, after in pairs]),
        "by_chance": _mean(chance),
        "loss": _mean([_loss(rows.label, rows.score) for rows, _ in pairs]),
        "loss_after": _mean([_loss(rows.label, after) for rows, after in pairs]),
    }


def _at_site(seeds: Sequence[SeedRows], site: str) -> dict[str, Any]:
    rows = [(one.test.at(site), one.after[one.test.site == site]) for one in seeds]
    fits = [one.temperatures[site] for one in seeds]
    fitted = np.concatenate([one.fitted for one in fits])
    values = np.concatenate([one.values for one in fits])[fitted]
    return {
        "validation": _mean([float(len(one.validation.at(site))) for one in seeds]),
        "test": _mean([float(len(own)) for own, _ in rows]),
        # logits are divided by it, so that means are taken of its logarithm
        "temperature": float(np.exp(np.log(values).mean())) if len(values) else None,
        "fitted": float(fitted.mean()),
        "moved": float((np.concatenate([one.values for one in fits]) != 1).mean()),
        **_errors(rows),
    }


def _points(of_seeds: Sequence[list[tuple[np.ndarray, np.ndarray]]]) -> list[dict[str, float]]:
    pairs = [pair for pairs in of_seeds for pair in pairs]
    happened, said = (np.concatenate(one) for one in zip(*pairs, strict=True))
    return reliability_points(happened, said) if len(said) else []


def _loss(label: np.ndarray, score: np.ndarray) -> float:
    return log_loss(label, score) if (label >= 0).any() else float("nan")


# Sets


def describe_sets(seeds: Sequence[SeedRows], alpha: float, findings: Sequence[str]) -> dict[str, Any]:
    """Means over seeds. What is expected, and whether coverage is inside of it, is of the conformal sets: what is added
    to these can only cover more."""
    cuts = [one.cuts(alpha) for one in seeds]
    made = [one.answers(own) for one, own in zip(seeds, cuts, strict=True)]
    told: dict[str, Any] = {"alpha": alpha, "each_label": seeds[0].each_label}
    # of labels that so few validation rows have that they can never be ruled out
    told["no_cut"] = _mean([float(np.isinf([cut.values for cut in own.values()]).mean()) for own in cuts])
    told |= _coverage([(one.test.label, found) for one, found in zip(seeds, made, strict=True)])
    told["sites"] = {}
    for site in _sites(seeds):
        there = [(one, found.take(one.test.site == site)) for one, found in _at(seeds, made, site)]
        bands = [_expected(one, site, alpha) for one, _ in there]
        labels = [one.test.at(site).label for one, _ in there]
        held_here = [coverage(found.conformal, label) for label, (_, found) in zip(labels, there, strict=True)]
        ends = [
            _of_all_findings(one, found.conformal, site, alpha) if one.findings else band
            for (one, found), band in zip(there, bands, strict=True)
        ]
        low, high = (_mean([float(end[place]) for end in ends]) for place in (0, 1))
        told["sites"][site] = {
            **_coverage([(label, found) for label, (_, found) in zip(labels, there, strict=True)]),
            "expected": [low, high],
            "inside": _mean([_inside(own, band) for own, band in zip(held_here, bands, strict=True)]),
        }
    told["findings"] = {
        name: _coverage([(one.test.label[:, [f]], found.finding(f)) for one, found in zip(seeds, made, strict=True)])
        for f, name in enumerate(findings)
    }
    return told


def _at(seeds: Sequence[SeedRows], made: Sequence[Answers], site: str) -> list[tuple[SeedRows, Answers]]:
    return [(one, found) for one, found in zip(seeds, made, strict=True) if site in one.sites]


def _coverage(pairs: Sequence[tuple[np.ndarray, Answers]]) -> dict[str, Any]:
    """Of labels with their sets, one pair for each seed. Of findings, coverage is the mean over those known."""
    sizes = [set_sizes(found.sets) for _, found in pairs]
    two = pairs[0][1].sets.shape[-1] == 2
    return {
        "coverage": _mean([_share(coverage(found.sets, label)) for label, found in pairs]),
        "conformal_coverage": _mean([_share(coverage(found.conformal, label)) for label, found in pairs]),
        # of those who have it: a set may keep its promise by missing all of them
        "coverage_positive": _mean([_positive(label, found.sets) for label, found in pairs]) if two else None,
        "positives": _mean([float((label == 1).sum()) for label, _ in pairs]) if two else None,
        "size": _mean([float(one.mean()) for one in sizes]),
        "one": _mean([float((one == 1).mean()) for one in sizes]),
        "several": _mean([float((one > 1).mean()) for one in sizes]),
        "call_added": _mean([float(found.added.mean()) for _, found in pairs]),
        "empty": _mean([float(found.empty.mean()) for _, found in pairs]),
    }


def _positive(label: np.ndarray, sets: np.ndarray) -> float:
    found, positive = held(sets, label), label == 1
    return _share((found & positive).sum(axis=0) / np.maximum(positive.sum(axis=0), 1), positive.any(axis=0))


def _share(values: np.ndarray, known: np.ndarray | bool = True) -> float:
    kept = np.atleast_1d(np.where(known, values, np.nan))
    kept = kept[~np.isnan(kept)]
    return float(kept.mean()) if len(kept) else float("nan")


def _expected(one: SeedRows, site: str, alpha: float) -> np.ndarray:
    """Between which shares coverage lies in 99 of 100 runs: (2,), or (findings, 2). NaN where no label is known."""
    validation, test = one.validation.at(site), one.test.at(site)
    if not one.findings:
        labels = 2 if one.test.score.ndim == 1 else 0
        return np.array(_band(validation.label, validation.patient, test.label, test.patient, labels, alpha))
    columns = range(test.label.shape[1])
    return np.array(
        [_band(validation.label[:, f], validation.patient, test.label[:, f], test.patient, 2, alpha) for f in columns]
    )


def _of_all_findings(one: SeedRows, conformal: np.ndarray, site: str, alpha: float) -> tuple[float, float]:
    """The interval of the mean over findings. Where one finding of a patient is missed, others may be too: the SD of
    the mean follows from each finding's own and from how misses of two findings go together in the test patients."""
    validation, test = one.validation.at(site), one.test.at(site)
    missed = np.where(test.label >= 0, ~held(conformal, test.label), np.nan)
    found = [
        coverage_moments(_counts(validation.label[:, f], validation.patient, test.label[:, f], test.patient, 2), alpha)
        for f in range(test.label.shape[1])
    ]
    known = np.array([not np.isnan(mean) for mean, _ in found])
    if not known.any():
        return float("nan"), float("nan")
    mean, sd = (np.array(each)[known] for each in zip(*found, strict=True))
    together = _correlation(missed[:, known], test.patient)
    half = float(stats.norm.ppf((1 + INSIDE) / 2) * np.sqrt(sd @ together @ sd) / len(sd))
    return max(0.0, float(mean.mean()) - half), min(1.0, float(mean.mean()) + half)


def _correlation(missed: np.ndarray, patient: np.ndarray) -> np.ndarray:
    """Of patients' shares of misses, between findings. What is not known counts as the mean, what never varies as
    independent, so that no variance comes out below 0."""
    shares = pd.DataFrame(missed).groupby(patient).mean()
    apart = (shares - shares.mean()).fillna(0.0).to_numpy()
    size = np.sqrt(np.square(apart).sum(axis=0))
    scaled = apart / np.where(size > 0, size, 1.0)
    together: np.ndarray = scaled.T @ scaled
    np.fill_diagonal(together, 1.0)
    return together


def _band(
    label: np.ndarray, patient: np.ndarray, truth: np.ndarray, tested: np.ndarray, labels: int, alpha: float
) -> tuple[float, float]:
    return expected_coverage(_counts(label, patient, truth, tested, labels), alpha)


def _counts(
    label: np.ndarray, patient: np.ndarray, truth: np.ndarray, tested: np.ndarray, labels: int
) -> tuple[tuple[int, int], ...]:
    """`labels` that have a cut of their own; 0: one cut for all. A patient counts once, with however many rows: these
    are alike, so that they say less than as many patients would."""
    chosen = [(label >= 0, truth >= 0)] if not labels else [(label == one, truth == one) for one in range(labels)]
    return tuple((len(np.unique(patient[a])), len(np.unique(tested[b]))) for a, b in chosen)


def coverage_moments(counts: tuple[tuple[int, int], ...], alpha: float) -> tuple[float, float]:
    """Mean and SD of the share covered, with `counts` as in `expected_coverage`. NaN without test rows."""
    total = sum(tested for _, tested in counts)
    if not total:
        return float("nan"), float("nan")
    covered, variance = 0.0, 0.0
    for rows, tested in counts:
        place = rank(rows, alpha)
        if place > rows:
            covered += tested
        elif tested:
            number = stats.betabinom(tested, place, rows + 1 - place)
            covered, variance = covered + float(number.mean()), variance + float(number.var())
    return covered / total, float(np.sqrt(variance)) / total


@lru_cache(maxsize=4096)
def expected_coverage(counts: tuple[tuple[int, int], ...], alpha: float, inside: float = INSIDE) -> tuple[float, float]:
    """The interval of the share covered, where each label has a cut of its own; `counts` are its rows of validation and
    of test. Covered of one label are a beta-binomial number (see `coverage_interval`), of all labels their sum."""
    total = sum(tested for _, tested in counts)
    if not total:
        return float("nan"), float("nan")
    chances, sure = np.ones(1), 0
    for rows, tested in counts:
        place = rank(rows, alpha)
        if place > rows:  # too few to exclude anything
            sure += tested
        elif tested:
            number = stats.betabinom(tested, place, rows + 1 - place)
            chances = np.maximum(fftconvolve(chances, number.pmf(np.arange(tested + 1))), 0)
    below = np.cumsum(chances / chances.sum())
    low, high = (int(np.searchsorted(below, end - 1e-12)) for end in ((1 - inside) / 2, (1 + inside) / 2))
    return (sure + low) / total, (sure + high) / total


def _inside(share: np.ndarray, band: np.ndarray) -> float:
    """Whether coverage is as expected; of findings, the share of which it is."""
    known = ~np.isnan(band[..., 0])
    fits = (share >= band[..., 0] - 1e-9) & (share <= band[..., 1] + 1e-9)
    return float(np.mean(fits[known])) if known.any() else float("nan")


def _sites(seeds: Sequence[SeedRows]) -> list[str]:
    return list(dict.fromkeys(site for one in seeds for site in one.sites))


def _mean(values: Sequence[float]) -> float:
    """Of those that are defined."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
