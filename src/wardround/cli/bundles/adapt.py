"""`wardround adapt`: a new hospital trains its own adapter, and sees what it gains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from wardround.cli import rendering as render
from wardround.cli.options import Json
from wardround.cli.rendering import console, show_lines, table_of
from wardround.privacy.dp.epsilons import format_epsilon

if TYPE_CHECKING:
    from wardround.adaptation.adapt import Adapted
    from wardround.bundles import SharedPart


def show_shared(part: "SharedPart") -> None:
    about = part.about
    show_lines([f"A shared part is in {part.path}"], "bold")
    lines = {
        "from": f"{about['study']['name']}, arm {about['arm']}, seed {about['seed']}",
        "trained at": ", ".join(about["sites"]),
        "model": f"{about['model']['kind']}; {len(part.leaves)} shared leaves, "
        f"{sum(leaf.numel() for leaf in part.leaves.values()):,} numbers",
        "predicts": part.task.answer.listed,
        "privacy": "none was asked for" if about["privacy"] is None else _promised(about["privacy"]),
        "id": about["id"],
    }
    show_lines(f"{name:<11}{value}" for name, value in lines.items())
    show_lines([f"A new hospital goes on with: wardround adapt {part.path} HOSPITAL.toml"])


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
    show_lines(
        [
            f"{rows['rows']['mean']:.0f} rows: about {rows['train']['mean']:.0f} for training, "
            f"{rows['validation']['mean']:.0f} for validation, {rows['test']['mean']:.0f} for test. Means over "
            f"{len(results['seeds'])} splits, {results['epochs']} epochs, with "
            f"{100 * results['interval']['confidence']:.0f} % intervals.",
            *_outcome(results["target"]),
        ]
    )
    columns = ("of its rows", "training rows", "adapted", "alone", "difference")
    from wardround.tasks import METRIC_FACTS

    for metric in results["metrics"]:
        title = METRIC_FACTS[metric].words
        lines = [
            (
                f"{100 * fraction['fraction']:.0f} %",
                f"{fraction['rows']['mean']:.0f}",
                *(_estimate(fraction[way][metric]) for way in ("adapted", "alone")),
                _estimate(fraction["difference"][metric], True),
            )
            for fraction in results["fractions"]
        ]
        out.print(table_of(columns, lines, columns, title, title_style=None))
    left_out = {f"{100 * left['fraction']:.0f} %": left["why"] for left in results["left_out"]}
    show_lines(f"{share} of its rows was left out: {why}." for share, why in left_out.items())
    show_lines((f"! {notice['text']}" for notice in results["notices"]), "yellow")
    show_lines(fraction["sentences"][results["metrics"][0]] for fraction in results["fractions"])
    show_lines(results["sentences"], "bold")
    out.print(Text(f"The curve is in {adapted.folder / 'curve.svg'}, all figures in {adapted.folder / 'adapt.json'}."))
    if results["worse"]:
        from wardround.adaptation.curve import caution

        show_lines([f"! {caution(results['worse'])}"], "bold red")
    out.print(Text(f"Its bundle is in {adapted.bundle}. Read {adapted.bundle / 'card.md'} before it is used."))


def _outcome(target: Sequence[Mapping[str, Any]]) -> list[str]:
    """A number has no words."""
    if not target:
        return []
    return [
        f"The outcome was read as: {', '.join(map(_read_as, target))}.",
        "Please confirm that: a label that is turned round cannot be found here.",
    ]


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
    content = {"folder": adapted.folder, "bundle": adapted.bundle, **adapted.results}
    render.show_either(json, content, show_adapted, adapted)
