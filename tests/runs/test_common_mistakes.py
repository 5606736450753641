"""Mistakes that newcomers made: each is met with a clear word, and none with a number that means nothing."""

from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import wardround
from tests.noticed import noticed
from wardround.core.errors import CheckError, RunError, StudyError
from wardround.core.notices import Notice
from wardround.data.sources.csv.hospital_files import csv
from wardround.models import Model, ModelBuilder, Shape, from_module
from wardround.runs.plan import check_study, rehearse

HEART: dict[str, Any] = {
    "name": "trap",
    "data": {"source": "heart", "hospitals": ["cleveland"]},
    "sites": {"partition": "iid", "count": 3},
    "training": {"rounds": 2},
    "arms": [{"algorithm": "fedavg"}],
}


def write(path: Path, rows: int = 60, shift: int = 0, labels: str = "yes no") -> Path:
    words = labels.split()
    body = "".join(f"{i + shift},{40 + i % 30},{words[i % len(words)]}\n" for i in range(rows))
    path.write_text("mrn,age,died\n" + body)
    return path


def csv_study(files: dict[str, Path], **data: Any) -> dict[str, Any]:
    return {
        **HEART,
        "sites": {},
        "data": {"source": "csv", "target": "died", "files": {k: str(v) for k, v in files.items()}, **data},
    }


def test_a_row_that_moves_to_another_hospital_is_other_data(tmp_path: Path) -> None:
    files = {"north": write(tmp_path / "n.csv"), "south": write(tmp_path / "s.csv", 60, 500)}
    raw = csv_study(files, types={"mrn": "numeric"})
    wardround.run_study(raw, tmp_path / "runs")
    north = files["north"].read_text().splitlines(keepends=True)
    files["north"].write_text("".join(north[:-1]))
    south = files["south"].read_text().splitlines(keepends=True)
    files["south"].write_text("".join([south[0], north[-1], *south[1:]]))
    with pytest.raises(RunError, match="on other data"):
        wardround.run_study(raw, tmp_path / "runs")


def test_copies_are_found_although_hospitals_number_patients_for_themselves(tmp_path: Path) -> None:
    files = {name: write(tmp_path / f"{name}.csv") for name in ("north", "south")}
    with pytest.raises(CheckError) as refused:
        wardround.run_study(csv_study(files, patient="mrn"), tmp_path / "runs")
    assert refused.value.notice is not None
    assert (refused.value.notice.code, refused.value.notice.counts["rows"]) == ("shared-rows", 60)


def test_a_model_that_diverges_has_no_metrics_and_is_named(tmp_path: Path) -> None:
    raw = {**HEART, "model": {"kind": "mlp"}, "training": {"rounds": 30, "lr": 1e30}}
    run = wardround.run_study(raw, tmp_path)
    figures = run.results["arms"]["fedavg"]["metrics"]
    assert {figure["mean"] for figure in figures.values()} == {None}
    assert run.results["arms"]["fedavg"]["convergence"]["rounds_to_95_percent"]["mean"] is None
    assert isnan(list(wardround.read_records(run.folder))[-1].figures["test_accuracy"])
    assert noticed(run.results, "diverged", arm="fedavg")


def test_a_misspelt_check_in_accept_is_an_error() -> None:
    with pytest.raises(StudyError, match="no check 'leek'\n  Did you mean 'leak'"):
        wardround.load_plan(*wardround.load_study({**HEART, "evaluation": {"accept": ["leek"]}}))


def test_equal_rows_stay_together_when_sites_are_drawn() -> None:
    """Hungary and VA have one duplicated row each; no seed may tear it apart between sites."""
    raw = {**HEART, "data": {"source": "heart"}, "sites": {"partition": "dirichlet", "count": 6}}
    plan = wardround.load_plan(*wardround.load_study({**raw, "evaluation": {"seeds": {"count": 10}}}))
    assert not [f for f in check_study(plan) if f.code in ("shared-rows", "leak")]


def test_one_class_everywhere_is_refused_and_a_stray_class_is_named(tmp_path: Path) -> None:
    files = {"a": write(tmp_path / "a.csv", labels="yes"), "b": write(tmp_path / "b.csv", 60, 900, labels="yes")}
    with pytest.raises(CheckError) as refused:
        wardround.run_study(csv_study(files), tmp_path / "runs")
    assert refused.value.notice == Notice("one-class", "error", classes=("yes",))
    stray = write(tmp_path / "c.csv", 60, 2000)
    stray.write_text(stray.read_text().replace("yes", "transferred", 1))
    plan = wardround.load_plan(*wardround.load_study(csv_study({"b": write(tmp_path / "b.csv", 60, 900), "c": stray})))
    rare = Notice("rare-class", "warning", classes=("transferred",), counts={"rows": 1})
    assert rare in check_study(plan)


def wide(width=4) -> ModelBuilder:  # type: ignore[no-untyped-def]
    def build(shape: Shape) -> Model:
        return from_module(lambda: nn.Linear(width, 1), shape)

    return build


def test_an_own_model_that_does_not_fit_is_refused_before_training() -> None:
    raw = {**HEART, "model": {"kind": "wide", "width": 5}}
    plan = wardround.load_plan(*wardround.load_study(raw, models={"wide": wide}))
    with pytest.raises(StudyError, match="does not fit the data"):
        rehearse(plan)
    cnn = wardround.load_plan(*wardround.load_study({**HEART, "model": {"kind": "cnn"}}))
    with pytest.raises(StudyError, match="needs images"):
        rehearse(cnn)


def test_a_run_with_own_objects_resumes_with_them_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    def fitting() -> ModelBuilder:
        return lambda shape: from_module(lambda: nn.Linear(shape.inputs[0], 1), shape)

    run = wardround.run_study({**HEART, "model": {"kind": "own"}}, tmp_path, models={"own": fitting})
    moved = tmp_path / "elsewhere"
    run.folder.rename(moved)
    (moved / "results.json").unlink()
    with pytest.raises(StudyError, match="'own' is not known"):
        wardround.resume_study(moved)
    again = wardround.resume_study(moved, models={"own": fitting})
    assert again.folder == moved
    assert again.results["arms"]["fedavg"]["metrics"] == run.results["arms"]["fedavg"]["metrics"]


def test_what_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        wardround.run_study(HEART, blocked)


def test_changes_to_a_study_that_is_parsed_are_refused() -> None:
    study, _ = wardround.load_study(HEART)
    with pytest.raises(StudyError, match="is parsed already"):
        wardround.run_study(study, quick=True)


def test_a_hospitals_name_may_hold_a_slash(tmp_path: Path) -> None:
    files = {"St. Mary/East": write(tmp_path / "a.csv"), "north": write(tmp_path / "b.csv", 60, 900)}
    raw = csv_study(files, types={"mrn": "numeric"}) | {"arms": [{"algorithm": "scaffold"}]}
    run = wardround.run_study(raw, tmp_path / "runs")
    assert set(run.results["arms"]["scaffold"]["sites"]) == {"St. Mary-East", "north"}
    assert csv(files, "died").load().hospitals == ("St. Mary/East", "north")
    assert np.isfinite(run.results["arms"]["scaffold"]["metrics"]["accuracy"]["mean"])


def test_one_hospital_is_noticed_where_arms_are_federated(tmp_path: Path) -> None:
    def one_site_notices(study: dict[str, Any]) -> list[Notice]:
        plan = wardround.load_plan(*wardround.load_study(study))
        return [notice for notice in check_study(plan) if notice.code == "one-site"]

    alone, expected = {**HEART, "sites": {}}, Notice("one-site", "warning", "cleveland")
    assert one_site_notices(alone) == [expected]
    assert one_site_notices({**alone, "arms": [{"algorithm": "local"}, {"algorithm": "fedavg"}]}) == [expected]
    assert one_site_notices({**alone, "arms": [{"algorithm": "local"}]}) == []
    assert one_site_notices(HEART) == []  # three sites of one hospital
    assert noticed(wardround.run_study(alone, tmp_path).results, expected.code, site=expected.site)


def test_a_copy_of_the_outcome_among_the_columns_is_refused_by_name(tmp_path: Path) -> None:
    """By `check` and by `run`; and the column can be left out, or accepted knowingly."""
    files = {}
    for shift, name in ((0, "north"), (7, "south")):
        files[name] = tmp_path / f"{name}.csv"
        codes = np.random.default_rng(shift).integers(0, 2, 150).tolist()
        rows = (f"{30 + (7 * i + shift) % 60},{code},{'ny'[code]}\n" for i, code in enumerate(codes))
        files[name].write_text("age,outcome_code,died\n" + "".join(rows))
    raw = csv_study(files)
    accept = {"evaluation": {"accept": ["leak"]}}  # which waives nothing else
    with pytest.raises(CheckError) as refused:
        wardround.run_study({**raw, **accept}, tmp_path / "runs")
    assert refused.value.where == "all sites: target-leak"
    leak = refused.value.notice
    assert leak is not None
    assert (leak.code, leak.site, leak.columns, leak.classes) == ("target-leak", "", ("outcome_code",), ("y",))
    plan = wardround.load_plan(*wardround.load_study(raw))
    assert [f.severity for f in check_study(plan) if f.code == "target-leak"] == ["error"]
    ignored = wardround.load_plan(*wardround.load_study(csv_study(files, types={"outcome_code": "ignore"})))
    assert not [f for f in check_study(ignored) if f.code == "target-leak"]
    knowingly = {**raw, "evaluation": {"accept": ["target-leak"]}}
    run = wardround.run_study(knowingly, tmp_path / "accepted")
    assert noticed(run.results, "target-leak", columns=["outcome_code"], accepted=True)
