"""Each hospital's counts of its own rows, and the description of all sites that the coordinator makes of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wardround.data.cohort import Cohort
from wardround.data.heterogeneity import measure_counts
from wardround.data.split import Split
from wardround.privacy.disclosure import must_stay
from wardround.privacy.disclosure.small_cells import suppress_small_classes, suppress_small_findings
from wardround.runs.site_descriptions import COMPARED_SITES, description, known_ages, site_counts
from wardround.study.schema import Study


def own_counts(split: Split, cohort: Cohort, smallest: int) -> dict[str, Any]:
    """Rows by subset and class, and ages; None where a class or the ages would describe fewer than `smallest`
    patients."""
    counts, task, people = site_counts(split, cohort), cohort.records.task, cohort.patient[split.rows]
    target = cohort.records.target[split.rows]
    # beside the sums of training rows, those of all rows would tell of the few that are held out
    counts.pop("target", None)
    if must_stay(people, smallest):
        counts["classes"] = dict.fromkeys(counts["classes"])
    elif task.parts:
        counts["classes"] = suppress_small_findings(target == 1, people, task.names, smallest)
    else:  # numbers have no classes, and no counts of them
        patients = {name: people[target == number] for number, name in enumerate(task.classes)}
        counts["classes"] = suppress_small_classes(patients, smallest)
    ages = known_ages(split, cohort)
    if ages is not None and must_stay(people[~np.isnan(ages)], smallest):
        counts["age"] = {"mean": None, "sd": None}
    return counts


def without_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Only the numbers of rows: no count of patients has been paid for."""
    hidden: dict[str, Any] = {**counts, "classes": dict.fromkeys(counts["classes"])}
    return {**hidden, "age": {"mean": None, "sd": None}} if "age" in counts else hidden


def describe_deployed(
    study: Study, facts: Mapping[str, Mapping[str, Any]], features: list[str] | None
) -> list[dict[str, Any]]:
    """As `describe_sites` in a simulation. `facts` are each site's own counts, in the order of the sites.

    All arms of a deployment use the same rows. The number of patients and distances between features stay unknown,
    because sites do not reveal whether they share a patient.
    """
    sizes = {site: sum(counts[subset] for subset in ("train", "validation", "test")) for site, counts in facts.items()}
    compared = dict(list(sizes.items())[:COMPARED_SITES])
    counts = {site: _known(facts[site]["classes"]) for site in compared}
    return [
        description(
            study,
            study.arms[0],
            rows=sum(sizes.values()),
            patients=None,
            features=features,
            sites=facts,
            heterogeneity=measure_counts(counts, compared, {}),
        )
    ]


def _known(classes: Mapping[str, int | None]) -> np.ndarray | None:
    counts = [count for count in classes.values() if count is not None]
    return np.array(counts) if counts and len(counts) == len(classes) else None
