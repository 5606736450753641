"""The run that is attacked: its study, its rows, its saved models and what it was charged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wardround import tree
from wardround.artifacts.folder import RunFolder
from wardround.artifacts.spending import check_ledger
from wardround.catalog import load_study
from wardround.errors import RunError, StudyError, suggest
from wardround.local import Memory
from wardround.plan import Plan, load_plan
from wardround.privacy.accountant import Charge
from wardround.rounds import start
from wardround.settings import Factory
from wardround.study import Arm
from wardround.tree import State, Tree
from wardround.trial import Run, Trial


@dataclass(frozen=True)
class Target:
    folder: RunFolder
    plan: Plan
    arms: tuple[Arm, ...]  # that are attacked
    seed: int

    def trial(self, arm: Arm) -> Trial:
        return self.plan.trial(arm, self.seed)

    def run(self, trial: Trial) -> Run:
        """The arm's run after its last round, from its saved model."""
        return saved_run(trial, self.folder.load_model(trial.arm, trial.seed))

    def charges(self, arm: str) -> dict[str, list[Charge]]:
        """By site, what was charged in the rounds that took place."""
        records = self.folder.records()
        chosen = records[(records["arm"] == arm) & (records["seed"] == self.seed)]
        rounds = chosen["charges"].tolist() if "charges" in chosen else []
        return total_charges([charge for charge in rounds if charge])

    @property
    def pictures_allowed(self) -> bool:
        """Images are drawn where nobody is behind them, or where the study lets its report show some."""
        synthetic = all(cohort.records.synthetic for cohort in self.plan.cohorts.values())
        return synthetic or self.plan.study.evaluation.samples > 0


def open_target(
    path: str | Path,
    arms: Sequence[str] = (),
    models: Mapping[str, Factory] | None = None,
    sources: Mapping[str, Factory] | None = None,
) -> Target:
    """A complete run that was made on this machine. `models` and `sources` are as `run_study` takes them."""
    folder = RunFolder(Path(path))
    if not (folder.path / "study.toml").is_file():
        raise RunError(str(path), "is not a run folder", "Name a folder that `wardround run` has made, or a study.")
    if folder.deployed:
        problem = "is a run across hospitals: their patients' rows are not here, and an attack is measured against them"
        raise RunError(str(path), problem, "Attack a simulation of the same study: wardround attack STUDY.")
    if not folder.complete:
        raise RunError(str(path), "is not complete", f"Finish it first: wardround resume {path}")
    check_ledger(folder)
    study, families = load_study(folder.path / "study.toml", models=models, sources=sources)
    plan = load_plan(study, families)
    if folder.read_json("environment.json").get("data_fingerprint") != plan.fingerprint:
        problem = "was trained on other data than are here now"
        raise RunError(str(path), problem, "Bring the data back, or run the study again with --again.")
    known = [arm.name for arm in study.arms]
    for name in arms:
        if name not in known:
            raise StudyError("--arm", f"the study has no arm {name!r}", suggest(name, known, "Arms"))
    chosen = tuple(arm for arm in study.arms if (arm.name in arms if arms else not arm.variant))
    return Target(folder, plan, chosen, study.evaluation.seeds.first)


def saved_run(trial: Trial, leaves: Tree) -> Run:
    """From `artifacts.tables.saved_leaves`. What a clip had moved to is not saved, and is not needed."""
    parts = tree.unflatten(leaves)
    server = tree.unflatten(parts.get("server", {}))
    fresh = start(trial)
    kept = tree.unflatten(parts.get("memory", {}))
    memories = {}
    for name, first in fresh.memories.items():
        own = tree.unflatten(kept.get(name, {}))
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


def total_charges(rounds: Sequence[Any]) -> dict[str, list[Charge]]:
    """From (rate, noise, steps) by site of each round; rounds of the same kind are one charge."""
    counted: dict[str, dict[tuple[float, float], int]] = {}
    for of_round in rounds:
        for site, charge in dict(of_round).items():
            if charge is None:
                continue
            rate, noise, steps = float(charge[0]), float(charge[1]), int(charge[2])
            of_site = counted.setdefault(str(site), {})
            of_site[rate, noise] = of_site.get((rate, noise), 0) + steps
    return {site: [Charge(*kind, steps) for kind, steps in kinds.items()] for site, kinds in counted.items()}
