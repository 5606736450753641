"""`screening` of results.json: whose updates differed, with the evidence, from the records of the rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.notices import Notice, some_of
from wardround.evaluation.comparisons.listing import grouped
from wardround.screening import LEAST_SITES, LEVEL, NONE_DECIDED, Decision, Decisions, Evidence, most_left_out
from wardround.screening.rule import limit_of
from wardround.study.robustness.screening import hidden_by
from wardround.study.schema import Arm, Study

GENERATOR = "clean_hospitals"  # on which the level was measured


def is_screened(study: Study) -> bool:
    return any(_asks(arm) for arm in study.arms)


def describe_screening(study: Study, records: pd.DataFrame, decisions: Decisions = NONE_DECIDED) -> dict[str, Any]:
    return {
        "level": LEVEL,
        "generator": GENERATOR,
        "least_sites": LEAST_SITES,
        "arms": {
            arm.name: _arm(arm, records[records["arm"] == arm.name], decisions) for arm in study.arms if _asks(arm)
        },
    }


def screening_notices(study: Study, records: pd.DataFrame, decisions: Decisions = NONE_DECIDED) -> list[Notice]:
    notices: list[Notice] = []
    described = describe_screening(study, records, decisions)["arms"] if is_screened(study) else {}
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


def _arm(arm: Arm, records: pd.DataFrame, decisions: Decisions) -> dict[str, Any]:
    hidden, policy = hidden_by(arm), arm.screening.policy if arm.screening is not None else "off"
    most = max((len(dict(lengths)) for lengths in records["lengths"]), default=0)
    order = list(dict.fromkeys(site for lengths in records["lengths"] for site in dict(lengths)))
    named = [] if hidden else list(_entries(records, policy, decisions))
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


def _entries(records: pd.DataFrame, policy: str, decisions: Decisions) -> Iterator[dict[str, Any]]:
    """Every site that was named, by seed and round. Where people decide: what, who and when; None where nobody had to,
    because it was named in the last round."""
    for seed, of_seed in records.sort_values(["seed", "round"]).groupby("seed", sort=False):
        sites = {site for name in ("sites", "dropped") for of_round in of_seed[name] for site in of_round}
        left = most_left_out(len(sites))
        for round_number, lengths, named in zip(of_seed["round"], of_seed["lengths"], of_seed["named"], strict=True):
            for site, numbers in dict(named).items():
                found, decided = Evidence.of_numbers(numbers), decisions.get(site)
                drops = policy == "drop" or (policy == "hold" and decided is not None and decided.decision == "drop")
                left -= drops
                other = None if found.other is None else list(dict(lengths))[found.other]
                yield {
                    "site": site,
                    "seed": int(str(seed)),
                    "round": int(round_number),
                    "rule": found.rule,
                    "value": found.value,
                    "limit": limit_of(found.rule),
                    "other": other,
                    "left_out": drops and left >= 0,
                    **(_decided(decided) if policy == "hold" else {}),
                }


def _decided(decided: Decision | None) -> dict[str, Any]:
    if decided is None:
        return {"decision": None, "decided_by": None, "decided_at": None}
    return {"decision": decided.decision, "decided_by": decided.name, "decided_at": decided.time}


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
        details={
            "rule": rule,
            "left_out": any(entry["left_out"] for entry in of_seeds),
            **({key: first[key] for key in ("decision", "decided_by")} if first.get("decision") else {}),
        },
    )
