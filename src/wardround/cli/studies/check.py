"""`wardround check`: read a study and its data, and say what is wrong before anything trains."""

from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, Quick, Set, StudyArgument, changes


def check(
    study: StudyArgument,
    quick: Quick = False,
    set_: Set = None,
    time: Annotated[bool, typer.Option("--time", help="Also train a few rounds, to say how long a run takes.")] = False,
    json: Json = False,
) -> None:
    """Check a study and its data without training. Exit code 5 if the study would be refused."""
    from wardround.analyses.simulated import Analysed, check_columns
    from wardround.core.errors import CheckError
    from wardround.core.notices import errors_among, with_texts
    from wardround.runs.catalog import load_study
    from wardround.runs.continual.outcome import describe_starts
    from wardround.runs.continual.privacy import refuse_uncovered
    from wardround.runs.continual.tested_before import start_notices
    from wardround.runs.contribution.coalitions import count_coalitions, refuse_contribution
    from wardround.runs.plan import check_study, load_plan, rehearse
    from wardround.runs.site_descriptions import describe_sites, matching_notices
    from wardround.runs.tuning.tune import count_trainings, refuse_untunable
    from wardround.runs.units import estimate

    parsed, families = load_study(study, quick, changes(set_))
    plan = load_plan(parsed, families)
    if plan.analysed is not None:
        check_columns(Analysed(parsed, families, plan.analysed))
    notices = check_study(plan)
    refused = bool(errors_among(notices))
    if not refused:
        rehearse(plan)
        refuse_uncovered(plan)
        refuse_untunable(plan)
        refuse_contribution(plan)
        notices += [*start_notices(plan), *matching_notices(plan)]
        refused = bool(errors_among(notices))
    sites = [] if refused else describe_sites(plan)
    started = {} if refused else describe_starts(plan)
    kinds = estimate(plan) if time and not refused else []
    trainings = count_trainings(parsed) | {"coalitions": 0 if refused else count_coalitions(plan)}
    content = {
        "study": {"name": parsed.name, "hash": parsed.hash, "arms": [arm.name for arm in parsed.arms]},
        "notices": with_texts([*plan.source_notices, *notices]),
        "sites": sites,
        "start_from": started,
        "refused": refused,
        "trainings": trainings,
        "seconds": sum(kind.total for kind in kinds) if kinds else None,
    }
    render.show_either(
        json, content, render.show_check, parsed, plan.source_notices, notices, sites, kinds, started, trainings
    )
    if refused:
        raise typer.Exit(CheckError.exit_code)
