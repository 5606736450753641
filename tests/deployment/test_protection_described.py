"""What a hospital is told of a study's protection before it agrees, and what its kit must hold for it."""

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_fixtures import SITES, kits, site_file, study
from tests.deployment.private_studies import KNOWN, begin, ledger, own, private
from wardround.core.errors import DeployError, StudyError
from wardround.core.health import Condition
from wardround.data.records import Column
from wardround.data.serialization import read_column, write_column
from wardround.deployment import SiteFile, in_plain_words, preflight, refuse_undeployable
from wardround.deployment.common.deployed_plan import own_plan
from wardround.deployment.common.schema_agreement import column_parts, common_columns
from wardround.deployment.join import peers_of
from wardround.runs.catalog import load_study
from wardround.runs.ledger import charges_of

EXAMPLE = {"epsilon": 2.0, "delta": 1e-5, "clip": 0.5}
NAMES = ["alder", "birch", "cedar", "dogwood"]


def words(**changes: Any) -> str:
    return "\n".join(in_plain_words(study(**changes), SITES))


def test_a_study_without_protection_says_so() -> None:
    text = words()
    assert "No differential privacy for patients" in text
    assert "No secure aggregation in fedavg: the coordinator sees each hospital's part by itself." in text
    assert "and the loss" in text


def test_epsilon_adds_up_over_arms_and_seeds() -> None:
    """Two arms with three seeds: 2 x 3 x 2.0 and 2 x 3 x 1e-5."""
    text = words(privacy={"example": EXAMPLE}, evaluation={"seeds": {"count": 3}})
    assert "arm fedavg: epsilon 2, delta 1e-05 with each seed" in text
    assert "limits each patient's part to 0.5" in text
    assert "2 arms with 3 seeds cost a patient of yours at most epsilon 12 at delta 6e-05" in text
    assert "may train in one and be tested in another" in text
    assert "with noise; the number of training rows and of steps." in text
    assert "No secure aggregation in fedavg" in text
    assert "No differential privacy" not in text


def test_masks_and_noise_for_whole_hospitals_are_told() -> None:
    text = words(privacy={"secure_sum": {}, "site": {**EXAMPLE, "epsilon": 8.0}}, data=PUBLIC_AT_SITES)
    assert "Secure aggregation in fedavg: what leaves is under masks" in text
    assert "Privacy of whole hospitals in arm fedavg: epsilon 8" in text
    assert "nothing is read off rows" in text
    assert "under masks; the number of training rows and of steps." in text


PUBLIC_AT_SITES = {"source": "at-sites", "public": True}


def test_a_kit_holds_the_public_key_of_every_hospital(tmp_path: Path) -> None:
    out = kits(tmp_path / "kits")
    site = SiteFile.load(out / "sites" / "north")
    peers = peers_of(site)
    assert list(peers) == sorted(SITES)
    for name in SITES:
        assert (site.peers / f"{name}.pub").read_bytes() == (out / "sites" / name / "site.pub").read_bytes()
    (site.peers / "south.pub").unlink()  # how a hospital shuts another out of its sums
    assert "south" not in peers_of(site)
    (site.peers / "east.pub").write_text("no key")
    with pytest.raises(DeployError, match="not a usable key"):
        peers_of(site)


def test_what_a_study_would_cost_is_what_it_costs(tmp_path: Path) -> None:
    content = private(
        ["fedavg", "local", {"name": "few", "algorithm": "fedavg", "train_at": ["birch", "cedar"]}],
        evaluation={"seeds": {"first": 3, "count": 2}},
    )
    parsed, families = load_study(content, sources=KNOWN)
    begin(tmp_path, content).run()
    for name in ("alder", "birch"):
        planned = own_plan(parsed, families, name, NAMES, own(name)).own_charges()
        spent = ledger(tmp_path, name)
        assert len(planned) == len({(entry.arm, entry.seed) for entry in spent}) == (4 if name == "alder" else 6)
        assert sum(charge.steps for charge in planned) == sum(charge.steps for charge in charges_of(spent))
        assert {(charge.rate, charge.noise) for charge in planned} == {
            (charge.rate, charge.noise) for charge in charges_of(spent)
        }


def test_a_look_before_joining_says_what_patients_would_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_file(tmp_path, policy="most_total_epsilon = 1.5")
    content = {
        "name": "heart",
        "data": {"source": "heart", "hospitals": ["va"], "public": True, "scale": "ranges", "missing": "range"},
        "sites": {"partition": "by-hospital"},
        "training": {"rounds": 2},
        "privacy": {"example": EXAMPLE, "secure_sum": {}},
        "arms": [{"algorithm": "fedavg"}],
    }
    asked = load_study(content)[0]
    monkeypatch.setattr("wardround.deployment.join.read_key", lambda path: None)
    monkeypatch.setattr("wardround.deployment.join.read_public_key", lambda content, path: None)
    monkeypatch.setattr("wardround.deployment.join.approvals_of", lambda site: {asked.hash: None})
    monkeypatch.setattr("wardround.deployment.join.approved_study", lambda site, study_hash, families: asked)
    monkeypatch.setattr(
        "wardround.deployment.join.connection_to", lambda address, ca: Condition("connection", True, "")
    )
    by_name = {condition.name: condition for condition in preflight(site)}
    assert by_name["privacy"].state.startswith(
        "epsilon 0 spent so far, 2 after this study, at delta 1e-05: more than 1.5"
    )
    assert not by_name["privacy"].ok
    assert not by_name["privacy"].needed
    assert by_name["keys"].ok  # this site file names no hospitals


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"privacy": {"secure_sum": {}}, "training": {"rounds": 1, "share": 0.5}},
            "2 sites, and its secure sum takes 3",
        ),
        ({"privacy": {"secure_sum": {"threshold": 4}}}, "3 sites, and its secure sum takes 4"),
    ],
)
def test_a_secure_sum_that_can_never_be_is_refused_before_kits_are_made(changes: dict[str, Any], problem: str) -> None:
    parsed = study(**changes, sites={"partition": "by-hospital"})
    with pytest.raises(StudyError, match=problem):
        refuse_undeployable(parsed, SITES)


def test_declared_levels_travel_and_must_agree() -> None:
    column = Column("ward", "categorical", levels=("medical", "surgical"))
    assert read_column(write_column(column)) == column
    plain = column_parts([Column("ward", "categorical")])
    other = column_parts([Column("ward", "categorical", levels=("burns",))])
    columns = {"north": plain, "south": column_parts([column]), "east": other}
    assert common_columns({"north": plain, "south": column_parts([column])})[0] == [column]
    with pytest.raises(DeployError, match="other declared levels"):
        common_columns(columns)


def test_what_leaves_of_a_number_is_said() -> None:
    data = {"source": "at-sites", "task": "regression"}
    plain = words(data=data)
    assert "the sum of the number that is predicted and the sum of its squares" in plain
    assert "unless its public range is declared" in plain
    assert "sums over its test rows" in plain
    assert "whether it is above its middle" in plain
    assert "its public range must be declared" in words(data=data, privacy={"example": EXAMPLE})
    assert "numbers of rows by class, sex and age. What counts fewer" in words()
