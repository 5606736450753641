"""`wardround privacy`: what a study would spend of its patients' privacy, and what was spent."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from wardround.cli import rendering as render
from wardround.cli.options import Json, Quick, Set, StudyArgument, changes
from wardround.cli.rendering import console, show_lines, table_of
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.privacy.dp.exposure import exposure_text

if TYPE_CHECKING:
    from wardround.runs.ledger import Spent
    from wardround.runs.spending import Planned
    from wardround.study.schema import Study

ADJACENCY = (
    "Epsilon by one patient more or less; `replace` where one patient is exchanged for another. The unit is the "
    "patient, with all rows; of `(each site as a whole)` it is the hospital. Numbers of rows and patients count as "
    "public."
)


def show_plan(study: "Study", planned: Sequence["Planned"], plain_plan: Mapping[str, Any]) -> None:
    """`plain_plan` is the plan as `--json` shows it."""
    out = console()
    if not planned:
        out.print(
            f"{study.name} has neither \\[privacy.example] nor \\[privacy.site]: it would spend nothing it counts."
        )
        return
    table = Table(title=f"{study.name}: privacy before anything trains (first seed)", title_justify="left")
    for name in ("arm", "site"):
        table.add_column(name, overflow="fold")
    for name in ("patients", "rate", "steps", "noise", "epsilon", "replace", "by RDP", "delta", "target"):
        table.add_column(name, justify="right")
    for row in planned:
        epsilons = (format_epsilon(value, ".3f") for value in (row.epsilon, row.epsilon_replace, row.epsilon_rdp))
        noise = f"{row.noise:.4g}" if row.noise == row.noise_last else f"{row.noise:.4g} to {row.noise_last:.4g}"
        table.add_row(
            escape(row.arm),
            escape(row.site),
            str(row.patients or ""),
            f"{row.rate:.4f}",
            str(row.steps),
            noise,
            *epsilons,
            f"{row.delta:g}",
            format_epsilon(row.epsilon_target),
        )
    out.print(table)
    exposure = plain_plan["exposure"]
    show_lines([ADJACENCY])
    show_lines(
        f"{site}: private arms {row['arms']}, seeds {row['seeds']}, together: "
        f"epsilon {format_epsilon(row['epsilon'], '.2f')} "
        f"(replace {format_epsilon(row['epsilon_replace'], '.2f')}) at delta {row['delta']:g}, "
        "with the first seed's numbers of rows."
        for site, row in plain_plan["total"].items()
    )
    show_lines([] if exposure is None else [exposure_text(exposure)])
    out.print("A simulation draws its noise from the seed and so carries no guarantee; a deployment does.")


def show_spent(
    files: Sequence[Path],
    total: Sequence["Spent"],
    parts: Sequence["Spent"],
    exposures: Mapping[str, Mapping[str, Any] | None],
    started: Mapping[str, Mapping[str, Any]],
) -> None:
    """`exposures` are those of the run folders, by name; without any, only ledgers are at hand. `started` are the arms
    of each that go on from a trained model, as results.json has them."""
    out = console()
    if not total:
        _show_composed(started)
        out.print(
            "Nothing was charged." if files else "There is no ledger here: nothing was ever charged, or it was lost."
        )
        return
    out.print(_table("Spent, everything together", total, ()))
    out.print(_table("Of which", parts, ("study_name", "arm", "seed", "run")))
    of_runs = [f"{name}: {exposure_text(exposure)}" for name, exposure in exposures.items()]
    show_lines([ADJACENCY, *(of_runs or [exposure_text(None)])])
    _show_composed(started)
    if not all(row.guarantee for row in total):
        out.print("Entries of simulations carry no guarantee: their noise can be drawn again from the seed.")


def _show_composed(started: Mapping[str, Mapping[str, Any]]) -> None:
    """What the trainings that a model comes from cost together with the last one."""
    from wardround.report.sections.forgetting import composed_lines

    show_lines(f"{run}: {line}" for run, arms in started.items() for line in composed_lines(arms))


def _table(title: str, rows: Sequence["Spent"], parts: Sequence[str]) -> Table:
    shown = [part for part in parts if any(getattr(row, part) is not None for row in rows)]
    numbers = ("rounds", "steps", "epsilon", "replace", "delta")
    lines = []
    for row in rows:
        epsilons = (format_epsilon(row.add_remove, ".3f"), format_epsilon(row.replace, ".3f"))
        names = (row.site, *(str(getattr(row, part)) for part in shown))
        lines.append((*names, str(row.rounds), str(row.steps), *epsilons, f"{row.delta:g}"))
    names = ("site", *(part.replace("study_name", "study") for part in shown))
    return table_of((*names, *numbers), lines, numbers, title, title_style=None)


app = typer.Typer(help="Differential privacy: what a study would spend, and what was spent.", no_args_is_help=True)


@app.command("plan")
def plan(study: StudyArgument, quick: Quick = False, set_: Set = None, json: Json = False) -> None:
    """Noise, sampling rate, steps and epsilon of every site, before anything trains."""
    from wardround.runs.catalog import load_study
    from wardround.runs.plan import load_plan
    from wardround.runs.spending import as_plain, planned_spending

    parsed, families = load_study(study, quick, changes(set_))
    loaded = load_plan(parsed, families)
    planned = planned_spending(loaded)
    plain_plan = as_plain(loaded, planned)
    render.show_either(json, plain_plan, show_plan, parsed, planned, plain_plan)


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
    from wardround.deployment.governance.ledgers import exposure_of, ledgers_of, parts_of, runs_of, starts_of
    from wardround.runs.ledger import Entry, Ledger, plain, spent_by

    entries: dict[object, Entry] = {}
    files = [file for place in places for file in ledgers_of(place)]
    for file in files:
        entries |= {entry.place: entry for entry in Ledger(file).entries()}  # a round in two ledgers is one round
    unique = list(entries.values())
    total, parts = spent_by(unique, delta=delta), spent_by(unique, parts_of(by), delta)
    exposures = {
        run.name: exposure for place in places for run in runs_of(place) if (exposure := exposure_of(run)) is not None
    }
    started = {run.name: arms for place in places for run in runs_of(place) if (arms := starts_of(run))}
    content = {
        "ledgers": files,
        "entries": len(unique),
        "exposures": exposures,
        "total": [plain(row) for row in total],
        "parts": [plain(row) for row in parts],
        "with_earlier_trainings": {
            run: {arm: start["privacy"] for arm, start in arms.items()} for run, arms in started.items()
        },
    }
    render.show_either(json, content, show_spent, files, total, parts, exposures, started)
