"""The folder of an explanation: tables as CSV and Parquet, figures, one page. It appears as a whole or not at all."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pandas as pd
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from wardround.core.atomic_files import new_folder
from wardround.explain import METHODS
from wardround.report.explained.checks_table import checks_table
from wardround.report.explained.explained_figures import contributions_figure, effects_figure, importance_figure
from wardround.report.explained.explained_tables import tables_of
from wardround.report.render.page_table import on_page
from wardround.report.render.style import STYLE, as_svg, save_png
from wardround.report.render.table import Table, make_table, signed_decimals

if TYPE_CHECKING:
    from wardround.bundles.explain.explain import Explained

ROWS, ABOUT, PAGE = "rows", "explanation.json", "explanation.html"
EXAMPLES, TOP = 8, 3  # rows on the page, and columns of each
TITLES = {
    "importance": "How much each column matters",
    "effects": "How the score changes along the columns that matter most",
    "contributions": "How much each column contributes to the explained rows",
}


def write_folder(explained: "Explained", out: Path) -> Path:
    """No value of a patient is in it: rows are named by their numbers."""
    tables = [*tables_of(explained.content), *([checks_table(explained.checks)] if explained.checks else [])]
    with new_folder(out) as folder:
        explained.rows.to_csv(folder / f"{ROWS}.csv", index=False)
        explained.rows.to_parquet(folder / f"{ROWS}.parquet", index=False)
        for table in tables:
            (folder / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
        svgs = write_figures(figures_of(explained), folder / "figures")
        (folder / ABOUT).write_text(json.dumps(explained.facts, indent=2), encoding="utf-8")
        page = render(explained, [example_table(explained), *tables], svgs)
        (folder / PAGE).write_text(page, encoding="utf-8")
    return out


def figures_of(explained: "Explained") -> dict[str, Figure]:
    with mpl.rc_context(STYLE):
        drawn = {
            "importance": importance_figure(explained.content),
            "effects": effects_figure(explained.content),
            "contributions": contributions_figure(explained.rows, explained.about["scale"]),
        }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def write_figures(figures: Mapping[str, Figure], folder: Path) -> dict[str, str]:
    """Their SVGs as elements of a page."""
    folder.mkdir()
    svgs = {}
    for name, figure in figures.items():
        with mpl.rc_context(STYLE):
            svg = as_svg(figure, name)
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
            save_png(figure, folder / f"{name}.png")
        svgs[name] = svg[svg.index("<svg") :]
    return svgs


def example_table(explained: "Explained") -> Table:
    """Rows with the highest scores, each with the columns that contribute most."""
    rows = explained.rows
    place = [name for name in ("site", "row", "output") if name in rows]
    place = [name for name in place if name != "output" or rows["output"].nunique() > 1]
    highest = rows.drop_duplicates(place).nlargest(EXAMPLES, "score")
    lines = []
    for _, example in highest.iterrows():
        own = rows[(rows[place] == example[place]).all(axis=1)]
        top = own.reindex(own["contribution"].abs().sort_values(ascending=False).index).head(TOP)
        reasons = [reason(one) for _, one in top.iterrows()]
        lines.append([*(str(example[name]) for name in place), example["score"], *pad(reasons)])
    columns: dict[str, Any] = {**dict.fromkeys(place), f"score, {explained.about['scale']}": signed_decimals}
    columns |= {f"reason {number + 1}": None for number in range(TOP)}
    note = "Rows with the highest scores among those explained. A contribution is on the scale of the score."
    return make_table("examples", "Some rows and their reasons", columns, lines, note)


def reason(line: pd.Series) -> str:
    error = line["sampling_error"]
    return f"{line['column']} {signed_decimals(line['contribution'])}" + ("" if pd.isna(error) else f" ± {error:.3f}")


def pad(reasons: list[str]) -> list[str | None]:
    return [*reasons, *[None] * (TOP - len(reasons))]


def render(explained: "Explained", tables: list[Table], svgs: Mapping[str, str]) -> str:
    method = METHODS.get(explained.about["method"])
    return page_of(
        "explanation.html.jinja",
        title=explained.title,
        about=explained.about,
        content=explained.content,
        tables={table.name: table for table in tables},
        svgs=svgs,
        titles=TITLES,
        citation="" if method is None else method().citation,
    )


def page_of(name: str, **content: Any) -> str:
    """A template of this folder, filled in."""
    own = files("wardround").joinpath("bundles/explain", name).read_text(encoding="utf-8")
    templates = {"tables.html": template("tables.html"), name: own}
    jinja = Environment(loader=DictLoader(templates), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    jinja.globals |= {"on_page": on_page, "style": Markup(template("report.css"))}
    return jinja.get_template(name).render(**content)


def template(name: str) -> str:
    return files("wardround.report.render").joinpath("templates", name).read_text(encoding="utf-8")
