"""How sure models are and what that is worth, for `results.json`: a function of what `uncertainty.parquet` holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.uncertainty.uncertainty_rows import PARTS, SeedRows, seeds_of
from wardround.evaluation.uncertainty.uncertainty_scores import describe_calibration, describe_sets
from wardround.evaluation.uncertainty.uncertainty_use import describe_errors, describe_referral, describe_shifted
from wardround.study.schema import Study, Uncertainty
from wardround.uncertainty.decomposition import of_rows


def score_uncertainty(
    content: dict[str, Any], study: Study, uncertainty: pd.DataFrame, groups: pd.DataFrame
) -> dict[str, Any]:
    """`content` is a whole results.json; it comes back with the `uncertainty` of arms that ask for it. `unsure` has the
    selected arms already."""
    of_arm = {str(name): part for name, part in uncertainty.groupby("arm", sort=False)}
    # one figure for all arms: an AUC within sites beside one over all rows could not be compared
    within = any(results["own_models"] for results in content["arms"].values())
    for name, results in content["arms"].items():
        arm = origin_of(study, name)
        if arm.uncertainty is None or name not in of_arm:
            continue
        seeds = list(seeds_of(of_arm[name], groups, arm.uncertainty.method == "ensemble", study.evaluation.threshold))
        resampling = Resampling.of(study.evaluation_of(arm))
        members = study.evaluation.seeds.count if arm.uncertainty.method == "ensemble" else None
        results["uncertainty"] = describe_arm(seeds, arm.uncertainty, resampling, content["findings"], within, members)
    return content


def describe_arm(
    seeds: Sequence[SeedRows],
    asked: Uncertainty,
    resampling: Resampling,
    findings: Sequence[str] = (),
    within: bool = False,
    members: int | None = None,
) -> dict[str, Any] | None:
    """None where every seed's model has diverged. `within`: AUC is the mean of the sites' own, because in some arm
    sites predict with models of their own. `members` are those of an ensemble."""
    if not seeds:
        return None
    passes = {"none": 1, "ensemble": members}.get(asked.method, asked.passes)
    return {
        "method": asked.method,
        "passes": passes,
        "seeds": len(seeds),
        "parts": _parts(seeds, findings),
        "calibration": describe_calibration(seeds, findings),
        "sets": describe_sets(seeds, asked.alpha, findings),
        "referral": describe_referral(seeds, asked.refer, asked.alpha, resampling, within),
        "errors": describe_errors(seeds, resampling, findings),
        "shifted": describe_shifted(seeds[0]),
    }


def _parts(seeds: Sequence[SeedRows], findings: Sequence[str]) -> dict[str, Any]:
    """Mean uncertainty of test rows in bits; of findings the mean over them, and each."""
    described: dict[str, Any] = {
        name: float(np.mean([of_rows(rows.test.measures[name]).mean() for rows in seeds])) for name in PARTS
    }
    described["findings"] = {
        finding: {name: float(np.mean([rows.test.measures[name][:, f].mean() for rows in seeds])) for name in PARTS}
        for f, finding in enumerate(findings)
    }
    return described
