"""Arms whose features are held by several parties: what is refused, and their sites."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from wardround.core import seeds
from wardround.core.errors import DataError, StudyError
from wardround.data.cohort import Cohort, prepare_sites, site_of
from wardround.data.parties import Holdings, holdings_of, joined_sites, known_patients, table_of
from wardround.data.site import Rows, Site
from wardround.data.split import Split
from wardround.study.schema import Arm, Privacy, Topology


def refuse_unsplit(arm: Arm) -> None:
    """A vertical topology, the algorithm `split` and the model `joined` go together."""
    where, vertical = f"arms: {arm.name}", arm.topology.kind == "vertical"
    if vertical != (arm.algorithm.facts.vertical):
        problem = (
            f"{arm.algorithm.name} averages models, and parties with different features have none to average"
            if vertical
            else 'split trains parties with different features, and the topology is not "vertical"'
        )
        remedy = 'Write algorithm = "split" and "topology.kind" = "vertical" in this arm, or neither.'
        raise StudyError(where, problem, remedy)
    if vertical and not arm.model.facts.in_parts:
        problem = f"{arm.model.name} is one network, and parties with different features need a part each"
        raise StudyError(f"{where}: model", problem, 'Use model "joined".')
    if not vertical:
        refuse_settings_of_parties(arm)
        return
    labels = arm.topology.labels or next(iter(arm.topology.parties), "")
    if sum(bool(columns) or party == labels for party, columns in arm.topology.parties.items()) < 2:
        raise StudyError(f"{where}: topology: parties", "a vertical topology has two or more", "Name them.")
    if arm.privacy != Privacy():
        problem = "[privacy] protects updates of models, and here embeddings and their gradients travel"
        remedy = 'Turn it off in this arm ("privacy.example" = "off"); [topology.embeddings] is what there is.'
        raise StudyError(f"{where}: privacy", problem, remedy)
    training = arm.training
    if training.oversample:
        problem = "which rows are drawn more often would tell the other parties what the labels are"
        raise StudyError(f"{where}: training: oversample", problem, "Use `class_weights`, or leave it out.")
    for name, used in {
        "share": training.share < 1,
        "stragglers": training.stragglers is not None,
        "train_at": bool(arm.train_at),
    }.items():
        if used:
            problem = "every party is needed for every row, so that nobody can be left out"
            raise StudyError(f"{where}: {name}", problem, f"Leave `{name}` out of this arm.")


def refuse_settings_of_parties(arm: Arm) -> None:
    """What only the exchange of embeddings has."""
    plain = Topology()
    for name in ("block", "embeddings", "known"):
        if getattr(arm.topology, name) != getattr(plain, name) and arm.topology.kind == "hierarchical":
            problem = "is for parties that exchange embeddings"
            raise StudyError(f"arms: {arm.name}: topology: {name}", problem, "Leave it out.")


def sites_of_parties(
    cohort: Cohort, splits: Sequence[Split], arm: Arm, dtype: torch.dtype, members: Sequence[str], seed: int
) -> tuple[Site, ...]:
    """Sites whose rows are lines of numbers, party by party; in a vertical topology trained on matched patients."""
    holdings = holdings_of(arm.topology, cohort.records)
    present = present_at(cohort, holdings, arm.topology, seed)
    vertical = arm.topology.kind == "vertical"
    if vertical:
        splits = matched(splits, present)
    table = table_of(cohort.records, holdings)
    if cohort.records.is_table:
        base = tuple(_without_numbers(cohort, split) for split in splits)
    else:
        base = prepare_sites(cohort, splits, arm.preparation, dtype, members)
    rows = {split.site: {side: getattr(split, side) for side in ("train", "validation", "test")} for split in splits}
    return joined_sites(base, table, rows, holdings, present, arm.preparation, members, vertical, dtype)


def present_at(cohort: Cohort, holdings: Holdings, topology: Topology, seed: int) -> dict[str, np.ndarray]:
    drawn = drawn_at(cohort, holdings, topology, seed)
    return {party: has & cohort.records.known_to.get(party, has) for party, has in drawn.items()}


def drawn_at(cohort: Cohort, holdings: Holdings, topology: Topology, seed: int) -> dict[str, np.ndarray]:
    """What `known` alone leaves of each other party's patients."""
    rng = seeds.generator(seed, "patients of parties")
    known = topology.known if topology.kind == "vertical" else {}
    return known_patients(cohort.patient, holdings, known, rng)


def matched(splits: Sequence[Split], present: Mapping[str, np.ndarray]) -> tuple[Split, ...]:
    """Training rows whose patients every party has. Others are predicted for, with what there is of them."""
    if not present:
        return tuple(splits)
    everywhere = np.logical_and.reduce(list(present.values()))
    kept = tuple(replace(split, train=split.train[everywhere[split.train]]) for split in splits)
    if not sum(len(split.train) for split in kept):
        raise DataError("topology: parties", "they have no training patient in common", "Look at their patients.")
    return kept


def _without_numbers(cohort: Cohort, split: Split) -> Site:
    def rows(chosen: np.ndarray) -> Rows:
        people = torch.from_numpy(cohort.patient[chosen])
        return Rows(torch.zeros((len(chosen), 0)), cohort.labels[chosen], patients=people)

    return site_of(cohort, split, rows)
