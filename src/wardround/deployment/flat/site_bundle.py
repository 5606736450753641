"""A bundle at a hospital that took part in a deployed run, made from what the run left there, without the network.

The card holds what the hospital knows: its own rows and figures, who took part, and its ledger. Other hospitals'
numbers of rows, and figures over all hospitals, are in the coordinator's report.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.torch import load_file

from wardround.bundles.build.assemble import OtherScores, build_bundle, bundle_name
from wardround.bundles.build.int8 import Int8
from wardround.bundles.build.make import FOLDER
from wardround.bundles.build.origin import Origin, OtherRows, chosen_outcome, origin_at, saved_scores
from wardround.bundles.build.run_inputs import RunInputs, run_inputs
from wardround.bundles.card.card import CardFacts, figures_of, finding_figures
from wardround.core import tree
from wardround.core.atomic_files import refuse_existing
from wardround.core.errors import BundleError, DeployError, RunError, StudyError, suggest
from wardround.core.settings import Factory
from wardround.core.tree import State, Tree
from wardround.data.site import Site
from wardround.deployment.common.deployable import is_federated
from wardround.deployment.common.local_predictions import load_predictions, load_thresholds
from wardround.deployment.flat.site_session import Session
from wardround.deployment.governance.policy import Refused
from wardround.deployment.join import SiteGate
from wardround.deployment.provisioning.site_file import SiteFile, open_source
from wardround.deployment.site.session import PartyRun, read_session
from wardround.evaluation.findings import describe_findings
from wardround.evaluation.intervals import CONFIDENCE, Resampling, summarise_metrics
from wardround.evaluation.outcome_results import own_columns
from wardround.evaluation.scores import Scores, label_columns
from wardround.privacy.dp.accountant import epsilon
from wardround.runs.catalog import families as known_families
from wardround.runs.ledger import Entry, charges_of
from wardround.runs.plan import members_of
from wardround.study.schema import Arm
from wardround.tasks.outcomes import several_outcomes
from wardround.training.trial import Trial

AS_IT_WAS = "Bring the file back as it was in the run; new rows need a new run."


def make_site_bundle(
    state: str | Path,
    *,
    arm: str,
    site: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    int8: Int8 | None = None,
    site_file: Path | None = None,
    outcome: str | None = None,
) -> Path:
    """The folder of a new bundle, from a hospital's own folder of a run (`STATE/RUN`) and its site file.

    `site_file` is found beside the folder STATE, unless given. The rest is as `make_bundle` has it.
    """
    folder = Path(state).absolute()
    path = folder.parent.parent / "site.toml" if site_file is None else site_file
    if not path.exists():
        raise DeployError(str(path), "there is no site file", "Give it: --site-file FILE.")
    own = SiteFile.load(path)
    if site is not None and site != own.name:
        raise StudyError("--site", f"this is the folder of {own.name!r}", "Leave it out.")
    families = known_families()
    if isinstance(read_session(folder), PartyRun):
        problem = "its model is in parts at several parties, and none of them predicts alone"
        raise BundleError(own.name, problem, "Use this party's part in models/; docs/how-to/vertical.md says how.")
    try:
        source = open_source(own, families)
        session = Session.restore(own.name, folder, SiteGate(own, families), families, source.load)
    except Refused as refused:
        raise DeployError(own.name, refused.refusal.reason, "Approve the study again if that is right.") from None
    clahe = bool(own.data.get("clahe", False))  # how its own images were read, whatever the study's source is
    return bundle_of(session, arm=arm, seed=seed, out=out, onnx=onnx, int8=int8, clahe=clahe, outcome=outcome)


def bundle_of(
    session: Session,
    *,
    arm: str,
    seed: int | None = None,
    out: str | Path | None = None,
    onnx: bool = False,
    int8: Int8 | None = None,
    models: Mapping[str, Factory] | None = None,
    clahe: bool = False,
    outcome: str | None = None,
) -> Path:
    """`clahe` says whether CLAHE was applied when this hospital's images were read."""
    study = session.study
    names = [known.name for known in study.arms]
    if arm not in names:
        raise StudyError("--arm", f"the study has no arm {arm!r}", suggest(arm, names, "Arms"))
    if seed is not None and seed not in study.evaluation.seeds:
        raise StudyError("--seed", f"the study has no seed {seed}", f"Its first is {study.evaluation.seeds.first}.")
    own = chosen_outcome(session.plan.cohort_of(study.arm(arm)).records.task, outcome)
    target = FOLDER / bundle_name(study.name, arm, session.site, outcome=own) if out is None else Path(out)
    refuse_existing(target)
    chosen = study.evaluation.seeds.first if seed is None else seed
    try:
        return build_bundle(_origin(session, study.arm(arm), chosen, models, clahe, own), target, onnx, int8)
    except OtherRows:
        raise _changed(session) from None
    except OtherScores as error:
        problem = f"{error.problem}: its file was changed since the run, or what the run left here was"
        raise BundleError(session.site, problem, AS_IT_WAS) from None


def _changed(session: Session) -> RunError:
    return RunError(session.site, "its rows are not those of the run: its file was changed since", AS_IT_WAS)


def _refuse_changed(session: Session, predictions: pd.DataFrame) -> None:
    """Compare with what the run left here: the outcome of every tested row, and, where patients are protected, the
    fingerprint of all rows that the ledger has charged."""
    rows, columns = predictions["row"].to_numpy(), label_columns(predictions)
    label = predictions[columns].to_numpy()
    target = np.column_stack([records.task.values(records.target) for records in session.records.by_outcome])
    charged = {entry.patients for entry in _ledger_entries(session)}
    now = session.plan.cohort_of(session.study.arms[0]).fingerprint
    known = (rows >= 0) & (rows < len(target))
    alike = known.all() and target.shape[1] == len(columns) and (target[rows] == label).all()
    if not alike or (charged and now not in charged):
        raise _changed(session)


def _ledger_entries(session: Session) -> list[Entry]:
    return [entry for entry in session.ledger.entries() if (entry.run, entry.site) == (session.run, session.site)]


def _origin(
    session: Session, arm: Arm, seed: int, models: Mapping[str, Factory] | None, clahe: bool, outcome: str
) -> Origin:
    if not session.waves:
        problem = "the sites have not agreed yet how rows are prepared"
        raise BundleError(str(session.folder), problem, "Wait until the run is over.")
    trial = session.plan.trial(arm, seed)
    site = next((one for one in trial.scored if one.name == session.site), None)
    if site is None:
        raise BundleError(session.site, f"does not predict in arm {arm.name}", "Name another arm.")
    cohort, predictions = session.plan.cohort_of(arm), _predictions(session)
    _refuse_changed(session, predictions)
    data = _run_inputs(session, arm, site, clahe)
    weights, posterior = _weights(session, arm, seed, trial)
    return origin_at(
        site,
        cohort,
        trial.dtype,
        facts=_card_facts(session, arm, seed, site, predictions, outcome),
        run=session.run,
        data=data,
        saved=saved_scores(
            predictions, str(session.folder / "predictions"), arm.name, seed, site, cohort.records.task, outcome
        ),
        weights=weights,
        posterior=posterior,
        models=models,
        outcome=outcome,
    )


def _run_inputs(session: Session, arm: Arm, site: Site, clahe: bool) -> RunInputs:
    """Thresholds that all hospitals chose for findings are not known here, nor which rows a party lacks."""
    data = replace(run_inputs(session.plan, arm, site, {"findings": {}}), missing_parties={})
    if data.inputs.images is None:
        return data
    return replace(data, inputs=replace(data.inputs, images=replace(data.inputs.images, clahe=clahe)))


def _weights(session: Session, arm: Arm, seed: int, trial: Trial) -> tuple[tuple[Tree, Tree], State]:
    """The model with which this site predicts after the run, and what is known of the distribution of its weights."""
    path = session.folder / "models" / arm.name / f"seed-{seed}.safetensors"
    if not path.is_file():
        problem = f"has no model of arm {arm.name} with seed {seed} yet"
        raise BundleError(str(session.folder), problem, "Wait until the run is over.")
    leaves = load_file(path)
    params, buffers = trial.model.init(0)
    of_posterior = trial.algorithm.posterior
    posterior = {} if of_posterior is None else of_posterior(trial.algorithm.init(params, len(trial.sites)))
    if set(leaves) != {*params, *buffers, *tree.flatten(posterior)}:
        raise BundleError(str(path), "does not hold the weights of the study's model", "Let the run be made anew.")
    weights = {name: leaves[name] for name in params}, {name: leaves[name] for name in buffers}
    return weights, tree.unflatten({name: leaves[name] for name in tree.flatten(posterior)})


def _predictions(session: Session) -> pd.DataFrame:
    predictions = load_predictions(session.folder)
    if predictions is None:
        raise BundleError(str(session.folder), "has no predictions yet", "Wait until the run is over.")
    return predictions


def _card_facts(
    session: Session, arm: Arm, seed: int, site: Site, predictions: pd.DataFrame, outcome: str
) -> CardFacts:
    study, task = session.study, session.plan.cohort_of(arm).records.task
    members = members_of(arm, session.sites) if is_federated(arm) else [session.site]
    of_arm = predictions[(predictions["arm"] == arm.name) & (predictions["site"] == session.site)]
    of_arm = own_columns(of_arm, several_outcomes(task), outcome) if outcome else of_arm
    own = task.outcomes[outcome] if outcome else task
    scores = Scores.of(of_arm, task=own, thresholds=load_thresholds(session.folder))
    resampling = Resampling.of(study.evaluation_of(arm))
    seeds = tuple(study.evaluation.seeds)
    return CardFacts(
        study=study,
        arm=arm,
        requested_arm=arm.name,
        seed=seed,
        site=session.site,
        trained={name: len(site.train) if name == session.site else None for name in members},
        seeds=seeds,
        simulated=False,
        synthetic=session.records.synthetic,
        overall=None,
        at_site=summarise_metrics(scores.metric_names, scores.overall[arm.name], resampling, figures_of(scores.task)),
        interval={"confidence": CONFIDENCE, "method": resampling.method, "covers": resampling.covers}
        if len(seeds) > 1
        else None,
        privacy=_privacy(session, arm, seed),
        subgroups={},
        notices=(*session.records.notices, *session.plan.own_notices()),
        findings=_findings(scores, arm.name, session.site, resampling),
        outcome=outcome,
    )


def _findings(scores: Scores, arm: str, site: str, resampling: Resampling) -> dict[str, Any]:
    """For each finding, this site's own AUC."""
    if not scores.findings:
        return {}
    figures = finding_figures({"findings": describe_findings(scores, arm, resampling)}, site)
    return {name: {**figure, "all_sites": None} for name, figure in figures.items()}


def _privacy(session: Session, arm: Arm, seed: int) -> dict[str, Any] | None:
    privacy = arm.privacy
    if privacy.example is None and privacy.site is None and privacy.secure_sum is None:
        return None
    entries = _ledger_entries(session)
    here = [entry for entry in entries if entry.arm == arm.name and entry.seed == seed]
    return {
        "guarantee": all(entry.guarantee for entry in entries),
        "example": _block(privacy.example),
        "site": _block(privacy.site),
        "secure_sum": None if privacy.secure_sum is None else {},
        "spent": {**_spent(here), "rounds": len(here)} if here else None,
        "spent_on_sites": None,  # the noise for whole sites is drawn, and accounted for, at the coordinator
        "spent_by_the_whole_run": _spent(entries) if entries else None,
    }


def _block(guarantee: Any) -> dict[str, Any] | None:
    return None if guarantee is None else {name: getattr(guarantee, name) for name in ("epsilon", "delta", "clip")}


def _spent(entries: list[Entry]) -> dict[str, Any]:
    delta = min(entry.delta for entry in entries)
    return {"epsilon": epsilon(charges_of(entries), delta), "delta": delta}
