"""What a study computes exactly, from sums over its hospitals: a table of each analysis, and forest plots.

Each kind says in `KINDS` how it is told: its sentences and its tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, figure
from wardround.report.render.table import Table
from wardround.report.section import Section
from wardround.report.sections.analyses.patients import table_one_sentences, table_one_tables
from wardround.report.sections.analyses.regression import INTERCEPT, Result, glm_sentences, glm_tables

MOST_PANELS = 8
MOST_LINES = 40  # of a forest plot


@dataclass(frozen=True)
class Told:
    """How a kind of analysis is told."""

    sentences: Callable[[str, Result], list[str]]
    tables: Callable[[str, Result], list[Table]]


def analyses_of(evidence: Evidence) -> Mapping[str, Result]:
    found: Mapping[str, Result] = evidence.results.get("analyses") or {}
    return found


KINDS: Mapping[str, Told] = {
    "glm": Told(glm_sentences, glm_tables),
    "table-one": Told(table_one_sentences, table_one_tables),
}


# -- of all kinds


def sentences(evidence: Evidence) -> list[tuple[str, list[str]]]:
    return [(name, KINDS[own["kind"]].sentences(name, own)) for name, own in analyses_of(evidence).items()]


def protection(evidence: Evidence) -> str:
    masked = [name for name, own in analyses_of(evidence).items() if own["secure_sum"]]
    if masked:
        return "The coordinator learned sums over all hospitals and nothing of a single one (secure sum)."
    return "Each hospital sent sums over its rows, and no row."


def tables(evidence: Evidence) -> list[Table]:
    return [table for name, own in analyses_of(evidence).items() for table in KINDS[own["kind"]].tables(name, own)]


def table_names(evidence: Evidence) -> dict[str, list[str]]:
    """By analysis."""
    return {
        name: [table.name for table in KINDS[own["kind"]].tables(name, own) if table.rows]
        for name, own in analyses_of(evidence).items()
    }


def _lines(evidence: Evidence) -> list[tuple[str, str, Result]]:
    """Analysis, term and its figures, of ratios and of differences apart."""
    return [
        (name, term, own)
        for name, result in analyses_of(evidence).items()
        if result["kind"] == "glm" and result["ratio"]
        for term, own in result["terms"].items()
        if term != INTERCEPT and own["ratio"] is not None
    ]


def draw_ratios(evidence: Evidence) -> Figure | None:
    """Odds and rate ratios with their intervals, on a logarithmic axis."""
    lines = _lines(evidence)[:MOST_LINES]
    if not lines:
        return None
    several = len({name for name, _, _ in lines}) > 1
    drawn = figure(1.2 + 0.32 * len(lines))
    axes = drawn.subplots()
    for place, (_, _, own) in enumerate(lines):
        low, high = own["ratio_ci"]
        if low is not None and high is not None:
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=2)
        axes.plot([own["ratio"]], [place], marker="s", color=COLOURS[0])
    axes.axvline(1.0, color="0.5", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(lines)), [f"{name}: {term}" if several else term for name, term, _ in lines])
    axes.invert_yaxis()
    axes.set_xlabel("ratio with its interval; 1: no association")
    return drawn


def draw_hospitals(evidence: Evidence) -> Figure | None:
    """Of random effects: each hospital's coefficient, and the mean over all, one panel for each term."""
    found = [own for own in analyses_of(evidence).values() if own.get("site_effects") == "random"]
    panels = [(term, own) for own in found for term in own["terms"] if term != INTERCEPT][:MOST_PANELS]
    if not panels:
        return None
    drawn = figure(sum(1.0 + 0.25 * len(own["hospitals"]) for _, own in panels))
    for axes, (term, own) in zip(drawn.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        lines = [*((site, terms[term]) for site, terms in own["hospitals"].items()), ("all", own["terms"][term])]
        for place, (site, line) in enumerate(lines):
            colour = COLOURS[1] if site == "all" else COLOURS[0]
            axes.plot(line["ci"], [place, place], color=colour, linewidth=2)
            axes.plot([line["estimate"]], [place], marker="D" if site == "all" else "s", color=colour)
        axes.axvline(0.0, color="0.5", linewidth=1)
        axes.set_yticks(range(len(lines)), [site for site, _ in lines])
        axes.invert_yaxis()
        axes.set_xlabel(f"coefficient of {term}")
    return drawn


PAGE = """
<section id="analyses"><h2>Analyses</h2>
{% for name, lines in told %}
<h3>{{ name }}</h3>
{% for line in lines %}<p{% if loop.first %} class="lead"{% endif %}>{{ line }}</p>{% endfor %}
{% for table in shown[name] %}{{ show(table) }}{% endfor %}
{% endfor %}
{{ draw("analysis-ratios") }}
{{ draw("analysis-hospitals") }}
<p class="meta">{{ protected }}</p>
</section>
"""

SECTION = Section(
    page=PAGE,
    anchor="analyses",
    link="Analyses",
    values={"told": sentences, "shown": table_names, "protected": protection},
    every_table=tables,
    figures={
        "analysis-ratios": Drawing(
            "Ratios of all terms",
            "Squares are estimates, lines their intervals. Right of 1 a larger value goes with more of the outcome.",
            draw_ratios,
        ),
        "analysis-hospitals": Drawing(
            "Coefficients at each hospital",
            "Squares are hospitals by themselves, diamonds the mean over all; lines are intervals.",
            draw_hospitals,
        ),
    },
)
