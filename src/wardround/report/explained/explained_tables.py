"""Tables of one arm's `explanations`, as results.json has them."""

from collections.abc import Mapping
from typing import Any

from wardround.report.render.table import CI, OTHER_CI, Format, Table, limits, make_table, p_text, signed_decimals
from wardround.report.sections.analyses.regression import significant
from wardround.runs.explaining.coefficients import ratio_of

Content = Mapping[str, Any]
WHOLE = "all hospitals"
COEFFICIENTS = (
    "Of a number, per standard deviation of the column; of a level, against a row without it. Intervals are over "
    "seeds, which draw other splits of the same patients: they are not those of an epidemiological regression."
)
Z_WORDS = "95 % CI over patients, given the model and the shuffles."


def importance_table(content: Content) -> Table | None:
    """The most important first."""
    if not content.get("whole"):
        return None
    whole, differ = content["whole"]["importance"], content.get("differences") or {}
    hospitals = len(content.get("hospitals") or {})
    columns: dict[str, Format | None] = {"column": None, "rise of the loss": rise}
    columns |= dict.fromkeys(CI, rise)
    rows: list[list[Any]] = [[name, own["increase"], *limits(own["interval"])] for name, own in ranked(whole)]
    note = f"By how much the mean loss rises when the column is shuffled within each hospital. {Z_WORDS}"
    if hospitals > 1:
        columns |= {"most important at": None, "hospitals differ, p": p_text}
        for row in rows:
            row += [tops(content, row[0]), differ.get(row[0], {}).get("p_holm")]
        note += " The last column is Cochran's test that hospitals differ, corrected for the columns (Holm)."
    return make_table("importance", "How much each column matters", columns, rows, note)


def rise(value: float) -> str:
    """With its sign and three significant digits: a loss may change by little."""
    return f"+{significant(value)}" if value > 0 else significant(value)


def ranked(importance: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(importance.items(), key=lambda pair: -pair[1]["increase"])


def tops(content: Content, column: str) -> str:
    """At how many hospitals no other column matters more."""
    own = content["hospitals"]
    first = sum(ranked(site["importance"])[0][0] == column for site in own.values())
    return f"{first} of {len(own)}"


def hospital_importance_table(content: Content) -> Table | None:
    if len(content.get("hospitals") or {}) < 2:
        return None
    names: dict[str, Format | None] = {"hospital": None, "column": None, "rise of the loss": rise}
    rows = [
        [site, name, importance["increase"], *limits(importance["interval"]), own["patients"]]
        for site, own in content["hospitals"].items()
        for name, importance in ranked(own["importance"])
    ]
    columns = {**names, **dict.fromkeys(CI, rise), "test patients": None}
    return make_table("importance-hospitals", "The same at each hospital", columns, rows, Z_WORDS)


def coefficient_table(content: Content) -> Table | None:
    """Of the shared model; of hospitals where they have terms of their own."""
    known = content.get("coefficients")
    if not known:
        return None
    lines = [(WHOLE, line) for line in known["whole"]]
    lines += [(site, line) for site, own in (known["hospitals"] or {}).items() for line in own]
    several = len({line["output"] for _, line in lines}) > 1
    names = [*(["hospital"] if known["hospitals"] else []), *(["of"] if several else []), "term", "per"]
    columns: dict[str, Format | None] = dict.fromkeys(names)
    columns |= dict.fromkeys(("coefficient", *CI), significant) | ratio_columns(known)
    rows = []
    for site, line in lines:
        of = {"hospital": site, "of": line["output"], "term": line["term"], "per": step_of(known, line["term"])}
        own = [line["coefficient"], *limits(line["interval"])]
        rows.append([*(of[name] for name in names), *own, *ratio_cells(known, line)])
    note = (
        "Of a number, per standard deviation of the column; of a level, against a row without it. Intervals are over "
    )
    note += "seeds, which draw other splits of the same patients: they are not those of an epidemiological regression."
    return make_table("coefficients", f"Coefficients, {content_link(content)}", columns, rows, note)


def ratio_columns(known: Content) -> dict[str, Format | None]:
    ratio = known["ratio"]
    if not ratio:
        return {}
    return dict.fromkeys((ratio, *OTHER_CI, *([f"{ratio} for 1 more"] if known["per"] else [])), significant)


def ratio_cells(known: Content, line: Mapping[str, Any]) -> list[float | None]:
    if not known["ratio"]:
        return []
    return [line["ratio"], *limits(line["ratio_interval"]), *([of_one_more(known, line)] if known["per"] else [])]


def content_link(content: Content) -> str:
    return str(content.get("scale") or "on the scale of the score")


def of_one_more(known: Mapping[str, Any], line: Mapping[str, Any]) -> float | None:
    """A ratio for one unit of a number, such as a year."""
    per = known["per"].get(line["term"])
    return None if per is None else ratio_of(line["coefficient"] / per)


def step_of(known: Mapping[str, Any], term: str) -> str | None:
    """What of a number the coefficient is for."""
    per = known["per"] or {}
    return significant(per[term]) if term in per else None


def effect_table(content: Content) -> Table | None:
    if not content.get("whole"):
        return None
    several = len(content["outputs"]) > 1
    columns: dict[str, Format | None] = {"column": None, "value": None, **({"of": None} if several else {})}
    rows = [
        [name, shown(value), *([output] if several else []), change]
        for name, own in content["whole"]["effects"].items()
        for output, changes in zip(content["outputs"], own["effect"], strict=True)
        for value, change in zip(own["values"], changes, strict=True)
    ]
    note = "Numbers are in standard deviations from the mean, or shares of a public range. 0 is the mean over rows."
    columns |= {f"effect, {content_link(content)}": signed_decimals}
    return make_table("effects", "How the score changes along each column", columns, rows, note)


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def tables_of(content: Content) -> list[Table]:
    made = (importance_table, hospital_importance_table, coefficient_table, effect_table)
    return [table for table in (make(content) for make in made) if table is not None]
