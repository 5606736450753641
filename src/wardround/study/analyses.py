"""`[[analyses]]`: what a study computes exactly, from sums over its hospitals' rows, beside its arms or without any.

`wardround.analyses` has the kinds, whose signatures are their settings. All analyses look at the same rows, which
[data], [sites] and [privacy] describe as they do for arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.settings import Factory, parse_settings, settings_of
from wardround.study.facts import PartitionFacts, SourceFacts
from wardround.study.sweeps import usable_name

if TYPE_CHECKING:
    from wardround.study.schema import Choice, Preparation, Privacy, Study

OF_ARMS = (
    "arms",
    "variants",
    "claims",
    "selection",
    "tuning",
    "contribution",
    "explain",
)  # parts of a study that are about its arms
OF_REFERENCE = ("reference", "bundles", "attack")  # of [evaluation]


@dataclass(frozen=True)
class AnalysedRows:
    """The rows that all analyses of a study look at, and how sums over them are protected."""

    data: "Choice[SourceFacts]"
    preparation: "Preparation"
    sites: "Choice[PartitionFacts]"
    privacy: "Privacy"


@dataclass(frozen=True)
class StudyAnalysis:
    """One of them as the study has it."""

    name: str
    kind: str
    options: Mapping[str, Any]
    rows: AnalysedRows


def read_analyses(
    entries: Sequence[Mapping[str, Any]], rows: AnalysedRows, kinds: Mapping[str, Factory], where: str
) -> tuple[StudyAnalysis, ...]:
    read: list[StudyAnalysis] = []
    for entry in entries:
        if "name" not in entry:
            raise StudyError(f"{where}: analyses: name", "missing", 'Add `name = "..."`: its results stand under it.')
        name = usable_name(entry["name"], f"{where}: analyses: name")
        here = f"{where}: analyses: {name}"
        if name in [other.name for other in read]:
            raise StudyError(f"{where}: analyses", f"two analyses are called {name!r}", "Name each once.")
        kind = entry.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            problem = "missing" if kind is None else f"{shown(kind)} is no kind of analysis"
            raise StudyError(f"{here}: kind", problem, suggest(kind, kinds, "Kinds"))
        given = {key: value for key, value in entry.items() if key not in ("name", "kind")}
        analysis = StudyAnalysis(name, kind, parse_settings(settings_of(kinds[kind]), given, here, Path()), rows)
        build_analysis(analysis, kinds, where)  # what its settings alone forbid
        read.append(analysis)
    return tuple(read)


def build_analysis(analysis: StudyAnalysis, kinds: Mapping[str, Factory], where: str = "") -> Any:
    """The kind with these settings. A StudyError of its own names its setting only; the study's place comes here."""
    try:
        return kinds[analysis.kind](**analysis.options)
    except StudyError as error:
        raise in_analysis(error, analysis.name, where) from None


def in_analysis(error: StudyError, name: str, where: str = "") -> StudyError:
    return StudyError(f"{f'{where}: ' if where else ''}analyses: {name}: {error.where}", error.problem, error.remedy)


def analyses_alone(study: "Study") -> "Study":
    """The study without its arms, and without what is about them. It has a hash and a run folder of its own."""
    if not study.analyses:
        remedy = "Add an [[analyses]] table with `name` and `kind`, or use `wardround run`."
        raise StudyError(f"study {study.name}: analyses", "missing", remedy)
    evaluation = replace(study.evaluation, reference=None, bundles=(), attack="none")
    document = {key: value for key, value in study.resolved.items() if key not in OF_ARMS}
    document["evaluation"] = {key: value for key, value in document["evaluation"].items() if key not in OF_REFERENCE}
    emptied: dict[str, Any] = dict.fromkeys(("arms", "variants", "claims"), ())
    return replace(
        study,
        evaluation=evaluation,
        resolved=document,
        selection=None,
        tuning=None,
        contribution=None,
        explain=None,
        **emptied,
    )
