"""How evenly hospitals and groups are served, against a few lines of pandas."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from tests.evaluation.deployed_summaries import lines_of
from tests.evaluation.finding_predictions import records_of
from tests.evaluation.synthetic_predictions import by_skill, with_accuracy
from wardround.evaluation.comparisons.fairness import spread_over_sites
from wardround.evaluation.comparisons.patients import Resamples
from wardround.evaluation.results import results
from wardround.evaluation.scores import GROUP_RATES, Scores
from wardround.evaluation.summaries.merged_summaries import gather_summaries
from wardround.runs.catalog import load_study
from wardround.study.schema import Study
from wardround.tasks import class_task

SEEDS = (0, 1, 2, 3)


def study(seeds: int = len(SEEDS), **evaluation: Any) -> Study:
    raw = {
        "name": "fair",
        "data": {"source": "heart"},
        "evaluation": {
            "seeds": {"first": 0, "count": seeds},
            "metric": "accuracy",
            "reference": "fedavg",
            "threshold": 0.5,
            **evaluation,
        },
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "qfedavg"}],
    }
    return load_study(raw)[0]


def content_of(predictions: pd.DataFrame, groups: pd.DataFrame, **options: Any) -> dict[str, Any]:
    seeds = predictions["seed"].nunique()
    return results(study(seeds, **options), predictions, groups, records_of(predictions), task=class_task(2))


def two_arms(patients: int = 600, tested: int = 300, seeds: tuple[int, ...] = SEEDS) -> pd.DataFrame:
    return by_skill({"fedavg": 1.5, "qfedavg": 0.7}, seeds, patients, tested)


def groups_of(patients: int = 600) -> pd.DataFrame:
    """A third of the patients are of group b."""
    rng = np.random.default_rng(5)
    return pd.DataFrame({"row": np.arange(patients), "ethnicity": rng.choice(["a", "b"], patients, p=[2 / 3, 1 / 3])})


def rates(part: pd.DataFrame) -> dict[str, float]:
    positive, called = part["label"] == 1, part["score"] >= 0.5
    return {
        "sensitivity": (positive & called).sum() / positive.sum(),
        "selection_rate": called.mean(),
        "calibration": (part["score"] - part["label"]).mean(),
    }


def gaps_by_seed(predictions: pd.DataFrame, groups: pd.DataFrame, arm: str) -> pd.DataFrame:
    table = predictions[predictions["arm"] == arm].merge(groups, on="row")
    lines = []
    for _, of_seed in table.groupby("seed"):
        a, b = (rates(of_seed[of_seed["ethnicity"] == value]) for value in "ab")
        lines.append({name: b[name] - a[name] for name in GROUP_RATES})
    return pd.DataFrame(lines)


def test_gaps_are_those_of_a_group_less_the_largest_one_seed_by_seed() -> None:
    predictions, groups = two_arms(), groups_of()
    content = content_of(predictions, groups)
    entries = {(entry["arm"], entry["measure"]): entry for entry in content["group_gaps"]}
    assert set(entries) == {(arm, name) for arm in ("fedavg", "qfedavg") for name in GROUP_RATES}
    extra = 0.2 / 0.8
    for (arm, name), entry in entries.items():
        by_seed = gaps_by_seed(predictions, groups, arm)[name]
        assert (entry["kind"], entry["group"], entry["from"], entry["comparisons"]) == ("ethnicity", "b", "a", 1)
        assert entry["difference"] == pytest.approx(by_seed.mean())
        reach = t.ppf(0.975, len(SEEDS) - 1) * np.sqrt((1 / len(SEEDS) + extra) * by_seed.var())
        assert entry["interval"] == pytest.approx([by_seed.mean() - reach, by_seed.mean() + reach])
    own, other = (gaps_by_seed(predictions, groups, arm) for arm in ("qfedavg", "fedavg"))
    changes = {entry["measure"]: entry for entry in content["group_gap_differences"]}
    assert {(entry["arm"], entry["against"]) for entry in changes.values()} == {("qfedavg", "fedavg")}
    for name, entry in changes.items():
        assert entry["difference"] == pytest.approx((own - other)[name].mean())
        assert entry["sd"] == pytest.approx((own - other)[name].std())


def test_a_large_gap_differs_and_is_neither_gain_nor_loss() -> None:
    predictions, groups = two_arms(2000, 1000, (0, 1, 2, 3, 4, 5, 6, 7)), groups_of(2000)
    of_b = predictions["row"].isin(groups.loc[groups["ethnicity"] == "b", "row"])
    predictions.loc[of_b, "score"] *= 0.5
    verdicts = {
        entry["measure"]: entry["verdict"]
        for entry in content_of(predictions, groups)["group_gaps"]
        if entry["arm"] == "fedavg"
    }
    assert verdicts == dict.fromkeys(GROUP_RATES, "differs")


def test_with_one_seed_gaps_and_spreads_are_drawn_over_patients() -> None:
    predictions, groups = two_arms(seeds=(0,)), groups_of()
    content = content_of(predictions, groups)
    drawn = Resamples(Scores.of(predictions, groups, task=class_task(2)))
    table = predictions[predictions["arm"] == "qfedavg"].merge(groups, on="row")
    patients = np.unique(predictions["row"])
    weights = drawn.times[:, np.searchsorted(patients, table["row"])]
    called, b = (table["score"] >= 0.5).to_numpy(), (table["ethnicity"] == "b").to_numpy()
    lines = {
        value: (weights[:, rows] @ called[rows]) / weights[:, rows].sum(1) for value, rows in (("b", b), ("a", ~b))
    }
    (entry,) = (e for e in content["group_gaps"] if (e["arm"], e["measure"]) == ("qfedavg", "selection_rate"))
    assert entry["standard_error"] == pytest.approx((lines["b"] - lines["a"]).std(ddof=1), rel=1e-5)
    assert entry["freedom"] == b.sum() - 1
    rate = content["arms"]["qfedavg"]["subgroups"]["ethnicity"]["b"]["rates"]["selection_rate"]
    assert rate["interval"] == pytest.approx(np.quantile(lines["b"], [0.025, 0.975]).tolist(), rel=1e-5)
    over_sites = content["arms"]["qfedavg"]["spread"]["over_sites"]
    place = drawn.scores.metric_names.index("accuracy")
    north, south = (drawn.of("qfedavg", site)[:, place] for site in ("north", "south"))
    assert over_sites["gap"]["interval"] == pytest.approx(np.quantile(abs(north - south), [0.025, 0.975]).tolist())
    (change,) = (e for e in content["spread_differences"] if e["measure"] == "worst")
    first, second = (
        np.minimum(*(drawn.of(arm, s)[:, place] for s in ("north", "south"))) for arm in ("qfedavg", "fedavg")
    )
    assert change["standard_error"] == pytest.approx((first - second).std(ddof=1))


def test_a_group_without_events_has_no_sensitivity_and_few_events_are_hidden() -> None:
    predictions, groups = two_arms(), groups_of()
    rows = groups.loc[groups["ethnicity"] == "b", "row"].tolist()
    for events, hidden in ((0, {"sensitivity"}), (3, {"sensitivity", "calibration"})):
        changed = predictions.copy()
        changed.loc[changed["row"].isin(rows), "label"] = 0
        with_event = rows[:events]
        changed.loc[changed["row"].isin(with_event), "label"] = 1
        content = content_of(changed, groups)
        shown = {entry["measure"] for entry in content["group_gaps"]}
        means = content["arms"]["fedavg"]["subgroups"]["ethnicity"]["b"]["rates"]
        assert shown == set(GROUP_RATES) - hidden
        assert {name for name, figure in means.items() if figure["mean"] is None} == hidden


def test_a_group_of_fewer_than_ten_rows_has_no_figures() -> None:
    predictions, groups = two_arms(), groups_of()
    groups.loc[groups.index[:9], "ethnicity"] = "c"
    content = content_of(predictions, groups)
    assert {entry["group"] for entry in content["group_gaps"]} == {"b"}
    assert "rates" not in content["arms"]["fedavg"]["subgroups"]["ethnicity"].get("c", {})


def test_from_what_sites_tell_gaps_are_those_of_the_rows() -> None:
    predictions = two_arms()
    groups = groups_of().rename(columns={"ethnicity": "sex"})
    (from_rows,) = Scores.of(predictions, groups, task=class_task(2)).group_rates()
    told = gather_summaries(lines_of(predictions, groups), ("fedavg", "qfedavg"), SEEDS, class_task(2))
    (from_sums,) = told.group_rates()
    assert from_sums.values == from_rows.values
    np.testing.assert_array_equal(from_sums.rows, from_rows.rows)
    np.testing.assert_allclose(from_sums.rates, from_rows.rates, atol=1e-9)


@pytest.mark.parametrize("seeds", [SEEDS, (0,)])
def test_where_nobody_is_called_positive_a_gap_of_nothing_is_no_certainty(seeds: tuple[int, ...]) -> None:
    predictions = two_arms(seeds=seeds)
    predictions["score"] *= 0.4
    for entry in content_of(predictions, groups_of())["group_gaps"]:
        if entry["measure"] != "calibration":
            assert (entry["difference"], entry["interval"], entry["verdict"]) == (0.0, None, "cannot be told")


def test_spread_over_hospitals_by_hand() -> None:
    right = {
        (arm, seed, site): (hits + seed, 50)
        for arm, of_arm in {"fedavg": (30, 45), "qfedavg": (36, 40)}.items()
        for site, hits in zip(("north", "south"), of_arm, strict=True)
        for seed in SEEDS
    }
    content = content_of(with_accuracy(right), pd.DataFrame())
    spreads = {arm: content["arms"][arm]["spread"]["over_sites"] for arm in ("fedavg", "qfedavg")}
    for arm, (low, high) in {"fedavg": (31.5, 46.5), "qfedavg": (37.5, 41.5)}.items():  # on average over seeds
        assert spreads[arm]["worst"]["mean"] == pytest.approx(low / 50)
        assert spreads[arm]["gap"]["mean"] == pytest.approx((high - low) / 50)
        assert spreads[arm]["sd"]["mean"] == pytest.approx((high - low) / 50 / np.sqrt(2))
    entries = {entry["measure"]: entry for entry in content["spread_differences"]}
    assert entries["worst"]["difference"] == pytest.approx(6 / 50)
    assert entries["gap"]["difference"] == pytest.approx(-11 / 50)
    assert content["group_gaps"] == []


def test_where_lower_is_better_the_worst_hospital_is_the_highest() -> None:
    figures = [np.array([0.1, 0.3]), np.array([0.2, 0.1]), np.array([0.4, 0.2])]
    assert spread_over_sites(figures, lower_is_better=True)["worst"].tolist() == [0.4, 0.3]
    assert spread_over_sites(figures, lower_is_better=False)["worst"].tolist() == [0.1, 0.1]
    assert spread_over_sites(figures[:1], lower_is_better=True) == {}
