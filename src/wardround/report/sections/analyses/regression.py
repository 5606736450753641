"""A regression in the report: what it found in words, its table of terms, its tests of whole terms."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from wardround.privacy.disclosure import RULES
from wardround.report.render.table import NONE, Table, counted, listed, make_table, p_text

Result = Mapping[str, Any]
FAMILIES = {
    "gaussian": "linear regression",
    "logistic": "logistic regression",
    "poisson": "Poisson regression",
    "negative-binomial": "negative binomial regression",
}
INTERCEPT = "Intercept"


def significant(value: float) -> str:
    """Three significant digits, without an exponent where it can be read without one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if size < -5 or size > 6:
        return f"{value:.2e}"
    return f"{value:.{max(0, 2 - size)}f}"


def interval(ends: Sequence[float | None]) -> str:
    low, high = ends
    return NONE if low is None or high is None else f"{significant(low)} to {significant(high)}"


def _optional(value: float | None) -> str:
    return NONE if value is None else significant(value)


def glm_sentences(name: str, result: Result) -> list[str]:
    if result["site_effects"] == "random":
        return random_sentences(name, result)
    patients = "" if result["patients"] == result["n"] else f" of {counted(result['patients'], 'patient')}"
    kind = FAMILIES[result["family"]] + (" with Firth's correction" if result["firth"] else "")
    lines = [
        f"{name}: {kind}, {result['formula']}{_offset(result)}, fitted to {counted(result['n'], 'row')}{patients} of "
        f"{listed(result['sites'])}. Every figure is what one would get with all these rows at one place."
    ]
    lines += [_finding(term, own, result) for term, own in _strongest(result)]
    if result["excluded"]["rows"]:
        lines.append(f"{counted(result['excluded']['rows'], 'row')} with a gap in one of its columns did not count.")
    return [*lines, *left_out(result)]


def left_out(result: Result) -> list[str]:
    """Of any kind of analysis."""
    return [
        f"{site['site']} is left out. A rule there forbids {RULES[site['rule']].forbids} ({site['rule']})."
        for site in result["left_out"]
    ]


def _offset(result: Result) -> str:
    return f", offset {result['offset']}" if result["offset"] else ""


def _strongest(result: Result) -> list[tuple[str, Result]]:
    """Terms that chance can hardly explain, at most three, in the order of their p."""
    found = [(term, own) for term, own in result["terms"].items() if term != INTERCEPT and own["p"] < 0.05]
    return sorted(found, key=lambda pair: pair[1]["p"])[:3]


def _finding(term: str, own: Result, result: Result) -> str:
    level = f"{100 * result['confidence']:g} % CI"
    if result["ratio"] and own["ratio"] is not None:
        figure_of = f"{result['ratio']} {significant(own['ratio'])}, {level} {interval(own['ratio_ci'])}"
    else:
        figure_of = f"{significant(own['estimate'])} per unit, {level} {interval(own['ci'])}"
    p = p_text(own["p"])
    return f"{term}: {figure_of}, p {p if p.startswith('<') else f'= {p}'}."


def random_sentences(name: str, result: Result) -> list[str]:
    lines = [
        f"{name}: {FAMILIES[result['family']]}, {result['formula']}, at each of {len(result['hospitals'])} hospitals "
        f"by itself ({counted(result['n'], 'row')}), then put together with random effects (REML)."
    ]
    lines += [
        f"{_finding(term, own, result)} Between hospitals: I² {100 * own['i2']:.0f} %."
        for term, own in _strongest(result)
    ]
    if result["without_estimate"]:
        lines.append(f"Without an estimate of their own: {listed(result['without_estimate'])}.")
    return [*lines, *left_out(result)]


def random_tables(name: str, result: Result) -> list[Table]:
    level = f"{100 * result['confidence']:g} % CI"
    columns: dict[str, Any] = {"term": None, "estimate": significant, "SE": significant, f"{level} of it": None}
    columns |= {"p": p_text, "tau²": significant, "I², %": "{:.0f}".format, "a further hospital": None}
    rows = [
        [
            *(term, own["estimate"], own["se"], interval(own["ci"]), own["p"], own["tau2"], 100 * own["i2"]),
            interval(own["prediction_interval"] or (None, None)),
        ]
        for term, own in result["terms"].items()
    ]
    note = "Mean coefficients over hospitals by REML. The last column is where a further hospital's would lie."
    pooled = make_table(f"analysis-{name}", f"{name}: random effects", columns, rows, note)
    each = {"hospital": None, "term": None, "estimate": significant, "SE": significant, level: None}
    own_rows = [
        [site, term, own["estimate"], own["se"], interval(own["ci"])]
        for site, terms in result["hospitals"].items()
        for term, own in terms.items()
    ]
    return [pooled, make_table(f"analysis-{name}-hospitals", f"{name}: each hospital by itself", each, own_rows)]


def glm_tables(name: str, result: Result) -> list[Table]:
    if result["site_effects"] == "random":
        return random_tables(name, result)
    level = f"{100 * result['confidence']:g} % CI"
    ratio = result["ratio"]
    columns: dict[str, Any] = {"term": None, "estimate": significant, "SE": significant, f"{level} of it": None}
    columns |= {ratio: _optional, f"{level} of the {ratio}": None} if ratio else {}
    columns |= {"p": p_text}
    rows = []
    for term, own in result["terms"].items():
        row = [term, own["estimate"], own["se"], interval(own["ci"])]
        if ratio:
            row += [None, None] if term == INTERCEPT else [own["ratio"], interval(own["ratio_ci"])]
        rows.append([*row, own["p"]])
    errors = "robust standard errors, clustered by patient" if result["errors"] == "robust" else "standard errors"
    note = f"Coefficients in the units of the columns, with {errors}. AIC {result['aic']:.1f}, log-likelihood "
    note += (
        f"{result['log_likelihood']:.2f}, deviance {result['deviance']:.2f}; {counted(result['iterations'], 'step')}."
    )
    tables = [make_table(f"analysis-{name}", f"{name}: {FAMILIES[result['family']]}", columns, rows, note)]
    tests = [[term, "Wald", own["chi2"], own["df"], own["p"]] for term, own in result["wald"].items()]
    tests += [
        [term, "likelihood ratio", own["chi2"], own["df"], own["p"]] for term, own in result["likelihood_ratio"].items()
    ]
    if tests:
        shown = {"term": None, "test": None, "chi²": significant, "df": str, "p": p_text}
        what = "That all coefficients of a term are 0."
        tables.append(make_table(f"analysis-{name}-tests", f"{name}: tests of whole terms", shown, tests, what))
    return tables
