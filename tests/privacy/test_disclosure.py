"""Every rule of disclosure is asked wherever figures of a site's rows could leave it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wardround
from tests.evaluation.deployed_summaries import facts_of
from wardround.evaluation.prediction import SitePrediction
from wardround.evaluation.summaries.site_summary import SUPPRESSED, curve_figures, site_summary
from wardround.privacy import disclosure
from wardround.privacy.disclosure import RULES, DisclosureRule, Limits, Release, must_stay
from wardround.tasks import class_task, findings_task

ROWS = 60
RNG = np.random.default_rng(0)
LABELS = {
    "two classes": (class_task(2), RNG.integers(0, 2, ROWS), RNG.random(ROWS)),
    "three classes": (class_task(3), RNG.integers(0, 3, ROWS), RNG.dirichlet(np.ones(3), ROWS)),
    "findings": (findings_task(3), RNG.integers(0, 2, (ROWS, 3)), RNG.random((ROWS, 3))),
}


def predicted(kind: str) -> SitePrediction:
    task, label, score = LABELS[kind]
    return SitePrediction(
        "north", np.arange(ROWS), label, score, np.zeros(ROWS), np.ones(ROWS), np.arange(ROWS), task=task
    )


RELEASES: dict[str, Callable[[SitePrediction], Any]] = {
    "summary": lambda prediction: site_summary(prediction, {}, 5),
    "figures after a round": lambda prediction: curve_figures(prediction, 5),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_new_rule_is_asked_before_anything_leaves(release: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prediction = predicted(kind)
    assert RELEASES[release](prediction) not in (SUPPRESSED, {})
    asked: list[int] = []

    def never(release: Release, limits: Limits) -> bool:
        asked.append(len(release.people))
        return True

    monkeypatch.setattr(disclosure, "RULES", RULES | {"never": DisclosureRule("anything", lambda release: True, never)})
    assert RELEASES[release](prediction) in (SUPPRESSED, {})
    assert asked[0] == ROWS


def test_counts_by_class_and_ages_stay_where_a_rule_forbids_them(monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"name": "counts", "data": {"source": "heart", "hospitals": ["va"]}, "arms": [{"algorithm": "fedavg"}]}
    plan = wardround.load_plan(*wardround.load_study(study))
    (told,) = facts_of(plan).values()
    assert None not in told["classes"].values()
    never = DisclosureRule("anything", lambda release: True, lambda release, limits: True)
    monkeypatch.setattr(disclosure, "RULES", RULES | {"never": never})
    (withheld,) = facts_of(plan).values()
    assert set(withheld["classes"].values()) == {None}
    assert withheld["age"] == {"mean": None, "sd": None}
    assert withheld["train"] == told["train"]


def test_patients_are_counted_not_rows() -> None:
    assert must_stay(np.repeat(np.arange(4), 10), 5)
    assert not must_stay(np.arange(5), 5)
    assert must_stay(np.arange(0), 0)  # nobody at all
