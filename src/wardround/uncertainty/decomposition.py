"""The predictive uncertainty of a row from many passes, and its parts.

    total       entropy of the mean probability: 1 bit is a coin toss
    aleatoric   mean entropy of the passes: unclear to every pass, whatever the amount of training
    epistemic   the rest, the mutual information of label and pass: disagreement of the passes, because the model has
                not seen enough rows like this one

The split is that of Houlsby et al. (arXiv:1112.5745) and Depeweg et al. (ICML 2018). All are in bits.

Two questions need figures of their own. Is this prediction in doubt? The threshold of a finding that one patient in
twenty has is far below one half, and entropy would refer those who are clearly ill: `about_threshold` moves the
threshold to one half first. Is this row like those of training? Entropy is uninformative where all passes agree on 0.1
per cent, and networks do so for noise too: `score_spread` uses scores, which have no floor.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import entr, expit, logit

from wardround.core.errors import StudyError
from wardround.evaluation.calibration_curves import CLIP
from wardround.tasks.probabilities import ProbabilityTask
from wardround.uncertainty.scales import SCALES

INTERVAL = 0.9  # of the passes lie within it


@dataclass(frozen=True, eq=False)
class Parts:
    """(rows,) for classes, (rows, findings) for findings."""

    mean: np.ndarray  # probability; (rows, classes) for multiclass
    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def entropy_parts(task: ProbabilityTask, probabilities: np.ndarray) -> Parts:
    """`probabilities` are those of the task, with an axis of passes before that of rows."""
    p = _checked(probabilities)
    mean = p.mean(axis=0)
    total = _entropy(task, mean)
    aleatoric = np.minimum(_entropy(task, p).mean(axis=0), total)  # rounding may put it a little above
    return Parts(mean, total, aleatoric, total - aleatoric)


def interval(probabilities: np.ndarray, inside: float = INTERVAL) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles between which a share of the passes lies: their disagreement, not whether they are right."""
    p = _checked(probabilities)
    low, high = np.quantile(p, [(1 - inside) / 2, (1 + inside) / 2], axis=0)
    return low, high


def about_threshold(probabilities: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    """Probabilities shifted on the logit scale so that the threshold (one, or one for each finding) is at one half.
    Their entropy is the doubt about the prediction."""
    p = np.clip(_checked(probabilities), CLIP, 1 - CLIP)
    cut = np.clip(np.asarray(threshold, dtype=np.float64), CLIP, 1 - CLIP)
    return np.asarray(expit(logit(p) - logit(cut)))


def doubt_of(task: ProbabilityTask, mean: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    """How unclear the prediction of each row is, in bits: entropy of the mean probability, and for findings (rows,
    findings) about the threshold of each. Reports and bundles refer by it."""
    p = about_threshold(mean[None], threshold) if task.findings else np.asarray(mean)[None]
    return entropy_parts(task, p).total


def score_spread(task: ProbabilityTask, scores: np.ndarray) -> np.ndarray:
    """The standard deviation of scores (not probabilities) over the passes, of scores (passes, rows, outputs): in the
    shape of the doubts. Of several classes only the differences between scores count."""
    return SCALES[task.probability_scale].spread(np.asarray(scores, dtype=np.float64))


def _entropy(task: ProbabilityTask, p: np.ndarray) -> np.ndarray:
    return np.asarray(entr(task.label_probabilities(p)).sum(axis=-1) / np.log(2))


def _checked(probabilities: np.ndarray) -> np.ndarray:
    p = np.asarray(probabilities, dtype=np.float64)
    if not len(p):
        raise StudyError("uncertainty: passes", "there are none", "Give probabilities of one pass or more.")
    if np.isnan(p).any() or (p < 0).any() or (p > 1 + 1e-6).any():
        raise StudyError(
            "uncertainty: passes",
            "a probability is below 0, above 1 or no number",
            "Give probabilities, not scores; a model that has diverged has none.",
        )
    return np.minimum(p, 1.0)  # a softmax in single precision may round to a little more
