"""Sentences that several sections share."""

from wardround.evaluation.comparisons.differences import RULE
from wardround.report.evidence import Evidence
from wardround.report.render.table import listed

SYNTHETIC = "Synthetic data: made by a program. No patient is behind any row, and nothing here is true of patients."


def corrected(evidence: Evidence) -> str:
    """What the intervals, p-values and verdicts of one table have in common with those of all others."""
    counts = {entry["comparisons"] for entry in (*evidence.tests(), *evidence.benefit())}
    count = max(counts, default=1)
    if count <= 1:
        return "95 % CI."
    return f"95 % CI, p-value and verdict are corrected for all {count} comparisons that this report shows ({RULE})."


def ranks_rows(evidence: Evidence) -> bool:
    """Whether any metric of the task sets rows of different sites against each other."""
    return any(metric.ranked for metric in evidence.task.metrics)


def histogram_sentence(evidence: Evidence) -> str:
    """How exact a metric that ranks rows is without them; empty where the task has none."""
    if not ranks_rows(evidence):
        return ""
    return f" AUC is from histograms of their scores and may be off by up to {evidence.auc_error_bound:.3f}."


def ranking_sentence(evidence: Evidence) -> str:
    """Why an AUC over all sites flatters models that know their site, or cannot be had."""
    if not evidence.own_models:
        return (
            "Arms are compared by the mean of the sites' own AUC (within sites), which is exact: an AUC over all sites "
            "could only be had from histograms, or not at all."
        )
    return (
        f"Sites predict with models of their own in {listed(evidence.own_models)}: an AUC over all sites then ranks "
        "scores of different models against each other, and rewards knowing which site a patient is at. So all arms "
        "are compared by the mean of the sites' own AUC (within sites)."
    )


def drawn_up_to(most: int, count: int, what: str) -> list[str]:
    """A figure that would be too crowded is left out, and said to be."""
    return [f"{what} are drawn up to {most}; a table has all {count}."] if count > most else []
