"""A registry when processes die, and when several write at once."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundles.test_registry import in_order, registry
from tests.bundles.untrained_bundles import write_bundle
from wardround.bundles import Registry, load_bundle
from wardround.bundles.sealed_files import ABOUT

__all__ = ["registry"]  # the fixture

KILLED = """
import os, signal, sys
from wardround.bundles.registry import registry
registry.{function} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
registry.Registry(sys.argv[1]).add(sys.argv[2], "heart")
"""
ADDING = """
import sys
from wardround.bundles import Registry
for bundle in sys.argv[2:]:
    Registry(sys.argv[1]).add(bundle, "heart")
"""


def run(code: str, *arguments: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)])


def test_a_kill_between_copying_and_logging_leaves_no_bundle_that_counts(registry: Registry, tmp_path: Path) -> None:
    new = write_bundle(tmp_path / "new", weights=5)
    before = registry.log.read_bytes()
    # the last moment before its line: the bundle stands in its place already
    process = run(KILLED.format(function="AuditLog"), registry.path, new)
    assert process.wait(timeout=120) == -signal.SIGKILL
    assert (registry.path / "heart" / "3" / ABOUT).is_file()
    assert registry.log.read_bytes() == before
    assert len(registry.entries()["heart"].versions) == 2
    verification = registry.verify()
    assert (verification.problems, verification.leftovers) == ((), ("heart/.adding-3", "heart/3"))
    added = registry.add(write_bundle(tmp_path / "other", weights=6), "lung")  # any add cleans up, under any name
    assert added.label == "lung@2"
    assert in_order(registry)
    assert not (registry.path / "heart" / "3").exists()
    assert registry.add(new, "heart").label == "heart@3"


@pytest.mark.slow
def test_two_processes_at_once_count_on_from_each_other(registry: Registry, tmp_path: Path) -> None:
    bundles = [write_bundle(tmp_path / f"new-{number}", weights=10 + number) for number in range(6)]
    processes = [run(ADDING, registry.path, *bundles[:3]), run(ADDING, registry.path, *bundles[3:])]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    versions = registry.entries()["heart"].versions
    assert [version.version for version in versions] == list(range(1, 9))
    assert {version.id for version in versions[2:]} == {load_bundle(bundle).id for bundle in bundles}
    assert in_order(registry)
