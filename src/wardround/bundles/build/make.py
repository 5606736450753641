"""A bundle from a complete simulated run: for one site, with the model that this site predicts with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from wardround.bundles.build.assemble import build_bundle, bundle_name
from wardround.bundles.build.int8 import Int8
from wardround.bundles.build.origin import Origin, chosen_outcome, origin_at, saved_scores
from wardround.bundles.build.run_inputs import RunInputs, run_inputs
from wardround.bundles.card.card import Recipient, card_facts_of_run
from wardround.bundles.sealed_files import ABOUT
from wardround.core.atomic_files import refuse_existing
from wardround.core.errors import BundleError, StudyError, as_path, shown, suggest
from wardround.core.registry import Members
from wardround.core.settings import Factory
from wardround.core.tree import Tree
from wardround.data.cohort import Cohort
from wardround.data.site import Rows, Site
from wardround.evaluation.outcome_results import content_of
from wardround.models import MODELS
from wardround.runs.continual.saved import trainings
from wardround.runs.finished_run import arm_of, open_run, saved_run, seed_of, with_own
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.study.schema import Arm
from wardround.training.rounds import site_model
from wardround.training.trial import Run, Trial

ELSEWHERE = (
    "is a coordinator's run: what a hospital predicts with, and its rows, are at the hospital",
    "There: wardround bundle STATE/RUN --arm ARM, where STATE is the hospital's state folder.",
)
FOLDER = Path("bundles")


def make_bundle(
    run: str | PathLike[str],
    *,
    arm: str,
    site: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    int8: Int8 | None = None,
    region: str | None = None,
    outcome: str | None = None,
    **members: Unpack[Members],
) -> Path:
    """The folder of a new bundle, from a complete run or its folder.

    `site` may be left out where there is one. `seed` is the study's first, unless given. `out` must not exist yet; it
    is `bundles/STUDY-ARM-SITE`, unless given. `region` asks for a region's own model in place of the model of all.
    `outcome` is needed where the study predicts several. `int8` also writes
    the model with weights of eight bits. `members` are as `run_study` takes them.
    """
    finished = open_finished_run(run, **members)
    return bundle_from(
        finished, arm=arm, site=site, seed=seed, out=out, onnx=onnx, int8=int8, region=region, outcome=outcome
    )


@dataclass(frozen=True)
class FinishedRun:
    """A run from which bundles are made."""

    folder: RunFolder
    plan: Plan
    results: Mapping[str, Any]
    models: Mapping[str, Factory] | None


def open_finished_run(run: str | PathLike[str], **members: Unpack[Members]) -> FinishedRun:
    """Once, for any number of bundles."""
    folder, plan = open_run(run, ELSEWHERE, **members)
    return FinishedRun(folder, plan, folder.read_json("results.json"), with_own(run, members).get("models"))


def bundle_from(
    finished: FinishedRun,
    *,
    arm: str,
    site: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    int8: Int8 | None = None,
    region: str | None = None,
    outcome: str | None = None,
) -> Path:
    """As `make_bundle`."""
    plan = finished.plan
    own = chosen_outcome(plan.task, outcome)
    with finished.folder.checked_content():
        number = seed_of(plan.study, seed)
        trained = plan.arm(arm_of(plan.study, finished.results, arm, number).name, number)
        _refuse_noise(trained)
        _refuse_spoilt(trained)
        trial = plan.trial(trained, number)
        name = _site(trial, site)
        _refuse_other_region(trial, name, region)
        default = FOLDER / bundle_name(plan.study.name, arm, name, region, own)
        target = default if out is None else as_path(out, "--out")
        refuse_existing(target)
        return build_bundle(_origin(finished, trained, arm, trial, name, region, own), target, onnx, int8)


def bundle_in_run(
    finished: FinishedRun,
    *,
    arm: str,
    site: str | None = None,
    seed: int | None = None,
    region: str | None = None,
    outcome: str | None = None,
) -> Path:
    """The bundle in the run's own folder, where those are that the study asks for; it is made if it is not there."""
    study = finished.plan.study
    with finished.folder.checked_content():
        chosen = seed_of(study, seed)
        trial = finished.plan.trial(arm_of(study, finished.results, arm, chosen), chosen)
    own = chosen_outcome(finished.plan.task, outcome)
    name = bundle_name(study.name, arm, _site(trial, site), region, own)
    name = name if chosen == study.evaluation.seeds.first else f"{name}-seed-{chosen}"
    target = finished.folder.path / FOLDER / name
    if not (target / ABOUT).is_file():
        bundle_from(finished, arm=arm, site=site, seed=seed, out=target, region=region, outcome=outcome)
    return target


def _site(trial: Trial, name: str | None) -> str:
    known = [site.name for site in trial.scored]
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise StudyError("--site", "the run has several sites, and a bundle is for one", f"Sites: {', '.join(known)}.")
    if name not in known:
        raise StudyError("--site", f"the run has no site {shown(name)}", suggest(name, known, "Sites"))
    return name


def _refuse_noise(arm: Arm) -> None:
    """What parties send each other has noise in it, and whoever holds a bundle holds all parts and sends nothing."""
    if arm.topology.kind == "vertical" and arm.topology.embeddings is not None:
        problem = (
            "its model was scored with noise between the parties ([topology.embeddings]); a bundle, in which all parts "
            "are at one place, would predict without it, and no figure of the run would hold for it"
        )
        raise StudyError(f"arm {arm.name}", problem, "Take an arm without [topology.embeddings].")


def _refuse_spoilt(arm: Arm) -> None:
    if arm.adversaries:
        problem = "its model was spoilt on purpose, by simulated adversaries, and nobody should predict with it"
        raise StudyError(f"arm {arm.name}", problem, "Take an arm without `adversaries`.")


def _refuse_other_region(trial: Trial, site: str, region: str | None) -> None:
    """A region's own model is for the sites of the region: only their rows are scored with it."""
    if region is None:
        return
    regions = trial.algorithm.regions
    if regions is None:
        raise StudyError("--region", "the arm's sites form no regions", "Leave it out.")
    if region not in regions.names:
        problem = f"no region with a training site is called {shown(region)}"
        raise StudyError("--region", problem, suggest(region, regions.names, "Regions"))
    trainers = [trainer.name for trainer in trial.sites]
    own = regions.names[regions.of_site[trainers.index(site)]] if site in trainers else None
    if own != region:
        problem = f"{site} is in {own!r}" if own is not None else f"{site} does not train, and has no region's model"
        raise StudyError("--region", problem, "Name a site of the region, or leave --region out.")


def _origin(
    finished: FinishedRun, arm: Arm, requested_arm: str, trial: Trial, name: str, region: str | None, outcome: str
) -> Origin:
    folder, plan, regional = finished.folder, finished.plan, region is not None
    results = content_of(finished.results, outcome) if outcome else finished.results
    site = next(site for site in trial.scored if site.name == name)
    cohort = plan.cohort_of(arm)
    task = cohort.records.task
    data = run_inputs(plan, arm, site, results["arms"][requested_arm])
    run = saved_run(trial, folder.load_model(arm.name, trial.seed))
    weights = predicts_with(trial, run, name, regional)
    where = str(folder.path / f"{'regional' if regional else 'predictions'}.parquet")
    saved = folder.other_predictions("regional") if regional else folder.predictions()
    if saved is None:
        raise BundleError(where, "is not there", "Run the study again with --again.")
    trained = {other.name: len(other.train) for other in trial.scored if _trains(trial, arm, name, other.name)}
    recipient = _recipient(cohort, data, arm, trial, site)
    return origin_at(
        site,
        cohort,
        trial.dtype,
        facts=card_facts_of_run(
            results,
            task.outcomes[outcome] if outcome else task,
            plan.study,
            arm,
            requested_arm,
            trial.seed,
            recipient,
            trained,
            region,
            outcome,
        ),
        run=folder.path.name,
        data=data,
        weights=weights,
        saved=saved_scores(saved, where, arm.name, trial.seed, site, task, outcome),
        validation=_untested(trial, site),
        models=finished.models,
        outcome=outcome,
        posterior=None if trial.algorithm.posterior is None else trial.algorithm.posterior(run.server),
        trained=trainings(folder, arm, trial.seed, list(trained)),
    )


def predicts_with(trial: Trial, run: Run, site: str, regional: bool = False) -> tuple[Tree, Tree]:
    """A site's own model, or the shared one where the site does not train or all rows are pooled."""
    trainers = [trainer.name for trainer in trial.sites]
    return site_model(trial, run, trainers.index(site) if site in trainers else 0, regional)


def _trains(trial: Trial, arm: Arm, site: str, other: str) -> bool:
    """Whether the site's model has learnt from the other's rows."""
    if not trial.algorithm.federated and not trial.algorithm.pools:
        return other == site
    return other in arm.train_at if arm.train_at else True


def _untested(trial: Trial, site: Site) -> Rows:
    """Validation rows without patients whom any site tests, as overlapping sites do: nothing is chosen on test rows."""
    rows = site.validation
    if rows.patients is None:
        return rows
    tested = [other.test.people for other in trial.scored if other.test.patients is not None]
    keep = ~torch.isin(rows.people, torch.cat([rows.people[:0], *tested]).to(rows.people.dtype))
    names = ["levels", "tabular", *(["x", "y"] if rows.index is None else ["index"])]
    selected = {name: part[keep] for name in names if (part := getattr(rows, name)) is not None}
    return replace(rows, patients=rows.people[keep], **selected)


def _recipient(cohort: Cohort, data: RunInputs, arm: Arm, trial: Trial, site: Site) -> Recipient:
    table, options = cohort.table if cohort.records.is_table else data.table, arm.data.options
    places = np.searchsorted(cohort.row_numbers, site.test_rows)
    recorded = [] if table is None else table.records_of(places).tolist()
    here = [] if table is None else [c for c, there in zip(table.columns, recorded, strict=True) if there]
    others = {other.name for other in trial.scored} - {site.name}
    hospitals = {str(name) for name in cohort.records.hospital[places] if str(name).replace("/", "-") not in others}
    same_columns = (table is None or bool(table.recorded.all())) and options.get("columns", "same") == "same"
    columns = frozenset(name for column in here for name in (column.name, column.own_name))
    return Recipient(site.name, frozenset(hospitals), columns, not others, same_columns)


class BundleFolders(NamedTuple):
    """By arm and site: the bundle, or why there is none. Of several outcomes each has its own, and the arm is followed
    by the outcome."""

    folders: dict[tuple[str, str], Path]
    refused: dict[tuple[str, str], str]


def make_bundles(
    run: str | PathLike[str],
    *,
    sites: Sequence[str],
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    **members: Unpack[Members],
) -> BundleFolders:
    """One for each arm and site of a complete run, in `out`/STUDY-ARM-SITE; one that is there already is left as it is.

    An arm from which none can be made does not keep the others from theirs: `refused` says why. The other arguments
    are as `make_bundle` takes them.
    """
    return bundles_from(
        open_finished_run(run, **members), sites, FOLDER if out is None else as_path(out, "--out"), seed, onnx
    )


def bundles_from(
    finished: FinishedRun, sites: Sequence[str], out: Path, seed: int | None = None, onnx: bool = False
) -> BundleFolders:
    bundles = BundleFolders({}, {})
    if not isinstance(sites, list | tuple) or not all(isinstance(site, str) for site in sites):
        raise StudyError("sites", f"expected a list of names, found {shown(sites)}", "Give the names of sites.")
    for arm, site, outcome in product(finished.results["arms"], sites, finished.plan.task.outcomes or [None]):
        target = out / bundle_name(finished.plan.study.name, arm, site, outcome=outcome or "")
        key = (arm if outcome is None else f"{arm}: {outcome}", site)
        try:
            if not (target / ABOUT).is_file():
                bundle_from(finished, arm=arm, site=site, seed=seed, out=target, onnx=onnx, outcome=outcome)
            bundles.folders[key] = target
        except (StudyError, BundleError) as error:
            bundles.refused[key] = str(error)
    if bundles.refused and not bundles.folders:
        raise BundleError(str(finished.folder.path), "gives no bundle at all", next(iter(bundles.refused.values())))
    return bundles


def keep_bundles(plan: Plan, folder: RunFolder) -> None:
    """Those that the study asks for, in the run's own folder. Whatever refuses a bundle is in `refused.json` there."""
    sites = plan.study.evaluation.bundles
    if not sites:
        return
    own = {name: model for name, model in plan.families.models.items() if name not in MODELS}
    finished = FinishedRun(folder, plan, folder.read_json("results.json"), own)
    refused = bundles_from(finished, sites, folder.path / FOLDER).refused
    if refused:
        reasons = {f"{arm} at {site}": reason for (arm, site), reason in refused.items()}
        folder.write_json("bundles/refused.json", reasons)
