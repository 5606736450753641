"""Sites' summaries of their predictions, merged: figures over all sites without a row of any.

Counts and sums add up, so that every metric but AUC is what the predictions themselves would give, over the sites that
send what it needs. AUC compares the scores of each pair of a positive and a negative row. Pairs of one site's rows are
in that site's own AUC; for rows of two sites, their histogram cells decide. Where cells overlap, the comparison is
estimated from their means, with a lower and an upper bound: the figure can be wrong by that much.

Where a row may have several findings, each finding is merged as two classes are, then averaged as in a simulation. A
finding that no test row has, or that every site withholds because too few patients have it, is left out of averages.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wardround.evaluation.calibration_curves import decision_curve, reliability
from wardround.evaluation.findings import SHOWN_AT_SITES, curves_of
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Figures, Scores, Subgroups, in_order
from wardround.tasks import Task, class_task, findings_task
from wardround.tasks.class_metrics import METRICS, NEED_POSITIVES, THRESHOLDS, Counts, average, macro, rates

Summary = Mapping[str, Any]  # as `summarise` makes it
NARROW = 1e-6  # rows of a cell are spread this far, even if all have one score
NOTHING = dict.fromkeys(METRICS, math.nan)


@dataclass(frozen=True)
class Summaries:
    """By arm and seed, then site. What a site withheld altogether is left out."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    lines: Mapping[tuple[str, int], Mapping[str, Summary]]
    findings: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        return findings_task(self.findings) if self.findings else class_task(2)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.task.metric_names

    def with_choices(self, choices: Iterable[Mapping[str, Any]]) -> "Summaries":
        """With the selected arms added: with each seed, the summaries of the chosen value."""
        lines, arms = dict(self.lines), list(self.arms)
        for choice in choices:
            for seed, arm in choice["chosen"].items():
                lines[choice["arm"], int(seed)] = self.lines.get((arm, int(seed)), {})
            if choice["chosen"]:
                arms.append(choice["arm"])
        return replace(self, arms=tuple(arms), lines=lines)

    def at(self, arm: str, seed: int) -> list[Summary]:
        return list(self.lines.get((arm, seed), {}).values())

    @cached_property
    def over_sites(self) -> dict[str, list[tuple[dict[str, float], float]]]:
        return {arm: [merge_summaries(self.at(arm, seed)) for seed in self.seeds] for arm in self.arms}

    @cached_property
    def overall(self) -> dict[str, Figures]:
        return {arm: np.array([_line(figures) for figures, _ in lines]) for arm, lines in self.over_sites.items()}

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Each site's own figures; sites that sent nothing about the arm are left out."""
        figures: dict[str, dict[str, Figures]] = {}
        for arm in self.arms:
            of_seeds = [self.lines.get((arm, seed), {}) for seed in self.seeds]
            figures[arm] = {
                site: np.array([_line(lines.get(site, {}).get("metrics", {})) for lines in of_seeds])
                for site in self.sites_of(arm)
            }
        return figures

    def sites_of(self, arm: str) -> list[str]:
        return list(dict.fromkeys(site for seed in self.seeds for site in self.lines.get((arm, seed), {})))

    def group_values(self) -> Iterator[tuple[str, list[str]]]:
        """Each kind of subgroup, such as sex, with the values that any site sent."""
        groups = [line.get("groups", {}) for sites in self.lines.values() for line in sites.values()]
        for kind in dict.fromkeys(kind for of_line in groups for kind in of_line):
            yield kind, in_order({value for of_line in groups for value in of_line.get(kind, {})})

    def subgroups(self) -> Iterator[Subgroups]:
        for kind, values in self.group_values():
            shape = (len(self.arms), len(self.seeds), len(values))
            figures, rows = np.full((*shape, len(METRICS)), np.nan), np.zeros(shape, dtype=np.int64)
            for a, s, v in np.ndindex(shape):
                groups = [line.get("groups", {}).get(kind, {}) for line in self.at(self.arms[a], self.seeds[s])]
                parts = [group[values[v]] for group in groups if values[v] in group]
                rows[a, s, v] = sum(part["rows"] for part in parts)
                if not self.findings:  # of these, each finding has figures of its own
                    figures[a, s, v] = _line(merge_summaries(parts)[0])
            yield Subgroups(kind, values, figures, rows)

    def auc_error_bound(self, arm: str) -> float | None:
        known = [uncertain for _, uncertain in self.over_sites[arm] if not math.isnan(uncertain)]
        return max(known) if known else None

    def by_patient(self, arms: Iterable[str]) -> dict[str, tuple[np.ndarray, np.ndarray] | None]:
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

    def _with_cells(self, arm: str, all_seeds: bool = True) -> list[Summary]:
        """Over all seeds; none where the arm diverged with any, unless `all_seeds` is false, and none where rows have
        findings, which have scores of their own."""
        converged = self.converged(arm)
        if all_seeds and len(converged) < len(self.seeds):
            return []
        return [summary for lines in converged for summary in lines if summary.get("histogram") is not None]

    def converged(self, arm: str) -> list[list[Summary]]:
        """By seed, without those with which the arm diverged."""
        of_seeds = [self.at(arm, seed) for seed in self.seeds]
        return [lines for lines in of_seeds if not any(summary["diverged"] for summary in lines)]

    def rows_of_cells(self, arm: str, all_seeds: bool = True) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels, and scores that each row would have if a cell's rows were evenly spread around their mean."""
        summaries = self._with_cells(arm, all_seeds)
        if not summaries:
            return None
        scores = [_spread_rows(_columns(summaries, number)) for number in (0, 1)]
        return np.repeat([0, 1], [len(part) for part in scores]), np.concatenate(scores)

    def _merged(self, arm: str) -> bool:
        for number in (0, 1):
            low, high, *_ = _columns(self._with_cells(arm), number)
            if ((low[:, None] < THRESHOLDS) & (high[:, None] > THRESHOLDS)).any():
                return True
        return False


def merge_summaries(summaries: Collection[Summary]) -> tuple[dict[str, float], float]:
    """Each metric over all these sites' rows, and by how much the AUC may be wrong. NaN where it cannot be computed."""
    if not summaries or any(summary["diverged"] for summary in summaries):
        return NOTHING, math.nan
    if len(summaries) == 1:  # its own figures, for which it has every row
        (only,) = summaries
        own = dict(zip(METRICS, _line(only["metrics"]), strict=True))
        return own, math.nan if math.isnan(own["auc"]) else 0.0
    counted = [summary for summary in summaries if summary["sums"] is not None]
    rows = sum(summary["rows"] for summary in counted)
    if not rows:
        return NOTHING, math.nan
    auc, auc_bound = _auc([summary for summary in summaries if summary["histogram"] is not None])
    return {**NOTHING, **_from_sums([summary["sums"] for summary in counted], rows), "auc": auc}, auc_bound


def _rates(of_sites: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, float]:
    of_classes = [
        Counts(*(sum(of_site[name] for of_site in of_class) for name in Counts._fields))
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
    overlap = ~above & (positive[1][:, None] > negative[0])
    within = [
        summary["metrics"]["auc"] * math.prod(sum(cell["rows"] for cell in cells) for cells in summary["histogram"])
        for summary in summaries
        if all(summary["histogram"])
    ]
    certain = math.fsum([*within, (pairs * (between & above)).sum()])
    guess = [math.fsum(pairs[between & overlap] * part[between & overlap]) for part in _chances(positive, negative)]
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


POSITIVES_NEEDED = [METRICS.index(name) for name in NEED_POSITIVES]
SENSITIVITY, AUC, PR_AUC = (METRICS.index(name) for name in ("sensitivity", "auc", "pr_auc"))


@dataclass(frozen=True)
class FindingSummaries(Summaries):
    """`lines` are whole lines, with a part for each finding."""

    @cached_property
    def each(self) -> dict[str, Summaries]:
        """The summaries of each finding, in the form of those of two classes. Sites that withheld it are left out."""
        summaries = {}
        for name in self.findings:
            by_key = {}
            for key, sites in self.lines.items():
                parts = {site: _part(line, name) for site, line in sites.items()}
                by_key[key] = {site: part for site, part in parts.items() if "suppressed" not in part}
            summaries[name] = Summaries(self.arms, self.seeds, by_key)
        return summaries

    @cached_property
    def overall(self) -> dict[str, Figures]:
        return {arm: _averaged(np.stack([self.of_finding(name, arm) for name in self.findings])) for arm in self.arms}

    def of_finding(self, name: str, arm: str) -> Figures:
        return _defined(self.each[name].overall[arm])

    @cached_property
    def by_site(self) -> dict[str, dict[str, Figures]]:
        """Each site's own means over the findings that it sends; sites that send none are left out."""
        nothing = np.full((len(self.seeds), len(METRICS)), np.nan)
        figures: dict[str, dict[str, Figures]] = {}
        for arm in self.arms:
            parts = [summaries.by_site[arm] for summaries in self.each.values()]
            figures[arm] = {
                site: average(np.stack([part.get(site, nothing) for part in parts]))
                for site in self.sites_of(arm)
                if any(site in part for part in parts)
            }
        return figures

    def subgroups(self) -> Iterator[Subgroups]:
        parts = [{part.kind: part for part in summaries.subgroups()} for summaries in self.each.values()]
        for kind, values, nothing, rows in super().subgroups():
            figures = np.stack([nothing] * len(self.findings))
            for f, part in enumerate(parts):
                if kind in part:
                    for v, value in enumerate(part[kind].values):
                        figures[f, :, :, values.index(value)] = _defined(part[kind].figures[:, :, v])
            yield Subgroups(kind, values, _averaged(figures), rows)

    def auc_error_bound(self, arm: str) -> float | None:
        """The mean of the findings' bounds: their mean AUC is wrong by this at most."""
        bounds = np.array([[bound for _, bound in summaries.over_sites[arm]] for summaries in self.each.values()])
        known = ~np.isnan(bounds)
        if not known.any():
            return None
        means = np.where(known, bounds, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return float(means.max())


Scored = Scores | Summaries  # arms with their figures, computed from rows or from summaries


def _from_sums(sums: Sequence[Mapping[str, Any]], rows: int) -> dict[str, float]:
    """The metrics that are computed from sums over rows."""
    counts = [of_site["confusion"] for of_site in sums if of_site["confusion"] is not None]
    return {
        "accuracy": sum(of_site["right"] for of_site in sums) / rows,
        "brier": math.fsum(of_site["brier"] for of_site in sums) / rows,  # whatever the order of the sites
        "loss": math.fsum(of_site["loss"] for of_site in sums) / rows,
        **(_rates(counts) if counts else {}),
    }


def gather_summaries(
    lines: Iterable[Summary], arms: Sequence[str], seeds: Iterable[int], findings: Sequence[str] = ()
) -> Summaries:
    """`lines` have `arm`, `seed` and `site` beside a summary. An arm without any line has no figures. `findings` are
    named where rows may have several."""
    by_key: dict[tuple[str, int], dict[str, Summary]] = {}
    for line in lines:
        if line["arm"] in arms and not line.get("suppressed"):
            by_key.setdefault((line["arm"], line["seed"]), {})[line["site"]] = line
    kind = FindingSummaries if findings else Summaries
    return kind(tuple(arms), tuple(seeds), by_key, tuple(findings))


def own_metrics(line: Summary) -> Mapping[str, float | None] | None:
    """A site's own figures, for findings their means; None where it sends none."""
    if "findings" not in line:
        return line.get("metrics")
    of_findings = [part["metrics"] for part in line["findings"].values() if "metrics" in part]
    if not of_findings:
        return None
    known = {name: [figures[name] for figures in of_findings if figures[name] is not None] for name in METRICS}
    return {name: math.fsum(values) / len(values) if values else None for name, values in known.items()}


def describe_finding_summaries(scores: FindingSummaries, arm: str, resampling: Resampling) -> dict[str, Any]:
    """As `describe_findings`, over the sites that send figures; None for what none of them sends. Thresholds stay at
    the sites, and curves are drawn from histograms. Rows and predictions are of the same sites: those of one seed, on
    average over the seeds in which any site sends them."""
    return {
        name: _describe_finding(summaries, arm, scores.of_finding(name, arm), resampling)
        for name, summaries in scores.each.items()
    }


def _describe_finding(summaries: Summaries, arm: str, figures: Figures, resampling: Resampling) -> dict[str, Any]:
    by_seed = [[line for line in lines if line["sums"]] for lines in summaries.converged(arm)]
    seeds, lines = sum(map(bool, by_seed)), [line for of_seed in by_seed for line in of_seed]
    confusion = _counted(lines, seeds)
    rows = summaries.rows_of_cells(arm, all_seeds=False)
    return {
        "rows": sum(line["rows"] for line in lines) / max(1, seeds),
        "positives": _positives(confusion),
        "threshold": {"mean": None, "chosen": bool(lines) and all(line["chosen"] for line in lines)},
        "confusion": confusion,
        "metrics": summarise_metrics(METRICS, figures, resampling),
        "sites": {
            site: {
                "positives": _positives(_at_site(summaries, arm, site)),
                "metrics": summarise_metrics(METRICS, of_site, resampling, SHOWN_AT_SITES),
            }
            for site, of_site in summaries.by_site[arm].items()
        },
        **({"roc": None, "pr": None} if rows is None else curves_of(rows[0] == 1, rows[1])),
    }


def _part(line: Summary, name: str) -> Summary:
    """A line reduced to one finding."""
    if line["diverged"]:
        return {"rows": line["rows"], "diverged": True}
    groups = {
        kind: {value: part for value, group in values.items() if "suppressed" not in (part := group["findings"][name])}
        for kind, values in line["groups"].items()
    }
    return {**line["findings"][name], "groups": groups}


def _defined(figures: np.ndarray) -> np.ndarray:
    """Without the metrics that are meaningless for a finding that no row has."""
    defined = figures.copy()
    without = np.isnan(figures[..., SENSITIVITY])
    defined[..., POSITIVES_NEEDED] = np.where(without[..., None], np.nan, figures[..., POSITIVES_NEEDED])
    return defined


def _averaged(each: np.ndarray) -> np.ndarray:
    """Over findings. PR-AUC is only known for findings that a single site sends: its mean would be over other findings
    than the mean AUC, so there is none unless all findings have one."""
    means = average(each)
    lacking = (np.isnan(each[..., PR_AUC]) & ~np.isnan(each[..., AUC])).any(axis=0)
    means[..., PR_AUC] = np.where(lacking, np.nan, means[..., PR_AUC])
    return means


def _at_site(summaries: Summaries, arm: str, site: str) -> dict[str, float] | None:
    """Counts of predictions at a site, on average over the seeds in which it sends them."""
    lines = [summaries.lines.get((arm, seed), {}).get(site) for seed in summaries.seeds]
    known = [line for line in lines if line is not None and not line["diverged"] and line["sums"]]
    return _counted(known, len(known))


def _counted(lines: Sequence[Summary], seeds: int) -> dict[str, float] | None:
    """Right and wrong predictions with one seed."""
    if not lines:
        return None
    return {cell: sum(line["sums"]["confusion"][0][cell] for line in lines) / seeds for cell in Counts._fields}


def _positives(confusion: Mapping[str, float] | None) -> float | None:
    return None if confusion is None else confusion["tp"] + confusion["fn"]
