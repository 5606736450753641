"""A site's decisions before it answers. A site file makes them (`deployment/join.py`); here there is no policy."""

from abc import ABC, abstractmethod

from wardround.privacy.disclosure import Limits
from wardround.study.schema import Study


class Gate(ABC):
    """Each method may raise `Refused`."""

    @abstractmethod
    def study(self, study_hash: str, sites: list[str]) -> Study: ...

    @abstractmethod
    def still_approved(self, study_hash: str) -> None: ...

    def enough(self, training_rows: int) -> None:  # noqa: B027
        pass

    def budget(self) -> float | None:
        return None

    def least_sites(self) -> int:
        return 1

    def limits(self) -> Limits:
        """Of disclosure. They make those of a study stricter, never laxer."""
        return Limits(smallest_cell=1, largest_share=1.0, columns_per_patient=1.0, least_sites=1)

    def opening_hours(self) -> None:  # noqa: B027
        pass
