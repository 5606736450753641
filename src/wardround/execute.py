"""From a study to a run folder: train every arm with every seed, predict, compute.

`execute` is a generator of progress, so that a terminal, a notebook or a test decides what to show. Nothing is printed.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from wardround.artifacts.environment import describe_environment
from wardround.artifacts.folder import JsonLines, ParquetStream, RunFolder
from wardround.artifacts.tables import group_table, prediction_table, saved_leaves
from wardround.catalog import load_study
from wardround.engines import ENGINES
from wardround.errors import RunError, StudyError, suggest
from wardround.evaluation.predict import predict, quick_figures
from wardround.evaluation.results import results
from wardround.plan import Plan, describe_sites, device_for, load_plan
from wardround.rounds import Run, TrainSites, Trial, rounds, start
from wardround.settings import Factory
from wardround.study import Study


@dataclass(frozen=True)
class Progress:
    done: int  # rounds
    total: int
    arm: str
    seed: int


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
    models: Mapping[str, Factory] | None = None,
    sources: Mapping[str, Factory] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> StudyRun:
    """Run a study and return its results. A complete run with the same hash and data is shown, not repeated."""
    parsed, known = load_study(study, quick, changes, models, sources)
    train_sites = engine_for(engine)
    for arm in parsed.arms:
        device_for(arm)  # refused now rather than after an hour
    plan = load_plan(parsed, known)
    folder = RunFolder.of(parsed, Path(out))
    if folder.complete and not again:
        if folder.read_json("environment.json").get("data_fingerprint") != plan.cohort.fingerprint:
            remedy = "Give another --out, or --again to replace it."
            raise RunError(str(folder.path), "holds a complete run of this study on other data", remedy)
        return StudyRun(folder.path, folder.read_json("results.json"), fresh=False)
    for step in execute(plan, folder, train_sites):
        if progress is not None:
            progress(step)
    return StudyRun(folder.path, folder.read_json("results.json"), fresh=True)


def engine_for(name: str) -> TrainSites:
    """`auto` takes the fastest engine that gives the study's numbers."""
    if name == "auto":
        name = "serial"
    if name not in ENGINES:
        raise StudyError("--engine", f"{name!r} is not known", suggest(name, [*ENGINES, "auto"], "Engines"))
    return ENGINES[name]


def execute(plan: Plan, folder: RunFolder, train_sites: TrainSites) -> Generator[Progress]:
    """Run every arm with every seed and fill the run folder. Stopping early leaves an incomplete folder."""
    study, path = plan.study, folder.path
    total = study.evaluation.seeds.count * sum(arm.training.rounds for arm in study.arms)
    done = 0
    first = plan.trial(study.arms[0], study.evaluation.seeds.first)  # what is refused is refused before a file is made
    with folder.locked():
        folder.begin(study, {**describe_environment(), "data_fingerprint": plan.cohort.fingerprint})
        with ParquetStream(path / "predictions.parquet") as predictions, JsonLines(path / "records.jsonl") as lines:
            for seed in study.evaluation.seeds:
                for arm in study.arms:
                    trial = first if done == 0 else plan.trial(arm, seed)
                    finished = start(trial)
                    for run, record in timed(trial, finished, train_sites, study.evaluation.every):
                        lines.add(record)
                        finished = run
                        done += 1
                        yield Progress(done, total, arm.name, seed)
                    made = predict(trial, finished)
                    predictions.add(prediction_table(arm.name, seed, made, plan.cohort.records.classes))
                    folder.save_model(arm.name, seed, saved_leaves(finished))
        groups = group_table(plan.cohort)
        groups.to_parquet(path / "groups.parquet", index=False)
        content = results(study, folder.predictions(), groups, folder.records())
        folder.write_json("results.json", {**content, "sites": describe_sites(plan), "warnings": plan.warnings})


def timed(trial: Trial, run: Run, train_sites: TrainSites, every: int) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The rounds of a trial, each with its line for records.jsonl. `seconds` is training alone, without evaluation."""
    began = time.perf_counter()
    for after, record in rounds(run, trial, train_sites):
        seconds = time.perf_counter() - began
        last = after.round == trial.training.rounds
        figures = curve_point(trial, after) if last or (every and after.round % every == 0) else {}
        yield after, {"arm": trial.arm, "seed": trial.seed, **asdict(record), **figures, "seconds": seconds}
        began = time.perf_counter()


def curve_point(trial: Trial, run: Run) -> dict[str, float]:
    """Loss and accuracy after a round: for people to look at, never to choose by."""
    sides = {"test": predict(trial, run, "test")}
    if any(len(site.validation) for site in trial.scored):
        sides["validation"] = predict(trial, run, "validation")
    return {f"{side}_{name}": value for side, made in sides.items() for name, value in quick_figures(made).items()}
