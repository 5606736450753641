"""The shared part of a trained arm, for a hospital that is new: encoder and head, and the settings of training.

shared.safetensors holds the leaves that all hospitals of the study share, and nothing else: no hospital's adapter, no
head where heads are private, nothing of a site's memory. shared.json describes them; it has the hash of the
other file and is sealed as a bundle is (`sealed_files.py`). Described in docs/reference/shared-part.md.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from wardround.bundles.build.assemble import plain_name, serialized
from wardround.bundles.bundle import MISFITS, build_model, check_shapes, shape_of, stored_scale, stored_task
from wardround.bundles.card.card import figures_over_sites, promises_of
from wardround.bundles.sealed_files import SealedKind, read_sealed, refuse_if, seal
from wardround.core.atomic_files import new_folder, refuse_existing
from wardround.core.errors import BundleError, RunError, as_path
from wardround.core.registry import Members
from wardround.core.settings import Factory, parse
from wardround.core.tree import Tree
from wardround.models import Model
from wardround.runs.catalog import load_study
from wardround.runs.continual.description import read_description
from wardround.runs.finished_run import arm_of, seed_of, with_own
from wardround.runs.folder import RunFolder
from wardround.runs.spending import check_ledger
from wardround.study.schema import Arm, Preparation, Study, Training
from wardround.tasks import Task, read_task

FORMAT = 1
ABOUT = "shared.json"
WEIGHTS = "shared.safetensors"
FOLDER = Path("shared")
BROADCAST = "server/params/"  # prefix of the leaves of a saved model that every site is sent
SHARED_PART = SealedKind("shared part", "wardround share", ABOUT, FORMAT, (WEIGHTS,))


@dataclass(frozen=True, eq=False)
class SharedPart:
    path: Path
    about: Mapping[str, Any]  # the content of shared.json
    leaves: Tree
    models: Mapping[str, Factory] | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def id(self) -> str:
        return str(self.about["id"])

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.answer.classes

    @cached_property
    def task(self) -> Task:
        return stored_task(self.about)

    @cached_property
    def scale(self) -> tuple[float, ...]:
        """Of the target, in which the shared leaves were trained."""
        return stored_scale(self.about, self.task)

    @cached_property
    def training(self) -> Training:
        training: Training = parse(Training, self.about["training"], f"{self.path}: training")
        return training

    @cached_property
    def preparation(self) -> Preparation:
        preparation: Preparation = parse(Preparation, self.about["preparation"], f"{self.path}: preparation")
        return preparation

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.training.precision == "float64" else torch.float32

    def model(self, width: int) -> Model:
        """For rows of `width` numbers."""
        return build_model(self.description(width), self.task, str(self.path), self.models)

    def description(self, width: int) -> dict[str, Any]:
        return {**self.about["model"], "shape": {"inputs": [width], **shape_of(self.task)}}


def make_shared(
    run: str | PathLike[str],
    *,
    arm: str,
    seed: int | None = None,
    out: str | Path | None = None,
    **members: Unpack[Members],
) -> Path:
    """The folder of a new shared part, from the folder of a complete run: of a simulation, or of a coordinator.

    `seed` is the study's first, unless given. `out` must not exist yet; it is `shared/STUDY-ARM`, unless given. No
    rows are read; `members` are as `run_study` takes them, because a study names them.
    """
    if out is not None:
        refuse_existing(as_path(out, "--out"))
    part = part_of_run(run, arm, seed, **members)
    target = FOLDER / str(part.about["name"]) if out is None else as_path(out, "--out")
    weights = serialized(part.leaves)
    with new_folder(target) as folder:
        (folder / WEIGHTS).write_bytes(weights)
        (folder / ABOUT).write_bytes(seal(part.about, {WEIGHTS: weights}))
        load_shared(folder, with_own(run, members).get("models"))
    return target


def load_shared(path: str | PathLike[str], models: Mapping[str, Factory] | None = None) -> SharedPart:
    """Open a shared part from its folder. It is refused unless it is complete and unchanged."""
    folder = as_path(path, "shared part", BundleError)
    about, files = read_sealed(folder, SHARED_PART)
    try:
        part = SharedPart(folder, about, load(files[WEIGHTS]), models)
        _refuse_misfit(part)
    except MISFITS as error:
        problem = f"does not hold what a shared part of format {FORMAT} holds ({type(error).__name__})"
        raise BundleError(str(folder), problem, SHARED_PART.remake) from None
    return part


def is_shared(path: str | PathLike[str]) -> bool:
    return (as_path(path, "shared part", BundleError) / ABOUT).exists()


def part_of_run(
    run: str | PathLike[str],
    arm: str,
    seed: int | None = None,
    **members: Unpack[Members],
) -> SharedPart:
    """As `make_shared` would write it."""
    members = with_own(run, members)
    folder = RunFolder(as_path(run, "run", RunError))
    if not (folder.path / "study.toml").is_file():
        remedy = "Name a folder that `wardround run` or `wardround coordinate` has made, or one of `wardround share`."
        raise RunError(str(folder.path), "is not a run folder", remedy)
    if not folder.complete:
        raise RunError(str(folder.path), "is not complete", "Finish it first.")
    check_ledger(folder)
    study, _ = load_study(folder.path / "study.toml", **members)
    results = folder.read_json("results.json")
    task = read_task(results["task"])
    if task.outcomes:
        problem = f"predicts several outcomes together ({', '.join(task.outcomes)}), and an adapter is for one"
        raise BundleError(str(folder.path), problem, "Train a study of one of them.")
    if task.findings:
        problem = "is about findings in images, and adapters are for tables"
        raise BundleError(str(folder.path), problem, "Train the study's own model at the new hospital.")
    chosen_seed = seed_of(study, seed)
    trained = arm_of(study, results, arm, chosen_seed)
    _refuse_no_adapter(trained, arm, task, members.get("models"))
    about = _about(folder, study, results, task, trained, arm, chosen_seed)
    leaves = _shared_leaves(folder, trained.name, chosen_seed)
    sealed = json.loads(seal(about, {WEIGHTS: serialized(leaves)}))
    part = SharedPart(folder.path, sealed, leaves, members.get("models"))
    try:
        _refuse_misfit(part)
    except ValueError:
        problem = f"the saved model of {trained.name} with seed {chosen_seed} is not that of its study"
        raise RunError(str(folder.path), problem, "Run the study again with --again.") from None
    return part


def _refuse_no_adapter(arm: Arm, requested_arm: str, task: Task, models: Mapping[str, Factory] | None) -> None:
    """An arm that a new hospital could not join."""
    if arm.algorithm.facts.personal:
        problem = f"{arm.algorithm.name} gives sites models of their own, so that there is no part that all share"
        raise BundleError(
            f"arm {requested_arm}", problem, "Name an arm with one shared model, such as fedavg or fedprox."
        )
    description = {**_model(arm), "shape": {"inputs": [1], **shape_of(task)}}
    if build_model(description, task, f"arm {requested_arm}", models).at_site is None:
        problem = f"model {arm.model.name} has no private adapter, so that a hospital with other columns cannot join it"
        raise BundleError(f"arm {requested_arm}", problem, 'Train an arm with `model.kind = "adapter"`.')


def _model(arm: Arm) -> dict[str, Any]:
    return {"kind": arm.model.name, "options": json.loads(json.dumps(dict(arm.model.options)))}


def _scale(folder: RunFolder, task: Task, arm: Arm, seed: int) -> tuple[float, ...]:
    """Of the target, as the run's own description of the model has it."""
    if task.is_scale(()):
        return ()
    return read_description(folder.path / "models" / arm.name / f"seed-{seed}.json").target_scale


def _about(
    folder: RunFolder, study: Study, results: Mapping[str, Any], task: Task, arm: Arm, requested_arm: str, seed: int
) -> dict[str, Any]:
    evaluation = study.evaluation_of(arm)
    scale = _scale(folder, task, arm, seed)
    return {
        "format": FORMAT,
        "name": plain_name(f"{study.name}-{requested_arm}"),
        "wardround": version("wardround"),
        "study": {"name": study.name, "question": study.question, "hash": study.hash},
        "run": folder.path.name,
        "arm": requested_arm,
        "trained_as": arm.name,
        "algorithm": arm.algorithm.name,
        "seed": seed,
        "init_seed": evaluation.seed_for("init", seed),  # from which adapters began
        "first_seed": evaluation.seeds.first,
        "model": _model(arm),
        "task": task.to_json(),
        "classes": list(task.answer.classes),
        **({"target_scale": list(scale)} if scale else {}),
        "preparation": _preparation(arm),
        "training": _training(arm),
        "evaluation": {"test_share": evaluation.test_share, "validation_share": evaluation.validation_share},
        "sites": _trained_at(results, arm, requested_arm),
        "simulated": not results["deployed"],
        "synthetic": bool(results.get("synthetic")),
        "figures": _figures(results, task, arm, requested_arm),
        "privacy": _privacy(results.get("privacy"), arm.name),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _preparation(arm: Arm) -> dict[str, Any]:
    """As a hospital by itself has it: no other hospital's columns, no scale that others would have to agree on."""
    scale = "per-site" if arm.preparation.scale == "federated" else arm.preparation.scale
    return asdict(replace(arm.preparation, schema="own", scale=scale, not_recorded={}))


def _training(arm: Arm) -> dict[str, Any]:
    """Of one site: who else works in a round, and on which machine, does not matter to it."""
    settings = asdict(replace(arm.training.alone, device="auto"))
    return {key: value for key, value in settings.items() if value is not None}


def _trained_at(results: Mapping[str, Any], arm: Arm, requested_arm: str) -> dict[str, int | None]:
    """Sites that the shared part has learnt from, with their training rows where the run knows them."""
    known: Mapping[str, Any] = next((group["sites"] for group in results["sites"] if arm.name in group["arms"]), {})
    names = [site for site in results["arms"][requested_arm]["sites"] if not arm.train_at or site in arm.train_at]
    return {site: known.get(site, {}).get("train") for site in names}


def _figures(results: Mapping[str, Any], task: Task, arm: Arm, requested_arm: str) -> dict[str, Any]:
    """On the test rows of the study's own sites, over all its seeds."""
    metrics, interval = figures_over_sites(results, task, arm, requested_arm)
    return {"metrics": metrics, "seeds": list(results["seeds"]), "interval": interval}


def _privacy(privacy: Mapping[str, Any] | None, arm: str) -> dict[str, Any] | None:
    """What the study's own sites were promised and have spent."""
    promises = promises_of(privacy, arm)
    if privacy is None or promises is None:
        return None
    spent = {
        site: {key: spent[key] for key in ("epsilon", "delta", "rounds") if key in spent}
        for site, spent in privacy["arms"][arm]["sites"].items()
    }
    return {**promises, "spent": spent}


def _shared_leaves(folder: RunFolder, arm: str, seed: int) -> Tree:
    """What every site was sent last, and nothing that any of them keeps."""
    try:
        leaves = folder.load_model(arm, seed)
    except (OSError, SafetensorError) as error:
        problem = f"its model of {arm} with seed {seed} cannot be read ({type(error).__name__})"
        raise RunError(str(folder.path), problem, "Run the study again with --again.") from None
    return {name.removeprefix(BROADCAST): leaf for name, leaf in leaves.items() if name.startswith(BROADCAST)}


def _refuse_misfit(part: SharedPart) -> None:
    """Exactly the shared leaves of its model, in its precision, and all of them numbers."""
    part.preparation  # noqa: B018 - settings that are not known are refused here
    part.scale  # noqa: B018 - as are classes, and a scale that is none
    refuse_if(part.about["evaluation"].keys() != {"test_share", "validation_share"}, "shares are missing")
    for key in ("seed", "init_seed", "first_seed"):
        refuse_if(type(part.about[key]) is not int, "a seed is not a whole number")
    check_shapes(part.description(1), part.task, str(part.path), part.models, part.leaves)
    model = part.model(1)
    expected = {name: leaf for name, leaf in model.init(0)[0].items() if not model.is_private(name)}
    refuse_if(model.at_site is None or set(expected) != set(part.leaves), "the leaves are not those of the model")
    for name, leaf in part.leaves.items():
        refuse_if(
            leaf.shape != expected[name].shape or leaf.dtype != part.dtype or not bool(torch.isfinite(leaf).all()),
            "a leaf does not have the shape or precision of the model's, or is not a number",
        )
