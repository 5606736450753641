"""Parties with different features, matched by the real protocol: how many patients each has, and how many all have."""

from typing import Any

import numpy as np

from wardround.data.parties import Holdings, holdings_of
from wardround.errors import DeployError, MachineError
from wardround.plan import Plan
from wardround.privacy.psi_simulated import match_patients
from wardround.study import Arm
from wardround.verticalplan import matched, present_at

MOST_MATCHED = 200_000  # patients at a party; more would take longer than most studies of them


def describe_matching(plan: Plan) -> dict[str, dict[str, Any]]:
    """By arm, with the study's first seed. `bytes` is what all messages of the matching came to."""
    found: dict[str, dict[str, Any]] = {}
    known: dict[str, dict[str, Any]] = {}
    for arm in plan.study.arms:
        if arm.topology.kind == "vertical":
            key = repr((plan.alike[arm.name], arm.topology.known))
            known[key] = known.get(key) or _matching(plan, arm)
            found[arm.name] = known[key]
    return found


def _matching(plan: Plan, arm: Arm) -> dict[str, Any]:
    seed, cohort = plan.data_seeds(arm)[0], plan.cohort_of(arm)
    holdings = holdings_of(arm.topology, cohort.records)
    present = present_at(cohort, holdings, arm.topology, seed)
    patients = _patients(cohort.patient, holdings, present)
    common = set.intersection(*(set(ids) for ids in patients.values()))
    before = plan.splits(arm, seed)
    after = matched(before, present)
    return {
        "patients": {party: len(ids) for party, ids in patients.items()},
        "common": len(common),
        "train": sum(len(split.train) for split in after),
        "unmatched_train": sum(len(split.train) for split in before) - sum(len(split.train) for split in after),
        "bytes": _matched_bytes(patients, common),
    }


def _patients(patient: np.ndarray, holdings: Holdings, present: dict[str, np.ndarray]) -> dict[str, list[int]]:
    everybody = {holdings.labels: np.unique(patient)}
    others = {party: np.unique(patient[has]) for party, has in present.items()}
    return {party: one.tolist() for party, one in (everybody | others).items()}


def _matched_bytes(patients: dict[str, list[int]], common: set[int]) -> int | None:
    """What the protocol sends. None where it is not installed, or where it would take long."""
    if max(map(len, patients.values())) > MOST_MATCHED:
        return None
    try:
        made = match_patients({party: [f"{one:012d}" for one in ids] for party, ids in patients.items()})
    except MachineError:
        return None
    for party, told in made.patients.items():
        if len(told) != len(common):
            problem = f"the protocol found {len(told)} common patients at {party}, and there are {len(common)}"
            raise DeployError("matching patients", problem, "Report this: the matching must be exact.")
    return sum(made.sent.values())
