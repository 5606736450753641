"""A site's work in a round: score the model on its own rows, train locally, and select what may leave."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from wardround.core import tree
from wardround.core.errors import DeployError, SecureSumError
from wardround.core.extras import needs
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.data.cohort import Cohort
from wardround.data.site import Rows, Site
from wardround.deployment.common.deployed_plan import Subset, reported_subsets
from wardround.deployment.common.local_predictions import keep_predictions
from wardround.deployment.common.secure_wave import in_round, is_secure
from wardround.deployment.common.spool import is_finite
from wardround.deployment.common.update_checks import broadcast_shapes, by_number, check_broadcast
from wardround.deployment.common.waves import REGION_MODEL
from wardround.deployment.flat.site_session import Session
from wardround.engines.serial import order_of, work
from wardround.evaluation.prediction import SitePrediction, scores_of
from wardround.evaluation.regional import REGIONAL
from wardround.evaluation.summaries.site_summary import curve_figures, own_thresholds, site_summary
from wardround.privacy.dp.protection import Streams
from wardround.protocol.catalogue import Curve, Evaluate, Figures, Summaries, Summary, Train, TrialWork, Update
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Entry
from wardround.runs.prediction_tables import group_table
from wardround.training.local import Memory, Outcome
from wardround.training.rounds import first_memory
from wardround.training.trial import Trial, assign

with needs("deploy", "a study across hospitals"):
    from msgspec import convert

SUBSETS: tuple[Subset, ...] = ("test", "validation")


class WholeEpochs:
    """The batches of a round, epoch by epoch, until the time is over. Its length is the number of batches used."""

    def __init__(self, order: Sequence[Tensor], epochs: int, over: Callable[[], bool]) -> None:
        self.order, self.per_epoch, self.over = order, max(1, len(order) // epochs), over
        self.steps = 0

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.order:
            if self.steps and self.steps % self.per_epoch == 0 and self.over():
                return
            self.steps += 1
            yield batch

    def __len__(self) -> int:
        return self.steps

    @property
    def epochs(self) -> int:
        return self.steps // self.per_epoch


def train(session: Session, request: Train, tensors: Tree) -> tuple[Update, dict[int, State], dict[int, Memory]]:
    """The answer, the updates, and the new memories. `work` has the epochs for each trial.

    What patients pay for is in the ledger when this returns.
    """
    trials, number = trials_of(session, request.wave), request.round
    shared = approved_models(session, trials, tensors, [*request.work, *request.score])
    memories = in_force(session, request, trials)
    reports: dict[int, TrialWork] = {}
    updates: dict[int, State] = {}
    costs: list[Entry] = []
    memories_after = dict(memories)
    began, epochs_by_trial = time.monotonic(), approved_work(session, trials, request)
    private = session.private_requests(trials, epochs_by_trial, number, shared, memories)
    for place, (n, epochs) in enumerate(epochs_by_trial.items()):
        trial, charged = trials[n], private.get(n)
        part = place + (1 if trial.algorithm.own is None else 0.5)  # the other half is for the site's own model
        until = None if request.seconds is None else began + request.seconds * part / len(epochs_by_trial)
        again = None if charged is None else charged.again
        streams = None if charged is None else session.streams(trial, number)
        order = work_order(session, trial, number, epochs, until, again, streams)
        with torch_threads(threads_for(trial)):
            outcome = work(
                trial, own_site(session, trial.sites), number, order, shared.get(n, {}), memories[n], streams
            )
        if charged is not None:
            costs.append(charged.cost(order.epochs))
        reports[n] = update_report(trial, outcome, order.epochs)
        if _is_finite(outcome.update, reports[n]):
            memories_after[n], updates[n] = outcome.memory.settled(), outcome.leaving
        else:
            reports[n] = _not_finite(session, trial, order.epochs)
    if costs:
        session.ledger.charge_all(costs)
    scored = figures(session, request.score, trials, shared, memories)
    return Update(**request.place, trials=reports, figures=scored), updates, memories_after


def work_order(
    session: Session,
    trial: Trial,
    number: int,
    epochs: int,
    until: float | None,
    again: int | None,
    streams: Streams | None,
) -> WholeEpochs:
    """`again` are the epochs of a repeated answer, for which no time limit holds."""
    done = epochs if again is None else again
    order = order_of(trial, own_site(session, trial.sites), number, done, streams)
    return WholeEpochs(order, done, _over(trial, None if again is not None else until))


def update_report(trial: Trial, outcome: Outcome, epochs: int) -> TrialWork:
    """What accompanies an update: no figure of protected patients, or of a protected site."""
    privacy = trial.privacy
    hidden = privacy.secure_sum is not None or privacy.site is not None
    return TrialWork(
        loss=None if hidden or privacy.example is not None else float(outcome.loss),
        length=None if hidden else outcome.length,
        moved=not hidden and _is_update(outcome),
        compression_error=None if hidden else outcome.error,
        epochs=epochs,
        finite=True,
    )


def _is_finite(update: State, report: TrialWork) -> bool:
    figures = [figure for figure in (report.loss, report.length, report.compression_error) if figure is not None]
    return all(map(is_finite, tree.flatten(update).values())) and all(map(math.isfinite, figures))


def _not_finite(session: Session, trial: Trial, epochs: int) -> TrialWork:
    """Such an update would make the shared model useless. Under masks nothing can be left out of a single site's
    vector, so the site is not part of the sum."""
    if trial.privacy.secure_sum is not None:
        problem = f"its update of {trial.arm} has numbers that are not finite"
        raise SecureSumError(session.site, problem, "Lower the learning rate, or clip updates.")
    return TrialWork(loss=None, length=None, compression_error=None, moved=False, epochs=epochs, finite=False)


def flat(updates: Mapping[int, State]) -> Tree:
    """Updates as they travel without masks."""
    return {f"{n}/{name}": leaf for n, update in updates.items() for name, leaf in tree.flatten(update).items()}


def approved_work(session: Session, trials: Mapping[int, Trial], request: Train) -> dict[int, int]:
    """Epochs by trial, as the approved study has them for this site and round: a coordinator cannot ask for more."""
    number = request.round
    for place, epochs in request.work.items():
        trial = trials.get(place)
        own = [] if trial is None or not 0 <= number < trial.training.rounds else assign(trial, number)
        if epochs not in [a.epochs for a in own if a.site.name == session.site and a.counts]:
            problem = "asks for other work than the study that was approved here"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was trained.")
    if is_secure(list(trials.values())) and request.work != own_work(session.site, trials, number):
        # a trial that only this site were asked for would be a sum of one
        problem = "leaves out work that belongs into a secure sum"
        raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was trained.")
    return request.work


def own_work(site: str, trials: Mapping[int, Trial], number: int) -> dict[int, int]:
    """All work of this site in a round, by the study."""
    return {
        n: assignment.epochs
        for n, trial in in_round(trials, number).items()
        for assignment in assign(trial, number)
        if assignment.site.name == site and assignment.counts
    }


def figures(
    session: Session,
    score: Sequence[int],
    trials: Mapping[int, Trial],
    shared: Mapping[int, State],
    memories: Mapping[int, Memory],
) -> Figures:
    """Sums for the curves, of the received model, which is that of the last round."""
    figures_by_trial: Figures = {}
    for number in score:
        subsets: dict[Subset, Curve] = {}
        for subset in SUBSETS:
            prediction = own_prediction(session, trials[number], shared.get(number, {}), memories[number], subset)
            curve = {} if prediction is None else curve_figures(prediction, session.study.deployment.smallest_cell)
            if curve:
                subsets[subset] = convert(curve, Curve)
        if subsets:
            figures_by_trial[number] = subsets
    return figures_by_trial


def evaluate(session: Session, request: Evaluate, tensors: Tree) -> Summary:
    """Score the final models, and the region's own if there is one: predictions are stored here, summaries leave."""
    trials = trials_of(session, request.wave)
    shared = approved_models(session, trials, tensors, trials, final=True)
    memories = in_force(session, request, trials)
    smallest = session.study.deployment.smallest_cell
    summaries: dict[int, dict[str, Any]] = {}
    names, predictions, thresholds = [], [], []
    for number, trial in trials.items():
        subsets: dict[str, Any] = {}
        cut = _thresholds(session, trial, shared.get(number, {}), memories[number])
        for subset in reported_subsets(session.study):
            prediction = own_prediction(session, trial, shared.get(number, {}), memories[number], subset)
            if prediction is None or not len(prediction.rows):
                continue
            groups = groups_in(session.plan.cohort_of(session.study.arm(trial.arm)), prediction)
            subsets[subset] = site_summary(prediction, groups, smallest, cut if subset == "test" else None)
            if subset == "test":
                names.append((trial.arm, trial.seed))
                predictions.append(prediction)
                thresholds.append(cut)
        if REGION_MODEL in shared.get(number, {}):
            of_region = {**shared[number], "params": _regions_own(session, trial, shared[number])}
            prediction = own_prediction(session, trial, of_region, memories[number], "test")
            if prediction is not None and len(prediction.rows):  # no groups: results have none of a region's own model
                subsets[REGIONAL] = site_summary(prediction, {}, smallest, cut)
        summaries[number] = subsets
        memory = memories[number]
        params = trial.algorithm.model_at(shared.get(number, {}), memory.algorithm)
        posterior = {} if trial.algorithm.posterior is None else trial.algorithm.posterior(shared.get(number, {}))
        RunFolder(session.folder).save_model(
            trial.arm, trial.seed, {**params, **memory.private, **memory.buffers, **tree.flatten(posterior)}
        )
    keep_predictions(session.folder, request.wave, names, predictions, thresholds)
    scored = figures(session, request.score, trials, shared, memories)
    return Summary(**request.place, summaries=convert(summaries, Summaries), figures=scored)


def _regions_own(session: Session, trial: Trial, shared: State) -> Tree:
    """The model of this site's region; refused if the approved study has none."""
    arm, own, known = session.study.arm(trial.arm), shared[REGION_MODEL], shared.get("params", {})
    trains = session.site in [site.name for site in trial.sites] and arm.held_out is None
    alike = {name: leaf.shape for name, leaf in own.items()} == {name: leaf.shape for name, leaf in known.items()}
    if arm.topology.kind != "hierarchical" or not trains or not alike:
        problem = "asks for figures of a model that the study that was approved here does not have"
        raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was told.")
    return own


def _thresholds(session: Session, trial: Trial, shared: State, memory: Memory) -> np.ndarray | None:
    """Of the positive class or of findings; None where held-out rows are scored to select an arm, as in a
    simulation."""
    study = session.study
    if study.arm(trial.arm).held_out is not None:
        return None
    task = session.plan.task
    if not isinstance(study.evaluation.threshold, str):
        return own_thresholds(task, None, 0, study.evaluation.threshold)
    prediction = own_prediction(session, trial, shared, memory, "validation")
    return own_thresholds(task, prediction, study.deployment.smallest_cell)


def own_prediction(
    session: Session, trial: Trial, shared: State, memory: Memory, subset: Subset
) -> SitePrediction | None:
    """None if this arm is not scored here."""
    if session.site not in [site.name for site in trial.scored]:
        return None
    site = own_site(session, trial.scored)
    rows: Rows = getattr(site, subset)
    params = {**trial.algorithm.model_at(shared, memory.algorithm), **memory.private}
    with torch_threads(threads_for(trial)):
        scores = scores_of(trial, (params, memory.buffers), rows) if len(rows) else _nothing()
    label, score, loss, right = scores
    numbers = getattr(site, f"{subset}_rows")
    return SitePrediction(site.name, numbers, label, score, loss, right, rows.people.numpy(), task=trial.model.task)


def groups_in(cohort: Cohort, prediction: SitePrediction) -> dict[str, np.ndarray]:
    table = group_table([cohort])
    kinds = [name for name in table.columns if name not in ("row", "patient")]
    known = table.set_index("row").reindex(prediction.rows) if len(table) else pd.DataFrame()
    return {kind: known[kind].to_numpy(dtype=object) for kind in kinds if kind in known}


def trials_of(session: Session, wave: int) -> dict[int, Trial]:
    if not 0 <= wave < len(session.waves):
        raise DeployError("coordinator", "asks for models that this study does not have", "Start it again.")
    return {
        number: session.plan.trial(session.study.arm(arm), seed)
        for number, (arm, seed) in enumerate(session.waves[wave])
    }


def in_force(session: Session, request: Train | Evaluate, trials: Mapping[int, Trial]) -> dict[int, Memory]:
    def first() -> dict[int, Memory]:
        return {number: first_memory(trial, own_or_first(session, trial)) for number, trial in trials.items()}

    return session.store.memories(request.wave, request.counted, first)


def by_trial(tensors: Tree) -> dict[int, State]:
    return {number: tree.unflatten(leaves) for number, leaves in by_number(tensors).items()}


def approved_models(
    session: Session, trials: Mapping[int, Trial], tensors: Tree, needed: Iterable[int], final: bool = False
) -> dict[int, State]:
    """The received models, if the approved study has such models. A region's own model is checked where it is used."""
    shared = by_trial(tensors)
    expected = {}
    for number, trial in trials.items():
        key = (trial.arm, trial.seed, final)
        if key not in session.broadcast_shapes:
            session.broadcast_shapes[key] = broadcast_shapes(trial, final)
        expected[number] = session.broadcast_shapes[key]
    known = {n: {part: leaves for part, leaves in model.items() if part != REGION_MODEL} for n, model in shared.items()}
    check_broadcast(expected, known, needed)
    return shared


def own_or_first(session: Session, trial: Trial) -> Site:
    """Where this site does not train in an arm, its memory is never used but must exist."""
    return next((site for site in trial.sites if site.name == session.site), trial.sites[0])


def own_site(session: Session, sites: Sequence[Site]) -> Site:
    return next(site for site in sites if site.name == session.site)


def threads_for(trial: Trial) -> int:
    return 1 if trial.light else torch.get_num_threads()


def _over(trial: Trial, until: float | None) -> Callable[[], bool]:
    """Only an arm that keeps partial work may stop early; the coordinator drops late work of the others."""
    keeps = trial.training.stragglers is not None and trial.training.stragglers.policy == "keep"
    return lambda: keeps and until is not None and time.monotonic() > until


def _is_update(outcome: Outcome) -> bool:
    """Whether the update's `params` is how far the model moved, so that it need not be sent twice."""
    update, moved = outcome.update.get("params"), outcome.moved
    if update is None or moved is None or set(update) != set(moved):
        return False
    return all(torch.equal(update[name], moved[name]) for name in moved)


def _nothing() -> tuple[np.ndarray, ...]:
    return np.array([], dtype=np.int64), np.array([]), np.array([]), np.array([])
