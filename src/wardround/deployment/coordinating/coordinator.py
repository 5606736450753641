"""The coordinator's loop: begin or resume, agree, train wave by wave, compute results, take leave.

It knows nothing about the network, which a `Transport` hides, and nothing about who its sites are: flat, in regions or
parties with different features, each a `Topology` of a few functions. `run` is a generator of steps, so that a terminal
or a test decides what to show. It may die at any moment; when restarted, it resumes the step it was in, and takes the
answers that had arrived as it takes new ones.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from wardround.core.tree import Tree
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import RESULT_FILES
from wardround.deployment.common.messaging import Messenger, Step, revoked_key
from wardround.deployment.common.waves import TrialRecord
from wardround.deployment.coordinating.analyses import conduct_analyses
from wardround.deployment.coordinating.explanations import conduct_explanations
from wardround.deployment.flat.run_secret import RunSecret
from wardround.runs.audit import BEGUN, FINISHED, RESUMED, AuditLog, file_hash
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.decisions.holding import stop_if_held
from wardround.runs.environment import describe_environment
from wardround.runs.folder import RunFolder
from wardround.study.schema import Study
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Trial

GO_ON = "the same `wardround coordinate`; hospitals may go on waiting"


class Kept(Protocol):
    """The state of a wave, as leaves and plain data, of which it is made again."""

    def kept(self) -> tuple[Tree, dict[str, Any]]: ...

    @classmethod
    def restored(cls, leaves: Tree, place: Mapping[str, Any]) -> Self: ...


S = TypeVar("S", bound=Kept)


@dataclass(frozen=True)
class Closed(Generic[S]):
    """What a step leaves: the state after it, records that are complete, and those that wait until their model is
    scored."""

    state: S
    ready: Sequence[RoundRecord]
    pending: Sequence[TrialRecord]


class Wave(Protocol[S]):
    """Trials that travel together, from the start to their last step: a round, the rounds of a region, a block."""

    def first(self) -> S: ...

    def rounds_done(self, state: S) -> int | None:
        """Over all trials; None when all steps are done."""

    def step(self, state: S, pending: Sequence[TrialRecord]) -> Generator[Step, None, Closed[S]]: ...

    def forget(self, state: S) -> None:
        """Answers that are no longer needed, now that this state is on disk."""

    def finish(self, state: S, pending: Sequence[TrialRecord]) -> Generator[Step, None, Sequence[RoundRecord]]:
        """Have the final models scored; the last records."""


class Topology(Protocol):
    """What differs between sites, regions and parties."""

    def agree(self) -> Generator[Step, None, DeployedPlan]: ...

    def wave(self, number: int, trials: Sequence[Trial]) -> Wave[Any]: ...

    def write_results(self, waves: int, analysed: Mapping[str, Any], explained: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Progress(Generic[S]):
    """How far a wave has come, as it is on disk."""

    state: S
    pending: Sequence[TrialRecord] = ()
    records: int = 0  # of the wave that are in the run's file
    done: bool = False


@dataclass
class Coordinator:
    messenger: Messenger
    topology: Topology = field(repr=False)

    def run(self) -> Generator[Step]:
        messenger = self.messenger
        with messenger.folder.locked():
            begin_or_resume(messenger)
            stop_if_held(messenger.folder, messenger.log, GO_ON)
            plan = yield from self.topology.agree()
            waves = [[plan.trial(messenger.study.arm(arm), seed) for arm, seed in wave] for wave in plan.waves()]
            messenger.total = sum(trial.training.rounds for wave in waves for trial in wave)
            analysed = yield from conduct_analyses(messenger, len(waves))
            for number, trials in enumerate(waves):
                yield from train_wave(messenger, number, trials, self.topology.wave(number, trials))
            explained = yield from conduct_explanations(messenger, plan, len(waves))
            messenger.title = "computing results"
            yield messenger.step()
            RunSecret(messenger.folder.path / "state").destroy()
            self.topology.write_results(len(waves), analysed, explained)
            hashes = log_results(messenger.study, messenger.folder, messenger.log)
            yield from messenger.say_goodbye(hashes["results.json"])
            messenger.folder.remove_state()


def begin_or_resume(messenger: Messenger) -> None:
    study, folder = messenger.study, messenger.folder
    if not messenger.again and messenger.federation_path.is_file():
        messenger.read_federation()
        messenger.log.add(RESUMED, study=study.hash, engine="flower", run=messenger.run_name)
        return
    folder.begin(study, {**describe_environment(), "engine": "flower", "data_fingerprint": None})
    messenger.run_name = f"{study.hash[:12]}-{secrets.token_hex(6)}"
    messenger.members = list(messenger.sites)
    messenger.hospitals = list(messenger.hospitals or messenger.sites)
    revoked = [site for site in messenger.revoked() if site not in messenger.sites]
    messenger.invited = [*messenger.sites, *revoked]
    messenger.not_joined = {site: revoked_key(site) for site in revoked}
    messenger.write_federation()
    if any(arm.privacy.site is not None for arm in study.trained_arms):
        RunSecret(folder.path / "state").draw(used=False)
    messenger.log.add(BEGUN, study=study.hash, engine="flower", run=messenger.run_name, sites=list(messenger.sites))


def train_wave(messenger: Messenger, number: int, trials: Sequence[Trial], wave: Wave[S]) -> Generator[Step]:
    """Each step is on disk, with its records, before the next one begins."""
    path = wave_path(messenger, number)
    progress = read_progress(path, wave.first())
    before = messenger.done
    messenger.title = title_of(trials)
    if not progress.done:
        with messenger.folder.append_records(trials, progress.records) as records:
            while (done := wave.rounds_done(progress.state)) is not None:
                messenger.done = before + done
                closed = yield from wave.step(progress.state, progress.pending)
                for record in closed.ready:
                    records.add(record)
                progress = Progress(closed.state, closed.pending, records.flush())
                write_progress(path, progress)
                wave.forget(progress.state)
            for record in (yield from wave.finish(progress.state, progress.pending)):
                records.add(record)
            write_progress(path, replace(progress, pending=(), records=records.flush(), done=True))
    messenger.done = before + sum(trial.training.rounds for trial in trials)


def log_results(study: Study, folder: RunFolder, log: AuditLog) -> dict[str, str]:
    """The hashes of the results, once they are written."""
    hashes = {name: file_hash(folder.path / name) for name in RESULT_FILES if (folder.path / name).is_file()}
    log.add(FINISHED, study=study.hash, files=hashes)
    return hashes


def title_of(trials: Sequence[Trial]) -> str:
    return f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"


def wave_path(messenger: Messenger, number: int) -> Path:
    return messenger.folder.path / "state" / "waves" / f"{number:05}.safetensors"


def write_progress(path: Path, progress: Progress[S]) -> None:
    leaves, place = progress.state.kept()
    whole = {
        "pending": [waits.to_json() for waits in progress.pending],
        "records": progress.records,
        "done": progress.done,
        "place": place,
    }
    write_leaves(path, leaves, whole)


def read_progress(path: Path, first: S) -> Progress[S]:
    """As far as the wave has come; its first state where nothing is on disk."""
    if not path.is_file():
        return Progress(first)
    leaves, whole = read_leaves(path)
    return Progress(
        first.restored(leaves, whole["place"]),
        [TrialRecord.from_json(waits) for waits in whole["pending"]],
        whole["records"],
        whole["done"],
    )
