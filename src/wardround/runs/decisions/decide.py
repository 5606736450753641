"""A person decides about sites that were named in a run that is held."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from os import PathLike
from typing import Literal

from wardround.core.errors import RunError, as_name, as_path, as_person, refuse_strangers, shown
from wardround.runs.audit import DECIDED, AuditLog
from wardround.runs.decisions.holding import Held, read_decisions, waiting, write_decisions
from wardround.runs.folder import RunFolder
from wardround.screening import Decision


def decide(
    run: str | PathLike[str], *, keep: Collection[str] = (), drop: Collection[str] = (), name: str
) -> list[Decision]:
    """Record what `name` decides about sites that hold this run: kept, or left out wherever they are named.

    Nothing runs by this: `resume_study`, or the same `wardround coordinate`, goes on once all are decided.
    """
    folder = RunFolder(as_path(run, "run", RunError))
    where, person = f"{folder.path}: decide", as_person(name, "decide: name", RunError)
    keep, drop = _names(keep, "keep"), _names(drop, "drop")
    if not (folder.path / "study.toml").is_file():
        raise RunError(str(folder.path), "is not a run folder", "Name the folder of a run that is held.")
    with folder.locked():
        held, before = waiting(folder), read_decisions(folder)
        if not held:
            remedy = 'Only a run that stopped for a decision takes one: `policy = "hold"` of [screening].'
            raise RunError(str(folder.path), "is not held", remedy)
        if not keep and not drop:
            sites = ", ".join(dict.fromkeys(each.site for each in held))
            raise RunError(where, f"nothing is decided; held: {sites}", "Give --keep SITE or --drop SITE.")
        refuse_strangers((*keep, *drop), {each.site for each in held}, where, "site that is held", "Held", RunError)
        if both := sorted(set(keep) & set(drop)):
            raise RunError(where, f"{both[0]} cannot be both kept and dropped", "Give it once.")
        _refuse_too_many({*drop, *(site for site, each in before.items() if each.decision == "drop")}, held, where)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        decisions = [*_all(keep, "keep", person, now), *_all(drop, "drop", person, now)]
        log = AuditLog(folder.path / "audit.jsonl")
        for each in decisions:  # logged before it holds: what is in force is always in the log
            log.add(DECIDED, site=each.site, decision=each.decision, name=person)
        write_decisions(folder, before | {each.site: each for each in decisions})
    return decisions


def _names(sites: object, key: str) -> list[str]:
    where = f"decide: {key}"
    if isinstance(sites, str) or not isinstance(sites, Collection):
        raise RunError(where, f"{shown(sites)} is no list of sites", "Give their names as a list.")
    return [as_name(site, where, RunError) for site in sites]


def _all(sites: Collection[str], decision: Literal["keep", "drop"], person: str, now: str) -> list[Decision]:
    return [Decision(site, decision, person, now) for site in dict.fromkeys(sites)]


def _refuse_too_many(dropped: Collection[str], held: Sequence[Held], where: str) -> None:
    most = min(each.most for each in held)
    if len(dropped) > most:
        problem = f"{len(dropped)} hospitals would be left out, and at most a third may be: {most}"
        raise RunError(where, problem, "Keep some, or run again with `train_at` and the hospitals that you trust.")
