"""Findings, of which a row may have several: each by itself, at its operating point, and at each site.

Where fewer than FEWEST test rows have a finding, what counts them is withheld: the counts, and the shares of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence, rows_of
from wardround.report.render.figures import Drawing
from wardround.report.render.overlays import Overlay, sheet
from wardround.report.render.style import (
    MARKERS,
    bar,
    heat,
    legend,
    looks,
    name_rows,
    offset,
    single_axes,
)
from wardround.report.render.table import (
    CI,
    FEWEST,
    Format,
    Table,
    count_or_few,
    count_text,
    decimals,
    listed,
    make_table,
    percent,
)
from wardround.report.section import Section
from wardround.study.schema import CHOSEN

MOST_DRAWN = 16  # sites
WITHHELD = f"Where fewer than {FEWEST} test rows have a finding, the count and what counts them are withheld."
CELLS = {"TP": "tp", "FP": "fp", "FN": "fn", "TN": "tn"}


def finding_sentences(evidence: Evidence) -> list[str]:
    sentences = [*left_out_sentences(evidence), *_averages_at_sites(evidence), *_thresholds(evidence)]
    if evidence.reference not in evidence.arms:
        detailed = evidence.main_arm
        sentences.append(f"The study names no reference; shown in detail is {detailed}, the highest in AUC.")
    return sentences


def left_out_sentences(evidence: Evidence) -> list[str]:
    """Which findings averages are without, and why."""
    lacking = grouped((tuple(arm["left_out"]), name) for name, arm in evidence.arms.items() if arm.get("left_out"))
    sentences = []
    for findings, arms in lacking.items():
        where = "" if len(arms) == len(evidence.arms) else f" under {listed(arms)}"
        why = f"no test row has {'it' if len(findings) == 1 else 'them'}"
        if evidence.deployed:
            smallest = evidence.deployment.smallest_cell
            why += f", or fewer than {smallest} patients of each hospital, which then does not tell"
        sentences.append(f"Left out of every average over findings{where}, because {why}: {listed(findings)}.")
    return sentences


def _averages_at_sites(evidence: Evidence) -> list[str]:
    """At a site, averages are over the findings that its own test rows have."""
    arm = evidence.arms[evidence.main_arm]
    described = [entry for name, entry in arm["findings"].items() if name not in arm["left_out"]]
    counts = {
        site: sum(bool(entry["sites"].get(site, {}).get("positives")) for entry in described) for site in arm["sites"]
    }
    short = [f"{site} {count} of {len(described)}" for site, count in counts.items() if count < len(described)]
    if not short:
        return []
    which = "of which it tells by class" if evidence.deployed else "that its test rows have"
    return [
        f"At a site, the average is over the findings {which}, so that sites with different ones cannot be compared "
        f"with each other: {listed(short)}."
    ]


def _thresholds(evidence: Evidence) -> list[str]:
    fixed = evidence.study.get("evaluation", {}).get("threshold", CHOSEN)
    if fixed != CHOSEN:
        return [f"Every finding is called from a score of {fixed:g} on, as the study says."]
    sound = [arm for name, arm in evidence.arms.items() if evidence.figure(name)["mean"] is not None]  # not diverged
    without = [
        name for name in evidence.findings if not all(arm["findings"][name]["threshold"]["chosen"] for arm in sound)
    ]
    if evidence.deployed:  # each hospital chooses for itself, and keeps the threshold
        some = f" (at some hospital: {listed(without)})" if without else ""
        return [
            "Each hospital calls a finding from the score on that gives the best F1 on its own validation rows, for "
            "each arm and seed, and keeps that score to itself. Where fewer than "
            f"{evidence.deployment.smallest_cell} of these patients have the finding, it is called from 0.5 on{some}.",
            "ROC and precision-recall curves are drawn from histograms of the hospitals' scores, and are not exact.",
        ]
    rule = "A finding is called from the score on that gives the best F1 on validation rows, for each arm and seed"
    if not without:
        return [f"{rule}."]
    if len(without) == len(evidence.findings):
        return ["Thresholds were not chosen, for want of validation rows: every finding is called from a score of 0.5."]
    return [f"{rule}; from 0.5 on where no validation row has it: {listed(without)}."]


def prevalence_table(evidence: Evidence) -> Table:
    described = evidence.site_counts
    rows = [[name, *(_share(counts, name) for counts in described.values())] for name in evidence.classes]
    return make_table(
        "prevalence",
        "How common each finding is",
        {"finding": None, **{f"{site}, %": percent for site in described}},
        rows,
        f"Share of a site's rows that have it, with the first seed; withheld where fewer than {FEWEST} have it.",
    )


def _share(counts: Mapping[str, Any], finding: str, scale: int = 1) -> float | None:
    count: int | None = counts["classes"][finding]
    return None if count is None or 0 < count < FEWEST else scale * count / rows_of(counts)


def _entries(evidence: Evidence, all_arms: bool) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Each finding in the arm that is shown in detail, or in all: the first cells of its row, and its figures."""
    return [
        ([arm, finding] if all_arms else [finding], entry)
        for arm in (evidence.arms if all_arms else [evidence.main_arm])
        for finding, entry in evidence.arms[arm]["findings"].items()
    ]


def _table(
    name: str, title: str, evidence: Evidence, all_arms: bool, columns: Mapping[str, Format], rows: list[Any], note: str
) -> Table:
    first: dict[str, Format | None] = {"arm": None, "finding": None} if all_arms else {"finding": None}
    suffix, of = ("-of-all-arms", "every arm") if all_arms else ("", evidence.main_arm)
    return make_table(f"{name}{suffix}", f"{title}, {of}", {**first, **columns}, rows, note)


def finding_table(evidence: Evidence, all_arms: bool = False) -> Table:
    rows = []
    for names, entry in _entries(evidence, all_arms):
        figures = {metric: value["mean"] for metric, value in entry["metrics"].items()}
        if is_small(entry):
            figures |= dict.fromkeys(("f1", "sensitivity", "specificity"))
        positives = "withheld" if entry["positives"] is None else count_or_few(entry["positives"])
        ranked = [figures["auc"], *evidence.headline_for("auc").limits(entry["metrics"]["auc"]["interval"])]
        others = [figures[metric] for metric in ("pr_auc", "f1", "brier", "sensitivity", "specificity")]
        rows.append([*names, positives, *ranked, *others, entry["threshold"]["mean"]])
    numbers = ("AUC", *CI, "PR-AUC", "F1", "Brier", "sensitivity", "specificity", "threshold")
    columns = {"positives": count_text, **dict.fromkeys(numbers, decimals)}
    average = "" if evidence.seeds == 1 else ", on average over seeds"
    note = f"Positives: test rows that have the finding{average}. AUC with its 95 % CI. {WITHHELD}"
    return _table("findings", "Each finding", evidence, all_arms, columns, rows, note)


def confusion_table(evidence: Evidence, all_arms: bool = False) -> Table:
    rows = []
    for names, entry in _entries(evidence, all_arms):
        cells = [None if is_small(entry) else count_or_few(entry["confusion"][key]) for key in CELLS.values()]
        rows.append([*names, entry["threshold"]["mean"], *cells])
    columns = {"called from": decimals, **dict.fromkeys(CELLS, count_text)}
    note = (
        "Test rows, of one seed on average. TP and FN: rows that have the finding, called and missed; "
        f"FP and TN: rows that have it not, called and left alone. {WITHHELD}"
    )
    return _table("confusion", "Right and wrong calls of each finding", evidence, all_arms, columns, rows, note)


def findings_at_sites_table(evidence: Evidence, all_arms: bool = False) -> Table:
    entries = _entries(evidence, all_arms)
    rows = [[*names, *(auc_at(entry, site) for site in evidence.sites)] for names, entry in entries]
    columns = dict.fromkeys(evidence.sites, decimals)
    note = f"Each site's own test rows; withheld where fewer than {FEWEST} of them have the finding."
    return _table("findings-at-sites", "AUC of each finding at each site", evidence, all_arms, columns, rows, note)


def auc_at(entry: Mapping[str, Any], site: str) -> float | None:
    """Of a finding at a site; None where so few of its test rows have it that they could be told apart."""
    there = entry["sites"].get(site)
    if there is None or there["positives"] is None or there["positives"] < FEWEST:
        return None
    value: float | None = there["metrics"]["auc"]["mean"]
    return value


def is_small(entry: Mapping[str, Any]) -> bool:
    """Also where hospitals have withheld how many there are."""
    return entry["positives"] is None or bool(0 < entry["positives"] < FEWEST)


def auc_by_finding(evidence: Evidence) -> Figure:
    arms, names = evidence.few_arms, ["mean of all", *evidence.findings]
    drawn, axes = single_axes(0.9 + len(names) * max(0.26, 0.11 * len(arms)))
    headline = evidence.headline_for("auc")
    axes.axvline(0.5, color="grey", linewidth=0.8)
    axes.axhline(0.5, color="grey", linewidth=0.6)
    for number, arm in enumerate(arms):
        entry, aside = evidence.arms[arm], offset(number, len(arms), 0.76)
        figures = [entry["metrics"], *(entry["findings"][name]["metrics"] for name in evidence.findings)]
        colour, mark = looks(evidence, arm)["color"], MARKERS[number % len(MARKERS)]
        for place, metrics in enumerate(figures):
            label = arm if place == 0 else None
            told = f"{arm}, {names[place]}"
            bar(axes, metrics["auc"], place + aside, headline, colour, mark, label, thin=True, told=told)
    name_rows(axes, [name.replace("_", " ") for name in names])
    axes.set_xlabel("AUC on all sites' test rows, with 95 % CI; 0.5: a coin")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def prevalence(evidence: Evidence) -> Figure | None:
    """How common each finding is at each site."""
    described = evidence.site_counts
    shares = [[_share(counts, name, 100) for counts in described.values()] for name in evidence.classes]
    values = np.array(shares, dtype=float)
    return _finding_map(evidence, values, "{:.1f}", evidence.classes, list(described), "% of the site's rows")


def findings_at_sites(evidence: Evidence) -> Figure | None:
    described = evidence.arms[evidence.main_arm]["findings"]
    figures = [[auc_at(entry, site) for site in evidence.sites] for entry in described.values()]
    values = np.array(figures, dtype=float)
    if len(evidence.sites) < 2 or np.isnan(values).all():
        return None
    return _finding_map(evidence, values, "{:.2f}", list(described), evidence.sites, "AUC")


def _finding_map(
    evidence: Evidence, values: np.ndarray, shown: str, findings: list[str], sites: list[str], label: str
) -> Figure | None:
    if len(sites) > MOST_DRAWN:
        return None
    drawn, axes = single_axes(1.0 + 0.24 * len(values))
    names = [name.replace("_", " ") for name in findings]
    # across hospitals each of them says from how many rows on it tells
    none = "withheld" if evidence.deployed else f"< {FEWEST}"
    image = heat(axes, values, shown.format, names, sites, none=none)
    drawn.colorbar(image, ax=axes, label=label)
    return drawn


def wrong_calls(evidence: Evidence) -> Figure | None:
    """Each with where the model looks, false positives first."""
    calls = evidence.wrong_calls
    if not len(calls.get("images", ())):
        return None
    overlays = [
        Overlay(
            calls["images"][number],
            calls["heat"][number],
            f"{calls['kind'][number]}: {str(calls['finding'][number]).replace('_', ' ')}\n{calls['site'][number]}, "
            f"score {calls['score'][number]:.2f}, called from {calls['threshold'][number]:.2f}",
            boxes=[tuple(box[1:]) for box in calls["boxes"] if box[0] == number],
        )
        for number in range(len(calls["images"]))
    ]
    return sheet(overlays, evidence.synthetic)


PAGE = """
<section id="findings"><h2>Findings</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("auc-by-finding") }}{{ show("findings") }}
{{ draw("roc") }}{{ draw("precision-recall") }}{{ show("confusion") }}
{{ draw("findings-at-sites") }}{{ draw("wrong-calls") }}
{% call fold("Each finding at each site, as a table") %}{{ show("findings-at-sites") }}{% endcall %}
<div class="on-screen">{% call fold("Each finding under every arm") %}
{{ show("findings-of-all-arms") }}{{ show("confusion-of-all-arms") }}{{ show("findings-at-sites-of-all-arms") }}
{% endcall %}</div>
<p class="on-paper meta">Each finding under every arm: in the page on a screen, and in
tables/findings-of-all-arms.csv, confusion-of-all-arms.csv and findings-at-sites-of-all-arms.csv.</p>
</section>"""
SECTION = Section(
    PAGE,
    "findings",
    "Findings",
    {"sentences": finding_sentences},
    tables=(
        prevalence_table,
        finding_table,
        confusion_table,
        findings_at_sites_table,
        partial(finding_table, all_arms=True),
        partial(confusion_table, all_arms=True),
        partial(findings_at_sites_table, all_arms=True),
    ),
    figures={
        "prevalence": Drawing(
            "How common each finding is at each site",
            f"{{synthetic}}Per cent of the site's rows, with the study's first seed. Below {FEWEST} rows: withheld.",
            prevalence,
        ),
        "auc-by-finding": Drawing(
            "AUC of each finding",
            "With 95 % CI; none where too few test rows have the finding.",
            auc_by_finding,
            tall=True,
        ),
        "findings-at-sites": Drawing(
            "AUC of each finding at each site",
            f"Under {{arm}}, on each site's own test rows. Withheld where fewer than {FEWEST} of them have the "
            "finding.",
            findings_at_sites,
        ),
        "wrong-calls": Drawing(
            "What the model looked at where it was wrong",
            "{synthetic}Under {arm}, with the first seed: test images that are called wrongly, those furthest on the "
            "wrong side of the threshold, one of each finding at most. Maps by integrated gradients, compared with the "
            "mean of the site's training images: what raises the model's score, and not a sign that the place is ill.",
            wrong_calls,
            tall=True,
        ),
    },
)
