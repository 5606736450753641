"""A run that is held for people: where it stops, what they may decide, and that its numbers are those of other
policies."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.test_screening_parity import INVERTED, NAMES, study, wards
from wardround import StudyRun, decide, resume_study, run_study
from wardround.core.errors import HeldError, RunError, StudyError
from wardround.runs.audit import verify
from wardround.runs.folder import RunFolder

SOURCES: Any = {"sources": {"wards": wards}}


def document(policy: str, **training: Any) -> dict[str, Any]:
    two = study(policy, **training)
    two["evaluation"]["seeds"] = {"first": 3, "count": 2}
    return two


def run(policy: str, out: Path, workers: int = 1) -> StudyRun:
    return run_study(document(policy), out, workers=workers, **SOURCES)


def held(out: Path, workers: int = 1) -> tuple[RunFolder, HeldError]:
    with pytest.raises(HeldError) as caught:
        run("hold", out, workers)
    (folder,) = out.iterdir()
    return RunFolder(folder), caught.value


def same_models(first: Path, second: Path) -> None:
    for seed in (3, 4):
        one, two = (RunFolder(folder).load_model("fedavg", seed) for folder in (first, second))
        assert all(np.array_equal(leaf, two[name]) for name, leaf in one.items())


def named(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = results["screening"]["arms"]["fedavg"]["named"]
    return entries


@pytest.mark.parametrize(("decision", "policy"), [("keep", "notice"), ("drop", "drop")])
def test_a_decided_run_has_the_bits_of_the_other_policy(decision: str, policy: str, tmp_path: Path) -> None:
    folder, error = held(tmp_path / "held")
    assert f"{INVERTED}: its updates of fedavg differ" in error.problem
    assert "(round 3), with seed 3 and 1 more" in error.problem
    assert f"wardround decide {folder.path} --keep {INVERTED}" in error.remedy
    assert f"wardround resume {folder.path}" in error.remedy
    assert error.exit_code == 11
    verdict: Any = {decision: [INVERTED]}
    decide(folder.path, **verdict, name="Dr. A.  Example")
    finished = resume_study(folder.path, workers=1, **SOURCES)
    other = run(policy, tmp_path / "other")
    same_models(folder.path, other.folder)
    for name in ("loss", "sites", "dropped", "lengths", "named"):
        ours, theirs = (RunFolder(path).records()[name] for path in (folder.path, other.folder))
        assert [repr(entry) for entry in ours] == [repr(entry) for entry in theirs]
    assert folder.predictions().equals(RunFolder(other.folder).predictions())
    for entry, same in zip(named(finished.results), named(other.results), strict=True):
        told = {key: entry.pop(key) for key in ("decision", "decided_by", "decided_at")}
        assert (told["decision"], told["decided_by"]) == (decision, "Dr. A. Example")
        assert entry == same
    (notice,) = [notice for notice in finished.results["notices"] if notice["code"] == "update-differs"]
    assert f"Dr. A. Example decided to {decision} it" in notice["text"]
    assert verify(folder.path / "audit.jsonl").broken is None
    log = (folder.path / "audit.jsonl").read_text()
    assert [log.count(f'"{event}"') for event in ("run held", "site decided", "run finished")] == [1, 1, 1]


def test_it_stops_after_the_round_and_stays_held_until_all_is_decided(tmp_path: Path) -> None:
    folder, error = held(tmp_path)
    assert list(folder.records()["round"]) == [1, 2, 3] * 2
    assert not folder.complete
    with pytest.raises(HeldError) as again:  # as after a kill: what is known is on disk
        resume_study(folder.path, workers=1, **SOURCES)
    assert again.value.problem == error.problem
    assert list(folder.records()["round"]) == [1, 2, 3] * 2
    with pytest.raises(HeldError):
        run("hold", tmp_path)


def test_killed_between_the_reason_and_the_state_it_is_held_again(tmp_path: Path) -> None:
    folder, error = held(tmp_path)
    (folder.path / "state" / "units" / "00001.safetensors").unlink()
    with pytest.raises(HeldError) as again:
        resume_study(folder.path, workers=1, **SOURCES)
    assert again.value.problem == error.problem
    assert list(folder.records()["round"]) == [1, 2, 3] * 2


def test_processes_side_by_side_are_held_in_the_same_way(tmp_path: Path) -> None:
    folder, error = held(tmp_path / "two", workers=2)
    _, alone = held(tmp_path / "one")
    assert error.problem == alone.problem
    assert len(folder.records()) == 6


def test_only_a_site_that_is_held_is_decided_about(tmp_path: Path) -> None:
    folder, _ = held(tmp_path)
    wrong: Any
    for wrong, problem in [
        ({"keep": [NAMES[1]]}, "no site that is held is called 'ward-1'"),
        ({"keep": [INVERTED], "drop": [INVERTED]}, "both kept and dropped"),
        ({}, "nothing is decided; held: ward-0"),
    ]:
        with pytest.raises(RunError, match=problem):
            decide(folder.path, **wrong, name="A. Example")
    with pytest.raises(RunError, match="nobody is named"):
        decide(folder.path, keep=[INVERTED], name=" ")
    assert not (folder.path / "decisions.json").exists()
    decide(folder.path, keep=[INVERTED], name="A. Example")
    with pytest.raises(RunError, match="is not held"):
        decide(folder.path, drop=[INVERTED], name="A. Example")
    with pytest.raises(RunError, match="is not held"):
        decide(run("notice", tmp_path / "other").folder, keep=[INVERTED], name="A. Example")
    with pytest.raises(RunError, match="is not a run folder"):
        decide(tmp_path, keep=[INVERTED], name="A. Example")


def test_a_run_that_begins_again_has_no_decisions(tmp_path: Path) -> None:
    folder, _ = held(tmp_path)
    decide(folder.path, keep=[INVERTED], name="A. Example")
    with pytest.raises(HeldError):
        run_study(document("hold"), tmp_path, again=True, workers=1, **SOURCES)
    assert not (folder.path / "decisions.json").exists()


def test_a_site_named_in_the_last_round_holds_nothing(tmp_path: Path) -> None:
    finished = run_study(document("hold", rounds=3), tmp_path, workers=1, **SOURCES)
    assert [(entry["site"], entry["decision"], entry["left_out"]) for entry in named(finished.results)] == [
        (INVERTED, None, False)
    ] * 2


def test_no_run_is_held_where_updates_are_hidden_or_settings_are_tried(tmp_path: Path) -> None:
    hidden = document("hold") | {"privacy": {"secure_sum": {}}}
    with pytest.raises(StudyError, match="nobody sees the update of a single site"):
        run_study(hidden, tmp_path, **SOURCES)
    tuned = document("hold") | {"tuning": {"arms": ["fedavg"], "space": {"training.lr": [0.1, 0.2]}, "budget": 2}}
    with pytest.raises(StudyError, match="each trial of settings would be held"):
        run_study(tuned, tmp_path, **SOURCES)


def test_at_most_a_third_is_left_out(tmp_path: Path) -> None:
    folder, _ = held(tmp_path)
    path = folder.path / "state" / "held" / "00000.json"
    known = json.loads(path.read_text())
    known["held"][0]["most"] = 0
    path.write_text(json.dumps(known))
    with pytest.raises(RunError, match="1 hospitals would be left out, and at most a third may be: 0"):
        decide(folder.path, drop=[INVERTED], name="A. Example")
