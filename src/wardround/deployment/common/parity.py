"""Whether a deployed run gave the same model as one machine gives.

A replay repeats each round with the sites whose work counted and the epochs that they did; where work may be late, with
the model that each began with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from wardround.core.tree import Tree
from wardround.engines import serial
from wardround.runs.decisions.holding import with_decisions
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.prediction_tables import saved_leaves
from wardround.training.local import Outcome
from wardround.training.rounds import rounds, start
from wardround.training.schedule import recorded_rosters, tolerance
from wardround.training.trial import Assignment, Run, Trial

SAME = 1e-5  # what other processors and thread counts may change


@dataclass(frozen=True)
class Parity:
    deployed: str  # hash of every model
    simulated: str
    largest: float  # difference between two numbers
    models: int

    @property
    def equal(self) -> bool:
        return self.deployed == self.simulated

    @property
    def close(self) -> bool:
        return self.largest <= SAME


def replay(plan: Plan, folder: RunFolder) -> Parity:
    """`plan` has all rows, as only a demonstration or a test can; `folder` is the deployed run."""
    records: list[Any] = folder.records().to_dict("records")
    hashes, largest, count = (sha256(), sha256()), 0.0, 0
    for arm in plan.study.arms:
        for seed in plan.study.evaluation.seeds:
            recorded = [record for record in records if (record["arm"], record["seed"]) == (arm.name, seed)]
            (trial,) = with_decisions([plan.trial(arm, seed)], folder)
            run = replay_trial(trial, recorded)
            ours = saved_leaves(replace(run, memories={}))
            theirs = folder.load_model(arm.name, seed) if ours else {}
            for digest, leaves in zip(hashes, (theirs, ours), strict=True):
                digest.update(repr((arm.name, seed)).encode() + fingerprint(leaves))
            pairs = [(ours[n].double(), theirs[n].double()) for n in ours if ours[n].numel()]
            largest = max([largest, *(float((one - other).abs().max()) for one, other in pairs)])
            count += bool(ours)
    return Parity(hashes[0].hexdigest(), hashes[1].hexdigest(), largest, count)


def replay_trial(trial: Trial, recorded: Sequence[Mapping[str, Any]]) -> Run:
    in_round = {int(record["round"]) - 1: record for record in recorded}

    def train_sites(trial: Trial, run: Run, assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, Outcome]]:
        record = in_round[run.round]
        counted = [a for a in assignments if a.site.name in list(record["sites"])]
        done = [replace(a, epochs=int(record["epochs"][a.site.name])) for a in counted]
        yield from serial.train_sites(trial, run, done)

    trial = in_recorded_order(trial, [in_round[number] for number in sorted(in_round)])
    last = start(trial)
    for after, _ in rounds(last, trial, train_sites):
        last = after
    return last


def in_recorded_order(trial: Trial, records: Sequence[Mapping[str, Any]]) -> Trial:
    """Without the virtual clock, which decided nothing in a deployment. `records` are those of all rounds."""
    if tolerance(trial.training) is None:
        return replace(trial, clock=None)
    names = [site.name for site in trial.sites]
    rounds = [(record["epochs"], record["staleness"]) for record in records]
    return replace(trial, clock=None, recorded=recorded_rosters(trial.training, names, rounds))


def fingerprint(leaves: Tree) -> bytes:
    digest = sha256()
    for name in sorted(leaves):
        leaf = leaves[name].detach().contiguous().cpu()
        digest.update(f"{name}{leaf.dtype}{tuple(leaf.shape)}".encode() + leaf.numpy().tobytes())
    return digest.digest()
