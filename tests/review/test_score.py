"""Figures of readers with known behaviour, intervals, what may leave the hospital."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.review.simulated_readers import always, key_of, write_decisions
from wardround.bundles import Bundle
from wardround.review.agreement import cohen_kappa
from wardround.review.decisions import load_key, read_all
from wardround.review.make import make_list
from wardround.review.score import COUNTS, FIGURES, RESULTS, _Drawn, _of_readings, readings_of, score_list, scored
from wardround.runs.audit import verify


@pytest.fixture
def folder(bundle: Bundle, data: Path, tmp_path: Path) -> Path:
    return make_list(bundle, data, out=tmp_path / "list", truth="outcome", cases=60)


def perfect_with_reasons(code: str, condition: str, known: object) -> dict[str, object]:
    """Says what is so with reasons, what the model says with the score, and always `disease` alone."""
    assert isinstance(known, dict)
    answer = {"alone": 1, "score": known["predicted"], "reasons": known["truth"]}[condition]
    return {"answer": answer, "refer": condition == "alone", "milliseconds": {"alone": 9000}.get(condition, 4000)}


def test_readers_whose_behaviour_is_known(folder: Path, tmp_path: Path) -> None:
    files = [write_decisions(folder, f"reader {n}", tmp_path / f"{n}.jsonl", perfect_with_reasons) for n in (1, 2, 3)]
    results = score_list(folder, files)
    cases = list(key_of(folder)["cases"].values())
    truth, predicted = (np.array([case[name] for case in cases]) for name in ("truth", "predicted"))
    alone, score, reasons = (results["conditions"][name] for name in ("alone", "score", "reasons"))
    # each case is read under each condition by one of the three
    assert alone["accuracy"]["value"] == pytest.approx(truth.mean())
    assert (alone["sensitivity"]["value"], alone["specificity"]["value"]) == (1, 0)
    assert score["accuracy"]["value"] == pytest.approx((truth == predicted).mean())
    assert score["followed_wrong_model"]["value"] == 1
    assert score["kappa_with_model"]["value"] == reasons["kappa_with_truth"]["value"] == 1
    expected = cohen_kappa(truth, predicted, np.ones(60), 2)
    assert score["kappa_with_truth"]["value"] == pytest.approx(expected)
    assert reasons["accuracy"] == {"value": 1.0, "interval": None}  # resamples that are all alike say nothing
    assert (alone["referrals"]["value"], score["referrals"]["value"]) == (1, 0)
    assert results["differences"]["score - alone"]["seconds"]["value"] == -5
    difference = results["differences"]["reasons - alone"]["accuracy"]
    assert difference["value"] == pytest.approx(1 - truth.mean())
    assert difference["interval"][0] < difference["value"] < difference["interval"][1]
    assert results["model"]["accuracy"]["value"] == pytest.approx((truth == predicted).mean())
    assert results["interval"]["clustered_by"] == ["case", "reader"]
    assert json.loads((folder / RESULTS).read_text())["readings"] == 180
    assert verify(folder / "audit.jsonl").entries == 5  # made, three files, scored


def test_one_reader_has_intervals_over_cases(folder: Path, tmp_path: Path) -> None:
    results = score_list(folder, [write_decisions(folder, "reader 1", tmp_path / "1.jsonl", always(1))])
    assert results["interval"]["clustered_by"] == ["case"]
    assert results["agreement"]["between_readers"] is None
    assert results["conditions"]["alone"]["readings"] == 20
    assert np.isnan(results["agreement"]["with_truth"]["value"]) or results["agreement"]["with_truth"]["value"] == 0


def test_no_case_with_the_outcome(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    table = pd.read_csv(data)
    table[table["outcome"] == "no disease"].to_csv(tmp_path / "healthy.csv", index=False)
    folder = make_list(bundle, tmp_path / "healthy.csv", out=tmp_path / "list", truth="outcome", cases=12)
    results = score_list(folder, [write_decisions(folder, "reader 1", tmp_path / "1.jsonl", always(0))])
    alone = results["conditions"]["alone"]
    assert np.isnan(alone["sensitivity"]["value"])
    assert alone["sensitivity"]["interval"] is None
    assert alone["specificity"]["value"] == 1
    saved = json.loads((folder / RESULTS).read_text())
    assert saved["conditions"]["alone"]["sensitivity"]["value"] is None


def test_without_outcomes_nobody_is_right_or_wrong(bundle: Bundle, data: Path, tmp_path: Path) -> None:
    folder = make_list(bundle, data, out=tmp_path / "list", cases=12)
    results = score_list(folder, [write_decisions(folder, "reader 1", tmp_path / "1.jsonl", always(0))])
    alone = results["conditions"]["alone"]
    assert np.isnan(alone["accuracy"]["value"])
    assert not np.isnan(alone["referrals"]["value"])


def test_intervals_are_those_of_a_bootstrap_over_cases(folder: Path, tmp_path: Path) -> None:
    """Of one reader, each case is one reading: the standard error of a share is sqrt(p (1 - p) / n)."""
    rng = np.random.default_rng(0)
    answer = lambda code, condition, known: {"answer": int(rng.random() < 0.5)}  # noqa: E731
    key = load_key(folder)
    rows = readings_of(key, read_all(key, [write_decisions(folder, "reader 1", tmp_path / "1.jsonl", answer)]))
    told = _Drawn(rows).told(_of_readings(rows, np.ones(60, dtype=bool), FIGURES["accuracy"]))
    p = told["value"]
    low, high = told["interval"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(p * (1 - p) / 60), rel=0.15)


def test_readings_of_a_case_are_drawn_together(folder: Path, tmp_path: Path) -> None:
    """Two readers who always agree tell no more of the cases than one."""
    by_case: dict[str, int] = {}
    rng = np.random.default_rng(1)

    def answer(code: str, condition: str, known: object) -> dict[str, object]:
        return {"answer": by_case.setdefault(code, int(rng.random() < 0.5))}

    key = load_key(folder)
    files = [write_decisions(folder, f"reader {n}", tmp_path / f"{n}.jsonl", answer) for n in (1, 2)]
    one, two = (scored(key, read_all(key, files[:count])) for count in (1, 2))
    widths = [np.ptp(results["agreement"]["with_truth"]["interval"]) for results in (one, two)]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    assert two["agreement"]["between_readers"]["value"] == pytest.approx(1)


def test_only_counts_leave_and_no_small_ones(folder: Path, tmp_path: Path) -> None:
    def answer(code: str, condition: str, known: object) -> dict[str, object]:
        assert isinstance(known, dict)
        return {"answer": known["truth"] if condition == "score" else 1 - known["truth"], "refer": code < "7"}

    score_list(folder, [write_decisions(folder, "reader 1", tmp_path / "1.jsonl", answer)])
    content = json.loads((folder / COUNTS).read_text())
    assert set(content) == {"list", "readers", "smallest_cell", "conditions"}
    for table in content["conditions"].values():
        assert table["readings"] == 20
        assert {table["right"], table["wrong"]} == {20, 0}  # 0 tells of nobody
        referred = table["referred"]
        assert referred is None or referred == 0 or referred >= 5
    text = (folder / COUNTS).read_text()
    assert not any(code in text for code in key_of(folder)["cases"])
    assert "reader 1" not in text
