"""The report on privacy: figures from the ledger, plain words for whoever answers for data, and no empty promise."""

import copy
import csv
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wardround
from tests.report.private_study import PRIVATE
from tests.report.test_report import page_of
from wardround.evaluation.comparisons.measures import signed
from wardround.report import Evidence, answer, read_evidence, sections_of
from wardround.report.render.figures import draw_all
from wardround.report.sections.appendix.citations import citations
from wardround.report.sections.design.settings import design, privacy_settings
from wardround.report.sections.limits import limits
from wardround.report.sections.privacy import spending
from wardround.report.sections.privacy.private_arms import (
    epsilon_lines,
    epsilon_number,
    spent_epsilon,
    unprotected_arms,
)
from wardround.report.sections.privacy.releases import UNPROTECTED, privacy
from wardround.report.sections.privacy.spending import (
    cost_sentences,
    length_table,
    protection_table,
    spent_lines,
    spent_table,
    total_table,
)
from wardround.runs.folder import RunFolder
from wardround.runs.spending import EACH_SITE

PRIVACY_FIGURES = {"epsilon-cost", "epsilon-spent", "gradient-lengths"}
PRIVACY_TABLES = {"protection", "spent", "spent-in-all", "gradient-lengths"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study_run = wardround.run_study(PRIVATE, tmp_path_factory.mktemp("runs"))
    wardround.build_report(study_run.folder)
    return study_run


@pytest.fixture(scope="module")
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder), checked=True)


def changed(evidence: Evidence, **privacy: Any) -> Evidence:
    """With other entries under `privacy`; those of arms are laid over what is there."""
    results = copy.deepcopy(dict(evidence.results))
    for name, arm in privacy.pop("arms", {}).items():
        results["privacy"]["arms"][name] |= arm
    results["privacy"] |= privacy
    return replace(evidence, results=results)


def rows_of(table: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(table.csv())))


def test_the_page_has_every_table_and_figure_once(run: wardround.StudyRun) -> None:
    page = page_of(run.folder)
    assert {f"figure-{name}" for name in PRIVACY_FIGURES} | {f"table-{name}" for name in PRIVACY_TABLES} <= set(
        page.ids
    )
    assert len(page.ids) == len(set(page.ids))
    for name in PRIVACY_TABLES:
        assert (run.folder / "tables" / f"{name}.tex").is_file()
    assert "No guarantee: this was a simulation" in page.text
    assert UNPROTECTED not in page.text


@pytest.mark.slow
@pytest.mark.rendered
def test_figures_are_drawn(evidence: Evidence, tmp_path: Path) -> None:
    draw_all({name: spending.SECTION.figures[name] for name in PRIVACY_FIGURES}, evidence, tmp_path)
    for name in PRIVACY_FIGURES:
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_epsilon_is_the_ledgers_and_not_the_plans(evidence: Evidence) -> None:
    """The arm `ends` may spend 2 and stopped at 1.866: two rounds of noise 3 on all patients, delta 1e-5.

    Two releases with noise 3 are one with noise 3 / sqrt(2); Balle and Wang's closed form gives 1.866 for it.
    """
    table = protection_table(evidence)
    assert table is not None
    arm_rows = {row["arm"]: row for row in rows_of(table)}
    assert arm_rows["ends"]["epsilon at most"] == "2.0"
    assert float(arm_rows["ends"]["spent"]) == pytest.approx(1.866, abs=0.001)
    assert arm_rows["ends"]["cut short"] == "cleveland from round 3; hungarian from round 3; va from round 3"
    assert arm_rows["open"]["differential privacy of"] == arm_rows["summed"]["differential privacy of"] == "nothing"
    assert (arm_rows["open"]["secure sum"], arm_rows["summed"]["secure sum"]) == ("no", "yes")
    assert arm_rows["alone"]["secure sum"] == "", "an arm whose sites train alone has no sum"


def test_each_site_has_its_rate_noise_steps_and_three_epsilons(evidence: Evidence) -> None:
    table = spent_table(evidence)
    assert table is not None
    rows = [row for row in rows_of(table) if row["arm"] == "closed[epsilon=1.0]"]
    assert [row["site"] for row in rows] == ["cleveland", "hungarian", "va"]
    for row in rows:
        assert (row["rounds"], row["steps"], row["sampling rate"]) == ("3", "3", "1.0")
        assert float(row["epsilon"]) <= 1.0 < float(row["by RDP"]) < float(row["replace"])
    total = total_table(evidence)
    assert total is not None
    # three rounds of three arms and two of the one that stopped, with two seeds
    assert {row["rounds"] for row in rows_of(total)} == {str(2 * (3 * 3 + 2))}
    assert all(float(row["epsilon"]) > 8 for row in rows_of(total)), "what arms tell of the same patients adds up"


def test_lengths_of_gradients_are_cut_at_the_clip() -> None:
    edges = np.logspace(-1, 1, 5)  # 0.1, 0.316, 1, 3.16, 10
    assert spending.clipped(np.array([1, 2, 4, 8]), edges).tolist() == [1, 14, 0, 0]


def test_lengths_are_in_a_table_and_absent_in_a_deployment(evidence: Evidence) -> None:
    table = length_table(evidence)
    assert table is not None
    first = next(row for row in rows_of(table) if (row["arm"], row["site"]) == ("ends", "va"))
    lengths = evidence.results["privacy"]["arms"]["ends"]["lengths"]["sites"]["va"]["first"]
    assert float(first["cut, %"]) == pytest.approx(100 * lengths["clipped"])
    without = changed(evidence, arms={name: {"lengths": None} for name in evidence.results["privacy"]["arms"]})
    assert spending.gradient_lengths(without) is None
    table = length_table(without)
    assert table is not None
    assert not table.rows


def test_a_line_joins_arms_that_differ_in_epsilon_alone(evidence: Evidence) -> None:
    lines = {line.title: line for line in epsilon_lines(evidence)}
    assert set(lines) == {"closed", "ends", "alone"}
    assert [name for _, name in lines["closed"].arms] == ["closed[epsilon=1.0]", "closed[epsilon=8.0]"]
    assert lines["closed"].unprotected == lines["ends"].unprotected == "open"
    assert lines["alone"].unprotected is None, "nobody trains alone without noise in this study"


def test_an_arm_without_noise_may_train_in_its_own_way_and_that_is_said(evidence: Evidence) -> None:
    study = copy.deepcopy(dict(evidence.study))
    study["arms"][0]["training.lr"] = 0.1
    other = replace(evidence, study=study)
    lines = {line.title: line for line in epsilon_lines(other)}
    assert lines["closed"].unprotected == "open"
    assert "trained with settings of its own" in str(cost_sentences(other))
    assert "settings of its own" not in str(cost_sentences(evidence))


def test_another_model_without_noise_is_nothing_to_compare_with(evidence: Evidence) -> None:
    study = copy.deepcopy(dict(evidence.study))
    study["arms"][0]["model.kind"] = "mlp"
    lines = {line.title: line for line in epsilon_lines(replace(evidence, study=study))}
    assert lines["closed"].unprotected is None


def test_what_a_selection_put_together_is_not_taken_for_unprotected(evidence: Evidence) -> None:
    results = copy.deepcopy(dict(evidence.results))
    results["arms"]["closed[selected]"] = results["arms"]["closed[epsilon=1.0]"]
    with_selected = replace(evidence, results=results)
    assert "closed[selected]" not in unprotected_arms(with_selected)
    table = protection_table(with_selected)
    assert table is not None
    assert "closed[selected]" not in [row["arm"] for row in rows_of(table)]


def test_the_answer_says_what_privacy_cost_with_its_interval(evidence: Evidence) -> None:
    (sentence,) = cost_sentences(evidence)
    assert sentence in answer(evidence)
    tests = {test["arm"]: test for test in evidence.tests()}
    for name, spent in (("closed[epsilon=1.0]", "1"), ("closed[epsilon=8.0]", "8")):
        low, high = (signed(100 * limit, 1) for limit in tests[name]["interval"])
        assert f"epsilon {spent}: {signed(100 * tests[name]['difference'], 1)} ({low} to {high})" in sentence
    assert sentence.endswith("All of it may be chance. Simulated noise: what it would cost, not a guarantee.")


def test_what_chance_does_not_explain_is_named(evidence: Evidence) -> None:
    results = copy.deepcopy(dict(evidence.results))
    for test in results["tests"]:
        test["verdict"] = "loses" if test["arm"] == "closed[epsilon=1.0]" else "no evidence"
    text = str(cost_sentences(replace(evidence, results=results)))
    assert " Chance does not explain epsilon 1. " in text


def test_without_a_reference_the_cost_has_no_interval_and_says_so(evidence: Evidence) -> None:
    study, results = copy.deepcopy(dict(evidence.study)), {**evidence.results, "tests": []}
    del study["evaluation"]["reference"]
    text = str(cost_sentences(Evidence(results, study, evidence.environment)))
    mine, other = (evidence.figure(name)["mean"] for name in ("closed[epsilon=1.0]", "open"))
    assert f"epsilon 1: {signed(100 * (mine - other), 1)} (no interval: open is not the reference)" in text


def test_an_arm_that_diverged_has_no_figures_and_nothing_breaks(evidence: Evidence) -> None:
    results = copy.deepcopy(dict(evidence.results))
    for place in ("metrics", "within_sites"):
        results["arms"]["closed[epsilon=1.0]"][place]["auc"] = {"mean": None, "sd": None, "interval": None}
    results["tests"] = []
    bare = replace(evidence, results=results)
    assert "epsilon 1: no figures" in str(cost_sentences(bare))
    assert spending.cost_of_epsilon(bare) is not None


def test_words_name_who_is_protected_from_whom_and_what_is_not(evidence: Evidence) -> None:
    text = " ".join(privacy(evidence))
    assert "the coordinator and the other hospitals included" in text
    # odds of 1 become e at most: e / (1 + e) = 0.73
    assert round(100 * math.e / (1 + math.e)) == 73
    assert "can be at most 73 % sure" in text
    assert "Secure sum in summed: the coordinator learnt the sum" in text
    assert "Without differential privacy: open and summed." in text
    assert "numbers of rows and patients of each site are treated as public" in text
    assert "Test and validation patients are not" in text
    assert "ends: stopped because the next round would have exceeded epsilon: cleveland (from round 3 on)" in text
    assert "Columns, their levels and ranges were taken from what is publicly known" in text
    assert "sites told each other" not in text
    assert any("no patient was protected by it" in line for line in limits(evidence))


def test_in_a_deployment_the_guarantee_is_said_to_hold(evidence: Evidence) -> None:
    deployed = changed(evidence, guarantee=True)
    text = " ".join(privacy(deployed))
    assert "Guaranteed: noise and draws of patients came from a secret" in text
    assert "No guarantee" not in text
    assert "not a guarantee" not in str(cost_sentences(deployed))
    assert not any("no patient was protected" in line for line in limits(deployed))
    assert not any("simulation" in line for line in spent_lines(deployed))


def test_one_private_arm_with_one_seed_adds_nothing_up(evidence: Evidence) -> None:
    total = {
        site: {**spending_entry, "epsilon": 8.0}
        for site, spending_entry in evidence.results["privacy"]["total"].items()
    }
    assert "adds up" in " ".join(privacy(evidence))
    assert "adds up" not in " ".join(privacy(changed(evidence, total=total)))


def test_rounds_that_failed_closed_are_told(evidence: Evidence) -> None:
    failed = [{"seed": 1, "round": 2, "why": "2 of 3 sites"}, {"seed": 2, "round": 1, "why": "1 of 3 sites"}]
    broken = changed(evidence, arms={"summed": {"failed_rounds": failed}})
    text = " ".join(privacy(broken))
    assert "summed: 2 rounds without a secure sum; the first is round 2 with seed 1: 2 of 3 sites." in text
    assert "summed: secure sum; 2 rounds without a sum" in spent_lines(broken)


def test_whole_sites_are_protected_from_others_and_not_from_the_coordinator(evidence: Evidence) -> None:
    block = {"epsilon": 4.0, "delta": 1e-6, "clip": 0.5}
    spent = {**evidence.results["privacy"]["arms"]["ends"]["sites"]["va"], "epsilon": 3.25}
    arm = {"example": None, "site": block, "sites": {EACH_SITE: spent}, "stopped": {}, "lengths": None}
    whole = changed(evidence, arms={"ends": arm})
    assert spent_epsilon(whole.results["privacy"]["arms"]["ends"]) == 3.25
    assert "Whole hospitals are protected in ends (epsilon 3.25): the update" in " ".join(privacy(whole))
    assert "ends: epsilon 3.25 spent (delta 1e-06, a whole site)" in " ".join(spent_lines(whole))
    assert spending.budget(whole) is not None
    assert {line.title: line.arms for line in epsilon_lines(whole)}["ends"] == ((3.25, "ends"),)


def test_the_terminal_has_a_line_for_each_arm_that_is_protected(
    evidence: Evidence, run: wardround.StudyRun, capsys: pytest.CaptureFixture[str]
) -> None:
    from wardround.cli.studies.render_run import show_run

    lines = spent_lines(evidence)
    assert [line.partition(":")[0] for line in lines] == [
        *("closed[epsilon=1.0]", "closed[epsilon=8.0]", "ends", "summed", "alone"),
    ]
    assert lines[0].endswith(
        "epsilon 1 spent (delta 1e-05, a patient, the site that spent most); no guarantee: simulation"
    )
    assert lines[2].endswith("cleveland stopped in round 3; hungarian stopped in round 3; va stopped in round 3")
    show_run(run, None)
    shown = capsys.readouterr().out
    assert all(line in shown for line in lines)


def test_the_design_and_the_references_name_what_protects(evidence: Evidence) -> None:
    description = design(evidence)["privacy"]
    asked = "differential privacy of patients: epsilon 2, delta 1e-05, clip 1"
    assert description == f"{asked}, unless an arm says otherwise"
    assert privacy_settings({"secure_sum": {}}) == "secure sum, unless an arm says otherwise"
    cited = " ".join(citations(evidence))
    assert all(number in cited for number in ("1607.00133", "2207.04380", "2017/281"))  # DP-SGD, accountant, sums
    assert "1905.03871" not in cited, "no arm has an adaptive clip"


def test_an_epsilon_is_rounded_up_because_it_is_a_promise() -> None:
    assert [epsilon_number(value) for value in (0.0521, 0.9991, 1.001, 8.0, 99.999, 1685.2)] == [
        *("0.053", "1.000", "1.01", "8.00", "100.00", "1,686"),
    ]


def test_studies_without_privacy(evidence: Evidence) -> None:
    evidence = replace(evidence, results={**evidence.results, "privacy": None})
    assert UNPROTECTED in privacy(evidence)
    assert spent_lines(evidence) == []
    assert "privacy.spending" not in sections_of(evidence)


def test_figures_of_an_attack_outlive_a_new_report(evidence: Evidence, tmp_path: Path) -> None:
    """They cannot be drawn again from the results."""
    for name in ("attack_kept.svg", "left-over.svg"):
        (tmp_path / name).write_text("<svg/>")
    draw_all({"epsilon-cost": spending.SECTION.figures["epsilon-cost"]}, evidence, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"attack_kept.svg", "epsilon-cost.svg", "epsilon-cost.png"}
