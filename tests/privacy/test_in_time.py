"""Patient-level privacy where work may be late: what was released is charged, and epsilon holds."""

from typing import Any

import pytest

from tests.study.test_timing_settings import AGREED, EXAMPLE, study
from wardround import load_plan, load_study
from wardround.engines import serial
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.trial import Trial

SLOW = {"sites.speed.sites": {"site-01": 0.1}}


def played(arm: dict[str, Any], **tables: Any) -> tuple[Trial, list[RoundRecord]]:
    raw = study(arm, **tables)
    raw["training"] = {"rounds": 20, "batch_size": 16}
    plan = load_plan(*load_study(raw))
    trial = plan.trial(plan.study.arms[0], 42)
    plan.refuse_unsound(plan.study.arms[0], trial, ())
    return trial, [record for _, record in rounds(start(trial), trial, serial.train_sites)]


def spent(records: list[RoundRecord], site: str) -> float:
    charges = [Charge(*record.charges[site]) for record in records if site in record.charges]
    return epsilon(charges, EXAMPLE["delta"])


def test_each_piece_of_work_is_charged_once_in_the_round_in_which_it_counts() -> None:
    arm = {
        "privacy.example": EXAMPLE,
        "training.asynchronous.buffer": 2,
        "training.asynchronous.most_stale": 50,
        **SLOW,
    }
    trial, records = played(arm)
    for number, record in enumerate(records):
        assert set(record.charges) == set(record.sites)
        for name in record.sites:
            site = [site.name for site in trial.sites].index(name)
            charge = trial.charge(site, 1, number - record.staleness[name])
            assert charge is not None
            assert record.charges[name] == (charge.rate, charge.noise, charge.steps)
    assert max(ago for record in records for ago in record.staleness.values()) > 3
    spendings = {site.name: spent(records, site.name) for site in trial.sites}
    assert max(spendings.values()) <= EXAMPLE["epsilon"]
    assert spendings["site-01"] == min(spendings.values()) > 0


def test_work_that_came_too_late_was_sent_and_is_charged() -> None:
    arm = {"privacy.example": EXAMPLE, **SLOW}
    _, records = played(arm, **AGREED)
    late = [record for record in records if "site-01" in record.dropped]
    assert late
    assert all("site-01" in record.charges for record in late)
    assert 0 < spent(records, "site-01") <= EXAMPLE["epsilon"]
    too_stale = {"training.asynchronous.buffer": 1, "training.asynchronous.most_stale": 2}
    _, records = played({"privacy.example": EXAMPLE, **too_stale})
    dropped = [(record, name) for record in records for name in record.dropped]
    assert dropped
    assert all(name in record.charges for record, name in dropped)


def test_with_noise_that_is_given_sites_stop_at_epsilon_and_the_others_go_on() -> None:
    given = {**EXAMPLE, "noise": 2.0}
    trial, records = played({"privacy.example": given, "training.asynchronous.buffer": 2, **SLOW})
    works = {site.name: sum(site.name in record.sites for record in records) for site in trial.sites}
    assert trial.clock is not None
    assert max(works.values()) <= max(trial.clock.most_works) < 20
    for site in trial.sites:
        assert spent(records, site.name) <= EXAMPLE["epsilon"]
    stopped = {name for record in records for name in record.stopped}
    assert stopped
    for number, record in enumerate(records):
        assert not any(name in later.sites for name in record.stopped for later in records[number:])


@pytest.mark.parametrize("buffer", [1, 3])
def test_noise_of_a_piece_of_work_is_that_of_the_round_in_which_it_began(buffer: int) -> None:
    arm = {"privacy.example": EXAMPLE, "training.asynchronous.buffer": buffer}
    first, second = (played(arm)[1] for _ in range(2))
    assert [record.update_norm for record in first] == [record.update_norm for record in second]
