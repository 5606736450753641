"""The answer of a study: what is said first, and that nothing is claimed that its numbers do not bear."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import wardround
from tests.evaluation.known_truth import World, content_of
from wardround.evaluation.answer import answer
from wardround.evaluation.comparisons.differences import correct
from wardround.evaluation.comparisons.measures import Measure

HEART: dict[str, Any] = {
    "name": "answers",
    "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
    "training": {"rounds": 6, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 3}},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
}


def said(results: Mapping[str, Any], about: str) -> list[str]:
    return [sentence["text"] for sentence in results["answer"] if sentence["about"] == about]


def test_numbers_of_a_sentence_are_those_of_the_results() -> None:
    content = content_of(World(4, 5), np.random.default_rng(0))
    (sentence,) = [statement for statement in content["answer"] if statement["about"] == "alone"]
    entries = {
        (e["arm"], e["site"]): e for e in (*content["benefit"], *content["site_differences"]) if e["metric"] == "auc"
    }
    assert len(sentence["numbers"]) == 5  # four hospitals and their mean
    for number in sentence["numbers"]:
        entry = entries[number["arm"], number["site"]]
        assert all(number[name] == entry[name] for name in ("difference", "interval", "p_value", "verdict"))


def test_training_that_went_wrong_with_every_seed_is_said_before_any_comparison(tmp_path: Any) -> None:
    finished = wardround.run_study(HEART, tmp_path, changes={"training.lr": 1e-9})
    assert finished.results["answer"][0]["about"] == "training"
    assert finished.results["answer"][0]["text"].startswith(
        "Training went wrong in fedavg and local, with every seed: "
    )
    right = wardround.run_study(HEART, tmp_path)
    assert said(right.results, "training") == []


def test_one_hospital_has_nobody_to_be_compared_with(tmp_path: Any) -> None:
    alone = {**HEART, "data": {"source": "heart", "hospitals": ["cleveland"]}}
    results = wardround.run_study(alone, tmp_path).results
    assert results["answer"][0]["text"].startswith(
        "There is one hospital, so that training together cannot be compared"
    )
    assert results["answer"][0]["numbers"] == [{"sites": ["cleveland"]}]


def test_a_hospital_without_the_metric_is_named() -> None:
    content = content_of(World(3, 5), np.random.default_rng(1))
    for entry in content["benefit"]:
        if entry["site"] == "h02":
            entry |= {"difference": None, "standard_error": None, "interval": None, "verdict": "cannot be told"}
    (text,) = [statement["text"] for statement in answer(content) if statement["about"] == "alone"]
    assert "on average over 2 hospitals" in text
    assert text.endswith("h02: no result, because AUC is not defined on the test rows there.")


def entry(site: str | None, difference: float, error: float) -> dict[str, Any]:
    return {"site": site, "metric": "auc", "difference": difference, "standard_error": error, "freedom": 9}


def test_equal_differences_are_one_comparison_at_one_site_and_two_at_two() -> None:
    same = [entry("a", 0.1, 0.05), entry("a", -0.1, 0.05)]  # turned round, or another arm that does the same
    correct(same)
    assert [statement["comparisons"] for statement in same] == [1, 1]
    apart = [entry("a", 0.1, 0.05), entry("b", -0.1, 0.05), entry(None, 0.0, 0.0)]
    correct(apart)
    assert [statement["comparisons"] for statement in apart] == [2, 2, 2]  # what is always 0 is none


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((-0.034, -0.00016), "-0.0340 to -0.0002"), ((-0.034, 0.00016), "-0.034 to 0.000")],
    ids=["clear", "not clear"],
)
def test_a_limit_is_not_rounded_to_the_other_side_of_a_verdict(interval: tuple[float, float], expected: str) -> None:
    verdict = "gains" if interval[1] < 0 else "no evidence"
    assert Measure.of("brier").limits({"interval": list(interval), "verdict": verdict}) == expected
