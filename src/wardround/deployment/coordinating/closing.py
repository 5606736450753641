"""How a round ends: one function closes it and makes its record, whoever worked in it and wherever it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wardround.deployment.common.waves import Record
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
) -> tuple[Run, Record]:
    """As a simulation closes its rounds, from what has been taken in: updates of sites, models of regions, or the
    exchanges of parties. `epochs` are those that each site says it has trained; `noise` is for whole sites."""
    after, record = close(run, trial, assignments, taken, noise)
    return replace(after, memories={}), {
        "trial": number,
        "arm": trial.arm,
        "seed": trial.seed,
        **vars(record),
        "epochs": {site: epochs[site] for site in record.sites},
        "not_finite": list(not_finite),
        "seconds": seconds,
    }
