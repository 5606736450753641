"""Numbers over HTTP: the answers of `predict`, in units, with an exposure where the task has one."""

from pathlib import Path
from typing import Any

import pytest

from tests.bundles.number_runs import ADMISSIONS, STAY, number_run, patients
from tests.serving.test_serve import Client
from wardround.bundles import Bundle, bundle_from, load_bundle, predict_table
from wardround.serving.app import make_app
from wardround.serving.schema import answer_schema, row_schema
from wardround.serving.serve import warm_up

KEYS = ["predicted", "low", "high", "out_of_distribution", "refer", "why"]


@pytest.fixture(scope="module", params=["stay", "admissions"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp(request.param)
    run = number_run(folder, STAY if request.param == "stay" else ADMISSIONS)
    return load_bundle(bundle_from(run, arm="fedavg", site="north", out=folder / "b"))


def asked(rows: int) -> list[dict[str, Any]]:
    table = patients(rows, 21)
    records = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(name): value for name, value in record.items()} for record in records]


def test_answers_are_those_of_predict_and_have_the_keys_of_the_schema(bundle: Bundle) -> None:
    warm_up(bundle)
    answer = Client(make_app(bundle)).post("/predict", json={"rows": asked(30)})
    assert answer.status_code == 200
    rows = answer.json()["rows"]
    expected = predict_table(bundle, patients(30, 21))
    assert list(rows[0]) == KEYS
    for key in ("predicted", "low", "high", "why"):
        assert [row[key] for row in rows] == expected[key].tolist()
    described = answer_schema(bundle)["properties"]["rows"]["items"]
    assert described["required"] == KEYS
    assert set(row_schema(bundle)["required"]) <= asked(1)[0].keys()


def test_the_schema_names_units_and_exposure(bundle: Bundle) -> None:
    described = answer_schema(bundle)["properties"]["rows"]["items"]["properties"]["predicted"]
    assert described["type"] == ["number", "null"]
    assert "minimum" not in described
    row = row_schema(bundle)
    if bundle.task.columns:
        assert "months" in row["required"]
        assert "above 0" in row["properties"]["months"]["description"]
    else:
        assert "months" not in row["properties"]
        assert described["description"] == "An expected value of 'stay' in days."


def test_a_row_without_exposure_is_answered_and_a_word_for_it_refused(bundle: Bundle) -> None:
    [row] = asked(1)
    client = Client(make_app(bundle))
    if not bundle.task.columns:  # then the column is one of those that are not looked at
        [answer] = client.post("/predict", json={"rows": [{**row, "months": "a year"}]}).json()["rows"]
        assert answer["why"] == ""
        return
    [nothing] = client.post("/predict", json={"rows": [{**row, "months": None}]}).json()["rows"]
    assert (nothing["predicted"], nothing["low"], nothing["refer"]) == (None, None, True)
    assert nothing["why"] == "no exposure above 0: months"
    refused = client.post("/predict", json={"rows": [{**row, "months": "a secret year"}]})
    assert refused.status_code == 422
    assert "secret" not in refused.text
    missing = client.post("/predict", json={"rows": [{key: value for key, value in row.items() if key != "months"}]})
    assert missing.status_code == 422
    assert missing.json()["error"]["problem"] == "there is no 'months'"
