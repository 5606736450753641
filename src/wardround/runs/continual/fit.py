"""Whether the model that a study starts from means the same there and here. Checked before anything trains."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from wardround.core.errors import StudyError
from wardround.core.notices.code import few
from wardround.data.prepare import Layout
from wardround.data.site import Site
from wardround.models import Model
from wardround.models.starting_weights import StartingModel, starting_model
from wardround.runs.continual.description import Description, network_options, public_ranges
from wardround.runs.continual.predecessor import POOLED, WHERE, Predecessor, SavedModel
from wardround.study.parser import plain
from wardround.study.schema import Arm
from wardround.tasks import Task

MOST = 12  # columns that a message names
SAME = "Prepare the rows as that study did, or train from the beginning."


def start_at(
    predecessor: Predecessor,
    arm: Arm,
    seed: int,
    model: Model,
    layout: Layout | None,
    sites: Sequence[Site],
    target_scale: tuple[float, ...],
) -> StartingModel:
    """The weights with which an arm begins with a seed. `layout` is what its sites agreed on; `target_scale` is what
    training knows of the target."""
    saved, where = predecessor.models[seed], f"arms: {arm.name}: {WHERE}: {predecessor.path}"
    refuse_other_network(saved.description, arm, where)
    refuse_other_task(saved.description.task, model.task, where)
    refuse_other_columns(saved.description, arm, layout, sites, where)
    if saved.description.target_scale != tuple(target_scale):
        problem = "seeds of this study share their rows, and start from models whose targets were scaled differently"
        raise StudyError(where, problem, "Name one `seed` of the run in start_from.")
    private = {site: leaves for site, leaves in saved.private.items() if site not in changed_sites(saved, sites)}
    return starting_model(model, saved.params, private, saved.buffers, where, pooled=POOLED)


def refuse_other_network(old: Description, arm: Arm, where: str) -> None:
    if old.kind != arm.model.name:
        problem = f"its model is {old.kind!r}, and that of this study {arm.model.name!r}"
        raise StudyError(where, problem, f'Write kind = "{old.kind}" in [model], or train from the beginning.')
    own = network_options(arm.model.options)
    differing = [name for name in dict.fromkeys([*old.options, *own]) if old.options.get(name) != own.get(name)]
    if differing:
        values = [f"{name} is {_shown(old.options, name)} there and {_shown(own, name)} here" for name in differing]
        remedy = "Give [model] the settings with which that model was trained."
        raise StudyError(where, f"its model has other settings: {'; '.join(values)}", remedy)


def refuse_other_task(old: Mapping[str, Any], task: Task, where: str) -> None:
    own, old = _plain(task.to_json()), _plain(old)
    if old.get("kind") != own["kind"]:
        problem = f"its task is {old.get('kind')}, and that of this study {own['kind']}"
        raise StudyError(where, problem, "Start from a model of the same task.")
    if list(old.get("names", ())) != list(own["names"]):
        names = f"{few(list(map(str, old.get('names', ()))), MOST)} there, {few(list(own['names']), MOST)} here"
        raise StudyError(where, f"it predicts something else: {names}", "Start from a model of the same outcome.")
    differing = [name for name, value in own.items() if name not in ("kind", "names") and old.get(name) != value]
    if differing:
        values = [f"{name} is {_shown(old, name)} there and {_shown(own, name)} here" for name in differing]
        raise StudyError(where, f"its task has other settings: {'; '.join(values)}", "Write them as they were there.")


def refuse_other_columns(old: Description, arm: Arm, layout: Layout | None, sites: Sequence[Site], where: str) -> None:
    """Position 7 must mean the same, in the same unit."""
    if old.scale != arm.preparation.scale:
        problem = f'its rows were scaled as "{old.scale}", and those of this study are as "{arm.preparation.scale}"'
        raise StudyError(where, problem, f'Write scale = "{old.scale}" in [data], or train from the beginning.')
    if (old.columns is None) != (layout is None):
        theirs = (
            "a table whose sites agree on their columns" if layout is None else "images, or columns of each site's own"
        )
        raise StudyError(where, f"it was trained on {theirs}, and this study is not", SAME)
    if list(old.parts) != parts_of(sites[0]):
        raise StudyError(where, "its parties held other columns, or other parties held them", SAME)
    if old.columns is not None and layout is not None:
        _refuse_other_names(old.columns, layout.names, where)
        _refuse_other_ranges(old.ranges, public_ranges(layout, arm.preparation.scale), where)
    elif not arm.model.facts.own_columns and old.inputs != sites[0].train.inputs:
        shapes = " x ".join(map(str, old.inputs)), " x ".join(map(str, sites[0].train.inputs))
        raise StudyError(where, f"its rows are {shapes[0]} numbers, and those of this study {shapes[1]}", SAME)


def _refuse_other_names(old: Sequence[str], own: Sequence[str], where: str) -> None:
    missing, new = [name for name in old if name not in own], [name for name in own if name not in old]
    if missing or new:
        lists = [(missing, "missing here"), (new, "new here")]
        named = "; ".join(f"{what}: {few(names, MOST)}" for names, what in lists if names)
        problem = f"its prepared columns differ ({len(old)} there, {len(own)} here). {named[0].upper()}{named[1:]}"
        remedy = (
            "A column with gaps has a second one, `NAME missing`, and a category one for each level of the training "
            "rows. With `public = true` in [data] of both studies they follow from what is declared; `indicator = "
            "false` leaves the former out."
        )
        raise StudyError(where, problem, remedy)
    if list(old) != list(own):
        place = next(number for number, (a, b) in enumerate(zip(old, own, strict=True)) if a != b)
        problem = (
            f"its columns are the same in another order: number {place + 1} is {old[place]} there, {own[place]} here"
        )
        raise StudyError(where, problem, f"Give the files the order of its columns: {few(list(old), MOST)}.")


def _refuse_other_ranges(
    old: Mapping[str, tuple[float, float]], own: Mapping[str, tuple[float, float]], where: str
) -> None:
    differing = [name for name in own if tuple(old.get(name, ())) != tuple(own[name])]
    if differing:
        problem = f"columns are scaled by other public ranges than there: {few(differing, MOST)}"
        raise StudyError(where, problem, "Write the same `ranges` in [data].")


def changed_sites(saved: SavedModel, sites: Sequence[Site]) -> list[str]:
    """Sites that kept a part of the model for columns of their own, and have other columns now: it starts anew."""
    old = saved.description.own_columns
    columns = {site.name: site.recipe.names for site in sites if site.recipe is not None}
    return [site for site, names in columns.items() if site in old and tuple(old[site]) != tuple(names)]


def parts_of(site: Site) -> list[dict[str, Any]]:
    """Of each party that holds columns of its own, as plain data."""
    return [_plain(asdict(block)) for block in site.blocks]


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON holds it, without what is not set."""
    return dict(plain(json.loads(json.dumps(content))))


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return str(settings[name]) if name in settings else "not set"
