"""Why a regression has no answer, in words that name its columns."""

from collections.abc import Sequence

import numpy as np

from wardround.core.errors import DataError, StudyError, shown

COLLINEAR = 1e-10  # share of a column's variance that the others leave
NAMED = 0.1  # of the largest part: smaller ones are not named
MOST_NAMED = 5


def refuse_few_rows(patients: int, columns: Sequence[str]) -> None:
    if patients <= len(columns):
        problem = f"makes {len(columns)} columns, and not more patients than that count"
        raise DataError("formula", problem, "Use fewer columns, or ask more hospitals.")


def refuse_constant(names: Sequence[str], spread: np.ndarray, centre: np.ndarray, least: float) -> None:
    for name, width, middle in list(zip(names, spread, centre, strict=True))[1:]:
        if width <= least * max(abs(middle), 1e-300):
            problem = f"{shown(name)} is the same in all rows that count, so that it explains nothing"
            raise StudyError("formula", problem, "Leave it out.")


def refuse_collinear(names: Sequence[str], correlation: np.ndarray) -> None:
    """Column by column: what those before leave of its variance."""
    kept: list[int] = []
    for place, name in enumerate(names):
        own = correlation[place, place]
        if own == 0:  # the intercept after centring
            continue
        if kept:
            among, with_own = correlation[np.ix_(kept, kept)], correlation[kept, place]
            weights = np.linalg.solve(among, with_own)
            if own - with_own @ weights <= COLLINEAR * own:
                others = [names[kept[n]] for n in np.flatnonzero(np.abs(weights) > 1e-6)]
                problem = f"{shown(name)} follows from {_listed(others)}: no regression can tell them apart"
                raise StudyError("formula", problem, "Leave one of them out.")
        kept.append(place)


def separation_error(outcome: str, names: Sequence[str], step: np.ndarray, complete: bool, family: str) -> StudyError:
    """`step` is a direction in which the likelihood rises for ever."""
    sizes = np.abs(step)
    order = [place for place in np.argsort(-sizes) if place or len(names) == 1]
    involved = [names[place] for place in order if sizes[place] >= NAMED * sizes[order[0]]]
    if family == "logistic":
        how = "without any error (complete separation)" if complete else "without error in some rows (separation)"
        remedy = "Write firth = true, or leave the term out."
    else:
        how, remedy = "to be 0 wherever it differs (separation)", "Leave the term out, or join it with another level."
    problem = f"{_listed(involved)} tells {shown(outcome)} {how}, so that no finite coefficient fits best"
    return StudyError("formula", problem, remedy)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(shown, names[:MOST_NAMED])) + more
