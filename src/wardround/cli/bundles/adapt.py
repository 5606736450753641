"""`wardround adapt`: a new hospital trains its own adapter, and sees what it gains."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from wardround.cli import rendering as render
from wardround.cli.options import Json
from wardround.cli.rendering import console
from wardround.privacy.dp.epsilons import format_epsilon

if TYPE_CHECKING:
    from wardround.adaptation.adapt import Adapted
    from wardround.bundles import SharedPart

SHOWN = {"auc": "AUC", "accuracy": "accuracy", "brier": "Brier score"}


def show_shared(part: "SharedPart") -> None:
    out, about = console(), part.about
    out.print(Text(f"A shared part is in {part.path}", style="bold"), soft_wrap=True)
    lines = {
        "from": f"{about['study']['name']}, arm {about['arm']}, seed {about['seed']}",
        "trained at": ", ".join(about["sites"]),
        "model": f"{about['model']['kind']}; {len(part.leaves)} shared leaves, "
        f"{sum(leaf.numel() for leaf in part.leaves.values()):,} numbers",
        "classes": ", ".join(part.classes),
        "privacy": "none was asked for" if about["privacy"] is None else _promised(about["privacy"]),
        "id": about["id"],
    }
    for name, value in lines.items():
        out.print(Text(f"{name:<11}{value}"), soft_wrap=True)
    out.print(Text(f"A new hospital goes on with: wardround adapt {part.path} HOSPITAL.toml"), soft_wrap=True)


def _promised(privacy: Mapping[str, Any]) -> str:
    parts = [
        f"each {'patient' if kind == 'example' else 'hospital'}: epsilon {format_epsilon(privacy[kind]['epsilon'])}"
        for kind in ("example", "site")
        if privacy[kind]
    ]
    parts += ["secure sums"] if privacy["secure_sum"] else []
    return ", ".join(parts) or "none was asked for"


def show_adapted(adapted: "Adapted") -> None:
    out, results = console(), adapted.results
    rows, shared = results["rows"], results["shared"]
    out.print(Text(f"{results['hospital']} with the shared part of {shared['study']['name']}", style="bold"))
    out.print(
        Text(
            f"{rows['rows']['mean']:.0f} rows: about {rows['train']['mean']:.0f} for training, "
            f"{rows['validation']['mean']:.0f} for validation, {rows['test']['mean']:.0f} for test. Means over "
            f"{len(results['seeds'])} splits, {results['epochs']} epochs, with "
            f"{100 * results['interval']['confidence']:.0f} % intervals."
        ),
        soft_wrap=True,
    )
    out.print(Text(f"The outcome was read as: {', '.join(map(_read_as, results['target']))}."), soft_wrap=True)
    out.print(Text("Please confirm that: a label that is turned round cannot be found here."), soft_wrap=True)
    for metric, title in SHOWN.items():
        table = Table(title=title, title_justify="left")
        for name in ("of its rows", "training rows", "adapted", "alone", "difference"):
            table.add_column(name, justify="right")
        for fraction in results["fractions"]:
            estimates = [_estimate(fraction[way][metric]) for way in ("adapted", "alone")]
            share = f"{100 * fraction['fraction']:.0f} %"
            table.add_row(
                share, f"{fraction['rows']['mean']:.0f}", *estimates, _estimate(fraction["difference"][metric], True)
            )
        out.print(table)
    for left in results["left_out"]:
        out.print(Text(f"{100 * left['fraction']:.0f} % of its rows was left out: {left['why']}."), soft_wrap=True)
    for notice in results["notices"]:
        out.print(Text(f"! {notice['text']}", style="yellow"), soft_wrap=True)
    for fraction in results["fractions"]:
        out.print(Text(fraction["sentences"]["auc"]), soft_wrap=True)
    for sentence in results["sentences"]:
        out.print(Text(sentence, style="bold"), soft_wrap=True)
    out.print(Text(f"The curve is in {adapted.folder / 'curve.svg'}, all figures in {adapted.folder / 'adapt.json'}."))
    if results["worse"]:
        from wardround.adaptation.curve import caution

        out.print(Text(f"! {caution(results['worse'])}", style="bold red"), soft_wrap=True)
    out.print(Text(f"Its bundle is in {adapted.bundle}. Read {adapted.bundle / 'card.md'} before it is used."))


def _read_as(word: Mapping[str, Any]) -> str:
    rows = "fewer than 5 rows" if word["rows"] is None else "no row" if not word["rows"] else f"{word['rows']:,} rows"
    return f"{word['class']} ({rows})" if word["word"] is None else f"{word['word']!r} -> {word['class']} ({rows})"


def _estimate(estimate: Mapping[str, Any], signed: bool = False) -> str:
    value = estimate["difference" if signed else "mean"]
    if value is None:
        return "–"
    sign = "+" if signed else ""
    interval = estimate["interval"]
    between = f" ({interval[0]:{sign}.3f} to {interval[1]:{sign}.3f})" if interval else ""
    return f"{value:{sign}.3f}{between}"


def adapt(
    shared: Annotated[
        Path, typer.Argument(metavar="SHARED|RUN", help="A shared part, or the folder of a complete run.")
    ],
    hospital: Annotated[
        Path, typer.Argument(metavar="HOSPITAL.toml", help="A file with `name` and `\\[data]`; a site file will do.")
    ],
    arm: Annotated[str | None, typer.Option("--arm", metavar="ARM", help="Of a RUN: whose model.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of a RUN: of which training; the study's first.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; adapted/HOSPITAL, unless given.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, metavar="N", help="Splits that are drawn; 20, unless given.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, metavar="N", help="At most so many; as many as in the study, unless given."),
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", metavar="CHECK", help="Accept what a check found. May be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="3 repeats of at most 10 epochs, unless given.")] = False,
    json: Json = False,
) -> None:
    """Let a new hospital join: train its adapter on its own rows, beside training alone, over 10 to 100 % of them.

    Encoder and head stay as they are. Nothing leaves the hospital.
    """
    from wardround.adaptation.adapt import adapt as run_adaptation

    with render.progress_bar(shown=not json) as show:
        adapted = run_adaptation(
            shared,
            hospital,
            arm=arm,
            seed=seed,
            out=out,
            repeats=repeats,
            epochs=epochs,
            quick=quick,
            accept=tuple(accept or ()),
            progress=show,
        )
    if json:
        render.show_json({"folder": str(adapted.folder), "bundle": str(adapted.bundle), **adapted.results})
    else:
        show_adapted(adapted)
