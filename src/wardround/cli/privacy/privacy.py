"""`wardround privacy`: what a study would spend of its patients' privacy, and what was spent."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, Quick, Set, StudyArgument, changes
from wardround.cli.privacy.render_privacy import show_plan, show_spent

app = typer.Typer(help="Differential privacy: what a study would spend, and what was spent.", no_args_is_help=True)


@app.command("plan")
def plan(study: StudyArgument, quick: Quick = False, set_: Set = None, json: Json = False) -> None:
    """Noise, sampling rate, steps and epsilon of every site, before anything trains."""
    from wardround.runs.catalog import load_study
    from wardround.runs.plan import load_plan
    from wardround.runs.privacy_plan import as_plain, planned_spending

    parsed, families = load_study(study, quick, changes(set_))
    loaded = load_plan(parsed, families)
    planned = planned_spending(loaded)
    told = as_plain(loaded, planned)
    if json:
        render.show_json(told)
    else:
        show_plan(parsed, planned, told)


@app.command("spent")
def spent(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="PLACE...", help="Run folders, a hospital's site file, or ledgers; they are composed."),
    ],
    delta: Annotated[
        float | None, typer.Option("--delta", min=0, max=1, help="State epsilon at this delta instead of the smallest.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Also by these, with commas: study, arm, seed, run.")] = "study,arm",
    json: Json = False,
) -> None:
    """What was really spent, site by site, over all arms, swept values, seeds and studies that are in the ledgers."""
    from wardround.deployment.governance.ledgers import exposure_of, ledgers_of, parts_of, runs_of
    from wardround.runs.ledger import Entry, Ledger, plain, spent_by

    entries: dict[object, Entry] = {}
    files = [file for place in places for file in ledgers_of(place)]
    for file in files:
        entries |= {entry.place: entry for entry in Ledger(file).entries()}  # a round in two ledgers is one round
    kept = list(entries.values())
    total, parts = spent_by(kept, delta=delta), spent_by(kept, parts_of(by), delta)
    exposures = {run.name: told for place in places for run in runs_of(place) if (told := exposure_of(run)) is not None}
    if json:
        shown = {"ledgers": [str(file) for file in files], "entries": len(kept)}
        shown |= {"exposures": exposures}
        rows = {"total": [plain(row) for row in total], "parts": [plain(row) for row in parts]}
        render.show_json({**shown, **rows})
    else:
        show_spent(files, total, parts, exposures)
