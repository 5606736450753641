"""Over HTTP: the numbers of `predict`, one schema, and no answer or log that repeats a patient's value."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from tests.bundles.untrained_bundles import write_bundle
from wardround.bundles import Bundle, load_bundle, predict_table
from wardround.core.errors import MachineError, StudyError
from wardround.serving import app as serving_app
from wardround.serving.app import make_app
from wardround.serving.guard import LARGEST
from wardround.serving.schema import MOST_ROWS, answer_schema, row_schema
from wardround.serving.serve import is_own, names_of, serve

ROW: dict[str, Any] = {"age": 0.5, "crp": "1.25", "sodium": None, "remark": "not looked at"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("served") / "b"
    return load_bundle(write_bundle(folder, calibration={"slope": 2.0, "intercept": 0.5}))


class Client:
    """Asks the application itself, without a network."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def request(self, method: str, path: str, **asked: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                return await client.request(method, path, **asked)

        return asyncio.run(ask())

    def get(self, path: str, **asked: Any) -> httpx.Response:
        return self.request("GET", path, **asked)

    def post(self, path: str, **asked: Any) -> httpx.Response:
        return self.request("POST", path, **asked)


@pytest.fixture(scope="module")
def client(bundle: Bundle) -> Client:
    return Client(make_app(bundle))


def test_answers_are_those_of_predict_to_the_last_bit(client: Client, bundle: Bundle) -> None:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=["age", "crp", "sodium"])
    expected = predict_table(bundle, table)
    answer = client.post("/predict", json={"rows": table.to_dict("records")})
    assert answer.status_code == 200
    content = answer.json()
    assert content["bundle"] == bundle.id
    assert list(content["rows"][0]) == ["score", "probability", "predicted", "out_of_distribution", "why"]
    answer_table = pd.DataFrame(content["rows"])
    pd.testing.assert_frame_equal(answer_table, expected.drop(columns="row"), check_dtype=False, check_exact=True)
    alone = client.post("/predict", json={"rows": [table.iloc[7].to_dict()]}).json()["rows"]
    assert alone == [content["rows"][7]]


def test_a_request_may_ask_for_reasons(client: Client, bundle: Bundle) -> None:
    plain = client.post("/predict", json={"rows": [ROW]}).json()["rows"][0]
    [explained] = client.post("/predict", json={"rows": [ROW], "explain": True}).json()["rows"]
    reasons = {name: value for name, value in explained.items() if name not in plain}
    assert {name: value for name, value in explained.items() if name in plain} == plain
    assert list(reasons) == [f"{kind}_{place}" for place in (1, 2, 3) for kind in ("reason", "contribution")]
    assert {reasons[f"reason_{place}"] for place in (1, 2, 3)} == {"age", "crp", "sodium"}
    assert abs(reasons["contribution_1"]) >= abs(reasons["contribution_2"]) >= abs(reasons["contribution_3"])
    properties = answer_schema(bundle)["properties"]["rows"]["items"]["properties"]
    assert set(explained) <= set(properties)
    refused = client.post("/predict", json={"rows": [ROW], "explain": "yes"})
    assert refused.status_code == 422
    assert "neither true nor false" in refused.json()["error"]["problem"]


def test_health_names_the_bundle(client: Client, bundle: Bundle) -> None:
    assert client.get("/health").json() == {"status": "ok", "bundle": bundle.id, "name": bundle.name}


def test_the_schema_is_made_from_the_columns_and_stands_in_the_description(client: Client, bundle: Bundle) -> None:
    schema = client.get("/schema").json()
    assert schema["required"] == ["age", "crp", "sodium"]
    assert schema["properties"]["age"]["type"] == ["number", "string", "null"]
    described = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    content = described["requestBody"]["content"]["application/json"]["schema"]
    assert content["properties"]["rows"]["items"] == row_schema(bundle)
    assert set(described["responses"]) >= {"200", "413", "415", "422"}


def test_levels_dates_ranges_and_columns_that_may_be_left_out_stand_in_the_schema(bundle: Bundle) -> None:
    from dataclasses import replace

    from wardround.data.prepare import Layout
    from wardround.data.records import Column

    columns = (
        Column("age", limits=(18, 100)),
        Column("seen", dates=True),
        Column("ward at north", "categorical", header="ward"),
        Column("ward at south", "categorical", header="ward"),
        Column("ph"),
    )
    layout = Layout((columns[0], columns[1]), {"ward at north": ("er", "icu"), "ward at south": ("x",)}, ())
    recipe = replace(bundle.recipe, columns=columns, layout=layout)
    schema = row_schema(replace(bundle, recipe=recipe, about={**bundle.about, "unrecorded": ["ward at south", "ph"]}))
    assert schema["required"] == ["age", "seen", "ward"]
    assert list(schema["properties"]) == ["age", "seen", "ward", "ph"]
    assert schema["properties"]["age"]["description"].endswith("Known range: 18 to 100.")
    assert schema["properties"]["seen"]["type"] == ["string", "null"]
    assert schema["properties"]["ward"]["examples"] == ["er", "icu"]
    assert schema["properties"]["ph"]["description"].endswith("this site did not record it, and it is not used.")


SECRET = "Smith-1234"


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        ({"rows": [ROW, {"age": 1, "crp": SECRET}]}, 422, "there is no 'sodium'"),
        ({"rows": [{**ROW, "age": SECRET}]}, 422, "column 'age': this is no number"),
        ({"rows": [{**ROW, "age": [SECRET]}]}, 422, "'age' is neither a number, a text nor null"),
        ({"rows": [{**ROW, "age": {SECRET: SECRET}}]}, 422, "'age' is neither"),
        ({"rows": [{**ROW, "age": True}]}, 422, "'age' is neither"),
        ({"rows": [SECRET]}, 422, "it is no object"),
        ({"rows": SECRET}, 422, "there are no rows in it"),
        ({"rows": []}, 422, "there are no rows in it"),
        ({SECRET: []}, 422, "there are no rows in it"),
        ([SECRET], 422, "there are no rows in it"),
        ({"rows": [ROW] * (MOST_ROWS + 1)}, 413, "10,001 rows, and at most 10,000"),
    ],
)
def test_what_is_wrong_is_told_and_no_value_is(client: Client, content: Any, status: int, problem: str) -> None:
    answer = client.post("/predict", json=content)
    assert answer.status_code == status
    assert problem in answer.json()["error"]["problem"]
    assert SECRET not in answer.text


@pytest.mark.parametrize("content", [b"", b"{", b'{"rows": [{"age": NaN}]}', b"\xff" + SECRET.encode(), b"[" * 5000])
def test_what_is_not_json_is_refused(client: Client, content: bytes) -> None:
    answer = client.post("/predict", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]["problem"] == "it is not JSON"


def test_only_json_is_taken_because_a_page_elsewhere_cannot_send_it_unasked(client: Client) -> None:
    body = json.dumps({"rows": [ROW]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert client.post("/predict", content=body, headers={"content-type": kind}).status_code == 415
    answer = client.post("/predict", json={"rows": [ROW]}, headers={"origin": "http://elsewhere.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    response = client.request(
        "OPTIONS", "/predict", headers={"origin": "http://elsewhere.example", "access-control-request-method": "POST"}
    )
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_what_is_too_large_is_refused_before_it_is_read_to_its_end(client: Client) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 4 * LARGEST:
            sent += 1 << 20
            yield b" " * (1 << 20)

    answer = client.post("/predict", content=body(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["problem"] == "it is larger than 16 MB"
    assert sent <= LARGEST + (2 << 20)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:8000", 200),
        ("elsewhere.example", 421),
        ("localhost.elsewhere.example:8000", 421),
        ("127.0.0.1.nip.example", 421),
        ("", 421),
    ],
)
def test_only_names_of_this_machine_are_answered_to(client: Client, bundle: Bundle, host: str, status: int) -> None:
    """Else a page could let a name of its own point here, and read the answers as its own."""
    answer = client.get("/health", headers={"host": host})
    assert answer.status_code == status
    assert (bundle.id in answer.text) is (status == 200)


def test_whoever_may_connect_may_use_any_name(bundle: Bundle) -> None:
    client = Client(make_app(bundle, None))
    assert client.get("/health", headers={"host": "ward-7.hospital.example"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "anyone", "names"),
    [
        ("127.0.0.1", False, ("127.0.0.1", "localhost", "[::1]")),
        ("127.0.0.2", False, ("127.0.0.2", "127.0.0.1", "localhost", "[::1]")),
        ("127.0.0.2", True, ("127.0.0.2", "127.0.0.1", "localhost", "[::1]")),
        ("localhost", True, ("127.0.0.1", "localhost", "[::1]")),
        ("0.0.0.0", True, None),
    ],
)
def test_the_address_that_it_listens_on_is_one_of_its_names(
    bundle: Bundle, host: str, anyone: bool, names: tuple[str, ...] | None
) -> None:
    """Where only this machine can connect, names are looked at whatever was allowed: a browser runs here too."""
    with socket.create_server((host, 0)) as listening:
        assert names_of(host, listening, anyone) == names
    client = Client(make_app(bundle, names))
    assert client.get("/health", headers={"host": f"{host}:8000"}).status_code == 200
    stranger = client.get("/health", headers={"host": "elsewhere.example"})
    assert stranger.status_code == (200 if names is None else 421)
    assert names is None or stranger.json()["error"]["remedy"] == f"Use {names[0]}."


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_an_address_of_ipv6_is_one_of_its_names(bundle: Bundle) -> None:
    try:
        listening = socket.create_server(("0:0:0:0:0:0:0:1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no loopback of IPv6")
    with listening:
        names = names_of("0:0:0:0:0:0:0:1", listening, True)
    assert names == ("[::1]", "127.0.0.1", "localhost")
    client = Client(make_app(bundle, names))
    assert client.get("/health", headers={"host": "[::1]:8000"}).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect", "/", "/predict/", f"/{SECRET}"])
def test_there_is_nothing_else(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 405, 307)
    assert "script" not in answer.text
    assert SECRET not in answer.text


def test_a_defect_is_told_without_its_words(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(serving_app, "predict_rows", fail)
    with caplog.at_level(logging.DEBUG):
        answer = client.post("/predict", json={"rows": [ROW]})
    assert answer.status_code == 500
    assert SECRET not in answer.text + caplog.text
    assert "a defect: ValueError" in caplog.text


def test_the_log_has_neither_values_nor_queries(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wardround.serving"):
        client.post(f"/predict?name={SECRET}", json={"rows": [{**ROW, "remark": SECRET}]})
        client.get(f"/{SECRET}")
    lines = [record.getMessage() for record in caplog.records if record.name == "wardround.serving"]
    assert lines[0].startswith("POST /predict 200 ")
    assert lines[1].startswith("GET another path 404 ")
    assert SECRET not in "".join(lines)


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("ward-7", False),
    ],
)
def test_which_addresses_are_this_machines_own(host: str, own: bool) -> None:
    assert is_own(host) is own


def never(_: str) -> None:
    raise AssertionError("it must not get ready")


def test_other_machines_are_let_in_only_if_somebody_says_so(bundle: Bundle) -> None:
    with pytest.raises(StudyError, match="can be reached from other machines"):
        serve(bundle, "0.0.0.0", 0, False, never)


def test_a_port_in_use_is_told(bundle: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match=f"127.0.0.1, port {port}: is in use"):
            serve(bundle, "127.0.0.1", port, False, never)


def test_a_process_answers_until_it_is_interrupted(bundle: Bundle) -> None:
    command = [sys.executable, "-m", "wardround.cli.main", "serve", str(bundle.path), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            address = first.rpartition(" answers at ")[2].strip()
            with httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
                assert client.get("/health").json()["bundle"] == bundle.id
                answer = client.post("/predict", json={"rows": [ROW]})
                assert answer.json()["rows"][0]["predicted"] in bundle.classes
                assert "server" not in answer.headers
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 0
    assert "POST /predict 200" in rest
    assert "Traceback" not in rest
