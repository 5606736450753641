"""What a private study plans, spends and writes down: from the study file to the ledger, results.json and the verbs."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wardround
from wardround.cli.main import app
from wardround.core.errors import RunError, StudyError, WardroundError
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.runs.catalog import load_study
from wardround.runs.ledger import Ledger
from wardround.runs.plan import load_plan
from wardround.runs.spending import EACH_SITE, planned_spending, planned_total

EXAMPLE = {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
STUDY: dict[str, Any] = {
    "name": "small",
    "data": {"source": "heart", "missing": "range", "scale": "ranges", "public": True},
    "training": {"rounds": 3, "batch_size": 64, "lr": 0.5},
    "privacy": {"example": EXAMPLE},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "open", "every": 0},
    "arms": [
        {"name": "open", "algorithm": "fedavg", "privacy.example": "off"},
        {"name": "private", "algorithm": "fedprox", "privacy.example.epsilon": [1, 4]},
        {"name": "pooled", "algorithm": "pooled"},
    ],
}
ROWS = {
    "cleveland": 242,
    "hungarian": 234,
    "switzerland": 98,
    "va": 159,
}  # training rows; one copy at va is one patient


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STUDY), **changes}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("runs"))


def test_a_plan_names_rate_steps_and_noise_of_every_site() -> None:
    plan = load_plan(*load_study(STUDY))
    planned = {(spending.arm, spending.site): spending for spending in planned_spending(plan)}
    assert {arm for arm, _ in planned} == {"private[epsilon=1.0]", "private[epsilon=4.0]", "pooled"}
    for site, rows in ROWS.items():
        spending = planned["private[epsilon=4.0]", site]
        assert abs(spending.rows - rows) <= 1
        assert spending.rate == pytest.approx(64 / spending.rows)
        assert spending.steps == 3 * -(-spending.rows // 64)
        assert 0.97 * 4 < spending.epsilon <= 4
        assert spending.epsilon == pytest.approx(epsilon([Charge(spending.rate, spending.noise, spending.steps)], 1e-5))
        assert spending.epsilon < spending.epsilon_rdp < 1.2 * spending.epsilon
        assert 1.5 * spending.epsilon < spending.epsilon_replace < 2.3 * spending.epsilon
        assert planned["private[epsilon=1.0]", site].noise > 2 * spending.noise


def test_the_plan_composes_all_arms_and_seeds() -> None:
    plan = load_plan(*load_study(STUDY))
    planned = planned_spending(plan)
    total = planned_total(plan, planned)["va"]
    own = [
        Charge(spending.rate, spending.noise, 2 * spending.steps)
        for spending in planned
        if spending.site in ("va", "pooled")
    ]
    assert (total["arms"], total["seeds"]) == (3, 2)
    assert total["epsilon"] == pytest.approx(epsilon(own, 1e-5))
    assert total["epsilon"] > 4


def test_epsilon_in_the_results_is_the_ledgers(run: wardround.StudyRun) -> None:
    entries = Ledger(run.folder / "ledger.jsonl").entries()
    # two private arms at four sites and one that pools all four, three rounds, two seeds
    assert len(entries) == 3 * 4 * 3 * 2
    assert not any(entry.guarantee for entry in entries)
    privacy = run.results["privacy"]
    assert privacy["guarantee"] is False
    for arm, site in (("private[epsilon=4.0]", "va"), ("private[epsilon=1.0]", "cleveland")):
        own = [e for e in entries if (e.arm, e.site, e.seed) == (arm, site, 1)]
        spent = epsilon([Charge(e.rate, e.noise, e.steps) for e in own], 1e-5)
        shown = privacy["arms"][arm]["sites"][site]
        assert shown["epsilon"] == pytest.approx(spent)
        assert shown["epsilon"] <= privacy["arms"][arm]["example"]["epsilon"]
        rounds, values = zip(*shown["curve"], strict=True)
        assert rounds == (1, 2, 3)
        assert list(values) == sorted(values)
        assert values[-1] == pytest.approx(spent, rel=0.01)
    everything = [Charge(e.rate, e.noise, e.steps) for e in entries if e.site == "va"]
    assert privacy["total"]["va"]["epsilon"] == pytest.approx(epsilon(everything, 1e-5), rel=0.005)
    assert "open" not in privacy["arms"]


def test_pooling_is_charged_to_the_patients_of_every_site(run: wardround.StudyRun) -> None:
    entries = [e for e in Ledger(run.folder / "ledger.jsonl").entries() if e.arm == "pooled"]
    assert {entry.site for entry in entries} == set(ROWS)


def test_no_loss_of_a_private_arm_is_written_down(run: wardround.StudyRun) -> None:
    records = list(wardround.read_records(run.folder))
    assert all(record.loss is None for record in records if record.arm != "open")
    assert all(record.loss is not None for record in records if record.arm == "open")


def test_lengths_of_gradients_are_counted_before_clipping(run: wardround.StudyRun) -> None:
    lengths = run.results["privacy"]["arms"]["private[epsilon=4.0]"]["lengths"]
    first_lengths = lengths["sites"]["va"]["first"]
    assert sum(first_lengths["counts"]) == first_lengths["patients"] == 159
    above = sum(count for count, edge in zip(first_lengths["counts"], lengths["bins"], strict=False) if edge >= 0.999)
    assert first_lengths["clipped"] == pytest.approx(above / first_lengths["patients"], abs=0.02)
    assert first_lengths["median"] == pytest.approx(np.median(lengths_of_first_model()), rel=1e-4)


def lengths_of_first_model() -> np.ndarray:
    """By hand: with zero weights every error is a half, so that a length is |(x, 1)| / 2."""
    plan = load_plan(*load_study(STUDY))
    rows = plan.trial(plan.study.arm("private[epsilon=4.0]"), 1).sites[3].train
    x, y, people = rows.x.double().numpy(), rows.y.numpy() - 0.5, rows.people.numpy()
    each = -y[:, None] * np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return np.array([np.linalg.norm(each[people == patient].mean(0)) for patient in np.unique(people)])


def test_a_site_stops_before_its_epsilon_is_exceeded(tmp_path: Path) -> None:
    """With noise that is given the small hospital, whose patients are drawn more often, runs out first."""
    study = changed(arms=[{"name": "open", "algorithm": "fedavg", "privacy.example.noise": 2.0}])
    study["training"] = {"rounds": 12, "batch_size": 64, "lr": 0.5}
    study["evaluation"]["seeds"]["count"] = 1
    done = wardround.run_study(study, tmp_path)
    arm_privacy = done.results["privacy"]["arms"]["open"]
    assert set(arm_privacy["stopped"]) == set(ROWS)
    assert arm_privacy["stopped"]["switzerland"] == min(arm_privacy["stopped"].values())
    for site, spent in arm_privacy["sites"].items():
        assert spent["epsilon"] <= 4
        one_more = Charge(spent["rate"], 2.0, spent["steps"] // spent["rounds"] * (spent["rounds"] + 1))
        assert epsilon([one_more], 1e-5) > 4
        assert arm_privacy["stopped"][site] == spent["rounds"] + 1


def test_whole_sites_have_a_line_of_their_own(tmp_path: Path) -> None:
    study = changed(privacy={"site": {"epsilon": 8.0, "delta": 1e-3, "clip": 0.5}}, arms=[{"algorithm": "fedavg"}])
    study["evaluation"] = {"seeds": {"first": 1, "count": 1}, "every": 0}
    done = wardround.run_study(study, tmp_path)
    privacy = done.results["privacy"]
    shown = privacy["arms"]["fedavg"]["sites"][EACH_SITE]
    assert (shown["rate"], shown["steps"]) == (1.0, 3)
    assert 0.97 * 8 < shown["epsilon"] <= 8
    assert privacy["total"] == {}  # which is of patients


def test_a_study_without_protection_says_nothing_of_privacy(tmp_path: Path) -> None:
    study = changed(arms=[{"algorithm": "fedavg"}])
    del study["privacy"]
    study["evaluation"] = {"seeds": {"first": 1, "count": 1}, "every": 0}
    done = wardround.run_study(study, tmp_path)
    assert done.results["privacy"] is None
    assert not (done.folder / "ledger.jsonl").exists()


def test_spent_composes_ledgers_and_counts_a_round_once(run: wardround.StudyRun) -> None:
    once = CliRunner().invoke(app, ["privacy", "spent", str(run.folder), "--json"])
    twice = CliRunner().invoke(app, ["privacy", "spent", str(run.folder), str(run.folder.parent), "--json"])
    first, second = json.loads(once.stdout), json.loads(twice.stdout)
    assert first["total"] == second["total"]
    assert first["entries"] == 72
    by_site = {row["site"]: row["add_remove"] for row in first["total"]}
    assert by_site["va"] == pytest.approx(run.results["privacy"]["total"]["va"]["epsilon"])
    shown = CliRunner().invoke(app, ["privacy", "spent", str(run.folder)])
    assert "private[epsilon=4.0]" in shown.stdout
    assert "no guarantee" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["nowhere"], "no such file"), (["."], "has no ledger"), (["RUN", "--by", "arms"], "arm")],
)
def test_spent_says_what_it_was_not_given(
    arguments: list[str], word: str, run: wardround.StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(run.folder) if argument == "RUN" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["privacy", "spent", *given])
    assert isinstance(result.exception, WardroundError)
    assert word in str(result.exception)


@pytest.mark.parametrize("harm", ["deleted", "cut"])
def test_a_ledger_that_lost_charges_is_not_taken_for_good_news(
    harm: str, run: wardround.StudyRun, tmp_path: Path
) -> None:
    copied = tmp_path / run.folder.name
    shutil.copytree(run.folder, copied)
    ledger = copied / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.unlink() if harm == "deleted" else ledger.write_bytes(b"".join(lines[:-1]))
    for verb in (["privacy", "spent"], ["report"], ["attack", "--quick"]):
        result = CliRunner().invoke(app, [*verb, str(copied)])
        assert isinstance(result.exception, RunError), verb
        assert "ledger.jsonl" in str(result.exception)
    CliRunner().invoke(app, ["privacy", "spent", str(run.folder)])  # the untouched one is as it was


def test_plan_prints_every_arm_with_its_swept_value(tmp_path: Path) -> None:
    import tomli_w

    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(STUDY))
    shown = CliRunner().invoke(app, ["privacy", "plan", str(path)])
    assert "private[" in shown.stdout
    assert "by RDP" in shown.stdout
    plan = json.loads(CliRunner().invoke(app, ["privacy", "plan", str(path), "--json"]).stdout)
    assert {arm["arm"] for arm in plan["arms"]} == {"private[epsilon=1.0]", "private[epsilon=4.0]", "pooled"}
    assert set(plan["total"]["va"]) == {"epsilon", "epsilon_replace", "delta", "arms", "seeds"}


def test_declared_levels_and_ranges_are_all_that_is_read() -> None:
    """Every column has its public levels, whatever this seed's training rows have."""
    plan = load_plan(*load_study(STUDY))
    trial = plan.trial(plan.study.arm("open"), 1)
    # 9 numeric columns, 4 + 3 + 3 + 3 levels, and an indicator for each of the 13 columns
    assert trial.sites[0].train.x.shape[1] == 9 + 13 + 13
    never_measured = plan.cohort_of(plan.study.arms[0]).table.missing[:, 4]  # cholesterol, at Switzerland
    place = [c.name for c in plan.cohort_of(plan.study.arms[0]).table.columns if c.kind == "numeric"].index("chol")
    assert never_measured.sum() > 100
    assert torch.equal(trial.sites[2].train.x[:, place], torch.full((98,), 0.5))


def test_levels_must_be_declared(tmp_path: Path) -> None:
    for name in ("north", "south", "west"):
        lines = [f"{10 + i},{'ab'[i % 2]},{i % 3 % 2}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,kind,ill", *lines]))
    data: dict[str, Any] = {
        "source": "csv",
        "files": {name: str(tmp_path / f"{name}.csv") for name in ("north", "south", "west")},
        "target": "ill",
        "missing": "drop",
        "scale": "ranges",
        "public": True,
        "ranges": {"age": [0, 100]},
    }
    study = changed(data=data, evaluation={"accept": ["leak", "shared-rows"], "seeds": {"first": 1}})
    study["arms"] = [{"algorithm": "fedavg"}]
    with pytest.raises(WardroundError, match="levels of kind"):
        load_plan(*load_study(study)).check_all()
    study["data"]["levels"] = {"kind": ["a", "b", "c"]}
    plan = load_plan(*load_study(study))
    assert plan.trial(plan.study.arms[0], 1).sites[0].train.x.shape[1] == 1 + 3
    study["data"]["levels"] = {"kind": []}
    with pytest.raises(StudyError, match="empty"):
        load_plan(*load_study(study))
    study["data"]["levels"] = {"age": ["1"]}
    with pytest.raises(StudyError, match="numbers"):
        load_plan(*load_study(study))
