"""How evenly hospitals and groups of patients are served, under each arm and against the reference.

Between hospitals: the SD over hospitals of a metric, the worst hospital's figure, and how far it is from the best's.
Between groups of patients, where one class of two is predicted: sensitivity (equal opportunity), the share that is
called positive (demographic parity), and predicted less observed risk (calibration in the large), each group's less
those of the largest group. All of it is computed seed by seed, so that differences between arms are paired.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.benefit import origin_of, trains_at_some
from wardround.evaluation.comparisons.differences import SPREAD, difference_of
from wardround.evaluation.intervals import Resampling, summarise
from wardround.evaluation.scores import GROUP_RATES, GroupRates
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.study.schema import Study
from wardround.tasks import METRIC_FACTS

SPREADS = tuple(SPREAD)


def spread_over_sites(by_site: Sequence[np.ndarray], lower_is_better: bool) -> dict[str, np.ndarray]:
    """`by_site`: each site's figures, with each seed or in each resample. NaN where a site has none."""
    if len(by_site) < 2:
        return {}
    table = np.stack(by_site)
    low, high = table.min(axis=0), table.max(axis=0)
    return {"sd": table.std(axis=0, ddof=1), "worst": high if lower_is_better else low, "gap": high - low}


def site_spreads(scores: Scored, arm: str, metric: str) -> dict[str, np.ndarray]:
    place = scores.metric_names.index(metric)
    columns = [figures[:, place] for figures in scores.by_site[arm].values()]
    known = [column for column in columns if not np.isnan(column).all()]  # not of a site that never has one
    return spread_over_sites(known, METRIC_FACTS[metric].lower_is_better)


def describe_spread(scores: Scored, arm: str, metric: str, resampling: Resampling) -> dict[str, Any] | None:
    """None where fewer than two sites have figures."""
    spreads, facts = site_spreads(scores, arm, metric), METRIC_FACTS[metric]
    described = {name: summarise(values, resampling) for name, values in spreads.items()}
    for name, figure in described.items():
        if figure["interval"] is not None:
            low, high = (facts.low, facts.high) if name == "worst" else (0.0, facts.high - facts.low)
            figure["interval"] = [max(low, figure["interval"][0]), min(high, figure["interval"][1])]
    return described or None


def spread_differences(study: Study, scores: Scored, names: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """Each arm against the reference. `names` are all arms of one variant that were scored."""
    entries = []
    for name, rival in _against_reference(study, names):
        resampling = Resampling.of(study.evaluation_of(origin_of(study, rival)))
        ours, theirs = site_spreads(scores, name, metric), site_spreads(scores, rival, metric)
        for measure in ours.keys() & theirs.keys():
            about = {"arm": name, "against": rival, "measure": measure}
            entries.append(difference_of(ours[measure] - theirs[measure], metric, resampling, about))
    return sorted(entries, key=lambda entry: (names.index(entry["arm"]), SPREADS.index(entry["measure"])))


def _against_reference(study: Study, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in (name for name in names if not trains_at_some(study, name)):
        reference = study.reference_of(name.partition("@")[2])
        if reference is not None and reference != name and reference in names:
            yield name, reference


def describe_rates(rates: np.ndarray, resampling: Resampling) -> dict[str, dict[str, Any]]:
    """Of one group under one arm: (seeds, rates)."""
    return {name: summarise(column, resampling) for name, column in zip(GROUP_RATES, rates.T, strict=True)}


def group_gaps(study: Study, scores: Scored, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """`group_gaps`: each group less the largest one, under each arm of a variant. `group_gap_differences`: these gaps
    less those of the reference."""
    gaps: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []
    reference_of = dict(_against_reference(study, names))
    for kind in scores.group_rates():
        largest = largest_group(kind)
        if largest is None:
            continue
        for name in (name for name in names if not trains_at_some(study, name)):
            resampling = Resampling.of(study.evaluation_of(origin_of(study, name)))
            rival = reference_of.get(name, "")
            for v, value in ((v, value) for v, value in enumerate(kind.values) if v != largest):
                about: dict[str, Any] = {"arm": name, "kind": kind.kind, "group": value, "from": kind.values[largest]}
                own = _gap(scores, kind, name, v, largest)
                theirs = _gap(scores, kind, rival, v, largest) if rival else None
                for place, measure in enumerate(GROUP_RATES):
                    if not np.isnan(own[:, place]).all():
                        known = about | {"measure": measure}
                        gaps.append(with_spread(difference_of(own[:, place], "", resampling, known)))
                        if theirs is not None:
                            known = about | {"against": rival, "measure": measure}
                            less = own[:, place] - theirs[:, place]
                            differences.append(difference_of(less, "", resampling, known))
    return {"group_gaps": gaps, "group_gap_differences": differences}


def with_spread(gap: dict[str, Any]) -> dict[str, Any]:
    """A gap of 0 with every seed, or in every resample, mostly means that nobody is called positive: that is no sign of
    certainty, and it has no interval."""
    return gap if gap["standard_error"] else gap | {"standard_error": None, "freedom": None}


def largest_group(kind: GroupRates) -> int | None:
    """The place of the group with the most test rows; the first of equal ones. None where there are not two groups."""
    rows = kind.rows.sum(axis=(0, 1))
    return int(rows.argmax()) if int((rows > 0).sum()) > 1 else None


def _gap(scores: Scored, kind: GroupRates, arm: str, group: int, largest: int) -> np.ndarray:
    """(seeds, rates)"""
    of_arm = kind.rates[scores.arms.index(arm)]
    return np.asarray(of_arm[:, group] - of_arm[:, largest])
