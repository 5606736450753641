"""Predictions of files, tables and single rows: the run's own numbers, one way of marking, nothing half-written."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundles.conftest import SITES
from tests.bundles.untrained_bundles import made as by_hand
from tests.representatives import represented
from wardround.bundles import (
    Bundle,
    FinishedRun,
    Progress,
    bundle_from,
    load_bundle,
    open_finished_run,
    predict_file,
    predict_rows,
    predict_table,
)
from wardround.bundles.out_of_distribution import by_ranges
from wardround.bundles.predict.blocks import open_rows
from wardround.bundles.predict.scoring import TILE, join_texts
from wardround.cli.main import main
from wardround.core.errors import BundleError, DataError, StudyError
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.data.sources.heart import read_hospital
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder
from wardround.study.schema import Preparation
from wardround.uncertainty.decision import OUT_OF_DISTRIBUTION, TOO_LARGE

HEADER = "row,score,predicted,out_of_distribution,why\n"


def saved(run: Path, arm: str, seed: int, site: str) -> pd.DataFrame:
    table = RunFolder(run).predictions()
    return table[(table["arm"] == arm) & (table["seed"] == seed) & (table["site"] == site)].set_index("row")


@pytest.mark.parametrize("arm", represented(["fedavg", "network"], by=["network"]))
def test_test_rows_of_every_heart_hospital_written_as_csv_have_the_runs_scores(
    run: Path,
    finished: FinishedRun,
    tmp_path: Path,
    arm: str,
) -> None:
    features = next(iter(finished.plan.cohorts.values())).records.features
    assert isinstance(features, pd.DataFrame)
    for site in SITES:
        bundle = load_bundle(bundle_from(finished, arm=arm, site=site, out=tmp_path / site))
        expected = saved(run, arm, 1, site)
        features.loc[expected.index].to_csv(tmp_path / f"{site}.csv", index=False)
        predict_file(bundle, tmp_path / f"{site}.csv", tmp_path / "out.parquet")
        predictions = pd.read_parquet(tmp_path / "out.parquet")
        assert np.abs(predictions["score"].to_numpy() - expected["score"].to_numpy()).max() <= 1e-6
        assert predictions["row"].tolist() == list(range(len(expected)))


def test_a_hospitals_raw_file_has_the_runs_scores_where_0_stands_for_not_measured(
    run: Path, finished: FinishedRun, tmp_path: Path
) -> None:
    """49 of VA's cholesterols are 0, and one of its blood pressures."""
    raw = read_hospital("va").drop(columns="num")
    assert (raw["chol"] == 0).sum() == 49
    bundle = load_bundle(bundle_from(finished, arm="fedavg", site="va", out=tmp_path / "va"))
    expected = saved(run, "fedavg", 1, "va")
    before_va = 303 + 294 + 123
    predictions = predict_table(bundle, raw)
    scores = predictions["score"].to_numpy()[expected.index.to_numpy() - before_va]
    assert np.abs(scores - expected["score"].to_numpy()).max() <= 1e-6
    assert not predictions["why"].str.contains("chol").any()


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """North writes as a German spreadsheet does, south as R does; south does not record sodium."""
    folder = tmp_path_factory.mktemp("wards")
    rng = np.random.default_rng(5)
    for name in ("north", "south"):
        rows = 150
        age, sodium = rng.normal(60, 12, rows).round(1), rng.normal(140, 4, rows).round(2)
        seen = pd.Series(pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="D"))
        ward = rng.choice(["1", "2", "3"], rows)
        ill = (age - 60) / 12 + (ward == "3") + rng.normal(size=rows) > 0.3
        table = pd.DataFrame(
            {"age": age, "sodium": sodium, "ward": ward, "sex": rng.choice(["m", "F", "male", "w"], rows)}
        )
        table["seen"] = seen.dt.strftime("%d.%m.%Y" if name == "north" else "%Y-%m-%d")
        table["ill"] = np.where(ill, "yes", "no")
        for column in ("age", "ward", "sex"):
            table.loc[rng.choice(rows, 12, replace=False), column] = None
        if name == "north":
            table["ward"] = table["ward"].where(rng.random(rows) < 0.5, table["ward"] + ",0")
            table.to_csv(folder / "north.csv", index=False, sep=";", decimal=",", na_rep="?")
        else:
            table.drop(columns="sodium").to_csv(folder / "south.csv", index=False, quoting=2, na_rep="NA")
    study: dict[str, Any] = {
        "name": "wards",
        "data": {
            "source": "csv",
            "files": {name: str(folder / f"{name}.csv") for name in ("north", "south")},
            "target": "ill",
            "columns": "all",
            "types": {"ward": "categorical"},
        },
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "mlp", "hidden": [6]},
        "training": {"rounds": 3, "batch_size": 16, "lr": 0.1},
        "evaluation": {"seeds": {"first": 3, "count": 1}, "every": 0, "validation_share": 0.25},
        "arms": [{"name": "fedprox", "algorithm": "fedprox"}],
    }
    finished = open_finished_run(run_study(study, folder / "runs").folder)
    for name in ("north", "south"):
        bundle_from(finished, arm="fedprox", site=name, out=folder / f"bundle-{name}")
    return folder


@pytest.mark.parametrize(("site", "first"), [("north", 0), ("south", 150)])
def test_a_hospitals_own_file_gives_the_runs_scores(wards: Path, tmp_path: Path, site: str, first: int) -> None:
    """The very file that it trained with: its separator, its commas, its dates, its words, its gaps."""
    bundle = load_bundle(wards / f"bundle-{site}")
    summary = predict_file(bundle, wards / f"{site}.csv", tmp_path / "out.csv", keep=["ill"])
    predictions = pd.read_csv(tmp_path / "out.csv")
    expected = saved(next((wards / "runs").iterdir()), "fedprox", 3, site)
    rows = expected.index.to_numpy() - first
    assert np.abs(predictions["score"].to_numpy()[rows] - expected["score"].to_numpy()).max() <= 1e-6
    assert (summary.rows, summary.unseen, summary.outside, summary.unscored) == (150, 0, 0, 0)
    assert 12 <= summary.gaps <= 36  # what south never records is not counted
    assert sum(summary.predicted.values()) == 150
    assert set(predictions["ill"]) == {"yes", "no"}


def test_a_column_that_a_site_does_not_record_may_be_there_or_not(wards: Path) -> None:
    bundle = load_bundle(wards / "bundle-south")
    table = pd.read_csv(wards / "south.csv")
    without = predict_table(bundle, table)
    pd.testing.assert_frame_equal(predict_table(bundle, table.assign(sodium=None)), without)
    # a value there is no more used than it was in training
    pd.testing.assert_frame_equal(predict_table(bundle, table.assign(sodium=180.0)), without)


def as_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(table.to_json(orient="records", double_precision=15))
    return records


@pytest.mark.parametrize("site", ["north", "south"])
def test_file_table_and_single_rows_agree_to_the_last_bit(wards: Path, tmp_path: Path, site: str) -> None:
    bundle = load_bundle(wards / f"bundle-{site}")
    table = pd.read_csv(
        wards / f"{site}.csv", sep=None, engine="python", decimal="," if site == "north" else ".", na_values="?"
    )
    table["ward"] = table["ward"].astype(str).str.replace(",", ".").replace("nan", None)
    paths = {suffix: tmp_path / f"rows.{suffix}" for suffix in ("csv", "csv.gz", "parquet")}
    table.to_csv(paths["csv"], index=False)
    paths["csv.gz"].write_bytes(gzip.compress(paths["csv"].read_bytes()))
    table.to_parquet(paths["parquet"], index=False)
    whole = predict_table(bundle, table)
    for path in (*paths.values(), wards / f"{site}.csv"):
        for out in (tmp_path / "out.csv", tmp_path / "out.parquet"):
            predict_file(bundle, path, out)
            predictions = pd.read_csv(out, keep_default_na=False) if out.suffix == ".csv" else pd.read_parquet(out)
            pd.testing.assert_frame_equal(predictions, whole, check_dtype=False, check_exact=True)
    one_by_one = [predict_rows(bundle, [row])[0] for row in as_rows(table.head(40))]
    assert one_by_one == predict_rows(bundle, as_rows(table))[:40]
    pd.testing.assert_frame_equal(
        pd.DataFrame(one_by_one), whole.drop(columns="row").head(40), check_dtype=False, check_exact=True
    )


def test_rows_have_the_same_bits_in_any_place_and_number(tmp_path: Path) -> None:
    """A product of one row with a matrix may be rounded otherwise than that of a thousand."""
    bundle = by_hand(tmp_path / "b", kind="mlp", options={"hidden": [16, 8]}, columns=tuple("abcdefghijklm"))
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(TILE + 77, 13)), columns=list("abcdefghijklm"))
    whole = predict_table(bundle, table)
    order = np.random.default_rng(1).permutation(len(table))
    for rows in (order, order[:1], order[:5], order[: TILE - 1]):
        part = predict_table(bundle, table.iloc[rows])
        np.testing.assert_array_equal(part["score"].to_numpy(), whole["score"].to_numpy()[rows])
        np.testing.assert_array_equal(
            part["out_of_distribution"].to_numpy(), whole["out_of_distribution"].to_numpy()[rows]
        )
    assert len(predict_table(bundle, table.iloc[:0])) == 0


def test_blocks_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = by_hand(tmp_path / "b")
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 3)).round(3), columns=["age", "crp", "sodium"])
    table.to_csv(tmp_path / "rows.csv", index=False)
    predict_file(bundle, tmp_path / "rows.csv", tmp_path / "whole.csv")
    monkeypatch.setattr(
        "wardround.bundles.predict.predict.open_rows", lambda source, columns: open_rows(source, columns, 64)
    )
    reports: list[Progress] = []
    predict_file(bundle, tmp_path / "rows.csv", tmp_path / "cut.csv", progress=reports.append)
    assert (tmp_path / "cut.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(reports) > 50
    assert reports[-1].rows == 500
    assert reports[-1].share == 1.0
    assert all(earlier.rows <= other.rows for earlier, other in pairwise(reports))


def test_blank_lines_are_no_rows_even_where_they_fill_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wardround.bundles.predict.predict.open_rows", lambda source, columns: open_rows(source, columns, 64)
    )
    (tmp_path / "rows.csv").write_text("age,crp,sodium\n1,2,3\n" + "\n" * 200 + "4,5,6\n" + " \n" * 100)
    summary = predict_file(by_hand(tmp_path / "b"), tmp_path / "rows.csv", tmp_path / "out.csv")
    assert summary.rows == 2
    assert [line.partition(",")[0] for line in (tmp_path / "out.csv").read_text().splitlines()] == ["row", "0", "1"]


def with_columns(bundle: Bundle, change: Callable[[Recipe], Recipe]) -> Bundle:
    return replace(bundle, recipe=change(bundle.recipe))


def test_far_rows_and_values_beyond_a_range_are_marked(tmp_path: Path) -> None:
    """The bundle's centre is 0 and its cut 3 in each direction."""
    limits = Column("age", limits=(0, 10))
    bundle = with_columns(by_hand(tmp_path / "b"), lambda r: replace(r, columns=(limits, *r.columns[1:])))
    table = pd.DataFrame({"age": [0, 3.1, -1, 11, None], "crp": [3.0, 0, 0, 0, 0], "sodium": 0.0})
    predictions = predict_table(bundle, table)
    assert predictions["out_of_distribution"].tolist() == [False, True, False, True, False]
    assert predictions["why"].tolist() == [
        "",
        "far from the training rows",
        "outside the known range: age",
        "outside the known range: age; far from the training rows",
        "a gap where training had none: age",
    ]
    private = predict_table(replace(bundle, out_of_distribution=by_ranges()), table)
    assert private["out_of_distribution"].tolist() == [False, False, True, True, False]
    assert private["why"].tolist()[3] == "outside the known range: age"


def test_far_is_what_the_bundle_calls_far(bundle: Bundle) -> None:
    """Rows in all directions, from half to one and a half times as far as the cut of a real bundle."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(3000, len(bundle.out_of_distribution.mean)))
    lengths = bundle.out_of_distribution.cut * rng.uniform(0.5, 1.5, size=3000)
    whitened = directions * (lengths / np.linalg.norm(directions, axis=1))[:, None]
    x = bundle.out_of_distribution.mean + np.linalg.solve(bundle.out_of_distribution.whitening, whitened.T).T
    np.testing.assert_array_equal(bundle.is_out_of_distribution(x), lengths > bundle.out_of_distribution.cut)


def test_numbers_beyond_all_bounds_have_no_score_and_no_call(tmp_path: Path) -> None:
    """1e300 is infinite to a model of 32 bits; two of them with weights of different signs give no number."""
    bundle = by_hand(tmp_path / "b", columns=("a", "b"))
    weights = next(leaf for name, leaf in bundle.params.items() if leaf.numel() == 2).ravel()
    huge = 1e300 * np.array([1, -1 if weights[0] * weights[1] > 0 else 1])
    predictions = predict_rows(bundle, [{"a": float(huge[0]), "b": float(huge[1])}, {"a": float(huge[0]), "b": 0}])
    assert predictions[0] == {
        "score": None,
        "predicted": None,
        "out_of_distribution": True,
        "why": f"{OUT_OF_DISTRIBUTION.text}; {TOO_LARGE.text}",
    }
    assert predictions[1]["score"] in (0.0, 1.0)
    assert predictions[1]["out_of_distribution"] is True


def test_levels_that_training_never_saw_are_marked_and_counted(wards: Path, tmp_path: Path) -> None:
    bundle = load_bundle(wards / "bundle-south")
    table = pd.read_csv(wards / "south.csv").head(4).assign(ward=["1", "9", "9.0", "?"], sex=["m", "F", "divers", "w"])
    predictions = predict_table(bundle, table)
    assert predictions["why"].str.contains("unseen level").tolist() == [False, True, True, False]
    assert predictions["why"][2].startswith("unseen level: ward, sex")
    table.to_csv(tmp_path / "rows.csv", index=False)
    assert predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.csv").unseen == 2


def test_a_model_of_complete_rows_predicts_no_others(tmp_path: Path) -> None:
    bundle = by_hand(tmp_path / "b")
    bundle = with_columns(bundle, lambda r: replace(r, settings=replace(r.settings, missing="drop")))
    (tmp_path / "rows.csv").write_text("age,crp,sodium\n0,0,0\n,1,\n")
    summary = predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[2] == '1,,,false,"incomplete: age, sodium"'
    assert (summary.rows, summary.gaps, summary.unscored, sum(summary.predicted.values())) == (2, 0, 1, 1)
    assert predict_rows(bundle, [{"age": 0, "crp": None, "sodium": 0}])[0] == {
        "score": None,
        "predicted": None,
        "out_of_distribution": False,
        "why": "incomplete: crp",
    }


def test_gaps_are_filled_as_the_recipe_says(tmp_path: Path) -> None:
    """By hand: every gap is filled with 0.5. Without indicators nothing is known of gaps in training."""
    bundle = by_hand(tmp_path / "b")
    bundle = with_columns(bundle, lambda r: replace(r, settings=replace(r.settings, indicator=False)))
    gaps, filled = {"age": None, "crp": "?", "sodium": " "}, {"age": 0.5, "crp": "0.5", "sodium": 0.5}
    with_gaps, other = predict_rows(bundle, [gaps, filled])
    assert with_gaps == other


def with_gaps_in(*names: str) -> Recipe:
    """Four columns, of which these had gaps in training: then there is a number for it."""
    columns = tuple(map(Column, ("age", "chol", "crp", "ph")))
    fit = Fit(dict.fromkeys(("age", "chol", "crp", "ph"), 0.5), {}, np.zeros(4), np.ones(4))
    return Recipe(columns, Layout(columns, {}, names), fit, Preparation())


GAPS = "age,chol,crp,ph\n1,,1,1\n1,,,1\n,,1,\n1,,1,\n"


def test_a_gap_where_training_had_none_is_marked_and_counted(tmp_path: Path) -> None:
    """Training had gaps in crp alone. ph is not recorded here: its gaps are as in training."""
    bundle = by_hand(tmp_path / "b", prepared_by=with_gaps_in("crp"), unrecorded=["ph"])
    (tmp_path / "rows.csv").write_text(GAPS.replace("1,,1,1", "1,1,1,1").replace("1,,,1", "1,1,,1"))
    summary = predict_file(bundle, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv", keep_default_na=False)["why"].tolist() == [
        "",
        "",
        "a gap where training had none: age, chol",
        "a gap where training had none: chol",
    ]
    assert (summary.gaps, summary.new_gaps, summary.empty) == (1, 2, ())
    # where the preparation does not tell which columns had gaps, none is called new
    silent = with_columns(bundle, lambda r: replace(r, settings=replace(r.settings, indicator=False)))
    summary = predict_file(silent, tmp_path / "rows.csv", tmp_path / "silent.csv")
    assert (summary.gaps, summary.new_gaps) == (3, 0)


def test_a_column_that_is_empty_in_every_row_has_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """chol had gaps in training, so that no row is marked for it; ph is empty too, and this site never records it."""
    monkeypatch.chdir(tmp_path)
    bundle = by_hand(tmp_path / "b", prepared_by=with_gaps_in("chol", "crp"), unrecorded=["ph"])
    (tmp_path / "rows.csv").write_text(GAPS.replace("1,1\n", "1,\n").replace(",,1\n", ",,\n"))
    assert predict_file(bundle, "rows.csv", "out.csv").empty == ("chol",)
    code, _, error_text = in_process(capfd, monkeypatch, "predict", "b", "rows.csv", "--out", "out.csv")
    assert code == 0
    assert "'chol' is empty in every row." in error_text
    assert "1 row: a gap where training had none" in error_text
    assert "Gaps were filled, as in training, in 3 rows." in error_text
    assert "'ph'" not in error_text


def test_half_a_letter_is_told_and_not_repeated(tmp_path: Path) -> None:
    bundle = by_hand(tmp_path / "b")
    rows: list[dict[str, Any]] = [{"age": 1, "crp": 2, "sodium": 3}, {"age": 1, "crp": "Smith \ud800", "sodium": 3}]
    with pytest.raises(DataError, match=r"row 1 \(counted from 0\): the text in 'crp' has half of a letter") as caught:
        predict_rows(bundle, rows)
    assert "Smith" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(DataError, match=r"table, row 1 .*'crp'"):
        predict_table(bundle, pd.DataFrame(rows))


def test_three_classes_have_a_score_each_and_the_highest_is_called(tmp_path: Path) -> None:
    bundle = by_hand(tmp_path / "b", classes=("mild", "none", "severe"))
    predictions = predict_table(bundle, pd.DataFrame(np.eye(3) * 4, columns=["age", "crp", "sodium"]))
    assert list(predictions) == [
        "row",
        "score_mild",
        "score_none",
        "score_severe",
        "predicted",
        "out_of_distribution",
        "why",
    ]
    scores = predictions[["score_mild", "score_none", "score_severe"]].to_numpy()
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-6)
    assert predictions["predicted"].tolist() == [bundle.classes[place] for place in scores.argmax(axis=1)]


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=6))
def test_reasons_in_words_are_those_of_each_row(masks: list[list[bool]]) -> None:
    reasons = [("kind" if number % 2 else "sort", f"c{number}", np.array(mask)) for number, mask in enumerate(masks)]
    texts = join_texts(reasons, 6).dictionary_decode().to_pylist()
    for row, text in enumerate(texts):
        named_columns = {column for part in text.split("; ") if part for column in part.partition(": ")[2].split(", ")}
        assert named_columns == {column for _, column, mask in reasons if mask[row]}


def test_many_reasons_at_once_do_not_overflow() -> None:
    every = [("unseen level", f"c{number}", np.arange(70) >= number) for number in range(70)]
    texts = join_texts(every, 70).dictionary_decode().to_pylist()
    assert texts[0] == "unseen level: c0"
    assert texts[69].count("c") == 70


ROWS = "id,age,crp,sodium\n7,1,2,3\n8,4,5,6\n"


@pytest.fixture
def simple(tmp_path: Path) -> Bundle:
    (tmp_path / "rows.csv").write_text(ROWS)
    return by_hand(tmp_path / "b")


def test_kept_columns_are_copied_as_they_are(simple: Bundle, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('id,age,crp,sodium,remark\n007,1,2,3,"a, ""b"""\n,4,5,6,\n')
    predict_file(simple, tmp_path / "rows.csv", tmp_path / "out.csv", keep=["remark", "id", "age"])
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "row,remark,id,age,score,predicted,out_of_distribution,why"
    assert lines[1].startswith('0,"a, ""b""",007,1,0.')
    assert lines[2].startswith("1,,,4,0.")


def test_kept_columns_of_parquet_keep_their_type(simple: Bundle, tmp_path: Path) -> None:
    table = pa.table({"age": [1.0], "crp": [2.0], "sodium": [3.0], "id": pa.array([7], pa.uint8())})
    pq.write_table(table, tmp_path / "rows.parquet")
    predict_file(simple, tmp_path / "rows.parquet", tmp_path / "out.parquet", keep=["id"])
    assert pq.read_schema(tmp_path / "out.parquet").field("id").type == pa.uint8()
    predict_file(simple, tmp_path / "rows.parquet", tmp_path / "out.csv", keep=["id"])
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("0,7,")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("age,crp\n1,2\n", "there is no column 'sodium'"),
        ("age,crp,sodium\n", "there is a header, but no row below it"),
        ("age,crp,sodium\n1,2,3\n4,5\n", "line 3: 2 fields, but the header names 3 columns"),
        ("age,crp,sodium\n1,2,3\n4,Smith,6\n", "line 3: column 'crp': this is no number"),
        ("age;crp;sodium\n1,5;2;3\n1.5;2;3\n", "line 2: column 'age': this is no number"),
        ('age,crp,sodium\n1,2,"3\n4,5,6\n', "line 2: quotation marks do not match"),
    ],
)
def test_a_bad_file_leaves_nothing_behind(simple: Bundle, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "out.csv").write_text("from before")
    for out in ("out.csv", "out.parquet"):
        with pytest.raises(DataError) as error:
            predict_file(simple, tmp_path / "rows.csv", tmp_path / out)
        assert problem in str(error.value)
        assert "Smith" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "out.csv", "rows.csv"]
    assert (tmp_path / "out.csv").read_text() == "from before"


@pytest.mark.slow
def test_an_error_far_down_leaves_nothing_behind(simple: Bundle, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age,crp,sodium\n" + "1,2,3\n" * 600_000 + "1,2,x\n")  # several pieces
    with pytest.raises(DataError, match="line 600002: column 'sodium': this is no number"):
        predict_file(simple, tmp_path / "rows.csv", tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "rows.csv"]


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    simple: Bundle, tmp_path: Path
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = [tmp_path / f".out.csv.{process.pid}.partial" for process in (gone, living)]
    for path in left:
        path.touch()
    try:
        predict_file(simple, tmp_path / "rows.csv", tmp_path / "out.csv")
    finally:
        living.communicate(b"\n")
    assert [path.exists() for path in left] == [False, True]


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_whoever_stops_it_leaves_nothing_behind(simple: Bundle, tmp_path: Path, trouble: type[BaseException]) -> None:
    def stop(done: Progress) -> None:
        raise trouble

    for out in ("out.csv", "out.parquet"):
        with pytest.raises(trouble):
            predict_file(simple, tmp_path / "rows.csv", tmp_path / out, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "rows.csv"]


@pytest.mark.parametrize(
    ("out", "keep", "error", "problem"),
    [
        ("out.txt", [], StudyError, "ends neither with .csv nor with .parquet"),
        ("rows.csv", [], StudyError, "this is the file that is read"),
        ("b", [], StudyError, "ends neither"),
        ("nowhere/out.csv", [], BundleError, "cannot be written (No such file or directory)"),
        ("out.csv", ["id", "id"], StudyError, "names a column twice"),
        ("out.csv", ["score"], StudyError, "'score' is also a column of the predictions"),
        ("out.csv", ["ID"], DataError, "there is no column 'ID'"),
    ],
)
def test_what_cannot_be_written_is_refused(
    simple: Bundle, tmp_path: Path, out: str, keep: list[str], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error) as raised:
        predict_file(simple, tmp_path / "rows.csv", tmp_path / out, keep=keep)
    assert problem in str(raised.value)
    assert (tmp_path / "rows.csv").read_text() == ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "rows.csv"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"age": 1, "crp": 2}, "row 1 (counted from 0): there is no 'sodium'"),
        ({"age": True, "crp": 2, "sodium": 3}, "row 1 (counted from 0): 'age' is neither a number, a text nor null"),
        ({"age": 1, "crp": [2], "sodium": 3}, "'crp' is neither"),
        ({"age": 1, "crp": "Smith", "sodium": 3}, "row 1 (counted from 0): column 'crp': this is no number"),
    ],
)
def test_a_bad_row_is_named_without_its_values(simple: Bundle, row: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError) as error:
        predict_rows(simple, [{"age": 1, "crp": "2", "sodium": 3}, row])
    assert problem in str(error.value)
    assert "Smith" not in str(error.value)


def test_a_table_may_mix_numbers_and_texts(simple: Bundle) -> None:
    numbers = pd.DataFrame({"age": [0.1, 2.0], "crp": [1e-7, 3.0], "sodium": [1, 2]})
    mixed = pd.DataFrame({"age": ["0.1", 2], "crp": [1e-7, "3"], "sodium": pd.array([1, 2], dtype="Int64")})
    pd.testing.assert_frame_equal(predict_table(simple, mixed), predict_table(simple, numbers), check_exact=True)
    with pytest.raises(DataError, match="table: there is no column 'crp'"):
        predict_table(simple, numbers.drop(columns="crp"))


def verb(*words: str | Path, given: bytes = b"", cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "wardround.cli.main", "predict", *map(str, words)]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    return subprocess.run(command, input=given, cwd=cwd, capture_output=True, timeout=120, env=environment)


def test_the_verb_reads_standard_input_and_writes_standard_output(simple: Bundle, tmp_path: Path) -> None:
    done = verb("b", "-", "--out", "-", "--keep", "id", given=gzip.compress(ROWS.encode()), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    predictions = pd.read_csv(io.BytesIO(done.stdout))
    assert predictions["id"].tolist() == [7, 8]
    expected = predict_table(simple, pd.read_csv(tmp_path / "rows.csv"))
    np.testing.assert_array_equal(predictions["score"], expected["score"])
    assert b"2 rows predicted" in done.stderr


def in_process(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["wardround", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capfd.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_verb_tells_counts_as_json_and_errors_by_exit_code(
    simple: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = in_process(capfd, monkeypatch, "predict", "b", "rows.csv", "--out", "out.csv", "--json")
    content = json.loads(out)
    assert (code, content["rows"], content["bundle"], err) == (0, 2, simple.id, "")
    assert list(content) == (
        [
            "bundle",
            "out",
            "rows",
            "out_of_distribution",
            "gaps",
            "new_gaps",
            "unseen",
            "outside",
            "unscored",
            "empty",
            "predicted",
            "seconds",
            "referred",
            "absent",
            "reasons",
        ]
    )
    code, out, err = in_process(capfd, monkeypatch, "predict", "b", "rows.csv", "--out", "-", "--json")
    assert (code, json.loads(out)["error"]["where"]) == (3, "--json")
    (tmp_path / "b" / "card.md").write_text("another card")
    code, out, err = in_process(capfd, monkeypatch, "predict", "b", "rows.csv", "--out", "other.csv")
    assert (code, out) == (10, "")
    assert "was changed since the bundle was made" in err
    assert not (tmp_path / "other.csv").exists()


def test_the_summary_names_what_to_look_at(
    simple: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """(4, 5, 6) is 8.8 from the centre, where the cut is 3; and so is (1, 2, 3), at 3.7."""
    monkeypatch.chdir(tmp_path)
    code, out, err = in_process(capfd, monkeypatch, "predict", "b", "rows.csv", "--out", "out.csv")
    assert (code, out) == (0, "")
    assert "2 rows predicted" in err
    assert "2 rows: far from the training rows" in err
