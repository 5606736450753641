"""Rows that stay where they are: each hospital opens its own, as its site file says. Nothing can be simulated."""

from dataclasses import replace
from typing import Any

from wardround.core.errors import DataError
from wardround.data.records import Records, Source
from wardround.data.sources.csv.outcome import source_facts
from wardround.study.facts import declares


@declares(lambda options: replace(source_facts(options), elsewhere=True, labelled=True))
def at_sites(task: str | dict[str, Any] = "") -> Source:
    """For a study that only ever runs across hospitals. `task` names what is predicted, where that is not classes."""

    def load() -> Records:
        problem = "the rows are at the hospitals, so that this study cannot be simulated here"
        remedy = "Run it with `wardround coordinate` and `wardround join`, or name a source that is at hand."
        raise DataError("data: source", problem, remedy)

    return Source(load)
