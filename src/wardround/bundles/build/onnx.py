"""A bundle's model for other programs: an ONNX file that gives the same scores, or none at all.

The file takes prepared features, as `recipe.apply` makes them, in the model's own precision: it is the model and not
the preparation. Its `metadata_props` say which bundle it is of, what each feature is and what the classes are.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from wardround.bundles.bundle import Bundle
from wardround.core import seeds
from wardround.core.errors import BundleError
from wardround.core.extras import load
from wardround.core.silence import without_remarks

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-5  # the largest difference of a score that may be called the same
RANDOM_ROWS = 1000
MOST_FEATURES = 512  # beyond, a row has an image in it
IMAGES = 32
EXTREMES = (1.0, 10.0, 100.0)  # in prepared units: a standardised column rarely leaves the first two
INPUT, OUTPUT = "features", "scores"
NEEDED = ("onnx", "onnxruntime", "onnxscript")


class Scores(nn.Module):
    """The model as the exporter wants it: weights inside, one input, one output."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        params, buffers = bundle.params, bundle.buffers
        self.model = bundle.model
        # the scale of a number, and an exposure of 1
        self.beside: Tensor
        self.register_buffer("beside", torch.from_numpy(bundle.beside(np.ones((1, len(bundle.task.columns))))))
        self.places = {f"leaf_{place}": name for place, name in enumerate((*params, *buffers))}
        self.trained = set(params)
        for place, name in self.places.items():  # a leaf's own name may hold dots, which torch does not allow here
            self.register_buffer(place, (params if name in params else buffers)[name])

    def forward(self, features: Tensor) -> Tensor:
        leaves = {name: getattr(self, place) for place, name in self.places.items()}
        params = {name: leaf for name, leaf in leaves.items() if name in self.trained}
        buffers = {name: leaf for name, leaf in leaves.items() if name not in self.trained}
        return self.model.task.predictions(self.model.logits(params, buffers, features, None)[0], self.beside)


def export_onnx(bundle: Bundle, out: Path) -> float:
    """Write the bundle's model to `out` and return by how much its scores differ, at most, from the bundle's own.

    It is tested on random and on extreme rows in onnxruntime first. Where a score differs by more than 1e-5, or
    anything else fails, no file is left.
    """
    for name in NEEDED:
        import_onnx_package(name)
    content = model_graph(bundle).SerializeToString()
    difference = largest_difference(bundle, content)
    if not difference <= TOLERANCE:  # also where it is not a number
        problem = f"its scores as ONNX differ from its own by {difference:.1g}, and {TOLERANCE:.0e} is allowed"
        raise BundleError(str(bundle.path), problem, "Leave the ONNX file out, and use `wardround predict`.")
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BundleError(str(out), f"cannot be written ({error.strerror})", "Name another place.") from None
    return difference


def largest_difference(bundle: Bundle, content: bytes) -> float:
    """Between the scores of an ONNX file and those of the bundle, on rows of many kinds. NaN where either has one."""
    runtime = import_onnx_package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rows = trial_rows(bundle.inputs.shape(bundle.recipe))
    features = rows.astype(np.float64 if bundle.dtype == torch.float64 else np.float32)
    expected = np.asarray(bundle.scores(rows), dtype=float)
    scores = np.asarray(session.run([OUTPUT], {INPUT: features})[0], dtype=float)
    if scores.shape != expected.shape:
        return float("nan")
    alone = np.asarray(session.run([OUTPUT], {INPUT: features[:1]})[0], dtype=float)  # one row by itself, as in use
    sizes = bundle.size_of(expected)
    return float(np.abs(np.concatenate([(scores - expected) / sizes, (alone - expected[:1]) / sizes[:1]])).max())


def trial_rows(shape: tuple[int, ...]) -> np.ndarray:
    """Random rows, zeros, each feature at an extreme by itself, and all of them together. Of images fewer, and no
    pixel by itself."""
    rng = seeds.generator(0, "rows to try an export on")
    if len(shape) > 1 or shape[0] > MOST_FEATURES:
        images = [np.zeros((1, *shape)), rng.normal(size=(IMAGES, *shape)), rng.random((IMAGES, *shape))]
        return np.concatenate([*images, *(np.full((1, *shape), sign * size) for size in EXTREMES for sign in (1, -1))])
    [features] = shape
    single = np.concatenate([sign * size * np.eye(features) for size in EXTREMES for sign in (1, -1)])
    together = np.concatenate([np.full((1, features), sign * size) for size in EXTREMES for sign in (1, -1)])
    random = rng.normal(scale=2.0, size=(RANDOM_ROWS, features))
    return np.concatenate([np.zeros((1, features)), random, rng.random((RANDOM_ROWS, features)), single, together])


def model_graph(bundle: Bundle) -> "ModelProto":
    """As the file has it, unchecked."""
    scores = Scores(bundle).eval()
    example = torch.zeros((2, *bundle.inputs.shape(bundle.recipe)), dtype=bundle.dtype)
    rows = torch.export.Dim("rows", min=1)
    with torch.no_grad():
        scores(example)  # a module makes its copy for this thread now: the exporter cannot follow that
        try:
            with without_remarks("torch.onnx"):
                program = torch.onnx.export(
                    scores,
                    (example,),
                    dynamo=True,
                    verbose=False,
                    input_names=[INPUT],
                    output_names=[OUTPUT],
                    dynamic_shapes={"features": {0: rows}},
                )
        except Exception as error:  # the exporter has many kinds, and a model of one's own may be beyond it
            problem = f"its model cannot be written as ONNX ({type(error).__name__})"
            raise BundleError(str(bundle.path), problem, "Leave the ONNX file out.") from None
    if program is None:
        raise BundleError(str(bundle.path), "its model cannot be written as ONNX", "Leave the ONNX file out.")
    graph: ModelProto = program.model_proto
    _describe(graph, bundle)
    return graph


def _describe(graph: "ModelProto", bundle: Bundle) -> None:
    """What the file is of, in place of the exporter's notes, which name folders of this machine."""
    for part in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.initializer):
        for field in ("metadata_props", "doc_string"):
            part.ClearField(field)
    for value in (*graph.graph.input, *graph.graph.output):
        value.ClearField("metadata_props")
    graph.graph.name = str(bundle.about.get("name", "bundle"))
    thresholds = bundle.thresholds.tolist()
    metadata = {
        "bundle": bundle.about.get("id"),
        "features": list(bundle.recipe.names),
        "shape": list(bundle.inputs.shape(bundle.recipe)),
        "task": bundle.task.to_json(),
        "classes": list(bundle.classes),
        "threshold": thresholds[0] if bundle.about["threshold"] is not None else thresholds or None,
    }
    for key, value in metadata.items():
        graph.metadata_props.add(key=f"wardround.{key}", value=value if isinstance(value, str) else json.dumps(value))


def import_onnx_package(name: str) -> Any:
    return load(name, "onnx", "ONNX", instead="leave the ONNX file out")
