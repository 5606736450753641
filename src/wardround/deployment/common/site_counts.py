"""Each hospital's counts of its own rows, and the description of all sites that the coordinator makes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.data.cohort import Cohort
from wardround.data.heterogeneity import measure_counts
from wardround.data.records import NO_FINDING
from wardround.data.split import Split
from wardround.evaluation.summaries.site_summary import patients_in
from wardround.runs.site_descriptions import COMPARED_SITES, description, known_ages, site_counts
from wardround.study.schema import Study


def own_counts(split: Split, cohort: Cohort, smallest: int) -> dict[str, Any]:
    """Rows by subset and class, and ages; None where a class or the ages would describe fewer than `smallest`
    patients."""
    counts, records, people = site_counts(split, cohort), cohort.records, cohort.patient[split.rows]
    if records.has_findings:
        counts["classes"] = without_small_findings(records.target[split.rows] == 1, people, records.classes, smallest)
    else:
        target = records.target[split.rows]
        patients = {name: people[target == number] for number, name in enumerate(records.classes)}
        counts["classes"] = without_small(patients, smallest)
    ages = known_ages(split, cohort)
    if ages is not None and patients_in(people[~np.isnan(ages)]) < smallest:
        counts["age"] = {"mean": None, "sd": None}
    return counts


def without_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Only the numbers of rows: no count of patients has been paid for."""
    hidden: dict[str, Any] = {**counts, "classes": dict.fromkeys(counts["classes"])}
    return {**hidden, "age": {"mean": None, "sd": None}} if "age" in counts else hidden


def without_small(patients: Mapping[str, np.ndarray], smallest: int) -> dict[str, int | None]:
    """Rows by class; None for classes of fewer than `smallest` patients, and for the next smallest classes if those
    could be derived otherwise. `patients` has the patient of each row of a class.

    The total is known, so at least two counts are withheld, and together they must have enough patients.
    """
    counts = {name: len(rows) for name, rows in patients.items()}
    few = {name for name, rows in patients.items() if 0 < patients_in(rows) < smallest}
    others = sorted(
        (name for name, count in counts.items() if count and name not in few), key=lambda name: counts[name]
    )
    hidden = sorted(few)
    while (
        hidden and others and (len(hidden) < 2 or patients_in(np.concatenate([patients[n] for n in hidden])) < smallest)
    ):
        hidden.append(others.pop(0))
    return {name: None if name in hidden else count for name, count in counts.items()}


def without_small_findings(
    present: np.ndarray, people: np.ndarray, names: Sequence[str], smallest: int
) -> dict[str, int | None]:
    """Rows by finding and without any; None where few patients have a finding or lack it. The rows without any finding
    are withheld as well if their number would tell about few patients. `present` is (rows, findings).

    Rows with any finding, minus those with one of them, are rows that have only others. All findings' rows, minus the
    rows with any, tell how many rows have more than one.
    """

    def small(rows: np.ndarray) -> bool:
        return 0 < patients_in(people[rows]) < smallest

    counts: dict[str, int | None] = {
        name: None if small(has) or small(~has) else int(has.sum()) for name, has in zip(names, present.T, strict=True)
    }
    any_finding, multiple = present.any(axis=1), present.sum(axis=1) > 1
    apart = [any_finding & ~has for has in present.T if has.any()]
    hidden = None in counts.values() or any(small(rows) for rows in (any_finding, ~any_finding, multiple, *apart))
    return counts | {NO_FINDING: None if hidden else int((~any_finding).sum())}


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
    return np.array(counts) if len(counts) == len(classes) else None
