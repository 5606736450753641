"""Facts of each rule of disclosure, by cases small enough to count by hand or to enumerate."""

from pathlib import Path

import numpy as np
import pytest

from wardround.core.errors import RunError
from wardround.privacy.disclosure import RULES, Limits, Release, broken_rule, rules_asked
from wardround.privacy.disclosure.dominance import largest_share
from wardround.privacy.disclosure.earlier_releases import ReleaseMemory
from wardround.privacy.disclosure.secondary_suppression import Mask, Total, hidden_cells, possible_values

PEOPLE = np.arange(20)
LIMITS = Limits()


def test_a_plain_release_is_held_to_the_number_of_patients_alone() -> None:
    assert rules_asked(Release(PEOPLE)) == ("smallest-cell",)
    assert broken_rule(Release(PEOPLE[:5]), LIMITS) == ""
    assert broken_rule(Release(PEOPLE[:4]), LIMITS) == "smallest-cell"
    assert broken_rule(Release(np.repeat(PEOPLE[:4], 10)), LIMITS) == "smallest-cell"  # 40 rows of 4 patients


def test_the_stricter_limit_holds_whoever_has_it() -> None:
    study, site = Limits(smallest_cell=5, least_sites=4), Limits(smallest_cell=10, largest_share=0.5, least_sites=2)
    assert study.and_those_of(site) == site.and_those_of(study) == Limits(10, 0.5, 0.33, 4)


def test_one_patient_must_not_dominate_a_sum() -> None:
    amounts = np.array([900.0, 50, 30, 10, 5, 5])
    assert largest_share(amounts, PEOPLE[:6]) == pytest.approx(0.9)
    assert broken_rule(Release(PEOPLE[:6], summed=amounts), LIMITS) == "dominance"
    even = np.ones(6)
    assert broken_rule(Release(PEOPLE[:6], summed=even), LIMITS) == ""
    # ten visits of one patient are that patient's; signs do not hide a part; a gap adds nothing
    visits, owners = np.array([*[-10.0] * 10, 4, 4, 4, 4, np.nan]), np.array([*[0] * 10, 1, 2, 3, 4, 5])
    assert largest_share(visits, owners) == pytest.approx(100 / 116)
    assert largest_share(np.zeros(4), PEOPLE[:4]) == 0


def test_the_sum_of_two_hospitals_is_kept_closed_where_three_are_demanded() -> None:
    assert broken_rule(Release(PEOPLE, contributors=2), Limits(least_sites=3)) == "least-sites"
    assert broken_rule(Release(PEOPLE, contributors=3), Limits(least_sites=3)) == ""


def test_a_regression_has_few_columns_none_of_them_rare_and_is_not_saturated() -> None:
    rng = np.random.default_rng(0)
    one = np.ones((20, 1))
    assert broken_rule(Release(PEOPLE, design=np.hstack([one, rng.normal(size=(20, 5))])), LIMITS) == ""
    assert broken_rule(Release(PEOPLE, design=rng.normal(size=(20, 7))), LIMITS) == "columns-per-patient"
    rare = np.hstack([one, (PEOPLE < 4)[:, None]])
    assert broken_rule(Release(PEOPLE, design=rare), LIMITS) == "rare-column"
    assert broken_rule(Release(PEOPLE, design=1 - rare), LIMITS) == "rare-column"  # also turned round
    # two halves and their product: four means, one of them of two patients
    first, second = PEOPLE < 10, (PEOPLE < 8) | (PEOPLE > 14)
    crossed = np.column_stack([np.ones(20), first, second, first & second])
    assert broken_rule(Release(PEOPLE, design=crossed[:, :3].astype(float)), LIMITS) == ""
    assert broken_rule(Release(PEOPLE, design=crossed.astype(float)), LIMITS) == "saturated-model"


def test_an_answer_about_nearly_the_same_patients_is_refused(tmp_path: Path) -> None:
    memory = ReleaseMemory(tmp_path / "releases")
    everybody = memory.marks(PEOPLE)
    memory.remember("mean age", everybody)

    def verdict(question: str, people: np.ndarray) -> str:
        marks = memory.marks(people)
        return broken_rule(Release(people, earlier=memory.earlier(question), marks=marks), LIMITS)

    assert verdict("mean age", PEOPLE) == ""  # the same answer again
    assert verdict("mean age", PEOPLE[1:]) == "earlier-release"
    assert verdict("mean age", PEOPLE[4:]) == "earlier-release"
    assert verdict("mean age", np.append(PEOPLE[1:], 99)) == "earlier-release"  # one exchanged for another
    assert verdict("mean age", PEOPLE[5:]) == ""  # the five that are left out would be told together
    assert verdict("mean weight", PEOPLE[1:]) == ""


def test_the_memory_of_answers_outlives_the_process_names_nobody_and_is_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "releases"
    ReleaseMemory(folder).remember("q", ReleaseMemory(folder).marks(["alice", "bob"]))
    assert ReleaseMemory(folder).earlier("q") == [ReleaseMemory(folder).marks(["bob", "alice", "bob"])]
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"alice" not in kept
    assert b"bob" not in kept
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
    (other := tmp_path / "elsewhere").mkdir()
    assert ReleaseMemory(other).marks(["alice"]).isdisjoint(ReleaseMemory(folder).marks(["alice"]))
    answer = next(path for path in folder.iterdir() if path.suffix == ".json")
    answer.write_bytes(answer.read_bytes()[:-9])
    with pytest.raises(RunError, match="is damaged"):
        ReleaseMemory(folder).earlier("q")


def test_a_single_small_cell_takes_its_smallest_neighbour_with_it() -> None:
    counts = np.array([3, 40, 17, 60])  # three levels and their total
    hidden = hidden_cells(counts, [Total(3, (0, 1, 2))], counts < 5, shown={3}, floor=5)
    assert hidden.tolist() == [True, False, True, False]
    low, high = possible_values(counts, [Total(3, (0, 1, 2))], hidden, 0)
    assert (low, high) == pytest.approx((0, 20), abs=1e-5)


def test_nothing_is_hidden_where_nothing_is_small() -> None:
    counts = np.array([10, 20, 30])
    assert not hidden_cells(counts, [Total(2, (0, 1))], counts < 5, shown=set(), floor=5).any()


def test_two_small_cells_that_are_known_together_take_a_third() -> None:
    counts = np.array([1, 2, 30, 33])  # one and two would be known to be three together
    hidden = hidden_cells(counts, [Total(3, (0, 1, 2))], np.array([1, 1, 0, 0], dtype=bool), shown={3}, floor=5)
    assert hidden.tolist() == [True, True, True, False]


INSIDE = np.stack(np.meshgrid(*[np.arange(21)] * 4), axis=-1).reshape(-1, 4)  # every table of two by two up to 20
MARGINS = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
TABLES = np.hstack([INSIDE, INSIDE @ MARGINS.T])


def ranges(counts: np.ndarray, hidden: Mask) -> list[tuple[int, int]]:
    """The least and most of each hidden cell over all tables that agree with what is shown."""
    agreeing = TABLES[(TABLES[:, ~hidden] == counts[~hidden]).all(axis=1)][:, hidden]
    return list(zip(agreeing.min(0).tolist(), agreeing.max(0).tolist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_no_hidden_cell_of_a_table_with_margins_can_be_told_to_within_the_floor(seed: int) -> None:
    """Two rows and two columns with all margins, by trying every table that agrees with what is shown."""
    rng = np.random.default_rng(seed)
    inner = rng.integers(0, 6, (2, 2))
    counts = np.concatenate([inner.ravel(), inner.sum(1), inner.sum(0), [inner.sum()]])
    totals = [
        Total(4, (0, 1)),
        Total(5, (2, 3)),
        Total(6, (0, 2)),
        Total(7, (1, 3)),
        Total(8, (4, 5)),
        Total(8, (6, 7)),
    ]
    floor = 3
    small = (counts > 0) & (counts < floor)
    small[8] = False
    hidden = hidden_cells(counts, totals, small, shown={8}, floor=floor)
    assert not (small & ~hidden).any()
    if hidden[:8].all() or not hidden.any():
        return
    for number, (low, high) in zip(np.flatnonzero(hidden).tolist(), ranges(counts, hidden), strict=True):
        least, most = possible_values(counts, totals, hidden, number)
        assert least <= low
        assert high <= most
        assert most - least > floor


def test_every_rule_says_what_it_forbids() -> None:
    assert all(rule.forbids for rule in RULES.values())
