"""[compression] in a study file: what it may say, and what is refused from the text alone."""

import tomllib
from typing import Any

import pytest

from wardround.core.errors import RunError, StudyError
from wardround.runs.catalog import families, load_study
from wardround.runs.plan import load_plan
from wardround.runs.units import cut
from wardround.study.parser import parse_study
from wardround.study.schema import Compression, Study

HEAD = """
name = "small"
data = { source = "synthetic", count = 4, iid = true, features = 4, classes = 2, largest = 40 }
training = { rounds = 2 }
evaluation = { seeds = { count = 1 } }
"""
FLAT = HEAD + '[[arms]]\nalgorithm = "fedavg"\n'


def parsed(text: str, **options: Any) -> Study:
    return parse_study(tomllib.loads(text), families(), "study.toml", **options)


def message(text: str) -> str:
    with pytest.raises(StudyError) as refused:
        parsed(text)
    return str(refused.value)


def test_without_the_block_nothing_is_compressed_and_the_hash_is_as_it_was() -> None:
    plain = parsed(FLAT)
    assert plain.arms[0].compression == Compression("none")
    assert "compression" not in plain.resolved
    switched = parsed(HEAD + '[compression]\nkind = "none"\n[[arms]]\nalgorithm = "fedavg"\n')
    assert switched.hash == plain.hash
    assert parsed(HEAD + '[compression]\nkind = "float16"\n[[arms]]\nalgorithm = "fedavg"\n').hash != plain.hash


def test_an_arm_overrides_and_sweeps_its_keys() -> None:
    study = parsed(
        HEAD
        + """
[compression]
kind = "top-k"
share = 0.05
[[arms]]
name = "kinds"
algorithm = "fedavg"
"compression.kind" = ["none", "float16", "top-k", "quantised"]
[[arms]]
name = "shares"
algorithm = "fedprox"
"compression.share" = [0.1, 1]
[[arms]]
name = "bits"
algorithm = "fedavg"
"compression.kind" = "quantised"
"compression.bits" = [2, 16]
"""
    )
    assert {arm.name: arm.compression for arm in study.arms} == {
        "kinds[kind=none]": Compression("none", 0.05),
        "kinds[kind=float16]": Compression("float16", 0.05),
        "kinds[kind=top-k]": Compression("top-k", 0.05),
        "kinds[kind=quantised]": Compression("quantised", 0.05),
        "shares[share=0.1]": Compression("top-k", 0.1),
        "shares[share=1.0]": Compression("top-k", 1.0),
        "bits[bits=2]": Compression("quantised", 0.05, 2),
        "bits[bits=16]": Compression("quantised", 0.05, 16),
    }
    again = parse_study(study.resolved, families(), "study.toml")
    assert again.hash == study.hash


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ('kind = "zip"', "compression: kind: 'zip' is not a possible value"),
        ('kind = "topk"', "Did you mean 'top-k'?"),
        ('kind = "float16"\nlevel = 3', "compression: level: no such setting"),
        ('kind = "top-k"\nshare = 0.0', "compression: share: 0.0 is out of range"),
        ('kind = "top-k"\nshare = 1.5', "compression: share: 1.5 is out of range"),
        ('kind = "top-k"\nshare = "half"', "compression: share: expected a number"),
        ('kind = "quantised"\nbits = 5', "compression: bits: 5 is not a possible value"),
        ('kind = "quantised"\nbits = 8.0', "compression: bits: 8.0 is not a possible value"),
        (
            'kind = "float16"\nshare = 0.2',
            'share: is a setting of "top-k", and the kind of compression here is "float16"',
        ),
        ('kind = "top-k"\nbits = 4', 'bits: is a setting of "quantised", and the kind of compression here is "top-k"'),
        ("share = 0.2", 'share: is a setting of "top-k", and the kind of compression here is "none"'),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(block: str, problem: str) -> None:
    assert problem in message(f'{HEAD}[compression]\n{block}\n[[arms]]\nalgorithm = "fedavg"\n')


def test_a_sweep_that_would_do_nothing_is_refused() -> None:
    text = FLAT + '"compression.kind" = "float16"\n"compression.share" = [0.1, 0.2]\n'
    assert 'arms: fedavg[share=0.1]: compression: share: is a setting of "top-k"' in message(text)


def test_a_secure_sum_is_refused_because_masks_cannot_be_made_smaller() -> None:
    text = HEAD + '[privacy.secure_sum]\n[compression]\nkind = "float16"\n[[arms]]\nalgorithm = "fedavg"\n'
    refused = message(text)
    assert "under its mask every number of an update is random in all 64 bits" in refused
    assert '"compression.kind" = "none"' in refused
    parsed(text + '"privacy.secure_sum" = "off"\n')
    parsed(text + '"compression.kind" = "none"\n')


def test_parties_are_refused_because_embeddings_are_no_updates() -> None:
    text = (
        HEAD
        + """
[compression]
kind = "float16"
[topology]
parties = { clinic = ["x01", "x02"], laboratory = ["x03", "x04"] }
[[arms]]
algorithm = "split"
"model.kind" = "joined"
"topology.kind" = "vertical"
"""
    )
    assert "parties exchange embeddings and gradients, which are no updates" in message(text)
    parsed(text + '"compression.kind" = "none"\n')


def test_baselines_without_a_coordinator_send_nothing_that_could_be_compressed() -> None:
    text = HEAD + '[compression]\nkind = "top-k"\n[privacy.secure_sum]\n'
    study = parsed(text + '[[arms]]\nalgorithm = "local"\n[[arms]]\nalgorithm = "pooled"\n')
    plan = load_plan(*load_study(study.resolved))
    assert [plan.trial(arm, 42).compression for arm in plan.study.arms] == [Compression(), Compression()]


def test_compressed_arms_run_one_site_after_another_and_the_others_of_the_study_stacked() -> None:
    """Two engines differ in the last bit, and a last bit may decide which number is among the largest."""
    text = FLAT + '"compression.kind" = ["none", "float16", "top-k", "quantised"]\n[[arms]]\nalgorithm = "local"\n'
    study, known = load_study(tomllib.loads(text))
    plan = load_plan(study, known)
    engines = {arm: unit.engine for unit in cut(plan, "auto") for arm, _ in unit.members}
    assert engines == {
        "fedavg[kind=none]": "stacked",
        "local": "stacked",
        **{f"fedavg[kind={kind}]": "serial" for kind in ("float16", "top-k", "quantised")},
    }
    with pytest.raises(RunError, match="the stacked engine does not support compression"):
        cut(plan, "stacked")
