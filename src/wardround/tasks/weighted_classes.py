"""Figures of classes and findings under resamples of patients: a resample gives each row a weight, and every figure is
computed from weighted rows. Scores are sorted once, not once for each resample."""

import numpy as np

from wardround.tasks.class_metrics import CLIP, METRICS, NEED_POSITIVES, array_rates, predicted_classes


class _Ranking:
    """Areas under curves of one class against the rest: rows in order of their score, ties together."""

    def __init__(self, positive: np.ndarray, score: np.ndarray) -> None:
        self.order = np.argsort(-score, kind="stable")
        s = score[self.order]
        self.begins = np.flatnonzero(np.append(True, s[1:] != s[:-1]))
        self.positive = positive[self.order].astype(np.float64)[:, None]

    def areas(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not len(self.order):
            return np.full(len(weights), np.nan), np.full(len(weights), np.nan)
        # rows first: sums along the first axis take many resamples in one step. Weights are counts, so sums are exact
        predicted = np.take(weights.T, self.order, axis=0).astype(np.float64)
        hits = predicted * self.positive
        if len(self.begins) < len(self.order):
            hits, predicted = (np.add.reduceat(counts, self.begins, axis=0) for counts in (hits, predicted))
        all_hits, all_predicted = np.cumsum(hits, axis=0), np.cumsum(predicted, axis=0)
        total_hits, total = all_hits[-1], all_predicted[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            # a miss is below every hit with a higher score, and half below those with the same
            roc = ((predicted - hits) * (all_hits - hits / 2)).sum(axis=0) / (total_hits * (total - total_hits))
            precision = np.where(all_predicted > 0, all_hits / all_predicted, 0)
            return roc, np.ascontiguousarray((hits * precision).T).sum(axis=1) / total_hits


class WeightedFinding:
    """One finding, or the positive class (`is_class`), which needs no positive row."""

    def __init__(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray, is_class: bool = False) -> None:
        self.known = label >= 0
        self.needs_positives = () if is_class else NEED_POSITIVES
        positive, p = label[self.known] == 1, score[self.known].astype(np.float64)
        predicted = p >= threshold[self.known]
        inside = np.clip(p, CLIP, 1 - CLIP)
        self.ranking = _Ranking(positive, p)
        columns = (
            positive,
            predicted,
            positive & predicted,
            (p - positive) ** 2,
            -np.log(np.where(positive, inside, 1 - inside)),
        )
        self.sums = np.stack([column.astype(np.float32) for column in columns], axis=1)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """(resamples, metrics), for weights (resamples, rows)."""
        figures = self.figures(weights)
        return np.stack([figures[name] for name in METRICS], axis=1)

    def figures(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        w = weights if self.known.all() else weights[:, self.known]
        rows = w.sum(axis=1, dtype=np.float64)
        positives, predicted, tp, brier, loss = (w @ self.sums).astype(np.float64).T
        fp, fn = predicted - tp, positives - tp
        auc, pr_auc = self.ranking.areas(w)
        with np.errstate(divide="ignore", invalid="ignore"):
            figures = {
                "accuracy": (rows - fp - fn) / rows,
                "auc": auc,
                "pr_auc": pr_auc,
                "brier": brier / rows,
                "loss": loss / rows,
                **array_rates(tp, fp, fn, rows - tp - fp - fn),
            }
        for name in self.needs_positives:
            figures[name] = np.where(positives > 0, figures[name], np.nan)
        return figures


class WeightedClasses:
    """Rows of more than two classes, each against the rest."""

    def __init__(self, label: np.ndarray, score: np.ndarray) -> None:
        predicted, p = predicted_classes(score), score.astype(np.float64)
        there = [c for c in range(score.shape[1]) if (label == c).any()]
        self.rankings = [_Ranking(label == c, p[:, c]) for c in there]
        truth, predicted_as = (np.stack([which == c for c in there], axis=1) for which in (label, predicted))
        right = np.clip(p[np.arange(len(label)), label], CLIP, 1)
        brier = ((p - np.eye(score.shape[1])[label]) ** 2).sum(axis=1)
        self.counts = [columns.astype(np.float32) for columns in (truth, predicted_as, truth & predicted_as)]
        self.sums = np.stack([predicted == label, brier, -np.log(right)], axis=1).astype(np.float32)

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """(resamples, metrics), for weights (resamples, rows)."""
        figures = self.figures(weights)
        return np.stack([figures[name] for name in METRICS], axis=1)

    def figures(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        rows = weights.sum(axis=1, dtype=np.float64)
        positives, predicted, tp = ((weights @ columns).astype(np.float64) for columns in self.counts)
        fp, fn = predicted - tp, positives - tp
        areas = np.stack([np.stack(ranking.areas(weights)) for ranking in self.rankings])  # classes, 2, resamples
        with np.errstate(divide="ignore", invalid="ignore"):
            accuracy, brier, loss = ((weights @ self.sums) / rows[:, None]).T
            rates = array_rates(tp, fp, fn, rows[:, None] - tp - fp - fn)
            drawn = positives > 0  # a class of which no row was drawn is left out of averages
            rates = {name: np.where(drawn, figure, np.nan) for name, figure in rates.items()}
            return {
                "accuracy": accuracy,
                "auc": _mean(areas[:, 0], 0),
                "pr_auc": _mean(areas[:, 1], 0),
                "brier": brier,
                "loss": loss,
                **{name: _mean(figure, 1) for name, figure in rates.items()},
            }


def _mean(figures: np.ndarray, axis: int) -> np.ndarray:
    known = np.isfinite(figures)
    return np.asarray(np.where(known, figures, 0).sum(axis=axis) / known.sum(axis=axis))
