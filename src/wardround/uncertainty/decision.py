"""One rule for what a row is called, which answers its prediction set holds, and whether a clinician should look.

    call     two classes and findings: the score is at or above the threshold; several classes: the highest score
    set      every answer that lies within its conformal cut, and the call. Where no answer lies within its cut, all
    refer    if there is a reason, and only then; `why` names every reason

Threshold and cuts answer different questions, so that a call can lie outside its cut. It is then added: a set that
holds more covers no less, so that what conformal prediction promises stays true, and the row is referred for it. So a
set with one answer always holds the call, and never stands on an answer that was added. An empty set rules out every
answer, among them the right one; it says that none is usual, not which, so that nothing is left out.

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
FAR = Reason("far", "far from the training rows")
TOO_LARGE = Reason("too-large", "too large to compute with")
UNREADABLE = Reason("unreadable-image", "the image cannot be read")
UNKNOWN = Reason("uncertainty-unknown", "how sure it is cannot be computed")
DOUBT = Reason("doubt", "the call is in doubt")
CALL_ADDED = Reason("call-added", "the call was added to its prediction set")
NO_ANSWER_FITS = Reason("no-answer-fits", "no answer fits, so the prediction set holds all")

# in the order in which `why` names them
REASONS = (
    INCOMPLETE,
    NEW_GAP,
    UNSEEN,
    OUTSIDE,
    FAR,
    TOO_LARGE,
    UNREADABLE,
    UNKNOWN,
    DOUBT,
    CALL_ADDED,
    NO_ANSWER_FITS,
)
TEXTS = {reason.code: reason.text for reason in REASONS}


@dataclass(frozen=True, eq=False)
class Answers:
    """Of some rows: (rows, classes), and for findings (rows, findings, 2) for absent and present. The last two have a
    mark for each call."""

    conformal: np.ndarray  # labels within their cuts; coverage is promised of these
    sets: np.ndarray  # the same and what was added: what a user is given
    added: np.ndarray  # other labels lay within their cuts, the call did not
    empty: np.ndarray  # no label lay within its cut

    def take(self, rows: np.ndarray) -> "Answers":
        return Answers(self.conformal[rows], self.sets[rows], self.added[rows], self.empty[rows])

    def finding(self, place: int) -> "Answers":
        """Of one finding, as if there were no others."""
        only = [place]
        return Answers(self.conformal[:, only], self.sets[:, only], self.added[:, only], self.empty[:, only])


def called(score: np.ndarray, threshold: np.ndarray | float | None) -> np.ndarray:
    """Class numbers (rows,), or 1 and 0 for each finding. `threshold` is that of the positive of two classes, or of
    each finding; None: the highest score is called.

    Compared in double precision: a threshold that is rounded to a score's precision may land on the score.
    """
    if threshold is None:
        highest: np.ndarray = score.argmax(axis=1)
        return highest
    return (score.astype(np.float64) >= threshold).astype(np.int64)


def answers(conformal: np.ndarray, call: np.ndarray) -> Answers:
    """`conformal` as `conformal.prediction_sets` makes it. A call of -1 is none: to such a row nothing is added."""
    known = call >= 0
    empty = ~conformal.any(axis=-1) & known
    added = known & ~empty & ~held(conformal, call)
    labels = np.arange(conformal.shape[-1])
    sets = conformal | empty[..., None] | (labels == call[..., None])
    return Answers(conformal, sets, added, empty)


def referral_reasons(doubt: np.ndarray, cut: np.ndarray | float, found: Answers | None) -> dict[Reason, np.ndarray]:
    """By reason that follows from the prediction: which rows, or (rows, findings) which of their findings.

    `doubt` is in bits and one number for each row; infinite where it cannot be computed, and below all where there is
    no prediction to be in doubt about. `cut` is one for all rows, or one for each. `found` is None where no conformal
    cuts are known.
    """
    unknown = np.isposinf(doubt)
    made = {UNKNOWN: unknown, DOUBT: refer(doubt, cut) & ~unknown}
    return made if found is None else {**made, CALL_ADDED: found.added, NO_ANSWER_FITS: found.empty}


def rows_with(marks: np.ndarray) -> np.ndarray:
    """(rows,) from marks of rows, or of their findings."""
    return marks if marks.ndim == 1 else np.asarray(marks.any(axis=1))


def referred(reasons: Mapping[Reason, np.ndarray]) -> np.ndarray:
    """Rows for which there is any reason."""
    return np.asarray(np.any([rows_with(marks) for marks in reasons.values()], axis=0))
