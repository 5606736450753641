"""From a study to a run folder: train every arm with every seed, predict, compute. Dies at any moment, resumes exactly.

`execute` is a generator of progress, so that a terminal, a notebook or a test decides what to show. Nothing is printed.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import pandas as pd
import torch

from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import RunError, as_path
from wardround.core.processes import can_fork, in_parallel
from wardround.core.registry import Members
from wardround.core.threads import torch_threads
from wardround.evaluation.curves import Curves
from wardround.evaluation.missing_party import predict_missing_party
from wardround.evaluation.prediction import predict
from wardround.evaluation.regional import predict_regional
from wardround.runs.audit import BEGUN, FINISHED, RESUMED, AuditLog, file_hash
from wardround.runs.catalog import load_study
from wardround.runs.checkpoint import Checkpoint, Pace, has_begun, read_checkpoint, write_checkpoint
from wardround.runs.environment import describe_environment
from wardround.runs.folder import JsonLines, Predictions, RunFolder
from wardround.runs.plan import Plan, device_for, load_plan
from wardround.runs.prediction_tables import group_table, prediction_table, saved_leaves, unsure_table
from wardround.runs.privacy_plan import counted_exposure, gradient_lengths
from wardround.runs.spending import LEDGER, describe_spending, write_ledger
from wardround.runs.units import Unit, cut, engine_named, total_rounds, workers_for
from wardround.study.schema import Study
from wardround.training.trial import Run, Trial

MADE = ("results.json", "predictions.parquet", "records.jsonl", LEDGER)  # whose hashes the audit log keeps
SAME = ("data_fingerprint", "engine", "versions", "torch_threads")  # without which a resumed run would differ in bits


@dataclass(frozen=True)
class Progress:
    done: int  # rounds, over all arms and seeds
    total: int
    title: str


@dataclass(frozen=True)
class StudyRun:
    """A finished run: its folder and the content of its results.json."""

    folder: Path
    results: Mapping[str, Any]
    fresh: bool  # False: a complete run with this study's hash was found and is shown

    def table(self) -> pd.DataFrame:
        """One row per arm: mean of each metric over seeds."""
        rows = {
            arm: {name: figure["mean"] for name, figure in content["metrics"].items()}
            for arm, content in self.results["arms"].items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")


def run_study(
    study: str | Path | Mapping[str, Any] | Study,
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
    """Run a study and return its results. A complete run is shown, an unfinished one goes on where it stopped."""
    target = as_path(out, "out")
    parsed, known = load_study(study, quick, changes, **members)
    if engine != "auto":
        engine_named(engine)
    for arm in parsed.arms:
        device_for(arm)  # refused now rather than after an hour
    plan = load_plan(parsed, known)
    return run_plan(plan, RunFolder.of(parsed, target), engine, again, progress, workers)


def run_plan(
    plan: Plan,
    folder: RunFolder,
    engine: str,
    again: bool,
    progress: Callable[[Progress], None] | None,
    workers: int | None = None,
) -> StudyRun:
    if folder.complete and not again:
        if folder.read_json("environment.json").get("data_fingerprint") != plan.fingerprint:
            remedy = "Give another --out, or --again to replace it."
            raise RunError(str(folder.path), "holds a complete run of this study on other data", remedy)
        keep_bundles(plan, folder)
        return StudyRun(folder.path, folder.read_json("results.json"), fresh=False)
    with reporting_full_disk(folder.path, f"Make room, then go on with: wardround resume {folder.path}"):
        for step in execute(plan, folder, engine, again, workers):
            if progress is not None:
                progress(step)
    keep_bundles(plan, folder)
    return StudyRun(folder.path, folder.read_json("results.json"), fresh=True)


def keep_bundles(plan: Plan, folder: RunFolder) -> None:
    """Those that the study asks for and that are not there yet."""
    if plan.study.evaluation.bundles:
        from wardround.bundles.build.make import keep_bundles as keep

        keep(plan, folder)


def resume_study(
    path: str | Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
    **members: Unpack[Members],
) -> StudyRun:
    """Go on with the run in a folder, by the study and the engine that it holds. It may have been moved."""
    folder = RunFolder(as_path(path, "run", RunError))
    if not (folder.path / "study.toml").is_file() or not (folder.path / "environment.json").is_file():
        raise RunError(str(folder.path), "is not a run folder", "Name a folder that `wardround run` has made.")
    study, known = load_study(folder.path / "study.toml", **members)
    engine = folder.read_json("environment.json").get("engine", "auto")
    return run_plan(load_plan(study, known), folder, engine, False, progress, workers)


def execute(
    plan: Plan, folder: RunFolder, engine: str = "auto", again: bool = False, workers: int | None = None
) -> Generator[Progress]:
    """Fill the run folder, from its beginning or from its last checkpoints. `workers` units train at a time."""
    study = plan.study
    plan.check_all()  # what is refused is refused before a file is made
    units = cut(plan, engine)
    environment = {**describe_environment(), "engine": engine, "data_fingerprint": plan.fingerprint}
    environment["quick"] = study.quick
    with folder.locked():
        log = AuditLog(folder.path / "audit.jsonl")
        if again or not has_begun(folder.path):
            folder.begin(study, environment)
            begun = BEGUN
        else:
            refuse_other_circumstances(folder, environment)
            begun = RESUMED
        log.add(begun, study=study.hash, engine=engine, data=plan.fingerprint, versions=environment["versions"])
        with folder.as_written():
            places = [read_checkpoint(folder.path, number) for number in range(len(units))]
        todo = [number for number, place in enumerate(places) if not place.done]
        rounds = {n: total_rounds(plan, [unit]) if places[n].done else 0 for n, unit in enumerate(units)}
        total = total_rounds(plan, units)

        def run(number: int) -> Generator[int]:
            return run_unit(plan, units[number], number, places[number], folder)

        at_a_time = workers_for([units[number] for number in todo], total) if workers is None else workers
        at_a_time = at_a_time if can_fork() else 1
        if at_a_time > 1:
            todo.sort(key=lambda number: -units[number].weight(plan))  # the longest first, so that nobody waits for it
        for number, done in in_parallel(todo, run, at_a_time, _load_statistics):
            rounds[number] = done
            yield Progress(sum(rounds.values()), total, units[number].title)
        finish(plan, folder, len(units))
        made = [name for name in MADE if (folder.path / name).is_file()]
        try:
            log.add(FINISHED, study=study.hash, files={name: file_hash(folder.path / name) for name in made})
        except OSError:  # a run that is not logged as finished is not complete: its end is computed again
            (folder.path / "results.json").unlink()
            raise
        folder.remove_state()


def run_unit(plan: Plan, unit: Unit, number: int, place: Checkpoint, folder: RunFolder) -> Generator[int]:
    """Train a unit's trials to their last round; yields how many rounds are done, over all its trials."""
    trials, engine, every = unit.trials(plan), engine_named(unit.engine), plan.study.evaluation.every
    with folder.as_written():
        begun = engine.restore(trials, place.round, place.leaves) if place.round else engine.start(trials)
    curves, pace, last = Curves(trials, plan.study.evaluation.on_training), Pace(), trials[0].training.rounds
    selects = plan.study.arm(trials[0].arm).held_out is not None  # such rows are not test rows, and have no curve
    threads = 1 if trials[0].light else torch.get_num_threads()
    state, began = begun, time.perf_counter()
    with JsonLines(folder.unit_records(number), place.records) as lines:
        for state, records in engine.rounds(trials, begun):
            seconds = (time.perf_counter() - began) / len(trials)
            round_number = records[0].round
            shown = not selects and (round_number == last or (every and round_number % every == 0))
            with torch_threads(threads):
                points = curves.after(state, round_number == last) if shown else [{}] * len(trials)
            for trial, record, point in zip(trials, records, points, strict=True):
                facts = {"engine": unit.engine, "seconds": seconds}
                lines.add({"arm": trial.arm, "seed": trial.seed, **vars(record), **point, **facts})
            if pace.due and round_number < last:
                save_started = time.perf_counter()
                reached = Checkpoint(round_number, lines.flush(), engine.leaves(state)[1])
                write_checkpoint(folder.path, number, reached)
                pace.saved(time.perf_counter() - save_started)
            yield round_number * len(trials)
            began = time.perf_counter()
        with torch_threads(threads):
            keep_unit(plan, number, trials, engine.runs(trials, state), folder)
        write_checkpoint(folder.path, number, Checkpoint(last, lines.flush(), done=True))


def keep_unit(plan: Plan, number: int, trials: Sequence[Trial], runs: Sequence[Run], folder: RunFolder) -> None:
    """A finished unit's predictions and weights."""
    pairs = list(zip(trials, runs, strict=True))
    selects = plan.study.arm(trials[0].arm).held_out is not None
    _keep(plan, folder, "selection" if selects else "predictions", number, pairs)
    if selects:
        return
    selection = plan.study.selection
    if selection is not None and selection.on == "validation":
        chosen = [(trial, run) for trial, run in pairs if plan.study.arm(trial.arm).family in selection.arms]
        _keep(plan, folder, "selection", number, chosen, "validation")
    if plan.chooses_thresholds and any(len(site.validation) for site in trials[0].scored):
        _keep(plan, folder, "validation", number, pairs, "validation")
    in_regions = [(trial, predict_regional(trial, run)) for trial, run in pairs if trial.algorithm.regions is not None]
    if in_regions:
        names = [(trial.arm, trial.seed) for trial, _ in in_regions]
        folder.keep_predictions(
            "regional", number, prediction_table(names, [made for _, made in in_regions], plan.classes)
        )
    lone = [
        prediction_table([(trial.arm, trial.seed)], [made], plan.classes).assign(party=party)
        for trial, run in pairs
        if trial.topology.kind == "vertical"
        for party, made in predict_missing_party(trial, run).items()
    ]
    if lone:
        folder.keep_predictions("absent", number, pd.concat(lone, ignore_index=True))
    unsure = [table for trial, run in pairs if (table := how_sure(plan, trial, run)) is not None]
    if unsure:
        folder.keep_predictions("uncertainty", number, pd.concat(unsure, ignore_index=True))
    for trial, run in pairs:
        folder.save_model(trial.arm, trial.seed, saved_leaves(run))
        if trial.seed == plan.study.evaluation.seeds.first and trial.privacy.example is not None:
            folder.keep_lengths(trial.arm, gradient_lengths(trial, run))


def how_sure(plan: Plan, trial: Trial, run: Run) -> pd.DataFrame | None:
    """Of each validation and test row, where the arm asks for it; with the first seed of changed images too."""
    arm, first = plan.study.arm(trial.arm), plan.study.evaluation.seeds.first
    if arm.uncertainty is None:
        return None
    from wardround.uncertainty.row_uncertainty import unsure_rows  # SciPy, which other studies need only at their end

    changes_images = trial.seed == first or arm.uncertainty.method == "ensemble"  # every member sees them
    each_image = arm.preparation.scale == "image"
    made = unsure_rows(trial, run, arm.uncertainty, first if changes_images else None, each_image)
    return unsure_table(trial.arm, trial.seed, made, plan.classes)


def _keep(
    plan: Plan,
    folder: RunFolder,
    kind: Predictions,
    number: int,
    pairs: Sequence[tuple[Trial, Run]],
    side: Literal["validation", "test"] = "test",
) -> None:
    if pairs:
        names = [(trial.arm, trial.seed) for trial, _ in pairs]
        made = [predict(trial, run, side) for trial, run in pairs]
        folder.keep_predictions(kind, number, prediction_table(names, made, plan.classes))


def finish(plan: Plan, folder: RunFolder, units: int) -> None:
    """Everything that is computed from what was trained. `results.json` comes last and makes the folder complete."""
    from wardround.evaluation.results import results
    from wardround.evaluation.training_notices import training_notices
    from wardround.runs.site_descriptions import (
        describe_columns,
        describe_matching,
        describe_sites,
        leakage,
        sample_images,
        with_models,
    )

    groups = group_table(list(plan.cohorts.values()))
    folder.write_groups(groups)
    folder.join_records(units)
    for kind in get_args(Predictions):
        folder.join_predictions(kind, units)
    predictions, records, sites = folder.predictions(), folder.records(), describe_sites(plan)
    chosen_by = (folder.selection(), sites, folder.validation())
    content = results(
        plan.study,
        predictions,
        groups,
        records,
        *chosen_by,
        folder.regional(),
        folder.absent(),
        folder.uncertainty(),
    )
    with_models(content["arms"], plan)
    for name, matching in describe_matching(plan).items():
        content["arms"][name]["topology"]["matched"] = matching
    described = {
        "sites": sites,
        "columns": describe_columns(plan),
        "leakage": leakage(plan),
        "synthetic": plan.synthetic,
    }
    ledger = write_ledger(folder, plan.study, records, plan.fingerprint, guarantee=False)
    spent = [] if ledger is None else ledger.entries()
    content["privacy"] = describe_spending(
        plan.study, spent, records, folder.lengths(), guarantee=False, exposure=counted_exposure(plan)
    )
    warnings = [*diverged(predictions), *training_notices(records, predictions), *plan.warnings]
    if plan.study.evaluation.attack == "membership":
        attack_members(plan, folder)
    samples = sample_images(plan)
    if samples:
        folder.write_samples(samples)
    folder.write_json("results.json", {**content, **described, "warnings": warnings})


def attack_members(plan: Plan, folder: RunFolder) -> None:
    """Who was trained on, told from losses: what `wardround attack --only membership --shadows 0` finds."""
    from wardround.attacks.attack import attack_target
    from wardround.attacks.target import Target

    arms = tuple(arm for arm in plan.study.arms if not arm.variant)
    target = Target(folder, plan, arms, plan.study.evaluation.seeds.first)
    attack_target(target, ["membership"], False, "initial", 0, lambda line: None)


def _load_statistics() -> None:
    """SciPy's and statsmodels' statistics take a second to import; nothing before the end needs them."""
    import wardround.evaluation.results  # noqa: F401


def diverged(predictions: pd.DataFrame) -> list[str]:
    """Arms whose scores are not numbers, which usually means a learning rate that is too high."""
    from wardround.evaluation.scores import score_columns

    lost = predictions[predictions[score_columns(predictions)].isna().any(axis=1)]
    return [
        f"{arm}: training diverged with {len(seeds)} of the seeds; their scores are not numbers and count nowhere"
        for arm, seeds in lost.groupby("arm", sort=False)["seed"].unique().items()
    ]


def refuse_other_circumstances(folder: RunFolder, environment: Mapping[str, Any]) -> None:
    before = folder.read_json("environment.json")
    for key in SAME:
        if before.get(key) != environment[key]:
            what = key.replace("_", " ")
            problem = (
                f"holds an unfinished run that was begun with other {what}, so it cannot go on to the same numbers"
            )
            raise RunError(str(folder.path), problem, "Restore what has changed, or start anew with --again.")
