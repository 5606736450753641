"""Who took part in a run across hospitals: invited, joined, trained in how many rounds, scored."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.core.notices import Notice


def participation(
    invited: Sequence[str],
    joined: Collection[str],
    scored: Collection[str],
    reasons: Mapping[str, str],
    records: pd.DataFrame,
) -> dict[str, dict[str, Any]]:
    """By hospital, in the order of the invitation: `rounds` in which its work counted, `of` those that requested it,
    over all arms and seeds; the `reason` for its absence, where that is known."""
    counted, dropped = (_often(records, name) for name in ("sites", "dropped"))
    return {
        site: {
            "joined": site in joined,
            "rounds": counted.get(site, 0),
            "of": counted.get(site, 0) + dropped.get(site, 0),
            "scored": site in scored,
            "reason": reasons.get(site),
        }
        for site in invited
    }


def was_there(entry: Mapping[str, Any]) -> bool:
    """Whether a hospital took part in every round that was requested, and is scored."""
    return bool(entry["joined"] and entry["scored"] and entry["rounds"] == entry["of"])


def not_finite(records: pd.DataFrame) -> list[Notice]:
    """One for each hospital and arm with updates that were not finite, and counted for nothing."""
    refused = records[["arm", "not_finite"]].explode("not_finite").dropna()
    return [
        Notice("update-not-finite", "warning", site, counts={"rounds": int(rounds)}, arm=arm)
        for site, arm, rounds in refused.groupby(["not_finite", "arm"]).size().reset_index(name="rounds").to_numpy()
    ]


def _often(records: pd.DataFrame, name: str) -> dict[str, int]:
    return {str(site): int(rounds) for site, rounds in records[name].explode().dropna().value_counts().items()}
