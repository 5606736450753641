"""What is written into a message is what is read from it: order, names, and every bit of every number."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import orjson
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec import Struct

from tests.deployment.in_process_federation import key, public
from wardround.core.errors import DeployError
from wardround.core.notices import Notice
from wardround.data.agreement import LEAST, Common, Facts, FillValues, Moments
from wardround.data.prepare import Layout
from wardround.data.records import Column
from wardround.data.serialization import read_layout, write_layout
from wardround.deployment.common import schema_agreement as agreement
from wardround.deployment.common.messaging import read_absence
from wardround.protocol.catalogue import PROTOCOL, REFUSALS, REQUESTS, FailedAnswer
from wardround.protocol.messages import Message, Sealed, open_sealed, seal
from wardround.protocol.reading import belongs, read_answer
from wardround.protocol.tensors import pack
from wardround.tasks.task import Impossible

ODD = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1 / 3, -1e-300]
NAMES = st.text("abz/.0[]=@ü", min_size=1, max_size=12)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def carried(message: Message, sender: str = "alder") -> Message:
    sealed = seal(replace(message, site=sender), key(sender))
    return open_sealed(
        Sealed(bytes(sealed.head), bytes(sealed.tensors), bytes(sealed.signature)), public(sender), sender
    )


def through(content: Any) -> Any:
    """Through a message, and through a file of the coordinator's."""
    body: Any = carried(Message("facts", {"content": content})).body
    read = json.loads(json.dumps(body["content"]))
    return type(content)(**read) if isinstance(content, Struct) else read


def same_bits(first: np.ndarray, other: np.ndarray) -> bool:
    return first.dtype == other.dtype and first.shape == other.shape and first.tobytes() == other.tobytes()


@quick
@given(st.lists(NAMES, unique=True, max_size=8))
@example(["b", "a", "10/x", "9/x"])
def test_tensors_keep_their_order(names: list[str]) -> None:
    message = Message("train", {}, {name: torch.full((2,), float(i)) for i, name in enumerate(names)})
    read = carried(message)
    assert list(read.tensors) == names
    assert all(torch.equal(read.tensors[name], message.tensors[name]) for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_tensors_keep_every_bit(dtype: torch.dtype) -> None:
    odd = torch.tensor([*ODD, math.nan, math.inf, -math.inf], dtype=torch.float64)
    leaf = odd.to(dtype) if dtype.is_floating_point else torch.arange(12).to(dtype)
    scattered = leaf.repeat(3, 1).t()  # not contiguous
    sent = {"scalar": leaf[0].clone(), "leaf": leaf, "scattered": scattered, "none": leaf[:0].clone()}
    read = carried(Message("train", {}, sent))
    for name, expected in sent.items():
        tensor = read.tensors[name]
        assert tensor.dtype == dtype
        assert tensor.shape == expected.shape
        assert tensor.contiguous().numpy().tobytes() == expected.contiguous().numpy().tobytes()


@quick
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=9))
@example(ODD)
def test_numbers_in_a_body_keep_every_bit(numbers: list[float]) -> None:
    assert np.array(through(numbers), dtype=float).tobytes() == np.array(numbers, dtype=float).tobytes()


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ARRAYS = hnp.arrays(np.float64, 4, elements=FLOATS)


@quick
@given(ARRAYS, ARRAYS, st.dictionaries(NAMES, NAMES, max_size=3))
@example(np.array(ODD[:4]), np.array(ODD[4:8]), {"ward": "burns"})
def test_what_is_agreed_on_keeps_every_bit(first: np.ndarray, other: np.ndarray, levels: dict[str, str]) -> None:
    common = agreement.read_common(through(agreement.write_common(Common(first, levels, (other, first)))))
    assert same_bits(common.fill, first)
    assert common.scale is not None
    assert same_bits(common.scale[0], other)
    assert same_bits(common.scale[1], first)
    assert common.level == levels
    plain = agreement.read_common(through(agreement.write_common(Common(first))))
    assert plain.scale is None
    moments = agreement.read_moments(through(agreement.write_moments(Moments(np.arange(len(first)), first, other))))
    assert moments.count.tolist() == list(range(len(first)))
    assert same_bits(moments.total, first)
    assert same_bits(moments.squares, other)


@quick
@given(ARRAYS, st.sets(st.integers(0, 3)), st.sets(st.sampled_from(["ward", "stage"])))
@example(np.array(ODD[:4]), {0, 1, 2, 3}, {"ward"})
def test_only_what_is_asked_for_is_lent(fill: np.ndarray, numbers: set[int], categories: set[str]) -> None:
    counts = np.array([3, 5, 7, 9])
    levels = {"ward": {"burns": 6, "medical": 2}, "stage": {"1": 4}}
    written = agreement.write_fill_values(FillValues(fill, counts, levels), sorted(numbers), sorted(categories))
    read = agreement.read_fill_values(through(written))
    for place in range(4):
        asked = place in numbers and counts[place] >= LEAST
        assert read.counts[place] == (counts[place] if asked else 0)
        assert same_bits(read.fill[place : place + 1], fill[place : place + 1] if asked else np.zeros(1))
    enough = {"ward": {"burns": 6}}  # the others are of too few rows
    assert read.levels == {name: enough[name] for name in categories if name in enough}


LEVELS = st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=4).map(tuple), max_size=3)


@quick
@given(LEVELS, st.lists(NAMES, max_size=3).map(tuple), st.none() | st.tuples(FLOATS, FLOATS))
@example({"b": ("2", "10"), "a": ("x",)}, ("a",), (-0.0, 5e-324))
def test_layouts_and_facts_keep_their_order(
    levels: dict[str, tuple[str, ...]], names: tuple[str, ...], limits: tuple[float, float] | None
) -> None:
    columns = (Column("b", "numeric", limits), Column("a", "categorical", None, True))
    layout = Layout(columns, levels, names)
    read = read_layout(through(write_layout(layout)))
    assert read == layout
    assert list(read.levels) == list(levels)
    facts = Facts((True, False), (False, True), tuple(levels.values()))
    assert agreement.read_facts(through(agreement.write_facts(facts))) == facts


def test_what_is_packed_once_is_the_same_message() -> None:
    tensors = {"0/params/b": torch.ones(3), "0/params/a": torch.zeros(2)}
    message = Message("train", {"run": "r"}, tensors, site="alder")
    whole = seal(message, key("coordinator"))
    packed = seal(message, key("coordinator"), pack(tensors), whole.tensors_hash)
    assert (packed.head, packed.tensors, packed.hash) == (whole.head, whole.tensors, whole.hash)
    assert open_sealed(packed, public("coordinator"), "coordinator").tensors.keys() == tensors.keys()


@quick
@given(st.integers(0, 2), st.integers(0, 10**6), st.integers(1, 255))
def test_one_changed_byte_anywhere_is_noticed(part: int, place: int, change: int) -> None:
    sealed = seal(Message("train", {"round": 3}, {"x": torch.arange(4.0)}, site="alder"), key("coordinator"))
    parts = [bytearray(sealed.head), bytearray(sealed.tensors), bytearray(sealed.signature)]
    parts[part][place % len(parts[part])] ^= change
    with pytest.raises(DeployError, match="signature"):
        open_sealed(Sealed(*map(bytes, parts)), public("coordinator"), "coordinator")


def test_bytes_cannot_be_moved_between_the_parts() -> None:
    sealed = seal(Message("train", {}, {"x": torch.arange(4.0)}, site="alder"), key("coordinator"))
    moved = Sealed(sealed.head + sealed.tensors[:1], sealed.tensors[1:], sealed.signature)
    with pytest.raises(DeployError, match="signature"):
        open_sealed(moved, public("coordinator"), "coordinator")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_signed_garbage_is_an_error_that_a_user_can_read(head: bytes, tensors: bytes) -> None:
    unsigned = Sealed(head, tensors, b"")
    sealed = Sealed(head, tensors, key("coordinator").sign(unsigned.digest))
    with pytest.raises(DeployError, match="cannot be read"):
        open_sealed(sealed, public("coordinator"), "coordinator")


def test_nesting_of_any_depth_is_an_error_that_names_its_sender() -> None:
    for depth in range(850, 1010):  # a little less than Python can nest is where reading may fail half-way
        nested = b"[" * depth + b"]" * depth
        head = b'{"protocol":%d,"kind":"failed","site":"a","log":"","body":{"notice":{"code":%s}},"order":[]}'
        unsigned = Sealed(head % (PROTOCOL, nested), b"", b"")
        sealed = replace(unsigned, signature=key("alder").sign(unsigned.digest))
        with pytest.raises((DeployError, Impossible)):
            why_it_failed(sealed)


def why_it_failed(sealed: Sealed) -> Notice:
    body = read_answer("alder", open_sealed(sealed, public("alder"), "alder"), FailedAnswer)
    return read_absence("alder", body.notice, ["alder"])


def test_everything_in_a_message_has_a_limit() -> None:
    """A list, a table, a text or a whole number without one is a mistake in the catalogue."""
    unlimited: set[str] = set()
    seen: set[Any] = set()
    for request in REQUESTS:
        for message in (request, *request.answers.values(), *REFUSALS.values()):
            unlimited |= set(without_limit(message, message.__name__, seen))
    assert not unlimited


def without_limit(kind: Any, place: str, seen: set[Any], limits: Sequence[Any] = ()) -> Iterator[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from without_limit(inner[0], place, seen, inner[1:])
        return
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind not in seen:
            seen.add(kind)
            for name, field in get_type_hints(kind, include_extras=True).items():
                if get_origin(field) is not ClassVar:
                    yield from without_limit(field, f"{kind.__name__}.{name}", seen)
        return
    by_name = origin is dict and get_origin(inner[0]) is Literal
    bounded = any(
        getattr(limit, name) is not None for limit in limits for name in ("max_length", "le", "lt", "pattern")
    )
    if (kind in (str, int) or origin in (list, dict)) and not (bounded or by_name):
        yield f"{place}: {kind}"
    for part in () if origin is Literal else inner:
        yield from without_limit(part, place, seen)


def test_another_protocol_names_both() -> None:
    head = orjson.dumps({"protocol": PROTOCOL + 1, "kind": "hello", "something": "new"})
    sealed = Sealed(head, b"", key("coordinator").sign(Sealed(head, b"", b"").digest))
    with pytest.raises(DeployError, match=f"version {PROTOCOL + 1} .* {PROTOCOL}; install the same"):
        open_sealed(sealed, public("coordinator"), "coordinator")


def test_an_answer_belongs_to_one_question() -> None:
    asked = seal(Message("train", {"run": "r", "wave": 0, "round": 2, "counted": 1}, site="alder"), key("coordinator"))
    place = {"run": "r", "wave": 0, "round": 2}
    assert belongs(Message("update", place), asked)
    assert belongs(Message("failed", {**place, "notice": {}}), asked)
    assert belongs(Message("refused", {"reason": "unreadable"}), asked)
    assert not belongs(Message("update", {**place, "round": 1}), asked)
    assert not belongs(Message("update", {**place, "wave": 1}), asked)
    assert not belongs(Message("update", {**place, "run": "q"}), asked)
    assert not belongs(Message("failed", {**place, "round": 1}), asked)
    assert not belongs(Message("summary", place), asked)


def test_a_file_keeps_what_a_message_keeps(tmp_path: Path) -> None:
    from wardround.runs.checkpoint import read_leaves, write_leaves

    leaves = {"b": torch.tensor([math.nan, -0.0, 5e-324], dtype=torch.float64), "a": torch.tensor(3)}
    write_leaves(tmp_path / "x.safetensors", leaves, {"round": 4})
    read, place = read_leaves(tmp_path / "x.safetensors")
    assert list(read) == ["b", "a"]
    assert place == {"round": 4}
    assert all(read[name].numpy().tobytes() == leaves[name].numpy().tobytes() for name in leaves)
