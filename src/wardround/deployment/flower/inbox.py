"""Answers of sites as the SuperLink has them, part by part.

Flower's own `Grid.pull_messages` waits for the rest of an answer that a site is still sending, or has died over: three
minutes after its last sign, and as long as a slow line takes. In that time nobody else would be heard, no deadline
kept, and no site shut out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, Metadata
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.runtime import RuntimeHttpClient


@dataclass
class Arriving:
    """An answer, and those of its parts that are there."""

    metadata: Metadata
    parts: Sequence[str]
    there: dict[str, bytes] = field(default_factory=dict)

    def fetch(self, pull: Callable[[str], bytes]) -> Message | None:
        """None as long as parts are missing; an error where they will not come any more."""
        missing = False

        def keep(part: str) -> bytes:
            nonlocal missing
            try:
                self.there[part] = pull(part)
            except ObjectUnavailableError:
                missing = True
                raise
            return self.there[part]

        try:
            pull_objects([part for part in self.parts if part not in self.there], keep, max_tries_per_object=1)
        except ObjectPullError:
            error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "cut off")
            return None if missing else make_message(metadata=self.metadata, error=error)
        message = inflate_object_from_contents(self.metadata.message_id, self.there)
        if not isinstance(message, Message):
            raise ValueError("an answer is no message")
        message.metadata.__dict__["_message_id"] = self.metadata.message_id
        return message


class Inbox:
    def __init__(self, runtime: RuntimeHttpClient, node: Node, run: int) -> None:
        self.runtime = runtime
        self.fetch = make_pull_object_fn_protobuf(runtime.PullObject, node, run)
        self.confirm = make_confirm_message_received_fn_protobuf(runtime.ConfirmMessageReceived, node, run)
        self.arriving: dict[str, Arriving] = {}  # by the number of the question: the SuperLink names each only once

    def pull(self, numbers: Sequence[str]) -> list[Message]:
        """Answers to these messages that are there as a whole. Never waits."""
        self._look([number for number in numbers if number not in self.arriving])
        whole = []
        for number in [number for number in numbers if number in self.arriving]:
            message = self.arriving[number].fetch(self.fetch)
            if message is not None:
                del self.arriving[number]
                if not message.has_error():
                    self.confirm(message.metadata.message_id)
                whole.append(message)
        return whole

    def _look(self, numbers: Sequence[str]) -> None:
        if not numbers:
            return
        found = self.runtime.PullMessages(PullAppMessagesRequest(message_ids=numbers))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            metadata = message_from_proto(proto).metadata
            for number, old in list(self.arriving.items()):
                if old.metadata.src_node_id == metadata.src_node_id:
                    del self.arriving[number]  # the site came back, and answers again
            parts = [part.object_id for part in iterate_object_tree(tree)]
            self.arriving[metadata.reply_to_message_id] = Arriving(metadata, parts)
