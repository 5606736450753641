"""What a source delivers: rows before any site is formed, split or prepared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.notices import Notice, as_notice
from wardround.tasks import Task, class_task, findings_task

Kind = Literal["numeric", "categorical"]
SEX_WORDS = {"m": "male", "male": "male", "f": "female", "female": "female", "w": "female"}
SPLIT_PARTS = ("train", "validation", "test")
BOX_COLUMNS = ("row", "finding", "x", "y", "width", "height")  # finding: its place in `classes`


def short_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def class_hash(run: str, name: str) -> str:
    """Lets the sites of a run see that they have the same class, where one of them may not name it."""
    return sha256(f"{run}/{name}".encode()).hexdigest()


@dataclass(frozen=True)
class Column:
    """One recorded feature. A numeric column holds floats with NaN for missing; a categorical one holds text."""

    name: str
    kind: Kind = "numeric"
    limits: tuple[float, float] | None = None  # public clinical range, for scale = "ranges"
    coded: bool = False  # a categorical column whose levels are numbers, so that `categories = "codes"` may use them
    levels: tuple[str, ...] | None = None  # all that there can be, where that is known without looking at rows
    header: str = ""  # what the hospital's file calls it, where that is not its name here
    dates: bool = False  # of a numeric column: dates, read as years since 2000-01-01
    words: tuple[tuple[str, str], ...] = ()  # spellings in lower case, and the level that each is read as
    missing_codes: tuple[float, ...] = ()  # of a numeric column: numbers that stand for "not measured"

    @property
    def own_name(self) -> str:
        return self.header or self.name


@dataclass(frozen=True)
class Records:
    """Rows of one or more hospitals. `features` is a table with one column per `columns`, an array of images, or
    signals: (rows, channels, samples), NaN where nothing was measured.

    A row is of one class, or it has any number of findings: then `target` has a column for each of them. A source of
    anything else names its task.
    """

    features: pd.DataFrame | np.ndarray
    target: np.ndarray  # int64: class number of each row; or (rows, findings) of 1, 0 and -1; or as its task has it
    classes: tuple[str, ...]  # their names; for two classes the second is the positive one. Or the findings' names
    hospital: np.ndarray  # name of the hospital that recorded the row
    columns: tuple[Column, ...] = ()
    patient: np.ndarray | None = None  # patient of each row, where known: a patient may have more than one row
    groups: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # `sex`, `view` (text), `age` (years), declared ones (text)
    notes: tuple[Notice | str, ...] = ()  # what the source changed while reading; plain sentences from others' sources
    synthetic: bool = False
    split: np.ndarray | None = None  # "train", "validation" or "test", where the source comes with a split
    boxes: pd.DataFrame | None = None  # BOX_COLUMNS: where a finding is, in parts of the image's width and height
    prints: np.ndarray | None = None  # uint64, equal where rows are equal, where the source knows them already
    recorded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns by hospital; all, unless given
    # by hospital: the words in its target column, in lower case, and the class that each was read as
    vocabulary: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # by party, in vertical federation: whether it has each row's patient
    known_to: Mapping[str, np.ndarray] = field(default_factory=dict)
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by party: the columns of its file
    # a party's own numbers of patients and their visits, by which parties find the rows that belong together
    ids: np.ndarray | None = field(default=None, repr=False)
    visits: np.ndarray | None = field(default=None, repr=False)
    # by hospital: who numbered its patients. Numbers of one origin can be compared; a hospital that is not named has
    # none. Empty: all numbers can be compared.
    numbering: Mapping[str, str] = field(default_factory=dict)
    # columns of the files that are no features, by name, read when they are asked for: they may be groups
    aside: Mapping[str, Callable[[], pd.Series]] = field(default_factory=dict, repr=False, compare=False)
    channels: tuple[str, ...] = ()  # of signals
    rate: float | None = None  # of signals: samples in a second; None: steps are not of equal length
    outcome: str = ""  # what the target is called, where it is classes; numbers have their names in the task
    given_task: Task | None = None  # None: it follows from the classes

    @property
    def task(self) -> Task:
        if self.given_task is not None:
            return self.given_task
        return class_task(self.classes) if self.target.ndim == 1 else findings_task(self.classes)

    @property
    def by_outcome(self) -> "tuple[Records, ...]":
        """The same rows with one outcome each, where several are predicted together; itself otherwise."""
        if not self.task.outcomes:
            return (self,)
        return tuple(
            replace(self, target=self.task.target_of(self.target, name), classes=task.classes, given_task=task)
            for name, task in self.task.outcomes.items()
        )

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(map(as_notice, self.notes))

    def __len__(self) -> int:
        return len(self.target)

    @property
    def is_table(self) -> bool:
        return isinstance(self.features, pd.DataFrame)

    @property
    def is_signals(self) -> bool:
        return bool(self.channels)

    @property
    def has_findings(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.task.answers == "findings"

    @property
    def hospitals(self) -> tuple[str, ...]:
        """Names in order of first appearance."""
        return tuple(dict.fromkeys(self.hospital.tolist()))

    @property
    def units(self) -> np.ndarray:
        """A number per row; rows of one patient share it and must never be separated."""
        if self.patient is None:
            return np.arange(len(self))
        return np.unique(self.patient, return_inverse=True)[1]

    def take(self, rows: np.ndarray | Sequence[int]) -> "Records":
        rows = np.asarray(rows, dtype=np.int64)
        features = self.features
        return replace(
            self,
            features=features.iloc[rows].reset_index(drop=True)
            if isinstance(features, pd.DataFrame)
            else features[rows],
            target=self.target[rows],
            hospital=self.hospital[rows],
            patient=None if self.patient is None else self.patient[rows],
            groups=self.groups.iloc[rows].reset_index(drop=True) if len(self.groups.columns) else pd.DataFrame(),
            split=None if self.split is None else self.split[rows],
            boxes=None if self.boxes is None else _boxes_of(self.boxes, rows),
            prints=None if self.prints is None else self.prints[rows],
            known_to={party: known[rows] for party, known in self.known_to.items()},
            ids=None if self.ids is None else self.ids[rows],
            visits=None if self.visits is None else self.visits[rows],
        )


@dataclass(frozen=True)
class Source:
    """Reads nothing until it is asked to."""

    load: Callable[[], Records]


def numbered(prefix: str, count: int) -> list[str]:
    """`x01`, `x02`, ...: padded so that names sort in the order of their numbers."""
    width = max(2, len(str(count)))
    return [f"{prefix}{number:0{width}}" for number in range(1, count + 1)]


def spaced_evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, from the first to the last."""
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.int64)])


def _boxes_of(boxes: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    """Of these rows, numbered by their new places."""
    places = pd.DataFrame({"row": rows, "place": np.arange(len(rows))})
    chosen = boxes.merge(places, on="row", how="inner")
    return chosen.assign(row=chosen.pop("place"))[list(BOX_COLUMNS)]
