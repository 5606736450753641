"""Across hospitals the same are named in the same rounds as in a simulation, and no longer asked where they are left
out."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.deployment.in_process_federation import body_of, federation, kind_of
from wardround import decide, run_study
from wardround.core.errors import HeldError
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.deployment.common.parity import replay
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan
from wardround.screening.clean_hospitals import COLUMNS, clean_hospitals

NAMES = tuple(f"ward-{number}" for number in range(9))
INVERTED = NAMES[0]


def wards(hospitals: tuple[str, ...] = NAMES) -> Source:
    """Nine clean hospitals, of which the first has its labels turned round."""
    parts = dict(zip(NAMES, clean_hospitals(5, len(NAMES), inverted=1), strict=True))
    x = np.concatenate([parts[name][0] for name in hospitals])
    y = np.concatenate([parts[name][1] for name in hospitals])
    of_row = np.repeat(np.array(hospitals, dtype=object), [len(parts[name][1]) for name in hospitals])
    columns = tuple(Column(f"m{number}", limits=(-9, 9)) for number in range(COLUMNS))
    table = pd.DataFrame(x, columns=[column.name for column in columns])

    def load() -> Records:
        return Records(table, y, ("well", "ill"), of_row, columns)

    return Source(load)


def study(policy: str, **training: Any) -> dict[str, Any]:
    return {
        "name": "screened",
        "data": {"source": "wards"},
        "model": {"kind": "logistic"},
        "training": {"rounds": 5, "lr": 0.1, **training},
        "evaluation": {"seeds": {"first": 3, "count": 1}, "accept": ["label-direction"]},
        "screening": {"policy": policy},
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}],
    }


def deployed(document: dict[str, Any], folder: Path):  # type: ignore[no-untyped-def]
    sources = {name: partial(wards, (name,)) for name in NAMES}
    return federation(document, folder, sources, known_sources={"wards": wards})


@pytest.mark.parametrize("policy", ["notice", "drop"])
def test_the_same_sites_are_named_in_the_same_rounds(policy: str, tmp_path: Path) -> None:
    network = deployed(study(policy), tmp_path / "deployed")
    network.run()
    alone = run_study(study(policy), tmp_path / "alone", sources={"wards": wards}, workers=1)
    theirs, ours = network.folder.records(), RunFolder(alone.folder).records()
    for name in ("lengths", "agreements", "named", "dropped"):
        assert [list(entry) for entry in theirs[name]] == [list(entry) for entry in ours[name]], name
    (entry,) = network.folder.read_json("results.json")["screening"]["arms"]["fedavg"]["named"]
    assert (entry["site"], entry["round"], entry["rule"]) == (INVERTED, 3, "direction")
    assert entry["left_out"] is (policy == "drop")
    asked = [
        body_of(sealed)["round"]
        for s, sealed, _ in network.transport.carried
        if (s, kind_of(sealed)) == (INVERTED, "train")
    ]
    trained = [number for number in asked if number < 3]
    assert trained == [0, 1, 2]
    events = [line for line in (network.folder.path / "audit.jsonl").read_text().splitlines() if "site named" in line]
    assert len(events) == 1
    assert INVERTED in events[0]
    first, second = network.folder.load_model("fedavg", 3), RunFolder(alone.folder).load_model("fedavg", 3)
    assert all(np.array_equal(leaf, second[name]) for name, leaf in first.items())


@pytest.mark.parametrize(("decision", "policy"), [("keep", "notice"), ("drop", "drop")])
def test_held_across_hospitals_and_gone_on_with_in_the_same_bits(decision: str, policy: str, tmp_path: Path) -> None:
    network = deployed(study("hold"), tmp_path / "deployed")
    folder = network.folder
    with pytest.raises(HeldError, match=rf"{INVERTED}: its updates of fedavg differ.*round 3.*with seed 3") as first:
        network.run()
    assert "the same `wardround coordinate`" in first.value.remedy
    asked = [body_of(sealed)["round"] for _, sealed, _ in network.transport.carried if kind_of(sealed) == "train"]
    assert max(asked) == 2
    killed = network.restart_coordinator()
    with pytest.raises(HeldError) as again:
        killed.run()
    assert again.value.problem == first.value.problem
    assert killed.transport.carried == []  # no hospital is asked for anything
    verdict: Any = {decision: [INVERTED]}
    decide(folder.path, **verdict, name="Dr. B. Example")
    gone_on = killed.restart_coordinator()
    gone_on.run()
    other = deployed(study(policy), tmp_path / "other")
    other.run()
    ours, theirs = (each.load_model("fedavg", 3) for each in (folder, other.folder))
    assert all(np.array_equal(leaf, theirs[name]) for name, leaf in ours.items())
    for name in ("lengths", "agreements", "named", "dropped"):
        assert [list(entry) for entry in folder.records()[name]] == [list(e) for e in other.folder.records()[name]]
    (entry,) = folder.read_json("results.json")["screening"]["arms"]["fedavg"]["named"]
    assert (entry["decision"], entry["decided_by"]) == (decision, "Dr. B. Example")
    assert entry["left_out"] is (decision == "drop")
    later = [
        body_of(sealed)["round"]
        for site, sealed, _ in gone_on.transport.carried
        if (site, kind_of(sealed)) == (INVERTED, "train") and body_of(sealed)["work"]
    ]
    assert bool(later) is (decision == "keep")
    plan = load_plan(*load_study(study("hold"), sources={"wards": wards}))
    assert replay(plan, folder).equal
