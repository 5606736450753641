"""The run that is attacked: its study, rows, saved models and privacy charges."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Unpack

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.registry import Members
from wardround.privacy.dp.accountant import Charge
from wardround.runs.finished_run import open_run, saved_run
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.study.schema import Arm
from wardround.training.trial import Run, Trial

ELSEWHERE = (
    "is a run across hospitals: their patients' rows are not here, and an attack is measured against them",
    "Attack a simulation of the same study: wardround attack STUDY.",
)


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
        """By site, the charges of the rounds that took place."""
        records = self.folder.records()
        chosen = records[(records["arm"] == arm) & (records["seed"] == self.seed)]
        return total_charges(chosen["charges"])

    @property
    def pictures_allowed(self) -> bool:
        """Images are drawn if they are synthetic or if the study lets its report show some."""
        synthetic = all(cohort.records.synthetic for cohort in self.plan.cohorts.values())
        return synthetic or self.plan.study.evaluation.samples > 0


def open_target(
    path: str | PathLike[str],
    arms: Sequence[str] = (),
    **members: Unpack[Members],
) -> Target:
    """A complete run that was made on this machine. `members` are as in `run_study`."""
    folder, plan = open_run(path, ELSEWHERE, **members)
    plan.finished = None  # attacks begin where training began, which may be a trained model
    study = plan.study
    known = [arm.name for arm in study.arms]
    for name in arms:
        if name not in known:
            raise StudyError("--arm", f"the study has no arm {shown(name)}", suggest(name, known, "Arms"))
    chosen = tuple(arm for arm in study.arms if (arm.name in arms if arms else not arm.variant))
    first = study.evaluation.seeds.first
    return Target(folder, plan, tuple(plan.arm(arm.name, first) for arm in chosen), first)


def total_charges(rounds: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, list[Charge]]:
    """From (rate, noise, steps) by site of each round; rounds with equal rate and noise are one charge."""
    counted: Counter[tuple[str, float, float]] = Counter()
    for of_round in rounds:
        for site, (rate, noise, steps) in of_round.items():
            counted[site, float(rate), float(noise)] += int(steps)
    charges: dict[str, list[Charge]] = {}
    for (site, rate, noise), steps in counted.items():
        charges.setdefault(site, []).append(Charge(rate, noise, steps))
    return charges
