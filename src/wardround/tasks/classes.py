"""What two classes and several have in common: a row is of exactly one of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from wardround.tasks.metric import Metric
from wardround.tasks.probabilities import ProbabilityTask, Scale
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.task import HEAVIEST, MIDDLE

MORE = ("more", "fewer")
CLASS_METRICS = (
    Metric(
        "accuracy",
        "accuracy",
        "higher",
        "share",
        over_rows=True,
        meaning="of 1,000 patients, {amount} are classified correctly",
        counted="patients",
        comparatives=MORE,
    ),
    Metric(
        "auc",
        "AUC",
        "higher",
        "number",
        ranked=True,
        guess=0.5,
        meaning="of 1,000 pairs of one patient with {event} and one without, the one with it gets the higher risk in "
        "{amount}",
        counted="pairs",
        comparatives=MORE,
    ),
    Metric(
        "pr_auc",
        "PR-AUC",
        "higher",
        "number",
        ranked=True,
        # the precision at the score of each positive row, on average over these
        meaning="of 1,000 patients with scores from that of a patient with {event} on, {amount} have it on average",
        counted="patients",
        comparatives=MORE,
    ),
    Metric(
        "f1",
        "F1",
        "higher",
        "number",
        meaning="F1, which is 1 where nobody with {event} is missed and nobody flagged wrongly, is {amount}",
    ),
    Metric(
        "sensitivity",
        "sensitivity",
        "higher",
        "share",
        terse="sens.",
        meaning="of 1,000 patients with {event}, {amount} are recognised",
        counted="patients",
        comparatives=MORE,
    ),
    Metric(
        "specificity",
        "specificity",
        "higher",
        "share",
        terse="spec.",
        meaning="of 1,000 patients without {event}, {amount} are recognised as such",
        counted="patients",
        comparatives=MORE,
    ),
    Metric(
        "ppv",
        "PPV",
        "higher",
        "share",
        meaning="of 1,000 patients flagged for {event}, {amount} have it",
        counted="patients",
        comparatives=MORE,
    ),
    Metric(
        "npv",
        "NPV",
        "higher",
        "share",
        meaning="of 1,000 patients not flagged for {event}, {amount} are without it",
        counted="patients",
        comparatives=MORE,
    ),
    # up to 2 with several classes
    Metric(
        "brier",
        "Brier score",
        "lower",
        "plain",
        high=inf,
        over_rows=True,
        heading="Brier",
        meaning="the mean squared error of predicted risks (Brier score, 0 is perfect) is {amount}",
    ),
    Metric(
        "loss",
        "loss",
        "lower",
        "plain",
        high=inf,
        over_rows=True,
        meaning="the mean penalty for wrong risks (log loss, 0 is perfect) is {amount}",
    ),
)


COMPARED = ("accuracy", "auc", "f1", "brier", "loss")
AT_SITES = ("accuracy", "auc", "brier")
REFERRAL = ("accuracy", "auc")
OVER_SITES = ("accuracy", "auc", "pr_auc", "brier")
CLASS_REPORT = ReportFacts(
    arms=("accuracy", "auc", "f1", "sensitivity", "specificity", "ppv", "npv", "brier"),
    terminal=("accuracy", "auc", "f1", "sensitivity", "specificity", "brier"),
    with_sd=("accuracy", "auc", "f1"),
    groups=(("auc", "pr_auc"), ("sensitivity",), ("specificity",)),
    outside=("accuracy", "auc"),
    runs=("accuracy", "auc", "f1", "brier"),
    may_lack=("auc", "sensitivity", "specificity"),
    output="A probability for each class",
    strata="class",
    lacking="test rows of one class",
    quality="Discrimination",
    told="counts of right and wrong calls, sums, and a histogram of the scores of each class",
    told_before=", of which classes",
    withheld="Cells of histograms that count fewer than {smallest} patients are merged with their neighbours. Where "
    "fewer than {smallest} patients of a class were tested nothing by class was told, where fewer at a hospital "
    "nothing at all",
    curves=", calibration, decision curves",
    needs_rows="the slope and intercept of calibration",
)


class ClassTask(ProbabilityTask):
    reads = "classes"
    answers = "class"
    metrics: ClassVar[tuple[Metric, ...]] = CLASS_METRICS
    primary = "auc"
    curve = "accuracy"
    # whether nothing is told of rows where a class is of few patients; otherwise means over all of them are
    told_by_class_only: ClassVar[bool] = False
    compared: ClassVar[tuple[str, ...]] = COMPARED
    at_sites: ClassVar[tuple[str, ...]] = AT_SITES
    over_sites: ClassVar[tuple[str, ...]] = OVER_SITES
    referral_metrics = REFERRAL
    probability_scale: ClassVar[Scale] = "log"
    each_label = False  # of several classes most have few rows: one cut for all of them

    @property
    def report(self) -> ReportFacts:
        return replace(CLASS_REPORT, outcome=f"Target with the classes {', '.join(self.names)}", figures=("sites",))

    def events(self, label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """That the predicted class is right."""
        predicted = score.argmax(axis=1)
        return [((predicted == label).astype(np.int64), score[np.arange(len(predicted)), predicted])]

    def label_probabilities(self, score: np.ndarray) -> np.ndarray:
        return score

    def row_values(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE
    ) -> np.ndarray | None:
        return np.asarray(self.predicted(score, threshold) == label)

    def against_constant(self, label: np.ndarray, score: np.ndarray, loss: float) -> tuple[float, float]:
        """Cross-entropy, beside that of the shares of the classes."""
        from wardround.tasks.class_metrics import entropy

        return loss, entropy(np.bincount(label) / max(len(label), 1))

    def blank_target(self, rows: int) -> np.ndarray:
        return np.zeros(rows, dtype=np.int64)

    def class_weights(self, labels: Tensor) -> Tensor:
        """A class that the site has no row of counts once; there is nothing to balance."""
        counts = torch.bincount(labels, minlength=len(self.names))
        there = (counts > 0).sum()
        return torch.where(counts > 0, len(labels) / (there * counts.clamp(min=1)), 1.0).clamp(max=HEAVIEST)

    def row_weights(self, y: Tensor, weights: Tensor) -> Tensor | None:
        return weights[y]

    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        return dict(zip(self.names, np.bincount(target, minlength=len(self.names)).tolist(), strict=True))

    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return target

    def rarity(self, labels: Tensor) -> Tensor:
        return (torch.bincount(labels, minlength=len(self.names)) / len(labels))[labels]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.names

    @property
    def words(self) -> str:
        return f"classes {', '.join(self.names)}"

    @property
    def counted_classes(self) -> Sequence[int]:
        """Of which predictions are counted, right and wrong: the positive one of two, or each of several."""
        return range(len(self.names))

    def yes_or_no(self, target: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        for place, name in enumerate(self.names):
            yield name, (target == place).astype(np.int64)

    def class_of(self, label: np.ndarray) -> np.ndarray:
        return label

    def row_sums(
        self, label: np.ndarray, score: np.ndarray, threshold: float = MIDDLE, by_class: bool = True
    ) -> dict[str, Any]:
        from wardround.tasks.class_sums import class_sums  # SciPy, which training does without

        return class_sums(self, label, score, threshold, by_class)

    def figures_of_rows(self, told: Mapping[str, Any]) -> Mapping[str, float | None]:
        """A site's own, for which it has every row: AUC does not follow from sums."""
        metrics: Mapping[str, float | None] = told["metrics"]
        return metrics

    def merged_figures(self, told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        from wardround.tasks.class_sums import merged_class_figures

        return merged_class_figures(self, told)

    def check_sums(self, told: Mapping[str, Any], rows: int) -> None:
        from wardround.tasks.class_sums import check_class_sums

        check_class_sums(self, told, rows)
