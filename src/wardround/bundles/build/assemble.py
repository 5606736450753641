"""What a bundle is made of, and how it is written: under another name, loaded again, compared, and only then given out.

The same for a simulated run (`make.py`) and for a hospital in a deployment (`deployment/flat/site_bundle.py`).
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from wardround.bundles.build.choose_uncertainty import choose_uncertainty, figures
from wardround.bundles.build.operating_point import MIDDLE, Chosen, choose, choose_findings
from wardround.bundles.build.run_inputs import Side as Side
from wardround.bundles.bundle import Bundle, Calibration, Finding, build_model, load_bundle
from wardround.bundles.card.card import Told, card_of
from wardround.bundles.card.markdown import render
from wardround.bundles.inputs import Inputs, looks_of, write_inputs
from wardround.bundles.out_of_distribution import OutOfDistribution, by_distance, by_ranges
from wardround.bundles.sealed_files import (
    ABOUT,
    CARD,
    FORMAT,
    ONNX,
    PREPARATION,
    UNCERTAINTY,
    VOCABULARY,
    WEIGHTS,
    as_text,
    seal,
)
from wardround.bundles.uncertainty import tensors_of, write_uncertainty
from wardround.core.atomic_files import new_folder
from wardround.core.errors import BundleError
from wardround.core.settings import Factory
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.prepare import Encoded, Recipe
from wardround.data.serialization import write_recipe
from wardround.study.schema import Arm, Study

LOOKED_AT = 1024  # images at a time
EQUAL = 1e-6  # how far scores may be from those that the run saved


class OtherRows(BundleError):
    """The run has predicted other rows than are here."""


class OtherScores(BundleError):
    """The bundle does not predict what the run has predicted."""


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
    table: Encoded | None  # with the test rows as they were recorded; None: they have no columns
    test: np.ndarray  # their places in it
    test_label: np.ndarray
    saved: np.ndarray  # their scores in the run
    told: Told  # what the run says of itself, for the card
    models: Mapping[str, Factory] | None = None
    has_findings: bool = False
    inputs: Inputs = field(default_factory=Inputs)
    images: np.ndarray | None = None  # all rows' bytes; None: they have no image
    trained_on: np.ndarray | None = None  # places of the site's training rows among them
    trained: np.ndarray | None = None  # prepared columns of training rows, where `train` does not hold just these
    absent: Mapping[str, np.ndarray] = field(default_factory=dict)  # by party: test rows of which it knew nothing
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of findings, chosen at all sites together
    region: str | None = None  # whose own model it is; None: the model of all

    @property
    def private(self) -> bool:
        """Whether each patient is protected: what is read off patients without noise then stays out of the bundle."""
        return self.arm.privacy.example is not None

    @property
    def name(self) -> str:
        whose = self.site if self.region is None else f"{self.region}-{self.site}"
        return plain_name(f"{self.study.name}-{self.asked}-{whose}")


def unrecorded(recipe: Recipe, table: Encoded, rows: np.ndarray) -> tuple[str, ...]:
    """Columns of the recipe that are not in the files which these rows come from."""
    there = dict(zip((column.name for column in table.columns), table.records_of(rows).tolist(), strict=True))
    return tuple(column.name for column in recipe.columns if not there[column.name])


def plain_name(text: str) -> str:
    """Fit for a folder: fedprox[mu=0.1] becomes fedprox-mu-0.1."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "bundle"


def write_bundle(origin: Origin, out: Path, onnx: bool = False) -> Path:
    """The bundle's folder. It appears as a whole, and only if it predicts what the run predicted."""
    # for rows of few numbers one thread is faster, and a forked process could not use this one's threads
    threads = torch_threads(1) if origin.images is None else nullcontext()
    with new_folder(out) as folder, threads:
        _fill(origin, folder, onnx)
    return out


def _fill(origin: Origin, folder: Path, onnx: bool) -> None:
    bundle = _drafted(origin, folder)
    scores, label = bundle.scores(origin.validation.x), origin.validation.label
    if origin.has_findings:
        chosen = choose_findings(label, scores, origin.classes, origin.private, origin.thresholds)
    else:
        chosen = choose(label, scores, origin.private)
    bundle = replace(
        bundle,
        threshold=None if chosen.threshold is None else float(chosen.threshold["value"]),
        calibration=_calibration(chosen.calibration),
        findings=tuple(
            Finding(float(one["threshold"]["value"]), _calibration(one["calibration"])) for one in chosen.findings
        ),
    )
    how = choose_uncertainty(bundle, origin.train, origin.validation, origin.private, origin.arm.uncertainty)
    bundle = replace(bundle, uncertainty=how)
    files = _files(origin, bundle)
    about = _about(origin, bundle, chosen)
    hashes = {name: sha256(content).hexdigest() for name, content in files.items()}
    x = _Recorded(origin, bundle)
    worth = None if origin.private else figures(bundle, how, x, origin.saved, origin.test_label)
    about["card"] = card_of(origin.told, bundle, about, origin.saved, origin.test_label, hashes, worth)
    files[CARD] = render(about["card"]).encode()
    about["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / ABOUT).write_bytes(seal(about, files))
    loaded = load_bundle(folder, origin.models)
    refuse_unequal(origin, loaded)
    if onnx:
        from wardround.bundles.build.onnx import export

        export(loaded, folder / ONNX)
        files[ONNX] = (folder / ONNX).read_bytes()
        (folder / ABOUT).write_bytes(seal(about, files))
        load_bundle(folder, origin.models)


def refuse_unequal(origin: Origin, bundle: Bundle) -> None:
    """The bundle as it was written and loaded again, from what was recorded to scores, against what the run saved."""
    made = bundle.scores(_Recorded(origin, bundle))
    where = f"bundle of {origin.asked} at {origin.site}, seed {origin.seed}"
    if made.shape != origin.saved.shape:
        raise OtherRows(where, "predicts other rows than the run saved", "Run the study again with --again.")
    apart = np.abs(made.astype(np.float64) - origin.saved.astype(np.float64)).max(initial=0.0)
    if not apart <= EQUAL:
        problem = f"its scores differ from those in the run by up to {apart:.2g}, more than {EQUAL:g}"
        raise OtherScores(
            where, problem, "Run the study again with --again on this machine, and report it if it stays."
        )


@dataclass(frozen=True, eq=False)
class _Recorded:
    """The test rows as a bundle prepares them, taken like an array so that images are never all in memory."""

    origin: Origin
    bundle: Bundle

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.origin.test), *self.bundle.inputs.shape(self.bundle.recipe))

    def __len__(self) -> int:
        return len(self.origin.test)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        origin, bundle = self.origin, self.bundle
        rows = origin.test[chosen]
        columns = np.zeros((len(rows), 0)) if origin.table is None else bundle.recipe.apply(origin.table, rows)
        images = None if origin.images is None else np.asarray(origin.images[rows])
        absent = {party: gone[chosen] for party, gone in origin.absent.items()}
        return bundle.inputs.prepared(columns, images, absent, bundle.dtype)


def _calibration(told: Mapping[str, Any] | None) -> Calibration | None:
    return None if told is None else Calibration(told["slope"], told["intercept"])


def _looks(origin: Origin) -> np.ndarray:
    """Numbers of the training rows by which later rows are found in or out of distribution."""
    if origin.trained is None:
        return np.asarray(origin.train.x)
    if origin.images is None or origin.trained_on is None:
        return origin.trained
    parts = np.array_split(origin.trained_on, len(origin.trained_on) // LOOKED_AT + 1)
    looks = np.concatenate([looks_of(np.asarray(origin.images[part])) for part in parts])
    return np.concatenate([looks, origin.trained], axis=1)


def _drafted(origin: Origin, folder: Path) -> Bundle:
    """Before anything is chosen."""
    told = model_of(origin.arm, origin.recipe, origin.classes, origin.has_findings, origin.inputs)
    out_of_distribution = by_ranges() if origin.private else by_distance(_looks(origin))
    return Bundle(
        folder,
        {"precision": origin.arm.training.precision, "seed": origin.seed},
        origin.recipe,
        build_model(told, f"arm {origin.asked}", origin.models),
        origin.params,
        origin.buffers,
        origin.classes,
        None if len(origin.classes) > 2 or origin.has_findings else MIDDLE,
        None,
        out_of_distribution,
        origin.vocabulary,
        origin.inputs,
    )


def model_of(
    arm: Arm, recipe: Recipe, classes: Sequence[str], has_findings: bool = False, inputs: Inputs | None = None
) -> dict[str, Any]:
    """What `build_model` takes: the model's name, its settings and the shape of its data."""
    inputs = Inputs() if inputs is None else inputs
    shape: dict[str, Any] = {"inputs": list(inputs.shape(recipe)), "classes": len(classes)}
    shape |= {"findings": True} if has_findings else {}
    shape |= {"parts": _plain([asdict(part) for part in inputs.parts])} if inputs.parts else {}
    return {"kind": arm.model.name, "options": _settings(arm.model.options), "shape": shape}


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """As they build the model again: without those that nobody gave, and without the file of weights to start from,
    which is behind the model and stays where it is."""
    kept = {str(key): one for key, one in options.items() if one is not None and key not in ("weights", "keep_head")}
    return {key: _settings(one) if isinstance(one, Mapping) else _plain(one) for key, one in kept.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _files(origin: Origin, bundle: Bundle) -> dict[str, bytes]:
    leaves = {f"params/{name}": leaf for name, leaf in bundle.params.items()}
    leaves |= {f"buffers/{name}": leaf for name, leaf in bundle.buffers.items()}
    distance = bundle.out_of_distribution
    if distance.kind == "distance":
        leaves |= {
            "out_of_distribution/mean": torch.from_numpy(distance.mean),
            "out_of_distribution/whitening": torch.from_numpy(distance.whitening),
        }
    how = bundle.uncertainty
    leaves |= {} if how is None else tensors_of(how)
    plain = {name: leaf.detach().cpu().contiguous().clone() for name, leaf in leaves.items()}
    words = {"classes": list(origin.classes), "words": dict(sorted(origin.vocabulary.items()))}
    prepared = {**write_recipe(origin.recipe), **write_inputs(origin.inputs)}
    made = {WEIGHTS: save(plain), PREPARATION: as_text(prepared), VOCABULARY: as_text(words)}
    return made if how is None else {**made, UNCERTAINTY: as_text(write_uncertainty(how))}


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
        "region": origin.region,
        "model": model_of(origin.arm, origin.recipe, origin.classes, origin.has_findings, origin.inputs),
        "precision": origin.arm.training.precision,
        "features": list(origin.recipe.names),
        "unrecorded": list(origin.unrecorded),
        "classes": list(origin.classes),
        "threshold": chosen.threshold,
        "calibration": chosen.calibration,
        "uncalibrated": chosen.uncalibrated,
        "findings": list(chosen.findings) or None,
        "out_of_distribution": _about_distribution(bundle.out_of_distribution),
        "rows": {"train": len(origin.train), "validation": len(origin.validation), "test": len(origin.test)},
        "private": origin.private,
    }


def _about_distribution(rule: OutOfDistribution) -> dict[str, Any]:
    return {"kind": rule.kind, "cut": rule.cut} if rule.kind == "distance" else {"kind": rule.kind}
