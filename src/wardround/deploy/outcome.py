"""The end of a run across hospitals: everything that is computed from what the sites told."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wardround.artifacts.folder import RunFolder
from wardround.deploy.deployedplan import DeployedPlan
from wardround.deploy.sitefacts import describe_deployed
from wardround.evaluation.deployed import deployed_results

MADE = ("results.json", "summaries.jsonl", "records.jsonl")


def write_outcome(
    folder: RunFolder,
    plan: DeployedPlan,
    described: Mapping[str, Mapping[str, Any]],
    waves: int,
    warnings: Sequence[str],
) -> None:
    """`results.json` comes last and makes the folder complete."""
    parts = [folder.path / "state" / "summaries" / f"{wave:05}.json" for wave in range(waves)]
    lines = [line for part in parts for line in json.loads(part.read_bytes())]
    folder.write_summaries(lines)
    folder.join_records(waves)
    layout = plan.agreed[plan.kinds[0]].layout
    sites = describe_deployed(plan.study, described, None if layout is None else list(layout.names))
    folder.write_json("results.json", deployed_results(plan.study, lines, folder.records(), sites, warnings))
