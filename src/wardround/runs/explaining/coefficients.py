"""Coefficients of a linear model over seeds, with the ratios that they mean."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from wardround.evaluation.intervals import Resampling, mean_interval
from wardround.explain.linear_shapley import line
from wardround.explain.method import Scorer
from wardround.tasks import Task

RATIOS = {"log odds": "odds ratio", "log rate": "rate ratio"}  # by the scale of a score
INTERCEPT = "intercept"
Coefficients = Mapping[tuple[str, str], float]  # by output and term


def of_scorer(scorer: Scorer, terms: Sequence[str], outputs: Sequence[str], dtype: torch.dtype) -> Coefficients:
    """Of each prepared number. Among several classes a score by itself means nothing: coefficients are those against
    the mean of all classes."""
    like = torch.zeros(1, len(terms), dtype=dtype)
    lines = [line(scorer.of(output), like) for output in range(len(outputs))]
    slopes = np.array([[*slope, intercept] for slope, intercept in lines])
    if scorer.model.task.link == "log odds against the other classes":
        slopes = slopes - slopes.mean(axis=0)
    names = (*terms, INTERCEPT)
    return {
        (output, term): float(value)
        for output, own in zip(outputs, slopes, strict=True)
        for term, value in zip(names, own, strict=True)
    }


def over_seeds(of_seeds: Sequence[Coefficients], resampling: Resampling | None, task: Task) -> list[dict[str, Any]]:
    """A line for each term of each output. Seeds without a term, such as a level that none of their rows had, say
    nothing of it. `resampling`: how much seeds share; None of one model alone."""
    ratio = RATIOS.get(task.link)
    lines = []
    for output, term in dict.fromkeys(key for own in of_seeds for key in own):
        values = [own[output, term] for own in of_seeds if (output, term) in own]
        interval = None if resampling is None else mean_interval(values, resampling)
        estimate = float(np.mean(values))
        with_ratio = ratio is not None and term != INTERCEPT
        lines.append(
            {
                "output": output,
                "term": term,
                "seeds": len(values),
                "coefficient": estimate,
                "interval": None if interval is None else list(interval),
                "ratio": ratio_of(estimate) if with_ratio else None,
                "ratio_interval": [ratio_of(end) for end in interval] if with_ratio and interval else None,
            }
        )
    return lines


def ratio_of(value: float) -> float | None:
    try:
        return math.exp(value)
    except OverflowError:
        return None
