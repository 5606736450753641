"""What a plan's sites look like: sizes, classes, ages, how different they are, how many patients leak between them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from wardround import seeds
from wardround.data.agreement import facts
from wardround.data.cohort import Cohort, prepare_sites
from wardround.data.heterogeneity import Heterogeneity, measure
from wardround.data.profile import profile
from wardround.data.records import NO_FINDING, Records, label_counts
from wardround.data.site import Rows, Site
from wardround.data.split import Split
from wardround.plan import Plan, site_choices
from wardround.study import Arm, Preparation, Study, anonymous

MOST_SHOWN = 12  # sites whose columns are drawn one by one
THUMBNAIL = 16  # pixels of the images between which mmd is measured
COMPARED_SITES = 50  # heterogeneity is measured between at most so many sites: pairs grow with their square


def describe_sites(plan: Plan) -> list[dict[str, Any]]:
    """Sizes, classes and heterogeneity of each different set of sites, with the study's first seed."""
    described = []
    seed = plan.study.evaluation.seeds.first
    for arm in site_choices(plan.study).values():
        cohort = plan.cohort_of(arm)
        splits = plan.splits(arm, seed)
        sites = prepare_sites(cohort, splits, arm.preparation, torch.float32)
        features, target = _features(sites), cohort.records.target
        alike = comparable(cohort, splits, arm.preparation)
        if alike is not None and alike != arm.preparation:
            sites = prepare_sites(cohort, splits, alike, torch.float32)
        rng = seeds.generator(seed, "heterogeneity")
        heterogeneity = measure(
            {split.site: target[split.rows] for split in splits[:COMPARED_SITES]},
            {site.name: _flat(site.train, rng) for site in sites[:COMPARED_SITES]} if alike else None,
            len(plan.classes),
            rng,
        )
        described.append(
            description(
                plan.study,
                arm,
                rows=len(cohort.records),
                patients=len(np.unique(cohort.patient[np.concatenate([split.rows for split in splits])])),
                features=features,
                sites={split.site: site_counts(split, cohort) for split in splits},
                heterogeneity=heterogeneity,
            )
        )
    return described


def describe_models(plan: Plan) -> dict[str, dict[str, Any] | None]:
    """How many parameters of each arm's model are sent; None where parties exchange embeddings instead."""
    described: dict[str, dict[str, Any] | None] = {}
    for arm in plan.study.arms:
        described[arm.name] = None
        if arm.topology.kind != "vertical":
            trial = plan.trial(arm, plan.study.evaluation.seeds.first)
            size = {"shared_parameters": trial.model.shared_size, "parameter_bytes": trial.dtype.itemsize}
            described[arm.name] = {"name": arm.model.name, **size}
    return described


def with_models(arms: Mapping[str, dict[str, Any]], plan: Plan) -> None:
    """Add each arm's model to its results; a selected arm has that of its family."""
    models = describe_models(plan)
    family = {(arm.family, arm.variant): models[arm.name] for arm in reversed(plan.study.arms)}
    for name, entry in arms.items():
        entry["model"] = models.get(name, family[entry["family"], entry["variant"]])


def comparable(cohort: Cohort, splits: Sequence[Split], preparation: Preparation) -> Preparation | None:
    """How rows are prepared to measure how far apart sites are: where some record columns that others do not, over
    those that all record, because a column that is filled in tells of other sites. None where there is no such column.
    """
    if not cohort.records.is_table:
        return preparation
    table, common = cohort.table, replace(preparation, schema="common")
    if preparation.schema != "own" and all(table.records_of(split.rows).all() for split in splits):
        return preparation
    told = np.array([facts(table, split.train, common).present for split in splits])
    return common if told.all(axis=0).any() else None


def _features(sites: Sequence[Site]) -> list[str] | None:
    """Names of the prepared columns; where sites have columns of their own, of any of them."""
    by_site = [site.recipe.names for site in sites if site.recipe is not None]
    if len(set(by_site)) <= 1:
        return list(by_site[0]) if by_site else None
    return list(dict.fromkeys(name for names in by_site for name in names))


def description(
    study: Study,
    arm: Arm,
    *,
    rows: int,
    patients: int | None,
    features: list[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    heterogeneity: Heterogeneity,
) -> dict[str, Any]:
    """One entry of `sites` in results.json: the sites of all arms that have this one's data and partition."""
    return {
        "data": {"name": arm.data.name, **anonymous(arm.data.options)},
        "partition": {"name": arm.sites.name, **arm.sites.options},
        "rows": rows,
        "patients": patients,
        "arms": [other.name for other in study.arms if (other.data, other.sites) == (arm.data, arm.sites)],
        "features": features,
        "sites": dict(sites),
        "heterogeneity": heterogeneity.as_dict(),
    }


def describe_columns(plan: Plan) -> dict[str, Any] | None:
    """Of the study's first sites with its first seed; None for images."""
    arm = plan.study.arms[0]
    cohort = plan.cohort_of(arm)
    if not cohort.records.is_table:
        return None
    sites = {split.site: split.rows for split in plan.splits(arm, plan.study.evaluation.seeds.first)}
    return profile(cohort.records, cohort.table, dict(list(sites.items())[:MOST_SHOWN]))


def sample_images(plan: Plan) -> dict[str, np.ndarray]:
    """Some training images of the study's first sites with its first seed, as far as the study lets them be shown."""
    arm, seed, wanted = plan.study.arms[0], plan.study.evaluation.seeds.first, plan.study.evaluation.samples
    records = plan.cohort_of(arm).records
    if not wanted or not isinstance(records.features, np.ndarray):
        return {}
    chosen, sites = [], []
    for split in plan.splits(arm, seed)[:MOST_SHOWN]:
        rows = seeds.generator(seed, "samples", site=split.site).permutation(split.train)[:wanted]
        chosen.append(np.sort(rows))
        sites += [split.site] * len(rows)
    places = np.concatenate(chosen)
    captions = [_caption(records, row) for row in places.tolist()]
    return {"images": records.features[places], "site": np.array(sites), "caption": np.array(captions)}


def _caption(records: Records, row: int) -> str:
    if not records.has_findings:
        return str(records.classes[records.target[row]])
    return ", ".join(records.classes[f] for f in np.flatnonzero(records.target[row] == 1)) or NO_FINDING


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


def site_counts(split: Split, cohort: Cohort) -> dict[str, Any]:
    """Rows on each side, rows of each class, and ages where they are recorded."""
    counted = label_counts(cohort.records, split.rows)
    described: dict[str, Any] = {
        "train": len(split.train),
        "validation": len(split.validation),
        "test": len(split.test),
        "classes": counted,
    }
    ages = known_ages(split, cohort)
    if ages is not None:
        known = ages[~np.isnan(ages)]
        described["age"] = {
            "mean": float(known.mean()) if len(known) else None,
            "sd": float(known.std(ddof=1)) if len(known) > 1 else None,
        }
    return described


def known_ages(split: Split, cohort: Cohort) -> np.ndarray | None:
    """Of a site's rows, NaN where it is not known; None where the source records no ages."""
    if "age" not in cohort.records.groups:
        return None
    ages = pd.to_numeric(cohort.records.groups["age"], errors="coerce").to_numpy(dtype=float)
    return np.asarray(ages[split.rows])


def _flat(rows: Rows, rng: np.random.Generator, most: int = 500) -> np.ndarray:
    chosen = np.sort(rng.permutation(len(rows))[:most])
    x, _ = rows.take(torch.from_numpy(chosen), torch.float32)
    if x.dim() == 4:  # fine detail says nothing of how two hospitals differ, and would fill memory
        x = adaptive_avg_pool2d(x, min(THUMBNAIL, *x.shape[-2:]))
    return x.flatten(1).numpy().astype(np.float64)
