"""Which of the invited hospitals were not there: the first thing to know about a run across hospitals."""

from collections.abc import Mapping
from typing import Any

from wardround.evaluation.participation import was_there

MOST_NAMED = 12  # hospitals; the table of results has all


def participation_words(results: Mapping[str, Any]) -> str | None:
    """None where everybody took part in everything, and in a simulation."""
    invited: Mapping[str, Mapping[str, Any]] = results.get("participation") or {}
    missing = {site: entry for site, entry in invited.items() if not was_there(entry)}
    if not missing:
        return None
    named = [_of_one(site, entry) for site, entry in list(missing.items())[:MOST_NAMED]]
    if len(missing) > MOST_NAMED:
        named.append(f"and {len(missing) - MOST_NAMED} more")
    here = len(invited) - len(missing)
    whole = f"{here} of {len(invited)} invited hospitals were there throughout"
    return f"Not everybody took part: {whole}. {'; '.join(named)}."


def _of_one(site: str, entry: Mapping[str, Any]) -> str:
    why = f" ({entry['why']})" if entry["why"] else ""
    if not entry["came"]:
        return f"{site} did not take part{why}"
    parts = []
    if entry["rounds"] < entry["of"]:
        parts.append(f"its work counted in {entry['rounds']} of {entry['of']} rounds over all arms and seeds")
    if not entry["scored"]:
        parts.append("none of its patients are in the figures")
    return f"{site}: {' and '.join(parts)}{why}"
