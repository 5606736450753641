"""`wardround.adapt`: a learning curve and a bundle from a shared part and a new hospital's rows."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from shutil import rmtree
from typing import Any, Unpack

import pandas as pd

from wardround.adaptation.curve import curve_of, rows_of
from wardround.adaptation.handover import origin_of
from wardround.adaptation.newcomer import Newcomer, read_newcomer, target_vocabulary
from wardround.adaptation.train import WAYS, train, train_repeat, within
from wardround.bundles.build.assemble import build_bundle, plain_name
from wardround.bundles.build.shared_part import SharedPart, is_shared, load_shared, part_of_run
from wardround.core.atomic_files import new_folder, refuse_existing
from wardround.core.errors import BundleError, StudyError, as_path, shown
from wardround.core.notices import with_texts
from wardround.core.processes import can_fork, in_parallel
from wardround.core.registry import Members
from wardround.deployment.provisioning.site_file import hospital_source
from wardround.evaluation.scores import score_columns
from wardround.evaluation.training_notices import diverged
from wardround.runs.catalog import families
from wardround.runs.execute import Progress
from wardround.runs.folder import without_nan
from wardround.runs.units import MOST_WORKERS
from wardround.study.schema import Training

FOLDER = Path("adapted")
REPEATS = 20
QUICK_REPEATS, QUICK_EPOCHS = 3, 10
RESULT, PREDICTIONS, BUNDLE = "adapt.json", "predictions.parquet", "bundle"


@dataclass(frozen=True)
class Adapted:
    """A finished adaptation: its folder and the content of its adapt.json."""

    folder: Path
    results: Mapping[str, Any]

    @property
    def bundle(self) -> Path:
        return self.folder / BUNDLE

    def table(self) -> pd.DataFrame:
        """One line per fraction: the means of both ways of training, and their difference."""
        lines = {}
        for fraction in self.results["fractions"]:
            line = {"rows": fraction["rows"]["mean"]}
            for metric, difference in fraction["difference"].items():
                line |= {f"{way} {metric}": fraction[way][metric]["mean"] for way in WAYS}
                line[f"difference {metric}"] = difference["difference"]
            lines[fraction["fraction"]] = line
        return pd.DataFrame.from_dict(lines, orient="index")


def adapt(
    shared: str | PathLike[str],
    hospital: str | Path,
    *,
    arm: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    repeats: int | None = None,
    epochs: int | None = None,
    quick: bool = False,
    accept: Collection[str] = (),
    progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
    **members: Unpack[Members],
) -> Adapted:
    """Train a new hospital's adapter on its own rows, and compare it with training alone.

    `shared` is a shared part, or a complete run: then `arm` and `seed` select the model. `hospital` is a file
    with `name` and `[data]`, such as a site file. `out` must not exist yet; the default is `adapted/HOSPITAL`.
    """
    repeats = repeats or (QUICK_REPEATS if quick else REPEATS)
    epochs = epochs or (QUICK_EPOCHS if quick else None)
    part = open_part(shared, arm, seed, **members)
    name, source = hospital_source(as_path(hospital, "hospital"), families(**members))
    out_folder = FOLDER / plain_name(name) if out is None else as_path(out, "--out")
    refuse_existing(out_folder)
    newcomer = read_newcomer(name, source, part, repeats, accept)
    vocabulary = target_vocabulary(hospital, name, newcomer.cohort)
    training = within(part.training, epochs)
    with new_folder(out_folder) as folder:
        predictions = _predictions(part, newcomer, training, folder, progress, workers)
        content = without_nan(_content(part, newcomer, training, predictions) | {"target": vocabulary})
        predictions.to_parquet(folder / PREDICTIONS, index=False, compression="zstd")
        from wardround.adaptation.figure import write_curve  # matplotlib, at the end only

        write_curve(content, folder)
        _hand_over(part, newcomer, training, predictions, content, folder)
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        (folder / RESULT).write_text(text, encoding="utf-8")
    return Adapted(out_folder, content)


def open_part(
    shared: str | PathLike[str],
    arm: str | None,
    seed: int | None,
    **members: Unpack[Members],
) -> SharedPart:
    """A shared part from its folder, or from a run."""
    if not is_shared(shared) and (as_path(shared, "shared part", BundleError) / "study.toml").is_file():
        if arm is None:
            raise StudyError("--arm", "a run has several arms, and a shared part comes from one", "Name it with --arm.")
        return part_of_run(shared, arm, seed, **members)
    part = load_shared(shared, members.get("models"))
    for option, requested, actual in (("--arm", arm, part.about["arm"]), ("--seed", seed, part.about["seed"])):
        if requested is not None and requested != actual:
            raise StudyError(
                option, f"this shared part is of {shown(actual)}, not of {shown(requested)}", f"Leave {option} out."
            )
    return part


def _predictions(
    part: SharedPart,
    newcomer: Newcomer,
    training: Training,
    folder: Path,
    progress: Callable[[Progress], None] | None,
    workers: int | None,
) -> pd.DataFrame:
    """Predictions of all repeats. Workers write theirs to files; only progress comes back from them."""
    parts = folder / "repeats"
    parts.mkdir()
    seeds = list(newcomer.splits)
    each = len(newcomer.fractions) * len(WAYS)
    done = dict.fromkeys(range(len(seeds)), 0)

    def repeat(number: int) -> Iterator[int]:
        tables = []
        for table in train_repeat(part, newcomer, training, seeds[number]):
            tables.append(table)
            if len(tables) == each:
                pd.concat(tables, ignore_index=True).to_parquet(parts / f"{number:05}.parquet", index=False)
            yield len(tables)

    count = min(os.cpu_count() or 1, MOST_WORKERS) if workers is None else workers
    for number, trainings in in_parallel(list(done), repeat, count if can_fork() else 1):
        done[number] = trainings
        if progress is not None:
            rounds = training.rounds * sum(done.values()), training.rounds * each * len(seeds)
            progress(Progress(*rounds, f"{newcomer.name}, seed {seeds[number]}"))
    predictions = pd.concat([pd.read_parquet(parts / f"{number:05}.parquet") for number in done], ignore_index=True)
    rmtree(parts)
    return predictions


def _content(part: SharedPart, newcomer: Newcomer, training: Training, predictions: pd.DataFrame) -> dict[str, Any]:
    about, cohort = part.about, newcomer.cohort
    splits = list(newcomer.splits.values())
    return {
        "schema_version": 1,
        "wardround": version("wardround"),
        "hospital": newcomer.name,
        "shared": {key: about[key] for key in ("id", "name", "study", "run", "arm", "seed", "sites", "figures")},
        "classes": cohort.records.task.label_counts(cohort.records.target[splits[0].rows]),
        "rows": {
            part_name: rows_of([len(getattr(split, part_name)) for split in splits])
            for part_name in ("rows", "train", "validation", "test")
        },
        "columns": [column.name for column in cohort.table.columns],
        "seeds": list(newcomer.splits),
        "epochs": training.rounds * training.local_epochs,
        "epochs_in_study": part.training.rounds * part.training.local_epochs,
        **curve_of(predictions, newcomer),
        "notices": with_texts([*diverged(predictions.rename(columns={"way": "arm"})), *newcomer.notices]),
    }


def _hand_over(
    part: SharedPart,
    newcomer: Newcomer,
    training: Training,
    predictions: pd.DataFrame,
    content: Mapping[str, Any],
    folder: Path,
) -> None:
    """The bundle of the first seed with all training rows; its scores must equal the saved ones."""
    share, seed = max(newcomer.fractions), newcomer.evaluation.seeds.first
    trained = train(part, newcomer, training, "adapted", share, seed)
    of_model = predictions[
        (predictions["way"] == "adapted") & (predictions["fraction"] == share) & (predictions["seed"] == seed)
    ]
    if of_model[score_columns(of_model)].isna().any(axis=None):
        problem = f"training diverged with seed {seed}, so there is no model for a bundle"
        raise BundleError(newcomer.name, problem, "Train the shared part with a lower learning rate, or use --epochs.")
    build_bundle(origin_of(part, newcomer, training, trained, of_model, content), folder / BUNDLE)
