"""Parts of uncertainty: sums done by hand, identities, bounds, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from wardround.core.errors import StudyError
from wardround.tasks import Binary, Multiclass, Multilabel
from wardround.tasks.probabilities import ProbabilityTask
from wardround.uncertainty.decomposition import (
    about_threshold,
    doubt_of,
    entropy_parts,
    interval,
    score_spread,
)

ROUNDING = 1e-12
TWO = Binary(("well", "ill"))


def task_of(width: int, several: bool) -> ProbabilityTask:
    names = tuple(map(str, range(width)))
    return Multiclass(names) if several else Multilabel(names)


def drawn(seed: int, passes: int, rows: int, width: int, several: bool) -> np.ndarray:
    """Probabilities, some of them exactly 0 or 1."""
    rng = np.random.default_rng(seed)
    if several:
        p = rng.dirichlet(np.full(width, 0.4), (passes, rows))
        p[0, 0] = np.eye(width)[0]
        return p
    p = rng.beta(0.4, 0.4, (passes, rows, width))
    p[0, 0] = 0.0
    return p


shapes = st.tuples(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 5), st.integers(2, 5), st.booleans())


def test_passes_that_agree_and_passes_that_do_not_by_hand() -> None:
    """A coin that all passes see as one is aleatoric; passes that are sure of opposite things are epistemic."""
    coin = np.full((2, 1), 0.5)
    quarrel = np.array([[0.0], [1.0]])
    sure = np.ones((2, 1))
    both = np.array([[0.25], [0.75]])
    parts = entropy_parts(TWO, np.concatenate([coin, quarrel, sure, both], axis=1))
    quarter = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    assert parts.mean == pytest.approx([0.5, 0.5, 1.0, 0.5])
    assert parts.total == pytest.approx([1.0, 1.0, 0.0, 1.0])
    assert parts.aleatoric == pytest.approx([1.0, 0.0, 0.0, quarter])
    assert parts.epistemic == pytest.approx([0.0, 1.0, 0.0, 1.0 - quarter])


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_parts_add_up_lie_within_their_bounds_and_are_scipys(shape: tuple[int, int, int, int, bool]) -> None:
    *_, width, several = shape
    p = drawn(*shape)
    parts = entropy_parts(task_of(*shape[-2:]), p)
    labels = p if several else np.stack([1 - p, p], axis=-1)  # one axis more: absent and present
    most = np.log2(width) if several else 1.0
    assert parts.total == pytest.approx(entropy(labels.mean(axis=0), base=2, axis=-1), abs=ROUNDING)
    assert parts.aleatoric == pytest.approx(entropy(labels, base=2, axis=-1).mean(axis=0), abs=ROUNDING)
    assert parts.epistemic == pytest.approx(parts.total - parts.aleatoric)
    # mutual information is also the mean divergence of the passes from their mean
    divergence = entropy(labels, np.broadcast_to(labels.mean(axis=0), labels.shape), base=2, axis=-1).mean(axis=0)
    assert parts.epistemic == pytest.approx(divergence, abs=1e-9)
    for part in (parts.total, parts.aleatoric, parts.epistemic):
        assert (part >= 0).all()
        assert (part <= most + ROUNDING).all()
    assert (parts.epistemic <= np.log2(len(p)) + ROUNDING).all()  # n passes can disagree by log n at most


@settings(max_examples=30, deadline=None)
@given(shapes)
def test_the_order_of_passes_says_nothing_and_one_pass_has_no_epistemic_part(
    shape: tuple[int, int, int, int, bool],
) -> None:
    p, task = drawn(*shape), task_of(*shape[-2:])
    there, back = entropy_parts(task, p), entropy_parts(task, p[::-1])
    assert there.epistemic == pytest.approx(back.epistemic, abs=ROUNDING)
    assert entropy_parts(task_of(*shape[-2:]), p[:1]).epistemic == pytest.approx(0, abs=ROUNDING)
    same = entropy_parts(task_of(*shape[-2:]), np.repeat(p[:1], 7, axis=0))
    assert same.epistemic == pytest.approx(0, abs=ROUNDING)


def test_two_classes_are_several_classes_of_two() -> None:
    p = drawn(4, 6, 5, 2, several=True)
    multiclass_parts, two = entropy_parts(task_of(2, several=True), p), entropy_parts(TWO, p[:, :, 1])
    assert multiclass_parts.epistemic == pytest.approx(two.epistemic)
    assert multiclass_parts.total == pytest.approx(two.total)
    assert multiclass_parts.mean[:, 1] == pytest.approx(two.mean)


def test_single_precision_may_round_above_one() -> None:
    p = np.array([[np.nextafter(np.float32(1), np.float32(2))]])
    assert entropy_parts(TWO, p).total == pytest.approx(0)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, np.nan])
def test_what_is_no_probability_is_refused_and_its_value_is_not_told(wrong: float) -> None:
    with pytest.raises(StudyError, match="below 0, above 1 or no number") as raised:
        entropy_parts(TWO, np.array([[0.5, wrong]]))
    assert str(wrong) not in str(raised.value).replace("above 1 ", "")
    with pytest.raises(StudyError, match="there are none"):
        entropy_parts(TWO, np.empty((0, 3)))


def test_an_interval_holds_the_passes_that_it_says() -> None:
    p = np.linspace(0, 1, 101)[:, None]
    low, high = interval(p, 0.9)
    assert (low[0], high[0]) == pytest.approx((0.05, 0.95))
    assert interval(np.full((30, 2), 0.3))[0] == pytest.approx([0.3, 0.3])


def test_a_rows_figure_is_the_mean_over_its_findings() -> None:
    findings = Multilabel(("a", "b"))
    assert findings.of_rows(np.array([[0.2, 0.4], [0.0, 1.0]])) == pytest.approx([0.3, 0.5])
    assert TWO.of_rows(np.array([0.2, 0.4])) == pytest.approx([0.2, 0.4])


def test_a_call_is_in_most_doubt_at_its_threshold() -> None:
    """At 0.05 odds of 1 to 19 are even odds; 0.5 is then as clear as 0.95 is at one half."""
    p = np.array([[0.05, 0.5, 0.01]])
    moved = about_threshold(p, 0.05)
    assert moved == pytest.approx(np.array([[0.5, 0.95, (1 / 99 * 19) / (1 + 1 / 99 * 19)]]))
    assert entropy_parts(TWO, moved).total.argmax() == 0
    assert entropy_parts(TWO, p).total.argmax() == 1
    assert about_threshold(p, 0.5) == pytest.approx(p)
    each = about_threshold(np.full((2, 3, 2), 0.3), np.array([0.3, 0.5]))
    assert each[..., 0] == pytest.approx(0.5)
    assert each[..., 1] == pytest.approx(0.3)


def test_calls_do_not_change_when_the_threshold_moves_to_one_half() -> None:
    p = drawn(9, 1, 50, 3, several=False)
    cut = np.array([0.1, 0.5, 0.8])
    assert ((about_threshold(p, cut) >= 0.5) == (p >= cut)).all()


def test_the_spread_of_scores_by_hand() -> None:
    """Both rows' passes lie 2 above and below their mean; that one says 0.1 % and the other one half is no matter."""
    scores = np.array([[[-9.0], [-2.0]], [[-5.0], [2.0]]])
    assert score_spread(TWO, scores) == pytest.approx(np.array([[2.0], [2.0]]))
    assert (np.diff(entropy_parts(TWO, 1 / (1 + np.exp(-scores[..., 0]))).epistemic) > 0.1).all()
    # what all classes have in common changes no probability
    classes = np.random.default_rng(1).normal(size=(5, 4, 3))
    shifted = classes + np.random.default_rng(2).normal(size=(5, 4, 1))
    task = task_of(3, several=True)
    assert score_spread(task, shifted) == pytest.approx(score_spread(task, classes))
    assert score_spread(task, shifted).shape == (4,)


def test_a_call_is_most_in_doubt_at_its_threshold() -> None:
    """The entropy of 0.5 is one bit, that of 0.9 is 0.469. A finding that is called from 0.1 on (odds 1 : 9) is as much
    in doubt at one half (odds 1 : 1, nine times as high) as 0.9 is about one half."""
    doubts = doubt_of(TWO, np.array([0.5, 0.9, 0.1]), 0.5)
    assert doubts == pytest.approx([1, 0.468996, 0.468996], abs=1e-6)
    findings = doubt_of(task_of(2, several=False), np.array([[0.1, 0.5], [0.5, 0.1]]), np.array([0.1, 0.5]))
    assert findings == pytest.approx(np.array([[1, 1], [0.468996, 0.468996]]), abs=1e-6)
    assert doubt_of(task_of(4, several=True), np.full((1, 4), 0.25), 0.5) == pytest.approx([2])  # four classes alike
    assert doubt_of(task_of(3, several=False), np.zeros((0, 3)), np.full(3, 0.5)).shape == (0, 3)
