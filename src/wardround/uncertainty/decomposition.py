"""What many passes say of a row: how probable, how unsure, and why unsure.

    total       entropy of the mean probability: 1 bit is a coin that is tossed
    aleatoric   mean entropy of the passes: what every pass finds unclear in the row, and more training would not change
    epistemic   the rest, the mutual information of label and pass: what the passes do not agree on, because the model
                has not seen enough rows like this one

The split is that of Houlsby et al. (arXiv:1112.5745) and Depeweg et al. (ICML 2018). All are in bits.

Two questions need a figure of their own. Is this call in doubt? A finding that one patient in twenty has is called at a
score far below one half, and entropy would send those to a clinician who are clearly ill: `about_threshold` moves the
threshold to one half first. Is this row like those of training? Entropy says nothing where all passes agree on 0.1 per
cent, and networks do so for noise too: `score_spread` looks at scores, which have no floor.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import entr, expit, logit

from wardround.core.errors import StudyError
from wardround.evaluation.calibration_curves import CLIP

INTERVAL = 0.9  # of the passes lie within it


@dataclass(frozen=True, eq=False)
class Parts:
    """For two classes and for several: of each row (rows,). For findings: (rows, findings)."""

    mean: np.ndarray  # probability; (rows, classes) for several classes
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def entropy_parts(probabilities: np.ndarray, several_classes: bool = False) -> Parts:
    """`probabilities` are (passes, rows) for two classes, (passes, rows, findings) for findings; and with
    `several_classes` (passes, rows, classes), where a row's classes are shared out between them."""
    p = _checked(probabilities)
    mean = p.mean(axis=0)
    total = _entropy(mean, several_classes)
    aleatoric = np.minimum(_entropy(p, several_classes).mean(axis=0), total)  # rounding may put it a little above
    return Parts(mean, total, aleatoric, total - aleatoric)


def variance_parts(probabilities: np.ndarray) -> Parts:
    """The same by variances, for two classes and for findings: a label's variance m (1 - m) is the mean of the passes'
    p (1 - p) and the variance of p (the law of total variance). At most a quarter."""
    p = _checked(probabilities)
    mean = p.mean(axis=0)
    return Parts(mean, mean * (1 - mean), (p * (1 - p)).mean(axis=0), p.var(axis=0))


def interval(probabilities: np.ndarray, inside: float = INTERVAL) -> tuple[np.ndarray, np.ndarray]:
    """Between which probabilities the middle passes lie. Says what the passes do not agree on, and nothing of whether
    they are right together."""
    p = _checked(probabilities)
    low, high = np.quantile(p, [(1 - inside) / 2, (1 + inside) / 2], axis=0)
    return low, high


def about_threshold(probabilities: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    """Probabilities moved so that the threshold (one, or one for each finding) stands at one half, by a shift of their
    logits. Parts of these say how unsure the call is. At a threshold of one half nothing moves."""
    p = np.clip(_checked(probabilities), CLIP, 1 - CLIP)
    cut = np.clip(np.asarray(threshold, dtype=np.float64), CLIP, 1 - CLIP)
    moved: np.ndarray = expit(logit(p) - logit(cut))
    return moved


def doubt_of(mean: np.ndarray, findings: bool, threshold: np.ndarray | float) -> np.ndarray:
    """How unclear the call of each row is, in bits: entropy of the mean probability, and for findings (rows, findings)
    about the threshold of each. What a report measures and a bundle refers by."""
    p = about_threshold(mean[None], threshold) if findings else np.asarray(mean)[None]
    return entropy_parts(p, several_classes=mean.ndim == 2 and not findings).total


def score_spread(scores: np.ndarray, several_classes: bool = False) -> np.ndarray:
    """The standard deviation of scores (not probabilities) over the passes: (rows, outputs) of (passes, rows, outputs).
    Of several classes only differences between their scores count, so that each pass's mean is taken off."""
    z = np.asarray(scores, dtype=np.float64)
    z = z - z.mean(axis=-1, keepdims=True) if several_classes else z
    return np.asarray(z.std(axis=0))


def of_rows(each: np.ndarray) -> np.ndarray:
    """One number for each row, from one for each finding: their mean. For classes it is there already."""
    return each if each.ndim == 1 else each.mean(axis=1)


def _entropy(p: np.ndarray, several_classes: bool) -> np.ndarray:
    nats = entr(p).sum(axis=-1) if several_classes else entr(p) + entr(1 - p)
    return np.asarray(nats / np.log(2))


def _checked(probabilities: np.ndarray) -> np.ndarray:
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim < 2 or not len(p):
        raise StudyError("uncertainty: passes", "there are none", "Give probabilities of one pass or more.")
    if np.isnan(p).any() or (p < 0).any() or (p > 1 + 1e-6).any():
        raise StudyError(
            "uncertainty: passes",
            "a probability is below 0, above 1 or no number",
            "Give probabilities, not scores; a model that has diverged has none.",
        )
    return np.minimum(p, 1.0)  # a softmax in single precision may round to a little more
