"""Regression from sums equals statsmodels on the pooled rows, whatever the family, the sites and the protection."""

import numpy as np
import pandas as pd
import pytest

from tests.analyses.pooled import RHS, conducted, fitted, hospital_rows, pooled
from wardround.analyses.glm.glm import Glm
from wardround.core.errors import StudyError
from wardround.study.schema import SecureSum

FAMILIES = ("gaussian", "logistic", "poisson", "negative-binomial")


def glm(family: str, **settings: object) -> Glm:
    if family == "negative-binomial":
        settings["dispersion"] = 0.7
    return Glm(**{"formula": f"y ~ {RHS}", "family": family} | settings)  # type: ignore[arg-type]


def compare(family: str, sites: int, secure: SecureSum | None, robust: bool, offset: bool, seed: int = 3) -> None:
    frames = hospital_rows(family, sites, seed, visits=3 if robust else 1)
    settings = {"errors": "robust" if robust else "model", "offset": "log(years)" if offset else ""}
    result = conducted(glm(family, **settings), frames, secure)
    model, rows = pooled(family, {site: frames[site] for site in result["sites"]}, offset=offset)
    groups = {"groups": pd.factorize(rows["patient"])[0]}
    expected = fitted(model, cov_type="cluster", cov_kwds=groups) if robust else fitted(model)
    assert list(result["terms"]) == list(expected.params.index)
    for column, figure in {"estimate": expected.params, "se": expected.bse}.items():
        own = [term[column] for term in result["terms"].values()]
        np.testing.assert_allclose(own, figure, rtol=1e-8, err_msg=f"{family}: {column}")
    np.testing.assert_allclose([term["p"] for term in result["terms"].values()], expected.pvalues, rtol=0, atol=1e-8)
    ends = [term["ci"] for term in result["terms"].values()]
    np.testing.assert_allclose(ends, expected.conf_int(), rtol=1e-8, atol=1e-10)
    for name, value in {
        "log_likelihood": expected.llf,
        "deviance": expected.deviance,
        "null_deviance": expected.null_deviance,
        "pearson_chi2": expected.pearson_chi2,
        "aic": expected.aic,
    }.items():
        assert result[name] == pytest.approx(value, rel=1e-8), f"{family}: {name}"
    assert result["n"] == len(rows)
    assert result["patients"] == rows["patient"].nunique()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_statsmodels_on_the_pooled_rows(family: str) -> None:
    counts = family in ("poisson", "negative-binomial")
    compare(family, 2, None, False, counts)
    compare(family, 5, SecureSum(), True, counts)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [None, SecureSum()], ids=["open", "secure"])
@pytest.mark.parametrize("sites", [3, 10, 50])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_statsmodels_with_many_sites(family: str, sites: int, secure: SecureSum | None) -> None:
    for robust in (False, True):
        for offset in (False, True):
            compare(family, sites, secure, robust, offset, seed=sites)


def test_a_secure_sum_changes_nothing() -> None:
    frames = hospital_rows("logistic", 4, 1)
    in_the_open, masked = conducted(glm("logistic"), frames), conducted(glm("logistic"), frames, SecureSum())
    for term, own in in_the_open["terms"].items():
        np.testing.assert_allclose(masked["terms"][term]["estimate"], own["estimate"], rtol=1e-12)
    assert masked["secure_sum"]["coarsest_step"] < 1e-18


def test_a_site_below_the_floor_is_left_out_and_the_rest_is_as_without_it() -> None:
    frames = hospital_rows("logistic", 3, 4)
    few = frames["h00"].head(3)
    whole, without = conducted(glm("logistic"), {**frames, "h00": few}), {k: v for k, v in frames.items() if k != "h00"}
    assert whole["left_out"] == [{"site": "h00", "rule": "smallest-cell"}]
    assert whole["rules"] == ["columns-per-patient", "dominance", "rare-column", "saturated-model", "smallest-cell"]
    assert whole["sites"] == ["h01", "h02"]
    assert whole["terms"] == conducted(glm("logistic"), without)["terms"]


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ I(__import__('os').system('true'))",
        "y ~ (lambda: dose)()",
        "y ~ dose.__class__",
        "y ~ {open('/etc/passwd')}",
        "y ~ C(sex, contr.treatment(open('x')))",
        "y ~ np.log(dose)",
        "y ~ bs(dose, df=4)",
        "y ~ scale(dose)",
        "y ~ I([c for c in dose])",
        "y ~ I(9**9**9 * dose)",
        "y ~ 'dose'",
    ],
)
def test_a_formula_that_calls_python_is_refused(formula: str) -> None:
    with pytest.raises(StudyError):
        conducted(Glm(formula=formula), hospital_rows("gaussian", 2, 1))
