"""Time and participation of an arm: when its rounds closed, how stale work was, and who was left out how often.

Everything follows from the records of its rounds: `time`, `staleness`, `sites` and `dropped`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtr

from wardround.core.notices import Notice
from wardround.evaluation.intervals import CONFIDENCE, Resampling, mean_interval
from wardround.study.schema import Arm, Study
from wardround.tasks import METRIC_FACTS, Task
from wardround.training.schedule import tolerance

POINTS = 60  # of a curve over virtual time
FEWEST = 5  # sites of which a rank correlation is told
EXACT = 8  # sites up to which all orders are counted


def describe_time(study: Study, arm: Arm, task: Task, records: pd.DataFrame, sites: Mapping[str, Any]) -> Any:
    """`records` are the arm's, `sites` describes each by its name. None where no time passed and nobody was late."""
    if "time" not in records or (records["time"].isna().all() and not records["staleness"].map(len).any()):
        return None
    partial = study.deployment.deadline is not None
    kind = "asynchronous" if arm.training.asynchronous else "partial" if partial else "synchronous"
    settings = tolerance(arm.training)
    last = records.sort_values("round").groupby("seed").tail(1)
    timed = not records["time"].isna().any()
    taking_part = participation_of(records, sites)
    return {
        "kind": kind,
        "settings": None if settings is None else asdict(settings),
        "quorum": study.deployment.quorum if kind == "partial" else None,
        "deadline": study.deployment.deadline if kind == "partial" else None,
        "seconds": float(last["time"].mean()) if timed else None,
        "updates": float(last["round"].mean()),
        "staleness": None if settings is None else describe_staleness(records),
        "sites": taking_part,
        "left_out": {
            "rows": correlate(taking_part, {name: site["train"] for name, site in sites.items()}),
            "prevalence": correlate(taking_part, prevalences(sites)),
        },
        "curve": curve_over_time(task, records) if timed else None,
    }


def describe_staleness(records: pd.DataFrame) -> dict[str, Any]:
    """Over all rounds and seeds: of the work that counted, how many updates old the model was that it began with."""
    counts = Counter(late for by_site in records["staleness"] for late in dict(by_site).values())
    total = sum(counts.values())
    return {
        "mean": sum(late * count for late, count in counts.items()) / total if total else None,
        "largest": max(counts, default=None),
        "histogram": [counts[late] for late in range(max(counts, default=-1) + 1)],
        "dropped": int(records["dropped"].map(len).sum()),
    }


def participation_of(records: pd.DataFrame, sites: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By site: in what share of the rounds its work counted, and how much of it was dropped, on average over seeds."""
    counted, dropped = (Counter(site for row in records[name] for site in row) for name in ("sites", "dropped"))
    late: dict[str, list[int]] = {}
    for by_site in records["staleness"]:
        for site, staleness in dict(by_site).items():
            late.setdefault(site, []).append(staleness)
    seeds = records["seed"].nunique()
    return {
        site: {
            "rows": sites[site]["train"],
            "rounds": counted[site] / seeds,
            "share": counted[site] / len(records),
            "dropped": dropped[site] / seeds,
            "staleness": float(np.mean(late[site])) if site in late else None,
        }
        for site in sites
    }


def never_counted(arms: Mapping[str, Mapping[str, Any]], seeds: int) -> list[Notice]:
    """Sites whose work counted in no round of any seed, although they were to take part."""
    return [
        Notice("never-counted", "warning", site, arm=name, counts={"dropped": round(own["dropped"] * seeds)})
        for name, arm in arms.items()
        for site, own in (arm["time"]["sites"] if arm["time"] else {}).items()
        if not own["rounds"]
    ]


def prevalences(sites: Mapping[str, Any]) -> dict[str, float]:
    """Of the second of two classes; nothing where there are more, or none."""
    shares = {}
    for name, site in sites.items():
        counts = list((site.get("classes") or {}).values())
        if len(counts) == 2 and None not in counts and sum(counts):
            shares[name] = counts[1] / sum(counts)
    return shares


def correlate(taking_part: Mapping[str, Mapping[str, Any]], values: Mapping[str, float]) -> dict[str, Any] | None:
    """Spearman's correlation between the share of rounds in which a site counted and something else of it. None where
    there is nothing to correlate: too few sites, or all alike."""
    known = [name for name in taking_part if name in values]
    shares, others = [taking_part[name]["share"] for name in known], [values[name] for name in known]
    if len(known) < FEWEST or len(set(shares)) < 2 or len(set(others)) < 2:
        return None
    ranked, other = (pd.Series(numbers).rank().to_numpy() for numbers in (shares, others))
    rho = _correlation(ranked, other)
    return {"rho": rho, "interval": _interval(rho, len(known)), "p": _p_value(ranked, other), "sites": len(known)}


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def _interval(rho: float, count: int) -> list[float]:
    """Fisher's transformation, with the standard error of Bonett and Wright (Psychometrika 65, 2000)."""
    half = ndtri((1 + CONFIDENCE) / 2) * np.sqrt((1 + rho**2 / 2) / (count - 3))
    middle = np.arctanh(np.clip(rho, -1 + 1e-9, 1 - 1e-9))
    return [float(np.tanh(middle - half)), float(np.tanh(middle + half))]


def _p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Against no relation, two-sided: over all orders of few sites, else by Student's t."""
    rho = _correlation(a, b)
    if len(a) <= EXACT:
        orders = np.array(list(permutations(a)))
        all_of_them = ((orders - a.mean()) @ (b - b.mean())) / (len(a) * a.std() * b.std())
        return float((np.abs(all_of_them) >= abs(rho) - 1e-12).mean())
    t = abs(rho) * np.sqrt((len(a) - 2) / max(1 - rho**2, 1e-12))
    return float(2 * stdtr(len(a) - 2, -t))


def measured_by(task: Task, records: pd.DataFrame) -> str | None:
    """The figure on test rows that is known after every round."""
    names = (f"test_{name}" for name in (*task.round_metrics, task.curve))
    return next((name for name in names if name in records and records[name].notna().any()), None)


def curve_over_time(task: Task, records: pd.DataFrame) -> dict[str, list[float | None]]:
    """Means over seeds at equal distances of virtual time, up to where seeds end on average. A model stays until the
    next one is there, the last one for good; before the first there is none."""
    figure = measured_by(task, records)
    by_seed = [part.sort_values("round") for _, part in records.groupby("seed")]
    times = np.linspace(0, float(np.mean([part["time"].iloc[-1] for part in by_seed])), POINTS)
    content: dict[str, list[float | None]] = {"seconds": times.tolist()}
    for name in filter(None, (figure, "test_loss" if "test_loss" in records else None)):
        seen = np.array([_at(part, name, times) for part in by_seed])
        whole = ~np.isnan(seen).any(axis=0)
        means = np.where(whole, np.nansum(seen, axis=0) / len(seen), np.nan)
        content[name] = [None if np.isnan(value) else float(value) for value in means]
    return content


def _at(part: pd.DataFrame, name: str, times: np.ndarray) -> np.ndarray:
    known = part[part[name].notna()]
    place = np.searchsorted(known["time"].to_numpy(), times, side="right") - 1
    values = np.append(known[name].to_numpy(), np.nan)  # the last, at place -1, stands for none yet
    return np.asarray(values[place])


def times_to_equal(
    task: Task, arms: Mapping[str, Any], of_arm: Mapping[str, pd.DataFrame], resampling: Mapping[str, Resampling]
) -> list[dict[str, Any]]:
    """How much sooner each arm is as good as the first synchronous arm of its variant at the end. With each seed, by
    the figure that is known after every round, on test rows: told, and nothing is chosen by it."""
    timed = {name: arm for name, arm in arms.items() if arm["time"] and arm["time"]["curve"] and name in of_arm}
    entries = []
    for name, arm in timed.items():
        same = [n for n, other in timed.items() if other["variant"] == arm["variant"]]
        reference = next((n for n in same if timed[n]["time"]["kind"] == "synchronous"), name)
        figure = measured_by(task, of_arm[name])
        if name != reference and figure is not None and figure in of_arm[reference]:
            described = {"arm": name, "reference": reference, "variant": arm["variant"]}
            entries.append(described | _time_to_equal(of_arm[name], of_arm[reference], figure, resampling[name]))
    return entries


def _time_to_equal(own: pd.DataFrame, other: pd.DataFrame, figure: str, resampling: Resampling) -> dict[str, Any]:
    pairs = _times(own, other, figure)
    logs = np.log([slow / quick for quick, slow in pairs if quick is not None])
    interval = mean_interval(logs, resampling) if len(logs) else None
    return {
        "measured_by": figure.removeprefix("test_"),
        "seeds": len(pairs),
        "reached": len(logs),
        "ratio": float(np.exp(logs.mean())) if len(logs) else None,
        "interval": None if interval is None else [float(np.exp(end)) for end in interval],
    }


def _times(own: pd.DataFrame, other: pd.DataFrame, figure: str) -> list[tuple[float | None, float]]:
    """With each seed: when the arm was as good as the other at its end, and when the other first was."""
    lower = METRIC_FACTS[figure.removeprefix("test_")].lower_is_better
    pairs = []
    for seed, reference in other.groupby("seed"):
        reference, part = reference.sort_values("round"), own[own["seed"] == seed].sort_values("round")
        goal = reference[figure].dropna().iloc[-1] if reference[figure].notna().any() else np.nan

        def first(of: pd.DataFrame, goal: float = goal) -> float | None:
            good = of[figure] <= goal if lower else of[figure] >= goal
            return float(of.loc[good, "time"].iloc[0]) if good.any() else None

        slow = first(reference)
        if slow is not None and slow > 0 and len(part):
            quick = first(part)
            pairs.append((quick if quick is None or quick > 0 else None, slow))
    return pairs
