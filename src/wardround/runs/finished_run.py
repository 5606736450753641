"""A complete run, loaded again: its study, its rows, its saved models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from wardround.core import tree
from wardround.core.errors import RunError, StudyError, as_path, shown, suggest
from wardround.core.registry import Members
from wardround.core.tree import State, Tree
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, load_plan
from wardround.runs.spending import check_ledger
from wardround.runs.tuning.chosen import set_saved_choices
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Arm, Study
from wardround.training.local import Memory
from wardround.training.rounds import start
from wardround.training.trial import Run, Trial


@dataclass(frozen=True)
class RunReference:
    """A run that may stand in place of its folder's path, with what its study names beside itself."""

    folder: Path
    members: Members = field(default_factory=lambda: Members(), kw_only=True, repr=False)

    def __fspath__(self) -> str:
        return str(self.folder)


def with_own(run: object, members: Members) -> Members:
    """What a caller gives beside a run, and what the run itself brings."""
    return {**run.members, **members} if isinstance(run, RunReference) else members


def open_run(
    path: str | PathLike[str], elsewhere: tuple[str, str], **members: Unpack[Members]
) -> tuple[RunFolder, Plan]:
    """A complete run of this machine. `elsewhere`: why a run across hospitals will not do, and what will. `members` are
    as for `run_study`."""
    folder = _complete(path, elsewhere)
    return folder, _plan_of(folder, *load_study(folder.path / "study.toml", **with_own(path, members)))


def open_run_with(path: Path, elsewhere: tuple[str, str], families: Families) -> tuple[RunFolder, Plan]:
    """The same, for whoever knows the families already."""
    folder = _complete(path, elsewhere)
    file = folder.path / "study.toml"
    return folder, _plan_of(folder, parse_study(read_study_file(file), families, file.name, folder.path), families)


def _complete(path: str | PathLike[str], elsewhere: tuple[str, str]) -> RunFolder:
    folder = RunFolder(as_path(path, "run", RunError))
    if not (folder.path / "study.toml").is_file():
        raise RunError(str(folder.path), "is not a run folder", "Name a folder that `wardround run` has made.")
    if folder.deployed:
        raise RunError(str(folder.path), *elsewhere)
    if not folder.complete:
        raise RunError(str(folder.path), "is not complete", f"Finish it first: wardround resume {folder.path}")
    check_ledger(folder)
    return folder


def _plan_of(folder: RunFolder, study: Study, families: Families) -> Plan:
    plan = load_plan(study, families)
    plan.finished = folder.path
    set_saved_choices(plan, folder)
    if folder.read_json("environment.json").get("data_fingerprint") != plan.fingerprint:
        problem = "was trained on other data than are here now"
        raise RunError(str(folder.path), problem, "Bring the data back, or run the study again with --again.")
    return plan


def saved_run(trial: Trial, leaves: Tree) -> Run:
    """From `prediction_tables.saved_leaves`. The state of adaptive clipping is not saved, and is not needed."""
    parts = tree.unflatten(leaves)
    server = tree.unflatten(parts.get("server", {}))
    fresh = start(trial)
    saved = tree.unflatten(parts.get("memory", {}))
    memories = {}
    for name, first in fresh.memories.items():
        own = tree.unflatten(saved.get(name, {}))
        private, buffers = own.pop("private", first.private), own.pop("buffers", first.buffers)
        memories[name] = Memory({**first.algorithm, **own}, private, buffers, first.protection)
    return Run(trial.training.rounds, _in_order(fresh.server, server), memories)


def _in_order(first: State, saved: State) -> State:
    """A file sorts its leaves by name; a model has them in the order of its layers."""
    ordered = dict(first)
    for part, leaves in saved.items():
        known = [name for name in first.get(part, {}) if name in leaves]
        ordered[part] = {name: leaves[name] for name in dict.fromkeys([*known, *leaves])}
    return ordered


def seed_of(study: Study, seed: int | None) -> int:
    seeds = study.evaluation.seeds
    if seed is not None and seed not in seeds:
        known = f"It was run with {seeds.first}" + (f" to {seeds.first + seeds.count - 1}." if seeds.count > 1 else ".")
        raise StudyError("--seed", f"the run has no seed {shown(seed)}", known)
    return seeds.first if seed is None else seed


def arm_of(study: Study, results: Mapping[str, Any], name: str, seed: int) -> Arm:
    """By its name; of a selected arm the value that the seed chose."""
    for choice in results["selection"]:
        if choice["arm"] == name:
            if str(seed) not in choice["chosen"]:
                raise StudyError("--seed", f"nothing could be selected with seed {seed}", "Name another seed.")
            return study.arm(choice["chosen"][str(seed)])
    if not isinstance(name, str) or name not in results["arms"]:
        raise StudyError("--arm", f"the run has no arm {shown(name)}", suggest(name, results["arms"], "Arms"))
    return study.arm(name)
