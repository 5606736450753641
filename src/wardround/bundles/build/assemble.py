"""The one builder of bundles: from an `Origin` to a folder, which is written under another name, loaded again, compared
with what was predicted before, and only then renamed.
"""

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from wardround.bundles.build.int8 import Int8, Scored, quantise
from wardround.bundles.build.origin import Origin, OtherRows
from wardround.bundles.build.run_inputs import LabelledRows, LazyRows
from wardround.bundles.build.validation_choices import (
    MIDDLE,
    OperatingPoint,
    choose_events,
    choose_uncertainty,
    evaluate_uncertainty,
)
from wardround.bundles.bundle import Bundle, Event, build_model, load_bundle, read_events, shape_of
from wardround.bundles.card.card import card_of
from wardround.bundles.card.markdown import render
from wardround.bundles.explain.card_explanation import card_explanation
from wardround.bundles.inputs import Inputs, write_inputs
from wardround.bundles.out_of_distribution import by_distance, by_ranges
from wardround.bundles.sealed_files import (
    ABOUT,
    CARD,
    FORMAT,
    INT8,
    INT8_REPORT,
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
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.data.prepare import Recipe
from wardround.data.serialization import write_recipe
from wardround.study.schema import Arm
from wardround.tasks import Task

LOOKED_AT = 1024  # images at a time
TOLERANCE = 1e-6  # by which scores may differ from those that the run saved


class OtherScores(BundleError):
    """The bundle does not predict what the run has predicted."""


def bundle_name(study: str, arm: str, site: str, region: str | None = None, outcome: str = "") -> str:
    return plain_name("-".join(filter(None, (study, arm, region, site, outcome))))


def plain_name(text: str) -> str:
    """Fit for a folder: fedprox[mu=0.1] becomes fedprox-mu-0.1."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "bundle"


def build_bundle(origin: Origin, out: Path, onnx: bool = False, int8: Int8 | None = None) -> Path:
    """The bundle's folder. It appears as a whole, and only if it predicts what the run predicted."""
    # for rows of few numbers one thread is faster, and a forked process could not use this one's threads
    threads = torch_threads(1) if origin.data.images is None else nullcontext()
    with new_folder(out) as folder, threads:
        _fill(origin, folder, onnx, int8)
    return out


def _fill(origin: Origin, folder: Path, onnx: bool, int8: Int8 | None) -> None:
    bundle = _drafted(origin, folder)
    scores, label = bundle.scores(origin.validation.x, origin.validation.y), origin.validation.label
    chosen = choose_events(bundle.task, label, scores, origin.private, origin.data.thresholds)
    bundle = replace(bundle, events=read_events(chosen.described()))
    uncertainty = choose_uncertainty(
        bundle, origin.train, origin.validation, origin.private, origin.facts.arm.uncertainty, origin.posterior
    )
    bundle = replace(bundle, uncertainty=uncertainty)
    files = _files(origin, bundle)
    about = _about(origin, bundle, chosen)
    hashes = {name: sha256(content).hexdigest() for name, content in files.items()}
    test, (label, score) = _test_rows(origin, bundle), origin.saved
    evaluation = None if origin.private else evaluate_uncertainty(bundle, uncertainty, test, score, label)
    about["card"] = card_of(origin.facts, bundle, about, score, label, hashes, evaluation)
    about["card"]["explanation"] = card_explanation(bundle, test, origin.private)
    files[CARD] = render(about["card"]).encode()
    about["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / ABOUT).write_bytes(seal(about, files))
    loaded = load_bundle(folder, origin.models)
    refuse_unequal(origin, loaded)
    if onnx:
        from wardround.bundles.build.onnx import export_onnx

        export_onnx(loaded, folder / ONNX)
        files[ONNX] = (folder / ONNX).read_bytes()
    if int8 is not None:
        files |= _quantised(origin, loaded, int8, test)
        for name in (INT8, INT8_REPORT):
            (folder / name).write_bytes(files[name])
    if onnx or int8 is not None:
        (folder / ABOUT).write_bytes(seal(about, files))
        load_bundle(folder, origin.models)


def _quantised(origin: Origin, bundle: Bundle, asked: Int8, test: LazyRows) -> dict[str, bytes]:
    if origin.private:
        problem = "in a study that protects patients, whether int8 loses too much would be read off rows without noise"
        raise BundleError(str(bundle.path), problem, "Leave --int8 out.")
    metric = origin.facts.study.evaluation.metric or bundle.task.primary
    label, score = origin.saved
    tested = LabelledRows(test, origin.test_target, label, origin.test_people)
    validation = Scored(origin.validation, bundle.scores(origin.validation.x, origin.validation.y))
    content, report = quantise(bundle, asked, metric, origin.train, validation, Scored(tested, score))
    return {INT8: content, INT8_REPORT: as_text(report)}


def refuse_unequal(origin: Origin, bundle: Bundle) -> None:
    """The bundle as it was written and loaded again, from recorded rows to scores, against what the run saved."""
    beside = bundle.beside(origin.task.columns_in(origin.test_target))
    scores = bundle.scores(_test_rows(origin, bundle), beside)
    where = f"bundle of {origin.facts.requested_arm} at {origin.facts.site}, seed {origin.facts.seed}"
    saved = origin.saved.score
    if scores.shape != saved.shape:
        raise OtherRows(where, "predicts other rows than the run saved", "Run the study again with --again.")
    apart = np.abs(scores.astype(np.float64) - saved.astype(np.float64)) / bundle.size_of(saved)
    difference = apart.max(initial=0.0)
    if not difference <= TOLERANCE:
        problem = f"its scores differ from those in the run by up to {difference:.2g}, more than {TOLERANCE:g}"
        raise OtherScores(
            where, problem, "Run the study again with --again on this machine, and report it if it stays."
        )


def _test_rows(origin: Origin, bundle: Bundle) -> LazyRows:
    """As the bundle prepares them."""
    data = origin.data

    def take(selected: np.ndarray) -> np.ndarray:
        rows = origin.test[selected]
        columns = np.zeros((len(rows), 0)) if data.table is None else bundle.recipe.apply(data.table, rows)
        images = None if data.images is None else np.asarray(data.images[rows])
        missing = {party: lacking[selected] for party, lacking in data.missing_parties.items()}
        return bundle.inputs.prepared(columns, images, missing, bundle.dtype)

    return LazyRows((len(origin.test), *bundle.inputs.shape(bundle.recipe)), take)


def _looks(origin: Origin) -> np.ndarray:
    """Numbers of the training rows, by which a later row is in or out of distribution."""
    data = origin.data
    if data.training_columns is None:
        return np.asarray(origin.train.x)
    if data.images is None or data.training_images is None:
        return data.training_columns
    parts = np.array_split(data.training_images, len(data.training_images) // LOOKED_AT + 1)
    arrays = data.inputs.arrays
    if arrays is None:
        raise ValueError("rows with arrays have a description of them")
    looks = np.concatenate([arrays.looks_of(np.asarray(data.images[part])) for part in parts])
    return np.concatenate([looks, data.training_columns], axis=1)


def _drafted(origin: Origin, folder: Path) -> Bundle:
    """Before anything is chosen."""
    return Bundle(
        folder,
        {"precision": origin.facts.arm.training.precision, "seed": origin.facts.seed},
        origin.data.recipe,
        build_model(_model_of(origin), origin.task, f"arm {origin.facts.requested_arm}", origin.models),
        origin.params,
        origin.buffers,
        tuple(Event(MIDDLE, None) for _ in origin.task.answer.events),
        by_ranges() if origin.private else by_distance(_looks(origin)),
        origin.vocabulary,
        origin.data.inputs,
        origin.scale,
    )


def _model_of(origin: Origin) -> dict[str, Any]:
    description = model_of(origin.facts.arm, origin.data.recipe, origin.task, origin.data.inputs)
    if origin.together is not None:
        description["shape"] |= {"outcomes": origin.together.to_json(), "outcome": origin.outcome}
    return description


def model_of(arm: Arm, recipe: Recipe, task: Task, inputs: Inputs) -> dict[str, Any]:
    """What `build_model` takes: the model's name, its settings and the shape of its data."""
    shape: dict[str, Any] = {"inputs": inputs.shape(recipe), **shape_of(task)}
    shape |= {"parts": [asdict(part) for part in inputs.parts]} if inputs.parts else {}
    description = {"kind": arm.model.name, "options": _settings(arm.model.options), "shape": shape}
    return dict(json.loads(json.dumps(description)))  # plain lists and dicts


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that were not set, and without the weights that training started from: they are not needed."""
    return {
        str(key): _settings(value) if isinstance(value, Mapping) else value
        for key, value in options.items()
        if value is not None and key not in ("weights", "keep_head")
    }


def serialized(leaves: Tree) -> bytes:
    return save({name: leaf.detach().cpu().contiguous().clone() for name, leaf in leaves.items()})


def _files(origin: Origin, bundle: Bundle) -> dict[str, bytes]:
    leaves = {f"params/{name}": leaf for name, leaf in bundle.params.items()}
    leaves |= {f"buffers/{name}": leaf for name, leaf in bundle.buffers.items()}
    if bundle.out_of_distribution.kind == "distance":
        leaves["out_of_distribution/mean"] = torch.from_numpy(bundle.out_of_distribution.mean)
        leaves["out_of_distribution/whitening"] = torch.from_numpy(bundle.out_of_distribution.whitening)
    leaves |= {} if bundle.uncertainty is None else tensors_of(bundle.uncertainty)
    spellings = {"classes": list(bundle.answer.classes), "words": dict(sorted(origin.vocabulary.items()))}
    preparation = {**write_recipe(bundle.recipe), **write_inputs(bundle.inputs)}
    files = {WEIGHTS: serialized(leaves), PREPARATION: as_text(preparation), VOCABULARY: as_text(spellings)}
    if bundle.uncertainty is not None:
        files[UNCERTAINTY] = as_text(write_uncertainty(bundle.uncertainty))
    return files


def _about(origin: Origin, bundle: Bundle, chosen: OperatingPoint) -> dict[str, Any]:
    rule, facts = bundle.out_of_distribution, origin.facts
    return {
        "format": FORMAT,
        "name": bundle_name(facts.study.name, facts.requested_arm, facts.site, facts.region, facts.outcome),
        "wardround": version("wardround"),
        "study": {"name": facts.study.name, "hash": facts.study.hash},
        "run": origin.run,
        "arm": facts.requested_arm,
        "trained_as": facts.arm.name,
        "seed": facts.seed,
        "site": facts.site,
        "region": facts.region,
        "model": _model_of(origin),
        "precision": facts.arm.training.precision,
        "features": list(bundle.recipe.names),
        "unrecorded": list(origin.unrecorded),
        "task": origin.task.to_json(),
        "classes": list(bundle.answer.classes),
        **({"target_scale": list(origin.scale)} if origin.scale else {}),
        **chosen.described(),
        "out_of_distribution": {"kind": rule.kind, **({"cut": rule.cut} if rule.kind == "distance" else {})},
        "rows": {"train": len(origin.train), "validation": len(origin.validation), "test": len(origin.test)},
        "private": origin.private,
        "trained": [dict(training) for training in origin.trained],
    }
