"""The step of a prediction that explains images: where each predicted finding, or class, is seen."""

import base64
from io import BytesIO

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from wardround.bundles.bundle import Bundle
from wardround.bundles.explain.explained_images import (
    attributed,
    explained_lines,
    highest_points,
    image_scorer,
)
from wardround.bundles.predict.pipeline import Predicting, Types, known
from wardround.core.threads import torch_threads
from wardround.explain.explanation import method_for, output_names
from wardround.explain.localisation import shown


def place_columns(suffixes: list[str], pictures: bool) -> Types:
    columns: dict[str, pa.DataType] = {}
    for suffix in suffixes:
        columns |= {f"highest_x{suffix}": pa.float64(), f"highest_y{suffix}": pa.float64()}
        if pictures:
            columns[f"heat_map{suffix}"] = pa.string()
    return columns


def explain_images_of(rows: Predicting, suffixes: list[str], pictures: bool) -> Predicting:
    """What is not predicted for an image, and an image without a prediction, have nothing."""
    bundle, scored = rows.bundle, np.flatnonzero(~known(rows.scored).unscored)
    groups = len(suffixes)
    x, y = np.full((2, len(rows), groups), np.nan)
    maps = np.full((len(rows), groups), None, dtype=object)
    if len(scored):
        images, output, heat = maps_of_predicted(bundle, rows, scored)
        place = output if groups == len(output_names(bundle.task)) else np.zeros_like(output)
        x[images, place], y[images, place] = highest_points(heat)
        if pictures:
            maps[images, place] = [as_png(one) for one in heat]
    columns: dict[str, pa.Array] = {}
    for number, suffix in enumerate(suffixes):
        columns[f"highest_x{suffix}"] = cells(x[:, number])
        columns[f"highest_y{suffix}"] = cells(y[:, number])
        if pictures:
            columns[f"heat_map{suffix}"] = pa.array(maps[:, number].tolist(), pa.string())
    return rows.adding(columns)


def maps_of_predicted(
    bundle: Bundle, rows: Predicting, scored: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of these images: their numbers, the outputs that are predicted for them, and their maps."""
    scorer = image_scorer(bundle)
    x = torch.from_numpy(known(rows.prepared).x[scored]).to(bundle.dtype)
    with torch_threads(1):
        lines = explained_lines(bundle.task, known(rows.decided).predicted[scored], scorer.all_values(x))
        lines = lines.of(np.flatnonzero(lines.said))
        _, method = method_for(scorer, 0, images=True)
        values, _ = attributed(method, scorer, x, lines, x[:0])
    heat = shown(values) if len(values) else values
    return scored[lines.row], lines.output, heat


def cells(values: np.ndarray) -> pa.Array:
    return pa.array([None if np.isnan(value) else float(value) for value in values], pa.float64())


def as_png(heat: np.ndarray) -> str:
    """In base64: a grey picture of the map, white where it is highest."""
    highest = heat.max()
    grey = np.zeros(heat.shape) if highest <= 0 else 255 * heat / highest
    content = BytesIO()
    Image.fromarray(grey.round().astype(np.uint8)).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()
