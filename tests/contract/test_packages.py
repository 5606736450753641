"""Members that do not ship with wardround: an algorithm of an installed package, a partition of a Python caller."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import wardround
from tests.contract import test_algorithms as contract
from tests.small_federations import after, trial
from wardround.algorithms import ALGORITHMS
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.data.partition import Partitioner
from wardround.data.records import Records
from wardround.report import build_report
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder

PACKAGE = Path(__file__).parent / "installed_package"
ON_ONE_ALGORITHM = [
    contract.test_no_function_writes_into_what_it_is_given,
    contract.test_a_run_that_is_saved_and_loaded_carries_on_to_the_same_bits,
    contract.test_state_is_plain_data,
    contract.test_what_travels_has_the_shapes_of_the_parameters,
    contract.test_the_record_counts_the_bytes_that_travel,
    contract.test_facts_are_declared_consistently,
    contract.test_settings_that_the_server_holds_are_recorded,
    contract.test_its_module_is_short_and_says_where_it_comes_from,
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PACKAGE)


def study(**arm: Any) -> dict[str, Any]:
    return {
        "name": "packages",
        "data": {"source": "synthetic", "count": 4, "features": 5, "classes": 2, "largest": 60},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic"},
        "training": {"rounds": 4, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "precision": "float64"},
        "arms": [{"algorithm": "feddyn", **arm}, {"algorithm": "fedavg"}],
        "evaluation": {"seeds": {"count": 2}},
    }


def as_toml(path: Path) -> Path:
    lines = [
        'name = "packages"',
        '[data]\nsource = "synthetic"\ncount = 4\nfeatures = 5\nclasses = 2\nlargest = 60',
        '[sites]\npartition = "by-hospital"',
        "[training]\nrounds = 2",
        '[[arms]]\nalgorithm = "feddyn"\nalpha = [0.05, 0.5]',
        "[evaluation.seeds]\ncount = 1",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_wardround_itself_knows_nothing_of_it() -> None:
    assert "feddyn" not in ALGORITHMS
    with pytest.raises(StudyError, match="'feddyn' is not known"):
        load_study(study())


@pytest.mark.usefixtures("installed")
def test_an_installed_algorithm_gives_the_same_on_both_engines(tmp_path: Path) -> None:
    tables, weights = [], []
    for engine in ("serial", "stacked"):
        run = wardround.run_study(study(alpha=[0.05, 0.5]), tmp_path / engine, engine=engine)
        folder = RunFolder(run.folder)
        tables.append(folder.predictions())
        weights.append(folder.load_model("feddyn[alpha=0.5]", run.results["seeds"][0]))
        assert {record.engine for record in wardround.read_records(run.folder)} == {engine}
    assert set(tables[0]["arm"]) == {"feddyn[alpha=0.05]", "feddyn[alpha=0.5]", "fedavg"}
    pd.testing.assert_frame_equal(tables[0], tables[1], rtol=0, atol=1e-10)
    assert weights[0].keys() == weights[1].keys()
    assert any(name.startswith("server/h/") for name in weights[0])
    for name, leaf in weights[0].items():
        torch.testing.assert_close(leaf, weights[1][name], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_the_report_cites_it(tmp_path: Path) -> None:
    run = wardround.run_study(study(), tmp_path)
    assert run.results["citations"][0].startswith("Acar et al. Federated learning based on dynamic regularization.")
    page = build_report(run.folder)
    assert "arXiv:2111.04263" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["check"], ["run", "--out", "runs"]])
def test_the_command_line_finds_it_in_a_process_of_its_own(tmp_path: Path, command: list[str]) -> None:
    file = as_toml(tmp_path / "study.toml")
    start = f"import sys; sys.path.insert(0, {str(PACKAGE)!r}); from wardround.cli.main import main; main()"
    arguments = [sys.executable, "-c", start, command[0], str(file), *command[1:], "--json"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "feddyn[alpha=0.05]" in done.stdout


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("check", ON_ONE_ALGORITHM, ids=lambda check: check.__name__)
def test_it_keeps_the_contract(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "feddyn", import_module("dynamic_regularisation").feddyn)
    check("feddyn")


@pytest.mark.usefixtures("installed")
def test_its_state_at_the_coordinator_is_the_mean_of_the_sites() -> None:
    """Also where only some of the sites take part in a round."""
    arm = trial(import_module("dynamic_regularisation").feddyn(alpha=0.2), share=0.5)
    run = after(arm, 6)
    mean = tree.zeros_like(run.server["h"])
    for memory in run.memories.values():
        mean = tree.add(mean, tree.scale(memory.algorithm["gradient"], 1 / len(arm.sites)))
    for name, leaf in run.server["h"].items():
        torch.testing.assert_close(leaf, mean[name], rtol=0, atol=1e-12)


def halves(first: str = "left") -> Partitioner:
    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        order = rng.permutation(records.units.max() + 1)
        left = np.isin(records.units, order[: len(order) // 2])
        return {first: np.flatnonzero(left), "right": np.flatnonzero(~left)}

    return Partitioner(assign, citation="Nobody. Two halves. 2026")


def test_a_partition_can_be_a_python_object(tmp_path: Path) -> None:
    own = {**study(), "sites": {"partition": "halves", "first": "west"}, "arms": [{"algorithm": "fedavg"}]}
    run = wardround.run_study(own, tmp_path, partitions={"halves": halves})
    assert set(RunFolder(run.folder).predictions()["site"]) == {"west", "right"}
    assert "Nobody. Two halves. 2026" in run.results["citations"]
    with pytest.raises(StudyError, match="'halves' is not known"):
        load_study(own)
    with pytest.raises(StudyError, match="'iid' is a shipped name"):
        load_study(own, partitions={"iid": halves})
