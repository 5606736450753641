"""From a study to a run folder: train every arm with every seed, predict, compute. Resumes exactly after a crash.

`execute` is a generator of progress, so that a terminal, a notebook or a test decides what to show. Nothing is printed.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, get_args

import pandas as pd
import torch

from wardround.adversaries.of_arm import built_backdoors
from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import RunError, as_path
from wardround.core.extras import installed
from wardround.core.notices import with_texts
from wardround.core.processes import beside, can_fork, in_parallel
from wardround.core.registry import Members
from wardround.core.threads import torch_threads
from wardround.data.frames import frames_of
from wardround.evaluation.curves import Curves
from wardround.evaluation.prediction import SitePrediction, Subset, predict
from wardround.runs.audit import BEGUN, FINISHED, NAMED, RESUMED, AuditLog, file_hash
from wardround.runs.catalog import load_study
from wardround.runs.checkpoint import Checkpoint, Pace, has_begun, read_checkpoint, write_checkpoint
from wardround.runs.continual.privacy import refuse_uncovered
from wardround.runs.continual.saved import describe_models
from wardround.runs.continual.tested_before import refuse_tested_before
from wardround.runs.contribution.coalitions import (
    Contributed,
    contribute,
    planned_rounds_of_coalitions,
    refuse_contribution,
)
from wardround.runs.contribution.contribution_results import describe_contribution
from wardround.runs.contribution.worths import save_worths
from wardround.runs.decisions import holding
from wardround.runs.environment import describe_environment
from wardround.runs.explaining.shown_images import save_shown_images
from wardround.runs.finished_run import with_own
from wardround.runs.folder import Predictions, RunFolder
from wardround.runs.interface.notebook import bar_in_notebook
from wardround.runs.interface.study_run import StudyRun as StudyRun
from wardround.runs.plan import Plan, device_for, load_plan
from wardround.runs.prediction_tables import group_table, prediction_table, saved_leaves, uncertainty_table
from wardround.runs.records import COMPACT, RUNNING, RecordWriter, cut_records
from wardround.runs.spending import LEDGER, counted_exposure, describe_spending, gradient_lengths, write_ledger
from wardround.runs.tuning.chosen import describe_tuning, set_saved_choices
from wardround.runs.tuning.tune import (
    Tuned,
    planned_rounds,
    refuse_untunable,
    save_scores,
    stops_early,
    tune,
)
from wardround.runs.units import Unit, cut, engine_named, processors, total_rounds, workers_at_the_end, workers_for
from wardround.study.analyses import analyses_alone
from wardround.study.robustness.contribution import is_coalition
from wardround.study.schema import Arm, Study
from wardround.study.tuning import is_trial
from wardround.study.tuning_methods import METHODS
from wardround.training.trial import Run, Trial

LOGGED = ("results.json", holding.DECISIONS, "predictions.parquet", COMPACT, LEDGER)  # files whose hashes are logged
SAME = ("data_fingerprint", "engine", "versions", "torch_threads")  # else a resumed run would differ in bits
Pairs = Sequence[tuple[Trial, Run]]
Predicted = Sequence[tuple[Trial, list[SitePrediction]]]


@dataclass(frozen=True)
class Progress:
    done: int  # rounds, over all arms and seeds
    total: int
    title: str


def run_study(
    study: str | PathLike[str] | Mapping[str, Any] | Study,
    out: str | Path = "runs",
    *,
    engine: str = "auto",
    quick: bool = False,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
    **members: Unpack[Members],
) -> StudyRun:
    """Run a study and return its results. A complete run is shown, an unfinished one goes on where it stopped.

    `study` is the name of a shipped study, the path of a study file, the same content as a dict, or a parsed `Study`.
    In a dict a DataFrame may stand where a file does: `"files": {"north": df}`. `changes` are dotted keys and values,
    such as `{"training.rounds": 5}`. `progress` is called as rounds finish; in a notebook a bar is shown without it.
    `members` are your own algorithms, models, sources and partitions, by the name that the study uses.
    """
    target = as_path(out, "out")
    parsed, known = load_study(study, quick, changes, **members)
    if engine != "auto":
        engine_named(engine)
    for arm in parsed.arms:
        device_for(arm)  # refused now rather than after an hour
    folder = RunFolder.of(parsed, target)
    fresh = run_plan(load_plan(parsed, known), folder, engine, again, bar_in_notebook(progress), workers)
    return finished_run(folder, fresh, with_tables_of(parsed, members))


def analyse_study(
    study: str | PathLike[str] | Mapping[str, Any] | Study,
    out: str | Path = "runs",
    *,
    quick: bool = False,
    again: bool = False,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **members: Unpack[Members],
) -> StudyRun:
    """Compute the analyses of a study, into a run folder of their own. Its arms, where it has any, are not trained."""
    parsed, _ = load_study(study, quick, changes, **members)
    return run_study(analyses_alone(parsed), out, again=again, progress=progress, **members)


def run_plan(
    plan: Plan,
    folder: RunFolder,
    engine: str,
    again: bool,
    progress: Callable[[Progress], None] | None,
    workers: int | None = None,
) -> bool:
    """Whether anything was run: a complete run is left as it is."""
    if folder.complete and not again:
        if folder.read_json("environment.json").get("data_fingerprint") != plan.fingerprint:
            remedy = "Give another --out, or --again to replace it."
            raise RunError(str(folder.path), "holds a complete run of this study on other data", remedy)
        set_saved_choices(plan, folder)
        save_bundles(plan, folder)
        return False
    with reporting_full_disk(folder.path, f"Make room, then go on with: wardround resume {folder.path}"):
        for step in execute(plan, folder, engine, again, workers):
            if progress is not None:
                progress(step)
    save_bundles(plan, folder)
    return True


def finished_run(folder: RunFolder, fresh: bool, members: Members) -> StudyRun:
    return StudyRun(folder.path, folder.read_json("results.json"), fresh, members=members)


def with_tables_of(study: Study, members: Members) -> Members:
    """With the study's own tables in memory, which the run needs again for a bundle."""
    tables = frames_of(study.data.options)
    return {**members, "tables": tables} if tables else members


def save_bundles(plan: Plan, folder: RunFolder) -> None:
    """Those that the study asks for and that are not there yet."""
    if plan.study.evaluation.bundles:
        from wardround.bundles.build.make import keep_bundles

        keep_bundles(plan, folder)


def resume_study(
    path: str | PathLike[str],
    *,
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
    **members: Unpack[Members],
) -> StudyRun:
    """Go on with the run in a folder, by the study and the engine that it holds. It may have been moved.

    Its own members are given again, and so are its DataFrames: `tables={"north": df}`. A folder has neither.
    """
    members = with_own(path, members)
    folder = RunFolder(as_path(path, "run", RunError))
    if not (folder.path / "study.toml").is_file() or not (folder.path / "environment.json").is_file():
        raise RunError(str(folder.path), "is not a run folder", "Name a folder that `wardround run` has made.")
    study, known = load_study(folder.path / "study.toml", **members)
    engine = folder.read_json("environment.json").get("engine", "auto")
    fresh = run_plan(load_plan(study, known), folder, engine, False, bar_in_notebook(progress), workers)
    return finished_run(folder, fresh, with_tables_of(study, members))


def execute(
    plan: Plan, folder: RunFolder, engine: str = "auto", again: bool = False, workers: int | None = None
) -> Generator[Progress]:
    """Fill the run folder, from its beginning or from its last checkpoints. `workers` units train at a time."""
    study = plan.study
    plan.check_all(processors() if workers is None else workers)  # refusals come before any file is written
    units = cut(plan, engine)
    refuse_uncovered(plan)
    refuse_untunable(plan)
    refuse_contribution(plan)
    plan.start_notices = refuse_tested_before(plan)
    analysed = yield from _analysed(plan, planned_rounds(study) + total_rounds(plan, units))  # while nothing is written
    environment = {**describe_environment(), "engine": engine, "data_fingerprint": plan.fingerprint}
    environment["versions"] |= {name: installed(name) for name in packages_of_tuning(study)}
    environment["quick"] = study.quick
    with folder.locked():
        log, fresh = AuditLog(folder.path / "audit.jsonl"), again or not has_begun(folder.path)
        if fresh:
            folder.begin(study, environment)
        else:
            refuse_other_circumstances(folder, environment)
        facts = {"engine": engine, "data": plan.fingerprint, "versions": environment["versions"]}
        log.add(BEGUN if fresh else RESUMED, study=study.hash, **facts)
        tried_rounds = planned_rounds(study) + planned_rounds_of_coalitions(plan)
        tuned, total = None, tried_rounds + total_rounds(plan, units) + len(study.analyses)
        if study.tuning is not None:
            tuned = yield from _tuned(plan, engine, folder, workers, total)
            units = cut(plan, engine)
        before, tried = planned_rounds(study) + len(study.analyses), len(tuned.units) if tuned else 0
        contributed = None
        if study.contribution is not None:
            contributed = yield from _contributed(plan, engine, folder, workers, before, total, tried)
            before, tried = before + planned_rounds_of_coalitions(plan), tried + len(contributed.units)
        for progress in train_units(plan, units, folder, workers, tried):
            yield replace(progress, done=before + progress.done, total=total)
        finish(plan, folder, units, workers, tuned, analysed, contributed)
        hashes = {name: file_hash(folder.path / name) for name in LOGGED if (folder.path / name).is_file()}
        log_named(log, folder.read_json("results.json"))
        try:
            log.add(FINISHED, study=study.hash, files=hashes)
        except OSError:  # a run that is not logged as finished is not complete: its end is computed again
            (folder.path / "results.json").unlink()
            raise
        folder.remove_state()


def _analysed(plan: Plan, rounds: int) -> Generator[Progress, None, dict[str, Any]]:
    """Results of the study's analyses by name. They take seconds, so that a resumed run computes them again."""
    if plan.analysed is None:
        return {}
    from wardround.analyses.simulated import Analysed, conduct_all

    steps, total = conduct_all(Analysed(plan.study, plan.families, plan.analysed)), rounds + len(plan.study.analyses)
    while True:
        try:
            done, title = next(steps)
            yield Progress(done, total, title)
        except StopIteration as end:
            results: dict[str, Any] = end.value
            yield Progress(len(results), total, "analyses")
            return results


def _tuned(
    plan: Plan, engine: str, folder: RunFolder, workers: int | None, total: int
) -> Generator[Progress, None, Tuned]:
    """All trials of settings; the plan then has those that were chosen."""

    def train(units: Sequence[Unit], first: int, starts: Mapping[int, Checkpoint]) -> Generator[int]:
        for step in train_units(plan, units, folder, workers, first, starts):
            yield step.done

    trials = tune(plan, engine, folder, train)
    while True:
        try:
            yield Progress(len(plan.study.analyses) + next(trials), total, "trying settings")
        except StopIteration as end:
            tuned: Tuned = end.value
            return tuned


def _contributed(
    plan: Plan, engine: str, folder: RunFolder, workers: int | None, before: int, total: int, first: int
) -> Generator[Progress, None, Contributed]:
    """All coalitions of sites, trained and scored."""

    def train(units: Sequence[Unit], first: int, starts: Mapping[int, Checkpoint]) -> Generator[int]:
        for step in train_units(plan, units, folder, workers, first, starts):
            yield step.done

    steps = contribute(plan, engine, folder, train, first)
    while True:
        try:
            yield Progress(before + next(steps), total, "some of the hospitals")
        except StopIteration as end:
            contributed: Contributed = end.value
            return contributed


def train_units(
    plan: Plan,
    units: Sequence[Unit],
    folder: RunFolder,
    workers: int | None,
    first: int = 0,
    starts: Mapping[int, Checkpoint] | None = None,
) -> Generator[Progress]:
    """Units that are not finished yet, each from its last checkpoint. `first` is the number of the first in the folder;
    `starts` are the checkpoints with which some begin."""
    begins = starts or {}
    with folder.checked_content():
        checkpoints = [_checkpoint(folder, first + n, begins.get(n, Checkpoint())) for n in range(len(units))]
        kept = [(unit.members, point.records) for unit, point in zip(units, checkpoints, strict=True)]
    cut_records(folder.path / RUNNING, kept)
    earlier = {n: begins[n].round * len(units[n].members) for n in begins}  # rounds of waves before this one
    rounds = {n: total_rounds(plan, [unit]) if checkpoints[n].done else 0 for n, unit in enumerate(units)}
    todo, total = [n for n, checkpoint in enumerate(checkpoints) if not checkpoint.done], total_rounds(plan, units)

    def run(number: int) -> Generator[int]:
        return run_unit(plan, units[number], first + number, checkpoints[number], folder)

    workers = workers_for([units[number] for number in todo], total) if workers is None else workers
    workers = workers if can_fork() else 1
    if workers > 1:
        todo.sort(key=lambda number: -units[number].weight(plan))  # the longest first, so that nobody waits for it
    for number, done in in_parallel(todo, run, workers, _load_statistics):
        rounds[number] = done
        yield Progress(_newly_done(rounds, earlier), total, units[number].title)
    holding.stop_if_held(folder, AuditLog(folder.path / "audit.jsonl"), f"wardround resume {folder.path}")


def _checkpoint(folder: RunFolder, number: int, begin: Checkpoint) -> Checkpoint:
    """The unit's last; where it has none yet, the one with which it begins."""
    own = read_checkpoint(folder.path, number)
    return own if own.round else begin


def _newly_done(rounds: Mapping[int, int], earlier: Mapping[int, int]) -> int:
    return sum(max(0, done - earlier.get(unit, 0)) for unit, done in rounds.items())


def run_unit(plan: Plan, unit: Unit, number: int, checkpoint: Checkpoint, folder: RunFolder) -> Generator[int]:
    """Train a unit's trials to their last round, or until people must decide about a site; yields how many rounds are
    done, over all its trials."""
    trials, engine = holding.with_decisions(unit.trials(plan), folder), engine_named(unit.engine)
    interval = plan.study.evaluation.every
    with folder.checked_content():
        done = checkpoint.round
        begun = engine.restore(trials, done, checkpoint.leaves) if done else engine.start(trials)
    curves, pace, last = Curves(trials, plan.study.evaluation.on_training), Pace(), trials[0].training.rounds
    if holding.waits(trials, partial(engine.runs, trials, begun)):
        return
    holding.forget_held(folder, number)
    selects = _selects(plan.arm(*unit.members[0]))
    threads = 1 if trials[0].light else torch.get_num_threads()
    state, began = begun, time.perf_counter()
    with RecordWriter(folder.path / RUNNING, checkpoint.records) as written:
        for state, records in engine.rounds(trials, begun):
            seconds = (time.perf_counter() - began) / len(trials)
            round_number = records[0].round
            shown = not selects and (round_number == last or (interval and round_number % interval == 0))
            with torch_threads(threads):
                points = curves.after(state, round_number == last) if shown else [{}] * len(trials)
            for record, point in zip(records, points, strict=True):
                written.add(record.finished(unit.engine, seconds, point))
            runs = partial(engine.runs, trials, state)
            held = holding.write_held_after(folder, number, trials, runs, records)
            if held or (pace.due and round_number < last):
                save_started = time.perf_counter()
                reached = Checkpoint(round_number, written.flush(), engine.leaves(state)[1])
                write_checkpoint(folder.path, number, reached)
                pace.saved(time.perf_counter() - save_started)
            yield round_number * len(trials)
            if held:
                return
            began = time.perf_counter()
        with torch_threads(threads):
            save_unit(plan, number, trials, engine.runs(trials, state), folder)
        leaves = engine.leaves(state)[1] if stops_early(plan, trials[0]) else {}
        write_checkpoint(folder.path, number, Checkpoint(last, written.flush(), leaves, done=True))


def _selects(arm: Arm) -> bool:
    """Whether its rows are not test rows, and have no curve."""
    return arm.held_out is not None or is_trial(arm) or is_coalition(arm.name)


def save_unit(plan: Plan, number: int, trials: Sequence[Trial], runs: Sequence[Run], folder: RunFolder) -> None:
    pairs, study = list(zip(trials, runs, strict=True)), plan.study
    if is_coalition(trials[0].arm):
        save_worths(plan, folder, number, trials, runs)
        return
    if is_trial(plan.arm(trials[0].arm, trials[0].seed)):
        save_scores(plan, folder, number, trials, runs)
        return
    if study.arm(trials[0].arm).held_out is not None:
        _save(plan, folder, number, "selection", _predicted(pairs))
        return
    _save(plan, folder, number, "predictions", _predicted(pairs))
    _save(plan, folder, number, "selection", _predicted(_selected_by_validation(study, pairs), "validation"))
    if plan.chooses_thresholds and any(len(site.validation) for site in trials[0].scored):
        _save(plan, folder, number, "validation", _predicted(pairs, "validation"))
    _save(plan, folder, number, "regional", _regional(pairs))
    tables: dict[Predictions, list[pd.DataFrame]] = {
        "missing_party": list(_missing_party_tables(plan, pairs)),
        "uncertainty": list(_uncertainty_tables(plan, pairs)),
        "triggered": list(_triggered_tables(plan, pairs)),
    }
    for kind, parts in tables.items():
        if parts:
            folder.save_predictions(kind, number, pd.concat(parts, ignore_index=True))
    for trial, run in pairs:
        folder.save_model(trial.arm, trial.seed, saved_leaves(run))
        if trial.seed == study.evaluation.seeds.first and trial.privacy.example is not None:
            folder.save_lengths(trial.arm, gradient_lengths(trial, run))


def _save(plan: Plan, folder: RunFolder, number: int, kind: Predictions, predicted: Predicted) -> None:
    if predicted:
        names, predictions = [(trial.arm, trial.seed) for trial, _ in predicted], [part for _, part in predicted]
        folder.save_predictions(kind, number, prediction_table(names, predictions))


def _predicted(pairs: Pairs, subset: Subset = "test") -> Predicted:
    return [(trial, predict(trial, run, subset)) for trial, run in pairs]


def _regional(pairs: Pairs) -> Predicted:
    """Predictions of regions' own models. SciPy comes with them, which other studies need only at their end."""
    regional = [(trial, run) for trial, run in pairs if trial.algorithm.regions is not None]
    if not regional:
        return []
    from wardround.evaluation.regional import predict_regional

    return [(trial, predict_regional(trial, run)) for trial, run in regional]


def _selected_by_validation(study: Study, pairs: Pairs) -> Pairs:
    if study.selection is None or study.selection.on != "validation":
        return []
    return [(trial, run) for trial, run in pairs if study.arm(trial.arm).family in study.selection.arms]


def _missing_party_tables(plan: Plan, pairs: Pairs) -> Iterator[pd.DataFrame]:
    """Predictions while each party in turn is missing."""
    for trial, run in pairs:
        if trial.topology.kind == "vertical":
            from wardround.evaluation.missing_party import predict_missing_party  # SciPy, as above

            for party, predicted in predict_missing_party(trial, run).items():
                yield prediction_table([(trial.arm, trial.seed)], [predicted]).assign(party=party)


def _triggered_tables(plan: Plan, pairs: Pairs) -> Iterator[pd.DataFrame]:
    """Predictions for test rows with the triggers of simulated backdoors."""
    for trial, run in pairs:
        if backdoors := built_backdoors(plan.study, plan.arm(trial.arm, trial.seed), plan.families.adversaries):
            from wardround.evaluation.under_attack.backdoor import predict_triggered  # SciPy, as above

            for backdoor, predicted in predict_triggered(trial, run, backdoors).items():
                yield prediction_table([(trial.arm, trial.seed)], [predicted]).assign(backdoor=backdoor)


def _uncertainty_tables(plan: Plan, pairs: Pairs) -> Iterator[pd.DataFrame]:
    """Of arms that ask for it. With the first seed, changed images are measured too."""
    for trial, run in pairs:
        arm, first = plan.study.arm(trial.arm), plan.study.evaluation.seeds.first
        if arm.uncertainty is not None:
            from wardround.uncertainty.row_uncertainty import row_uncertainty  # SciPy, needed at the end otherwise

            changes_images = trial.seed == first or arm.uncertainty.method == "ensemble"  # every member sees them
            each_image = arm.preparation.scale == "image"
            parts = row_uncertainty(trial, run, arm.uncertainty, first if changes_images else None, each_image)
            yield uncertainty_table(trial.arm, trial.seed, parts, plan.classes)


def finish(
    plan: Plan,
    folder: RunFolder,
    units: Sequence[Unit],
    workers: int | None,
    tuned: Tuned | None,
    analysed: Mapping[str, Any],
    contributed: Contributed | None = None,
) -> None:
    """Everything that is computed after training. `results.json` comes last and makes the folder complete."""
    tried = [unit for part in (tuned, contributed) if part is not None for unit in part.units]
    content = _results(plan, folder, units, workers, tuned, tried) if units else results_without_arms(plan)
    content |= {"contribution": describe_contribution(plan, contributed)} if contributed is not None else {}
    content |= {"analyses": analysed} if analysed else {}
    folder.write_json("results.json", content)


def _results(
    plan: Plan,
    folder: RunFolder,
    units: Sequence[Unit],
    workers: int | None,
    tuned: Tuned | None,
    tried: Sequence[Unit],
) -> dict[str, Any]:
    from wardround.evaluation.outcome_results import study_results
    from wardround.runs.continual.outcome import describe_start
    from wardround.runs.explaining.explain_arms import explanations
    from wardround.runs.site_descriptions import (
        describe_columns,
        describe_matching,
        describe_sites,
        leakage,
        with_models,
    )

    groups = group_table(list(plan.cohorts.values()))
    folder.write_table("groups.parquet", groups)
    workers = workers_at_the_end(units) if workers is None else workers
    records = folder.compact_records([unit.members for unit in (*tried, *units)], workers)
    all_records, records = records, of_arms(records, plan.study)
    for kind in get_args(Predictions):
        folder.join_predictions(kind)
    predictions, sites = folder.predictions(), describe_sites(plan)
    others = {kind: folder.other_predictions(kind) for kind in get_args(Predictions) if kind != "predictions"}
    ledger = write_ledger(folder, plan.study, records, plan.rows_fingerprint, guarantee=False)
    spent = [] if ledger is None else ledger.entries()
    with beside(lambda: describe_models(plan, folder, spent, plan.rows_fingerprint), workers > 1) as described_models:
        decided = holding.read_decisions(folder)
        content = study_results(plan.study, predictions, groups, records, sites, plan.task, others, workers, decided)
        described_models()
    with_models(content["arms"], plan)
    for of_outcome in content.get("outcomes", {}).values():
        with_models(of_outcome["arms"], plan)
    for name, matching in describe_matching(plan).items():
        content["arms"][name]["topology"]["matched"] = matching
    described = {
        "sites": sites,
        "columns": describe_columns(plan),
        "leakage": leakage(plan),
        "synthetic": plan.synthetic,
    }
    started = describe_start(plan, folder, spent)
    content["start_from"] = next(iter(started.values()))
    for name, of_outcome in content.get("outcomes", {}).items():
        of_outcome["start_from"] = started[name]
    content["privacy"] = describe_spending(
        plan.study, spent, records, folder.lengths(), guarantee=False, exposure=counted_exposure(plan)
    )
    if tuned is not None:
        content["tuning"] = describe_tuning(plan, tuned, all_records)
    content |= explanations(plan, folder, content)
    content["notices"] += with_texts(plan.notices)
    if plan.study.evaluation.attack == "membership":
        attack_members(plan, folder)
    save_shown_images(plan, folder, content)
    return {**content, **described}


def results_without_arms(plan: Plan) -> dict[str, Any]:
    from wardround.analyses.simulated import Analysed, without_arms

    if plan.analysed is None:
        raise ValueError("a study has arms or analyses")
    sites = Analysed(plan.study, plan.families, plan.analysed).sites
    content = without_arms(plan.study, plan.analysed.records.task, list(sites))
    return {**content, "notices": with_texts(plan.source_notices), "synthetic": plan.synthetic}


def log_named(log: AuditLog, results: Mapping[str, Any]) -> None:
    """Sites whose updates were found to differ, once the run is over; a resumed run finds the same."""
    for arm, described in results.get("screening", {}).get("arms", {}).items():
        for entry in described["named"]:
            log.add(NAMED, arm=arm, **entry)


def of_arms(records: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Without those of trials, whose figures are those of the choice."""
    if study.tuning is None and study.contribution is None:
        return records
    own = records["arm"].isin([arm.name for arm in study.trained_arms])
    return records[own].reset_index(drop=True)


def packages_of_tuning(study: Study) -> tuple[str, ...]:
    return () if study.tuning is None else METHODS[study.tuning.method].packages


def attack_members(plan: Plan, folder: RunFolder) -> None:
    """Membership inference from losses, as `wardround attack --only membership --shadows 0`."""
    from wardround.attacks.attack import attack_target
    from wardround.attacks.target import Target

    first = plan.study.evaluation.seeds.first
    arms = tuple(plan.arm(arm.name, first) for arm in plan.study.arms if not arm.variant)
    target = Target(folder, plan, arms, first)
    attack_target(target, ["membership"], False, "initial", 0, lambda line: None)


def _load_statistics() -> None:
    """SciPy's and statsmodels' statistics take a second to import; nothing before the end needs them."""
    import wardround.evaluation.results  # noqa: F401


def refuse_other_circumstances(folder: RunFolder, environment: Mapping[str, Any]) -> None:
    before = folder.read_json("environment.json")
    for key in SAME:
        if before.get(key) != environment[key]:
            what = key.replace("_", " ")
            problem = (
                f"holds an unfinished run that was begun with other {what}, so it cannot go on to the same numbers"
            )
            raise RunError(str(folder.path), problem, "Restore what has changed, or start anew with --again.")
