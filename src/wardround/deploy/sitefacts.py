"""What each hospital tells of its own rows, and the description of all sites that the coordinator makes of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wardround.data.cohort import Cohort
from wardround.data.heterogeneity import measure_counts
from wardround.data.split import Split
from wardround.describe import COMPARED_SITES, description, known_ages, site_counts
from wardround.study import Study


def own_counts(split: Split, cohort: Cohort, smallest: int) -> dict[str, Any]:
    """Rows on each side, rows of each class, and ages; a class's rows or the ages are None where they are withheld."""
    found = site_counts(split, cohort)
    found["classes"] = without_small(found["classes"], smallest)
    ages = known_ages(split, cohort)
    if ages is not None and len(ages) < smallest:
        found["age"] = {"mean": None, "sd": None}
    return found


def without_counts(told: Mapping[str, Any]) -> dict[str, Any]:
    """Only the numbers of rows, where no count of patients has been paid for."""
    hidden: dict[str, Any] = {**told, "classes": dict.fromkeys(told["classes"])}
    return {**hidden, "age": {"mean": None, "sd": None}} if "age" in told else hidden


def without_small(counts: Mapping[str, int], smallest: int) -> dict[str, int | None]:
    """None for counts below `smallest`, and for the next smallest ones where those could be worked out.

    The sum of all is known, so that what is withheld must be two counts or more, and enough rows together.
    """
    hidden = {name for name, count in counts.items() if 0 < count < smallest}
    others = sorted((name for name, count in counts.items() if count >= smallest), key=lambda name: counts[name])
    while hidden and others and (len(hidden) < 2 or sum(counts[name] for name in hidden) < smallest):
        hidden.add(others.pop(0))
    return {name: None if name in hidden else count for name, count in counts.items()}


def describe_deployed(
    study: Study, facts: Mapping[str, Mapping[str, Any]], features: list[str] | None
) -> list[dict[str, Any]]:
    """What `describe_sites` gives in a simulation. `facts` are each site's own counts, in the order of the sites.

    All arms of a deployment have the same rows. How many patients there are, and how far apart their features, cannot
    be known: whether two hospitals share a patient is not told.
    """
    sizes = {site: sum(told[side] for side in ("train", "validation", "test")) for site, told in facts.items()}
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
