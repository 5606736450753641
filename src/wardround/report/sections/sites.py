"""The sites: their rows, classes and columns, and how different they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.arms import partition_title, read_grid
from wardround.report.evidence import STAY, Evidence, rows_of
from wardround.report.phrases import drawn_up_to
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    COLOURS,
    WIDTH,
    name_rows,
    numbered_style,
    offset,
    panel_grid,
    single_axes,
    tell,
)
from wardround.report.render.table import FEWEST, Format, Table, decimals, make_table, one_decimal, percent
from wardround.report.section import Section, compact

MOST_SITES = 20
MOST_ROWS = 60  # sites with a line of their own
MOST_COLUMNS = 16
NAMES_IN_A_LINE = 6  # of a legend
HETEROGENEITY = {
    "js": "Jensen-Shannon divergence of the {labels}",
    "kl": "Kullback-Leibler divergence of the {labels}",
    "mmd": "MMD of the features",
    "gini": "Gini coefficient of the sizes",
}


def site_table(evidence: Evidence) -> Table:
    # the last of a row's findings is that it has none
    positive = evidence.classes[-1] if len(evidence.classes) == 2 or evidence.findings else None
    rows = []
    for described in evidence.results["sites"]:
        title = partition_title(evidence, described["partition"])
        for site, counts in described["sites"].items():
            total = rows_of(counts)
            age = (counts.get("age") or {}) if total >= 2 * FEWEST else {}
            sizes = [total, counts["train"], counts["validation"], counts["test"]]
            rows.append([f"{site} ({title})" if title else site, *sizes, *_outcomes(evidence, counts, positive)])
            rows[-1] += [age.get("mean"), age.get("sd")]
    measured = evidence.results["sites"][0]["heterogeneity"]
    words = {key: text.format(labels=evidence.task.report.labels) for key, text in HETEROGENEITY.items()}
    measures = [f"{label} {measured[key]:.3f}" for key, label in words.items() if measured[key] is not None]
    note = f"Between sites: {', '.join(measures)}."
    if evidence.deployed:
        note += " How far apart their features are (MMD) cannot be known without rows, which stay at their hospital."
    return compact(
        evidence,
        make_table(
            "sites",
            "The sites, with the first seed",
            {
                "site": None,
                "rows": str,
                "train": str,
                "validation": str,
                "test": str,
                **_outcome_columns(evidence, positive),
                "mean age": one_decimal,
                "SD of age": one_decimal,
            },
            rows,
            note,
        ),
    )


def _outcome_columns(evidence: Evidence, positive: str | None) -> dict[str, Format]:
    """The share of the positive class, or what is told of numbers."""
    numbers = evidence.task.report.target.values()
    return dict.fromkeys(numbers, evidence.in_units) if numbers else {f"{positive or 'positive'}, %": percent}


def _outcomes(evidence: Evidence, counts: Mapping[str, Any], positive: str | None) -> list[float | None]:
    told = counts.get("target") or {}
    numbers = [told.get(key) for key in evidence.task.report.target]
    return numbers or [_positive_share(evidence, counts, positive)]


def _positive_share(evidence: Evidence, counts: Mapping[str, Any], positive: str | None) -> float | None:
    """None where it, or with it another class, would tell of few patients."""
    classes = counts["classes"]
    shown = [classes[positive]] if evidence.findings else classes.values()
    small = any(count is None or 0 < count < FEWEST for count in shown)
    return classes[positive] / rows_of(counts) if positive and not small else None


def schema_table(evidence: Evidence) -> Table | None:
    """Which columns each hospital records, where they are not the same everywhere."""
    columns = (evidence.results.get("columns") or {}).get("distributions", {})
    sites = list(dict.fromkeys(site for column in columns.values() for site in column["sites"]))
    rows = [[name, *(_recorded(column["sites"].get(site)) for site in sites)] for name, column in columns.items()]
    if not any(share == 0 for _, *shares in rows for share in shares):
        return None
    return make_table(
        "schemas",
        "Which columns each site records",
        {"column": None, **dict.fromkeys(sites, _share_or_never)},
        rows,
        "Per cent of a site's rows that have a value; an empty cell stands for so few that they are not told.",
    )


def _recorded(column: Mapping[str, Any] | None) -> float | None:
    return None if column is None or column["missing"] is None else 1 - column["missing"]


def _share_or_never(share: float) -> str:
    return "never" if share == 0 else percent(share)


def heterogeneity_table(evidence: Evidence) -> Table | None:
    """How different the sites are, for each way in which a grid forms them; with findings, for each pair."""
    labels = evidence.task.report.labels
    measures = {"js": f"JS of {labels}", "kl": f"KL of {labels}", "mmd": "MMD of features"}
    columns, described = dict.fromkeys(measures.values(), decimals), evidence.results["sites"]
    if read_grid(evidence) is not None:
        rows = [
            [
                partition_title(evidence, each["partition"]),
                len(each["sites"]),
                *(each["heterogeneity"][key] for key in (*measures, "gini")),
            ]
            for each in described
        ]
        return make_table(
            "heterogeneity",
            "How different the sites are",
            {"sites formed with": None, "sites": str, **columns, "Gini of sizes": decimals},
            rows,
            "With the first seed, averages over pairs of sites: 0 where all sites are alike.",
        )
    if not evidence.findings:
        return None
    pairs = described[0]["heterogeneity"]["pairs"]
    return make_table(
        "heterogeneity",
        "How different each pair of sites is",
        {"pair": None, **columns},
        [[f"{pair['site_a']}, {pair['site_b']}", *(pair[key] for key in measures)] for pair in pairs],
        "With the first seed. JS is 0 for equal shares of the findings and 1 for none in common; KL is in nats.",
    )


def leakage_table(evidence: Evidence) -> Table | None:
    rows = [
        [variant or "as it stands", site, shared["test_rows"], shared["rows"], shared["share"]]
        for variant, sites in evidence.results["leakage"].items()
        for site, shared in sites.items()
    ]
    if not any(row[3] for row in rows):
        return None
    return make_table(
        "leakage",
        "Patients on both sides",
        {"study": None, "site": None, "test rows": str, "also trained on": one_decimal, "share, %": percent},
        rows,
        "Test rows whose patient is among some site's training rows, on average over seeds.",
    )


def sites(evidence: Evidence) -> Figure | None:
    """Rows of each class at each site; where a grid forms sites in several ways, a panel for each."""
    partitions = evidence.results["sites"] if read_grid(evidence) is not None else evidence.results["sites"][:1]
    most = max(len(described["sites"]) for described in partitions)
    if most > MOST_SITES or len(evidence.classes) > len(COLOURS):
        return None
    columns = min(len(partitions), 3)
    lines = -(-len(partitions) // columns)
    height = 0.9 + lines * (0.28 * most + (0.3 if len(partitions) > 1 else 0))
    drawn, panels = panel_grid(len(partitions), columns, height)
    for axes, described in zip(panels.flat, partitions, strict=False):
        _class_bars(axes, evidence.classes, described["sites"])
        if len(partitions) > 1:
            axes.set_title(partition_title(evidence, described["partition"]), fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("rows")
    drawn.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def target(evidence: Evidence) -> Figure | None:
    """Mean and standard deviation of the number that is predicted, at each site."""
    told = {site: counts.get("target") or {} for site, counts in evidence.site_counts.items()}
    known = {site: own for site, own in told.items() if own.get("mean") is not None and own.get("sd") is not None}
    if not known or len(known) > MOST_ROWS:
        return None
    drawn, axes = single_axes(0.8 + 0.24 * len(known))
    for place, own in enumerate(known.values()):
        ends = [max(evidence.task.report.least, own["mean"] - own["sd"]), own["mean"] + own["sd"]]
        axes.plot(ends, [place, place], color=COLOURS[0], linewidth=1.6)
        axes.plot(own["mean"], place, "o", color=COLOURS[0], markersize=5)
    name_rows(axes, list(known))
    axes.set_xlabel(evidence.named_outcome)
    return drawn


def _class_bars(axes: Any, classes: list[str], described: dict[str, Any]) -> None:
    left = np.zeros(len(described))
    for number, name in enumerate(classes):
        counts = np.array([site["classes"][name] or 0 for site in described.values()], dtype=float)
        counts[counts < FEWEST] = 0
        axes.barh(range(len(described)), counts, left=left, color=COLOURS[number], label=name, height=0.65)
        left += counts
    if any(None in site["classes"].values() for site in described.values()):
        rest = np.array([rows_of(site) for site in described.values()]) - left
        axes.barh(range(len(described)), rest, left=left, color="lightgrey", label="class withheld", height=0.65)
    axes.set_yticks(range(len(described)), list(described))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def correlation(evidence: Evidence) -> Figure | None:
    columns = evidence.results["columns"]
    if columns is None or len(columns["correlation"]["columns"]) < 3:
        return None
    names = columns["correlation"]["columns"]
    values = np.array(columns["correlation"]["values"], dtype=float)
    width = min(WIDTH, 1.8 + 0.32 * len(names))
    drawn, axes = single_axes(width * 0.86, width)
    image = axes.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    for i, j in zip(*np.tril_indices(len(names), -1), strict=True):
        if len(names) <= MOST_COLUMNS and not np.isnan(values[i, j]):
            text = f"{values[i, j]:.1f}".replace("-0.0", "0").replace("0.", ".")
            colour = "white" if abs(values[i, j]) > 0.6 else "black"
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label="correlation", shrink=0.8)
    return drawn


def distributions(evidence: Evidence) -> Figure | None:
    columns = evidence.results["columns"]
    if columns is None:
        return None
    shown = dict(list(columns["distributions"].items())[:MOST_COLUMNS])
    lines = -(-len(shown) // 4)
    sites = {site for column in shown.values() for site in column["sites"]}
    foot = 0.42 + 0.16 * -(-(len(sites) + 1) // NAMES_IN_A_LINE)
    height = 0.2 + foot + 1.3 * lines
    drawn = Figure(figsize=(WIDTH, height))  # laid out by hand: searching for a layout of so many axes takes a second
    drawn.subplots_adjust(left=0.075, right=0.99, top=1 - 0.2 / height, bottom=foot / height, hspace=0.62, wspace=0.28)
    panels = drawn.subplots(lines, 4, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, (name, column) in zip(panels.flat, shown.items(), strict=False):
        places = np.arange(len(column["labels"]))
        handles["all rows"] = axes.bar(
            places, 100 * np.array(column["all"]["shares"], float), color="lightgrey", width=0.9
        )
        for number, (site, part) in enumerate(column["sites"].items()):
            look = {"marker": ".", "linewidth": 1, "markersize": 4, **numbered_style(number)}
            aside = 0.0
            if not any(" to " in label for label in column["labels"]):  # categories, which no line joins
                look |= {"linestyle": "none", "markersize": 6}
                aside = offset(number, len(column["sites"]), 0.6)
            known = [
                (label, 100 * share) for label, share in zip(column["labels"], part["shares"], strict=True) if share
            ]
            (line,) = axes.plot(places + aside, 100 * np.array(part["shares"], float), **look)
            tell(line, f"{site}, {name}: {'; '.join(f'{label}: {share:.0f} %' for label, share in known)}")
            handles.setdefault(site, line)
        axes.set_title(name, fontsize=8, pad=2)
        marks = places if len(places) <= 4 else places[:: -(-len(places) // 3)]
        axes.set_xticks(marks, [column["labels"][mark].split(" to ")[0][:8] for mark in marks])
        axes.tick_params(labelsize=7)
        axes.grid(visible=False, axis="x")
        axes.set_ylim(bottom=0)
    drawn.supylabel("% of recorded values", fontsize=8, x=0.005)
    drawn.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=min(NAMES_IN_A_LINE, len(handles)), fontsize=8
    )
    return drawn


def not_drawn(evidence: Evidence) -> list[str]:
    count, columns = len(evidence.sites), evidence.results["columns"]
    lines = drawn_up_to(MOST_SITES, count, "Sites with their rows of each class")
    if columns is not None:
        known = columns["distributions"]
        drawn = max((len(column["sites"]) for column in known.values()), default=count)
        if drawn < count:
            lines.append(
                f"Distributions of columns are drawn for all rows, and for the first {drawn} of {count} sites."
            )
        if len(known) > MOST_COLUMNS:
            lines.append(
                f"Distributions of the first {MOST_COLUMNS} of {len(known)} columns are drawn; all are in results.json."
            )
    return lines


def left_out(evidence: Evidence) -> str:
    """What a run across hospitals has no figure of, and why."""
    titles = "; ".join(drawing.title[0].lower() + drawing.title[1:] for drawing in NEED_ROWS.values())
    return f"Not here: {titles}. Rows and {STAY}." if evidence.deployed else ""


NEED_ROWS = {
    "distributions": Drawing(
        "The columns, in all rows and at each site",
        "Grey: all rows. Lines and dots: each site. Cells of fewer than 5 rows are withheld.",
        distributions,
    ),
    "correlation": Drawing(
        "Correlation of the columns", "Pearson's, over rows in which both are recorded.", correlation
    ),
}
PAGE = """
<section id="sites"><h2>Sites</h2>
{{ show("sites") }}{{ show("schemas") }}{{ draw("samples") }}
{{- draw("sites") }}{{ draw("target") }}{{ draw("prevalence") }}
{% if "prevalence" in tables %}
{% call fold("The same as a table, and how different each pair of sites is") %}
{{ show("prevalence") }}{{ show("heterogeneity") }}{% endcall %}
{% else %}{{ show("heterogeneity") }}{% endif %}
{{ show("leakage") }}{{ draw("distributions") }}{{ draw("correlation") }}
{% if left_out %}<p class="meta">{{ left_out }}</p>{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "sites",
    "Sites",
    {"left_out": left_out},
    tables=(site_table, schema_table, heterogeneity_table, leakage_table),
    figures={
        "sites": Drawing(
            "Rows of each class at each site",
            "With the study's first seed, before rows are split.",
            sites,
            of_task=True,
        ),
        "target": Drawing(
            "{target} at each site",
            "Mean and one standard deviation to either side, with the study's first seed, before rows are split. Sites "
            "with fewer than 10 rows are left out.",
            target,
            of_task=True,
        ),
        **NEED_ROWS,
    },
    remarks={"limits": not_drawn},
)
