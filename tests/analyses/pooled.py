"""Hospitals with rows of their own, and the same rows at one place, fitted by statsmodels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from formulaic import Formula

from wardround.analyses.agreement import schema_of
from wardround.analyses.conduct import Terms, conduct
from wardround.analyses.glm.glm import Glm
from wardround.analyses.site_rows import SiteRows
from wardround.data.records import Column
from wardround.privacy.disclosure import Limits
from wardround.study.schema import SecureSum

RHS = "dose + age + C(sex) + ward"
COLUMNS = (
    Column("y"),
    Column("dose"),
    Column("age"),
    Column("sex", levels=("0", "1")),
    Column("ward", "categorical", levels=("icu", "surgery", "medicine")),
    Column("years"),
)


def hospital_rows(family: str, sites: int, seed: int, smallest: int = 40, visits: int = 1) -> dict[str, pd.DataFrame]:
    """Of unequal sizes; `visits` are rows of each patient, alike within a patient."""
    rng = np.random.default_rng(seed)
    frames = {}
    for number in range(sites):
        people = int(rng.integers(smallest, 4 * smallest))
        rows = people * visits
        person = np.repeat(np.arange(people), visits)
        frame = pd.DataFrame(
            {
                "dose": np.round(rng.normal(50 + 3 * number % 7, 20, rows), 2),
                "age": rng.integers(18, 95, people)[person].astype(float),
                "sex": rng.integers(0, 2, people)[person],
                "ward": rng.choice(["icu", "surgery", "medicine"], rows),
                "years": np.round(rng.uniform(0.2, 3, rows), 3),
                "patient": [f"{number}-{one}" for one in person],
            }
        )
        eta = 0.01 * (frame["dose"] - 50) + 0.02 * (frame["age"] - 60) - 0.4 * frame["sex"]
        eta += 0.5 * (frame["ward"] == "icu") + rng.normal(0, 0.4, people)[person] * (visits > 1)
        frame["y"] = outcomes(family, eta.to_numpy(), frame["years"].to_numpy(), rng)
        frames[f"h{number:02}"] = frame
    return frames


def outcomes(family: str, eta: np.ndarray, years: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if family == "gaussian":
        return np.asarray(120 + 9 * eta + rng.normal(0, 12, len(eta)))
    if family == "logistic":
        return np.asarray(rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta)), dtype=float)
    mean = years * np.exp(0.3 + eta)
    if family == "poisson":
        return np.asarray(rng.poisson(mean), dtype=float)
    return np.asarray(rng.negative_binomial(1 / 0.7, 1 / (1 + 0.7 * mean)), dtype=float)


def sites_of(frames: Mapping[str, pd.DataFrame]) -> dict[str, SiteRows]:
    return {
        site: SiteRows(site, frame.drop(columns="patient"), frame["patient"].to_numpy())
        for site, frame in frames.items()
    }


def conducted(
    glm: Glm,
    frames: Mapping[str, pd.DataFrame],
    secure: SecureSum | None = None,
    smallest: int = 5,
    columns: tuple[Column, ...] = COLUMNS,
) -> dict[str, Any]:
    steps = conduct(glm, Terms("effect", Limits(smallest_cell=smallest), secure), schema_of(columns), sites_of(frames))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def pooled(family: str, frames: Mapping[str, pd.DataFrame], formula: str = RHS, offset: bool = False) -> Any:
    """statsmodels' results, converged to 1e-14."""
    rows = pd.concat(frames.values(), ignore_index=True)
    design = pd.DataFrame(Formula(formula).get_model_matrix(rows))
    families = {
        "gaussian": sm.families.Gaussian(),
        "logistic": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "negative-binomial": sm.families.NegativeBinomial(alpha=0.7),
    }
    offsets = np.log(rows["years"]) if offset else None
    return sm.GLM(rows["y"], design, family=families[family], offset=offsets), rows


def fitted(model: sm.GLM, **options: Any) -> Any:
    return model.fit(tol=1e-14, maxiter=500, tol_criterion="params", **options)
