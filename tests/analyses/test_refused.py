"""What a regression refuses, each with one clear sentence, and nothing left behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.analyses.pooled import conducted, hospital_rows
from wardround.analyses.glm.glm import Glm
from wardround.analyses.glm.meta_analysis import pooled_effect
from wardround.core.errors import StudyError, WardroundError


def frames() -> dict[str, pd.DataFrame]:
    """Two hospitals: `marker` tells the outcome without error, `months` is a copy of `age`, `kind` never differs."""
    tables = {}
    for number in range(2):
        rng = np.random.default_rng(number)
        age = rng.uniform(20, 90, 120).round()
        died = (age + rng.normal(0, 20, 120) > 60).astype(float)
        table = {"age": age, "months": 12 * age, "died": died, "marker": died + rng.uniform(0, 0.4, 120), "kind": 1.0}
        table |= {"cost": rng.normal(1000, 50, 120), "ward": rng.choice(["a", "b"], 120), "visits": rng.poisson(2, 120)}
        tables[f"h{number}"] = pd.DataFrame(table)
    return tables


def study(formula: str, **settings: Any) -> dict[str, Any]:
    analysis = {"name": "effect", "kind": "glm", "family": "logistic", "formula": formula} | settings
    return {"name": "refused", "data": {"source": "csv", "files": frames()}, "analyses": [analysis]}


@pytest.mark.parametrize(
    ("formula", "settings", "words"),
    [
        ("died ~ dose", {}, "there is no column 'dose'"),
        ("died ~ age + kind", {}, "'kind' is the same in all rows"),
        ("died ~ age + months", {}, "'months' follows from 'age'"),
        ("cost ~ age", {}, "values other than 0 and 1"),
        ("cost ~ age", {"family": "poisson"}, "no whole numbers"),
        ("ward ~ age", {}, "'ward' is text"),
        ("died ~ marker", {}, "'marker' tells 'died' without any error"),
        ("died ~ I(__import__('os').system('true'))", {}, "calls Python"),
        ("died ~ C(age):C(cost)", {}, "."),
        ("died ~ log(kind - 1)", {}, "no finite number"),
        ("visits ~ age", {"family": "negative-binomial"}, "dispersion"),
        ("died ~ age", {"firth": True, "family": "gaussian"}, "firth"),
        ("died ~ age + site", {"site_effects": "random"}, "site_effects"),
        ("died", {}, "no outcome on its left side"),
        ("died ~ (age + months + cost)**9", {}, "has no meaning here"),
        ("died ~ age", {"famly": "logistic"}, "Did you mean 'family'"),
    ],
)
def test_one_clear_error_and_nothing_left(formula: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(WardroundError) as caught:
        wardround.run_study(study(formula, **settings), tmp_path)
    assert words in str(caught.value)
    assert "effect" in str(caught.value) or isinstance(caught.value, WardroundError)
    assert not list(tmp_path.iterdir())


def test_firth_has_an_answer_where_the_outcome_is_told_without_error(tmp_path: Path) -> None:
    run = wardround.run_study(study("died ~ marker", firth=True), tmp_path)
    term = run.results["analyses"]["effect"]["terms"]["marker"]
    assert 0 < term["estimate"] < 100
    assert run.analyses["effect"]["firth"]


def test_firth_is_the_maximum_of_the_penalised_likelihood() -> None:
    from scipy.optimize import minimize

    rows = hospital_rows("logistic", 3, 7)
    own = conducted(Glm(formula="y ~ dose + age", family="logistic", firth=True), rows)
    whole = pd.concat(rows.values())
    x = np.column_stack([np.ones(len(whole)), whole["dose"] / 20, whole["age"] / 20])
    y = whole["y"].to_numpy()

    def negative(beta: np.ndarray) -> float:
        eta = x @ beta
        mean = 1 / (1 + np.exp(-eta))
        information = (x * (mean * (1 - mean))[:, None]).T @ x
        return float(-(y * eta - np.logaddexp(0, eta)).sum() - np.linalg.slogdet(information)[1] / 2)

    best = minimize(negative, np.zeros(3), method="BFGS", options={"gtol": 1e-9}).x / [1, 20, 20]
    np.testing.assert_allclose([term["estimate"] for term in own["terms"].values()], best, rtol=1e-5)


def test_random_effects_are_those_of_the_literature() -> None:
    """The BCG trials (Colditz et al. 1994), as in Viechtbauer 2010, table 1: log risk ratios and their variances."""
    effects = np.array(
        [
            -0.8893,
            -1.5854,
            -1.3481,
            -1.4416,
            -0.2175,
            -0.7861,
            -1.6209,
            0.0120,
            -0.4694,
            -1.3713,
            -0.3394,
            0.4459,
            -0.0173,
        ]
    )
    variances = np.array(
        [0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714]
    )
    pooled = pooled_effect(effects, variances, 0.95)
    assert pooled["estimate"] == pytest.approx(-0.7145, abs=2e-4)  # metafor's rma(yi, vi)
    assert pooled["se"] == pytest.approx(0.1798, abs=2e-4)
    assert pooled["tau2"] == pytest.approx(0.3132, abs=3e-4)
    assert pooled["q"] == pytest.approx(152.23, abs=0.5)
    assert pooled["dersimonian_laird"]["tau2"] == pytest.approx(0.3088, abs=5e-4)


def test_effects_of_hospitals_need_what_a_secure_sum_hides() -> None:
    from wardround.study.schema import SecureSum

    for glm in (Glm(formula="y ~ dose + site"), Glm(formula="y ~ dose", site_effects="random")):
        with pytest.raises(StudyError, match="a secure sum shows nothing of a single hospital"):
            conducted(glm, hospital_rows("gaussian", 4, 1), SecureSum())


def test_check_names_a_column_that_nobody_has() -> None:
    from wardround.analyses.simulated import Analysed, check_columns
    from wardround.runs.catalog import load_study
    from wardround.runs.plan import load_plan

    parsed, families = load_study(study("died ~ dose"))
    plan = load_plan(parsed, families)
    assert plan.analysed is not None
    with pytest.raises(StudyError, match="analyses: effect: formula: there is no column 'dose'"):
        check_columns(Analysed(parsed, families, plan.analysed))
