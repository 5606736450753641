"""Each combination that would not keep its promise is refused with its reason; the others are let through."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

import wardround
from tests.representatives import represented
from wardround.core.errors import StudyError
from wardround.runs.plan import load_plan, rehearse
from wardround.runs.units import cut
from wardround.study.schema import ExamplePrivacy, NoiseSchedule, Privacy, SecureSum, SitePrivacy
from wardround.study.sweeps import set_path

EXAMPLE = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}
PRIVATE: dict[str, Any] = {
    "name": "private",
    "data": {"source": "heart", "missing": "range", "indicator": False, "scale": "ranges", "public": True},
    "sites": {"partition": "by-hospital"},
    "model": {"kind": "logistic"},
    "training": {"rounds": 3, "batch_size": 64},
    "privacy": {"example": EXAMPLE},
    "arms": [{"algorithm": "fedavg"}],
}
IMAGES: dict[str, Any] = {
    **PRIVATE,
    "data": {"source": "phantom", "rows": 120, "size": 32, "scale": "image"},
    "sites": {"partition": "iid", "count": 3},
    "model": {"kind": "cnn", "norm": "group", "channels": [2, 2], "hidden": 4},
}


def study(base: Mapping[str, Any] = PRIVATE, **changes: Any) -> dict[str, Any]:
    """`training__rounds=2` sets training.rounds; an `arm` is added to."""
    raw_study = deepcopy(dict(base))
    arm = changes.pop("arm", {})
    raw_study["arms"] = [{**raw_study["arms"][0], **arm}]
    for path, value in changes.items():
        set_path(raw_study, path.replace("__", "."), value, "test")
    return raw_study


def plan_of(raw_study: dict[str, Any]) -> wardround.runs.plan.Plan:
    return load_plan(*wardround.load_study(raw_study))


def refusal(raw_study: dict[str, Any]) -> str:
    """Said by `check` and by `run` before anything trains."""
    plan = plan_of(raw_study)
    with pytest.raises(StudyError) as rehearsed:
        rehearse(plan)
    with pytest.raises(StudyError) as caught:
        cut(plan, "auto")
    assert str(caught.value) == str(rehearsed.value)
    return str(caught.value)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "oversampling": (study(training__oversample=0.5), "training: oversample", "drawn more often"),
    "mixed rows": (
        study(training__mix={"kind": "mixup"}),
        "training: mix",
        "a mixed row is a function of two patients",
    ),
    "class weights": (
        study(training__class_weights="balanced"),
        "training: class_weights",
        "counted from the patients",
    ),
    "scale per site": (study(data__scale="per-site"), "data: scale", "fitted on patients"),
    "scale over sites": (study(data__scale="federated"), "data: scale", "fitted on patients"),
    "gaps by median": (study(data__missing="median", data__public=False), "data: missing", "fitted on patients"),
    "gaps by mean": (study(data__missing="mean", data__public=False), "data: missing", "fitted on patients"),
    "levels off rows": (study(data__public=False), "data: public", "read off patients"),
    "a loss that is sent": (study(arm={"algorithm": "fedprox-adaptive"}), "algorithm", "loss on all training rows"),
    "a clip that is none and follows": (
        study(privacy__example={**EXAMPLE, "clip": "none", "adaptive": {}}),
        "privacy: example: adaptive",
        "no clip that could follow",
    ),
    "a step that is none": (
        study(privacy__example={**EXAMPLE, "noise_schedule": {"last": 0.5, "at": 0.3}}),
        "privacy: example: noise_schedule: at",
        'the kind is "linear"',
    ),
    "patients at two sites": (
        study(data__hospitals=["cleveland"], sites={"partition": "age-windows"}),
        "sites: partition",
        "two sites",
    ),
    "clusters of sums": (
        study(arm={"algorithm": "clustered", "privacy.secure_sum": "on"}),
        "privacy: secure_sum",
        "shows none of them",
    ),
    "clusters of noisy sums": (
        study(privacy={"site": EXAMPLE}, arm={"algorithm": "clustered"}),
        "privacy: site",
        "each site's update",
    ),
    "a loss beside a clipped update": (
        study(privacy={"site": EXAMPLE}, arm={"algorithm": "fedprox-adaptive"}),
        "privacy: site",
        "a loss beside its update",
    ),
    "sizes beside a clipped update": (
        study(privacy={"site": EXAMPLE}, arm={"algorithm": "fednova"}),
        "privacy: site",
        "tells its size",
    ),
    "sites that are slow because of others": (
        study(privacy={"site": EXAMPLE}, training__stragglers={"share": 0.5, "policy": "keep"}),
        "training: stragglers",
        "who else is there",
    ),
    "a sum of two": (
        study(privacy={"secure_sum": {}}, data__hospitals=["cleveland", "va"]),
        "privacy: secure_sum",
        "a sum of 2 sites",
    ),
    "a sum of half of four": (study(privacy={"secure_sum": {}}, training__share=0.5), "privacy: secure_sum", "2 sites"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    raw_study, where, why = REFUSED[case]
    error_text = refusal(raw_study)
    assert error_text.startswith(f"arms: {raw_study['arms'][0]['algorithm']}: {where}: ")
    assert why in error_text
    assert "\n  " in error_text  # a remedy


@pytest.mark.parametrize("norm", ["batch", "fedbn"])
def test_batch_norm_is_refused(norm: str) -> None:
    error_text = refusal(study(IMAGES, model__norm=norm))
    assert "model: BatchNorm's statistics mix the patients of a batch" in error_text
    assert 'Use `norm = "group"`' in error_text


def test_images_that_are_scaled_by_their_site_are_refused() -> None:
    assert 'Write `scale = "image"`' in refusal(study(IMAGES, data__scale="per-site"))


ALLOWED: dict[str, dict[str, Any]] = {
    **{
        name: study(arm={"algorithm": name})
        for name in ("fedavg", "fedprox", "fednova", "scaffold", "fedadam", "fedyogi", "fedadagrad", "clustered")
    },
    "local": study(arm={"algorithm": "local"}),
    "pooled": study(arm={"algorithm": "pooled"}),
    "rows with gaps left out": study(data__missing="drop", data__hospitals=["cleveland"], sites={"partition": "iid"}),
    "a private intercept": study(model__intercept="private"),
    "mlp with dropout": study(model={"kind": "mlp", "hidden": [4], "dropout": 0.2}),
    "stragglers": study(training__stragglers={"share": 0.5, "policy": "drop"}),
    "a share of the sites": study(training__share=0.5),
    "local Adam": study(training__optimiser="adam"),
    "adaptive": study(privacy__example={**EXAMPLE, "adaptive": {}}),
    "noise that is given": study(privacy__example={**EXAMPLE, "noise": 20.0}),
    "no clip": study(privacy__example={**EXAMPLE, "clip": "none"}),
    "noise that falls": study(privacy__example={**EXAMPLE, "noise_schedule": {"last": 0.5}}, training__batch_size=1000),
    "images": study(IMAGES),
    "images with augmentation": study(IMAGES, training__augment={"rotate": 5.0, "flip": "horizontal"}),
    "whole sites": study(privacy={"site": EXAMPLE}),
    "whole sites, some of them": study(privacy={"site": EXAMPLE}, training__share=0.5),
    "whole sites with controls": study(privacy={"site": EXAMPLE}, arm={"algorithm": "scaffold"}),
    "whole sites, any preparation": study(privacy={"site": EXAMPLE}, data__scale="per-site", data__public=False),
    "all at once": study(privacy={"example": EXAMPLE, "site": EXAMPLE, "secure_sum": {}}, arm={"algorithm": "fedprox"}),
    "sums for whom nothing is added up": study(privacy={"secure_sum": {}}, arm={"algorithm": "pooled"}),
    "what would be refused is off": study(
        training__oversample=0.5, data__scale="per-site", arm={"privacy.example": "off"}
    ),
}


# only in long runs: of each there is a relative that goes the same way
LONG = (
    "fedprox",
    "fednova",
    "fedyogi",
    "fedadagrad",
    "stragglers",
    "images with augmentation",
    "whole sites, some of them",
)


@pytest.mark.parametrize("case", represented(ALLOWED, by=[name for name in ALLOWED if name not in LONG]))
def test_allowed(case: str) -> None:
    plan = plan_of(ALLOWED[case])
    rehearse(plan)
    assert cut(plan, "auto")


# how it is written


def privacy_of(**changes: Any) -> Privacy:
    return wardround.load_study(study(**changes))[0].arms[0].privacy


def said_of(**changes: Any) -> str:
    with pytest.raises(StudyError) as caught:
        wardround.load_study(study(**changes))
    return str(caught.value)


@pytest.mark.parametrize("missing", ["epsilon", "delta", "clip"])
@pytest.mark.parametrize("kind", ["example", "site"])
def test_half_a_block_is_an_error_that_names_the_missing_key(kind: str, missing: str) -> None:
    block = {name: value for name, value in EXAMPLE.items() if name != missing}
    assert f"privacy: {kind}: {missing}: missing" in said_of(privacy={kind: block})


def test_an_unknown_key_is_told_with_its_neighbour() -> None:
    assert "epsilon" in said_of(privacy={"example": {**EXAMPLE, "epsilom": 1.0}}).split("\n")[1]
    assert "secure_sum" in said_of(privacy={"secure_sun": {}}).split("\n")[1]


@pytest.mark.parametrize(
    ("key", "value"), [("epsilon", 0), ("epsilon", -1), ("delta", 0), ("delta", 1), ("clip", 0), ("noise", 0)]
)
def test_numbers_that_protect_nobody_are_errors(key: str, value: float) -> None:
    assert f"privacy: example: {key}" in said_of(privacy={"example": {**EXAMPLE, key: value}})


def test_each_part_is_switched_off_and_on_in_an_arm() -> None:
    whole = {"example": EXAMPLE, "site": EXAMPLE, "secure_sum": {"largest": 8.0}}
    example, site, summed = ExamplePrivacy(2.0, 1e-5, 1.0), SitePrivacy(2.0, 1e-5, 1.0), SecureSum(largest=8.0)
    assert privacy_of(privacy=whole) == Privacy(example, site, summed)
    assert privacy_of(privacy=whole, arm={"privacy.example": "off"}) == Privacy(None, site, summed)
    assert privacy_of(privacy=whole, arm={"privacy.site": "off"}) == Privacy(example, None, summed)
    assert privacy_of(privacy=whole, arm={"privacy.secure_sum": "off"}) == Privacy(example, site, None)
    assert privacy_of(arm={"privacy.secure_sum": "on"}) == Privacy(example, None, SecureSum())
    assert privacy_of(arm={"privacy.example.epsilon": 8.0}) == Privacy(ExamplePrivacy(8.0, 1e-5, 1.0))


def test_a_clip_is_a_number_or_none() -> None:
    assert privacy_of(arm={"privacy.example.clip": "none"}) == Privacy(ExamplePrivacy(2.0, 1e-5, "none"))
    assert "'nine' is not a possible value" in said_of(arm={"privacy.example.clip": "nine"})
    assert "out of range" in said_of(arm={"privacy.example.clip": -1})
    swept = wardround.load_study(study(arm={"privacy.example.clip": [0.5, "none"]}))[0]
    assert [arm.privacy.example.clip for arm in swept.arms if arm.privacy.example] == [0.5, "none"]
    assert "expected a number" in said_of(arm={"privacy.example.clip": True})


def test_a_noise_schedule_is_a_table() -> None:
    table = {"kind": "step", "last": 0.25, "at": 0.75}
    expected = ExamplePrivacy(2.0, 1e-5, 1.0, noise_schedule=NoiseSchedule(0.25, "step", 0.75))
    assert privacy_of(arm={"privacy.example.noise_schedule": table}) == Privacy(expected)
    assert privacy_of(privacy={"example": {**EXAMPLE, "noise_schedule": table}}) == Privacy(expected)
    assert "noise_schedule: last: missing" in said_of(privacy={"example": {**EXAMPLE, "noise_schedule": {}}})
    swept = wardround.load_study(study(arm={"privacy.example.noise_schedule.last": [0.5, 2.0]}))[0]
    assert [arm.privacy.example.noise_schedule for arm in swept.arms if arm.privacy.example] == [
        NoiseSchedule(0.5),
        NoiseSchedule(2.0),
    ]


def test_epsilon_can_be_swept() -> None:
    loaded = wardround.load_study(study(arm={"privacy.example.epsilon": [1, 2, 8]}))[0]
    assert [arm.privacy.example.epsilon for arm in loaded.arms if arm.privacy.example] == [1, 2, 8]
    assert len({arm.name for arm in loaded.arms}) == 3
