"""Rows that stay where they are: each hospital opens its own, as its site file says. Nothing can be simulated."""

from wardround.core.errors import DataError
from wardround.data.records import Records, Source
from wardround.study.facts import SourceFacts, declares


@declares(SourceFacts(elsewhere=True))
def at_sites() -> Source:
    """For a study that only ever runs across hospitals."""

    def load() -> Records:
        problem = "the rows are at the hospitals, so that this study cannot be simulated here"
        remedy = "Run it with `wardround coordinate` and `wardround join`, or name a source that is at hand."
        raise DataError("data: source", problem, remedy)

    return Source(load)
