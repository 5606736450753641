"""The end of a deployed run: all results, computed from the summaries that sites sent."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from wardround.analyses.simulated import without_arms
from wardround.core.extras import needs
from wardround.core.notices import Notice, text_of, with_texts
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.site_counts import describe_deployed
from wardround.evaluation.deployed_results import deployed_results
from wardround.evaluation.participation.hospitals import participation
from wardround.protocol.catalogue import Described, Summaries
from wardround.runs.continual.outcome import describe_deployed_start
from wardround.runs.continual.saved import describe_models
from wardround.runs.decisions.holding import DECISIONS, read_decisions
from wardround.runs.folder import RunFolder, write_atomically
from wardround.runs.records import COMPACT
from wardround.runs.site_descriptions import with_models
from wardround.runs.spending import describe_spending, write_ledger
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins

AT_SITES = "at the hospitals"  # whose rows were charged: each hospital's own ledger has their fingerprint
RESULT_FILES = ("results.json", DECISIONS, "summaries.jsonl", COMPACT)


@dataclass(frozen=True)
class Participants:
    """Who was invited, who came, and why others did not come or left.

    `scored` names the sites with figures, where these are not the sites that sent summaries.
    """

    sites: Sequence[str]
    came: Collection[str]
    why: Mapping[str, Notice]
    scored: Collection[str] = ()


def write_results(
    folder: RunFolder,
    plan: DeployedPlan,
    described: Mapping[str, Described],
    waves: int,
    notices: Sequence[Notice],
    invited: Participants,
    topology: Mapping[str, Mapping[str, Any]] | None = None,
    analysed: Mapping[str, Any] | None = None,
    explained: Mapping[str, Any] | None = None,
) -> None:
    """`results.json` comes last and makes the folder complete. `topology` adds to an arm's entry of that name."""
    if not plan.study.trained_arms:
        folder.write_json("results.json", _without_arms(plan, notices, invited, analysed))
        return
    lines = [line for wave in range(waves) for line in json.loads(_summaries_path(folder, wave).read_bytes())]
    missed = {site: Notice("site-away", "warning", site) for site in missed_an_evaluation(plan, lines)}
    if len(missed) < len(plan.sites):  # arms are compared on the same rows: a site that missed one arm counts for none
        lines = [line for line in lines if line["site"] not in missed]
        notices = [*notices, *missed.values()]
    folder.write_summaries(lines)
    folder.compact_records()
    layout = plan.agreed[plan.kinds[0]].layout
    sites = describe_deployed(plan.study, to_builtins(dict(described)), None if layout is None else list(layout.names))
    records = folder.records()
    content = deployed_results(plan.study, plan.task, lines, records, sites, notices, read_decisions(folder))
    with_models(content["arms"], plan)
    content["privacy"], content["start_from"] = _spending_and_start(folder, plan, records)
    scored = invited.scored or list(dict.fromkeys(line["site"] for line in lines))
    why = {site: text_of(notice) for site, notice in {**missed, **invited.why}.items()}
    content["participation"] = participation(invited.sites, invited.came, scored, why, records)
    for arm, facts in (topology or {}).items():
        if arm in content["arms"]:
            content["arms"][arm]["topology"] |= facts
    folder.write_json("results.json", with_analyses(content, analysed, explained))


def with_analyses(
    content: dict[str, Any], analysed: Mapping[str, Any] | None, explained: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A study without analyses, or without [explain], has no such key."""
    parts = {"analyses": analysed, "explanations": explained}
    return content | {name: dict(part) for name, part in parts.items() if part}


def _without_arms(
    plan: DeployedPlan, notices: Sequence[Notice], invited: Participants, analysed: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Of a study that trains nothing."""
    sites = list(dict.fromkeys(site for own in (analysed or {}).values() for site in own["sites"]))
    why = {site: text_of(notice) for site, notice in invited.why.items()}
    no_rounds = pd.DataFrame({"sites": [], "dropped": []})
    content = {
        **without_arms(plan.study, plan.task, sites, deployed=True),
        "notices": with_texts(notices),
        "participation": participation(invited.sites, invited.came, sites, why, no_rounds),
    }
    return with_analyses(content, analysed)


def _spending_and_start(folder: RunFolder, plan: DeployedPlan, records: pd.DataFrame) -> tuple[Any, dict[str, Any]]:
    """What was spent, and the models that arms started from. Describes this run's own models for later studies."""
    ledger = write_ledger(folder, plan.study, records, AT_SITES, guarantee=True)
    entries = [] if ledger is None else ledger.entries()
    describe_models(plan, folder, entries, data="")
    spent = describe_spending(plan.study, entries, records, {}, guarantee=True)
    return spent, describe_deployed_start(plan, entries)


def _summaries_path(folder: RunFolder, wave: int) -> Path:
    return folder.path / "state" / "summaries" / f"{wave:05}.json"


def missed_an_evaluation(plan: DeployedPlan, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    evaluated = {(line["arm"], line["seed"], line["site"]) for line in lines if line["subset"] == "test"}
    trials = [(arm.name, seed) for arm in plan.study.arms for seed in plan.study.evaluation.seeds]
    return [site for site in plan.sites if any((*trial, site) not in evaluated for trial in trials)]


def save_summaries(folder: RunFolder, wave: int, trials: Sequence[Trial], summaries: Mapping[str, Summaries]) -> None:
    """By hospital."""
    lines = []
    for site, by_trial in summaries.items():
        for number, subsets in by_trial.items():
            unit = {"arm": trials[number].arm, "seed": trials[number].seed, "site": site}
            lines += [{**to_builtins(summary), **unit, "subset": subset} for subset, summary in subsets.items()]
    path = _summaries_path(folder, wave)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(lines).encode())
