"""The rule for predicted labels, prediction sets and referral to a clinician.

    predicted   two classes and findings: the score is at or above the threshold; more classes: the highest score
    set         every label within its conformal cut, and the predicted one. Where no label is within its cut, all
    refer       if there is a reason, and only then; `why` names every reason

Threshold and cuts answer different questions, so that a predicted label can lie outside its cut. It is then added:
a larger set covers no less, so that the conformal guarantee holds, and the row is referred. So a set with one label
always holds the predicted one, which was not added. An empty conformal set rules out every label, among them the right
one; it shows that the row is unusual, not which label is wrong, so that all labels are kept.

`predict`, `serve`, the card of a bundle and the report all decide by this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wardround.uncertainty.conformal import held
from wardround.uncertainty.referral import refer


@dataclass(frozen=True)
class Reason:
    """Why a row is referred. `code` is for programs and never changes; `text` is what the column `why` says."""

    code: str
    text: str


INCOMPLETE = Reason("incomplete", "incomplete")
NEW_GAP = Reason("new-gap", "a gap where training had none")
UNSEEN = Reason("unseen-level", "unseen level")
OUTSIDE = Reason("outside-range", "outside the known range")
OUT_OF_DISTRIBUTION = Reason("far", "far from the training rows")
TOO_LARGE = Reason("too-large", "too large to compute with")
UNREADABLE = Reason("unreadable-image", "the image cannot be read")
UNEXPOSED = Reason("no-exposure", "no exposure above 0")
UNKNOWN = Reason("uncertainty-unknown", "how sure it is cannot be computed")
DOUBT = Reason("doubt", "the call is in doubt")
PREDICTION_ADDED = Reason("call-added", "the call was added to its prediction set")
NO_ANSWER_FITS = Reason("no-answer-fits", "no answer fits, so the prediction set holds all")

# in the order in which `why` names them
REASONS = (
    INCOMPLETE,
    NEW_GAP,
    UNSEEN,
    OUTSIDE,
    OUT_OF_DISTRIBUTION,
    TOO_LARGE,
    UNREADABLE,
    UNEXPOSED,
    UNKNOWN,
    DOUBT,
    PREDICTION_ADDED,
    NO_ANSWER_FITS,
)
TEXTS = {reason.code: reason.text for reason in REASONS}


@dataclass(frozen=True, eq=False)
class Answers:
    """Prediction sets: (rows, classes), or (rows, findings, 2) for absent and present. The last two are marks of rows,
    or of (rows, findings)."""

    conformal: np.ndarray  # labels within their cuts, to which the guarantee of coverage applies
    sets: np.ndarray  # with the labels that were added: what a user sees
    added: np.ndarray  # other labels were within their cuts, the predicted one was not
    empty: np.ndarray  # no label was within its cut

    def take(self, rows: np.ndarray) -> "Answers":
        return Answers(self.conformal[rows], self.sets[rows], self.added[rows], self.empty[rows])

    def finding(self, place: int) -> "Answers":
        """Of one finding, as if there were no others."""
        only = [place]
        return Answers(self.conformal[:, only], self.sets[:, only], self.added[:, only], self.empty[:, only])


def predicted_labels(score: np.ndarray, threshold: np.ndarray | float | None) -> np.ndarray:
    """Class numbers (rows,), or 1 and 0 for each finding. `threshold` is that of the positive class, or of each
    finding; None: the highest score decides.

    Compared in double precision: a threshold that is rounded to a score's precision may land on the score.
    """
    if threshold is None:
        return np.asarray(score.argmax(axis=1))
    return (score.astype(np.float64) >= threshold).astype(np.int64)


def answers(conformal: np.ndarray, predicted: np.ndarray) -> Answers:
    """`conformal` as from `conformal.prediction_sets`. A predicted label of -1 is none: nothing is added there."""
    known = predicted >= 0
    empty = ~conformal.any(axis=-1) & known
    added = known & ~empty & ~held(conformal, predicted)
    labels = np.arange(conformal.shape[-1])
    sets = conformal | empty[..., None] | (labels == predicted[..., None])
    return Answers(conformal, sets, added, empty)


def referral_reasons(doubt: np.ndarray, cut: np.ndarray | float, sets: Answers | None) -> dict[Reason, np.ndarray]:
    """By reason that follows from the prediction: which rows, or (rows, findings) which of their findings.

    `doubt` is in bits and one number for each row; infinite where it cannot be computed, and minus infinity where there
    is no prediction. `cut` is one for all rows, or one for each. `sets` is None where no conformal cuts are known.
    """
    unknown = np.isposinf(doubt)
    reasons = {UNKNOWN: unknown, DOUBT: refer(doubt, cut) & ~unknown}
    return reasons if sets is None else {**reasons, PREDICTION_ADDED: sets.added, NO_ANSWER_FITS: sets.empty}


def rows_with(marks: np.ndarray) -> np.ndarray:
    """(rows,) from marks of rows, or of their findings."""
    return np.asarray(np.atleast_2d(marks.T).any(axis=0))


def referred(reasons: Mapping[Reason, np.ndarray]) -> np.ndarray:
    return np.asarray(np.any([rows_with(marks) for marks in reasons.values()], axis=0))
