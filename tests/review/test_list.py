"""A reading list: what is in the page and what must not be, the key, refusals."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.bundles.image_runs import radiographs, run_of
from tests.review.conftest import rows_of
from tests.review.simulated_readers import key_of
from wardround.bundles import Bundle, bundle_from, load_bundle, predict_file
from wardround.core.errors import BundleError, DataError, StudyError
from wardround.review.make import KEY, PAGE, make_list
from wardround.runs.audit import verify


def content_of(folder: Path) -> dict[str, Any]:
    page = (folder / PAGE).read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="list">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_outcome_is_in_the_key_and_nothing_of_it_in_the_page(reading_list: Path, data: Path) -> None:
    """The page is the same, byte for byte but for codes and orders, if every outcome is turned round."""
    page, key = (reading_list / PAGE).read_text(encoding="utf-8"), key_of(reading_list)
    assert "SECRET-NOTE" not in page
    assert "truth" not in page
    assert "outcome" not in content_of(reading_list)["cases"][next(iter(key["cases"]))]
    table = pd.read_csv(data)
    for case in key["cases"].values():
        assert case["truth"] == int(table["outcome"][case["row"]] == "disease")
    shown = content_of(reading_list)["cases"]
    assert {frozenset(case) for case in shown.values()} == {
        frozenset({"columns", "image", "scores", "predicted", "reasons", "heat"})
    }
    assert list(shown) == sorted(shown)  # not in the order of the file, which is sorted by outcome
    assert not {str(case["row"]) for case in key["cases"].values()} & set(shown)


def test_outcomes_change_nothing_of_what_is_shown(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    table = pd.read_csv(data)
    table["outcome"] = np.where(table["outcome"] == "disease", "no disease", "disease")
    table.to_csv(tmp_path / "turned.csv", index=False)
    one, other = (
        make_list(bundle, file, out=tmp_path / name, truth="outcome", readers=1)
        for name, file in (("one", data), ("other", tmp_path / "turned.csv"))
    )
    assert content_of(one)["cases"] == content_of(other)["cases"]


def test_scores_are_those_of_predict(reading_list: Path, bundle: Bundle, data: Path, tmp_path: Path) -> None:
    predict_file(bundle, data, tmp_path / "out.csv")
    predicted = pd.read_csv(tmp_path / "out.csv")
    shown, key = content_of(reading_list), key_of(reading_list)
    for code, case in key["cases"].items():
        row = predicted.loc[case["row"]]
        assert shown["cases"][code]["scores"][1] == pytest.approx(row["score"], abs=1e-4)
        assert key["answers"][case["predicted"]] == row["predicted"]
        assert len(shown["cases"][code]["reasons"]) == 5


def test_the_page_asks_for_nothing(reading_list: Path) -> None:
    page = (reading_list / PAGE).read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert not re.findall(r"https?:", page)
    assert verify(reading_list / "audit.jsonl").broken is None


def test_a_list_without_outcomes_and_with_one_condition(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    folder = make_list(bundle, data, out=tmp_path / "list", readers=["Dr A", "Dr B"], conditions=["alone"], cases=5)
    assert all(case["truth"] is None for case in key_of(folder)["cases"].values())
    assert all(set(case) == {"columns", "image"} for case in content_of(folder)["cases"].values())
    assert list(key_of(folder)["readers"]) == ["Dr A", "Dr B"]


def test_five_hundred_cases_and_more_than_anybody_reads(bundle: Bundle, tmp_path: Path) -> None:
    table = pd.concat([rows_of("hungarian")] * 4, ignore_index=True)
    table.to_csv(tmp_path / "many.csv", index=False)
    folder = make_list(bundle, tmp_path / "many.csv", out=tmp_path / "list", truth="outcome", cases=500)
    truths = [case["truth"] for case in key_of(folder)["cases"].values()]
    assert len(truths) == 500
    assert np.mean(truths) == pytest.approx((table["outcome"] == "disease").mean(), abs=0.005)
    with pytest.raises(StudyError, match="longer list than anybody reads"):
        make_list(bundle, tmp_path / "many.csv", out=tmp_path / "all", truth="outcome")


@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"truth": "note"}, DataError, "none of the answers"),
        ({"truth": "nothing"}, DataError, "there is no column 'nothing'"),
        ({"conditions": ["alone", "blind"]}, StudyError, "expected some of the conditions"),
        ({"readers": 0}, StudyError, "0 readers"),
        ({"readers": ["a", "a"]}, StudyError, "the same"),
        ({"cases": 2}, StudyError, "do not suffice"),
        ({"cases": 9999}, StudyError, "cannot be drawn"),
        ({"finding": "mass"}, StudyError, "predicts classes"),
        ({"pixels": 64}, StudyError, "takes no images"),
    ],
)
def test_refusals(
    bundle: Bundle, data: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem) as refused:
        make_list(bundle, data, out=tmp_path / "list", **{"truth": "outcome", **changes})
    assert "SECRET" not in str(refused.value)
    assert not (tmp_path / "list").exists()


def test_what_is_there_is_not_overwritten(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "decisions.jsonl").touch()
    with pytest.raises(BundleError, match="is there already"):
        make_list(bundle, data, out=tmp_path / "list")


def pictures_of(folder: Path) -> set[tuple[int, int]]:
    shown = [base64.b64decode(case["image"]) for case in content_of(folder)["cases"].values()]
    return {Image.open(io.BytesIO(picture)).size for picture in shown}


def test_images_are_shown_larger_than_the_model_sees_them(tmp_path: Path) -> None:
    finished = run_of(radiographs(), tmp_path / "runs")
    bundle = load_bundle(bundle_from(finished, arm="fedavg", site="hospital-0", out=tmp_path / "bundle"))
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    names = [f"PATIENT-{number}.png" for number in range(6)]
    for name in names:
        Image.fromarray(rng.integers(0, 255, (80, 60), dtype=np.uint8)).save(tmp_path / "pictures" / name)
    file = tmp_path / "pictures" / "files.csv"
    pd.DataFrame({"image": names, "outcome": [0, 1] * 3}).to_csv(file, index=False)
    finding = bundle.task.findings[1]
    asked: dict[str, Any] = {"truth": "outcome", "conditions": ["alone", "score"], "finding": finding}
    folder = make_list(bundle, file, out=tmp_path / "list", **asked)
    assert "PATIENT" not in (folder / PAGE).read_text(encoding="utf-8")
    assert pictures_of(folder) == {(512, 512)}
    assert content_of(folder)["question"] == finding
    predict_file(bundle, file, tmp_path / "out.csv")
    predicted, shown = pd.read_csv(tmp_path / "out.csv"), content_of(folder)["cases"]
    for code, case in key_of(folder)["cases"].items():
        row = predicted.loc[case["row"]]
        assert shown[code]["scores"][1] == pytest.approx(row[f"score_{finding}"], abs=1e-4)
        assert shown[code]["predicted"] == int(row[f"predicted_{finding}"])
    assert pictures_of(make_list(bundle, file, out=tmp_path / "small", pixels=32, **asked)) == {(32, 32)}
    asked["conditions"] = ["alone", "reasons"]
    shown = content_of(make_list(bundle, file, out=tmp_path / "reasons", **asked))["cases"]
    for case in shown.values():
        plain, heat = (np.asarray(Image.open(io.BytesIO(base64.b64decode(case[name])))) for name in ("image", "heat"))
        assert heat.shape == (*plain.shape, 3)
        assert (heat != plain[..., None]).any()
        assert case["reasons"] == []
    with pytest.raises(StudyError, match="one question of each case"):
        make_list(bundle, file, out=tmp_path / "all", conditions=["alone"])


def test_the_key_says_which_list_it_is_of(reading_list: Path) -> None:
    assert key_of(reading_list)["list"] == content_of(reading_list)["list"]
    assert (reading_list / KEY).is_file()
