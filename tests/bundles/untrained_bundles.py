"""Bundles without a run: a folder that is sealed as `make_bundle` seals it, with weights that nobody trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from wardround.bundles import Bundle, load_bundle
from wardround.bundles.bundle import build_model
from wardround.bundles.sealed_files import ABOUT, CARD, FORMAT, PREPARATION, VOCABULARY, WEIGHTS, as_text, seal
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.data.serialization import write_recipe
from wardround.study.schema import Preparation
from wardround.tasks import class_task


def numeric_recipe(columns: tuple[str, ...]) -> Recipe:
    numeric = tuple(Column(name) for name in columns)
    fit = Fit(dict.fromkeys(columns, 0.5), {}, np.zeros(len(columns)), np.ones(len(columns)))
    return Recipe(numeric, Layout(numeric, {}, ()), fit, Preparation())


def write_bundle(
    folder: Path,
    *,
    kind: str = "logistic",
    options: Mapping[str, Any] | None = None,
    columns: tuple[str, ...] = ("age", "crp", "sodium"),
    prepared_by: Recipe | None = None,
    classes: tuple[str, ...] = ("no", "yes"),
    precision: str = "float32",
    weights: int = 0,
    of_format: int = FORMAT,
    **about: Any,
) -> Path:
    """`weights` is the seed of the weights; other keywords go into bundle.json as they are."""
    recipe = numeric_recipe(columns) if prepared_by is None else prepared_by
    width = len(recipe.names)
    model = {
        "kind": kind,
        "options": dict(options or {}),
        "shape": {"inputs": [width], "classes": len(classes)},
    }
    params, buffers = build_model(model, class_task(classes), "by hand", None).init(weights)
    rng = np.random.default_rng(weights)
    dtype = torch.float64 if precision == "float64" else torch.float32
    leaves = {f"params/{name}": torch.tensor(rng.normal(size=leaf.shape), dtype=dtype) for name, leaf in params.items()}
    leaves |= {f"buffers/{name}": leaf for name, leaf in buffers.items()}
    leaves |= {
        "out_of_distribution/mean": torch.zeros(width).double(),
        "out_of_distribution/whitening": torch.eye(width).double(),
    }
    files = {
        WEIGHTS: save(leaves),
        PREPARATION: as_text(write_recipe(recipe)),
        VOCABULARY: as_text({"words": {}}),
        CARD: b"# A model that nobody trained\n",
    }
    description: dict[str, Any] = {
        "format": of_format,
        "name": "heart-fedavg-north",
        "made": "2026-01-02T03:04:05+00:00",
        "study": {"name": "heart", "hash": "a" * 64},
        "arm": "fedavg",
        "seed": 1,
        "site": "north",
        "model": model,
        "precision": precision,
        "classes": list(classes),
        "threshold": {"value": 0.5} if len(classes) == 2 else None,
        "calibration": None,
        "out_of_distribution": {"kind": "distance", "cut": 3.0},
        "unrecorded": [],
        **about,
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / ABOUT).write_bytes(seal(description, files))
    return folder


def made(folder: Path, **settings: Any) -> Bundle:
    return load_bundle(write_bundle(folder, **settings))
