"""What a plan's sites look like: sizes, classes, ages, how different they are, how many patients leak between them."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from wardround import seeds
from wardround.data.cohort import Cohort, prepare_sites
from wardround.data.heterogeneity import measure
from wardround.data.profile import profile
from wardround.data.site import Rows
from wardround.data.split import Split
from wardround.plan import Plan, site_choices
from wardround.study import anonymous

MOST_SHOWN = 12  # sites whose columns are drawn one by one
COMPARED_SITES = 50  # heterogeneity is measured between at most so many sites: pairs grow with their square


def describe_sites(plan: Plan) -> list[dict[str, Any]]:
    """Sizes, classes and heterogeneity of each different set of sites, with the study's first seed."""
    described = []
    seed = plan.study.evaluation.seeds.first
    for arm in site_choices(plan.study).values():
        cohort = plan.cohort_of(arm)
        splits = plan.splits(arm, seed)
        sites, layout = prepare_sites(cohort, splits, arm.preparation, torch.float32)
        target = cohort.records.target
        compared = sites[:COMPARED_SITES]
        rng = seeds.generator(seed, "heterogeneity")
        heterogeneity = measure(
            {site.name: target[split.rows] for site, split in zip(compared, splits, strict=False)},
            {site.name: _flat(site.train, rng) for site in compared},
            len(plan.classes),
            rng,
        )
        described.append(
            {
                "data": {"name": arm.data.name, **anonymous(arm.data.options)},
                "partition": {"name": arm.sites.name, **arm.sites.options},
                "rows": len(cohort.records),
                "patients": len(np.unique(cohort.patient[np.concatenate([split.rows for split in splits])])),
                "arms": [o.name for o in plan.study.arms if (o.data, o.sites) == (arm.data, arm.sites)],
                "features": list(layout.names) if layout else None,
                "sites": {split.site: _counts(split, cohort) for split in splits},
                "heterogeneity": heterogeneity.as_dict(),
            }
        )
    return described


def describe_columns(plan: Plan) -> dict[str, Any] | None:
    """Of the study's first sites with its first seed; None for images."""
    arm = plan.study.arms[0]
    cohort = plan.cohort_of(arm)
    if not cohort.records.is_table:
        return None
    sites = {split.site: split.rows for split in plan.splits(arm, plan.study.evaluation.seeds.first)}
    return profile(cohort.records, cohort.table, dict(list(sites.items())[:MOST_SHOWN]))


def leakage(plan: Plan) -> dict[str, Any]:
    """Test rows whose patient is in some site's training rows: for each variant and site, on average over seeds.

    Known once the plan's checks have run.
    """
    counted: dict[str, Any] = {}
    for variant in dict.fromkeys(arm.variant for arm in plan.study.arms):
        arm = next(arm for arm in plan.study.arms if arm.variant == variant)
        number = len(plan.data_seeds(arm))
        sites = {split.site: len(split.test) for split in plan.splits(arm, plan.study.evaluation.seeds.first)}
        of_seed = plan.findings.get(plan.first_with_rows[arm.name], {})
        leaks = [finding for found in of_seed.values() for finding in found if finding.check == "leak"]
        found = {site: [finding for finding in leaks if finding.site == site] for site in sites}
        counted[variant] = {
            site: {
                "rows": sum(finding.rows for finding in found[site]) / number,
                "share": sum(finding.rows / finding.of for finding in found[site]) / number,
                "test_rows": rows,
                "splits": number,
            }
            for site, rows in sites.items()
        }
    return counted


def _counts(split: Split, cohort: Cohort) -> dict[str, Any]:
    classes = cohort.records.classes
    counted = np.bincount(cohort.records.target[split.rows], minlength=len(classes))
    described: dict[str, Any] = {
        "train": len(split.train),
        "validation": len(split.validation),
        "test": len(split.test),
        "classes": dict(zip(classes, counted.tolist(), strict=True)),
    }
    if "age" in cohort.records.groups:
        ages = pd.to_numeric(cohort.records.groups["age"], errors="coerce").to_numpy(dtype=float)[split.rows]
        known = ages[~np.isnan(ages)]
        described["age"] = {
            "mean": float(known.mean()) if len(known) else None,
            "sd": float(known.std(ddof=1)) if len(known) > 1 else None,
        }
    return described


def _flat(rows: Rows, rng: np.random.Generator, most: int = 500) -> np.ndarray:
    chosen = np.sort(rng.permutation(len(rows))[:most])
    x, _ = rows.take(torch.from_numpy(chosen), torch.float32)
    return x.flatten(1).numpy().astype(np.float64)
