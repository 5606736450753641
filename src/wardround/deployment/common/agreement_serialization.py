"""What sites agree on, as plain data for a message and back. Floats survive JSON to the last bit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.data.agreement import Common, Facts, Lent, Moments, with_enough
from wardround.data.serialization import Plain


def write_facts(facts: Facts) -> Plain:
    return {
        "present": list(facts.present),
        "gaps": list(facts.gaps),
        "levels": [list(levels) for levels in facts.levels],
    }


def read_facts(told: Mapping[str, Any]) -> Facts:
    levels = tuple(tuple(map(str, one)) for one in told["levels"])
    return Facts(tuple(map(bool, told["present"])), tuple(map(bool, told["gaps"])), levels)


def write_lent(lent: Lent, numbers: Sequence[int], categories: Sequence[str]) -> Plain:
    """Only of the columns that somebody asked for; nothing is said of the others."""
    lent = with_enough(lent)
    asked = np.zeros(len(lent.fill), dtype=bool)
    asked[list(numbers)] = True
    return {
        "fill": np.where(asked, lent.fill, 0.0).tolist(),
        "counts": np.where(asked, lent.counts, 0).tolist(),
        "levels": {name: dict(levels) for name, levels in lent.levels.items() if name in categories},
    }


def read_lent(told: Mapping[str, Any]) -> Lent:
    return Lent(np.array(told["fill"], dtype=float), np.array(told["counts"], dtype=np.int64), told["levels"])


def write_moments(moments: Moments) -> Plain:
    return {"count": moments.count.tolist(), "total": moments.total.tolist(), "squares": moments.squares.tolist()}


def read_moments(told: Mapping[str, Any]) -> Moments:
    count = np.array(told["count"], dtype=np.int64)
    return Moments(count, np.array(told["total"], dtype=float), np.array(told["squares"], dtype=float))


def write_common(common: Common) -> Plain:
    scale = None if common.scale is None else [part.tolist() for part in common.scale]
    return {"fill": common.fill.tolist(), "level": dict(common.level), "scale": scale}


def read_common(told: Mapping[str, Any]) -> Common:
    scale = told["scale"]
    return Common(
        np.array(told["fill"], dtype=float),
        dict(told["level"]),
        None if scale is None else (np.array(scale[0], dtype=float), np.array(scale[1], dtype=float)),
    )
