"""`wardround`: one verb per file. Nothing heavy is imported until a verb needs it."""

import sys
from typing import Annotated

import typer

from wardround.cli import doctor
from wardround.cli.bundles import adapt, bundle, predict, serve, share
from wardround.cli.bundles import registry as bundles
from wardround.cli.deployment import approve, coordinate, demo, join, provision, region
from wardround.cli.privacy import attack, log, privacy
from wardround.cli.studies import check, data, report, run, studies
from wardround.core.errors import WardroundError

app = typer.Typer(
    name="wardround",
    help="Federated studies for hospitals: one study file, from protocol to evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("run")(run.run)
app.command("simulate", help="The same as `run`: every arm of a study with every seed, on this machine.")(run.run)
app.command("resume")(run.resume)
app.command("report")(report.report)
app.command("compare")(report.compare)
app.command("results")(report.results)
app.command("plots")(report.plots)
app.command("check")(check.check)
app.command("attack")(attack.attack)
app.command("bundle")(bundle.bundle)
app.add_typer(bundles.app, name="bundles")
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("share")(share.share)
app.command("adapt")(adapt.adapt)
app.command("studies")(studies.studies)
app.add_typer(data.app, name="data")
app.add_typer(log.app, name="log")
app.add_typer(privacy.app, name="privacy")
app.add_typer(provision.app, name="provision")
app.command("approve")(approve.approve)
app.command("coordinate")(coordinate.coordinate)
app.command("join")(join.join)
app.command("region")(region.region)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"wardround {version('wardround')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Errors that a user can act on are printed without a traceback; anything else is a defect and crashes loudly."""
    try:
        app()
    except WardroundError as error:
        from wardround.cli.rendering import show_error

        show_error(error, as_json="--json" in sys.argv)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
