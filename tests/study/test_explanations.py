"""`[explain]`: whole or absent, whose models it explains, and what keeps its hash."""

from typing import Any

import pytest

from wardround.core.errors import StudyError
from wardround.runs.catalog import load_study
from wardround.study.explanations import conducted_explanations, explained_arms
from wardround.study.schema import Study

DOCUMENT: dict[str, Any] = {
    "name": "s",
    "data": {"source": "heart"},
    "arms": [
        {"name": "fedavg", "algorithm": "fedavg"},
        {"name": "some", "algorithm": "fedavg", "train_at": ["cleveland", "va"]},
        {"name": "private", "algorithm": "fedavg", "privacy": {"site": {"epsilon": 4.0, "delta": 0.01, "clip": 1.0}}},
    ],
}


def study(**explain: Any) -> Study:
    return load_study(DOCUMENT | {"sites": {"partition": "by-hospital"}, "explain": explain})[0]


def test_by_default_arms_in_which_every_site_trains() -> None:
    assert [arm.name for arm in explained_arms(study())] == ["fedavg", "private"]
    assert [arm.name for arm in explained_arms(study(arms=["some"]))] == ["some"]
    assert [own.options["arm"] for own in conducted_explanations(study())] == ["fedavg"]  # the other one is withheld


def test_without_the_block_nothing_is_explained_and_the_hash_stays() -> None:
    plain = load_study(DOCUMENT | {"sites": {"partition": "by-hospital"}})[0]
    assert plain.explain is None
    assert explained_arms(plain) == ()
    assert study().hash != plain.hash
    assert study().hash != study(repeats=7).hash


def test_mistakes_are_named() -> None:
    for explain, problem in (
        ({"arms": ["fedprox"]}, "fedprox"),
        ({"arms": ["fedavg", "fedavg"]}, "twice"),
        ({"repeats": 0}, "repeats"),
        ({"repeat": 3}, "no such setting"),
    ):
        with pytest.raises(StudyError, match=problem):
            study(**explain)
