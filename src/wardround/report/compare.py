"""Several runs side by side: what differs in their studies, and the arms that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from string import ascii_uppercase
from typing import Any, cast

import numpy as np
import pandas as pd

from wardround.core.errors import RunError, as_path
from wardround.evaluation.answer import primary_word
from wardround.evaluation.comparisons.measures import recorded_task
from wardround.evaluation.outcome_results import own_columns
from wardround.evaluation.scores import Scores, label_columns, within_sites
from wardround.report.arms import differing
from wardround.report.evidence import STAY, read_results
from wardround.report.headline import headline_of
from wardround.report.render.table import Format, Table, listed, make_table
from wardround.runs.folder import MISFITS, RunFolder
from wardround.study.sweeps import flatten
from wardround.tasks import METRIC_FACTS, Outcomes, Task, read_task


@dataclass(frozen=True)
class Comparison:
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    """A run that is compared, and the letter that stands for it."""

    title: str
    folder: RunFolder
    results: dict[str, Any]


def compare_runs(paths: Sequence[str | PathLike[str]]) -> Comparison:
    """Compare two or more complete runs, or their folders.

    Arms with one name stand side by side, and are paired where test rows are the same.
    """
    folders = list(dict.fromkeys(as_path(path, "run", RunError).resolve() for path in paths))
    if not 2 <= len(folders) <= len(ascii_uppercase):
        raise RunError("compare", f"needs two runs or more, found {len(folders)}", "Name two or more run folders.")
    runs = [
        _Run(title, folder, read_results(folder))
        for title, folder in zip(ascii_uppercase, map(RunFolder, folders), strict=False)
    ]
    _refuse_other_outcomes(runs)
    try:
        paired, notes = _pair(runs)
        tables = (_settings(runs), _means(runs), paired)
    except MISFITS as error:
        problem = f"one of the runs does not hold what a run of this version writes ({type(error).__name__})"
        raise RunError("compare", problem, "Make the report of each: it says which run it is.") from None
    named = [f"{run.title} is {run.folder.path.name}" for run in runs]
    return Comparison(tuple(table for table in tables if table.rows), (*named, *notes))


def _refuse_other_outcomes(runs: Sequence[_Run]) -> None:
    """Metrics of a number and of classes have nothing in common, and a number has its own unit."""
    about = {run.title: recorded_task(run.results) for run in runs}
    (title, first), *others = about.items()
    for other, task in others:
        if task.metric_names != first.metric_names:
            problem = f"{title} predicts {first.words}, and {other} {task.words}: they have no metric in common"
            raise RunError("compare", problem, "Compare runs that predict the same.")
        if task.report.unit != first.report.unit:
            units = [known.report.unit or "no unit" for known in (first, task)]
            problem = f"{title} has figures in {units[0]}, {other} in {units[1]}"
            raise RunError("compare", problem, "Compare runs that predict the same, in the same unit.")


def _settings(runs: Sequence[_Run]) -> Table:
    studies = [run.folder.read_study() for run in runs]
    documents = [flatten({k: v for k, v in study.items() if k not in ("arms", "claims")}) for study in studies]
    rows = [[key, *(str(document.get(key, "–")) for document in documents)] for key in differing(documents)]
    return make_table(
        "settings", "What differs in the studies", dict.fromkeys(["setting", *(run.title for run in runs)]), rows
    )


def _means(runs: Sequence[_Run]) -> Table:
    arms = dict.fromkeys(arm for run in runs for arm in run.results["arms"])
    first, within = runs[0].results, _within_sites(runs)
    metrics = list(dict.fromkeys((first["primary_metric"], *recorded_task(first).report.runs)))
    rows = [[arm, *(_mean(run.results, arm, metric, within) for metric in metrics for run in runs)] for arm in arms]
    columns: dict[str, Format | None] = {"arm": None}
    in_per_cent: list[str] = []
    for metric in metrics:
        name = f"{metric} within sites" if METRIC_FACTS[metric].ranked and within else metric
        headline = headline_of(first, metric)
        in_per_cent += [headline.word] if headline.scale == 100 else []
        unit = f", {headline.measure.unit}" if headline.measure.unit else ""
        columns |= {f"{name}{unit}, {run.title}": headline.shown for run in runs}
    note = f"{listed(in_per_cent)} in per cent." if in_per_cent else ""
    return make_table("figures", "Means over seeds", columns, rows, note[:1].upper() + note[1:])


def _within_sites(runs: Sequence[_Run]) -> bool:
    return any(run.results["primary_within_sites"] for run in runs)


def _mean(results: Any, arm: str, metric: str, within: bool) -> float | None:
    if arm not in results["arms"]:
        return None
    place = "within_sites" if within and METRIC_FACTS[metric].ranked else "metrics"
    mean: float | None = results["arms"][arm][place][metric]["mean"]
    return mean


def _pair(runs: Sequence[_Run]) -> tuple[Table, list[str]]:
    """Every further run against the first, and why some cannot be paired."""
    first, notes, rows = runs[0], [], []
    first_rows, headline, task = _predictions(first), headline_of(first.results), recorded_task(first.results)
    for run in runs[1:]:
        arms = [arm for arm in first.results["arms"] if arm in run.results["arms"]]
        other_rows = _predictions(run)
        if not arms:
            notes.append(f"{run.title}: no arm has the same name as one in {first.title}")
        elif first_rows is None or other_rows is None:
            notes.append(f"{run.title}: not paired with {first.title}: in a run across hospitals, {STAY}")
        else:
            within = _within_sites([first, run])
            paired = {arm: _difference(first_rows, other_rows, arm, headline.metric, within, task) for arm in arms}
            rows += [[arm, run.title, *difference] for arm, difference in paired.items() if difference is not None]
            if None in paired.values():
                why = f"some arms were tested on other rows than in {first.title}; those are not paired"
                notes.append(f"{run.title}: {why}")
    word = primary_word(first.results)
    return make_table(
        "paired",
        "Paired differences",
        {
            "arm": None,
            "run": None,
            headline.points: headline.difference,
            "SD over seeds": headline.spread,
            "seeds": str,
        },
        rows,
        f"{word[0].upper()}{word[1:]} less that in {first.title}, with the same seeds and test rows.{headline.point}",
    ), notes


def _predictions(run: _Run) -> pd.DataFrame | None:
    """None where they are at the hospitals. Of several outcomes those of the first, which figures are about."""
    if run.folder.deployed:
        return None
    predictions, outcome = run.folder.predictions(), run.results.get("outcome")
    return own_columns(predictions, cast(Outcomes, read_task(run.results["task"])), outcome) if outcome else predictions


def _difference(
    first: pd.DataFrame, second: pd.DataFrame, arm: str, metric: str, within: bool, task: Task
) -> list[Any] | None:
    """Mean and SD over seeds, and their number; None where the test rows are not the same."""
    labels, keys = label_columns(first), ["seed", "site", "row"]
    if set(first) != set(second):
        return None
    a, b = (table[table["arm"] == arm].sort_values(keys, ignore_index=True) for table in (first, second))
    if not len(a) or not a[[*keys, *labels]].equals(b[[*keys, *labels]]):
        return None
    scores = [Scores.of(table, task=task) for table in (a, b)]
    metrics = [
        within_sites(each.by_site[arm], len(each.metric_names)) if within else each.overall[arm] for each in scores
    ]
    names = scores[0].metric_names
    before, after = (values[:, names.index(metric)] for values in metrics)
    known = (after - before)[~np.isnan(after - before)]  # a model that has diverged has none
    if not len(known):
        return None
    return [float(known.mean()), float(np.std(known, ddof=1)) if len(known) > 1 else None, len(known)]
