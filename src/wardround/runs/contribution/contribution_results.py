"""What each hospital adds, as `contribution` of results.json has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wardround.evaluation.hospitals.shapley import Shares, shapley
from wardround.evaluation.intervals import CONFIDENCE
from wardround.runs.contribution.coalitions import Contributed, of_seed
from wardround.runs.contribution.worths import Worth, method_of, metric_of
from wardround.runs.plan import Plan
from wardround.study.robustness.contribution import contributed_arm
from wardround.tasks import METRIC_FACTS
from wardround.tasks.class_metrics import mean_or_none


def describe_contribution(plan: Plan, contributed: Contributed) -> dict[str, Any]:
    method = method_of(plan)
    metric, seeds = metric_of(plan), list(contributed.players)
    estimates = {seed: _estimate(method, contributed, seed) for seed in seeds}
    worths = {seed: of_seed(contributed, seed) for seed in seeds}
    counts = [len(own) - 1 for own in worths.values()]
    retrained = method != "reconstruction"
    wholes = {seed: 2 ** len(players) - 1 for seed, players in contributed.players.items()}
    sign = -1 if METRIC_FACTS[metric].lower_is_better else 1
    exact = method != "leave-one-out" and all(own.error is None for own in estimates.values())
    return {
        "method": method,
        "arm": contributed_arm(plan.study).name,
        "metric": metric,
        "lower_is_better": METRIC_FACTS[metric].lower_is_better,
        "rows": "validation",
        "trainings": max(counts) if retrained else 1,
        "models": max(counts),
        "exact": exact,
        "whole": _signed(sign, _mean([own[wholes[seed]].overall for seed, own in worths.items()])),
        "nobody": _signed(sign, _mean([own[0].overall for own in worths.values()])),
        "sites": {
            site: _site(contributed, estimates, worths, site, retrained)
            for site in dict.fromkeys(site for players in contributed.players.values() for site in players)
        },
        "by_seed": {
            str(seed): dict(zip(contributed.players[seed], map(_known, own.values), strict=True))
            for seed, own in estimates.items()
        },
    }


def _site(
    contributed: Contributed,
    estimates: Mapping[int, Shares],
    worths: Mapping[int, Mapping[int, Worth]],
    site: str,
    retrained: bool,
) -> dict[str, Any]:
    return {
        "value": _over_seeds(_of_site(contributed, estimates, site)),
        "leave_one_out": _over_seeds(_left_out(contributed, worths, site, False)) if retrained else None,
        "to_others": _over_seeds(_left_out(contributed, worths, site, True)) if retrained else None,
    }


def _estimate(method: str, contributed: Contributed, seed: int) -> Shares:
    own, count = of_seed(contributed, seed), len(contributed.players[seed])
    if method == "leave-one-out":
        whole = 2**count - 1
        return Shares(np.array([own[whole].overall - own[whole ^ (1 << n)].overall for n in range(count)]), None)
    return shapley(count, {coalition: worth.overall for coalition, worth in own.items()})


def _of_site(contributed: Contributed, estimates: Mapping[int, Shares], site: str) -> list[tuple[float, float | None]]:
    """By seed, its value and the standard error of the estimate."""
    found: list[tuple[float, float | None]] = []
    for seed, shares in estimates.items():
        if site in contributed.players[seed]:
            place = contributed.players[seed].index(site)
            found.append((float(shares.values[place]), None if shares.error is None else float(shares.error[place])))
    return found


def _left_out(
    contributed: Contributed, worths: Mapping[int, Mapping[int, Worth]], site: str, to_others: bool
) -> list[tuple[float, float | None]]:
    found: list[tuple[float, float | None]] = []
    for seed, own in worths.items():
        players = contributed.players[seed]
        if site in players:
            whole = 2 ** len(players) - 1
            with_all, without = own[whole], own[whole ^ (1 << players.index(site))]
            of_others = with_all.for_others[site] - without.for_others[site]
            found.append((of_others if to_others else with_all.overall - without.overall, None))
    return found


def _over_seeds(values: Sequence[tuple[float, float | None]]) -> dict[str, Any]:
    """Mean with an interval: over seeds where there are two, whose differences hold the error of each estimate; of one
    seed, from that error alone."""
    from scipy.stats import t

    known = np.array([value for value, _ in values if np.isfinite(value)])
    errors = [error for value, error in values if error is not None and np.isfinite(value)]
    error = float(np.sqrt(np.mean(np.square(errors)) / len(errors))) if errors else None
    if not len(known):
        return {"mean": None, "interval": None, "error": None}
    mean, half = float(known.mean()), None
    if len(known) > 1:
        half = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    elif error is not None:
        half = float(t.ppf((1 + CONFIDENCE) / 2, 1000) * error)
    return {"mean": mean, "interval": None if half is None else [mean - half, mean + half], "error": error}


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return mean_or_none(np.array(values))


def _signed(sign: int, value: float | None) -> float | None:
    return None if value is None else sign * value
