"""What a party answers in a study in which parties hold different features of the same patients: a handler for each
type of request.

After the last block the party with the labels predicts, from embeddings of rows that did not train. Predictions stay
there. What leaves are the same counts as from a site in a horizontal study, and the same once more for each other party
as if it had been missing.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.site import Rows
from wardround.deployment.common.deployed_plan import Subset, reported_subsets
from wardround.deployment.common.local_predictions import keep_predictions
from wardround.deployment.common.spool import is_finite
from wardround.deployment.flat.site_training import groups_in
from wardround.deployment.site.answering import Handler, OpenRun, Reply
from wardround.deployment.vertical.party_session import PartySession
from wardround.deployment.vertical.party_training import (
    HolderTrial,
    PartyTrial,
    Wave,
    not_finite,
    read_tensors,
    route,
)
from wardround.deployment.vertical.patient_matching import as_bytes, as_tensor
from wardround.engines.split.exchange import protection
from wardround.engines.split.split import threads_for
from wardround.evaluation.prediction import CELLS, SitePrediction
from wardround.evaluation.summaries.site_summary import curve_figures, own_thresholds, site_summary
from wardround.models.joined import below, numbers_of, prefixed, presence
from wardround.protocol.catalogue import (
    Agree,
    AskShape,
    Assess,
    Assessed,
    Assign,
    Embed,
    Embedded,
    EmbedLast,
    LastEmbedded,
    Learn,
    Learned,
    Match,
    Request,
)
from wardround.protocol.reading import bad_answer
from wardround.protocol.tensors import pack
from wardround.runs.folder import write_atomically

with needs("deploy", "a study across hospitals"):
    from msgspec import convert

SUBSETS: tuple[Subset, ...] = ("test", "validation")


def open_party_run(session: PartySession) -> OpenRun:
    """The party with the labels is asked for other work than the others."""
    work = PartyWork(session)
    handlers: dict[type[Request], Handler] = {Match: session.match, AskShape: session.shape, Agree: work.agree}
    steps: dict[type[Request], Handler] = {Embed: work.embed, EmbedLast: work.embed_last}
    if session.is_holder:
        handlers |= {Assign: session.assign, Assess: work.assess}
        steps = {Learn: work.learn}
    return OpenRun(session.run, session.study.hash, session, session.store, handlers, steps)


class PartyWork:
    def __init__(self, session: PartySession) -> None:
        self.session = session
        self.wave: Wave | None = None  # as it stands after the last step; None: it is in files

    def agree(self, request: Agree, tensors: Tree) -> Reply:
        return Reply(self.session.agree(request), lines=("patients are matched; training begins",))

    def embed(self, request: Embed, tensors: Tree) -> Reply:
        with self._wave(request) as wave:
            return Reply(Embedded(**request.place), wave.embed(request.round, tensors), _round_line(wave, request))

    def learn(self, request: Learn, tensors: Tree) -> Reply:
        with self._wave(request) as wave:
            losses, leaving = wave.learn(request.round, tensors)
            return Reply(Learned(**request.place, losses=losses), leaving, _round_line(wave, request))

    def embed_last(self, request: EmbedLast, tensors: Tree) -> Reply:
        with self._wave(request) as wave:
            wave.finish(request.round, tensors)
            save_parts(wave)
            line = f"wave {wave.number + 1}: trained"
            return Reply(LastEmbedded(**request.place), last_embeddings(wave), (line,))

    def assess(self, request: Assess, tensors: Tree) -> Reply:
        with self._wave(request) as wave:
            save_parts(wave)
            line = f"wave {wave.number + 1}: predictions are made, and stay here"
            return Reply(convert({**request.place, **score(wave, tensors)}, Assessed), lines=(line,))

    @contextmanager
    def _wave(self, request: Embed | Learn | EmbedLast | Assess) -> Iterator[Wave]:
        """As it stands before a step. What fails in the middle of it begins again from its file."""
        known, self.wave = self.wave, None
        wave = Wave.after(self.session, request.wave, request.round - 1, known)
        yield wave
        self.wave = wave


def _round_line(wave: Wave, request: Embed | Learn) -> tuple[str, ...]:
    """A line for the last block of a round of the wave's first trial."""
    first = next(iter(wave.trials.values()))
    done, rest = divmod(request.round + 1, first.each)
    ended = not rest and request.round < first.steps
    return (f"wave {wave.number + 1}, round {done}: trained",) if ended else ()


def last_embeddings(wave: Wave) -> Tree:
    """At a party: embeddings of its validation and test rows, sealed for the holder, for every trial."""
    session, leaving = wave.session, {}
    for place, local in wave.trials.items():
        with torch_threads(threads_for(local.trial)):
            embeddings = [_embeddings(local, wave.last, subset) for subset in SUBSETS]
        content = bytes(pack({f"{number:06}": part for number, part in enumerate(embeddings)}))
        what = route("last embeddings", wave.number, wave.last, place)
        leaving[str(place)] = as_tensor(session.channel.seal(session.holder, what, content))
    return leaving


def _embeddings(local: PartyTrial, step: int, subset: Subset) -> Tensor:
    party, trial = local.session.site, local.trial
    part = next(part for part in local.cut.parts if part.party == party)
    rows: Rows = getattr(trial.scored[0], subset)
    embeddings = [torch.zeros((0, local.cut.width), dtype=trial.dtype)]
    with torch.no_grad():
        for chosen in row_chunks(rows):
            x, _ = rows.take(chosen, trial.dtype)
            embeddings.append(
                local.cut.bottoms[party].logits(local.params, local.buffers, numbers_of(part, x), None)[0]
            )
    protect = protection(trial.topology.embeddings, local.stream(step, f"noise on embeddings of {subset} rows"))
    return protect(torch.cat(embeddings)).cpu()


@dataclass(frozen=True, eq=False)
class TrialScores:
    """One trial's scores at the holder. `without` has a summary for each other party as if it had been missing."""

    summaries: dict[str, Any]
    figures: dict[str, Any]
    without: dict[str, Any]
    test: SitePrediction | None
    thresholds: np.ndarray | None


def score(wave: Wave, tensors: Tree) -> dict[str, Any]:
    """At the holder: summaries, and figures for the last round."""
    session = wave.session
    scores = {place: _score_trial(wave, place, trial, tensors) for place, trial in wave.trials.items()}
    tested = {place: scored for place, scored in scores.items() if scored.test is not None}
    trials = [wave.trials[place].trial for place in tested]
    keep_predictions(
        session.folder,
        wave.number,
        [(trial.arm, trial.seed) for trial in trials],
        [scored.test for scored in tested.values() if scored.test is not None],
        [scored.thresholds for scored in tested.values()],
    )
    return {
        "summaries": {place: scored.summaries for place, scored in scores.items()},
        "figures": {place: scored.figures for place, scored in scores.items()},
        "without": {place: scored.without for place, scored in tested.items()},
    }


def _score_trial(wave: Wave, place: int, local: HolderTrial, tensors: Tree) -> TrialScores:
    session, study = wave.session, wave.session.study
    smallest, task = study.deployment.smallest_cell, session.plan.task
    received = {party: _received(wave, place, party, tensors) for party in session.others}
    embeddings = {subset: {party: parts[n] for party, parts in received.items()} for n, subset in enumerate(SUBSETS)}
    scored_rows = local.trial.scored[0]
    predictions = {
        subset: prediction(local, subset, embeddings[subset]) for subset in SUBSETS if len(getattr(scored_rows, subset))
    }
    thresholds = own_thresholds(task, predictions.get("validation"), smallest, study.evaluation.threshold)
    summaries: dict[str, Any] = {}
    for subset in reported_subsets(study):
        if subset in predictions:
            groups = groups_in(session.plan.cohort_of(study.arm(local.trial.arm)), predictions[subset])
            cut = thresholds if subset == "test" else None
            summaries[subset] = site_summary(predictions[subset], groups, smallest, cut)
    without = {}
    if "test" in predictions:
        lacking = {party: prediction(local, "test", embeddings["test"], party) for party in received}
        without = {party: site_summary(rows, {}, smallest, thresholds) for party, rows in lacking.items()}
    figures: dict[str, Any] = {
        subset: known for subset, rows in predictions.items() if (known := curve_figures(rows, smallest))
    }
    return TrialScores(summaries, figures, without, predictions.get("test"), thresholds)


def prediction(
    local: HolderTrial, subset: Subset, embeddings: Mapping[str, Tensor], missing: str = ""
) -> SitePrediction:
    """Of the holder's rows, with the other parties' embeddings of those that they have, in their order; `missing` gave
    none. Cut into the same chunks as where all numbers are at one place."""
    trial, cut, rows = local.trial, local.cut, getattr(local.trial.scored[0], subset)
    filled = {party: _filled(local, subset, party, received) for party, received in embeddings.items()}
    outputs: list[tuple[Tensor, ...]] = []
    with torch.no_grad(), torch_threads(threads_for(trial)):
        for chosen in row_chunks(rows):
            x, y = rows.take(chosen, trial.dtype)
            there = presence(cut.parts, x)
            if missing:
                there[missing] = torch.zeros_like(there[missing])
            seen = {party: whole[chosen] for party, whole in filled.items()}
            own = next((part for part in cut.parts if part.party == cut.labels), None)
            if own is not None:
                prefix = f"{own.party}."
                weights = below(local.params, prefix), below(local.buffers, prefix)
                seen[own.party] = cut.bottoms[own.party].logits(*weights, numbers_of(own, x), None)[0]
            logits = cut.top(local.params, seen, there, None)
            task = trial.model.task
            losses, figures = task.row_losses(logits, y), task.row_figures(logits, y)
            outputs.append((task.label(y), task.predictions(logits, y), losses, figures))
    label, score, loss, right = (torch.cat(parts).cpu().numpy() for parts in zip(*outputs, strict=True))
    numbers = getattr(trial.scored[0], f"{subset}_rows")
    return SitePrediction(
        local.session.site, numbers, label, score, loss, right, rows.people.numpy(), task=trial.model.task
    )


def _filled(local: HolderTrial, subset: Subset, party: str, embeddings: Tensor) -> Tensor:
    """A party's embeddings in the holder's rows; zeros where the party does not have the patient."""
    trial, width, plan = local.trial, local.cut.width, local.session.plan
    assigned = plan.assigned[plan.alike[trial.arm], plan.data_seed(plan.study.arm(trial.arm), trial.seed)]
    present = torch.from_numpy(np.flatnonzero(assigned.present[party][assigned.rows[subset]]))
    if tuple(embeddings.shape) != (len(present), width) or embeddings.dtype != trial.dtype:
        problem = "sent embeddings of other rows than were assigned to it"
        raise bad_answer(party, problem, "Install the same version of wardround everywhere.")
    if not is_finite(embeddings):
        raise not_finite(party, "what it sent")
    filled = torch.zeros((len(getattr(trial.scored[0], subset)), width), dtype=trial.dtype)
    filled[present] = embeddings
    return filled


def _received(wave: Wave, place: int, party: str, tensors: Tree) -> list[Tensor]:
    name = f"{place}/{party}"
    if name not in tensors:
        raise DeployError("coordinator", f"leaves out what {party} sent", "Start the coordinator again.")
    what = route("last embeddings", wave.number, wave.last, place)
    embeddings = read_tensors(party, wave.session.channel.open(party, what, as_bytes(tensors[name])))
    if len(embeddings) != len(SUBSETS):
        raise bad_answer(party, "sent embeddings of other rows than were assigned to it", "Install the same version.")
    return embeddings


def row_chunks(rows: Rows) -> Iterator[Tensor]:
    """As `evaluation.predict` cuts them: sums of a long batch and of a short one may differ in the last bit."""
    size = max(1, min(4096, CELLS // max(1, math.prod(rows.inputs))))
    yield from torch.split(torch.arange(len(rows)), size) if len(rows) else ()


def save_parts(wave: Wave) -> None:
    """This end's part of every model, for its own use: the others' parts are with the others."""
    from safetensors.torch import save

    session = wave.session
    for local in wave.trials.values():
        prefix = "" if session.is_holder else f"{session.site}."
        leaves = {**prefixed(local.params, prefix), **prefixed(local.buffers, prefix)}
        folder = session.folder / "models" / local.trial.arm
        folder.mkdir(parents=True, exist_ok=True)
        content = save({name: leaf.detach().contiguous().clone() for name, leaf in leaves.items()})
        write_atomically(folder / f"seed-{local.trial.seed}.safetensors", content)
