"""Analyses across hospitals: the same figures as in a simulation, and what a hospital does not answer."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analyses.pooled import COLUMNS, hospital_rows
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from wardround.core.errors import WardroundError
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.deployment import Policy
from wardround.deployment.governance.plain_words import in_plain_words
from wardround.deployment.governance.policy import objections
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study

SECURE: dict[str, Any] = {"secure_sum": {}}


def study(family: str = "logistic", privacy: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    analysis = {"name": "effect", "kind": "glm", "family": family, "formula": "y ~ dose + age + C(sex) + ward"}
    return {
        "name": "effects",
        "question": "What goes with the outcome?",
        "data": {"source": "own"},
        "privacy": dict(privacy or {}),
        "analyses": [analysis | settings],
    }


def records_of(frames: Mapping[str, pd.DataFrame]) -> Records:
    whole = pd.concat(frames.values(), ignore_index=True)
    features = whole.drop(columns="patient").astype({"sex": float})
    hospital = np.concatenate([np.full(len(frame), site, dtype=object) for site, frame in frames.items()])
    columns = tuple(Column(own.name, own.kind, levels=own.levels) for own in COLUMNS)
    target = np.zeros(len(whole), np.int64)
    return Records(
        features[[own.name for own in COLUMNS]], target, ("-", "+"), hospital, columns, whole["patient"].to_numpy(str)
    )


def source(frames: Mapping[str, pd.DataFrame]) -> Callable[[], Source]:
    return lambda: Source(lambda: records_of(frames))


def network(document: Mapping[str, Any], frames: Mapping[str, pd.DataFrame], folder: Path) -> Federation:
    sites = {site: partial(source({site: frame})) for site, frame in frames.items()}
    return federation(document, folder, sites, known_sources={"own": source(frames)})


def simulated(document: Mapping[str, Any], frames: Mapping[str, pd.DataFrame], folder: Path) -> dict[str, Any]:
    run = run_study(document, folder, sources={"own": source(frames)})
    return dict(run.results["analyses"]["effect"])


def deployed(document: Mapping[str, Any], frames: Mapping[str, pd.DataFrame], folder: Path) -> dict[str, Any]:
    results = network(document, frames, folder).run().read_json("results.json")
    return dict(results["analyses"]["effect"])


@pytest.mark.parametrize("privacy", [None, SECURE], ids=["open", "secure"])
@pytest.mark.parametrize("errors", ["model", "robust"])
def test_deployed_equals_simulated(privacy: Mapping[str, Any] | None, errors: str, tmp_path: Path) -> None:
    frames = hospital_rows("logistic", 4, 2, visits=2)
    document = study(privacy=privacy, errors=errors)
    across, here = deployed(document, frames, tmp_path / "a"), simulated(document, frames, tmp_path / "b")
    assert across["terms"].keys() == here["terms"].keys()
    for term, own in here["terms"].items():
        for name in ("estimate", "se", "p"):
            assert across["terms"][term][name] == pytest.approx(own[name], rel=1e-12, abs=1e-15)
    same = ("n", "patients", "sites", "left_out", "steps", "iterations", "secure_sum", "excluded")
    assert {name: across[name] for name in same} == {name: here[name] for name in same}


def test_a_site_below_the_floor_is_left_out_and_says_so(tmp_path: Path) -> None:
    frames = hospital_rows("logistic", 3, 4)
    result = deployed(study(), {**frames, "h00": frames["h00"].head(3)}, tmp_path / "few")
    assert result["left_out"] == [{"site": "h00", "rule": "smallest-cell"}]
    alone = deployed(study(), {site: frames[site] for site in ("h01", "h02")}, tmp_path / "without")
    assert result["terms"] == alone["terms"]


def test_without_a_hospital_a_secure_sum_comes_to_nothing(tmp_path: Path) -> None:
    frames = hospital_rows("logistic", 4, 2)
    world = network(study(privacy=SECURE) | {"deployment": {"quorum": 3, "deadline": 0.2}}, frames, tmp_path)

    def before(site: str, sealed: Any) -> bool:
        return not (site == "h01" and kind_of(sealed) == "analyse" and body_of(sealed)["round"] == 1)

    world.transport.before = before
    with pytest.raises(WardroundError, match="h01 did not answer"):
        world.run()
    assert not world.folder.complete
    again = world.restart_coordinator()  # the hospital is there again: it goes on with the step it was in
    result = again.run().read_json("results.json")["analyses"]["effect"]
    assert result["sites"] == ["h00", "h01", "h02", "h03"]


def test_a_coordinator_that_restarts_asks_no_step_twice(tmp_path: Path) -> None:
    frames, seen = hospital_rows("poisson", 3, 2), []
    document = study("poisson", offset="log(years)")
    world = network(document, frames, tmp_path / "a")

    def before(site: str, sealed: Any) -> bool:
        if kind_of(sealed) == "analyse":
            seen.append(body_of(sealed)["round"])
            if body_of(sealed)["round"] == 3 and len(seen) < 12:
                raise KeyboardInterrupt
        return True

    world.transport.before = before
    with pytest.raises(KeyboardInterrupt):
        world.run()
    again = world.restart_coordinator()
    again.transport.before = lambda site, sealed: not seen.append(("again", body_of(sealed).get("round")))  # type: ignore[func-returns-value]
    result = again.run().read_json("results.json")["analyses"]["effect"]
    steps = {pair[1] for pair in seen if isinstance(pair, tuple) and pair[1] is not None}
    assert min(steps) == 3
    assert result["terms"] == deployed(document, frames, tmp_path / "b")["terms"]


def test_the_log_of_a_hospital_names_the_rules_of_every_release(tmp_path: Path) -> None:
    network(study(privacy=SECURE), hospital_rows("logistic", 3, 2), tmp_path).run()
    log = (tmp_path / "sites" / "h00" / "audit.jsonl").read_text(encoding="utf-8")
    released = [json.loads(line) for line in log.splitlines() if json.loads(line)["event"] == "released"]
    assert [entry["detail"]["step"] for entry in released[:3]] == ["means", "moments", "score"]
    assert all({"rare-column", "least-sites", "smallest-cell"} <= set(own["detail"]["rules"]) for own in released)


def test_the_same_question_about_nearly_the_same_patients_is_refused(tmp_path: Path) -> None:
    frames = hospital_rows("logistic", 3, 2)
    network(study(), frames, tmp_path).run()
    fewer = {**frames, "h01": frames["h01"].iloc[2:]}  # as if two patients had been taken out
    second = network(study() | {"name": "once-more"}, fewer, tmp_path)
    second.coordinator.messenger.again = True
    result = second.run().read_json("results.json")["analyses"]["effect"]
    assert {"site": "h01", "rule": "earlier-release"} in result["left_out"]


def test_plain_words_say_what_is_computed_and_what_leaves() -> None:
    parsed, _ = load_study(study(privacy=SECURE), sources={"own": source(hospital_rows("logistic", 2, 1))})
    text = "\n".join(in_plain_words(parsed, ["h00", "h01", "h02"]))
    assert "y ~ dose + age + C(sex) + ward" in text
    assert "under masks" in text
    assert "trains no model" in text


@pytest.mark.parametrize(
    ("policy", "formula", "reason"),
    [
        (Policy(analyses=("table-one",)), "y ~ dose", "glm"),
        (Policy(secure_aggregation=True), "y ~ dose", "requires secure aggregation"),
        (Policy(site_figures=False), "y ~ dose + site", "tells no figures of its own"),
        (Policy(most_epsilon=1.0), "y ~ dose", "requires differential privacy"),
    ],
)
def test_a_policy_refuses(policy: Policy, formula: str, reason: str) -> None:
    parsed, _ = load_study(study(formula=formula), sources={"own": source(hospital_rows("logistic", 2, 1))})
    assert reason in "; ".join(objections(policy, parsed, "h00", ["h00", "h01"]))
