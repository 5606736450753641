"""[screening] in a study file: what it may say, and what is refused from the text alone."""

import tomllib
from typing import Any

import pytest

from wardround.core.errors import RunError, StudyError
from wardround.runs.catalog import families, load_study
from wardround.runs.plan import load_plan
from wardround.runs.units import cut
from wardround.study.parser import parse_study
from wardround.study.schema import Screening, Study

HEAD = """
name = "small"
data = { source = "synthetic", count = 4, iid = true, features = 4, classes = 2, largest = 40 }
training = { rounds = 2 }
evaluation = { seeds = { count = 1 } }
"""
ARM = '[[arms]]\nalgorithm = "fedavg"\n'
SCREENED = HEAD + "[screening]\n" + ARM


def parsed(text: str, **options: Any) -> Study:
    return parse_study(tomllib.loads(text), families(), "study.toml", **options)


def test_without_the_block_nothing_is_screened_and_the_hash_is_as_it_was() -> None:
    plain, screened = parsed(HEAD + ARM), parsed(SCREENED)
    assert plain.arms[0].screening is None
    assert "screening" not in plain.resolved
    assert screened.arms[0].screened == Screening("notice")
    assert screened.hash != plain.hash
    assert parse_study(screened.resolved, families()).hash == screened.hash


def test_an_arm_overrides_and_sweeps_the_policy() -> None:
    study = parsed(SCREENED + '"screening.policy" = ["off", "drop"]\n[[arms]]\nalgorithm = "local"\n')
    by_name = {arm.name: arm.screened for arm in study.arms}
    assert by_name["fedavg[policy=off]"] is None
    assert by_name["fedavg[policy=drop]"] == Screening("drop")
    assert by_name["local"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[screening]\npolicy = "accuse"\n' + ARM, "policy: 'accuse' is not a possible value"),
        ("[screening]\nleval = 0.1\n" + ARM, "screening: leval: no such setting"),
        ('[screening]\npolicy = "drop"\n[privacy.secure_sum]\n' + ARM, "nobody sees the update of a single site"),
        (
            '[screening]\n[topology]\nkind = "hierarchical"\nregions = { a = ["site-*"] }\n' + ARM,
            "a region's coordinator sees the updates of its own sites only",
        ),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(StudyError) as refused:
        parsed(HEAD + text)
    assert problem in str(refused.value)


def test_it_runs_serially_and_the_stacked_engine_is_refused() -> None:
    plan = load_plan(*load_study(tomllib.loads(SCREENED)))
    assert {unit.engine for unit in cut(plan, "auto")} == {"serial"}
    with pytest.raises(RunError, match="does not support screening"):
        cut(plan, "stacked")
