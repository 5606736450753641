"""Whom federation helped: each hospital with the others against itself alone, and against any one of them alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.differences import difference_of
from wardround.evaluation.intervals import Resampling, summarise
from wardround.evaluation.scores import Figures, within_sites
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.study.schema import Arm, Study
from wardround.tasks import METRIC_FACTS, Task
from wardround.tasks.class_metrics import mean_or_none


def compared_metrics(task: Task, primary: str) -> tuple[str, ...]:
    """In which hospitals are compared one by one."""
    return tuple(dict.fromkeys((primary, *task.at_sites)))


def benefit(study: Study, scores: Scored, names: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Each arm's figure at each site minus that of the same site's own model, paired over seeds.

    `names` are all arms of one variant that were scored, selected ones included.
    """
    entries = []
    for name in (name for name in names if not trains_at_some(study, name)):
        alone = alone_arm(study, name, names)
        if alone is None or alone.name == name:
            continue
        resampling = Resampling.of(study.evaluation_of(alone))
        for site, difference in _site_by_site(scores, name, alone.name).items():
            about = {"arm": name, "against": alone.name, "site": site}
            entries += [about | _difference(scores, difference, metric, resampling) for metric in metrics]
    return entries


def _site_by_site(scores: Scored, name: str, rival: str) -> dict[str, Figures]:
    """The figures of an arm less those of another, at the sites that both have."""
    ours, theirs = scores.by_site[name], scores.by_site[rival]
    return {site: ours[site] - theirs[site] for site in ours if site in theirs}


def spread(scores: Scored, arm: str, metric: str) -> dict[str, Any]:
    """How much the sites' mean figures differ: SD over sites, lowest and highest."""
    means = {site: mean_or_none(_column(scores, figures, metric)) for site, figures in scores.by_site[arm].items()}
    known = {site: mean for site, mean in means.items() if mean is not None}
    if not known:
        return {"sd": None, "lowest": None, "highest": None}
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return {
        "sd": float(np.std(list(known.values()), ddof=1)) if len(known) > 1 else None,
        "lowest": {"site": low, metric: known[low]},
        "highest": {"site": high, metric: known[high]},
    }


def best_single(study: Study, scores: Scored, names: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """Each federated arm at each site against the best model that any single hospital could have trained alone.

    That model is picked by its mean test figure there, which flatters it: a hospital could not have known.
    """
    singles = [arm for arm in _partial_arms(study, names) if len(arm.train_at) == 1]
    if not singles:
        return []
    resampling = Resampling.of(study.evaluation_of(singles[0]))
    entries = []
    for name in names:
        arm = _arm(study, name)
        if trains_at_some(study, name) or (arm is not None and not arm.algorithm.facts.federated):
            continue
        alone = alone_arm(study, name, names)
        for site, figures in scores.by_site[name].items():
            rivals = {single.name: single.train_at[0] for single in singles}
            if alone is not None:
                rivals[alone.name] = f"{site} ({alone.name})"
            best = _best_at(scores, rivals, site, metric)
            if best is not None:
                entry = _difference(scores, figures - scores.by_site[best][site], metric, resampling)
                mean = mean_or_none(_column(scores, scores.by_site[best][site], metric))
                about = {"arm": name, "site": site, "best": rivals[best], f"best_{metric}": mean}
                entries.append({**about, **entry, "as_good": _is_as_good(entry)})
    return entries


def _best_at(scores: Scored, arms: Iterable[str], site: str, metric: str) -> str | None:
    """The arm with the best mean figure at a site; None where none has any."""
    lines = {arm: scores.by_site[arm].get(site) for arm in arms}
    means = {arm: mean_or_none(_column(scores, line, metric)) for arm, line in lines.items() if line is not None}
    known = {arm: mean for arm, mean in means.items() if mean is not None}
    sign = -1 if METRIC_FACTS[metric].lower_is_better else 1
    return max(known, key=lambda arm: sign * known[arm], default=None)


def _is_as_good(entry: Mapping[str, Any]) -> bool:
    sign = -1 if METRIC_FACTS[entry["metric"]].lower_is_better else 1
    return entry["difference"] is not None and sign * entry["difference"] >= -1e-12


def by_number_of_sites(study: Study, scores: Scored, names: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """A metric against the number of sites that train: at those sites, and at the sites that stay outside.

    Over all arms with `train_at` that share an algorithm, and the arm of that algorithm in which all sites train.
    """
    entries = []
    for first in {repr(_recipe(arm)): arm for arm in _partial_arms(study, names)}.values():
        same = [arm for arm in (_arm(study, name) for name in names) if arm and _recipe(arm) == _recipe(first)]
        sizes: dict[int, dict[frozenset[str], Arm]] = {}
        for arm in same:
            trains = frozenset(arm.train_at or scores.by_site[arm.name])
            sizes.setdefault(len(trains), {}).setdefault(trains, arm)  # all sites named are the same as none named
        for size, arms in sorted(sizes.items()):
            entry = {"algorithm": first.algorithm.name, "sites": size, "combinations": len(arms), "metric": metric}
            for key, inside in (("inside", True), ("outside", False)):
                entry[key] = _mean_at(study, scores, list(arms.values()), metric, inside)
            entries.append(entry)
    return entries


def alone_arm(study: Study, name: str, names: Sequence[str]) -> Arm | None:
    """The arm in which the same sites with the same rows train alone."""
    arm = origin_of(study, name)
    for other in study.arms:
        same = (other.data, other.sites, other.variant) == (arm.data, arm.sites, arm.variant)
        if same and other.algorithm.facts.alone and other.name in names:
            return other
    return None


def _mean_at(study: Study, scores: Scored, arms: Sequence[Arm], metric: str, inside: bool) -> dict[str, Any] | None:
    """The metric's mean over arms at the sites that train (`inside`) or do not; None where there are no such sites."""
    lines = [
        _column(scores, figures, metric)
        for arm in arms
        for site, figures in scores.by_site[arm.name].items()
        if (not arm.train_at or site in arm.train_at) == inside
    ]
    return summarise(np.mean(lines, axis=0), Resampling.of(study.evaluation_of(arms[0]))) if lines else None


def _recipe(arm: Arm) -> tuple[Any, ...]:
    """All that defines an arm except who trains."""
    return arm.algorithm, arm.model, arm.training, arm.data, arm.sites


def origin_of(study: Study, name: str) -> Arm:
    """The arm itself; for a selected arm, the first of its family."""
    family, _, variant = name.partition("@")
    same = (arm for arm in study.arms if arm.family == family.split("[")[0] and arm.variant == variant)
    return _arm(study, name) or next(same)


def _arm(study: Study, name: str) -> Arm | None:
    """None for a selected arm, which is composed of several."""
    return next((arm for arm in study.arms if arm.name == name), None)


def trains_at_some(study: Study, name: str) -> bool:
    return any(arm.name == name and arm.train_at for arm in study.arms)


def _partial_arms(study: Study, names: Sequence[str]) -> list[Arm]:
    return [arm for arm in study.arms if arm.name in names and arm.train_at]


def site_differences(
    study: Study, scores: Scored, names: Sequence[str], metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Arms compared hospital by hospital with the study's reference, and on average over hospitals.

    A figure over all test rows is mostly about the large hospitals. Here each hospital counts the same: the mean over
    hospitals of the paired differences, with its interval over seeds. `names` are all arms of one variant that were
    scored. An entry without a `site` is the mean over sites.
    """
    entries = []
    for name in (name for name in names if not trains_at_some(study, name)):
        alone = alone_arm(study, name, names)
        reference = study.reference_of(name.partition("@")[2])
        rivals = {"alone": alone.name if alone is not None else None, "reference": reference}
        for kind, rival in rivals.items():
            if rival is None or rival == name or rival not in scores.by_site:
                continue
            if kind == "reference" and rival == rivals["alone"]:
                continue  # the same comparison
            entries += _against(study, scores, name, rival, kind, metrics)
    return entries


def _against(
    study: Study, scores: Scored, name: str, rival: str, kind: str, metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Against the site alone, each site's own difference is in `benefit` already."""
    differences = _site_by_site(scores, name, rival)
    if not differences:
        return []
    resampling = Resampling.of(study.evaluation_of(origin_of(study, rival)))

    def entries(site: str | None, difference: Figures) -> list[dict[str, Any]]:
        about = {"arm": name, "against": rival, "kind": kind, "site": site}
        return [about | _difference(scores, difference, metric, resampling) for metric in metrics]

    mean = entries(None, within_sites(differences, len(scores.metric_names))) if len(differences) > 1 else []
    if kind != "reference":
        return mean
    return mean + [entry for site, difference in differences.items() for entry in entries(site, difference)]


def _difference(scores: Scored, difference: Figures, metric: str, resampling: Resampling) -> dict[str, Any]:
    return difference_of(_column(scores, difference, metric), metric, resampling)


def _column(scores: Scored, figures: Figures, metric: str) -> np.ndarray:
    return np.asarray(figures[:, scores.metric_names.index(metric)])
