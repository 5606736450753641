"""The form in which a prediction is given to its users: the columns of an answer, the value that is predicted, what a
threshold decides, and between which labels a prediction set chooses.

A task names its form. Bundles, servers and cards ask the form and never the shape of an array: scores are (rows,) or
(rows, names), and `columns` says how many of them there are.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

NOTHING = -1  # the number of a label that is not predicted, or not known
PRESENCE = ("absent", "present")


class Choice(NamedTuple):
    """A question to which a prediction set holds the possible answers."""

    about: str  # the finding; empty where a row has one question
    suffix: str  # of its column
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Answer(ABC):
    """`form` names the part of the card that explains it."""

    form: ClassVar[str]
    cells: ClassVar[Literal["text", "flag"]]  # what a predicted label is written as
    # what a site's validation rows bound: by prediction sets of labels, or by the residuals of a number
    bounded_by: ClassVar[Literal["sets", "residuals"]] = "sets"
    label: ClassVar[str] = "class"  # what one of the values is called
    uncalibrated: ClassVar[str] = ""  # why there is no one calibration of a row's score; empty where there can be one
    without_threshold: ClassVar[str] = ""  # what is so instead, where a row has no one threshold
    chosen: ClassVar[str] = "threshold and calibration"  # on validation rows of a site
    not_chosen: ClassVar[str] = "Threshold, calibration"  # what uses nothing of patients, where these are protected
    limits: ClassVar[tuple[float, float] | None] = (0.0, 1.0)  # between which scores, and what bounds them, lie
    figures: ClassVar[tuple[str, ...]] = ()  # metrics of the card, in their order; empty: all of the task's
    predicted_at: ClassVar[str] = ""  # which thresholds these metrics are of

    names: tuple[str, ...]
    unit: str = ""  # of figures that have one

    @property
    def is_sound(self) -> bool:
        """Whether the names can be those of such an answer: a file may hold anything."""
        return 0 < len(self.names) == len(set(self.names))

    @abstractmethod
    def columns(self, kind: str) -> tuple[str, ...]:
        """Of some kind of number, one for each score."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes or findings; none for numbers."""
        return self.names

    @property
    def scores(self) -> tuple[str, ...]:
        """Columns with the model's scores; of a number with its predicted value."""
        return self.columns("score")

    @property
    def predicted_columns(self) -> tuple[str, ...]:
        """Columns with predicted labels; none where the score itself is predicted."""
        return ("predicted",)

    @property
    def events(self) -> tuple[str, ...]:
        """What each score is the probability of and a threshold decides; none where scores are not decided one by
        one."""
        return ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The questions that prediction sets answer; none for numbers."""
        return ()

    @property
    def set_shape(self) -> tuple[int, ...]:
        """Of a row's prediction sets."""
        return ()

    def nothing(self) -> float:
        """The predicted value of a row that has none."""
        return NOTHING

    def counts(self, label: np.ndarray) -> dict[str, int]:
        """Rows with each label, of predicted or of true ones. Numbers have no labels."""
        return {}

    @property
    def few(self) -> str:
        """Of a label with few rows: what these rows do."""
        return "are"

    @property
    def listed(self) -> str:
        """All that may be predicted, in a line."""
        return ", ".join(self.names)

    @property
    @abstractmethod
    def purpose(self) -> str:
        """What a row is given."""

    @property
    def widths(self) -> str:
        """How intervals from residuals differ from row to row."""
        return ""

    def described(self) -> dict[str, Any]:
        """For the card: `positive` is the class that two classes are about; `findings` says whether there are any."""
        return {"classes": list(self.names), "positive": None, "findings": False}


CARD_FIGURES = ("auc", "accuracy", "sensitivity", "specificity", "ppv", "npv", "brier")


@dataclass(frozen=True)
class OneClass(Answer):
    """The class with the highest score."""

    form = "classes"
    cells = "text"
    uncalibrated = "scores of more than two classes are not recalibrated"
    without_threshold = "none: the highest score counts"
    figures: ClassVar[tuple[str, ...]] = CARD_FIGURES
    predicted_at = "a threshold of 0.5"

    @property
    def is_sound(self) -> bool:
        return super().is_sound and len(self.names) > 1

    def columns(self, kind: str) -> tuple[str, ...]:
        return tuple(f"{kind}_{name}" for name in self.names)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice("", "", self.names),)

    @property
    def set_shape(self) -> tuple[int, ...]:
        return (len(self.names),)

    def counts(self, label: np.ndarray) -> dict[str, int]:
        return {name: int((label == number).sum()) for number, name in enumerate(self.names)}

    @property
    def purpose(self) -> str:
        return f"a score for each of: {', '.join(self.names)}"


@dataclass(frozen=True)
class PositiveClass(OneClass):
    """Of two classes the second, if its score reaches the threshold."""

    form = "two_classes"
    uncalibrated = ""

    @property
    def is_sound(self) -> bool:
        return super().is_sound and len(self.names) == 2

    def columns(self, kind: str) -> tuple[str, ...]:
        return (kind,)

    @property
    def events(self) -> tuple[str, ...]:
        return self.names[1:]

    @property
    def listed(self) -> str:
        return " or ".join(reversed(self.names))

    @property
    def purpose(self) -> str:
        return f"a score for {self.names[1]!r} against {self.names[0]!r}"

    def described(self) -> dict[str, Any]:
        return {**super().described(), "positive": self.names[1]}


@dataclass(frozen=True)
class EachFinding(Answer):
    """Of each finding whether it is present."""

    form = "findings"
    cells = "flag"
    uncalibrated = "findings are calibrated one by one"
    without_threshold = "one for each finding"
    figures: ClassVar[tuple[str, ...]] = CARD_FIGURES
    predicted_at = "the study's thresholds"

    def columns(self, kind: str) -> tuple[str, ...]:
        return tuple(f"{kind}_{name}" for name in self.names)

    @property
    def predicted_columns(self) -> tuple[str, ...]:
        return self.columns("predicted")

    @property
    def events(self) -> tuple[str, ...]:
        return self.names

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(name, f"_{name}", PRESENCE) for name in self.names)

    @property
    def set_shape(self) -> tuple[int, ...]:
        return (len(self.names), len(PRESENCE))

    def counts(self, label: np.ndarray) -> dict[str, int]:
        return {name: int((own == 1).sum()) for name, own in zip(self.names, label.T, strict=True)}

    @property
    def few(self) -> str:
        return "have"

    @property
    def purpose(self) -> str:
        return f"a score for each of these findings: {', '.join(self.names)}"

    def described(self) -> dict[str, Any]:
        return {**super().described(), "findings": True}


@dataclass(frozen=True)
class OneNumber(Answer):
    """The number itself, in the units of its target; or how many events are expected over a row's exposure."""

    form = "number"
    cells = "text"
    bounded_by = "residuals"
    label = "value"
    limits = None
    uncalibrated = "numbers are given as the model predicts them"
    without_threshold = "none: a number is predicted"
    chosen = "intervals"
    not_chosen = "What there is of intervals"

    exposure: str = ""  # the column with it; empty: 1 in all rows
    is_count: bool = False

    def columns(self, kind: str) -> tuple[str, ...]:
        return (kind,)

    @property
    def scores(self) -> tuple[str, ...]:
        return ("predicted",)

    @property
    def predicted_columns(self) -> tuple[str, ...]:
        return ()

    @property
    def classes(self) -> tuple[str, ...]:
        return ()

    def nothing(self) -> float:
        return float("nan")

    @property
    def listed(self) -> str:
        return f"{self.names[0]}{self._in_units}"

    @property
    def purpose(self) -> str:
        what = "an expected number" if self.is_count else "an expected value"
        return f"{what} of {self.names[0]!r}{self._in_units}"

    @property
    def _in_units(self) -> str:
        per = f", for the exposure in {self.exposure!r}" if self.exposure else ""
        return f" in {self.unit}{per}" if self.unit else per

    @property
    def widths(self) -> str:
        if self.is_count:
            return "Intervals are wider where more events are expected."
        return "All intervals are equally wide: for patients who are easy to predict as for others."

    def described(self) -> dict[str, Any]:
        number = {"number": self.names[0], "unit": self.unit, "exposure": self.exposure, "is_count": self.is_count}
        return {**super().described(), "classes": [], **number}
