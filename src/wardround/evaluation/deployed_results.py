"""`results.json` of a run across hospitals, from their summaries: no row of any patient is needed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.core.notices import Notice, some_of, with_texts
from wardround.evaluation.comparisons.selection import choose_by, scored_name
from wardround.evaluation.participation import not_finite
from wardround.evaluation.regional import REGIONAL, score_region_summaries
from wardround.evaluation.results import assemble, conclude
from wardround.evaluation.summaries.merged_summaries import Summaries, Summary, gather_summaries
from wardround.evaluation.training_notices import training_notices
from wardround.study.schema import Study


def deployed_results(
    study: Study,
    lines: Iterable[Summary],
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    notices: Iterable[Notice] = (),
    findings: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole content of `results.json`. `findings` are named where a row may have several.

    `lines` are those of `summaries.jsonl`, in any order: `arm`, `seed`, `site`, `subset` and a site's summary. Those
    with the subset `regional` are about test rows too, by the model of the site's region.
    `sites` is what `describe_deployed` made; `notices` come before those of training.
    """
    order = {site: place for place, site in enumerate(sites[0]["sites"])}
    ordered = sorted(lines, key=lambda line: order.get(line["site"], len(order)))  # not in the order of arrival
    regional, of_all = ([line for line in ordered if (line["subset"] == REGIONAL) == own] for own in (True, False))
    seeds, arms = list(study.evaluation.seeds), [arm.name for arm in study.arms]
    tested = [line for line in of_all if not _for_selection(line, study)]
    choices = _choices(study, [line for line in of_all if _for_selection(line, study)], findings)

    def gathered(lines: Iterable[Summary]) -> Summaries:
        return gather_summaries(lines, arms, seeds, findings).with_choices(choices)

    content = assemble(study, gathered(tested), choices, records, sites, deployed=True)
    content["notices"] = with_texts(
        [
            *notices,
            *not_finite(records),
            *diverged_arms(tested, len(seeds)),
            *training_notices(records),
            *withheld(study, of_all, _classes(sites)),
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


def _choices(study: Study, lines: Sequence[Summary], findings: Sequence[str]) -> list[dict[str, Any]]:
    selection = study.selection
    if selection is None:
        return []
    arms = [scored_name(selection, arm) for arm in study.arms if arm.family in selection.arms]
    return choose_by(study, selection, gather_summaries(lines, arms, study.evaluation.seeds, findings))


def diverged_arms(lines: Iterable[Summary], seeds: int) -> list[Notice]:
    lost: dict[str, set[int]] = {}
    for line in lines:
        if line.get("diverged"):
            lost.setdefault(line["arm"], set()).add(line["seed"])
    return [
        Notice("diverged", "warning", arm=arm, seeds=some_of(len(lost_seeds), seeds))
        for arm, lost_seeds in lost.items()
    ]


def withheld(study: Study, lines: Sequence[Summary], classes: Sequence[str]) -> list[Notice]:
    """For each site, and each class at a site, with too few patients for figures to leave it; one for all findings
    that are withheld there with as many seeds."""

    def small(line: Summary) -> list[str]:
        return [""] if line.get("suppressed") else [classes[number] for number in line.get("small_classes", ())]

    def notice(place: tuple[str, str], names: Sequence[str], seeds: int, **details: bool) -> Notice:
        return Notice(
            "figures-withheld",
            "info",
            place[0],
            counts={"smallest": study.deployment.smallest_cell},
            classes=tuple(filter(None, names)),
            seeds=some_of(seeds, study.evaluation.seeds.count),
            details={"part": place[1], **details},
        )

    notices = []
    for place, names in _too_few(study, lines, small).items():
        notices += [notice(place, [name], seeds) for name, seeds in names.items()]
    for place, names in _too_few(study, lines, _few_findings).items():
        for count in dict.fromkeys(names.values()):
            notices.append(
                notice(place, [name for name, seeds in names.items() if seeds == count], count, findings=True)
            )
    return notices


def _too_few(
    study: Study, lines: Sequence[Summary], small: Callable[[Summary], list[str]]
) -> dict[tuple[str, str], dict[str, int]]:
    """By site and kind of rows: what is withheld, and with how many seeds."""
    withheld_with: dict[tuple[str, str], dict[str, set[int]]] = {}
    for line in lines:
        if line["subset"] == "validation" and study.selection is None:
            continue  # nobody asked for them
        kind = "to select by" if _for_selection(line, study) else "tested"
        for name in small(line):
            withheld_with.setdefault((line["site"], kind), {}).setdefault(name, set()).add(line["seed"])
    return {place: {name: len(seeds) for name, seeds in names.items()} for place, names in withheld_with.items()}


def _few_findings(line: Summary) -> list[str]:
    """Findings of which a site withholds something."""
    parts = line.get("findings", {}).items()
    return [name for name, part in parts if part.get("suppressed") or part.get("small_classes")]


def _classes(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(next(iter(sites[0]["sites"].values()))["classes"])
