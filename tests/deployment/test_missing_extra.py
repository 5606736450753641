"""A deployment with differential privacy where only the extra `deploy` is installed: refused at once."""

import sys
from pathlib import Path

import pytest

from tests.deployment.in_process_federation import own_records
from wardround.core.errors import MachineError
from wardround.data.sources import SOURCES
from wardround.deployment import CoordinatorKit, coordinate_study, demo, provision, run_demo
from wardround.deployment.common.deployed_plan import own_plan
from wardround.deployment.demo import PRIVATE
from wardround.runs.catalog import load_study

SITES = ("cleveland", "hungarian", "switzerland", "va")
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's matter


@pytest.fixture(autouse=True)
def _without_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)


def too_late(*given: object, **named: object) -> None:
    raise AssertionError("it went on without the extra")


def test_the_coordinator_refuses_before_it_waits_for_hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wardround.deployment.flower.superlink import SuperLink

    monkeypatch.setattr(SuperLink, "carry", too_late)
    study, families = load_study(PRIVATE)
    kit = CoordinatorKit.load(provision(study, SITES, tmp_path / "kits"))
    with pytest.raises(MachineError, match=r"dp_accounting is not installed\n.*wardround\[privacy\]"):
        coordinate_study(study, families, kit, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_hospital_refuses_before_it_tells_anything() -> None:
    study, families = load_study(PRIVATE)
    records = own_records(SOURCES["heart"](hospitals=("cleveland",)), "cleveland")
    with pytest.raises(MachineError, match=r"dp_accounting is not installed\n.*wardround\[privacy\]"):
        own_plan(study, families, "cleveland", SITES, records)


def test_the_private_demo_makes_no_kits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "provision", too_late)
    with pytest.raises(MachineError, match=r"dp_accounting is not installed\n.*wardround\[privacy\]"):
        run_demo(tmp_path / "demo", lambda line: None, private=True)
    assert not (tmp_path / "demo").exists()
