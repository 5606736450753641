"""Training that went wrong without ending in numbers that are none: too high or too low a learning rate, mostly.

The rules, by arm and seed; the first that applies is told, with the number of seeds:

* constant     scores of all test rows are within 0.001 of each other
* saturated    the test loss after the last round is more than 5 % above that of the constant answer, which gives every
               row the shares of the classes among the test rows, and 1 % of the scores or more are nearly 0 or 1: the
               model is sure, and wrong
* unfinished   the same loss, without such scores: training stopped early, as it does with a rare outcome and few rounds
* rising       the mean training loss of the last tenth of the rounds is more than 5 % above that of the first round
* not moving   the same has fallen by less than 0.1 %

The last two are asked from 5 rounds on. Seeds that diverged are told of elsewhere.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from wardround.evaluation.scores import label_columns, score_columns

SAME = 1e-3
WORSE = 1.05
STILL = 0.999
FEWEST_ROUNDS = 5
AT_THE_ENDS = 1e-3  # a score so near to 0 or 1 is at its end
SURE = 0.01  # of the scores at their ends: the model is sure of something
WORDS = {
    "constant": "gives all test rows nearly the same score",
    "saturated": "has a higher test loss than the same answer for everybody would have",
    "unfinished": "has a higher test loss than the same answer for everybody would have, but is sure of nothing",
    "rising": "has a higher training loss at the end than after the first round",
    "not moving": "has hardly changed its training loss",
}
ADVICE = {
    "constant": "nothing was learnt; try another learning rate (`lr`)",
    "saturated": "the learning rate (`lr`) may be too high, or the rows too few for the model",
    "unfinished": "training may have stopped too early: try more `rounds` or a higher learning rate (`lr`)",
    "rising": "the learning rate (`lr`) may be too high",
    "not moving": "the learning rate (`lr`) may be too low, or the rounds too few",
}


def training_notices(records: pd.DataFrame, predictions: pd.DataFrame | None = None) -> list[str]:
    """A line for each arm and rule. Across hospitals there are no predictions: only rules about losses apply."""
    return [
        f"{arm}: with {len(shares)} of the seeds it {WORDS[rule]}{_at_the_ends(rule, shares)}; {ADVICE[rule]}"
        for (arm, rule), shares in _by_rule(records, predictions).items()
    ]


def training_problems(records: pd.DataFrame, predictions: pd.DataFrame | None = None) -> dict[str, dict[str, int]]:
    """By rule, then arm: with how many seeds."""
    found: dict[str, dict[str, int]] = {}
    for (arm, rule), shares in _by_rule(records, predictions).items():
        found.setdefault(rule, {})[arm] = len(shares)
    return found


def _by_rule(records: pd.DataFrame, predictions: pd.DataFrame | None) -> dict[tuple[str, str], list[float]]:
    seeds: dict[tuple[str, str], list[float]] = {}
    tested = {} if predictions is None else dict(iter(predictions.groupby(["arm", "seed"], sort=False)))
    for key, rounds in records.groupby(["arm", "seed"], sort=False):
        rule = next(_rules(rounds.sort_values("round"), tested.get(key)), None)
        if rule is not None:
            seeds.setdefault((str(rounds["arm"].iloc[0]), rule[0]), []).append(rule[1])
    return seeds


def _at_the_ends(rule: str, shares: list[float]) -> str:
    share = float(np.mean(shares))
    return f", and {share:.0%} of its scores are nearly 0 or 1" if rule == "saturated" and share > 0 else ""


def _rules(rounds: pd.DataFrame, tested: pd.DataFrame | None) -> Iterator[tuple[str, float]]:
    """Rules that apply to one arm with one seed, and the share of scores at their ends."""
    if tested is not None and len(tested) > 1:
        scores = tested[score_columns(tested)].to_numpy(dtype=float)
        if np.isnan(scores).any():
            return
        if (scores.max(axis=0) - scores.min(axis=0) < SAME).all():
            yield "constant", 0.0
        last = rounds["test_loss"].iloc[-1] if "test_loss" in rounds else np.nan
        if pd.notna(last) and last > WORSE * constant_loss(tested):
            ends = float((np.minimum(scores, 1 - scores) < AT_THE_ENDS).mean())
            yield ("saturated", ends) if ends >= SURE else ("unfinished", 0.0)
    losses = rounds["loss"].to_numpy(dtype=float)
    if len(losses) < FEWEST_ROUNDS or np.isnan(losses).any() or not losses[0] > 0:
        return
    end = losses[-max(1, len(losses) // 10) :].mean()
    if end > WORSE * losses[0]:
        yield "rising", 0.0
    elif end > STILL * losses[0]:
        yield "not moving", 0.0


def constant_loss(tested: pd.DataFrame) -> float:
    """Mean cross-entropy of an answer that is the same for everybody: the shares of the classes among these rows. Of
    findings the mean over those that some rows have and others do not."""
    if "label" in tested:
        shares = tested["label"].value_counts(normalize=True).to_numpy()
        return _entropy(shares)
    labels = tested[label_columns(tested)].to_numpy(dtype=float)
    found = []
    for column in labels.T:
        share = (column[column >= 0] == 1).mean() if (column >= 0).any() else 0.0
        found.append(_entropy(np.array([share, 1 - share])))
    return float(np.mean(found))


def _entropy(shares: np.ndarray) -> float:
    there = shares[shares > 0]
    return float(-(there * np.log(there)).sum())
