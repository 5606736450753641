"""Containers and services without an engine: what they start exists, and nobody sees more than was promised."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from wardround.cli.main import app
from wardround.deployment import SiteFile
from wardround.deployment.demo import started

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HOSPITALS = sorted(name for name in SERVICES if name not in ("setup", "coordinator"))
UNITS = sorted((ROOT / "services").glob("*.service"))
GROWING = ("RestartSteps", "RestartMaxDelaySec")  # of systemd 254


def refuse_unknown(words: Sequence[str]) -> None:
    """A command line of ours, without the program: every verb and option must exist, and every argument fit."""
    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{rest[0]} is no verb"
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, rest)  # raises for what it does not know


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Where, what, and whether it may be written to."""
    parts = [volume.split(":") for volume in service["volumes"]]
    return {part[1]: (part[0], part[2:] != ["ro"]) for part in parts}


def test_no_network_joins_two_hospitals() -> None:
    assert len(HOSPITALS) == 3
    for network, settings in COMPOSE["networks"].items():
        members = [name for name, service in SERVICES.items() if network in service.get("networks", [])]
        assert len(members) == 2, network
        assert "coordinator" in members
        assert settings["internal"] is True
    assert all(len(SERVICES[name]["networks"]) == 1 for name in HOSPITALS)
    assert SERVICES["setup"]["network_mode"] == "none"
    assert not any("ports" in service for service in SERVICES.values())  # nothing is open to the outside


def test_each_sees_its_own_kit_and_cannot_change_it() -> None:
    kits = {name: mounts(SERVICES[name])["/kit"] for name in ("coordinator", *HOSPITALS)}
    assert len({volume for volume, _ in kits.values()}) == len(kits)
    assert not any(writable for _, writable in kits.values())
    states = [mounts(SERVICES[name])["/state"] for name in HOSPITALS]
    assert len(set(states)) == len(HOSPITALS)
    assert all(writable for _, writable in states)
    assert mounts(SERVICES["setup"])["/demo"] == (".", False)
    used = {volume for service in SERVICES.values() for volume, _ in mounts(service).values()} - {"."}
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", ["coordinator", *HOSPITALS])
def test_containers_are_closed_and_their_commands_exist(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "user" not in service  # the image's own, who is not root
    refuse_unknown(service["command"])
    if name == "coordinator":
        assert service["command"][-2:] == ["--listen", "0.0.0.0"]


def test_the_image_has_no_secret_and_no_root() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.M)
    assert {source for line in copied for source in line.split()} == {
        *("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src")
    }
    assert all((ROOT / source).exists() for line in copied for source in line.split())
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.M) == ["wardround"]
    assert not re.search(r"(?i)^(ENV|ARG).*(password|secret|token|key)", DOCKERFILE, re.M)
    ignored = (CONTAINERS / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"  # nothing is sent to the builder but what follows
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {
        source for line in copied for source in line.split()
    }


def test_the_image_installs_what_is_declared() -> None:
    install = next(line for line in re.split(r"(?<!\\)\n", DOCKERFILE) if "pip install" in line and line[0] != "#")
    assert "-c constraints.txt '.[deploy,privacy]'" in install
    assert "https://download.pytorch.org/whl/cpu" in DOCKERFILE
    entry = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)
    default = re.search(r"^CMD (.*)$", DOCKERFILE, re.M)
    assert entry is not None
    assert yaml.safe_load(entry[1]) == ["wardround"]
    assert default is not None
    assert yaml.safe_load(default[1]) == ["--help"]


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_commands_that_exist(path: Path) -> None:
    service = unit(path)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/wardround")
    refuse_unknown(words)
    expected = {"User": "wardround", "UMask": "0077", "NoNewPrivileges": "yes", "ProtectSystem": "strict"}
    assert {key: service[key] for key in expected} == expected
    assert service["PrivateTmp"] == "yes"
    assert "/var/lib/wardround" in service["ReadWritePaths"].split()
    assert service["Restart"] == ("always" if "site" in path.name else "on-failure")
    documentation = unit(path)["Unit"]["Documentation"].removeprefix("file:///opt/wardround/")
    assert (ROOT / documentation).is_file()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_the_units(path: Path, tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd is not installed")
    version = subprocess.run([analyse, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    text = path.read_text(encoding="utf-8").replace("/opt/wardround/.venv/bin/wardround", sys.executable)
    if int(version) < 254:
        text = "".join(line for line in text.splitlines(True) if not line.startswith(GROWING))
    copy = tmp_path / path.name
    copy.write_text(text, encoding="utf-8")
    verification = subprocess.run(
        [analyse, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verification.stderr.splitlines() if path.name in line]
    assert not complaints


def test_an_engine_understands_the_compose_file() -> None:
    docker = shutil.which("docker")
    asked = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    command = [docker, "compose", "--file", str(CONTAINERS / "compose.yaml"), "config", "--quiet"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def made_kits(folder: Path) -> Path:
    """What the service `setup` does, on this machine."""
    from wardround.deployment.flower.superlink import free_port

    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder)}
    command = ["sh", str(CONTAINERS / "setup.sh"), str(folder / "kits"), "127.0.0.1", str(free_port())]
    subprocess.run([*command, f"{folder}/state-%s"], env=environment, check=True, capture_output=True, timeout=120)
    return folder / "kits"


def here(words: Sequence[str], name: str, folder: Path) -> Iterator[str]:
    """A container's command with its mounts' places on this machine."""
    for word in words:
        yield re.sub(r"^/kit\b", str(folder / "kits" / name), word).replace("/runs", str(folder / "runs"))


@pytest.mark.slow
def test_the_containers_commands_run_the_demonstration(tmp_path: Path) -> None:
    kits = made_kits(tmp_path)
    assert sorted(path.name for path in kits.iterdir()) == sorted(["coordinator", *HOSPITALS])
    for name in HOSPITALS:
        assert SiteFile.load(kits / name).state == tmp_path / f"state-{name}"
    order = ["coordinator", *HOSPITALS]
    commands = [list(here(SERVICES[name]["command"], name, tmp_path)) for name in order]
    commands[0][-1] = "127.0.0.1"  # in place of 0.0.0.0: a test opens nothing to the outside
    with started(commands, tmp_path) as processes:
        assert processes[0].wait(240) == 0, (tmp_path / "coordinate.log").read_text()
    assert len(list((tmp_path / "runs").glob("three-hospitals-*-deployed/report.html"))) == 1
    assert all(list((tmp_path / f"state-{name}").glob("*/predictions/*.parquet")) for name in HOSPITALS)
