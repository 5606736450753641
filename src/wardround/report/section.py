"""What a module of `sections` offers: tables, figures, sentences, and the HTML that shows them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.table import Table, without_empty


@dataclass(frozen=True)
class Section:
    """`page` is a Jinja template. It may use `evidence`, `tables`, the names of `values`, and the macros show(table),
    draw(figure), fold(title) and part(section)."""

    page: str = ""
    anchor: str = ""  # the id of its HTML element; without one it is a part that the page of another section places
    link: str = ""  # in the contents of the page
    values: Mapping[str, Callable[[Evidence], Any]] = field(default_factory=dict)
    tables: Sequence[Callable[[Evidence], Table | None]] = ()
    every_table: Callable[[Evidence], Sequence[Table]] | None = None  # where the run decides how many there are
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    remarks: Mapping[str, Callable[[Evidence], list[str]]] = field(default_factory=dict)  # for other sections


def compact(evidence: Evidence, table: Table) -> Table:
    """Studies of images often have one seed, and no ages: without the columns that then are empty."""
    return without_empty(table) if evidence.of_images else table
