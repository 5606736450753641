"""`[explain]`: which arms' models are explained once they are trained, over all sites and at each.

An explanation is conducted as an analysis: sums over each site's labelled rows, under the same rules and protection.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from wardround.core.errors import StudyError, refuse_strangers
from wardround.core.settings import Range
from wardround.study.analyses import AnalysedRows, StudyAnalysis

if TYPE_CHECKING:
    from wardround.study.schema import Arm, Study

KIND = "explanation"


@dataclass(frozen=True)
class Explain:
    """Permutation importance, effects, and coefficients of linear models, with the study's first seed."""

    arms: tuple[str, ...] = ()  # empty: all in which every site trains, without those of variants
    repeats: Annotated[int, Range(low=1, high=100)] = 5  # shuffles of each column


def explained_arms(study: "Study") -> tuple["Arm", ...]:
    if study.explain is None:
        return ()
    if study.explain.arms:
        return tuple(study.arm(name) for name in study.explain.arms)
    return tuple(arm for arm in study.arms if not arm.variant and not arm.train_at)


def is_protected(arm: "Arm") -> bool:
    """Whether sums over its sites' rows would have to be charged: they are withheld."""
    return arm.privacy.example is not None or arm.privacy.site is not None


def conducted_explanations(study: "Study") -> tuple[StudyAnalysis, ...]:
    """As analyses, after those of the study: of arms whose patients are not protected by noise."""
    if study.explain is None:
        return ()
    return tuple(
        StudyAnalysis(
            f"explanation of {arm.name}",
            KIND,
            {"arm": arm.name, "repeats": study.explain.repeats, "study": study.hash[:12]},
            AnalysedRows(arm.data, arm.preparation, arm.sites, arm.privacy),
        )
        for arm in explained_arms(study)
        if not is_protected(arm)
    )


def check_explain(study: "Study", where: str) -> None:
    if study.explain is None:
        return
    here = f"{where}: explain"
    if not study.arms:
        raise StudyError(here, "no arm trains a model that could be explained", "Leave [explain] out, or add [[arms]].")
    refuse_strangers(study.explain.arms, [arm.name for arm in study.arms], f"{here}: arms", "arm", "Arms")
    if len(set(study.explain.arms)) < len(study.explain.arms):
        raise StudyError(f"{here}: arms", "names an arm twice", "Name each arm once.")
    if len(study.data.facts.tasks) > 1:
        problem = "several outcomes are predicted together, and an explanation is of one"
        raise StudyError(here, problem, "Leave [explain] out, and explain a bundle of one outcome.")
