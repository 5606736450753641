"""Random effects of hospitals in two stages: a regression at each hospital, then one coefficient over all of them.

Each coefficient is taken to differ between hospitals around a mean, with a variance tau². It is estimated by restricted
maximum likelihood (Viechtbauer, J Educ Behav Stat 2005) and by DerSimonian and Laird (Control Clin Trials 1986); I² is
the share of the spread that is more than chance (Higgins and Thompson, Stat Med 2002), and the prediction interval is
where a further hospital's coefficient would lie (Higgins, Thompson and Spiegelhalter, J R Stat Soc A 2009).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

LEAST_SITES = 2  # with an estimate
LEAST_FOR_PREDICTION = 3
CLOSE, MOST_ITERATIONS = 1e-14, 1000


def pooled_effect(estimates: np.ndarray, variances: np.ndarray, confidence: float) -> dict[str, Any]:
    """Over hospitals: the mean effect by REML, with DerSimonian and Laird beside it."""
    from scipy import stats

    weights = 1 / variances
    fixed = float((weights * estimates).sum() / weights.sum())
    q, degrees = float((weights * (estimates - fixed) ** 2).sum()), len(estimates) - 1
    moment = max(0.0, (q - degrees) / float(weights.sum() - (weights**2).sum() / weights.sum()))
    tau2 = restricted_likelihood(estimates, variances, moment)
    reach = float(stats.norm.ppf((1 + confidence) / 2))
    mean, se = _mean(estimates, variances, tau2)
    prediction = None
    if len(estimates) >= LEAST_FOR_PREDICTION:
        far = float(stats.t(len(estimates) - 2).ppf((1 + confidence) / 2)) * float(np.sqrt(tau2 + se**2))
        prediction = [mean - far, mean + far]
    by_moments, se_by_moments = _mean(estimates, variances, moment)
    return {
        "estimate": mean,
        "se": se,
        "statistic": mean / se,
        "p": float(2 * stats.norm.sf(abs(mean / se))),
        "ci": [mean - reach * se, mean + reach * se],
        "tau2": tau2,
        "i2": max(0.0, (q - degrees) / q) if q > 0 else 0.0,
        "q": q,
        "q_p": float(stats.chi2.sf(q, degrees)),
        "prediction_interval": prediction,
        "dersimonian_laird": {"estimate": by_moments, "se": se_by_moments, "tau2": moment},
    }


def _mean(estimates: np.ndarray, variances: np.ndarray, tau2: float) -> tuple[float, float]:
    weights = 1 / (variances + tau2)
    return float((weights * estimates).sum() / weights.sum()), float(1 / np.sqrt(weights.sum()))


def restricted_likelihood(estimates: np.ndarray, variances: np.ndarray, start: float) -> float:
    """The tau² that maximises it, by Fisher's scoring; never below 0."""
    tau2 = start
    for _ in range(MOST_ITERATIONS):
        weights = 1 / (variances + tau2)
        mean = (weights * estimates).sum() / weights.sum()
        total, squares = weights.sum(), (weights**2).sum()
        score = (weights**2 * (estimates - mean) ** 2).sum() - total + squares / total
        information = squares - 2 * (weights**3).sum() / total + (squares / total) ** 2
        after = max(0.0, float(tau2 + score / information))
        if abs(after - tau2) <= CLOSE * (1 + tau2):
            return after
        tau2 = after
    return float(tau2)


def pooled_terms(
    names: tuple[str, ...], by_site: Mapping[str, tuple[np.ndarray, np.ndarray]], confidence: float, ratio: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """By term the effect over hospitals, and by hospital its own estimates. `by_site`: estimates and covariances."""
    from scipy import stats

    estimates = np.array([own for own, _ in by_site.values()])
    variances = np.array([np.diag(covariance) for _, covariance in by_site.values()])
    terms = {name: pooled_effect(estimates[:, n], variances[:, n], confidence) for n, name in enumerate(names)}
    reach = float(stats.norm.ppf((1 + confidence) / 2))
    hospitals: dict[str, Any] = {}
    for place, site in enumerate(by_site):
        spread = np.sqrt(variances[place])
        hospitals[site] = {
            name: {
                "estimate": float(estimates[place, n]),
                "se": float(spread[n]),
                "ci": [float(estimates[place, n] - reach * spread[n]), float(estimates[place, n] + reach * spread[n])],
            }
            for n, name in enumerate(names)
        }
    if ratio:
        for own in (*terms.values(), *(term for hospital in hospitals.values() for term in hospital.values())):
            with np.errstate(over="ignore"):
                own |= {"ratio": float(np.exp(own["estimate"])), "ratio_ci": [float(np.exp(end)) for end in own["ci"]]}
    return terms, hospitals
