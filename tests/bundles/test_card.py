"""The card: every number in it stands in a file of the run, and a person can read it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.noticed import noticed
from wardround.bundles import Bundle, FinishedRun, bundle_from, load_bundle, open_finished_run
from wardround.bundles.card.card import Recipient, gap_text, notices_for, share_of
from wardround.bundles.card.markdown import plain, render
from wardround.core.notices import Notice
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder


@pytest.fixture(scope="module")
def card(bundle: Bundle) -> dict[str, Any]:
    content: dict[str, Any] = bundle.about["card"]
    return content


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
    assert card["training"]["sites"] == {
        site: description["train"] for site, description in results["sites"][0]["sites"].items()
    }


def test_figures_at_the_threshold_are_counted_on_test_rows(run: Path, bundle: Bundle, card: dict[str, Any]) -> None:
    table = RunFolder(run).predictions()
    rows = table[(table["arm"] == "fedavg") & (table["seed"] == 1) & (table["site"] == "cleveland")]
    called, positive = rows["score"] >= bundle.events[0].threshold, rows["label"] == 1
    assert card["at_threshold"]["rows"] == len(rows)
    assert card["at_threshold"]["sensitivity"]["value"] == pytest.approx((called & positive).sum() / positive.sum())
    assert card["at_threshold"]["specificity"]["value"] == pytest.approx(
        (~called & ~positive).sum() / (~positive).sum()
    )
    brier = float(((rows["score"].astype(float) - rows["label"]) ** 2).mean())
    assert card["calibration"]["before"]["brier"] == pytest.approx(brier)


def test_wilsons_interval_by_hand() -> None:
    """8 of 10: 0.490 to 0.943, as in textbooks. With fewer than ten rows nothing is said."""
    share = share_of(np.array([True] * 8 + [False] * 2))
    assert share is not None
    assert [round(limit, 3) for limit in share["interval"]] == [0.49, 0.943]
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
        "Uncertainty",
        "Why it says so",
        "Privacy",
        "Columns that it needs",
        "Gaps, unseen levels, rows out of distribution",
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


def test_each_kind_of_arm_says_whose_rows_it_has_seen(finished: FinishedRun, tmp_path: Path) -> None:
    def trained(arm: str, site: str) -> tuple[list[str], str]:
        bundle = load_bundle(bundle_from(finished, arm=arm, site=site, out=tmp_path / f"{arm}-{site}"))
        return list(bundle.about["card"]["training"]["sites"]), (bundle.path / "card.md").read_text()

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


SITES = ("north", "south", "south-west", "mary", "st mary", "test", "3", "4")
NOTICES = (
    *(Notice("impossible-values", "info", site, ("chol",), {"rows": 3}) for site in SITES),
    *(Notice("column-left-out", "info", site, ("remark",), details={"reason": "free text"}) for site in SITES),
    *(Notice("few-rows", "warning", site, counts={"rows": 12, "test": 3}, variant="drop") for site in SITES),
)
OF_ALL = (
    Notice("rare-class", "warning", classes=("yes",), counts={"rows": 3}),
    Notice("dates-as-years", "info", columns=("age",)),
    Notice("constant-scores", "warning", arm="fedavg"),
)
OF_OTHERS = (
    Notice("label-direction", "warning", per_column={"age": 1}, classes=("yes",), other_sites=("north", "south")),
    Notice("target-words", "warning", columns=("ill",), other_sites=SITES, details=dict.fromkeys(SITES, "yes/no")),
    *(Notice("column-not-recorded", "info", site, ("crp",), details={"use": "own"}) for site in SITES),
    Notice("source-note", "info", details={"text": "anything"}),
)
OF_UNKNOWN_COLUMNS = (
    Notice("spellings-joined", "info", columns=("crp",), counts={"spellings": 4, "levels": 2}),
    Notice("column-left-out", "info", columns=("remark",), details={"reason": "free text"}),
    Notice("odd-values", "warning", per_column={"crp": 1}),
)


@pytest.mark.parametrize("site", SITES)
def test_a_card_shows_nothing_of_other_hospitals_files(site: str) -> None:
    """Whatever they are called: names are compared as fields, not looked for in sentences."""
    recipient = Recipient(site, frozenset({site}), frozenset({"age", "chol"}), is_single=False, same_columns=False)
    everything = (*NOTICES, *OF_ALL, *OF_OTHERS, *OF_UNKNOWN_COLUMNS)
    own = tuple(notice for notice in NOTICES if notice.site == site)
    assert notices_for(recipient, everything) == (*own, *OF_ALL)
    # where all files have the same columns, no name of one gives another hospital away
    assert notices_for(replace(recipient, same_columns=True), everything) == (*own, *OF_ALL, *OF_UNKNOWN_COLUMNS)
    assert notices_for(replace(recipient, is_single=True), everything) == everything


def test_a_site_of_some_rows_of_a_hospital_is_shown_what_the_source_remarks_on_it() -> None:
    recipient = Recipient("site-1", frozenset({"north"}), frozenset(), is_single=False, same_columns=True)
    assert {notice.site for notice in notices_for(recipient, NOTICES)} == {"north"}


def test_the_card_of_a_csv_hospital_names_neither_the_other_nor_its_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in ("north", "south"):
        age, rows = rng.normal(60, 12, 120).round(1), []
        for number, years in enumerate(age):
            ill = "yes" if years + rng.normal(0, 8) > 60 else "no"
            # each has two columns of its own, and rows without an outcome
            rows.append(f"{years},{'ABC'[number % 3]},{number % 2},{'' if number in (5, 6) else ill}")
        (tmp_path / f"{name}.csv").write_text(f"age,ward of {name},drug {name},ill\n" + "\n".join(rows) + "\n")
    study: dict[str, Any] = {
        "name": "wards",
        "data": {
            "source": "csv",
            "files": {name: str(tmp_path / f"{name}.csv") for name in ("north", "south")},
            "target": "ill",
            "columns": "all",
        },
        "model": {"kind": "logistic"},
        "training": {"rounds": 2, "lr": 0.1},
        "evaluation": {"seeds": {"first": 3, "count": 1}, "every": 0},
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}],
    }
    csv_run = run_study(study, tmp_path / "runs")
    without_target = {notice["site"]: notice["text"] for notice in noticed(csv_run.results, "rows-without-target")}
    assert set(without_target) == {"north", "south"}
    finished = open_finished_run(csv_run.folder)
    for name, other in (("north", "south"), ("south", "north")):
        bundle = load_bundle(bundle_from(finished, arm="fedavg", site=name, out=tmp_path / name))
        limits = bundle.about["card"]["limits"]
        assert without_target[name] in limits
        assert not [line for line in limits if other in line and not line.startswith("Sites with fewer than")]


def test_areas_under_curves_of_own_models_are_said_to_be_means(finished: FinishedRun, tmp_path: Path) -> None:
    for arm, own in (("fedavg", False), ("local", True), ("clustered", True), ("intercepts", True)):
        bundle = load_bundle(bundle_from(finished, arm=arm, site="va", out=tmp_path / arm))
        text = (bundle.path / "card.md").read_text()
        assert ("The AUC of all sites is the mean of the sites' own" in text) is own, arm
        expected = finished.results["arms"][arm]
        shown = expected["within_sites"]["auc"] if own else expected["metrics"]["auc"]
        assert bundle.about["card"]["figures"]["all_sites"]["auc"] == shown


def test_gaps_of_a_site_with_its_own_columns_are_filled_with_nobody_elses_values(bundle: Bundle) -> None:
    recipe = bundle.recipe
    assert "or of other sites' where it has none" in " ".join(gap_text(recipe))
    own = replace(recipe, settings=replace(recipe.settings, schema="own"))
    assert gap_text(own)[0] == "A gap in a number is filled with the median of this site's training rows."


def test_names_from_somebodys_file_break_no_table(card: dict[str, Any]) -> None:
    odd = "a|b\n<script>`x`_[l](u)"
    assert plain(odd) == "a\\|b \\<script>\\`x\\`\\_\\[l](u)"
    columns = [{**card["columns"][0], "name": odd, "written": "A | B"}]
    markdown = render({**card, "columns": columns, "question": odd})
    assert "| A \\| B | a\\|b \\<script>" in markdown
    assert "<script>" not in markdown.replace("\\<script>", "")


def test_no_patient_is_in_a_card(run: Path, text: str, finished: FinishedRun) -> None:
    """Of a number with many digits no card can have a copy by chance."""
    table = RunFolder(run).predictions()
    assert not any(f"{score:.6f}"[2:] in text for score in table["score"])
