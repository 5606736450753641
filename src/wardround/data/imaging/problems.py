"""What is wrong with single images. Nothing is dropped in silence: a study stops, or goes on and says so."""

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

from wardround.core.errors import DataError

Accepted = Literal["missing", "unreadable", "16-bit", "colour", "other-size", "unknown-finding"]
Kind = Literal[Accepted, "extra"]

# These are converted without loss of meaning: by the full range, to luminance, by resizing.
CONVERTED: tuple[Accepted, ...] = ("16-bit", "colour", "other-size")
NAMED = 5  # file names in a message; all of them are in problems.csv
LISTING = "problems.csv"

OUTCOMES: dict[Kind, tuple[str, str]] = {
    "missing": ("that the table names have no file", "left out"),
    "unreadable": ("cannot be read, or are not one grey picture", "left out"),
    "16-bit": ("have 16 bits per pixel", "converted to 8"),
    "colour": ("are in colour or have transparency", "converted to grey"),
    "other-size": ("differ in size from most", "resized like all"),
    "unknown-finding": ("have a finding that is not known, or none at all", "what is unknown is ignored"),
    "extra": ("are named by no table", "not used"),
}


@dataclass(frozen=True)
class Problem:
    kind: Kind
    name: str  # of the image
    detail: str = ""  # for the listing, which stays with the data; never for a message


def refused(problems: Collection[Problem], accept: Collection[Accepted]) -> list[Kind]:
    """Kinds of problems that are there and that the study does not accept. Files that nobody names harm no one."""
    kinds = {problem.kind for problem in problems}
    return [kind for kind in OUTCOMES if kind in kinds and kind != "extra" and kind not in accept]


def refuse(problems: Collection[Problem], accept: Collection[Accepted], where: Path, listing: Path | None) -> None:
    """Stop where there is such a kind, and say what to write if the study should go on all the same."""
    kinds = refused(problems, accept)
    if not kinds:
        return
    # names of images may name patients: the listing has them, and stays with the data; without one they are arrays
    described = "; ".join(
        f"{OUTCOMES[kind][0]}: "
        f"{_count_and_names(kind, problems) if listing is None else len(_names(kind, problems))} ({kind})"
        for kind in kinds
    )
    accepted = ", ".join(f'"{kind}"' for kind in (*accept, *kinds))
    listed = f" All of them are in {listing}." if listing is not None else ""
    remedy = f"Correct the files or the table.{listed} To go on all the same, write `accept = [{accepted}]` in [data]."
    raise DataError(str(where), f"images {described}", remedy)


def notes(problems: Collection[Problem], total: int) -> list[str]:
    """A line for each kind: how many of `total`, what became of them, and the first names."""
    kinds = {problem.kind for problem in problems}
    return [
        f"images {what}, {outcome}: {_count_and_names(kind, problems, total)}"
        for kind, (what, outcome) in OUTCOMES.items()
        if kind in kinds
    ]


def as_csv(problems: Iterable[Problem]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("problem", "image", "detail"))
    writer.writerows((problem.kind, problem.name, problem.detail) for problem in problems)
    return text.getvalue().encode()


def _names(kind: Kind, problems: Collection[Problem]) -> list[str]:
    return list(dict.fromkeys(problem.name for problem in problems if problem.kind == kind))


def _count_and_names(kind: Kind, problems: Collection[Problem], total: int = 0) -> str:
    names = _names(kind, problems)
    of = f" of {total}" if total and kind != "extra" else ""
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)}{of} ({', '.join(names[:NAMED])}{more})"
