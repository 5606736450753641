"""Privacy of a training and of those that it goes on from: composed by the accountant, and refused where it is none."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.runs.continual.chained_studies import OLD, after, plan_of, refusal, run, study
from wardround.bundles import make_bundle
from wardround.cli.main import app
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.runs.continual.description import Generation
from wardround.runs.continual.privacy import _composed, refuse_uncovered
from wardround.runs.execute import StudyRun
from wardround.runs.ledger import Ledger, charges_of

pytest.importorskip("dp_accounting")
ONE = {"evaluation": {"seeds": {"first": 1, "count": 1}}}


def private(value: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"privacy": {"example": {"epsilon": value, "delta": 1e-4, "clip": 1.0}, **more}, **ONE}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def chain(out: Path) -> list[StudyRun]:
    """Three trainings: cleveland is in all, and each has a hospital of its own."""
    first = run(study("a", **private(2.0)), out)
    second = run(after(first, "b", hospitals=("cleveland", "va"), **private()), out)
    return [first, second, run(after(second, "c", hospitals=("cleveland", "switzerland"), **private()), out)]


def charges(of: StudyRun, site: str) -> list[Charge]:
    return charges_of(entry for entry in Ledger(of.folder / "ledger.jsonl").entries() if entry.site == site)


def test_a_chain_composes_by_the_accountant(chain: list[StudyRun]) -> None:
    first, second, third = chain
    sites = third.results["start_from"]["fedavg"]["privacy"]["sites"]
    paid = [charge for training in chain for charge in charges(training, "cleveland")]
    row = sites["cleveland"]
    assert row["epsilon"] == epsilon(paid, 1e-4)
    assert row["epsilon_replace"] == epsilon(paid, 1e-4, "replace")
    assert row["before"] == epsilon([*charges(first, "cleveland"), *charges(second, "cleveland")], 1e-4)
    assert row["here"] == epsilon(charges(third, "cleveland"), 1e-4)
    assert max(row["before"], row["here"]) < row["epsilon"] < row["before"] + row["here"]  # tighter than adding up
    assert list(row["earlier_sites"].values()) == [["cleveland"], ["cleveland"]]


def test_patients_of_one_training_pay_for_that_one(chain: list[StudyRun]) -> None:
    first, second, third = chain
    sites = third.results["start_from"]["fedavg"]["privacy"]["sites"]
    assert sites["switzerland"]["epsilon"] == epsilon(charges(third, "switzerland"), 1e-4)
    assert sites["switzerland"]["before"] == 0
    assert sites["va"]["epsilon"] == sites["va"]["before"] == epsilon(charges(second, "va"), 1e-4)
    assert sites["hungarian"]["epsilon"] == epsilon(charges(first, "hungarian"), 1e-4)
    assert sites["hungarian"]["here"] == 0


def test_privacy_spent_says_it(chain: list[StudyRun]) -> None:
    done = CliRunner().invoke(app, ["privacy", "spent", str(chain[2].folder)])
    assert "cost patients of cleveland most: epsilon 2.5" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["privacy", "spent", "--json", str(chain[2].folder)])
    told = json.loads(done.output)["with_earlier_trainings"][chain[2].folder.name]["fedavg"]
    assert told == chain[2].results["start_from"]["fedavg"]["privacy"]


def test_an_epsilon_that_would_not_hold_is_refused(out: Path) -> None:
    open_run = run(study("open", **ONE), out)
    problem = refusal(lambda: run(after(open_run, hospitals=("cleveland", "va"), **private()), out))
    assert "cleveland may have patients on whom open-" in problem
    assert "was trained without differential privacy: the weights already know them" in problem
    assert not list(out.glob("later-*"))
    # of other hospitals the weights know nothing: the epsilon holds for the patients of this study
    content = run(after(open_run, hospitals=("switzerland", "va"), **private()), out).results["start_from"]["fedavg"]
    sites = content["privacy"]["sites"]
    assert sites["va"]["before"] == 0
    assert sites["va"]["epsilon"] == sites["va"]["here"] < 1.001
    assert sites["cleveland"]["epsilon"] == "infinite"  # as it was before


def test_check_refuses_it_too(out: Path, tmp_path: Path) -> None:
    import tomli_w

    open_run = run(study("open", **ONE), out)
    file = tmp_path / "study.toml"
    file.write_text(tomli_w.dumps(after(open_run, hospitals=("cleveland", "va"), **private())))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert "cleveland may have patients" in str(done.exception)


def test_one_open_training_in_a_chain_is_enough(out: Path) -> None:
    open_run = run(study("open", **ONE), out)
    between = run(after(open_run, "between", hospitals=("switzerland", "va"), **private()), out)
    assert "cleveland may have patients on whom open-" in refusal(
        lambda: run(after(between, "last", hospitals=("cleveland", "va"), **private()), out)
    )


def test_going_on_without_privacy_is_said(chain: list[StudyRun], out: Path) -> None:
    content = run(after(chain[0], "bare", hospitals=("cleveland", "va"), **ONE), out).results["start_from"]["fedavg"]
    sites = content["privacy"]["sites"]
    assert sites["cleveland"]["epsilon"] == sites["va"]["epsilon"] == "infinite"
    assert sites["hungarian"]["epsilon"] == pytest.approx(2.0, abs=0.01)


def test_sites_that_are_no_hospitals_are_told_apart_by_their_rows(out: Path) -> None:
    """Names of drawn sites say nothing: the rows do, where they are at hand."""
    drawn = {"sites": {"partition": "iid", "count": 2}}
    first = run(study("parts", ("cleveland",), **private(), **drawn), out)
    same = run(after(first, "same", hospitals=("cleveland",), **private(), **drawn), out)
    for row in same.results["start_from"]["fedavg"]["privacy"]["sites"].values():
        assert row["epsilon"] > max(row["before"], row["here"]) * 1.1
    document = after(first, "whole", hospitals=("cleveland", "va"), **private())
    document["evaluation"]["accept"] = ["start-leak"]  # another split of the same patients
    whole = run(document, out)
    sites = whole.results["start_from"]["fedavg"]["privacy"]["sites"]
    assert set().union(*sites["cleveland"]["earlier_sites"].values()) == set(first.results["arms"]["fedavg"]["sites"])
    assert sites["va"]["earlier_sites"] == {}


def test_a_bundle_carries_what_its_trainings_cost(chain: list[StudyRun], out: Path, tmp_path: Path) -> None:
    bundle = make_bundle(chain[1].folder, arm="fedavg", site="va", out=tmp_path / "bundle")
    document = {**study("from-bundle", hospitals=("cleveland", "switzerland"), **private())}
    document["model"] = {"kind": "logistic", "start_from": {"bundle": str(bundle)}}
    ours = run(document, out).results["start_from"]["fedavg"]["privacy"]["sites"]["cleveland"]
    theirs = chain[2].results["start_from"]["fedavg"]["privacy"]["sites"]["cleveland"]
    assert ours["epsilon"] == pytest.approx(theirs["epsilon"], rel=1e-6)


def test_a_bundle_that_does_not_say_whose_rows_it_knows_is_refused(out: Path, tmp_path: Path) -> None:
    from wardround.bundles.sealed_files import seal

    open_run = run(study("open", **ONE), out)
    bundle = make_bundle(open_run.folder, arm="fedavg", site="cleveland", out=tmp_path / "bundle")
    about = json.loads((bundle / "bundle.json").read_text())
    files = {name: (bundle / name).read_bytes() for name in about["files"]}
    del about["trained"]
    (bundle / "bundle.json").write_bytes(seal(about, files))
    document = {**study("later", hospitals=("switzerland", "va"), **private())}
    document["model"] = {"kind": "logistic", "start_from": {"bundle": str(bundle)}}
    plan = plan_of(document)
    assert "does not say whose rows it was trained on" in refusal(lambda: refuse_uncovered(plan))


def test_whole_hospitals_compose_too(out: Path) -> None:
    sites = {"privacy": {"site": {"epsilon": 4.0, "delta": 1e-4, "clip": 1.0}}, **ONE}
    first = run(study("sites", **sites), out)
    row = run(after(first, "sites-later", **sites), out).results["start_from"]["fedavg"]["privacy"]["sites"]
    (whole,) = row.values()
    assert whole["before"] == pytest.approx(whole["here"])
    assert whole["here"] < whole["epsilon"] < 2 * whole["here"]
    open_run = run(study("open", **ONE), out)
    assert "may have hospitals on whom" in refusal(lambda: run(after(open_run, hospitals=OLD, **sites), out))


def test_the_worst_of_the_places_where_a_patient_may_have_been_counts() -> None:
    small, large = (Charge(0.1, 2.0, 10),), (Charge(0.1, 1.0, 10),)
    row = _composed(small, [[small, large]], 1e-4)
    assert row["before"] == epsilon(large, 1e-4)
    assert row["epsilon"] == epsilon([*large, *small], 1e-4)
    assert _composed(small, [[small, None]], 1e-4)["epsilon"] == math.inf
    many = [[(Charge(0.1, 1.0 + n / 10, 1),) for n in range(9)]] * 2  # 81 ways: as if at all of them
    assert _composed((), many, 1e-4)["epsilon"] == epsilon([c for way in many for (c,) in way], 1e-4)


def test_a_generation_is_told_by_its_run_and_arm() -> None:
    assert Generation("a-1", "a", "h", "fedavg", 1, ("x",), True, "").title == "a-1, arm fedavg"
