"""`results.json` of a run across hospitals, from their summaries: no row of any patient is needed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.core.notices import Notice, some_of, with_texts
from wardround.evaluation.comparisons.listing import grouped
from wardround.evaluation.comparisons.selection import choose_by, scored_name
from wardround.evaluation.hospitals.screening_results import screening_notices
from wardround.evaluation.participation.hospitals import not_finite
from wardround.evaluation.participation.virtual_time import never_counted
from wardround.evaluation.regional import REGIONAL, score_region_summaries
from wardround.evaluation.results import assemble, conclude
from wardround.evaluation.summaries.merged_summaries import Summaries, Summary, gather_summaries
from wardround.evaluation.training_notices import training_notices
from wardround.screening import NONE_DECIDED, Decisions
from wardround.study.schema import Study
from wardround.tasks import Task


def deployed_results(
    study: Study,
    task: Task,
    lines: Iterable[Summary],
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    notices: Iterable[Notice] = (),
    decisions: Decisions = NONE_DECIDED,
) -> dict[str, Any]:
    """The whole content of `results.json`.

    `lines` are those of `summaries.jsonl`, in any order: `arm`, `seed`, `site`, `subset` and a site's summary. Those
    with the subset `regional` are about test rows too, by the model of the site's region.
    `sites` is what `describe_deployed` made; `notices` come before those of training.
    """
    order = {site: place for place, site in enumerate(sites[0]["sites"])}
    ordered = sorted(lines, key=lambda line: order.get(line["site"], len(order)))  # not in the order of arrival
    regional, of_all = ([line for line in ordered if (line["subset"] == REGIONAL) == own] for own in (True, False))
    seeds, arms = list(study.evaluation.seeds), [arm.name for arm in study.arms]
    tested = [line for line in of_all if not _for_selection(line, study)]
    choices = _choices(study, [line for line in of_all if _for_selection(line, study)], task)

    def gathered(lines: Iterable[Summary]) -> Summaries:
        return gather_summaries(lines, arms, seeds, task).with_choices(choices)

    content = assemble(study, gathered(tested), choices, records, sites, deployed=True, decisions=decisions)
    content["notices"] = with_texts(
        [
            *notices,
            *not_finite(records),
            *diverged_arms(tested, len(seeds)),
            *training_notices(records),
            *never_counted(content["arms"], len(seeds)),
            *screening_notices(study, records, decisions),
            *withheld(study, of_all, content["classes"]),
        ]
    )
    return {
        **conclude(score_region_summaries(content, study, tested, regional, gathered)),
        "synthetic": False,
        "sites": list(sites),
        "columns": None,  # their distribution is known at the sites alone
        "leakage": {},  # as are their patients
    }


def _for_selection(line: Summary, study: Study) -> bool:
    return line["subset"] == "validation" or study.arm(line["arm"]).held_out is not None


def _choices(study: Study, lines: Sequence[Summary], task: Task) -> list[dict[str, Any]]:
    selection = study.selection
    if selection is None:
        return []
    arms = [scored_name(selection, arm) for arm in study.arms if arm.family in selection.arms]
    return choose_by(study, selection, gather_summaries(lines, arms, study.evaluation.seeds, task))


def diverged_arms(lines: Iterable[Summary], seeds: int) -> list[Notice]:
    lost = grouped(dict.fromkeys((line["arm"], line["seed"]) for line in lines if line.get("diverged")))
    return [
        Notice("diverged", "warning", arm=arm, seeds=some_of(len(lost_seeds), seeds))
        for arm, lost_seeds in lost.items()
    ]


def withheld(study: Study, lines: Sequence[Summary], classes: Sequence[str]) -> list[Notice]:
    """For each site, and each class at a site, with too few patients for figures to leave it; one for all findings
    that are withheld there with as many seeds."""
    too_few: dict[tuple[bool, str, str], dict[str, set[int]]] = {}  # by whether it is a finding, site and kind of rows
    for line in lines:
        if line["subset"] == "validation" and study.selection is None:
            continue  # nobody asked for them
        part = "to select by" if _for_selection(line, study) else "tested"
        small = [""] if line.get("suppressed") else [classes[number] for number in line.get("small_classes", ())]
        for is_finding, names in ((False, small), (True, _few_findings(line))):
            for name in names:
                seeds = too_few.setdefault((is_finding, line["site"], part), {}).setdefault(name, set())
                seeds.add(line["seed"])
    notices = []
    for (are_findings, site, part), seeds_of in sorted(too_few.items(), key=lambda place: place[0][0]):
        pairs = [(len(seeds), name) for name, seeds in seeds_of.items()]
        together = list(grouped(pairs).items()) if are_findings else [(count, [name]) for count, name in pairs]
        notices += [
            Notice(
                "figures-withheld",
                "info",
                site,
                counts={"smallest": study.deployment.smallest_cell},
                classes=tuple(filter(None, names)),
                seeds=some_of(count, study.evaluation.seeds.count),
                details={"part": part, **({"findings": True} if are_findings else {})},
            )
            for count, names in together
        ]
    return notices


def _few_findings(line: Summary) -> list[str]:
    """Findings of which a site withholds something."""
    parts = line.get("findings", {}).items()
    return [name for name, part in parts if part.get("suppressed") or part.get("small_classes")]
