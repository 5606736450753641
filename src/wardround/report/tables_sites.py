"""Tables of the hospitals one by one: what each got, alone, together, and from the others."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.differences import RULE
from wardround.report.evidence import Evidence
from wardround.report.headline import HEADLINES, Headline, headline_of
from wardround.report.table import (
    Format,
    Table,
    decimals,
    limits,
    make_table,
    p_text,
    percent,
    share_limits,
    without_empty,
)


def hospital_table(evidence: Evidence) -> Table | None:
    if len(evidence.sites) > 30:
        return None
    headline = evidence.headline
    rows = [
        [name, *(x for s in evidence.sites for x in mean_sd(arm["sites"].get(s, {}).get(headline.metric)))]
        for name, arm in evidence.arms.items()
    ]
    columns: dict[str, Format | None] = {"arm": None}
    for site in evidence.sites:
        columns |= {headline.above(site): headline.shown, f"SD, {site}": headline.shown}
    made = make_table("hospitals", f"{headline.title} at each site", columns, rows, "Each site's own test rows.")
    return without_empty(made) if evidence.of_images else made


def schema_table(evidence: Evidence) -> Table | None:
    """Which columns each hospital records, where they are not the same everywhere."""
    columns = (evidence.results.get("columns") or {}).get("distributions", {})
    sites = list(dict.fromkeys(site for found in columns.values() for site in found["sites"]))
    there = {name: [_recorded(found["sites"].get(site)) for site in sites] for name, found in columns.items()}
    if not any(share == 0 for shares in there.values() for share in shares):
        return None
    rows = [[name, *shares] for name, shares in there.items()]
    note = "Per cent of a site's rows that have a value; an empty cell stands for so few that they are not told."
    formats: dict[str, Format | None] = {"column": None, **dict.fromkeys(sites, _share_or_never)}
    return make_table("schemas", "Which columns each site records", formats, rows, note)


def _recorded(found: Mapping[str, Any] | None) -> float | None:
    return None if found is None or found["missing"] is None else 1 - found["missing"]


def _share_or_never(share: float) -> str:
    return "never" if share == 0 else percent(share)


def mean_sd(found: Mapping[str, Any] | None) -> list[Any]:
    return [found["mean"], found["sd"]] if found else [None, None]


def spread_table(evidence: Evidence) -> Table | None:
    headline = evidence.headline
    rows = []
    for name, arm in evidence.arms.items():
        means = {site: found[headline.metric]["mean"] for site, found in arm["sites"].items()}
        known = {site: mean for site, mean in means.items() if mean is not None}
        if known:
            worst, best = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            ends = [f"{site} ({headline.shown(known[site])})" for site in (worst, best)]
            sd = float(np.std(list(known.values()), ddof=1)) if len(known) > 1 else None
            rows.append([name, sd, known[best] - known[worst], *ends])
    columns = {"arm": None, "SD over sites": percent, "highest - lowest": percent, "lowest": None, "highest": None}
    note = f"Of the sites' means of {headline.word}, in points: hundredths."
    return make_table("spread", "How evenly the sites are served", columns, rows, note)


def difference_columns(headline: Headline) -> dict[str, Format | None]:
    """A difference and its interval."""
    return {headline.points: headline.difference, "from": headline.difference, "to": headline.difference}


def corrected(evidence: Evidence) -> str:
    """What the intervals, p-values and verdicts of one table have in common with those of all others."""
    counts = {entry["comparisons"] for entry in (*evidence.tests(), *evidence.benefit())}
    count = max(counts, default=1)
    if count <= 1:
        return "95 % CI."
    return f"95 % CI, p-value and verdict are corrected for all {count} comparisons that this report shows ({RULE})."


def benefit_table(evidence: Evidence) -> Table:
    rows = [
        [
            entry["arm"],
            entry["site"],
            entry["difference"],
            *limits(entry["interval"]),
            entry["p_value"],
            entry["verdict"],
        ]
        for entry in evidence.benefit()
    ]
    headline = evidence.headline
    columns: dict[str, Format | None] = {"arm": None, "site": None, **difference_columns(headline)}
    columns |= {"p": p_text, "verdict": None}
    paired = "paired over seeds" if evidence.seeds != 1 else "on the same test rows"
    note = f"{headline.title} against the same site training alone, {paired}. {corrected(evidence)}{headline.point}"
    return make_table("benefit", "What joining changed for each site", columns, rows, note)


def across_table(evidence: Evidence) -> Table | None:
    """Each hospital counts the same here, however many rows it has."""
    headline = evidence.headline
    rows = []
    for name, arm in evidence.arms.items():
        mean = arm["within_sites"].get(headline.metric)
        if mean is None or mean["mean"] is None or len(arm["sites"]) < 2:
            continue
        line: list[Any] = [name, mean["mean"], *share_limits(mean["interval"])]
        for kind in ("alone", "reference"):
            entry = next((e for e in evidence.across(name, kind) if e["site"] is None), None)
            line += [entry["difference"], *limits(entry["interval"])] if entry else [None, None, None]
        rows.append(line)
    reference = evidence.reference or "the reference"
    columns: dict[str, Format | None] = {"arm": None, headline.above("mean over sites"): headline.shown}
    columns |= {"its lower limit": headline.shown, "its upper limit": headline.shown}
    for rival in ("alone", reference):
        columns |= {f"against {rival}": headline.difference}
        columns |= {f"from ({rival})": headline.difference, f"to ({rival})": headline.difference}
    note = f"Each site counts the same. Differences are paired. {corrected(evidence)}{headline.point}"
    return without_empty(make_table("across-sites", "On average over sites", columns, rows, note))


def reference_table(evidence: Evidence) -> Table | None:
    """Each hospital against the reference; against training alone it stands in `benefit`."""
    entries = [e for name in evidence.arms for e in evidence.across(name, "reference") if e["site"] is not None]
    rows = [[e["arm"], e["site"], e["difference"], *limits(e["interval"]), e["p_value"], e["verdict"]] for e in entries]
    columns: dict[str, Format | None] = {"arm": None, "site": None, **difference_columns(evidence.headline)}
    columns |= {"p": p_text, "verdict": None}
    title = f"Each site under each arm against {evidence.reference}"
    note = f"{evidence.headline.title} on each site's own test rows, paired. {corrected(evidence)}"
    note += evidence.headline.point
    return make_table("against-reference", title, columns, rows, note)


def best_single_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["best_single"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    rows = []
    for entry in entries:
        rows.append(
            [
                entry["arm"],
                entry["site"],
                entry["best"],
                entry[f"best_{entry['metric']}"],
                entry["difference"],
                *limits(entry["interval"]),
                entry["verdict"],
            ]
        )
    columns = {
        "arm": None,
        "site": None,
        "best single model from": None,
        headline.above(f"its {headline.word}"): headline.shown,
        **difference_columns(headline),
        "verdict": None,
    }
    note = f"The best model that one hospital alone could have trained, picked by its test {headline.word} there. "
    note += f"95 % CI, corrected for the {entries[0]['comparisons']} rows of this table."
    return make_table("best-single", "Against the best single-hospital model", columns, rows, note)


def external_table(evidence: Evidence) -> Table | None:
    headline = evidence.headline
    other = "auc" if headline.metric == "accuracy" else "accuracy"
    rows = []
    for arm in evidence.partial.values():
        outside = [site for site in arm["sites"] if site not in arm["train_at"]]
        if len(outside) == 1:
            found = arm["sites"][outside[0]]
            main = found[headline.metric]
            figures = [main["mean"], *share_limits(main["interval"]), found[other]["mean"]]
            own = evidence.arms[evidence.local]["sites"].get(outside[0]) if evidence.local else None
            rows.append([outside[0], arm["algorithm"]["name"], *figures, mean_sd(own and own[headline.metric])[0]])
    shown = headline.shown
    columns: dict[str, Format | None] = {"left out": None, "algorithm": None, headline.above(): shown}
    columns |= {"from": shown, "to": shown, HEADLINES[other].word: decimals, headline.above("its own model"): shown}
    note = "Trained by all other hospitals, tested at the one that took no part; beside it, its own model."
    return make_table("external", "A hospital left out, as an external test", columns, rows, note)


def number_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    rows = []
    for entry in entries:
        inside, outside = entry["inside"] or {}, entry["outside"] or {}
        rows.append(
            [
                entry["algorithm"],
                entry["sites"],
                entry["combinations"],
                inside.get("mean"),
                *share_limits(inside.get("interval")),
                outside.get("mean"),
                *share_limits(outside.get("interval")),
            ]
        )
    shown = headline.shown
    columns: dict[str, Format | None] = {"algorithm": None, "hospitals": str, "combinations": str}
    columns |= {headline.above("taking part"): shown, "from": shown, "to": shown}
    columns |= {headline.above("outside"): shown, "from ": shown, "to ": shown}
    return make_table("number-of-sites", f"{headline.title} against the number of hospitals", columns, rows)
