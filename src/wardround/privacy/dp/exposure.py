"""Whose exposure an epsilon over several seeds covers: patients who train with every seed, and nobody else.

What training costs is added up over all seeds as if the same patients trained with each. Where seeds draw new splits,
most patients are test or validation patients with some seed, and figures on their rows leave without noise.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a fifth of what `wardround --help` would import
    from wardround.study.schema import Arm, Study

COVERED = "The total epsilon covers a patient whose rows train with every seed"
NOT_COVERED = "figures on the rows of test and validation patients are covered by no epsilon"


def splits_of(study: "Study", arm: "Arm") -> int:
    drawn = study.evaluation.split == "drawn" and {"partition", "split"} & set(arm.vary)
    return study.evaluation.seeds.count if drawn else 1


def planned_exposure(study: "Study") -> dict[str, Any] | None:
    """By the shares that the study names, for results.json; None where no arm protects patients."""
    private = [arm for arm in study.trained_arms if arm.privacy.example is not None]
    if not private:
        return None
    evaluation, splits = study.evaluation, max(splits_of(study, arm) for arm in private)
    train_share = None
    if evaluation.split == "drawn":
        train_share = (1 - evaluation.test_share - evaluation.validation_share) ** splits
    return {
        "seeds": evaluation.seeds.count,
        "splits": splits,
        "train_with_every_seed": train_share,  # share of all patients
        "patients": None,  # of all, where they were counted
        "patients_with_every_seed": None,
    }


def exposure_text(exposure: Mapping[str, Any] | None) -> str:
    """One or two sentences. `exposure` is that of results.json; None where only a ledger is at hand."""
    if exposure is None:
        return (
            f"{COVERED} that is listed. Who was a test or validation patient with some of them paid less for training; "
            f"but {NOT_COVERED}."
        )
    if exposure["splits"] == 1:
        who = f", {_share(exposure)}" if _share(exposure) else ""
        same = " The split is the same with every seed." if exposure["seeds"] > 1 else ""
        return f"The total epsilon covers the training patients{who}; {NOT_COVERED}.{same}"
    return (
        f"{COVERED}. {exposure['splits']} seeds drew new splits, so that this is true of {_share(exposure)}. All "
        "others were test or validation patients with at least one seed: they paid less for training, but "
        f"{NOT_COVERED}."
    )


def _share(exposure: Mapping[str, Any]) -> str:
    share = exposure["train_with_every_seed"]
    if share is None:
        return ""
    text = f"{100 * share:.2g} %" if share < 0.995 else "100 %"
    if exposure["patients"] is None:
        return f"about {text} of the patients"
    return f"{exposure['patients_with_every_seed']} of {exposure['patients']} patients ({text})"
