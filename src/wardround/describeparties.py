"""Parties with different features, matched by the real protocol: how many patients each has, and how many all have."""

from typing import Any

import numpy as np

from wardround.data.check import Finding
from wardround.data.cohort import Cohort
from wardround.data.parties import Holdings, holdings_of
from wardround.data.sources.party_rows import PartyRecords
from wardround.errors import DeployError, MachineError
from wardround.plan import Plan
from wardround.study import Arm
from wardround.verticalplan import drawn_at, matched, present_at

MOST_MATCHED = 200_000  # patients at a party; more would take longer than most studies of them
FEWEST, LEAST_SHARE = 20, 0.1  # training patients whom all parties have, and as a share of the label holder's


def describe_matching(plan: Plan) -> dict[str, dict[str, Any]]:
    """By arm, with the study's first seed. `bytes` is what all messages of the matching came to. Where too few are
    matched, the plan's warnings say so from now on."""
    for name, by_seed in _too_few(plan).items():
        for seed, finding in by_seed.items():
            of_seed = plan.findings.setdefault(plan.first_with_rows[name], {})
            if finding not in of_seed.get(seed, ()):
                of_seed[seed] = (*of_seed.get(seed, ()), finding)
    found: dict[str, dict[str, Any]] = {}
    known: dict[str, dict[str, Any]] = {}
    for arm in _vertical(plan):
        # what else an arm may say, such as its blocks and noise, changes nobody's patients
        said = arm.topology
        key = repr((plan.first_with_rows[arm.name], said.parties, said.labels, said.known))
        known[key] = known.get(key) or _matching(plan, arm)
        found[arm.name] = known[key]
    return found


def matched_findings(plan: Plan) -> list[Finding]:
    """For `wardround check`: arms that train on too few patients, the first of each kind."""
    found = [finding for by_seed in _too_few(plan).values() for finding in by_seed.values()]
    return list({finding.kind: finding for finding in reversed(found)}.values())


def matched_notes(plan: Plan) -> list[str]:
    """For `wardround check`: how many training rows each vertical arm keeps, with the first seed."""
    told = []
    for arm in _vertical(plan):
        before, after = _training(plan, arm, plan.data_seeds(arm)[0])
        told.append(f"{arm.name}: all parties have the patients of {len(after):,} of {len(before):,} training rows")
    return told


def _vertical(plan: Plan) -> list[Arm]:
    return [arm for arm in plan.study.arms if arm.topology.kind == "vertical"]


def _training(plan: Plan, arm: Arm, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The patient of each training row that the label holder has, and of each that all parties have."""
    cohort, before = plan.cohort_of(arm), plan.splits(arm, seed)
    present = present_at(cohort, holdings_of(arm.topology, cohort.records), arm.topology, seed)
    sides = [np.concatenate([split.train for split in splits]) for splits in (before, matched(before, present))]
    return cohort.patient[sides[0]], cohort.patient[sides[1]]


def _too_few(plan: Plan) -> dict[str, dict[int, Finding]]:
    """By arm and seed."""
    found: dict[str, dict[int, Finding]] = {}
    for arm in _vertical(plan):
        for seed in plan.data_seeds(arm):
            own, common = (len(np.unique(people)) for people in _training(plan, arm, seed))
            if common < max(FEWEST, LEAST_SHARE * own):
                message = f"only {common} of {own} training patients are at all parties, so that its model says little"
                remedy = "Look whether all parties write ids alike, or find more patients in common."
                finding = Finding("warning", "few-rows", f"arm {arm.name}", message, remedy, common, own)
                found.setdefault(arm.name, {})[seed] = finding
    return found


def _matching(plan: Plan, arm: Arm) -> dict[str, Any]:
    seed, cohort = plan.data_seeds(arm)[0], plan.cohort_of(arm)
    holdings = holdings_of(arm.topology, cohort.records)
    present = present_at(cohort, holdings, arm.topology, seed)
    patients = _patients(cohort, holdings, present, drawn_at(cohort, holdings, arm.topology, seed))
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


def _patients(
    cohort: Cohort, holdings: Holdings, present: dict[str, np.ndarray], drawn: dict[str, np.ndarray]
) -> dict[str, list[str]]:
    """All patients of each party. Where there are files, a party has also those whom the label holder does not know."""
    records = cohort.records
    if isinstance(records, PartyRecords) and records.patient is not None:
        lost = {party: set(records.patient[~has].tolist()) for party, has in drawn.items()}
        others = {party: sorted(records.people[party] - lost[party]) for party in holdings.others}
        return {holdings.labels: sorted(set(records.patient.tolist())), **others}
    numbers = {holdings.labels: np.unique(cohort.patient)}
    numbers |= {party: np.unique(cohort.patient[has]) for party, has in present.items()}
    return {party: [f"{one:012d}" for one in found.tolist()] for party, found in numbers.items()}


def _matched_bytes(patients: dict[str, list[str]], common: set[str]) -> int | None:
    """What the protocol sends. None where it is not installed, or where it would take long."""
    if max(map(len, patients.values())) > MOST_MATCHED:
        return None
    try:
        from wardround.privacy.psi_simulated import match_patients  # here, because it needs the extra `privacy`

        made = match_patients(patients)
    except MachineError:
        return None
    for party, told in made.patients.items():
        if len(told) != len(common):
            problem = f"the protocol found {len(told)} common patients at {party}, and there are {len(common)}"
            raise DeployError("matching patients", problem, "Report this: the matching must be exact.")
    return sum(made.sent.values())
