"""Who was in the training rows? Two attacks on a finished model, as pure functions of losses.

* By threshold: rows on which the loss is low were trained on (Yeom et al., CSF 2018, arXiv:1709.01604).
* By likelihood ratio: shadow models are trained with and without each row, and a row's loss is compared with what both
  kinds of shadow models have on it (Carlini et al., S&P 2022, arXiv:2112.03570: the online attack).

What counts is how many are found out while hardly anybody is accused wrongly; the area under the curve alone hides it.
"""

from dataclasses import dataclass

import numpy as np

FALSE_ALARMS = (0.001, 0.01)
RESAMPLES = 400
FEW_SHADOWS = 64  # with fewer on each side a row's own variance is too uncertain, and one variance serves all rows
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Caught:
    """How many members an attack finds while it accuses at most this share of the others."""

    false_alarms: float
    share: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Membership:
    """How well scores tell members from others. 0.5 is chance."""

    auc: float
    interval: tuple[float, float]
    members: int  # rows
    others: int
    caught: tuple[Caught, ...]  # for shares of the others that are at least one row


def measure(
    members: np.ndarray,
    others: np.ndarray,
    people: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> Membership:
    """From scores that are higher where the attack believes in membership.

    The interval is by drawing patients again, with all rows of each; `people` are the patients of both kinds of rows.
    """
    tail = 100 * (1 - confidence) / 2
    drawn = [
        auc(_resampled(members, people[0], rng), _resampled(others, people[1], rng)) for _ in range(_resamples(members))
    ]
    low, high = np.percentile(drawn, [tail, 100 - tail])
    caught = tuple(
        _caught(members, others, allowed, confidence) for allowed in FALSE_ALARMS if len(others) * allowed >= 1
    )
    return Membership(auc(members, others), (float(low), float(high)), len(members), len(others), caught)


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The probability that a member scores above one who is not; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, side="left")
    not_above = np.searchsorted(ordered, members, side="right")
    return float((below + not_above).mean() / (2 * len(others)))


def _caught(members: np.ndarray, others: np.ndarray, allowed: float, confidence: float) -> Caught:
    from wardround.attacks.bounds import interval

    wrong = int(np.floor(len(others) * allowed))
    threshold = np.sort(others)[-wrong - 1]  # so many score above it, or fewer where some are tied
    found = int((members > threshold).sum())
    low, high = interval(found, len(members), confidence)
    return Caught(allowed, found / len(members), (float(low), float(high)))


def _resamples(members: np.ndarray) -> int:
    return RESAMPLES if len(members) < 10_000 else RESAMPLES // 4


def _resampled(scores: np.ndarray, people: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    names, place = np.unique(people, return_inverse=True)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)))
    return np.repeat(scores, drawn[place])


def confidence_scores(losses: np.ndarray) -> np.ndarray:
    """The logit of the probability that a model gives the truth, log(p / (1 - p)) with p = e^-loss: nearly normal."""
    bounded = np.clip(np.asarray(losses, dtype=np.float64), 1e-12, 700.0)
    return np.asarray(-bounded - np.log(-np.expm1(-bounded)))


def likelihood_ratio(target: np.ndarray, shadows: np.ndarray, present: np.ndarray) -> np.ndarray:
    """How much likelier each row's confidence is if it was trained on.

    `target` has the attacked model's confidence on each row; `shadows` (models, rows) those of the shadow models;
    `present` which of these had the row. A row that all or no shadow models had gets the mean of the others' centres.
    """
    inside, outside = present.sum(0), (~present).sum(0)
    centre_in, centre_out = _centres(shadows, present), _centres(shadows, ~present)
    few = min(inside.min(), outside.min()) < FEW_SHADOWS
    spread_in = _spreads(shadows, present, centre_in, few)
    spread_out = _spreads(shadows, ~present, centre_out, few)
    return np.asarray(_log_density(target, centre_in, spread_in) - _log_density(target, centre_out, spread_out))


def _centres(shadows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    counts = chosen.sum(0)
    sums = np.where(chosen, shadows, 0.0).sum(0)
    known = counts > 0
    everywhere = (sums[known] / counts[known]).mean() if known.any() else 0.0
    return np.where(known, sums / np.maximum(counts, 1), everywhere)


def _spreads(shadows: np.ndarray, chosen: np.ndarray, centre: np.ndarray, together: bool) -> np.ndarray:
    squares = np.where(chosen, (shadows - centre) ** 2, 0.0)
    counts = np.maximum(chosen.sum(0) - 1, 0)
    if together:
        pooled = squares.sum() / max(int(counts.sum()), 1)
        return np.full(shadows.shape[1], max(float(np.sqrt(pooled)), LEAST_SPREAD))
    return np.asarray(np.maximum(np.sqrt(squares.sum(0) / counts), LEAST_SPREAD))


def _log_density(value: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Of a normal distribution, without the constant that both kinds of shadow models share."""
    return np.asarray(-((value - centre) ** 2) / (2 * spread**2) - np.log(spread))


def halves(people: np.ndarray, shadows: int, rng: np.random.Generator) -> np.ndarray:
    """Which rows each shadow model has (shadows, rows): all rows of half of the patients.

    Shadow models come in pairs that share no patient, so that every row is in half of them.
    """
    names, place = np.unique(people, return_inverse=True)
    chosen = np.zeros((shadows, len(names)), dtype=bool)
    for number in range(0, shadows, 2):
        half = rng.permutation(len(names))[: len(names) // 2]
        chosen[number, half] = True
        if number + 1 < shadows:
            chosen[number + 1] = ~chosen[number]
    return np.asarray(chosen[:, place])
