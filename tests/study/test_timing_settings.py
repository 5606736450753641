"""Settings of time: what hashes, what is refused, and with which words."""

from typing import Any

import pytest

from wardround import load_plan, load_study
from wardround.core.errors import WardroundError
from wardround.runs.units import cut

EXAMPLE = {"epsilon": 3.0, "delta": 1e-4, "clip": 1.0}
ON = {"training.asynchronous.buffer": 3}
SPEEDS = {"sites.speed.kind": "lognormal"}
AGREED = {"deployment": {"quorum": 3, "deadline": 50}}


def study(arm: dict[str, Any], **tables: Any) -> dict[str, Any]:
    data = {"source": "heart", "scale": "ranges", "missing": "drop", "public": True, "columns": "common"}
    data = {key: value for key, value in data.items() if key != "columns"}
    return {
        "name": "timed",
        "data": {**data, "hospitals": ["cleveland"]},
        "sites": {"partition": "iid", "count": 5},
        "training": {"rounds": 6, "batch_size": 16},
        "evaluation": {"seeds": {"count": 1}},
        "arms": [{"algorithm": "fedavg", **arm}],
        **tables,
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scaffold": (study({"algorithm": "scaffold", **ON}), "scaffold corrects a site's steps by the control of all"),
    "clustered": (study({"algorithm": "clustered", **ON}), "compares the directions of updates"),
    "late fednova": (
        study({"algorithm": "fednova", "training.late": "on", **SPEEDS}, **AGREED),
        "mean number of steps of sites that began with one model",
    ),
    "late without a deadline": (study({"training.late": "on", **SPEEDS}), "no work is late: without a deadline"),
    "late and asynchronous": (study({"training.late": "on", **ON}, **AGREED), "no rounds that work could be late for"),
    "stragglers": (
        study({**ON, "training.stragglers": {"share": 0.5, "policy": "keep"}}),
        "do all of their work",
    ),
    "stragglers and speeds": (
        study({**SPEEDS, "training.stragglers": {"share": 0.5, "policy": "keep"}}),
        "say of the same sites how slow they are",
    ),
    "regions": (
        study({**ON, "topology.kind": "hierarchical", "topology.regions": {"a": ["site-*"]}}),
        "rounds of hierarchical topologies are synchronous",
    ),
    "mixing": (study({**ON, "training.asynchronous.mixing": 0.5}), "only a buffer of 1 has one site"),
    "slope": (study({**ON, "training.asynchronous.slope": 2.0}), 'is a setting of "hinge"'),
    "spread": (study({"sites.speed.spread": 2.0}), 'is a setting of "lognormal"'),
    "away": (study({"sites.away.share": 0.1}), "nobody can be away"),
    "a large buffer": (study({"training.asynchronous.buffer": 6}), "6 sites fill it, and 5 work at a time"),
    "a buffer above the share": (study({**ON, "training.share": 0.4}), "3 sites fill it, and 2 work at a time"),
    "site-level privacy": (
        study({**ON, "privacy.site": {"epsilon": 3.0, "delta": 1e-3, "clip": 1.0}}),
        "one site more changes what others send",
    ),
    "site-level privacy at a deadline": (
        study({**SPEEDS, "privacy.site": {"epsilon": 3.0, "delta": 1e-3, "clip": 1.0}}, **AGREED),
        "one site more changes what others send",
    ),
    "a small secure sum": (
        study({"training.asynchronous.buffer": 2, "privacy.secure_sum": "on"}),
        "a secure sum is of the sites of one buffer: it takes 3, and 2 fill it",
    ),
    "a secure sum below its threshold": (
        study({**ON, "privacy.secure_sum": {"threshold": 4}}),
        "it takes 4, and 3 fill it",
    ),
    "noise that changes": (
        study({**ON, "privacy.example": {**EXAMPLE, "noise": 1.0, "noise_schedule": {"last": 2.0}}}),
        "which rounds a site works in",
    ),
    "a rule": (study({**ON, "aggregation.rule": "median"}), "an update that began with an older model"),
    "screening": (study({**ON, "screening.policy": "notice"}), "a slow hospital would be named"),
    "a strange site": (study({"sites.speed.sites": {"north": 1.0}}), "no site is called 'north'"),
    "an absence that ends before": (
        study({}, sites={"partition": "iid", "count": 5, "speed": {}, "away": {"sites": {"site-01": [[5, 2]]}}}),
        "would be back at 2 before it leaves at 5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_to_is_refused_with_its_reason(name: str) -> None:
    raw, problem = REFUSED[name]
    with pytest.raises(WardroundError) as refused:
        cut(load_plan(*load_study(raw)), "auto")
    assert problem in f"{refused.value.where}: {refused.value.problem}"
    assert refused.value.remedy


def test_a_study_without_the_settings_keeps_its_hash_and_each_of_them_changes_it() -> None:
    plain = load_study(study({}))[0].hash
    changed = [
        load_study(study(arm, **tables))[0].hash
        for arm, tables in (
            (ON, {}),
            ({"training.asynchronous.buffer": 4}, {}),
            (SPEEDS, {}),
            ({**SPEEDS, "sites.away.share": 0.1}, {}),
        )
    ]
    assert len({plain, *changed}) == 5
    assert load_study(study({"training.asynchronous": "off", "sites.speed": "off"}))[0].hash == plain


def test_baselines_are_not_concerned() -> None:
    for algorithm in ("local", "pooled"):
        plan = load_plan(*load_study(study({"algorithm": algorithm, **ON, **SPEEDS})))
        trial = plan.trial(plan.study.arms[0], 42)
        assert trial.clock is None
        assert trial.training.asynchronous is None


def test_a_sweep_over_buffers_is_arms() -> None:
    parsed, _ = load_study(study({"training.asynchronous.buffer": [1, 2, 5]}))
    assert [arm.training.asynchronous.buffer for arm in parsed.arms if arm.training.asynchronous] == [1, 2, 5]
    assert parsed.arms[0].name == "fedavg[buffer=1]"
