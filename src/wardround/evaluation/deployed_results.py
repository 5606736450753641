"""`results.json` of a run across hospitals, from their summaries: no row of any patient is needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.evaluation.comparisons.selection import choose_by, scored_name
from wardround.evaluation.participation import not_finite
from wardround.evaluation.regional import REGIONAL, score_told_regions
from wardround.evaluation.results import assemble, conclude
from wardround.evaluation.summaries.merged_finding_summaries import put_together
from wardround.evaluation.summaries.merged_summaries import Summaries, Summary
from wardround.evaluation.training_notices import training_notices
from wardround.study.schema import Study


def deployed_results(
    study: Study,
    lines: Iterable[Summary],
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    warnings: Sequence[str] = (),
    findings: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole content of `results.json`. `findings` are named where a row may have several.

    `lines` are those of `summaries.jsonl`, in any order: `arm`, `seed`, `site`, `side` and what `summarise` made. Those
    with the side `regional` are of test rows too, by the own model of the site's region.
    `sites` is what `describe_deployed` made; `warnings` come before those about what was withheld.
    """
    order = {site: place for place, site in enumerate(sites[0]["sites"])}
    sent = sorted(lines, key=lambda line: order.get(line["site"], len(order)))  # not in the order of arrival
    regional, told = ([line for line in sent if (line["side"] == REGIONAL) == own] for own in (True, False))
    seeds, arms = list(study.evaluation.seeds), [arm.name for arm in study.arms]
    tested = [line for line in told if not _for_selection(line, study)]
    choices = _choices(study, [line for line in told if _for_selection(line, study)], findings)

    def gathered(lines: Iterable[Summary]) -> Summaries:
        return put_together(lines, arms, seeds, findings).with_choices(choices)

    content = assemble(study, gathered(tested), choices, records, sites, deployed=True)
    return {
        **conclude(score_told_regions(content, study, tested, regional, gathered)),
        "synthetic": False,
        "sites": list(sites),
        "columns": None,  # how they are distributed is known at the sites alone
        "leakage": {},  # as is who their patients are
        "warnings": [
            *warnings,
            *not_finite(records),
            *diverged(tested),
            *training_notices(records),
            *withheld(study, told, _classes(sites)),
        ],
    }


def _for_selection(line: Summary, study: Study) -> bool:
    return line["side"] == "validation" or study.arm(line["arm"]).held_out is not None


def _choices(study: Study, lines: Sequence[Summary], findings: Sequence[str]) -> list[dict[str, Any]]:
    selection = study.selection
    if selection is None:
        return []
    arms = [scored_name(selection, arm) for arm in study.arms if arm.family in selection.arms]
    return choose_by(study, selection, put_together(lines, arms, study.evaluation.seeds, findings))


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
    """A line for each site, and each class at a site, with too few patients to tell of; one for all findings there."""

    def small(line: Summary) -> list[str]:
        return [""] if line.get("suppressed") else [classes[number] for number in line.get("small_classes", ())]

    smallest = study.deployment.smallest_cell
    told = []
    for (site, kind), names in _too_few(study, lines, small).items():
        for name, often in names.items():
            few = f"{site}: fewer than {smallest} patients {kind}{f' of class {name}' if name else ''}"
            what = "its figures by class" if name else "its figures"
            told.append(f"{few}{often and f' with {often}'}; {what} stay there and count nowhere else")
    for (site, kind), names in _too_few(study, lines, _few_findings).items():
        which = ", ".join(f"{name}{often and f' ({often})'}" for name, often in names.items())
        few = f"{site}: fewer than {smallest} patients {kind} have, or have not, {which}"
        told.append(f"{few}; its figures of these findings stay there and count nowhere else")
    return told


def _too_few(
    study: Study, lines: Sequence[Summary], small: Callable[[Summary], list[str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """By site and kind of rows: what is withheld, and with how many seeds, where not with all."""
    found: dict[tuple[str, str], dict[str, set[int]]] = {}
    for line in lines:
        if line["side"] == "validation" and study.selection is None:
            continue  # nobody asked for them
        kind = "to select by" if _for_selection(line, study) else "tested"
        for name in small(line):
            found.setdefault((line["site"], kind), {}).setdefault(name, set()).add(line["seed"])
    count = study.evaluation.seeds.count
    return {
        place: {name: f"{len(seeds)} of {count} seeds" if len(seeds) < count else "" for name, seeds in names.items()}
        for place, names in found.items()
    }


def _few_findings(line: Summary) -> list[str]:
    """Findings of which a site withholds something."""
    parts = line.get("findings", {}).items()
    return [name for name, part in parts if part.get("suppressed") or part.get("small_classes")]


def _classes(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(next(iter(sites[0]["sites"].values()))["classes"])
