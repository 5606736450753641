"""From the last sums to estimates in the units of the columns, with standard errors, tests and intervals."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from wardround.analyses.agreement import SITE
from wardround.analyses.glm.meta_analysis import LEAST_SITES, pooled_terms
from wardround.analyses.glm.newton import unpacked
from wardround.core.errors import StudyError

if TYPE_CHECKING:
    from wardround.analyses.glm.formula import Layout
    from wardround.analyses.glm.glm import Glm, State


def described_model(glm: "Glm", state: "State", layout: "Layout") -> dict[str, Any]:
    names, size = layout.names, len(layout.names)
    final, model = state.final, state.climbs["model"]
    back = to_own_units(state.centre, state.spread, layout.has_intercept)
    gaussian = glm.family == "gaussian"
    likelihoods = {name: likelihood(final, name, state.rows, gaussian) for name in state.climbs}
    deviance, pearson = final["fit"].tolist()
    free = state.rows - size
    scale = pearson / free if gaussian else 1.0
    observed = unpacked(final["information"], size)
    expected = unpacked(final["expected"], size) if "expected" in final else observed
    covariance = scale * np.linalg.inv(expected)
    spread = {"se": covariance}
    if glm.errors == "robust":
        meat = unpacked(final["spread of scores"], size)
        spread = {"se": robust(np.linalg.inv(observed), meat, state.patients, state.rows, size), "se_model": covariance}
    own = {key: back @ matrix @ back.T for key, matrix in spread.items()}
    estimate = back @ model.point
    degrees = free if glm.distribution == "t" else None
    terms = {
        name: _term(glm, float(estimate[n]), {key: float(np.sqrt(m[n, n])) for key, m in own.items()}, degrees)
        for n, name in enumerate(names)
    }
    aic = -2 * likelihoods["model"] + 2 * size
    return {
        "family": glm.family,
        "dispersion": glm.dispersion,
        "formula": glm.formula,
        "offset": glm.offset or None,
        "ratio": glm.own_family.ratio or None,
        "errors": glm.errors,
        "confidence": glm.confidence,
        "distribution": glm.distribution,
        "firth": glm.firth,
        "site_effects": "fixed" if SITE in glm.read.names else "none",
        "terms": terms,
        "covariance": own["se"].tolist(),
        "n": state.rows,
        "patients": state.patients,
        "excluded": {"rows": state.excluded[0], "sites_that_do_not_tell": state.excluded[1]},
        "log_likelihood": likelihoods["model"],
        "penalised_log_likelihood": model.log_likelihood if glm.firth else None,
        "iterations": model.iterations,
        "converged": True,
        "stopping_rule": "the last step is shorter than 1e-8 standard errors",
        "deviance": deviance,
        "null_deviance": float(final["null deviance"][0]) if "null deviance" in final else None,
        "pearson_chi2": pearson,
        "scale": scale,
        "degrees_of_freedom": free,
        "aic": aic,
        "wald": _wald(layout, estimate, own["se"]),
        "likelihood_ratio": _ratios(likelihoods, state, layout),
    }


def described_hospitals(glm: "Glm", state: "State", layout: "Layout") -> dict[str, Any]:
    """Random effects. StudyError where fewer than two hospitals have an estimate of their own."""
    size = len(layout.names)
    with_own = {site: own for site, own in state.by_site.items() if own["counts"][2]}
    if len(with_own) < LEAST_SITES:
        problem = f"{len(with_own)} hospitals have an estimate of their own, and random effects take {LEAST_SITES}"
        raise StudyError("site_effects", problem, 'Leave it out, or write "+ site" for fixed effects.')
    fitted = {site: (own["estimates"], unpacked(own["covariance"], size)) for site, own in with_own.items()}
    terms, hospitals = pooled_terms(layout.names, fitted, glm.confidence, glm.own_family.ratio)
    rows, patients, _ = np.sum([own["counts"] for own in with_own.values()], axis=0).tolist()
    return {
        "family": glm.family,
        "dispersion": glm.dispersion,
        "formula": glm.formula,
        "offset": glm.offset or None,
        "ratio": glm.own_family.ratio or None,
        "errors": glm.errors,
        "confidence": glm.confidence,
        "site_effects": "random",
        "terms": terms,
        "hospitals": hospitals,
        "without_estimate": [site for site in state.by_site if site not in with_own],
        "n": round(rows),
        "patients": round(patients),
        "log_likelihood": None,
        "iterations": None,
    }


def to_own_units(centre: np.ndarray, spread: np.ndarray, has_intercept: bool) -> np.ndarray:
    """The matrix by which coefficients of standardised columns become those of the columns."""
    back = np.diag(1 / spread)
    if has_intercept:
        back[0, 1:] = -centre[1:] / spread[1:]
    return back


def likelihood(final: Mapping[str, np.ndarray], name: str, rows: int, gaussian: bool) -> float:
    """Of a Gaussian the largest over its variance too, from the sum of squared residuals."""
    value = float(final[f"log-likelihood {name}"][0])
    if not gaussian:
        return value
    return float(-rows / 2 * (np.log(2 * np.pi * -2 * value / rows) + 1))


def robust(bread: np.ndarray, meat: np.ndarray, patients: int, rows: int, columns: int) -> np.ndarray:
    """Clustered by patient, with the usual correction for few clusters (as in Stata and statsmodels)."""
    correction = patients / (patients - 1) * (rows - 1) / (rows - columns)
    return np.asarray(correction * bread @ meat @ bread)


def _term(glm: "Glm", estimate: float, spread: Mapping[str, float], degrees: int | None) -> dict[str, Any]:
    known = stats.norm if degrees is None else stats.t(degrees)
    se = spread["se"]
    statistic, reach = estimate / se, float(known.ppf((1 + glm.confidence) / 2)) * se
    low, high = estimate - reach, estimate + reach
    term = {
        "estimate": estimate,
        **spread,
        "statistic": statistic,
        "p": float(2 * known.sf(abs(statistic))),
        "ci": [low, high],
    }
    if glm.own_family.ratio:
        with np.errstate(over="ignore"):
            term |= {"ratio": float(np.exp(estimate)), "ratio_ci": [float(np.exp(low)), float(np.exp(high))]}
    return term


def _wald(layout: "Layout", estimate: np.ndarray, covariance: np.ndarray) -> dict[str, Any]:
    """Of each term of the formula: that all its coefficients are 0."""
    tests = {}
    for term, places in layout.terms.items():
        if term == "1" or not places:
            continue
        chosen = list(places)
        part = estimate[chosen]
        tests[term] = _test(float(part @ np.linalg.solve(covariance[np.ix_(chosen, chosen)], part)), len(chosen))
    return tests


def _ratios(likelihoods: Mapping[str, float], state: "State", layout: "Layout") -> dict[str, Any]:
    """Against the model with an intercept alone, and against those without one term each."""
    whole, size = likelihoods["model"], len(layout.names)
    tests = {}
    for name, value in likelihoods.items():
        if name != "model":
            title = "all terms" if name == "null" else name.removeprefix("without ")
            tests[title] = _test(max(0.0, 2 * (whole - value)), size - len(state.climbs[name].columns))
    return tests


def _test(statistic: float, degrees: int) -> dict[str, Any]:
    return {"chi2": statistic, "df": degrees, "p": float(stats.chi2.sf(statistic, degrees))}
