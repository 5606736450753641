"""What sites agree on before the first round, as parts of messages and as values: facts of columns, fill values,
moments, scales, what is predicted; and who has to leave where they differ.

Floats survive JSON to the last bit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wardround.core.errors import DeployError, SiteError
from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.data.agreement import Common, Facts, FillValues, Moments, with_enough
from wardround.data.checks.before_training import accepted, direction_notices, refuse_errors
from wardround.data.checks.clinical_names import SAME
from wardround.data.checks.label_direction import Association, opposites, uncompared
from wardround.data.records import Column
from wardround.data.serialization import Plain, read_column, read_layout, write_column
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key
from wardround.protocol import catalogue
from wardround.protocol.catalogue import (
    Agreement,
    ColumnFacts,
    ColumnFillValues,
    ColumnMoments,
    Direction,
    Prepare,
    TaskPart,
)
from wardround.study.schema import Study
from wardround.tasks import Task, read_task
from wardround.tasks.task import Impossible

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, structs, to_builtins


def write_facts(facts: Facts) -> ColumnFacts:
    levels = [list(levels) for levels in facts.levels]
    return ColumnFacts(present=list(facts.present), gaps=list(facts.gaps), levels=levels)


def read_facts(part: ColumnFacts) -> Facts:
    return Facts(tuple(part.present), tuple(part.gaps), tuple(map(tuple, part.levels)))


def write_fill_values(fill_values: FillValues, numbers: Sequence[int], categories: Sequence[str]) -> ColumnFillValues:
    """Only for the requested columns."""
    fill_values = with_enough(fill_values)
    requested = np.zeros(len(fill_values.fill), dtype=bool)
    requested[list(numbers)] = True
    return ColumnFillValues(
        fill=np.where(requested, fill_values.fill, 0.0).tolist(),
        counts=np.where(requested, fill_values.counts, 0).tolist(),
        levels={name: dict(levels) for name, levels in fill_values.levels.items() if name in categories},
    )


def read_fill_values(part: ColumnFillValues) -> FillValues:
    return FillValues(np.array(part.fill, dtype=float), np.array(part.counts, dtype=np.int64), part.levels)


def write_moments(moments: Moments) -> ColumnMoments:
    return ColumnMoments(count=moments.count.tolist(), total=moments.total.tolist(), squares=moments.squares.tolist())


def read_moments(part: ColumnMoments) -> Moments:
    count = np.array(part.count, dtype=np.int64)
    return Moments(count, np.array(part.total, dtype=float), np.array(part.squares, dtype=float))


def write_common(common: Common) -> catalogue.Common:
    scale = None if common.scale is None else (common.scale[0].tolist(), common.scale[1].tolist())
    return catalogue.Common(fill=common.fill.tolist(), level=dict(common.level), scale=scale)


def read_common(part: catalogue.Common) -> Common:
    scale = None if part.scale is None else (np.array(part.scale[0], dtype=float), np.array(part.scale[1], dtype=float))
    return Common(np.array(part.fill, dtype=float), dict(part.level), scale)


HOW_TO_ACCEPT = (
    'If it is meant, accept it knowingly: `accept = ["{}"]` in [evaluation]; that is another study, which hospitals '
    "approve anew."
)


def direction_payload(associations: Mapping[str, Association], only_public: bool) -> dict[str, list[float]]:
    return {
        name: [round(association.effect, 2), max(round(association.error, 3), 0.001)]
        for name, association in associations.items()
        if name in SAME or not only_public
    }


def inverted_labels(study: Study, task: Task, directions: Mapping[str, Mapping[str, Direction]]) -> list[Notice]:
    """Refuse inverted labels; if the study accepts them, they are a warning."""
    by_site = {  # without the number of rows, which a site does not send
        site: {name: Association(effect, error, 0, 0) for name, (effect, error) in columns.items()}
        for site, columns in directions.items()
    }
    notices = [Notice("label-not-compared", "warning", site) for site in uncompared(by_site) if any(by_site.values())]
    notices += accepted(direction_notices(opposites(by_site), task), study.evaluation.accept)
    refuse_errors(notices, HOW_TO_ACCEPT)
    return notices


class Disagreement(SiteError):
    """`notices` are of all that have to leave: who differs from most of the others, or, where no value is that of more
    than half of them, everybody who has a part in it. Nobody can say then who is right."""

    def __init__(self, notices: Sequence[Notice], remedy: str) -> None:
        super().__init__(notices[0], remedy)
        self.notices = tuple(notices)

    def __reduce__(self) -> tuple[type["Disagreement"], tuple[Any, ...]]:
        return type(self), (self.notices, self.remedy)


def disagreement(problems: Mapping[str, str], remedy: str) -> Disagreement:
    """What is wrong at each of these sites."""
    details = {site: {"reason": problem} for site, problem in problems.items()}
    return Disagreement([Notice("site-disagrees", "warning", site, details=details[site]) for site in details], remedy)


def refuse_outlier(values: Mapping[str, Any], problem: Callable[[str, str], str], remedy: str) -> None:
    """Disagreement where sites have different values. `problem` tells the first how it differs from the second."""
    shared = {site: sum(value == other for other in values.values()) for site, value in values.items()}
    most = max(shared, key=lambda site: shared[site], default="")
    outlier = next((site for site, value in values.items() if value != values[most]), None)
    if outlier is None:
        return
    problems = {outlier: problem(outlier, most)}
    if 2 * shared[most] <= len(values):
        problems |= {site: problem(site, outlier) for site, value in values.items() if value != values[outlier]}
        problems |= {site: problem(site, most) for site in values if site not in problems}
    raise disagreement(problems, remedy)


OWN_COLUMNS = (1,)  # placeholder for the shape of rows that only their site knows; no shared weight depends on it


def column_parts(columns: Sequence[Column]) -> list[catalogue.Column] | None:
    """None for images."""
    return [convert(write_column(column), catalogue.Column) for column in columns] or None


def read_columns(parts: Sequence[catalogue.Column] | None) -> list[Column]:
    return [read_column(to_builtins(part)) for part in parts or ()]


def agreed_of(plan: DeployedPlan, prepare: Prepare | Agreement) -> dict[Key, Agreed]:
    layouts = [read_layout(to_builtins(layout)) for layout in prepare.layouts]
    agreed = {}
    by_kind = zip(plan.kinds, prepare.of, prepare.commons, prepare.target_scales, strict=True)
    for kind, place, common, target_scale in by_kind:
        scale = read_target_scale(plan.task, target_scale)
        if place is None:
            agreed[kind] = Agreed(tuple(prepare.inputs or OWN_COLUMNS), target_scale=scale)
        else:
            inputs = (len(layouts[place].names),)
            agreed[kind] = Agreed(inputs, layouts[place], None if common is None else read_common(common), scale)
    return agreed


def read_target_scale(task: Task, scale: Sequence[float]) -> tuple[float, ...]:
    """DeployError where the task has no such scale."""
    try:
        task.check_scale(scale)
    except Impossible as error:
        raise DeployError("coordinator", f"sends {error}", "Install the same version everywhere.") from None
    return tuple(map(float, scale))


def common_columns(
    columns_by_site: Mapping[str, Sequence[catalogue.Column] | None],
) -> tuple[list[Column], list[Notice]]:
    """One list for all, in the order of the first site; a column that a site lacks counts as missing there."""
    tables = {
        site: {column.name: column for column in read_columns(parts)}
        for site, parts in columns_by_site.items()
        if parts
    }
    if not tables:
        return [], []
    _refuse_mixed_forms(columns_by_site)
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    common = [
        _common_column(name, {site: table[name] for site, table in tables.items() if name in table}) for name in names
    ]
    lacking = {site: tuple(name for name in names if name not in table) for site, table in tables.items()}
    notices = [
        Notice("column-not-recorded", "warning", site, columns, details={"use": "missing"})
        for site, columns in lacking.items()
        if columns
    ]
    return common, notices


def _refuse_mixed_forms(columns_by_site: Mapping[str, Any]) -> None:
    forms = {site: "a table" if columns else "images" for site, columns in columns_by_site.items()}
    refuse_outlier(
        forms,
        lambda site, other: f"has {forms[site]} where {other} has {forms[other]}",
        "Give all sites data of the same form.",
    )


def _common_column(name: str, columns: Mapping[str, Column]) -> Column:
    refuse_outlier(
        {site: column.kind for site, column in columns.items()},
        lambda site, other: f"{name!r} is {columns[site].kind} here and {columns[other].kind} at {other}",
        "Declare its type under `types` in [data] of one of the site files.",
    )
    declared = {site: column.levels for site, column in columns.items() if column.levels is not None}
    refuse_outlier(
        {site: sorted(levels) for site, levels in declared.items()},
        lambda site, other: f"{name!r} has other declared levels here than at {other}",
        "Declare the same under `levels` in [data] of the site files.",
    )
    limits = next((column.limits for column in columns.values() if column.limits), None)
    coded = all(column.coded for column in columns.values())
    return Column(name, next(iter(columns.values())).kind, limits, coded, next(iter(declared.values()), None))


UNNAMED = "one of too few rows"  # a class whose name a site withholds


def task_payload(task: Task, names: Sequence[Mapping[str, Any]]) -> Plain:
    """`names` say of each of the task's names its hash, and the name unless it is withheld."""
    return {"kind": task.kind, "names": list(names), "options": task.options}


def read_part(part: TaskPart, unnamed: Callable[[int], str] = lambda place: UNNAMED) -> Task:
    """`unnamed` calls a class that is withheld by its place. StudyError where it is no task."""
    names = [entry.name or unnamed(place) for place, entry in enumerate(part.names)]
    return read_task({**part.options, "kind": part.kind, "names": names})


def merged_part(parts: Mapping[str, TaskPart]) -> TaskPart:
    """Of sites with the same task, with the names that any of them tells."""
    by_place = zip(*(part.names for part in parts.values()), strict=True)
    names = [next((entry for entry in entries if entry.name), entries[0]) for entries in by_place]
    return structs.replace(next(iter(parts.values())), names=names)


def refuse_other_tasks(parts: Mapping[str, TaskPart]) -> None:
    """Disagreement, which names a hospital and says what is predicted there and what elsewhere. What the column of a
    number is called is each hospital's own, as it is for classes."""

    def problem(site: str, other: str) -> str:
        here, there = (read_part(parts[name]).words for name in (site, other))
        unnamed = "; the class that is not named is another one" if here == there else ""
        return f"it predicts {here}, and {other} predicts {there}{unnamed}"

    meant = {
        site: (
            part.kind,
            part.options,
            [entry.hash for entry in part.names if read_part(part).answers != "number"],
        )
        for site, part in parts.items()
    }
    remedy = "Write the same in [data] of all site files: target, task, and `positive`, `classes` or `findings`."
    refuse_outlier(meant, problem, remedy)
