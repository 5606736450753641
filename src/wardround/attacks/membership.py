"""Membership inference on a finished model: which rows was it trained on?

* By threshold: rows with a low loss were trained on (Yeom et al., CSF 2018, arXiv:1709.01604).
* By likelihood ratio: shadow models are trained with and without each row, and the row's loss is compared with its
  losses under both kinds of shadow models (Carlini et al., S&P 2022, arXiv:2112.03570: the online attack).

What counts is the share of members identified at a very low false positive rate. The area under the curve hides it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from wardround.attacks.bounds import interval
from wardround.attacks.target import Target
from wardround.core import seeds
from wardround.data.site import Rows, join
from wardround.engines import ENGINES
from wardround.evaluation.prediction import scores_of
from wardround.study.schema import Arm, Privacy
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

FALSE_ALARMS = (0.001, 0.01)
RESAMPLES = 400
FEW_SHADOWS = 64  # with fewer of either kind, a row's own variance is too uncertain and all rows share one
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Caught:
    """The share of members identified while at most `false_alarms` of the non-members are."""

    false_alarms: float
    share: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Membership:
    """How well scores separate members from non-members. An AUC of 0.5 is chance."""

    auc: float
    interval: tuple[float, float]
    members: int  # rows
    others: int
    caught: tuple[Caught, ...]  # only where the allowed false alarms are at least one row


def measure(
    members: np.ndarray,
    others: np.ndarray,
    people: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
    confidence: float = 0.95,
) -> Membership:
    """From scores that are higher where the attack believes in membership.

    The interval is a bootstrap over patients with all their rows; `people` has the patients of members and others.
    """
    tail = 100 * (1 - confidence) / 2
    count = RESAMPLES if len(members) < 10_000 else RESAMPLES // 4
    resampled = [auc(_resampled(members, people[0], rng), _resampled(others, people[1], rng)) for _ in range(count)]
    low, high = np.percentile(resampled, [tail, 100 - tail])
    caught = tuple(
        _caught(members, others, allowed, confidence) for allowed in FALSE_ALARMS if len(others) * allowed >= 1
    )
    return Membership(auc(members, others), (float(low), float(high)), len(members), len(others), caught)


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The probability that a member scores above a non-member; ties count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, side="left")
    not_above = np.searchsorted(ordered, members, side="right")
    return float((below + not_above).mean() / (2 * len(others)))


def _caught(members: np.ndarray, others: np.ndarray, allowed: float, confidence: float) -> Caught:
    wrong = int(np.floor(len(others) * allowed))
    threshold = np.sort(others)[-wrong - 1]  # at most `wrong` non-members score above it
    identified = int((members > threshold).sum())
    low, high = interval(identified, len(members), confidence)
    return Caught(allowed, identified / len(members), (float(low), float(high)))


def _resampled(scores: np.ndarray, people: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    names, place = np.unique(people, return_inverse=True)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)))
    return np.repeat(scores, drawn[place])


def confidence_scores(losses: np.ndarray) -> np.ndarray:
    """The logit of the true class's probability, log(p / (1 - p)) with p = e^-loss: nearly normal."""
    bounded = np.clip(np.asarray(losses, dtype=np.float64), 1e-12, 700.0)
    return np.asarray(-bounded - np.log(-np.expm1(-bounded)))


def likelihood_ratio(target: np.ndarray, shadows: np.ndarray, present: np.ndarray) -> np.ndarray:
    """How much likelier each row's confidence is if the model was trained on it.

    `target`: the attacked model's confidence on each row. `shadows` (models, rows): that of the shadow models.
    `present`: which of these were trained on the row. A row that all or none were trained on gets the mean of the
    other rows' centres.
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
    defined = counts > 0
    overall = (sums[defined] / counts[defined]).mean() if defined.any() else 0.0
    return np.where(defined, sums / np.maximum(counts, 1), overall)


def _spreads(shadows: np.ndarray, chosen: np.ndarray, centre: np.ndarray, pooled: bool) -> np.ndarray:
    squares = np.where(chosen, (shadows - centre) ** 2, 0.0)
    counts = np.maximum(chosen.sum(0) - 1, 0)
    if pooled:
        variance = squares.sum() / max(int(counts.sum()), 1)
        return np.full(shadows.shape[1], max(float(np.sqrt(variance)), LEAST_SPREAD))
    return np.asarray(np.maximum(np.sqrt(squares.sum(0) / counts), LEAST_SPREAD))


def _log_density(value: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Of a normal distribution, without the constant that cancels in the ratio."""
    return np.asarray(-((value - centre) ** 2) / (2 * spread**2) - np.log(spread))


def halves(people: np.ndarray, shadows: int, rng: np.random.Generator) -> np.ndarray:
    """The training rows of each shadow model (shadows, rows): all rows of half of the patients.

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


STACKED_AT_ONCE = 16


@dataclass(frozen=True)
class CandidateRows:
    """Each site's training rows, then its test rows: those whose membership is inferred."""

    rows: tuple[Rows, ...]  # by site, in the order of the scored sites
    member: tuple[np.ndarray, ...]
    people: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, trial: Trial) -> "CandidateRows":
        rows = tuple(join([site.train, site.test]) for site in trial.scored)
        member = tuple(np.arange(len(site.train) + len(site.test)) < len(site.train) for site in trial.scored)
        # without patient numbers, each row counts as a patient
        people = tuple(site_rows.people.numpy() for site_rows in rows)
        return cls(rows, member, people)


def subset(rows: Rows, places: np.ndarray) -> Rows:
    """Some of the rows; shared arrays are not copied."""
    chosen = torch.from_numpy(places)
    levels = None if rows.levels is None else rows.levels[chosen]
    patients = None if rows.patients is None else rows.patients[chosen]
    if rows.index is None:
        return Rows(rows.x[chosen], rows.y[chosen], None, levels, patients)
    tabular = None if rows.tabular is None else rows.tabular[chosen]
    return Rows(rows.x, rows.y, rows.index[chosen], levels, patients, tabular)


def losses(trial: Trial, run: Run, candidates: CandidateRows) -> list[np.ndarray]:
    """By site: the loss of its model on each of its rows."""
    by_site = []
    for number, rows in enumerate(candidates.rows):
        model = site_model(trial, run, trial.trainer_of(number))
        by_site.append(scores_of(trial, model, rows)[2])
    return by_site


def shadow_trial(trial: Trial, candidates: CandidateRows, present: Sequence[np.ndarray], number: int) -> Trial:
    """The arm on other rows: the same initial weights, since every site receives them, and new random draws."""
    trained = [subset(rows, np.flatnonzero(chosen)) for rows, chosen in zip(candidates.rows, present, strict=True)]
    sites = tuple(replace(site, train=rows) for site, rows in zip(trial.scored, trained, strict=True))
    trainers = (replace(trial.sites[0], train=join(trained)),) if trial.algorithm.pools else sites
    return replace(
        trial,
        sites=trainers,
        scored=sites,
        batch_seed=seeds.number(trial.batch_seed, "attack: shadow", number),
        # a secure sum gives the same model, only more slowly
        privacy=Privacy(trial.privacy.example, trial.privacy.site),
    )


def train(trials: Sequence[Trial]) -> Iterator[Run]:
    """Each trial's run after its last round; small unprotected models are trained as one stack."""
    first = trials[0]
    stackable = (
        first.light
        and first.privacy == Privacy()
        and first.training.augment is None
        and first.training.class_weights == "none"
        and not first.training.oversample
        and first.training.mix is None
        and not first.model.init(0)[1]
    )
    engine, size = (ENGINES["stacked"], STACKED_AT_ONCE) if stackable else (ENGINES["serial"], 1)
    for begin in range(0, len(trials), size):
        part = list(trials[begin : begin + size])
        first_state = last_state = engine.start(part)
        for last_state, _ in engine.rounds(part, first_state):  # noqa: B007
            pass
        yield from engine.runs(part, last_state)


def shadow_losses(trial: Trial, candidates: CandidateRows, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """By site: losses (shadow models, rows), and which rows each shadow model was trained on."""
    present = [
        halves(people, count, seeds.generator(trial.seed, "attack: halves", site=site.name))
        for people, site in zip(candidates.people, trial.scored, strict=True)
    ]
    trials = [
        shadow_trial(trial, candidates, [chosen[number] for chosen in present], number) for number in range(count)
    ]
    by_shadow = [losses(shadow, run, candidates) for shadow, run in zip(trials, train(trials), strict=True)]
    return [np.stack([of_shadow[site] for of_shadow in by_shadow]) for site in range(len(present))], present


def infer_membership(
    target: Target, arm: Arm, shadows: int, large_shadows: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Both attacks on the arm's final model: training rows are members, test rows are not.

    `shadows` models are trained, or `large_shadows` where the model is large.
    """
    trial = target.trial(arm)
    if [site.name for site in trial.scored] != [site.name for site in trial.sites] and not trial.algorithm.pools:
        return {"note": "not attacked: some sites do not train in this arm"}
    progress(f"{arm.name}: membership inference")
    candidates = CandidateRows.of(trial)
    target_losses = losses(trial, target.run(trial), candidates)
    content: dict[str, Any] = {"threshold": membership_by_site(trial, candidates, [-loss for loss in target_losses])}
    count = shadows if trial.light else large_shadows
    if count:
        progress(f"{arm.name}: {count} shadow models")
        shadowed, present = shadow_losses(trial, candidates, count)
        scores = [
            likelihood_ratio(confidence_scores(own), confidence_scores(of_shadows), chosen)
            for own, of_shadows, chosen in zip(target_losses, shadowed, present, strict=True)
        ]
        content["likelihood_ratio"] = {"shadows": count, **membership_by_site(trial, candidates, scores)}
    return content


def membership_by_site(trial: Trial, candidates: CandidateRows, scores: list[np.ndarray]) -> dict[str, Any]:
    """Over all sites, and for each of them."""
    rng = seeds.generator(trial.seed, "attack: bootstrap")
    by_site = {
        site.name: _membership(scores[n], candidates.member[n], candidates.people[n], rng)
        for n, site in enumerate(trial.scored)
    }
    # two sites may use the same patient numbers
    widest = 1 + max(int(people.max(initial=0)) for people in candidates.people)
    patients = [people + n * widest for n, people in enumerate(candidates.people)]
    overall = _membership(np.concatenate(scores), np.concatenate(candidates.member), np.concatenate(patients), rng)
    return {**overall, "sites": by_site}


def _membership(scores: np.ndarray, member: np.ndarray, people: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    usable = np.isfinite(scores)
    inside, outside = member & usable, ~member & usable
    if not inside.any() or not outside.any():
        return {"note": "no rows to compare"}
    return asdict(measure(scores[inside], scores[outside], (people[inside], people[outside]), rng))
