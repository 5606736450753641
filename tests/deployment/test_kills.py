"""kill -9 at random moments: whatever dies is started again, and the run ends with the very same models.

WARDROUND_KILLS says how many; each has a run of its own.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.deployment.federation_processes import HEART, Hospitals, Process, heart_study, hospitals
from wardround.runs.audit import verify

KILLS = int(os.environ.get("WARDROUND_KILLS", "6"))
VICTIMS = ("site", "coordinator", "superlink")
ROUNDS = 6
# a round takes some tenths of a second, so that most kills hit sites while they train
STUDY = heart_study(("fedprox", "scaffold"), training={"rounds": ROUNDS, "local_epochs": 20, "batch_size": 8})


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_random_kills(victim: str, tmp_path: Path) -> None:
    """The hospitals stay joined from run to run, as they would in earnest."""
    numbers = [number for number in range(KILLS) if VICTIMS[number % len(VICTIMS)] == victim]
    with hospitals(STUDY, tmp_path) as here:
        sites = here.join_all()
        undisturbed = here.coordinate("undisturbed")
        assert undisturbed.ended() == 0, undisturbed.said
        expected = here.parity("undisturbed")
        assert expected.equal
        for number in numbers:
            out = f"run-{number}"
            when = kill_once(here, sites, victim, out, number)
            comparison = here.parity(out)
            assert comparison.equal, when
            assert comparison.deployed == expected.deployed, when
            assert verify(here.run_folder(out).path / "audit.jsonl").broken is None, when
            for name, site in sites.items():
                assert site.running.poll() is None, f"{when}: {site.said}"
                assert verify(here.site(name).state / "audit.jsonl").broken is None, when


def kill_once(here: Hospitals, sites: dict[str, Process], victim: str, out: str, number: int) -> str:
    """A whole run with one kill in it. When that was, in words."""
    rng = np.random.default_rng((20261116, number))
    name, after, more = str(rng.choice(HEART)), int(rng.integers(ROUNDS - 1)), float(rng.uniform(0, 0.5))
    when = f"kill {number}: {victim} ({name}), {more:.2f} s after round {after}"
    moment = f"round {after}: trained" if after else "takes part in"
    times = sites[name].said.count(moment) + 1  # it has said so of runs before
    coordinator = here.coordinate(out)
    sites[name].wait_for(moment, times, coordinator)
    time.sleep(more)
    assert not here.run_folder(out).complete, f"{when}: the run was over"
    if victim == "site":
        sites[name].kill()
        sites[name] = here.join(name)
    elif victim == "coordinator":
        coordinator.kill()
        coordinator = here.coordinate(out)
    else:
        os.kill(coordinator.superlink(), signal.SIGKILL)
    assert coordinator.ended() == 0, f"{when}: {coordinator.said}"
    if victim == "superlink":
        assert "the SuperLink is gone; starting it again" in coordinator.said
    return when
