"""Held-out images of a run's sites explained: where in each the site's model sees what it predicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from wardround.bundles.build.make import FinishedRun
from wardround.bundles.explain.explained_images import EVEN, FEWEST_FOR_MEAN, READ, ImageMaps, maps_of
from wardround.bundles.explain.explained_rows import at_equal_distances
from wardround.core.errors import StudyError
from wardround.core.threads import torch_threads
from wardround.data.records import Records
from wardround.data.site import Rows, Site
from wardround.explain import Scorer
from wardround.runs.explaining.site_models import site_scorer
from wardround.runs.explaining.wrong_calls import boxes_of
from wardround.runs.finished_run import saved_run
from wardround.study.explanations import is_protected
from wardround.study.schema import Arm
from wardround.tasks.task import MIDDLE
from wardround.training.trial import Trial

TRAINING = "the mean of {:,} training images of {}"


def has_images(arm: Arm, trial: Trial) -> bool:
    """Whether a row is one image and nothing beside it, and one model predicts from all of it."""
    shape = trial.scored[0].test.inputs
    return len(shape) == len(("colours", "height", "width")) and not arm.model.facts.in_parts


def maps_of_sites(
    finished: FinishedRun, arm: Arm, trial: Trial, sites: Sequence[Site], method: str | None, most: int
) -> list[ImageMaps]:
    """Of each of these sites `most` test images at equal distances, compared with the mean of its training images,
    which is computed here and not written."""
    if trial.model.task.outcomes:
        raise StudyError(f"arm {arm.name}", "predicts several outcomes at once", "Explain a bundle of one outcome.")
    with finished.folder.checked_content():
        run = saved_run(trial, finished.folder.load_model(arm.name, trial.seed))
    scale = finished.plan.target_scale_of(arm, trial.seed)
    records, thresholds = finished.plan.cohort_of(arm).records, thresholds_of(finished.results["arms"][arm.name])
    parts = []
    for site in sites:
        chosen = at_equal_distances(len(site.test), most)
        if not len(chosen):
            continue
        scorer = site_scorer(trial, run, site, scale)
        plain, words = compared_with(site, trial.dtype, is_protected(arm))
        with torch_threads(1):
            parts.append(maps_of_site(scorer, site, records, chosen, thresholds, (plain, words), method))
    if not parts:
        raise StudyError("--site", "it has no test images", "Explain another site.")
    return parts


def maps_of_site(
    scorer: Scorer,
    site: Site,
    records: Records,
    chosen: np.ndarray,
    thresholds: np.ndarray | float,
    background: tuple[Tensor, str],
    method: str | None,
) -> ImageMaps:
    plain, words = background
    task, numbers = scorer.model.task, np.asarray(site.test_rows)[chosen]
    x, y = site.test.take(torch.from_numpy(chosen), plain.dtype)
    with torch.no_grad():
        logits, _ = scorer.model.logits(scorer.params, scorer.buffers, x, None)
        scores = task.predictions(logits, y).numpy()
    if not np.isfinite(scores).all():
        raise StudyError(f"site {site.name}", "its model diverged, and has no scores", "Explain another arm: --arm.")
    grey = np.asarray(records.features)[numbers].mean(axis=1).round().astype(np.uint8)
    maps = maps_of(scorer, x.numpy(), task.predicted(scores, thresholds), grey, plain, words, method)
    rows = numbers[maps.row]
    boxes = maps.boxes
    if records.has_findings:
        lines = pd.DataFrame({"row": rows, "finding": maps.names()})
        boxes = boxes_of(records.boxes, lines, tuple(records.classes))
    return replace(maps, row=rows, site=site.name, boxes=boxes)


def thresholds_of(results: Mapping[str, Any]) -> np.ndarray | float:
    """Of each finding, as the report calls it; classes are called from one half on."""
    found = [entry["threshold"]["mean"] for entry in results.get("findings", {}).values()]
    return np.array([MIDDLE if value is None else value for value in found]) if found else MIDDLE


def compared_with(site: Site, dtype: torch.dtype, protected: bool) -> tuple[Tensor, str]:
    """A mean of few images still shows them, and one of protected patients has no noise: then nothing is compared."""
    rows = site.train
    if protected or len(rows) < FEWEST_FOR_MEAN:
        return torch.zeros(0, *site.test.inputs, dtype=dtype), EVEN
    return mean_image(rows, dtype), TRAINING.format(len(rows), site.name)


def mean_image(rows: Rows, dtype: torch.dtype) -> Tensor:
    """Prepared, (1, colours, height, width)."""
    total = torch.zeros(rows.inputs, dtype=torch.float64)
    for part in torch.split(torch.arange(len(rows)), READ):
        total += rows.take(part, dtype)[0].double().sum(dim=0)
    return (total / len(rows)).to(dtype)[None]
