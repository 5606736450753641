"""The model that a study starts from, read from a run folder or from a bundle and checked. Nothing is unpickled."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load

from wardround.bundles.sealed_files import PREPARATION, WEIGHTS, read_sealed
from wardround.core.errors import BundleError, RunError, StudyError, suggest
from wardround.core.settings import parse
from wardround.core.tree import Tree, leaves_hash, unflatten
from wardround.data.serialization import read_recipe
from wardround.runs.continual.description import (
    Description,
    Generation,
    network_options,
    public_ranges,
    read_description,
)
from wardround.runs.folder import MISFITS, RunFolder
from wardround.study.parser import plain
from wardround.study.schema import StartFrom
from wardround.tasks import class_task, findings_task

WHERE = "model: start_from"
POOLED = "pooled"  # where the parts of an arm that pools its rows are: one model, of which no part is private


@dataclass(frozen=True, eq=False)
class SavedModel:
    """One seed's model. `private` and `buffers` are those that sites keep, by site."""

    seed: int
    description: Description
    params: Tree  # of a bundle with the private ones of its site
    private: Mapping[str, Tree] = field(default_factory=dict)
    buffers: Mapping[str, Tree] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        content = sha256(json.dumps(self.description.meaning, sort_keys=True).encode())
        content.update(leaves_hash(self.params))
        for kind in (self.private, self.buffers):
            for site in sorted(kind):
                content.update(f"\x1f{site}\x1f".encode() + leaves_hash(kind[site]))
        return content.hexdigest()


@dataclass(frozen=True, eq=False)
class Predecessor:
    kind: Literal["run", "bundle"]
    path: Path
    arm: str  # as the study names it; of a bundle the arm that it was made of
    deployed: bool  # a run across hospitals, whose rows and private parts stay there
    models: Mapping[int, SavedModel]  # by the seed of the study that starts from it

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}, arm {self.arm}"

    @property
    def first(self) -> SavedModel:
        return next(iter(self.models.values()))

    @cached_property
    def digest(self) -> str:
        """Of the models that are used, with the seeds that use them in order."""
        return sha256("".join(model.digest for model in self.models.values()).encode()).hexdigest()


def read_predecessor(start: StartFrom, seeds: Sequence[int]) -> Predecessor:
    """`seeds` are those of the study that starts from it. Refused if its content is not what `start` expects."""
    if start.bundle is not None:
        predecessor = _from_bundle(start.bundle, seeds)
    elif start.run is not None and start.arm is not None:
        predecessor = _from_run(start.run, start.arm, start.seed, seeds)
    else:
        problem = "names no run or bundle: the weights are where the study was made"
        raise StudyError(WHERE, problem, "Use the study file from which the kits were made.")
    if start.digest is not None and predecessor.digest != start.digest:
        problem = (
            f"the {predecessor.kind} holds other weights than this study started from: their digest is "
            f"{predecessor.digest[:12]}, not {start.digest[:12]}"
        )
        raise StudyError(f"{WHERE}: {predecessor.path}", problem, "Bring the old ones back, or leave `digest` out.")
    return predecessor


def _from_run(path: Path, arm: str, seed: int | None, seeds: Sequence[int]) -> Predecessor:
    folder, where = RunFolder(path), f"{WHERE}: run: {path}"
    if not (path / "study.toml").is_file():
        runs = [file.parent.name for file in path.parent.glob("*/study.toml")]
        remedy = "Name a folder that `wardround run` has made; a path begins at the study file's folder."
        remedy += f" {suggest(path.name, runs, 'Runs there')}" if runs else ""
        raise StudyError(where, "is not a run folder" if path.exists() else "does not exist", remedy)
    if not folder.complete:
        raise StudyError(where, "is not complete", f"Finish it first: wardround resume {path}")
    results = folder.read_json("results.json")
    with folder.checked_content():
        known = [int(number) for number in results["seeds"]]
        chosen = {number: _seed_of(known, seed, number, where) for number in seeds}
        names = {old: _trained_arm(results, arm, old, where) for old in dict.fromkeys(chosen.values())}
    models = {old: _model_of_run(folder, name, old, where) for old, name in names.items()}
    return Predecessor("run", path, arm, folder.deployed, {number: models[old] for number, old in chosen.items()})


def _seed_of(known: Sequence[int], requested: int | None, own: int, where: str) -> int:
    if requested is not None and requested not in known:
        raise StudyError(where, f"has no seed {requested}", f"It was run with {', '.join(map(str, known))}.")
    return requested if requested is not None else own if own in known else known[0]


def _trained_arm(results: Mapping[str, Any], name: str, seed: int, where: str) -> str:
    """Of a selected arm the value that the seed chose."""
    for choice in results["selection"]:
        if choice["arm"] == name:
            if str(seed) not in choice["chosen"]:
                raise StudyError(where, f"nothing could be selected with seed {seed}", "Name another `seed`.")
            return str(choice["chosen"][str(seed)])
    if name not in results["arms"]:
        raise StudyError(f"{where}: arm", f"the run has no arm {name!r}", suggest(name, results["arms"], "Arms"))
    return name


def _model_of_run(folder: RunFolder, arm: str, seed: int, where: str) -> SavedModel:
    file = folder.path / "models" / arm / f"seed-{seed}.safetensors"
    if not file.is_file():
        problem = f"has no weights of {arm} with seed {seed}"
        remedy = (
            "Across hospitals with different columns each party keeps its part; there is nothing to start from."
            if folder.deployed
            else "Run that study again with --again."
        )
        raise StudyError(where, problem, remedy)
    description = read_description(file.with_suffix(".json"))
    if not description.shared:
        problem = f"in {arm} every site has a model of its own, and no one model to start from"
        remedy = (
            f"Name another arm, or make a bundle of one site: wardround bundle {folder.path} --arm {arm} --site SITE"
        )
        raise StudyError(where, problem, remedy)
    try:
        parts = unflatten(load(file.read_bytes()))
    except (OSError, SafetensorError, ValueError):
        raise RunError(str(file), "is damaged, or cannot be read", "Run that study again with --again.") from None
    sites = unflatten(parts.get("memory", {}))
    by_site = {site: unflatten(leaves) for site, leaves in sites.items()}
    return SavedModel(
        seed,
        description,
        unflatten(parts.get("server", {})).get("params", {}),
        {site: own["private"] for site, own in by_site.items() if "private" in own},
        {site: own["buffers"] for site, own in by_site.items() if "buffers" in own},
    )


def _from_bundle(path: Path, seeds: Sequence[int]) -> Predecessor:
    """Checked by its seal, as `predict` does it."""
    try:
        about, files = read_sealed(path)
        if "outcomes" in about["model"]["shape"]:
            problem = "predicts one of several outcomes, and its model was trained for all of them"
            raise StudyError(f"{WHERE}: bundle: {path}", problem, "Start from the run that it was made of.")
        model = _model_of_bundle(path, about, files)
        arm = str(about["arm"])
    except BundleError as error:
        raise StudyError(f"{WHERE}: bundle: {error.where}", error.problem, error.remedy) from None
    except MISFITS as error:
        problem = f"does not hold what a bundle holds ({type(error).__name__})"
        raise StudyError(f"{WHERE}: bundle: {path}", problem, "Make it again with `wardround bundle`.") from None
    return Predecessor("bundle", path, arm, False, dict.fromkeys(seeds, model))


def _task_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """As it is written; of a bundle that was made before tasks were, by its classes."""
    if about.get("task") is not None:
        return dict(about["task"])
    names = tuple(map(str, about["classes"]))
    task = findings_task(names) if about.get("findings") else class_task(names)
    return dict(json.loads(json.dumps(task.to_json())))


def _model_of_bundle(path: Path, about: Mapping[str, Any], files: Mapping[str, bytes]) -> SavedModel:
    recipe = read_recipe(json.loads(files[PREPARATION]), str(path / PREPARATION))
    model, shape = about["model"], about["model"]["shape"]
    own, site = recipe.settings.schema == "own", str(about["site"])
    has_columns = bool(recipe.columns)
    tensors = unflatten(load(files[WEIGHTS]))
    params, buffers = tensors.get("params", {}), tensors.get("buffers", {})
    description = Description(
        kind=str(model["kind"]),
        options=network_options(model["options"]),
        task=_task_of(about),
        inputs=tuple(map(int, shape["inputs"])),
        scale=recipe.settings.scale,
        columns=recipe.layout.names if has_columns and not own else None,
        ranges=public_ranges(recipe.layout, recipe.settings.scale) if has_columns and not own else {},
        parts=tuple(dict(plain(part)) for part in shape.get("parts", ())),
        own_columns={site: recipe.names} if own else {},
        target_scale=tuple(map(float, about.get("target_scale") or ())),
        trained=tuple(parse(Generation, part, f"{path}: trained") for part in about.get("trained") or ()),
    )
    return SavedModel(int(about["seed"]), description, params, {site: params}, {site: buffers} if buffers else {})
