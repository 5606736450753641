"""How a round ends: one function closes it and makes its record, whoever worked in it and wherever it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wardround.deployment.common.waves import TrialRecord
from wardround.privacy.dp.noise import Stream
from wardround.training.rounds import Taken, close
from wardround.training.trial import Assignment, Run, Trial


def close_round(
    number: int,
    trial: Trial,
    run: Run,
    assignments: Sequence[Assignment],
    taken: Taken,
    epochs: Mapping[str, int],
    seconds: float,
    not_finite: Sequence[str] = (),
    noise: Stream | None = None,
) -> tuple[Run, TrialRecord]:
    """As a simulation closes its rounds, from what has been taken in: updates of sites, models of regions, or the
    exchanges of parties. `epochs` are those that each site says it has trained; `noise` is for whole sites."""
    after, record = close(run, trial, assignments, taken, noise)
    counted = {site: epochs[site] for site in record.sites}
    record = replace(record, epochs=counted, not_finite=tuple(not_finite), seconds=seconds)
    return replace(after, memories={}), TrialRecord(number, record)
