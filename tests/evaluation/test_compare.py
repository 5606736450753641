"""Comparisons of arms, computed once more with SciPy, statsmodels and scikit-learn alone."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.evaluation.synthetic_predictions import by_skill, with_accuracy
from tests.representatives import represented
from wardround.evaluation.comparisons import compare
from wardround.evaluation.comparisons.compare import RESAMPLES, sentence
from wardround.evaluation.comparisons.differences import correct, verdict_of
from wardround.evaluation.comparisons.measures import Measure
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.scores import Scores
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import METRICS
from wardround.tasks.classes import COMPARED

SEEDS = 10
EXTRA = 0.25  # 20 % test rows and 80 % training rows
CORRECTED = Resampling(EXTRA)
ARMS = ("better", "alike", "worse")  # each against "reference"


def compare_arms(
    scores: Scores, arms: Sequence[str], resampling: Resampling, within: bool = False, reference: str = "reference"
) -> list[Any]:
    """As a study has them that has no other comparisons: the pairs are one family in each metric."""
    comparisons = compare.compare_arms(scores, arms, reference, resampling, within, "accuracy")
    for metric in COMPARED:
        correct([test for test in comparisons if test["metric"] == metric])
    return [test | {"sentence": sentence(test, Measure.of(test["metric"]))} for test in comparisons]


@pytest.fixture(scope="module")
def predictions() -> pd.DataFrame:
    return by_skill({"reference": 1.0, "better": 6.0, "alike": 1.0, "worse": -0.5}, range(SEEDS), 400, 120)


@pytest.fixture(scope="module")
def tests(predictions: pd.DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    comparisons = compare_arms(Scores.of(predictions), ARMS, CORRECTED)
    assert len(comparisons) == len(ARMS) * len(COMPARED)
    return {(test["arm"], test["metric"]): test for test in comparisons}


def by_scikit_learn(part: pd.DataFrame, metric: str) -> float:
    from sklearn import metrics as sk

    label, score = part["label"], part["score"]
    computed = {
        "accuracy": lambda: sk.accuracy_score(label, score >= 0.5),
        "auc": lambda: sk.roc_auc_score(label, score),
        "f1": lambda: sk.f1_score(label, score >= 0.5),
        "brier": lambda: sk.brier_score_loss(label, score),
        "loss": lambda: sk.log_loss(label, score),
    }
    return float(computed[metric]())


def figures(predictions: pd.DataFrame, arm: str, metric: str) -> np.ndarray:
    mine = predictions[predictions["arm"] == arm]
    return np.array([by_scikit_learn(part, metric) for _, part in mine.groupby("seed")])


def corrected_p(difference: np.ndarray) -> float:
    """Nadeau and Bengio's: the variance of the mean is (1/J + test/training) s², with J - 1 degrees of freedom."""
    t = difference.mean() / np.sqrt((1 / len(difference) + EXTRA) * difference.var(ddof=1))
    return float(2 * stats.t.sf(abs(t), len(difference) - 1))


@pytest.mark.parametrize("metric", COMPARED)
@pytest.mark.parametrize("arm", ARMS)
def test_all_three_t_tests_and_both_effect_sizes_are_scipys(
    predictions: pd.DataFrame, tests: dict[tuple[str, str], dict[str, Any]], arm: str, metric: str
) -> None:
    a, b = figures(predictions, arm, metric), figures(predictions, "reference", metric)
    test = tests[arm, metric]
    assert test["difference"] == pytest.approx(a.mean() - b.mean())
    assert test["p_value_paired"] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    independent = stats.ttest_ind(a, b)
    assert (test["t_independent"], test["p_value_independent"]) == pytest.approx(tuple(independent))
    assert test["uncorrected"]["p_value"] == pytest.approx(corrected_p(a - b))
    error = np.sqrt((1 / SEEDS + EXTRA) * (a - b).var(ddof=1))
    for interval, level in ((test["uncorrected"]["interval"], 0.05), (test["interval"], 0.05 / len(ARMS))):
        half = stats.t.ppf(1 - level / 2, SEEDS - 1) * error
        assert interval == pytest.approx([(a - b).mean() - half, (a - b).mean() + half])
    assert test["effect"]["d_z"] == pytest.approx((a - b).mean() / (a - b).std(ddof=1))
    pooled = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert test["effect"]["d_s"] == pytest.approx((a.mean() - b.mean()) / pooled)
    assert (test["seeds"], test["method"]) == (SEEDS, "corrected resampled t")


@pytest.mark.parametrize("metric", represented(COMPARED, by=["auc", "accuracy"]))
def test_the_arms_are_one_family_in_each_metric(
    predictions: pd.DataFrame, tests: dict[tuple[str, str], dict[str, Any]], metric: str
) -> None:
    from statsmodels.stats.multitest import multipletests

    reference = figures(predictions, "reference", metric)
    raw = [corrected_p(figures(predictions, arm, metric) - reference) for arm in ARMS]
    for method, name in (("holm", "p_value_holm"), ("bonferroni", "p_value")):
        adjusted = [tests[arm, metric][name] for arm in ARMS]
        assert adjusted == pytest.approx(list(multipletests(raw, 0.05, method)[1]))
    for arm in ARMS:  # interval, p-value and verdict say the same
        test = tests[arm, metric]
        clear = test["interval"][0] > 0 or test["interval"][1] < 0
        assert clear == (test["p_value"] < 0.05) == (test["verdict"] in ("gains", "loses"))
        assert test["comparisons"] == len(ARMS)


@pytest.mark.parametrize("metric", ["auc", "f1", "brier", "loss"])
def test_the_bootstrap_over_seeds_is_scipys_bca(
    predictions: pd.DataFrame, tests: dict[tuple[str, str], dict[str, Any]], metric: str
) -> None:
    for arm in ARMS:
        difference = figures(predictions, arm, metric) - figures(predictions, "reference", metric)
        direct = stats.bootstrap(
            (difference,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(0)
        ).confidence_interval
        bootstrap = tests[arm, metric]["bootstrap"]
        assert bootstrap["interval"] == pytest.approx([direct.low, direct.high])
        assert (bootstrap["unit"], bootstrap["method"]) == ("seeds", "BCa")


def gained(predictions: pd.DataFrame, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """For each tested patient: how often the arm is right less how often the reference is, and how often tested."""
    right = predictions.assign(right=(predictions["score"] >= 0.5) == (predictions["label"] == 1))
    counts = right.pivot_table(index="row", columns="arm", values="right", aggfunc=["sum", "count"])
    difference = counts["sum"][arm].astype(float) - counts["sum"]["reference"].astype(float)
    return difference.to_numpy(), counts["count"]["reference"].to_numpy(dtype=float)


def test_the_bootstrap_of_accuracy_resamples_patients(
    predictions: pd.DataFrame, tests: dict[tuple[str, str], dict[str, Any]]
) -> None:
    for arm in ARMS:
        direct = stats.bootstrap(
            gained(predictions, arm),
            lambda gain, count, axis: gain.sum(axis=axis) / count.sum(axis=axis),
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            method="BCa",
            rng=np.random.default_rng(0),
        ).confidence_interval
        test = tests[arm, "accuracy"]
        low, high = test["bootstrap"]["interval"]
        assert [low, high] == pytest.approx([direct.low, direct.high])
        assert test["bootstrap"]["unit"] == "patients"
        assert low < test["difference"] < high  # every seed tests equally many: the mean over seeds is that over rows


def width(predictions: pd.DataFrame) -> float:
    test = compare_arms(Scores.of(predictions), ["better"], CORRECTED)[0]
    low, high = test["bootstrap"]["interval"]
    return float(high - low)


def test_four_times_as_many_patients_halve_the_interval_over_patients() -> None:
    """The standard error falls with the root of the number of patients, however many seeds test them."""
    skill = {"reference": 1.0, "better": 3.0}
    few, many = (width(by_skill(skill, range(6), n, n // 4, rng_seed=1)) for n in (200, 800))
    assert 0.4 < many / few < 0.62  # 0.5, give or take the chance of one draw each


def test_testing_the_same_patients_again_tells_nothing_new_about_patients() -> None:
    """A plain t over seeds would take each seed for new patients, and shrink with their number."""
    once = by_skill({"reference": 1.0, "better": 3.0}, [0], 80, 80, rng_seed=2)
    often = pd.concat([once.assign(seed=seed) for seed in range(16)])
    assert width(often) == pytest.approx(width(once))


def test_several_classes_are_compared_too() -> None:
    rng = np.random.default_rng(5)
    parts = []
    for seed in range(6):
        label = rng.integers(0, 3, 40)
        for arm, clear in (("reference", 1.0), ("better", 4.0)):
            raw = rng.normal(size=(40, 3)) + clear * np.eye(3)[label]
            score = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
            where = {"arm": arm, "seed": seed, "site": "north", "row": np.arange(40) + 40 * seed, "label": label}
            parts.append(pd.DataFrame({**where, **{f"score_{c}": score[:, c] for c in range(3)}}))
    test = compare_arms(Scores.of(pd.concat(parts)), ["better"], CORRECTED)[0]
    low, high = test["bootstrap"]["interval"]
    assert test["bootstrap"]["unit"] == "patients"
    assert 0 < low < test["difference"] < high


def test_arms_that_were_tested_on_different_rows_are_bootstrapped_over_seeds(predictions: pd.DataFrame) -> None:
    fewer = predictions[(predictions["arm"] == "reference") | (predictions["row"] > 5)]
    tests = compare_arms(Scores.of(fewer), ["better"], CORRECTED)
    assert tests[0]["metric"] == "accuracy"
    assert tests[0]["bootstrap"]["unit"] == "seeds"


def test_a_seed_in_which_either_arm_diverged_counts_for_neither(predictions: pd.DataFrame) -> None:
    lost = (predictions["arm"] == "better") & (predictions["seed"] == 0)
    lost |= (predictions["arm"] == "reference") & (predictions["seed"] == 1)
    broken = predictions.assign(score=predictions["score"].mask(lost))
    whole = predictions[predictions["seed"] > 1]
    ours, theirs = (compare_arms(Scores.of(table), ARMS[:1], CORRECTED) for table in (broken, whole))
    for test, expected in zip(ours, theirs, strict=True):
        assert test["seeds"] == SEEDS - 2
        for key in ("difference", "p_value", "p_value_paired", "p_value_independent", "interval", "effect"):
            assert test[key] == pytest.approx(expected[key])


def test_an_arm_without_figures_is_no_member_of_the_family(predictions: pd.DataFrame) -> None:
    broken = predictions.assign(score=predictions["score"].mask(predictions["arm"] == "alike"))
    comparisons = compare_arms(Scores.of(broken), ARMS, CORRECTED)
    for metric in COMPARED:
        better, alike, worse = (test for test in comparisons if test["metric"] == metric)
        assert alike["p_value"] is alike["p_value_holm"] is alike["interval"] is alike["bootstrap"] is None
        assert alike["seeds"] == 0
        assert "cannot be compared with reference" in alike["sentence"]
        for test in (better, worse):
            assert test["comparisons"] == 2  # not three
            assert test["p_value"] == pytest.approx(min(1.0, 2 * test["uncorrected"]["p_value"]))


def holds_no_nan(tests: Sequence[dict[str, Any]]) -> bool:
    json.dumps(tests, allow_nan=False)  # raises ValueError for NaN and infinities
    return True


def test_equal_arms_differ_by_nothing(predictions: pd.DataFrame) -> None:
    twin = predictions[predictions["arm"] == "reference"].assign(arm="twin")
    tests = compare_arms(Scores.of(pd.concat([predictions, twin])), ["twin"], CORRECTED)
    assert holds_no_nan(tests)
    for test in tests:
        assert (test["difference"], test["p_value"], test["interval"]) == (0.0, 1.0, [0.0, 0.0])
        assert test["p_value_paired"] == test["p_value_holm"] == 1.0
        assert test["effect"]["d_z"] is None
        assert test["effect"]["d_s"] == 0.0
        assert test["bootstrap"] is None
        word = METRIC_FACTS[test["metric"]].words
        assert test["sentence"] == f"twin: no difference in {word} from reference with any seed."


def test_an_equal_arm_beside_others_does_not_disturb_them(
    predictions: pd.DataFrame, tests: dict[tuple[str, str], dict[str, Any]]
) -> None:
    twin = predictions[predictions["arm"] == "reference"].assign(arm="twin")
    arms = ["twin", *ARMS]
    for test in compare_arms(Scores.of(pd.concat([twin, predictions])), arms, CORRECTED):
        if test["arm"] != "twin":
            alone = tests[test["arm"], test["metric"]]
            assert test["bootstrap"]["interval"] == pytest.approx(alone["bootstrap"]["interval"])
            assert test["p_value"] == pytest.approx(alone["p_value"])  # what is always 0 is no comparison


@pytest.mark.parametrize("noise", [1e-16, 1e-15, 1e-13, 1e-9])
def test_nearly_equal_arms_are_compared_without_a_word_of_numpy(predictions: pd.DataFrame, noise: float) -> None:
    """Warnings are errors here. Differences of rounding errors alone have neither effect size nor bootstrap."""
    twin = predictions[predictions["arm"] == "reference"].assign(arm="twin")
    rng = np.random.default_rng(0)
    twin["score"] += noise * rng.uniform(-1, 1, len(twin))
    tests = compare_arms(Scores.of(pd.concat([predictions, twin])), ["twin"], CORRECTED)
    assert holds_no_nan(tests)
    for test in tests:
        assert abs(test["difference"]) < 1e-6
        if noise < 1e-14:
            assert test["effect"]["d_z"] is None
            assert test["bootstrap"] is None


def test_arms_that_are_always_right_and_always_wrong_have_no_spread_and_no_nan() -> None:
    table = with_accuracy(
        {(arm, seed, "north"): (hits, 20) for arm, hits in (("a", 20), ("b", 0)) for seed in range(4)}
    )
    tests = compare_arms(Scores.of(table), ["a"], CORRECTED, reference="b")
    assert holds_no_nan(tests)
    accuracy = tests[0]
    # one figure with every new split says nothing of how it varies, however large it is
    assert (accuracy["difference"], accuracy["interval"], accuracy["p_value"]) == (1.0, None, None)
    assert accuracy["t_independent"] is accuracy["effect"]["d_z"] is accuracy["bootstrap"] is None
    assert accuracy["sentence"] == (
        "a: +100.0 points of accuracy against b; the same with every seed, so that whether this is chance cannot be "
        "told."
    )


def test_a_rounding_error_that_is_the_same_with_every_seed_is_no_difference() -> None:
    """Seeds that change nothing give the same figures; arms may then differ in the last bit with every one."""
    right = {("reference", seed, "north"): (15, 20) for seed in range(3)}
    reference = with_accuracy(right)
    twin = reference.assign(arm="twin", score=np.nextafter(reference["score"], 0.5))
    for test in compare_arms(Scores.of(pd.concat([reference, twin])), ["twin"], CORRECTED):
        assert abs(test["difference"]) < 1e-15
        assert "better" not in test["sentence"]
        assert "worse" not in test["sentence"]


def test_one_seed_gives_a_difference_and_nothing_else() -> None:
    table = with_accuracy({("a", 1, "north"): (18, 20), ("b", 1, "north"): (16, 20)})
    tests = compare_arms(Scores.of(table), ["a"], CORRECTED, reference="b")
    assert holds_no_nan(tests)
    for test in tests:
        for key in ("interval", "p_value", "p_value_paired", "p_value_independent", "p_value_holm"):
            assert test[key] is None
        assert test["effect"] == {"d_z": None, "d_s": None}
        assert "one seed gives no interval" in test["sentence"]
    assert tests[0]["sentence"] == (
        "a: +10.0 points of accuracy against b; one seed gives no interval, so that this may be chance."
    )
    assert tests[0]["bootstrap"]["unit"] == "patients"  # there are patients enough, though but one seed


def test_nothing_to_compare_gives_nothing(predictions: pd.DataFrame) -> None:
    assert compare_arms(Scores.of(predictions), [], CORRECTED) == []


def test_a_clearly_better_and_a_clearly_worse_arm_are_called_so_in_every_metric(
    tests: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Brier's score and the loss fall where an arm is better."""
    for metric in COMPARED:
        falls = metric in ("brier", "loss")
        for arm in ("better", "worse"):
            test = tests[arm, metric]
            assert (test["difference"] < 0) == ((arm == "better") == falls)
            assert test["sentence"].startswith(f"{arm}: {arm}: "), test["sentence"]
        assert tests["alike", metric]["sentence"].startswith("alike: no evidence of a difference: ")


def compared(metric: str, difference: float, interval: tuple[float, float], comparisons: int = 1) -> dict[str, Any]:
    return {
        "arm": "fedprox",
        "reference": "fedavg",
        "metric": metric,
        "difference": difference,
        "sd": 0.01,
        "seeds": 5,
        "interval": list(interval),
        "comparisons": comparisons,
        "verdict": verdict_of(interval, METRIC_FACTS[metric]),
    }


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (
            compared("accuracy", 0.0123, (0.004, 0.02)),
            "fedprox: better: +1.2 points of accuracy against fedavg, 95 % CI +0.4 to +2.0.",
        ),
        (
            compared("auc", -0.0123, (-0.02, -0.004)),
            "fedprox: worse: -1.2 points of AUC against fedavg, 95 % CI -2.0 to -0.4.",
        ),
        (
            compared("brier", -0.0123, (-0.02, -0.004)),
            "fedprox: better: -0.012 of Brier score against fedavg, 95 % CI -0.020 to -0.004.",
        ),
        (
            compared("loss", 0.0123, (0.004, 0.02)),
            "fedprox: worse: +0.012 of loss against fedavg, 95 % CI +0.004 to +0.020.",
        ),
        (
            compared("f1", 0.01, (-0.01, 0.03)),
            "fedprox: no evidence of a difference: +1.0 points of F1 against fedavg, 95 % CI -1.0 to +3.0.",
        ),
        (
            compared("accuracy", 0.0123, (-0.004, 0.03), comparisons=12),
            "fedprox: no evidence of a difference: +1.2 points of accuracy against fedavg, 95 % CI -0.4 to +3.0, "
            "corrected for 12 comparisons.",
        ),
    ],
    ids=["better", "worse", "brier falls", "loss rises", "no evidence", "of several"],
)
def test_a_sentence_says_which_way_by_how_much_and_how_surely(comparison: dict[str, Any], expected: str) -> None:
    assert sentence(comparison, Measure.of(comparison["metric"])) == expected


def test_the_auc_of_sites_own_models_is_compared_within_sites() -> None:
    """Two sites of unlike prevalence, and models that know nothing but their site: a coin within each of them."""
    rows = []
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        for site, prevalence in (("north", 0.1), ("south", 0.9)):
            label = (rng.random(400) < prevalence).astype(int)
            for arm, score in (("fedavg", np.full(400, 0.5)), ("local", prevalence + 0.01 * rng.random(400))):
                own = {"arm": arm, "seed": seed, "site": site, "label": label, "score": score}
                rows.append(pd.DataFrame({**own, "row": np.arange(400) + 400 * (site == "south")}))
    scores = Scores.of(pd.concat(rows, ignore_index=True))
    place = METRICS.index("auc")
    assert scores.overall["local"][:, place].min() > 0.85  # although it can tell nobody from his neighbour
    plain, honest = (
        next(test for test in compare_arms(scores, ["local"], CORRECTED, within, "fedavg") if test["metric"] == "auc")
        for within in (False, True)
    )
    assert (plain["within_sites"], honest["within_sites"]) == (False, True)
    assert plain["difference"] > 0.35
    assert honest["difference"] == pytest.approx(0, abs=0.06)
    assert "of AUC within sites against fedavg" in honest["sentence"]
    expected = [np.mean([scores.by_site["local"][site][s, place] for site in ("north", "south")]) for s in range(3)]
    assert honest["difference"] == pytest.approx(np.mean(expected) - 0.5)
