"""Write docs/reference/protocol.md, and the table of what leaves a hospital in docs/how-to/join-as-a-hospital.md, from
the messages as `protocol/catalogue.py` declares them.

With `--measure` the demonstration is run anew, open and private, and the bytes of each answer of one hospital are
taken from its audit log.
"""

import inspect as inspect_source
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, inspect, structs

from wardround.protocol import catalogue
from wardround.protocol.catalogue import PROTOCOL, REFUSALS, REQUESTS, Answer, Body, End
from wardround.protocol.messages import Head
from wardround.protocol.values import Part

DOCS = Path(__file__).parents[1] / "docs"
PAGE, HOSPITALS_PAGE = DOCS / "reference" / "protocol.md", DOCS / "how-to" / "join-as-a-hospital.md"
SIZES = Path(__file__).parent / "message_sizes.json"
MEASURED_AT = "va"
BEGIN, END = "<!-- what leaves: generated from protocol/catalogue.py -->", "<!-- end of what leaves -->"
ENDS: tuple[End, ...] = ("site", "region", "party")

# What a field means wherever it stands, unless a comment behind it in the catalogue says otherwise.
MEANINGS: Mapping[str, str] = {
    "charges": "by hospital: rate, noise and steps of what its patients were charged",
    "classes": "rows of each class; none where too few patients are behind it",
    "columns": "as all use them; none for images",
    "commons": "by kind of arm: values that sites have from each other",
    "confirmations": "their signatures under the list of survivors",
    "counted": "the last round in which the site's update counted; -1: none",
    "described": "rows, classes and ages",
    "directions": "by column: which way it goes with the label, and the error of that",
    "epochs": "passes over the training rows that were made, or may be",
    "facts": "of the columns; none for images and for columns that nobody needs to know",
    "figures": "of the models that were to be scored, by model and rows",
    "fill": "by numeric column: the value that stands for a missing one",
    "fill_values": "by kind of arm",
    "gone": "hospitals that left meanwhile: nothing else is said",
    "groups": "by sex and by age",
    "indicators": "columns for which the model has an input that says that the value is missing",
    "inputs": "shape of an image; none for columns",
    "keys": "shares of the mask keys of those whose vectors did not arrive",
    "kind": "what it is",
    "layouts": "inputs of the models",
    "left": "hospitals that left their region, and why",
    "level": "by column: the category that stands for a missing one",
    "levels": "categories that occur, by column",
    "loss": "mean loss of training; none where it is protected",
    "moments": "by kind of arm: sums over training rows",
    "name": "as the site's file has it",
    "of": "by kind of arm: which of the layouts",
    "prepare": "what was agreed, for a site that was away then",
    "present": "by column: whether there is any value",
    "round": "the number of a round or a step, from 0 on; in a region's report from 1 on",
    "rows": "rows behind it",
    "run": "name of the run, which its coordinator has drawn",
    "score": "models that are to be scored",
    "score_sum": "sum of the scores",
    "sets": "by set of rows",
    "shapes": "how many numbers a party gives of a row, by kind of arm",
    "signature": "with the key of the kit",
    "site": "whose it is",
    "sites": "names of hospitals",
    "small_classes": "classes of too few patients",
    "squares": "sum of squares",
    "sum": "the secure sum as far as it has come",
    "summaries": "by model and rows",
    "target": "sums of what is predicted",
    "target_scales": "by kind of arm: the scale of what is predicted",
    "task": "what is predicted",
    "trials": "by the number of the model",
    "versions": "of packages",
    "wave": "the number of a group of models that train together",
    "waves": "groups of models that train together",
    "weight": "weight of the updates behind a model",
    "without": "by other party: as if it had been missing",
}
HEAD = {
    "protocol": "the version; both ends must have the same",
    "kind": "of the message",
    "site": "the receiver of a request, the sender of an answer",
    "log": "head of the sender's audit log",
    "body": "the fields below",
    "order": "names of the tensors, in their order",
}
INTRODUCTION = f"""# The protocol

Every message between a coordinator and a site, a region or a party, with its fields and their limits. This page is
generated from `src/wardround/protocol/catalogue.py` (`python scripts/write_protocol_page.py`).

This is **version {PROTOCOL}**. A message of another version is answered with one sentence that names both, and nothing
is done with it. A message with a field that is unknown, missing, of another type or beyond its limit is refused whole,
before anybody looks at a value.

A message is three byte strings: the head (JSON), the tensors (safetensors) and a signature over both (ECDSA, P-384,
with the keys of the kits). The head:

"""
ENDS_EXPLAINED = """
A request goes from a coordinator to a hospital (site), to the coordinator of a region, or to a party of a vertical
study. Each answers with one kind of answer, which repeats `run`, `wave` and `round` of the request, or with `refused`
or `failed`. What may be left out is said; *none* is `null`; a limit behind ≤ is that of characters in a text, or of
entries in a list or a table.

"""


def page() -> str:
    parts: dict[str, type[Struct]] = {}
    head = [[f"`{name}`", meaning] for name, meaning in HEAD.items()]
    if set(HEAD) != {field.name for field in structs.fields(Head)}:
        raise SystemExit("HEAD has other fields than the head of a message")
    asked = [
        [
            f"[`{request.kind}`](#{_title(request).replace(' ', '-')})",
            _doc(request),
            *(_answer_cell(request.answers, end) for end in ENDS),
        ]
        for request in REQUESTS
    ]
    sections = "".join(_section(request, parts) for request in REQUESTS)
    sections += "## Instead of an answer\n\n"
    sections += "".join(_message(answer, answer.kind, parts) for answer in REFUSALS.values())
    return "".join(
        (
            INTRODUCTION,
            _table(["field", "meaning"], head),
            ENDS_EXPLAINED,
            _table(["request", "asks", *(f"answer of a {end}" for end in ENDS)], asked),
            f"\n{sections}",
            "## Parts\n\n",
            _all_parts(parts),
        )
    )


def leaving() -> str:
    """The table of what leaves a hospital, with the bytes that were measured."""
    sizes, rows = read_sizes(), []
    for request in REQUESTS:
        answer = request.answers.get("site")
        if answer is None:
            continue
        asks = _doc(request).removesuffix(".")
        asked = f"`{request.kind}`" + (f": {asks[0].lower()}{asks[1:]}" if asks else "")
        rows.append([asked, answer.leaves, answer.when, _bytes(sizes["answers"].get(request.kind))])
    for refusal in REFUSALS.values():
        said = _doc(refusal)
        rows.append(
            [REFUSAL_TITLES[refusal.kind], f"`{refusal.kind}`: {said[0].lower()}{said[1:]}", "", "a few hundred"]
        )
    return _table(["request of the coordinator", "answer of your site", "when", "bytes"], rows)


REFUSAL_TITLES = {"refused": "anything that you do not allow", "failed": "anything that goes wrong"}


def hospitals_page(text: str) -> str:
    """The page with its table written anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{leaving()}{END}{rest.split(END)[1]}"


def read_sizes() -> dict[str, Any]:
    sizes: dict[str, Any] = json.loads(SIZES.read_text(encoding="utf-8"))
    return sizes


def measure() -> dict[str, Any]:
    """Smallest and largest answer to each kind of request, in two runs: in the clear, and with secure sums."""
    from wardround.deployment import run_demo

    answers: dict[str, list[int]] = {}
    for private in (False, True):
        with TemporaryDirectory() as folder:
            run_demo(Path(folder) / "demo", lambda line: None, private)
            log = Path(folder) / "demo" / "sites" / MEASURED_AT / "state" / "audit.jsonl"
            known = set(answers)
            for line in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
                detail = line["detail"]
                if line["event"] == "answered" and detail["kind"] not in known:
                    answers.setdefault(detail["kind"], []).append(detail["bytes"])
    return {"site": MEASURED_AT, "answers": {kind: [min(sizes), max(sizes)] for kind, sizes in answers.items()}}


def undescribed() -> Iterator[str]:
    """Fields of messages whose meaning is nowhere."""
    for cls in _all_structs():
        for field in structs.fields(cls):
            if not _meaning(cls, field.name):
                yield f"{cls.__name__}.{field.name}"


def _all_structs() -> list[type[Struct]]:
    return [
        value
        for value in vars(catalogue).values()
        if isinstance(value, type) and issubclass(value, Part) and value.__module__ == catalogue.__name__
    ]


def _section(request: type[catalogue.Request], parts: dict[str, type[Struct]]) -> str:
    lines = _message(request, _title(request), parts)
    shown: list[type[Body]] = []
    for answer in request.answers.values():
        if answer in shown:
            continue
        shown.append(answer)
        ends = " or ".join(f"a {end}" for end in ENDS if request.answers.get(end) is answer)
        lines += _message(answer, f"Answer of {ends}: `{answer.kind}`", parts, level=3)
    return lines


def _title(request: type[catalogue.Request]) -> str:
    """Sites and regions are asked the same in other words."""
    alike = [other for other in REQUESTS if other.kind == request.kind]
    ends = " or ".join(f"a {end}" for end in ENDS if end in request.answers)
    return request.kind if len(alike) == 1 else f"{request.kind} to {ends}"


def _message(cls: type[Struct], title: str, parts: dict[str, type[Struct]], level: int = 2) -> str:
    doc = _doc(cls)
    repeated = {field.name for field in structs.fields(Answer)} if issubclass(cls, Answer) else set()
    known = inspect.type_info(cls)
    fields = [field for field in getattr(known, "fields", ()) if field.name not in repeated]
    rows = [[f"`{field.name}`", *_described(cls, field, parts)] for field in fields]
    table = _table(["field", "type", "meaning"], rows) if rows else "Nothing else.\n"
    return f"{'#' * level} {title}\n\n" + (f"{doc}\n\n" if doc else "") + f"{table}\n"


def _described(cls: type, field: inspect.Field, parts: dict[str, type[Struct]]) -> list[str]:
    meaning = _meaning(cls, field.name)
    return [_type(field.type, parts), meaning if field.required else f"{meaning} (may be left out)"]


def _all_parts(parts: dict[str, type[Struct]]) -> str:
    """Parts of parts are found while their holders are written."""
    written: dict[str, str] = {}
    while waiting := [name for name in parts if name not in written]:
        for name in waiting:
            written[name] = _message(parts[name], name, parts, level=3)
    return "".join(written[name] for name in sorted(written)).rstrip("\n") + "\n"


def _type(kind: Any, parts: dict[str, type[Struct]]) -> str:
    """In short: lists and tables with what they hold, and limits behind `\u2264`."""
    match kind:
        case inspect.StructType():
            parts[kind.cls.__name__] = kind.cls
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case inspect.UnionType():
            known = [_type(one, parts) for one in kind.types if not isinstance(one, inspect.NoneType)]
            none = any(isinstance(one, inspect.NoneType) for one in kind.types)
            return " or ".join([*known, *(["none"] if none else [])])
        case inspect.ListType():
            return f"list{_most(kind.max_length)} of {_inside(kind.item_type, parts)}"
        case inspect.TupleType():
            return f"({', '.join(_type(one, parts) for one in kind.item_types)})"
        case inspect.DictType():
            return f"table{_most(kind.max_length)}: {_type(kind.key_type, parts)} → {_inside(kind.value_type, parts)}"
        case inspect.LiteralType():
            return " or ".join(f'`"{value}"`' for value in kind.values)
        case inspect.StrType():
            return _text(kind)
        case inspect.IntType():
            return f"whole number{_range(kind.ge, kind.le)}"
        case inspect.FloatType():
            return f"number{_range(kind.ge if kind.gt is None else kind.gt, kind.le if kind.lt is None else kind.lt)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "none"
    return "a value that its reader checks"


def _inside(kind: Any, parts: dict[str, type[Struct]]) -> str:
    text = _type(kind, parts)
    return f"({text})" if isinstance(kind, inspect.UnionType | inspect.ListType | inspect.DictType) else text


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is None:
        return f"text{_most(kind.max_length)}"
    if "64" in kind.pattern:
        return "hash (64 hex digits)"
    return f"hex digits{_most(kind.max_length)}" if "a-f" in kind.pattern else "number as text"


def _range(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    return (
        f" from {least:,g}"
        if most is None
        else f" {least:,g} to {most:,.15g}"
        if least is not None
        else f" to {most:,g}"
    )


def _most(length: int | None) -> str:
    return "" if length is None else f" ≤ {length:,}"


def _meaning(cls: type, name: str) -> str:
    for holder in cls.__mro__:
        if name in inspect_source.get_annotations(holder):
            return _comments(holder).get(name) or MEANINGS.get(name, "")
    return MEANINGS.get(name, "")


@cache
def _comments(cls: type) -> Mapping[str, str]:
    """Behind a field in the catalogue."""
    return dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect_source.getsource(cls), re.MULTILINE))


def _answer_cell(answers: Mapping[End, type[Answer]], end: End) -> str:
    return f"`{answers[end].kind}`" if end in answers else ""


def _doc(cls: type) -> str:
    """Its own docstring on one line; empty where it has none."""
    return " ".join((cls.__dict__.get("__doc__") or "").split())


def _bytes(sizes: list[int] | None) -> str:
    if sizes is None:
        return "as many numbers"
    least, most = sizes
    return f"{least:,}" if most - least < 10 else f"{least:,} to {most:,}"


def _table(titles: list[str], rows: Iterable[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    if "--measure" in sys.argv:
        SIZES.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    HOSPITALS_PAGE.write_text(hospitals_page(HOSPITALS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
