"""`start_from` of results.json: by arm, which trained model it started from, what was forgotten, what both cost.

Described in docs/reference/results.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from wardround.evaluation.forgetting import forgetting_by_outcome
from wardround.runs.continual.earlier import Earlier, training_sites
from wardround.runs.continual.fit import changed_sites
from wardround.runs.continual.forgetting import predict_earlier
from wardround.runs.continual.predecessor import Predecessor
from wardround.runs.continual.privacy import composed_spending, opener
from wardround.runs.finished_run import arm_of
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Entry
from wardround.runs.plan import Plan
from wardround.study.schema import Arm, Evaluation

FILE = "forgetting.parquet"
AT_HOSPITALS = "the rows of the old hospitals are not at the coordinator"
NO_ROWS = "no old hospital has a new model, or the new ones know all their test patients"


def describe_start(plan: Plan, folder: RunFolder, entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """For a simulation, by outcome, under an empty name where there is one; then by arm that starts from a trained
    model. Saves the predictions that it speaks of."""
    open_predecessor = opener(plan)
    started = {
        arm.name: (arm, predecessor) for arm in plan.study.arms if (predecessor := plan.predecessor_of(arm)) is not None
    }
    spent = composed_spending(plan, entries, open_predecessor)
    content: dict[str, Any] = {}
    for name, (arm, predecessor) in started.items():
        earlier = open_predecessor(predecessor)
        content[name] = {
            **described(plan, arm, predecessor),
            "forgetting": None,
            "not_measured": earlier if isinstance(earlier, str) else NO_ROWS,
            "privacy": spent.get(name),
        }
    opened = {
        name: (arm, earlier)
        for name, (arm, predecessor) in started.items()
        if isinstance(earlier := open_predecessor(predecessor), Earlier)
    }
    measured = measure(plan, folder, opened)
    return {
        outcome: {name: {**start, **_forgotten(measured.get(outcome, {}).get(name))} for name, start in content.items()}
        for outcome in plan.task.outcomes or ("",)
    }


def _forgotten(forgetting: dict[str, Any] | None) -> dict[str, Any]:
    return {} if forgetting is None else {"forgetting": forgetting, "not_measured": None}


def describe_deployed_start(plan: Plan, entries: Sequence[Entry]) -> dict[str, Any]:
    """The same for a run across hospitals: nobody has the rows on which forgetting would show."""
    spent = composed_spending(plan, entries, lambda predecessor: AT_HOSPITALS)
    return {
        arm.name: {
            **described(plan, arm, predecessor),
            "forgetting": None,
            "not_measured": AT_HOSPITALS,
            "privacy": spent.get(arm.name),
        }
        for arm in plan.study.arms
        if (predecessor := plan.predecessor_of(arm)) is not None
    }


def describe_starts(plan: Plan) -> dict[str, Any]:
    """By arm that starts from a trained model, what is known before anything trains."""
    known = {arm.name: (arm, plan.predecessor_of(arm)) for arm in plan.study.arms}
    return {name: described(plan, arm, old) for name, (arm, old) in known.items() if old is not None}


def described(plan: Plan, arm: Arm, predecessor: Predecessor) -> dict[str, Any]:
    """Where the arm started."""
    sites, first = list(training_sites(plan, arm)), predecessor.first
    trained = dict.fromkeys(site for generation in first.description.trained for site in generation.sites)
    prepared = plan.sites_of(plan.alike[arm.name], plan.data_seeds(arm)[0])
    return {
        "kind": predecessor.kind,
        "name": predecessor.name,
        "arm": predecessor.arm,
        "digest": predecessor.digest,
        "deployed": predecessor.deployed,
        "seeds": {str(seed): model.seed for seed, model in predecessor.models.items()},
        "scale": first.description.scale,
        "trained": [
            {
                "run": generation.run,
                "study": generation.study,
                "arm": generation.arm,
                "sites": list(generation.sites),
                "example": generation.example,
                "site": generation.site,
            }
            for generation in first.description.trained
        ],
        "both": [site for site in sites if site in trained],
        "begin_anew": changed_sites(first, prepared),
    }


def measure(
    plan: Plan, folder: RunFolder, opened: Mapping[str, tuple[Arm, Earlier]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """By outcome, then by arm whose earlier run is at hand with its rows."""
    forgotten: dict[str, dict[str, dict[str, Any]]] = {}
    tables: list[pd.DataFrame] = []
    # arms may start from several runs, whose rows have nothing to do with each other
    for path in dict.fromkeys(earlier.folder.path for _, earlier in opened.values()):
        arms = {name: arm for name, (arm, earlier) in opened.items() if earlier.folder.path == path}
        earlier = next(earlier for _, earlier in opened.values() if earlier.folder.path == path)
        table, scored = _of_run(plan, folder, arms, earlier)
        for outcome, by_arm in scored.items():
            forgotten.setdefault(outcome, {}).update(by_arm)
        tables += [] if table is None else [table.assign(run=path.name)]
    if tables:
        folder.write_table(FILE, pd.concat(tables, ignore_index=True))
    return forgotten


def _of_run(
    plan: Plan, folder: RunFolder, arms: Mapping[str, Arm], earlier: Earlier
) -> tuple[pd.DataFrame | None, dict[str, dict[str, dict[str, Any]]]]:
    """Predictions of arms that start from one run, and by outcome what these arms forgot."""
    parts = {name: predict_earlier(plan, folder, arm, earlier) for name, arm in arms.items()}
    known = [table for table, _ in parts.values() if table is not None]
    if not known:
        return None, {}
    table = pd.concat(known, ignore_index=True)
    drawn = {name: _as_drawn(plan, arm, earlier) for name, arm in arms.items()}
    scored = forgetting_by_outcome(plan.study, table, earlier.folder.groups(), drawn, plan.task)
    return table, {
        outcome: {name: {**content, "left_out": parts[name][1]} for name, content in by_arm.items()}
        for outcome, by_arm in scored.items()
    }


def _as_drawn(plan: Plan, arm: Arm, earlier: Earlier) -> Evaluation:
    """How the earlier run drew the test rows that the arm's seeds are compared on."""
    predecessor = plan.predecessor_of(arm)
    if predecessor is None:
        raise ValueError("the arm starts from no model")
    seeds = [model.seed for model in predecessor.models.values()]
    old = earlier.plan.study
    evaluation = old.evaluation_of(arm_of(old, earlier.folder.read_json("results.json"), predecessor.arm, seeds[0]))
    if len(set(seeds)) < len(seeds):  # seeds of this study that share test rows are no new splits
        return replace(evaluation, vary=("batches", "init"))
    return evaluation
