"""Any number of findings in one row, each present (1), absent (0) or not known (-1). What is not known counts neither
in training nor in figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wardround.tasks.answer import Answer, EachFinding
from wardround.tasks.binary import Binary
from wardround.tasks.classes import AT_SITES, CLASS_METRICS, CLASS_REPORT, COMPARED, OVER_SITES, REFERRAL
from wardround.tasks.probabilities import ProbabilityTask, absent_and_present
from wardround.tasks.report_facts import ReportFacts
from wardround.tasks.task import HEAVIEST, MIDDLE, Task

NO_FINDING = "no finding"
UNKNOWN = -1  # a finding of which nobody knows whether it is there


@dataclass(frozen=True)
class Finding(Binary):
    """One finding by itself, over the rows in which it is known.

    Where few patients have it, or lack it, nothing is told of its rows but their number: a model that predicts nobody
    ill would give the number of the ill away by its number of right predictions.
    """

    kind = "finding"
    threshold_rule = "f1"
    told_by_class_only = True
    needs_positives = True

    names: tuple[str, ...] = ("absent", "present")

    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        from wardround.tasks.class_metrics import finding_metrics

        return finding_metrics(label, score, threshold)


@dataclass(frozen=True)
class Multilabel(ProbabilityTask):
    kind = "multilabel"
    reads = "classes"
    answers = "findings"
    metrics = CLASS_METRICS
    primary = "auc"
    curve = "accuracy"
    probability_scale = "logit"
    each_label = True
    threshold_rule = "f1"
    round_metrics = ("auc",)
    compared = COMPARED
    at_sites = AT_SITES
    over_sites = OVER_SITES
    referral_metrics = REFERRAL
    nobodys = True

    @property
    def report(self) -> ReportFacts:
        arms = ("auc", "pr_auc", "f1", "sensitivity", "specificity", "ppv", "npv", "brier", "accuracy")
        return replace(
            CLASS_REPORT,
            arms=arms,
            terminal=("auc", "pr_auc", "f1", "sensitivity", "specificity", "brier"),
            outcome=f"Findings, of which a row may have several: {', '.join(self.names)}",
            output="A probability for each finding, called from its threshold on; see the section on findings",
            strata="finding",
            lacking="test rows with a finding",
            withheld=CLASS_REPORT.withheld.replace("by class", "of the finding"),
        )

    @property
    def findings(self) -> tuple[str, ...]:
        return self.names

    @property
    def outputs(self) -> int:
        return len(self.names)

    @property
    def answer(self) -> Answer:
        return EachFinding(self.names)

    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean over the findings that are known of the row. `weights` say how many times a row that has a finding
        counts."""
        known = y >= 0
        truth = y.clamp(min=0).to(scores.dtype)
        each = F.binary_cross_entropy_with_logits(scores, truth, reduction="none", pos_weight=weights)
        return (each * known).sum(-1) / known.sum(-1).clamp(min=1)

    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        each = scores.reshape(*scores.shape[:-1], -1, self.outputs)
        known = (y >= 0).unsqueeze(-2)
        truth, number = y.clamp(min=0).unsqueeze(-2).to(scores.dtype), known.sum(-1, keepdim=True).clamp(min=1)
        losses = (F.softplus(each) - each * truth) * known / number
        return losses.sum(-1), ((torch.sigmoid(each) - truth) * known / number).flatten(-2)

    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        """A finding that is not known of a row says nothing."""
        p = torch.sigmoid(scores)
        return p * (1 - p) * (y >= 0)

    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        return torch.sigmoid(scores)

    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        """The share of the row's known findings that are predicted correctly."""
        known = y >= 0
        return (((scores >= 0) == (y == 1)) & known).sum(-1) / known.sum(-1).clamp(min=1)

    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        from wardround.tasks.class_metrics import multilabel_metrics  # SciPy, which training does without

        return multilabel_metrics(label, score, threshold)

    def grouped_figures(
        self,
        group: np.ndarray,
        count: int,
        label: np.ndarray,
        score: np.ndarray,
        threshold: np.ndarray | float = MIDDLE,
    ) -> np.ndarray:
        from wardround.tasks.class_metrics import average, grouped_finding_metrics

        cut = np.broadcast_to(threshold, score.shape)
        return average(grouped_finding_metrics(group, count, label, score, cut))

    def events(self, label: np.ndarray, score: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        known = label >= 0
        return [(label[known[:, f], f], score[known[:, f], f]) for f in range(label.shape[1])]

    def label_probabilities(self, score: np.ndarray) -> np.ndarray:
        return absent_and_present(score)

    def questions(self, values: np.ndarray) -> list[np.ndarray]:
        return [values[:, f] for f in range(values.shape[1])]

    def together(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(parts)

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values.mean(axis=1))

    @property
    def target_width(self) -> int:
        return len(self.names)

    def label_columns(self) -> list[str]:
        return [f"label_{name}" for name in self.names]

    def score_columns(self) -> list[str]:
        return [f"score_{name}" for name in self.names]

    def round_figures(self, label: np.ndarray, score: np.ndarray) -> dict[str, float]:
        from wardround.tasks.class_metrics import mean_auc  # SciPy, which the heart studies need only at their end

        return {"auc": mean_auc(label, score)}

    def predicted(self, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> np.ndarray:
        return np.asarray(score >= threshold).astype(np.int64)

    def row_values(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE
    ) -> np.ndarray | None:
        """The share of the findings that are predicted correctly. Accuracy is a mean over findings, which is no mean
        over rows where findings are unknown in some."""
        if (label < 0).any():
            return None
        return np.asarray(((score >= threshold) == (label == 1)).sum(axis=1) / label.shape[1])

    def weighted_figures(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        from wardround.tasks.weighted_classes import WeightedFinding

        return [WeightedFinding(label[:, f], score[:, f], threshold[:, f]) for f in range(len(self.names))]

    def against_constant(self, label: np.ndarray, score: np.ndarray, loss: float) -> tuple[float, float]:
        """Mean cross-entropy over the findings, beside that of their shares."""
        from wardround.tasks.class_metrics import entropy

        shares = (label == 1).sum(axis=0) / np.maximum((label >= 0).sum(axis=0), 1)
        return loss, float(np.mean([entropy(np.array([share, 1 - share])) for share in shares]))

    def blank_target(self, rows: int) -> np.ndarray:
        return np.zeros((rows, len(self.names)), dtype=np.int64)

    def class_weights(self, labels: Tensor) -> Tensor:
        """A finding that the site has no row of, or no row without, counts once."""
        present, lacking = (labels == 1).sum(0), (labels == 0).sum(0)
        return torch.where((present > 0) & (lacking > 0), lacking / present.clamp(min=1), 1.0).clamp(max=HEAVIEST)

    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        return dict(zip((*self.names, NO_FINDING), count_findings(target).tolist(), strict=True))

    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The rank of the rarest of a row's findings, the higher the rarer, and 0 for none."""
        present = target[rows] == 1
        rank = np.empty(len(self.names), dtype=np.int64)
        rank[np.argsort(-present.sum(axis=0), kind="stable")] = np.arange(1, len(self.names) + 1)
        strata = np.zeros(len(target), dtype=np.int64)
        strata[rows] = (present * rank).max(axis=1, initial=0)
        return strata

    def yes_or_no(self, target: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        yield from zip(self.names, target.T, strict=True)

    def patient_kinds(self, target: np.ndarray, units: np.ndarray) -> np.ndarray:
        """The rarest finding of all the patient's rows, and the number of findings for none."""
        present = target == 1
        rarest_first = np.argsort(present.sum(axis=0), kind="stable")
        of_patient = np.zeros((units.max(initial=-1) + 1, len(self.names)), dtype=bool)
        np.logical_or.at(of_patient, units, present)
        ranked = of_patient[:, rarest_first]
        return np.where(ranked.any(axis=1), rarest_first[ranked.argmax(axis=1)], len(self.names))

    def rarity(self, labels: Tensor) -> Tensor:
        """The share of rows with the rarest finding that the row has, or with none where it has none."""
        present = labels == 1
        shares = present.float().mean(0)
        nothing = (~present.any(1)).float().mean()
        rarest = torch.where(present, shares, torch.inf).min(1).values
        return torch.where(present.any(1), rarest, nothing)

    @property
    def parts(self) -> dict[str, Task]:
        return dict.fromkeys(self.names, Finding())

    @property
    def counted(self) -> tuple[str, ...]:
        return (*self.names, NO_FINDING)

    @property
    def words(self) -> str:
        return f"findings {', '.join(self.names)}"

    def row_sums(
        self, label: np.ndarray, score: np.ndarray, threshold: float = MIDDLE, by_class: bool = True
    ) -> dict[str, Any]:
        """Each finding has its own."""
        return {}

    def figures_of_rows(self, told: Mapping[str, Any]) -> Mapping[str, float | None]:
        """Means over the findings that are told."""
        each = [part["metrics"] for part in told["findings"].values() if "metrics" in part]
        known = {name: [figures[name] for figures in each if figures[name] is not None] for name in self.metric_names}
        return {name: fsum(values) / len(values) if values else None for name, values in known.items()}

    def merged_figures(self, told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {}

    def check_sums(self, told: Mapping[str, Any], rows: int) -> None:
        pass

    def figures_over_parts(self, each: np.ndarray) -> np.ndarray:
        """Of all findings (findings, ..., metrics), from those of sites that tell of different ones.

        PR-AUC is only known for findings that a single site tells of: its mean would be over other findings than the
        mean AUC, so there is none unless all findings have one.
        """
        auc, pr_auc = (self.metric_names.index(name) for name in ("auc", "pr_auc"))
        means = super().figures_over_parts(each)
        lacking = (np.isnan(each[..., pr_auc]) & ~np.isnan(each[..., auc])).any(axis=0)
        means[..., pr_auc] = np.where(lacking, np.nan, means[..., pr_auc])
        return means


def count_findings(target: np.ndarray) -> np.ndarray:
    """Rows with each finding, and last those with none."""
    present = target == 1
    return np.append(present.sum(axis=0), (~present.any(axis=1)).sum())
