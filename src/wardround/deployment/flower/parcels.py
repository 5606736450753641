"""The parts of a message: pushed to the SuperLink from where they are, pulled to where they belong.

Flower cuts a message into parts and puts it together again; of a model of 100 MB its own functions make a dozen copies
on the way. The parts and their numbers here are Flower's, so that its SuperLink stores and checks them. What is used
beyond Flower's public interface is checked by `tests/deployment/test_flower_contract.py`.
"""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from http.client import HTTPResponse
from typing import Any, TypeVar

import httpx
import numpy as np
from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.retry import RetryInvoker
from flwr.supernode.fleet_http_client import FleetHttpClient

from wardround.deployment.flower import SETTINGS
from wardround.deployment.flower.line import Line, read_part
from wardround.deployment.flower.wire import Buffer, bytes_head

PARTS_AT_ONCE = 2  # of a message on its way
CHUNK = int(SETTINGS["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"])  # bytes of a piece of tensors
UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, MemoryError)  # what is no message
Got = TypeVar("Got")


class Piece(ArrayChunk):
    """A part of the tensors of a message, which is numbered and sent from where it is."""

    @property
    def head(self) -> bytes:
        return f"{ArrayChunk.__qualname__}{HEAD_VALUE_DIVIDER * 2}{len(self.data)}".encode() + HEAD_BODY_DIVIDER

    @property
    def object_id(self) -> str:
        if "number" not in self.__dict__:
            hashed = sha256(self.head)
            hashed.update(self.data)
            self.__dict__["number"] = hashed.hexdigest()
        return str(self.__dict__["number"])


def cut(message: Message) -> None:
    """Cut tensors into parts, as Flower would, once for all messages that carry them."""
    for record in message.content.array_records.values():
        for array in record.values():
            if "_chunks" not in array.__dict__:
                whole = memoryview(array.data)
                pieces = [Piece(whole[start : start + CHUNK]) for start in range(0, len(whole), CHUNK)]
                with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:  # a hash does not hold Python's lock
                    numbers = list(pool.map(lambda piece: piece.object_id, pieces))
                array.__dict__["_chunks"] = list(zip(numbers, pieces, strict=True))


class Carrier:
    """Pushes and pulls the parts of messages over one of the SuperLink's interfaces."""

    def __init__(self, client: Any, line: Line, node: Node, retry: RetryInvoker | None = None) -> None:
        self.client, self.line, self.node, self.retry = client, line, node, retry
        self.service = "Fleet" if isinstance(client, FleetHttpClient) else "Runtime"

    def push_all(
        self,
        objects: dict[str, InflatableObject],
        needed: set[str],
        run: int,
        session: str,
        progress: Callable[[int, int], None] = lambda gone, total: None,
    ) -> None:
        """First what tells the receiver where the rest belongs. `progress` receives how many are gone, of all."""
        parts = sorted((number for number in objects if number in needed), key=lambda n: isinstance(objects[n], Piece))
        pool = ThreadPoolExecutor(PARTS_AT_ONCE)

        def push(number: str) -> None:
            part = objects[number]
            self.push(run, session, number, [part.head, part.data] if isinstance(part, Piece) else [part.deflate()])

        try:
            for gone, _ in enumerate(pool.map(push, parts), 1):
                progress(gone, len(parts))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def push(self, run: int, session: str, number: str, content: Sequence[Buffer]) -> None:
        request = PushObjectRequest(node=self.node, run_id=run, object_id=number, session_id=session)
        field, size = PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER, sum(map(len, content))
        pieces = [request.SerializeToString() + bytes_head(field, size), *content]
        answer = self._call("PushObject", "push-object", request, pieces, HTTPResponse.read)
        if not PushObjectResponse.FromString(answer).stored:
            raise ObjectPushError(number, run, session)

    def pull(self, run: int, number: str, place: memoryview | None = None) -> bytes:
        """The part; the body of one that is a piece of tensors goes to its place."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=number)
        head = b"" if place is None else Piece(place).head
        field = PullObjectResponse.OBJECT_CONTENT_FIELD_NUMBER
        answer, content = self._call(
            "PullObject",
            "pull-object",
            request,
            [request.SerializeToString()],
            lambda response: read_part(response, field, place, head),
        )
        found = PullObjectResponse.FromString(answer)
        if not found.object_found:
            raise ObjectPullError(number, "the object could not be found.")
        if not found.object_available:
            raise ObjectUnavailableError(number)
        return content

    def _call(
        self, name: str, path: str, message: Any, pieces: Sequence[Buffer], read: Callable[[HTTPResponse], Got]
    ) -> Got:
        """With the heads that Flower's own client would send."""
        path = f"/v1/{self.service.lower()}/{path}"
        got: list[Got] = []

        def send(context: ProtobufRequestContext) -> httpx.Response:
            got.append(self.line.post(path, context.request.headers, pieces, read))
            return httpx.Response(httpx.codes.OK, request=context.request)

        def call() -> Got:
            request = httpx.Request(
                "POST", f"{self.client._base_url}{path}", headers={"content-type": PROTOBUF_MEDIA_TYPE}
            )
            chain: ProtobufCall = send
            for interceptor in reversed(self.client._interceptors):
                chain = partial(interceptor.intercept, call_next=chain)
            chain(ProtobufRequestContext(f"/flwr.proto.{self.service}/{name}", message, request))
            return got.pop()

        return call() if self.retry is None else self.retry.invoke(call)


class Parcel:
    """A message that is on its way: its parts, as they arrive, each at its place."""

    def __init__(self, number: str, tree: ObjectTree) -> None:
        self.number = number
        self.arrays = [array for record in _below(tree, 2) for array in record.children]
        inner = {piece.object_id for array in self.arrays for piece in array.children}
        self.missing = [part.object_id for part in iterate_object_tree(tree) if part.object_id not in inner]
        self.small: dict[str, bytes] = {}
        self.data: dict[str, memoryview] = {}  # of arrays
        self.places: dict[str, list[memoryview]] | None = None  # of pieces that have not arrived

    def fetch(self, pull: Callable[[str, memoryview | None], bytes]) -> bool:
        """Whether all of it is there. ValueError if it cannot be a message."""
        try:
            while self.missing:
                self.small[self.missing[0]] = pull(self.missing[0], None)
                del self.missing[0]
        except ObjectUnavailableError:
            return False
        if self.places is None:
            self.places = self._places()
        waiting, places = threading.Event(), self.places

        def fetch(piece: str) -> None:
            if waiting.is_set():
                return
            try:
                pull(piece, places[piece][0])
            except ObjectUnavailableError:
                waiting.set()  # they are sent one after another
                return
            for same in places[piece][1:]:
                same[:] = places[piece][0]
            del places[piece]

        pool = ThreadPoolExecutor(PARTS_AT_ONCE)
        try:
            list(pool.map(fetch, list(places)))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return not places

    def _places(self) -> dict[str, list[memoryview]]:
        places: dict[str, list[memoryview]] = {}
        for array in self.arrays:
            content = self.small[array.object_id]
            form, pieces = (
                json.loads(get_object_body(content, Array)),
                get_object_children_ids_from_object_content(content),
            )
            order, [size] = [pieces[place] for place in form["arraychunk_ids"]], form["shape"]
            if not (len(order) - 1) * CHUNK < size <= len(order) * CHUNK:
                raise ValueError("tensors of another length than their parts")
            whole = self.data[array.object_id] = memoryview(np.empty(size, dtype=np.uint8).data)
            for place, piece in enumerate(order):
                places.setdefault(piece, []).append(whole[place * CHUNK : (place + 1) * CHUNK])
        return places

    def opened(self) -> Message:
        empty: dict[str, InflatableObject] = {number: Array("uint8", (0,), "", b"") for number in self.data}
        message = inflate_object_from_contents(self.number, self.small, objects=empty)
        if not isinstance(message, Message):
            raise ValueError("an answer is no message")
        message.metadata.__dict__["_message_id"] = self.number
        records = message.content.array_records.values() if message.has_content() else ()  # none: the site is gone
        arrays = [array for record in records for array in record.values()]
        for array, data in zip(arrays, self.data.values(), strict=True):
            array.data = data  # type: ignore[assignment]  # a view is enough for those who read it
        return message


def _below(tree: ObjectTree, depth: int) -> list[ObjectTree]:
    return [tree] if not depth else [part for child in tree.children for part in _below(child, depth - 1)]
