"""Page one's sentence: right where the truth is known, decided by the stated rules, and in words that are true."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom

import wardround
from tests.evaluation.known_truth import World, content_of
from wardround.evaluation.comparisons import compare
from wardround.evaluation.comparisons.differences import quantile
from wardround.evaluation.comparisons.measures import Measure
from wardround.evaluation.decision.advice import Situation, next_step, site_step
from wardround.evaluation.decision.power import detectable, patients_needed
from wardround.evaluation.decision.sentences import decision_sentences, rounded
from wardround.evaluation.decision.words import Subject, amounts, meaning, size, subject_of, with_limits
from wardround.tasks import METRIC_FACTS, Regression, class_task, findings_task

EFFECTS = {
    "balanced": World(4, 10, patients=800, effect=1.0, prevalence=0.5),
    "rare": World(4, 10, patients=4000, effect=1.0, prevalence=0.05),
    "one seed": World(4, 1, fixed=True, patients=2000, effect=1.0),
    "numbers": World(4, 10, patients=300, effect=1.0, number=True),
}
NOTHING = {
    "balanced": World(4, 10, prevalence=0.5),
    "rare": World(4, 10, patients=300, prevalence=0.05),
    "one seed": World(4, 1, fixed=True),
    "numbers": World(4, 10, number=True),
}


@pytest.fixture(autouse=True)
def without_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict follows from it, and it takes most of the time."""
    monkeypatch.setattr(compare, "_bca", lambda lines, statistic, unit: [None] * len(lines))


def claims(decision: Mapping[str, Any]) -> bool:
    """Whether any sentence of page one claims a gain or a loss."""
    sentences = decision["sentences"]
    return (
        sentences["answer"].startswith(("Yes", "No"))
        or not sentences["hospitals"].startswith("At none")
        or re.search("(is|are) shown to be", sentences["others"].replace("none is shown", "")) is not None
    )


def assert_found(world: World, studies: int) -> None:
    """Every one, where the corrected test has a power of 0.999 or more: the true difference, as these studies estimate
    it together, is so many standard errors beyond what is needed."""
    decisions = [content_of(world, np.random.default_rng(seed))["decision"] for seed in range(studies)]
    means = [decision["mean"] for decision in decisions]
    reach = max(quantile(mean["freedom"], mean["comparisons"]) + stats.t.ppf(0.999, mean["freedom"]) for mean in means)
    difference, error = (np.mean([mean[name] for mean in means]) for name in ("difference", "standard_error"))
    assert abs(difference) > reach * error
    for decision in decisions:
        assert decision["finding"] == ("loses" if world.harm else "gains")
        word = "No: training together is shown" if world.harm else "Yes: training together is shown"
        assert decision["sentences"]["answer"].startswith(word)
        assert ("worse" if world.harm else "better") in decision["sentences"]["answer"]


@pytest.mark.parametrize("harm", [False, True], ids=["gain", "loss"])
def test_an_effect_is_found(harm: bool) -> None:
    assert_found(World(2, 10, patients=800, effect=1.0, harm=harm), 2)


@pytest.mark.slow
@pytest.mark.parametrize("harm", [False, True], ids=["gain", "loss"])
@pytest.mark.parametrize("world", EFFECTS.values(), ids=EFFECTS)
def test_every_gain_and_every_loss_is_found(world: World, harm: bool) -> None:
    assert_found(World(**{**vars(world), "harm": harm}), 10)


def test_of_few_studies_of_nothing_hardly_any_claims_something() -> None:
    assert false_claims(2) <= binom.ppf(0.999, 8, 0.05)


@pytest.mark.slow
def test_of_two_hundred_studies_of_nothing_at_most_five_per_cent_claim_anything_on_page_one() -> None:
    assert false_claims(50) <= binom.ppf(0.999, 200, 0.05)


def false_claims(of_each: int) -> int:
    rng = np.random.default_rng(3)
    return sum(claims(content_of(world, rng)["decision"]) for world in NOTHING.values() for _ in range(of_each))


AUC, MAE, BRIER, F1 = (Measure(METRIC_FACTS[name]) for name in ("auc", "mae", "brier", "f1"))
DAYS = Measure(METRIC_FACTS["mae"], "days", 2)


def entry_of(difference: float, interval: list[float] | None, metric: str = "auc", **others: Any) -> dict[str, Any]:
    from wardround.evaluation.comparisons.differences import verdict_of

    entry = {"metric": metric, "difference": difference, "interval": interval, "comparisons": 1}
    return {**entry, "verdict": verdict_of(interval, METRIC_FACTS[metric]), **others}


def test_amounts_are_of_a_thousand_or_in_units() -> None:
    assert amounts(AUC, [0.0123, -0.05, 0.08]) == ["12 more", "50 fewer", "80 more"]
    assert amounts(AUC, [0.0012]) == ["1.2 more"]
    assert amounts(DAYS, [-0.125]) == ["0.12 days less"]
    assert amounts(BRIER, [0.0123]) == ["0.012 higher"]
    assert amounts(F1, [-0.2]) == ["0.200 lower"]
    assert size(AUC, -0.02) == "20 in 1,000 pairs"
    assert size(DAYS, 0.5) == "0.50 days"


def test_a_limit_of_a_clear_difference_is_not_rounded_to_nothing() -> None:
    clear = entry_of(0.03, [0.00004, 0.06])
    assert with_limits(AUC, clear) == ("30.00 more", " (95 % CI: 0.04 more to 60.00 more)")
    assert with_limits(AUC, entry_of(0.03, None)) == ("30 more", "")


@pytest.mark.parametrize("metric", [m for m in METRIC_FACTS.values() if m.better is not None], ids=lambda m: m.name)
def test_every_metric_that_ranks_arms_is_told_in_words(metric: Any) -> None:
    told = meaning(Measure(metric, "days"), Subject("death", "death"), "3 more")
    assert "3 more" in told
    assert "{" not in told
    assert bool(metric.counted) == told.startswith("of 1,000")


def test_what_is_predicted_has_a_name() -> None:
    assert subject_of(class_task(["alive", "dead"]), "status").event == "dead"
    assert subject_of(class_task(["0", "1"]), "died") == Subject('"died"', 'the outcome "died"')
    assert subject_of(class_task(["0", "1"]), None).event == "1"
    assert subject_of(class_task(["a", "b", "c"]), "kind").averaged == "the classes"
    assert subject_of(findings_task(["edema"]), None).averaged == "the findings"
    assert subject_of(Regression(("stay",)), "stay").outcome == '"stay"'


def test_the_detectable_difference_is_found_with_a_power_of_four_fifths() -> None:
    """By the t distribution around the true difference, in units of the standard error; the other side is nothing."""
    entry = {"standard_error": 0.01, "freedom": 400, "comparisons": 7}
    found = detectable(entry)
    assert found is not None
    reach = quantile(400, 7)
    power = stats.nct.sf(reach, 400, found / 0.01)
    assert power == pytest.approx(0.8, abs=0.003)
    assert detectable({**entry, "standard_error": None}) is None
    assert detectable({**entry, "standard_error": 0.0}) is None
    # four times the patients for half the difference; as many as there are for what is detectable anyhow
    assert patients_needed(entry, 0.02, 1000) == pytest.approx(4 * (patients_needed(entry, 0.04, 1000) or 0))
    assert patients_needed(entry, found, 1000) == pytest.approx(1000, rel=0.01)
    assert patients_needed(entry, 0.02, None) is None
    assert [rounded(n) for n in (4775.1, 25523.0, 87.3, 0.2)] == ["4,800", "26,000", "87", "1"]


def situation(**changes: Any) -> Situation:
    usual = Situation(True, False, 10, False, entry_of(0.01, [-0.03, 0.05]), 0.02, 5000.0, 900)
    return usual._replace(**changes)


def test_the_next_step_is_the_first_rule_that_applies() -> None:
    assert next_step(situation(compared=False, broken=True)) == "compare"
    assert next_step(situation(broken=True, seeds=1)) == "repair"
    assert next_step(situation(entry=entry_of(0.1, [0.05, 0.15]), seeds=1)) == "more-seeds"
    assert next_step(situation(entry=entry_of(0.1, None))) == "more-seeds"
    assert next_step(situation(entry=entry_of(0.1, [0.05, 0.15]))) == "adopt"
    assert next_step(situation(entry=entry_of(-0.1, [-0.15, -0.05]))) == "stay-alone"
    assert next_step(situation(entry=entry_of(0.0, [-0.05, 0.01]))) == "no-gain"
    assert next_step(situation(entry=entry_of(0.0, [-0.01, 0.05], "mae"))) == "no-gain"  # lower is better
    assert next_step(situation(few_seeds=True)) == "more-seeds"
    assert next_step(situation(needed=800.0)) == "repeat"
    assert next_step(situation()) == next_step(situation(needed=None)) == "collect"


def test_where_every_result_is_the_same_no_number_is_told(tmp_path: Any) -> None:
    decision = decided(tmp_path, arms=[{"algorithm": "local"}, {"algorithm": "fedavg"}])
    same = {"difference": 0.0, "interval": [0.0, 0.0], "verdict": "no evidence"}
    values = {**decision, "mean": {**decision["mean"], **same}, "next": "no-gain"}
    sentences = decision_sentences({"seeds": [1, 2]}, values, AUC)
    assert sentences["size"] == "Every result is the same as with each hospital alone."
    assert sentences["next"] == "Stay alone, unless there are other reasons to train together: it changes nothing."


def test_what_a_study_lacks_is_what_it_is_told_to_add(tmp_path: Any) -> None:
    local, *together = STUDY["arms"]
    without = decided(tmp_path, arms=together)["sentences"]["next"]
    assert "in which each hospital trains alone" in without
    assert "all hospitals train together" not in without
    apart = decided(tmp_path, arms=[local, {"algorithm": "pooled"}])["sentences"]["next"]
    assert "in which all hospitals train together" in apart
    assert "trains alone" not in apart


def test_a_hospital_is_advised_by_its_own_result_first() -> None:
    gain, loss, open_ = entry_of(0.1, [0.05, 0.15]), entry_of(-0.1, [-0.15, -0.05]), entry_of(0.0, [-0.1, 0.1])
    assert site_step(gain, "collect", open_) == "take-part"
    assert site_step(loss, "adopt", gain) == "stay-alone"
    assert site_step(open_, "adopt", gain) == "with-the-others"
    assert site_step(open_, "collect", open_) == "undecided"
    assert site_step(gain, "repair", gain) == site_step(gain, "more-seeds", gain) == "wait"
    assert site_step(entry_of(0.1, None), "adopt", gain) == "no-result"


STUDY: dict[str, Any] = {
    "name": "decided",
    "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
    "training": {"rounds": 4, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 2}},
    "arms": [{"algorithm": "local"}, {"algorithm": "fedprox", "mu": [0.1, 1.0]}, {"algorithm": "fedavg"}],
}


def decided(tmp_path: Any, **changes: Any) -> dict[str, Any]:
    return dict(wardround.run_study({**STUDY, **changes}, tmp_path).results["decision"])


def test_which_way_of_training_it_is_about_is_fixed_by_the_study(tmp_path: Any) -> None:
    first = decided(tmp_path)
    assert (first["arm"], first["chosen_by"], first["alone"]) == ("fedprox[mu=0.1]", "first", "local")
    reference = {**STUDY["evaluation"], "reference": "fedavg"}
    assert decided(tmp_path, evaluation=reference)["chosen_by"] == "reference"
    validated = {**STUDY["evaluation"], "validation_share": 0.2}
    chosen = decided(tmp_path, evaluation=validated, selection={"arms": ["fedprox"]})
    assert (chosen["arm"], chosen["chosen_by"]) == ("fedprox[selected]", "selected")


def test_without_a_comparison_it_says_why(tmp_path: Any) -> None:
    local, *together = STUDY["arms"]
    assert decided(tmp_path, arms=together)["why_not"] == "nobody-alone"
    assert decided(tmp_path, arms=[local, {"algorithm": "pooled"}])["why_not"] == "nobody-together"
    assert decided(tmp_path, data={"source": "heart", "hospitals": ["va"]})["why_not"] == "one-site"


def test_a_stated_importance_is_taken_and_is_part_of_the_hash(tmp_path: Any) -> None:
    stated = {**STUDY, "evaluation": {**STUDY["evaluation"], "important_difference": 0.05}}
    assert decided(tmp_path, **stated)["important_difference"] == {"value": 0.05, "stated": True}
    assert decided(tmp_path)["important_difference"] == {"value": 0.02, "stated": False}
    hashes = [wardround.load_study(study)[0].hash for study in (STUDY, stated)]
    assert hashes[0] != hashes[1]


def test_few_rows_of_a_hospital_are_told_of_in_no_bin_and_in_no_group(tmp_path: Any) -> None:
    for own in decided(tmp_path)["sites"].values():
        for groups in own["subgroups"].values():
            hidden = [group for group in groups.values() if "suppressed" in group]
            assert len(hidden) != 1 or len(groups) == 1  # the one would follow from the rest
            assert all(group["rows"] >= 10 for group in groups.values() if group not in hidden)
        for curve in own["calibration"].values():
            assert curve is None or all(part["rows"] >= 2 * 10 for part in curve["bins"])  # with both seeds
