"""Images at a radiology department, age and sex at another party, findings at either: deployed as on one machine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.deployment import vertical_federation as parties
from tests.deployment.in_process_federation import body_of, kind_of
from tests.deployment.vertical_federation import Parties, document, federation
from tests.radiographs import NAMES as FINDINGS
from tests.radiographs import some_radiographs
from wardround.core.errors import DeployError
from wardround.core.threads import torch_threads
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.deployment import SiteFile, load_predictions, open_source, provision
from wardround.runs.catalog import families, load_study
from wardround.runs.execute import StudyRun, run_study

PARTIES = {"radiology": ["image"], "records": ["age", "sex"]}
CNN = {"kind": "cnn", "channels": [4, 4], "hidden": 8, "kernel": 3, "norm": "group"}


def images(most: int = 3) -> Records:
    images = some_radiographs(130, most, unknown=0.08, seed=11)
    return replace(images, hospital=np.full(len(images), "radiology", dtype=object), boxes=None)


def people(folder: Path) -> Path:
    """Age and sex of each patient, in another order, as a file of the other party."""
    records = images()
    table = pd.DataFrame({"pid": records.patient, "age": records.groups["age"], "sex": records.groups["sex"]})
    path = folder / "records.csv"
    table.drop_duplicates("pid").iloc[::-1].to_csv(path, index=False)
    return path


def content(path: Path, **changes: Any) -> dict[str, Any]:
    model = {"kind": "joined", "embedding": 4, "hidden": 8, "bottoms": {"radiology": CNN}}
    study = document({"radiology": path, "records": path}, model=model)
    study |= {"data": {"source": "radiographs"}, "topology": {"kind": "vertical", "parties": PARTIES}}
    for name, value in changes.items():
        study[name] = {**study.get(name, {}), **value}
    return study


def apart(
    folder: Path,
    study_document: Mapping[str, Any],
    sources: Mapping[str, Callable[[], Source]],
    known: Mapping[str, Any],
) -> Parties:
    study, _ = load_study(study_document, sources=known)
    network = federation(study, folder, dict.fromkeys(sources, folder), sources=sources)
    with torch_threads(1):
        network.run()
    return network


def together(folder: Path, study_document: Mapping[str, Any], known: Mapping[str, Any]) -> StudyRun:
    with torch_threads(1):
        return run_study(study_document, folder, sources=known, workers=1)


def assert_same_figures(ours: Any, theirs: Any, at: str = "") -> None:
    """All numbers of two parts of results.json, to the last digits."""
    if isinstance(theirs, Mapping):
        for key in theirs:
            assert_same_figures(ours[key], theirs[key], f"{at}: {key}")
    elif isinstance(theirs, float) or (isinstance(theirs, list) and isinstance(theirs[0], float)):
        assert ours == pytest.approx(theirs, abs=1e-9), at
    else:
        assert ours == theirs, at


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parties, StudyRun]:
    folder = tmp_path_factory.mktemp("parties")
    path = people(folder)
    study_document = content(path, evaluation={"seeds": {"first": 1, "count": 2}, "validation_share": 0.25})
    known: dict[str, Any] = {"radiographs": lambda: Source(images)}
    sources: dict[str, Callable[[], Source]] = {
        "radiology": lambda: Source(images),
        "records": partial(parties.own_file, "lab", path, patient="pid"),
    }
    return apart(folder, study_document, sources, known), together(folder / "runs", study_document, known)


def test_scores_are_the_simulations_bit_for_bit(both: tuple[Parties, StudyRun]) -> None:
    network, alone = both
    ours = load_predictions(network.site_folder("radiology"))
    theirs = pd.read_parquet(alone.folder / "predictions.parquet")
    assert ours is not None
    ours, theirs = (table.sort_values(["seed", "row"]).reset_index(drop=True) for table in (ours, theirs))
    columns = [*(f"label_{name}" for name in FINDINGS), *(f"score_{name}" for name in FINDINGS), "row", "seed"]
    pd.testing.assert_frame_equal(ours[columns], theirs[columns])


def test_all_figures_are_the_simulations(both: tuple[Parties, StudyRun]) -> None:
    """The party with the labels has every validation row, and so the study's own thresholds."""
    network, alone = both
    results = network.folder.read_json("results.json")
    assert results["findings"] == list(FINDINGS)
    ours, theirs = results["arms"]["split"], alone.results["arms"]["split"]
    assert_same_figures(ours["metrics"], theirs["metrics"])
    assert ours["auc_error_bound"] == 0
    for name in FINDINGS:
        figures, other = ours["findings"][name], theirs["findings"][name]
        assert figures["threshold"] == {"mean": None, "chosen": other["threshold"]["chosen"]}
        for part in ("rows", "positives", "confusion", "metrics"):
            assert_same_figures(figures[part], other[part], name)
    for name in ("metrics", "difference"):
        without_party, expected = (arm["topology"]["missing_party"]["records"][name] for arm in (ours, theirs))
        keys = ("accuracy", "auc", "brier")
        for key in keys:
            value = "mean" if name == "metrics" else "difference"
            assert without_party[key][value] == pytest.approx(expected[key][value], abs=1e-9)
    assert set(ours["subgroups"]["sex"]) == {"female", "male"}  # in which every finding is known of ten rows or more
    assert_same_figures(ours["subgroups"]["sex"], theirs["subgroups"]["sex"])
    assert results["curves"]["split"]["test_auc"][-1] == pytest.approx(alone.results["curves"]["split"]["test_auc"][-1])


def test_the_other_party_learns_how_many_scores_there_are_and_no_name(both: tuple[Parties, StudyRun]) -> None:
    network, _ = both
    messages = [body_of(sealed) for site, sealed, _ in network.transport.carried if site == "records"]
    (agreed,) = [body["task"] for body in messages if "task" in body]
    assert agreed == {"kind": "multilabel", "names": [f"class {place}" for place in range(len(FINDINGS))]}
    assert not [name for name in FINDINGS for body in messages if f"'{name}'" in str(body)]


@pytest.mark.slow
def test_findings_may_be_at_the_party_with_the_columns(tmp_path: Path) -> None:
    """One image of each patient at radiology, which has labels of its own that nobody asks for."""
    whole = images(most=1)
    assert len(set(whole.patient.tolist() if whole.patient is not None else [])) == len(whole)
    other = replace(whole, target=(whole.target[:, :1] == 1).astype(np.int64), classes=("something",))

    def table() -> Records:
        columns = (Column("age"), Column("sex", "categorical"))
        features = whole.groups[["age", "sex"]].astype({"sex": object})
        here = replace(whole, features=features, columns=columns, held={"records": ("age", "sex")}, ids=whole.patient)
        return replace(here, prints=None)

    shuffled = other.take(np.arange(len(other))[::-1])
    path = people(tmp_path)
    study_document = content(path, topology={"labels": "records"}, training={"class_weights": "balanced"})
    known: dict[str, Any] = {"radiographs": lambda: Source(lambda: whole)}
    sources = {"radiology": lambda: Source(lambda: shuffled), "records": lambda: Source(table)}
    network, alone = apart(tmp_path, study_document, sources, known), together(tmp_path / "runs", study_document, known)
    ours, theirs = network.folder.read_json("results.json")["arms"]["split"], alone.results["arms"]["split"]
    assert list(ours["sites"]) == ["records"]
    for metric in ("auc", "f1", "brier", "loss"):
        assert ours["metrics"][metric]["mean"] == pytest.approx(theirs["metrics"][metric]["mean"], abs=1e-6), metric
    assert "assess" in {kind_of(sealed) for _, sealed, _ in network.transport.carried}


def test_kits_name_images_where_they_are_and_a_file_elsewhere(tmp_path: Path) -> None:
    study_document = content(tmp_path)
    study_document |= {"data": {"source": "chest-xray", "size": 32, "findings": ["Effusion", "Mass"]}}
    kits = provision(load_study(study_document)[0], ("radiology", "records"), tmp_path / "kits", ["127.0.0.1"], 4000)
    images, other = (SiteFile.load(kits / "sites" / party).data for party in PARTIES)
    assert images["source"] == "chest-xray"
    assert images["path"].startswith("FILL IN")
    assert (images["size"], images["findings"]) == (32, ["Effusion", "Mass"])
    assert "target" not in images
    assert other["source"] == "csv-parties"
    with pytest.raises(DeployError, match="is not filled in yet"):
        open_source(SiteFile.load(kits / "sites" / "radiology"), families())
