"""Why a model gave rows their scores: one function for every place that explains rows, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor

from wardround.core import seeds
from wardround.core.errors import StudyError, shown, suggest
from wardround.core.registry import Registry
from wardround.core.settings import Factory
from wardround.explain import METHODS
from wardround.explain.exact_shapley import MOST
from wardround.explain.method import Method, Scorer
from wardround.tasks import Task

SEED = 0  # of draws: the same row has the same explanation, whenever and with whichever others it comes
SCORED = 4 << MOST  # scores for a row: with more, the subsets of columns are sampled


@dataclass(frozen=True, eq=False)
class Background:
    """Rows that an explanation compares with: a contribution says how a value changes the score from theirs."""

    rows: Tensor  # prepared
    words: str  # what they are


@dataclass(frozen=True, eq=False)
class Explanation:
    """Contributions to scores before the inverse link. `values` is (rows, outputs, columns), or (rows, outputs, height,
    width) of images; base and values add up to the score where the method is complete."""

    method: str
    title: str
    link: str  # in what scores and contributions are measured
    background: str
    columns: tuple[str, ...]
    outputs: tuple[str, ...]
    values: np.ndarray
    base: np.ndarray  # (outputs,): the mean score of the background
    scores: np.ndarray  # (rows, outputs)
    completeness_error: np.ndarray  # (rows, outputs); NaN where the method does not promise that values add up
    sampling_error: np.ndarray | None  # standard error of each value, where values are sampled

    def __len__(self) -> int:
        return len(self.values)

    def by_column(self, row_numbers: Sequence[int] | np.ndarray | None = None) -> pd.DataFrame:
        """A line for each row, or for each output of each row: what each column contributes."""
        rows = np.arange(len(self)) if row_numbers is None else np.asarray(row_numbers)
        table = pd.DataFrame(self.values.reshape(-1, len(self.columns)), columns=list(self.columns))
        if len(self.outputs) == 1:
            return table.set_axis(pd.Index(rows, name="row"))
        return table.set_axis(pd.MultiIndex.from_product([rows, self.outputs], names=["row", "output"]))

    def table(self, row_numbers: Sequence[int] | np.ndarray | None = None) -> pd.DataFrame:
        """A line for each column of each output of each row."""
        rows = np.arange(len(self)) if row_numbers is None else np.asarray(row_numbers)
        outputs, columns = len(self.outputs), len(self.columns)
        errors = np.full(self.values.shape, np.nan) if self.sampling_error is None else self.sampling_error
        return pd.DataFrame(
            {
                "row": np.repeat(rows, outputs * columns),
                "output": np.tile(np.repeat(np.array(self.outputs, dtype=object), columns), len(rows)),
                "column": np.tile(np.array(self.columns, dtype=object), len(rows) * outputs),
                "contribution": self.values.ravel(),
                "sampling_error": errors.ravel(),
                "base": np.tile(np.repeat(self.base, columns), len(rows)),
                "score": np.repeat(self.scores.ravel(), columns),
            }
        )

    def facts(self) -> dict[str, str]:
        return {"method": self.method, "scale": self.link, "compared_with": self.background}


def explain_rows(
    scorer: Scorer,
    rows: Tensor,
    background: Background,
    method: str | None = None,
    settings: Mapping[str, object] | None = None,
    outputs: Sequence[int] | None = None,
) -> Explanation:
    """Explain prepared rows. By default a table is explained by exact Shapley values where these are cheap, and by
    sampled ones otherwise; every score of the model is explained, unless `outputs` says which."""
    name, chosen = method_for(scorer, len(background.rows), rows.dim() > 2, method, settings)
    names = output_names(scorer.model.task)
    numbers = list(range(len(names))) if outputs is None else list(outputs)
    parts = [
        chosen.attribute(scorer.of(output), rows, background.rows, seeds.generator(SEED, "explanation"))
        for output in numbers
    ]
    errors = [part.sampling_error for part in parts if part.sampling_error is not None]
    return Explanation(
        name,
        chosen.title,
        scorer.model.task.link,
        background.words,
        scorer.columns.names,
        tuple(names[output] for output in numbers),
        np.stack([part.values for part in parts], axis=1),
        np.array([part.base for part in parts]),
        scorer.all_values(rows)[:, numbers],
        np.stack([part.completeness_error for part in parts], axis=1),
        np.stack(errors, axis=1) if len(errors) == len(parts) else None,
    )


def method_for(
    scorer: Scorer,
    background_rows: int,
    images: bool = False,
    name: str | None = None,
    settings: Mapping[str, object] | None = None,
) -> tuple[str, Method]:
    """The method of this name; by default the first of those registered that takes the model and is not too dear."""
    known = known_methods()
    if name is not None:
        if name not in known:
            raise StudyError("--method", f"there is no method {shown(name)}", suggest(name, known, "Methods"))
        method: Method = known[name](**(settings or {}))
        if not method.takes(scorer, images):
            raise StudyError("--method", f"{name} {why_not(method, scorer, images)}", "Leave --method out.")
        return name, method
    for candidate, factory in METHODS.items():
        method = factory()
        dear = method.most_columns is not None and background_rows << len(scorer.columns) > SCORED
        if method.takes(scorer, images) and not dear:
            return candidate, method
    what = "images" if images else "this model"
    raise StudyError("--method", f"no method explains {what}", f"Methods: {', '.join(known)}.")


def known_methods() -> Mapping[str, Factory]:
    return Registry("explanations", METHODS)


def why_not(method: Method, scorer: Scorer, images: bool) -> str:
    if method.explains not in ("both", "image" if images else "table"):
        return f"explains {'tables' if images else 'images'}, and this model takes {'images' if images else 'a table'}"
    if method.linear_only and not scorer.model.linear:
        return "explains linear models, and this model is none"
    if method.needs_feature_maps and scorer.model.feature_maps is None:
        return "looks at feature maps, and this model has no convolutional layer"
    return f"takes at most {method.most_columns} columns, and this model has {len(scorer.columns)}"


def output_names(task: Task) -> tuple[str, ...]:
    """What each score of a model is about: the positive class, each class, each finding, or the number."""
    return task.names[-1:] if task.outputs == 1 else tuple(task.names)
