"""Parties at different places train the network that one machine trains which has all files: the same bits."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.deployment import vertical_federation as parties
from tests.deployment.in_process_federation import body_of, kind_of
from tests.deployment.vertical_federation import Parties, document, federation, simulated, write
from tests.small_federations import assert_same_tree
from wardround.core.seeds import generator
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment.vertical import party_plan as vertical_plan
from wardround.engines.serial import SERIAL
from wardround.engines.split.split import split_rounds
from wardround.evaluation.missing_party import predict_missing_party
from wardround.evaluation.prediction import predict
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan
from wardround.study.schema import Study
from wardround.training.trial import Run, Trial

ADAM = {"optimiser": "adam", "momentum": 0.0, "lr": 0.01, "class_weights": "balanced"}
DROPOUT = {"dropout": 0.3, "absent": 0.2, "bottoms": {"lab": {"kind": "mlp", "hidden": [8], "dropout": 0.2}}}


def deployed(folder: Path, content: Mapping[str, Any] | Study, files: Mapping[str, Path], **more: Any) -> Parties:
    network = federation(content, folder, files, **more)
    network.run()
    return network


def assert_same_weights(network: Parties, trained: Mapping[tuple[str, int], tuple[Trial, Run]]) -> None:
    for (arm, seed), (_, run) in trained.items():
        apart = [network.part(party, arm, seed) for party in network.transport.sites]
        assert all(not set(tree) & set(other) for tree in apart for other in apart if tree is not other)
        whole = {name: leaf for part in apart for name, leaf in part.items()}
        assert_same_tree(whole, {**run.server["params"], **run.memories["pooled"].buffers}, part=f"{arm}, {seed}")


def predictions(network: Parties, holder: str = "clinic") -> pd.DataFrame:
    return pd.concat(
        [pd.read_parquet(path) for path in sorted(network.site_folder(holder).glob("predictions/*.parquet"))]
    )


def assert_same_predictions(
    network: Parties, trained: Mapping[tuple[str, int], tuple[Trial, Run]], holder: str = "clinic"
) -> None:
    table = predictions(network, holder)
    for (arm, seed), (trial, run) in trained.items():
        (expected,) = predict(trial, run)
        own = table[(table["arm"] == arm) & (table["seed"] == seed)]
        assert own["row"].tolist() == expected.rows.tolist()
        assert own["site"].unique().tolist() == [holder]
        np.testing.assert_array_equal(own["label"].to_numpy(), expected.label)
        np.testing.assert_array_equal(own["score"].to_numpy(), expected.score)


@pytest.mark.parametrize(
    ("names", "known", "changes"),
    [
        pytest.param(
            *(("clinic", "lab"), 1.0, {"evaluation": {"seeds": {"first": 1, "count": 2}}}), marks=pytest.mark.slow
        ),
        (("clinic", "lab"), 0.85, {"training": ADAM}),
        (("clinic", "lab", "heart"), 1.0, {"training": ADAM, "model": DROPOUT, "topology": {"block": 3}}),
        pytest.param(
            ("lab", "clinic"),
            1.0,
            {"data": {"holder": "clinic"}, "topology": {"labels": "clinic"}},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two", "unmatched", "three", "holder-last"],
)
def test_apart_is_as_on_one_machine(
    tmp_path: Path, names: tuple[str, ...], known: float, changes: dict[str, Any]
) -> None:
    files = write(tmp_path / "data", names, known)
    content = document(files, **{**changes, "topology": {**document(files)["topology"], **changes.get("topology", {})}})
    network = deployed(tmp_path, content, files)
    _, trained = simulated(content)
    assert_same_weights(network, trained)
    assert_same_predictions(network, trained)


@pytest.mark.slow
def test_arms_of_different_length_travel_together(tmp_path: Path) -> None:
    """Some 59 of 90 patients train: two batches of 32. One arm has them in one block and two rounds, so that it is done
    after 2 steps; the other has two blocks and three rounds, so that the wave has 6."""
    files = write(tmp_path / "data")
    long = {"algorithm": "split", "name": "long", "training.rounds": 3, "training.lr": 0.01}
    content = document(files, arms=[{"algorithm": "split", "topology.block": 9}, long], training={"batch_size": 32})
    network = deployed(tmp_path, content, files)
    assert_same_weights(network, simulated(content)[1])
    messages = [sealed for site, sealed, _ in network.transport.carried if site == "lab" and kind_of(sealed) == "embed"]
    assert [body_of(sealed)["round"] for sealed in messages] == list(range(6))
    records = network.folder.records()
    assert records.groupby("arm")["round"].max().to_dict() == {"split": 2, "long": 3}
    assert records.groupby("arm")["exchanges"].first().to_dict() == {"split": 1, "long": 2}


@pytest.mark.slow
def test_labels_alone_at_the_holder_and_a_wave_for_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertical_plan, "WAVE_EMBEDDINGS", 1)
    files = write(tmp_path / "data")
    pd.read_csv(files["clinic"], dtype=str)[["pid", "sick"]].to_csv(files["clinic"], index=False)
    content = document(files, evaluation={"seeds": {"first": 1, "count": 2}})
    network = deployed(tmp_path, content, files)
    _, trained = simulated(content)
    assert_same_weights(network, trained)
    assert_same_predictions(network, trained)
    assert len(list(network.site_folder("clinic").glob("predictions/*.parquet"))) == 2
    assert {name.partition(".")[0] for name in network.part("clinic", "split", 1)} == {"top", "absent"}


def test_patients_whom_only_some_parties_have_train_nothing(tmp_path: Path) -> None:
    """With three parties a patient of two of them is nobody's to match: weights are the same, and what is predicted for
    such a patient is what is predicted without any other party."""
    files = write(tmp_path / "data", ("clinic", "lab", "heart"), 0.8)
    content = document(files)
    network = deployed(tmp_path, content, files)
    plan, trained = simulated(content)
    assert_same_weights(network, trained)
    trial, run = trained["split", 1]
    records = plan.cohort_of(plan.study.arms[0]).records
    (expected,) = predict(trial, run)
    both = np.logical_and(*(records.known_to[party][expected.rows] for party in ("lab", "heart")))
    at_one_party = np.logical_xor(*(records.known_to[party][expected.rows] for party in ("lab", "heart")))
    assert both.any()
    assert at_one_party.any()
    scores = predictions(network)["score"].to_numpy()
    np.testing.assert_allclose(scores[both], expected.score[both], atol=1e-6)
    assert np.abs(scores[at_one_party] - expected.score[at_one_party]).min() > 1e-6


def visits(folder: Path) -> dict[str, Path]:
    """Three examinations of each patient at the clinic; the laboratory has two of them, and one that nobody knows."""
    rng = generator(5, "visits of a test")
    folder.mkdir(parents=True)
    clinic, lab = ["pid,exam,age,sick"], ["number,exam,crp,lactate"]
    for patient in range(40):
        for exam in range(3):
            age, crp = rng.normal(60, 9), rng.normal(5, 2)
            clinic.append(f"P{patient:03},{exam},{age:.3f},{'yes' if age / 9 + crp / 2 > 9 else 'no'}")
            if exam:
                lab.append(f"P{patient:03},{exam},{crp:.3f},{rng.normal():.3f}")
        lab.append(f"P{patient:03},7,1.0,0.5")
    order = rng.permutation(len(lab) - 1) + 1
    (folder / "clinic.csv").write_text("\n".join(clinic) + "\n", encoding="utf-8")
    (folder / "lab.csv").write_text("\n".join([lab[0], *(lab[n] for n in order)]) + "\n", encoding="utf-8")
    (folder / "heart.csv").write_text(
        "\n".join(["pid,ef", *(f"P{n:03},{rng.normal():.3f}" for n in reversed(range(40)))]) + "\n", encoding="utf-8"
    )
    return {party: folder / f"{party}.csv" for party in ("clinic", "lab", "heart")}


def test_visits_are_matched_too_and_a_party_without_them_counts_for_all(tmp_path: Path) -> None:
    files = visits(tmp_path / "data")
    content = document(files, data={"visit": "exam"})
    sources = {party: partial(parties.own_file, party, files[party], visit="exam") for party in ("clinic", "lab")}
    network = deployed(tmp_path, content, files, sources=sources)
    _, trained = simulated(content)
    assert_same_weights(network, trained)
    table = predictions(network)
    (expected,) = predict(*trained["split", 1])
    first = table["row"].to_numpy() % 3 == 0  # the laboratory has nothing of a first examination
    assert first.any()
    np.testing.assert_allclose(table["score"].to_numpy(), expected.score, atol=1e-6)
    stages = [body_of(sealed).get("stage") for _, sealed, _ in network.transport.carried if kind_of(sealed) == "match"]
    assert set(stages) == {"patients", "visits"}
    asked_heart = [body_of(s).get("stage") for site, s, _ in network.transport.carried if site == "heart"]
    assert "visits" not in asked_heart
    matched = json.loads((network.folder.path / "results.json").read_bytes())["arms"]["split"]["topology"]["matched"]
    assert matched["patients"] == {"clinic": 40, "lab": 40, "heart": 40}
    assert matched["common"] == 40
    assert matched["unmatched_train"] == matched["train"] / 2  # of three rows of a patient the first has no match


def dots() -> Records:
    """Images of 1 x 8 x 8 points at the radiology department, which has the labels; age and sex are known elsewhere."""
    rng = generator(9, "images of parties")
    images = rng.integers(0, 255, (80, 1, 8, 8), dtype=np.uint8)
    age, sex = rng.normal(60, 10, 80).round(3), np.array(["f", "m"], dtype=object)[rng.integers(0, 2, 80)]
    label = (images.reshape(80, -1)[:, :5].mean(axis=1) / 20 + (age - 60) / 10 > 6.4).astype(np.int64)
    groups = pd.DataFrame({"age": age, "sex": pd.Series(sex, dtype=object)})
    ids = np.array([f"P{n // 2:03}" for n in range(80)], dtype=object)
    age[1::2], sex[1::2] = age[::2], sex[::2]  # two images of each patient
    groups = pd.DataFrame({"age": age, "sex": pd.Series(sex, dtype=object)})
    hospital = np.full(80, "radiology", dtype=object)
    return Records(images, label, ("well", "ill"), hospital, patient=ids, groups=groups)


def without_groups() -> Source:
    return Source(lambda: replace(dots(), groups=pd.DataFrame()))


@pytest.mark.parametrize("scale", ["ranges", pytest.param("per-site", marks=pytest.mark.slow)])
def test_images_at_one_party_and_columns_at_another(tmp_path: Path, scale: str) -> None:
    records = dots()
    people = pd.DataFrame({"pid": records.patient, "age": records.groups["age"], "sex": records.groups["sex"]})
    path = tmp_path / "clinic.csv"
    people.drop_duplicates("pid").iloc[::-1].to_csv(path, index=False)
    bottoms = {"radiology": {"kind": "cnn", "channels": [4, 4], "hidden": 8, "kernel": 3, "norm": "group"}}
    parts = {"radiology": ["image"], "clinic": ["age", "sex"]}
    base = document({"radiology": path, "clinic": path})
    content = {
        **base,
        "data": {"source": "dots", "scale": scale} if scale != "ranges" else {"source": "dots"},
        "topology": {"kind": "vertical", "parties": parts},
        "model": {"kind": "joined", "embedding": 4, "hidden": 8, "bottoms": bottoms},
        "training": {**base["training"], "augment": {"flip": "horizontal"}} if scale == "ranges" else base["training"],
    }
    known: dict[str, Any] = {"dots": lambda: Source(dots)}
    files = {"radiology": path, "clinic": path}
    sources = {"radiology": without_groups, "clinic": partial(parties.own_file, "lab", path, patient="pid")}
    network = deployed(tmp_path, load_study(content, sources=known)[0], files, sources=sources)
    plan = load_plan(*load_study(content, sources=known))
    trial = plan.trial(plan.study.arms[0], 1)
    run = SERIAL.start([trial])
    for after, _ in split_rounds([trial], run):
        run = after
    assert_same_weights(network, {("split", 1): (trial, run)})
    assert_same_predictions(network, {("split", 1): (trial, run)}, "radiology")
    assert all(name.startswith("clinic.") for name in network.part("clinic", "split", 1))


def test_results_are_those_of_a_site_and_tell_what_is_lost_without_a_party(tmp_path: Path) -> None:
    files = write(tmp_path / "data", known=0.9)
    content = document(files, evaluation={"seeds": {"first": 1, "count": 2}})
    network = deployed(tmp_path, content, files)
    results = network.folder.read_json("results.json")
    plan, trained = simulated(content)
    arm = results["arms"]["split"]
    assert list(arm["sites"]) == ["clinic"]
    topology = arm["topology"]
    records = plan.cohort_of(plan.study.arms[0]).records
    assert topology["kind"] == "vertical"
    assert topology["matched"]["patients"] == {"clinic": 90, "lab": int(records.known_to["lab"].sum()) + 1}
    assert topology["matched"]["common"] == int(records.known_to["lab"].sum())
    right, alone = [], []
    for trial, run in trained.values():
        (whole,) = predict(trial, run)
        (lone,) = predict_missing_party(trial, run)["lab"]
        right.append(whole.right.mean())
        alone.append(lone.right.mean())
    assert arm["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(right))
    assert topology["missing_party"]["lab"]["metrics"]["accuracy"]["mean"] == pytest.approx(np.mean(alone))
    difference = topology["missing_party"]["lab"]["difference"]["accuracy"]["difference"]
    assert difference == pytest.approx(np.mean(alone) - np.mean(right))
    (first,) = results["sites"]
    assert list(first["sites"]) == ["clinic"]


@pytest.mark.slow
def test_noise_on_embeddings_is_a_secret_of_the_party(tmp_path: Path) -> None:
    """Two runs of one study differ, because no seed decides on the noise; clipping alone decides nothing by chance."""
    files = write(tmp_path / "data")
    parts = document(files)["topology"]
    noisy = document(files, topology={**parts, "embeddings": {"clip": 1.0, "noise": 0.5}})
    cut = document(files, topology={**parts, "embeddings": {"clip": 0.5}})
    first, again = (deployed(tmp_path / name, noisy, files).part("clinic", "split", 1) for name in ("a", "b"))
    assert any(not np.array_equal(first[name], again[name]) for name in first)
    clipped, two = (deployed(tmp_path / name, cut, files).part("clinic", "split", 1) for name in ("c", "d"))
    assert_same_tree(clipped, two, part="clipped")
