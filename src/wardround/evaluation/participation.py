"""Who took part in a run across hospitals: invited, came, trained in how many rounds, scored."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.core.notices import Notice


def participation(
    invited: Sequence[str],
    came: Collection[str],
    scored: Collection[str],
    why: Mapping[str, str],
    records: pd.DataFrame,
) -> dict[str, dict[str, Any]]:
    """By hospital, in the order of the invitation. `rounds` in which its work counted, `of` those that asked for it,
    over all arms and seeds. `why` it was not there, where that is known."""
    counted, dropped = (_often(records, name) for name in ("sites", "dropped"))
    return {
        site: {
            "came": site in came,
            "rounds": counted.get(site, 0),
            "of": counted.get(site, 0) + dropped.get(site, 0),
            "scored": site in scored,
            "why": why.get(site),
        }
        for site in invited
    }


def was_there(entry: Mapping[str, Any]) -> bool:
    """Whether a hospital took part in all that it was asked for."""
    return bool(entry["came"] and entry["scored"] and entry["rounds"] == entry["of"])


def not_finite(records: pd.DataFrame) -> list[Notice]:
    """One for each hospital and arm with updates that were not finite, and counted for nothing."""
    if "not_finite" not in records:
        return []
    refused = records[["arm", "not_finite"]].explode("not_finite").dropna()
    return [
        Notice("update-not-finite", "warning", site, counts={"rounds": int(rounds)}, arm=arm)
        for site, arm, rounds in refused.groupby(["not_finite", "arm"]).size().reset_index(name="rounds").to_numpy()
    ]


def _often(records: pd.DataFrame, name: str) -> dict[str, int]:
    if name not in records:
        return {}
    return {str(site): int(rounds) for site, rounds in records[name].explode().dropna().value_counts().items()}
