"""A table of a report, once: as HTML in the page, as CSV with full numbers, as LaTeX for a manuscript."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wardround.core.notices.code import listed as listed
from wardround.evaluation.comparisons.measures import plainly, signed

NONE = "–"
CI = ("95 % CI from", "95 % CI to")  # headings of an interval's two ends
OTHER_CI = ("its 95 % CI from", "its 95 % CI to")  # of the second interval of a table
FEWEST = 5  # patients that a count must have to be shown


Format = Callable[[Any], str]


@dataclass(frozen=True)
class Table:
    """`rows` hold plain values; `formats` says how a column is shown, where not as text."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    formats: Mapping[str, Format]
    note: str = ""

    def shown(self) -> list[list[str]]:
        return [[self._text(name, value) for name, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def _text(self, column: str, value: Any) -> str:
        if value is None:
            return NONE
        return self.formats[column](value) if column in self.formats else str(value)

    def _number(self, column: str, value: Any) -> Any:
        """With all its digits, in the unit that its heading names."""
        if value is None:
            return ""
        return 100 * value if self.formats.get(column) in (percent, points) else value

    def first_columns(self, most: int) -> "Table":
        return replace(self, columns=self.columns[:most], rows=[row[:most] for row in self.rows])

    def is_number(self, column: str) -> bool:
        return column in self.formats

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([[self._number(c, v) for c, v in zip(self.columns, row, strict=True)] for row in self.rows])
        return text.getvalue()

    def latex(self) -> str:
        kinds = "".join("r" if self.is_number(column) else "l" for column in self.columns)
        lines = [
            rf"% {self.title}. Names in other alphabets need XeLaTeX or LuaLaTeX.",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\hline",
            _tex_row(self.columns),
            r"\hline",
            *map(_tex_row, self.shown()),
            r"\hline",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def write_tables(tables: Mapping[str, Table], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
        (folder / f"{name}.tex").write_text(table.latex(), encoding="utf-8")


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed_decimals(value: float) -> str:
    return signed(value, 3)


def points(value: float) -> str:
    return signed(100 * value, 1)


def decimals(value: float) -> str:
    return plainly(value, 3)


def one_decimal(value: float) -> str:
    return f"{value:.1f}"


def whole_number(value: float) -> str:
    return f"{value:.0f}"


def few(count: int | None) -> str:
    """A count of patients, unless it is so small that it could point at one of them; None is withheld already."""
    if count is None:
        return "withheld"
    return str(count) if not 0 < count < FEWEST else f"below {FEWEST}"


def count_or_few(count: float) -> int | float | str:
    """A count of patients as a table may hold it, whole where it is; on average over seeds it need not be."""
    return f"below {FEWEST}" if 0 < count < FEWEST else whole(count)


def whole(count: float) -> int | float:
    """A count on average over seeds, without decimals where it needs none."""
    return int(count) if float(count).is_integer() else count


def count_text(value: Any) -> str:
    return one_decimal(value) if isinstance(value, float) else str(value)


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def make_table(
    name: str, title: str, columns: Mapping[str, Format | None], rows: Sequence[Sequence[Any]], note: str = ""
) -> Table:
    formats = {column: shown for column, shown in columns.items() if shown is not None}
    return Table(name, title, tuple(columns), rows, formats, note)


def without_empty(table: Table) -> Table:
    places = [place for place in range(len(table.columns)) if any(row[place] is not None for row in table.rows)]
    rows = [[row[place] for place in places] for row in table.rows]
    return replace(table, columns=tuple(table.columns[place] for place in places), rows=rows)


def mean_sd(figure: Mapping[str, Any] | None) -> list[Any]:
    return [figure["mean"], figure["sd"]] if figure else [None, None]


def limits(interval: Sequence[float] | None) -> tuple[float | None, float | None]:
    return (interval[0], interval[1]) if interval else (None, None)


TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "–": "--",
        **{mark: "\\" + mark for mark in "&%$#_{}"},
    }
)


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(TEX) for cell in cells) + r" \\"
