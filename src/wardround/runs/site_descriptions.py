"""What the sites of a plan look like: sizes, classes, ages, heterogeneity, leaking patients, overlap of parties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import adaptive_avg_pool2d

from wardround.core import seeds
from wardround.core.errors import DeployError, MachineError
from wardround.core.notices import Notice, identity
from wardround.data.agreement import facts
from wardround.data.cohort import Cohort, prepare_sites
from wardround.data.heterogeneity import measure
from wardround.data.parties import Holdings, holdings_of
from wardround.data.profile import profile
from wardround.data.records import Records
from wardround.data.signals.looks import looks_of_signals
from wardround.data.site import Rows, Site
from wardround.data.sources.csv.party_files import PartyRecords
from wardround.data.split import Split
from wardround.runs.plan import Plan, drawn_at, matched, present_at, site_choices
from wardround.study.schema import Arm, Preparation, Study, anonymous
from wardround.tasks.multilabel import NO_FINDING

MOST_SHOWN = 12  # sites whose columns are drawn one by one
THUMBNAIL = 16  # pixels of the images between which mmd is measured
COMPARED_SITES = 50  # heterogeneity is measured between at most so many sites: pairs grow with their square


def describe_sites(plan: Plan) -> list[dict[str, Any]]:
    """Sizes, classes and heterogeneity of each different set of sites, with the study's first seed."""
    described = []
    seed = plan.study.evaluation.seeds.first
    for arm in site_choices(plan.study).values():
        cohort = plan.cohort_of(arm)
        splits = plan.splits(arm, seed)
        sites = prepare_sites(cohort, splits, arm.preparation, torch.float32)
        features, (target, kinds) = _features(sites), cohort.records.task.coarse(cohort.records.target)
        alike = comparable(cohort, splits, arm.preparation)
        if alike is not None and alike != arm.preparation:
            sites = prepare_sites(cohort, splits, alike, torch.float32)
        rng = seeds.generator(seed, "heterogeneity")
        heterogeneity = measure(
            {split.site: target[split.rows] for split in splits[:COMPARED_SITES]},
            {site.name: _flat(site.train, rng) for site in sites[:COMPARED_SITES]} if alike else None,
            kinds,
            rng,
        )
        described.append(
            description(
                plan.study,
                arm,
                rows=len(cohort.records),
                patients=len(np.unique(cohort.patient[np.concatenate([split.rows for split in splits])])),
                features=features,
                sites={split.site: site_counts(split, cohort) for split in splits},
                heterogeneity=heterogeneity,
                signals=_signals(cohort.records),
            )
        )
    return described


def with_models(arms: Mapping[str, dict[str, Any]], plan: Plan) -> None:
    """Add to each arm's results how many parameters of its model are sent; None where parties exchange embeddings. A
    selected arm has the model of its family."""
    models: dict[str, dict[str, Any] | None] = {}
    for arm in plan.study.arms:
        models[arm.name] = None
        if arm.topology.kind != "vertical":
            trial = plan.trial(arm, plan.study.evaluation.seeds.first)
            size = {"shared_parameters": trial.model.shared_size, "parameter_bytes": trial.dtype.itemsize}
            models[arm.name] = {"name": arm.model.name, **size}
    family = {(arm.family, arm.variant): models[arm.name] for arm in reversed(plan.study.arms)}
    for name, entry in arms.items():
        entry["model"] = models.get(name, family[entry["family"], entry["variant"]])


def comparable(cohort: Cohort, splits: Sequence[Split], preparation: Preparation) -> Preparation | None:
    """How rows are prepared to measure heterogeneity: where some sites record columns that others do not, over those
    that all record, because imputed columns would reflect other sites. None where there is no common column.
    """
    if not cohort.records.is_table:
        return preparation
    table, common = cohort.table, replace(preparation, schema="common")
    if preparation.schema != "own" and all(table.records_of(split.rows).all() for split in splits):
        return preparation
    present = np.array([facts(table, split.train, common).present for split in splits])
    return common if present.all(axis=0).any() else None


def _features(sites: Sequence[Site]) -> list[str] | None:
    """Names of the prepared columns; where sites have columns of their own, of any of them."""
    by_site = [site.recipe.names for site in sites if site.recipe is not None]
    if len(set(by_site)) <= 1:
        return list(by_site[0]) if by_site else None
    return list(dict.fromkeys(name for names in by_site for name in names))


def description(
    study: Study,
    arm: Arm,
    *,
    rows: int,
    patients: int | None,
    features: list[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    heterogeneity: Mapping[str, Any],
    signals: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of `sites` in results.json: the sites of all arms that have this one's data and partition."""
    return {
        "data": {"name": arm.data.name, **anonymous(arm.data.options)},
        "partition": {"name": arm.sites.name, **arm.sites.options},
        "rows": rows,
        "patients": patients,
        "arms": [other.name for other in study.arms if (other.data, other.sites) == (arm.data, arm.sites)],
        "features": features,
        "sites": dict(sites),
        "heterogeneity": heterogeneity,
        **({"signals": dict(signals)} if signals else {}),
    }


def _signals(records: Records) -> dict[str, Any] | None:
    """What rows are, where they are signals."""
    if not records.is_signals:
        return None
    samples = int(np.asarray(records.features).shape[-1])
    return {"channels": list(records.channels), "rate": records.rate, "samples": samples}


def describe_columns(plan: Plan) -> dict[str, Any] | None:
    """Of the study's first sites with its first seed; None for images."""
    arm = plan.study.arms[0]
    cohort = plan.cohort_of(arm)
    if not cohort.records.is_table:
        return None
    sites = {split.site: split.rows for split in plan.splits(arm, plan.study.evaluation.seeds.first)}
    return profile(cohort.records, cohort.table, dict(list(sites.items())[:MOST_SHOWN]))


def sample_images(plan: Plan) -> dict[str, np.ndarray]:
    """Some training images of the study's first sites with its first seed, if the study lets them be shown."""
    arm, seed, count = plan.study.arms[0], plan.study.evaluation.seeds.first, plan.study.evaluation.samples
    records = plan.cohort_of(arm).records
    if not count or not isinstance(records.features, np.ndarray):
        return {}
    chosen, sites = [], []
    for split in plan.splits(arm, seed)[:MOST_SHOWN]:
        rows = seeds.generator(seed, "samples", site=split.site).permutation(split.train)[:count]
        chosen.append(np.sort(rows))
        sites += [split.site] * len(rows)
    places = np.concatenate(chosen)
    captions = [_caption(records, row) for row in places.tolist()]
    return {"images": records.features[places], "site": np.array(sites), "caption": np.array(captions)}


def _caption(records: Records, row: int) -> str:
    if not records.has_findings:
        return str(records.classes[records.target[row]]) if records.task.answers == "class" else ""
    return ", ".join(records.classes[f] for f in np.flatnonzero(records.target[row] == 1)) or NO_FINDING


def leakage(plan: Plan) -> dict[str, Any]:
    """Test rows whose patient is in some site's training rows: for each variant and site, on average over seeds.

    Known once the plan's checks have run.
    """
    counted: dict[str, Any] = {}
    for variant in dict.fromkeys(arm.variant for arm in plan.study.arms):
        arm = next(arm for arm in plan.study.arms if arm.variant == variant)
        number = len(plan.data_seeds(arm))
        sites = {split.site: len(split.test) for split in plan.splits(arm, plan.study.evaluation.seeds.first)}
        of_seed = plan.check_notices.get(plan.first_with_rows[arm.name], {})
        leaks = [notice for notices in of_seed.values() for notice in notices if notice.code == "leak"]
        counts = {site: [notice.counts for notice in leaks if notice.site == site] for site in sites}
        counted[variant] = {
            site: {
                "rows": sum(count["rows"] for count in counts[site]) / number,
                "share": sum(count["rows"] / count["of"] for count in counts[site]) / number,
                "test_rows": rows,
                "splits": number,
            }
            for site, rows in sites.items()
        }
    return counted


def site_counts(split: Split, cohort: Cohort) -> dict[str, Any]:
    """Training, validation and test rows, rows of each class or what the task tells of numbers, and ages where they are
    recorded."""
    described: dict[str, Any] = {
        "train": len(split.train),
        "validation": len(split.validation),
        "test": len(split.test),
        "classes": cohort.records.task.label_counts(cohort.records.target[split.rows]),
    }
    if (outcomes := cohort.records.task.describe_target(cohort.records.target[split.rows])) is not None:
        described["target"] = outcomes
    if (ages := known_ages(split, cohort)) is not None:
        known = ages[~np.isnan(ages)]
        described["age"] = {
            "mean": float(known.mean()) if len(known) else None,
            "sd": float(known.std(ddof=1)) if len(known) > 1 else None,
        }
    return described


def known_ages(split: Split, cohort: Cohort) -> np.ndarray | None:
    """Of a site's rows, NaN where it is not known; None where the source records no ages."""
    if "age" not in cohort.records.groups:
        return None
    ages = pd.to_numeric(cohort.records.groups["age"], errors="coerce").to_numpy(dtype=float)
    return np.asarray(ages[split.rows])


def _flat(rows: Rows, rng: np.random.Generator, most: int = 500) -> np.ndarray:
    x, _ = rows.take(torch.from_numpy(np.sort(rng.permutation(len(rows))[:most])), torch.float32)
    if x.dim() == 3:
        return looks_of_signals(x.numpy())
    if x.dim() == 4:  # fine detail says nothing of how two hospitals differ, and would fill memory
        x = adaptive_avg_pool2d(x, min(THUMBNAIL, *x.shape[-2:]))
    return x.flatten(1).numpy().astype(np.float64)


MOST_MATCHED = 200_000  # patients at a party; more would take longer than most studies of them
FEWEST, LEAST_SHARE = 20, 0.1  # training patients whom all parties have, and as a share of the label holder's


def describe_matching(plan: Plan) -> dict[str, dict[str, Any]]:
    """By arm, with the study's first seed. `bytes` are those of all messages of the matching. Where too few patients
    are matched, the plan gets a notice."""
    for name, by_seed in _too_few(plan).items():
        for seed, notice in by_seed.items():
            of_seed = plan.check_notices.setdefault(plan.first_with_rows[name], {})
            if notice not in of_seed.get(seed, ()):
                of_seed[seed] = (*of_seed.get(seed, ()), notice)
    by_arm: dict[str, dict[str, Any]] = {}
    known: dict[str, dict[str, Any]] = {}
    for arm in _vertical(plan):
        # other settings of an arm, such as blocks and noise, do not change its patients
        key = repr((plan.first_with_rows[arm.name], arm.topology.parties, arm.topology.labels, arm.topology.known))
        known[key] = known.get(key) or _matching(plan, arm)
        by_arm[arm.name] = known[key]
    return by_arm


def matching_notices(plan: Plan) -> list[Notice]:
    """For `wardround check`: how many training rows each vertical arm keeps with the first seed, and which arms train
    on too few patients."""
    matched = []
    for arm in _vertical(plan):
        before, after = _training(plan, arm, plan.data_seeds(arm)[0])
        matched.append(Notice("matched-rows", "info", arm=arm.name, counts={"rows": len(after), "of": len(before)}))
    few = [notice for by_seed in _too_few(plan).values() for notice in by_seed.values()]
    return [*matched, *{identity(notice): notice for notice in reversed(few)}.values()]


def _vertical(plan: Plan) -> list[Arm]:
    return [arm for arm in plan.study.arms if arm.topology.kind == "vertical"]


def _training(plan: Plan, arm: Arm, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The patient of each training row that the label holder has, and of each that all parties have."""
    cohort, before = plan.cohort_of(arm), plan.splits(arm, seed)
    present = present_at(cohort, holdings_of(arm.topology, cohort.records), arm.topology, seed)
    rows = [np.concatenate([split.train for split in splits]) for splits in (before, matched(before, present))]
    return cohort.patient[rows[0]], cohort.patient[rows[1]]


def _too_few(plan: Plan) -> dict[str, dict[int, Notice]]:
    notices: dict[str, dict[int, Notice]] = {}
    for arm in _vertical(plan):
        for seed in plan.data_seeds(arm):
            own, common = (len(np.unique(people)) for people in _training(plan, arm, seed))
            if common < max(FEWEST, LEAST_SHARE * own):
                counts = {"patients": common, "of": own}
                notice = Notice("few-matched-patients", "warning", arm=arm.name, counts=counts)
                notices.setdefault(arm.name, {})[seed] = notice
    return notices


def _matching(plan: Plan, arm: Arm) -> dict[str, Any]:
    seed, cohort = plan.data_seeds(arm)[0], plan.cohort_of(arm)
    holdings = holdings_of(arm.topology, cohort.records)
    present = present_at(cohort, holdings, arm.topology, seed)
    patients = _patients(cohort, holdings, present, drawn_at(cohort, holdings, arm.topology, seed))
    common = set.intersection(*(set(ids) for ids in patients.values()))
    before, after = _training(plan, arm, seed)
    return {
        "patients": {party: len(ids) for party, ids in patients.items()},
        "common": len(common),
        "train": len(after),
        "unmatched_train": len(before) - len(after),
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
    return {party: [f"{number:012d}" for number in own.tolist()] for party, own in numbers.items()}


def _matched_bytes(patients: dict[str, list[str]], common: set[str]) -> int | None:
    """Sent by the protocol. None where it is not installed, or where it would take long."""
    if max(map(len, patients.values())) > MOST_MATCHED:
        return None
    try:
        from wardround.privacy.psi.simulated_psi import match_patients  # here, because it needs the extra `privacy`

        matching = match_patients(patients)
    except MachineError:
        return None
    for party, matches in matching.patients.items():
        if len(matches) != len(common):
            problem = f"the protocol found {len(matches)} common patients at {party}, and there are {len(common)}"
            raise DeployError("matching patients", problem, "Report this: the matching must be exact.")
    return sum(matching.traffic.values())
