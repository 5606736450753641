"""A wave: trials that travel together in one message per round, from the start or a checkpoint to the end."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wardround.core import tree
from wardround.core.tree import Tree
from wardround.deployment.common.secure_wave import block_size
from wardround.deployment.common.site_store import NONE_YET
from wardround.deployment.common.spool import Entry
from wardround.deployment.common.update_checks import arrived_update, by_number, leaves_hash, shapes_of
from wardround.privacy.dp.noise import Stream
from wardround.protocol.messages import Message
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.record_form import from_fields
from wardround.training.intake import Intake
from wardround.training.local import Memory, Outcome
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import close, start_apart
from wardround.training.trial import Assignment, Run, Trial, assign

AUC_ROWS = "auc_rows"  # rows of sites that tell an AUC of their own
REGION_MODEL = (
    "own"  # in a message with final models: the part of a trial that is its region's own, before the last average
)
NoiseOf = Callable[[Trial], Stream | None]


@dataclass(frozen=True)
class WaveState:
    """The state of a wave between two rounds, without its trials."""

    round: int
    runs: tuple[Run, ...]
    counted: Mapping[str, int]  # the last round in which a site's work counted
    pending: Sequence[Mapping[str, Any]] = ()  # records whose model no site has scored yet
    records: int = 0  # of the wave that are in the run's file
    done: bool = False
    span: Mapping[str, Any] = field(default_factory=dict)  # of a region: the request that it is answering


def first_state(trials: Sequence[Trial]) -> WaveState:
    return WaveState(0, tuple(start_apart(trial) for trial in trials), {})


def write_state(path: Path, state: WaveState) -> None:
    leaves = {
        f"{number}/{name}": leaf
        for number, run in enumerate(state.runs)
        for name, leaf in tree.flatten(run.server).items()
    }
    place = {
        "round": state.round,
        "rounds": [run.round for run in state.runs],
        "counted": dict(state.counted),
        "pending": [dict(record) for record in state.pending],
        "records": state.records,
        "done": state.done,
        "span": dict(state.span),
    }
    write_leaves(path, leaves, place)


def read_state(path: Path, trials: Sequence[Trial]) -> WaveState:
    if not path.is_file():
        return first_state(trials)
    leaves, place = read_leaves(path)
    servers = by_number(leaves)
    runs = [Run(done, tree.unflatten(servers.get(number, {})), {}) for number, done in enumerate(place["rounds"])]
    fields = {name: place[name] for name in ("round", "counted", "pending", "records", "done", "span")}
    return WaveState(runs=tuple(runs), **fields)


@dataclass(frozen=True)
class Task:
    work: dict[int, int] = field(default_factory=dict)  # epochs, by trial
    score: list[int] = field(default_factory=list)  # trials whose last model is scored there

    @property
    def trials(self) -> list[int]:
        return sorted({*self.work, *self.score})


def tasks(trials: Sequence[Trial], state: WaveState, interval: int, unscored: Sequence[int]) -> dict[str, Task]:
    """By site. Trials in `unscored` are not scored while they train."""
    tasks_by_site: dict[str, Task] = {}
    due = bool(state.round and interval and state.round % interval == 0)
    for number, trial in enumerate(trials):
        if trial.training.rounds <= state.round:
            continue
        for assignment in assign(trial, state.round):
            if assignment.counts:
                tasks_by_site.setdefault(assignment.site.name, Task()).work[number] = assignment.epochs
        if due and number not in unscored:
            for site in trial.scored:
                tasks_by_site.setdefault(site.name, Task()).score.append(number)
    return tasks_by_site


def models_for(trials: Sequence[Trial], state: WaveState, site: str, chosen: Sequence[int]) -> Tree:
    """The broadcast of each chosen trial."""
    tensors: Tree = {}
    for number in chosen:
        trial = trials[number]
        names = [member.name for member in trial.sites]
        place = names.index(site) if site in names else 0  # a site that only scores gets the model of all
        shared = trial.algorithm.broadcast(state.runs[number].server, place)
        tensors |= {f"{number}/{name}": leaf for name, leaf in tree.flatten(shared).items()}
    return tensors


def model_hashes(trials: Sequence[Trial], state: WaveState) -> dict[str, str]:
    """By trial of a secure wave, in which all sites receive the same."""
    return {
        str(number): leaves_hash(tree.flatten(trial.algorithm.broadcast(state.runs[number].server, 0))).hex()
        for number, trial in enumerate(trials)
        if trial.training.rounds > state.round
    }


def train_message(wave: int, state: WaveState, site: str, task: Task, seconds: float | None, run: str) -> Message:
    body = {
        "run": run,
        "wave": wave,
        "round": state.round,
        "counted": state.counted.get(site, NONE_YET),
        "work": {str(number): epochs for number, epochs in task.work.items()},
        "score": task.score,
        "seconds": seconds,
    }
    return Message("train", body)


def evaluate_message(wave: int, state: WaveState, site: str, score: Sequence[int], run: str) -> Message:
    counted = state.counted.get(site, NONE_YET)
    return Message("evaluate", {"run": run, "wave": wave, "counted": counted, "score": list(score)})


@dataclass(frozen=True)
class Arrivals:
    """The answers of a round, and in a secure wave the sums of the updates, or why there are none."""

    entries: Mapping[str, Entry]
    sums: Mapping[int, tuple[np.ndarray, float]] | None = None  # by trial, as `sums_of` has them
    failed: str = ""


def close_round(
    trials: Sequence[Trial], state: WaveState, arrivals: Arrivals, seconds: float, noise: NoiseOf = lambda trial: None
) -> WaveState:
    """Close the round of every trial by the same rules as in a simulation. `noise` is for whole sites."""
    runs, fresh, entries = list(state.runs), [], arrivals.entries
    active = [number for number, trial in enumerate(trials) if trial.training.rounds > state.round]
    for number in active:
        trial, run = trials[number], state.runs[number]
        assignments = assign(trial, run.round)
        intake = Intake(trial, run, assignments)
        reports = {site: entry.body["trials"].get(str(number)) for site, entry in entries.items()}
        reported = [assignment for assignment in assignments if reports.get(assignment.site.name) is not None]
        work = [
            replace(assignment, epochs=int(reports[assignment.site.name]["epochs"]))
            for assignment in reported
            if reports[assignment.site.name]["finite"]
        ]
        if trial.privacy.secure_sum is None:
            intake.take(_arrived(trial, run, number, work, entries))
        else:
            _take_sum(intake, number, work, arrivals)
        after, record = close(run, trial, assignments, intake, noise(trial))
        fresh.append(
            {
                "trial": number,
                **vars(record),
                "epochs": {site: reports[site]["epochs"] for site in record.sites},
                "not_finite": [a.site.name for a in reported if not reports[a.site.name]["finite"]],
                "seconds": seconds / len(active),
            }
        )
        runs[number] = replace(after, memories={})
    # where a round came to nothing, what sites remembered before it stays in force
    counted = state.counted if arrivals.failed else {**state.counted, **dict.fromkeys(entries, state.round)}
    return replace(state, round=state.round + 1, runs=tuple(runs), counted=counted, pending=[*state.pending, *fresh])


def _arrived(
    trial: Trial, run: Run, number: int, work: Sequence[Assignment], entries: Mapping[str, Entry]
) -> Iterator[tuple[Assignment, Outcome]]:
    """Reads one update at a time."""
    for assignment in work:
        entry = entries[assignment.site.name]
        report, sent = entry.body["trials"][str(number)], entry.update(number)
        update = arrived_update(trial, run.server, sent)
        moved = update["params"] if report["moved"] else None
        loss = torch.tensor(float("nan") if report["loss"] is None else float(report["loss"]))
        yield assignment, Outcome(update, Memory(), moved, loss, report["length"], sent, report["compression_error"])


def _take_sum(intake: Intake, number: int, work: Sequence[Assignment], arrivals: Arrivals) -> None:
    """A failed sum has its cost as well: the sites have worked."""
    intake.came(work, 8 * block_size(intake.trial))
    if arrivals.failed:
        intake.fail(arrivals.failed)
    elif work and arrivals.sums is not None:
        intake.shapes = {name: shape for name, (_, shape) in shapes_of(intake.trial).items()}
        intake.total(*arrivals.sums[number])


def scored_records(
    state: WaveState, trials: Sequence[Trial], bodies: Sequence[Mapping[str, Any]], final: bool
) -> tuple[list[RoundRecord], list[Mapping[str, Any]]]:
    """Complete records with the sites' figures, and those that still wait for figures."""
    ready, waiting = [], []
    for record in state.pending:
        number = record["trial"]
        ended = record["round"] == trials[number].training.rounds
        if ended and not final:
            waiting.append(record)  # its last model is scored when the wave ends
            continue
        figures = curve(number, bodies) if ended or record["round"] == state.round else {}
        ready.append(replace(from_fields(record), figures=figures))
    return ready, waiting


def curve(number: int, bodies: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Loss and accuracy, or the mean error, pooled over all rows; of findings the mean of the sites' AUCs."""
    values: dict[str, float] = {}
    for subset in ("test", "validation"):
        pooled = pooled_figures(str(number), subset, bodies)
        figures = {} if pooled is None else pooled["figures"]
        values |= {f"{subset}_{name}": math.nan if value is None else value for name, value in figures.items()}
    return values


def pooled_figures(number: str, subset: str, bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Figures of a trial's model over all rows of a subset, with their number; None if there are none.

    `bodies` are those of sites, or of regions that have pooled theirs. The result has the form of theirs.
    """
    parts = [body["figures"][number][subset] for body in bodies if subset in body["figures"].get(number, {})]
    rows = sum(part["rows"] for part in parts)
    if not rows:
        return None
    names = [name for name in parts[0]["figures"] if name != "auc"]
    figures = {name: _mean(parts, name, rows) for name in names}
    if "auc" not in parts[0]["figures"]:
        return {"rows": rows, "figures": figures}
    ranked = [part for part in parts if part["figures"]["auc"] is not None]
    # weighted by the rows of the sites that have an AUC: how rows of two sites rank is not known
    weights = [part.get(AUC_ROWS, part["rows"]) for part in ranked]
    known = ranked and figures["loss"] is not None
    mean = float(np.average([part["figures"]["auc"] for part in ranked], weights=weights)) if known else None
    return {"rows": rows, "figures": {**figures, "auc": mean}, AUC_ROWS: sum(weights)}


def _mean(parts: Sequence[Mapping[str, Any]], name: str, rows: int) -> float | None:
    """Over all rows; None where a site's model has left the numbers."""
    values = [part["figures"][name] for part in parts]
    if any(value is None for value in values):
        return None
    return float(sum(value * part["rows"] for value, part in zip(values, parts, strict=True)) / rows)
