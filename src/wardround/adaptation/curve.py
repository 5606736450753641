"""The learning curve: results of adapting and of training alone with each fraction of the rows.

Repeats resample the same patients, so intervals are widened as everywhere else (`evaluation.intervals`): by the ratio
of test to training rows of the whole split. Small fractions of two repeats overlap less than whole training sets do, so
their intervals are, if anything, too wide.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.adaptation.newcomer import Newcomer
from wardround.adaptation.train import WAYS
from wardround.core.notices.code import listed
from wardround.evaluation.comparisons.compare import figure_words, in_words, interval_words, why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, RULE, UNKNOWN, correct, difference_of
from wardround.evaluation.intervals import CONFIDENCE, Resampling, summarise_metrics
from wardround.evaluation.scores import labels_and_scores
from wardround.tasks import METRIC_FACTS, Task


def curve_of(predictions: pd.DataFrame, newcomer: Newcomer) -> dict[str, Any]:
    """The part of adapt.json that is computed from the predictions."""
    resampling, task = Resampling.of(newcomer.evaluation), newcomer.cohort.records.task
    names, compared = task.metric_names, task.at_sites
    values = metric_values(task, predictions)
    fractions = [
        {
            "fraction": share,
            "rows": rows_of([len(rows) for rows in by_seed.values()]),
            **{way: summarise_metrics(names, values[way, share], resampling) for way in WAYS},
            "difference": {
                metric: difference_of(
                    (values["adapted", share] - values["alone", share])[:, names.index(metric)], metric, resampling
                )
                for metric in compared
            },
        }
        for share, by_seed in newcomer.fractions.items()
    ]
    for metric in compared:  # the fractions are one family of tests
        correct([entry["difference"][metric] for entry in fractions])
    for entry in fractions:
        entry["sentences"] = {metric: sentence(entry, metric) for metric in compared}
    return {
        "fractions": fractions,
        "left_out": [{"fraction": share, "why": why} for share, why in newcomer.left_out.items()],
        "interval": {
            "confidence": CONFIDENCE,
            "method": resampling.method,
            "covers": resampling.covers,
            "correction": RULE,
        },
        "metrics": [task.primary, *(metric for metric in compared if metric != task.primary)],
        "sentences": [conclusion(fractions, metric) for metric in compared],
        "worse": [metric for metric in compared if verdict(fractions[-1]["difference"][metric]) == "worse"],
    }


def metric_values(task: Task, predictions: pd.DataFrame) -> dict[tuple[str, float], np.ndarray]:
    """By way and fraction: (seeds, metrics)."""
    values: dict[tuple[str, float], list[list[float]]] = {}
    grouped: Any = predictions.groupby(["way", "fraction", "seed"], sort=False)
    for (way, share, _), rows in grouped:
        of_seed = task.figures(*labels_and_scores(rows))
        values.setdefault((way, float(share)), []).append([of_seed[name] for name in task.metric_names])
    return {key: np.array(lines) for key, lines in values.items()}


def rows_of(counts: Sequence[int]) -> dict[str, float]:
    """The number of rows differs between repeats where patients have several rows."""
    return {"mean": float(np.mean(counts)), "least": min(counts), "most": max(counts)}


def verdict(difference: Mapping[str, Any]) -> str:
    """better, worse, none (the interval contains 0), or unknown (there is no interval)."""
    return {GAINS: "better", LOSES: "worse", UNKNOWN: "unknown"}.get(difference["verdict"], "none")


def sentence(entry: Mapping[str, Any], metric: str) -> str:
    """The comparison at one fraction."""
    word, difference = METRIC_FACTS[metric].words, entry["difference"][metric]
    rows = f"With {entry['fraction']:.0%} of its training rows ({entry['rows']['mean']:.0f})".replace("%", " %")
    if difference["difference"] is None:
        return f"{rows} there is no {word}: it is not defined on the test rows."
    means = [figure_words(entry[way][metric]["mean"], metric) for way in WAYS]
    comparison = (
        f"{rows} adapting gives {'an' if word[0] in 'aA' else 'a'} {word} of {means[0]} and training alone {means[1]}"
    )
    kind = verdict(difference)
    if kind == "unknown":
        reason = "one repeat gives no interval" if difference["seeds"] == 1 else why_unknown(dict(difference))
        return f"{comparison}; {reason}."
    amount = f"{in_words(difference['difference'], metric)}, {interval_words(dict(difference))}"
    if kind == "none":
        return f"{comparison}: no evidence of a difference ({amount})."
    return f"{comparison}: adapting is {kind} ({amount})."


def conclusion(fractions: Sequence[Mapping[str, Any]], metric: str) -> str:
    """The comparison over all fractions."""
    word = METRIC_FACTS[metric].words
    kinds: dict[str, list[str]] = {}
    for entry in fractions:
        kinds.setdefault(verdict(entry["difference"][metric]), []).append(f"{100 * entry['fraction']:.0f} %")
    parts = [f"{kind} with {listed(kinds[kind])} of the rows" for kind in ("better", "worse") if kind in kinds]
    text = f"Adapting gives a {' and a '.join(parts)}" if parts else ""
    text = text.replace("better with", f"better {word} with").replace("worse with", f"worse {word} with")
    if "none" in kinds:
        clause = f"no evidence of a difference in {word} with {listed(kinds['none'])} of the rows"
        text = f"{text}; there is {clause}" if text else f"There is {clause}"
    if "unknown" in kinds:
        clause = f"nothing can be said of {word} with {listed(kinds['unknown'])} of the rows"
        text = f"{text}; {clause}" if text else clause.capitalize()
    return f"{text}."


def caution(worse: Sequence[str]) -> str:
    """A warning for users of the bundle if adapting was worse with all rows; otherwise empty.

    Not corrected for several metrics: a false warning costs less than a missing one.
    """
    if not worse:
        return ""
    figures = listed([METRIC_FACTS[metric].words for metric in worse])
    return (
        f"Adapting was worse than training alone at this hospital: with all training rows it gave a worse {figures}. "
        "Use a model trained at this hospital alone unless you have a reason not to."
    )
