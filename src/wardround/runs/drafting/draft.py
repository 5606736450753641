"""`wardround.init_study`: a study from hospitals' files, which compares training together with staying alone."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from wardround.core.atomic_files import write_atomically
from wardround.core.errors import DataError, StudyError, as_name, as_path, shown
from wardround.core.notices import Notice, errors_among
from wardround.core.notices.code import few, quoted
from wardround.core.toml_files import parse_toml
from wardround.data.checks.before_training import refuse_errors
from wardround.data.sources.csv.hospital_files import require_column
from wardround.runs.catalog import families, load_study
from wardround.runs.drafting.assumptions import (
    Candidate,
    Columns,
    Kind,
    Patients,
    Target,
    candidates,
    column_usage,
    kind_of_target,
    patient_columns,
    unusable,
)
from wardround.runs.drafting.hospital_tables import HospitalTables, read_hospitals
from wardround.runs.drafting.study_text import Line, study_text
from wardround.runs.interface.quick_comparison import comparison_study
from wardround.runs.plan import Plan, check_study, load_plan, rehearse
from wardround.study.parser import parse_study

MOST_NAMED = 10  # hospitals of a sentence
KINDS: Mapping[str, str] = {"classes": "a class", "regression": "a number", "count": "a count"}
LEAK = "left out: it tells the outcome by itself; is it known before the outcome? If so, delete this line"


@dataclass(frozen=True)
class Draft:
    """A study that was written, and what it assumes."""

    path: Path
    text: str
    assumptions: tuple[str, ...]  # sentences
    notices: tuple[Notice, ...]  # of the files, and of the check that it passed


@dataclass(frozen=True)
class _Assumed:
    hospitals: HospitalTables
    target: Target
    patients: Patients
    columns: Columns
    positive: str | None


def possible_targets(files: Sequence[str | PathLike[str]], names: Mapping[str, str] | None = None) -> list[Candidate]:
    """Columns of all files that could be predicted, the likeliest first."""
    return candidates(_read(files, names or {}))


def init_study(
    files: Sequence[str | PathLike[str]],
    target: str,
    *,
    names: Mapping[str, str | PathLike[str]] | None = None,
    patient: str | None = None,
    positive: str | None = None,
    task: Kind | None = None,
    out: str | PathLike[str] = "study.toml",
    force: bool = False,
) -> Draft:
    """Write a study file for hospitals' CSV files, with defaults that answer whether training together helps.

    A file's name is that of its hospital, unless `names` has its path under another. `patient` is the column that
    says whose a row is, `positive` the class that counts as the event, `task` the kind of target, where the cells do
    not show these. What is written has been checked as `wardround check` does it.
    """
    path = as_path(out, "--out")
    for where, name in (("--target", target), ("--patient", patient), ("--positive", positive)):
        if name is not None:
            as_name(name, where)
    if path.is_dir() or (path.exists() and not force):
        raise StudyError(str(path), "is there already", "Give --force to replace it, or another --out.")
    if task is not None and task not in KINDS:
        raise StudyError("task", f"{shown(task)} is no kind of target", f"Known: {', '.join(KINDS)}.")
    hospitals = _read(files, names or {})
    assumed = _assume(hospitals, target, patient, positive, task)
    ignored = unusable(hospitals, _reserved(assumed), assumed.columns.usage != "own")
    text, plan, notices = _checked(assumed, ignored, path)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise StudyError(str(path), f"cannot be written ({error.strerror})", "Give another --out.") from None
    path.chmod(0o644)  # no patient's value is in it, and others may run it
    return Draft(path, text, tuple(_sentences(assumed, ignored, plan)), (*plan.source_notices, *notices))


def _read(files: Sequence[str | PathLike[str]], names: Mapping[str, str | PathLike[str]]) -> HospitalTables:
    if isinstance(files, str) or not isinstance(files, Sequence):
        raise StudyError(
            "files", f"expected a list of paths, found {shown(files)}", "Give a CSV file for each hospital."
        )
    if not isinstance(names, Mapping):
        raise StudyError("--name", f"expected names with paths, found {shown(names)}", "Give them as a dict.")
    named = {as_name(name, "--name"): as_path(file, "--name") for name, file in names.items()}
    return read_hospitals([as_path(file, "files") for file in files], named)


def _assume(
    hospitals: HospitalTables, target: str, patient: str | None, positive: str | None, task: Kind | None
) -> _Assumed:
    for site, table in hospitals.tables.items():
        require_column("target", target, table, hospitals.paths, site)
        require_column("patient", patient, table, hospitals.paths, site)
    if patient == target:
        raise StudyError("--patient", "is the target", "Name the column that says which patient a row is of.")
    sites = {site: table[target] for site, table in hospitals.tables.items()}
    for site, cells in sites.items():
        if not cells.distinct:
            problem = f"has no value in {target!r}"
            raise DataError(str(hospitals.paths[site]), problem, "Check the export, or leave this hospital out.")
    found, reason = kind_of_target(sites)
    kind, reason = (found, reason) if task is None else (task, "it was given")
    patients = patient_columns(hospitals, target, patient)
    columns = column_usage(hospitals, {target, *patients.columns.values()})
    return _Assumed(hospitals, Target(target, kind, reason), patients, columns, positive)


def _reserved(assumed: _Assumed) -> set[str]:
    return {assumed.target.name, *assumed.patients.columns.values()}


def _checked(assumed: _Assumed, ignored: dict[str, str], path: Path) -> tuple[str, Plan, list[Notice]]:
    """The text of a study that passes the check. Columns that tell the outcome are left out, and added to `ignored`."""
    known = families()
    while True:
        text = _text(assumed, ignored, path)
        study = parse_study(parse_toml(text), known, path.name, path.parent.absolute())
        plan = load_plan(*load_study(study))
        notices = check_study(plan)
        errors = errors_among(notices)
        headers = {column.name: column.own_name for arm in study.arms for column in plan.cohort_of(arm).records.columns}
        leaks = {
            headers[name]: LEAK
            for notice in errors
            if notice.code == "target-leak"
            for name in notice.columns
            if name in headers and headers[name] not in ignored
        }
        if not leaks:
            refuse_errors(errors)
            rehearse(plan)
            return text, plan, notices
        ignored |= leaks


def _text(assumed: _Assumed, ignored: Mapping[str, str], path: Path) -> str:
    target, columns = assumed.target, assumed.columns
    compared = comparison_study(assumed.hospitals.paths, target.name)
    by_site = assumed.patients.columns
    everywhere = len(by_site) == len(assumed.hospitals.tables) and len(set(by_site.values())) == 1
    head: list[Line] = [("target", target.name, f"what is predicted: {KINDS[target.kind]}, because {target.reason}")]
    if target.kind != "classes":
        head.append(("task", target.kind, "leave it out to predict classes"))
    if assumed.positive is not None:
        head.append(("positive", assumed.positive, "the class that counts as the event"))
    if everywhere:
        patient = next(iter(by_site.values()))
        head.append(("patient", patient, "whose a row is: no patient is both trained on and tested"))
    head.append(("columns", columns.usage, columns.reason))
    if columns.usage == "own":
        head.append(("schema", "own", "each hospital prepares its own columns"))
    head += [
        ("missing", "median", "gaps are filled with medians of training rows"),
        (
            ("scale", "per-site", "numbers are scaled at each hospital")
            if columns.usage == "own"
            else ("scale", compared["data"]["scale"], "numbers are scaled by sums over all hospitals")
        ),
    ]
    base = path.parent.absolute()
    return study_text(
        _name(path, target.name),
        compared,
        head,
        {site: _relative(file, base) for site, file in assumed.hospitals.paths.items()},
        {} if everywhere else by_site,
        ignored,
        columns.usage == "own",
        target.kind == "classes",
    )


def _relative(file: Path, base: Path) -> str:
    return Path(os.path.relpath(file.absolute(), base)).as_posix()


def _name(path: Path, target: str) -> str:
    """Of the study: its file's, or else the target's where that is only `study`."""
    stem = path.stem if path.stem != "study" else target
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "study"


def _sentences(assumed: _Assumed, ignored: Mapping[str, str], plan: Plan) -> list[str]:
    hospitals, target = assumed.hospitals, assumed.target
    rows = {site: len(next(iter(table.values())).codes) for site, table in hospitals.tables.items()}
    sentences = [
        f"{len(rows)} hospitals: {few([f'{site} ({n} rows)' for site, n in rows.items()], MOST_NAMED)}.",
        f"{target.name!r} is {KINDS[target.kind]}, because {target.reason}{_class_words(plan)}.",
        _patient_sentence(assumed),
        f"{assumed.columns.reason[0].upper()}{assumed.columns.reason[1:]}"
        + (": each hospital uses its own, through a private adapter." if assumed.columns.usage == "own" else "."),
    ]
    sentences += [f"Left out: {name!r}: {reason.removeprefix('left out: ')}." for name, reason in ignored.items()]
    groups = list(plan.cohort_of(plan.study.arms[0]).records.groups.columns)
    if groups:
        sentences.append(f"Results are also given by {' and '.join(groups)}.")
    sentences.append(
        "Three ways of training are compared, with 20 draws of test patients: each hospital alone, FedAvg and FedProx."
    )
    return sentences


def _class_words(plan: Plan) -> str:
    classes = plan.classes
    if plan.task.answers == "number" or not classes:
        return ""
    if len(classes) == 2:
        return f"; {classes[1]!r} is the event and {classes[0]!r} is not (--positive changes this)"
    return f": {len(classes)} classes"


def _patient_sentence(assumed: _Assumed) -> str:
    by_site, sites = assumed.patients.columns, assumed.hospitals.tables
    if not by_site:
        return "No column says whose a row is (--patient NAME): every row counts as another patient."
    lacking = [site for site in sites if site not in by_site]
    without = f" At {quoted(lacking)} every row counts as another patient." if lacking else ""
    names = quoted(dict.fromkeys(by_site.values()))
    reason = assumed.patients.reason
    return f"Patients are told apart by {names} ({reason}), which each hospital numbers for itself.{without}"
