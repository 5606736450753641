"""One rule for call, prediction set and referral: what holds for every score, threshold, cut and limit of doubt."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from wardround.tasks import Binary, Multiclass, Multilabel
from wardround.uncertainty.conformal import coverage, fit_cuts, held, prediction_sets
from wardround.uncertainty.decision import (
    DOUBT,
    NO_ANSWER_FITS,
    PREDICTION_ADDED,
    REASONS,
    UNKNOWN,
    answers,
    predicted_labels,
    referral_reasons,
    referred,
    rows_with,
)

DOCS = Path(__file__).parents[2] / "docs"
TWO = Binary(("well", "ill"))
TASKS = {"two classes": TWO, "several classes": Multiclass(tuple("abcde")), "findings": Multilabel(tuple("abcd"))}
KINDS = tuple(TASKS)


def drawn(kind: str, rng: np.random.Generator, rows: int = 40) -> tuple[np.ndarray, np.ndarray | float | None]:
    """Scores, and thresholds at any place."""
    if kind == "two classes":
        return expit(rng.normal(scale=2, size=rows)), float(rng.uniform(0.001, 0.999))
    if kind == "findings":
        return expit(rng.normal(scale=2, size=(rows, 4))), rng.uniform(0.001, 0.999, 4)
    return softmax(rng.normal(scale=2, size=(rows, 5)), axis=1), None


def labels_of(kind: str, score: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if kind == "several classes":
        return np.asarray((score.cumsum(axis=1) < rng.random((len(score), 1))).sum(axis=1)).clip(0, score.shape[1] - 1)
    return (rng.random(score.shape) < score).astype(np.int64)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
    alpha=st.floats(0.01, 0.9),
    validation=st.integers(0, 80),
    limit=st.one_of(st.floats(0, 1), st.sampled_from([-np.inf, np.inf])),
    moved=st.floats(0, 0.3),
)
def test_a_call_is_in_its_set_and_who_is_referred_has_a_reason(
    kind: str, seed: int, alpha: float, validation: int, limit: float, moved: float
) -> None:
    """`moved`: sets go by a mean over passes, calls by one score, so that the two may differ."""
    rng = np.random.default_rng(seed)
    score, threshold = drawn(kind, rng)
    known = drawn(kind, rng, validation)[0]
    cuts = fit_cuts(TASKS[kind], labels_of(kind, known, rng), known, alpha)
    noise = rng.random(score.shape)
    mean = (1 - moved) * score + moved * (noise / noise.sum(axis=1, keepdims=True) if threshold is None else noise)
    conformal = prediction_sets(TASKS[kind], cuts, mean)
    call = predicted_labels(score, threshold)
    answer_sets = answers(conformal, call)
    sizes, before = answer_sets.sets.sum(axis=-1), conformal.sum(axis=-1)
    assert held(answer_sets.sets, call).all()
    assert (answer_sets.sets >= conformal).all()  # nothing is taken away: coverage stays
    # where the call was there already, nothing was added; otherwise one answer, or all where there was none
    agreed = held(conformal, call)
    assert (sizes == np.where(agreed, before, np.where(before == 0, conformal.shape[-1], before + 1))).all()
    assert ((answer_sets.added | answer_sets.empty) == ~agreed).all()
    assert not (answer_sets.added & answer_sets.empty).any()
    assert agreed[sizes == 1].all()  # one answer stands on the score alone, and is the call

    doubt = rng.random(len(score))
    reasons = referral_reasons(doubt, limit, answer_sets)
    assert set(reasons) <= set(REASONS)
    away = referred(reasons)
    assert (away == ((doubt > limit) | rows_with(~agreed))).all()
    assert (away == np.any([rows_with(rows) for rows in reasons.values()], axis=0)).all()


def test_what_is_added_by_hand() -> None:
    """Threshold 0.6, and answers within 0.5 of `no` and 0.3 of `yes`. 0.55 is too high for `no` and too low for `yes`;
    0.72 agrees; at a threshold of 0.8 it is called `no` and its set holds `yes` alone."""
    cuts = fit_cuts(TWO, np.array([0] * 9 + [1] * 9), np.array([0.5] * 9 + [0.7] * 9), 0.1)
    assert cuts.values == pytest.approx([0.5, 0.3])
    score = np.array([0.2, 0.55, 0.72])
    answer_sets = answers(prediction_sets(TWO, cuts, score), predicted_labels(score, 0.6))
    assert answer_sets.sets.tolist() == [[True, False], [True, True], [False, True]]
    assert answer_sets.empty.tolist() == [False, True, False]
    assert not answer_sets.added.any()
    later = answers(prediction_sets(TWO, cuts, score), predicted_labels(score, 0.8))
    assert later.sets.tolist() == [[True, False], [True, True], [True, True]]
    assert later.added.tolist() == [False, False, True]
    reasons = referral_reasons(np.array([0.1, 0.2, np.inf]), 0.15, later)
    assert {reason.code: rows.tolist() for reason, rows in reasons.items()} == {
        UNKNOWN.code: [False, False, True],
        DOUBT.code: [False, True, False],
        PREDICTION_ADDED.code: [False, False, True],
        NO_ANSWER_FITS.code: [False, True, False],
    }


def test_a_row_without_a_prediction_is_neither_in_doubt_nor_added_to() -> None:
    conformal = np.zeros((2, 3), dtype=bool)
    answer_sets = answers(conformal, np.array([-1, 2]))
    assert answer_sets.sets.tolist() == [[False] * 3, [True] * 3]
    assert answer_sets.empty.tolist() == [False, True]
    reasons = referral_reasons(np.array([-np.inf, 0.0]), -np.inf, None)
    assert reasons[DOUBT].tolist() == [False, True]
    assert not reasons[UNKNOWN].any()


def test_calls_do_not_depend_on_the_precision_of_a_score() -> None:
    """The threshold lies between two neighbouring scores; rounded to their precision it would land on one of them."""
    low = np.float32(0.3)
    high = np.nextafter(low, np.float32(1))
    threshold = (float(low) + float(high)) / 2
    score = np.array([low, high])
    assert predicted_labels(score, threshold).tolist() == [0, 1]
    assert predicted_labels(score.astype(np.float64), threshold).tolist() == [0, 1]
    assert (score >= threshold).tolist() != [False, True]  # what would happen without


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_coverage_is_no_less_than_promised_at_any_threshold(kind: str, alpha: float) -> None:
    """200 federations of 100 validation and 40 test rows each, with a threshold anywhere. The mean of so many shares
    strays by less than a point."""
    rng = np.random.default_rng(7)
    given_sets, bare = [], []
    for _ in range(200):
        score, threshold = drawn(kind, rng, 140)
        label = labels_of(kind, score, rng)
        cuts = fit_cuts(TASKS[kind], label[:100], score[:100], alpha)
        answer_sets = answers(prediction_sets(TASKS[kind], cuts, score[100:]), predicted_labels(score[100:], threshold))
        given_sets.append(coverage(answer_sets.sets, label[100:]).mean())
        bare.append(coverage(answer_sets.conformal, label[100:]).mean())
    assert np.mean(given_sets) >= np.mean(bare) >= 1 - alpha - 0.015


def test_every_reason_is_documented_and_none_that_is_not() -> None:
    page = (DOCS / "how-to" / "predict.md").read_text(encoding="utf-8")
    table = page.partition("| code | `why` says")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \| `([^`:]+)", table, flags=re.MULTILINE)
    assert documented == [(reason.code, reason.text) for reason in REASONS]
    assert len({reason.text for reason in REASONS}) == len({reason.code for reason in REASONS}) == len(REASONS)
