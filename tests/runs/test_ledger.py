"""The ledger: what is charged is on disk, once, and cannot be unsaid."""

import fcntl
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from wardround.core.errors import DeployError, RunError, StudyError
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.runs.audit import AuditLog, verify
from wardround.runs.ledger import EACH, TOGETHER, Entry, Ledger, charges_of, spent_by

FIRST = Entry(
    run="run-1",
    study="5" * 64,
    study_name="heart-private",
    arm="fedprox[mu=0.1]",
    seed=0,
    site="north",
    round=1,
    rate=0.25,
    noise=3.1,
    steps=4,
    delta=1e-5,
    patients="rows-a",
    question="q1",
    guarantee=True,
)


def rounds(count: int, **changes: Any) -> list[Entry]:
    return [replace(FIRST, round=number, **changes) for number in range(1, count + 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_what_is_charged_can_be_read_again_and_its_chain_is_in_order(path: Path) -> None:
    ledger = Ledger(path)
    assert ledger.entries() == []
    assert all(ledger.charge(entry) for entry in rounds(3))
    assert Ledger(path).entries() == ledger.entries() == rounds(3)
    assert verify(path, ledger.head).broken is None
    assert ledger.head == Ledger(path).head == json.loads(path.read_bytes().splitlines()[-1])["hash"]


def test_a_repeated_request_is_charged_once_by_this_and_by_another_process(path: Path) -> None:
    assert Ledger(path).charge(FIRST)
    before = path.read_bytes()
    assert not Ledger(path).charge(FIRST)
    assert path.read_bytes() == before
    again = Ledger(path)
    assert again.charge_all([FIRST, *rounds(2), *rounds(2)]) == rounds(2)[1:]
    assert [len(json.loads(line)["detail"]["entries"]) for line in path.read_bytes().splitlines()] == [1, 1]
    assert again.entries() == rounds(2)


def test_a_charge_is_on_disk_before_it_is_confirmed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    Ledger(path).charge(FIRST)
    assert synced == [path.name, path.parent.name]  # the line, and the name of the new file
    Ledger(path).charge(FIRST)  # whoever wrote it may have died before it was synced
    assert synced[2:] == [path.name]
    Ledger(path).charge(replace(FIRST, round=2))
    assert synced[3:] == [path.name]


def test_the_same_round_with_another_model_is_refused(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge(FIRST)
    before = path.read_bytes()
    with pytest.raises(DeployError, match="asks again for a round that was answered, with another model") as refused:
        Ledger(path).charge(replace(FIRST, question="q2"))
    assert refused.value.where == "north, run run-1, arm fedprox[mu=0.1], seed 0, round 1"
    with pytest.raises(DeployError, match="another model"):
        ledger.charge_all([replace(FIRST, round=2), replace(FIRST, round=2, question="q2")])
    assert path.read_bytes() == before  # all or none


@pytest.mark.parametrize(
    "change",
    [{"noise": 3.2}, {"rate": 0.2}, {"steps": 3}, {"delta": 1e-6}, {"patients": "rows-b"}, {"guarantee": False}],
)
def test_the_same_round_at_another_price_is_refused(path: Path, change: dict[str, Any]) -> None:
    Ledger(path).charge(FIRST)
    with pytest.raises(DeployError, match=f"was charged, with another {next(iter(change))}"):
        Ledger(path).charge(replace(FIRST, **change))
    assert Ledger(path).entries() == [FIRST]


@pytest.mark.parametrize("change", [{"run": "2"}, {"arm": "fedavg"}, {"seed": 1}, {"site": "south"}, {"round": 2}])
def test_another_place_is_another_charge(path: Path, change: dict[str, Any]) -> None:
    ledger = Ledger(path)
    assert ledger.charge(FIRST)
    assert ledger.charge(replace(FIRST, question="q2", **change))
    assert len(ledger.entries()) == 2


def test_killed_at_any_byte_of_a_line_the_round_is_charged_when_it_is_asked_for_again(path: Path) -> None:
    Ledger(path).charge(FIRST)
    first_content = path.read_bytes()
    second = replace(FIRST, round=2)
    Ledger(path).charge(second)
    whole = path.read_bytes()
    for length in range(len(first_content), len(whole), 7):
        path.write_bytes(whole[:length])
        assert Ledger(path).entries() == [FIRST]  # what was never confirmed does not count
        ledger = Ledger(path)
        assert ledger.charge(second)
        assert not ledger.charge(second)
        assert Ledger(path).entries() == ledger.entries() == [FIRST, second]
        assert verify(path).broken is None
    path.write_bytes(whole)
    assert not Ledger(path).charge(second)  # written whole, then killed: it was charged


def test_a_ledger_that_was_changed_cut_or_forged_is_refused(path: Path) -> None:
    running = Ledger(path)
    running.charge_all(rounds(2))
    running.charge(replace(FIRST, round=3))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    changed: list[tuple[bytes, str]] = [
        (whole.replace(b'"noise":3.1', b'"noise":9.1'), "line 1 was changed"),
        (whole.replace(b'"steps":4', b'"steps":1'), "line 1 was changed"),
        (lines[1], "line 1 has number 1 where 0 is due"),
        (whole + lines[0], "line 3 has number 0 where 2 is due"),
        (b"hello\n", "line 1 is not JSON"),
    ]
    for content, problem in changed:
        path.write_bytes(content)
        for act in (Ledger(path).entries, lambda: Ledger(path).charge(replace(FIRST, round=9))):
            with pytest.raises(RunError, match=problem):
                act()
        assert path.read_bytes() == content  # nothing is written onto it
    path.write_bytes(lines[0])
    with pytest.raises(RunError, match="shorter than it was"):
        running.charge(replace(FIRST, round=9))
    assert "cut off" in (
        verify(path, json.loads(lines[1])["hash"]).broken or ""
    )  # and later, against a head kept apart


def test_a_line_of_another_version_is_refused(path: Path) -> None:
    AuditLog(path).add("charged", entries=[{"site": "north", "epsilon": 1.0}])
    with pytest.raises(RunError, match="other fields than an entry"):
        Ledger(path).entries()


def test_a_round_that_stands_there_twice_at_different_prices_is_refused(path: Path) -> None:
    for entry in (FIRST, FIRST, replace(FIRST, noise=9.0)):
        AuditLog(path).add("charged", entries=[asdict(entry)])
    with pytest.raises(RunError, match="line 3 charges a round anew"):
        Ledger(path).entries()


def test_other_events_of_an_audit_log_are_no_charges(path: Path) -> None:
    AuditLog(path).add("budget raised", by="somebody")
    assert Ledger(path).charge(FIRST)
    assert Ledger(path).entries() == [FIRST]


def test_between_looking_and_charging_nobody_else_writes(path: Path) -> None:
    outcomes: list[bool] = []
    with path.with_name(f"{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process does that is about to charge the same round
        waiting = Thread(target=lambda: outcomes.append(Ledger(path).charge(FIRST)))
        waiting.start()
        waiting.join(0.3)
        AuditLog(path).add("charged", entries=[asdict(FIRST)])
    waiting.join(60)
    assert outcomes == [False]


def test_processes_that_charge_at_the_same_time_charge_each_round_once(path: Path) -> None:
    code = f"""
from dataclasses import replace
from pathlib import Path
from tests.runs.test_ledger import FIRST
from wardround.runs.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
print(sum(ledger.charge(replace(FIRST, round=number)) for number in range(30)))
"""
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root) for _ in range(3)
    ]
    assert sum(int(writer.communicate(timeout=120)[0]) for writer in writers) == 30
    assert sorted(entry.round for entry in Ledger(path).entries()) == list(range(30))
    assert verify(path).broken is None


def test_many_entries_are_written_in_few_lines(path: Path) -> None:
    entries = rounds(2 * TOGETHER + 1)
    assert Ledger(path).charge_all(entries) == entries
    assert len(path.read_bytes().splitlines()) == 3
    assert max(map(len, path.read_bytes().splitlines())) < 32 * 1024  # so that the log finds its last line
    assert Ledger(path).entries() == entries
    assert Ledger(path).charge_all([]) == []


def test_where_nothing_can_be_written_nothing_is_confirmed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: AuditLog, event: str, **detail: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(AuditLog, "add", full)
        with pytest.raises(RunError, match=r"No space left on device.*must not leave"):
            Ledger(path).charge(FIRST)
    assert Ledger(path).charge(FIRST)
    with pytest.raises(RunError, match="cannot be read"):
        Ledger(path.parent).entries()


def test_everything_that_touched_a_sites_patients_composes() -> None:
    other_study = {"study": "6" * 64, "study_name": "cxr-private", "run": "run-2", "delta": 1e-6}
    entries = [
        *rounds(8),
        *rounds(8, arm="fedavg"),
        *rounds(8, seed=1),
        *rounds(4, noise=1.5, rate=0.1, guarantee=False, **other_study),
        *rounds(3, site="south"),
    ]
    north, south = spent_by(entries)
    both = [Charge(0.25, 3.1, 3 * 32), Charge(0.1, 1.5, 16)]
    assert (north.site, north.arm, north.seed, north.study) == ("north", None, None, None)
    assert (north.rounds, north.steps, north.delta) == (28, 112, 1e-6)  # the smallest delta of all entries
    assert (north.add_remove, north.replace) == (epsilon(both, 1e-6), epsilon(both, 1e-6, "replace"))
    assert (south.rounds, south.steps, south.add_remove) == (3, 12, epsilon([Charge(0.25, 3.1, 12)], 1e-6))
    assert (north.guarantee, south.guarantee) == (False, True)
    assert spent_by(entries, delta=1e-4)[0].add_remove == epsilon(both, 1e-4) < north.add_remove


def test_each_arm_and_seed_of_a_study_has_a_row_of_its_own() -> None:
    entries = [*rounds(8), *rounds(8, arm="fedavg"), *rounds(4, seed=1), *rounds(2, study="6" * 64, run="run-2")]
    rows = {(row.study, row.arm, row.seed): row for row in spent_by(entries, EACH)}
    assert {place: row.rounds for place, row in rows.items()} == {
        ("5" * 64, "fedprox[mu=0.1]", 0): 8,
        ("5" * 64, "fedavg", 0): 8,
        ("5" * 64, "fedprox[mu=0.1]", 1): 4,
        ("6" * 64, "fedprox[mu=0.1]", 0): 2,
    }
    fedprox_row = rows["5" * 64, "fedprox[mu=0.1]", 0]
    assert fedprox_row.study_name == "heart-private"
    assert fedprox_row.add_remove == epsilon([Charge(0.25, 3.1, 32)], 1e-5) == pytest.approx(1.999, abs=0.001)


def test_patients_are_kept_apart_only_on_request() -> None:
    entries = [*rounds(8), *rounds(8, run="run-2", patients="rows-b")]
    together = spent_by(entries)
    apart = spent_by(entries, ["patients"])
    assert [row.rounds for row in together] == [16]
    assert [(row.patients, row.rounds) for row in apart] == [("rows-a", 8), ("rows-b", 8)]
    assert apart[0].add_remove < together[0].add_remove


def test_a_ledger_tells_what_one_site_spent(path: Path) -> None:
    ledger = Ledger(path)
    ledger.charge_all([*rounds(3), *rounds(2, site="south")])
    assert [row.site for row in ledger.spent()] == ["north", "south"]
    assert [(row.site, row.rounds) for row in ledger.spent("south", EACH)] == [("south", 2)]
    assert ledger.spent("west") == spent_by([]) == []


@pytest.mark.slow
def test_sixty_thousand_entries_are_few_charges() -> None:
    entries = [
        replace(FIRST, round=number, seed=seed, site=site, noise=2.0 + arm, arm=f"arm-{arm}")
        for number in range(30)
        for seed in range(50)
        for site in ("a", "b", "c", "d")
        for arm in range(10)
    ]
    charges = charges_of(entry for entry in entries if entry.site == "a")
    assert sorted(charges) == [Charge(0.25, 2.0 + arm, 30 * 50 * 4) for arm in range(10)]
    rows = spent_by(entries)
    assert [row.rounds for row in rows] == [15_000] * 4
    assert {row.add_remove for row in rows} == {epsilon(charges, 1e-5)}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda: replace(FIRST, rate=0.0), "sampling rate is 0.0"),
        (lambda: replace(FIRST, noise=math.nan), "noise multiplier is nan"),
        (lambda: replace(FIRST, steps=-4), "number of steps is -4"),
        (lambda: replace(FIRST, delta=0.0), "delta is 0.0"),
    ],
)
def test_what_cannot_be_accounted_for_is_no_entry(wrong: Callable[[], Entry], problem: str) -> None:
    with pytest.raises(StudyError, match=problem):
        wrong()
