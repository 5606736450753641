"""A generalized linear model over hospitals: the settings of a study, and the loop of sums.

    means       rows, patients, and the mean of each column and of the outcome
    moments     cross products around the means: constant and collinear columns are refused here, in words
    score       likelihood, score and information of each model that has not arrived: the model itself, the one with an
                intercept alone, and where they are asked for those without one term each
    direction   only where a likelihood seems to have no maximum: whether a direction separates the outcomes
    hospitals   in place of all these, for random effects: each hospital's own regression
    final       deviance, information and, where robust errors are asked for, the scores' spread over patients

Columns are centred and divided by their spread between sites and coordinator, so that Newton's equations are well
conditioned whatever the units; results are in the units of the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from wardround.analyses.agreement import SITE
from wardround.analyses.analysis import Agreed, Block, Blocks, Question, Schema, Sums, Uses
from wardround.analyses.glm.diagnosis import refuse_collinear, refuse_constant, refuse_few_rows, separation_error
from wardround.analyses.glm.families import Family, family_of
from wardround.analyses.glm.formula import (
    Design,
    Formula,
    Layout,
    design_of,
    layout_of,
    read_expression,
    read_formula,
    refuse_unknown_columns,
)
from wardround.analyses.glm.newton import Climb, halved, looked, packed, stepped, unpacked
from wardround.analyses.site_rows import SiteRows, without_gaps
from wardround.core.errors import DataError, DeployError, StudyError
from wardround.core.settings import Positive, Range
from wardround.privacy.disclosure import Release

UNDECLARED = 1e15  # of a column without a public range: a cap under a secure sum, not a claim about the data
SPREAD = 1e6  # at most so many standard deviations is a value from its mean, over a million rows
LEAST_SPREAD = 1e-10  # relative: a column that varies less is constant
CHECKED_AT = (10, 15, 20, 30, 45)  # iterations at which separation is looked for
MARGIN = 1e-5
Step = Literal["hospitals", "means", "moments", "score", "direction", "final", "done"]
Share = Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)]


@dataclass(frozen=True, eq=False)
class State:
    agreed: Agreed
    step: Step = "means"
    rows: int = 0
    patients: int = 0
    outcome_sum: float = 0.0
    offset_sum: float = 0.0
    excluded: tuple[int, int] = (0, 0)
    centre: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))
    climbs: Mapping[str, Climb] = field(default_factory=dict)
    final: Mapping[str, np.ndarray] = field(default_factory=dict)
    by_site: Mapping[str, Sums] = field(default_factory=dict)  # of random effects: each hospital's own regression


MODEL, NULL, WITHOUT = "model", "null", "without "


@dataclass(frozen=True)
class Glm:
    kind: ClassVar[str] = "glm"

    formula: str
    family: Literal["gaussian", "logistic", "poisson", "negative-binomial"] = "gaussian"
    dispersion: Positive | None = None
    offset: str = ""
    errors: Literal["model", "robust"] = "model"
    confidence: Share = 0.95
    distribution: Literal["normal", "t"] = "normal"
    likelihood_ratio: bool = False
    firth: bool = False
    site_effects: Literal["none", "random"] = "none"

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        _ = self.read, self.read_offset
        if (self.dispersion is not None) != (self.family == "negative-binomial"):
            if self.dispersion is None:
                remedy = "Write `dispersion = 1.0`, or the value that you know: variance = mean + dispersion x mean²."
                raise StudyError("dispersion", "missing, and a negative binomial has one", remedy)
            problem = "is that of a negative binomial, and this is another family"
            raise StudyError("dispersion", problem, 'Leave it out, or write family = "negative-binomial".')
        if self.firth and self.family != "logistic":
            raise StudyError("firth", "is for logistic regression", 'Leave it out, or write family = "logistic".')
        if self.firth and (self.likelihood_ratio or self.errors == "robust"):
            problem = "has neither robust errors nor tests of single terms by likelihood"
            raise StudyError("firth", problem, "Leave `errors` and `likelihood_ratio` out.")
        self._check_site_effects()
        if self.distribution == "t" and self.family != "gaussian":
            raise StudyError("distribution", "t is for Gaussian outcomes", 'Leave it out, or write "normal".')

    def _check_site_effects(self) -> None:
        if self.site_effects == "random" and (self.likelihood_ratio or self.distribution == "t" or self.firth):
            problem = "are put together from each hospital's own regression, which has none of the other tests"
            raise StudyError("site_effects", problem, "Leave `likelihood_ratio`, `distribution` and `firth` out.")
        if self.site_effects == "random" and SITE in self.read.names:
            problem = "are random, and `+ site` in the formula makes them fixed"
            raise StudyError("site_effects", problem, "Leave one of the two out.")

    @cached_property
    def read(self) -> Formula:
        return read_formula(self.formula)

    @cached_property
    def read_offset(self) -> Formula | None:
        return read_expression(self.offset, "offset") if self.offset else None

    @cached_property
    def own_family(self) -> Family:
        return family_of(self.family, self.dispersion or 0.0)

    @property
    def tells_sites(self) -> str:
        if self.site_effects == "random":
            return "the estimates and standard errors of each hospital"
        return "the number of rows and the mean outcome of each hospital" if SITE in self.read.names else ""

    @property
    def citations(self) -> tuple[str, ...]:
        used = ["McCullagh, Nelder. Generalized linear models. Chapman and Hall 1989"]
        if self.errors == "robust":
            used.append("Liang, Zeger. Longitudinal data analysis using generalized linear models. Biometrika 73, 1986")
        if self.firth:
            used.append("Firth. Bias reduction of maximum likelihood estimates. Biometrika 80, 1993")
        if self.site_effects == "random":
            used += [
                "DerSimonian, Laird. Meta-analysis in clinical trials. Controlled Clinical Trials 7, 1986",
                "Viechtbauer. Bias and efficiency of meta-analytic variance estimators in the random-effects model. "
                "Journal of Educational and Behavioral Statistics 30, 2005",
            ]
        return tuple(used)

    # -- what it reads

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.read.names, *(self.read_offset.names if self.read_offset else ())]))

    def uses(self, schema: Schema) -> Uses:
        refuse_unknown_columns(self.read.names, schema, "formula")
        if self.read_offset is not None:
            refuse_unknown_columns(self.read_offset.names, schema, "offset")
            for name in self.read_offset.names:
                if name == SITE or schema[name].kind != "numeric":
                    raise StudyError("offset", f"{name!r} is no column of numbers", "Name one, such as log(years).")
        (outcome,) = self.read.outcome
        if schema[outcome].kind != "numeric":
            problem = f"the outcome {outcome!r} is text, and a regression needs a number"
            remedy = f'Name it as the `target` in [data], with `positive = "..."`, or code {outcome!r} as 0 and 1.'
            raise StudyError("formula", problem, remedy)
        categories = [n for n in self.read.names if n == SITE or n in self.read.categories or _is_text(schema, n)]
        return Uses(tuple(name for name in self.names if name != SITE), tuple(categories))

    def eligible(self, rows: SiteRows) -> np.ndarray:
        return without_gaps(rows, tuple(name for name in self.names if name != SITE))

    def layout(self, agreed: Agreed) -> Layout:
        return layout_of(self.read, self.read_offset, agreed, "formula")

    def design(self, agreed: Agreed, rows: SiteRows) -> Design:
        """Of a site's rows that count. DataError where the outcome is of another kind than the family."""

        def make() -> Design:
            design = design_of(self.layout(agreed), agreed, rows, self.names)
            if wrong := self.own_family.wrong_outcome(design.outcome):
                remedy = "Name another outcome or another family."
                raise DataError(rows.site, f"the outcome {self.read.outcome[0]!r} {wrong}", remedy)
            return design

        return rows.once(("design",), make)

    def release(self, agreed: Agreed, rows: SiteRows) -> Release:
        design = self.design(agreed, rows)
        return Release(rows.people, np.column_stack([design.matrix, design.outcome]), design.matrix)

    # -- the loop

    def begin(self, agreed: Agreed) -> State:
        self.layout(agreed)
        return State(agreed, "hospitals" if self.site_effects == "random" else "means")

    def ask(self, state: State) -> Question | None:
        if state.step == "done":
            return None
        steps = max((climb.iterations for climb in state.climbs.values()), default=0)
        return Question(state.step, self._arrays(state), f"step {steps + 1}" if state.step == "score" else state.step)

    def _arrays(self, state: State) -> dict[str, np.ndarray]:
        if state.step in ("means", "hospitals"):
            return {}
        arrays = {"centre": state.centre}
        if state.step == "moments":
            return arrays
        arrays["spread"] = state.spread
        for name, climb in state.climbs.items():
            if state.step == "final" or not climb.done:
                arrays[f"point {name}"] = climb.point
            if state.step == "score" and climb.needs_hat and climb.information is not None:
                arrays[f"hat {name}"] = np.linalg.inv(climb.information)
        if state.step == "direction" and (step := state.climbs[MODEL].step) is not None:
            return {key: arrays[key] for key in ("centre", "spread")} | {"direction": step / np.abs(step).max()}
        return arrays

    def blocks(self, agreed: Agreed, question: Question) -> Blocks:
        shapes = self._shapes(agreed, question)
        if shapes is None or {name: array.shape for name, array in question.arrays.items()} != shapes:
            problem = "asks what is no step of a regression"
            raise DeployError("coordinator", problem, "Install the same version everywhere.")
        rows, width = float(agreed.most_rows), len(self.layout(agreed).names)
        if question.step == "hospitals":
            return {
                "counts": Block((3,), rows),
                "estimates": Block((width,), UNDECLARED),
                "covariance": Block((half(width),), UNDECLARED**2),
            }
        if question.step == "means":
            far = rows * UNDECLARED
            return {
                "counts": Block((4,), rows),
                "columns": Block((width,), far),
                "outcome": Block((1,), rows * self._largest_outcome(agreed)),
                "offset": Block((1,), far),
            }
        if question.step == "moments":
            return {"products": Block((half(width),), rows * UNDECLARED**2)}
        if question.step == "direction":
            return {"violations": Block((2,), rows)}
        blocks: dict[str, Block] = {}
        for name, columns in self._asked(agreed, question).items():
            add = self._score_blocks if question.step == "score" else self._final_blocks
            blocks |= add(name, len(columns), f"hat {name}" in question.arrays, rows * UNDECLARED * SPREAD**2)
        return blocks

    def _shapes(self, agreed: Agreed, question: Question) -> dict[str, tuple[int, ...]] | None:
        """Of the arrays with which a step may come; None where there is no such step."""
        width, asked = len(self.layout(agreed).names), self._asked(agreed, question)
        centre: dict[str, tuple[int, ...]] = {"centre": (width,)}
        points: dict[str, tuple[int, ...]] = {f"point {name}": (len(columns),) for name, columns in asked.items()}
        hats = {
            f"hat {name}": (len(columns),) * 2 for name, columns in asked.items() if f"hat {name}" in question.arrays
        }
        return {
            "means": {},
            **({"hospitals": {}} if self.site_effects == "random" else {}),
            "moments": centre,
            "direction": {**centre, "spread": (width,), "direction": (width,)},
            "score": {**centre, "spread": (width,), **points, **(hats if self.firth else {})},
            "final": {**centre, "spread": (width,), **points},
        }.get(question.step)

    def _asked(self, agreed: Agreed, question: Question) -> dict[str, list[int]]:
        """The models that a step is about."""
        columns = self._columns(agreed)
        return {name: own for name, own in columns.items() if f"point {name}" in question.arrays}

    def _score_blocks(self, name: str, size: int, hat: bool, far: float) -> dict[str, Block]:
        if hat:
            return {f"score {name}": Block((size,), far)}
        blocks = {
            f"overflow {name}": Block((1,), 1.0),
            f"log-likelihood {name}": Block((1,), far),
            f"information {name}": Block((half(size),), far),
        }
        return blocks if self.firth else blocks | {f"score {name}": Block((size,), far)}

    def _final_blocks(self, name: str, size: int, hat: bool, far: float) -> dict[str, Block]:
        blocks = {f"log-likelihood {name}": Block((1,), far)}
        if name == NULL:
            blocks["null deviance"] = Block((1,), far)
        if name == MODEL:
            matrices = ["information", *(["expected"] if self.own_family.differs else [])]
            blocks |= {"fit": Block((2,), far)} | {matrix: Block((half(size),), far) for matrix in matrices}
            if self.errors == "robust":
                blocks["spread of scores"] = Block((half(size),), far * SPREAD)
        return blocks

    def _largest_outcome(self, agreed: Agreed) -> float:
        """By the family, or by the column's public range."""
        limits = agreed.schema[self.read.outcome[0]].limits
        if self.family == "logistic":
            return 1.0
        plain = self.formula.split("~")[0].strip() == self.read.outcome[0]
        return max(map(abs, limits)) if limits is not None and plain and any(limits) else UNDECLARED

    def answer(self, agreed: Agreed, question: Question, rows: SiteRows) -> Sums:
        design = self.design(agreed, rows)
        if question.step == "hospitals":
            return self._alone(agreed, rows)
        if question.step == "means":
            return _means(design, rows)
        arrays = question.arrays
        centred = design.matrix - arrays["centre"]
        if question.step == "moments":
            return {"products": packed(centred.T @ centred)}
        standardised = rows.once(
            ("standardised", arrays["centre"].tobytes(), arrays["spread"].tobytes()),
            lambda: np.asfortranarray(centred / arrays["spread"]),
        )
        if question.step == "direction":
            return {"violations": _violations(design, standardised @ arrays["direction"], self.family)}
        sums: dict[str, np.ndarray] = {}
        blocks = self.blocks(agreed, question)
        for name, own in self._asked(agreed, question).items():
            point = arrays[f"point {name}"]
            matrix = standardised if len(own) == standardised.shape[1] else standardised[:, own]
            if question.step == "score":
                own_sums = self._score(name, design, matrix, point, arrays.get(f"hat {name}"))
                sums |= bounded(own_sums, name, blocks)
            else:
                sums |= self._final(name, design, matrix, point)
        return sums

    def _alone(self, agreed: Agreed, rows: SiteRows) -> Sums:
        """The hospital's own regression; zeros where it has none."""
        size, alone = len(self.layout(agreed).names), replace(agreed, sites=(rows.site,))
        fitted, estimates, covariance = 0.0, np.zeros(size), np.zeros((size, size))
        own = replace(self, site_effects="none")
        try:
            state = own.begin(alone)
            while (question := own.ask(state)) is not None:
                state = own.advance(state, own.answer(alone, question, rows), {})
            result = own.result(state)
            estimates = np.array([term["estimate"] for term in result["terms"].values()])
            fitted, covariance = 1.0, np.array(result["covariance"])
        except (StudyError, DataError, np.linalg.LinAlgError):
            pass  # such as a level that nobody has here: the report says that the hospital has no estimate
        counts = np.array([float(len(rows)), float(len(np.unique(rows.people))), fitted])
        return {"counts": counts, "estimates": estimates, "covariance": packed(covariance)}

    def _columns(self, agreed: Agreed) -> dict[str, list[int]]:
        """Of each model that is fitted, its columns of the design."""
        layout = self.layout(agreed)
        everything = list(range(len(layout.names)))
        models = {MODEL: everything}
        if layout.has_intercept and len(everything) > 1 and not self.firth:
            models[NULL] = [0]
        if self.likelihood_ratio:
            for term, places in layout.terms.items():
                left = [place for place in everything if place not in places]
                if term != "1" and left:
                    models[WITHOUT + term] = left
        return models

    def _score(
        self, name: str, design: Design, matrix: np.ndarray, point: np.ndarray, inverse: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        family, y = self.own_family, design.outcome
        eta = matrix @ point + design.offset
        mean = family.mean(eta)
        curvature = family.curvature(y, mean)
        if inverse is not None:
            hat = curvature * np.einsum("ij,ij->i", matrix @ inverse, matrix)
            return {f"score {name}": matrix.T @ (y - mean + hat * (0.5 - mean))}
        sums = {
            f"log-likelihood {name}": np.array([family.log_likelihood(y, eta).sum()]),
            f"information {name}": packed((matrix * curvature[:, None]).T @ matrix),
        }
        if not self.firth:
            sums[f"score {name}"] = matrix.T @ family.slope(y, mean)
        return sums

    def _final(self, name: str, design: Design, matrix: np.ndarray, point: np.ndarray) -> dict[str, np.ndarray]:
        family, y = self.own_family, design.outcome
        eta = matrix @ point + design.offset
        mean = family.mean(eta)
        sums = {f"log-likelihood {name}": np.array([family.log_likelihood(y, eta).sum()])}
        if name == NULL:
            return sums | {"null deviance": np.array([family.deviance(y, mean).sum()])}
        if name != MODEL:
            return sums
        pearson = (y - mean) ** 2 / np.maximum(family.variance(mean), 1e-300)
        sums["fit"] = np.array([family.deviance(y, mean).sum(), pearson.sum()])
        sums["information"] = packed((matrix * family.curvature(y, mean)[:, None]).T @ matrix)
        if family.differs:
            sums["expected"] = packed((matrix * family.expected_curvature(mean)[:, None]).T @ matrix)
        if self.errors == "robust":
            by_patient = design.by_patient(matrix * family.slope(y, mean)[:, None])
            sums["spread of scores"] = packed(by_patient.T @ by_patient)
        return sums

    def advance(self, state: State, sums: Sums, by_site: Mapping[str, Sums]) -> State:
        if state.step == "hospitals":
            return replace(state, step="done", by_site=by_site)
        return _ADVANCE[state.step](self, state, sums)

    def _after_means(self, state: State, sums: Sums) -> State:
        rows, patients, excluded, hidden = (round(count) for count in sums["counts"].tolist())
        layout = self.layout(state.agreed)
        refuse_few_rows(patients, layout.names)
        centre = sums["columns"] / rows
        if layout.has_intercept:
            centre[0] = 0.0
        else:
            centre[:] = 0.0
        outcome, offset = float(sums["outcome"][0]), float(sums["offset"][0])
        if self.family == "logistic" and outcome in (0.0, float(rows)):
            raise StudyError(
                "formula", f"the outcome {self.read.outcome[0]!r} is the same in all rows", "Name another."
            )
        return replace(
            state,
            step="moments",
            rows=rows,
            patients=patients,
            excluded=(excluded, hidden),
            outcome_sum=outcome,
            offset_sum=offset,
            centre=centre,
        )

    def _after_moments(self, state: State, sums: Sums) -> State:
        layout = self.layout(state.agreed)
        products = unpacked(sums["products"], len(layout.names)) / state.rows
        spread = np.sqrt(np.maximum(np.diag(products), 0.0))
        if layout.has_intercept:
            refuse_constant(layout.names, spread, state.centre, LEAST_SPREAD)
            spread[0] = 1.0
        spread = np.where(spread > 0, spread, 1.0)
        refuse_collinear(layout.names, products / np.outer(spread, spread))
        start = np.zeros(len(layout.names))
        if layout.has_intercept:
            start[0] = self.own_family.start(state.outcome_sum / state.rows) - state.offset_sum / state.rows
        climbs = {
            name: Climb(tuple(columns), start[columns], firth=self.firth)
            for name, columns in self._columns(state.agreed).items()
        }
        return replace(state, step="score", spread=spread, climbs=climbs)

    def _after_score(self, state: State, sums: Sums) -> State:
        climbs = dict(state.climbs)
        for name, climb in state.climbs.items():
            if climb.done:
                continue
            size, scale = len(climb.columns), 1.0
            if climb.needs_hat and climb.information is not None:
                climbs[name] = stepped(climb, climb.log_likelihood, sums[f"score {name}"], climb.information, 1.0)
                continue
            if sums[f"overflow {name}"][0]:
                climbs[name] = halved(climb)
                continue
            likelihood = float(sums[f"log-likelihood {name}"][0])
            if self.family == "gaussian":
                scale = max(-2 * likelihood / state.rows, 1e-300)
            score = sums.get(f"score {name}", np.zeros(size))
            climbs[name] = looked(climb, likelihood, score, unpacked(sums[f"information {name}"], size), scale)
        after = replace(state, climbs=climbs)
        if all(climb.done for climb in climbs.values()):
            return replace(after, step="final")
        model = climbs[MODEL]
        moved = model.iterations > state.climbs[MODEL].iterations
        if self.family != "gaussian" and not self.firth and moved and model.iterations in CHECKED_AT:
            return replace(after, step="direction")
        return after

    def _after_direction(self, state: State, sums: Sums) -> State:
        wrong, tied = sums["violations"].tolist()
        step = state.climbs[MODEL].step
        if wrong == 0 and step is not None:
            layout = self.layout(state.agreed)
            raise separation_error(self.read.outcome[0], layout.names, step, tied == 0, self.family)
        return replace(state, step="score")

    def _after_final(self, state: State, sums: Sums) -> State:
        return replace(state, step="done", final=dict(sums))

    def result(self, state: State) -> dict[str, Any]:
        from wardround.analyses.glm.inference import (  # its statistics take a second to import
            described_hospitals,
            described_model,
        )

        layout = self.layout(state.agreed)
        if self.site_effects == "random":
            return described_hospitals(self, state, layout)
        return described_model(self, state, layout)


def _means(design: Design, rows: SiteRows) -> Sums:
    """With the number of rows that were left out, unless it would tell of a few patients."""
    few = 0 < rows.excluded_people < rows.limits.smallest_cell
    counts = [len(design.outcome), design.people.max() + 1, 0 if few else rows.excluded, few]
    return {
        "counts": np.array(counts, dtype=np.float64),
        "columns": design.matrix.sum(axis=0),
        "outcome": design.outcome.sum(keepdims=True),
        "offset": design.offset.sum(keepdims=True),
    }


def _is_text(schema: Schema, name: str) -> bool:
    return schema[name].kind == "categorical"


def half(size: int) -> int:
    """Numbers in the upper half of a symmetric matrix."""
    return size * (size + 1) // 2


def bounded(sums: dict[str, np.ndarray], name: str, blocks: Blocks) -> dict[str, np.ndarray]:
    """Where a step went so far that a sum is beyond its cap or no number, this is all that is told: it is halved."""
    if f"overflow {name}" not in blocks:
        return sums
    within = all(np.isfinite(array).all() and np.abs(array).max() <= blocks[key].most for key, array in sums.items())
    told = sums if within else {key: np.zeros_like(array) for key, array in sums.items()}
    return told | {f"overflow {name}": np.array([0.0 if within else 1.0])}


def _violations(design: Design, along: np.ndarray, family: str) -> np.ndarray:
    """Rows that contradict a direction in which the likelihood would rise for ever, and rows that lie between."""
    tolerance = MARGIN * max(1.0, np.abs(along).max())
    if family == "logistic":
        margin = np.where(design.outcome > 0, along, -along)
        wrong, tied = margin < -tolerance, np.abs(margin) <= tolerance
    else:
        none = design.outcome == 0
        wrong = np.where(none, along > tolerance, np.abs(along) > tolerance)
        tied = np.abs(along) <= tolerance
    return np.array([wrong.sum(), tied.sum()], dtype=np.float64)


_ADVANCE = {
    "means": Glm._after_means,
    "moments": Glm._after_moments,
    "score": Glm._after_score,
    "direction": Glm._after_direction,
    "final": Glm._after_final,
}
