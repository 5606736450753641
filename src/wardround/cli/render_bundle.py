"""What `wardround bundle` shows: what was made, and where a person reads on."""

from typing import TYPE_CHECKING

from rich.text import Text

from wardround.cli.render import console

if TYPE_CHECKING:
    from wardround.bundles.bundle import Bundle


def show_bundle(bundle: "Bundle") -> None:
    out, about = console(), bundle.about
    rows, threshold = about["rows"], about["threshold"]
    out.print(Text(f"A bundle for {about['site']} is in {bundle.path}", style="bold"), soft_wrap=True)
    lines = {
        "predicts": " or ".join(reversed(bundle.classes)) if len(bundle.classes) == 2 else ", ".join(bundle.classes),
        "from": f"{len(bundle.recipe.columns)} columns, {len(about['features'])} numbers",
        "trained": f"{about['study']['name']}, arm {about['arm']}, seed {about['seed']}, {about['model']['kind']}",
        "rows here": f"{rows['train']} training, {rows['validation']} validation, {rows['test']} test",
        "threshold": "none: the highest score counts"
        if threshold is None
        else f"{threshold['value']:.4f} ({threshold['why']})",
        "calibrated": f"no: {about['uncalibrated']}"
        if about["calibration"] is None
        else f"on {about['calibration']['rows']} validation rows",
        "id": about["id"],
    }
    for name, value in lines.items():
        out.print(Text(f"{name:<11}{value}"), soft_wrap=True)
    read = f"Its scores of the test rows are those of the run. Read {bundle.path / 'card.md'} before it is used."
    out.print(Text(read), soft_wrap=True)
