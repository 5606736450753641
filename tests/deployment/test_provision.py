"""Kits: certificates that verify and only where they should, keys that nobody else can read, all of it or nothing."""

import contextlib
import os
import ssl
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tests.deployment.federation_fixtures import SITES, kits, study
from wardround.core.errors import DeployError, MachineError, StudyError
from wardround.deployment import CoordinatorKit, SiteFile, provision, refuse_undeployable, revoke
from wardround.deployment.provisioning import certificates
from wardround.runs.audit import verify
from wardround.runs.catalog import load_study

HOSTS = ("coordinator.example.org", "10.0.0.5", "::1")


@pytest.fixture(scope="module")
def kits_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = os.umask(0)  # the most careless setting: permissions must not come from it
    try:
        return provision(study(), SITES, tmp_path_factory.mktemp("kits") / "new" / "trial", HOSTS, 9443, 90)
    finally:
        os.umask(before)


def checked(kit: Path, host: str, at: datetime | None = None) -> list[x509.Certificate]:
    """As a site's TLS would: the chain from the coordinator's certificate to the authority in the kit."""
    authority = x509.load_pem_x509_certificate((kit / "ca.pem").read_bytes())
    leaf = x509.load_pem_x509_certificate((kit.parents[1] / "coordinator" / "coordinator.pem").read_bytes())
    try:
        subject: x509.DNSName | x509.IPAddress = x509.IPAddress(ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    builder = PolicyBuilder().store(Store([authority])).time(at or datetime.now(UTC))
    return builder.build_server_verifier(subject).verify(leaf, [])


@pytest.mark.parametrize("host", HOSTS)
def test_a_site_accepts_the_coordinator_under_every_given_name(kits_dir: Path, host: str) -> None:
    assert len(checked(kits_dir / "sites" / "north", host)) == 2


@pytest.mark.parametrize("host", ["localhost", "example.org", "10.0.0.6", "x.coordinator.example.org"])
def test_and_under_no_other(kits_dir: Path, host: str) -> None:
    with pytest.raises(VerificationError):
        checked(kits_dir / "sites" / "north", host)


@pytest.mark.parametrize(
    ("host", "trusted"), [("coordinator.example.org", True), ("10.0.0.5", True), ("10.0.0.6", False)]
)
def test_openssl_agrees_in_a_handshake(kits_dir: Path, host: str, trusted: bool) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(kits_dir / "coordinator" / "coordinator.pem", kits_dir / "coordinator" / "coordinator.key")
    asking = ssl.create_default_context(cafile=str(kits_dir / "sites" / "east" / "ca.pem"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server, server_hostname=host)

    def shake_hands() -> None:
        for _ in range(4):
            for end in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()

    if trusted:
        shake_hands()
        assert client.version() == "TLSv1.3"
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands()


def test_certificates_hold_for_the_days_asked_for(kits_dir: Path) -> None:
    now = datetime.now(UTC)
    assert checked(kits_dir / "sites" / "south", HOSTS[0], now + timedelta(days=89))
    with pytest.raises(VerificationError):
        checked(kits_dir / "sites" / "south", HOSTS[0], now + timedelta(days=91))


def test_another_studys_authority_is_not_trusted(kits_dir: Path, tmp_path: Path) -> None:
    other = provision(study(), SITES, tmp_path / "other", HOSTS)
    (other / "coordinator" / "coordinator.pem").write_bytes((kits_dir / "coordinator" / "coordinator.pem").read_bytes())
    with pytest.raises(VerificationError):
        checked(other / "sites" / "north", HOSTS[0])


def test_the_authority_signs_leaves_only_and_says_so_critically(kits_dir: Path) -> None:
    authority = x509.load_pem_x509_certificate((kits_dir / "coordinator" / "ca.pem").read_bytes())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


def test_private_keys_and_folders_are_their_owners_even_with_an_open_umask(kits_dir: Path) -> None:
    keys = list(kits_dir.rglob("*.key"))
    assert len(keys) == 3 + len(SITES)
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        assert loaded.curve.name == "secp384r1"
        assert key.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    for folder in (kits_dir, *(path for path in kits_dir.rglob("*") if path.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_private_key_is_in_one_kit_only(kits_dir: Path) -> None:
    secrets = {key: key.read_bytes() for key in kits_dir.rglob("*.key")}
    assert len(set(secrets.values())) == len(secrets)
    everything = {path: path.read_bytes() for path in kits_dir.rglob("*") if path.is_file()}
    for key, secret in secrets.items():
        assert [path for path, content in everything.items() if secret.strip() in content] == [key]


def test_public_halves_are_where_they_are_needed(kits_dir: Path) -> None:
    def public(path: Path) -> bytes:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return certificates.public_pem(key)

    kit = CoordinatorKit.load(kits_dir)
    assert tuple(kit.sites) == SITES
    for name, key in kit.public_keys.items():
        folder = kits_dir / "sites" / name
        assert key == public(folder / "site.key") == (folder / "site.pub").read_bytes()
        assert (folder / "coordinator.pub").read_bytes() == public(kit.signing_key)
        assert (folder / "ca.pem").read_bytes() == kit.ca.read_bytes()


def test_two_sets_of_kits_share_no_key(tmp_path: Path) -> None:
    first, second = kits(tmp_path / "a"), kits(tmp_path / "b")
    mine, others = ({path.read_bytes() for path in kits.rglob("*.key")} for kits in (first, second))
    assert not mine & others


def test_every_kit_has_the_study_and_its_hash(kits_dir: Path) -> None:
    expected = study().hash
    for kit in (kits_dir / "coordinator", *(kits_dir / "sites" / name for name in SITES)):
        assert load_study(kit / "study.toml")[0].hash == expected
        assert expected in (kit / "study.toml").read_text()
    assert CoordinatorKit.load(kits_dir / "coordinator" / "coordinator.toml").hash == expected


def test_the_template_of_a_site_loads(kits_dir: Path) -> None:
    site = SiteFile.load(kits_dir / "sites" / "south")
    assert (site.name, site.coordinator, site.sites) == ("south", "coordinator.example.org:9443", SITES)
    assert study().hash in site.path.read_text()


def test_an_ipv6_address_is_told_in_brackets(tmp_path: Path) -> None:
    kits_dir = provision(study(), SITES, tmp_path / "kits", ["fd00::5"])
    assert SiteFile.load(kits_dir / "sites" / "east").coordinator == "[fd00::5]:9090"


def test_a_kit_does_not_tell_the_folders_of_the_machine_that_made_it(tmp_path: Path) -> None:
    home = tmp_path / "home-of-anna"
    home.mkdir()
    data = {"source": "csv", "files": {"north": str(home / "n.csv"), "south": str(home / "s.csv")}, "target": "died"}
    kits_dir = provision(study(data=data), ["north", "south"], tmp_path / "kits")
    for path in (kits_dir / "sites").rglob("*"):
        assert not path.is_file() or b"home-of-anna" not in path.read_bytes()
    assert SiteFile.load(kits_dir / "sites" / "north").data["target"] == "died"


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "kits").mkdir()
    with pytest.raises(DeployError, match="exists already"):
        kits(tmp_path / "kits")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DeployError, match="exists already"):
        kits(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kits", "link"]
    assert not list((tmp_path / "kits").iterdir())


@pytest.mark.parametrize("failing", ["new_authority", "new_certificate", "public_pem"])
def test_nothing_is_left_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(certificates, failing, fail)
    with pytest.raises(KeyboardInterrupt):
        kits(tmp_path / "kits")
    assert not list(tmp_path.iterdir())


def test_without_cryptography_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MachineError, match=r"wardround\[deploy\]"):
        kits(tmp_path / "kits")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sites", "problem"),
    [
        ([], "no site"),
        (["north", "North"], "same name"),
        (["a", "a"], "same name"),
        (["pooled", "a"], "all rows at one place"),
        (["Pooled"], "all rows at one place"),
        (["../north"], "usable name"),
        (["a b"], "usable name"),
        ([".."], "usable name"),
        ([""], "usable name"),
    ],
)
def test_names_of_sites_are_checked(tmp_path: Path, sites: list[str], problem: str) -> None:
    with pytest.raises(DeployError, match=problem):
        provision(study(), sites, tmp_path / "kits")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "host", ["", "a b", "host:9090", "10.0.0.256", "http://x", "-a.org", "münchen.de", "fe80::1%eth0"]
)
def test_hosts_are_checked(tmp_path: Path, host: str) -> None:
    with pytest.raises(DeployError, match="neither a name nor an address"):
        provision(study(), SITES, tmp_path / "kits", [host])


@pytest.mark.parametrize(("port", "days"), [(0, 90), (65536, 90), (9090, 0), (9090, 100_000)])
def test_port_and_days_are_checked(tmp_path: Path, port: int, days: int) -> None:
    with pytest.raises(DeployError, match="out of range"):
        provision(study(), SITES, tmp_path / "kits", ["localhost"], port, days)


SWEPT: dict[str, Any] = {"arms": [{"algorithm": "fedprox", "mu": [0.1, 1.0]}]}


@pytest.mark.parametrize(
    ("changes", "where", "remedy"),
    [
        ({"arms": [{"algorithm": "fedavg"}, {"algorithm": "pooled"}]}, "arms: pooled", "Leave this arm out"),
        ({"sites": {"partition": "iid"}}, "partition", "by-hospital"),
        ({"arms": [{"algorithm": "fedavg", "train_at": ["west"]}]}, "train_at", "Did you mean 'east'"),
        ({**SWEPT, "selection": {"arms": ["fedprox"], "on": "site", "site": "west"}}, "selection: site", "east"),
        ({"deployment": {"quorum": 4}}, "deployment: quorum", "at most 3"),
        (
            {"data": {"source": "synthetic"}, "variants": [{"name": "other", "data.alpha": 0.5}]},
            "arms: fedavg@other: data",
            "variant 'other'",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused(tmp_path: Path, changes: dict[str, Any], where: str, remedy: str) -> None:
    with pytest.raises(StudyError) as refused:
        provision(study(**changes), SITES, tmp_path / "kits")
    assert where in refused.value.where
    assert remedy in refused.value.remedy
    assert not list(tmp_path.iterdir())


def test_what_can_be_deployed_is_not_refused() -> None:
    whole = study(
        arms=[{"algorithm": "fedprox", "mu": [0.1, 1.0], "train_at": ["north", "south"]}, {"algorithm": "local"}],
        variants=[{"name": "scaled", "data.scale": "none"}],
        selection={"arms": ["fedprox"], "on": "site", "site": "south"},
        deployment={"quorum": 3, "deadline": 60},
    )
    refuse_undeployable(whole, SITES)


def test_a_selection_must_leave_somebody_to_train() -> None:
    alone = study(
        arms=[{"algorithm": "fedprox", "mu": [0.1, 1.0], "train_at": ["south"]}],
        selection={"arms": ["fedprox"], "on": "site", "site": "south"},
    )
    with pytest.raises(StudyError, match="no site is left"):
        refuse_undeployable(alone, SITES)


def test_revoking_is_recorded_with_date_and_reason(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    revoke(kits_dir / "coordinator", "south", "key  lost\nin a train")
    kit = CoordinatorKit.load(kits_dir / "coordinator")
    assert kit.revoked == {"south": f"{datetime.now():%Y-%m-%d} key lost in a train"}
    assert kit.active == ("north", "east")
    log = kits_dir / "coordinator" / "audit.jsonl"
    assert verify(log).broken is None
    assert "site revoked" in log.read_text().splitlines()[-1]


def test_revoking_what_is_not_there_or_is_revoked_says_so(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    with pytest.raises(DeployError, match="Did you mean 'south'"):
        revoke(kits_dir / "coordinator", "sout", "")
    revoke(kits_dir / "coordinator", "south", "")
    before = (kits_dir / "coordinator" / "coordinator.toml").read_bytes()
    with pytest.raises(DeployError, match="revoked already"):
        revoke(kits_dir / "coordinator", "south", "again")
    assert (kits_dir / "coordinator" / "coordinator.toml").read_bytes() == before
    with pytest.raises(DeployError, match="cannot be read"):
        revoke(tmp_path / "nowhere", "south", "")


def test_a_kit_that_could_not_serve_can_still_revoke(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    (kits_dir / "coordinator" / "coordinator.key").chmod(0o644)
    (kits_dir / "coordinator" / "ca.pem").unlink()
    revoke(kits_dir / "coordinator", "south", "left")


def test_revocations_at_once_all_last(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    threads = [threading.Thread(target=revoke, args=(kits_dir / "coordinator", name, "left")) for name in SITES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(CoordinatorKit.load(kits_dir).revoked) == set(SITES)


@pytest.mark.parametrize("key", ["ca.key", "coordinator.key", "signing.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_use_is_refused(tmp_path: Path, key: str, mode: int) -> None:
    kits_dir = kits(tmp_path / "kits")
    (kits_dir / "coordinator" / key).chmod(mode)
    with pytest.raises(DeployError, match="chmod 600"):
        CoordinatorKit.load(kits_dir)


@pytest.mark.parametrize(
    "file", ["study.toml", "ca.pem", "coordinator.pem", "coordinator.key", "signing.key", "sites/east.pub"]
)
def test_a_kit_must_be_whole(tmp_path: Path, file: str) -> None:
    kits_dir = kits(tmp_path / "kits")
    (kits_dir / "coordinator" / file).unlink()
    with pytest.raises(DeployError, match="no such file"):
        CoordinatorKit.load(kits_dir)


def test_the_authoritys_key_may_be_kept_elsewhere(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path / "kits")
    (kits_dir / "coordinator" / "ca.key").unlink()
    assert CoordinatorKit.load(kits_dir).days_left == 824


def test_an_expired_kit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "EARLIER", timedelta(days=5))
    kits_dir = provision(study(), SITES, tmp_path / "kits", days=2)
    with pytest.raises(DeployError, match="expired"):
        CoordinatorKit.load(kits_dir)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("port = 9090", "port = 0", "out of range"),
        ("port = 9090", "prt = 9090", "Did you mean 'port'"),
        ('"north"', '"../north"', "usable name"),
        ('"north"', '"SOUTH"', "has a duplicate"),
        ("[revoked]", '[revoked]\nnorht = "a slip"', "Did you mean 'north'"),
    ],
)
def test_a_damaged_coordinator_file_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = kits(tmp_path / "kits") / "coordinator" / "coordinator.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DeployError, match=problem):
        CoordinatorKit.load(path)
