"""Page one's sentence: right where the truth is known, decided by the stated rules, and in words that are true."""

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
from wardround.evaluation.decision.sentences import rounded
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
        or "shown to be different" in sentences["others"]
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
