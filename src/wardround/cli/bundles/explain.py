"""`wardround explain`: why a bundle, or a run's models, predict what they predict."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli.options import Json
from wardround.cli.rendering import show_either, show_lines

if TYPE_CHECKING:
    from wardround.bundles.explain.explain import Explained

MOST_SHOWN = 5  # columns in the terminal


def explain(
    explained: Annotated[
        Path, typer.Argument(metavar="RUN|BUNDLE", help="A run's folder, a bundle's folder, or a registry's DIR/NAME.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA]", help="For a bundle: a CSV (also .gz) or Parquet file of rows, or images."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")] = Path("explanation"),
    arm: Annotated[
        str | None, typer.Option("--arm", metavar="NAME", help="Of a run: by default what its answer names.")
    ] = None,
    site: Annotated[str | None, typer.Option("--site", metavar="NAME", help="Of a run: by default every site.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of a run: by default the study's first.")] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="NAME", help="By default what the model allows.")
    ] = None,
    background: Annotated[
        Path | None,
        typer.Option("--background", metavar="FILE", help="For a bundle: rows to compare with, not its own average."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="At most so many: 1,000 rows, 24 images, 6 images of each site of a run."),
    ] = None,
    json: Json = False,
) -> None:
    """Explain predictions: what each column contributes to each row, and how much it matters over all of them."""
    from wardround.bundles import explain_bundle, explain_run, find_bundle, load_bundle
    from wardround.core.errors import StudyError

    if (explained / "study.toml").is_file():
        if data is not None or background is not None:
            what, why = (
                ("DATA", "a run has its own rows") if data is not None else ("--background", "a run has its own")
            )
            raise StudyError(what, f"is for a bundle: {why}", "Leave it out, or name a bundle.")
        made = explain_run(explained, out, arm=arm, site=site, seed=seed, method=method, rows=rows)
    else:
        for name, value in {"--arm": arm, "--site": site, "--seed": seed}.items():
            if value is not None:
                raise StudyError(name, "is for a run, and a bundle has one model", "Leave it out.")
        bundle = load_bundle(find_bundle(str(explained)))
        if data is None:
            remedy = "Name a file: wardround explain BUNDLE rows.csv"
            raise StudyError("DATA", "missing: a bundle holds no rows", remedy)
        made = explain_bundle(bundle, data, out, method=method, background=background, rows=rows)
    show_either(json, {"folder": out, **made.facts}, show_explained, made, out)


def show_explained(made: "Explained", out: Path) -> None:
    about, content = made.about, made.content
    what = "images" if "lines" in about else "rows"
    show_lines([f"{about['title']} of {about['rows']:,} {what}, {about['scale']}: {out}"], "bold")
    if about["compared_with"]:
        show_lines([f"Compared with {about['compared_with']}."])
    if content.get("whole"):
        ranked = sorted(content["whole"]["importance"].items(), key=lambda pair: -pair[1]["increase"])[:MOST_SHOWN]
        show_lines(["What matters most (rise of the loss when it is shuffled):"])
        show_lines(f"  {name}  {own['increase']:+.3f}{interval(own['interval'])}" for name, own in ranked)
    elif content.get("withheld"):
        show_lines([f"Importance is withheld: {content['withheld']}."], "yellow")
    show_lines([f"{sentence}" for sentence in about.get("failed_checks", ())], "yellow")
    if about["unscored"]:
        show_lines([f"{about['unscored']:,} {what} have no prediction and no explanation."], "yellow")
    show_lines([f"Page: {out / 'explanation.html'}"])


def interval(ends: list[float] | None) -> str:
    return "" if ends is None else f" ({ends[0]:+.3f} to {ends[1]:+.3f})"
