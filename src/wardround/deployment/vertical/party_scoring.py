"""The end of split training: embeddings of rows that did not train, and what the party with the labels makes of them.

Predictions stay there. What leaves are the same counts as of a site in a horizontal study, and the same once more for
each other party as if it had been missing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import DeployError
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.site import Rows
from wardround.deployment.common.deployed_plan import Subset, reported_subsets
from wardround.deployment.common.local_predictions import keep_predictions
from wardround.deployment.common.spool import is_finite
from wardround.deployment.flat.site_training import groups_in
from wardround.deployment.vertical.party_training import AtHolder, AtParty, Wave, not_finite, read_tensors, route
from wardround.deployment.vertical.patient_matching import as_bytes, as_tensor
from wardround.engines.split.exchange import protection
from wardround.engines.split.split import threads_for
from wardround.evaluation.prediction import CELLS, SitePrediction
from wardround.evaluation.summaries.site_summary import curve_figures, own_thresholds, site_summary
from wardround.models.joined import below, numbers_of, prefixed, presence
from wardround.protocol.messages import tensor_bytes
from wardround.runs.folder import write_atomically

SIDES: tuple[Subset, ...] = ("test", "validation")


def shown(wave: Wave) -> Tree:
    """At a party: embeddings of its validation and test rows, sealed for the holder, for every trial."""
    session, leaving = wave.session, {}
    for place, one in wave.trials.items():
        with torch_threads(threads_for(one.trial)):
            made = [_embeddings(one, wave.last, side) for side in SIDES]
        content = tensor_bytes({f"{number:06}": part for number, part in enumerate(made)})
        what = route("last embeddings", wave.number, wave.last, place)
        leaving[str(place)] = as_tensor(session.channel.seal(session.holder, what, content))
    return leaving


def _embeddings(one: AtParty, step: int, side: Subset) -> Tensor:
    party = one.session.site
    part = next(part for part in one.cut.parts if part.party == party)
    rows: Rows = getattr(one.trial.scored[0], side)
    made = [torch.zeros((0, one.cut.width), dtype=one.trial.dtype)]
    with torch.no_grad():
        for chosen in pieces(rows):
            x, _ = rows.take(chosen, one.trial.dtype)
            given, _ = one.cut.bottoms[party].logits(one.params, one.buffers, numbers_of(part, x), None)
            made.append(given)
    protect = protection(one.trial.topology.embeddings, one.stream(step, f"noise on embeddings of {side} rows"))
    return protect(torch.cat(made)).cpu()


@dataclass(frozen=True, eq=False)
class TrialScores:
    """One trial's scores at the holder. `without` has a summary for each other party as if it had been missing."""

    summaries: dict[str, Any]
    figures: dict[str, Any]
    without: dict[str, Any]
    test: SitePrediction | None
    thresholds: np.ndarray | None


def scored(wave: Wave, tensors: Tree) -> dict[str, Any]:
    """At the holder: summaries, and figures for the last round."""
    session = wave.session
    scores = {place: _score_trial(wave, place, trial, tensors) for place, trial in wave.trials.items()}
    tested = {place: score for place, score in scores.items() if score.test is not None}
    trials = [wave.trials[place].trial for place in tested]
    keep_predictions(
        session.folder,
        wave.number,
        [(trial.arm, trial.seed) for trial in trials],
        [score.test for score in tested.values() if score.test is not None],
        session.plan.classes,
        [score.thresholds for score in tested.values()],
    )
    return {
        "summaries": {str(place): score.summaries for place, score in scores.items()},
        "figures": {str(place): score.figures for place, score in scores.items()},
        "without": {str(place): score.without for place, score in tested.items()},
    }


def _score_trial(wave: Wave, place: int, one: AtHolder, tensors: Tree) -> TrialScores:
    session, study = wave.session, wave.session.study
    smallest, classes = study.deployment.smallest_cell, session.plan.classes
    received = {party: _given(wave, place, party, tensors) for party in session.others}
    embeddings = {side: {party: parts[n] for party, parts in received.items()} for n, side in enumerate(SIDES)}
    made = {side: prediction(one, side, embeddings[side]) for side in SIDES if len(getattr(one.trial.scored[0], side))}
    findings = len(classes) if session.plan.has_findings else 0
    thresholds = own_thresholds(made.get("validation"), smallest, study.evaluation.threshold, findings)
    summaries: dict[str, Any] = {}
    for side in reported_subsets(study):
        if side in made:
            groups = groups_in(session.plan.cohort_of(study.arm(one.trial.arm)), made[side])
            summaries[side] = site_summary(
                made[side], classes, groups, smallest, thresholds if side == "test" else None
            )
    without = {}
    if "test" in made:
        lacking = {party: prediction(one, "test", embeddings["test"], party) for party in received}
        without = {party: site_summary(rows, classes, {}, smallest, thresholds) for party, rows in lacking.items()}
    figures: dict[str, Any] = {side: values for side, rows in made.items() if (values := quick(rows, smallest))}
    return TrialScores(summaries, figures, without, made.get("test"), thresholds)


def prediction(one: AtHolder, side: Subset, embeddings: Mapping[str, Tensor], missing: str = "") -> SitePrediction:
    """Of the holder's rows, with what other parties sent of those that they have, in their order; `missing` sent none.
    Cut into the same pieces as where all numbers are at one place."""
    trial, cut, rows = one.trial, one.cut, getattr(one.trial.scored[0], side)
    places = {party: _places(one, side, party) for party in embeddings}
    made: list[tuple[Tensor, ...]] = []
    filled = {}
    for party, given in embeddings.items():
        whole = torch.zeros((len(rows), cut.width), dtype=trial.dtype)
        if tuple(given.shape) != (len(places[party]), cut.width) or given.dtype != trial.dtype:
            problem = "sent embeddings of other rows than it was told"
            raise DeployError(party, problem, "Install the same version of wardround everywhere.")
        if not is_finite(given):
            raise not_finite(party, "what it sent")
        whole[places[party]] = given
        filled[party] = whole
    with torch.no_grad(), torch_threads(threads_for(trial)):
        for chosen in pieces(rows):
            x, y = rows.take(chosen, trial.dtype)
            there = presence(cut.parts, x)
            if missing:
                there[missing] = torch.zeros_like(there[missing])
            seen = {party: whole[chosen] for party, whole in filled.items()}
            own = next((part for part in cut.parts if part.party == cut.labels), None)
            if own is not None:
                prefix = f"{own.party}."
                weights = below(one.params, prefix), below(one.buffers, prefix)
                seen[own.party] = cut.bottoms[own.party].logits(*weights, numbers_of(own, x), None)[0]
            logits = cut.top(one.params, seen, there, None)
            model = trial.model
            made.append((y, model.probabilities(logits), model.row_losses(logits, y), model.right(logits, y)))
    label, score, loss, right = (torch.cat(parts).cpu().numpy() for parts in zip(*made, strict=True))
    numbers = getattr(one.trial.scored[0], f"{side}_rows")
    return SitePrediction(one.session.site, numbers, label, score, loss, right, rows.people.numpy())


def _places(one: AtHolder, side: Subset, party: str) -> Tensor:
    """Which of the holder's rows the party has."""
    dealt = one.session.plan.dealt[one.session.plan.alike[one.trial.arm], _data_seed(one)]
    return torch.from_numpy(np.flatnonzero(dealt.present[party][dealt.rows[side]]))


def _data_seed(one: AtHolder) -> int:
    return one.session.plan.data_seed(one.session.study.arm(one.trial.arm), one.trial.seed)


def _given(wave: Wave, place: int, party: str, tensors: Tree) -> list[Tensor]:
    name = f"{place}/{party}"
    if name not in tensors:
        raise DeployError("coordinator", f"leaves out what {party} sent", "Start the coordinator again.")
    what = route("last embeddings", wave.number, wave.last, place)
    found = read_tensors(party, wave.session.channel.open(party, what, as_bytes(tensors[name])))
    if len(found) != len(SIDES):
        raise DeployError(party, "sent embeddings of other rows than it was told", "Install the same version.")
    return found


def pieces(rows: Rows) -> Iterator[Tensor]:
    """As `evaluation.predict` cuts them: sums of a long batch and of a short one may differ in the last bit."""
    size = max(1, min(4096, CELLS // max(1, math.prod(rows.inputs))))
    yield from torch.split(torch.arange(len(rows)), size) if len(rows) else ()


def quick(made: SitePrediction, smallest: int) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: None if math.isnan(value) else value for name, value in curve_figures(made, smallest).items()}


def keep_parts(wave: Wave) -> None:
    """This end's part of every model, for its own use: the others' parts are with the others."""
    from safetensors.torch import save

    session = wave.session
    for one in wave.trials.values():
        prefix = "" if session.is_holder else f"{session.site}."
        leaves = {**prefixed(one.params, prefix), **prefixed(one.buffers, prefix)}
        folder = session.folder / "models" / one.trial.arm
        folder.mkdir(parents=True, exist_ok=True)
        content = save({name: leaf.detach().contiguous().clone() for name, leaf in leaves.items()})
        write_atomically(folder / f"seed-{one.trial.seed}.safetensors", content)
