"""What `engines/flower/` takes for granted of Flower, which may change with any version of it."""

import ast
import importlib
import io
import os
import signal
import time
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.superlink_fixtures import ask, echo, joined, made_linked
from tests.representatives import represented
from wardround.core.errors import DeployError, MachineError
from wardround.deployment import flower
from wardround.protocol.messages import Sealed, Transport
from wardround.protocol.signing import read_key

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's matter
PACKAGE = Path(flower.__file__).parent
MESSAGE = Sealed(b"head", b"tensors", b"signature")


@pytest.mark.parametrize("installed_version", ["1.40.0", "1.41.1", "2.0.0", None])
def test_another_version_is_refused(installed_version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "installed", {"flwr": installed_version}.__getitem__)
    with pytest.raises(MachineError, match=r"pip install 'wardround\[deploy\]'"):
        flower.check_version()


def test_the_version_is_the_one_that_the_package_asks_for() -> None:
    project = (PACKAGE.parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"flwr=={flower.FLOWER}"' in project
    assert version("flwr") == flower.FLOWER
    flower.check_version()


@pytest.mark.parametrize("file", sorted(path.name for path in PACKAGE.glob("*.py")))
def test_every_name_that_is_imported_exists(file: str) -> None:
    """Those too that are imported late, when a run has begun."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "flwr":
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module}.{name.name}"


def test_nothing_is_told_to_flowers_makers() -> None:
    from flwr.supercore import telemetry

    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"


def test_the_app_that_is_sent_has_no_code_in_it() -> None:
    from flwr.cli.build import build_fab_from_files

    from wardround.deployment.flower.adapter import APP

    app, _ = build_fab_from_files({"pyproject.toml": APP})
    with zipfile.ZipFile(io.BytesIO(app)) as parts:
        assert {name for name in parts.namelist() if not name.startswith(".info/")} == {"pyproject.toml"}
        assert not [name for name in parts.namelist() if name.endswith(".py")]


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 5 * 2**20])
def test_messages_survive_the_wire(size: int) -> None:
    from wardround.deployment.flower.server_app import SMALL, from_record, received, to_record

    sealed = Sealed(b'{"kind": "train"}', os.urandom(size), os.urandom(96))
    record = to_record(sealed)
    assert from_record(record) == sealed
    assert received(record) == sealed
    # circles of records keep no tensors until Python looks for circles
    assert all(not array.data for arrays in record.array_records.values() for array in arrays.values())
    assert bool(record.array_records) == (size > SMALL)  # an array is cut into chunks, a setting is not


def test_the_same_model_for_many_sites_is_cut_and_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    from wardround.deployment.flower.server_app import SMALL, GridTransport, Standing, from_record

    class Pushed:
        def push_messages(self, messages: list[Any]) -> list[str]:
            self.messages = messages
            return [f"number {place}" for place in range(len(messages))]

    grid: Any = Pushed()
    transport = GridTransport(grid, dict)
    transport.standing = {site: Standing(node, True, "") for node, site in enumerate(("north", "south", "east"))}
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    model, other = os.urandom(SMALL + 1), os.urandom(SMALL + 1)
    messages = {"north": model, "south": model, "east": other}
    sealed = {site: Sealed(site.encode(), tensors, b"signature") for site, tensors in messages.items()}
    assert transport._push(sealed) == {"north": "number 0", "south": "number 1", "east": "number 2"}
    assert [message.metadata.dst_node_id for message in grid.messages] == [0, 1, 2]
    north, south, east = (message.content.array_records["tensors"]["tensors"] for message in grid.messages)
    assert north is south
    assert north is not east
    assert [from_record(message.content) for message in grid.messages] == list(sealed.values())


def test_a_request_that_stays_open_over_rounds_is_sent_once() -> None:
    from wardround.deployment.flower.server_app import Abandoned, GridTransport, Standing

    grid: Any = None
    transport = GridTransport(grid, dict)
    there = Standing(1, True, "since then")
    transport.abandoned = {
        "number 1": Abandoned("north", b"one", there),
        "number 2": Abandoned("south", b"two", there),
    }
    again = {"north": Sealed(b"head", b"", b"one"), "south": Sealed(b"head", b"", b"another")}
    assert transport._taken_up(again) == {"north": ("number 1", there)}
    assert list(transport.abandoned) == ["number 2"]


def test_what_was_sent_and_received_is_freed_without_a_search_for_circles() -> None:
    import gc
    from weakref import ref

    import httpx

    from wardround.deployment.flower.adapter import FreedAtOnce

    client = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=b"a part")))

    def call(context: Any) -> httpx.Response:
        return client.send(httpx.Request("POST", "https://127.0.0.1/", content=b"a part"))

    gc.disable()
    try:
        response = FreedAtOnce().intercept(None, call)
        assert response.content == b"a part"
        kept = ref(response), ref(response.request)
        del response
        assert [thing() for thing in kept] == [None, None]
        kept_by_httpx = ref(call(None))
        assert kept_by_httpx() is not None  # else this interceptor is needed no more
    finally:
        gc.enable()


def test_whatever_is_no_message_is_refused() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from wardround.deployment.flower.server_app import from_record

    half = {"head": b"head", "signature": b"signature"}
    array = Array("uint8", (3,), "other", b"abc")
    for record in (
        RecordDict({}),
        RecordDict({"message": MetricRecord({"head": 1})}),
        RecordDict({"message": ConfigRecord({})}),
        RecordDict({"message": ConfigRecord({**half})}),
        RecordDict({"message": ConfigRecord({**half, "tensors": "words"})}),
        RecordDict({"message": ConfigRecord({**half, "tensors": 3})}),
        RecordDict({"message": ConfigRecord({**half}), "tensors": ArrayRecord({"others": array})}),
        RecordDict({"message": ConfigRecord({"head": b"head", "tensors": b"tensors"})}),
    ):
        with pytest.raises(DeployError, match="is not a message"):
            from_record(record)


def test_heartbeats_are_as_frequent_as_a_superlink_allows() -> None:
    from flwr.common.constant import HEARTBEAT_MAX_INTERVAL, HEARTBEAT_MIN_INTERVAL

    from wardround.deployment.flower.adapter import HEARTBEAT

    assert HEARTBEAT_MIN_INTERVAL == HEARTBEAT <= HEARTBEAT_MAX_INTERVAL


@pytest.mark.parametrize("status", represented([400, 401, 403, 404, 412, 500], by=[401, 403, 500]))
def test_a_refusal_is_told_at_once_and_does_not_end_the_process(status: int) -> None:
    """Flower's own way of retrying sends SIGINT to the process on 401, and raises a BaseException on 403."""
    import httpx

    from wardround.deployment.flower.adapter import retrying

    answers = iter([503, status])
    with pytest.raises(httpx.HTTPStatusError, match=str(status)):
        retrying().invoke(lambda: answered(next(answers)))


def answered(status: int) -> None:
    import httpx

    request = httpx.Request("POST", "https://127.0.0.1/")
    httpx.Response(status, request=request, json={"code": 1, "message": ""}).raise_for_status()


@pytest.mark.slow
def test_messages_over_a_real_superlink(tmp_path: Path) -> None:
    """One SuperLink for all of it, since each takes seconds to start."""
    began = made_linked(tmp_path)
    south = read_key(tmp_path / "kits" / "sites" / "south" / "site.key").private
    done = []

    def coordinate(transport: Transport) -> None:
        with joined(began, tmp_path, "north", echo):
            for size in (10, 20 * 2**20):
                sealed = Sealed(b"head", os.urandom(size), b"signature")
                assert ask(transport, {"north": sealed}) == {"north": sealed}
            assert transport.connected()["north"]
            back_at_once_after_a_crash(began, south)
        others_are_heard_while_one_has_died_over_its_answer(began, transport, tmp_path)
        comes_back_when_it_was_killed(began, transport, tmp_path)
        comes_back_when_it_has_given_us_up(began, transport, tmp_path)
        done.append(True)

    began.carry(coordinate)
    assert done
    assert began.process is None
    assert not (began.folder / "secret").exists()


def back_at_once_after_a_crash(linked: Any, key: Any) -> None:
    """A SuperLink takes a site that has died for alive until two heartbeats are missing, and lets it in only once."""
    import httpx

    from wardround.deployment.flower.adapter import SiteConnection

    address, ca = f"{linked.host}:{linked.kit.port}", linked.kit.ca.read_bytes()
    died = SiteConnection(address, ca, key, None)
    died.stopped.set()
    died.client.close()
    died.carrier.line.close()
    with pytest.raises(httpx.HTTPStatusError, match="412"):
        SiteConnection(address, ca, key, None)
    back = SiteConnection(address, ca, key, died.number)
    assert back.number == died.number
    assert back.receive() is None
    back.close()


def others_are_heard_while_one_has_died_over_its_answer(linked: Any, transport: Transport, folder: Path) -> None:
    """Flower's own call would wait three minutes for the rest of it."""
    from flwr.app import Context, RecordDict

    from wardround.deployment.flower.adapter import SiteConnection
    from wardround.deployment.flower.server_app import LinkLost
    from wardround.deployment.flower.site_loop import client_app

    key = read_key(folder / "kits" / "sites" / "south" / "site.key").private
    connection = SiteConnection(f"{linked.host}:{linked.kit.port}", linked.kit.ca.read_bytes(), key, None)
    (folder / "south-connection").write_text(str(connection.number))
    answers, began = transport.ask({"south": MESSAGE, "north": MESSAGE}), time.monotonic()
    while (message := connection.receive()) is None:
        assert next(answers) is None

    def broken(*call: Any) -> None:
        raise OSError

    vars(connection.carrier)["push"] = broken
    with pytest.raises(LinkLost):
        connection.send(
            client_app(echo)(message, Context(0, connection.number, {}, RecordDict(), {})), lambda gone, total: None
        )
    connection.stopped.set()
    connection.client.close()
    connection.carrier.line.close()
    for _ in range(4):
        assert next(answers) is None
    with joined(linked, folder, "north", echo):
        assert next(got for got in answers if got) == ("north", MESSAGE)
        with joined(linked, folder, "south", echo):
            assert next(got for got in answers if got) == ("south", MESSAGE)
    assert time.monotonic() - began < 60


def comes_back_when_it_was_killed(linked: Any, transport: Transport, folder: Path) -> None:
    """A message that was out when the SuperLink died is sent again, and its answer arrives."""
    seen: list[Sealed] = []

    def kill_first(sealed: Sealed) -> Sealed:
        seen.append(sealed)
        if len(seen) == 1:
            os.kill(linked.process.pid, signal.SIGKILL)
        return sealed

    before = linked.process.pid
    with joined(linked, folder, "north", kill_first):
        assert ask(transport, {"north": MESSAGE}) == {"north": MESSAGE}
    assert seen == [MESSAGE, MESSAGE]
    assert linked.process.pid != before


def comes_back_when_it_has_given_us_up(linked: Any, transport: Transport, folder: Path) -> None:
    """As when the coordinator's machine was suspended: the SuperLink runs, but its run of ours has ended."""
    from flwr.proto.control_pb2 import StopRunRequest

    connection, before = linked.connection, linked.process.pid
    connection.control.StopRun(StopRunRequest(run_id=connection.context.run_id))
    connection._beat()
    assert connection.lost.is_set()
    with joined(linked, folder, "north", echo):
        assert ask(transport, {"north": MESSAGE}) == {"north": MESSAGE}
    assert linked.process.pid != before
