"""Whether a label means the same at every hospital, asked across hospitals: `data/direction.py` over a network.

A site tells how well its columns rank the positive rows, two digits of it. Where each hospital's columns are its own
business, only columns of a public list of clinical names are told of (age, blood pressure, ...), and no others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.core.errors import CheckError
from wardround.data.checks.before_training import UNCOMPARED, direction_findings
from wardround.data.checks.label_direction import Association, opposites, uncompared
from wardround.data.clinical_names import SAME
from wardround.study.schema import Study

DIRECTION_CHECK = "label-direction"


def told_directions(found: Mapping[str, Association], only_public: bool) -> dict[str, list[float]]:
    return {
        name: [round(one.effect, 2), max(round(one.error, 3), 0.001)]
        for name, one in found.items()
        if name in SAME or not only_public
    }


def inverted_labels(study: Study, classes: Sequence[str], told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Refused, unless the study accepts it knowingly; then a warning."""
    by_site = {site: {str(name): _read_direction(one) for name, one in directions.items()} for site, directions in told.items()}
    warnings = [f"{site}: {UNCOMPARED}" for site in uncompared(by_site)] if any(by_site.values()) else []
    for finding in direction_findings(opposites(by_site), classes):
        if DIRECTION_CHECK not in study.evaluation.accept:
            accept = (
                f'If it is meant, accept it knowingly: `accept = ["{DIRECTION_CHECK}"]` in [evaluation]; that is another study, '
                "which hospitals approve anew."
            )
            raise CheckError(f"{finding.site}: {DIRECTION_CHECK}", finding.message, f"{finding.remedy} {accept}")
        warnings.append(f"{finding} (accepted by the study)")
    return warnings


def _read_direction(told: Sequence[float]) -> Association:
    """How many rows are behind it is not told."""
    effect, error = (float(number) for number in told)
    if not -0.5 <= effect <= 0.5 or not 0 < error < 1:
        raise ValueError("no direction of a column")
    return Association(effect, error, 0, 0)
