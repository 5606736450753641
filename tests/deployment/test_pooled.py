"""Figures after a round, put together by regions and by the coordinator of all."""

import math
from typing import Any

import pytest

from wardround.deployment.common.waves import curve, pooled_figures
from wardround.deployment.regional.region_merging import merged_figures


def body(rows: int, auc: float | None, loss: float | None = 0.5) -> dict[str, Any]:
    return {"figures": {"0": {"test": {"rows": rows, "figures": {"loss": loss, "accuracy": 0.8, "auc": auc}}}}}


def test_regions_change_no_mean() -> None:
    """A site without an AUC of its own has no weight in the mean, whoever makes it: (100 x 0.9 + 100 x 0.5) / 200."""
    sites = [body(100, 0.9), body(900, None), body(100, 0.5)]
    regions = [{"figures": merged_figures(part)} for part in (sites[:2], sites[2:])]
    for bodies in (sites, regions):
        assert curve(0, bodies) == pytest.approx({"test_loss": 0.5, "test_accuracy": 0.8, "test_auc": 0.7})


def test_a_model_that_diverged_at_a_site_has_no_figure() -> None:
    figures = pooled_figures("0", "test", [body(100, None, None), body(100, 0.7)])
    assert figures is not None
    assert figures["figures"] == {"loss": None, "accuracy": 0.8, "auc": None}
    assert math.isnan(curve(0, [body(100, None, None)])["test_loss"])
    assert pooled_figures("0", "validation", [body(100, 0.7)]) is None
