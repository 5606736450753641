"""`wardround attack`: try to break what a run promises its patients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from wardround.cli import rendering as render
from wardround.cli.options import Json, Quick, Set, changes
from wardround.cli.rendering import console, table_of


def say(line: str) -> None:
    """What is being tried, on standard error."""
    render.stderr_console().print(Text(line, style="dim"))


def show_attack(results: Mapping[str, Any], folder: Path) -> None:
    out = console()
    out.print(Text(f"Attacks on {results['study']['name']}, seed {results['seed']}", style="bold"))
    if "inversion" in results:
        out.print(_inversion(results))
    if "membership" in results:
        out.print(_membership(results))
    if results.get("canary"):
        out.print(_canary(results))
    out.print()
    out.print(Text("Answer", style="bold"))
    for line in answer(results):
        out.print(f"  {line}", markup=False)
    out.print()
    out.print(f"{folder / 'attack.json'} and figures/attack_* hold it all.", markup=False)


def _inversion(results: Mapping[str, Any]) -> Table:
    content = results["inversion"]
    lines = []
    for arm, entry in content["arms"].items():
        if "note" in entry:
            lines.append([arm, entry["note"]])
            continue
        outcomes = [entry["without"], entry["with"]]
        counts = ["-" if outcome is None else f"{outcome['recovered']} of {outcome['of']}" for outcome in outcomes]
        errors = ["-" if outcome is None else _number(_mean_error(outcome)) for outcome in outcomes]
        guess = sum(min(row["guess_error"], row["nearest_error"]) for row in outcomes[0]["rows"]) / outcomes[0]["of"]
        lines.append([arm, *counts, *errors, _number(guess)])
    numbers = ("without protection", "with protection", "error, without", "with", "best guess")
    title = f"Rows rebuilt from one update ({content['at']} model)"
    return table_of(("arm", *numbers), lines, numbers, title, title_style=None)


def _membership(results: Mapping[str, Any]) -> Table:
    lines = []
    for arm, entry in results["membership"].items():
        if "note" in entry:
            lines.append([arm, entry["note"]])
            continue
        shadows = entry.get("likelihood_ratio")
        lines.append([arm, _auc(entry["threshold"]), _auc(shadows), _caught(shadows or entry["threshold"])])
    numbers = ("by threshold", "by shadow models", "caught at 1 % false alarms")
    title = "Who was trained on (area under the curve, 95 % CI)"
    return table_of(("arm", *numbers), lines, numbers, title, title_style=None)


def _canary(results: Mapping[str, Any]) -> Table:
    lines = []
    for arm, sites in results["canary"].items():
        for audit in sites:
            verdict = "not refuted" if audit["holds"] else "FAILS"
            verdict = verdict if audit["can_fail"] or not audit["holds"] else "too large to test"
            numbers = f"{audit['claim']:.3f}", f"{audit['bound']:.3f}", f"{audit['draws']:,}"
            lines.append([arm, audit["site"], *numbers, verdict])
    right = ("claimed", "shown, at least", "draws")
    return table_of(("arm", "site", *right, "verdict"), lines, right, "Epsilon, claimed and shown", title_style=None)


def answer(results: Mapping[str, Any]) -> list[str]:
    return [*_about_rows(results), *_about_members(results), *_about_epsilon(results)]


def _about_rows(results: Mapping[str, Any]) -> list[str]:
    entries = [entry for entry in results.get("inversion", {}).get("arms", {}).values() if "without" in entry]
    if not entries:
        return []
    lines = []
    first = entries[0]["without"]
    if first["recovered"]:
        lines.append(f"Whoever sees an unprotected update of one step can rebuild the patient's row: {_of(first)}.")
    else:
        lines.append(
            "No row could be rebuilt from an unprotected update. A stronger attack might do it: nothing is proven."
        )
    if first["recognised"] > first["recovered"]:
        recognised = f"{first['recognised']} of {first['of']}"
        lines.append(
            f"Whose row it was shows in more: {recognised} reconstructions are nearest to the true one of 100 rows."
        )
    protected = [entry["with"] for entry in entries if entry["with"] is not None]
    if protected:
        keys = ("recovered", "recognised", "of")
        count = {key: sum(counts[key] for counts in protected) for key in keys}
        recognised = f", {count['recognised']} recognised" if count["recognised"] > count["recovered"] else ""
        lines.append(f"From updates with noise: {_of(count)}{recognised}.")
    return lines


def _of(counted: Mapping[str, int]) -> str:
    return f"{counted['recovered']} of {counted['of']} rows"


def _about_members(results: Mapping[str, Any]) -> list[str]:
    tried = [
        (name, kind)
        for name, entry in results.get("membership", {}).items()
        for kind in ("threshold", "likelihood_ratio")
        if entry.get(kind, {}).get("interval") and entry[kind]["interval"][0] > 0.5
    ]
    if "membership" not in results:
        return []
    if not tried:
        return ["By area under the curve no attack tells who was trained on better than chance does."]
    names = ", ".join(dict.fromkeys(name for name, _ in tried))
    return [f"Better than chance, attacks tell who was trained on in: {names}."]


def _about_epsilon(results: Mapping[str, Any]) -> list[str]:
    if "canary" not in results:
        return []
    tested = [(arm, audit) for arm, sites in results["canary"].items() for audit in sites]
    if not tested:
        return ["No arm protects single patients, so that there is no claim to test."]
    broken = [
        f"{arm}, {audit['site']}: at least {audit['bound']:.2f} where {audit['claim']:.2f} is claimed"
        for arm, audit in tested
        if not audit["holds"]
    ]
    if broken:
        return ["THE AUDIT FAILED: what is released tells more than is claimed.", *broken]
    untested = sum(not audit["can_fail"] for _, audit in tested)
    more = f" {untested} more are too large for any test, and promise next to nothing." if untested else ""
    return [f"No claim was refuted: no attack showed more than is claimed ({len(tested) - untested} tested).{more}"]


def _auc(attack_result: Mapping[str, Any] | None) -> str:
    if not attack_result or "auc" not in attack_result:
        return "-"
    low, high = attack_result["interval"]
    return f"{attack_result['auc']:.3f} ({low:.3f} to {high:.3f})"


def _caught(attack_result: Mapping[str, Any]) -> str:
    shares = [caught for caught in attack_result.get("caught", ()) if caught["false_alarms"] == 0.01]
    return f"{100 * shares[0]['share']:.1f} %" if shares else "-"


def _mean_error(outcome: Mapping[str, Any]) -> float:
    return float(sum(row["error"] for row in outcome["rows"]) / outcome["of"])


def _number(value: float) -> str:
    return "0" if value < 1e-9 else f"{value:.2g}" if 1e-3 < value < 1000 else f"{value:.0e}"


FAILED = 9  # exit code: an attack showed more than a run claims


def attack(
    target: Annotated[
        str, typer.Argument(metavar="RUN|STUDY", help="The folder of a complete run, or a study, which is run first.")
    ],
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="ARM", help="Attack this arm only. May be repeated.")
    ] = None,
    only: Annotated[
        str, typer.Option("--only", metavar="A,B", help="Some of: inversion, membership, canary.")
    ] = "inversion,membership,canary",
    at: Annotated[
        str, typer.Option("--at", help="Invert gradients of the `initial` or the `trained` model.")
    ] = "initial",
    shadows: Annotated[
        int | None, typer.Option("--shadows", min=0, metavar="N", help="Shadow models of each arm; 0 for none.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder of a STUDY is made.")] = Path(
        "runs"
    ),
    quick: Quick = False,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Attack a run: rebuild patients' rows, tell who was trained on, and test the claimed epsilon.

    Exit code 9 if an attack shows a larger epsilon than the run claims.
    """
    from wardround.attacks.attack import attack_run
    from wardround.core.errors import StudyError

    if at not in ("initial", "trained"):
        raise StudyError("--at", f"{at!r} is not known", "Write initial or trained.")
    folder = Path(target)
    if not folder.is_dir():
        from wardround.runs.catalog import load_study
        from wardround.runs.execute import run_study

        known = load_study(target, quick, changes(set_))[0]
        for name in arm or ():
            known.arm(name)  # refused now rather than after training
        with render.progress_bar(shown=not json) as show:
            folder = run_study(target, out, quick=quick, changes=changes(set_), progress=show).folder
    elif set_:
        raise StudyError("--set", "a run has its settings already", "Name the study instead of its run folder.")
    results = attack_run(
        folder,
        arms=tuple(arm or ()),
        only=tuple(name.strip() for name in only.split(",") if name.strip()),
        quick=quick,
        at="trained" if at == "trained" else "initial",
        shadows=shadows,
        progress=None if json else say,
    )
    render.show_either(json, {"folder": folder, **results}, show_attack, results, folder)
    if results["passed"] is False:
        raise typer.Exit(FAILED)
