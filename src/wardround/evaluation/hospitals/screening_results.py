"""`screening` of results.json: whose updates differed, with the evidence, from the records of the rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.notices import Notice, some_of
from wardround.evaluation.comparisons.listing import grouped
from wardround.screening import LEAST_SITES, LEVEL, Evidence, most_left_out
from wardround.screening.rule import limit_of
from wardround.study.robustness.screening import hidden_by
from wardround.study.schema import Arm, Study

GENERATOR = "clean_hospitals"  # on which the level was measured


def is_screened(study: Study) -> bool:
    return any(_asks(arm) for arm in study.arms)


def describe_screening(study: Study, records: pd.DataFrame) -> dict[str, Any]:
    return {
        "level": LEVEL,
        "generator": GENERATOR,
        "least_sites": LEAST_SITES,
        "arms": {arm.name: _arm(arm, records[records["arm"] == arm.name]) for arm in study.arms if _asks(arm)},
    }


def screening_notices(study: Study, records: pd.DataFrame) -> list[Notice]:
    notices: list[Notice] = []
    described = describe_screening(study, records)["arms"] if is_screened(study) else {}
    for name, arm in described.items():
        by_rule = grouped(((entry["site"], entry["rule"]), entry) for entry in arm["named"])
        notices += [_named(name, site, rule, of_seeds, arm, study) for (site, rule), of_seeds in by_rule.items()]
        if arm["hidden_by"] or arm["descriptive"]:
            why = {"part": arm["hidden_by"]} if arm["hidden_by"] else {}
            counts = {} if arm["hidden_by"] else {"sites": arm["sites"], "least": LEAST_SITES}
            notices.append(Notice("updates-not-compared", "info", counts=counts, arm=name, details=why))
    return notices


def _asks(arm: Arm) -> bool:
    on = arm.screening is not None and arm.screening.policy != "off"
    return on and arm.algorithm.facts.federated


def _arm(arm: Arm, records: pd.DataFrame) -> dict[str, Any]:
    hidden, policy = hidden_by(arm), arm.screening.policy if arm.screening is not None else "off"
    most = max((len(dict(lengths)) for lengths in records["lengths"]), default=0)
    order = list(dict.fromkeys(site for lengths in records["lengths"] for site in dict(lengths)))
    named = [] if hidden else list(_entries(records, policy == "drop"))
    shown = named[0]["seed"] if named else (int(records["seed"].iloc[0]) if len(records) else None)
    return {
        "policy": policy,
        "hidden_by": hidden,
        "sites": most,
        "descriptive": not hidden and most < LEAST_SITES,
        "named": named,
        "seed": shown,
        "rounds": _rounds(records[records["seed"] == shown], order),
    }


def _entries(records: pd.DataFrame, drops: bool) -> Iterator[dict[str, Any]]:
    """Every site that was named, by seed and round."""
    for seed, of_seed in records.sort_values(["seed", "round"]).groupby("seed", sort=False):
        sites = {site for name in ("sites", "dropped") for of_round in of_seed[name] for site in of_round}
        left = most_left_out(len(sites)) if drops else 0
        for round_number, lengths, named in zip(of_seed["round"], of_seed["lengths"], of_seed["named"], strict=True):
            for site, numbers in dict(named).items():
                found, left = Evidence.of_numbers(numbers), left - 1
                other = None if found.other is None else list(dict(lengths))[found.other]
                yield {
                    "site": site,
                    "seed": int(str(seed)),
                    "round": int(round_number),
                    "rule": found.rule,
                    "value": found.value,
                    "limit": limit_of(found.rule),
                    "other": other,
                    "left_out": left >= 0,
                }


def _rounds(records: pd.DataFrame, sites: Sequence[str]) -> dict[str, Any]:
    """Round by round, by site: length over the median of all, and mean cosine with the others'. None where the site
    did not work."""
    rounds = records.sort_values("round")
    lengths = [dict(of_round) for of_round in rounds["lengths"]]
    agreements = [dict(of_round) for of_round in rounds["agreements"]]
    medians = [float(np.median(list(of_round.values()))) if of_round else 0.0 for of_round in lengths]
    return {
        site: {
            "length": [_over(of_round.get(site), middle) for of_round, middle in zip(lengths, medians, strict=True)],
            "agreement": [of_round.get(site) for of_round in agreements],
        }
        for site in sites
    }


def _over(length: float | None, middle: float) -> float | None:
    return None if length is None or not middle else length / middle


def _named(
    arm: str, site: str, rule: str, of_seeds: Sequence[Mapping[str, Any]], described: Mapping[str, Any], study: Study
) -> Notice:
    """The evidence is that of the first seed that has it."""
    first = of_seeds[0]
    return Notice(
        "update-differs",
        "warning",
        site,
        counts={"value": first["value"], "limit": first["limit"], "round": first["round"], "level": LEVEL},
        other_sites=() if first["other"] is None else (first["other"],),
        arm=arm,
        seeds=some_of(len({entry["seed"] for entry in of_seeds}), study.evaluation.seeds.count),
        details={"rule": rule, "left_out": any(entry["left_out"] for entry in of_seeds)},
    )
