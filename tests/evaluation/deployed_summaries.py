"""A simulated run told as hospitals would tell it: its own predictions, summarised site by site."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd

import wardround
from wardround.deployment.common.site_counts import describe_deployed, own_counts
from wardround.evaluation.deployed_results import deployed_results
from wardround.evaluation.prediction import SitePrediction
from wardround.evaluation.scores import score_columns
from wardround.evaluation.summaries.site_summary import site_summary
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.tasks import class_task
from wardround.tasks.class_metrics import predicted_classes


def prediction(label: np.ndarray, score: np.ndarray, site: str = "north") -> SitePrediction:
    return SitePrediction(
        site,
        np.arange(len(label)),
        label,
        score,
        np.zeros(len(label)),
        predicted_classes(score) == label,
        task=class_task(2 if score.ndim == 1 else score.shape[1]),
    )


def lines_of(
    predictions: pd.DataFrame, groups: pd.DataFrame, smallest: int = 5, side: str = "test"
) -> list[dict[str, Any]]:
    """What each site would tell of each arm and seed."""
    columns = score_columns(predictions)
    known = groups.set_index("row")
    lines = []
    for (arm, seed, site), part in predictions.groupby(["arm", "seed", "site"], sort=False):
        score = part[columns].to_numpy()
        of_rows = known.reindex(part["row"])
        kinds = {kind: of_rows[kind].to_numpy(dtype=object) for kind in ("sex", "age") if kind in known}
        summary = site_summary(
            prediction(part["label"].to_numpy(), score[:, 0] if columns == ["score"] else score), kinds, smallest
        )
        lines.append({"arm": arm, "seed": int(str(seed)), "site": site, "subset": side, **summary})
    return lines


def facts_of(plan: Plan, smallest: int = 5) -> dict[str, dict[str, Any]]:
    arm = plan.study.arms[0]
    splits = plan.splits(arm, plan.study.evaluation.seeds.first)
    return {split.site: own_counts(split, plan.cohort_of(arm), smallest) for split in splits}


def as_deployed(run: wardround.StudyRun, study: Mapping[str, Any], target: Path, **more: Any) -> RunFolder:
    """A copy of a simulated run's folder as a coordinator would have it. `study` is what the run was made from."""
    copytree(run.folder, target)
    folder = RunFolder(target)
    parsed, known = wardround.load_study(study)
    plan = wardround.load_plan(parsed, known)
    smallest = parsed.deployment.smallest_cell
    lines = lines_of(folder.predictions(), folder.groups(), smallest)
    selection = folder.other_predictions("selection")
    if selection is not None and parsed.selection is not None:
        side = "validation" if parsed.selection.on == "validation" else "test"
        lines += lines_of(selection, folder.groups().iloc[:0], smallest, side)
    folder.write_summaries(lines)
    sites = describe_deployed(parsed, facts_of(plan, smallest), run.results["sites"][0]["features"])
    folder.write_json(
        "results.json", deployed_results(parsed, plan.task, folder.summaries(), folder.records(), sites, **more)
    )
    for name in ("predictions.parquet", "groups.parquet", "selection.parquet", "audit.jsonl", "report.html"):
        (target / name).unlink(missing_ok=True)
    return folder
