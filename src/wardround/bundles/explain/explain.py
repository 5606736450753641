"""`wardround explain`: a run or a bundle explained, as files and a page in a new folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch

from wardround.bundles.build.make import FinishedRun, open_finished_run
from wardround.bundles.bundle import Bundle, load_bundle
from wardround.bundles.explain.explained_images import explain_images, takes_images
from wardround.bundles.explain.explained_rows import (
    at_equal_distances,
    drawn_background,
    explain_file,
    explainable,
    scorer_of,
)
from wardround.bundles.explain.explanation_folder import write_folder
from wardround.bundles.explain.image_folder import write_image_folder
from wardround.core.atomic_files import refuse_existing
from wardround.core.errors import StudyError, as_path, shown, suggest
from wardround.core.registry import Members
from wardround.core.threads import torch_threads
from wardround.explain.checks import Check
from wardround.explain.explanation import Explanation, explain_rows, output_names
from wardround.report.explained.checks_table import failures
from wardround.runs.explaining import coefficients
from wardround.runs.explaining.explain_arms import answers_arm, explain_models, models_of
from wardround.runs.explaining.site_models import SiteModel
from wardround.runs.finished_run import seed_of

ROWS, IMAGES = 1000, 24  # that are explained, unless the caller says so
TRAINING_ROWS = "training rows of {}"


@dataclass(frozen=True, eq=False)
class Explained:
    """What a folder of `wardround explain` holds. `content` is as `explanations` of results.json has an arm."""

    title: str
    about: Mapping[str, Any]
    rows: pd.DataFrame  # a line for each column of each output of each row
    content: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        return {**self.about, "explanation": dict(self.content)}


def explain_bundle(
    bundle: Bundle | str | PathLike[str],
    data: str | Path,
    out: str | Path,
    *,
    method: str | None = None,
    background: str | Path | None = None,
    rows: int | None = None,
) -> Explained:
    """Explain the predictions of a bundle for the rows of a CSV or Parquet file, or for images, into a new folder.

    `background` is a file of rows to compare with in place of the bundle's own average, or a source of images with
    whose mean images are compared. `rows` are at most 1,000 unless given, and images 24.
    """
    target = new_target(out)
    loaded = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    if takes_images(loaded):
        return explain_image_bundle(
            loaded, data, target, method, background, checked_rows(IMAGES if rows is None else rows)
        )
    most = checked_rows(ROWS if rows is None else rows)
    explained = explain_file(explainable(loaded), data, method=method, background=background, most=most, checked=True)
    table = explained.explanation.table(explained.numbers)
    about = {
        **about_bundle(loaded),
        **facts_of([explained.explanation]),
        "unscored": explained.unscored,
        "failed_checks": failures(explained.checks),
    }
    title = f"Why {loaded.name} predicts what it predicts"
    made = Explained(title, about, table, content_of_bundle(loaded), explained.checks)
    write_folder(made, target)
    return made


def explain_image_bundle(
    bundle: Bundle, data: str | Path, target: Path, method: str | None, background: str | Path | None, most: int
) -> Explained:
    maps = explain_images(bundle, data, method=method, background=background, most=most)
    complete = maps.completeness_error
    checked = maps.checks[0]
    about = {
        **about_bundle(bundle),
        "method": maps.method,
        "title": maps.title,
        "scale": maps.link,
        "compared_with": maps.compared_with,
        "rows": len(np.unique(maps.row)),
        "lines": len(maps),
        "outputs": list(maps.outputs),
        "largest_completeness_error": None if np.isnan(complete).all() else float(np.nanmax(complete)),
        "largest_sampling_error": None,
        "unscored": maps.unscored,
        "checked": checked.rows,
        "checked_output": maps.outputs[maps.checked_output],
        "failed_checks": failures(maps.checks),
    }
    title = f"Where {bundle.name} sees what it predicts"
    write_image_folder(maps, title, about, target)
    return Explained(title, about, maps.table())


def about_bundle(bundle: Bundle) -> dict[str, Any]:
    return {"bundle": bundle.id, "name": bundle.name, "arm": bundle.about["arm"], "site": bundle.about["site"]}


def content_of_bundle(bundle: Bundle) -> dict[str, Any]:
    """A bundle has one model, so that its coefficients have no interval."""
    scorer, task = scorer_of(bundle), bundle.task
    content: dict[str, Any] = {"withheld": None, "scale": task.link}
    if not bundle.model.linear or bundle.inputs.parts:
        return content
    names = bundle.recipe.names
    own = coefficients.of_scorer(scorer, names, output_names(task), bundle.dtype)
    numeric = len(bundle.recipe.layout.numeric)  # they come first
    per = dict(zip(names[:numeric], bundle.recipe.fit.spread.tolist(), strict=True))
    lines = coefficients.over_seeds([own], None, task)
    return {
        **content,
        "coefficients": {"ratio": coefficients.RATIOS.get(task.link), "per": per, "whole": lines, "hospitals": None},
    }


def explain_run(
    run: str | PathLike[str],
    out: str | Path,
    *,
    arm: str | None = None,
    site: str | None = None,
    seed: int | None = None,
    method: str | None = None,
    rows: int | None = None,
    progress: Callable[[str], None] | None = None,
    **members: Unpack[Members],
) -> Explained:
    """Explain the models of a finished run on the test rows of its hospitals, into a new folder.

    Without `arm` that is the way of training that the answer names, without `site` every hospital, and `seed` is the
    study's first. `members` are as `run_study` takes them.
    """
    target = new_target(out)
    finished = open_finished_run(run, **members)
    number = seed_of(finished.plan.study, seed)
    name = answers_arm(finished.results) if arm is None else arm
    models = models_of(finished.plan, finished.folder, finished.results, name, number)
    chosen = at_site(models, site)
    content = importance_of(finished, name, number, chosen, progress)
    parts = rows_of_sites(chosen, method, checked_rows(ROWS if rows is None else rows))
    table = pd.concat([part.assign(site=model.site.name) for model, part, _ in parts], ignore_index=True)
    table = table[["site", *(column for column in table if column != "site")]]
    about = {
        **{"run": finished.folder.path.name, "arm": name, "seed": number, "sites": [m.site.name for m in chosen]},
        **facts_of([explanation for _, _, explanation in parts]),
        "unscored": 0,
    }
    made = Explained(f"Why {name} predicts what it predicts: {finished.plan.study.name}", about, table, content)
    write_folder(made, target)
    return made


def new_target(out: str | Path) -> Path:
    target = as_path(out, "--out")
    refuse_existing(target)
    return target


def checked_rows(rows: int) -> int:
    if rows < 1:
        raise StudyError("--rows", f"{shown(rows)} is no number of rows", "Give a whole number above 0.")
    return rows


def at_site(models: Sequence[SiteModel], site: str | None) -> list[SiteModel]:
    names = [model.site.name for model in models]
    if site is not None and site not in names:
        raise StudyError("--site", f"the run has no site {shown(site)}", suggest(site, names, "Sites"))
    return [model for model in models if site in (None, model.site.name)]


def importance_of(
    finished: FinishedRun,
    arm: str,
    seed: int,
    models: Sequence[SiteModel],
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    """As the run has it, or computed now."""
    known = (finished.results.get("explanations") or {}).get(arm)
    if known is not None and known["seed"] == seed and len(models) == len(finished.results["sites"]):
        return dict(known)
    steps = explain_models(finished.plan, finished.folder, finished.results, arm, seed, models)
    while True:
        try:
            step = next(steps)
            if progress is not None:
                progress(step)
        except StopIteration as end:
            content: dict[str, Any] = end.value
            return content


def rows_of_sites(
    models: Sequence[SiteModel], method: str | None, most: int
) -> list[tuple[SiteModel, pd.DataFrame, Explanation]]:
    """Each hospital's test rows, compared with its own training rows."""
    each = max(1, most // len(models))
    parts = []
    for model in models:
        x, _ = model.prepared(model.site.test)
        chosen = at_equal_distances(len(x), each)
        if not len(chosen):
            continue
        words = TRAINING_ROWS.format(model.site.name)
        background = drawn_background(model.background.numpy(), words, model.dtype, model.scorer.model.linear)
        with torch_threads(1):
            explanation = explain_rows(model.scorer, x[torch.from_numpy(chosen)], background, method)
        parts.append((model, explanation.table(np.asarray(model.site.test_rows)[chosen]), explanation))
    if not parts:
        raise StudyError("--site", "it has no test rows", "Explain another site.")
    return parts


def facts_of(explanations: Sequence[Explanation]) -> dict[str, Any]:
    """What holds for all rows, with the largest errors of any."""
    first = explanations[0]
    backgrounds = [explanation.background for explanation in explanations]
    errors = [e.sampling_error for e in explanations if e.sampling_error is not None]
    complete = np.concatenate([explanation.completeness_error.ravel() for explanation in explanations])
    return {
        "method": first.method,
        "title": first.title,
        "scale": first.link,
        "compared_with": backgrounds[0] if len(backgrounds) == 1 else "training rows of each row's own hospital",
        "rows": sum(map(len, explanations)),
        "outputs": list(first.outputs),
        "largest_completeness_error": None if np.isnan(complete).all() else float(np.nanmax(complete)),
        "largest_sampling_error": float(max(error.max() for error in errors)) if errors else None,
    }
