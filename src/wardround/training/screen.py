"""Screening of updates in a round: what is kept of them, who is named, and who is left out from then on."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.screening import Evidence, Seen, describe, first_state, judge, most_left_out, sketch_of
from wardround.screening.statistics import NEVER, remember
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Assignment, Run, Trial, assign

MODEL = "params"  # the part of an update that changes the model


def assigned(trial: Trial, run: Run) -> list[Assignment]:
    """The round's work, without that of sites that are left out."""
    out = left_out(trial, run)
    work = assign(trial, run.round)
    return [replace(a, counts=False) if a.number in out else a for a in work] if out else work


def left_out(trial: Trial, run: Run) -> set[int]:
    """Numbers of sites whose updates no longer count: the first that were named, up to a third of all. Where people
    decide, only those that they dropped."""
    if trial.screening is None or trial.screening.policy not in ("drop", "hold"):
        return set()
    out = _named_in_order(run)
    if trial.screening.policy == "hold":
        out = [site for site in out if _decided(trial, site) == "drop"]
    return set(out[: most_left_out(len(trial.sites))])


def undecided(trial: Trial, run: Run) -> list[int]:
    """Numbers of sites about which people must decide before the next round, if there is one."""
    holds = trial.screening is not None and trial.screening.policy == "hold" and run.round < trial.training.rounds
    return [site for site in _named_in_order(run) if _decided(trial, site) is None] if holds else []


def _named_in_order(run: Run) -> list[int]:
    named = run.screening["named"].tolist() if run.screening else []
    in_order = sorted((round_number, site) for site, round_number in enumerate(named) if round_number != NEVER)
    return [site for _, site in in_order]


def _decided(trial: Trial, site: int) -> str | None:
    decision = trial.decisions.get(trial.sites[site].name)
    return None if decision is None else decision.decision


def seen_of(trial: Trial, update: State) -> Seen:
    model = update[MODEL]
    return Seen(sketch_of(model, trial.batch_seed), float(tree.squared_norm(model).sqrt()))


def screened(
    trial: Trial, before: Run, after: Run, record: RoundRecord, seen: Mapping[int, Seen]
) -> tuple[Run, RoundRecord]:
    """The run and the record after a round, with what its updates showed."""
    if trial.screening is None or not seen:
        return after, record
    size = len(next(iter(seen.values())).sketch)
    known = before.screening
    state = {name: leaf.numpy() for name, leaf in known.items()} if known else first_state(len(trial.sites), size)
    statistics = describe(seen, state["change"])
    state = remember(state, statistics, seen)
    named = judge(state, statistics.sites)
    for site in named:
        state["named"][site] = record.round
    if not trial.algorithm.personal:
        state["change"] = sketch_of(tree.sub(after.server[MODEL], before.server[MODEL]), trial.batch_seed)
    names = [trial.sites[number].name for number in statistics.sites]
    lengths = _finite(names, statistics.length)
    places = {number: list(lengths).index(trial.sites[number].name) for number in _others(named)}
    record = replace(
        record,
        lengths=lengths,
        agreements=_finite(names, statistics.agreement),
        named={trial.sites[site].name: evidence.to_numbers(places) for site, evidence in named.items()},
    )
    return replace(after, screening=_tensors(state)), record


def _others(named: Mapping[int, Evidence]) -> list[int]:
    return [evidence.other for evidence in named.values() if evidence.other is not None]


def _tensors(state: Mapping[str, np.ndarray]) -> Tree:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}


def _finite(names: list[str], values: np.ndarray) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True) if np.isfinite(value)}
