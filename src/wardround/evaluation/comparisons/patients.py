"""Intervals over patients: what other patients like these would have given with the same models.

They are for studies whose seeds do not draw new splits, one seed included: there is one set of test patients then, and
seeds say nothing of others. Patients are drawn with replacement, a patient's rows together, the same draws for every
arm, so that differences are paired. A resample gives each row a weight, and every figure is computed from weighted
rows: scores are sorted once, not once for each resample. With several seeds a resample's figure is the mean over their
models, and the variance of training is added to that of patients. Where seeds draw new splits: `intervals.py`.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from wardround.core.processes import mapped
from wardround.evaluation.comparisons.fairness import spread_over_sites, with_spread
from wardround.evaluation.intervals import CONFIDENCE, Resampling
from wardround.evaluation.scores import GROUP_RATES, Scores, group_rates_of, within_sites
from wardround.study.schema import Evaluation
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import average

MOST_RESAMPLES, FEWEST_RESAMPLES = 1000, 200
CELLS = 4_000_000  # rows times resamples, above which there are fewer resamples
CACHED = 2**18  # weights at a time, so that they fit into the processor's cache
METHOD = "bootstrap over patients"
COVERS = "other patients like these, for the models of this one seed"
COVERS_TRAINING = "other patients like these, and training"
Group = tuple[str, str]  # a kind, such as sex, and its value
Rows = tuple[str, str | None, Group | None]  # an arm's rows; of one site or one group, where that is named
Known = dict[Rows, np.ndarray]  # figures
LEAST_DEFINED = 0.95  # share of the resamples in which a figure must be defined to have an interval


class Drawn(NamedTuple):
    """Figures under each resample, and how many degrees of freedom their spread has."""

    figures: np.ndarray  # (resamples, metrics)
    freedom: np.ndarray  # (metrics,)


def is_over_patients(evaluation: Evaluation, seeds: Sequence[int]) -> bool:
    """Whether there is one set of test patients: with one seed, or where seeds do not draw new splits."""
    return len(seeds) == 1 or not Resampling.of(evaluation).extra


def by_patients(content: dict[str, Any], scores: Scores, names: set[str], workers: int = 1) -> dict[str, Any]:
    """`content` is a whole results.json; the intervals of the arms in `names`, empty until now, are filled, by so many
    processes."""
    if not names or not len(scores.row):
        return content
    drawn = Resamples(scores)
    _fill_arms(content["arms"], names, drawn, workers)
    for test in (test for test in content["tests"] if test["arm"] in names):
        of = drawn.within_sites if test["within_sites"] else drawn.drawn
        compare_drawn(test, scores.metric_names, of(test["arm"]), of(test["reference"]))
    for entry in (*content["benefit"], *content["site_differences"]):
        if entry["arm"] in names:
            _compare_sites(entry, content["arms"], drawn)
    _fill_fairness(content, names, drawn)
    for site, own in content["decision"]["sites"].items():
        _fill_groups(own["subgroups"], site, content["primary_metric"], names, drawn)
    covers = COVERS if len(scores.seeds) == 1 else COVERS_TRAINING
    for variant, described in content["variants"].items():
        if any(content["arms"][name]["variant"] == variant for name in names):
            described |= {"method": METHOD, "covers": covers}
            if not variant:
                content["interval"] |= {"method": METHOD, "covers": covers}
    return content


def _fill_arms(arms: dict[str, Any], names: set[str], drawn: "Resamples", workers: int) -> None:
    def of_arm(name: str) -> tuple[dict[str, Any], Known]:
        own = copy(drawn)
        own.known = {}
        _fill_arm(arms[name], name, own)
        return arms[name], own.known

    ordered = [name for name in arms if name in names]  # the same in every process
    for name, (arm, known) in zip(ordered, mapped(of_arm, ordered, workers), strict=True):
        arms[name] = arm
        drawn.known |= known


def _fill_arm(arm: Mapping[str, Any], name: str, drawn: "Resamples") -> None:
    names = drawn.scores.metric_names
    fill_drawn(arm["metrics"], drawn.of(name), names)
    for site, figures in arm["sites"].items():
        fill_drawn(figures, drawn.of(name, site), names)
    fill_drawn(arm["within_sites"], drawn.within_sites(name).figures, names)
    for kind, groups in arm["subgroups"].items():
        for value, group in groups.items():
            if "metrics" in group:
                fill_drawn(group["metrics"], drawn.of(name, group=(kind, value)), names)
    for finding, described in arm["findings"].items():
        fill_drawn(described["metrics"], drawn.of_finding(name, finding), names)


def _fill_groups(groups: Mapping[str, Any], site: str, metric: str, names: set[str], drawn: "Resamples") -> None:
    """Of a decision: the primary metric of groups at one site."""
    place = drawn.scores.metric_names.index(metric)
    for kind, values in groups.items():
        for value, group in values.items():
            for arm, figure in group.get("figures", {}).items():
                if arm in names and figure["mean"] is not None:
                    figure["interval"] = _limits(figure, drawn.of(arm, site, (kind, value))[:, place])


def _compare_sites(entry: dict[str, Any], arms: Mapping[str, Any], drawn: "Resamples") -> None:
    pair = (entry["arm"], entry["against"])
    if entry["site"] is None:
        sites = [site for site in arms[pair[0]]["sites"] if site in arms[pair[1]]["sites"]]
        compare_drawn(entry, drawn.scores.metric_names, *(drawn.within_sites(name, sites) for name in pair))
    else:
        compare_drawn(entry, drawn.scores.metric_names, *(drawn.drawn(name, entry["site"]) for name in pair))


def _fill_fairness(content: dict[str, Any], names: set[str], drawn: "Resamples") -> None:
    """Of `fairness.py`: how evenly hospitals and groups are served."""
    metric, arms = content["primary_metric"], content["arms"]
    for name in (name for name in arms if name in names):
        spreads = drawn.spreads(name, metric)
        for measure, figure in (arms[name]["spread"]["over_sites"] or {}).items():
            figure["interval"] = _limits(figure, spreads[measure])
        _fill_rates(arms[name]["subgroups"], name, drawn)
    for entry in (entry for entry in content["spread_differences"] if entry["arm"] in names):
        ours, theirs = (drawn.spreads(arm, metric)[entry["measure"]] for arm in (entry["arm"], entry["against"]))
        place = drawn.scores.metric_names.index(metric)
        _set_error(entry, ours - theirs, int(drawn.within_sites(entry["arm"]).freedom[place]))
    for entry in (*content["group_gaps"], *content["group_gap_differences"]):
        if entry["arm"] in names:
            own = drawn.gap(entry["arm"], entry)
            gap = own if "against" not in entry else own - drawn.gap(entry["against"], entry)
            _set_error(entry, gap, drawn.freedom_of_gap(entry))
            if "against" not in entry:
                entry |= with_spread(entry)


def _fill_rates(subgroups: Mapping[str, Any], arm: str, drawn: "Resamples") -> None:
    for kind, groups in subgroups.items():
        for value, group in groups.items():
            known = {name: figure for name, figure in group.get("rates", {}).items() if figure["mean"] is not None}
            for measure, figure in known.items():
                figure["interval"] = _limits(figure, drawn.rates(arm, (kind, value), measure))


class Resamples:
    """Figures under each resample, computed on demand and cached."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores
        patients, self.number = np.unique(scores.patient, return_inverse=True)
        rows = len(scores.row) // max(len(scores.arms), 1)
        most = MOST_RESAMPLES if len(scores.seeds) == 1 else FEWEST_RESAMPLES  # a spread needs fewer than percentiles
        self.count = int(np.clip(CELLS // max(rows, 1), FEWEST_RESAMPLES, most))
        rng = np.random.default_rng(0)  # a figure of a report must not change from one reading to the next
        chosen = rng.integers(len(patients), size=(self.count, len(patients)))
        self.times = np.zeros((self.count, len(patients)), dtype=np.float32)
        np.add.at(self.times, (np.arange(self.count)[:, None], chosen), 1)
        self.known: Known = {}
        self.known_rates: dict[tuple[str, Group], np.ndarray] = {}
        self.known_places: dict[Rows, np.ndarray] = {}
        self.known_freedom: dict[Rows, np.ndarray] = {}

    def of(self, arm: str, site: str | None = None, group: Group | None = None) -> np.ndarray:
        """(resamples, metrics), over all rows of the arm, or of one site, or of one subgroup."""
        each = self._each(arm, site, group)
        return average(each) if self.scores.findings else np.asarray(each[0])

    def drawn(self, arm: str, site: str | None = None) -> Drawn:
        return Drawn(self.of(arm, site), self._freedom(arm, site, None))

    def within_sites(self, arm: str, sites: Sequence[str] | None = None) -> Drawn:
        """The mean over sites; all that the arm has, or those that are named."""
        there = np.unique(self.scores.site[self.scores.of_arm(arm)]).tolist()
        names = [self.scores.sites[s] for s in there] if sites is None else sites
        each = {site: self.drawn(arm, site) for site in names}
        freedom = np.sum([of_site.freedom for of_site in each.values()], axis=0)
        figures = {site: of_site.figures for site, of_site in each.items()}
        return Drawn(within_sites(figures, len(self.scores.metric_names)), np.asarray(freedom))

    def spreads(self, arm: str, metric: str) -> dict[str, np.ndarray]:
        """How evenly the sites that have figures are served, in each resample."""
        place = self.scores.metric_names.index(metric)
        known = [s for s, figures in self.scores.by_site[arm].items() if not np.isnan(figures[:, place]).all()]
        by_site = [self.of(arm, site)[:, place] for site in known]
        return spread_over_sites(by_site, METRIC_FACTS[metric].lower_is_better)

    def gap(self, arm: str, entry: Mapping[str, Any]) -> np.ndarray:
        """Between a group and the largest one, in each resample."""
        own, largest = (self.rates(arm, (entry["kind"], entry[value]), entry["measure"]) for value in ("group", "from"))
        return np.asarray(own - largest)

    def freedom_of_gap(self, entry: Mapping[str, Any]) -> int:
        """That of the smaller group; of the positive class there, where the measure is about it."""
        metric = "sensitivity" if entry["measure"] == "sensitivity" else "accuracy"
        place = self.scores.metric_names.index(metric)
        groups = ((entry["kind"], entry[value]) for value in ("group", "from"))
        return min(int(self._freedom(entry["arm"], None, group)[place]) for group in groups)

    def rates(self, arm: str, group: Group, measure: str) -> np.ndarray:
        """(resamples,): a rate of a group, on average over the seeds."""
        key = (arm, group)
        if key not in self.known_rates:
            places = self._places(arm, None, group)
            seeds = self.scores.seed[places]
            self.known_rates[key] = average(np.stack([self._rates(places[seeds == s]) for s in np.unique(seeds)]))
        return np.asarray(self.known_rates[key][:, GROUP_RATES.index(measure)])

    def _rates(self, places: np.ndarray) -> np.ndarray:
        """(resamples, rates)"""
        positive, called = self.scores.label[places] == 1, self.scores.predicted[places] == 1
        columns = (np.ones(len(places)), positive, called, positive & called, self.scores.score[places])
        weights = self.times[:, self.number[places]]
        return group_rates_of(*(weights @ np.asarray(column, dtype=np.float64) for column in columns))

    def of_finding(self, arm: str, finding: str) -> np.ndarray:
        return np.asarray(self._each(arm, None, None)[self.scores.findings.index(finding)])

    def _freedom(self, arm: str, site: str | None, group: Group | None) -> np.ndarray:
        """Patients less one; for metrics that set a class against the rest, patients of the rarest class less one."""
        key = (arm, site, group)
        if key not in self.known_freedom:
            places = self._places(arm, site, group)
            all_patients = len(np.unique(self.number[places])) - 1
            rarest = all_patients
            if self.scores.task.answers == "class" and len(places):
                label = self.scores.label[places]
                rarest = min(len(np.unique(self.number[places][label == c])) for c in np.unique(label)) - 1
            facts = self.scores.task.metrics
            freedom = np.array([max(1, all_patients if metric.over_rows else rarest) for metric in facts])
            self.known_freedom[key] = freedom
        return self.known_freedom[key]

    def _places(self, arm: str, site: str | None, group: Group | None) -> np.ndarray:
        key = (arm, site, group)
        if key not in self.known_places:
            places = self.scores.of_arm(arm)
            if site is not None:
                places = places[self.scores.site[places] == self.scores.sites.index(site)]
            if group is not None and self.scores.groups is not None:
                kind, value = group
                members = self.scores.groups.loc[self.scores.groups[kind] == value, "row"]
                places = places[np.isin(self.scores.row[places], members)]
            self.known_places[key] = places
        return self.known_places[key]

    def _each(self, arm: str, site: str | None, group: Group | None) -> np.ndarray:
        """(findings, or 1; resamples; metrics): the mean over the seeds that have figures."""
        key = (arm, site, group)
        if key not in self.known:
            places = self._places(arm, site, group)
            seeds = self.scores.seed[places]
            each = np.stack([self._figures(places[seeds == s]) for s in np.unique(seeds)] or [self._figures(places)])
            self.known[key] = average(each)
        return self.known[key]

    def _figures(self, places: np.ndarray) -> np.ndarray:
        label, score, number = self.scores.label[places], self.scores.score[places], self.number[places]
        columns = max(1, len(self.scores.findings))
        drawn = np.full((columns, self.count, len(self.scores.metric_names)), np.nan)
        if not len(places) or np.isnan(score).any():
            return drawn
        parts = self.scores.task.weighted_figures(label, score, self.scores.thresholds[places])
        at_a_time = max(1, CACHED // len(places))
        for begin in range(0, self.count, at_a_time):
            weights = self.times[begin : begin + at_a_time, number]
            for f, part in enumerate(parts):
                drawn[f, begin : begin + at_a_time] = part(weights)
        return drawn


def _spread(drawn: np.ndarray, sd: float | None, seeds: int) -> float | None:
    """The standard error over patients and, with several seeds, over training; None where often undefined."""
    known = drawn[np.isfinite(drawn)]
    if len(known) < max(2, LEAST_DEFINED * len(drawn)):
        return None
    return float(np.sqrt(known.var(ddof=1) + (sd**2 / seeds if sd is not None else 0.0)))


def _limits(figure: Mapping[str, Any], drawn: np.ndarray) -> list[float] | None:
    """With one seed the percentiles of the draws; with several, the mean and its standard error."""
    spread, outside = _spread(drawn, figure["sd"], figure["seeds"]), (1 - CONFIDENCE) / 2
    if spread is None:
        return None
    if figure["seeds"] > 1:
        reach = float(-ndtri(outside)) * spread
        return [figure["mean"] - reach, figure["mean"] + reach]
    return [float(limit) for limit in np.quantile(drawn[np.isfinite(drawn)], [outside, 1 - outside])]


def fill_drawn(figures: Mapping[str, dict[str, Any]], drawn: np.ndarray, names: Sequence[str]) -> None:
    """`drawn` is (resamples, metrics), `names` are the metrics'."""
    for place, name in enumerate(names):
        if name in figures and figures[name]["mean"] is not None:
            figures[name]["interval"] = _limits(figures[name], drawn[:, place])


def compare_drawn(entry: dict[str, Any], names: Sequence[str], first: Drawn, second: Drawn) -> None:
    """The standard error of a difference. Its interval and p-value follow once its family is known."""
    place = names.index(entry["metric"])
    _set_error(entry, first.figures[:, place] - second.figures[:, place], int(first.freedom[place]))


def _set_error(entry: dict[str, Any], differences: np.ndarray, freedom: int) -> None:
    """`differences` are those of the resamples."""
    error = None if entry["difference"] is None else _spread(differences, entry["sd"], entry["seeds"])
    if not error and entry["difference"]:
        error = None  # the same in every resample: too few patients to differ, and no sign of certainty
    entry |= {"standard_error": error, "freedom": None if error is None else freedom, "method": METHOD}
