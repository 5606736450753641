"""What a region's administrator has before anything runs: the check of its kit, and the files that start it."""

import configparser
import json
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from tests.deployment.federation_processes import free_port
from tests.deployment.hospital_files import NAMES, study
from tests.deployment.test_containers import GROWING, ROOT, refuse_unknown, unit
from wardround.cli.main import app
from wardround.core.errors import CheckError, DeployError
from wardround.core.health import Condition
from wardround.deployment import CoordinatorKit, RegionFile, coordinate_region, preflight_region, provision, revoke
from wardround.deployment.join import alone
from wardround.deployment.provisioning.certificates import certificate_pem, new_authority, new_key, private_pem
from wardround.deployment.provisioning.kit_files import write_private
from wardround.deployment.provisioning.provision import COMPOSE, UNIT, unit_text
from wardround.runs.catalog import load_study

REGIONS = {"north": ["alder", "cedar"], "south": ["birch", "dogwood"]}


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
    document = study(["fedavg"], topology=topology, training={"rounds": 2})
    parsed, _ = load_study({**document, "data": {"source": "at-sites"}})
    ports = {name: f"127.0.0.1:{free_port('127.0.0.1')}" for name in REGIONS}
    out = tmp_path_factory.mktemp("kits") / "kits"
    return provision(parsed, NAMES, out, ["127.0.0.1"], free_port("127.0.0.1"), regions=ports)


@pytest.fixture
def north(kits: Path, tmp_path: Path) -> Path:
    shutil.copytree(kits / "regions" / "north", tmp_path / "north")
    return tmp_path / "north"


def found(folder: Path, listen: str = "127.0.0.1") -> dict[str, Condition]:
    return {condition.name: condition for condition in preflight_region(RegionFile.load(folder), listen)}


def wrong(folder: Path) -> dict[str, str]:
    """Without the connection: nobody is at the other end."""
    return {
        name: condition.state for name, condition in found(folder).items() if not condition.ok and name != "connection"
    }


@pytest.fixture
def top(kits: Path) -> Iterator[None]:
    """Something that shows the certificate of the coordinator of all, and says nothing."""
    kit = CoordinatorKit.load(kits)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit.certificate, kit.key)
    with socket.create_server(("127.0.0.1", kit.port)) as listening:

        def answer() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                    with context.wrap_socket(plain, server_side=True) as secured:
                        secured.recv(1)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        serving = threading.Thread(target=answer, daemon=True)
        serving.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
    serving.join(10)


def test_a_whole_kit_is_in_order(north: Path, top: None) -> None:
    conditions = found(north)
    assert [condition.state for condition in conditions.values() if not condition.ok] == []
    assert conditions["study"].state.startswith("wards (")
    assert conditions["study"].state.endswith("north with alder, cedar")
    assert "answers, TLSv1.3" in conditions["connection"].state
    assert conditions["certificate"].state.endswith("for 127.0.0.1")
    shown = CliRunner().invoke(app, ["region", str(north), "--check", "--json"])
    assert shown.exit_code == 0, shown.output
    told_json = json.loads(shown.stdout)
    assert (told_json["region"], told_json["ok"]) == ("north", True)
    assert not (north / "state").exists()  # nothing was made


def test_nobody_at_the_other_end_is_said_in_one_line(north: Path) -> None:
    assert wrong(north) == {}
    shown = CliRunner().invoke(app, ["region", str(north), "--check"])
    assert shown.exit_code == CheckError.exit_code
    assert "cannot be reached (Connection refused)" in " ".join(shown.output.split())


def test_what_is_wrong_with_a_kit_is_named(north: Path, kits: Path) -> None:
    region = RegionFile.load(north)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", region.kit.port))
        listener.listen()
        assert wrong(north) == {"port": f"127.0.0.1:{region.kit.port} cannot be used (Address already in use)"}
        with alone(north / "state"):  # it is the region itself that has the port
            assert wrong(north) == {}
    (north / "region.pub").write_bytes((kits / "regions" / "south" / "region.pub").read_bytes())
    assert "does not belong to region.pub" in wrong(north)["keys"]
    (north / "coordinator.pub").write_text("no key")
    assert "is not a usable key" in wrong(north)["keys"]
    (north / "ca.pem").write_text("no certificate")
    assert "is not a certificate in PEM" in wrong(north)["certificate of the top"]
    assert "not tried" in found(north)["connection"].state


def test_certificates_that_hospitals_would_refuse_are_named(north: Path) -> None:
    kit = RegionFile.load(north).kit
    kit.key.unlink()
    write_private(kit.key, private_pem(new_key()))
    assert "coordinator.key does not belong to" in wrong(north)["certificate"]
    _, other = new_authority("another", 30)
    kit.ca.write_bytes(certificate_pem(other))
    assert "is not of this kit's authority" in wrong(north)["certificate"]


def test_certificates_that_end_soon_are_a_note(north: Path) -> None:
    _, soon = new_authority("wards", 5)
    (north / "ca.pem").write_bytes(certificate_pem(soon))
    condition = found(north)["certificate of the top"]
    assert (condition.ok, condition.needed) == (False, False)
    assert "4 days are left" in condition.state


def test_a_study_that_is_not_the_kits_is_named(north: Path) -> None:
    path = north / "coordinator" / "study.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 4", 1))
    assert "and the kit was made for" in wrong(north)["study"]


def test_a_region_all_of_whose_hospitals_are_revoked_is_a_clear_error(north: Path) -> None:
    revoke(north / "coordinator", "alder", "left")
    assert wrong(north) == {}
    assert found(north)["hospitals"].state == "cedar; revoked: alder"
    revoke(north / "coordinator", "cedar", "left too")
    assert wrong(north)["hospitals"] == "all are revoked: alder, cedar"
    with pytest.raises(DeployError, match="all hospitals of north are revoked"):
        coordinate_region(RegionFile.load(north), lambda line: None)


# -- files that start it


def service(text: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser["Service"]


def test_the_unit_of_a_kit_starts_it_and_closes_what_the_coordinators_closes(north: Path) -> None:
    network = service((north / UNIT).read_text())
    program, *words = shlex.split(network["ExecStart"])
    assert program == "/opt/wardround/.venv/bin/wardround"
    assert words[0] == "region"
    refuse_unknown(words)
    assert network["Restart"] == "always"
    assert "/etc/wardround/region" in network["ReadWritePaths"].split()
    known = unit(ROOT / "services" / "wardround-coordinator.service")["Service"]
    alike = [name for name in known if name.startswith(("Protect", "Private", "Restrict", "SystemCall"))]
    assert len(alike) > 10
    for name in (*alike, "NoNewPrivileges", "CapabilityBoundingSet", "UMask", "User", "KillSignal"):
        assert network[name] == known[name], name
    assert str(RegionFile.load(north).kit.port) in (north / UNIT).read_text()
    assert service(unit_text("s", "north", 443))["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"


def test_systemd_understands_the_unit_of_a_kit(north: Path, tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd is not installed")
    version = subprocess.run([analyse, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    text = (north / UNIT).read_text().replace("/opt/wardround/.venv/bin/wardround", sys.executable)
    if int(version) < 254:
        text = "".join(line for line in text.splitlines(True) if not line.startswith(GROWING))
    copy = tmp_path / UNIT
    copy.write_text(text, encoding="utf-8")
    ran = subprocess.run([analyse, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in ran.stderr.splitlines() if UNIT in line] == []


def test_the_container_of_a_kit_opens_its_port_and_nothing_else(north: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((north / COMPOSE).read_text())
    (container,) = compose["services"].values()
    refuse_unknown(container["command"])
    port = RegionFile.load(north).kit.port
    assert container["ports"] == [f"{port}:{port}"]
    assert container["volumes"] == [".:/kit"]
    assert (container["read_only"], container["cap_drop"], container["restart"]) == (True, ["ALL"], "unless-stopped")
    # what is said of the check in its first lines exists too
    (line,) = [line for line in (north / COMPOSE).read_text().splitlines() if "--check" in line]
    refuse_unknown(shlex.split(line)[shlex.split(line).index("region") + 1 :])
