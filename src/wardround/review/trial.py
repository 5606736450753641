"""A simulated trial of two bundles: patients of several sites are drawn and allotted to one of two arms, a clinician
decides with the bundle of their arm, and the share of right decisions is compared.

    patients   rows of each site's file, drawn with replacement: as many for each arm at each site
    clinician  answers as the bundle does with the probability `reliance`, and otherwise from their own judgement, which
               is right with the probability `skill`
    analysis   the difference of the shares of right decisions, within sites and then over them with the sites' weights

The power by formula is that of a test of the stratified difference with the normal distribution. The same trial is
drawn many times, and the share of trials that find a difference stands beside it. With the first bundle in both arms
that share is the error of the first kind.

What is simulated is what differs because the bundles answer differently. Whether real clinicians rely on a model like
this, a trial with real clinicians has to say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from wardround.bundles.bundle import Bundle, load_bundle
from wardround.core import seeds
from wardround.core.errors import DataError, StudyError
from wardround.review.cases import Question, question_of, read_cases

LEVEL = 0.05
POWER = 0.8
TRIALS = 2000
MOST_PATIENTS = 1_000_000


@dataclass(frozen=True)
class TrialSettings:
    patients: int = 400  # of both arms and all sites together
    reliance: float = 0.7
    skill: float = 0.75
    seed: int = 0
    trials: int = TRIALS

    def __post_init__(self) -> None:
        for name in ("reliance", "skill"):
            if not 0 <= getattr(self, name) <= 1:
                raise StudyError(f"--{name}", "is no probability", "Write a number from 0 to 1.")
        if not 2 <= self.patients <= MOST_PATIENTS:
            raise StudyError("--patients", f"{self.patients} patients", f"Write 2 to {MOST_PATIENTS:,}.")
        if not 100 <= self.trials <= 100_000:
            raise StudyError("--trials", f"{self.trials} trials", "Write 100 to 100,000.")


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Whether each bundle's answer is right, for each row of a site: (2, rows)."""

    name: str
    right: np.ndarray

    def chances(self, reliance: float, skill: float) -> np.ndarray:
        """That a decision is right, in each arm."""
        return np.asarray(reliance * self.right.mean(axis=1) + (1 - reliance) * skill)


def simulate_trial(
    first: Bundle | str | PathLike[str],
    second: Bundle | str | PathLike[str],
    data: Sequence[str | Path],
    *,
    truth: str,
    finding: str | None = None,
    settings: TrialSettings | None = None,
) -> dict[str, Any]:
    """`data` has one file for each site, all with the column `truth`."""
    settings = TrialSettings() if settings is None else settings
    bundles = [bundle if isinstance(bundle, Bundle) else load_bundle(bundle) for bundle in (first, second)]
    questions = [question_of(bundle, finding) for bundle in bundles]
    if questions[0].answers != questions[1].answers:
        raise StudyError("BUNDLE", "the two bundles answer different questions", "Take two of one study.")
    if not data:
        raise StudyError("DATA", "no file is named", "Name a file for each site.")
    names = [Path(file).stem for file in data]
    names = [name if names.count(name) == 1 else str(file) for name, file in zip(names, data, strict=True)]
    if len(set(names)) < len(names):
        raise StudyError("DATA", "a file is named twice", "Name a file for each site.")
    sites = [site_rows(bundles, questions, Path(file), truth, name) for file, name in zip(data, names, strict=True)]
    return trial_results([bundle.name for bundle in bundles], sites, settings)


def site_rows(bundles: Sequence[Bundle], questions: Sequence[Question], file: Path, truth: str, name: str) -> SiteRows:
    right = []
    for bundle, question in zip(bundles, questions, strict=True):
        cases = {case.row: case for case in read_cases(bundle, file, question, truth, False, None)}
        right.append({row: case.predicted == case.truth for row, case in cases.items()})
    both = sorted(set(right[0]) & set(right[1]))
    if not both:
        raise DataError(
            str(file), "has no row with a prediction of both bundles", "Look at it with `wardround predict`."
        )
    return SiteRows(file.stem, np.array([[own[row] for row in both] for own in right], dtype=bool))


def trial_results(names: Sequence[str], sites: Sequence[SiteRows], settings: TrialSettings) -> dict[str, Any]:
    per_arm = patients_per_arm(settings.patients, [site.right.shape[1] for site in sites])
    chances = np.array([site.chances(settings.reliance, settings.skill) for site in sites])
    rng = seeds.generator(settings.seed, "patients of trials")
    found = share_of_findings(sites, per_arm, settings, rng, (0, 1))
    null = share_of_findings(sites, per_arm, settings, rng, (0, 0))
    weights = per_arm / per_arm.sum()
    difference = float(weights @ (chances[:, 1] - chances[:, 0]))
    return {
        "arms": list(names),
        "patients": int(2 * per_arm.sum()),
        "sites": {
            site.name: {
                "rows": site.right.shape[1],
                "patients_per_arm": int(count),
                "model_right": site.right.mean(axis=1).tolist(),
                "decision_right": own.tolist(),
            }
            for site, count, own in zip(sites, per_arm, chances, strict=True)
        },
        "reliance": settings.reliance,
        "skill": settings.skill,
        "difference": difference,
        "level": LEVEL,
        "power": {
            "by_formula": power_of(difference, standard_error(chances, per_arm)),
            "simulated": found,
            "trials": settings.trials,
            "simulation_error": math.sqrt(max(found * (1 - found), 1e-12) / settings.trials),
        },
        "error_of_first_kind": null,
        "patients_for_power": {"power": POWER, "patients": patients_needed(chances, weights, difference)},
    }


def patients_per_arm(patients: int, rows: Sequence[int]) -> np.ndarray:
    """By site, in proportion to its rows; one at least."""
    share = np.array(rows) / sum(rows)
    return np.maximum(1, np.floor(share * patients / 2 + 0.5)).astype(np.int64)


def standard_error(chances: np.ndarray, per_arm: np.ndarray) -> float:
    """Of the stratified difference: (sites, arms) of chances."""
    weights = per_arm / per_arm.sum()
    return math.sqrt(float((weights**2 * (chances * (1 - chances)).sum(axis=1) / per_arm).sum()))


def power_of(difference: float, error: float) -> float:
    """Of a two-sided test with the normal distribution."""
    if error == 0:
        return 1.0 if difference else 0.0
    beyond = norm.ppf(1 - LEVEL / 2)
    return float(norm.cdf(difference / error - beyond) + norm.cdf(-difference / error - beyond))


def patients_needed(chances: np.ndarray, weights: np.ndarray, difference: float) -> int | None:
    """Of both arms together, for `POWER`; None where there is no difference to find."""
    if abs(difference) < 1e-9:
        return None
    variance = float((weights * (chances * (1 - chances)).sum(axis=1)).sum())
    beyond = float(norm.ppf(1 - LEVEL / 2) + norm.ppf(POWER))
    return 2 * math.ceil(variance * (beyond / difference) ** 2)


def share_of_findings(
    sites: Sequence[SiteRows],
    per_arm: np.ndarray,
    settings: TrialSettings,
    rng: np.random.Generator,
    bundles: tuple[int, int],
) -> float:
    """Of so many trials with these bundles in their arms, those whose difference is beyond what chance explains."""
    weights = per_arm / per_arm.sum()
    difference, variance = np.zeros(settings.trials), np.zeros(settings.trials)
    for site, count, weight in zip(sites, per_arm.tolist(), weights, strict=True):
        shares = [decided_right(site.right[bundle], count, settings, rng) / count for bundle in bundles]
        difference += weight * (shares[1] - shares[0])
        variance += weight**2 * sum(share * (1 - share) for share in shares) / count
    beyond = norm.ppf(1 - LEVEL / 2) * np.sqrt(variance)
    return float((np.abs(difference) > beyond).mean())


def decided_right(right: np.ndarray, patients: int, settings: TrialSettings, rng: np.random.Generator) -> np.ndarray:
    """Right decisions in each trial: patients are drawn from the rows, and each is decided by model or by skill."""
    model_right = rng.binomial(patients, right.mean(), settings.trials)  # rows are drawn with replacement
    followed_right = rng.binomial(model_right, settings.reliance)
    followed = followed_right + rng.binomial(patients - model_right, settings.reliance)
    return followed_right + rng.binomial(patients - followed, settings.skill)
