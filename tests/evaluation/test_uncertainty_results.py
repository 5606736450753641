"""What results.json tells of uncertainty, from rows made up so that the figures are known."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit
from scipy.stats import betabinom

from wardround.evaluation.intervals import Resampling
from wardround.evaluation.uncertainty.referral_results import describe_referral
from wardround.evaluation.uncertainty.shifted_results import describe_shifted
from wardround.evaluation.uncertainty.uncertainty_results import (
    describe_arm,
    describe_errors,
    score_uncertainty,
)
from wardround.evaluation.uncertainty.uncertainty_rows import MEASURES, SeedRows, merge_members, seeds_of
from wardround.evaluation.uncertainty.uncertainty_scores import (
    coverage_moments,
    describe_calibration,
    describe_sets,
    expected_coverage,
)
from wardround.runs.catalog import load_study
from wardround.study.schema import Uncertainty
from wardround.tasks import class_task, findings_task
from wardround.tasks.probabilities import probability_task
from wardround.uncertainty.decomposition import entropy_parts

FEW = pd.DataFrame({"row": []})  # patients are not known: each row is one
ONE = Resampling(0.0)
STUDY: dict[str, Any] = {
    "name": "sure",
    "data": {"source": "heart"},
    "model": {"kind": "logistic"},
    "training": {"rounds": 1, "lr": 0.1},
    "evaluation": {"validation_share": 0.2},
    "uncertainty": {},
}
FIRST = ["arm", "seed", "site", "subset", "row", "label_0", "score_0", *(f"{measure}_0" for measure in MEASURES)]


def table(score: np.ndarray, label: np.ndarray, **columns: Any) -> pd.DataFrame:
    """Rows of one arm at one site with one seed, unless `columns` say otherwise."""
    cells: dict[str, Any] = {"arm": "arm", "seed": 1, "site": "here", "subset": "test", "row": np.arange(len(score))}
    cells |= columns
    names = [""] if score.ndim == 1 else [f"_{number}" for number in range(score.shape[1])]
    findings = label.ndim == 2
    wide, many = score.reshape(len(score), -1), label.reshape(len(label), -1)
    cells |= {f"label{name}" if findings else "label": many[:, f] for f, name in enumerate(names[: many.shape[1]])}
    cells |= {f"score{name}": wide[:, f] for f, name in enumerate(names)}
    task = findings_task(label.shape[1]) if findings else class_task(2 if score.ndim == 1 else score.shape[1])
    parts = entropy_parts(probability_task(task), score[None]).total.reshape(len(score), -1)
    for measure in MEASURES:
        cells |= {
            f"{measure}{name if findings else ''}": parts[:, f] if measure == "total" else np.nan
            for f, name in enumerate(names[: parts.shape[1]])
        }
    return pd.DataFrame(cells)


def drawn(rows: int, seed: int, too_sure: float = 1.0, findings: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose logits are `too_sure` times what they should be, and labels that follow the right ones."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=1.5, size=(rows, findings) if findings else rows)
    return expit(too_sure * z), (rng.random(z.shape) < expit(z)).astype(np.int64)


def both_sides(rows: int = 600, **options: Any) -> pd.DataFrame:
    sides = [table(*drawn(rows, number, **options), subset=side) for number, side in enumerate(("validation", "test"))]
    sides[1]["row"] += rows
    return pd.concat(sides, ignore_index=True)


def only(whole: pd.DataFrame, groups: pd.DataFrame = FEW) -> SeedRows:
    [seed_rows] = seeds_of(whole, groups, ensemble=False)
    return seed_rows


def test_a_temperature_from_validation_rows_mends_scores_that_are_too_sure() -> None:
    """Logits are three times what they should be. With 600 rows the fit strays from 3 by some tenths."""
    calibration = describe_calibration([only(both_sides(too_sure=3.0))], ())
    at_site = calibration["sites"]["here"]
    assert at_site["temperature"] == pytest.approx(3, abs=0.5)
    assert (at_site["validation"], at_site["test"], at_site["fitted"]) == (600, 600, 1)
    assert calibration["ece"] > 3 * calibration["by_chance"]
    assert calibration["ece_after"] < 1.5 * calibration["by_chance"]
    assert calibration["loss_after"] < calibration["loss"]
    assert calibration["ece"] == at_site["ece"]  # there is one site
    assert len(calibration["reliability"]["before"]) == len(calibration["reliability"]["after"]) == 10


def test_each_site_has_a_temperature_of_its_own_and_too_few_rows_give_none() -> None:
    sure, unsure = both_sides(too_sure=3.0), both_sides(too_sure=0.5).assign(site="there")
    few = both_sides(rows=20).assign(site="small")
    calibration = describe_calibration([only(pd.concat([sure, unsure, few], ignore_index=True))], ())
    temperatures = {site: entry["temperature"] for site, entry in calibration["sites"].items()}
    assert temperatures["here"] > 2
    assert temperatures["there"] < 0.7
    assert temperatures["small"] is None
    assert calibration["sites"]["small"]["ece"] == calibration["sites"]["small"]["ece_after"]


def test_sets_hold_what_they_promise_where_rows_are_alike() -> None:
    set_summary = describe_sets([only(both_sides(rows=2000))], 0.1, ())
    low, high = set_summary["sites"]["here"]["expected"]
    assert low < 0.9 < high
    assert high - low < 0.08  # 99 % of 2,000 rows
    assert low <= set_summary["conformal_coverage"] <= high
    assert set_summary["sites"]["here"]["inside"] == 1
    assert set_summary["coverage_positive"] == pytest.approx(0.9, abs=0.04)
    assert set_summary["single"] + set_summary["multiple"] == pytest.approx(1)
    assert set_summary["coverage"] >= set_summary["conformal_coverage"]
    assert set_summary["size"] == pytest.approx(set_summary["single"] + 2 * set_summary["multiple"])
    assert set_summary["no_cut"] == 0


def test_where_few_rows_have_a_label_it_is_never_ruled_out() -> None:
    """Eight positive validation rows are one too few for a cut at 90 %: ceil(9 x 0.9) = 9."""
    score, label = np.linspace(0.01, 0.99, 100), np.zeros(100, dtype=np.int64)
    label[-8:] = 1
    whole = pd.concat([table(score, label, subset="validation", row=np.arange(100) + 100), table(score, label)])
    set_summary = describe_sets([only(whole)], 0.1, ())
    assert set_summary["no_cut"] == 0.5
    assert set_summary["coverage_positive"] == 1
    assert set_summary["positives"] == 8


def test_sites_whose_test_rows_differ_fall_out_of_what_is_expected() -> None:
    whole = both_sides(rows=400)
    other = drawn(400, 7, too_sure=-1.0)[0]  # scores that go the wrong way round
    whole.loc[whole["subset"] == "test", "score"] = other
    site_figures = describe_sets([only(whole)], 0.1, ())["sites"]["here"]
    assert site_figures["coverage"] < site_figures["expected"][0]
    assert site_figures["inside"] == 0


def test_expected_coverage_of_one_label_is_the_beta_binomial_interval() -> None:
    by_scipy = betabinom(200, 90, 10).ppf([0.005, 0.995]) / 200
    assert expected_coverage(((99, 200),), 0.1) == pytest.approx(tuple(by_scipy))
    assert expected_coverage(((5, 50),), 0.1) == (1.0, 1.0)  # too few to exclude anything
    assert np.isnan(expected_coverage(((50, 0),), 0.1)).all()


def test_expected_coverage_of_two_labels_is_that_of_a_sum() -> None:
    """Against 200,000 draws of both numbers; a limit of so many draws strays by less than a row."""
    counts, rng = ((60, 80), (30, 40)), np.random.default_rng(0)
    numbers = sum(
        stats.betabinom(tested, k, rows + 1 - k).rvs(200_000, random_state=rng)
        for (rows, tested), k in zip(counts, (55, 28), strict=True)  # ceil(61 x 0.9), ceil(31 x 0.9)
    )
    low, high = np.quantile(numbers, [0.005, 0.995])
    limits = expected_coverage(counts, 0.1)
    assert limits == pytest.approx((low / 120, high / 120), abs=1.01 / 120)


def test_moments_of_expected_coverage_are_those_of_the_beta_binomial() -> None:
    """Of 99 rows the cut has rank 90: beta(90, 10), whose mean is 0.9. With 8 rows nothing is excluded."""
    mean, sd = coverage_moments(((99, 200),), 0.1)
    assert mean == pytest.approx(0.9)
    # variance of a beta-binomial share: ab / (a + b)^2 / n x (a + b + n) / (a + b + 1)
    assert sd == pytest.approx(np.sqrt(0.09 / 200 * 300 / 101))
    assert coverage_moments(((99, 200), (8, 200)), 0.1) == pytest.approx((0.95, sd / 2))
    assert np.isnan(coverage_moments(((99, 0),), 0.1)).all()


def findings_of(rows: int, alike: bool) -> pd.DataFrame:
    """Sixteen findings, independent of each other, or all the same one."""
    sides = []
    for number, side in enumerate(("validation", "test")):
        score, label = drawn(rows, number, findings=1 if alike else 16)
        wide = [np.repeat(array, 16, axis=1) if alike else array for array in (score, label)]
        sides.append(table(wide[0], wide[1], subset=side, row=np.arange(rows) + number * rows))
    return pd.concat(sides, ignore_index=True)


def test_the_mean_of_findings_strays_less_the_less_they_go_together() -> None:
    """Sixteen findings that are one stray as one does; sixteen independent ones a quarter as far. Correlations of 400
    rows stray from 0 by 0.05, and 240 of them add up to some tenths of that."""
    names = [str(number) for number in range(16)]
    width = {}
    for alike in (True, False):
        site_figures = describe_sets([only(findings_of(400, alike))], 0.1, names)["sites"]["here"]
        low, high = site_figures["expected"]
        width[alike] = high - low
        assert low < 0.9 < high
    single = describe_sets([only(findings_of(400, True)[FIRST])], 0.1, names[:1])["sites"]["here"]["expected"]
    assert width[True] == pytest.approx(single[1] - single[0], rel=1e-6)
    assert width[False] == pytest.approx(width[True] / 4, rel=0.35)


def test_a_patient_counts_once_in_what_is_expected() -> None:
    """Every row four times, for the same patient: the interval is that of a quarter of the rows."""
    whole = both_sides(rows=100)
    many = pd.concat([whole.assign(row=whole["row"] + 200 * time) for time in range(4)], ignore_index=True)
    groups = pd.DataFrame({"row": np.arange(800), "patient": np.arange(800) % 200})
    once, often = (
        describe_sets([only(frame, known)], 0.1, ())["sites"]["here"] for frame, known in ((whole, FEW), (many, groups))
    )
    assert often["expected"] == once["expected"]


def test_validation_rows_of_tested_patients_count_nowhere() -> None:
    whole = both_sides(rows=100)
    groups = pd.DataFrame({"row": np.arange(200), "patient": np.r_[np.arange(100), np.arange(100)]})
    groups.loc[:9, "patient"] = np.arange(500, 510)  # ten validation rows are of patients who are not tested
    assert len(only(whole, groups).validation) == 10
    assert len(only(whole).validation) == 100


def test_referral_keeps_what_is_below_the_cut_of_each_site() -> None:
    """Doubt is highest at one half. Calls at scores near it are coins, so that accuracy rises without them."""
    whole = pd.concat([both_sides(rows=500), both_sides(rows=500, too_sure=0.3).assign(site="there")])
    referral = describe_referral([only(whole)], 0.2, 0.1, ONE, within=False)
    at = referral["at"]
    # 500 rows a side: a share of 20 % strays by 1.8 points on either
    assert at["sites"] == {"here": pytest.approx(0.2, abs=0.08), "there": pytest.approx(0.2, abs=0.08)}
    accuracy = at["figures"]["accuracy"]
    difference = accuracy["difference"]
    assert difference["difference"] == pytest.approx(accuracy["kept"]["mean"] - accuracy["all"]["mean"])
    assert difference["interval"][0] > 0
    assert difference["verdict"] == "gains"
    assert referral["curve"]["accuracy"][0] == accuracy["all"]["mean"]
    assert referral["curve"]["accuracy"][8] > referral["curve"]["accuracy"][0]
    assert referral["gain"]["accuracy"] == pytest.approx(referral["area"]["accuracy"] - accuracy["all"]["mean"])


def test_where_sites_have_models_of_their_own_auc_is_within_sites() -> None:
    """The second site's scores are ten times lower: over both sites they rank rows of one above those of the other."""
    first, second = both_sides(), both_sides().assign(site="there")
    second["score"] /= 10
    seed_rows = only(pd.concat([first, second], ignore_index=True))
    inside, across = (
        describe_referral([seed_rows], 0.2, 0.1, ONE, within)["at"]["figures"]["auc"] for within in (True, False)
    )
    alone = describe_referral([only(first)], 0.2, 0.1, ONE, within=False)["at"]["figures"]["auc"]
    assert inside["all"]["mean"] == pytest.approx(alone["all"]["mean"])
    assert across["all"]["mean"] < inside["all"]["mean"] - 0.02
    assert inside["all"]["interval"][0] < inside["all"]["mean"] < inside["all"]["interval"][1]


def test_over_several_seeds_intervals_are_over_these() -> None:
    whole = pd.concat([both_sides().assign(seed=1), both_sides(too_sure=1.2).assign(seed=2)], ignore_index=True)
    seeds = list(seeds_of(whole, FEW, ensemble=False))
    accuracy = describe_referral(seeds, 0.2, 0.1, ONE, within=False)["at"]["figures"]["accuracy"]
    assert accuracy["difference"]["seeds"] == 2
    assert accuracy["all"]["sd"] is not None


def test_doubt_tells_errors_from_hits() -> None:
    """Four calls: those at 0.9 and 0.1 are right, those at 0.6 and 0.45 wrong. Every error has more doubt."""
    whole = table(np.array([0.9, 0.1, 0.6, 0.45]), np.array([1, 0, 0, 1]))
    error_summary = describe_errors([only(whole)], ONE, ())
    assert error_summary["auc"]["mean"] == 1
    assert error_summary["share_wrong"] == 0.5
    assert error_summary["hits"] == pytest.approx(0.46900, abs=1e-5)
    assert error_summary["errors"] == pytest.approx((0.97095 + 0.99277) / 2, abs=1e-5)


def test_findings_are_in_doubt_about_their_thresholds_and_unknown_labels_count_nowhere() -> None:
    """Called from 0.2 on, which validation rows choose: 0.2 is one bit of doubt, though its entropy is 0.72."""
    score = np.array([[0.02], [0.1], [0.2], [0.6]])
    label = np.array([[0], [0], [1], [1]])
    test = np.array([[0], [-1], [0], [1]])
    whole = pd.concat([table(score, label, subset="validation", row=np.arange(4) + 4), table(score, test)])
    seed_rows = only(whole)
    assert seed_rows.cut == pytest.approx([0.2])
    assert seed_rows.doubt(seed_rows.test)[2, 0] == pytest.approx(1)
    assert seed_rows.wrong[:, 0].tolist() == [0, -1, 1, 0]
    error_summary = describe_errors([seed_rows], ONE, ["mass"])
    assert error_summary["findings"]["mass"]["auc"]["mean"] == 1
    assert error_summary["findings"]["mass"]["share_wrong"] == pytest.approx(1 / 3)
    assert error_summary["errors"] == pytest.approx(1)


def test_changed_images_are_set_against_the_same_images() -> None:
    """Of three test rows two were changed; both are nearer to one half than either was."""
    whole = table(np.array([0.9, 0.3, 0.05]), np.array([1, 0, 0]))
    changed = table(np.array([0.5, 0.4]), np.array([1, 0]), subset="noise", row=[0, 2])
    shift_summary = describe_shifted(only(pd.concat([whole, changed], ignore_index=True)))
    assert shift_summary == {"noise": {"images": 2, "total": 1.0, "aleatoric": None, "epistemic": None, "spread": None}}
    assert describe_shifted(only(whole)) is None


def test_an_ensemble_is_the_mean_of_its_members_whatever_their_order() -> None:
    first = table(np.array([0.9, 0.2]), np.array([1, 0]))
    second = table(np.array([0.4, 0.5]), np.array([0, 1]), seed=2, row=[1, 0])
    ensemble = merge_members(pd.concat([first, second], ignore_index=True), class_task(2))
    assert ensemble["seed"].unique().tolist() == [1]
    assert ensemble["score"].tolist() == pytest.approx([0.7, 0.3])
    assert ensemble["label"].tolist() == [1, 0]
    assert ensemble["epistemic"].gt(0).all()
    lost = merge_members(pd.concat([first, second.assign(score=[np.nan, 0.5])], ignore_index=True), class_task(2))
    assert lost["score"].isna().tolist() == [False, True]
    with pytest.raises(ValueError, match="different rows"):
        merge_members(pd.concat([first, second.assign(row=[1, 5])], ignore_index=True), class_task(2))


def test_an_arm_is_described_whole_with_classes_and_with_findings() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 3))
    score = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = (score.cumsum(axis=1) < rng.random((400, 1))).sum(axis=1)
    classes = pd.concat([table(score[:200], label[:200], subset="validation", row=np.arange(200) + 200)])
    classes = pd.concat([classes, table(score[200:], label[200:])], ignore_index=True)
    arm_summary = describe_arm([only(classes)], Uncertainty(), ONE)
    assert arm_summary is not None
    assert arm_summary["sets"]["coverage"] == pytest.approx(0.9, abs=0.08)
    assert arm_summary["sets"]["each_label"] is False
    assert arm_summary["sets"]["coverage_positive"] is None
    assert arm_summary["parts"]["total"] <= np.log2(3)
    several = describe_arm([only(both_sides(findings=2))], Uncertainty(), ONE, ["a", "b"])
    assert several is not None
    assert set(several["sets"]["findings"]) == set(several["errors"]["findings"]) == {"a", "b"}
    assert several["sets"]["sites"]["here"]["inside"] in (0, 0.5, 1)


def test_a_seed_whose_model_has_diverged_is_left_out() -> None:
    good, lost = both_sides(rows=50), both_sides(rows=50).assign(seed=2)
    lost.loc[0, "score"] = np.nan
    assert [seed_rows.seed for seed_rows in seeds_of(pd.concat([good, lost]), FEW, ensemble=False)] == [1]
    assert describe_arm(list(seeds_of(lost, FEW, ensemble=False)), Uncertainty(), ONE) is None


@pytest.mark.slow
def test_auc_is_of_one_kind_in_all_arms_that_stand_beside_each_other() -> None:
    """One arm's sites have models of their own: then AUC of every arm is the mean of its sites' own. The second site's
    scores are ten times lower, so that over all rows another figure comes out."""
    first, second = both_sides(), both_sides().assign(site="there")
    second["score"] /= 10
    whole = pd.concat([first, second], ignore_index=True).assign(arm="fedavg")
    study, _ = load_study({**STUDY, "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}]})
    mean_aucs = {}
    for own_models in (True, False):
        arms = {"fedavg": {"own_models": False}, "local": {"own_models": own_models}}
        uncertainty = score_uncertainty({"arms": arms, "findings": []}, study, whole, FEW)["arms"]["fedavg"][
            "uncertainty"
        ]
        mean_aucs[own_models] = uncertainty["referral"]["at"]["figures"]["auc"]["all"]["mean"]
    alone = describe_referral([only(first)], 0.2, 0.1, ONE, within=False)["at"]["figures"]["auc"]["all"]["mean"]
    assert mean_aucs[True] == pytest.approx(alone)
    assert mean_aucs[False] < mean_aucs[True] - 0.02


def apart(**sides: float) -> pd.DataFrame:
    """As `both_sides`, where a side's logits are stretched by a number of its own."""
    parts = [table(*drawn(600, n, too_sure), subset=side) for n, (side, too_sure) in enumerate(sides.items())]
    parts[1]["row"] += 600
    return pd.concat(parts, ignore_index=True)


def test_a_temperature_is_that_of_validation_rows_whatever_test_rows_would_say() -> None:
    """Validation logits are three times what they should be, test logits are right: these get worse."""
    calibration = describe_calibration([only(apart(validation=3.0, test=1.0))], ())
    assert calibration["sites"]["here"]["temperature"] == pytest.approx(3, abs=0.5)
    assert calibration["loss_after"] > calibration["loss"]


def test_a_cut_of_referral_is_that_of_validation_rows_whatever_test_rows_would_say() -> None:
    """A fifth of validation rows has more doubt than the cut, which is at a logit of z with P(|z| > 1.5 N) = 0.2, that
    is 0.253 x 1.5 = 0.38. Test logits are a tenth of theirs: 0.38 is 2.53 SDs, and 0.989 of them lie within."""
    referral = describe_referral([only(apart(validation=1.0, test=0.1))], 0.2, 0.1, ONE, within=False)
    assert referral["at"]["referred"] > 0.95


def test_a_sites_sets_and_referral_are_its_own_whoever_stands_beside_it() -> None:
    first, second = both_sides(), both_sides(too_sure=0.2).assign(site="there")
    both = only(pd.concat([first, second], ignore_index=True))
    sets = describe_sets([both], 0.1, ())["sites"]
    referred = describe_referral([both], 0.2, 0.1, ONE, within=False)["at"]["sites"]
    for whole, site in ((first, "here"), (second, "there")):
        assert sets[site] == describe_sets([only(whole)], 0.1, ())["sites"][site]
        alone = describe_referral([only(whole)], 0.2, 0.1, ONE, within=False)["at"]
        assert referred[site] == alone["referred"]
