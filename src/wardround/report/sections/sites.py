"""The sites: their rows, classes and columns, and how different they are."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.arms import partition_title, read_grid
from wardround.report.evidence import STAY, Evidence, rows_of
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, DASHES, WIDTH, figure
from wardround.report.render.table import (
    FEWEST,
    Format,
    Table,
    decimals,
    make_table,
    one_decimal,
    percent,
)
from wardround.report.section import Section, compact

HETEROGENEITY = {
    "js": "Jensen-Shannon divergence of the labels",
    "kl": "Kullback-Leibler divergence of the labels",
    "mmd": "MMD of the features",
    "gini": "Gini coefficient of the sizes",
}


def site_table(evidence: Evidence) -> Table:
    rows = []
    # the last of a row's findings is that it has none
    positive = evidence.classes[-1] if len(evidence.classes) == 2 or evidence.findings else None
    for described in evidence.results["sites"]:
        for site, counts in described["sites"].items():
            total = rows_of(counts)
            told = [counts["classes"][positive]] if evidence.findings else counts["classes"].values()
            small = any(count is None or 0 < count < FEWEST for count in told)
            share = counts["classes"][positive] / total if positive and not small else None
            age = (counts.get("age") or {}) if total >= 2 * FEWEST else {}
            sizes = [total, counts["train"], counts["validation"], counts["test"]]
            title = partition_title(evidence, described["partition"])
            rows.append([f"{site} ({title})" if title else site, *sizes, share, age.get("mean"), age.get("sd")])
    columns: dict[str, Format | None] = {
        "site": None,
        "rows": str,
        "train": str,
        "validation": str,
        "test": str,
        f"{positive or 'positive'}, %": percent,
        "mean age": one_decimal,
        "SD of age": one_decimal,
    }
    h = evidence.results["sites"][0]["heterogeneity"]
    words = [f"{label} {h[key]:.3f}" for key, label in HETEROGENEITY.items() if h[key] is not None]
    note = "Between sites: " + ", ".join(words) + "."
    if evidence.deployed:
        note += " How far apart their features are (MMD) cannot be known without rows, which stay at their hospital."
    return compact(evidence, make_table("sites", "The sites, with the first seed", columns, rows, note))


def leakage_table(evidence: Evidence) -> Table | None:
    rows = [
        [variant or "as it stands", site, found["test_rows"], found["rows"], found["share"]]
        for variant, sites in evidence.results["leakage"].items()
        for site, found in sites.items()
    ]
    if not any(row[3] for row in rows):
        return None
    columns = {"study": None, "site": None, "test rows": str, "also trained on": one_decimal, "share, %": percent}
    note = "Test rows whose patient is among some site's training rows, on average over seeds."
    return make_table("leakage", "Patients on both sides", columns, rows, note)


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


def heterogeneity_table(evidence: Evidence) -> Table | None:
    """How different the sites are, for each way in which a grid forms them; with findings, for each pair."""
    names = ("js", "kl", "mmd")
    described = evidence.results["sites"]
    rows: list[list[Any]] = []
    columns: dict[str, Format | None] = {}
    if read_grid(evidence) is not None:
        for each in described:
            found = each["heterogeneity"]
            title = partition_title(evidence, each["partition"])
            rows.append([title, len(each["sites"]), *(found[name] for name in (*names, "gini"))])
        columns = {"sites formed with": None, "sites": str, "JS of labels": decimals, "KL of labels": decimals}
        columns |= {"MMD of features": decimals, "Gini of sizes": decimals}
        note = "With the first seed, averages over pairs of sites: 0 where all sites are alike."
        return make_table("heterogeneity", "How different the sites are", columns, rows, note)
    if not evidence.findings:
        return None
    for pair in described[0]["heterogeneity"]["pairs"]:
        rows.append([f"{pair['site_a']}, {pair['site_b']}", *(pair[name] for name in names)])
    columns = {"pair": None, "JS of labels": decimals, "KL of labels": decimals, "MMD of features": decimals}
    note = "With the first seed. JS is 0 for equal shares of the findings and 1 for none in common; KL is in nats."
    return make_table("heterogeneity", "How different each pair of sites is", columns, rows, note)


MOST_SITES = 20


MOST_COLUMNS = 16


def sites(evidence: Evidence) -> Figure | None:
    """Rows of each class at each site; where a grid forms sites in several ways, a panel for each."""
    ways = evidence.results["sites"] if read_grid(evidence) is not None else evidence.results["sites"][:1]
    most = max(len(way["sites"]) for way in ways)
    if evidence.findings or most > MOST_SITES or len(evidence.classes) > len(COLOURS):
        return None  # a row with several findings has no place in one bar
    across = min(len(ways), 3)
    down = -(-len(ways) // across)
    drawn = figure(0.9 + down * (0.28 * most + (0.3 if len(ways) > 1 else 0)))
    grid = drawn.subplots(down, across, sharex=True, squeeze=False)
    for axes in grid.flat[len(ways) :]:
        axes.set_visible(False)
    for axes, way in zip(grid.flat, ways, strict=False):
        _class_bars(axes, evidence.classes, way["sites"])
        if len(ways) > 1:
            axes.set_title(partition_title(evidence, way["partition"]), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("rows")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
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
    values = np.array([[np.nan if v is None else v for v in row] for row in columns["correlation"]["values"]])
    side = min(WIDTH, 1.8 + 0.32 * len(names))
    drawn = figure(side * 0.86, side)
    axes = drawn.subplots()
    image = axes.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    if len(names) <= 16:
        for i in range(len(names)):
            for j in range(i):
                if not np.isnan(values[i, j]):
                    colour = "white" if abs(values[i, j]) > 0.6 else "black"
                    axes.text(
                        j,
                        i,
                        f"{values[i, j]:.1f}".replace("-0.0", "0").replace("0.", "."),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color=colour,
                    )
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label="correlation", shrink=0.8)
    return drawn


def distributions(evidence: Evidence) -> Figure | None:
    """Each column before sites form (grey) and at each site (lines)."""
    columns = evidence.results["columns"]
    if columns is None:
        return None
    shown = dict(list(columns["distributions"].items())[:MOST_COLUMNS])
    across = 4
    rows = -(-len(shown) // across)
    height = 0.6 + 1.3 * rows
    drawn = Figure(figsize=(WIDTH, height))  # laid out by hand: searching for a layout of so many axes takes a second
    drawn.subplots_adjust(left=0.075, right=0.99, top=1 - 0.2 / height, bottom=0.62 / height, hspace=0.62, wspace=0.28)
    grid = drawn.subplots(rows, across, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, (name, found) in zip(grid.flat, shown.items(), strict=False):
        places = np.arange(len(found["labels"]))
        handles["all rows"] = axes.bar(places, _percent(found["all"]["shares"]), color="lightgrey", width=0.9)
        for number, (site, part) in enumerate(found["sites"].items()):
            style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
            (handles[site],) = axes.plot(
                places, _percent(part["shares"]), marker=".", linewidth=1, markersize=4, **style
            )
        axes.set_title(name, fontsize=8, pad=2)
        marks = places if len(places) <= 4 else places[:: -(-len(places) // 3)]
        axes.set_xticks(marks, [found["labels"][mark].split(" to ")[0][:8] for mark in marks])
        axes.tick_params(labelsize=7)
        axes.grid(visible=False, axis="x")
        axes.set_ylim(bottom=0)
    drawn.supylabel("% of recorded values", fontsize=8, x=0.005)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(6, len(handles)), fontsize=8)
    return drawn


def _percent(shares: list[float | None]) -> list[float]:
    return [np.nan if share is None else 100 * share for share in shares]


def _values(evidence: Evidence) -> dict[str, Any]:
    titles = ", ".join(drawing.title.lower() for drawing in NEED_ROWS.values())
    return {"left_out": f"Not here: {titles}. Rows and {STAY}." if evidence.deployed else ""}


NEED_ROWS = {
    "distributions": Drawing(
        "Columns before and after sites form",
        "Grey: all rows. Lines: each site. Cells of fewer than 5 rows are withheld.",
        distributions,
    ),
    "correlation": Drawing(
        "Correlation of the columns", "Pearson's, over rows in which both are recorded.", correlation
    ),
}
PAGE = """
<section id="sites"><h2>Sites</h2>
{{ show("sites") }}{{ show("schemas") }}{{ draw("samples") }}{{ draw("sites") }}{{ draw("prevalence") }}
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
    _values,
    tables=(site_table, schema_table, heterogeneity_table, leakage_table),
    figures={
        "sites": Drawing(
            "Rows of each class at each site", "With the study's first seed, before rows are split.", sites
        ),
        **NEED_ROWS,
    },
)
