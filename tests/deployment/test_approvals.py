"""Approvals: what was read is what runs; a change of study or log stops everything."""

import json
from pathlib import Path

import pytest

from tests.deployment.federation_fixtures import kits, site_file, study
from wardround.core.errors import DeployError
from wardround.deployment import Policy, SiteFile, approvals_of, approve, withdraw
from wardround.deployment.governance.approvals import approved_study
from wardround.deployment.governance.policy import refusal_of_study
from wardround.runs.audit import verify
from wardround.runs.catalog import families

KNOWN = families()


@pytest.fixture
def site(tmp_path: Path) -> SiteFile:
    return site_file(tmp_path / "north")


def test_an_approved_study_comes_back_as_it_was(site: SiteFile) -> None:
    asked = study()
    assert approved_study(site, asked.hash, KNOWN) is None
    approve(site, asked, "Dr. A.  Example")
    assert approved_study(site, asked.hash, KNOWN) == asked
    approval = approvals_of(site)[asked.hash]
    assert (approval.name, approval.study) == ("Dr. A. Example", "trial")
    assert refusal_of_study(Policy(), asked, "north", ("north", "south"), approvals_of(site)) is None


def test_another_study_is_not_approved_with_it(site: SiteFile) -> None:
    approve(site, study(), "Dr. A. Example")
    assert approved_study(site, study(training={"rounds": 11}).hash, KNOWN) is None


def test_a_kits_study_is_not_approved_by_itself(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    fresh = SiteFile.load(kits_dir / "sites" / "north")
    assert approvals_of(fresh) == {}
    assert approved_study(fresh, study().hash, KNOWN) is None


def test_a_withdrawn_study_is_not_approved_until_it_is_again(site: SiteFile) -> None:
    asked = study()
    approve(site, asked, "Dr. A. Example")
    withdraw(site, asked.hash, "Dr. B. Example")
    assert approved_study(site, asked.hash, KNOWN) is None
    with pytest.raises(DeployError, match="not approved"):
        withdraw(site, asked.hash, "Dr. B. Example")
    approve(site, asked, "Dr. B. Example")
    assert approved_study(site, asked.hash, KNOWN) == asked
    log = site.approved / "approvals.jsonl"
    assert verify(log).broken is None
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["event"] for entry in events] == ["study approved", "approval withdrawn", "study approved"]


@pytest.mark.parametrize(("old", "new"), [("rounds = 10", "rounds = 11"), ('device = "auto"', 'device = "cpu"')])
def test_a_study_changed_after_its_approval_is_refused(site: SiteFile, old: str, new: str) -> None:
    asked = study()
    approve(site, asked, "Dr. A. Example")
    path = site.approved / f"{asked.hash}.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DeployError, match="changed after its approval"):
        approved_study(site, asked.hash, KNOWN)


def test_a_study_put_in_by_hand_is_not_approved(site: SiteFile) -> None:
    first, second = study(), study(training={"rounds": 11})
    approve(site, first, "Dr. A. Example")
    (site.approved / f"{second.hash}.toml").write_bytes((site.approved / f"{first.hash}.toml").read_bytes())
    assert approved_study(site, second.hash, KNOWN) is None


def test_a_missing_study_is_refused(site: SiteFile) -> None:
    asked = study()
    approve(site, asked, "Dr. A. Example")
    (site.approved / f"{asked.hash}.toml").unlink()
    with pytest.raises(DeployError, match="is missing"):
        approved_study(site, asked.hash, KNOWN)


def test_a_changed_log_stops_everything(site: SiteFile) -> None:
    asked = study()
    approve(site, asked, "Dr. A. Example")
    log = site.approved / "approvals.jsonl"
    log.write_text(log.read_text().replace("Dr. A. Example", "Dr. C. Example"))
    with pytest.raises(DeployError, match="line 1: was changed"):
        approved_study(site, asked.hash, KNOWN)
    with pytest.raises(DeployError, match="log of approvals was changed"):
        approve(site, asked, "Dr. A. Example")


def test_a_withdrawal_cut_off_the_log_does_not_bring_the_approval_back(site: SiteFile) -> None:
    asked = study()
    approve(site, asked, "Dr. A. Example")
    withdraw(site, asked.hash, "Dr. A. Example")
    log = site.approved / "approvals.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    assert verify(log).broken is None
    with pytest.raises(DeployError, match="is missing"):
        approved_study(site, asked.hash, KNOWN)


@pytest.mark.parametrize("asked", ["", "../../site", "A" * 64, "f" * 63, "f" * 64 + "\n"])
def test_a_hash_that_is_none_leads_to_no_file(site: SiteFile, asked: str) -> None:
    assert approved_study(site, asked, KNOWN) is None


@pytest.mark.parametrize("name", ["", "  ", "\n", "a\x00b"])
def test_somebody_must_approve(site: SiteFile, name: str) -> None:
    with pytest.raises(DeployError, match="nobody is named"):
        approve(site, study(), name)
    assert not site.approved.exists()
