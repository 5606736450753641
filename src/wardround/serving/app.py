"""The endpoints: /predict, /health, /schema. No answer and no log ever repeats a value of a request."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from wardround.bundles import STEPS, Bundle, predict_rows
from wardround.bundles.explain.step import EXPLAIN_SERVED
from wardround.core.errors import DataError, WardroundError
from wardround.core.extras import needs
from wardround.serving import guard
from wardround.serving.batches import Batches
from wardround.serving.guard import LARGEST, LARGEST_IMAGES, LOG, OWN_NAMES, Guard, Refused
from wardround.serving.schema import DIALECT, answer_schema, error_schema, most_rows, request_schema, row_schema

with needs("serve", "predictions over HTTP"):
    from fastapi import FastAPI, Request, Response
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.types import ASGIApp

PATHS = ("/predict", "/health", "/schema", "/openapi.json")
SHAPE = 'Send {"rows": [{"COLUMN": value, ...}, ...]}; GET /schema says which columns.'


def make_app(bundle: Bundle, names: Sequence[str] | None = OWN_NAMES) -> ASGIApp:
    """`names` are the hosts that it answers to; None: any."""
    # the pages with documentation load scripts from elsewhere: a hospital's server must not
    api = FastAPI(title=f"wardround: {bundle.name}", docs_url=None, redoc_url=None)
    schema = {"$schema": DIALECT, **row_schema(bundle)}
    body = {"required": True, "content": {"application/json": {"schema": request_schema(bundle)}}}

    plain = Batches(lambda rows: predict_rows(bundle, rows), most_rows(bundle))
    explained = Batches(lambda rows: predict_rows(bundle, rows, None, (*STEPS, EXPLAIN_SERVED)), most_rows(bundle))

    @api.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok", "bundle": bundle.id, "name": bundle.name}

    @api.get("/schema")
    def row() -> dict[str, Any]:
        return schema

    @api.post("/predict", response_class=Response, responses=_responses(bundle), openapi_extra={"requestBody": body})
    async def predict(request: Request) -> Response:
        content = await _content(request, LARGEST if bundle.inputs.arrays is None else LARGEST_IMAGES)
        wanted, explain = _request(content, most_rows(bundle))
        rows = await (explained if explain else plain).answer(wanted)
        return _json(200, {"bundle": bundle.id, "rows": rows})

    async def failed(_: Request, error: Exception) -> Response:
        return _failure(error)

    for kind in (Refused, WardroundError, HTTPException):
        api.add_exception_handler(kind, failed)

    @api.middleware("http")
    async def never_shown(request: Request, call_next: Any) -> Response:
        try:
            response: Response = await call_next(request)
        except Exception as error:  # its message could hold a value
            return _failure(error)
        return response

    return Guard(api, names, PATHS)


async def _content(request: Request, largest: int) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, DataError("request", "its content type is not application/json", SHAPE))
    content, clock = bytearray(), asyncio.get_running_loop().time
    last = clock() + guard.BODY_SECONDS
    try:
        async with asyncio.timeout_at(min(clock() + guard.STALLED_SECONDS, last)) as patience:
            async for part in request.stream():
                patience.reschedule(min(clock() + guard.STALLED_SECONDS, last))
                content += part
                if len(content) > largest:
                    problem = f"it is larger than {largest >> 20} MB"
                    remedy = "Send fewer rows at a time, or use `wardround predict`."
                    raise Refused(413, DataError("request", problem, remedy))
    except TimeoutError:
        raise Refused(408, DataError("request", "its body did not arrive in time", "Send it again.")) from None
    except ClientDisconnect:  # only the log has this
        raise Refused(400, DataError("request", "the client went away", "Send it again.")) from None
    return bytes(content)


def _request(content: bytes, most: int) -> tuple[list[Mapping[str, Any]], bool]:
    """The rows, and whether their predictions are to be explained."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise DataError("request", "it is not JSON", SHAPE) from None
    rows = body.get("rows") if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        raise DataError("request", "there are no rows in it", SHAPE)
    if len(rows) > most:
        problem = f"{len(rows):,} rows, and at most {most:,} are taken at a time"
        raise Refused(413, DataError("request", problem, "Send fewer rows at a time, or use `wardround predict`."))
    strange = next((number for number, row in enumerate(rows) if not isinstance(row, dict)), None)
    if strange is not None:
        raise DataError(f"row {strange} (counted from 0)", "it is no object", SHAPE)
    explain = body.get("explain", False)
    if not isinstance(explain, bool):
        raise DataError("request", "its `explain` is neither true nor false", 'Send {"rows": [...], "explain": true}.')
    return rows, explain


def _failure(error: Exception) -> Response:
    if isinstance(error, Refused):
        answer = _error(error.status, error.error)
        answer.headers["connection"] = "close"  # the rest of its body is not read
        return answer
    if isinstance(error, WardroundError):
        return _error(422, error)
    if isinstance(error, HTTPException):
        known = f"Known: {', '.join(PATHS)}."
        return _error(error.status_code, DataError("request", "there is nothing here for it", known))
    LOG.error("a defect: %s", type(error).__name__)
    return _error(500, DataError("server", "it failed, which is a defect", "Please report it."))


def _error(status: int, error: WardroundError) -> Response:
    return _json(status, {"error": {"where": error.where, "problem": error.problem, "remedy": error.remedy}})


def _json(status: int, content: object) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _responses(bundle: Bundle) -> dict[int | str, dict[str, Any]]:
    error, answer = error_schema(), answer_schema(bundle)
    texts = {
        200: ("Predictions", answer),
        408: ("Too slow", error),
        413: ("Too large", error),
        415: ("Not JSON", error),
        422: ("A column is missing, or a value cannot be read", error),
    }
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, (text, schema) in texts.items()
    }
