"""Findings, of which a row may have several: each by itself, at its operating point, and at each site.

Where fewer than FEWEST test rows have a finding, what counts them is withheld: the counts, and the shares of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from wardround.report.evidence import Evidence, rows_of
from wardround.report.render.figures import Drawing
from wardround.report.render.style import MARKERS, bar, figure, heat, legend, looks, name_rows, small_panels
from wardround.report.render.table import (
    FEWEST,
    Format,
    Table,
    count_or_few,
    count_text,
    decimals,
    listed,
    make_table,
    percent,
    share_limits,
)
from wardround.report.section import Section
from wardround.study.schema import CHOSEN


def finding_sentences(evidence: Evidence) -> list[str]:
    if not evidence.findings:
        return []
    return [
        *left_out_sentences(evidence),
        *_averages_at_sites(evidence),
        *_thresholds(evidence),
        *_shown(evidence),
    ]


def left_out_sentences(evidence: Evidence) -> list[str]:
    """Which findings averages are without, and why."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name, arm in evidence.arms.items():
        if arm.get("left_out"):
            lacking.setdefault(tuple(arm["left_out"]), []).append(name)
    told = []
    for findings, arms in lacking.items():
        where = "" if len(arms) == len(evidence.arms) else f" under {listed(arms)}"
        has = "it" if len(findings) == 1 else "them"
        why = f"no test row has {has}"
        if evidence.deployed:
            few = evidence.deployment.smallest_cell
            why += f", or fewer than {few} patients of each hospital, which then does not tell"
        told.append(f"Left out of every average over findings{where}, because {why}: {listed(findings)}.")
    return told


def _averages_at_sites(evidence: Evidence) -> list[str]:
    """At a site, averages are over the findings that its own test rows have."""
    arm = evidence.arms[evidence.main_arm]
    described = {name: found for name, found in arm["findings"].items() if name not in arm["left_out"]}
    counts = {
        site: sum(bool(found["sites"].get(site, {}).get("positives")) for found in described.values())
        for site in arm["sites"]
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
    given = evidence.study.get("evaluation", {}).get("threshold", CHOSEN)
    if given != CHOSEN:
        return [f"Every finding is called from a score of {given:g} on, as the study says."]
    sound = [arm for name, arm in evidence.arms.items() if evidence.figure(name)["mean"] is not None]  # not diverged
    chosen = {name: all(arm["findings"][name]["threshold"]["chosen"] for arm in sound) for name in evidence.findings}
    without = [name for name, was in chosen.items() if not was]
    if evidence.deployed:
        return _at_hospitals(evidence, without)
    rule = "A finding is called from the score on that gives the best F1 on validation rows, for each arm and seed"
    if not without:
        return [f"{rule}."]
    if len(without) == len(chosen):
        return ["Thresholds were not chosen, for want of validation rows: every finding is called from a score of 0.5."]
    return [f"{rule}; from 0.5 on where no validation row has it: {listed(without)}."]


def _at_hospitals(evidence: Evidence, without: list[str]) -> list[str]:
    """Across hospitals each chooses for itself, and keeps the threshold."""
    some = f" (at some hospital: {listed(without)})" if without else ""
    return [
        "Each hospital calls a finding from the score on that gives the best F1 on its own validation rows, for each "
        "arm and seed, and keeps that score to itself. Where fewer than "
        f"{evidence.deployment.smallest_cell} of these patients have the finding, it is called from 0.5 on{some}.",
        "ROC and precision-recall curves are drawn from histograms of the hospitals' scores, and are not exact.",
    ]


def _shown(evidence: Evidence) -> list[str]:
    if evidence.reference in evidence.arms:
        return []
    return [f"The study names no reference; shown in detail is {evidence.main_arm}, the highest in AUC."]


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


MOST_SITES_DRAWN = 16


ACROSS = 5  # panels


def roc(evidence: Evidence) -> Figure | None:
    drawn = _curves(evidence, "roc", ("fpr", "tpr"), "1 - specificity", "sensitivity")
    if drawn is not None:
        for axes in (axes for axes in drawn.axes if axes.lines):
            axes.plot([0, 1], [0, 1], color="grey", linewidth=0.6, zorder=1)
    return drawn


def precision_recall(evidence: Evidence) -> Figure | None:
    """The grey line: a model that knows nothing has the finding's share of rows as its precision."""
    drawn = _curves(evidence, "pr", ("recall", "precision"), "sensitivity (recall)", "precision")
    if drawn is not None:
        described = evidence.arms[evidence.main_arm]["findings"].values()
        for axes, found in zip(drawn.axes, described, strict=True):
            if found["rows"] and not is_small(found):
                axes.axhline(found["positives"] / found["rows"], color="grey", linewidth=0.6, zorder=1)
    return drawn


def _curves(evidence: Evidence, kind: str, names: tuple[str, str], across: str, up: str) -> Figure | None:
    """A panel for each finding, a line for each of few arms."""
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm].get("findings")]
    findings = evidence.findings
    if not any(evidence.arms[arm]["findings"][name][kind] for arm in arms for name in findings):
        return None
    legends = 0.1 + 0.2 * -(-len(arms) // 4)
    drawn, panels = small_panels(len(findings), min(ACROSS, len(findings)), 1.25, below=legends + 0.2)
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, findings, strict=True):
        axes.set_title(name.replace("_", " "), fontsize=8, pad=3)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator([0, 0.5, 1]))
            axis.set_major_formatter("{x:g}")
        for arm in arms:
            found = evidence.arms[arm]["findings"][name]
            if found[kind] is None or is_small(found):
                continue
            x, y = (found[kind][part] for part in names)
            (handles[arm],) = axes.plot(x, y, linewidth=1.1, color=looks(evidence, arm)["color"])
        if not axes.lines:
            few = any(is_small(evidence.arms[arm]["findings"][name]) for arm in arms)
            why = f"fewer than {FEWEST}\npositive test rows" if few else "no positive\ntest row"
            why = "too few positive\ntest rows, or none" if evidence.deployed else why
            axes.text(0.5, 0.5, why, ha="center", va="center", fontsize=7, color="grey")
    width, height = drawn.get_size_inches()
    drawn.text(0.5, legends / height, across, ha="center", va="bottom", fontsize=9)
    drawn.text(0.08 / width, 0.5, up, rotation=90, ha="left", va="center", fontsize=9)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8, borderpad=0)
    return drawn


def _few(evidence: Evidence) -> str:
    """What stands in a cell that is not shown. Across hospitals each of them says from how many rows on it tells."""
    return "withheld" if evidence.deployed else f"< {FEWEST}"


def auc_by_finding(evidence: Evidence) -> Figure | None:
    """Dots with intervals: a row for each finding and one for their mean, a dot for each of few arms."""
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm].get("findings")]
    if not arms:
        return None
    names = ["mean of all", *evidence.findings]
    drawn = figure(0.9 + len(names) * max(0.26, 0.11 * len(arms)))
    axes = drawn.subplots()
    axes.axvline(0.5, color="grey", linewidth=0.8)
    axes.axhline(0.5, color="grey", linewidth=0.6)
    for number, arm in enumerate(arms):
        offset = (number - (len(arms) - 1) / 2) * 0.76 / len(arms)
        entry = evidence.arms[arm]
        figures = [entry["metrics"], *(entry["findings"][name]["metrics"] for name in evidence.findings)]
        colour, mark = looks(evidence, arm)["color"], MARKERS[number % len(MARKERS)]
        for place, found in enumerate(figures):
            title = arm if place == 0 else None
            bar(axes, found["auc"], place + offset, 1, colour, mark, title, thin=True)
    name_rows(axes, [name.replace("_", " ") for name in names])
    axes.set_xlabel("AUC on all sites' test rows, with 95 % interval; 0.5: a coin")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def prevalence(evidence: Evidence) -> Figure | None:
    """How common each finding is at each site."""
    described = evidence.results["sites"][0]["sites"]
    if not evidence.findings or len(described) > MOST_SITES_DRAWN:
        return None
    values = np.full((len(evidence.classes), len(described)), np.nan)
    for column, counts in enumerate(described.values()):
        for row, name in enumerate(evidence.classes):
            count = counts["classes"][name]
            if count is not None and not 0 < count < FEWEST:
                values[row, column] = 100 * count / rows_of(counts)
    drawn = figure(1.0 + 0.24 * len(values))
    axes = drawn.subplots()
    names = [name.replace("_", " ") for name in evidence.classes]
    image = heat(axes, values, lambda value: f"{value:.1f}", names, list(described), none=_few(evidence))
    drawn.colorbar(image, ax=axes, label="% of the site's rows")
    return drawn


def findings_at_sites(evidence: Evidence) -> Figure | None:
    """AUC of each finding at each site under the arm that is shown in detail."""
    sites = evidence.sites
    if not evidence.findings or not 1 < len(sites) <= MOST_SITES_DRAWN:
        return None
    described = evidence.arms[evidence.main_arm]["findings"]
    figures = [[auc_at(found, site) for site in sites] for found in described.values()]
    values = np.array([[np.nan if v is None else v for v in row] for row in figures], dtype=float)
    if np.isnan(values).all():
        return None
    drawn = figure(1.0 + 0.24 * len(values))
    axes = drawn.subplots()
    names = [name.replace("_", " ") for name in described]
    image = heat(axes, values, lambda value: f"{value:.2f}", names, sites, none=_few(evidence))
    drawn.colorbar(image, ax=axes, label="AUC")
    return drawn


def _values(evidence: Evidence) -> dict[str, Any]:
    return {"sentences": finding_sentences(evidence)}


PAGE = """
<section id="findings"><h2>Findings</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("auc-by-finding") }}{{ show("findings") }}
{{ draw("roc") }}{{ draw("precision-recall") }}{{ show("confusion") }}
{{ draw("findings-at-sites") }}
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
    _values,
    tables=(
        prevalence_table,
        finding_table,
        confusion_table,
        findings_at_sites_table,
        all_findings_table,
        all_confusion_table,
        all_findings_at_sites_table,
    ),
    figures={
        "prevalence": Drawing(
            "How common each finding is at each site",
            f"{{synthetic}}Per cent of the site's rows, with the study's first seed. Below {FEWEST} rows: withheld.",
            prevalence,
        ),
        "auc-by-finding": Drawing(
            "AUC of each finding",
            "With 95 % intervals; none where too few test rows have the finding.",
            auc_by_finding,
            tall=True,
        ),
        "roc": Drawing(
            "ROC curve of each finding",
            "Over all sites' test rows. Grey: a coin.",
            roc,
            deployed="From histograms of the sites' scores on test rows. Grey: a coin.",
            tall=True,
        ),
        "precision-recall": Drawing(
            "Precision-recall curve of each finding",
            "Over all sites' test rows. Grey: how common the finding is, which is what a coin would reach.",
            precision_recall,
            deployed="From histograms of the sites' scores on test rows. Grey: how common the finding is, which is "
            "what a coin would reach.",
            tall=True,
        ),
        "findings-at-sites": Drawing(
            "AUC of each finding at each site",
            f"Under {{arm}}, on each site's own test rows. Withheld where fewer than {FEWEST} of them have the "
            "finding.",
            findings_at_sites,
        ),
    },
)
