"""A hospital's policy: every rule both ways, approval first, and hours that pass midnight."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deployment.federation_fixtures import SITES, study
from wardround.core.errors import DeployError
from wardround.deployment import Policy, objections
from wardround.deployment.governance.policy import DAYS, closed, refusal_of_rows, refusal_of_study

SWEPT: dict[str, Any] = {"arms": [{"algorithm": "fedprox", "mu": [0.1, 1.0]}]}
HELD_OUT: dict[str, Any] = {**SWEPT, "selection": {"arms": ["fedprox"], "on": "site", "site": "east"}}
AT_ONE: dict[str, Any] = {
    "arms": [{"algorithm": "fedavg"}, {"name": "at", "algorithm": "fedavg", "train_at": ["north"]}]
}
PRIVATE: dict[str, Any] = {"privacy": {"example": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}}}
SUMMED: dict[str, Any] = {"privacy": {"secure_sum": {}}}


def reason(policy: Policy, sites: tuple[str, ...] = SITES, site: str = "north", **changes: Any) -> str | None:
    asked = study(**changes)
    refusal = refusal_of_study(policy, asked, site, sites, {asked.hash})
    if refusal is not None:
        assert refusal.until is None
    return None if refusal is None else refusal.reason


def test_a_study_that_is_not_approved_is_refused_before_anything_else() -> None:
    asked = study()
    refusal = refusal_of_study(Policy(most_rounds=1), asked, "north", SITES, {"f" * 64})
    assert refusal is not None
    assert "not approved at north" in refusal.reason
    assert "rounds" not in refusal.reason


def test_a_site_that_is_not_asked_for_refuses() -> None:
    assert "not among the sites" in str(reason(Policy(), site="west"))


@pytest.mark.parametrize(
    ("accepting", "refusing", "changes", "words"),
    [
        ({"models": ("logistic",)}, {"models": ("mlp", "cnn")}, {}, "model logistic is not among"),
        ({"algorithms": ("local", "fedavg")}, {"algorithms": ("local",)}, {}, "algorithm fedavg is not among"),
        ({"most_rounds": 10}, {"most_rounds": 9}, {}, "10 rounds"),
        ({"most_seeds": 5}, {"most_seeds": 4}, {"evaluation": {"seeds": {"count": 5}}}, "5 seeds"),
        ({"least_sites": 3}, {"least_sites": 4}, {}, "number of sites that take part is 3"),
        ({"least_sites": 2}, {"least_sites": 3}, {"deployment": {"quorum": 2}}, "quorum of 2"),
        ({"least_sites": 2}, {"least_sites": 3}, HELD_OUT, "averages 2"),
        ({"least_sites": 1}, {"least_sites": 2}, AT_ONE, "arm at averages 1"),
        ({"least_sites": 2}, {"least_sites": 3}, {"training": {"rounds": 1, "share": 0.7}}, "averages 2"),
        (
            {"least_sites": 2},
            {"least_sites": 3},
            {"training": {"rounds": 1, "stragglers": {"share": 0.34, "policy": "drop"}}},
            "averages 2",
        ),
        ({"smallest_cell": 5}, {"smallest_cell": 6}, {}, "no count below 6"),
        ({"smallest_cell": 10}, {"smallest_cell": 11}, {"deployment": {"smallest_cell": 10}}, "smallest_cell is 10"),
        ({"secure_aggregation": False}, {"secure_aggregation": True}, {}, "requires secure aggregation"),
        ({"most_epsilon": None}, {"most_epsilon": 8.0}, {}, "epsilon of at most 8"),
        ({"most_epsilon": 2.0}, {"most_epsilon": 1.9}, PRIVATE, "epsilon of at most 1.9, and arm fedavg has 2"),
        ({"secure_aggregation": True}, {"most_epsilon": 8.0}, SUMMED, "which arm fedavg does not have"),
        ({"most_epsilon": 2.0}, {"secure_aggregation": True}, PRIVATE, "secure aggregation, which arm fedavg does not"),
        ({"most_total_epsilon": 0.1}, {"most_total_epsilon": None, "secure_aggregation": True}, PRIVATE, "secure"),
        ({"most_total_epsilon": None}, {"most_total_epsilon": 5.0}, {}, "arm fedavg has no [privacy.example]"),
        ({"most_delta": 1e-5}, {"most_delta": 9e-6}, PRIVATE, "delta of at most 9e-06, and arm fedavg has a larger"),
    ],
)
def test_each_rule_both_ways(
    accepting: dict[str, Any], refusing: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    assert reason(Policy(**accepting), **changes) is None
    assert words in str(reason(Policy(**refusing), **changes))


def test_training_without_a_clip_is_refused_whatever_the_policy() -> None:
    open_ended: dict[str, Any] = {"privacy": {"example": {"epsilon": 2.0, "delta": 1e-5, "clip": "none"}}}
    assert "no training without a clip, as arm fedavg is" in str(reason(Policy(), **open_ended))
    assert "and arm fedavg has infinite" in str(reason(Policy(most_epsilon=1e9), **open_ended))


def test_a_site_outside_an_arm_does_not_mind_how_few_train_there() -> None:
    assert reason(Policy(), site="south", **AT_ONE) is None


def test_alone_is_not_too_few_because_nothing_leaves() -> None:
    asked: dict[str, Any] = {"arms": [{"algorithm": "local"}], "training": {"rounds": 1, "share": 0.1}}
    assert reason(Policy(), **asked) is None


def test_every_arm_and_variant_is_looked_at() -> None:
    deeper: dict[str, Any] = {"variants": [{"name": "deep", "model.kind": "mlp", "training.rounds": 2000}]}
    text = str(reason(Policy(models=("logistic",)), **deeper))
    assert "model mlp" in text
    assert "2000 rounds" in text


def test_pooled_rows_are_refused_whatever_the_policy() -> None:
    assert "no row leaves north" in str(reason(Policy(), arms=[{"algorithm": "pooled"}]))


def test_a_site_named_twice_counts_once() -> None:
    assert "take part is 1" in str(reason(Policy(), sites=("north", "north")))


def test_without_known_sites_their_number_is_not_judged() -> None:
    assert objections(Policy(least_sites=9), study(), "north", None) == []


def test_rows_are_counted_and_the_count_is_not_told() -> None:
    policy = Policy(least_rows=30)
    assert refusal_of_rows(policy, 30) is None
    refusal = refusal_of_rows(policy, 29)
    assert refusal is not None
    assert "29" not in refusal.reason
    assert refusal.until is None


NIGHT = Policy(hours="18:00-06:00", days=("fri",))  # Friday 18:00 to Saturday 06:00
FRIDAY = datetime(2026, 11, 20)


@pytest.mark.parametrize(
    ("day", "clock", "is_open"),
    [
        (0, "17:59", False),
        (0, "18:00", True),
        (0, "23:59", True),
        (1, "00:00", True),
        (1, "05:59", True),
        (1, "06:00", False),
        (1, "18:00", False),
        (0, "05:59", False),  # Thursday's night
    ],
)
def test_hours_that_pass_midnight_belong_to_the_day_they_begin(day: int, clock: str, is_open: bool) -> None:
    hour, minute = map(int, clock.split(":"))
    now = FRIDAY + timedelta(days=day, hours=hour, minutes=minute)
    assert (closed(NIGHT, now) is None) == is_open


@pytest.mark.parametrize(
    ("policy", "now", "until"),
    [
        (Policy(hours="08:00-18:00"), datetime(2026, 11, 16, 7), datetime(2026, 11, 16, 8)),
        (Policy(hours="08:00-18:00"), datetime(2026, 11, 16, 18), datetime(2026, 11, 17, 8)),
        (Policy(days=("mon",)), datetime(2026, 11, 17), datetime(2026, 11, 23)),
        (NIGHT, FRIDAY + timedelta(days=1, hours=6), FRIDAY + timedelta(days=7, hours=18)),
        (Policy(hours="18:00-00:00"), datetime(2026, 11, 16, 0), datetime(2026, 11, 16, 18)),
    ],
)
def test_a_closed_site_says_when_it_opens(policy: Policy, now: datetime, until: datetime) -> None:
    closure = closed(policy, now)
    assert closure is not None
    assert closure.until == until
    assert f"{until:%Y-%m-%d %H:%M}" in closure.reason
    assert closed(policy, until) is None


def test_without_hours_and_days_it_is_always_open() -> None:
    assert closed(Policy(), datetime(2026, 11, 16, 3)) is None


times = st.times().map(lambda at: f"{at.hour:02}:{at.minute:02}")
policies = st.builds(
    lambda opens, closes, days: Policy(hours=None if opens == closes else f"{opens}-{closes}", days=tuple(days)),
    times,
    times,
    st.sets(st.sampled_from(DAYS)),
)


@given(policies, st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)), st.integers(-12, 12))
def test_until_is_the_first_open_moment_in_the_same_zone(policy: Policy, now: datetime, offset: int) -> None:
    now = now.replace(tzinfo=timezone(timedelta(hours=offset)))
    closure = closed(policy, now)
    if closure is None:
        return
    assert closure.until is not None
    assert now < closure.until <= now + timedelta(days=8)
    assert closure.until.tzinfo is now.tzinfo
    assert closed(policy, closure.until) is None
    assert closed(policy, closure.until - timedelta(microseconds=1)) is not None


@given(policies, st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)))
def test_hours_turned_round_are_open_when_the_others_are_closed(policy: Policy, now: datetime) -> None:
    if policy.hours is None:
        return
    opens, closes = policy.hours.split("-")
    daily = replace(policy, days=())
    assert (closed(daily, now) is None) != (closed(replace(daily, hours=f"{closes}-{opens}"), now) is None)


@pytest.mark.parametrize("hours", ["", "8:00-18:00", "08:00", "08:00-18:00-20:00", "08:00-24:00", "08:60-09:00", "x-y"])
def test_hours_are_checked(hours: str) -> None:
    with pytest.raises(DeployError, match="no hours of a day"):
        Policy(hours=hours)


def test_hours_of_no_length_are_refused() -> None:
    with pytest.raises(DeployError, match="begin and end at once"):
        Policy(hours="08:00-08:00")
