"""Sentences on hospitals that count the same, however many patients each has."""

from typing import Any

from wardround.evaluation.compare import in_words
from wardround.report.evidence import Evidence
from wardround.report.table import listed


def across_words(evidence: Evidence) -> list[str]:
    """For each federated arm: the mean over sites against training alone and against the reference."""
    made = []
    for name in evidence.federated:
        for kind, rival in (("alone", "training alone"), ("reference", str(evidence.reference))):
            entries = evidence.across(name, kind)
            mean = next((entry for entry in entries if entry["site"] is None), None)
            if mean is not None and mean["difference"] is not None:
                made.append(_sentence(evidence, name, rival, mean, _at_sites(evidence, name, kind)))
    return made


def _sentence(evidence: Evidence, name: str, rival: str, mean: dict[str, Any], sites: list[dict[str, Any]]) -> str:
    metric = evidence.headline.metric
    said = f"On average over sites, {name} differs from {rival} by {in_words(mean['difference'], metric)}"
    if mean["interval"] is None:
        return f"{said}; one seed cannot tell whether that is chance."
    low, high = (in_words(limit, metric, False) for limit in mean["interval"])
    said += f" (95 % interval {low} to {high}): {VERDICTS[mean['verdict']]}."
    return said + (_why(evidence, sites) if mean["difference"] < 0 else "")


VERDICTS = {
    "gains": "better than chance explains",
    "loses": "worse than chance explains",
    "no evidence": "no evidence of a difference",
    "cannot be told": "it cannot be told",
}


def _why(evidence: Evidence, sites: list[dict[str, Any]]) -> str:
    """Where an arm is behind, who pulls it down: those sites, how far, and with how many training rows."""
    known = [entry for entry in sites if entry["difference"] is not None]
    lower = sorted((entry for entry in known if entry["difference"] < 0), key=lambda entry: entry["difference"])
    if not lower:
        return ""
    counts = evidence.results["sites"][0]["sites"]

    def told(entry: dict[str, Any]) -> str:
        rows = counts.get(entry["site"], {}).get("train")
        size = f", {rows} training rows" if rows is not None else ""
        return f"{entry['site']} ({in_words(entry['difference'], evidence.headline.metric)}{size})"

    higher = [entry["site"] for entry in known if entry["difference"] > 0]
    rest = f"; {listed(higher)} {'is' if len(higher) == 1 else 'are'} above" if higher else ""
    return f" It is below at {listed([told(entry) for entry in lower])}{rest}."


def _at_sites(evidence: Evidence, name: str, kind: str) -> list[dict[str, Any]]:
    if kind == "alone":
        return [entry for entry in evidence.benefit() if entry["arm"] == name]
    return [entry for entry in evidence.across(name, kind) if entry["site"] is not None]
