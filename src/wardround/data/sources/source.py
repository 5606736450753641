"""What every source is: a recipe for rows that does nothing until it is asked."""

from collections.abc import Callable
from dataclasses import dataclass

from wardround.data.records import Records


@dataclass(frozen=True)
class Source:
    load: Callable[[], Records]
