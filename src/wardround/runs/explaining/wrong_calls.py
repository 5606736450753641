"""Images that a run's models call wrongly, with where they look: for the report of a simulation.

Only where the study lets images be shown (`samples`). Across hospitals, test images stay at their hospital.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from wardround.core import seeds
from wardround.core.threads import torch_threads
from wardround.data.site import Site
from wardround.explain import Scorer
from wardround.explain.explanation import SEED, method_for
from wardround.explain.localisation import shown
from wardround.runs.explaining.explain_arms import answers_arm, trained_arm
from wardround.runs.explaining.site_models import trainer_for
from wardround.runs.finished_run import saved_run
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.training.rounds import site_model
from wardround.training.trial import Trial

MOST = 6  # of each kind
KINDS = {"false positive": 0, "false negative": 1}  # and the label that such an image has
BACKGROUND = 500  # training images of a site, with whose mean its images are compared


def wrong_calls(plan: Plan, folder: RunFolder, results: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """With the study's first seed, under the way of training that the answer names; one image of a finding at most."""
    seed = plan.study.evaluation.seeds.first
    records = plan.cohort_of(plan.study.arms[0]).records
    if not plan.study.evaluation.samples or not isinstance(records.features, np.ndarray) or not records.has_findings:
        return {}
    arm, trial = trained_arm(plan, results, answers_arm(results), seed)
    if arm.model.facts.in_parts or len(trial.scored[0].test.inputs) != 3:
        return {}
    described = results["arms"][arm.name]["findings"]
    chosen = chosen_calls(
        folder, arm.name, seed, {name: entry["threshold"]["mean"] for name, entry in described.items()}
    )
    if not len(chosen):
        return {}
    with folder.checked_content():
        run = saved_run(trial, folder.load_model(arm.name, seed))
    maps = np.zeros((len(chosen), *records.features.shape[2:]))
    scale = plan.target_scale_of(arm, seed)
    for site in trial.scored:
        own = np.flatnonzero(chosen["site"] == site.name)
        if len(own):
            params, buffers = site_model(trial, run, trainer_for(trial, site.name))
            scorer = Scorer(trial.model, params, buffers, scale=scale)
            maps[own] = site_maps(scorer, site, trial, chosen.iloc[own], records.classes)
    grey = records.features[chosen["row"].to_numpy()].mean(axis=1).round().astype(np.uint8)
    return {
        "images": grey,
        "heat": maps.astype(np.float32),
        "boxes": boxes_of(records.boxes, chosen, records.classes),
        **{name: chosen[name].to_numpy(dtype=str) for name in ("kind", "finding", "site")},
        **{name: chosen[name].to_numpy(dtype=float) for name in ("score", "threshold")},
    }


def chosen_calls(folder: RunFolder, arm: str, seed: int, thresholds: Mapping[str, float]) -> pd.DataFrame:
    """Of each kind those that are furthest on the wrong side of the threshold."""
    table = folder.predictions()
    table = table[(table["arm"] == arm) & (table["seed"] == seed)]
    parts = []
    for kind, label in KINDS.items():
        worst = []
        for finding, threshold in thresholds.items():
            score = table[f"score_{finding}"]
            apart = (score - threshold) * (1 if label == 0 else -1)
            wrong = table.assign(finding=finding, kind=kind, score=score, threshold=threshold, apart=apart)
            wrong = wrong[(table[f"label_{finding}"] == label) & ((score >= threshold) == (label == 0))]
            worst.append(wrong.nlargest(1, "apart"))
        parts.append(pd.concat(worst).nlargest(MOST, "apart"))
    columns = ["site", "row", "finding", "kind", "score", "threshold"]
    return pd.concat(parts, ignore_index=True)[columns]


def site_maps(scorer: Scorer, site: Site, trial: Trial, calls: pd.DataFrame, findings: tuple[str, ...]) -> np.ndarray:
    place = {int(row): number for number, row in enumerate(site.test_rows)}
    rows = torch.tensor([place[int(row)] for row in calls["row"]])
    x, _ = site.test.take(rows, trial.dtype)
    train, _ = site.train.take(torch.arange(min(BACKGROUND, len(site.train))), trial.dtype)
    plain = train.mean(dim=0, keepdim=True) if len(train) else x[:0]
    _, method = method_for(scorer, len(plain), images=True)
    draws = seeds.generator(SEED, "explanation")
    with torch_threads(1):
        found = [
            method.attribute(scorer.of(findings.index(finding)), x[number : number + 1], plain, draws).values
            for number, finding in enumerate(calls["finding"])
        ]
    return shown(np.concatenate(found))


def boxes_of(boxes: pd.DataFrame | None, calls: pd.DataFrame, findings: tuple[str, ...]) -> np.ndarray:
    """(boxes, 5): the number of the call, and the box in parts of the image."""
    lines = [np.zeros((0, 5))]
    for number, (row, finding) in enumerate(zip(calls["row"], calls["finding"], strict=True)):
        if boxes is not None:
            own = boxes[(boxes["row"] == row) & (boxes["finding"] == findings.index(finding))]
            sides = own[["x", "y", "width", "height"]].to_numpy(dtype=float)
            lines.append(np.column_stack([np.full(len(sides), number), sides]))
    return np.concatenate(lines)
