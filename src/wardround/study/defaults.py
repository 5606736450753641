"""What a study is taken to mean where it does not say: how many seeds, and what arms are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wardround.study.facts import ModelFacts
from wardround.study.schema import Arm, Evaluation, Selection, in_variant
from wardround.study.sweeps import flatten


def with_seeds(tables: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], model: ModelFacts) -> dict[str, Any]:
    """[evaluation] with a number of seeds, where it names none: as many as the kind of model affords, so that an answer
    has intervals; one where patients or hospitals are protected, because each seed spends epsilon."""
    evaluation: dict[str, Any] = tables["evaluation"]
    seeds = evaluation.get("seeds", {})
    if not isinstance(seeds, Mapping) or "count" in seeds:
        return evaluation
    keys = {key for arm in arms for key in flatten(arm)} | set(flatten({"privacy": tables["privacy"]}))
    spends = any(key.startswith(("privacy.example", "privacy.site")) for key in keys)
    count = 1 if spends else model.seeds
    return {**evaluation, "seeds": {**seeds, "count": count}}


def with_metric(selection: Selection | None, evaluation: Evaluation) -> Selection | None:
    """A value is selected by the primary metric."""
    return selection and replace(selection, metric=selection.metric or evaluation.metric)


def training_alone(arms: Sequence[Arm]) -> str | None:
    """Each hospital alone, where the study has that arm. None where a variant is without it."""
    main = [arm for arm in arms if not arm.variant and arm.algorithm.facts.alone and not arm.train_at]
    if not main or main[0].name != main[0].family:
        return None
    names, variants = {arm.name for arm in arms}, {arm.variant for arm in arms}
    return main[0].name if all(in_variant(main[0].name, variant) in names for variant in variants) else None
