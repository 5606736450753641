"""Several runs side by side: what differs in their studies, and the arms that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.errors import RunError, as_path
from wardround.evaluation.answer import primary_word
from wardround.evaluation.comparisons.compare import RANKED
from wardround.evaluation.scores import Scores, label_columns, within_sites
from wardround.report.evidence import STAY, read_results
from wardround.report.headline import headline_of
from wardround.report.render.table import Format, Table, decimals, make_table, percent, points
from wardround.runs.folder import MISFITS, RunFolder
from wardround.study.schema import METRICS
from wardround.study.sweeps import flatten

SHOWN = {"accuracy": percent, "auc": decimals, "f1": decimals, "brier": decimals}


@dataclass(frozen=True)
class Comparison:
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def compare_runs(paths: Sequence[str | Path]) -> Comparison:
    """Two or more complete runs. Arms with one name stand side by side, and are paired where test rows are the same."""
    given = [as_path(path, "run", RunError).resolve() for path in paths]
    folders = [RunFolder(path) for path in dict.fromkeys(given)]
    if not 2 <= len(folders) <= len(ascii_uppercase):
        raise RunError("compare", f"needs two runs or more, found {len(folders)}", "Name two or more run folders.")
    results = [read_results(folder) for folder in folders]
    titles = ascii_uppercase[: len(folders)]
    try:
        differing = _settings(folders, titles)
        figures, paired, notes = _figures(folders, results, titles)
    except MISFITS as error:
        problem = f"one of the runs does not hold what a run of this version writes ({type(error).__name__})"
        raise RunError("compare", problem, "Make the report of each: it says which run it is.") from None
    named = [f"{title} is {folder.path.name}" for title, folder in zip(titles, folders, strict=True)]
    return Comparison(tuple(table for table in (differing, figures, paired) if table.rows), (*named, *notes))


def _settings(folders: Sequence[RunFolder], titles: Sequence[str]) -> Table:
    documents = []
    for folder in folders:
        document = folder.read_study()
        documents.append(flatten({key: value for key, value in document.items() if key not in ("arms", "claims")}))
    keys = list(dict.fromkeys(key for document in documents for key in document))
    rows = [
        [key, *(str(document.get(key, "–")) for document in documents)]
        for key in keys
        if len({repr(document.get(key)) for document in documents}) > 1
    ]
    return make_table("settings", "What differs in the studies", dict.fromkeys(["setting", *titles]), rows)


def _figures(
    folders: Sequence[RunFolder], results: Sequence[Any], titles: Sequence[str]
) -> tuple[Table, Table, list[str]]:
    arms = list(dict.fromkeys(arm for one in results for arm in one["arms"]))
    headline = headline_of(results[0])
    metrics = sorted(SHOWN, key=lambda metric: metric != headline.metric)
    columns: dict[str, Format | None] = {"arm": None}
    for metric in metrics:
        name = (
            f"{metric} within sites" if metric in RANKED and any(r["primary_within_sites"] for r in results) else metric
        )
        columns |= {f"{name}, {title}": SHOWN[metric] for title in titles}
    within = any(one["primary_within_sites"] for one in results)  # in all runs alike, or they cannot be compared
    rows = [[arm, *(_mean(one, arm, metric, within) for metric in metrics for one in results)] for arm in arms]
    figures = make_table("figures", "Means over seeds", columns, rows, "Accuracy in per cent.")
    first, notes, paired = _rows(folders[0]), [], []
    for title, folder, one in zip(titles[1:], folders[1:], results[1:], strict=True):
        other = _rows(folder)
        shared = [arm for arm in arms if arm in one["arms"] and arm in results[0]["arms"]]
        if not shared:
            notes.append(f"{title}: no arm has the same name as one in {titles[0]}")
            continue
        if first is None or other is None:
            notes.append(f"{title}: not paired with {titles[0]}: in a run across hospitals, {STAY}")
            continue
        within = any(run["primary_within_sites"] for run in (results[0], one))
        found = [(arm, _paired(first, other, arm, headline.metric, within)) for arm in shared]
        paired += [[arm, title, *difference] for arm, difference in found if difference is not None]
        if any(difference is None for _, difference in found):
            notes.append(f"{title}: some arms were tested on other rows than in {titles[0]}; those are not paired")
    headings: dict[str, Format | None] = {
        "arm": None,
        "run": None,
        "points": points,
        "SD over seeds": percent,
        "seeds": str,
    }
    word = primary_word(results[0])
    note = f"{word[0].upper()}{word[1:]} less that in {titles[0]}, with the same seeds and test rows.{headline.point}"
    return figures, make_table("paired", "Paired differences", headings, paired, note), notes


def _rows(folder: RunFolder) -> pd.DataFrame | None:
    """None where they are at the hospitals."""
    return None if folder.deployed else folder.predictions()


def _mean(results: Any, arm: str, metric: str, within: bool) -> float | None:
    if arm not in results["arms"]:
        return None
    place = "within_sites" if within and metric in RANKED else "metrics"
    mean: float | None = results["arms"][arm][place][metric]["mean"]
    return mean


def _paired(first: pd.DataFrame, second: pd.DataFrame, arm: str, metric: str, within: bool) -> list[Any] | None:
    """Mean and SD over seeds of the difference; None where the test rows are not the same."""
    labels, keys = label_columns(first), ["seed", "site", "row"]
    if set(first) != set(second):
        return None
    a, b = (table[table["arm"] == arm].sort_values(keys, ignore_index=True) for table in (first, second))
    if not len(a) or not a[[*keys, *labels]].equals(b[[*keys, *labels]]):
        return None
    both = [Scores.of(table) for table in (a, b)]
    lines = [within_sites(one.by_site[arm]) if within else one.overall[arm] for one in both]
    figures = [line[:, METRICS.index(metric)] for line in lines]
    difference = figures[1] - figures[0]
    known = difference[~np.isnan(difference)]  # a model that has diverged has none
    if not len(known):
        return None
    return [float(known.mean()), float(np.std(known, ddof=1)) if len(known) > 1 else None, len(known)]
