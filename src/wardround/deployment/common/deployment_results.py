"""The end of a run across hospitals: everything that is computed from what the sites told."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.site_counts import describe_deployed
from wardround.evaluation.deployed_results import deployed_results
from wardround.evaluation.participation import participation
from wardround.protocol.messages import Message
from wardround.runs.folder import RunFolder, write_atomically
from wardround.runs.site_descriptions import with_models
from wardround.runs.spending import describe_spending, write_ledger
from wardround.training.trial import Trial

AWAY = "was away when models were evaluated, so that no figure has its rows"
AT_SITES = "at the hospitals"  # whose rows were charged: each hospital's own ledger has their fingerprint
RESULT_FILES = ("results.json", "summaries.jsonl", "records.jsonl")


@dataclass(frozen=True)
class Participants:
    """Who was asked to take part, who came, and why others did not or left. `scored` where it is not those who told
    figures."""

    sites: Sequence[str]
    came: Collection[str]
    why: Mapping[str, str]
    scored: Collection[str] = ()


def write_results(
    folder: RunFolder,
    plan: DeployedPlan,
    described: Mapping[str, Mapping[str, Any]],
    waves: int,
    warnings: Sequence[str],
    invited: Participants,
    topology: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """`results.json` comes last and makes the folder complete. `topology` adds to an arm's entry of that name."""
    parts = [folder.path / "state" / "summaries" / f"{wave:05}.json" for wave in range(waves)]
    lines = [line for part in parts for line in json.loads(part.read_bytes())]
    absent = missed_an_evaluation(plan, lines)
    if len(absent) < len(plan.sites):  # arms are compared on the same rows: who is not there for all is there for none
        lines = [line for line in lines if line["site"] not in absent]
        warnings = [*warnings, *(f"{site}: {AWAY}" for site in absent)]
    folder.write_summaries(lines)
    folder.join_records(waves)
    layout = plan.agreed[plan.kinds[0]].layout
    sites = describe_deployed(plan.study, described, None if layout is None else list(layout.names))
    records = folder.records()
    findings = plan.classes if plan.has_findings else ()
    content = deployed_results(plan.study, lines, records, sites, warnings, findings)
    with_models(content["arms"], plan)
    ledger = write_ledger(folder, plan.study, records, AT_SITES, guarantee=True)
    spent = [] if ledger is None else ledger.entries()
    content["privacy"] = describe_spending(plan.study, spent, records, {}, guarantee=True)
    scored = invited.scored or list(dict.fromkeys(line["site"] for line in lines))
    why = {**dict.fromkeys(absent, AWAY), **invited.why}
    content["participation"] = participation(invited.sites, invited.came, scored, why, records)
    for arm, facts in (topology or {}).items():
        if arm in content["arms"]:
            content["arms"][arm]["topology"] |= facts
    folder.write_json("results.json", content)


def missed_an_evaluation(plan: DeployedPlan, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    told = {(line["arm"], line["seed"], line["site"]) for line in lines if line["side"] == "test"}
    wanted = [(arm.name, seed) for arm in plan.study.arms for seed in plan.study.evaluation.seeds]
    return [site for site in plan.sites if any((*one, site) not in told for one in wanted)]


def save_summaries(folder: RunFolder, wave: int, trials: Sequence[Trial], answers: Mapping[str, Message]) -> None:
    lines = []
    for site, message in answers.items():
        for number, sides in message.body["summaries"].items():
            trial = trials[int(number)]
            for side, summary in sides.items():
                lines.append({**summary, "arm": trial.arm, "seed": trial.seed, "site": site, "side": side})
    path = folder.path / "state" / "summaries" / f"{wave:05}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(lines).encode())
