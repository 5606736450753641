"""`wardround bundle`: from a run to the folder that a hospital deploys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from wardround.cli.options import Json
from wardround.cli.rendering import show_either, show_lines

if TYPE_CHECKING:
    from wardround.bundles import Bundle, BundleFolders
    from wardround.bundles.build.int8 import Kind


def show_bundles(bundles: "BundleFolders") -> None:
    show_lines(f"{arm}, for {site}: {folder}" for (arm, site), folder in bundles.folders.items())
    show_lines(f"{arm}, for {site}: none. {reason}" for (arm, site), reason in bundles.refused.items())


def show_bundle(bundle: "Bundle") -> None:
    about = bundle.about
    rows = about["rows"]
    show_lines([f"A bundle for {about['site']} is in {bundle.path}"], "bold")
    lines = {
        "predicts": bundle.answer.listed,
        "from": _inputs(bundle),
        "trained": f"{about['study']['name']}, arm {about['arm']}, seed {about['seed']}, {about['model']['kind']}",
        "rows here": f"{rows['train']} training, {rows['validation']} validation, {rows['test']} test",
        "threshold": _threshold(bundle),
        "calibrated": _calibrated(bundle),
        "uncertainty": _uncertainty(bundle),
        "id": about["id"],
    }
    if about.get("region"):
        lines["region"] = f"{about['region']}: its own model"
    lines |= _int8(bundle) if "model-int8.onnx" in about["files"] else {}
    show_lines(f"{name:<12}{value}" for name, value in lines.items())
    read = f"Its scores of the test rows are those of the run. Read {bundle.path / 'card.md'} before it is used."
    show_lines([read])


def _int8(bundle: "Bundle") -> dict[str, str]:
    """Latency is of this machine, and of this moment."""
    from json import loads

    from wardround.bundles.build.int8 import latencies
    from wardround.bundles.sealed_files import INT8, INT8_REPORT

    report = loads((bundle.path / INT8_REPORT).read_bytes())
    size, took = report["bytes"], latencies(bundle, (bundle.path / INT8).read_bytes())
    return {
        "int8": f"{report['kind']}: {size['int8'] / 1000:,.1f} KB in place of {size['float32'] / 1000:,.1f}; "
        f"one row takes {took['int8']:.3f} ms here in place of {took['float32']:.3f}",
        "": _loss_of(report, "validation") + f"; up to {report['most_loss']:g} is allowed",
        " ": "" if report["test"] is None else _loss_of(report, "test"),
    }


def _loss_of(report: dict[str, Any], subset: str) -> str:
    told = report[subset]
    low, high = (f"{end:.4f}" if end is not None else "?" for end in told["interval"])
    return (
        f"{report['metric']} {told['int8']:.4f} in place of {told['float32']:.4f} on {told['rows']} {subset} rows: "
        f"loss {told['loss']:.4f} (95 % CI {low} to {high})"
    )


def _inputs(bundle: "Bundle") -> str:
    images, columns = bundle.inputs.images, len(bundle.recipe.columns)
    numbers = f"{columns} columns, {len(bundle.about['features'])} numbers"
    if (signals := bundle.inputs.signals) is not None:
        length = f"{signals.samples} visits" if signals.rate is None else f"{signals.samples / signals.rate:g} seconds"
        at = "" if signals.rate is None else f" at {signals.rate:g} samples a second"
        return f"signals of {len(signals.channels)} channels, {length}{at}"
    if images is None:
        return numbers
    size = f"images of {images.shape[1]} x {images.shape[2]} pixels"
    return f"{size}, {numbers}" if columns else size


def _threshold(bundle: "Bundle") -> str:
    threshold = bundle.about["threshold"]
    return bundle.answer.without_threshold if threshold is None else f"{threshold['value']:.4f} ({threshold['why']})"


def _calibrated(bundle: "Bundle") -> str:
    about = bundle.about
    if about["findings"]:
        return f"{sum(event.calibration is not None for event in bundle.events)} of {len(bundle.events)} findings"
    fitted = about["calibration"]
    return f"no: {about['uncalibrated']}" if fitted is None else f"on {fitted['rows']} validation rows"


def _uncertainty(bundle: "Bundle") -> str:
    uncertainty = bundle.uncertainty
    if uncertainty is None:
        return "nothing"
    method = {
        "dropout": f"{uncertainty.passes} passes with dropout",
        "laplace": "Laplace's approximation",
        "swag": f"{uncertainty.passes} networks around the models of late rounds (SWAG)",
        "residuals": "an interval from the residuals of validation rows",
    }
    return method.get(uncertainty.method, f"nothing: {uncertainty.why}")


def bundle(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a complete run, or a hospital's own folder of a deployed one."
        ),
    ],
    arm: Annotated[str | None, typer.Option("--arm", metavar="ARM", help="Whose model.")] = None,
    every_arm: Annotated[
        bool, typer.Option("--every-arm", help="A bundle of each arm, in one folder for all; one that is there stays.")
    ] = False,
    site: Annotated[
        str | None, typer.Option("--site", metavar="SITE", help="For which hospital. Not needed where there is one.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of which training; the study's first, unless given.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="A new folder; bundles/STUDY-ARM-SITE, unless given.",
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="REGION", help="The region's own model, in place of the model of all."),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option("--outcome", metavar="NAME", help="Which outcome, where the study predicts several together."),
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write the model as model.onnx, checked equal.")] = False,
    int8: Annotated[
        str | None,
        typer.Option("--int8", metavar="KIND", help="Also write model-int8.onnx: dynamic or static."),
    ] = None,
    most_loss: Annotated[
        float, typer.Option("--most-loss", metavar="LOSS", help="Of the primary metric that int8 may cost.")
    ] = 0.01,
    site_file: Annotated[
        Path | None,
        typer.Option("--site-file", metavar="FILE", help="A hospital's site.toml, where it is not found by itself."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a bundle: a site's model with its preparation, threshold, calibration, card and hashes, in one folder.

    It is given out only if it predicts the run's test rows as the run did.
    """
    from wardround.bundles import Int8, load_bundle, make_bundle
    from wardround.core.errors import StudyError

    if every_arm or arm is None:
        of_one = {"--region": region, "--outcome": outcome, "--int8": int8}
        _all_arms(run, arm, every_arm, site, seed, out, of_one, onnx, site_file, json)
        return
    asked = None if int8 is None else Int8(cast("Kind", int8), most_loss)
    if (run / "session.json").is_file():
        from wardround.deployment import make_site_bundle

        if region is not None:
            problem = "a hospital's own folder has the model with which it predicts, and no other"
            raise StudyError("--region", problem, "Leave it out.")
        folder = make_site_bundle(
            run, arm=arm, site=site, seed=seed, out=out, onnx=onnx, int8=asked, site_file=site_file, outcome=outcome
        )
    else:
        if site_file is not None:
            problem = "is for a hospital's own folder of a deployed run, and this is a run on one machine"
            raise StudyError("--site-file", problem, "Leave it out.")
        folder = make_bundle(
            run, arm=arm, site=site, seed=seed, out=out, onnx=onnx, int8=asked, region=region, outcome=outcome
        )
    loaded = load_bundle(folder)
    show_either(json, {"bundle": folder, **loaded.about}, show_bundle, loaded)


def _all_arms(
    run: Path,
    arm: str | None,
    every_arm: bool,
    site: str | None,
    seed: int | None,
    out: Path | None,
    of_one: Mapping[str, str | None],
    onnx: bool,
    site_file: Path | None,
    json: bool,
) -> None:
    from wardround.bundles import make_bundles
    from wardround.core.errors import StudyError

    if not every_arm:
        raise StudyError("--arm", "missing: a bundle has the model of one arm", "Name an arm, or give --every-arm.")
    for name, value in {"--arm": arm, **of_one, "--site-file": site_file}.items():
        if value is not None:
            raise StudyError(name, "does not go with --every-arm", "Leave one of them out.")
    if site is None:
        raise StudyError("--site", "missing: a bundle is for one site", "Name it.")
    bundles = make_bundles(run, sites=[site], seed=seed, out=out, onnx=onnx)
    folders = {name: folder for (name, _), folder in bundles.folders.items()}
    refused = {name: why for (name, _), why in bundles.refused.items()}
    show_either(json, {"bundles": folders, "refused": refused}, show_bundles, bundles)
