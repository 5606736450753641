"""What is wrong with single images. Nothing is dropped in silence: a study stops, or goes on and says so."""

import csv
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Literal

from wardround.core.errors import DataError
from wardround.core.notices import Notice

Accepted = Literal["missing", "unreadable", "16-bit", "colour", "other-size", "unknown-finding"]
Kind = Literal[Accepted, "extra", "no-image"]
HARMLESS: tuple[Kind, ...] = ("extra", "no-image")  # files that nobody names

# These are converted without loss of meaning: by the full range, to luminance, by resizing.
CONVERTED: tuple[Accepted, ...] = ("16-bit", "colour", "other-size")
NAMED = 5  # file names in a message; all of them are in problems.csv
LISTING = "problems.csv"

PROBLEMS: dict[Kind, str] = {
    "missing": "that the table names have no file",
    "unreadable": "cannot be read, or are not one grey picture",
    "16-bit": "have 16 bits per pixel",
    "colour": "are in colour or have transparency",
    "other-size": "differ in size from most",
    "unknown-finding": "have a finding that is not known, or none at all",
    "extra": "are named by no table",
    "no-image": "are no images by their endings",
}


@dataclass(frozen=True)
class Problem:
    kind: Kind
    name: str  # of the image
    detail: str = ""  # for the listing, which stays with the data; never for a message


def refused(problems: Collection[Problem], accept: Collection[Accepted]) -> list[Kind]:
    """Kinds of problems that are there and that the study does not accept."""
    kinds = {problem.kind for problem in problems}
    return [kind for kind in PROBLEMS if kind in kinds and kind not in (*HARMLESS, *accept)]


def refuse(problems: Collection[Problem], accept: Collection[Accepted], where: Path, listing: Path | None) -> None:
    """Stop where there is such a kind, and say what to write if the study should go on all the same."""
    kinds = refused(problems, accept)
    if not kinds:
        return
    # names of images may name patients: the listing has them, and stays with the data; without one they are arrays
    described = "; ".join(
        f"{PROBLEMS[kind]}: "
        f"{_count_and_names(kind, problems) if listing is None else len(_names(kind, problems))} ({kind})"
        for kind in kinds
    )
    accepted = ", ".join(f'"{kind}"' for kind in (*accept, *kinds))
    listed = f" All of them are in {listing}." if listing is not None else ""
    remedy = f"Correct the files or the table.{listed} To go on all the same, write `accept = [{accepted}]` in [data]."
    raise DataError(str(where), f"images {described}", remedy)


def problem_notices(problems: Collection[Problem], total: int) -> list[Notice]:
    """One for each kind: how many of `total`, and the first names."""
    notices = []
    for kind in PROBLEMS:
        names = _names(kind, problems)
        of = {"of": total} if total and kind not in HARMLESS else {}
        if names:
            counts, first = {"images": len(names), **of}, tuple(names[:NAMED])
            notices.append(Notice(f"image-{kind}", "info", counts=counts, files=first))
    return notices


def as_csv(problems: Iterable[Problem]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("problem", "image", "detail"))
    writer.writerows((problem.kind, problem.name, problem.detail) for problem in problems)
    return text.getvalue().encode()


def _names(kind: Kind, problems: Collection[Problem]) -> list[str]:
    return list(dict.fromkeys(problem.name for problem in problems if problem.kind == kind))


def _count_and_names(kind: Kind, problems: Collection[Problem]) -> str:
    names = _names(kind, problems)
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} ({', '.join(names[:NAMED])}{more})"
