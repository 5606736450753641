"""`results.json` of a run across hospitals, from their summaries: no row of any patient is needed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.evaluation.results import assemble
from wardround.evaluation.selection import choose_by, scored_name
from wardround.evaluation.summaries import Summaries, Summary
from wardround.study import Study


def deployed_results(
    study: Study,
    lines: Iterable[Summary],
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole content of `results.json`.

    `lines` are those of `summaries.jsonl`, in any order: `arm`, `seed`, `site`, `side` and what `summarise` made.
    `sites` is what `describe_deployed` made; `warnings` come before those about what was withheld.
    """
    order = {site: place for place, site in enumerate(sites[0]["sites"])}
    told = sorted(lines, key=lambda line: order.get(line["site"], len(order)))  # not in the order of arrival
    seeds = list(study.evaluation.seeds)
    tested = [line for line in told if not _for_selection(line, study)]
    choices = _choices(study, [line for line in told if _for_selection(line, study)])
    scores = Summaries.of(tested, [arm.name for arm in study.arms], seeds).with_choices(choices)
    return {
        **assemble(study, scores, choices, records, sites, deployed=True),
        "synthetic": False,
        "missing_work": missing_work(records),
        "sites": list(sites),
        "columns": None,  # how they are distributed is known at the sites alone
        "leakage": {},  # as is who their patients are
        "warnings": [*warnings, *diverged(tested), *withheld(study, told, _classes(sites))],
    }


def _for_selection(line: Summary, study: Study) -> bool:
    return line["side"] == "validation" or study.arm(line["arm"]).held_out is not None


def _choices(study: Study, lines: Sequence[Summary]) -> list[dict[str, Any]]:
    selection = study.selection
    if selection is None:
        return []
    arms = [scored_name(selection, arm) for arm in study.arms if arm.family in selection.arms]
    return choose_by(study, selection, Summaries.of(lines, arms, study.evaluation.seeds))


def missing_work(records: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Sites whose work did not count in every round that asked for it: in how many `rounds`, `of` how many."""
    counted, dropped = (
        records[name].explode().dropna().value_counts() if name in records else pd.Series(dtype=int)
        for name in ("sites", "dropped")
    )
    return {
        str(site): {"rounds": int(rounds), "of": int(rounds + counted.get(site, 0))}
        for site, rounds in sorted(dropped.items())
    }


def diverged(lines: Iterable[Summary]) -> list[str]:
    lost: dict[str, set[int]] = {}
    for line in lines:
        if line.get("diverged"):
            lost.setdefault(line["arm"], set()).add(line["seed"])
    return [
        f"{arm}: training diverged with {len(seeds)} of the seeds; their scores are not numbers and count nowhere"
        for arm, seeds in lost.items()
    ]


def withheld(study: Study, lines: Sequence[Summary], classes: Sequence[str]) -> list[str]:
    """A line for each site, and each class at a site, that has too few rows to tell of."""
    found: dict[tuple[str, str, str], set[int]] = {}
    for line in lines:
        if line["side"] == "validation" and study.selection is None:
            continue  # nobody asked for them
        kind = "rows to select by" if _for_selection(line, study) else "test rows"
        small = [""] if line.get("suppressed") else [classes[number] for number in line.get("small_classes", ())]
        for name in small:
            found.setdefault((line["site"], kind, name), set()).add(line["seed"])
    smallest, count = study.deployment.smallest_cell, study.evaluation.seeds.count
    told = []
    for (site, kind, name), seeds in found.items():
        few = f"{site}: fewer than {smallest} {kind}{f' of class {name}' if name else ''}"
        often = f" with {len(seeds)} of {count} seeds" if len(seeds) < count else ""
        what = "its figures by class" if name else "its figures"
        told.append(f"{few}{often}; {what} stay there and count nowhere else")
    return told


def _classes(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(next(iter(sites[0]["sites"].values()))["classes"])
