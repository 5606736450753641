"""What a hostile hospital could send instead of its answer: generated from the honest bytes, always in the same order.

`expect` says what must become of it:

* `refused`: it cannot be used, and the sender is named. What an honest site may say as well (`failed`) is such, too.
* `safe`: refused, or taken without harm to anybody else.
* `closed`: refused, or a secure sum comes to nothing, and nobody can say through whom.
* `sealed`: only the hospital for which it is sealed can see that it is wrong. The run stops and names the sender; what
  was carried once stands, so that it need not be possible to go on.
* `bends`: if it is taken, it may bend models that all share, as any hospital's work does.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from safetensors.torch import load, save

from tests.deployment.hostile.byte_network import Message, body_of, head_of, kind_of, signed
from wardround.core.seeds import generator

Expect = Literal["refused", "safe", "closed", "sealed", "bends"]
Path = tuple[str | int, ...]
Tensors = dict[str, torch.Tensor]
FORGED_TEXT = "\x1b[2J\x1b]0;owned\x07\r\nsouth: left the run\u202e\x9b31m\x00"
LONG = "x" * 300_000
MANY = 200_000  # invented columns, classes, trials, levels
FREE = ("versions", "waves")  # nothing is computed from them
UNIT = ("accuracy", "auc", "pr_auc", "f1", "sensitivity", "specificity", "ppv", "npv")  # between 0 and 1


@dataclass(frozen=True)
class Raw:
    """Text that stands in JSON as it is."""

    text: str


@dataclass(frozen=True)
class Many:
    """200,000 entries of a list or a table, each with its number in place of `@`. Made when it is needed."""

    entry: str  # JSON
    brackets: str = "[]"

    @property
    def text(self) -> str:
        return f"{self.brackets[0]}{_numbered(self.entry)}{self.brackets[1]}"


@lru_cache(maxsize=4)
def _numbered(entry: str) -> str:
    return ",".join([entry.replace("@", str(number)) for number in range(MANY)])


def many_names(value: Any) -> Many:
    """A table in which each of many invented names has this value."""
    return Many(f'"@":{written(value).decode()}', "{}")


@dataclass(frozen=True)
class Given:
    """All that a hostile sender has: its honest answer, its own earlier ones, the question, and others' names."""

    sender: str
    question: Message
    answer: Message
    earlier: tuple[Message, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Mutation:
    name: str
    make: Callable[[Given], Message]
    expect: Expect = "safe"


DELETED = object()
VALUES: dict[str, Any] = {
    "deleted": DELETED,
    "null": None,
    "true": True,
    "text": "much",
    "empty text": "",
    "list": [],
    "list of lists": [[1]],
    "table": {},
    "table of tables": {"0": {"test": {}}},
    "0": 0,
    "-1": -1,
    "-5": -5,
    "1.5": 1.5,
    "1e12": 10**12,
    "1e300": 1e300,
    "-1e300": -1e300,
    "2**63": 2**63,
    "NaN": Raw("NaN"),
    "-Infinity": Raw("-Infinity"),
    "1e400": Raw("1e400"),
    "400 digits": Raw("9" * 400),
    "long text": LONG,
    "control characters": FORGED_TEXT,
    "a path": "../../../tmp/owned",
    "half a character": Raw('"\\ud800"'),
    "deep list": Raw("[" * 900 + "]" * 900),
    "too deep": Raw("[" * 100_000 + "]" * 100_000),
    "deep table": Raw('{"a":' * 500 + "1" + "}" * 500),
}
NOT_JSON = ("NaN", "-Infinity", "half a character", "too deep")


def written(content: Any) -> bytes:
    """JSON in which `Raw` text stands as it is."""
    raw: list[str] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Raw | Many):
            raw.append(value.text)
            return f"@raw{len(raw) - 1}@"
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    text = json.dumps(plain(content), separators=(",", ":"))
    for number, literal in enumerate(raw):
        text = text.replace(f'"@raw{number}@"', literal)
    return text.encode("utf-8", "surrogatepass")


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every place in plain data; of a list the first and the last entry."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from places(part, (*path, name))
    elif isinstance(value, list) and value:
        for number in sorted({0, len(value) - 1}):
            yield from places(value[number], (*path, number))


def changed(content: Any, path: Path, value: Any) -> Any:
    """A copy with another value at a place; lists and tables on the way are made where there are none."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(content, list):
        assert isinstance(first, int)
        if value is DELETED and not rest:
            return content[:first] + content[first + 1 :]
        return [*content[:first], changed(content[first], rest, value), *content[first + 1 :]]
    if value is DELETED and not rest:
        return {name: part for name, part in content.items() if name != first}
    return {**content, str(first): changed(content.get(str(first), {}), rest, value)}


def with_head(given: Given, content: Any, tensors: bytes | None = None) -> Message:
    return signed(written(content), bytes(given.answer.tensors) if tensors is None else tensors, given.sender)


def at(path: Path, value: Any) -> Callable[[Given], Message]:
    """Another value at a place of the whole head: `("body", "trials", ...)`."""
    return lambda given: with_head(given, changed(head_of(given.answer), path, value))


def on_body(change: Callable[[dict[str, Any]], Any]) -> Callable[[Given], Message]:
    """`change` works on a copy of the body."""

    def make(given: Given) -> Message:
        content = head_of(given.answer)
        change(content["body"])
        return with_head(given, content)

    return make


def on_tensors(change: Callable[[Tensors], Any]) -> Callable[[Given], Message]:
    """`change` works on a copy of the tensors; the head names those that are there then."""

    def make(given: Given) -> Message:
        tensors = load(bytes(given.answer.tensors))
        change(tensors)
        content = {**head_of(given.answer), "order": list(tensors)}
        return with_head(given, content, save(tensors) if tensors else b"")

    return make


def generated(answer: Message) -> list[Mutation]:
    """Every value at every place of the body."""
    mutations = []
    for path, honest in places(body_of(answer)):
        for name, value in VALUES.items():
            if value is not DELETED and not isinstance(value, Raw) and _equal(value, honest):
                continue
            expect: Expect = "refused" if _must_go(path, honest, name, value) else "safe"
            mutations.append(Mutation(f"{_said(path)} = {name}", at(("body", *path), value), expect))
    return mutations


def _equal(value: Any, honest: Any) -> bool:
    return type(value) is type(honest) and value == honest


def _said(path: Path) -> str:
    return ".".join(map(str, path))


def _must_go(path: Path, honest: Any, name: str, value: Any) -> bool:
    """What cannot be mistaken for an answer. Where nothing is computed from a place, it may be taken."""
    if name in NOT_JSON:
        return True
    if path[0] in FREE or path[-1] in ("run", "wave", "round") or honest is None or value in (None, DELETED):
        return False
    count = isinstance(honest, int) and not isinstance(honest, bool) and "limits" not in path
    if count and name in ("-1", "-5", "1.5", "1e12", "true", "1e300", "-1e300", "1e400", "400 digits", "2**63"):
        return True
    if path[-1] in UNIT and name in ("-1", "-5", "1.5", "1e12", "1e300", "1e400"):
        return True
    return _form(honest) != _form(value)


def _form(value: Any) -> str:
    if isinstance(value, Raw):
        return {"[": "list", "{": "table"}.get(value.text[0], "number")
    for form, types in {"truth": bool, "number": (int, float), "text": str, "list": list, "table": dict}.items():
        if isinstance(value, types):  # type: ignore[arg-type]
            return form
    return "nothing"


# -- the envelope: of any kind of answer


def envelope() -> list[Mutation]:
    """What is wrong with a message before anybody looks at what it says."""

    def head(change: Callable[[bytes], bytes]) -> Callable[[Given], Message]:
        return lambda given: signed(change(given.answer.head), bytes(given.answer.tensors), given.sender)

    def tensors(content: bytes) -> Callable[[Given], Message]:
        return lambda given: signed(given.answer.head, content, given.sender)

    def by(signer: str) -> Callable[[Given], Message]:
        return lambda given: signed(given.answer.head, bytes(given.answer.tensors), signer)

    return [
        Mutation("head: empty", head(lambda head_bytes: b""), "refused"),
        Mutation("head: half of it", head(lambda head_bytes: head_bytes[: len(head_bytes) // 2]), "refused"),
        Mutation("head: no JSON", head(lambda head_bytes: b"\x80\x04\x95." + head_bytes), "refused"),
        Mutation(
            "head: not UTF-8",
            head(lambda head_bytes: head_bytes.replace(b'"site"', b'"\xff\xfe":1,"site"', 1)),
            "refused",
        ),
        Mutation("head: a list", head(lambda head_bytes: b"[" + head_bytes + b"]"), "refused"),
        Mutation("head: a number", head(lambda head_bytes: b"7"), "refused"),
        Mutation("head: null", head(lambda head_bytes: b"null"), "refused"),
        Mutation(
            "head: the site twice",
            head(lambda head_bytes: head_bytes.replace(b'"site":', b'"site":"south","site":', 1)),
        ),
        Mutation("head: brackets without end", head(lambda head_bytes: b"[" * 200_000), "refused"),
        Mutation("head: a megabyte of spaces", head(lambda head_bytes: head_bytes + b" " * 1_000_000)),
        Mutation("protocol = 1", at(("protocol",), 1), "refused"),
        Mutation("protocol = table", at(("protocol",), {}), "refused"),
        Mutation("protocol = control characters", at(("protocol",), FORGED_TEXT), "refused"),
        Mutation("kind = table", at(("kind",), {})),
        Mutation("kind = long text", at(("kind",), LONG)),
        Mutation("kind = goodbye", at(("kind",), "goodbye")),
        Mutation("kind = hello", at(("kind",), "hello")),
        Mutation("body = list", at(("body",), []), "refused"),
        Mutation("body = text", at(("body",), "much"), "refused"),
        Mutation("body = null", at(("body",), None), "refused"),
        Mutation("body = table", at(("body",), {}), "refused"),
        Mutation("body = a list of pairs", at(("body",), [["site", "south"]]), "refused"),
        Mutation("a field too many", at(("surprise",), 1), "refused"),
        Mutation("body: a field too many", at(("body", "surprise"), 1)),
        Mutation("site = table", at(("site",), {}), "refused"),
        Mutation("site = control characters", at(("site",), FORGED_TEXT), "refused"),
        Mutation("site = long text", at(("site",), LONG), "refused"),
        Mutation("site = deleted", at(("site",), DELETED), "refused"),
        Mutation("log = number", at(("log",), 7), "refused"),
        Mutation("log = control characters", at(("log",), FORGED_TEXT), "refused"),
        Mutation("log = long text", at(("log",), LONG), "refused"),
        Mutation("log = deleted", at(("log",), DELETED), "refused"),
        Mutation("order = null", at(("order",), None), "refused"),
        Mutation("order = a name of nothing", at(("order",), ["nothing"])),
        Mutation("order = numbers", at(("order",), [1, 2])),
        Mutation("order = deleted", at(("order",), DELETED), "refused"),
        Mutation("tensors: rubbish", tensors(b"\xff" * 64)),
        Mutation("tensors: a length without end", tensors(b"\xff" * 7 + b"\x7f" + b"{}")),
        Mutation("signature: none", lambda given: Message(given.answer.head, given.answer.tensors, b""), "refused"),
        Mutation("signature: another's", lambda given: by(given.others[0])(given), "refused"),
        Mutation("signature: of something else", lambda given: _other_signature(given), "refused"),
        Mutation("signature: the coordinator's own", lambda given: by("coordinator")(given), "refused"),
        Mutation("in another's name", on_sender(lambda given: given.others[0]), "refused"),
        Mutation("in another's name and signature", lambda given: _as_another(given), "refused"),
        Mutation("in nobody's name", on_sender(lambda given: "elsewhere"), "refused"),
        Mutation("the question comes back", lambda given: signed(given.question.head, b"", given.sender), "refused"),
    ]


def on_sender(name: Callable[[Given], str]) -> Callable[[Given], Message]:
    return lambda given: at(("site",), name(given))(given)


def _other_signature(given: Given) -> Message:
    return Message(given.answer.head + b" ", given.answer.tensors, given.answer.signature)


def _as_another(given: Given) -> Message:
    other = given.others[0]
    content = changed(head_of(given.answer), ("site",), other)
    return signed(written(content), bytes(given.answer.tensors), other)


def replays(given: Given) -> list[Mutation]:
    """Its own earlier answers, byte by byte, and earlier ones under this question's name."""
    mutations = []
    for number, old in enumerate(given.earlier):
        name = f"earlier answer {number} ({kind_of(old)})"
        mutations.append(Mutation(name, lambda given, old=old: old))  # type: ignore[misc]
        renamed = {**head_of(old), "kind": kind_of(given.answer)}
        for place in ("run", "wave", "round"):
            if place in body_of(given.answer):
                renamed = changed(renamed, ("body", place), body_of(given.answer)[place])
        content, tensors = written(renamed), old.tensors
        if kind_of(old) != kind_of(given.answer):
            make = lambda given, head=content, tensors=tensors: signed(head, tensors, given.sender)  # noqa: E731
            mutations.append(Mutation(f"{name}, renamed", make))
    return mutations


# -- what an honest site may say, in a hostile way


def said_no() -> list[Mutation]:
    def no(kind: str, **more: Any) -> Callable[[Given], Message]:
        def make(given: Given) -> Message:
            honest = body_of(given.answer)
            known = {name: honest[name] for name in ("run", "wave", "round") if name in honest}
            return with_head(
                given, {**head_of(given.answer), "kind": kind, "body": {**known, **more}, "order": []}, b""
            )

        return make

    return [
        Mutation("refused: closed for ever", no("refused", reason="closed", until=None), "refused"),
        Mutation("failed: on fire", no("failed", problem="on fire"), "refused"),
        Mutation("refused: no reason", no("refused"), "refused"),
        Mutation("failed: no problem", no("failed"), "refused"),
        Mutation("refused: control characters", no("refused", reason=FORGED_TEXT, until=None), "refused"),
        Mutation("failed: control characters", no("failed", problem=FORGED_TEXT), "refused"),
        Mutation("failed: long text", no("failed", problem=LONG), "refused"),
        Mutation("failed: table", no("failed", problem={"a": [1]}), "refused"),
        Mutation("refused: until = number", no("refused", reason="closed", until=5), "refused"),
        Mutation("refused: until = table", no("refused", reason="closed", until={}), "refused"),
        Mutation("refused: until = no date", no("refused", reason="closed", until="never"), "refused"),
        Mutation("refused: until = no month", no("refused", reason="closed", until="9999-99-99"), "refused"),
        Mutation("refused: until = long text", no("refused", reason="closed", until=LONG), "refused"),
    ]


# -- tensors


def tensor_changes(answer: Message) -> list[Mutation]:
    """Of an answer that has tensors: other names, types, shapes and numbers, and bytes that are none."""
    if not answer.tensors:
        return [Mutation("tensors: where none belong", on_added({"0/params/weight": torch.zeros(3)}))]
    mutations = [
        Mutation(
            "tensors: none", lambda given: with_head(given, {**head_of(given.answer), "order": []}, b""), "refused"
        ),
        Mutation("tensors: none, but named", lambda given: with_head(given, head_of(given.answer), b""), "refused"),
        Mutation("tensors: half", lambda given: _cut(given, len(given.answer.tensors) // 2), "refused"),
        Mutation("tensors: a byte short", lambda given: _cut(given, -1), "refused"),
        Mutation("tensors: bytes after the end", lambda given: _cut(given, None, b"\x00" * 9), "refused"),
        Mutation("tensors: one more", on_added({"9/params/weight": torch.zeros(3)}), "refused"),
        Mutation("tensors: a name with a path", on_added({"../../owned": torch.zeros(3)}), "refused"),
        Mutation("tensors: 2,000 more", on_added({f"0/params/{n}": torch.zeros(1) for n in range(2_000)}), "refused"),
    ]
    for name, leaf in load(bytes(answer.tensors)).items():
        mutations += _of_tensor(name, leaf)
    return mutations


def on_added(more: Tensors) -> Callable[[Given], Message]:
    def make(given: Given) -> Message:
        tensors = {**(load(bytes(given.answer.tensors)) if given.answer.tensors else {}), **more}
        return with_head(given, {**head_of(given.answer), "order": list(tensors)}, save(tensors))

    return make


def _cut(given: Given, end: int | None, more: bytes = b"") -> Message:
    return with_head(given, head_of(given.answer), bytes(given.answer.tensors)[:end] + more)


def _of_tensor(name: str, leaf: torch.Tensor) -> Iterator[Mutation]:
    def put(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Given], Message]:
        return on_tensors(lambda tensors: tensors.update({name: make(tensors[name]).contiguous()}))

    def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def make(leaf: torch.Tensor) -> torch.Tensor:
            other = leaf.clone()
            other.view(-1)[:1] = value
            return other

        return make

    # numbers under masks can be judged by their sum alone, and sealed bytes by the one they are sealed for
    form: Expect = "sealed" if leaf.dtype == torch.uint8 else "refused"
    if leaf.is_floating_point():
        for what, number in {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.items():
            yield Mutation(f"{name}: {what}", put(filled(number)), "refused")
        yield Mutation(f"{name}: 1e30", put(filled(1e30)), "bends")
    else:
        for what, value in {"zeros": 0, "sevens": 7, "the largest number": torch.iinfo(leaf.dtype).max}.items():
            change = put(partial(torch.full_like, fill_value=value))
            yield Mutation(f"{name}: {what}", change, "sealed" if form == "sealed" else "closed")
    named: Expect = "safe" if form == "sealed" else "refused"  # some messages are only counted
    longer = put(lambda leaf: torch.cat([leaf.flatten(), leaf.flatten()[:1]]))
    yield Mutation(f"{name}: missing", on_tensors(lambda tensors: tensors.pop(name)), "refused")
    yield Mutation(f"{name}: renamed", on_tensors(lambda ts: ts.update({name + "x": ts.pop(name)})), named)
    yield Mutation(f"{name}: one number longer", longer, form)
    yield Mutation(f"{name}: no number", put(lambda leaf: leaf.flatten()[:0]), form)
    few: Expect = "safe" if leaf.numel() == 1 else form
    yield Mutation(f"{name}: one number", put(lambda leaf: leaf.flatten()[:1].reshape([1] * leaf.dim())), few)
    yield Mutation(f"{name}: as truth values", put(lambda leaf: leaf.to(torch.bool)), "refused")
    yield Mutation(f"{name}: half precision", put(lambda leaf: leaf.to(torch.float16)), "refused")


def sample(mutations: list[Mutation], size: int, seed: int) -> list[Mutation]:
    """So many of them, spread over all; the same with every run."""
    if len(mutations) <= size:
        return mutations
    chosen = generator(seed, "hostile answers").choice(len(mutations), size, replace=False)
    return [mutations[number] for number in sorted(chosen)]
