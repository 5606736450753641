"""The new hospital's bundle: adapter and shared part, threshold and calibration from the hospital's validation rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from wardround.adaptation.curve import caution
from wardround.adaptation.newcomer import Newcomer
from wardround.adaptation.train import Trained
from wardround.bundles.build.origin import Origin, SavedScores, origin_at
from wardround.bundles.build.run_inputs import RunInputs
from wardround.bundles.build.shared_part import SharedPart
from wardround.bundles.card.card import Adapter, CardFacts, figures_of
from wardround.core.settings import parse
from wardround.evaluation.scores import labels_and_scores
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.study.facts import AlgorithmFacts, ModelFacts, PartitionFacts, SourceFacts
from wardround.study.schema import Arm, Choice, Deployment, ExamplePrivacy, Privacy, Study, Training

NOTHING_PROMISED = {"guarantee": False, "example": None, "site": None, "secure_sum": None}


@dataclass(frozen=True)
class OriginalStudy(Study):
    """What a shared part records of its study. The study file itself is not part of it."""

    original_hash: str = ""

    @cached_property
    def hash(self) -> str:
        return self.original_hash


def origin_of(
    part: SharedPart,
    newcomer: Newcomer,
    training: Training,
    trained: Trained,
    predictions: pd.DataFrame,
    content: Mapping[str, Any],
) -> Origin:
    """`trained` is the model of the bundle, `predictions` its saved scores on the test rows."""
    about, cohort = part.about, newcomer.cohort
    arm = original_arm(part)
    study = OriginalStudy(
        name=about["study"]["name"],
        question=about["study"]["question"],
        data=arm.data,
        evaluation=newcomer.evaluation,
        deployment=Deployment(),
        arms=(arm,),
        variants=(),
        selection=None,
        claims=(),
        resolved={},
        original_hash=about["study"]["hash"],
    )
    return origin_at(
        trained.site,
        cohort,
        part.dtype,
        facts=_card_facts(part, newcomer, study, arm, _adapter(training, len(trained.site.train), content), content),
        run=about["run"],
        data=RunInputs(trained.recipe, cohort.table),
        weights=(trained.params, {}),
        saved=SavedScores(*labels_and_scores(predictions)),
        models=part.models,
    )


def original_arm(part: SharedPart) -> Arm:
    """The arm that trained the shared part."""
    about = part.about
    model = about["model"]
    promised = (about["privacy"] or {}).get("example")
    keys = ("epsilon", "delta", "clip", "noise")
    example = None
    if promised and promised.get("clip") != "none":  # without clipping nothing was promised
        settings = {key: promised[key] for key in keys if promised.get(key) is not None}
        example = parse(ExamplePrivacy, settings, f"{part.path}: privacy")
    return Arm(
        name=about["trained_as"],
        family=about["trained_as"],
        variant="",
        algorithm=Choice(about["algorithm"], {}, AlgorithmFacts()),
        data=Choice("at-sites", {}, SourceFacts(elsewhere=True)),
        preparation=part.preparation,
        sites=Choice("by-hospital", {}, PartitionFacts(keeps_hospitals=True)),
        model=Choice(model["kind"], model["options"], ModelFacts(keeps_private=True, own_columns=True)),
        training=part.training,
        privacy=Privacy(example=example),
        vary=("partition", "split", "batches", "init"),
    )


def _adapter(training: Training, rows: int, content: Mapping[str, Any]) -> Adapter:
    """The training at this hospital, and its result with all rows compared with training alone."""
    whole = content["fractions"][-1]
    result = tuple(whole["sentences"][metric] for metric in content["metrics"])
    return Adapter(training.rounds * training.local_epochs, rows, result, caution(content["worse"]))


def _card_facts(
    part: SharedPart, newcomer: Newcomer, study: Study, arm: Arm, adapter: Adapter, content: Mapping[str, Any]
) -> CardFacts:
    about, whole = part.about, content["fractions"][-1]
    return CardFacts(
        study=study,
        arm=arm,
        requested_arm=about["arm"],
        seed=newcomer.evaluation.seeds.first,
        site=newcomer.name,
        trained=dict(about["sites"]),
        seeds=tuple(content["seeds"]),
        simulated=about["simulated"],
        synthetic=about["synthetic"] or newcomer.cohort.records.synthetic,
        overall=None,
        at_site={name: whole["adapted"][name] for name in figures_of(part.task)},
        interval=content["interval"],
        # what the study promised holds for the hospitals that trained the shared part; the introduction says so
        privacy=None if about["privacy"] is None else NOTHING_PROMISED,
        subgroups={},
        notices=newcomer.notices,
        introduction=tuple(introduction(part, newcomer.name)),
        adapter=adapter,
    )


def introduction(part: SharedPart, site: str) -> list[str]:
    """The first lines of the card: where the bundle's parts come from, and what they cost in privacy."""
    about = part.about
    privacy = about["privacy"] or {}
    lines = [
        f"Adapted: the private part of the model, mainly the adapter, was trained on rows of {site} alone. The rest "
        f"comes from arm {about['arm']} of study {about['study']['name']} and has seen no row of {site}: shared part "
        f"{about['id']}, study {about['study']['hash']}."
    ]
    simulated = "" if privacy.get("guarantee") else "; simulated, so no guarantee"
    for kind, whom in (("example", "each patient"), ("site", "each hospital as a whole")):
        if privacy.get(kind):
            allowed = format_epsilon(privacy[kind]["epsilon"])
            guarantee = f"epsilon {allowed} at delta {privacy[kind]['delta']:g} was allowed{simulated}"
            lines.append(f"The shared part protects {whom} of the hospitals that it was trained at ({guarantee}).")
    if privacy.get("example"):
        return [*lines, f"The adapter was trained without noise, so this bundle must not leave {site}."]
    return [*lines, f"The adapter has never left {site}: no privacy was spent for it."]
