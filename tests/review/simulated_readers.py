"""Files as the page writes them, without a browser."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wardround.review.make import KEY
from wardround.runs.audit import AuditLog

Answer = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]  # case, condition, what the key has of the case


def key_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / KEY).read_text(encoding="utf-8")))


def always(answer: int) -> Answer:
    return lambda case, condition, known: {"answer": answer}


def write_decisions(folder: Path, reader: str, file: Path, answer: Answer, most: int | None = None) -> Path:
    key, log = key_of(folder), AuditLog(file)
    turns = key["readers"][reader]
    log.add("reading begun", format=1, list=key["list"], reader=reader, cases=len(turns))
    for code, condition in turns[:most]:
        given = {"answer": 0, "confidence": 3, "refer": False, "milliseconds": 5000}
        given |= answer(code, key["conditions"][condition], key["cases"][code])
        log.add("case decided", case=code, **given)
    if most is None:
        log.add("reading finished", decided=len(turns))
    return file
