"""Permutation importance and effects of a model over hospitals, as an analysis: one step, in which each hospital tells
sums over its own labelled rows. So they travel, are added up and are protected as sums of every other analysis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from wardround.analyses.analysis import Agreed, Block, Blocks, Question, Schema, Sums, Uses
from wardround.analyses.site_rows import SiteRows
from wardround.core import seeds
from wardround.core.errors import DeployError
from wardround.data.prepare import Layout
from wardround.explain import accumulated_effects, permutation
from wardround.explain.accumulated_effects import Grid
from wardround.explain.method import Columns, Scorer
from wardround.privacy.disclosure import Release

STEP = "importance and effects"
FAR = 1e6  # at most so much is a row's loss, or the change of its score
BINS, SPAN = 12, 3.0  # of each number, between so many standard deviations below and above the mean
RANGE_BINS = 10  # of a number that is scaled by its public range
IMPORTANCE = ("rows", "people", "rows_squared", "loss", "increase", "increase_squared", "increase_by_rows")
PARTS = ("rows", "change", "change_squared")


@dataclass(frozen=True, eq=False)
class ModelRows(SiteRows):
    """A site's labelled rows as its model takes them. They have no recorded columns: only sums are made."""

    scorer: Scorer | None = field(default=None, repr=False)  # with columns under the names that all sites share
    x: Tensor | None = field(default=None, repr=False)
    y: Tensor | None = field(default=None, repr=False)

    def take(self, mask: np.ndarray) -> "ModelRows":
        if not mask.all():
            raise ValueError("all labelled rows of a site count")
        return self

    @property
    def parts(self) -> tuple[Scorer, Tensor, Tensor]:
        if self.scorer is None or self.x is None or self.y is None:
            raise ValueError("a site without its model is asked to explain it")
        return self.scorer, self.x, self.y


@dataclass(frozen=True)
class ModelExplanation:
    """`seed` draws the shuffles, each site's own. `secure`: only the sum over hospitals is to be known."""

    layout: Layout
    outputs: tuple[str, ...]
    link: str
    scale: str  # of [data]: how numbers are prepared
    seed: int
    repeats: int = permutation.REPEATS
    secure: bool = False

    kind: ClassVar[str] = "explanation"

    @property
    def columns(self) -> Columns:
        return Columns.of(self.layout.columns)

    @property
    def grids(self) -> list[Grid]:
        return accumulated_effects.grids(self.layout, self.columns, edges_for(self.scale))

    @property
    def tells_sites(self) -> str:
        return "" if self.secure else "how much each column matters among each hospital's own patients"

    @property
    def citations(self) -> tuple[str, ...]:
        return (
            "Breiman. Random forests. Machine Learning 45, 2001",
            "Apley, Zhu. Visualizing the effects of predictor variables in black box supervised learning models. "
            "Journal of the Royal Statistical Society B 82, 2020",
        )

    def uses(self, schema: Schema) -> Uses:
        return Uses((), every_row=True)

    def eligible(self, rows: SiteRows) -> np.ndarray:
        return np.ones(len(rows), dtype=bool)

    def release(self, agreed: Agreed, rows: SiteRows) -> Release:
        return Release(rows.people, within=("secondary-suppression",))

    def begin(self, agreed: Agreed) -> dict[str, Any]:
        return {"sums": None, "by_site": {}}

    def ask(self, state: Mapping[str, Any]) -> Question | None:
        return Question(STEP, {}) if state["sums"] is None else None

    def blocks(self, agreed: Agreed, question: Question) -> Blocks:
        if question.step != STEP or question.arrays:
            raise DeployError("coordinator", "asks a model's explanation for another step", "Start it again.")
        rows, outputs = float(agreed.most_rows), len(self.outputs)
        most = {
            "rows": rows,
            "people": rows,
            "rows_squared": rows**2,
            "loss": rows * FAR,
            "increase": rows * FAR,
            "increase_squared": (rows * FAR) ** 2,
            "increase_by_rows": rows**2 * FAR,
        }
        blocks = {
            f"importance {name}": Block((len(self.columns) if "increase" in name else 1,), most[name])
            for name in IMPORTANCE
        }
        for number, grid in enumerate(self.grids):
            bins = len(grid.values) - grid.ordered
            for part, cap in zip(PARTS, (rows, rows * FAR, rows * FAR**2), strict=True):
                blocks[f"effect {number} {part}"] = Block((bins,) if part == "rows" else (bins, outputs), cap)
        return blocks

    def answer(self, agreed: Agreed, question: Question, rows: SiteRows) -> Sums:
        self.blocks(agreed, question)
        if not isinstance(rows, ModelRows):
            raise ValueError("a model is explained by rows as it takes them")
        scorer, x, y = rows.parts
        rng = seeds.generator(self.seed, "shuffles of an explanation", site=rows.site)
        importance = permutation.sums(scorer, x, y, rng, self.repeats, rows.people)
        sums = {f"importance {name}": np.atleast_1d(importance[name]) for name in IMPORTANCE}
        for number, grid in enumerate(self.grids):
            own = accumulated_effects.sums(scorer, x, grid, rows.people, rows.limits.smallest_cell)
            sums |= {f"effect {number} {part}": own[part] for part in PARTS}
        return sums

    def advance(self, state: Mapping[str, Any], sums: Sums, by_site: Mapping[str, Sums]) -> dict[str, Any]:
        return {"sums": dict(sums), "by_site": {site: dict(own) for site, own in by_site.items()}}

    def result(self, state: Mapping[str, Any]) -> dict[str, Any]:
        by_site = {site: self._described(own) for site, own in state["by_site"].items()}
        return {
            "scale": self.link,
            "outputs": list(self.outputs),
            "columns": list(self.columns.names),
            "repeats": self.repeats,
            "whole": self._described(state["sums"]),
            "hospitals": by_site or None,
            "differences": differences(by_site, self.columns.names) or None,
        }

    def _described(self, sums: Sums) -> dict[str, Any]:
        of_importance = {name: sums[f"importance {name}"] for name in IMPORTANCE}
        of_importance |= {name: value[0] for name, value in of_importance.items() if "increase" not in name}
        found = permutation.result(of_importance, self.columns.names)
        importance = {
            name: described_rise(float(rise), number_or_none(error))
            for name, rise, error in zip(found.columns, found.increase, found.error, strict=True)
        }
        effects = {}
        for number, grid in enumerate(self.grids):
            own_sums = {part: sums[f"effect {number} {part}"] for part in PARTS}
            effect = accumulated_effects.result(own_sums, grid.column, grid.ordered, grid.values)
            effects[grid.column] = {
                "ordered": effect.ordered,
                "values": list(effect.values),
                "rows": effect.rows.tolist(),
                "effect": effect.effect.T.tolist(),  # by output
            }
        people = int(of_importance["people"])
        return {
            "rows": found.rows,
            "patients": people,
            "loss": found.loss,
            "importance": importance,
            "effects": effects,
        }


def edges_for(scale: str) -> tuple[float, ...]:
    """In prepared numbers: standard deviations from a mean, or shares of a public range."""
    if scale == "ranges":
        return tuple((np.arange(RANGE_BINS + 1) / RANGE_BINS).tolist())
    return tuple(np.linspace(-SPAN, SPAN, BINS + 1).tolist())


def described_rise(rise: float, error: float | None) -> dict[str, Any]:
    interval = None if error is None else [rise - permutation.Z * error, rise + permutation.Z * error]
    return {"increase": rise, "se": error, "interval": interval}


def number_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def differences(by_site: Mapping[str, Mapping[str, Any]], columns: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """By column: Cochran's Q of the hospitals' importances (Biometrics 10, 1954), its p, and its p after Holm's
    correction over columns. Hospitals without a standard error say nothing."""
    from scipy.special import chdtrc

    found: dict[str, dict[str, float]] = {}
    for name in columns:
        own = [site["importance"][name] for site in by_site.values() if site["importance"][name]["se"]]
        if len(own) < 2:
            continue
        values, weights = np.array([one["increase"] for one in own]), np.array([one["se"] for one in own]) ** -2.0
        q = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
        found[name] = {"hospitals": len(own), "q": q, "p": float(chdtrc(len(own) - 1, q))}
    worst = 0.0
    for rank, name in enumerate(sorted(found, key=lambda column: found[column]["p"])):
        worst = max(worst, min(1.0, (len(found) - rank) * found[name]["p"]))
        found[name]["p_holm"] = worst
    return found
