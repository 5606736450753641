"""Aggregation rules across hospitals: the bits of a simulation, and what becomes of too few updates."""

from pathlib import Path

from tests.deployment.hospital_files import study
from tests.deployment.parity import assert_parity
from tests.deployment.test_regions_parity import assert_regional_parity, regional

RULES = [
    "norm-bound",
    "median",
    "trimmed-mean",
    "geometric-median",
    "centred-clipping",
]  # that four sites are enough for
SOME = {"share": 0.75, "rounds": 4}


def test_the_bits_of_a_simulation(tmp_path: Path) -> None:
    arms = [
        {"algorithm": "fedavg", "aggregation.rule": RULES},
        {"algorithm": "fednova", "aggregation.rule": "krum", "aggregation.bad": 0},
        {"algorithm": "fedadam", "aggregation.rule": "multi-krum", "aggregation.bad": 0},
        {"algorithm": "fedprox", "aggregation.rule": "bulyan", "aggregation.bad": 0, "aggregation.momentum": 0.5},
        {"algorithm": "fedprox-adaptive", "aggregation.before": "nearest-neighbours"},
    ]
    assert_parity(study(arms, aggregation={"rule": "median"}, training=SOME), tmp_path)


def test_each_region_applies_the_rule_to_its_own_hospitals(tmp_path: Path) -> None:
    rules = [
        {"algorithm": "fedavg", "aggregation.rule": ["median", "krum", "mean"]},
        {"algorithm": "fedprox", "aggregation.rule": "norm-bound", "aggregation.bound": 0.05},
    ]
    assert_regional_parity(regional(rules, aggregation={"rule": "median", "bad": 0}), tmp_path)
