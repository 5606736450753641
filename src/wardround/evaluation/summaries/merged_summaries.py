"""Sites' summaries of their predictions, put together: figures over all sites without a row of any.

Counts and sums add up, so that every metric but AUC is what the predictions themselves would give, over the sites that
told what it needs. AUC asks of each pair of a positive and a negative row which has the higher score. Pairs of one
site's rows are in that site's own AUC; for rows of two sites, their cells in the histograms decide. Where those overlap
it is estimated from the cells' means, with the least and the most that it can be: by so much the figure can be wrong.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wardround.evaluation.calibration_curves import decision_curve, reliability
from wardround.evaluation.metrics import THRESHOLDS, Counts, macro, rates
from wardround.evaluation.scores import Figures, Subgroups, in_order
from wardround.study.schema import METRICS

Summary = Mapping[str, Any]  # as `summarise` makes it
NARROW = 1e-6  # rows of a cell are spread this far, even if all have one score
NOTHING = dict.fromkeys(METRICS, math.nan)


@dataclass(frozen=True)
class Summaries:
    """By arm and seed, then site. What a site withheld altogether is left out."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    given: Mapping[tuple[str, int], Mapping[str, Summary]]

    @property
    def findings(self) -> tuple[str, ...]:
        """None: `finding_summaries.py` has them."""
        return ()

    @classmethod
    def of(cls, lines: Iterable[Summary], arms: Sequence[str], seeds: Iterable[int]) -> "Summaries":
        """`lines` have `arm`, `seed` and `site` beside a summary. An arm without any line has no figures."""
        given: dict[tuple[str, int], dict[str, Summary]] = {}
        for line in lines:
            if line["arm"] in arms and not line.get("suppressed"):
                given.setdefault((line["arm"], line["seed"]), {})[line["site"]] = line
        return cls(tuple(arms), tuple(seeds), given)

    def with_choices(self, choices: Iterable[Mapping[str, Any]]) -> "Summaries":
        """With the selected arms added: with each seed, what was told of the chosen value."""
        found, arms = dict(self.given), list(self.arms)
        for choice in choices:
            for seed, arm in choice["chosen"].items():
                found[choice["arm"], int(seed)] = self.given.get((arm, int(seed)), {})
            if choice["chosen"]:
                arms.append(choice["arm"])
        return replace(self, arms=tuple(arms), given=found)

    def at(self, arm: str, seed: int) -> list[Summary]:
        return list(self.given.get((arm, seed), {}).values())

    @cached_property
    def over_sites(self) -> dict[str, list[tuple[dict[str, float], float]]]:
        return {arm: [together(self.at(arm, seed)) for seed in self.seeds] for arm in self.arms}

    @cached_property
    def overall(self) -> dict[str, Figures]:
        return {arm: np.array([_line(found) for found, _ in lines]) for arm, lines in self.over_sites.items()}

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Each site's own figures; sites that told nothing of the arm are left out."""
        found: dict[str, dict[str, Figures]] = {}
        for arm in self.arms:
            sites = dict.fromkeys(site for seed in self.seeds for site in self.given.get((arm, seed), {}))
            found[arm] = {
                site: np.array(
                    [_line(self.given.get((arm, s), {}).get(site, {}).get("metrics", {})) for s in self.seeds]
                )
                for site in sites
            }
        return found

    def subgroups(self) -> Iterator[Subgroups]:
        told = [summary for sites in self.given.values() for summary in sites.values()]
        for kind in dict.fromkeys(kind for summary in told for kind in summary.get("groups", {})):
            values = in_order({value for summary in told for value in summary.get("groups", {}).get(kind, {})})
            shape = (len(self.arms), len(self.seeds), len(values))
            figures, rows = np.full((*shape, len(METRICS)), np.nan), np.zeros(shape, dtype=np.int64)
            for a, arm in enumerate(self.arms):
                for s, seed in enumerate(self.seeds):
                    of_kind = [summary.get("groups", {}).get(kind, {}) for summary in self.at(arm, seed)]
                    for v, value in enumerate(values):
                        parts = [groups[value] for groups in of_kind if value in groups]
                        figures[a, s, v] = _line(together(parts)[0])
                        rows[a, s, v] = sum(part["rows"] for part in parts)
            yield Subgroups(kind, values, figures, rows)

    def auc_uncertain_by(self, arm: str) -> float | None:
        known = [uncertain for _, uncertain in self.over_sites[arm] if not math.isnan(uncertain)]
        return max(known) if known else None

    def hits_by_patient(self, arms: Iterable[str]) -> dict[str, tuple[np.ndarray, np.ndarray] | None]:
        """None for all: no patient is known here."""
        return dict.fromkeys(arms)

    def calibration(self, arm: str) -> dict[str, Any] | None:
        """From the cells of histograms. Slope and intercept would need the rows."""
        rows = self.rows_of_cells(arm)
        if rows is None or len(np.unique(rows[0])) < 2:
            return None
        return {"slope": None, "intercept": None, "bins": reliability(*rows)}

    def decision_curve(self, arm: str) -> dict[str, Any] | None:
        """From the cells of histograms: exact, but for thresholds inside a cell that was merged of several bins."""
        rows = self.rows_of_cells(arm)
        curve = None if rows is None else decision_curve(*rows)
        return None if curve is None else {**curve, "interpolated": self._merged(arm)}

    def _with_cells(self, arm: str, every_seed: bool = True) -> list[Summary]:
        """Over all seeds; none where the arm diverged with any, unless it is about the other seeds then."""
        told = [self.at(arm, seed) for seed in self.seeds]
        sound = [lines for lines in told if not any(summary["diverged"] for summary in lines)]
        if every_seed and len(sound) < len(told):
            return []
        return [summary for lines in sound for summary in lines if summary["histogram"] is not None]

    def rows_of_cells(self, arm: str, every_seed: bool = True) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels, and scores that each row would have if a cell's rows were evenly spread around their mean."""
        told = self._with_cells(arm, every_seed)
        if not told:
            return None
        scores = [_spread_rows(_columns(told, number)) for number in (0, 1)]
        return np.repeat([0, 1], [len(part) for part in scores]), np.concatenate(scores)

    def _merged(self, arm: str) -> bool:
        """Whether a threshold is inside a cell."""
        for number in (0, 1):
            low, high, *_ = _columns(self._with_cells(arm), number)
            if ((low[:, None] < THRESHOLDS) & (high[:, None] > THRESHOLDS)).any():
                return True
        return False


def together(summaries: Collection[Summary]) -> tuple[dict[str, float], float]:
    """Each metric over all these sites' rows, and by how much the AUC may be wrong. NaN where it cannot be had."""
    if not summaries or any(summary["diverged"] for summary in summaries):
        return NOTHING, math.nan
    if len(summaries) == 1:  # its own figures, of which it knows every row
        (only,) = summaries
        own = dict(zip(METRICS, _line(only["metrics"]), strict=True))
        return own, math.nan if math.isnan(own["auc"]) else 0.0
    counted = [summary for summary in summaries if summary["sums"] is not None]
    rows, sums = sum(summary["rows"] for summary in counted), [summary["sums"] for summary in counted]
    if not rows:
        return NOTHING, math.nan
    counts = [one["confusion"] for one in sums if one["confusion"] is not None]
    auc, uncertain = _auc([summary for summary in summaries if summary["histogram"] is not None])
    return {
        **NOTHING,
        "accuracy": sum(one["right"] for one in sums) / rows,
        "brier": math.fsum(one["brier"] for one in sums) / rows,  # whatever the order of the sites
        "loss": math.fsum(one["loss"] for one in sums) / rows,
        **(_rates(counts) if counts else {}),
        "auc": auc,
    }, uncertain


def _rates(of_sites: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, float]:
    of_classes = [
        Counts(*(sum(one[name] for one in of_class) for name in Counts._fields))
        for of_class in zip(*of_sites, strict=True)
    ]
    if len(of_classes) == 1:
        return rates(of_classes[0])
    return macro([rates(counts) for counts in of_classes if counts.tp + counts.fn])


def _auc(summaries: Sequence[Summary]) -> tuple[float, float]:
    negative, positive = (_columns(summaries, number) for number in (0, 1))
    pairs = positive[2][:, None] * negative[2]
    if not pairs.size:
        return math.nan, math.nan
    between = positive[4][:, None] != negative[4]  # pairs of two sites
    above = positive[0][:, None] >= negative[1]
    unsure = ~above & (positive[1][:, None] > negative[0])
    within = [
        summary["metrics"]["auc"] * math.prod(sum(cell["rows"] for cell in cells) for cells in summary["histogram"])
        for summary in summaries
        if all(summary["histogram"])
    ]
    certain = math.fsum([*within, (pairs * (between & above)).sum()])
    guess = [math.fsum(pairs[between & unsure] * part[between & unsure]) for part in _chances(positive, negative)]
    least, likely, most = (float((certain + part) / pairs.sum()) for part in guess)
    return likely, max(likely - least, most - likely)


def _chances(positive: tuple[np.ndarray, ...], negative: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """For each pair of cells that overlap, the chance that a row of the first has the higher score.

    The least that it can be with these means, the likely value, and the most. In the likely case rows are evenly spread
    around the mean of their cell. The limits are those of Markov's inequality: where x and y differ by d on average and
    by w at most, x is above y in at least d / w of the cases.
    """
    (a, b), (c, d) = _spread(positive), _spread(negative)

    def wins_up_to(x: np.ndarray) -> np.ndarray:
        """The share of negatives below a score, summed over all scores up to x."""
        inside = np.clip(x[:, None], c, d)
        return np.asarray((inside - c) ** 2 / (2 * (d - c)) + np.maximum(x[:, None] - d, 0))

    likely = (wins_up_to(b) - wins_up_to(a)) / (b - a)[:, None]
    ahead = (positive[3] / positive[2])[:, None] - negative[3] / negative[2]
    with np.errstate(divide="ignore", invalid="ignore"):  # cells that do not overlap may touch
        least = np.clip(ahead / (positive[1][:, None] - negative[0]), 0, 1)
        most = np.clip(1 + ahead / (negative[1] - positive[0][:, None]), 0, 1)
    return least, np.clip(likely, least, most), most


def _spread(cells: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    """From where to where a cell's rows are taken to be: around their mean, as far as the nearer end of the cell."""
    low, high, rows, total, _ = cells
    mean = total / rows
    reach = np.maximum(np.minimum(mean - low, high - mean), NARROW)
    return mean - reach, mean + reach


def _spread_rows(cells: tuple[np.ndarray, ...]) -> np.ndarray:
    """A score for each row, inside its cell."""
    low, high, rows, _, _ = cells
    first, last = _spread(cells)
    count = rows.astype(np.int64)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)  # of a row in its cell
    score = np.repeat(first, count) + (place + 0.5) * np.repeat((last - first) / rows, count)
    return np.asarray(np.clip(score, np.repeat(low, count), np.repeat(np.nextafter(high, 0), count)))


def _columns(summaries: Sequence[Summary], number: int) -> tuple[np.ndarray, ...]:
    """All cells of a class: low, high, rows, sum of scores, and the number of the summary that each is from."""
    cells = [(cell, place) for place, summary in enumerate(summaries) for cell in summary["histogram"][number]]
    names = ("low", "high", "rows", "score_sum")
    return *(np.array([cell[name] for cell, _ in cells], dtype=float) for name in names), np.array(
        [p for _, p in cells]
    )


def _line(figures: Mapping[str, float | None]) -> list[float]:
    return [math.nan if (value := figures.get(name)) is None else value for name in METRICS]
