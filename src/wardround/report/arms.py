"""What arms have in common and in what they differ, for the titles of panels, lines and rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.report.evidence import Evidence


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def title_of(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`alpha 0.1`; a switch is named where it is on."""
    told = []
    for key in keys:
        value = settings.get(key)
        if value is True:
            told.append(key)
        elif value is not None and value is not False:
            told.append(str(value) if key == "name" else f"{key} {_short(value)}")
    return ", ".join(told)


def partition_title(evidence: Evidence, partition: Mapping[str, Any]) -> str:
    """What is different about sites that were formed so, among all sites of the run."""
    return title_of(partition, differing([described["partition"] for described in evidence.results["sites"]]))


def panel_keys(evidence: Evidence) -> dict[str, list[str]]:
    """In what partition and data of the arms differ: arms that are alike in it share a panel of a figure."""
    arms = evidence.arms.values()
    return {part: differing([arm.get(part) or {} for arm in arms]) for part in ("partition", "data", "stragglers")}


def panel_title(evidence: Evidence, name: str) -> str:
    arm = evidence.arms[name]
    parts = [title_of(arm.get(part) or {}, keys) for part, keys in panel_keys(evidence).items()]
    return ", ".join(part for part in parts if part)


def line_title(evidence: Evidence, name: str) -> str:
    """The arm without what its panel already says: `fedprox[mu=0.1]` for `fedprox[alpha=0.1,mu=0.1]`."""
    keys = [key for part in panel_keys(evidence).values() for key in part]
    family, bracket, rest = name.partition("[")
    settings = rest.removesuffix("]").split(",") if bracket else []
    kept = [setting for setting in settings if setting.partition("=")[0] not in keys]
    return f"{family}[{','.join(kept)}]" if kept else family


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
