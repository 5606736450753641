"""`wardround review make`: a folder with the page for readers and, apart from it, the key.

reading-list.html   for readers: cases, scores, reasons, and what each reader is shown of them; no outcome
key.json            for the study nurse: the row of each case, its outcome, and the design
audit.jsonl         what was done here, hash-chained
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from wardround.bundles.bundle import Bundle, load_bundle
from wardround.core.atomic_files import new_folder, refuse_existing
from wardround.core.errors import StudyError, as_path, suggest
from wardround.review.cases import Case, Question, codes, drawn_cases, question_of, read_cases, strata_of, with_heat
from wardround.review.design import CONDITIONS, Turn, checked_conditions, readings
from wardround.review.page import page_of
from wardround.runs.audit import AuditLog, file_hash

FORMAT = 1
PAGE, KEY, LOG = "reading-list.html", "key.json", "audit.jsonl"
MOST_READERS = 50
MOST_BYTES = 100_000_000  # of a page that a browser opens at once
PIXELS = 512  # of pictures that are files of their own
LEAST_PIXELS, MOST_PIXELS = 16, 1024


def make_list(
    bundle: Bundle | str | PathLike[str],
    data: str | Path,
    *,
    out: str | Path,
    truth: str | None = None,
    readers: int | Sequence[str] = 3,
    conditions: Sequence[str] = ("alone", "score", "reasons"),
    cases: int | None = None,
    finding: str | None = None,
    seed: int = 0,
    pixels: int | None = None,
) -> Path:
    """The folder of a new reading list for rows of a file. `truth` is the column with the outcome; without it,
    agreement, time and referrals are scored, and not who is right. `cases` are drawn of the rows; all, unless given."""
    loaded = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    names, shown = reader_names(readers), _conditions(conditions)
    question = question_of(loaded, finding)
    target = as_path(out, "--out")
    refuse_existing(target)
    size = _pixels(loaded, Path(data), pixels)
    read = read_cases(loaded, data, question, truth, "reasons" in shown, size)
    chosen = drawn_cases(read, cases, seed)
    if len(chosen) < len(shown):
        problem = f"{len(chosen)} cases do not suffice for {len(shown)} conditions"
        raise StudyError("--cases", problem, "Give more rows, or fewer --conditions.")
    if "reasons" in shown and loaded.inputs.images is not None:
        chosen = with_heat(loaded, question, chosen)
    turns = readings(strata_of(chosen), len(names), len(shown), seed)
    by_code = dict(zip(codes(len(chosen), seed), chosen, strict=True))
    content = list_content(loaded, question, by_code, names, shown, turns)
    page = page_of(content).encode()
    if len(page) > MOST_BYTES:
        problem = f"the page would have {len(page) / 1e6:.0f} MB, and {MOST_BYTES / 1e6:.0f} are allowed"
        raise StudyError("--cases", problem, "Draw fewer --cases, or smaller pictures with --pixels.")
    with new_folder(target) as folder:
        (folder / PAGE).write_bytes(page)
        key = key_content(loaded, question, by_code, truth, content)
        (folder / KEY).write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        AuditLog(folder / LOG).add(
            "list made",
            list=content["list"],
            bundle=loaded.id,
            cases=len(chosen),
            readers=len(names),
            conditions=list(shown),
            files={name: file_hash(folder / name) for name in (PAGE, KEY)},
        )
    return target


def reader_names(readers: int | Sequence[str]) -> tuple[str, ...]:
    count = readers if isinstance(readers, int) else len(readers)
    if not 1 <= count <= MOST_READERS:
        raise StudyError("--readers", f"{count} readers", f"Write a number from 1 to {MOST_READERS}.")
    if isinstance(readers, int):
        return tuple(f"reader {number}" for number in range(1, count + 1))
    names = tuple(name.strip() for name in readers)
    if len(set(names)) < len(names) or not all(0 < len(name) <= 40 and name.isprintable() for name in names):
        raise StudyError("--readers", "names are empty, too long, or the same", "Give each reader a short name.")
    return names


def _conditions(names: Sequence[str]) -> tuple[str, ...]:
    known = checked_conditions(names)
    if not known:
        wrong = next((name for name in names if name not in CONDITIONS), None)
        problem = "expected some of the conditions, each once"
        raise StudyError("--conditions", problem, suggest(wrong or "", CONDITIONS, "Conditions"))
    return known


def _pixels(bundle: Bundle, data: Path, pixels: int | None) -> int | None:
    if pixels is not None and bundle.inputs.images is None:
        raise StudyError("--pixels", "the bundle takes no images", "Leave it out.")
    if pixels is not None and not LEAST_PIXELS <= pixels <= MOST_PIXELS:
        raise StudyError("--pixels", f"{pixels} pixels", f"Write a number from {LEAST_PIXELS} to {MOST_PIXELS}.")
    if bundle.inputs.images is None or pixels is not None:
        return pixels
    return None if data.suffix == ".npz" else max(PIXELS, bundle.inputs.images.shape[1])


def list_content(
    bundle: Bundle,
    question: Question,
    cases: Mapping[str, Case],
    readers: Sequence[str],
    conditions: Sequence[str],
    turns: Sequence[Sequence[Turn]],
) -> dict[str, Any]:
    """What the page holds. `list` is the hash of the rest. There is no outcome in it."""
    names = list(cases)
    content: dict[str, Any] = {
        "format": FORMAT,
        "title": bundle.name,
        "question": question.about,
        "answers": list(question.answers),
        "conditions": [{"name": name, "words": CONDITIONS[name]} for name in conditions],
        # in the order of the file, rows would tell where they stand, and files are often sorted by outcome
        "cases": {code: _shown(case, conditions) for code, case in sorted(cases.items())},
        "readers": [
            {"name": name, "turns": [[names[turn.case], turn.condition] for turn in own]}
            for name, own in zip(readers, turns, strict=True)
        ],
    }
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()
    return {"list": digest, **content}


def _shown(case: Case, conditions: Sequence[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"columns": [list(pair) for pair in case.shown], "image": case.image}
    if set(conditions) - {"alone"}:
        shown |= {"scores": [round(score, 4) for score in case.scores], "predicted": case.predicted}
    if "reasons" in conditions:
        shown |= {"reasons": [[name, round(value, 4)] for name, value in case.reasons], "heat": case.heat}
    return shown


def key_content(
    bundle: Bundle, question: Question, cases: Mapping[str, Case], truth: str | None, content: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "list": content["list"],
        "bundle": bundle.id,
        "truth": truth,
        "question": question.about,
        "answers": list(question.answers),
        "conditions": [condition["name"] for condition in content["conditions"]],
        "cases": {
            code: {"row": case.row, "truth": case.truth, "predicted": case.predicted} for code, case in cases.items()
        },
        "readers": {reader["name"]: reader["turns"] for reader in content["readers"]},
    }
