"""The split that `wardround data split` wrote: each site is a hospital, and a deployed site names its own file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wardround.core.errors import StudyError
from wardround.data.records import Records, Source
from wardround.data.sources.csv.outcome import SINGLE, source_facts
from wardround.data.split_files.read_split import read_split
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Task


def _facts(options: Mapping[str, Any]) -> SourceFacts:
    return source_facts({**options, "target": ""})


@declares(_facts)
def split_on_disk(path: Path, task: str | dict[str, Any] = "", outcomes: tuple[str, ...] = ()) -> Source:
    """`path` is the folder with the manifest, or one site's file in it, of which then only that site's rows are read.

    `task` names the kind of outcome where that is not classes or findings, and `outcomes` several that are predicted
    together, as for the source `csv`: the text of a study must say it, because the files may be elsewhere.
    """

    def load() -> Records:
        records = read_split(path)
        if _kinds(records.task) != dict(_facts({"task": task, "outcomes": outcomes}).tasks):
            said = f'`task = "{records.task.kind}"`'
            if records.task.outcomes:
                said = f"`outcomes = {list(records.task.outcomes)}` and the `task` of each number among them"
            problem = f"the split in {path} is of another outcome: {records.task.kind}"
            plain = _kinds(records.task) == {"": SINGLE}
            remedy = "Leave `task` and `outcomes` out of [data]." if plain else f"Write {said} in [data]."
            raise StudyError("data: task", problem, remedy)
        return records

    return Source(load)


def _kinds(task: Task) -> dict[str, str]:
    """Of each outcome, as the text of a study knows them: which classes there are only rows tell."""
    parts = task.outcomes or {"": task}
    return {name: part.kind if part.answers == "number" else SINGLE for name, part in parts.items()}
