"""What a request and an answer look like, as JSON schemas made from the bundle."""

from typing import Any

from wardround.bundles import Bundle
from wardround.bundles.explain.explained_images import takes_images
from wardround.bundles.explain.step import reason_columns
from wardround.bundles.predict.images import IMAGE
from wardround.bundles.predict.pipeline import PredictOptions
from wardround.bundles.predict.predict import output_columns, required_columns
from wardround.bundles.predict.recordings import SAMPLING_RATE, SIGNALS, TIME, VISITS
from wardround.bundles.signals import Signals
from wardround.data.records import Column
from wardround.uncertainty.decision import TEXTS

MOST_ROWS = 10_000
MOST_IMAGES = 64
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Json = dict[str, Any]
_IMAGE: Json = {
    "type": "string",
    "contentEncoding": "base64",
    "description": "The content of a PNG, JPEG or DICOM file, in base64.",
}


_NUMBERS: Json = {"type": "array", "minItems": 1, "items": {"type": ["number", "null"]}}


def _signals(signals: Signals) -> Json:
    """A recording, or a patient's visits."""
    if signals.rate is None:
        names = (TIME, *signals.channels[:-1])
        cells = {name: {"type": ["number", "null"]} for name in names}
        visit: Json = {"type": "object", "required": [TIME], "properties": cells}
        return {VISITS: {"type": "array", "minItems": 1, "items": visit}}
    channels = ", ".join(signals.channels)
    return {
        SIGNALS: {
            "type": "array",
            "minItems": 1,
            "items": _NUMBERS,
            "description": f"A list for each channel ({channels}, unless `channels` names others). null: no value.",
        },
        SAMPLING_RATE: {"type": "number", "exclusiveMinimum": 0, "description": "Samples in a second."},
    }


_EXPOSURE: Json = {
    "type": ["number", "string", "null"],
    "description": "The row's exposure, such as its time at risk: a number above 0, or a text of it. Without it there "
    "is no prediction.",
}


def row_schema(bundle: Bundle) -> Json:
    """One row: every column that the bundle needs, by its name in the hospital's files."""
    required = required_columns(bundle)
    names = [*required.needed, *required.optional, *(name for party in required.parties for name in party)]
    by_name = {column.own_name: column for column in reversed(bundle.recipe.columns)}
    by_name |= {c.own_name: c for c in bundle.recipe.columns if c.name not in bundle.unrecorded}
    image = {IMAGE: _IMAGE} if bundle.inputs.images is not None else {}
    image = image if bundle.inputs.signals is None else _signals(bundle.inputs.signals)
    return {
        "title": bundle.name,
        "type": "object",
        "required": [*image, *required.needed],
        "properties": {
            **image,
            **{name: _column(bundle, by_name[name]) for name in names if name in by_name},
            **dict.fromkeys(bundle.task.columns, _EXPOSURE),
        },
        "additionalProperties": True,  # ignored, as in a file
    }


def most_rows(bundle: Bundle) -> int:
    """That are taken at a time."""
    return MOST_ROWS if bundle.inputs.arrays is None else MOST_IMAGES


def request_schema(bundle: Bundle) -> Json:
    rows = {"type": "array", "minItems": 1, "maxItems": most_rows(bundle), "items": row_schema(bundle)}
    where = "where in the image" if takes_images(bundle) else "in which columns"
    explain = {"type": "boolean", "description": f"Whether to add {where} the model finds what raises each score."}
    may_explain = {"explain": explain} if may_be_explained(bundle) else {}
    return {"type": "object", "required": ["rows"], "properties": {"rows": rows, **may_explain}}


def may_be_explained(bundle: Bundle) -> bool:
    """Not where rows are images together with columns, or signals."""
    return bundle.inputs.arrays is None or takes_images(bundle)


def answer_schema(bundle: Bundle) -> Json:
    limits = bundle.answer.limits
    kinds: Json = {
        "double": {
            "type": ["number", "null"],
            **({} if limits is None else {"minimum": limits[0], "maximum": limits[1]}),
        },
        "bool": {"type": ["boolean", "null"]},
        "string": {"type": ["string", "null"]},
    }
    properties: Json = {name: kinds[str(kind)] for name, kind in output_columns(bundle).columns.items()}
    properties |= {name: {"type": "boolean"} for name in ("out_of_distribution", "refer") if name in properties}
    properties |= {name: {"type": "string"} for name in ("absent", "why") if name in properties}
    reasons = ", ".join(map(repr, TEXTS.values()))
    empty = "Empty if and only if refer is false." if "refer" in properties else "Empty where there is none."
    properties["why"]["description"] = f"Every reason to look at the row, of these, with columns: {reasons}. {empty}"
    if bundle.answer.cells == "text":
        properties |= {name: {"enum": [*bundle.classes, None]} for name in bundle.answer.predicted_columns}
    if limits is None:
        what = bundle.answer.purpose
        properties |= {
            name: {**properties[name], "description": f"{what[:1].upper()}{what[1:]}."} for name in bundle.answer.scores
        }
    required = list(properties)
    if may_be_explained(bundle):
        reasons_of = {"double": {"type": ["number", "null"]}, "string": {"type": ["string", "null"]}}
        told = reason_columns(bundle, PredictOptions(), pictures=True)
        properties |= {name: reasons_of[str(kind)] for name, kind in told.items()}
    row = {"type": "object", "required": required, "properties": properties}
    return {
        "type": "object",
        "required": ["bundle", "rows"],
        "properties": {"bundle": {"type": "string"}, "rows": {"type": "array", "items": row}},
    }


def error_schema() -> Json:
    texts = {key: {"type": "string"} for key in ("where", "problem", "remedy")}
    error = {"type": "object", "required": list(texts), "properties": texts}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _column(bundle: Bundle, column: Column) -> Json:
    """Ranges and levels are described and not demanded: a row beyond them is predicted and marked."""
    if column.dates:
        return {"type": ["string", "null"], "description": "A date, as yyyy-mm-dd. null: a gap."}
    description = "A number, or a text of it. null: a gap."
    schema: Json = {"type": ["number", "string", "null"]}
    if column.kind == "categorical":
        description = "A level. null: a gap."
        levels = bundle.recipe.layout.levels.get(column.name, column.levels)
        schema |= {"examples": list(levels)} if levels else {}
    elif column.limits is not None:
        description += f" Known range: {column.limits[0]:g} to {column.limits[1]:g}."
    if column.name in bundle.unrecorded:
        description += " May be left out: this site did not record it, and it is not used."
    return {**schema, "description": description}
