"""What [aggregation] may say: members with their settings, overrides, sweeps, hashes, and every refusal with its
reason."""

from typing import Any

import pytest
import torch

from wardround.core.errors import StudyError
from wardround.deployment import refuse_undeployable
from wardround.engines import serial
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan, rehearse
from wardround.runs.units import cut
from wardround.study.schema import Study
from wardround.training.rounds import rounds, start

DATA = {"source": "synthetic", "count": 7, "iid": True, "features": 4, "classes": 2, "largest": 60}

REGIONS = {"kind": "hierarchical", "regions": {"a": ["site-0[1-3]"], "b": ["site-0[4-7]"]}}


def study(*arms: dict[str, Any], **blocks: Any) -> dict[str, Any]:
    arms = arms or ({"algorithm": "fedavg"},)
    return {"name": "rules", "data": DATA, "evaluation": {"seeds": {"count": 1}}, "arms": list(arms), **blocks}


def loaded(*arms: dict[str, Any], **blocks: Any) -> Study:
    return load_study(study(*arms, **blocks))[0]


def refusal(*arms: dict[str, Any], **blocks: Any) -> StudyError:
    with pytest.raises(StudyError) as refused:
        rehearse(load_plan(*load_study(study(*arms, **blocks))))
    return refused.value


def test_a_study_that_leaves_it_out_keeps_its_hash_and_its_file() -> None:
    plain = loaded()
    assert plain.arms[0].aggregation.name == "mean"
    assert "aggregation" not in plain.resolved
    assert loaded(aggregation={"rule": "mean"}).hash == plain.hash
    assert loaded({"algorithm": "fedavg", "aggregation.rule": "mean"}).hash == plain.hash
    assert loaded(aggregation={"rule": "median"}).hash != plain.hash


def test_an_arm_names_another_rule_and_keeps_the_settings_that_both_have() -> None:
    arms = loaded(
        {"algorithm": "fedavg", "aggregation.rule": ["mean", "norm-bound", "krum"]},
        {"algorithm": "fedprox", "aggregation.bad": [0, 1]},
        aggregation={"rule": "trimmed-mean", "bad": 2, "before": "nearest-neighbours"},
    ).arms
    assert [(arm.name, arm.aggregation.name, arm.aggregation.options.get("bad")) for arm in arms] == [
        ("fedavg[rule=mean]", "mean", None),
        ("fedavg[rule=norm-bound]", "norm-bound", None),
        ("fedavg[rule=krum]", "krum", 2),
        ("fedprox[bad=0]", "trimmed-mean", 0),
        ("fedprox[bad=1]", "trimmed-mean", 1),
    ]
    assert {arm.preaggregation.before for arm in arms} == {"nearest-neighbours"}


def test_the_resolved_study_reads_back_to_the_same() -> None:
    whole = loaded(aggregation={"rule": "norm-bound", "bound": 2.5, "momentum": 0.5})
    assert load_study(dict(whole.resolved))[0].hash == whole.hash


@pytest.mark.parametrize(
    ("rule", "most", "needed"), [("median", 3, 9), ("krum", 2, 11), ("multi-krum", 2, 11), ("bulyan", 1, 19)]
)
def test_more_bad_sites_than_a_rule_withstands_are_refused(rule: str, most: int, needed: int) -> None:
    rehearse(load_plan(*load_study(study(aggregation={"rule": rule, "bad": most}))))
    error = refusal(aggregation={"rule": rule, "bad": 4})
    assert error.where == "arms: fedavg: aggregation: bad"
    assert error.problem == f"{rule} withstands {most} bad of 7 sites; to withstand 4 it needs {needed}"


def test_buckets_and_rounds_without_some_sites_have_fewer_updates() -> None:
    buckets = {"rule": "median", "bad": 2, "before": "bucketing", "bucket_size": 3}
    assert (
        "median in buckets of 3 withstands 1 bad of 7 sites; to withstand 2 it needs 13"
        in refusal(aggregation=buckets).problem
    )
    some = refusal(aggregation={"rule": "krum", "bad": 2}, training={"share": 0.6})
    assert "krum withstands 0 bad of the 4 sites of a round; to withstand 2 it needs 7" in some.problem


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown rule": ({"aggregation": {"rule": "medain"}}, "'medain' is not known"),
    "a setting of another rule": ({"aggregation": {"rule": "median", "bound": 1.0}}, "no such setting"),
    "settings and no rule": ({"aggregation": {"before": "bucketing"}}, "nothing is done before a mean"),
    "a size and no buckets": ({"aggregation": {"rule": "median", "bucket_size": 3}}, "there are none"),
    "scaffold": (
        {"arms": [{"algorithm": "scaffold"}], "aggregation": {"rule": "median"}},
        "scaffold keeps one control",
    ),
    "clustered": ({"arms": [{"algorithm": "clustered"}], "aggregation": {"rule": "krum"}}, "clustered compares"),
    "a secure sum": (
        {"aggregation": {"rule": "median"}, "privacy": {"secure_sum": {}}},
        "median looks at single updates, and a secure sum shows none of them",
    ),
    "a bound by lengths that nobody sees": (
        {"aggregation": {"rule": "norm-bound"}, "privacy": {"secure_sum": {}}},
        "norm-bound looks at single updates",
    ),
    "noise for sites": (
        {"aggregation": {"rule": "median"}, "privacy": {"site": {"epsilon": 5.0, "delta": 1e-5, "clip": 1.0}}},
        "its noise is on a sum",
    ),
    "updates that began with older models": (
        {"aggregation": {"rule": "median"}, "training": {"asynchronous": {"buffer": 4}}},
        "an update that began with an older model is far from the others",
    ),
    "two bounds": (
        {
            "aggregation": {"rule": "norm-bound", "bound": 1.0},
            "privacy": {"site": {"epsilon": 5.0, "delta": 1e-5, "clip": 1.0}},
        },
        "clips every update already",
    ),
    "mixing under a secure sum": (
        {
            "aggregation": {"rule": "norm-bound", "bound": 1.0, "momentum": 0.9},
            "privacy": {"secure_sum": {}},
        },
        "the sites bound their updates themselves",
    ),
    "a region that is too small": (
        {
            "aggregation": {"rule": "median"},
            "topology": {"kind": "hierarchical", "regions": {"a": ["site-0[12]"], "b": ["site-0[3-7]"]}},
        },
        "in some round region a has 2 of its sites, and the rule needs 3 in each region",
    ),
    "a region that is too small in some rounds": (
        {
            "aggregation": {"rule": "median"},
            "training": {"share": 0.5, "rounds": 10},
            "topology": {"kind": "hierarchical", "regions": {"a": ["site-0[1-3]"], "b": ["site-0[4-7]"]}},
        },
        "of its sites, and the rule needs 3 in each region",
    ),
    "what is kept of one model, in regions": (
        {"aggregation": {"rule": "centred-clipping"}, "topology": REGIONS},
        "centred-clipping keeps something of the last rounds of one model",
    ),
    "momentum in regions": (
        {"aggregation": {"rule": "median", "momentum": 0.5}, "topology": REGIONS},
        "momentum keeps something",
    ),
    "buckets in regions": (
        {"aggregation": {"rule": "median", "before": "bucketing"}, "topology": REGIONS},
        "buckets are drawn among all sites",
    ),
    "compression that changes directions": (
        {"aggregation": {"rule": "median"}, "compression": {"kind": "top-k"}},
        "compares the directions of single updates",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_go_together_is_refused(what: str) -> None:
    blocks, problem = REFUSED[what]
    arms = blocks.get("arms", [{"algorithm": "fedavg"}])
    assert problem in refusal(*arms, **{name: block for name, block in blocks.items() if name != "arms"}).problem


def test_root_data_are_those_of_a_site_that_does_not_train() -> None:
    """And the coordinator trains on them as a site does: with good ones inverted sites count for nothing."""
    others = [f"site-0{number}" for number in range(1, 7)]
    trusting = {"rule": "fltrust", "root": "site-07", "bad": 5}
    plan = load_plan(*load_study(study({"algorithm": "fedavg", "train_at": others}, aggregation=trusting)))
    rehearse(plan)
    trial = plan.trial(plan.study.arms[0], 42)
    assert trial.root is not None
    assert (trial.root.name, len(trial.sites)) == ("site-07", 6)
    [unit] = cut(plan, "auto")
    assert unit.engine == "serial"
    *_, (run, record) = rounds(start(trial), trial, serial.train_sites)
    assert not record.failed
    assert "site-07" not in {*record.sites, *run.memories}
    assert bool(torch.isfinite(run.server["params"]["weight"]).all())
    assert "site-07 trains as well" in refusal(aggregation={**trusting, "bad": 1}).problem
    assert "no site" in refusal(aggregation={"rule": "fltrust", "root": "elsewhere"}).problem
    regions = {"kind": "hierarchical", "regions": {"a": ["site-0[1-3]"], "b": ["site-0[4-7]"]}}
    assert "root data are at one coordinator" in refusal(aggregation=trusting, topology=regions).problem
    with pytest.raises(StudyError, match="across hospitals has no rows"):
        refuse_undeployable(plan.study, [*others, "site-07"])


def test_an_unknown_rule_is_answered_with_a_suggestion() -> None:
    assert "'median'" in refusal(aggregation={"rule": "medain"}).remedy


def test_baselines_and_arms_with_the_mean_do_without() -> None:
    arms = [{"algorithm": "local"}, {"algorithm": "pooled"}, {"algorithm": "scaffold", "aggregation.rule": "mean"}]
    plan = load_plan(*load_study(study({"algorithm": "fedavg"}, *arms, aggregation={"rule": "krum", "bad": 2})))
    needs = {arm.name: plan.trial(arm, 42).algorithm.needs for arm in plan.study.arms}
    assert needs == {"fedavg": "each", "local": "mean", "pooled": "mean", "scaffold": "mean"}


def test_sites_are_told_the_bound_only_where_nobody_else_can_keep_to_it() -> None:
    bound = {"rule": "norm-bound", "bound": 2.0}
    for privacy, at_site in (({}, None), ({"secure_sum": {}}, 2.0)):
        plan = load_plan(*load_study(study(aggregation=bound, privacy=privacy)))
        trial = plan.trial(plan.study.arms[0], 42)
        assert (trial.bound, trial.algorithm.needs) == (at_site, "each" if at_site is None else "mean")
