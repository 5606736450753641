"""Tables of arms that form a grid, of how their sites differ, and of what they have learnt by heart."""

from typing import Any

from wardround.report.arms import partition_title
from wardround.report.evidence import Evidence
from wardround.report.grid import read_grid
from wardround.report.table import Format, Table, decimals, make_table, without_empty

SIDES = ("training", "validation", "test")


def grid_table(evidence: Evidence) -> Table | None:
    grid = read_grid(evidence)
    if grid is None:
        return None
    headline = evidence.headline
    rows: list[list[Any]] = []
    for line in grid.lines:
        arms = [grid.arm(line, value) for value in grid.values]
        rows.append([line, *(None if arm is None else evidence.figure(arm)["mean"] for arm in arms)])
    columns: dict[str, Format | None] = {"arm": None}
    columns |= {headline.above(f"{grid.setting} {value:g}"): headline.shown for value in grid.values}
    title = f"{headline.title} against {grid.setting}"
    return make_table("grid", title, columns, rows, "On all sites' test rows.")


def last(evidence: Evidence, arm: str, column: str) -> float | None:
    """What a curve ends with."""
    values = evidence.curve(arm, column)[1]
    return values[-1] if values else None


def sides_table(evidence: Evidence) -> Table | None:
    """Training, validation and test rows after the last round: a model that fits the first alone is overfitted."""
    headline = evidence.curve_headline
    if not any(last(evidence, arm, f"training_{headline.metric}") is not None for arm in evidence.arms):
        return None
    rows = []
    for name in evidence.arms:
        figures = [last(evidence, name, f"{side}_{figure}") for figure in (headline.metric, "loss") for side in SIDES]
        rows.append([name, *figures])
    columns: dict[str, Format | None] = {"arm": None}
    columns |= {headline.above(f"{side} {headline.word}"): headline.shown for side in SIDES}
    columns |= {f"{side} loss": decimals for side in SIDES}
    note = "After the last round, over all sites' rows together."
    if evidence.findings:
        note += " Loss without the weights that training gave to findings."
    made = make_table("sides", "On training, validation and test rows", columns, rows, note)
    return without_empty(made)


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
