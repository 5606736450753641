"""`wardround`: one verb per file. Nothing heavy is imported until a verb needs it."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from wardround.cli import doctor
from wardround.cli.bundles import adapt, bundle, explain, predict, serve, share
from wardround.cli.bundles import registry as bundles
from wardround.cli.deployment import approve, coordinate, demo, join, provision, region
from wardround.cli.privacy import attack, log, privacy
from wardround.cli.review import review
from wardround.cli.studies import analyse, check, data, decide, export, init, report, run, runs, simulate, studies
from wardround.core.errors import WardroundError

app = typer.Typer(
    name="wardround",
    help="Federated studies for hospitals: one study file, from protocol to evidence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
VERBS: dict[str, Callable[..., None]] = {
    "init": init.init,
    "run": run.run,
    "simulate": simulate.simulate,
    "analyse": analyse.analyse,
    "resume": run.resume,
    "decide": decide.decide,
    "report": report.report,
    "compare": report.compare,
    "results": report.results,
    "plots": report.plots,
    "export": export.export,
    "check": check.check,
    "attack": attack.attack,
    "bundle": bundle.bundle,
    "predict": predict.predict,
    "explain": explain.explain,
    "serve": serve.serve,
    "share": share.share,
    "adapt": adapt.adapt,
    "runs": runs.runs,
    "studies": studies.studies,
    "approve": approve.approve,
    "coordinate": coordinate.coordinate,
    "join": join.join,
    "region": region.region,
    "demo": demo.demo,
    "doctor": doctor.doctor,
}
GROUPS = {
    "bundles": bundles.app,
    "data": data.app,
    "log": log.app,
    "privacy": privacy.app,
    "provision": provision.app,
    "review": review.app,
}
for name, verb in VERBS.items():
    app.command(name)(verb)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


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
    finally:
        # Python started by `-m` ends by the signal itself, and not with our exit code, if the last text that was
        # executed was interrupted: dataclasses are made of such text, also while a report's modules are imported
        exec("")


if __name__ == "__main__":
    main()
