"""Numbers across hospitals: what must not leave does not, what cannot be is refused, and its sender is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.hospital_files import NAMES
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.deployment.number_hospitals import TASKS, at_sites, own, study
from tests.deployment.parity import KNOWN
from tests.deployment.private_studies import EXAMPLE, PUBLIC
from tests.deployment.regional_federation import hierarchy
from tests.deployment.test_answers_checked import Change, lies
from tests.deployment.test_hostile_ends import forged
from tests.deployment.test_nothing_of_a_patient import IDENTITY, NUMBER, assert_clean, own_file, rows, write
from tests.noticed import noticed
from wardround.core.errors import DeployError, StudyError
from wardround.core.seeds import generator
from wardround.data.records import Records
from wardround.data.sources import SOURCES, Source
from wardround.deployment import refuse_undeployable
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.tasks import Count, Regression, class_task


def begin(folder: Path, kind: str = "regression", **changes: Any) -> Federation:
    sources = {**at_sites(kind), **changes.pop("sources", {})}
    return federation(study(kind, ["fedavg"], **changes), folder, sources, known_sources=KNOWN)


def with_quorum(folder: Path, kind: str = "regression") -> Federation:
    return begin(folder, kind, deployment={"quorum": 3, "deadline": 1.0})


def said(network: Federation) -> str:
    return "\n".join(network.lines)


# -- another task at one hospital


def changed(change: Callable[[Records], Records]) -> Callable[[], Source]:
    return lambda: Source(lambda: change(own("cedar", "regression")))


def as_classes(records: Records) -> Records:
    high = (records.target > np.median(records.target)).astype(np.int64)
    return replace(records, target=high, classes=("short", "long"), given_task=class_task(("short", "long")))


def as_count(records: Records) -> Records:
    target = np.column_stack([np.round(records.target), np.ones(len(records))])
    return replace(records, target=target, given_task=Count(("stay",)))


OTHER: dict[str, tuple[Callable[[Records], Records], str]] = {
    "classes": (as_classes, r"it predicts classes short, long, and alder predicts regression of stay .*unit days"),
    "counts": (as_count, r"it predicts count of stay \(dispersion 0.0\), and alder predicts regression of stay"),
    "another unit": (
        lambda records: replace(records, given_task=Regression(("stay",), unit="hours")),
        "unit hours.*and alder predicts regression of stay .*unit days",
    ),
    "a range": (
        lambda records: replace(records, given_task=Regression(("stay",), unit="days", range=(0.0, 60.0))),
        r"range \(0.0, 60.0\).*and alder predicts regression",
    ),
    "another loss": (
        lambda records: replace(records, given_task=Regression(("stay",), unit="days", loss="huber")),
        "loss huber",
    ),
}


@pytest.mark.parametrize("case", OTHER)
def test_another_task_at_one_hospital_is_one_error_that_names_both(case: str, tmp_path: Path) -> None:
    change, words = OTHER[case]
    network = begin(tmp_path, sources={"cedar": changed(change)})
    with pytest.raises(DeployError, match=words) as refused:
        network.run()
    assert refused.value.where == "cedar"
    assert "[data]" in refused.value.remedy
    assert not [answer for _, _, answer in network.transport.carried if kind_of(answer) == "update"]


def test_what_a_hospital_calls_its_column_is_its_own(tmp_path: Path) -> None:
    """As with classes, whose columns may have any name."""
    named = changed(lambda records: replace(records, given_task=Regression(("los_days",), unit="days")))
    network = begin(tmp_path, sources={"cedar": named})
    network.run()
    assert network.folder.read_json("results.json")["task"]["names"] == ["stay"]


def test_several_outcomes_are_refused_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "north.csv"
    rng = generator(1, "outcomes of a test")
    lines = [f"{rng.normal():.3f},{'yes' if rng.random() < 0.5 else 'no'},{rng.normal(9, 2):.3f}" for _ in range(60)]
    path.write_text("\n".join(["age,died,stay", *lines]) + "\n", encoding="utf-8")
    outcomes = {"outcomes": ["died", "stay"], "task": {"stay": "regression"}}
    document = {
        "name": "both",
        "data": {"source": "csv", "files": {name: str(path) for name in ("north", "south")}, **outcomes},
        "model": {"kind": "mlp", "hidden": [4]},
        "arms": [{"algorithm": "fedavg"}],
    }
    with pytest.raises(StudyError, match="died, stay are predicted together, and across hospitals only one outcome is"):
        refuse_undeployable(load_study(document)[0], ["north", "south"])
    records = SOURCES["csv"](files={"north": path}, outcomes=("died", "stay"), task={"stay": "regression"})
    network = begin(tmp_path / "run", sources={"cedar": lambda: records})
    with pytest.raises(DeployError, match="across hospitals only one outcome is"):
        network.run()


# -- the scale of the target


def test_sums_of_few_patients_stay_and_a_declared_range_helps(tmp_path: Path) -> None:
    few = {"smallest_cell": 30}
    network = begin(tmp_path / "sums", deployment=few)
    with pytest.raises(
        DeployError, match="fewer than 30 patients train here, so that sums of what is predicted may not"
    ):
        network.run()
    for _, sealed, answer in network.transport.carried:
        if kind_of(sealed) == "facts" and kind_of(answer) == "facts":
            assert body_of(answer)["sets"][0]["train"] >= 30
    declared = begin(tmp_path / "range", "range", deployment=few)
    declared.run()
    facts = [body_of(a) for _, sealed, a in declared.transport.carried if kind_of(sealed) == "facts"]
    assert all(row_set["target"] == [] for body in facts for row_set in body["sets"])


@pytest.mark.parametrize("protected", ["example", "site"])
@pytest.mark.parametrize("kind", ["regression", "count"])
def test_with_differential_privacy_a_range_must_be_declared(protected: str, kind: str, tmp_path: Path) -> None:
    privacy = {protected: {**EXAMPLE, "delta": 1e-5 if protected == "example" else 1e-2}}
    network = federation(private(kind, privacy), tmp_path, plain_sources(kind), known_sources=KNOWN)
    with pytest.raises((DeployError, StudyError), match="without noise"):
        network.run()
    assert not [answer for _, _, answer in network.transport.carried if kind_of(answer) in ("facts", "update")]


@pytest.mark.parametrize("protected", ["example", "site"])
@pytest.mark.parametrize("kind", ["range", "counts in a range"])
def test_with_a_range_nothing_about_the_target_of_who_trains_leaves(kind: str, protected: str, tmp_path: Path) -> None:
    privacy = {protected: {**EXAMPLE, "delta": 1e-5 if protected == "example" else 1e-2}}
    network = federation(private(kind, privacy), tmp_path, plain_sources(kind), known_sources=KNOWN)
    network.run()
    for _, sealed, answer in network.transport.carried:
        body = body_of(answer)
        if kind_of(sealed) == "facts":
            assert all(row_set["target"] == [] for row_set in body["sets"])
            assert body["described"]["classes"] == body["directions"] == {}
        if kind_of(sealed) == "train":
            assert all(work["loss"] is None for work in body["trials"].values())
    assert network.folder.read_json("results.json")["arms"]["fedavg"]["metrics"]["mae"]["mean"] > 0


def plain_sources(kind: str) -> dict[str, Callable[[], Source]]:
    """Without categories and gaps, of which differential privacy allows none."""
    return {name: partial(_plain, name, kind) for name in NAMES}


def _plain(name: str, kind: str) -> Source:
    records = own(name, kind)
    columns = tuple(column for column in records.columns if column.name in ("age",))
    features = records.features[[column.name for column in columns]]
    return Source(lambda: replace(records, features=features, columns=columns))


def private(kind: str, privacy: dict[str, Any]) -> dict[str, Any]:
    return study(kind, ["fedavg"], data=PUBLIC, privacy=privacy)


@pytest.mark.parametrize(
    ("kind", "scale", "words"),
    [
        ("regression", [9.0, 0.0], "a scale that no target has"),
        ("regression", [9.0], "a scale that no target has"),
        ("range", [30.0, 14.0], "another scale than follows from the public range"),
        ("count", [], "a scale that no target has"),
    ],
)
def test_a_scale_that_no_target_has_is_refused_by_a_hospital(
    kind: str, scale: list[float], words: str, tmp_path: Path
) -> None:
    network = begin(tmp_path, kind)
    answers: list[str] = []

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "prepare" and site == "cedar":
            other = forged(sealed, "coordinator", lambda body, _: body.update(target_scales=[scale]))
            answers.append(json.dumps(body_of(network.transport.sites[site].answer(other))))
        return True

    network.transport.before = before
    network.run()
    assert words in answers[0]


# -- what cannot be


def first_set(values: list[float]) -> Change:
    return lambda body, tensors: body["sets"][0].update(target=values)


WRONG_SUMS: dict[str, tuple[Change, str]] = {
    "rows that do not match": (first_set([99.0, 200.0, 9000.0]), "sums of the target of another number of rows"),
    "none": (first_set([]), "another number of sums of the target"),
    "squares below zero": (
        lambda body, tensors: body["sets"][0]["target"].__setitem__(2, -1.0),
        "sums of the target that no numbers have",
    ),
    "Cauchy and Schwarz": (
        lambda body, tensors: body["sets"][0]["target"].__setitem__(2, 5.0),
        "sums of the target that no numbers have",
    ),
}


@pytest.mark.parametrize("case", WRONG_SUMS)
def test_impossible_sums_of_a_target_are_refused(case: str, tmp_path: Path) -> None:
    change, words = WRONG_SUMS[case]
    network = with_quorum(tmp_path)
    lies(network, "facts", change)
    network.run()
    assert f"cedar: sent an answer that cannot be used ({words}" in said(network) or words in said(network)
    assert set(network.folder.read_json("results.json")["arms"]["fedavg"]["sites"]) == set(NAMES) - {"cedar"}


def told(body: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = body["summaries"]["0"]["test"]
    return summary


def term(place: int, value: float) -> Change:
    return lambda body, tensors: told(body)["terms"].__setitem__(place, value)


def cell(**values: Any) -> Change:
    return lambda body, tensors: told(body)["cells"][0].update(values)


WRONG_TERMS: dict[str, tuple[str, Change, str]] = {
    "more rows than it has": ("regression", lambda body, _: told(body).update(rows=17), "a number of rows other"),
    "terms of other rows": ("regression", term(0, 17.0), "sums of another number of rows"),
    "negative squares": ("regression", term(2, -1.0), "that no numbers have"),
    "no spread for the sum": ("regression", term(4, 0.0), "sums of the target that no numbers have"),
    "errors of other predictions": ("regression", term(7, 0.0), "errors of other predictions"),
    "errors below their sum": ("regression", term(1, 0.0), "errors smaller than their sum"),
    "too few terms": ("regression", lambda body, _: told(body)["terms"].pop(), "another number of sums"),
    "figures of classes": ("regression", lambda body, _: told(body).update(metrics={}), "do not belong together"),
    "a cell of other rows": ("regression", cell(rows=1), "cells that do not add up to the rows"),
    "a cell of other outcomes": ("regression", cell(label_sum=1e6), "cells that do not add up to the sums"),
    "no cells": ("regression", lambda body, _: told(body).pop("cells"), "no cells"),
    "a negative deviance": ("count", term(1, -9.0), "a deviance below zero"),
    "fewer events than none": ("count", term(4, -1.0), "a sum below zero"),
    "errors above all": ("count", term(2, 1e9), "that no numbers have|larger than what was expected"),
    "a curve below zero": (
        "regression",
        lambda body, _: body["figures"]["0"]["test"]["figures"].update(mae=-1.0),
        "mae outside its range",
    ),
    "another curve": (
        "regression",
        lambda body, _: body["figures"]["0"]["test"].update(figures={"loss": 0.1, "accuracy": 0.5}),
        "figures of other metrics",
    ),
}


@pytest.mark.parametrize("case", WRONG_TERMS)
def test_impossible_figures_of_numbers_are_refused(case: str, tmp_path: Path) -> None:
    kind, change, words = WRONG_TERMS[case]
    network = with_quorum(tmp_path, kind)
    lies(network, "evaluate", change)
    network.run()
    assert any("cedar: sent an answer that cannot be used" in line for line in network.lines), network.lines
    assert any(part in said(network) for part in words.split("|")), network.lines
    assert set(network.folder.read_json("results.json")["arms"]["fedavg"]["sites"]) == set(NAMES) - {"cedar"}


REGIONS = {"kind": "hierarchical", "regions": {"north": ["alder", "birch"], "south": ["cedar", "dogwood"]}}
OF_REGIONS: dict[str, tuple[Callable[[list[list[float]]], Any], str]] = {
    "other rows": (lambda sums: [[sums[0][0] + 1], *sums[1:]], "sums of the target of another number of rows"),
    "squares too small": (lambda sums: [*sums[:2], [5.0]], "sums of the target that no numbers have"),
    "none": (lambda sums: [], "another number of sums of the target"),
    "no number": (lambda sums: [*sums[:2], ["many"]], "target"),
}


@pytest.mark.parametrize("case", OF_REGIONS)
def test_impossible_sums_of_a_region_are_refused(case: str, tmp_path: Path) -> None:
    change, words = OF_REGIONS[case]
    document = study("regression", ["fedavg"], topology=REGIONS)
    network = hierarchy(document, tmp_path, at_sites("regression"), known_sources=KNOWN)

    def wrong(body: dict[str, Any], tensors: Any) -> None:
        body["kinds"][0]["target"] = change(body["kinds"][0]["target"])

    def after(region: str, sealed: Sealed, answer: Sealed) -> Sealed:
        return forged(answer, region, wrong) if region == "south" and kind_of(sealed) == "facts" else answer

    network.transport.after = after
    with pytest.raises(DeployError, match=f"south sent an answer that cannot be used.*{words}"):
        network.run()


# -- what is withheld


def test_a_hospital_of_few_tested_patients_tells_nothing_of_them(tmp_path: Path) -> None:
    """Smaller than some hospitals' test rows: of these no sum leaves, and results say so."""
    network = begin(tmp_path, "range", deployment={"smallest_cell": 13})
    network.run()
    results = network.folder.read_json("results.json")
    withheld = {notice["site"] for notice in noticed(results, "figures-withheld")}
    assert withheld
    assert withheld < set(NAMES)
    for site, sealed, answer in network.transport.carried:
        if kind_of(sealed) == "evaluate":
            summary = body_of(answer)["summaries"]["0"]["test"]
            assert (summary == {"suppressed": True}) == (site in withheld)
    assert set(results["arms"]["fedavg"]["sites"]) == set(NAMES) - withheld


def test_the_largest_value_of_a_patient_is_found_nowhere_but_at_its_hospital(tmp_path: Path) -> None:
    """It is what is predicted, and by far the largest: sums have it in them, and none gives it away."""
    (tmp_path / "data").mkdir()
    names = ("north", "south", "west")
    files = {site: write(tmp_path / "data" / f"{site}.csv", rows(site)) for site in names}
    outcome = {"target": "marker", "positive": None, "task": "regression"}
    sources = {site: partial(own_file, path, **outcome) for site, path in files.items()}
    document = {
        "name": "planted",
        "data": {"source": "at-sites", "task": "regression"},
        "training": {"rounds": 2, "lr": 0.01},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.15},
        "arms": [{"algorithm": "fedavg"}],
    }
    network = federation(document, tmp_path, sources)
    network.run()
    assert NUMBER in own_file(files["north"], **outcome).load().target
    assert IDENTITY in files["north"].read_text(encoding="utf-8")
    for site, sealed, answer in network.transport.carried:
        for message in (sealed, answer):
            assert_clean(message.head + message.tensors, f"{kind_of(message)}, {site}")
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert_clean(path.read_bytes(), str(path))


def test_a_region_tells_sums_of_its_hospitals_together(tmp_path: Path) -> None:
    topology = {"kind": "hierarchical", "regions": {"north": ["alder", "birch"], "south": ["cedar", "dogwood"]}}
    network = hierarchy(
        study("regression", ["fedavg"], topology=topology), tmp_path, at_sites("regression"), known_sources=KNOWN
    )
    network.run()
    own_sums = {
        site: body_of(answer)["sets"][0]["target"]
        for transport in network.transports.values()
        for site, sealed, answer in transport.carried
        if kind_of(sealed) == "facts"
    }
    at_top = [answer for _, sealed, answer in network.transport.carried if kind_of(sealed) == "facts"]
    texts = [answer.head.decode() for answer in at_top]
    for sums in own_sums.values():
        assert all(json.dumps(value) not in text for value in sums[1:] for text in texts)
    (first, *_) = [body_of(answer)["kinds"][0]["target"] for answer in at_top if "alder" in body_of(answer)["sets"]]
    for place in range(3):
        assert sum(first[place]) == pytest.approx(own_sums["alder"][place] + own_sums["birch"][place], rel=1e-15)
    assert TASKS["regression"].target_sums(own("alder", "regression").target)[0] > own_sums["alder"][0]
