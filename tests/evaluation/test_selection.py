"""The value of a setting is chosen with each seed, on rows that are nobody's test rows, and then nothing is changed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.evaluation.synthetic_predictions import with_accuracy
from tests.representatives import represented
from tests.small_federations import after, assert_same
from wardround.core.errors import StudyError
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.data.sources.heart import heart
from wardround.evaluation.comparisons.selection import choose, compose
from wardround.evaluation.results import results
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.study.schema import Arm, Study

NAN = float("nan")
MUS = [0.3, 0.1, 0.0]  # in this order, so that ties between small values go to the larger
FIRST, SECOND, THIRD = (f"fedprox[mu={mu}]" for mu in MUS)
WITHOUT = "?without=cleveland"


def study(selection: Mapping[str, Any], **changes: Any) -> Study:
    raw = {
        "name": "chosen",
        "data": {"source": "heart"},
        "evaluation": {"seeds": {"first": 1, "count": 3}, "validation_share": 0.1},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": MUS}],
        "selection": {"metric": "accuracy", "arms": ["fedprox"], **selection},
        **changes,
    }
    return wardround.load_study(raw)[0]


AT_CLEVELAND = {"on": "site", "site": "cleveland"}


def scored(hits: Mapping[str, list[int]], suffix: str = WITHOUT) -> pd.DataFrame:
    """For each arm, how many of 20 rows are right with seeds 1, 2, ..."""
    right = {
        (arm + suffix, seed, "cleveland"): (count, 20)
        for arm, line in hits.items()
        for seed, count in enumerate(line, 1)
    }
    return with_accuracy(right)


def test_each_seed_chooses_the_value_that_is_best_with_it() -> None:
    (choice,) = choose(study(AT_CLEVELAND), scored({FIRST: [15, 18, 11], SECOND: [16, 17, 12], THIRD: [9, 9, 19]}))
    assert choice["chosen"] == {"1": SECOND, "2": FIRST, "3": THIRD}
    assert choice["scores"] == pytest.approx({FIRST: 44 / 60, SECOND: 45 / 60, THIRD: 37 / 60})
    assert (choice["arm"], choice["family"], choice["variant"]) == ("fedprox[selected]", "fedprox", "")
    assert (choice["on"], choice["site"], choice["metric"]) == ("site", "cleveland", "accuracy")


def test_ties_go_to_the_value_that_stands_first_in_the_study_however_the_file_is_sorted() -> None:
    table = scored({FIRST: [15, 18, 10], SECOND: [15, 18, 12], THIRD: [15, 17, 12]})
    for order in (table, table[::-1].reset_index(drop=True)):
        assert choose(study(AT_CLEVELAND), order)[0]["chosen"] == {"1": FIRST, "2": FIRST, "3": SECOND}
    other_way = study(AT_CLEVELAND, arms=[{"algorithm": "fedprox", "mu": MUS[::-1]}])
    assert choose(other_way, table)[0]["chosen"] == {"1": THIRD, "2": SECOND, "3": THIRD}


@pytest.mark.parametrize("metric", ["brier", "loss"])
def test_where_lower_is_better_the_lowest_is_chosen(metric: str) -> None:
    """A right row costs less than a wrong one in both."""
    table = scored({FIRST: [15, 18, 11], SECOND: [16, 17, 12], THIRD: [9, 9, 19]})
    (choice,) = choose(study({**AT_CLEVELAND, "metric": metric}), table)
    assert choice["chosen"] == {"1": SECOND, "2": FIRST, "3": THIRD}
    assert choice["scores"][THIRD] > choice["scores"][SECOND]


def test_a_value_that_diverged_is_never_chosen_and_a_seed_without_any_score_chooses_none() -> None:
    table = scored({FIRST: [20, 20, 10], SECOND: [10, 20, 10], THIRD: [5, 20, 11]})
    lost = (table["seed"] == 2) | ((table["seed"] == 1) & (table["arm"] == FIRST + WITHOUT))
    (choice,) = choose(study(AT_CLEVELAND), table.assign(score=table["score"].mask(lost)))
    assert choice["chosen"] == {"1": SECOND, "3": THIRD}
    assert choice["scores"] == pytest.approx({FIRST: 10 / 20, SECOND: 20 / 40, THIRD: 16 / 40})
    (nothing,) = choose(study(AT_CLEVELAND), table.assign(score=NAN))
    assert nothing["chosen"] == {}
    assert set(nothing["scores"].values()) == {None}


def test_on_validation_rows_the_arms_own_predictions_decide() -> None:
    table = scored({FIRST: [15, 18, 11], SECOND: [16, 17, 12], THIRD: [9, 9, 19]}, suffix="")
    (choice,) = choose(study({"on": "validation"}), table)
    assert choice["chosen"] == {"1": SECOND, "2": FIRST, "3": THIRD}


def test_each_variant_chooses_for_itself() -> None:
    chosen = study(AT_CLEVELAND, variants=[{"name": "slow", "training.lr": 0.01}, {"name": "few", "arms": ["fedavg"]}])
    here = scored({FIRST: [15], SECOND: [16], THIRD: [9]})
    there = scored({FIRST: [12], SECOND: [9], THIRD: [9]}, suffix="@slow" + WITHOUT)
    main, slow = choose(chosen, pd.concat([here, there]))  # none in `few`, which leaves fedprox out
    assert (main["arm"], main["chosen"]) == ("fedprox[selected]", {"1": SECOND})
    assert (slow["arm"], slow["variant"], slow["chosen"]) == ("fedprox[selected]@slow", "slow", {"1": f"{FIRST}@slow"})


def test_a_study_without_a_selection_chooses_nothing() -> None:
    assert choose(replace(study(AT_CLEVELAND), selection=None), scored({FIRST: [1]})) == []


def test_the_selected_arm_is_put_together_from_the_chosen_values_rows() -> None:
    table = with_accuracy({(arm, seed, "va"): (seed, 5) for arm in ("fedavg", FIRST, THIRD) for seed in (1, 2, 3)})
    choice = {"arm": "fedprox[selected]", "chosen": {"1": FIRST, "3": THIRD}}
    both = compose(table, [choice])
    pd.testing.assert_frame_equal(both[: len(table)], table)  # what was there stays as it was
    added = both[len(table) :].reset_index(drop=True)
    assert (added["arm"] == "fedprox[selected]").all()
    wanted = table[((table["arm"] == FIRST) & (table["seed"] == 1)) | ((table["arm"] == THIRD) & (table["seed"] == 3))]
    pd.testing.assert_frame_equal(added.drop(columns="arm"), wanted.drop(columns="arm").reset_index(drop=True))
    assert compose(table, []) is table
    nothing_chosen = compose(table, [{"arm": "fedprox[selected]", "chosen": {}}])
    assert nothing_chosen["arm"].tolist() == table["arm"].tolist()


# End to end


@dataclass(frozen=True)
class Made:
    """A finished run, and the plan that it was made from."""

    folder: RunFolder
    results: Mapping[str, Any]
    plan: Plan

    @property
    def predictions(self) -> pd.DataFrame:
        return self.folder.predictions()

    @property
    def selection(self) -> pd.DataFrame:
        predictions = self.folder.other_predictions("selection")
        assert predictions is not None
        return predictions

    @property
    def seeds(self) -> list[int]:
        return list(self.plan.study.evaluation.seeds)

    def swept(self) -> list[Arm]:
        return [arm for arm in self.plan.study.arms if arm.family == "fedprox"]


WINDOWS = {"data": {"source": "heart", "hospitals": ["cleveland"], "missing": "drop"}}
RUNS: dict[str, dict[str, Any]] = {
    "a hospital left out": {
        "data": {"source": "heart"},
        "selection": {"metric": "accuracy", "arms": ["fedprox"], **AT_CLEVELAND},
    },
    "validation rows": {
        "data": {"source": "heart"},
        "selection": {"metric": "accuracy", "arms": ["fedprox"], "on": "validation"},
    },
    "a window of overlapping ages left out": {
        **WINDOWS,
        "sites": {"partition": "age-windows"},
        "variants": [{"name": "disjoint", "sites.disjoint": True}],
        "selection": {"metric": "accuracy", "arms": ["fedprox"], "on": "site", "site": "site-01"},
    },
    "validation rows of overlapping ages": {
        **WINDOWS,
        "sites": {"partition": "age-windows"},
        "selection": {"metric": "accuracy", "arms": ["fedprox"], "on": "validation"},
    },
}
OFTEN = ["a hospital left out", "validation rows of overlapping ages"]
BY_SITE = [name for name in RUNS if "left out" in name]


def raw_study(name: str) -> dict[str, Any]:
    return {
        "name": "chosen",
        "training": {"rounds": 3, "local_epochs": 4, "lr": 0.5},
        "evaluation": {
            "seeds": {"first": 1, "count": 5},
            "validation_share": 0.1,
            "threshold": 0.5,
            "reference": "fedavg",
        },
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": MUS}],
        **RUNS[name],
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Each run is made once, when a test first asks for it."""
    finished_runs: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in finished_runs:
            run = wardround.run_study(raw_study(name), tmp_path_factory.mktemp("runs"))
            plan = wardround.load_plan(*wardround.load_study(raw_study(name)))
            finished_runs[name] = Made(RunFolder(run.folder), run.results, plan)
        return finished_runs[name]

    return get


@pytest.mark.parametrize("name", represented(RUNS, by=OFTEN))
def test_the_chosen_value_has_the_best_accuracy_on_the_rows_set_aside_for_it(
    runs: Callable[[str], Made], name: str
) -> None:
    from sklearn.metrics import accuracy_score

    run = runs(name)
    assert run.results["selection"]
    for choice in run.results["selection"]:
        selection = run.selection
        values = [arm.name for arm in run.swept() if arm.variant == choice["variant"]]
        for seed in run.seeds:
            accuracy = {}
            for value in values:
                scored_as = value if choice["on"] == "validation" else f"{value}?without={choice['site']}"
                mine = selection[(selection["arm"] == scored_as) & (selection["seed"] == seed)]
                accuracy[value] = accuracy_score(mine["label"], mine["score"] >= 0.5)
            assert choice["chosen"][str(seed)] == max(values, key=accuracy.__getitem__)  # max takes the first of equals


@pytest.mark.parametrize("name", represented(RUNS, by=OFTEN))
def test_the_selected_arms_predictions_are_with_each_seed_those_of_the_value_chosen(
    runs: Callable[[str], Made], name: str
) -> None:
    from sklearn.metrics import accuracy_score

    run = runs(name)
    composed, records = compose(run.predictions, run.results["selection"]), run.folder.records()
    different = set()
    for choice in run.results["selection"]:
        accuracies, bytes_sent = [], []
        for seed in run.seeds:
            value = choice["chosen"][str(seed)]
            different.add(value)
            mine, theirs = (
                composed[(composed["arm"] == arm) & (composed["seed"] == seed)].drop(columns="arm")
                for arm in (choice["arm"], value)
            )
            pd.testing.assert_frame_equal(mine.reset_index(drop=True), theirs.reset_index(drop=True))
            accuracies.append(accuracy_score(theirs["label"], theirs["score"] >= 0.5))
            of_value = records[(records["arm"] == value) & (records["seed"] == seed)]
            bytes_sent.append(of_value["bytes_up"].sum() + of_value["bytes_down"].sum())
        figures = run.results["arms"][choice["arm"]]
        assert figures["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(accuracies))
        assert figures["metrics"]["accuracy"]["sd"] == pytest.approx(np.std(accuracies, ddof=1))
        assert figures["algorithm"] == {"name": "fedprox"}  # no value of mu: it differs from seed to seed
        assert figures["cost"]["bytes"] == pytest.approx(
            np.mean(bytes_sent), rel=0.05
        )  # models differ in width by seed
    assert len(different) > 1  # otherwise this would hold for a selection that looks at nothing


LEAKS = "defect: a validation row of one site may be a test row of another where sites overlap"
WITH_LEAK = pytest.param("validation rows of overlapping ages")


@pytest.mark.parametrize(
    "name",
    represented(
        [*(name for name in RUNS if name != "validation rows of overlapping ages"), WITH_LEAK], by=[*OFTEN, WITH_LEAK]
    ),
)
def test_no_value_is_chosen_on_a_row_that_any_site_tests_with_the_same_seed(
    runs: Callable[[str], Made], name: str
) -> None:
    run = runs(name)
    predictions, selection = run.predictions, run.selection
    variant = {arm.name: arm.variant for arm in run.plan.study.trained_arms}
    for (arm, seed), part in selection.groupby(["arm", "seed"]):
        alike = [other for other in predictions["arm"].unique() if variant[other] == variant[str(arm)]]
        tested = predictions[predictions["arm"].isin(alike) & (predictions["seed"] == seed)]["row"]
        assert len(part)
        assert not set(part["row"]) & set(tested)
        cohort = run.plan.cohort_of(run.plan.study.arm(str(arm)))
        patient = dict(zip(cohort.row_numbers.tolist(), cohort.patient.tolist(), strict=True))
        assert not {patient[row] for row in part["row"]} & {patient[row] for row in tested}


def test_rows_that_overlapping_sites_train_on_or_test_are_taken_out_and_no_others(runs: Callable[[str], Made]) -> None:
    """A patient at two sites may be a test row of one and a training row of the other."""
    run = runs("a window of overlapping ages left out")
    arm, removed = run.plan.study.arm(FIRST), 0
    numbers = run.plan.cohort_of(arm).row_numbers
    for seed in run.seeds:
        splits = run.plan.splits(arm, seed)
        held_out = next(split for split in splits if split.site == "site-01")
        candidates = np.sort(np.concatenate([held_out.train, held_out.validation]))
        others = [np.concatenate([s.train, s.validation]) for s in splits if s.site != "site-01"]
        known = np.concatenate([split.test for split in splits] + others)
        usable_rows = candidates[~np.isin(candidates, known)]
        removed += len(candidates) - len(usable_rows)
        selection_rows = run.selection[
            (run.selection["arm"] == f"{FIRST}?without=site-01") & (run.selection["seed"] == seed)
        ]
        assert selection_rows["row"].tolist() == numbers[usable_rows].tolist()  # all others are used
        assert set(selection_rows["site"]) == {"site-01"}
    assert removed > 0


@pytest.mark.parametrize("name", represented(BY_SITE, by=OFTEN))
def test_the_site_left_out_trains_in_no_arm_that_chooses_and_in_every_arm_that_is_compared(
    runs: Callable[[str], Made], name: str
) -> None:
    plan = runs(name).plan
    selection = plan.study.selection
    assert selection is not None
    assert len(plan.study.selection_arms) == len(runs(name).swept())
    for arm in plan.study.trained_arms:
        for seed in plan.study.evaluation.seeds:
            trial = plan.trial(arm, seed)
            names = [site.name for site in trial.sites]
            assert (selection.site in names) == (arm.held_out is None)
            assert [site.name for site in trial.scored] == (
                [split.site for split in plan.splits(arm, seed)] if arm.held_out is None else [selection.site]
            )


def test_an_arm_that_chooses_trains_exactly_as_the_other_hospitals_alone_would() -> None:
    """Bit for bit: neither its rows nor its scale, fills or categories have come from the site left out."""
    others = ["hungarian", "switzerland", "va"]
    raw = raw_study("a hospital left out")
    raw["arms"] = [{"algorithm": "fedprox", "mu": MUS}, {"name": "alone", "algorithm": "fedprox", "train_at": others}]
    raw["evaluation"] = {**raw["evaluation"], "reference": "alone"}
    raw["data"] = {"source": "heart", "scale": "federated"}
    plan = wardround.load_plan(*wardround.load_study(raw))
    alone = replace(plan.study.arm("alone"), algorithm=plan.study.arm(SECOND).algorithm)
    for seed in (1, 2):
        choosing = plan.trial(plan.study.arm(SECOND + WITHOUT), seed)
        assert_same(after(choosing, 2), after(plan.trial(alone, seed), 2))


@pytest.mark.parametrize("name", represented(RUNS, by=OFTEN))
def test_arms_that_only_choose_leave_no_trace_among_the_compared(runs: Callable[[str], Made], name: str) -> None:
    run = runs(name)
    compared = [arm.name for arm in run.plan.study.arms]
    selected = [choice["arm"] for choice in run.results["selection"]]
    assert set(run.results["arms"]) == {*compared, *selected}
    assert set(run.predictions["arm"]) == set(compared)
    assert {path.name for path in (run.folder.path / "models").iterdir()} == set(compared)
    assert {test["arm"] for test in run.results["tests"]} == {
        arm for arm in run.results["arms"] if arm.split("@")[0] != "fedavg"
    }


@pytest.mark.parametrize("name", represented(RUNS, by=OFTEN))
def test_other_labels_of_test_rows_would_have_led_to_the_same_choice(runs: Callable[[str], Made], name: str) -> None:
    run = runs(name)
    turned = run.predictions.assign(label=1 - run.predictions["label"])
    again = results(run.plan.study, turned, run.folder.groups(), run.folder.records(), selection=run.selection)
    assert again["selection"] == run.results["selection"]
    assert again["arms"][FIRST]["metrics"]["accuracy"] != run.results["arms"][FIRST]["metrics"]["accuracy"]


def as_source(records: Records) -> Callable[[], Source]:
    return lambda: Source(lambda: records)


def with_other_values(records: Records, rows: np.ndarray) -> Records:
    """Every number of these rows moved, every category exchanged among them; labels stay, and with them the splits."""
    table = records.features
    assert isinstance(table, pd.DataFrame)
    changed = table.copy()
    for column in records.columns:
        values = table[column.name].to_numpy(copy=True)
        values[rows] = values[rows][::-1] if column.kind == "categorical" else 1.5 * values[rows] + 3
        changed[column.name] = values
    return replace(records, features=changed)


@pytest.mark.parametrize(
    "selection",
    [AT_CLEVELAND, pytest.param({"on": "validation"}, marks=pytest.mark.slow)],
    ids=["site", "validation"],
)
def test_other_values_of_test_rows_lead_to_the_same_choice(
    selection: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a fixed split, the same rows are tested with every seed. What they hold must not reach the choice."""
    raw = raw_study("validation rows")
    raw["selection"] = {"arms": ["fedprox"], **selection}
    raw["evaluation"] = {**raw["evaluation"], "vary": ["batches"], "seeds": {"first": 1, "count": 3}}
    raw["data"] = {"source": "mine"}
    records = heart(("cleveland", "hungarian")).load()
    plan = wardround.load_plan(*wardround.load_study(raw, sources={"mine": as_source(records)}))
    tested = np.concatenate([split.test for split in plan.splits(plan.study.arm(FIRST), 1)])
    changed = with_other_values(records, tested)
    runs = [
        wardround.run_study(raw, tmp_path_factory.mktemp("runs"), sources={"mine": as_source(dataset)})
        for dataset in (records, changed)
    ]
    first, second = (RunFolder(run.folder) for run in runs)
    before, after_change = (run.other_predictions("selection") for run in (first, second))
    assert before is not None
    assert after_change is not None
    pd.testing.assert_frame_equal(before, after_change, check_exact=True)
    assert runs[0].results["selection"] == runs[1].results["selection"]
    moved = (first.predictions()["score"] != second.predictions()["score"]).mean()
    assert moved > 0.9  # they were other patients indeed


def test_a_family_named_twice_is_refused_or_chosen_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = raw_study("validation rows")
    raw["selection"] = {"arms": ["fedprox", "fedprox"], "on": "validation"}
    raw["evaluation"] = {**raw["evaluation"], "seeds": {"first": 1, "count": 2}}
    try:
        run = wardround.run_study(raw, tmp_path_factory.mktemp("runs"))
    except StudyError:
        return
    assert len(run.results["selection"]) == 1
