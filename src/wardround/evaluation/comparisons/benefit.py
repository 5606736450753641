"""Whom federation helped: each hospital with the others against itself alone, and against any one of them alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.differences import difference_of
from wardround.evaluation.intervals import Resampling, summarise
from wardround.evaluation.scores import Figures, Scored
from wardround.study.schema import LOWER_IS_BETTER, METRICS, Arm, Study

BENEFIT = ("accuracy", "auc", "brier")  # beside the primary metric


def compared_metrics(primary: str, others: Sequence[str] = BENEFIT) -> tuple[str, ...]:
    return tuple(dict.fromkeys((primary, *others)))


def benefit(study: Study, scores: Scored, names: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Each arm's figure at each site less that of the same site's own model, paired over seeds.

    `names` are all arms of one variant that were scored, selected ones among them.
    """
    found = []
    for name in (name for name in names if not trains_at_some(study, name)):
        alone = alone_arm(study, name, names)
        if alone is None or alone.name == name:
            continue
        resampling = Resampling.of(study.evaluation_of(alone))
        for site, figures in scores.by_site[name].items():
            own = scores.by_site[alone.name].get(site)
            if own is None:
                continue
            for metric in metrics:
                place = METRICS.index(metric)
                difference = figures[:, place] - own[:, place]
                entry = difference_of(difference, metric, resampling)
                found.append({"arm": name, "against": alone.name, "site": site, **entry})
    return found


def spread(by_site: Mapping[str, Figures], metric: str = "accuracy") -> dict[str, Any]:
    """How unlike the sites' mean figures are: SD over sites, lowest and highest."""
    place = METRICS.index(metric)
    means = {site: summarise(figures[:, place], Resampling(0.0))["mean"] for site, figures in by_site.items()}
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
    """Each federated arm at each site against the best model that any one hospital could have trained alone.

    That model is picked by its mean test figure there, which flatters it: a hospital could not have known.
    """
    place = METRICS.index(metric)
    singles = [arm for arm in _partial_arms(study, names) if len(arm.train_at) == 1]
    if not singles:
        return []
    found = []
    for name in names:
        arm = _arm(study, name)
        if trains_at_some(study, name) or (arm is not None and not arm.algorithm.facts.federated):
            continue
        alone = alone_arm(study, name, names)
        for site, figures in scores.by_site[name].items():
            rivals = {single.name: scores.by_site[single.name].get(site) for single in singles}
            titles = {single.name: single.train_at[0] for single in singles}
            if alone is not None:
                rivals[alone.name] = scores.by_site[alone.name].get(site)
                titles[alone.name] = f"{site} ({alone.name})"
            means = {rival: _mean(line[:, place]) for rival, line in rivals.items() if line is not None}
            known = {rival: mean for rival, mean in means.items() if mean is not None}
            if not known:
                continue
            sign = -1 if metric in LOWER_IS_BETTER else 1
            rival = max(known, key=lambda name: sign * known[name])
            line = rivals[rival]
            assert line is not None  # noqa: S101 - only lines that are there have a mean
            difference = figures[:, place] - line[:, place]
            entry = difference_of(difference, metric, Resampling.of(study.evaluation_of(singles[0])))
            at_least = entry["difference"] is not None and sign * entry["difference"] >= -1e-12
            found.append(
                {
                    "arm": name,
                    "site": site,
                    "best": titles[rival],
                    f"best_{metric}": known[rival],
                    **entry,
                    "as_good": at_least,
                }
            )
    return found


def by_number_of_sites(
    study: Study, scores: Scored, names: Sequence[str], metric: str = "accuracy"
) -> list[dict[str, Any]]:
    """A metric against the number of sites that train: at those sites, and at the sites that stay outside.

    Over all arms with `train_at` that share an algorithm, and the arm of that algorithm in which all sites train.
    """
    partial = _partial_arms(study, names)
    found = []
    for first in {repr(_way(arm)): arm for arm in partial}.values():
        same = [arm for arm in (_arm(study, name) for name in names) if arm and _way(arm) == _way(first)]
        sizes: dict[int, list[Arm]] = {}
        seen: set[frozenset[str]] = set()
        for arm in same:
            trains = frozenset(arm.train_at or scores.by_site[arm.name])
            if trains not in seen:  # all sites named are the same as none named
                seen.add(trains)
                sizes.setdefault(len(trains), []).append(arm)
        for size, arms in sorted(sizes.items()):
            entry: dict[str, Any] = {"algorithm": first.algorithm.name, "sites": size, "combinations": len(arms)}
            entry["metric"] = metric
            for key, wanted in (("inside", True), ("outside", False)):
                lines = [
                    figures[:, METRICS.index(metric)]
                    for arm in arms
                    for site, figures in scores.by_site[arm.name].items()
                    if (not arm.train_at or site in arm.train_at) == wanted
                ]
                resampling = Resampling.of(study.evaluation_of(arms[0]))
                entry[key] = summarise(np.mean(lines, axis=0), resampling) if lines else None
            found.append(entry)
    return found


def _way(arm: Arm) -> tuple[Any, ...]:
    """All that makes an arm, but for who trains."""
    return arm.algorithm, arm.model, arm.training, arm.data, arm.sites


def alone_arm(study: Study, name: str, names: Sequence[str]) -> Arm | None:
    """The arm in which the same sites with the same rows train alone."""
    arm = origin_of(study, name)
    for other in study.arms:
        same = (other.data, other.sites, other.variant) == (arm.data, arm.sites, arm.variant)
        if same and other.algorithm.facts.alone and other.name in names:
            return other
    return None


def origin_of(study: Study, name: str) -> Arm:
    """The arm itself; of one that a selection put together, the first of its family."""
    family, _, variant = name.partition("@")
    same = (arm for arm in study.arms if arm.family == family.split("[")[0] and arm.variant == variant)
    return _arm(study, name) or next(same)


def _arm(study: Study, name: str) -> Arm | None:
    """None for an arm that a selection put together."""
    return next((arm for arm in study.arms if arm.name == name), None)


def trains_at_some(study: Study, name: str) -> bool:
    arm = _arm(study, name)
    return arm is not None and bool(arm.train_at)


def _partial_arms(study: Study, names: Sequence[str]) -> list[Arm]:
    return [arm for arm in study.arms if arm.name in names and arm.train_at]


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
