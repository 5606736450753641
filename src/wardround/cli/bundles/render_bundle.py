"""What `wardround bundle` shows: what was made, and where a person reads on."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from wardround.cli.rendering import console

if TYPE_CHECKING:
    from wardround.bundles.build.make import Made
    from wardround.bundles.bundle import Bundle


def show_bundles(made: "Made") -> None:
    out = console()
    for (arm, site), folder in made.folders.items():
        out.print(Text(f"{arm}, for {site}: {folder}"), soft_wrap=True)
    for (arm, site), reason in made.refused.items():
        out.print(Text(f"{arm}, for {site}: none. {reason}"), soft_wrap=True)


def show_bundle(bundle: "Bundle") -> None:
    out, about = console(), bundle.about
    rows, threshold = about["rows"], about["threshold"]
    out.print(Text(f"A bundle for {about['site']} is in {bundle.path}", style="bold"), soft_wrap=True)
    lines = {
        "predicts": " or ".join(reversed(bundle.classes))
        if len(bundle.classes) == 2 and not bundle.findings
        else ", ".join(bundle.classes),
        "from": _taken(bundle),
        "trained": f"{about['study']['name']}, arm {about['arm']}, seed {about['seed']}, {about['model']['kind']}",
        "rows here": f"{rows['train']} training, {rows['validation']} validation, {rows['test']} test",
        "threshold": _threshold(threshold, bool(bundle.findings)),
        "calibrated": _calibrated(bundle),
        "unsure by": _unsure(bundle),
        "id": about["id"],
    }
    if about.get("region"):
        lines["region"] = f"{about['region']}: its own model"
    for name, value in lines.items():
        out.print(Text(f"{name:<11}{value}"), soft_wrap=True)
    read = f"Its scores of the test rows are those of the run. Read {bundle.path / 'card.md'} before it is used."
    out.print(Text(read), soft_wrap=True)


def _taken(bundle: "Bundle") -> str:
    images, columns = bundle.inputs.images, len(bundle.recipe.columns)
    numbers = f"{columns} columns, {len(bundle.about['features'])} numbers"
    if images is None:
        return numbers
    size = f"images of {images.shape[1]} x {images.shape[2]} pixels"
    return f"{size}, {numbers}" if columns else size


def _threshold(told: Mapping[str, Any] | None, findings: bool) -> str:
    if told is None:
        return "one for each finding" if findings else "none: the highest score counts"
    return f"{told['value']:.4f} ({told['why']})"


def _calibrated(bundle: "Bundle") -> str:
    about = bundle.about
    if bundle.findings:
        return f"{sum(one.calibration is not None for one in bundle.findings)} of {len(bundle.findings)} findings"
    fitted = about["calibration"]
    return f"no: {about['uncalibrated']}" if fitted is None else f"on {fitted['rows']} validation rows"


def _unsure(bundle: "Bundle") -> str:
    told = bundle.uncertainty
    if told is None:
        return "nothing"
    method = {"dropout": f"{told.passes} passes with dropout", "laplace": "Laplace's approximation"}
    return method.get(told.method, f"nothing: {told.why}")
