"""`wardround predict`: a bundle's predictions for the rows of a file, or for images."""

from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.bundles.render_predict import quiet_when_nobody_reads, rows_bar, show_summary
from wardround.cli.options import Json


def predict(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's folder, or a registry's DIR/NAME.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A CSV (also .gz) or Parquet file; - for CSV from stdin. For images: a folder, a file, an .npz file, "
            "or a CSV that lists images.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .csv or .parquet file; - for CSV to stdout.")],
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Copy this column too. May be repeated.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PARTY", help="Use nothing that this party holds. May be repeated."),
    ] = None,
    refer_share: Annotated[
        float | None,
        typer.Option("--refer-share", metavar="SHARE", help="Refer so many of usual rows, in hundredths."),
    ] = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty/--no-uncertainty", help="Intervals, sets and who is referred, or none.")
    ] = True,
    json: Json = False,
) -> None:
    """Predict every row of a file, in constant memory, and mark rows that are unlike the training rows."""
    from wardround.core.errors import StudyError

    if json and out == "-":
        raise StudyError("--json", "the predictions go to standard output already", "Name a file with --out.")
    from wardround.bundles.bundle import load_bundle
    from wardround.bundles.predict.predict import How, predict_file
    from wardround.bundles.registry.registry import find_bundle

    loaded = load_bundle(find_bundle(bundle))
    with rows_bar(shown=not json) as show, quiet_when_nobody_reads():
        how = How(tuple(without or ()), uncertainty, refer_share)
        found = predict_file(loaded, data, out, tuple(keep or ()), show, how)
    if json:
        render.show_json({"bundle": loaded.id, "out": out, **vars(found)})
    else:
        show_summary(found, out)
