"""Whether probabilities come true, and whether sets of answers hold the right one: overall, at each site, for each
finding."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from wardround.evaluation.calibration_curves import reliability
from wardround.evaluation.uncertainty.uncertainty_rows import LabelledRows, SeedRows, sites_of
from wardround.tasks.class_metrics import defined_mean
from wardround.tasks.probabilities import ProbabilityTask
from wardround.uncertainty.calibration import ece, error_by_chance, expected_error, log_loss
from wardround.uncertainty.conformal import coverage, held, rank, set_sizes
from wardround.uncertainty.decision import Answers

INSIDE = 0.99  # of runs, in which coverage lies within what is expected


# Calibration


def describe_calibration(seeds: Sequence[SeedRows], findings: Sequence[str]) -> dict[str, Any]:
    """Means over seeds. `ece` is before any correction, `ece_after` with each site's temperature."""
    task = seeds[0].task
    before = [task.events(rows.test.label, rows.test.score) for rows in seeds]
    after = [task.events(rows.test.label, rows.after) for rows in seeds]
    described: dict[str, Any] = _errors(task, [(rows.test, rows.after) for rows in seeds])
    described["reliability"] = {
        "before": _points(before),
        "after": _points(after),
    }
    described["sites"] = {
        site: _at_site([rows for rows in seeds if site in rows.sites], site) for site in sites_of(seeds)
    }
    described["findings"] = {
        name: {
            "ece": defined_mean([expected_error(*events[f]) for events in before]),
            "ece_after": defined_mean([expected_error(*events[f]) for events in after]),
            "by_chance": defined_mean([error_by_chance(events[f][1]) for events in before]),
        }
        for f, name in enumerate(findings)
    }
    return described


def _errors(task: ProbabilityTask, pairs: Sequence[tuple[LabelledRows, np.ndarray]]) -> dict[str, Any]:
    """Each pair is rows with the scores that they have before, and those after."""
    chance = [
        defined_mean([error_by_chance(scores) for _, scores in task.events(rows.label, rows.score)])
        for rows, _ in pairs
    ]
    return {
        "ece": defined_mean([ece(task, rows.label, rows.score) for rows, _ in pairs]),
        "ece_after": defined_mean([ece(task, rows.label, after) for rows, after in pairs]),
        "by_chance": defined_mean(chance),
        "loss": defined_mean([_loss(task, rows.label, rows.score) for rows, _ in pairs]),
        "loss_after": defined_mean([_loss(task, rows.label, after) for rows, after in pairs]),
    }


def _at_site(seeds: Sequence[SeedRows], site: str) -> dict[str, Any]:
    rows = [(item.test.at(site), item.after[item.test.site == site]) for item in seeds]
    fits = [item.temperatures[site] for item in seeds]
    fitted = np.concatenate([item.fitted for item in fits])
    values = np.concatenate([item.values for item in fits])[fitted]
    return {
        "validation": defined_mean([float(len(item.validation.at(site))) for item in seeds]),
        "test": defined_mean([float(len(own)) for own, _ in rows]),
        # logits are divided by it, so that means are taken of its logarithm
        "temperature": float(np.exp(np.log(values).mean())) if len(values) else None,
        "fitted": float(fitted.mean()),
        "changed": float((np.concatenate([item.values for item in fits]) != 1).mean()),
        **_errors(seeds[0].task, rows),
    }


def _points(of_seeds: Sequence[list[tuple[np.ndarray, np.ndarray]]]) -> list[dict[str, float]]:
    pairs = [pair for pairs in of_seeds for pair in pairs]
    happened, scores = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return reliability(happened, scores) if len(scores) else []


def _loss(task: ProbabilityTask, label: np.ndarray, score: np.ndarray) -> float:
    return log_loss(task, label, score) if (label >= 0).any() else float("nan")


# Sets


def describe_sets(seeds: Sequence[SeedRows], alpha: float, findings: Sequence[str]) -> dict[str, Any]:
    """Means over seeds. `expected` and `inside` are about the conformal sets: labels that are added to them can only
    increase coverage."""
    cuts = [rows.cuts(alpha) for rows in seeds]
    pairs = [(rows, rows.answers(own)) for rows, own in zip(seeds, cuts, strict=True)]
    return {
        "alpha": alpha,
        "each_label": seeds[0].task.each_label,
        # labels that so few validation rows have that they can never be ruled out
        "no_cut": defined_mean([float(np.isinf([cut.values for cut in own.values()]).mean()) for own in cuts]),
        **_coverage([(rows.test.label, answers) for rows, answers in pairs]),
        "sites": {site: _sets_at(pairs, site, alpha) for site in sites_of(seeds)},
        "findings": {
            name: _coverage([(rows.test.label[:, [f]], answers.finding(f)) for rows, answers in pairs])
            for f, name in enumerate(findings)
        },
    }


def _sets_at(pairs: Sequence[tuple[SeedRows, Answers]], site: str, alpha: float) -> dict[str, Any]:
    """Coverage at one site, and the interval in which it is expected."""
    there = [(rows, answers.take(rows.test.site == site)) for rows, answers in pairs if site in rows.sites]
    bands = [_expected(rows, site, alpha) for rows, _ in there]
    labels = [rows.test.at(site).label for rows, _ in there]
    shares = [coverage(answers.conformal, label) for label, (_, answers) in zip(labels, there, strict=True)]
    ends = [
        _of_all_findings(rows, answers.conformal, site, alpha) if rows.task.findings else band
        for (rows, answers), band in zip(there, bands, strict=True)
    ]
    low, high = (defined_mean([float(end[place]) for end in ends]) for place in (0, 1))
    return {
        **_coverage([(label, answers) for label, (_, answers) in zip(labels, there, strict=True)]),
        "expected": [low, high],
        "inside": defined_mean([_inside(share, band) for share, band in zip(shares, bands, strict=True)]),
    }


def _coverage(pairs: Sequence[tuple[np.ndarray, Answers]]) -> dict[str, Any]:
    """Of labels with their sets, one pair for each seed. Of findings, coverage is the mean over those known."""
    sizes = [set_sizes(answers.sets) for _, answers in pairs]
    two = pairs[0][1].sets.shape[-1] == 2
    return {
        "coverage": defined_mean([_share(coverage(answers.sets, label)) for label, answers in pairs]),
        "conformal_coverage": defined_mean([_share(coverage(answers.conformal, label)) for label, answers in pairs]),
        # of those who have it: a set may keep its promise by missing all of them
        "coverage_positive": defined_mean([_positive(label, answers.sets) for label, answers in pairs])
        if two
        else None,
        "positives": defined_mean([float((label == 1).sum()) for label, _ in pairs]) if two else None,
        "size": defined_mean([float(size.mean()) for size in sizes]),
        "single": defined_mean([float((size == 1).mean()) for size in sizes]),
        "multiple": defined_mean([float((size > 1).mean()) for size in sizes]),
        "prediction_added": defined_mean([float(answers.added.mean()) for _, answers in pairs]),
        "empty": defined_mean([float(answers.empty.mean()) for _, answers in pairs]),
    }


def _positive(label: np.ndarray, sets: np.ndarray) -> float:
    covered, positive = held(sets, label), label == 1
    return _share((covered & positive).sum(axis=0) / np.maximum(positive.sum(axis=0), 1), positive.any(axis=0))


def _share(values: np.ndarray, known: np.ndarray | bool = True) -> float:
    return defined_mean(np.atleast_1d(np.where(known, values, np.nan)))


def _expected(rows: SeedRows, site: str, alpha: float) -> np.ndarray:
    """Between which shares coverage lies in 99 of 100 runs: (2,), or (findings, 2). NaN where no label is known."""
    bands = [np.array(expected_coverage(counts, alpha)) for counts in _counts_at(rows, site)]
    return rows.task.together(bands)


def _of_all_findings(rows: SeedRows, conformal: np.ndarray, site: str, alpha: float) -> tuple[float, float]:
    """The interval of the mean over findings. Where one finding of a patient is missed, others may be too: the SD of
    the mean follows from each finding's own and from how misses of two findings go together in the test patients."""
    test = rows.test.at(site)
    missed = np.where(test.label >= 0, ~held(conformal, test.label), np.nan)
    moments = [coverage_moments(counts, alpha) for counts in _counts_at(rows, site)]
    known = np.array([not np.isnan(mean) for mean, _ in moments])
    if not known.any():
        return float("nan"), float("nan")
    mean, sd = (np.array(each)[known] for each in zip(*moments, strict=True))
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


def _counts_at(rows: SeedRows, site: str) -> list[tuple[tuple[int, int], ...]]:
    """Of all classes, or of each finding."""
    validation, test = rows.validation.at(site), rows.test.at(site)
    labels = 2 if rows.task.each_label else 0
    pairs = zip(rows.task.questions(validation.label), rows.task.questions(test.label), strict=True)
    return [_counts(label, validation.patient, truth, test.patient, labels) for label, truth in pairs]


def _counts(
    label: np.ndarray, patient: np.ndarray, truth: np.ndarray, tested: np.ndarray, labels: int
) -> tuple[tuple[int, int], ...]:
    """`labels` that have a cut of their own; 0: one cut for all. A patient counts once, with however many rows: these
    are alike, so that they say less than as many patients would."""
    chosen = (
        [(label >= 0, truth >= 0)] if not labels else [(label == number, truth == number) for number in range(labels)]
    )
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
    of test. Given n validation rows, the coverage of one more row is distributed as Beta(k, n + 1 - k) with k the cut's
    rank, so that the number covered of one label is beta-binomial (Vovk, ACML 2012), of all labels their sum."""
    from scipy.signal import fftconvolve  # here, because it takes long to load and few studies have such sets

    total = sum(tested for _, tested in counts)
    if not total:
        return float("nan"), float("nan")
    chances, certain = np.ones(1), 0
    for rows, tested in counts:
        place = rank(rows, alpha)
        if place > rows:  # too few to exclude anything
            certain += tested
        elif tested:
            number = stats.betabinom(tested, place, rows + 1 - place)
            chances = np.maximum(fftconvolve(chances, number.pmf(np.arange(tested + 1))), 0)
    below = np.cumsum(chances / chances.sum())
    low, high = (int(np.searchsorted(below, end - 1e-12)) for end in ((1 - inside) / 2, (1 + inside) / 2))
    return (certain + low) / total, (certain + high) / total


def _inside(share: np.ndarray, band: np.ndarray) -> float:
    """Whether coverage is as expected; of findings, the share of which it is."""
    known = ~np.isnan(band[..., 0])
    fits = (share >= band[..., 0] - 1e-9) & (share <= band[..., 1] + 1e-9)
    return float(np.mean(fits[known])) if known.any() else float("nan")
