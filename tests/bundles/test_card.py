"""The card: every number in it stands in a file of the run, and a person can read it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wardround.artifacts.folder import RunFolder
from wardround.bundles.bundle import Bundle, load_bundle
from wardround.bundles.card import share_of
from wardround.bundles.cardtext import plain, render
from wardround.bundles.make import Opened, bundle_from


@pytest.fixture(scope="module")
def card(bundle: Bundle) -> dict[str, Any]:
    found: dict[str, Any] = bundle.about["card"]
    return found


@pytest.fixture(scope="module")
def text(bundle: Bundle) -> str:
    return (bundle.path / "card.md").read_text(encoding="utf-8")


def test_figures_are_those_of_results_json(run: Path, card: dict[str, Any], text: str) -> None:
    results = json.loads((run / "results.json").read_text())
    arm = results["arms"]["fedavg"]
    for metric in ("auc", "sensitivity", "brier"):
        assert card["figures"]["this_site"][metric] == arm["sites"]["cleveland"][metric]
        assert card["figures"]["all_sites"][metric] == arm["metrics"][metric]
    low, high = arm["metrics"]["auc"]["interval"]
    assert f"{arm['metrics']['auc']['mean']:.3f} ({max(low, 0):.3f} to {min(high, 1):.3f})" in text
    assert "Means over 2 seeds" in text
    assert "This bundle is seed 1." in text
    assert card["training"]["sites"] == {site: found["train"] for site, found in results["sites"][0]["sites"].items()}


def test_figures_at_the_threshold_are_counted_on_test_rows(run: Path, bundle: Bundle, card: dict[str, Any]) -> None:
    table = RunFolder(run).predictions()
    rows = table[(table["arm"] == "fedavg") & (table["seed"] == 1) & (table["site"] == "cleveland")]
    called, positive = rows["score"] >= bundle.threshold, rows["label"] == 1
    assert card["at_threshold"]["rows"] == len(rows)
    assert card["at_threshold"]["sensitivity"]["value"] == pytest.approx((called & positive).sum() / positive.sum())
    assert card["at_threshold"]["specificity"]["value"] == pytest.approx(
        (~called & ~positive).sum() / (~positive).sum()
    )
    brier = float(((rows["score"].astype(float) - rows["label"]) ** 2).mean())
    assert card["calibration"]["before"]["brier"] == pytest.approx(brier)


def test_wilsons_interval_by_hand() -> None:
    """8 of 10: 0.490 to 0.943, as in textbooks. With fewer than ten rows nothing is said."""
    found = share_of(np.array([True] * 8 + [False] * 2))
    assert found is not None
    assert [round(limit, 3) for limit in found["interval"]] == [0.49, 0.943]
    every = share_of(np.ones(20, dtype=bool))
    assert every is not None
    assert every["interval"][1] == 1.0
    assert share_of(np.ones(9, dtype=bool)) is None


def test_all_sections_are_there_in_order(text: str) -> None:
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == [
        "What it predicts",
        "Intended use",
        "Not intended for",
        "Training",
        "Figures on test rows",
        "Threshold",
        "Calibration",
        "Privacy",
        "Columns that it needs",
        "Gaps, unseen levels, far rows",
        "Limits",
        "Where it comes from",
    ]
    assert "| cp | categorical | 1, 2, 3, 4 |" in text
    assert "| chol | numeric | 80 to 650 |" in text
    assert "Who has heart disease?" in text


def test_hashes_and_the_study_are_named(bundle: Bundle, text: str) -> None:
    for name, digest in bundle.about["files"].items():
        assert name == "card.md" or digest in text
    assert bundle.about["study"]["hash"] in text


def test_each_kind_of_arm_says_whose_rows_it_has_seen(opened: Opened, tmp_path: Path) -> None:
    def trained(arm: str, site: str) -> tuple[list[str], str]:
        made = load_bundle(bundle_from(opened, arm=arm, site=site, out=tmp_path / f"{arm}-{site}"))
        return list(made.about["card"]["training"]["sites"]), (made.path / "card.md").read_text()

    everybody = ["cleveland", "hungarian", "switzerland", "va"]
    assert trained("local", "va")[0] == ["va"]
    assert trained("pooled", "va")[0] == everybody
    members, text = trained("newcomer", "switzerland")
    assert members == ["cleveland", "hungarian", "va"]
    assert "switzerland did not train: the model has seen none of its rows." in text
    assert "(not used by this model)" in text
    few = trained("fedavg", "switzerland")[1]
    assert "fewer than 30 validation rows, or fewer than 5 of one class" in few
    assert "too few rows" in few  # of patients without disease there
    assert "Fewer than 10 test rows of this site, with this seed, are 'no disease'" in few
    assert "switzerland: chol is 0 in 123 rows" in few
    assert "va: chol is 0" not in few


def test_names_from_somebodys_file_break_no_table(card: dict[str, Any]) -> None:
    odd = "a|b\n<script>`x`_[l](u)"
    assert plain(odd) == "a\\|b \\<script>\\`x\\`\\_\\[l](u)"
    columns = [{**card["columns"][0], "name": odd, "written": "A | B"}]
    made = render({**card, "columns": columns, "question": odd})
    assert "| A \\| B | a\\|b \\<script>" in made
    assert "<script>" not in made.replace("\\<script>", "")


def test_no_patient_is_in_a_card(run: Path, text: str, opened: Opened) -> None:
    """Of a number with many digits no card can have a copy by chance."""
    table = RunFolder(run).predictions()
    assert not any(f"{score:.6f}"[2:] in text for score in table["score"])
