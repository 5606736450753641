"""Privacy spending: what a study plans, what a run's ledger records, and `privacy` of results.json."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from wardround.core import seeds
from wardround.core.errors import RunError
from wardround.privacy.dp.accountant import Charge, epsilon, epsilon_curve, together
from wardround.privacy.dp.epsilons import to_json
from wardround.privacy.dp.example_dp import clipped_sum
from wardround.privacy.dp.exposure import planned_exposure
from wardround.privacy.dp.protection import site_noise
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Entry, Ledger, Spent, charges_of, spent_by
from wardround.runs.plan import Plan
from wardround.study.schema import Arm, Privacy, Study
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial

LEDGER = "ledger.jsonl"
EACH_SITE = "(each site as a whole)"  # whose entries are those of [privacy.site]
ALL_EQUAL = 8  # rounds of different price that are accounted for one by one; more are shown at as many points
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
    planned = []
    for arm in plan.study.arms:
        if arm.privacy.example is None and arm.privacy.site is None:
            continue
        trial = plan.trial(arm, plan.study.evaluation.seeds.first)
        plan.refuse_unsound(arm, trial, tuple(trial.model.init(0)[1]))
        if trial.privacy.example is not None:
            planned += [_planned(arm, trial, number) for number in range(len(trial.sites))]
        if trial.privacy.site is not None:
            planned.append(_planned_whole(arm, trial))
    return planned


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
        rounds=sum(1 for count in epochs if count),
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
        site=EACH_SITE,
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
    """By site: all arms and seeds together, which is what the whole study costs a hospital."""
    seed_count, total = plan.study.evaluation.seeds.count, {}
    pooled = [row for row in planned if row.site == POOLED]  # which touches the patients of every site
    for site in dict.fromkeys(
        row.site for row in planned if row.patients and (row.site != POOLED or len(planned) == 1)
    ):
        own = [row for row in planned if row.site == site] + (pooled if site != POOLED else [])
        delta = min(row.delta for row in own)
        charges = [charge for row in own for charge in row.charges * seed_count]
        total[site] = {
            "epsilon": epsilon(charges, delta),
            "epsilon_replace": epsilon(charges, delta, "replace"),
            "delta": delta,
            "arms": len(own),
            "seeds": seed_count,
        }
    return total


def counted_exposure(plan: Plan) -> dict[str, Any] | None:
    """How many patients train with every seed, from the splits of all seeds. Of arms with different rows, the one in
    which the fewest do."""
    exposure = planned_exposure(plan.study)
    if exposure is None:
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
        counts = (len(always) / len(everybody), len(always), len(everybody))
        fewest = counts if fewest is None else min(fewest, counts)
    if fewest is None:
        return exposure
    return {
        **exposure,
        "train_with_every_seed": fewest[0],
        "patients": fewest[2],
        "patients_with_every_seed": fewest[1],
    }


def as_plain(plan: Plan, planned: Sequence[Planned]) -> dict[str, Any]:
    return {
        "study": {"name": plan.study.name, "hash": plan.study.hash},
        "arms": [_with_infinite(asdict(row)) for row in planned],
        "total": {site: _with_infinite(row) for site, row in planned_total(plan, planned).items()},
        "exposure": counted_exposure(plan),
    }


def _with_infinite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: to_json(value) if key.startswith("epsilon") else value for key, value in row.items()}


def gradient_lengths(trial: Trial, run: Run) -> dict[str, Any] | None:
    """Histograms of the lengths of patients' gradients before clipping, in clips, for the first and the last model.

    They depend on patients and are not charged, so only a simulation has them. None without a clip.
    """
    example = trial.privacy.example
    if example is None or example.clip == "none":
        return None
    sites = {}
    for number, site in enumerate(trial.sites):
        memory = run.memories[site.name]
        clip = float(memory.protection["clip"]) if memory.protection else example.longest
        sites[site.name] = {
            "first": _histogram(trial, start(trial), number, example.longest),
            "last": _histogram(trial, run, number, clip),
        }
    return {"bins": BINS.tolist(), "clip": example.clip, "sites": sites}


def _histogram(trial: Trial, run: Run, number: int, clip: float) -> dict[str, Any]:
    params, _ = site_model(trial, run, number)
    rows = trial.sites[number].train
    people = torch.unique(rows.people).numpy()
    chosen = seeds.generator(trial.seed, "lengths", site=trial.sites[number].name).permutation(people)[:MOST_PATIENTS]
    parts = []
    for part in np.array_split(chosen, -(-len(chosen) // 64)):
        batch = torch.from_numpy(np.flatnonzero(np.isin(rows.people.numpy(), part)))
        x, y = rows.take(batch, trial.dtype)
        masks = trial.model.masks(seeds.generator(trial.seed, "lengths"), len(batch), trial.dtype)
        parts.append(clipped_sum(trial.model, params, x, y, masks, rows.people[batch], clip)[1])
    lengths = torch.cat(parts).double().numpy() / clip
    return {
        "counts": np.histogram(np.clip(lengths, BINS[0], BINS[-1]), BINS)[0].tolist(),
        "median": float(np.median(lengths)),
        "clipped": float((lengths > 1).mean()),
        "clip": clip,
        "patients": len(lengths),
    }


def write_ledger(
    folder: RunFolder, study: Study, records: pd.DataFrame, patients: str, guarantee: bool
) -> Ledger | None:
    """The ledger of a finished run, from its rounds; None where nothing was charged.

    A simulation repeats itself to the last bit, so that its ledger follows from its records. A hospital's own ledger is
    written before each answer leaves, and is kept there.
    """
    entries = entries_of(study, records, folder.path.name, patients, guarantee)
    (folder.path / LEDGER).unlink(missing_ok=True)
    if not entries:
        return None
    ledger = Ledger(folder.path / LEDGER)
    ledger.charge_all(entries)
    return ledger


def check_ledger(folder: RunFolder) -> None:
    """RunError where the ledger contradicts results.json: cut off, deleted or of another run."""
    total = (folder.read_json("results.json").get("privacy") or {}).get("total") or {}
    if not total:
        return
    path = folder.path / LEDGER
    steps = {row.site: row.steps for row in spent_by(Ledger(path).entries()) if row.site in total}
    if steps != {site: row["steps"] for site, row in total.items()}:
        problem = "is missing" if not path.is_file() else "has other charges than the results"
        remedy = "Bring back the ledger of this run from a copy, or run the study again with --again."
        raise RunError(str(path), problem, remedy)


def entries_of(study: Study, records: pd.DataFrame, run: str, patients: str, guarantee: bool) -> list[Entry]:
    arms = {arm.name: arm for arm in study.trained_arms if arm.privacy.site or arm.privacy.example}
    if not arms:
        return []
    entries = []
    paid = records.loc[records["arm"].isin(list(arms)), ["arm", "seed", "round", "charges", "site_charge"]]
    for record in paid.to_dict("records"):
        privacy = arms[record["arm"]].privacy
        place = {"run": run, "study": study.hash, "study_name": study.name, "arm": record["arm"]}
        place |= {"seed": int(record["seed"]), "round": int(record["round"])}
        if privacy.site is not None and record["site_charge"] is not None:
            entries.append(_entry(place, EACH_SITE, record["site_charge"], privacy.site.delta, patients, guarantee))
        if privacy.example is not None:
            delta, charges = privacy.example.delta, record["charges"].items()
            entries += [_entry(place, site, charge, delta, patients, guarantee) for site, charge in charges]
    return entries


def _entry(
    place: Mapping[str, Any], site: str, charge: Sequence[float], delta: float, patients: str, guarantee: bool
) -> Entry:
    rate, noise, steps = charge
    return Entry(
        **place,
        site=site,
        rate=float(rate),
        noise=float(noise),
        steps=int(steps),
        delta=delta,
        patients=patients,
        guarantee=guarantee,
    )


def describe_spending(
    study: Study,
    entries: Iterable[Entry],
    records: pd.DataFrame,
    lengths: Mapping[str, Any],
    guarantee: bool,
    exposure: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """`privacy` of results.json; None where no arm protects anything. `lengths` are those of patients' gradients.
    `exposure` is counted where the splits are known; else it follows from the study's shares."""
    protected = [arm for arm in study.arms if arm.privacy != Privacy()]
    if not protected:
        return None
    entries = list(entries)
    patients_only = [entry for entry in entries if entry.site != EACH_SITE]
    return {
        "guarantee": guarantee,
        "unit": "patient",
        "arms": {
            arm.name: {
                **described(arm),
                "federated": arm.algorithm.facts.federated,
                "sites": _of_sites([entry for entry in entries if entry.arm == arm.name]),
                "stopped": _stopped(records, arm.name),
                "failed_rounds": _failed(records, arm.name),
                "lengths": lengths.get(arm.name),
            }
            for arm in protected
        },
        "total": {row.site: _spent(row) for row in spent_by(patients_only)} if patients_only else {},
        "exposure": exposure or planned_exposure(study),
    }


def described(arm: Arm) -> dict[str, Any]:
    privacy = arm.privacy
    return {
        "example": {**asdict(privacy.example), "epsilon": to_json(privacy.example.promised)}
        if privacy.example
        else None,
        "site": asdict(privacy.site) if privacy.site else None,
        "secure_sum": asdict(privacy.secure_sum) if privacy.secure_sum else None,
    }


def _of_sites(entries: Sequence[Entry]) -> dict[str, Any]:
    """Of the seed that cost each site most: a model is trained with one seed."""
    highest: dict[str, Spent] = {}
    for row in spent_by(entries, by=("seed",)):
        if row.site not in highest or row.add_remove > highest[row.site].add_remove:
            highest[row.site] = row
    return {
        site: {**_spent(row), **_price([e for e in entries if (e.site, e.seed) == (site, row.seed)], row.delta)}
        for site, row in highest.items()
    }


def _spent(row: Spent) -> dict[str, Any]:
    return {
        "epsilon": to_json(row.add_remove),
        "epsilon_replace": to_json(row.replace),
        "delta": row.delta,
        "rounds": row.rounds,
        "steps": row.steps,
    }


def _price(entries: Sequence[Entry], delta: float) -> dict[str, Any]:
    ordered = sorted(entries, key=lambda entry: entry.round)
    return {
        "rate": ordered[0].rate,
        "noise": ordered[0].noise,
        "noise_last": ordered[-1].noise,
        "epsilon_rdp": to_json(epsilon(charges_of(entries), delta, method="rdp")),
        "curve": [(number, to_json(spent)) for number, spent in spent_by_round(entries, delta)],
    }


def spent_by_round(entries: Sequence[Entry], delta: float) -> list[tuple[int, float]]:
    """Epsilon after each round, or after some of them where rounds have different prices."""
    ordered = sorted(entries, key=lambda entry: entry.round)
    prices = {(entry.rate, entry.noise, entry.steps) for entry in ordered}
    if len(prices) == 1:
        first = ordered[0]
        curve = epsilon_curve(Charge(first.rate, first.noise, first.steps), len(ordered), delta)
        return [(entry.round, value) for entry, value in zip(ordered, curve, strict=True)]
    step = max(1, len(ordered) // ALL_EQUAL)
    places = sorted({*range(step, len(ordered) + 1, step), len(ordered)})
    return [(ordered[place - 1].round, epsilon(charges_of(ordered[:place]), delta)) for place in places]


def _stopped(records: pd.DataFrame, arm: str) -> dict[str, int]:
    """The first round, of any seed, in which a site no longer worked because it would have exceeded its epsilon."""
    first: dict[str, int] = {}
    for record in _rounds_of(records, arm, "stopped"):
        for site in record["stopped"]:
            first[site] = min(first.get(site, record["round"]), int(record["round"]))
    return first


def _failed(records: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    return [
        {"seed": int(record["seed"]), "round": int(record["round"]), "why": record["failed"]}
        for record in _rounds_of(records, arm, "failed")
    ]


def _rounds_of(records: pd.DataFrame, arm: str, column: str) -> list[dict[str, Any]]:
    """The arm's rounds with a list or text in this column that is not empty."""
    rounds: list[Any] = records.loc[records["arm"] == arm, ["seed", "round", column]].to_dict("records")
    return [record for record in rounds if len(record[column])]
