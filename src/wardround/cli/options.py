"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wardround.cli.completion import complete_run, complete_study

StudyArgument = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="A study file, or the name of a shipped study.", autocompletion=complete_study
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a complete run.", autocompletion=complete_run)
]
Quick = Annotated[bool, typer.Option("--quick", help="Use the study's own smaller size, from its block `quick`.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. training.rounds=5.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]

Data = Annotated[
    str,
    typer.Option("--data", "--source", metavar="DATA", help="A source, a split on disk, images; where no study is."),
]
Sites = Annotated[int | None, typer.Option("--sites", min=1, help="How many sites.")]
Alpha = Annotated[
    float | None, typer.Option("--alpha", help="Cut classes up by Dirichlet draws; small values: unlike sites.")
]
OptionalStudy = Annotated[
    str | None,
    typer.Argument(
        metavar="[STUDY]",
        help="A study file, or the name of a shipped study; without one, --data.",
        autocompletion=complete_study,
    ),
]
OptionalData = Annotated[
    str | None, typer.Option("--data", "--source", metavar="DATA", help="A source, a split on disk or images.")
]
Mu = Annotated[
    list[float] | None,
    typer.Option("--mu", min=0, help="FedProx with this mu; without it FedAvg. May be repeated, one arm for each."),
]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="How often the sites' models are averaged.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="From which everything random follows; 42.")]

Report = Annotated[bool, typer.Option("--report/--no-report", help="Make report.html, figures and tables.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in a browser.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes that train side by side; by itself as it pays.")
]


def changes(given: list[str] | None) -> dict[str, Any]:
    from wardround.runs.catalog import parse_change

    return dict(parse_change(text) for text in given or [])
