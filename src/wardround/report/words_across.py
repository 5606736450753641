"""Sentences on hospitals that count the same, however many patients each has."""

from typing import Any

from wardround.evaluation.comparisons.compare import in_words, interval_words, why_unknown
from wardround.report.evidence import Evidence
from wardround.report.table import listed

MOST = 6  # arms with a sentence of their own; the table has them all


def across_words(evidence: Evidence) -> list[str]:
    """Federated arms against training alone on average over sites: who is at least as good, and why others are not."""
    means = {}
    for name in evidence.federated:
        entry = next((e for e in evidence.across(name, "alone") if e["site"] is None), None)
        if entry is not None and entry["difference"] is not None:
            means[name] = entry
    sign = evidence.headline.sign
    ahead = [f"{name} ({_told(evidence, entry)})" for name, entry in means.items() if sign * entry["difference"] >= 0]
    behind = {name: entry for name, entry in means.items() if sign * entry["difference"] < 0}
    made = []
    if ahead:
        who = listed(ahead)
        made.append(f"On average over sites, each counting the same, the difference from training alone: {who}.")
    made += [_behind(evidence, name, entry) for name, entry in list(behind.items())[:MOST]]
    if len(behind) > MOST:
        made.append(f"Behind training alone are also {listed(list(behind)[MOST:])}; the table says by how much.")
    return made


def _told(evidence: Evidence, entry: dict[str, Any]) -> str:
    difference = _points(evidence, entry["difference"])
    if entry["interval"] is None:
        return f"{difference}; {why_unknown(entry)}"
    return f"{difference}, {interval_words(entry)}"


def _points(evidence: Evidence, difference: float) -> str:
    """A difference that is not 0 is not told as 0.0."""
    told = in_words(difference, evidence.headline.metric)
    nothing = in_words(0.0, evidence.headline.metric)
    return told if difference == 0 or told != nothing else f"less than {in_words(0.001, evidence.headline.metric)[1:]}"


def _behind(evidence: Evidence, name: str, entry: dict[str, Any]) -> str:
    """Who pulls it down: those sites, how far, and with how many training rows."""
    chance = {"loses": "more than chance explains", "no evidence": "no more than chance explains"}
    verdict = f": {chance[entry['verdict']]}" if entry["verdict"] in chance else ""
    said = f"On average over sites, {name} is behind training alone ({_told(evidence, entry)}){verdict}."
    sites = [one for one in evidence.benefit() if one["arm"] == name and one["difference"] is not None]
    sign = evidence.headline.sign
    lower = sorted((e for e in sites if sign * e["difference"] < 0), key=lambda e: sign * e["difference"])
    if not lower:
        return said
    counts = evidence.results["sites"][0]["sites"]

    def told(one: dict[str, Any]) -> str:
        rows = counts.get(one["site"], {}).get("train")
        size = f", {rows} training rows" if rows is not None else ""
        return f"{one['site']} ({_points(evidence, one['difference'])}{size})"

    above = [one["site"] for one in sites if sign * one["difference"] > 0]
    rest = f", above at {listed(above)}" if above else ""
    return f"{said} Its mean is below at {listed([told(one) for one in lower])}{rest}."
