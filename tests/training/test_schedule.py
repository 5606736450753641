"""Who works when: schedules on a virtual clock, played again step by step by other means."""

from dataclasses import replace
from typing import Any

import pytest

from wardround.core.errors import StudyError
from wardround.study.schema import Training
from wardround.study.timing import Asynchronous, Away, Late, Slow, Speed, Timing
from wardround.training.clock import Clock, Presence, clock_of, speeds_of
from wardround.training.schedule import Roster, factor_of, recorded_rosters, roster, schedule

NAMES = tuple("abcdefgh")
ROWS = (10, 20, 30, 40, 50, 60, 70, 80)


def clock(speed: Speed | None = None, away: Away | None = None, quorum: int | None = None, **settings: Any) -> Clock:
    deadline = settings.pop("deadline", None)
    training = Training(**{"rounds": 12, "local_epochs": 2, **settings})
    known = clock_of(training, Timing(speed or Speed(), away), NAMES, ROWS, 3, quorum, deadline, "arms: a")
    assert known is not None
    return known


def rounds_of(known: Clock) -> tuple[Roster, ...]:
    return schedule(known).rosters


def test_rounds_that_wait_for_all_last_as_long_as_the_slowest_site() -> None:
    known = clock()
    for number, drawn in enumerate(rounds_of(known)):
        assert drawn.numbers == tuple(range(8))
        assert not drawn.started
        assert not drawn.late
        assert drawn.sent is None
        assert drawn.time == pytest.approx((number + 1) * 80 * 2)


def test_without_deadline_and_buffer_sites_are_those_that_are_drawn_without_a_clock() -> None:
    known = clock(Speed(kind="lognormal"), Away(share=0.3), share=0.5)
    for number, drawn in enumerate(rounds_of(known)):
        plain = roster(known.training, 8, 3, number)
        assert (drawn.numbers, drawn.epochs) == (plain.numbers, plain.epochs)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_buffer_of_all_that_work_has_the_rounds_of_a_synchronous_study(share: float) -> None:
    every = round(8 * share)
    synchronous = clock(Speed(kind="lognormal"), share=share)
    buffered = clock(Speed(kind="lognormal"), share=share, asynchronous=Asynchronous(buffer=every))
    assert [replace(r, summing=None) for r in rounds_of(synchronous)] == list(rounds_of(buffered))


def by_hand(known: Clock, buffer: int, most_stale: int) -> list[tuple[dict[int, int], dict[int, int], float]]:
    """Asynchronous rounds minute by minute: of each round who counted and who was too late, with what they began."""
    finish = {n: known.seconds(n) for n in range(len(known.names))}
    began, now, rounds = dict.fromkeys(finish, 0), 0.0, []
    for number in range(known.training.rounds):
        counted: dict[int, int] = {}
        late: dict[int, int] = {}
        while len(counted) < buffer:
            now, site = min((time, site) for site, time in finish.items() if site not in counted)
            if number - began[site] > most_stale:
                late[site], began[site] = began[site], number
                finish[site] = now + known.seconds(site)
            else:
                counted[site] = began[site]
        for site in counted:
            began[site], finish[site] = number + 1, now + known.seconds(site)
        rounds.append((counted, late, now))
    return rounds


@pytest.mark.parametrize(("buffer", "most_stale"), [(1, 60), (3, 60), (3, 1), (2, 2), (7, 1)])
def test_asynchronous_rounds_are_those_that_are_played_by_hand(buffer: int, most_stale: int) -> None:
    settings = Asynchronous(buffer=buffer, most_stale=most_stale)
    known = clock(Speed(kind="lognormal", spread=1.5), asynchronous=settings, rounds=60)
    expected = by_hand(known, buffer, most_stale)
    dropped = 0
    for number, (drawn, (counted, late, now)) in enumerate(zip(rounds_of(known), expected, strict=True)):
        assert {n: drawn.started.get(n, number) for n in drawn.numbers} == counted
        assert drawn.late == late
        assert drawn.time == pytest.approx(now)
        dropped += len(late)
    assert bool(dropped) == (most_stale < 60)


def test_a_site_is_in_a_buffer_at_most_once_and_never_begins_twice_with_one_model() -> None:
    known = clock(Speed(kind="lognormal"), Away(share=0.4, length=50), asynchronous=Asynchronous(buffer=3), rounds=200)
    pieces = [(n, drawn.started.get(n, number)) for number, drawn in enumerate(rounds_of(known)) for n in drawn.numbers]
    assert len(pieces) == len(set(pieces)) == 600
    assert {n for n, _ in pieces} == set(range(8))
    times = [drawn.time for drawn in rounds_of(known)]
    assert times == sorted(times)  # type: ignore[type-var]


def test_needed_models_are_those_with_which_work_began_that_counts_later() -> None:
    settings = Asynchronous(buffer=2, most_stale=5)
    known = schedule(clock(Speed(kind="lognormal", spread=2.0), asynchronous=settings, rounds=80))
    for number in range(80):
        later = {s for drawn in known.rosters[number:] for s in drawn.started.values() if s < number}
        assert set(known.needed(number)) == later
        assert len(later) <= 5


def test_a_round_closes_at_its_deadline_with_a_quorum_or_as_soon_as_there_is_one() -> None:
    # a site has rows x 2 seconds: 20, 40, ... 160
    at_deadline = rounds_of(clock(quorum=2, deadline=100.0))[0]
    assert (at_deadline.numbers, at_deadline.time) == ((0, 1, 2, 3, 4), 100.0)
    first_two = rounds_of(clock(quorum=2, deadline=1.0))[0]
    assert (first_two.numbers, first_two.time) == ((0, 1), 40.0)
    everybody = rounds_of(clock(quorum=2, deadline=1000.0))[0]
    assert (everybody.numbers, everybody.time) == (tuple(range(8)), 160.0)


def test_late_work_is_dropped_or_used_in_the_round_that_is_open() -> None:
    dropped = rounds_of(clock(quorum=2, deadline=100.0))
    assert dropped[1].late == {5: 0, 6: 0, 7: 0}  # at 120, 140, 160 of the round from 100 to 200
    assert dropped[1].numbers == (0, 1, 2, 3, 4)
    assert not any({5, 6, 7} & set(drawn.numbers) for drawn in dropped)
    used = rounds_of(clock(quorum=2, deadline=100.0, late=Late()))
    assert used[1].numbers == tuple(range(8))
    assert used[1].started == {5: 0, 6: 0, 7: 0}
    assert used[1].time == 200.0


def test_who_is_away_goes_on_when_back() -> None:
    known = clock(away=Away(sites={"a": ((5.0, 50.0), (70.0, 80.0)), "b": ((0.0, 30.0),)}))
    there = Presence(known, 0)
    assert there.end(0.0, 20.0) == 65.0  # 5 seconds, then 15 from 50 on
    assert there.end(65.0, 20.0) == 95.0
    assert Presence(known, 1).back(10.0) == 30.0
    assert Presence(known, 2).end(3.0, 4.0) == 7.0


def test_absences_take_their_share_of_the_time() -> None:
    known = clock(away=Away(share=0.25, length=10))
    assert Presence(known, 0).end(0.0, 100_000.0) == pytest.approx(100_000 / 0.75, rel=0.05)


def test_speeds_are_given_or_drawn_and_one_site_more_changes_no_other() -> None:
    drawn = Speed(kind="lognormal", median=5.0)
    first = speeds_of(drawn, NAMES, 1, "speed")
    assert speeds_of(drawn, (*NAMES, "new"), 1, "speed")[:8] == first
    assert speeds_of(drawn, NAMES, 2, "speed") != first
    given = speeds_of(Speed(median=3.0, sites={"?": 2.0, "c": 0.5}), NAMES, 1, "speed")
    assert given == (2.0, 2.0, 0.5, *[2.0] * 5)
    slow = speeds_of(Speed(slow=Slow(share=0.25, times=10)), NAMES, 1, "speed")
    assert sorted(slow) == [0.1, 0.1, *[1.0] * 6]
    with pytest.raises(StudyError, match="no site is called 'x'"):
        speeds_of(Speed(sites={"x": 1.0}), NAMES, 1, "speed")


def test_factors_are_those_of_the_paper() -> None:
    def factors(settings: Late, mixing: float = 1.0) -> list[float]:
        training = Training(asynchronous=settings) if isinstance(settings, Asynchronous) else Training(late=settings)
        return [factor_of(training, staleness) / mixing for staleness in (0, 3, 8)]

    assert factors(Late()) == pytest.approx([1, 0.5, 1 / 3])
    assert factors(Late(staleness="hinge", slope=10, free=4)) == pytest.approx([1, 1, 1 / 41])
    assert factors(Late(staleness="none")) == [1, 1, 1]
    assert factors(Asynchronous(buffer=1, mixing=0.6), 0.6) == pytest.approx([1, 0.5, 1 / 3])
    assert factor_of(Training(), 0) == 1


def test_a_recorded_order_is_the_schedule_again() -> None:
    known = schedule(clock(Speed(kind="lognormal"), asynchronous=Asynchronous(buffer=3)))
    recorded = []
    for number, drawn in enumerate(known.rosters):
        epochs = {NAMES[n]: count for n, count in drawn.epochs.items()}
        recorded.append((epochs, {NAMES[n]: number - drawn.started.get(n, number) for n in drawn.numbers}))
    again = recorded_rosters(Training(), NAMES, recorded)
    assert [(r.numbers, r.epochs, r.started) for r in again.rosters] == [
        (r.numbers, r.epochs, r.started) for r in known.rosters
    ]
    assert all(again.needed(number) == known.needed(number) for number in range(12))
