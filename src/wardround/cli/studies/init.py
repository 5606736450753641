"""`wardround init`: hospitals' files to a study file."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json

if TYPE_CHECKING:
    from wardround.runs.drafting.assumptions import Candidate
    from wardround.runs.drafting.draft import Draft

NAMES = "A hospital's name for one of the files; by itself it is the file's name. May be repeated."


def init(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="A CSV file for each hospital; or images."),
    ],
    target: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What to predict; without it, what could be.")
    ] = None,
    name: Annotated[list[str] | None, typer.Option("--name", metavar="NAME=FILE", help=NAMES)] = None,
    patient: Annotated[
        str | None, typer.Option("--patient", metavar="COLUMN", help="Whose a row is; by itself found by its name.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option("--positive", metavar="CLASS", help="The class that counts as the event.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="KIND", help="classes, regression or count; by itself by the cells.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The study file to write.")] = Path("study.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: Json = False,
) -> None:
    """Look at hospitals' files and write a study that asks whether training together helps."""
    from wardround.core.notices import with_texts
    from wardround.runs.drafting.draft import init_study, possible_targets
    from wardround.runs.drafting.study_of_flags import init_images, is_images

    if len(files) == 1 and target is None and is_images(files[0]):
        path, assumed = init_images(files[0], out, force)
        content = {"study": path, "assumptions": assumed, "notices": []}
        render.show_either(json, content, _show_images, path, assumed)
        return
    names = dict(_name(given) for given in name or [])
    if target is None:
        found = possible_targets(files, names)
        render.show_either(json, {"targets": found}, _show_candidates, found, files)
        return
    draft = init_study(
        files,
        target,
        names=names,
        patient=patient,
        positive=positive,
        task=task,  # type: ignore[arg-type]  # refused there where it is none
        out=out,
        force=force,
    )
    content = {"study": draft.path, "assumptions": draft.assumptions, "notices": with_texts(draft.notices)}
    render.show_either(json, content, _show_draft, draft)


def _show_images(path: Path, assumed: list[str]) -> None:
    render.show_lines([f"{path} is written. It assumes:"], "bold")
    render.show_lines(
        [*(f"  - {sentence}" for sentence in assumed), "", f"Next: wardround run {shlex.quote(str(path))}"]
    )


def _name(given: str) -> tuple[str, str]:
    from wardround.core.errors import StudyError

    name, equals, path = given.partition("=")
    if not equals or not name.strip() or not path:
        problem = "is not of the form NAME=FILE"
        raise StudyError(f"--name {given}", problem, "Write, for instance, --name north=export-2024.csv.")
    return name.strip(), path


def _show_candidates(found: "list[Candidate]", files: list[Path]) -> None:
    rows = [(candidate.name, candidate.what) for candidate in found]
    out = render.console()
    if not rows:
        render.show_lines(
            ["No column that all files have could be predicted. Look at each: wardround data describe FILE"]
        )
        return
    out.print(render.table_of(("column", "could be predicted as"), rows, title="Name what to predict"))
    listed = shlex.join(map(str, files[:3])) + (" ..." if len(files) > 3 else "")
    render.show_lines([f"Next: wardround init {listed} --target {shlex.quote(rows[0][0])}"])


def _show_draft(draft: "Draft") -> None:
    out = render.console()
    render.show_lines([f"{draft.path} is written. It assumes:"], "bold")
    render.show_lines(f"  - {sentence}" for sentence in draft.assumptions)
    if draft.notices:
        out.print("Noticed in the files:")
        render.show_notices(out, draft.notices)
    render.show_lines(["", f"Next: wardround run {shlex.quote(str(draft.path))} --open"])
