"""Whether a label means the same at every hospital, asked across hospitals: `data/direction.py` over a network.

A site tells how well each of its columns ranks the positive rows, two digits of it. Columns go by hashes that hold in
one run only: others see which columns they share, and not what they are.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from wardround.data.direction import Association, opposites
from wardround.errors import CheckError
from wardround.study import Study

CHECK = "label-direction"


def told_directions(run: str, found: Mapping[str, Association]) -> dict[str, list[float]]:
    return {
        sha256(f"{run}/column {name}".encode()).hexdigest()[:16]: [
            round(one.effect, 2),
            max(round(one.error, 3), 0.001),
        ]
        for name, one in found.items()
    }


def inverted_labels(study: Study, told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Refused, unless the study accepts it knowingly; then a warning. Nobody here knows what the columns are."""
    by_site = {site: {str(name): _read(one) for name, one in directions.items()} for site, directions in told.items()}
    warnings = []
    for one in opposites(by_site):
        label = "the label of one of them" if len(one.others) == 1 else "its label"
        columns = len(one.higher) + len(one.lower)
        many = "1 column" if columns == 1 else f"{columns} columns"
        problem = f"{many} shared with {', '.join(one.others)} point the other way, as if {label} were inverted"
        if CHECK not in study.evaluation.accept:
            raise CheckError(f"{one.site}: {CHECK}", problem, REMEDY)
        warnings.append(f"{one.site}: {problem} (accepted by the study)")
    return warnings


REMEDY = (
    "Ask the hospitals what their target means, and map its words under `labels` in the site file. If this is meant, "
    f'accept it knowingly: `accept = ["{CHECK}"]` in [evaluation].'
)


def _read(told: Sequence[float]) -> Association:
    """How many rows are behind it is not told."""
    effect, error = (float(number) for number in told)
    if not -0.5 <= effect <= 0.5 or not 0 < error < 1:
        raise ValueError("no direction of a column")
    return Association(effect, error, 0, 0)
