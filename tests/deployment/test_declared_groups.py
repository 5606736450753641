"""Groups by columns that a study declares, across hospitals: what leaves them, and the gaps that follow."""

import json
from typing import Any

import pytest

from tests.deployment.hospital_files import study
from tests.deployment.parity import Both, deploy
from wardround.deployment.governance.plain_words import in_plain_words

GROUPS = {"groups": ["ward", "stage"], "test_share": 0.5}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    document = study([{"algorithm": "fedavg"}, {"algorithm": "ditto"}], evaluation=GROUPS)
    return deploy(document, tmp_path_factory.mktemp("groups"))


def test_gaps_are_those_of_the_sites_that_tell(both: Both) -> None:
    content: dict[str, Any] = both.deployed.folder.read_json("results.json")
    subgroups = content["arms"]["fedavg"]["subgroups"]
    assert {kind: set(groups) for kind, groups in subgroups.items()} == {
        "ward": {"medical", "psychiatric", "surgical", "burns"} & set(subgroups["ward"]),
        "stage": {"1", "2", "3"} & set(subgroups["stage"]),
    }
    gaps = {(entry["kind"], entry["measure"]) for entry in content["group_gaps"] if entry["arm"] == "ditto"}
    assert gaps
    for entry in content["group_gaps"]:
        rates = content["arms"][entry["arm"]]["subgroups"][entry["kind"]]
        own, largest = (rates[entry[of]]["rates"][entry["measure"]]["mean"] for of in ("group", "from"))
        assert entry["difference"] == pytest.approx(own - largest)


def test_no_small_group_leaves_and_a_hospital_without_the_column_tells_of_none(both: Both) -> None:
    lines = [json.loads(line) for line in (both.deployed.folder.path / "summaries.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["subset"] == "test"]
    assert {line["site"] for line in told} == {"alder", "birch", "cedar", "dogwood"}
    assert any(line["groups"].get("stage") for line in told)
    assert not any(line["groups"].get("stage") for line in told if line["site"] == "dogwood")
    for line in told:
        for groups in line["groups"].values():
            assert all(group["rows"] >= 10 for group in groups.values())


def test_a_hospital_is_told_by_what_its_rows_are_counted(both: Both) -> None:
    words = " ".join(in_plain_words(both.plan.study))
    assert "sex, age, ward and stage" in words
