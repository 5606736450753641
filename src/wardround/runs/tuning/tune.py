"""Before the arms of a study train: trials of their settings, wave after wave, and the choice for each arm and seed.

A wave is what the method asks for next, over all arms and seeds. Its trials are cut into units like any others, so that
they are stacked, checkpointed and resumed in the same way. Each seed chooses for itself on its own validation rows: its
test rows have no part in it, and what is compared afterwards is tuned training, with the cost of the choice in its
figures.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wardround.core.atomic_files import write_atomically
from wardround.core.errors import StudyError
from wardround.evaluation.prediction import predict
from wardround.runs.checkpoint import Checkpoint, read_checkpoint
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.prediction_tables import prediction_table
from wardround.runs.units import Unit, cut_trials, engine_named
from wardround.study.robustness.contribution import TRIAL
from wardround.study.schema import Arm, Study
from wardround.study.tuning import space_of, tuned_arms, with_values, written_values
from wardround.study.tuning_methods import METHODS, Attempt, Method, Task, chosen
from wardround.tasks import METRIC_FACTS
from wardround.tasks.outcomes import Outcomes
from wardround.training.trial import Run, Trial

Key = tuple[str, int]  # an arm of the study, and a seed
# units, the number of the first, where those begin that go on from an earlier wave; yields rounds that are done
TrainUnits = Callable[[Sequence[Unit], int, Mapping[int, Checkpoint]], Generator[int]]


@dataclass
class Tuned:
    """All trials of a run, and the units in which they trained."""

    tasks: dict[Key, Task]
    attempts: dict[Key, list[Attempt]] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)

    def chosen(self, key: Key) -> Attempt:
        return chosen(self.tasks[key], self.attempts[key])


def tasks_of(plan: Plan) -> dict[Key, Task]:
    study = plan.study
    if study.tuning is None:
        return {}
    tasks = {}
    for arm in tuned_arms(study):
        space = space_of(study.tuning, arm, plan.families)
        for seed in study.evaluation.seeds:
            first, budget = study.evaluation.seeds.first, study.tuning.budget
            tasks[arm.name, seed] = Task(space, written_values(arm, space), first, seed, budget, arm.training.rounds)
    return tasks


def count_trainings(study: Study) -> dict[str, int]:
    """How many a run has: those that are compared, and those that try settings, some of which stop early."""
    seeds, tried = study.evaluation.seeds.count, 0
    if study.tuning is not None:
        method = METHODS[study.tuning.method]
        tried = sum(method.trials(study.tuning.budget, arm.training.rounds) for arm in tuned_arms(study))
    return {"compared": len(study.trained_arms) * seeds, "tried": tried * seeds, "rounds_tried": planned_rounds(study)}


def planned_rounds(study: Study) -> int:
    """Of all trials together."""
    if study.tuning is None:
        return 0
    method, budget = METHODS[study.tuning.method], study.tuning.budget
    return study.evaluation.seeds.count * sum(method.rounds(budget, arm.training.rounds) for arm in tuned_arms(study))


def refuse_untunable(plan: Plan) -> None:
    """What is known of [tuning] once the data are there, and what its method needs."""
    if plan.study.tuning is not None:
        METHODS[plan.study.tuning.method].load()
        refuse_without_validation(plan)


def refuse_without_validation(plan: Plan) -> None:
    """A split that comes with the data may have no validation rows, and whether it has is known with the data."""
    for arm in tuned_arms(plan.study):
        for seed in plan.data_seeds(arm):
            if not any(len(split.validation) for split in plan.for_selection(arm, plan.splits(arm, seed))):
                problem = "there are no validation rows to compare settings on"
                remedy = 'Set evaluation.validation_share above 0 and split = "drawn", or give the source such rows.'
                raise StudyError(f"tuning: {arm.name}: seed {seed}", problem, remedy)


def tune(plan: Plan, engine: str, folder: RunFolder, train: TrainUnits) -> Generator[int, None, Tuned]:
    """Yields how many rounds of trials are done; returns them with their scores. The plan then has the choices."""
    tuned, done = Tuned(tasks_of(plan)), 0
    tuned.attempts = {key: [] for key in tuned.tasks}
    method = METHODS[plan.study.tuning.method] if plan.study.tuning is not None else METHODS["random"]
    while wave := _wave(method, tuned):
        members = [(_trial_arm(plan, *key, attempt), key[1]) for key, asked in wave.items() for attempt in asked]
        for arm, seed in members:
            plan.add_tuned(arm, seed)
        units, first = cut_trials(plan, engine, members), len(tuned.units)
        with folder.checked_content():
            starts = _starts(folder, tuned.units, units)
        before = done
        if not _all_done(folder, first, units):  # else the records of later waves, which go on from these, stay
            for rounds in train(units, first, starts):
                done = before + rounds
                yield done
        done = before + _own_rounds(plan, units, starts)
        tuned.units += units
        with folder.checked_content():
            scores = {
                key: score for n in range(first, len(tuned.units)) for key, score in read_scores(folder, n).items()
            }
        for key, asked in wave.items():
            tuned.attempts[key] += [_scored(plan.study, key, attempt, scores) for attempt in asked]
    for key in tuned.tasks:
        set_chosen(plan, key, tuned.chosen(key).values)
    return tuned


def _wave(method: Method, tuned: Tuned) -> dict[Key, list[Attempt]]:
    """What is tried next, of each arm and seed whose budget is not spent."""
    asked = {key: method.next(task, tuned.attempts[key]) for key, task in tuned.tasks.items()}
    return {key: attempts for key, attempts in asked.items() if attempts}


def _scored(study: Study, key: Key, attempt: Attempt, scores: Mapping[Key, float | None]) -> Attempt:
    return replace(attempt, score=_signed(study, scores[trial_name(key[0], attempt.trial), key[1]]))


def set_chosen(plan: Plan, key: Key, values: Mapping[str, object]) -> None:
    """From now on the arm trains with these values with this seed."""
    name, seed = key
    plan.add_tuned(with_values(plan.study.arm(name), values, plan.families), seed)


def trial_name(arm: str, trial: int) -> str:
    return f"{arm}{TRIAL}{trial}"


def stops_early(plan: Plan, trial: Trial) -> bool:
    """Whether a trial may go on in a later wave."""
    name, mark, _ = trial.arm.partition(TRIAL)
    return bool(mark) and trial.training.rounds < plan.study.arm(name).training.rounds


def save_scores(plan: Plan, folder: RunFolder, number: int, trials: Sequence[Trial], runs: Sequence[Run]) -> None:
    """The metric of each trial on validation rows, over all sites together."""
    from wardround.evaluation.outcome_results import own_columns  # SciPy, which other studies need only at their end
    from wardround.evaluation.scores import Scores

    names = [(trial.arm, trial.seed) for trial in trials]
    predicted = [predict(trial, run, "validation") for trial, run in zip(trials, runs, strict=True)]
    table, task = prediction_table(names, predicted), plan.task
    if isinstance(task, Outcomes):
        first, *_ = task.names
        table, task = own_columns(table, task, first), task.outcomes[first]
    scores = Scores.of(table, task=task)
    place = scores.metric_names.index(_metric(plan.study))
    lines = [[arm, seed, float(scores.overall[arm][scores.seeds.index(seed), place])] for arm, seed in names]
    path = _scores_path(folder, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps([[a, s, v if v == v else None] for a, s, v in lines]).encode())


def read_scores(folder: RunFolder, number: int) -> dict[Key, float | None]:
    return {(arm, seed): score for arm, seed, score in json.loads(_scores_path(folder, number).read_bytes())}


def _scores_path(folder: RunFolder, number: int) -> Path:
    return folder.path / "state" / "tuning" / f"unit-{number:05}.json"


def _metric(study: Study) -> str:
    return str(study.tuning.metric if study.tuning is not None else study.evaluation.metric)


def _signed(study: Study, score: float | None) -> float | None:
    """The higher the better."""
    return None if score is None else -score if METRIC_FACTS[_metric(study)].lower_is_better else score


def _trial_arm(plan: Plan, name: str, seed: int, attempt: Attempt) -> Arm:
    arm = with_values(plan.study.arm(name), attempt.values, plan.families)
    training = replace(arm.training, rounds=attempt.rounds)
    return replace(arm, name=trial_name(name, attempt.trial), training=training, uncertainty=None)


def _all_done(folder: RunFolder, first: int, units: Sequence[Unit]) -> bool:
    with folder.checked_content():
        return all(read_checkpoint(folder.path, first + place).done for place in range(len(units)))


def _starts(folder: RunFolder, earlier: Sequence[Unit], units: Sequence[Unit]) -> dict[int, Checkpoint]:
    """Where trials that stopped in an earlier wave go on, put together anew for the units of this one."""
    last = {member: number for number, unit in enumerate(earlier) for member in unit.members}
    starts: dict[int, Checkpoint] = {}
    read: dict[int, Checkpoint] = {}
    for place, unit in enumerate(units):
        if unit.members[0] not in last:
            continue
        parts, rounds = [], 0
        for member in unit.members:
            number = last[member]
            read[number] = read.get(number) or read_checkpoint(folder.path, number)
            engine, rounds = engine_named(earlier[number].engine), read[number].round
            parts.append(engine.part(read[number].leaves, earlier[number].members.index(member)))
        leaves = engine_named(unit.engine).joined(parts)
        starts[place] = Checkpoint(rounds, rounds * len(unit.members), leaves)
    return starts


def _own_rounds(plan: Plan, units: Sequence[Unit], starts: Mapping[int, Checkpoint]) -> int:
    """Rounds of units, without those of earlier waves."""
    return sum(
        (plan.arm(*unit.members[0]).training.rounds - starts.get(place, Checkpoint()).round) * len(unit.members)
        for place, unit in enumerate(units)
    )
