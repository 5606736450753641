"""What we use of Flower beyond its public interface, for one version of it. `parcels.py` and `superlink_process.py`
have the rest.

Flower's own commands start a process for each message and poll every three seconds, and its SuperLink shows the control
interface to anyone who reaches it. So both ends use Flower's HTTP clients from their own process, and the SuperLink
runs behind `superlink_process.py`. `tests/deployment/test_flower_contract.py` checks what is assumed here.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.error import Error
from flwr.app.message import make_message, remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ObjectTree,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from wardround.deployment.flower.line import Line
from wardround.deployment.flower.long_polls import PULL, SENT, WAITS
from wardround.deployment.flower.parcels import UNREADABLE, Carrier, Parcel, Piece, cut
from wardround.deployment.flower.server_app import LATEST, SLOWER, SOONEST, LinkLost, Standing

SECRET = "x-wardround-secret"
HEARTBEAT = 10.0  # seconds: the shortest that a SuperLink accepts; a site counts as gone after two
APP = b"""
[project]
name = "wardround-study"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "wardround"
[tool.flwr.app.components]
serverapp = "wardround.deployment.flower.server_app:server_app"
clientapp = "wardround.deployment.flower.site_loop:client_app"
[tool.flwr.app.config]
"""  # without any code: what runs is what is installed, and nobody runs what is sent
RETRY_FOR = 20.0  # seconds
PASSING = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
# how a link that went away shows itself
LOST = (httpx.HTTPError, OSError, RuntimeError, ValueError, ObjectPullError, ObjectPushError, ObjectUnavailableError)
logging.getLogger("flwr").setLevel(logging.ERROR)  # its progress is not ours


def retrying() -> RetryInvoker:
    """Repeats a call while the network fails. Flower's own invoker ends this process when it is refused."""
    retry = make_simple_http_retry_invoker()
    retry.max_time = RETRY_FOR
    retry.should_giveup = lambda error: (
        isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in PASSING
    )
    return retry


def on_loopback(kind: Any, address: str, component: str, *interceptors: Any, **options: Any) -> Any:
    """A client that ignores proxies of the environment, which would see our secret."""
    version = RuntimeVersionHttpInterceptor(component_name=component)
    client = kind.from_server_address(address, True, None, [version, *interceptors, FreedAtOnce()], **options)
    client._client.close()
    client._client = httpx.Client(timeout=30.0, trust_env=False)
    return client


class Secret:
    """An interceptor that shows our secret to the SuperLink's loopback listener."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers[SECRET] = self.secret
        return call_next(context)


class Waiting:
    """An interceptor that lets the SuperLink hold a call until there is a message, while `waits` is true."""

    def __init__(self) -> None:
        self.waits = False

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        if self.waits and context.request.url.path == PULL:
            context.request.headers[WAITS] = "1"
        return call_next(context)


class FreedAtOnce:
    """An interceptor after which nothing keeps a request and its response but who uses them. httpx ties a response to
    itself, and parts of a model of 16 MB would lie in memory until Python looks for circles."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        response = call_next(context)
        if response.is_closed:  # it has been read
            response.stream = httpx.ByteStream(b"")
        return response


class CoordinatorConnection:
    """Registers sites, starts Flower's run, and gives the Grid that carries messages."""

    def __init__(self, address: str, secret: bytes, sites: Mapping[str, ec.EllipticCurvePublicKey]) -> None:
        door = Secret(secret.hex())
        self.shown = {SECRET: secret.hex()}
        self.control = on_loopback(ControlHttpClient, address, "flwr CLI", door)
        keys = {site: public_key_to_bytes(key) for site, key in sites.items()}
        self.site_of = {
            self.control.RegisterNode(RegisterNodeRequest(public_key=key)).node_id: site for site, key in keys.items()
        }
        app, _ = build_fab_from_files({"pyproject.toml": APP})
        self.control.StartRun(StartRunRequest(fab=Fab(hash_str=sha256(app).hexdigest(), content=app)))
        superexec = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
        runtime = on_loopback(RuntimeHttpClient, address, "SuperExec", superexec, door, retry_invoker=retrying())
        token = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"])).token
        runtime.close()
        self.grid = HttpGrid(address, True, None, token=token)
        shown = RuntimeTokenHttpInterceptor(token=token)
        self.grid._client = on_loopback(RuntimeHttpClient, address, "flwr-serverapp", shown, door)
        self.lost = threading.Event()  # the SuperLink runs, but takes nothing from us any more
        self.heartbeat = HeartbeatSender(self._beat)
        self.heartbeat.start()
        task = self.grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        self.grid.set_run(run_from_proto(task.run))
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self.carrier = Carrier(self.grid._runtime_client, Line(address, None, proxies=False), self.grid.node)
        self.inbox = Inbox(self.grid._runtime_client, self.carrier, self.grid.node, task.run.run_id)
        self.context = Context(task.run.run_id, task.context.node_id, {}, RecordDict(), {})

    def _beat(self) -> bool:
        """Flower's own heartbeat ends this process if the SuperLink has dropped us, as after a suspend."""
        try:
            known = self.grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success
        except httpx.TransportError:
            return False  # tried again soon
        except LOST:
            known = False
        if not known:
            self.lost.set()
        return True

    def push(self, messages: Sequence[Message]) -> list[str]:
        """As `HttpGrid.push_messages`; the numbers of the messages."""
        with no_object_id_recompute():
            for message in messages:
                cut(message)
                message.metadata.__dict__["_message_id"] = message.object_id
                self.grid._check_message(message)
            trees, objects = [], dict[str, InflatableObject]()
            for message in messages:
                objects |= get_all_nested_objects(message)
                trees.append(get_object_tree(message))
            runtime, run = self.grid._runtime_client, self.grid.run.run_id
            heads = [message_to_proto(remove_content_from_message(message)) for message in messages]
            request = PushAppMessagesRequest(messages_list=heads, message_object_trees=trees)
            response = runtime.PushMessages(request)
            if any(isinstance(part, Piece) for part in objects.values()):
                self._wake_sites()  # they fetch the first parts of a large model while the others are sent
            self.carrier.push_all(objects, set(response.objects_to_push), run, response.session_id)
        self._wake_sites()
        return list(response.message_ids)

    def _wake_sites(self) -> None:
        runtime = self.grid._runtime_client
        runtime._client.post(f"{runtime._base_url}{SENT}", headers=self.shown).raise_for_status()

    def standing(self) -> dict[str, Standing]:
        nodes = self.control.ListNodes(ListNodesRequest()).nodes_info
        return {
            self.site_of[node.node_id]: Standing(node.node_id, node.status == "online", node.last_activated_at)
            for node in nodes
            if node.node_id in self.site_of
        }

    def expel(self, site: str) -> None:
        for node, name in list(self.site_of.items()):
            if name == site:
                with suppress(*LOST):  # where it fails it is tried again at the next look
                    self.control.UnregisterNode(UnregisterNodeRequest(node_id=node))
                    del self.site_of[node]

    def close(self) -> None:
        for end in (self.heartbeat.stop, self.grid.close, self.control.close, self.carrier.line.close):
            with suppress(*LOST):
                end()


class ReconnectingGrid(Grid):
    """A Grid that outlives its SuperLink: `connection` gives the present one."""

    def __init__(self, connection: Callable[[], CoordinatorConnection]) -> None:
        self.connection = connection

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return self.connection().grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return self.connection().grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self.connection().grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with lost_link():
            pushed = self.connection().push(list(messages))
        if not all(pushed):
            raise LinkLost
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with lost_link():
            return self.connection().inbox.pull(list(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


@dataclass(frozen=True)
class Arriving:
    """An answer, and what has arrived of it."""

    metadata: Metadata
    parcel: Parcel

    def fetch(self, pull: Callable[[str, memoryview | None], bytes]) -> Message | None:
        """None while parts are missing; an error message if they will not come any more; one without content if what
        has come is no message."""
        try:
            return self.parcel.opened() if self.parcel.fetch(pull) else None
        except ObjectPullError:
            return make_message(metadata=self.metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "cut off"))
        except UNREADABLE:
            return make_message(metadata=self.metadata, content=RecordDict())


class Inbox:
    """Answers of sites, part by part. Flower's own `Grid.pull_messages` waits up to three minutes for the rest of an
    answer that a site is still sending; in that time no other site would be heard and no deadline kept."""

    def __init__(self, runtime: RuntimeHttpClient, carrier: Carrier, node: Node, run: int) -> None:
        self.runtime = runtime
        self.fetch = partial(carrier.pull, run)
        self.confirm = make_confirm_message_received_fn_protobuf(runtime.ConfirmMessageReceived, node, run)
        self.arriving: dict[str, Arriving] = {}  # by the number of the request: the SuperLink names each only once

    def pull(self, numbers: Sequence[str]) -> list[Message]:
        """The complete answers to these messages. Never waits."""
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
        response = self.runtime.PullMessages(PullAppMessagesRequest(message_ids=numbers))
        for proto, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            metadata = message_from_proto(proto).metadata
            for number, old in list(self.arriving.items()):
                if old.metadata.src_node_id == metadata.src_node_id:
                    del self.arriving[number]  # the site came back, and answers again
            self.arriving[metadata.reply_to_message_id] = Arriving(metadata, Parcel(metadata.message_id, tree))


@contextmanager
def lost_link() -> Iterator[None]:
    try:
        yield
    except LOST as error:
        raise LinkLost from error


class SiteConnection:
    """A site's connection. Everything goes out from here; nobody connects to a site."""

    def __init__(self, address: str, ca: bytes, key: ec.EllipticCurvePrivateKey, before: int | None) -> None:
        """`before` is the number of a connection that a dead process may have left open."""
        self.retry, self.waiting_call = retrying(), Waiting()
        public = key.public_key()
        self.client = FleetHttpClient.from_server_address(
            address,
            False,
            ca,
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, public),
                self.waiting_call,
                FreedAtOnce(),
            ],
        )
        if before is not None:
            with suppress(*LOST):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=before))
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT)
        try:
            self.number = int(self.client.ActivateNode(request).node_id)
        except LOST:
            self.client.close()  # a site may try for days
            raise
        self.node = Node(node_id=self.number)
        tls = ssl.create_default_context(cadata=ca.decode("ascii"))
        self.carrier = Carrier(self.client, Line(address, tls, proxies=True), self.node, self.retry)
        self.waiting: dict[int, tuple[Message, ObjectTree]] = {}  # messages not answered yet, by Flower's run
        self.lost = threading.Event()
        self.stopped = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        missed = 0
        while not self.stopped.wait(HEARTBEAT / 2):
            try:
                request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
                missed = 0 if self.client.SendNodeHeartbeat(request).success else missed + 3
            except httpx.HTTPStatusError:
                missed += 3  # it answers, but does not know us
            except LOST:
                missed += 1
            if missed >= 3:
                self.lost.set()
                return

    def receive(self) -> Message | None:
        """The newest message of a Flower run, if one comes while the SuperLink holds the call: older ones are of rounds
        that closed without us."""
        if self.lost.is_set():
            raise LinkLost
        with lost_link():
            while (response := self._look(wait=not self.waiting)).messages_list:
                newest = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
                overtaken = self.waiting.pop(newest[0].metadata.run_id, None)
                self.waiting[newest[0].metadata.run_id] = newest
                if overtaken is not None:
                    self._confirm(overtaken[0])
            if not self.waiting:
                return None
            message, tree = self.waiting.pop(next(iter(self.waiting)))
            parcel = Parcel(message.metadata.message_id, tree)
            self._fetch(parcel, message.metadata.run_id)
            self._confirm(message)
            return parcel.opened()

    def _fetch(self, parcel: Parcel, run: int) -> None:
        """The coordinator is still sending: parts are fetched as they come."""
        pause = SOONEST
        while not parcel.fetch(partial(self.carrier.pull, run)):
            if self.lost.wait(pause):
                raise LinkLost
            pause = min(SLOWER * pause, LATEST)

    def _look(self, wait: bool) -> PullMessagesResponse:
        self.waiting_call.waits = wait
        return self.client.PullMessages(PullMessagesRequest(node=self.node))

    def _confirm(self, message: Message) -> None:
        """Tell the SuperLink that it need not keep this message."""
        run, number = message.metadata.run_id, message.metadata.message_id
        confirm = self._retried(self.client.ConfirmMessageReceived)
        make_confirm_message_received_fn_protobuf(confirm, self.node, run)(number)

    def send(self, reply: Message, progress: Callable[[int, int], None]) -> None:
        """`progress` receives the number of chunks sent and their total."""
        run = reply.metadata.run_id
        with lost_link(), no_object_id_recompute():
            cut(reply)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            response = self._retried(self.client.PushMessages)(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                )
            )
            self.carrier.push_all(objects, set(response.objects_to_push), run, response.session_id, progress)

    def _retried(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Repeats a call while the network fails: a lost chunk need not cost the whole message."""
        return lambda request: self.retry.invoke(method, request)

    def close(self) -> None:
        self.stopped.set()
        with suppress(*LOST):
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.number))
        self.carrier.line.close()
        with suppress(*LOST):
            self.client.close()
