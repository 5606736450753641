"""What a study would spend, before anything trains, and how long patients' gradients are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from wardround.core import seeds
from wardround.privacy.dp.accountant import Charge, epsilon, together
from wardround.privacy.dp.epsilons import to_json
from wardround.privacy.dp.example_dp import clipped_sum
from wardround.privacy.dp.exposure import planned_exposure
from wardround.privacy.dp.protection import site_noise
from wardround.runs.plan import Plan
from wardround.study.schema import Arm
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial

POOLED = "pooled"  # the name of all rows at one place
MOST_PATIENTS = 1000  # of a site whose gradients are measured
BINS = np.logspace(-3, 3, 61)  # in clips


@dataclass(frozen=True)
class Planned:
    """One site in one arm, with the study's first seed."""

    arm: str
    site: str
    rows: int
    patients: int
    rate: float
    noise: float  # of the first round, in clips
    noise_last: float  # and of the last round that fits into epsilon
    steps: int  # of the whole run
    rounds: int
    delta: float
    epsilon: float
    epsilon_replace: float
    epsilon_rdp: float
    epsilon_target: float
    charges: tuple[Charge, ...]  # of the whole run, one for each noise


def planned_spending(plan: Plan) -> list[Planned]:
    """Of every arm with [privacy.example], site by site; with [privacy.site], for each site as a whole."""
    found = []
    for arm in plan.study.arms:
        if arm.privacy.example is None and arm.privacy.site is None:
            continue
        trial = plan.trial(arm, plan.study.evaluation.seeds.first)
        plan.refuse_unsound(arm, trial, tuple(trial.model.init(0)[1]))
        if trial.privacy.example is not None:
            found += [_planned(arm, trial, number) for number in range(len(trial.sites))]
        if trial.privacy.site is not None:
            found.append(_planned_whole(arm, trial))
    return found


def _planned(arm: Arm, trial: Trial, number: int) -> Planned:
    example, site, rounds = trial.privacy.example, trial.sites[number], trial.stops(number)
    epochs = trial.epochs(number)[:rounds]
    rule, last = trial.rule(number), trial.rule(number, max(rounds - 1, 0))
    if rule is None or last is None or example is None:
        raise ValueError("only arms with [privacy.example] have a rule")
    charges = together(trial.charges(number))
    return Planned(
        arm=arm.name,
        site=site.name,
        rows=len(site.train),
        patients=rule.patients,
        rate=rule.rate,
        noise=rule.noise,
        noise_last=last.noise,
        steps=sum(charge.steps for charge in charges),
        rounds=sum(1 for one in epochs if one),
        delta=example.delta,
        **_epsilons(charges, example.delta),
        epsilon_target=example.promised,
        charges=charges,
    )


def _planned_whole(arm: Arm, trial: Trial) -> Planned:
    site, training = trial.privacy.site, trial.training
    if site is None:
        raise ValueError("only arms with [privacy.site] protect whole sites")
    charge = Charge(training.share, site_noise(site, training.share, training.rounds), training.rounds)
    return Planned(
        arm=arm.name,
        site="(each site as a whole)",
        rows=0,
        patients=0,
        rate=charge.rate,
        noise=charge.noise,
        noise_last=charge.noise,
        steps=charge.steps,
        rounds=training.rounds,
        delta=site.delta,
        **_epsilons((charge,), site.delta),
        epsilon_target=site.epsilon,
        charges=(charge,),
    )


def _epsilons(charges: Sequence[Charge], delta: float) -> dict[str, float]:
    return {
        "epsilon": epsilon(charges, delta),
        "epsilon_replace": epsilon(charges, delta, "replace"),
        "epsilon_rdp": epsilon(charges, delta, method="rdp"),
    }


def planned_total(plan: Plan, planned: Sequence[Planned]) -> dict[str, dict[str, float]]:
    """By site: all arms and seeds together, which is what a hospital spends that runs the whole study."""
    seeds_, found = plan.study.evaluation.seeds.count, {}
    pooling = [one for one in planned if one.site == POOLED]  # which touches the patients of every site
    for site in dict.fromkeys(
        one.site for one in planned if one.patients and (one.site != POOLED or len(planned) == 1)
    ):
        own = [one for one in planned if one.site == site] + (pooling if site != POOLED else [])
        delta = min(one.delta for one in own)
        charges = [charge for one in own for charge in one.charges * seeds_]
        found[site] = {
            "epsilon": epsilon(charges, delta),
            "epsilon_replace": epsilon(charges, delta, "replace"),
            "delta": delta,
            "arms": len(own),
            "seeds": seeds_,
        }
    return found


def counted_exposure(plan: Plan) -> dict[str, Any] | None:
    """Whose exposure the total covers, from the splits of all seeds. Of arms with different rows, the one in which
    fewest patients train with every seed."""
    told = planned_exposure(plan.study)
    if told is None:
        return None
    fewest: tuple[float, int, int] | None = None
    private = [arm for arm in plan.study.trained_arms if arm.privacy.example is not None]
    for name in dict.fromkeys(plan.first_with_rows[arm.name] for arm in private):
        arm = plan.study.arm(name)
        patient = plan.cohort_of(arm).patient
        splits = [plan.splits(arm, seed) for seed in plan.data_seeds(arm)]
        everybody = np.unique(np.concatenate([patient[split.rows] for of_seed in splits for split in of_seed]))
        always = everybody
        for of_seed in splits:
            always = np.intersect1d(always, patient[np.concatenate([split.train for split in of_seed])])
        found = (len(always) / len(everybody), len(always), len(everybody))
        fewest = found if fewest is None else min(fewest, found)
    if fewest is None:
        return told
    return {**told, "train_with_every_seed": fewest[0], "patients": fewest[2], "patients_with_every_seed": fewest[1]}


def as_plain(plan: Plan, planned: Sequence[Planned]) -> dict[str, Any]:
    """For --json."""
    return {
        "study": {"name": plan.study.name, "hash": plan.study.hash},
        "arms": [_with_infinite(asdict(one)) for one in planned],
        "total": {site: _with_infinite(row) for site, row in planned_total(plan, planned).items()},
        "exposure": counted_exposure(plan),
    }


def _with_infinite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {key: to_json(value) if key.startswith("epsilon") else value for key, value in row.items()}


def gradient_lengths(trial: Trial, run: Run) -> dict[str, Any] | None:
    """How long patients' gradients are before clipping, in clips: of the first model and of the last, as histograms.

    They speak of patients and are not charged, so only a simulation has them.
    """
    if trial.privacy.example is None:
        return None
    if trial.privacy.example.clip == "none":
        return None  # there are no clips to measure in
    told: dict[str, Any] = {"bins": BINS.tolist(), "clip": trial.privacy.example.clip, "sites": {}}
    for number, site in enumerate(trial.sites):
        memory = run.memories[site.name]
        clip = float(memory.protection["clip"]) if memory.protection else trial.privacy.example.longest
        told["sites"][site.name] = {
            "first": _histogram(trial, start(trial), number, trial.privacy.example.longest),
            "last": _histogram(trial, run, number, clip),
        }
    return told


def _histogram(trial: Trial, run: Run, number: int, clip: float) -> dict[str, Any]:
    params, _ = site_model(trial, run, number)
    rows = trial.sites[number].train
    people = torch.unique(rows.people).numpy()
    chosen = seeds.generator(trial.seed, "lengths", site=trial.sites[number].name).permutation(people)[:MOST_PATIENTS]
    found = []
    for part in np.array_split(chosen, -(-len(chosen) // 64)):
        batch = torch.from_numpy(np.flatnonzero(np.isin(rows.people.numpy(), part)))
        x, y = rows.take(batch, trial.dtype)
        masks = trial.model.masks(seeds.generator(trial.seed, "lengths"), len(batch), trial.dtype)
        found.append(clipped_sum(trial.model, params, x, y, masks, rows.people[batch], clip)[1])
    lengths = torch.cat(found).double().numpy() / clip
    counts = np.histogram(np.clip(lengths, BINS[0], BINS[-1]), BINS)[0]
    return {
        "counts": counts.tolist(),
        "median": float(np.median(lengths)),
        "clipped": float((lengths > 1).mean()),
        "clip": clip,
        "patients": len(lengths),
    }
