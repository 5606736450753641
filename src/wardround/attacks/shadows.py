"""Shadow models: the arm's own training on random halves of the patients, for the likelihood-ratio attack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from wardround.attacks.membership import halves
from wardround.core import seeds
from wardround.data.site import Rows, join
from wardround.engines import ENGINES
from wardround.evaluation.prediction import scores_of
from wardround.study.schema import Privacy
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

STACKED_AT_ONCE = 16


@dataclass(frozen=True)
class Everyone:
    """Each site's training rows, then its test rows: those whose membership is to be told."""

    rows: tuple[Rows, ...]  # by site, in the order of the scored sites
    member: tuple[np.ndarray, ...]
    people: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, trial: Trial) -> "Everyone":
        rows = tuple(join([site.train, site.test]) for site in trial.scored)
        member = tuple(np.arange(len(site.train) + len(site.test)) < len(site.train) for site in trial.scored)
        # where nobody has a number, everybody has one row
        people = tuple(one.people.numpy() for one in rows)
        return cls(rows, member, people)


def subset(rows: Rows, places: np.ndarray) -> Rows:
    """Some of the rows, without a copy where they are shared."""
    chosen = torch.from_numpy(places)
    levels = None if rows.levels is None else rows.levels[chosen]
    patients = None if rows.patients is None else rows.patients[chosen]
    if rows.index is None:
        return Rows(rows.x[chosen], rows.y[chosen], None, levels, patients)
    beside = None if rows.beside is None else rows.beside[chosen]
    return Rows(rows.x, rows.y, rows.index[chosen], levels, patients, beside)


def losses(trial: Trial, run: Run, everyone: Everyone) -> list[np.ndarray]:
    """Of each site's model on each of its rows, by site."""
    made = []
    for number, rows in enumerate(everyone.rows):
        model = site_model(trial, run, trial.trainer_of(number))
        made.append(scores_of(trial, model, rows)[2])
    return made


def shadow_trial(trial: Trial, everyone: Everyone, present: Sequence[np.ndarray], number: int) -> Trial:
    """The arm on other rows. First weights are the same, because everybody is sent them; draws are new."""
    trained = [subset(rows, np.flatnonzero(chosen)) for rows, chosen in zip(everyone.rows, present, strict=True)]
    sites = tuple(replace(site, train=rows) for site, rows in zip(trial.scored, trained, strict=True))
    trainers = (replace(trial.sites[0], train=join(trained)),) if trial.algorithm.pools else sites
    return replace(
        trial,
        sites=trainers,
        scored=sites,
        batch_seed=seeds.number(trial.batch_seed, "attack: shadow", number),
        # a secure sum gives the same model, only later
        privacy=Privacy(trial.privacy.example, trial.privacy.site),
    )


def train(trials: Sequence[Trial]) -> Iterator[Run]:
    """Each trial's run after its last round; small models without protection side by side."""
    first = trials[0]
    together = (
        first.light
        and first.privacy == Privacy()
        and first.training.augment is None
        and first.training.class_weights == "none"
        and not first.training.oversample
        and not first.model.init(0)[1]
    )
    engine, size = (ENGINES["stacked"], STACKED_AT_ONCE) if together else (ENGINES["serial"], 1)
    for begin in range(0, len(trials), size):
        part = list(trials[begin : begin + size])
        begun = engine.start(part)
        last = begun
        for after, _ in engine.rounds(part, begun):
            last = after
        yield from engine.runs(part, last)


def shadow_losses(trial: Trial, everyone: Everyone, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """By site: losses (shadow models, rows), and which rows each shadow model had."""
    present = [
        halves(people, count, seeds.generator(trial.seed, "attack: halves", site=site.name))
        for people, site in zip(everyone.people, trial.scored, strict=True)
    ]
    trials = [shadow_trial(trial, everyone, [one[number] for one in present], number) for number in range(count)]
    made = [losses(shadow, run, everyone) for shadow, run in zip(trials, train(trials), strict=True)]
    return [np.stack([of_shadow[site] for of_shadow in made]) for site in range(len(present))], present
