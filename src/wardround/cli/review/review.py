"""`wardround review`: a reading list for clinicians, their decisions scored, and a simulated trial of two bundles."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from wardround.cli.options import Json
from wardround.cli.rendering import show_either, show_lines

app = typer.Typer(help="A clinician's review: reading lists, their scores, and trials.", no_args_is_help=True)
BundleName = Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's folder, or a registry's DIR/NAME.")]
Finding = Annotated[
    str | None, typer.Option("--finding", metavar="NAME", help="Which finding is asked for, where there are several.")
]
NAMES = {
    "accuracy": "right",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "referrals": "referred",
    "seconds": "seconds (median)",
    "confidence": "confidence, 1 to 5",
    "followed_wrong_model": "went with the model where it is wrong",
    "kappa_with_model": "agreement with the model (kappa)",
    "kappa_with_truth": "agreement with the outcome (kappa)",
}
SHARES = ("accuracy", "sensitivity", "specificity", "referrals", "followed_wrong_model")


@app.command("make")
def make(
    bundle: BundleName,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="What `wardround predict` takes: a table, or images of any form.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")],
    truth: Annotated[
        str | None,
        typer.Option("--truth", metavar="COLUMN", help="Its outcomes; they go into the key, never the page."),
    ] = None,
    readers: Annotated[
        str, typer.Option("--readers", metavar="N", help="How many, or their names with commas between them.")
    ] = "3",
    conditions: Annotated[
        str, typer.Option("--conditions", metavar="LIST", help="Some of alone, score, reasons, with commas.")
    ] = "",
    cases: Annotated[
        int | None, typer.Option("--cases", metavar="N", help="So many rows are drawn; all of them.")
    ] = None,
    finding: Finding = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of cases, groups and orders.")] = 0,
    pixels: Annotated[int | None, typer.Option("--pixels", metavar="N", help="Size of pictures; 512.")] = None,
    json: Json = False,
) -> None:
    """Write a blinded reading list: one page that works offline, and apart from it the key."""
    from wardround.bundles import find_bundle, load_bundle
    from wardround.review.make import make_list

    loaded = load_bundle(find_bundle(bundle))
    asked = conditions or "alone,score,reasons"
    folder = make_list(
        loaded,
        data,
        out=out,
        truth=truth,
        readers=int(readers) if readers.isdecimal() else readers.split(","),
        conditions=[name.strip() for name in asked.split(",")],
        cases=cases,
        finding=finding,
        seed=seed,
        pixels=pixels,
    )
    content = {"list": folder, "page": folder / "reading-list.html", "key": folder / "key.json"}
    lines = [
        f"For readers:          {content['page']}",
        f"For the study nurse:  {content['key']}  (outcomes and design: keep it from readers)",
        f"Then: wardround review score {folder} decisions-*.jsonl",
    ]
    show_either(json, content, show_lines, lines)


@app.command("score")
def score(
    folder: Annotated[Path, typer.Argument(metavar="LIST", help="The folder that `review make` has made.")],
    decisions: Annotated[list[Path], typer.Argument(metavar="DECISIONS...", help="The files that readers have saved.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where review.json and counts.json go; into LIST.")
    ] = None,
    json: Json = False,
) -> None:
    """Check readers' decisions and score them: agreement, accuracy with and without the model, time, referrals."""
    from wardround.review.score import score_list

    results = score_list(folder, decisions, out=out)
    show_either(json, results, show_lines, _lines_of(results, folder if out is None else out))


@app.command("trial")
def trial(
    first: Annotated[str, typer.Argument(metavar="BUNDLE_A", help="The bundle of the first arm.")],
    second: Annotated[str, typer.Argument(metavar="BUNDLE_B", help="The bundle of the second arm.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="A file for each site.")],
    truth: Annotated[str, typer.Option("--truth", metavar="COLUMN", help="Its outcomes.")],
    patients: Annotated[int, typer.Option("--patients", metavar="N", help="In both arms together.")] = 400,
    reliance: Annotated[
        float, typer.Option("--reliance", metavar="SHARE", help="Of decisions that are the model's.")
    ] = 0.7,
    skill: Annotated[
        float, typer.Option("--skill", metavar="SHARE", help="Of a clinician's own decisions that are right.")
    ] = 0.75,
    trials: Annotated[int, typer.Option("--trials", metavar="N", help="That are simulated.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of all draws.")] = 0,
    finding: Finding = None,
    json: Json = False,
) -> None:
    """Simulate a two-arm trial of two bundles over sites, and say its power."""
    from wardround.bundles import find_bundle
    from wardround.review.trial import TrialSettings, simulate_trial

    settings = TrialSettings(patients, reliance, skill, seed, trials)
    results = simulate_trial(
        find_bundle(first), find_bundle(second), data, truth=truth, finding=finding, settings=settings
    )
    show_either(json, results, show_lines, _trial_lines(results))


def _lines_of(results: Mapping[str, Any], folder: Path) -> Iterator[str]:
    yield f"{results['readings']} readings of {results['cases']} cases by {len(results['readers'])} readers"
    for name, reader in results["readers"].items():
        if not reader["finished"]:
            yield f"  {name} has decided {reader['decided']} of {reader['of']}"
    for condition, figures in results["conditions"].items():
        yield f"\n{condition}: {figures['readings']} readings"
        yield from (f"  {NAMES[name]}: {_shown(name, figures[name])}" for name in NAMES)
    for pair, figures in results["differences"].items():
        yield f"\n{pair}"
        yield from (f"  {NAMES[name]}: {_shown(name, figure, signed=True)}" for name, figure in figures.items())
    between = results["agreement"]["between_readers"]
    if between is not None:
        yield f"\nAgreement between readers (Fleiss' kappa): {_shown('', between)}"
    yield f"The model on these cases: right {_shown('accuracy', results['model']['accuracy'])}"
    clusters = " and ".join(f"{name}s" for name in results["interval"]["clustered_by"])
    yield f"Intervals: 95 %, over {clusters}. What may leave the hospital is in {folder / 'counts.json'}."


def _shown(name: str, figure: Mapping[str, Any], signed: bool = False) -> str:
    import math

    value, interval = figure["value"], figure["interval"]
    if value is None or not math.isfinite(value):
        return "not defined"
    scale, form = (100, ".0f") if name in SHARES else (1, ".1f" if name in ("seconds", "confidence") else ".2f")
    plus = "+" if signed else ""
    unit = (" points" if signed else " %") if name in SHARES else ""
    text = f"{scale * value:{plus}{form}}{unit}"
    if interval is None:
        return text
    low, high = (f"{scale * end:{plus}{form}}" for end in interval)
    return f"{text} (95 % CI {low} to {high})"


def _trial_lines(results: Mapping[str, Any]) -> Iterator[str]:
    power, (first, second) = results["power"], results["arms"]
    yield f"A: {first}"
    yield f"B: {second}"
    for name, site in results["sites"].items():
        model, decision = ([f"{100 * share:.1f}" for share in site[key]] for key in ("model_right", "decision_right"))
        yield (
            f"  {name}: {site['rows']} rows, {site['patients_per_arm']} patients in each arm; right are the models in "
            f"{model[0]} and {model[1]} %, decisions in {decision[0]} and {decision[1]} %"
        )
    yield f"B - A: {100 * results['difference']:+.2f} points of right decisions"
    yield (
        f"Power with {results['patients']:,} patients: {100 * power['by_formula']:.1f} % by formula; in "
        f"{100 * power['simulated']:.1f} % of {power['trials']:,} simulated trials a difference is found "
        f"(SE {100 * power['simulation_error']:.1f})"
    )
    yield f"Where both arms have A, {100 * results['error_of_first_kind']:.1f} % of trials find a difference"
    needed = results["patients_for_power"]
    if needed["patients"] is None:
        yield "There is no difference to find."
    else:
        yield f"For a power of {100 * needed['power']:.0f} %: {needed['patients']:,} patients"
