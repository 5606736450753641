"""What is predicted, as a value: everything that depends on the kind of outcome is a method of its task.

A task is one file, and one line in `TASKS`. Training uses it through the model (loss, derivative, predictions),
evaluation through the scores (metrics). It knows no file, no engine and no page of a report.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wardround.study.facts import TaskFacts
from wardround.tasks.answer import Answer
from wardround.tasks.metric import Metric
from wardround.tasks.report_facts import ReportFacts


class WrongRows(NamedTuple):
    rows: np.ndarray  # whether each is wrong
    column: int  # 0: the target itself; then the columns that belong to it
    problem: str  # after the number of rows
    remedy: str


Calibration = Literal["logistic", "linear"]
ThresholdRule = Literal["youden", "f1"]
Link = Literal["log odds", "log odds against the other classes", "log rate", "units"]
MIDDLE = 0.5  # the threshold of a positive class or finding, where none was chosen


@dataclass(frozen=True)
class Task(ABC):
    """Fields besides `names` are settings that a study may give: `[data] task = { kind = "regression", ... }`."""

    kind: ClassVar[str]
    loss_from_zero: ClassVar[bool] = True  # whether a perfect model has a loss of 0, so that losses have ratios
    reads: ClassVar[Literal["classes", "numbers"]]  # what a target column holds: words or codes of classes, or numbers
    # one class of a row, any number of findings, a number, or several outcomes that are one of these each
    answers: ClassVar[Literal["class", "findings", "number", "several"]]
    metrics: ClassVar[tuple[Metric, ...]]
    primary: ClassVar[str]  # the metric that answer, verdicts and figures are about, unless the study names another
    curve: ClassVar[str]  # the figure that is computed after each round beside the loss: a mean over rows
    # the line of observed on predicted: on the logit scale, where a prediction is one probability, or in units
    calibration: ClassVar[Calibration | None] = None
    referral_metrics: ClassVar[tuple[str, str]]  # by which rows that are not referred to a clinician are judged
    has_noise: ClassVar[bool] = False  # the likelihood has a variance of outcomes around scores, told by errors alone
    threshold_rule: ClassVar[ThresholdRule | None] = None  # by which validation rows choose one; None: there is none
    round_metrics: ClassVar[tuple[str, ...]] = ()  # figures after each round that are no mean over rows
    compared: ClassVar[tuple[str, ...]]  # metrics in which arms are compared, beside the primary one
    at_sites: ClassVar[tuple[str, ...]]  # metrics in which hospitals are compared one by one, beside the primary one
    over_sites: ClassVar[tuple[str, ...]]  # metrics whose means over sites are reported, beside the primary one's

    ordered: ClassVar[bool] = False  # whether the study must list its `classes`, because their order matters
    # whether `is_upper` sets rows against each other, so that hospitals compare which way columns go with the outcome
    has_upper: ClassVar[bool] = False
    name_count: ClassVar[int | None] = None  # how many names it must have; None: any number
    # whether rows of several sites can be ranked by a histogram of the scores of either class
    scored_by_class: ClassVar[bool] = False
    # whether figures of the positive class are undefined where no row is of it, however many are predicted to be
    needs_positives: ClassVar[bool] = False

    names: tuple[str, ...]  # of the classes, of the findings, or of the number that is predicted

    @property
    def report(self) -> ReportFacts:
        """What is shown of it. This will do for any task; most know better words."""
        shown = tuple(metric.name for metric in self.metrics)
        return ReportFacts(
            arms=shown, terminal=shown[:6], groups=(shown,) * 3, outside=shown, runs=self.compared, outcome=self.words
        )

    def describe_target(self, target: np.ndarray) -> dict[str, float | None] | None:
        """Of a site's outcomes, where `label_counts` says nothing of them. Neither a least nor a largest, and None in
        place of figures of few rows."""
        return None

    @property
    def outcomes(self) -> "Mapping[str, Task]":
        """By name, where several are predicted together and each is scored by itself."""
        return {}

    def target_of(self, target: np.ndarray, name: str) -> np.ndarray:
        """The part of a source's target that is one of `outcomes`."""
        raise KeyError(name)

    def y_of(self, y: Tensor, name: str) -> Tensor:
        """The part of what training takes as `y` that is one of `outcomes`."""
        raise KeyError(name)

    def scores_of(self, scores: Tensor, name: str) -> Tensor:
        """The part of a model's scores that is one of `outcomes`."""
        raise KeyError(name)

    @property
    def target_width(self) -> int:
        """Columns of a source's target."""
        return 1

    @property
    def scale_width(self) -> int:
        """Numbers of `scale`."""
        return 0

    def label_columns(self) -> list[str]:
        """Of saved predictions."""
        return ["label"]

    def score_columns(self) -> list[str]:
        """Of saved predictions."""
        return ["score"] if self.outputs == 1 else [f"score_{name}" for name in self.names]

    @property
    def findings(self) -> tuple[str, ...]:
        """Their names, where a row may have several."""
        return ()

    def questions(self, values: np.ndarray) -> list[np.ndarray]:
        """Labels, or what each label has, apart for each question: all classes together are one, and so is a number;
        each finding is one."""
        return [values]

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """One number for each row, from one for each question: their mean."""
        return values

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Scores that a model gives for a row, without `leaves`."""

    @property
    def leaves(self) -> dict[str, float]:
        """Numbers that are learnt beside the network and shared by all rows, with their first values. They stand behind
        the scores of each row."""
        return {}

    @property
    @abstractmethod
    def answer(self) -> Answer:
        """The form in which users are given a prediction."""

    @abstractmethod
    def row_losses(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Of each row. `weights` are those of `class_weights`."""

    @abstractmethod
    def losses_and_errors(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (..., rows, copies) and their derivatives by the scores (..., rows, copies x outputs), for models
        whose gradient is written out. `scores` hold the outputs of one model after those of another."""

    @abstractmethod
    def curvature(self, scores: Tensor, y: Tensor) -> Tensor:
        """The second derivative of each row's negative log likelihood by each score: (rows, outputs). Where outcomes
        have a variance around their score (`has_noise`), as if that were 1."""

    def expected_losses(self, scores: Tensor, variance: Tensor, y: Tensor, noise: float = 1.0) -> Tensor:
        """Of each row, where scores are normally distributed, with this variance, around those given. The mean
        probability is about that of the score divided by sqrt(1 + pi / 8 x variance) (MacKay, Neural Computation
        1992). `noise` is the variance of outcomes around scores."""
        return self.row_losses(moderated(scores, variance), y)

    @abstractmethod
    def predictions(self, scores: Tensor, y: Tensor | None = None) -> Tensor:
        """Probabilities: of the positive class of two, (rows,), or of each class or finding, (rows, names). Of a number
        its expected value, (rows,); the columns of `y` besides the value itself say in which scale."""

    @property
    def link(self) -> Link:
        """What `on_link_scale` is measured in."""
        return "log odds"

    def on_link_scale(self, scores: Tensor, scale: tuple[float, ...]) -> Tensor:
        """A model's scores as explanations give them, (rows, outputs): before the inverse link, so that a linear model
        stays linear. `scale` is that of training."""
        return scores[..., : self.outputs]

    @abstractmethod
    def row_figures(self, scores: Tensor, y: Tensor) -> Tensor:
        """What `curve` is the mean of."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of further columns that belong to the target, such as the exposure of a count."""
        return ()

    @property
    def public_range(self) -> tuple[float, float] | None:
        """Lowest and highest value of a number, where they are known without looking at rows."""
        return None

    def with_range(self, known: tuple[float, float]) -> "Task":
        """With this public range, where the task has one."""
        return self

    @classmethod
    def wrong_names(cls, names: tuple[str, ...]) -> str | None:
        """Why these cannot be the names of its classes, or None."""
        return None

    def wrong_setting(self) -> tuple[str, str, str] | None:
        """A setting, what is wrong with its value, and what to write; None where all are possible."""
        return None

    def wrong_rows(self, values: np.ndarray) -> Iterator[WrongRows]:
        """Of numbers as they are in a file, (rows, 1 + columns): what must be corrected before anything is read."""
        return iter(())

    def of_numbers(self, values: np.ndarray) -> np.ndarray:
        """The target, from numbers as they are in a file, (rows, 1 + columns)."""
        raise TypeError(f"{self.kind} is not read from numbers")

    def label(self, y: Tensor) -> Tensor:
        """What predictions are compared with: of a number the value alone, without the columns beside it."""
        return y

    @property
    def scale_is_public(self) -> bool:
        """Whether `scale` is known without looking at rows, as differential privacy needs it."""
        return True

    def target_sums(self, target: np.ndarray) -> np.ndarray:
        """Sums over a site's training rows from which `scale` follows; empty where nothing needs to be known."""
        return np.zeros(0)

    def scale(self, sums: np.ndarray) -> tuple[float, ...]:
        """What training needs to know of the target of all sites, from their `target_sums` added up."""
        return ()

    def check_target_sums(self, sums: Sequence[float], rows: int) -> None:
        """`Impossible` where no such number of rows can have these `target_sums`."""
        require(not len(sums), "sums of a target that needs none")

    def check_scale(self, scale: Sequence[float]) -> None:
        """`Impossible` where `scale` gives none such."""
        require(not len(scale), "the scale of a target that has none")

    @abstractmethod
    def blank_target(self, rows: int) -> np.ndarray:
        """In the form of a source's target, for rows that are elsewhere."""

    def training_target(self, target: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        """A source's target in the form that training and prediction take as `y`."""
        return target

    def unknown_target(self, columns: np.ndarray, scale: tuple[float, ...]) -> np.ndarray:
        """What `predictions` takes as `y` of rows whose outcome is not known. `columns` are those that belong to the
        target, (rows, columns); `scale` is that of training."""
        return np.zeros(len(columns), dtype=np.int64)

    def unusable(self, columns: np.ndarray) -> np.ndarray:
        """Rows that cannot be predicted because of the columns that belong to the target."""
        values = np.column_stack([np.zeros(len(columns)), columns])
        wrong = [wrong.rows for wrong in self.wrong_rows(values) if wrong.column]
        return np.asarray(np.any([np.zeros(len(columns), dtype=bool), *wrong], axis=0))

    def columns_in(self, y: np.ndarray) -> np.ndarray:
        """Of rows as training has them: the columns that belong to the target, without its value and scale."""
        return np.zeros((len(y), 0))

    def scale_in(self, y: np.ndarray) -> tuple[float, ...]:
        """The scale with which `training_target` made these rows."""
        return ()

    def is_scale(self, scale: tuple[float, ...]) -> bool:
        """Whether these numbers can be a scale: a file may hold anything."""
        return not scale

    def spread_in(self, scale: tuple[float, ...]) -> float:
        """In what differences of predictions are measured: probabilities in themselves."""
        return 1.0

    def round_figures(self, label: np.ndarray, score: np.ndarray) -> dict[str, float]:
        """Those of `round_metrics`."""
        return {}

    def for_loss(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Labels in the form that the loss is quickest with."""
        return y

    @abstractmethod
    def class_weights(self, labels: Tensor) -> Tensor:
        """So that all classes, or each finding's presence and absence, weigh alike in the loss."""

    @abstractmethod
    def rarity(self, labels: Tensor) -> Tensor:
        """Of each row: the share of this site's rows that are of its kind, by which rare ones are drawn more often."""

    def row_weights(self, y: Tensor, weights: Tensor) -> Tensor | None:
        """By how much each row counts under `class_weights`; None where that differs within a row."""
        return None

    @abstractmethod
    def label_counts(self, target: np.ndarray) -> dict[str, int]:
        """Rows of each class by its name; or with each finding, and last those with none. Numbers have no classes."""

    @abstractmethod
    def strata(self, target: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """A number for each row of the source by which `rows` are shared out evenly between training and test. It
        depends on these rows alone, so that a hospital by itself draws the same split."""

    def values(self, target: np.ndarray) -> np.ndarray:
        """The classes, the findings or the numbers that are predicted, of a source's target."""
        return target

    def coarse(self, target: np.ndarray) -> tuple[np.ndarray, int]:
        """Labels that can be counted, and of how many kinds they are: by them sites are formed and compared."""
        return target, len(self.names)

    # -- what checks of the rows, partitions and files ask of a source's target

    # whether a column tells the outcome only if it answers all of `yes_or_no`: one class of several may stand apart by
    # nature, and so may the highest values of a number
    told_by_all: ClassVar[bool] = False
    nobodys: ClassVar[bool] = False  # whether the last of `patient_kinds` is of patients with nothing to be told of

    def yes_or_no(self, target: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Questions that a column could answer, by name: 1, 0, and below 0 where the answer is not known. A number is
        asked about within these rows."""
        return iter(())

    def as_number(self, target: np.ndarray) -> np.ndarray | None:
        """For correlations: the number itself, or 1 in rows of the positive class. None where the outcome has no order.
        Its name is the last of `names`."""
        return None

    def is_upper(self, target: np.ndarray) -> np.ndarray | None:
        """Whether each row is of the positive class, or above the middle of these rows; None where the outcome has no
        order. So columns can be seen to point one way at one hospital and another way at another."""
        return None

    def sizes(self, target: np.ndarray) -> np.ndarray | None:
        """Numbers that are as many times larger at a hospital as its unit is smaller; None for classes."""
        return None

    def patient_kinds(self, target: np.ndarray, units: np.ndarray) -> np.ndarray:
        """A number for each patient by which partitions tell them apart: that of the first row. `units` numbers the
        patient of each row."""
        return np.asarray(self.coarse(target)[0][np.unique(units, return_index=True)[1]])

    def written(self, target: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of a table that hold the target, and what belongs to it."""
        return {"label": np.array(self.names, dtype=object)[target]}

    @abstractmethod
    def predicted(self, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> np.ndarray:
        """The class of each row, whether each finding is present, or the number itself."""

    @abstractmethod
    def row_values(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE
    ) -> np.ndarray | None:
        """What `curve` is the mean of, from saved predictions; None where it is no mean over these rows."""

    @classmethod
    def curves(cls) -> tuple[str, ...]:
        """The figures after each round."""
        return (cls.curve, "loss", *cls.round_metrics)

    @classmethod
    def after_training(cls) -> tuple[str, ...]:
        """Figures after the last round on other rows than test rows."""
        return tuple(f"{rows}_{figure}" for rows in ("training", "validation") for figure in (cls.curve, "loss"))

    def score_unit(self, label: np.ndarray) -> float:
        """In what scores are measured: probabilities in themselves, numbers in the spread of their target."""
        return 1.0

    @classmethod
    def facts(cls) -> TaskFacts:
        return TaskFacts(
            primary=cls.primary,
            metrics=tuple(metric.name for metric in cls.metrics),
            undirected=tuple(metric.name for metric in cls.metrics if metric.better is None),
            after_training=cls.after_training(),
            linear_model="linear" if cls.answers == "number" else "logistic",
            has_classes=cls.answers != "number",
        )

    @abstractmethod
    def against_constant(self, label: np.ndarray, score: np.ndarray, loss: float) -> tuple[float, float]:
        """A loss of the model and that of the best answer that is the same for every row. `loss` is the mean loss of
        training on these rows."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    @abstractmethod
    def figures(self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray | float = MIDDLE) -> dict[str, float]:
        """Each metric; NaN where it is not defined. `threshold` is that of the positive class of two or of findings,
        one for all or one for each."""

    @abstractmethod
    def grouped_figures(
        self,
        group: np.ndarray,
        count: int,
        label: np.ndarray,
        score: np.ndarray,
        threshold: np.ndarray | float = MIDDLE,
    ) -> np.ndarray:
        """(count, metrics). `group` numbers each row's group from 0; a group without rows is NaN throughout.
        `threshold` is that of each row, in the shape of the scores, or one for all."""

    # -- what a site may tell of its predictions in their place: sums that add up over hospitals

    @property
    def parts(self) -> dict[str, "Task"]:
        """What has figures of its own that are averaged, by name, such as each finding; none where the whole has."""
        return {}

    def figures_over_parts(self, each: np.ndarray) -> np.ndarray:
        """(parts, ..., metrics) as (..., metrics): means over the parts in which a figure is defined."""
        from wardround.tasks.class_metrics import average  # SciPy, which training does without

        return average(each)

    @property
    def classes(self) -> tuple[str, ...]:
        """Of which a row is exactly one; none where it may have several findings, or has a number."""
        return ()

    @property
    def counted(self) -> tuple[str, ...]:
        """The names of `label_counts`."""
        return self.classes

    def class_of(self, label: np.ndarray) -> np.ndarray:
        """By which a sum could tell of few patients: the class of each row. Numbers are of one for all."""
        return np.zeros(len(label), dtype=np.int64)

    def diverged(self, score: np.ndarray) -> bool:
        """Whether a model has left the numbers, so that there is nothing to tell of its predictions."""
        return bool(np.isnan(score).any())

    @abstractmethod
    def row_sums(
        self, label: np.ndarray, score: np.ndarray, threshold: float = MIDDLE, by_class: bool = True
    ) -> dict[str, Any]:
        """Plain data about these rows that add up over hospitals; without what is by class unless `by_class`."""

    @abstractmethod
    def figures_of_rows(self, told: Mapping[str, Any]) -> Mapping[str, float | None]:
        """Each metric at one site, from what `row_sums` gave there; None where it is not told."""

    @abstractmethod
    def merged_figures(self, told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """The metrics that follow from the sums of several sites. Those that do not are left out."""

    def totals(self, terms: Sequence[float]) -> tuple[float, float, float]:
        """Of a number: the sums of outcomes, of predictions and of squared residuals, from the terms of `row_sums`."""
        raise TypeError(f"{self.kind} has no residuals")

    @abstractmethod
    def check_sums(self, told: Mapping[str, Any], rows: int) -> None:
        """`Impossible` where no such number of rows can have these sums."""

    @property
    def options(self) -> dict[str, Any]:
        """All that it has beside its names, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "names"}

    @property
    def words(self) -> str:
        """What is predicted, as a phrase for people."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items() if value not in (None, ""))
        return f"{self.kind} of {', '.join(self.names)}{f' ({options})' if options else ''}"

    @abstractmethod
    def weighted_figures(
        self, label: np.ndarray, score: np.ndarray, threshold: np.ndarray
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        """Functions from weights (resamples, rows) to figures (resamples, metrics): one, or one for each finding."""

    def to_json(self) -> dict[str, Any]:
        """`read_task` reads it again."""
        return {"kind": self.kind, **self.options, "names": list(self.names)}


class Impossible(ValueError):
    """Names the figure that no rows can have. What another institution sends may be wrong, or forged."""


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise Impossible(problem)


def moderated(scores: Tensor, variance: Tensor) -> Tensor:
    """Scores whose probability is about the mean over their distribution: MacKay's formula, exact to some thousandths
    for two classes and for findings."""
    return scores / (1 + torch.pi / 8 * variance).sqrt()


HEAVIEST = 100.0  # a finding that one row in a thousand has would otherwise drown all the others


def row_odds(task: Task, labels: Tensor, strength: float) -> np.ndarray:
    """The probability with which each row is drawn. With `strength` 0 all are alike; with 1 a row is drawn the more
    often the rarer its class, or the rarest of its findings, is at this site."""
    odds = task.rarity(labels).double().numpy() ** -strength
    return np.asarray(odds / odds.sum())
