"""Variants, and arms in which only some sites train: names, errors, and that outsiders contribute nothing."""

import itertools
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from torch import nn

import wardround
from tests.representatives import represented
from tests.small_federations import after, assert_same, assert_same_tree
from wardround.core.errors import StudyError
from wardround.data.agreement import agree, fit
from wardround.data.cohort import prepare_sites
from wardround.data.prepare import encode
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.data.split import Split, held_out_rows
from wardround.models import ModelBuilder, Shape, from_module
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, members_of
from wardround.runs.units import cut
from wardround.study.claims import hashed
from wardround.study.schema import Preparation, Study

BASE: dict[str, Any] = {
    "name": "varied",
    "data": {"source": "heart"},
    "training": {"rounds": 2, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 3}, "reference": "fedavg"},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "fedprox", "mu": [0.1, 1]}],
}
NAMES = ["fedavg", "local", "fedprox[mu=0.1]", "fedprox[mu=1.0]"]


def study(**changes: Any) -> Study:
    return wardround.load_study({**BASE, **changes})[0]


def plan(**changes: Any) -> Plan:
    return wardround.load_plan(*wardround.load_study({**BASE, **changes}))


def message(**changes: Any) -> str:
    with pytest.raises(StudyError) as error:
        study(**changes)
    return str(error.value)


# Variants


def test_a_variant_has_all_arms_once_more_under_its_name() -> None:
    parsed_study = study(variants=[{"name": "slow", "training.lr": 0.01}, {"name": "long", "training": {"rounds": 9}}])
    assert [arm.name for arm in parsed_study.arms] == [
        *NAMES,
        *(f"{name}@slow" for name in NAMES),
        *(f"{name}@long" for name in NAMES),
    ]
    for arm in parsed_study.arms:
        assert (arm.variant, arm.family) == (arm.name.partition("@")[2], arm.name.partition("@")[0].partition("[")[0])
        assert arm.training.lr == (0.01 if arm.variant == "slow" else 0.1)
        assert arm.training.rounds == (9 if arm.variant == "long" else 2)
    assert parsed_study.reference_of("slow") == "fedavg@slow"
    assert parsed_study.reference_of("") == "fedavg"


def test_a_variant_may_be_of_some_arms_with_all_values_of_their_sweeps() -> None:
    parsed_study = study(variants=[{"name": "slow", "training.lr": 0.01, "arms": ["fedprox", "fedavg"]}])
    there = [arm.name for arm in parsed_study.arms if arm.variant]
    assert there == ["fedavg@slow", "fedprox[mu=0.1]@slow", "fedprox[mu=1.0]@slow"]


def test_what_an_arm_says_for_itself_holds_in_a_variant_too() -> None:
    arms = [{"algorithm": "fedavg"}, {"name": "fast", "algorithm": "fedavg", "training.lr": 0.5}]
    parsed_study = study(arms=arms, variants=[{"name": "slow", "training.lr": 0.01}])
    assert {arm.name: arm.training.lr for arm in parsed_study.arms} == {
        "fedavg": 0.1,
        "fast": 0.5,
        "fedavg@slow": 0.01,
        "fast@slow": 0.5,
    }


def test_quick_and_set_reach_variants_except_where_these_say_otherwise() -> None:
    raw = {**BASE, "variants": [{"name": "slow", "training.lr": 0.01}], "quick": {"training.rounds": 1}}
    parsed_study, _ = wardround.load_study(raw, quick=True, changes={"training.lr": 0.3, "training.batch_size": 8})
    there = parsed_study.arm("fedavg@slow").training
    assert (there.rounds, there.batch_size, there.lr) == (1, 8, 0.01)
    assert parsed_study.arm("fedavg").training.lr == 0.3


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"training.runds": 1},
            "variants: v: arms: fedavg: training: runds: no such setting\n  Did you mean 'rounds'?",
        ),
        ({"traning.rounds": 1}, "variants: v: traning.rounds: no such setting\n  Did you mean 'training'?"),
        ({"evaluation.seeds.count": 9}, "variants: v: evaluation.seeds.count: no such setting\n  Did you mean"),
        ({"evaluation.test_share": 0.5}, "variants: v: evaluation.test_share: no such setting"),
        (
            {"evaluation.vary": ["splits"]},
            "evaluation.vary[0]: 'splits' is not a possible value\n  Did you mean 'split'?",
        ),
        ({"evaluation.vary": "split"}, "variants: v: evaluation.vary: expected a list, found 'split'"),
        ({"rounds": 3}, "variants: v: rounds: no such setting\n  A variant may set: "),
        ({"sites.alpha": 1}, "variants: v: arms: fedavg: sites: alpha: no such setting"),
        ({"training.lr": -1}, "variants: v: arms: fedavg: training: lr: -1.0 is out of range"),
        ({"arms": ["fedavgg", "local"]}, "variants: v: arms: no arm is called 'fedavgg'\n  Did you mean 'fedavg'?"),
        ({"arms": ["fedprox[mu=0.1]", "fedavg"]}, "variants: v: arms: no arm is called 'fedprox[mu=0.1]'"),
        ({"arms": ["local"]}, "variants: v: arms: leaves out 'fedavg', with which the others are compared\n  Name it"),
        ({"arms": "local"}, "variants: v: arms: expected a list, found 'local'"),
        ({"name": "a b"}, "variants: name: 'a b' is not a usable name\n  Use letters, digits"),
        ({"name": "a@b"}, "variants: name: 'a@b' is not a usable name"),
        ({"name": ""}, "variants: name: '' is not a usable name"),
    ],
)
def test_a_wrong_variant_says_where_what_and_what_to_do(entry: dict[str, Any], expected: str) -> None:
    assert expected in message(variants=[{"name": "v", **entry}])


def test_other_wrong_variants() -> None:
    assert "variants: name: missing" in message(variants=[{"training.lr": 0.2}])
    assert "variants: expected tables, found a table of 1 keys\n  Write each as [[variants]]." in message(
        variants={"name": "v"}
    )
    twice = [{"name": "v", "arms": ["fedavg"]}, {"name": "v", "arms": ["local"]}]
    assert "variants: two variants are called 'v'" in message(variants=twice, evaluation={})
    assert "reference: no arm is called 'fedavg@v'" in message(
        variants=[{"name": "v"}], evaluation={"reference": "fedavg@v"}
    )


def test_two_variants_of_one_name_are_called_so() -> None:
    assert "variants: two variants are called 'v'" in message(
        variants=[{"name": "v"}, {"name": "v", "training.lr": 0.2}]
    )


@pytest.mark.parametrize("key", ["scale", "missing", "categories", "indicator"])
def test_a_variant_of_the_preparation_is_refused_or_prepares_otherwise(key: str) -> None:
    value = {"scale": "none", "missing": "mean", "categories": "codes", "indicator": False}[key]
    try:
        loaded_plan = plan(variants=[{"name": "other", f"data.{key}": value}])
    except StudyError:
        return
    here, there = (
        loaded_plan.trial(loaded_plan.study.arm(name), 1).sites[0].train.x for name in ("fedavg", "fedavg@other")
    )
    assert here.shape != there.shape or not torch.equal(here, there)


DIRICHLET = {"partition": "dirichlet", "count": 4, "alpha": 0.5}


def test_a_variant_may_name_another_member_as_an_arm_may() -> None:
    arm = study(arms=[{"algorithm": "fedavg", "sites.partition": "iid"}], sites=DIRICHLET).arm("fedavg")
    assert (arm.sites.name, arm.sites.options) == ("iid", {"count": 4})
    varied = study(sites=DIRICHLET, variants=[{"name": "even", "sites.partition": "iid"}]).arm("fedavg@even")
    assert varied.sites == arm.sites


# Selection and claims, as far as a study can be wrong about them

AT_VA = {"on": "site", "site": "va"}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"arms": ["fedprx"], **AT_VA}, "arms: no swept arm is called 'fedprx'\n  Did you mean 'fedprox'?"),
        ({"arms": ["fedavg"], **AT_VA}, "arms: no swept arm is called 'fedavg'\n  Swept arms: fedprox."),
        ({"arms": [], **AT_VA}, "arms: is empty\n  Swept arms: fedprox."),
        ({**AT_VA}, "arms: missing"),
        ({"arms": ["fedprox"]}, "on: there are no validation rows to choose on\n  Set evaluation.validation_share"),
        ({"arms": ["fedprox"], "on": "site"}, "site: `on` and `site` do not go together"),
        ({"arms": ["fedprox"], "on": "test"}, "on: 'test' is not a possible value"),
        (
            {"arms": ["fedprox"], **AT_VA, "metric": "acuracy"},
            "metric: 'acuracy' is not a possible value\n  Did you mean",
        ),
        ({"arms": ["fedprox"], **AT_VA, "mertic": "auc"}, "mertic: no such setting\n  Did you mean 'metric'?"),
    ],
)
def test_a_wrong_selection_says_where_what_and_what_to_do(selection: dict[str, Any], expected: str) -> None:
    assert f"study: selection: {expected}" in message(selection=selection)


def test_other_wrong_selections() -> None:
    validated = {"evaluation": {"validation_share": 0.1}}
    assert "do not go together" in message(selection={"arms": ["fedprox"], "site": "va"}, **validated)
    unswept = {"arms": [{"algorithm": "fedavg"}], "evaluation": {}}
    assert "Give an arm a list of values" in message(selection={"arms": ["fedavg"], **AT_VA}, **unswept)
    personal = [{"algorithm": "fedavg"}, {"algorithm": "clustered", "slots": [2, 3]}]
    assert "clustered gives each site a model of its own" in message(
        arms=personal, selection={"arms": ["clustered"], **AT_VA}
    )
    with pytest.raises(StudyError, match="selection: site: no site is called 'vaa'\n  Did you mean 'va'"):
        plan(selection={"arms": ["fedprox"], "on": "site", "site": "vaa"}).check_all()
    with pytest.raises(StudyError, match="no site is left to train"):
        plan(selection={"arms": ["fedprox"], **AT_VA}, data={"source": "heart", "hospitals": ["va"]}).check_all()


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({}, "says nothing that was published\n  Add `published` or `stated`."),
        ({"published": 1, "arms": ["fedavgg"]}, "no arm is called 'fedavgg'\n  Did you mean 'fedavg'?"),
        ({"published": 1, "arms": ["fedprox[selected]"]}, "no arm is called 'fedprox[selected]'"),  # nothing selects
        ({"published": 1, "arms": ["fedavg@v"]}, "no arm is called 'fedavg@v'"),
        (
            {"published": 1, "metric": "acuracy"},
            "metric: 'acuracy' is not known\n  Did you mean 'accuracy'?",
        ),
        ({"published": 1, "arms": ["fedavg"], "against": ["local", "fedavg"]}, "1 arms and 2 against\n  List as many"),
        ({"published": 1, "against": ["local"]}, "0 arms and 1 against"),
        ({"published": 1, "metric": "t", "arms": ["fedavg"]}, "t is of two arms"),
        ({"published": 1, "formula": "sum"}, "`formula` and `given` do not go together"),
        ({"published": 1, "given": [[1, 2]]}, "`formula` and `given` do not go together"),
        ({"published": 1, "formula": "sum", "given": [[]]}, "`formula` and `given` do not go together"),
        ({"published": 1, "formula": "median", "given": [[1]]}, "formula: 'median' is not a possible value"),
        ({"published": 1, "tolerance": -1}, "tolerance: -1.0 is out of range"),
        ({"published": 1, "metric": "rounds", "arms": ["fedavg"], "statistic": "sd"}, "statistic: rounds has no 'sd'"),
        ({"published": 1, "metric": "gini", "arms": ["fedavg"], "against": ["local"]}, "against: gini is of the sites"),
        ({"published": 1, "arms": ["fedavg"], "compare": "ratio"}, "compare: 'ratio' compares the figures of `arms`"),
        ({"published": 1, "metric": "bytes", "arms": ["fedavg"], "site": "va"}, "site: bytes is not of one site"),
        (
            {"published": 1, "arms": ["fedavg"], "site": "va", "statistic": "spread"},
            "site: 'spread' is over sites, and one is named",
        ),
        ({"published": 1, "statistic": "median"}, "statistic: 'median' is not a possible value"),
        ({"published": 1, "formula": ["sum", "mean"], "given": [[1]]}, "formula: 2 formulas and 1 lists in `given`"),
        (
            {"published": 1, "formula": "p_from_t", "given": [[2.84, 50]]},
            "given[0]: p_from_t takes 3 numbers, found 2\n  Write in this order: t, runs, runs.",
        ),
        ({"published": 1, "formula": "t", "given": [[1, -1, 50, 0, 1, 50]]}, "given[0]: an SD is negative"),
        ({"published": 1, "formula": "t", "given": [[1, 1, 1, 0, 1, 50]]}, "given[0]: an SD is negative, or a number"),
        ({"published": 1, "formula": "t", "given": [[1, 0, 50, 0, 0, 50]]}, "given[0]: t would divide by nothing"),
        ({"published": 1, "formula": "t_from_interval", "given": [[2, 1, 50, 50]]}, "given[0]: t_from_interval would"),
        (
            {"published": 1, "formula": "sd", "given": [[1]]},
            "given[0]: sd would divide by nothing\n  Write two numbers",
        ),
        ({"published": 1, "formula": "change", "given": [[0, 1]]}, "given[0]: change would divide by nothing"),
        ({"published": 1, "formula": "ratio", "given": [[1, 0]]}, "given[0]: ratio would divide by nothing"),
        ({"published": 1, "formula": "gini", "given": [[0, 0]]}, "given[0]: gini would divide by nothing"),
        ({"published": 1, "rounded": 0.1}, "rounded: needs figures in `given`"),
        ({"publishd": 1}, "publishd: no such setting\n  Did you mean 'published'?"),
        ({"published": "1"}, "published: expected a number, found '1'"),
    ],
)
def test_a_wrong_claim_says_where_what_and_what_to_do(claim: dict[str, Any], expected: str) -> None:
    assert f"study: claims[0]: {expected}" in message(claims=[{"text": "t", "source": "s", **claim}])


def test_a_claim_may_be_about_a_variants_arm_and_about_a_selected_one() -> None:
    claims = [{"text": "t", "source": "s", "published": 1, "arms": ["fedprox[selected]@v"], "against": ["fedavg"]}]
    parsed_study = study(
        claims=claims, selection={"arms": ["fedprox"], **AT_VA}, variants=[{"name": "v", "training.lr": 0.2}]
    )
    assert parsed_study.claims[0].arms == ("fedprox[selected]@v",)


def test_what_a_claim_does_not_use_is_not_in_the_hash() -> None:
    """A study with claims keeps its name when claims learn something new."""
    plain = {"text": "t", "source": "s", "published": 1.0, "arms": ["fedavg"]}
    same = {**plain, "group": "", "statistic": "mean", "compare": "difference", "site": "", "rounded": 0.0}
    assert study(claims=[plain]).hash == study(claims=[same]).hash
    assert study(claims=[plain]).hash != study(claims=[{**plain, "statistic": "sd"}]).hash
    assert set(hashed(study(claims=[plain]).claims[0])) == {
        *("text", "source", "published", "tolerance", "arms", "against", "metric", "stated", "formula", "given"),
        "no_verdict",
    }


# The resolved study

EVERYTHING: dict[str, Any] = {
    **BASE,
    "arms": [
        *BASE["arms"],
        {"name": "some", "algorithm": "fedavg", "train_at": [["va"], ["cleveland", "va"]]},
        {"name": "pair", "algorithm": "fedavg", "train_at": ["va", "hungarian"]},
    ],
    "variants": [
        {"name": "fixed", "text": "one split", "evaluation.vary": ["batches"]},
        {"name": "iid", "sites.partition": "iid", "sites.count": 3, "arms": ["fedavg", "fedprox"]},
        {"name": "nested", "training": {"lr_decay": {"factor": 0.9, "every": 2}}, "model.l2": 0.1},
    ],
    "selection": {"arms": ["fedprox"], **AT_VA, "metric": "auc"},
    "claims": [
        {"text": "a", "source": "b", "published": 1, "arms": ["fedavg@fixed"], "stated": {"here": 1, "there": 0.5}},
        {"text": "a", "source": "b", "published": 3, "metric": "rows", "formula": "sum", "given": [[1, 2], [3]]},
    ],
    "quick": {"training.rounds": 1},
}


@pytest.mark.parametrize("quick", [False, True])
def test_the_resolved_study_reads_back_to_the_same_study_and_hash(quick: bool) -> None:
    parsed_study, _ = wardround.load_study(EVERYTHING, quick=quick)
    again, _ = wardround.load_study(tomllib.loads(tomli_w.dumps(dict(parsed_study.resolved))))
    assert again == parsed_study
    assert again.hash == parsed_study.hash
    assert [arm.name for arm in again.selection_arms] == [arm.name for arm in parsed_study.selection_arms]


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": EVERYTHING["variants"][:2]},
        {"variants": [{**EVERYTHING["variants"][0], "evaluation.vary": ["init"]}, *EVERYTHING["variants"][1:]]},
        {"selection": {**EVERYTHING["selection"], "site": "cleveland"}},
        {"selection": {**EVERYTHING["selection"], "metric": "accuracy"}},
        {"claims": EVERYTHING["claims"][:1]},
        {"arms": EVERYTHING["arms"][:-1]},
    ],
    ids=["a variant less", "another vary", "another site", "another metric", "a claim less", "an arm less"],
)
def test_each_of_them_is_part_of_the_hash(changes: dict[str, Any]) -> None:
    assert wardround.load_study({**EVERYTHING, **changes})[0].hash != wardround.load_study(EVERYTHING)[0].hash


def test_a_variant_with_another_partition_reads_back_too() -> None:
    """Its file says nothing of windows and sizes; the resolved study writes these defaults of the first partition."""
    raw = {**BASE, "sites": {"partition": "age-windows"}}
    parsed_study, _ = wardround.load_study(
        {**raw, "variants": [{"name": "even", "sites.partition": "iid", "sites.count": 4}]}
    )
    again, _ = wardround.load_study(tomllib.loads(tomli_w.dumps(dict(parsed_study.resolved))))
    assert again.hash == parsed_study.hash


# What a seed varies

FIXED = [{"name": "fixed", "evaluation.vary": ["batches"]}]


def test_with_nothing_varied_but_batches_all_seeds_share_their_rows() -> None:
    loaded_plan = plan(sites={"partition": "dirichlet", "count": 4}, variants=FIXED)
    free, fixed = (loaded_plan.study.arm(name) for name in ("fedavg", "fedavg@fixed"))
    trials = {arm.name: [loaded_plan.trial(arm, seed) for seed in (1, 2, 3)] for arm in (free, fixed)}
    for name, same in (("fedavg", False), ("fedavg@fixed", True)):
        first, *others = trials[name]
        for other in others:
            here, there = (np.concatenate([site.test_rows for site in trial.scored]) for trial in (first, other))
            assert np.array_equal(here, there) == same
    assert [trial.batch_seed for trial in trials["fedavg@fixed"]] == [1, 2, 3]
    assert [trial.init_seed for trial in trials["fedavg@fixed"]] == [1, 1, 1]
    assert loaded_plan.data_seeds(fixed) == [1]
    assert loaded_plan.data_seeds(free) == [1, 2, 3]
    # the first seed's rows are those of the study as it stands
    assert_same(after(trials["fedavg"][0], 1), after(trials["fedavg@fixed"][0], 1))


def test_the_run_of_a_fixed_variant_tests_the_same_rows_with_every_seed_and_says_what_its_intervals_cover(
    tmp_path: Path,
) -> None:
    run = wardround.run_study({**BASE, "variants": FIXED}, tmp_path)
    predictions = RunFolder(run.folder).predictions()
    for arm, different in (("fedavg", 3), ("fedavg@fixed", 1)):
        rows = predictions[predictions["arm"] == arm].groupby("seed")["row"].apply(tuple)
        assert len(set(rows)) == different
    scores = predictions[predictions["arm"] == "fedavg@fixed"].groupby("seed")["score"].apply(tuple)
    assert len(set(scores)) == 3  # batches do differ
    described = run.results["variants"]
    assert described[""]["method"] == "corrected resampled t"
    assert described["fixed"]["method"] == "bootstrap over patients"
    assert described["fixed"]["covers"] == "other patients like these, and training"
    methods = {test["arm"].partition("@")[2]: test["method"] for test in run.results["tests"]}
    assert methods == {"": "corrected resampled t", "fixed": "bootstrap over patients"}
    assert {(test["arm"].partition("@")[2], test["reference"]) for test in run.results["tests"]} == {
        ("", "fedavg"),
        ("fixed", "fedavg@fixed"),
    }


WINDOWS: dict[str, Any] = {
    **BASE,
    "data": {"source": "heart", "hospitals": ["cleveland"]},
    "sites": {"partition": "age-windows"},
    "arms": [{"algorithm": "fedavg"}],
}


def test_leakage_is_counted_for_each_variant(tmp_path: Path) -> None:
    """Test rows that are training rows of some site, counted from the splits."""
    raw = {**WINDOWS, "variants": [{"name": "disjoint", "sites.disjoint": True}, *FIXED]}
    leakage = wardround.run_study(raw, tmp_path).results["leakage"]
    loaded_plan = wardround.load_plan(*wardround.load_study(raw))
    for variant, seeds in (("", [1, 2, 3]), ("disjoint", [1, 2, 3]), ("fixed", [1])):
        arm = loaded_plan.study.arm(f"fedavg@{variant}" if variant else "fedavg")
        leaked: dict[str, list[int]] = {}
        for seed in seeds:
            splits = loaded_plan.splits(arm, seed)
            trained = np.concatenate([split.train for split in splits])
            for split in splits:
                leaked.setdefault(split.site, []).append(int(np.isin(split.test, trained).sum()))
        assert {site: entry["rows"] for site, entry in leakage[variant].items()} == pytest.approx(
            {site: np.mean(counts) for site, counts in leaked.items()}
        )
        assert (sum(map(sum, leaked.values())) > 0) == (variant != "disjoint")


def test_a_variant_that_shares_its_rows_with_the_study_leaks_as_much(tmp_path: Path) -> None:
    raw = {**WINDOWS, "variants": [{"name": "slow", "training.lr": 0.01}]}
    leakage = wardround.run_study(raw, tmp_path).results["leakage"]
    assert leakage["slow"] == leakage[""]


def test_leakage_does_not_depend_on_how_many_seeds_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {**WINDOWS, "evaluation": {"seeds": {"first": 1, "count": 6}}}
    roomy = wardround.run_study(raw, tmp_path / "roomy").results
    monkeypatch.setattr("wardround.runs.plan.CACHE_BYTES", 0)  # as for a table of many millions of cells
    tight = wardround.run_study(raw, tmp_path / "tight").results
    assert tight["leakage"] == roomy["leakage"]


# Arms in which only some sites train


def hospitals(change: str | None = None) -> Callable[[], Source]:
    """Four hospitals with gaps and categories. Everything that is recorded at the one named is something else."""
    rng = np.random.default_rng(0)
    names = np.repeat(np.array(["a", "b", "c", "d"], dtype=object), [50, 70, 60, 40])
    rows = len(names)
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 10, rows),
            "crp": np.where(names == "b", np.nan, rng.gamma(2.0, 3.0, rows)),  # b has never measured it
            "ward": rng.choice(["icu", "medicine", "surgery"], rows).astype(object),
        }
    )
    table.loc[rng.random(rows) < 0.1, "age"] = np.nan
    table.loc[rng.random(rows) < 0.1, "ward"] = None
    target = (rng.random(rows) < np.where(table["ward"] == "icu", 0.7, 0.3)).astype(np.int64)
    if change is not None:
        there = np.flatnonzero(names == change)
        other = np.random.default_rng(1)
        table.loc[there, "age"] = other.normal(35, 20, len(there))
        table.loc[there, "crp"] = np.where(other.random(len(there)) < 0.5, np.nan, 20 * other.random(len(there)))
        table.loc[there, "ward"] = other.choice(["attic", "cellar", "icu", "zoo"], len(there))  # levels nobody else has
        target[there] = other.permutation(np.arange(len(there)) % 2)
    columns = (Column("age"), Column("crp"), Column("ward", "categorical"))
    records = Records(table, target, ("no", "yes"), names, columns)
    return lambda: Source(lambda: records)


SOME: dict[str, Any] = {
    "name": "some",
    "data": {"source": "mine", "scale": "federated"},
    "training": {"rounds": 2, "local_epochs": 2, "batch_size": 16, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 2}},
    "arms": [
        {"name": algorithm, "algorithm": algorithm, "train_at": ["a", "b"]}
        for algorithm in ("fedavg", "fedprox", "scaffold", "fednova", "fedadam", "pooled")
    ],
}


@pytest.mark.parametrize(
    ("engine", "scale"),
    represented(itertools.product(["auto", "serial"], ["federated", "per-site"]), by=[("auto", "federated")]),
)
def test_outsiders_contribute_nothing_to_what_is_trained(tmp_path: Path, scale: str, engine: str) -> None:
    """Other patients, other categories, other gaps, other labels at c: the same weights, bit for bit."""
    runs = [
        wardround.run_study(
            SOME,
            tmp_path / str(change),
            engine=engine,
            changes={"data.scale": scale},
            sources={"mine": hospitals(change)},
        )
        for change in (None, "c", "a")
    ]
    first, outsider, insider = (RunFolder(run.folder) for run in runs)
    predicted = [folder.predictions() for folder in (first, outsider)]
    before, now = (table[table["site"].isin(["a", "b"])].reset_index(drop=True) for table in predicted)
    pd.testing.assert_frame_equal(before, now, check_exact=True)  # nor to what is predicted for those who train
    for arm in SOME["arms"]:
        for seed in (1, 2):
            weights = first.load_model(arm["name"], seed)
            assert_same_tree(weights, outsider.load_model(arm["name"], seed))
            other = insider.load_model(arm["name"], seed)
            assert any(
                not torch.equal(leaf, other[name]) for name, leaf in weights.items() if leaf.shape == other[name].shape
            )


def prepared(change: str | None, members: Sequence[str] | None, scale: str = "federated") -> tuple[Plan, Any, Any]:
    loaded_plan = wardround.load_plan(
        *wardround.load_study({**SOME, "data": {"source": "mine", "scale": scale}}, sources={"mine": hospitals(change)})
    )
    arm = loaded_plan.study.arms[0]
    splits = loaded_plan.splits(arm, 1)
    cohort = loaded_plan.cohort_of(arm)
    sites = prepare_sites(cohort, splits, loaded_plan.study.arms[0].preparation, torch.float64, members)
    recipes = {site.name: site.recipe for site in sites if site.recipe is not None}
    return loaded_plan, recipes[sites[0].name].layout, {site: recipe.fit for site, recipe in recipes.items()}


def test_the_layout_the_fills_and_the_common_scale_come_from_those_who_train() -> None:
    _, layout, fits = prepared(None, ["a", "b"])
    _, same_layout, same_fits = prepared("c", ["a", "b"])
    assert same_layout.names == layout.names
    for site in ("a", "b", "d"):
        assert same_fits[site].fill == fits[site].fill
        assert same_fits[site].fill_level == fits[site].fill_level
        np.testing.assert_array_equal(same_fits[site].centre, fits[site].centre)
        np.testing.assert_array_equal(same_fits[site].spread, fits[site].spread)
    np.testing.assert_array_equal(same_fits["c"].centre, fits["a"].centre)  # outsiders are scaled as the others are
    _, changed_layout, changed_fits = prepared("c", None)  # if all took part, c would be heard
    assert "ward=zoo" in changed_layout.names
    assert changed_fits["a"].centre[0] != fits["a"].centre[0]


def test_what_a_site_has_from_others_is_worked_out_from_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wardround.data.agreement.LEAST", 1)
    """By hand: three sites of two rows; only a and b are members, and b never measured crp."""
    table = pd.DataFrame(
        {
            "age": [40.0, 60.0, 50.0, 70.0, 900.0, 900.0],
            "crp": [1.0, 3.0, np.nan, np.nan, 500.0, 700.0],
            "ward": pd.Series(["icu", "icu", None, None, "zoo", None], dtype=object),
        }
    )
    columns = (Column("age"), Column("crp"), Column("ward", "categorical"))
    site = np.repeat(np.array(["a", "b", "c"], dtype=object), 2)
    records = Records(table, np.array([0, 1] * 3), ("no", "yes"), site, columns)
    encoded = encode(records)
    train = {name: np.flatnonzero(site == name) for name in ("a", "b", "c")}
    settings = Preparation(scale="federated")
    members = ["a", "b"]
    layout = agree(encoded, {name: train[name] for name in members}, settings)
    assert layout.names == ("age", "crp", "ward=icu", "crp missing", "ward missing")
    fits = fit(encoded, train, layout, settings, members)
    assert fits["b"].fill == {"age": 60.0, "crp": 2.0}  # its own median age; crp from a alone
    assert fits["c"].fill == {"age": 900.0, "crp": 600.0}  # an outsider has its own, which go nowhere
    assert fits["b"].fill_level == {"ward": "icu"}
    for name in ("a", "b", "c"):
        assert fits[name].centre.tolist() == [55.0, 2.0]  # of 40, 60, 50, 70 and of 1 and 3: b never measured crp
        assert fits[name].spread == pytest.approx([np.std([40, 60, 50, 70]), np.std([1, 3])])


def test_outsiders_are_scored_and_cost_nothing(tmp_path: Path) -> None:
    arms = [{"algorithm": "fedavg"}, {"name": "two", "algorithm": "fedavg", "train_at": ["d", "b"]}]
    run = wardround.run_study({**SOME, "arms": arms}, tmp_path, sources={"mine": hospitals()})
    folder = RunFolder(run.folder)
    predictions, records = folder.predictions(), folder.records()
    all_train, two = (
        predictions[predictions["arm"] == arm].drop(columns=["arm", "score"]) for arm in ("fedavg", "two")
    )
    pd.testing.assert_frame_equal(all_train.reset_index(drop=True), two.reset_index(drop=True))  # the same test rows
    assert {tuple(sites) for sites in records[records["arm"] == "two"]["sites"]} == {("b", "d")}
    leaves = folder.load_model("two", 1)
    assert not [name for name in leaves if name.startswith(("memory/a", "memory/c"))]
    size = sum(leaf.numel() for name, leaf in leaves.items() if name.startswith("server/params"))
    mine = records[(records["arm"] == "two") & (records["seed"] == 1)]
    assert mine["bytes_up"].tolist() == [2 * 4 * size] * 2  # two sites, float32
    assert run.results["arms"]["two"]["train_at"] == ["d", "b"]
    assert run.results["arms"]["fedavg"]["train_at"] is None


def test_arms_of_equally_many_sites_run_in_one_stack_as_they_would_one_by_one(tmp_path: Path) -> None:
    subsets = [["a", "b"], ["c", "d"], ["b", "c"], ["a"], ["d"]]
    arms = [{"algorithm": "fedavg"}, {"name": "some", "algorithm": "scaffold", "train_at": subsets}]
    raw = {**SOME, "arms": arms, "training": {**SOME["training"], "precision": "float64"}}
    folders = [
        RunFolder(wardround.run_study(raw, tmp_path / engine, engine=engine, sources={"mine": hospitals()}).folder)
        for engine in ("auto", "serial")
    ]
    keys = ["arm", "seed", "site", "row"]
    fast, plain = (folder.predictions().sort_values(keys, ignore_index=True) for folder in folders)
    pd.testing.assert_frame_equal(fast, plain, check_exact=False, rtol=0, atol=1e-9)
    assert fast["arm"].nunique() == 1 + len(subsets)


def test_all_sites_named_train_as_all_sites_do() -> None:
    arms = [{"algorithm": "fedavg"}, {"name": "all", "algorithm": "fedavg", "train_at": ["d", "c", "b", "a"]}]
    loaded_plan = wardround.load_plan(*wardround.load_study({**SOME, "arms": arms}, sources={"mine": hospitals()}))
    assert members_of(loaded_plan.study.arm("all"), ["a", "b", "c", "d"]) == [
        "a",
        "b",
        "c",
        "d",
    ]  # in the order of the sites
    first, second = (loaded_plan.trial(loaded_plan.study.arm(name), 1) for name in ("fedavg", "all"))
    assert_same(after(first, 2), after(second, 2))


def test_an_unknown_site_is_refused_before_anything_trains(tmp_path: Path) -> None:
    raw = {**BASE, "arms": [{"algorithm": "fedavg", "train_at": ["cleveland", "vaa"]}], "evaluation": {}}
    with pytest.raises(StudyError, match="train_at or selection: site: no site is called 'vaa'\n  Did you mean 'va'"):
        wardround.run_study(raw, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ["local", "clustered"])
def test_algorithms_that_give_each_site_a_model_of_its_own_are_refused(algorithm: str) -> None:
    arms = [{"algorithm": "fedavg"}, {"algorithm": algorithm, "train_at": ["va"]}]
    assert f"{algorithm} gives each site a model of its own, so a site that does not train has none" in message(
        arms=arms
    )


def normed() -> ModelBuilder:
    def module(shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Linear(shape.inputs[0], 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    return lambda shape: from_module(lambda: module(shape), shape)


def headed() -> ModelBuilder:
    def module(shape: Shape) -> nn.Module:
        return nn.Sequential(nn.Linear(shape.inputs[0], 4), nn.Linear(4, 1))

    return lambda shape: from_module(lambda: module(shape), shape, private=("1",))


@pytest.mark.parametrize("kind", ["normed", "headed"])
def test_models_that_keep_a_part_at_each_site_are_refused_where_some_do_not_train(kind: str, tmp_path: Path) -> None:
    own = {"normed": normed, "headed": headed}
    base = {**SOME, "model": {"kind": kind}, "training": {"rounds": 1, "batch_size": 7}}
    refused = {**base, "arms": [{"algorithm": "fedavg", "train_at": ["a", "b"]}]}
    with pytest.raises(
        StudyError, match="keeps a part of itself at each site, and a site that does not train has none"
    ):
        wardround.run_study(refused, tmp_path, models=own, sources={"mine": hospitals()})
    assert not list(tmp_path.iterdir())
    chosen = {
        **base,
        "arms": [{"algorithm": "fedprox", "mu": [0.1, 1.0]}],
        "selection": {"arms": ["fedprox"], "on": "site", "site": "a"},
    }
    with pytest.raises(StudyError, match="keeps a part of itself at each site"):
        wardround.run_study(chosen, tmp_path, models=own, sources={"mine": hospitals()})
    for everyone in ({"train_at": ["a", "b", "c", "d"]}, {}):
        loaded_plan = wardround.load_plan(
            *wardround.load_study(
                {**base, "arms": [{"algorithm": "fedavg", **everyone}]}, models=own, sources={"mine": hospitals()}
            )
        )
        assert cut(loaded_plan, "auto")  # nothing to object to: all sites train


def test_a_site_named_twice_is_refused() -> None:
    message(arms=[{"algorithm": "fedavg", "train_at": ["va", "va"]}], evaluation={})


# The rows of a site that is held out for a selection


def splits_of(*sides: tuple[list[int], list[int], list[int]]) -> tuple[Split, ...]:
    return tuple(
        Split(f"site-{n}", *(np.array(rows, dtype=np.int64) for rows in site_rows))
        for n, site_rows in enumerate(sides, 1)
    )


def test_a_held_out_site_is_scored_on_all_rows_whose_patient_nobody_else_trains_on_or_tests() -> None:
    """Rows 0 to 9 of patients 0 to 9; at site 2, row 10 is patient 3 again, and row 11 patient 5."""
    patient = np.array([*range(10), 3, 5])
    splits = splits_of(([0, 2, 3, 5], [1, 4], [6]), ([7, 8], [], [9, 10]), ([0], [], [2, 11]))
    held_out_splits = held_out_rows(splits, "site-1", patient)
    # not 0 (site 3 trains on it), not 2 (tested at site 3), not 3 and 5 (their patients are tested)
    assert held_out_splits[0].test.tolist() == [1, 4]
    assert [split.train.tolist() for split in held_out_splits] == [split.train.tolist() for split in splits]
    assert [split.test.tolist() for split in held_out_splits[1:]] == [split.test.tolist() for split in splits[1:]]


def test_a_held_out_site_whose_patients_are_all_tested_elsewhere_is_refused() -> None:
    splits = splits_of(([0, 1], [], [2]), ([3], [], [0, 1]))
    with pytest.raises(StudyError, match="has no row that others neither train on nor test"):
        held_out_rows(splits, "site-1", np.arange(4))


def test_a_held_out_site_that_does_not_train_anyway_is_scored_all_the_same() -> None:
    arms = [{"algorithm": "fedprox", "mu": [0.1, 1.0], "train_at": ["a", "b"]}]
    raw = {**SOME, "arms": arms, "selection": {"arms": ["fedprox"], "on": "site", "site": "c"}}
    loaded_plan = wardround.load_plan(*wardround.load_study(raw, sources={"mine": hospitals()}))
    for arm in loaded_plan.study.selection_arms:
        trial = loaded_plan.trial(arm, 1)
        assert [site.name for site in trial.sites] == ["a", "b"]
        assert [site.name for site in trial.scored] == ["c"]
        tested = next(split for split in loaded_plan.splits(arm, 1) if split.site == "c").test
        assert not set(trial.scored[0].test_rows) & set(tested)
        assert len(trial.scored[0].test_rows) + len(tested) == 60  # all rows of c: nobody else has them
    only = replace(loaded_plan.study.arms[0], train_at=("c",), held_out="c")
    with pytest.raises(StudyError, match="no site is left to train"):
        members_of(only, ["a", "b", "c", "d"])


def test_a_sweep_of_a_model_without_closed_gradient_trains_in_one_stack(tmp_path: Path) -> None:
    """Nothing of variants: found while writing these tests. Every sweep of an MLP fails on the fast engine."""
    raw = {**BASE, "model": {"kind": "mlp"}, "arms": [{"algorithm": "fedprox", "mu": [0.1, 1.0]}], "evaluation": {}}
    wardround.run_study(raw, tmp_path)
