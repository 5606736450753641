"""From predictions to the learning curve: what adapting and training alone give with each fraction of the rows.

Repeats split the same patients again and again, so intervals are widened as everywhere else
(`evaluation.intervals`): by test rows over training rows of the whole split. Fractions of two repeats overlap less than
their whole training rows do, so that intervals of small fractions are, if anything, too wide.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.adaptation.newcomer import Newcomer
from wardround.adaptation.train import WAYS
from wardround.evaluation.comparisons.compare import WORDS, figure_words, in_words, interval_words, why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, RULE, UNKNOWN, correct, difference_of
from wardround.evaluation.intervals import CONFIDENCE, Resampling, summarise_metrics
from wardround.evaluation.metrics import metrics
from wardround.evaluation.scores import score_columns
from wardround.study.schema import METRICS

COMPARED = ("accuracy", "auc", "brier")


def curve_of(predictions: pd.DataFrame, newcomer: Newcomer) -> dict[str, Any]:
    """The part of adapt.json that is computed from predictions.parquet."""
    resampling = Resampling.of(newcomer.evaluation)
    found = figures_of(predictions)
    fractions = [
        {
            "fraction": share,
            "rows": rows_of([len(rows) for rows in by_seed.values()]),
            **{way: summarise_metrics(found[way, share], resampling) for way in WAYS},
            "difference": {
                metric: difference_of(
                    (found["adapted", share] - found["alone", share])[:, METRICS.index(metric)], metric, resampling
                )
                for metric in COMPARED
            },
        }
        for share, by_seed in newcomer.fractions.items()
    ]
    for metric in COMPARED:  # the fractions are one family
        correct([one["difference"][metric] for one in fractions])
    for one in fractions:
        one["sentences"] = {metric: sentence(one, metric) for metric in COMPARED}
    return {
        "fractions": fractions,
        "left_out": [{"fraction": share, "why": why} for share, why in newcomer.left_out.items()],
        "interval": {
            "confidence": CONFIDENCE,
            "method": resampling.method,
            "covers": resampling.covers,
            "correction": RULE,
        },
        "sentences": [conclusion(fractions, metric) for metric in COMPARED],
        "worse": [metric for metric in COMPARED if verdict(fractions[-1]["difference"][metric]) == "worse"],
    }


def figures_of(predictions: pd.DataFrame) -> dict[tuple[str, float], np.ndarray]:
    """By way and fraction: (seeds, metrics)."""
    columns = score_columns(predictions)
    found: dict[tuple[str, float], list[list[float]]] = {}
    grouped: Any = predictions.groupby(["way", "fraction", "seed"], sort=False)
    for (way, share, _), rows in grouped:
        score = rows[columns].to_numpy()
        made = metrics(rows["label"].to_numpy(), score[:, 0] if len(columns) == 1 else score)
        found.setdefault((way, float(share)), []).append([made[name] for name in METRICS])
    return {key: np.array(lines) for key, lines in found.items()}


def rows_of(counts: Sequence[int]) -> dict[str, float]:
    """Patients with several rows make a fraction's rows differ between repeats."""
    return {"mean": float(np.mean(counts)), "least": min(counts), "most": max(counts)}


def verdict(difference: Mapping[str, Any]) -> str:
    """better, worse, none where the interval does not tell, or unknown where there is none."""
    return {GAINS: "better", LOSES: "worse", UNKNOWN: "unknown"}.get(difference["verdict"], "none")


def sentence(one: Mapping[str, Any], metric: str) -> str:
    """One fraction in plain words."""
    word, found = WORDS.get(metric, metric), one["difference"][metric]
    rows = f"With {one['fraction']:.0%} of its training rows ({one['rows']['mean']:.0f})".replace("%", " %")
    if found["difference"] is None:
        return f"{rows} there is no {word}: it is not defined on the test rows."
    means = [figure_words(one[way][metric]["mean"], metric) for way in WAYS]
    said = f"{rows} adapting gives {_article(word)} {word} of {means[0]} and training alone {means[1]}"
    kind = verdict(found)
    if kind == "unknown":
        return f"{said}; {'one repeat gives no interval' if found['seeds'] == 1 else why_unknown(dict(found))}."
    amount = f"{in_words(found['difference'], metric)}, {interval_words(dict(found))}"
    if kind == "none":
        return f"{said}: no evidence of a difference ({amount})."
    return f"{said}: adapting is {kind} ({amount})."


def _article(word: str) -> str:
    return "an" if word[0] in "aA" else "a"


def conclusion(fractions: Sequence[Mapping[str, Any]], metric: str) -> str:
    """All fractions together."""
    word = WORDS.get(metric, metric)
    kinds: dict[str, list[str]] = {}
    for one in fractions:
        kinds.setdefault(verdict(one["difference"][metric]), []).append(f"{100 * one['fraction']:.0f} %")
    parts = [f"{kind} with {_listed(kinds[kind])} of the rows" for kind in ("better", "worse") if kind in kinds]
    told = f"Adapting gives a {' and a '.join(parts)}" if parts else ""
    told = told.replace("better with", f"better {word} with").replace("worse with", f"worse {word} with")
    if "none" in kinds:
        shown = f"no evidence of a difference in {word} with {_listed(kinds['none'])} of the rows"
        told = f"{told}; there is {shown}" if told else f"There is {shown}"
    if "unknown" in kinds:
        shown = f"nothing can be said of {word} with {_listed(kinds['unknown'])} of the rows"
        told = f"{told}; {shown}" if told else shown.capitalize()
    return f"{told}."


def caution(worse: Sequence[str]) -> str:
    """What somebody must read who would use the bundle, where adapting was worse with all rows; else nothing.

    Several metrics are not corrected for here: a warning too many costs less than one that is missing.
    """
    if not worse:
        return ""
    figures = _listed([WORDS.get(metric, metric) for metric in worse])
    return (
        f"Adapting was worse than training alone at this hospital: with all training rows it gave a worse {figures}. "
        "Use a model that is trained here alone, unless there is a reason not to."
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
