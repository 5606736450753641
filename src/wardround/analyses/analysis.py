"""What a kind of analysis is: a loop of sums, written as pure functions. Wherever it runs, it goes like this:

    before          uses(schema)                    -> Uses       columns that it reads; refuses those that nobody has
    each site       eligible(rows)                  -> mask       its rows that count, before levels are agreed on
    each site       release(agreed, rows)           -> Release    what rules of disclosure look at
    coordinator     begin(agreed)                   -> state
    each step       ask(state)                      -> Question   a step's name and a few arrays
      both          blocks(agreed, question)        -> Blocks     what sums are due, with a public cap of each
      each site     answer(agreed, question, rows)  -> Sums       over its own rows
      in between    protection and the sum: disclosure rules at the site, secure sums
      coordinator   advance(state, sums, by_site)   -> state
    coordinator     result(state)                   -> dict       once `ask` gives None

A state is data that follows from the sums alone, so that a coordinator that restarts replays those it has. `by_site`
has each site's sums where the kind declares that it `tells_sites`; it is empty otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from wardround.analyses.site_rows import SiteRows
from wardround.privacy.disclosure import Release

Sums = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ColumnFacts:
    """What is known of a column without looking at rows."""

    name: str
    kind: Literal["numeric", "categorical"]
    limits: tuple[float, float] | None = None
    levels: tuple[str, ...] | None = None  # all that there can be


Schema = Mapping[str, ColumnFacts]


@dataclass(frozen=True)
class Uses:
    """The columns that an analysis reads, and those of which it must know all levels."""

    columns: tuple[str, ...]
    levels: tuple[str, ...] = ()
    maybe_binary: tuple[str, ...] = ()  # columns of numbers of which it must know whether all are 0 or 1
    every_row: bool = False  # rows count also with a level that no site names, and a column may have one level


@dataclass(frozen=True)
class Agreed:
    """What holds at all sites before the first step."""

    schema: Schema
    levels: Mapping[str, tuple[str, ...]]  # of the columns in `Uses.levels`, in alphabetical order
    sites: tuple[str, ...]  # that take part
    most_rows: int  # public bound of a site's rows


@dataclass(frozen=True)
class Block:
    """An array of sums. `most` is a public bound of what one site's may be, in absolute value: under a secure sum a
    site refuses to send more, because the sum could wrap around."""

    shape: tuple[int, ...]
    most: float


Blocks = Mapping[str, Block]  # by name of the sum


@dataclass(frozen=True, eq=False)
class Question:
    step: str
    arrays: Mapping[str, np.ndarray]
    title: str = ""  # for progress


class Analysis(Protocol):
    kind: ClassVar[str]

    @property
    def tells_sites(self) -> str:
        """What each site tells about itself beside the sum, in words; empty where the sum is all that is needed."""
        ...

    @property
    def citations(self) -> tuple[str, ...]:
        """Of the methods that this one uses, for its readers."""
        ...

    def uses(self, schema: Schema) -> Uses: ...

    def eligible(self, rows: SiteRows) -> np.ndarray: ...

    def release(self, agreed: Agreed, rows: SiteRows) -> Release: ...

    def begin(self, agreed: Agreed) -> Any: ...

    def ask(self, state: Any) -> Question | None: ...

    def blocks(self, agreed: Agreed, question: Question) -> Blocks:
        """DeployError where the question is none that this analysis asks: it may come from another institution."""
        ...

    def answer(self, agreed: Agreed, question: Question, rows: SiteRows) -> Sums: ...

    def advance(self, state: Any, sums: Sums, by_site: Mapping[str, Sums]) -> Any: ...

    def result(self, state: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LeftOut:
    """A site of which nothing leaves: the rule that it would have broken."""

    site: str
    rule: str


@dataclass(frozen=True)
class Survey:
    """What a site says before the first step: whether it takes part, and which levels its columns have."""

    broken: str = ""  # the rule that keeps it out; empty: it takes part
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[str, ...] = ()  # that were asked
