"""How a table stands on a page: turned if it has few lines and many columns, in parts where paper is too narrow."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wardround.report.render.table import Table

LETTER = 5.9  # pixels; the widest that was measured in words of a table's size on paper is 5.7
LETTERS = 688 / LETTER  # that a line of A4 holds
GAP = 7.04 / LETTER  # between two columns, in letters
SPREAD = "SD, "  # a column of spreads after the one that it belongs to: both turn into one line
BREAKS = re.compile(r"[\s\-–/]+")  # where a line may end


@dataclass(frozen=True)
class PageTable:
    headings: Sequence[str]
    numeric: Sequence[bool]  # by column
    rows: Sequence[Sequence[str]]

    @property
    def places(self) -> range:
        return range(len(self.headings))

    @property
    def parts(self) -> "Sequence[PageTable]":
        """Parts that each fit a page of paper, every one with the columns that name its lines; [] where all fits."""
        widths = _widths(self)
        if sum(widths) <= LETTERS or len(widths) < 3:
            return []
        names = next((place for place, number in enumerate(self.numeric) if number), 1) or 1
        names = names if sum(widths[:names]) < LETTERS / 2 else 1
        room, names_room = LETTERS, sum(widths[:names])
        groups = _groups(widths[names:], room - names_room)
        while len(even := _groups(widths[names:], room - 1 - names_room)) == len(groups) and room > 1:
            groups, room = even, room - 1  # parts of about the same width
        return (
            [self._of([*range(names), *(names + place for place in group)]) for group in groups]
            if len(groups) > 1
            else []
        )

    def _of(self, places: Sequence[int]) -> "PageTable":
        rows = [[row[place] for place in places] for row in self.rows]
        return PageTable([self.headings[i] for i in places], [self.numeric[i] for i in places], rows)


def _groups(widths: Sequence[float], room: float) -> list[list[int]]:
    """Places of columns, in order, as many to a group as its room holds."""
    groups: list[list[int]] = [[]]
    for place, width in enumerate(widths):
        if groups[-1] and sum(widths[i] for i in groups[-1]) + width > room:
            groups.append([])
        groups[-1].append(place)
    return groups


def on_page(table: Table) -> PageTable:
    rows = table.shown()
    upright = PageTable(table.columns, [table.is_number(column) for column in table.columns], rows)
    names = [row[0] for row in rows]
    turns = len(rows) < len(table.columns) - 1 and len(set(names)) == len(names) and all(upright.numeric[1:])
    if not turns or sum(_widths(upright)) <= LETTERS:
        return upright
    lines = [[column, *(row[place] for row in rows)] for place, column in enumerate(table.columns)][1:]
    names, lines = _with_spreads(names, lines)
    return PageTable(["", *names], [False, *[True] * len(names)], lines)


def _with_spreads(names: Sequence[str], lines: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Where every second line is the spread of the one before, both are one line."""
    if len(lines) % 2 or not all(spread[0].startswith(SPREAD) for spread in lines[1::2]):
        return list(names), lines
    pairs = zip(lines[::2], lines[1::2], strict=True)
    merged = [[mean[0], *(x for both in zip(mean[1:], sd[1:], strict=True) for x in both)] for mean, sd in pairs]
    return [heading for name in names for heading in (name, f"{SPREAD}{name}")], merged


def _widths(table: PageTable) -> list[float]:
    """Of each column the letters of its longest word: narrower it cannot be."""
    columns = [[table.headings[place], *(row[place] for row in table.rows)] for place in table.places]
    return [GAP + max(len(word) for text in texts for word in BREAKS.split(text)) for texts in columns]
