"""What a run spent of its patients' privacy: its rounds into a ledger, and the ledger into results.json."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.errors import RunError
from wardround.privacy.dp.accountant import Charge, epsilon, epsilon_curve
from wardround.privacy.dp.epsilons import to_json
from wardround.privacy.dp.exposure import planned_exposure
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Entry, Ledger, Spent, charges_of, spent_by
from wardround.study.schema import Arm, Privacy, Study

LEDGER = "ledger.jsonl"
EACH_SITE = "(each site as a whole)"  # whose entries are those of [privacy.site]
ALL_EQUAL = 8  # rounds of different price that are accounted for one by one; more are shown at as many points


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
    """RunError where the ledger no longer says what results.json says: cut off, deleted or of another run."""
    told = (folder.read_json("results.json").get("privacy") or {}).get("total") or {}
    if not told:
        return
    path = folder.path / LEDGER
    steps = {row.site: row.steps for row in spent_by(Ledger(path).entries()) if row.site in told}
    if steps != {site: row["steps"] for site, row in told.items()}:
        problem = "is missing" if not path.is_file() else "has other charges than the results beside it"
        remedy = "Bring back the ledger of this run from a copy, or run the study again with --again."
        raise RunError(str(path), problem, remedy)


def entries_of(study: Study, records: pd.DataFrame, run: str, patients: str, guarantee: bool) -> list[Entry]:
    if "charges" not in records:
        return []
    made = []
    arms = {arm.name: arm for arm in study.trained_arms}
    for record in records.to_dict("records"):
        privacy = arms[record["arm"]].privacy
        place = {"run": run, "study": study.hash, "study_name": study.name, "arm": record["arm"]}
        place |= {"seed": int(record["seed"]), "round": int(record["round"])}
        if privacy.site is not None and _is_list(record.get("site_charge")):
            made.append(_entry(place, EACH_SITE, record["site_charge"], privacy.site.delta, patients, guarantee))
        if privacy.example is not None and isinstance(record["charges"], Mapping):
            charged = {site: charge for site, charge in record["charges"].items() if _is_list(charge)}
            delta = privacy.example.delta
            made += [_entry(place, site, charge, delta, patients, guarantee) for site, charge in charged.items()]
    return made


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
    of_arm: dict[str, list[Entry]] = {}
    for entry in entries:
        of_arm.setdefault(entry.arm, []).append(entry)
    patients_only = [entry for entry in entries if entry.site != EACH_SITE]
    return {
        "guarantee": guarantee,
        "unit": "patient",
        "arms": {
            arm.name: {
                **described(arm),
                "federated": arm.algorithm.facts.federated,
                "sites": _of_sites(of_arm.get(arm.name, [])),
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
    """What the study asks for."""
    privacy = arm.privacy
    return {
        "example": {**asdict(privacy.example), "epsilon": to_json(privacy.example.promised)}
        if privacy.example
        else None,
        "site": asdict(privacy.site) if privacy.site else None,
        "secure_sum": asdict(privacy.secure_sum) if privacy.secure_sum else None,
    }


def _of_sites(entries: Sequence[Entry]) -> dict[str, Any]:
    """Of the seed that cost each site most: a model is made with one seed."""
    found: dict[str, Any] = {}
    for row in spent_by(entries, by=("seed",)):
        if row.site not in found or row.add_remove > found[row.site][0].add_remove:
            own = [entry for entry in entries if (entry.site, entry.seed) == (row.site, row.seed)]
            found[row.site] = row, own
    return {site: {**_spent(row), **_price(own, row.delta)} for site, (row, own) in found.items()}


def _spent(row: Spent) -> dict[str, Any]:
    return {
        "epsilon": to_json(row.add_remove),
        "epsilon_replace": to_json(row.replace),
        "delta": row.delta,
        "rounds": row.rounds,
        "steps": row.steps,
    }


def _price(entries: Sequence[Entry], delta: float) -> dict[str, Any]:
    charges = charges_of(entries)
    rdp = epsilon(charges, delta, method="rdp")
    ordered = sorted(entries, key=lambda entry: entry.round)
    return {
        "rate": ordered[0].rate,
        "noise": ordered[0].noise,
        "noise_last": ordered[-1].noise,
        "epsilon_rdp": to_json(rdp),
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
    found: dict[str, int] = {}
    for record in _rounds_of(records, arm, "stopped"):
        for site in record["stopped"]:
            found[site] = min(found.get(site, record["round"]), int(record["round"]))
    return found


def _failed(records: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    return [
        {"seed": int(record["seed"]), "round": int(record["round"]), "why": record["failed"]}
        for record in _rounds_of(records, arm, "failed")
    ]


def _rounds_of(records: pd.DataFrame, arm: str, column: str) -> list[dict[str, Any]]:
    """The arm's rounds that have something in this column."""
    if column not in records:
        return []
    found: list[Any] = records[records["arm"] == arm].to_dict("records")
    return [one for one in found if (_is_list(one[column]) or isinstance(one[column], str)) and len(one[column])]


def _is_list(value: Any) -> bool:
    """A table that was read from JSON lines has lists, arrays, or something else where there is none."""
    return isinstance(value, list | tuple | np.ndarray)
