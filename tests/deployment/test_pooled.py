"""Figures after a round, put together by regions and by the coordinator of all."""

import math

import pytest

from wardround.deployment.common.waves import curve, pooled_figures
from wardround.deployment.regional.region_merging import merged_figures
from wardround.protocol.catalogue import Curve, Subset


def scored(rows: int, auc: float | None, loss: float | None = 0.5) -> dict[int, dict[Subset, Curve]]:
    return {0: {"test": Curve(rows=rows, figures={"loss": loss, "accuracy": 0.8, "auc": auc})}}


def test_regions_change_no_mean() -> None:
    """A site without an AUC of its own has no weight in the mean, whoever makes it: (100 x 0.9 + 100 x 0.5) / 200."""
    sites = [scored(100, 0.9), scored(900, None), scored(100, 0.5)]
    regions = [merged_figures(part) for part in (sites[:2], sites[2:])]
    for figures in (sites, regions):
        assert curve(0, figures) == pytest.approx({"test_loss": 0.5, "test_accuracy": 0.8, "test_auc": 0.7})


def test_a_model_that_diverged_at_a_site_has_no_figure() -> None:
    pooled = pooled_figures(0, "test", [scored(100, None, None), scored(100, 0.7)])
    assert pooled is not None
    assert pooled.figures == {"loss": None, "accuracy": 0.8, "auc": None}
    assert math.isnan(curve(0, [scored(100, None, None)])["test_loss"])
    assert pooled_figures(0, "validation", [scored(100, 0.7)]) is None
