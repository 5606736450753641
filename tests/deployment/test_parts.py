"""Parts of messages: as protobuf and safetensors have them, and as Flower itself would send them."""

import os
import select
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from wardround.deployment.flower import wire
from wardround.protocol.tensors import SMALL, pack, unpack

KINDS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool)


def leaves() -> dict[str, torch.Tensor]:
    numbers = torch.arange(12).reshape(3, 4) - 5
    several = {str(kind): numbers.to(kind) for kind in KINDS}
    return {**several, "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "turned": numbers.float().t()}


def test_what_is_packed_is_read_by_the_library_and_what_the_library_writes_is_unpacked() -> None:
    sent = leaves()
    whole = {name: leaf.contiguous() for name, leaf in sent.items()}
    for read in (load(bytes(pack(sent))), unpack(save(whole)), unpack(pack(sent))):
        assert set(read) == set(sent)
        for name, leaf in sent.items():
            assert read[name].dtype == leaf.dtype
            assert torch.equal(read[name], leaf)
    assert pack({}) == b""
    assert unpack(b"") == {}


def test_large_tensors_are_a_view_and_small_ones_are_bytes() -> None:
    assert isinstance(pack({"few": torch.ones(8)}), bytes)
    large = pack({"many": torch.ones(SMALL)})
    assert isinstance(large, memoryview)
    assert torch.equal(unpack(large)["many"], torch.ones(SMALL))


def header(text: str, numbers: bytes = bytes(8)) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode() + numbers


F32 = '"dtype":"F32","shape":[2],"data_offsets":'


@pytest.mark.parametrize(
    "content",
    [
        b"short",
        (2**63).to_bytes(8, "little"),
        header("no header"),
        header("[]"),
        header("{}"),  # numbers that belong to no tensor
        header('{"a":{' + F32 + "[0,4]}}"),  # shorter than its shape
        header('{"a":{' + F32 + "[0,8]},", bytes(8)),
        header('{"a":{' + F32 + "[4,12]}}", bytes(12)),  # a gap before it
        header('{"a":{' + F32 + "[0,8]}}", bytes(12)),  # and after it
        header('{"a":{' + F32 + "[0,8]}}", bytes(4)),  # cut off
        header('{"a":{' + F32 + '[0,8]},"b":{' + F32 + "[0,8]}}"),  # one over the other
        header('{"a":{' + F32 + "[8,0]}}"),
        header('{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}'),
        header('{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}'),
        header('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}'),
        header('{"a":{' + F32 + '[0,8],"more":1}}'),
    ],
)
def test_what_is_not_whole_is_no_tensors(content: bytes) -> None:
    with pytest.raises(ValueError, match="tensors"):
        unpack(content)


def test_a_part_is_found_in_a_call_as_protobuf_writes_it() -> None:
    from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest
    from flwr.proto.node_pb2 import Node

    field = PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER
    for content in (b"", b"a part", os.urandom(300), os.urandom(70_000)):
        call = PushObjectRequest(
            node=Node(node_id=2**64 - 1), run_id=2**63, object_id="id", object_content=content, session_id="session"
        )
        small, place = wire.cut_out(bytearray(call.SerializeToString()), field)
        assert call.SerializeToString()[place] == content
        assert PushObjectRequest.FromString(small + wire.bytes_head(field, len(content)) + content) == call
    answer = PullObjectResponse(object_found=True, object_available=True, object_content=b"a part").SerializeToString()
    before, first, size = wire.content_in(answer, PullObjectResponse.OBJECT_CONTENT_FIELD_NUMBER) or (b"", 0, 0)
    assert answer[first : first + size] == b"a part"
    assert PullObjectResponse.FromString(before) == PullObjectResponse(object_found=True, object_available=True)
    assert wire.content_in(PullObjectResponse(object_found=True).SerializeToString(), 3) is None


@pytest.mark.parametrize(
    "call", [b"\x0a", b"\x0a\x05abc", b"\xff" * 12, b"\x08", b"\x0b", b"\x08\x01" * (wire.MOST_FIELDS + 1)]
)
def test_what_is_no_call_is_refused(call: bytes) -> None:
    with pytest.raises(ValueError, match=r"call|number"):
        wire.cut_out(call, 4)


def test_parts_have_the_numbers_and_the_bytes_that_flower_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.app.message.arraychunk import ArrayChunk
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.task_identity import TaskIdentity

    from wardround.deployment.flower.parcels import CHUNK, Piece, cut

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    content = bytes(CHUNK) + os.urandom(CHUNK // 2)
    piece, chunk = Piece(memoryview(content)), ArrayChunk(memoryview(content))
    assert piece.object_id == chunk.object_id
    assert piece.head + content == chunk.deflate()
    trees = []
    for ours in (False, True):
        record = RecordDict({"tensors": ArrayRecord({"tensors": Array("uint8", (len(content),), "", content)})})
        message = Message(record, 2, "query")
        if ours:
            cut(message)
        trees.append(get_object_tree(message).children[0])
    assert trees[0] == trees[1]


def served_parts(message: Any) -> dict[str, bytes]:
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return {number: part.deflate() for number, part in get_all_nested_objects(message).items()}


def test_a_parcel_is_put_together_in_any_order_and_parts_that_are_alike_are_fetched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
    from flwr.supercore.task_identity import TaskIdentity

    from wardround.deployment.flower.parcels import CHUNK, Parcel, cut

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    content = bytes(2 * CHUNK) + os.urandom(5)
    arrays = ArrayRecord({"tensors": Array("uint8", (len(content),), "", content)})
    message = Message(RecordDict({"message": ConfigRecord({"head": b"head"}), "tensors": arrays}), 2, "query")
    cut(message)
    parts, there, fetched = served_parts(message), set[str](), []

    def pull(number: str, place: memoryview | None) -> bytes:
        if number not in there:
            raise ObjectUnavailableError(number)
        fetched.append(number)
        if place is None:
            return parts[number]
        place[:] = parts[number].partition(b"\0")[2]
        return b""

    parcel = Parcel(message.object_id, get_object_tree(message))
    for number in parts:  # the pieces come first here, when their place is not known yet
        assert not parcel.fetch(pull)
        there.add(number)
    assert parcel.fetch(pull)
    opened = parcel.opened()
    assert opened.content.config_records["message"]["head"] == b"head"
    assert bytes(opened.content.array_records["tensors"]["tensors"].data) == content
    assert sorted(fetched) == sorted(parts)  # each once; two of the three pieces are the same one


def test_tensors_of_another_length_than_their_parts_are_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.task_identity import TaskIdentity

    from wardround.deployment.flower.adapter import Arriving
    from wardround.deployment.flower.parcels import UNREADABLE, Parcel

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    for length in (4, 2**70):
        arrays = ArrayRecord({"tensors": Array("uint8", (length,), "", b"bytes" * 2**20)})
        message = Message(RecordDict({"tensors": arrays}), 2, "query")
        parts = served_parts(message)
        parcel = Parcel(message.object_id, get_object_tree(message))

        def pull(number: str, place: memoryview | None, parts: dict[str, bytes] = parts) -> bytes:
            if place is not None:
                place[:] = parts[number].partition(b"\0")[2]  # ValueError, as a line says it
            return parts[number]

        with pytest.raises(UNREADABLE):
            parcel.fetch(pull)
        whole = Arriving(message.metadata, Parcel(message.object_id, get_object_tree(message))).fetch(pull)
        assert whole is not None
        assert not whole.content.array_records  # which is refused as a message without a signature


def test_a_message_that_says_that_a_site_is_gone_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink writes it in the site's place, and the site is asked again."""
    from flwr.app import Message, RecordDict
    from flwr.app.error import Error
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.task_identity import TaskIdentity

    from wardround.deployment.flower.adapter import Arriving
    from wardround.deployment.flower.parcels import Parcel

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    message = Message(Error(3, "gone"), reply_to=Message(RecordDict({}), 2, "query"))
    parts = served_parts(message)
    arrived = Arriving(message.metadata, Parcel(message.object_id, get_object_tree(message))).fetch(
        lambda number, place: parts[number]
    )
    assert arrived is not None
    assert arrived.has_error()


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    calls: Sequence[Any] = ()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status, content, length = self.answer(body)
        self.server.seen.append((self.path, body, self.client_address[1]))  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(content)
        if len(content) < length or self.path == "/closes":
            self.close_connection = True

    def answer(self, body: bytes) -> tuple[int, bytes, int]:
        if self.path == "/refused":
            return 403, b"why", 3
        return 200, body, len(body) + (5 if self.path == "/cut" else 0)

    def log_message(self, *args: Any) -> None:
        pass


def test_a_line_stays_open_and_says_what_went_wrong() -> None:
    from wardround.deployment.flower.line import Line, read_part

    server: Any = HTTPServer(("127.0.0.1", 0), Answers)
    server.seen = []
    Thread(target=server.serve_forever, daemon=True).start()
    line = Line(f"127.0.0.1:{server.server_port}", None, proxies=False)
    part = os.urandom(100_000)
    call: list[wire.Buffer] = [b"\x08\x01\x10\x01" + wire.bytes_head(3, len(part) + 4), b"head", memoryview(part)]
    more: list[wire.Buffer] = [b"\x08\x01\x10\x01" + wire.bytes_head(3, len(part) + 9), *call[1:]]
    try:
        for _ in range(2):
            place = memoryview(np.zeros(len(part), np.uint8).data)
            answer, rest = line.post("/part", {}, call, partial(read_part, field=3, place=place, head=b"head"))
            assert (answer, rest, bytes(place)) == (b"\x08\x01\x10\x01", b"", part)
        answer, whole = line.post("/part", {}, call, lambda got: read_part(got, 3, None, b""))
        assert whole == b"head" + part
        assert len({port for _, _, port in server.seen}) == 1  # one connection for all
        with pytest.raises(ValueError, match="another length"):
            line.post("/part", {}, call, lambda got: read_part(got, 3, memoryview(bytearray(7)), b"head"))
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            line.post("/refused", {}, [b"x"], lambda got: got.read())
        with pytest.raises(httpx.TransportError):
            line.post("/cut", {}, more, lambda got: read_part(got, 3, None, b""))
        with pytest.raises(httpx.TransportError):
            line.post("/cut", {}, more, lambda got: read_part(got, 3, memoryview(bytearray(len(part) + 5)), b"head"))
        for _ in range(2):  # the other end has closed the connection meanwhile
            assert line.post("/closes", {}, [b"x"], lambda got: got.read()) == b"x"
            select.select([line.idle[0].sock], [], [], 10)  # until its end has come here
    finally:
        line.close()
        server.shutdown()
        server.server_close()
    with pytest.raises(httpx.TransportError):
        line.post("/part", {}, call, lambda got: got.read())


def test_a_line_goes_through_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from wardround.deployment.flower.line import Line, _credentials

    monkeypatch.setenv("HTTPS_PROXY", "http://name:word@proxy.example:3128")
    monkeypatch.setenv("https_proxy", "http://name:word@proxy.example:3128")
    monkeypatch.setenv("no_proxy", "near.example")
    assert Line("far.example:9092", None, proxies=True).proxy == "http://name:word@proxy.example:3128"
    assert Line("near.example:9092", None, proxies=True).proxy is None
    assert Line("far.example:9092", None, proxies=False).proxy is None
    assert _credentials("name", "word") == {"Proxy-Authorization": "Basic bmFtZTp3b3Jk"}
    assert _credentials(None, None) == {}
