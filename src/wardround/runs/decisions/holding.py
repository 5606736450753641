"""A run that waits: which sites were named, in `state/held/N.json` of unit or wave N, and what people decided about
them, in `decisions.json`.

What is held is written before the state of its round, so that a state that waits always has its reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from wardround.core.errors import HeldError
from wardround.core.notices import Notice, text_of
from wardround.evaluation.comparisons.listing import grouped
from wardround.runs.audit import HELD, AuditLog
from wardround.runs.folder import RunFolder
from wardround.screening import LEVEL, Decision, Evidence, most_left_out
from wardround.screening.rule import limit_of
from wardround.training.round_record import RoundRecord
from wardround.training.screen import undecided
from wardround.training.trial import Run, Trial

DECISIONS = "decisions.json"


@dataclass(frozen=True)
class Held:
    """A site that was named, in the round after which its arm waits."""

    site: str
    arm: str
    seed: int
    round: int
    rule: str
    value: float
    limit: float
    other: str | None
    most: int  # sites of the arm that may be left out

    def notice(self) -> Notice:
        return Notice(
            "update-differs",
            "warning",
            self.site,
            counts={"value": self.value, "limit": self.limit, "round": self.round, "level": LEVEL},
            other_sites=() if self.other is None else (self.other,),
            arm=self.arm,
            details={"rule": self.rule},
        )


def waits(trials: Sequence[Trial], runs: Callable[[], Sequence[Run]]) -> bool:
    """Whether people must decide before these go on. Runs are asked for only where a study may hold them."""
    return _may_wait(trials) and any(map(undecided, trials, runs()))


def write_held_after(
    folder: RunFolder,
    number: int,
    trials: Sequence[Trial],
    runs: Callable[[], Sequence[Run]],
    records: Sequence[RoundRecord],
) -> bool:
    """Whether the unit or wave has to wait after this round, of which these are the runs and the records. If so, the
    reason is on disk."""
    held = _held_after(trials, runs(), records) if _may_wait(trials) else []
    if held:
        (folder.path / "state" / "held").mkdir(parents=True, exist_ok=True)
        folder.write_json(_name(number), {"held": [asdict(each) for each in held]})
    return bool(held)


def _may_wait(trials: Sequence[Trial]) -> bool:
    return any(trial.screening is not None and trial.screening.policy == "hold" for trial in trials)


def _held_after(trials: Sequence[Trial], runs: Sequence[Run], records: Sequence[RoundRecord]) -> list[Held]:
    by_trial = {(record.arm, record.seed): record for record in records}
    return [
        _held(trial, trial.sites[number].name, by_trial[trial.arm, trial.seed])
        for trial, run in zip(trials, runs, strict=True)
        for number in undecided(trial, run)
    ]


def _held(trial: Trial, site: str, record: RoundRecord) -> Held:
    found, most = Evidence.of_numbers(record.named[site]), most_left_out(len(trial.sites))
    other = None if found.other is None else list(record.lengths)[found.other]
    limit = limit_of(found.rule)
    return Held(site, trial.arm, trial.seed, record.round, found.rule, found.value, limit, other, most)


def forget_held(folder: RunFolder, number: int) -> None:
    (folder.path / _name(number)).unlink(missing_ok=True)


def waiting(folder: RunFolder) -> list[Held]:
    """About whom nobody has decided yet."""
    names = [f"state/held/{path.name}" for path in sorted((folder.path / "state" / "held").glob("*.json"))]
    with folder.checked_content():
        held = [Held(**each) for name in names for each in folder.read_json(name)["held"]]
    decided = read_decisions(folder)
    return [each for each in held if each.site not in decided]


def stop_if_held(folder: RunFolder, log: AuditLog, go_on: str) -> None:
    """HeldError while people have to decide. `go_on` is the command with which the run goes on after that."""
    held = waiting(folder)
    if not held:
        return
    log.add(HELD, sites=list(dict.fromkeys(each.site for each in held)))
    raise HeldError(str(folder.path), f"the run is held: {'; '.join(_sentences(held))}", _remedy(folder, held, go_on))


def _sentences(held: Sequence[Held]) -> list[str]:
    """One for each site and arm, with the evidence of the first seed."""
    parts = []
    for of_arm in grouped(((each.site, each.arm), each) for each in held).values():
        first, more = of_arm[0], len(of_arm) - 1
        seeds = f"with seed {first.seed}" + (f" and {more} more" if more else "")
        parts.append(f"{first.site}: {text_of(first.notice())}, {seeds}")
    return parts


def _remedy(folder: RunFolder, held: Sequence[Held], go_on: str) -> str:
    site = held[0].site
    return (
        f'Ask the hospital, then decide: wardround decide {folder.path} --keep {site} --name "Dr. A. Example" '
        f"(or --drop {site}). Then go on with {go_on}."
    )


def with_decisions(trials: Sequence[Trial], folder: RunFolder) -> list[Trial]:
    decisions = read_decisions(folder)
    return [replace(trial, decisions=decisions) for trial in trials] if decisions else list(trials)


def read_decisions(folder: RunFolder) -> dict[str, Decision]:
    if not (folder.path / DECISIONS).is_file():
        return {}
    with folder.checked_content():
        return {each["site"]: Decision(**each) for each in folder.read_json(DECISIONS)["decisions"]}


def write_decisions(folder: RunFolder, decisions: Mapping[str, Decision]) -> None:
    content: dict[str, Any] = {"decisions": [asdict(each) for each in decisions.values()]}
    folder.write_json(DECISIONS, content)


def _name(number: int) -> str:
    return f"state/held/{number:05}.json"
