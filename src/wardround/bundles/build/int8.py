"""A bundle's model with weights of eight bits, as an ONNX file for small machines: smaller, and less exact.

    dynamic   weights are stored as int8; how activations are scaled is computed anew for each batch of rows
    static    activations have fixed scales too, from training rows of the site, which the file does not hold

Whether the loss of exactness can be borne is decided on validation rows: the upper end of the interval of what the
primary metric loses, paired by row, must not be above what is stated. The loss on test rows is reported beside it, and
decides nothing.

A scale tells how large the largest activation was, and at the input that is a number of one patient. So ranges are
rounded outwards to quarters of an octave before they are stored: a range says the size to 19 per cent.
"""

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from wardround.bundles.build.onnx import INPUT, OUTPUT, import_onnx_package, model_graph
from wardround.bundles.build.run_inputs import LabelledRows
from wardround.bundles.bundle import Bundle
from wardround.core import seeds
from wardround.core.errors import BundleError, StudyError, shown
from wardround.core.silence import without_remarks
from wardround.evaluation.intervals import CONFIDENCE

if TYPE_CHECKING:
    from onnx import ModelProto

Kind = Literal["dynamic", "static"]
KINDS: tuple[Kind, ...] = ("dynamic", "static")
MOST_LOSS = 0.01
LAYERS = ["Conv", "Gemm", "MatMul"]  # whose weights are stored as int8
CALIBRATED_ON = 1000  # training rows at most
MIDDLE = 0.5
LEAST_ROWS = 30  # to calibrate on, and to decide on
RESAMPLES = 1000
OCTAVE_PARTS = 4
BATCH = 256
TIMED = 100
REMEDY = "Leave --int8 out, and use --onnx"


@dataclass(frozen=True)
class Int8:
    """What is asked for. `most_loss` is in the units of the primary metric."""

    kind: Kind
    most_loss: float = MOST_LOSS

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise StudyError("--int8", f"{shown(self.kind)} is not known", f"Write {' or '.join(KINDS)}.")
        if not 0 <= self.most_loss < math.inf:
            raise StudyError("--most-loss", "expected a number of 0 or more", "Write one, such as 0.01.")


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows with what the bundle's own model gives them."""

    rows: LabelledRows
    score: np.ndarray


def quantise(
    bundle: Bundle, asked: Int8, metric: str, train: LabelledRows, validation: Scored, test: Scored
) -> tuple[bytes, dict[str, Any]]:
    """The file, and what is reported of it. Refused where the model loses too much."""
    _refuse_unfit(bundle, asked, train, validation)
    graph = model_graph(bundle)
    content = _quantised(graph, bundle, asked, train)
    decided = loss_of(bundle, content, metric, validation)
    if not decided["interval"][1] <= asked.most_loss:  # also where it is not a number
        raise BundleError(bundle.name, _too_lossy(metric, asked, decided), f"{REMEDY}, or raise --most-loss.")
    return content, {
        "kind": asked.kind,
        "most_loss": asked.most_loss,
        "metric": metric,
        "bytes": {"float32": len(graph.SerializeToString()), "int8": len(content)},
        "calibrated_on": min(len(train), CALIBRATED_ON) if asked.kind == "static" else None,
        "confidence": CONFIDENCE,
        "validation": decided,
        "test": loss_of(bundle, content, metric, test) if len(test.score) else None,
    }


def _refuse_unfit(bundle: Bundle, asked: Int8, train: LabelledRows, validation: Scored) -> None:
    problem = ""
    if bundle.dtype != torch.float32:
        problem = "its model has double precision, which nobody asks for who can do with eight bits"
    elif len(validation.score) < LEAST_ROWS:
        problem = f"whether int8 loses too much is decided on validation rows, and there are fewer than {LEAST_ROWS}"
    elif asked.kind == "static" and len(train) < LEAST_ROWS:
        problem = f"the scales of static int8 come from training rows, and there are fewer than {LEAST_ROWS}"
    if problem:
        raise BundleError(bundle.name, problem, f"{REMEDY}.")


def _too_lossy(metric: str, asked: Int8, decided: dict[str, Any]) -> str:
    if not math.isfinite(decided["interval"][1]):
        return f"what int8 loses of {metric} cannot be told from its {decided['rows']} validation rows"
    low, high = decided["interval"]
    return (
        f"int8 ({asked.kind}) may lose more than {asked.most_loss:g} of {metric}: {decided['loss']:.4f} "
        f"(95 % CI {low:.4f} to {high:.4f}) on {decided['rows']} validation rows"
    )


def loss_of(bundle: Bundle, content: bytes, metric: str, scored: Scored) -> dict[str, Any]:
    """What the metric loses on these rows, above 0 where int8 is worse, with a percentile interval over patients: the
    same patients are drawn for both models."""
    task, label = bundle.task, scored.rows.label
    scores = (scored.score, scores_of(content, scored.rows.x).astype(scored.score.dtype))
    [fact] = [known for known in task.metrics if known.name == metric]
    cuts = bundle.thresholds
    threshold = cuts if len(cuts) > 1 else float(cuts[0]) if len(cuts) else MIDDLE
    sign = -1.0 if fact.lower_is_better else 1.0

    def figures(rows: np.ndarray) -> np.ndarray:
        return np.array([task.figures(label[rows], score[rows], threshold)[metric] for score in scores])

    whole = figures(np.arange(len(label)))
    people = np.arange(len(label)) if scored.rows.people is None else scored.rows.people
    patients, number = np.unique(people, return_inverse=True)
    of_patient = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    rng = seeds.generator(0, "patients drawn for int8")
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(patients), size=len(patients))
        own, other = figures(np.concatenate([of_patient[place] for place in chosen]))
        drawn.append(sign * (own - other))
    known = np.array(drawn)[np.isfinite(drawn)]
    tails = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
    interval = np.percentile(known, tails).tolist() if len(known) >= RESAMPLES // 2 else [math.nan, math.nan]
    return {
        "rows": len(label),
        "patients": len(patients),
        "float32": float(whole[0]),
        "int8": float(whole[1]),
        "loss": float(sign * (whole[0] - whole[1])),
        "interval": interval,
    }


def scores_of(content: bytes, x: Any) -> np.ndarray:
    """Of prepared rows, one or more, by an ONNX file."""
    runtime = import_onnx_package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # each row by itself, as in use: the scales of dynamic int8 depend on the rows that come together
    parts = [
        session.run([OUTPUT], {INPUT: np.ascontiguousarray(x[row : row + 1], dtype=np.float32)})[0]
        for row in range(len(x))
    ]
    return np.concatenate(parts)


def latencies(bundle: Bundle, content: bytes, rows: int = 1) -> dict[str, float]:
    """Milliseconds for one call with so many rows on this machine, of the exact file and of the int8 one, in
    alternation."""
    runtime = import_onnx_package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    files = {"float32": model_graph(bundle).SerializeToString(), "int8": content}
    sessions = {
        name: runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        for name, file in files.items()
    }
    x = np.zeros((rows, *bundle.inputs.shape(bundle.recipe)), dtype=np.float32)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(TIMED):
        for name, session in sessions.items():
            began = time.perf_counter()
            session.run([OUTPUT], {INPUT: x})
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(each) for name, each in times.items()}


def _quantised(graph: "ModelProto", bundle: Bundle, asked: Int8, train: LabelledRows) -> bytes:
    onnx = import_onnx_package("onnx")
    import_onnx_package("onnxruntime")
    plain = type(graph)()
    plain.CopyFrom(graph)
    plain.graph.ClearField("value_info")  # shapes of weights that are stored the other way round below
    with TemporaryDirectory() as folder, without_remarks("root"):
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(plain, before)
        try:
            if asked.kind == "dynamic":
                _dynamic(before, after, any(node.op_type == "Conv" for node in graph.graph.node))
            else:
                _static(before, after, train)
        except Exception as error:  # of an own model, whose graph may be beyond the quantiser
            problem = f"its model cannot be written with int8 ({type(error).__name__})"
            raise BundleError(bundle.name, problem, f"{REMEDY}.") from None
        quantised = onnx.load(after)
    del quantised.metadata_props[:]
    quantised.metadata_props.extend(graph.metadata_props)
    quantised.metadata_props.add(key="wardround.int8", value=asked.kind)
    if not any(part.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) and part.dims for part in
               quantised.graph.initializer):  # fmt: skip
        raise BundleError(bundle.name, "its model has no layer that int8 is for", f"{REMEDY}.")
    return bytes(quantised.SerializeToString(deterministic=True))


def _dynamic(before: Path, after: Path, convolves: bool) -> None:
    library = import_onnx_package("onnxruntime.quantization")
    # onnxruntime has no convolution of signed weights with scales that are computed on the way
    weights = library.QuantType.QUInt8 if convolves else library.QuantType.QInt8
    library.quantize_dynamic(before, after, weight_type=weights, per_channel=not convolves, op_types_to_quantize=LAYERS)


def _static(before: Path, after: Path, train: LabelledRows) -> None:
    library, onnx = import_onnx_package("onnxruntime.quantization"), import_onnx_package("onnx")
    method, types = library.CalibrationMethod.MinMax, library.QuantType
    rng = seeds.generator(0, "rows to calibrate int8 on")
    chosen = np.sort(rng.permutation(len(train))[:CALIBRATED_ON])
    calibrator = library.create_calibrator(before, LAYERS, str(after.with_suffix(".ranges")), calibrate_method=method)
    calibrator.collect_data(_Reader(train, chosen))
    ranges = {
        name: tuple(np.float32(rounded_outwards(float(np.ravel(value)[0]))) for value in data.range_value)
        for name, data in calibrator.compute_data().items()
    }
    quantiser = import_onnx_package("onnxruntime.quantization.qdq_quantizer").QDQQuantizer(
        onnx.load(before),
        per_channel=True,
        reduce_range=False,
        weight_qType=types.QInt8,
        activation_qType=types.QUInt8,
        tensors_range=import_onnx_package("onnxruntime.quantization.calibrate").TensorsData(method, ranges),
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=LAYERS,
        extra_options={},
    )
    quantiser.quantize_model()
    onnx.save(quantiser.model.model, after)


class _Reader:
    """Batches of rows, as onnxruntime asks for them."""

    def __init__(self, rows: LabelledRows, chosen: np.ndarray) -> None:
        self.batches = (
            {INPUT: np.asarray(rows.x[chosen[start : start + BATCH]], dtype=np.float32)}
            for start in range(0, len(chosen), BATCH)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def rounded_outwards(value: float) -> float:
    """To the next quarter of an octave away from 0."""
    if value == 0 or not math.isfinite(value):
        return value
    return math.copysign(2 ** (math.ceil(OCTAVE_PARTS * math.log2(abs(value))) / OCTAVE_PARTS), value)
