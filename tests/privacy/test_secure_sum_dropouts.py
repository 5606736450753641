"""The secure sum is the sum, whoever falls silent, as long as enough remain; and it is nothing when they do not."""

import numpy as np
import pytest

from tests.privacy.secure_sum_rounds import STAGES, Round, names, plain_sum, terms_of
from tests.representatives import represented
from wardround.core.errors import SecureSumError
from wardround.privacy.secure_sum.secure_sum import default_threshold


def spare(count: int) -> int:
    """How many sites a sum can do without."""
    return count - default_threshold(count)


def silent_from(stage: str, count: int, gone: int) -> dict[str, str]:
    """Every third of the roster first, so that those that are gone stand between, before and after survivors."""
    spread = sorted(names(count), key=lambda name: (int(name[-2:]) % 3 != 0, name))
    return dict.fromkeys(spread[:gone], stage)


@pytest.mark.parametrize(("count", "needed"), [(3, 3), (4, 3), (5, 4), (6, 5), (10, 7), (50, 34)])
def test_default_threshold_is_two_thirds_and_one_more(count: int, needed: int) -> None:
    assert default_threshold(count) == needed
    colluding = -(-count // 3) - 1  # fewer than a third
    assert 2 * needed > count + colluding  # two lists of survivors cannot both find enough signatures


@pytest.mark.parametrize("count", [3, 4, 10, 50])
def test_with_all_sites_the_sum_is_exact(count: int) -> None:
    played = Round(terms_of(count)).play()
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors.values()))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("count", "gone"), represented([(4, 1), (10, 1), (10, 3), (50, 1), (50, 16)], by=[(4, 1), (10, 1), (10, 3)])
)
def test_the_sum_is_exact_when_sites_fall_silent(count: int, gone: int, stage: str) -> None:
    assert gone in (1, spare(count))
    silent = silent_from(stage, count, gone)
    played = Round(terms_of(count), silent).play()
    counted = [site for site in names(count) if site not in silent or stage in ("confirm", "reveal")]
    assert played.survivors == counted
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors[site] for site in counted))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("count", represented([3, 4, 10, 50], by=[3, 4, 10]))
def test_one_site_more_that_falls_silent_and_there_is_no_sum(count: int, stage: str) -> None:
    played = Round(terms_of(count), silent_from(stage, count, spare(count) + 1))
    with pytest.raises(SecureSumError, match=f"{default_threshold(count) - 1} of {count} sites answered .*{stage}"):
        played.play().collector.total()


def test_sites_may_fall_silent_at_every_stage_of_one_round() -> None:
    silent = {"site-00": "advertise", "site-03": "share", "site-05": "mask"}
    played = Round(terms_of(10), silent).play()
    counted = sorted(set(names(10)) - silent.keys())
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors[site] for site in counted))


def test_a_survivor_that_did_not_confirm_may_reveal() -> None:
    played = Round(terms_of(4), {"site-01": "confirm", "site-02": "reveal"}).play()
    with pytest.raises(SecureSumError, match="2 of 4 sites answered"):
        played.collector.total()
    late = played.members["site-01"].reveal(played.survivors, played.confirmations)
    played.collector.take_reveal(late)
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors.values()))
