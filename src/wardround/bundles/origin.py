"""What a bundle is made of, and how it is written: under another name, loaded again, compared, and only then given out.

The same for a simulated run (`make.py`) and for a hospital in a deployment (`deploy/sitebundle.py`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from wardround.bundles.bundle import Bundle, Calibration, build_model, load_bundle
from wardround.bundles.card import Told, card_of
from wardround.bundles.cardtext import render
from wardround.bundles.choose import MIDDLE, Chosen, choose
from wardround.bundles.far import Far, by_distance, by_ranges
from wardround.bundles.files import ABOUT, CARD, FORMAT, ONNX, PREPARATION, VOCABULARY, WEIGHTS, as_text, seal
from wardround.bundles.files import refuse_taken as refuse_taken
from wardround.bundles.newfolder import new_folder
from wardround.data.prepare import Encoded, Recipe
from wardround.data.written import write_recipe
from wardround.errors import BundleError
from wardround.settings import Factory
from wardround.study import Arm, Study
from wardround.tree import Tree

EQUAL = 1e-6  # how far scores may be from those that the run saved


class OtherRows(BundleError):
    """The run has predicted other rows than are here."""


class OtherScores(BundleError):
    """The bundle does not predict what the run has predicted."""


@dataclass(frozen=True, eq=False)
class Side:
    """Prepared rows with their labels."""

    x: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, eq=False)
class Origin:
    """One site's model in one arm with one seed, and all that is known of it."""

    study: Study
    run: str  # the run folder's name
    arm: Arm
    asked: str  # the arm's name as it was asked for, which a selection may have given
    seed: int
    site: str
    recipe: Recipe
    classes: tuple[str, ...]
    params: Tree
    buffers: Tree
    vocabulary: Mapping[str, str]
    unrecorded: tuple[str, ...]  # columns that the recipe needs and the site's files do not have
    train: Side
    validation: Side  # without patients whom any site tests
    table: Encoded  # with the test rows as they were recorded
    test: np.ndarray  # their places in it
    test_label: np.ndarray
    saved: np.ndarray  # their scores in the run
    told: Told  # what the run says of itself, for the card
    models: Mapping[str, Factory] | None = None

    @property
    def private(self) -> bool:
        """Whether each patient is protected: what is read off patients without noise then stays out of the bundle."""
        return self.arm.privacy.example is not None

    @property
    def name(self) -> str:
        return plain_name(f"{self.study.name}-{self.asked}-{self.site}")


def unrecorded(recipe: Recipe, table: Encoded, rows: np.ndarray) -> tuple[str, ...]:
    """Columns of the recipe that are not in the files which these rows come from."""
    there = dict(zip((column.name for column in table.columns), table.records_of(rows).tolist(), strict=True))
    return tuple(column.name for column in recipe.columns if not there[column.name])


def plain_name(text: str) -> str:
    """Fit for a folder: fedprox[mu=0.1] becomes fedprox-mu-0.1."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "bundle"


def write_bundle(origin: Origin, out: Path, onnx: bool = False) -> Path:
    """The bundle's folder. It appears as a whole, and only if it predicts what the run predicted."""
    with new_folder(out) as folder:
        _fill(origin, folder, onnx)
    return out


def _fill(origin: Origin, folder: Path, onnx: bool) -> None:
    bundle = _drafted(origin, folder)
    scores = bundle.scores(origin.validation.x)
    chosen = choose(origin.validation.label, scores, origin.private)
    bundle = replace(
        bundle,
        threshold=None if chosen.threshold is None else float(chosen.threshold["value"]),
        calibration=None
        if chosen.calibration is None
        else Calibration(chosen.calibration["slope"], chosen.calibration["intercept"]),
    )
    files = _files(origin, bundle)
    about = _about(origin, bundle, chosen)
    hashes = {name: sha256(content).hexdigest() for name, content in files.items()}
    about["card"] = card_of(origin.told, bundle, about, origin.saved, origin.test_label, hashes)
    files[CARD] = render(about["card"]).encode()
    about["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / ABOUT).write_bytes(seal(about, files))
    loaded = load_bundle(folder, origin.models)
    refuse_unequal(origin, loaded)
    if onnx:
        from wardround.bundles.onnx import export

        export(loaded, folder / ONNX)
        files[ONNX] = (folder / ONNX).read_bytes()
        (folder / ABOUT).write_bytes(seal(about, files))
        load_bundle(folder, origin.models)


def refuse_unequal(origin: Origin, bundle: Bundle) -> None:
    """The bundle as it was written and loaded again, from recorded columns to scores, against what the run saved."""
    made = bundle.scores(bundle.recipe.apply(origin.table, origin.test))
    where = f"bundle of {origin.asked} at {origin.site}, seed {origin.seed}"
    if made.shape != origin.saved.shape:
        raise OtherRows(where, "predicts other rows than the run saved", "Run the study again with --again.")
    apart = np.abs(made.astype(np.float64) - origin.saved.astype(np.float64)).max(initial=0.0)
    if not apart <= EQUAL:
        problem = f"its scores differ from those in the run by up to {apart:.2g}, more than {EQUAL:g}"
        raise OtherScores(
            where, problem, "Run the study again with --again on this machine, and report it if it stays."
        )


def _drafted(origin: Origin, folder: Path) -> Bundle:
    """Before anything is chosen."""
    told = model_of(origin.arm, origin.recipe, origin.classes)
    far = by_ranges() if origin.private else by_distance(origin.train.x)
    return Bundle(
        folder,
        {"precision": origin.arm.training.precision},
        origin.recipe,
        build_model(told, f"arm {origin.asked}", origin.models),
        origin.params,
        origin.buffers,
        origin.classes,
        None if len(origin.classes) > 2 else MIDDLE,
        None,
        far,
        origin.vocabulary,
    )


def model_of(arm: Arm, recipe: Recipe, classes: Sequence[str]) -> dict[str, Any]:
    """What `build_model` takes: the model's name, its settings and the shape of its data."""
    shape = {"inputs": [len(recipe.names)], "classes": len(classes)}
    return {"kind": arm.model.name, "options": _plain(arm.model.options), "shape": shape}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _files(origin: Origin, bundle: Bundle) -> dict[str, bytes]:
    leaves = {f"params/{name}": leaf for name, leaf in bundle.params.items()}
    leaves |= {f"buffers/{name}": leaf for name, leaf in bundle.buffers.items()}
    if bundle.far.kind == "distance":
        leaves |= {
            "far/mean": torch.from_numpy(bundle.far.mean),
            "far/whitening": torch.from_numpy(bundle.far.whitening),
        }
    plain = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in leaves.items()}
    words = {"classes": list(origin.classes), "words": dict(sorted(origin.vocabulary.items()))}
    return {WEIGHTS: save(plain), PREPARATION: as_text(write_recipe(origin.recipe)), VOCABULARY: as_text(words)}


def _about(origin: Origin, bundle: Bundle, chosen: Chosen) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": origin.name,
        "wardround": version("wardround"),
        "study": {"name": origin.study.name, "hash": origin.study.hash},
        "run": origin.run,
        "arm": origin.asked,
        "trained_as": origin.arm.name,
        "seed": origin.seed,
        "site": origin.site,
        "model": model_of(origin.arm, origin.recipe, origin.classes),
        "precision": origin.arm.training.precision,
        "features": list(origin.recipe.names),
        "unrecorded": list(origin.unrecorded),
        "classes": list(origin.classes),
        "threshold": chosen.threshold,
        "calibration": chosen.calibration,
        "uncalibrated": chosen.uncalibrated,
        "far": _about_far(bundle.far),
        "rows": {"train": len(origin.train), "validation": len(origin.validation), "test": len(origin.test)},
        "private": origin.private,
    }


def _about_far(far: Far) -> dict[str, Any]:
    return {"kind": far.kind, "cut": far.cut} if far.kind == "distance" else {"kind": far.kind}
