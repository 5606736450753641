"""`wardround data`: what can be named as data, what a file holds, and a partition written to disk."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Alpha, Data, Json, Quick, Set, Sites, changes

app = typer.Typer(
    help="Look at data: list sources, describe a file or source, write a split to disk.", no_args_is_help=True
)


@app.command("list")
def list_sources(json: Json = False) -> None:
    """List sources and partitions, with their settings."""
    from wardround.core.settings import describe, settings_of
    from wardround.runs.catalog import families

    known = families()
    listed = {
        family: {
            name: {
                key: {"type": describe(s.kind), "default": None if s.required else s.default, "required": s.required}
                for key, s in settings_of(members[name]).items()
            }
            for name in members
        }
        for family, members in (("sources", known.sources), ("partitions", known.partitioners))
    }
    render.show_either(json, listed, render.show_members, listed)


@app.command("describe")
def describe(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A CSV or .npz file, a folder of images, a split, or a source's name.")
    ],
    json: Json = False,
) -> None:
    """Describe a file, a folder of images, a split or a source: columns, classes, problems. Stays on this machine."""
    from wardround.data.describe import describe_data

    described = describe_data(data)
    render.show_either(json, described, render.show_described, described)


@app.command("split")
def split(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet, or is empty.")],
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A study file or a shipped study; without one, --data.")
    ] = None,
    data: Data = "fashion-mnist",
    sites: Sites = None,
    alpha: Alpha = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Default: the study's first seed.")] = None,
    quick: Quick = False,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Write each site's rows to disk, as the study's first arm would see them before preparation, with a manifest."""
    from wardround.core.errors import StudyError
    from wardround.data.split_files.export import Origin, export_split
    from wardround.runs.catalog import load_study
    from wardround.runs.drafting.study_of_flags import data_of, sites_of
    from wardround.runs.plan import load_plan

    settings = changes(set_)
    if study is not None:
        settings = {f"sites.{key}": value for key, value in sites_of(sites, alpha).items()} | settings
    plain = {"name": "split", "data": data_of(data), "sites": {"partition": "iid", **sites_of(sites, alpha)}}
    parsed, families = load_study(study or {**plain, "arms": [{"algorithm": "fedavg"}]}, quick, settings)
    plan = load_plan(parsed, families)
    arm, chosen = parsed.arms[0], parsed.evaluation.seeds.first if seed is None else seed
    if arm.data.options.get("clahe"):
        problem = "a split holds images as they were read, and who reads it would not apply CLAHE to later ones"
        raise StudyError("data: clahe", problem, "Leave `clahe` out of [data].")
    origin = Origin(arm.data.name, arm.sites.name, arm.sites.options, chosen)
    files = export_split(plan.cohort_of(arm), plan.check(arm, chosen), out, origin)
    render.show_either(json, {"folder": out, "seed": chosen, "files": files}, render.show_files, out, files)
