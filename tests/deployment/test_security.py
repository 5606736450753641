"""Who may take part and who may not, tried in earnest: real processes, TLS, addresses of their own."""

from pathlib import Path

import pytest

from tests.deployment import outsider_attacks as strangers
from tests.deployment.federation_processes import HEART, Hospitals, Process, heart_study, hospitals, wait_until
from tests.deployment.outsider_attacks import OtherAuthority, attempt_to_join, entries, events, site_key
from wardround.core.errors import DeployError
from wardround.deployment import revoke
from wardround.deployment.provisioning import certificates
from wardround.runs.audit import verify

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's matter
COORDINATOR = "127.0.0.2"
UNKNOWN_KEY = "the coordinator does not know this site's key yet, or it was revoked"
OTHER_AUTHORITY = "the coordinator's certificate is not of this study's authority, or not for this address"
ROUNDS = 6


@pytest.mark.slow
def test_strangers_leave_the_run_unharmed(tmp_path: Path) -> None:
    study = heart_study(("fedavg", "scaffold"), training={"rounds": ROUNDS})
    with hospitals(study, tmp_path, (COORDINATOR, "127.0.0.1"), others=("fifth",)) as here:
        revoke(here.kit, "fifth", "left the study")
        coordinator = here.coordinate()
        sites = {name: here.join(name) for name in HEART[:-1]}
        for site in sites.values():
            site.wait_for("takes part in")
        while_it_waits(here, coordinator, tmp_path)

        sites[HEART[-1]] = here.join(HEART[-1])
        sites[HEART[0]].wait_for("round 1: trained")
        strangers.nobody_calls_the_fleet_without_a_key(here)
        strangers.large_requests_are_refused(here)
        assert (
            attempt_to_join(f"{here.host}:{here.port}", here.kit / "ca.pem", certificates.new_key(), tmp_path)
            == UNKNOWN_KEY
        )

        assert coordinator.ended() == 0, coordinator.said
        assert here.parity().equal
        log = here.run_folder().path / "audit.jsonl"
        assert verify(log).broken is None
        assert "site left" not in events(log)
        for name, site in sites.items():
            assert site.running.poll() is None, site.said
            assert site.said.count(": trained") == ROUNDS
            assert verify(here.site(name).state / "audit.jsonl").broken is None


def while_it_waits(here: Hospitals, coordinator: Process, folder: Path) -> None:
    address, ca, other = f"{here.host}:{here.port}", here.kit / "ca.pem", OtherAuthority(folder)
    strangers.nobody_calls_the_fleet_without_a_key(here)
    for key in (certificates.new_key(), site_key(here, "fifth"), site_key(here, "hungarian")):
        strangers.nobody_calls_the_fleet_in_anothers_name(here, key)
    for key in (certificates.new_key(), site_key(here, "fifth")):
        assert attempt_to_join(address, ca, key, folder) == UNKNOWN_KEY
    assert attempt_to_join(address, other.ca, site_key(here, "va"), folder) == OTHER_AUTHORITY
    with other.coordinates() as (impostor, heard):
        assert attempt_to_join(impostor, ca, site_key(here, "va"), folder) == OTHER_AUTHORITY
    assert heard == []
    strangers.only_sites_calls_pass_the_outer_door(here)
    strangers.nobody_passes_the_inner_door_without_the_secret(coordinator)
    strangers.no_app_can_be_started_from_outside(here)
    strangers.large_requests_are_refused(here)
    strangers.forged_messages_are_refused(here, coordinator, "cleveland")


@pytest.mark.slow
def test_a_site_that_did_not_approve_and_sites_that_are_revoked(tmp_path: Path) -> None:
    """The run goes on while a quorum is left, and ends in plain words when it is not."""
    study = heart_study(("fedavg",), training={"rounds": 1000}, deployment={"quorum": 2})
    with hospitals(study, tmp_path, (COORDINATOR,), unapproved=("va",)) as here:
        coordinator, sites = here.coordinate(), here.join_all()
        refusal = f"refused: study {here.study.hash[:12]} is not approved at va"
        coordinator.wait_for(f"va: {refusal}")
        sites["va"].wait_for(refusal)
        assert "refused" in events(here.site("va").state / "audit.jsonl")

        sites["switzerland"].wait_for("round 2: trained")
        revoke(here.kit, "switzerland", "the contract ended")
        coordinator.wait_for("switzerland: its key was revoked")
        sites["switzerland"].wait_for(UNKNOWN_KEY)
        log = here.run_folder().path / "audit.jsonl"
        wait_until(lambda: rounds_with(log, {"cleveland", "hungarian"}) >= 2, "the run goes on with two")

        revoke(here.kit, "hungarian", "the contract ended")
        assert coordinator.ended() == DeployError.exit_code
        assert "1 of 4 sites are left and 2 are needed" in coordinator.said
        assert "Traceback" not in coordinator.said
        left = [entry["detail"] for entry in entries(log) if entry["event"] == "site left"]
        assert [(departure["site"], departure["why"][:7]) for departure in left] == [
            ("va", "refused"),
            ("switzerland", "its key"),
            ("hungarian", "its key"),
        ]
        assert verify(log).broken is None
        assert not here.run_folder().complete


def rounds_with(log: Path, sites: set[str]) -> int:
    return sum(entry["event"] == "round closed" and set(entry["detail"]["updates"]) == sites for entry in entries(log))
