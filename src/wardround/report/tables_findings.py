"""Tables of findings, where a row may have several: each finding by itself, at its operating point, and at each site.

Where fewer than FEWEST test rows have a finding, what counts them is withheld: the counts, and the shares of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.report.evidence import Evidence, rows_of
from wardround.report.table import (
    FEWEST,
    Format,
    Table,
    count_or_few,
    count_text,
    decimals,
    make_table,
    percent,
    share_limits,
)

MOST_SITES = 30
WITHHELD = f"Where fewer than {FEWEST} test rows have a finding, the count and what counts them are withheld."
CELLS = {"TP": "tp", "FP": "fp", "FN": "fn", "TN": "tn"}


def finding_table(evidence: Evidence) -> Table | None:
    """Of the arm that is shown in detail."""
    if not evidence.findings:
        return None
    return _figures(evidence, "findings", f"Each finding, {evidence.main_arm}", [evidence.main_arm])


def all_findings_table(evidence: Evidence) -> Table | None:
    return _figures(evidence, "findings-of-all-arms", "Each finding, every arm", list(_with_findings(evidence)))


def confusion_table(evidence: Evidence) -> Table | None:
    if not evidence.findings:
        return None
    title = f"Right and wrong calls of each finding, {evidence.main_arm}"
    return _confusion(evidence, "confusion", title, [evidence.main_arm])


def all_confusion_table(evidence: Evidence) -> Table | None:
    title = "Right and wrong calls of each finding, every arm"
    return _confusion(evidence, "confusion-of-all-arms", title, list(_with_findings(evidence)))


def findings_at_sites_table(evidence: Evidence) -> Table | None:
    if not evidence.findings:
        return None
    title = f"AUC of each finding at each site, {evidence.main_arm}"
    return _at_sites(evidence, "findings-at-sites", title, [evidence.main_arm])


def all_findings_at_sites_table(evidence: Evidence) -> Table | None:
    title = "AUC of each finding at each site, every arm"
    return _at_sites(evidence, "findings-at-sites-of-all-arms", title, list(_with_findings(evidence)))


def prevalence_table(evidence: Evidence) -> Table | None:
    """How common each finding is at each site."""
    described = evidence.results["sites"][0]["sites"]
    if not evidence.findings or len(described) > MOST_SITES:
        return None
    rows: list[list[Any]] = []
    for finding in evidence.classes:
        counts = {site: counts["classes"][finding] for site, counts in described.items()}
        shares = [
            None if count is None or 0 < count < FEWEST else count / rows_of(described[site])
            for site, count in counts.items()
        ]
        rows.append([finding, *shares])
    columns: dict[str, Format | None] = {"finding": None} | {f"{site}, %": percent for site in described}
    note = f"Share of a site's rows that have it, with the first seed; withheld where fewer than {FEWEST} have it."
    return make_table("prevalence", "How common each finding is", columns, rows, note)


def _with_findings(evidence: Evidence) -> dict[str, Any]:
    return {name: arm for name, arm in evidence.arms.items() if arm.get("findings")}


def _figures(evidence: Evidence, name: str, title: str, arms: Sequence[str]) -> Table:
    rows = []
    for arm in arms:
        for finding, found in evidence.arms[arm]["findings"].items():
            figures = {metric: value["mean"] for metric, value in found["metrics"].items()}
            if is_small(found):
                figures |= dict.fromkeys(("f1", "sensitivity", "specificity"))
            rows.append(
                [
                    *([arm] if len(arms) > 1 else []),
                    finding,
                    "withheld" if found["positives"] is None else count_or_few(found["positives"]),
                    figures["auc"],
                    *share_limits(found["metrics"]["auc"]["interval"]),
                    *(figures[metric] for metric in ("pr_auc", "f1", "brier", "sensitivity", "specificity")),
                    found["threshold"]["mean"],
                ]
            )
    columns: dict[str, Format | None] = {"arm": None} if len(arms) > 1 else {}
    columns |= {"finding": None, "positives": count_text, "AUC": decimals, "from": decimals, "to": decimals}
    columns |= dict.fromkeys(("PR-AUC", "F1", "Brier", "sensitivity", "specificity", "threshold"), decimals)
    return make_table(name, title, columns, rows, f"{_positives(evidence)} {WITHHELD}")


def _confusion(evidence: Evidence, name: str, title: str, arms: Sequence[str]) -> Table:
    rows = []
    for arm in arms:
        for finding, found in evidence.arms[arm]["findings"].items():
            small = is_small(found)
            cells = [None if small else count_or_few(found["confusion"][key]) for key in CELLS.values()]
            rows.append([*([arm] if len(arms) > 1 else []), finding, found["threshold"]["mean"], *cells])
    columns: dict[str, Format | None] = {"arm": None} if len(arms) > 1 else {}
    columns |= {"finding": None, "called from": decimals, **dict.fromkeys(CELLS, count_text)}
    note = (
        "Test rows, of one seed on average. TP and FN: rows that have the finding, called and missed; "
        f"FP and TN: rows that have it not, called and left alone. {WITHHELD}"
    )
    return make_table(name, title, columns, rows, note)


def _at_sites(evidence: Evidence, name: str, title: str, arms: Sequence[str]) -> Table | None:
    if len(evidence.sites) > MOST_SITES:
        return None
    rows = []
    for arm in arms:
        for finding, found in evidence.arms[arm]["findings"].items():
            figures = [auc_at(found, site) for site in evidence.sites]
            rows.append([*([arm] if len(arms) > 1 else []), finding, *figures])
    columns: dict[str, Format | None] = {"arm": None} if len(arms) > 1 else {}
    columns |= {"finding": None, **dict.fromkeys(evidence.sites, decimals)}
    note = f"Each site's own test rows; withheld where fewer than {FEWEST} of them have the finding."
    return make_table(name, title, columns, rows, note)


def auc_at(found: Mapping[str, Any], site: str) -> float | None:
    """Of a finding at a site; None where so few of its test rows have it that they could be told apart."""
    there = found["sites"].get(site)
    if there is None or there["positives"] is None or there["positives"] < FEWEST:
        return None
    value: float | None = there["metrics"]["auc"]["mean"]
    return value


def is_small(found: Mapping[str, Any]) -> bool:
    """Also where hospitals have withheld how many there are."""
    return found["positives"] is None or bool(0 < found["positives"] < FEWEST)


def _positives(evidence: Evidence) -> str:
    average = "" if evidence.seeds == 1 else ", on average over seeds"
    return f"Positives: test rows that have the finding{average}. AUC with its 95 % interval."
