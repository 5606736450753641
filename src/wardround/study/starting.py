"""Digests of the models that a study starts from: found out once, then a part of the study and of its hash.

A study names a run or a bundle by its path, which is another on every machine. What counts is the content: whoever
loads the study fills in its digest, the resolved study has it, and a hospital is given the digest alone.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from wardround.core.errors import StudyError
from wardround.core.settings import parse
from wardround.study.parser import plain
from wardround.study.schema import Start, StartFrom, Study
from wardround.study.sweeps import flatten

KEY = "start_from"
PATH = f"model.{KEY}"
Digest = Callable[[StartFrom], str]


def with_digests(study: Study, digest: Digest) -> Study:
    """`digest` reads the named model. Where all digests are known the study is as it was, and nothing is read."""
    known: dict[StartFrom, StartFrom] = {}

    def filled(source: StartFrom | None) -> StartFrom | None:
        if source is None or source.digest is not None:
            return source
        if source not in known:
            known[source] = replace(source, digest=digest(source))
        return known[source]

    arms = tuple(replace(arm, start=Start(filled(arm.start.start_from))) for arm in study.arms)
    if not known:
        return study
    resolved = deepcopy(dict(study.resolved))
    if KEY in resolved.get("model", {}):
        own: StartFrom = parse(StartFrom, resolved["model"][KEY], PATH)
        resolved["model"][KEY] = plain(filled(own) or own)
    by_name = {arm.name: arm.start.start_from for arm in arms}
    for kind, entry, name in _entries(resolved):
        if not _overrides(entry):
            continue
        _refuse_both(resolved, kind, name)
        # an arm of the entry; a sweep has several, which all start alike
        of_entry = [arm for arm in arms if (arm.family == name if kind == "arms" else arm.variant == name)]
        sources = {by_name[arm.name] for arm in of_entry}
        if len(sources) > 1:
            remedy = "Write an [[arms]] table of its own for each model to start from."
            raise StudyError(f"{kind}: {name}: {PATH}", "arms of one entry start from several models", remedy)
        _write(entry, next(iter(sources), None))
    return replace(study, arms=arms, resolved=resolved)


def without_sources(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved study with the digests alone, for machines that have neither the run nor the bundle."""
    document = deepcopy(dict(resolved))
    if KEY in document.get("model", {}):
        document["model"][KEY] = {"digest": document["model"][KEY]["digest"]}
    for _, entry, _ in _entries(document):
        digest = flatten(entry).get(f"{PATH}.digest")
        if digest is not None:
            _write(entry, StartFrom(digest=digest))
    return document


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The tables that may override [model], with their kinds and names."""
    for kind in ("arms", "variants"):
        for entry in document.get(kind) or ():
            yield kind, entry, str(entry.get("name", entry.get("algorithm", "")))


def _overrides(entry: Mapping[str, Any]) -> bool:
    return any(key == PATH or key.startswith(f"{PATH}.") for key in flatten(entry))


def _refuse_both(resolved: Mapping[str, Any], kind: str, name: str) -> None:
    """Where an arm and a variant both say where training begins, one would silently win."""
    others = [other for other, entry, _ in _entries(resolved) if other != kind and _overrides(entry)]
    if others:
        problem = f"is in an [[arms]] table and in a [[variants]] table, here in {name!r}"
        raise StudyError(f"{kind}: {name}: {PATH}", problem, "Write it in arms alone, or in variants alone.")


def _write(entry: dict[str, Any], source: StartFrom | None) -> None:
    """In place of whatever the entry has, with absolute paths: relative ones begin at another folder later."""
    for key in [key for key in entry if key == PATH or key.startswith(f"{PATH}.")]:
        del entry[key]
    if isinstance(entry.get("model"), dict):
        entry["model"].pop(KEY, None)
        if not entry["model"]:
            del entry["model"]
    entry[PATH] = "off" if source is None else plain(source)
