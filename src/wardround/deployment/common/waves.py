"""A wave: trials that travel together in one message per round, from the start or a checkpoint to the end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.deployment.common.messaging import Messenger, R
from wardround.deployment.common.update_checks import by_number, leaves_hash
from wardround.protocol.catalogue import Curve, RegionCurve, Subset
from wardround.protocol.messages import Sealed, message_of
from wardround.protocol.tensors import pack
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.record_form import from_fields
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import start_apart
from wardround.training.trial import Run, Trial

SUBSETS: tuple[Subset, ...] = get_args(Subset)
REGION_MODEL = (
    "own"  # in a message with final models: the part of a trial that is its region's own, before the last average
)

SCREENING = "screening"  # beside the parts of a server's state
EARLIER = "earlier"  # likewise: models with which work began that is yet to arrive, by their round


@dataclass(frozen=True)
class TrialRecord:
    """The record of a round, and the number of its trial in the wave."""

    trial: int
    record: RoundRecord

    def to_json(self) -> dict[str, Any]:
        return {"trial": self.trial, **vars(self.record)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrialRecord":
        return cls(content["trial"], from_fields(content))


@dataclass(frozen=True)
class WaveState:
    """The state of a wave between two rounds, without its trials."""

    round: int
    runs: tuple[Run, ...]
    counted: Mapping[str, int]  # the last round in which a site's work counted
    span: Mapping[str, Any] = field(default_factory=dict)  # of a region: the request that it is answering
    # sites whose work is yet to arrive, where rounds do not wait for it: the round with whose model each began
    working: Mapping[str, int] = field(default_factory=dict)

    def kept(self) -> tuple[Tree, dict[str, Any]]:
        leaves = {
            f"{number}/{name}": leaf
            for number, run in enumerate(self.runs)
            for name, leaf in tree.flatten(_parts(run)).items()
        }
        place = {
            "round": self.round,
            "rounds": [run.round for run in self.runs],
            "counted": dict(self.counted),
            "span": dict(self.span),
            "working": dict(self.working),
        }
        return leaves, place

    @classmethod
    def restored(cls, leaves: Tree, place: Mapping[str, Any]) -> "WaveState":
        servers = [tree.unflatten(by_number(leaves).get(number, {})) for number in range(len(place["rounds"]))]
        screening = [server.pop(SCREENING, {}) for server in servers]
        earlier = [by_number(server.pop(EARLIER, {})) for server in servers]
        runs = [
            Run(done, server, {}, {began: tree.unflatten(model) for began, model in models.items()}, screening=known)
            for done, server, models, known in zip(place["rounds"], servers, earlier, screening, strict=True)
        ]
        return cls(place["round"], tuple(runs), place["counted"], place["span"], place["working"])


def _parts(run: Run) -> State:
    """All that a run holds."""
    parts = {**run.server, **({SCREENING: run.screening} if run.screening else {})}
    models = {
        f"{began}/{name}": leaf for began, model in run.earlier.items() for name, leaf in tree.flatten(model).items()
    }
    return {**parts, **({EARLIER: models} if models else {})}


def first_state(trials: Sequence[Trial]) -> WaveState:
    return WaveState(0, tuple(start_apart(trial) for trial in trials), {})


def write_state(path: Path, state: WaveState) -> None:
    write_leaves(path, *state.kept())


def read_state(path: Path, trials: Sequence[Trial]) -> WaveState:
    return WaveState.restored(*read_leaves(path)) if path.is_file() else first_state(trials)


def models_for(
    trials: Sequence[Trial], state: WaveState, site: str, chosen: Sequence[int], began: int | None = None
) -> Tree:
    """The broadcast of each chosen trial; of the round in which the site's work `began`, where that was earlier."""
    tensors: Tree = {}
    for number in chosen:
        trial = trials[number]
        names = [member.name for member in trial.sites]
        place = names.index(site) if site in names else 0  # a site that only scores gets the model of all
        run = state.runs[number]
        shared = trial.algorithm.broadcast(run.server, place) if began is None else run.earlier[began]
        tensors |= {f"{number}/{name}": leaf for name, leaf in tree.flatten(shared).items()}
    return tensors


def posteriors_for(trials: Sequence[Trial], state: WaveState, chosen: Sequence[int]) -> Tree:
    return {
        f"{number}/{name}": leaf
        for number in chosen
        if (posterior := trials[number].algorithm.posterior) is not None
        for name, leaf in tree.flatten(posterior(state.runs[number].server)).items()
    }


def model_hashes(trials: Sequence[Trial], state: WaveState) -> dict[str, str]:
    """By trial of a secure wave, in which all sites receive the same."""
    return {
        str(number): leaves_hash(tree.flatten(trial.algorithm.broadcast(state.runs[number].server, 0))).hex()
        for number, trial in enumerate(trials)
        if trial.training.rounds > state.round
    }


def seal_with_models(
    messenger: Messenger,
    trials: Sequence[Trial],
    state: WaveState,
    requests: Mapping[str, tuple[R, Sequence[int]]],
    extra: Mapping[str, Tree] | None = None,
    began: int | None = None,
    final: bool = False,
) -> dict[str, Sealed]:
    """By site, a request with the models of these trials. What is the same for all sites is packed and hashed once.

    With `final` models goes what is known of the distribution of their weights. `extra` are further tensors for a site;
    sites that receive the same have the very same tree. `began` is the earlier round whose models they are.
    """
    packed: dict[tuple[Any, ...], Sealed] = {}
    sealed = {}
    for site in requests:
        request = requests[site][0]
        chosen: Sequence[int] = requests[site][1]
        more = (extra or {}).get(site, {})
        tensors = models_for(trials, state, site, chosen, began) | more
        tensors |= posteriors_for(trials, state, chosen) if final else {}
        message = message_of(messenger.caught_up(request, site), tensors)
        key = (*chosen, id(more) if more else None)
        if key in packed:
            sealed[site] = messenger.sealed(message, site, packed[key].tensors, packed[key].tensors_hash)
            continue
        sealed[site] = messenger.sealed(message, site, pack(tensors))
        if not any(trials[number].algorithm.personal for number in chosen):  # the same for all sites
            packed[key] = sealed[site]
    return sealed


Figured = Mapping[int, Mapping[Subset, Curve]]  # figures by the number of the trial


def scored_records(
    pending: Sequence[TrialRecord], trials: Sequence[Trial], scored: int, figures: Sequence[Figured], final: bool
) -> tuple[list[RoundRecord], list[TrialRecord]]:
    """Complete records with the sites' figures, and those that still wait for figures. `scored` is the round whose
    models have been scored."""
    ready, waiting = [], []
    for waits in pending:
        number, record = waits.trial, waits.record
        ended = record.round == trials[number].training.rounds
        if ended and not final:
            waiting.append(waits)  # its last model is scored when the wave ends
            continue
        due = ended or record.round == scored
        ready.append(replace(record, figures=curve(number, figures) if due else {}))
    return ready, waiting


def curve(number: int, figures: Sequence[Figured]) -> dict[str, float]:
    """Loss and accuracy, or the mean error, pooled over all rows; of findings the mean of the sites' AUCs."""
    values: dict[str, float] = {}
    for subset in SUBSETS:
        pooled = pooled_figures(number, subset, figures)
        known = {} if pooled is None else pooled.figures
        values |= {f"{subset}_{name}": math.nan if value is None else value for name, value in known.items()}
    return values


def pooled_figures(number: int, subset: Subset, figures: Sequence[Figured]) -> RegionCurve | None:
    """Figures of a trial's model over all rows of a subset, with their number; None if there are none.

    `figures` are those of sites, or of regions that have pooled theirs. The result has the form of theirs.
    """
    parts = [by_trial[number][subset] for by_trial in figures if subset in by_trial.get(number, {})]
    rows = sum(part.rows for part in parts)
    if not rows:
        return None
    names = [name for name in parts[0].figures if name != "auc"]
    pooled = {name: _mean(parts, name, rows) for name in names}
    if "auc" not in parts[0].figures:
        return RegionCurve(rows=rows, figures=pooled)
    ranked = [part for part in parts if part.figures["auc"] is not None]
    # weighted by the rows of the sites that have an AUC: how rows of two sites rank is not known
    weights = [auc_rows(part) for part in ranked]
    known = ranked and pooled["loss"] is not None
    mean = float(np.average([part.figures["auc"] for part in ranked], weights=weights)) if known else None
    return RegionCurve(rows=rows, figures={**pooled, "auc": mean}, auc_rows=sum(weights))


def auc_rows(part: Curve) -> int:
    """Rows of sites that tell an AUC of their own."""
    return part.auc_rows if isinstance(part, RegionCurve) and isinstance(part.auc_rows, int) else part.rows


def _mean(parts: Sequence[Curve], name: str, rows: int) -> float | None:
    """Over all rows; None where a site's model has left the numbers."""
    values = [(part.figures[name], part.rows) for part in parts]
    if any(value is None for value, _ in values):
        return None
    return float(sum(value * count for value, count in values if value is not None) / rows)
