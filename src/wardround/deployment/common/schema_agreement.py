"""How sites agree before the first round: on what is predicted, columns, layouts, fill values and scales.

The coordinator asks for facts about each site's rows, merges them, and sends everybody the same `prepare` message.
The values are written as plain data; floats survive JSON to the last bit.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wardround.core.errors import DeployError, SiteError
from wardround.core.notices import Notice, read_notice
from wardround.data.agreement import Common, Facts, FillValues, Moments, common_of, common_scale, layout_of, with_enough
from wardround.data.checks.before_training import accepted, direction_notices, refuse_errors
from wardround.data.checks.clinical_names import SAME
from wardround.data.checks.label_direction import Association, opposites, uncompared
from wardround.data.prepare import Layout
from wardround.data.records import SPLIT_PARTS, Column
from wardround.data.serialization import Plain, read_column, read_layout, write_column, write_layout
from wardround.deployment.common.answer_checks import check_facts, check_fill_values, check_moments, dominant_sites
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.privacy.disclosure.target_sums import Exact, refuse_unpaid_scale, scale_of
from wardround.protocol.messages import Message
from wardround.runs.plan import members_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study
from wardround.tasks import Task, read_task
from wardround.tasks.task import Impossible


def write_facts(facts: Facts) -> Plain:
    return {
        "present": list(facts.present),
        "gaps": list(facts.gaps),
        "levels": [list(levels) for levels in facts.levels],
    }


def read_facts(payload: Mapping[str, Any]) -> Facts:
    levels = tuple(tuple(map(str, names)) for names in payload["levels"])
    return Facts(tuple(map(bool, payload["present"])), tuple(map(bool, payload["gaps"])), levels)


def write_fill_values(fill_values: FillValues, numbers: Sequence[int], categories: Sequence[str]) -> Plain:
    """Only for the requested columns."""
    fill_values = with_enough(fill_values)
    requested = np.zeros(len(fill_values.fill), dtype=bool)
    requested[list(numbers)] = True
    return {
        "fill": np.where(requested, fill_values.fill, 0.0).tolist(),
        "counts": np.where(requested, fill_values.counts, 0).tolist(),
        "levels": {name: dict(levels) for name, levels in fill_values.levels.items() if name in categories},
    }


def read_fill_values(payload: Mapping[str, Any]) -> FillValues:
    return FillValues(
        np.array(payload["fill"], dtype=float), np.array(payload["counts"], dtype=np.int64), payload["levels"]
    )


def write_moments(moments: Moments) -> Plain:
    return {"count": moments.count.tolist(), "total": moments.total.tolist(), "squares": moments.squares.tolist()}


def read_moments(payload: Mapping[str, Any]) -> Moments:
    count = np.array(payload["count"], dtype=np.int64)
    return Moments(count, np.array(payload["total"], dtype=float), np.array(payload["squares"], dtype=float))


def write_common(common: Common) -> Plain:
    scale = None if common.scale is None else [part.tolist() for part in common.scale]
    return {"fill": common.fill.tolist(), "level": dict(common.level), "scale": scale}


def read_common(payload: Mapping[str, Any]) -> Common:
    scale = payload["scale"]
    return Common(
        np.array(payload["fill"], dtype=float),
        dict(payload["level"]),
        None if scale is None else (np.array(scale[0], dtype=float), np.array(scale[1], dtype=float)),
    )


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


def inverted_labels(study: Study, task: Task, directions: Mapping[str, Mapping[str, Any]]) -> list[Notice]:
    """Refuse inverted labels; if the study accepts them, they are a warning."""
    by_site = {
        site: {str(name): _read_direction(payload) for name, payload in columns.items()}
        for site, columns in directions.items()
    }
    notices = [Notice("label-not-compared", "warning", site) for site in uncompared(by_site) if any(by_site.values())]
    notices += accepted(direction_notices(opposites(by_site), task), study.evaluation.accept)
    refuse_errors(notices, HOW_TO_ACCEPT)
    return notices


def _read_direction(payload: Sequence[float]) -> Association:
    """Without the number of rows, which a site does not send."""
    effect, error = (float(number) for number in payload)
    if not -0.5 <= effect <= 0.5 or not 0 < error < 1:
        raise ValueError("no direction of a column")
    return Association(effect, error, 0, 0)


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


Answers = dict[str, Message]
OWN_COLUMNS = (1,)  # placeholder for the shape of rows that only their site knows; no shared weight depends on it


@dataclass(frozen=True)
class SiteFacts:
    """Facts by site. Those of regions, each for all of its sites, are asked for the same."""

    plan: DeployedPlan
    known: Mapping[str, Mapping[Key, Any]]  # by site and set of rows
    targets: Mapping[str, Mapping[Key, Sequence[Exact]]]  # sums of the target, by site and kind of arm

    def contributors(self, arm: Arm) -> list[str]:
        """Those whose training rows determine the preparation of an arm."""
        return members_of(arm, self.plan.sites)

    def facts(self, name: str, kind: Key) -> Facts:
        facts: Facts = self.known[name][self.plan.rows_of(kind)]
        return facts

    def present(self, kind: Key) -> list[Sequence[bool]]:
        """For every participant, whether each column has a value."""
        return [self.facts(name, kind).present for name in self.known]

    def train_rows(self, name: str) -> int:
        """The largest number of training rows in any arm."""
        return most_train_rows(self.plan, [name])

    def trains(self, name: str, kind: Key) -> bool:
        """Whether sums over training rows are requested."""
        return True


@dataclass(frozen=True)
class Federation:
    plan: DeployedPlan
    described: Mapping[str, Mapping[str, Any]]  # each site's own counts
    prepare: Message  # what every site is sent
    notices: tuple[Notice, ...]


def agree_on(study: Study, families: Families, ready: Answers, ask: Any, run: str) -> Generator[Any, None, Federation]:
    """`ready` are the sites' first answers, in the order of the sites; `ask` sends one message to all of them."""
    sites = list(ready)
    task = common_task(ready)
    columns, notices = common_columns({site: message.body["columns"] for site, message in ready.items()})
    inputs = None if columns else common_inputs(study, ready)
    refuse_unpaid_scale(study, task)
    plan = coordinator_plan(study, families, sites, task)

    def check(site: str, answer: Message) -> None:
        check_facts(site, answer.body, plan, columns, sites)

    answers = yield from ask(Message("facts", {"run": run, "columns": _column_payload(columns)}), check)
    row_sets = {site: dict(zip(plan.row_sets, answer.body["sets"], strict=True)) for site, answer in answers.items()}
    described = {site: answer.body["described"] for site, answer in answers.items()}
    notices += inverted_labels(study, task, {site: answer.body["directions"] for site, answer in answers.items()})
    for kind in plan.kinds:
        sizes = {site: split_sizes(row_sets[site][plan.rows_of(kind)]) for site in sites}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), split_sizes=sizes)
    facts = {
        site: {key: _facts(payload["facts"]) for key, payload in payloads.items()}
        for site, payloads in row_sets.items()
    }
    targets = {
        site: {kind: [[number] for number in row_sets[site][plan.rows_of(kind)]["target"]] for kind in plan.kinds}
        for site in sites
    }
    prepare = yield from agree_on_layouts(plan, columns, inputs, SiteFacts(plan, facts, targets), ask, run)
    return Federation(plan, described, prepare, (*notices, *dominant_sites(plan)))


def agree_on_layouts(
    plan: DeployedPlan, columns: Sequence[Column], inputs: list[Any] | None, facts: SiteFacts, ask: Any, run: str
) -> Generator[Any, None, Message]:
    """The message `prepare`: the columns of each kind of arm, and values that some sites take from others."""
    body: dict[str, Any] = {"run": run, "columns": _column_payload(columns), "layouts": []}
    body["of"] = [None] * len(plan.kinds)
    body["inputs"] = inputs
    body["target_scales"] = _target_scales(plan, facts)
    commons: list[Common | None] = [None] * len(plan.kinds)
    if columns:
        layouts, requests = _choose_layouts(plan, columns, facts, body)
        fill_values = yield from _ask_for_fill_values(plan, requests, facts, body, ask)
        commons = _fill_values(plan, layouts, fill_values, facts)
        commons = yield from _scales(plan, body, commons, facts, ask)
        for kind, layout, common in zip(plan.kinds, layouts, commons, strict=True):
            if layout is not None:
                agreed = plan.agreed[kind]
                plan.agreed[kind] = replace(agreed, inputs=(len(layout.names),), layout=layout, common=common)
    body["commons"] = _common_payloads(commons)
    return Message("prepare", body)


def _target_scales(plan: DeployedPlan, facts: SiteFacts) -> list[list[float]]:
    """By kind of arm, from the sums of those who train in it; or that of the model from which its training starts."""
    for kind in plan.kinds:
        arm = plan.study.arm(kind[0])
        carried = plan.carried_scale(arm, kind[1])
        scale = scale_of(plan.task, [facts.targets[name][kind] for name in facts.contributors(arm)])
        plan.agreed[kind] = replace(plan.agreed[kind], target_scale=scale if carried is None else carried)
    return [list(plan.agreed[kind].target_scale) for kind in plan.kinds]


def _column_payload(columns: Sequence[Column]) -> list[Plain] | None:
    """None for images."""
    return [write_column(column) for column in columns] or None


def _common_payloads(commons: Sequence[Common | None]) -> list[Plain | None]:
    return [None if common is None else write_common(common) for common in commons]


def most_train_rows(plan: DeployedPlan, sites: Collection[str]) -> int:
    """The largest total over these sites in any arm."""
    return max(sum(agreed.split_sizes[site]["train"] for site in sites) for agreed in plan.agreed.values())


def split_sizes(counts: Mapping[str, Any]) -> dict[str, int]:
    return {part: counts[part] for part in SPLIT_PARTS}


def _facts(payload: Any) -> Facts:
    return Facts((), (), ()) if payload is None else read_facts(payload)


def write_federation(federation: Federation) -> dict[str, Any]:
    """As plain data, so that a resumed run need not ask the sites again."""
    plan = federation.plan
    return {
        "task": plan.task.to_json(),
        "split_sizes": [dict(plan.agreed[kind].split_sizes) for kind in plan.kinds],
        "described": {site: dict(counts) for site, counts in federation.described.items()},
        "prepare": dict(federation.prepare.body),
        "notices": [notice.to_json() for notice in federation.notices],
    }


def read_federation(payload: Mapping[str, Any], study: Study, families: Families, sites: Sequence[str]) -> Federation:
    plan = coordinator_plan(study, families, sites, read_task(payload["task"]))
    body = payload["prepare"]
    plan.agreed = {
        kind: replace(agreed, split_sizes=sizes)
        for (kind, agreed), sizes in zip(agreed_of(plan, body).items(), payload["split_sizes"], strict=True)
    }
    return Federation(plan, payload["described"], Message("prepare", body), tuple(map(read_notice, payload["notices"])))


def agreed_of(plan: DeployedPlan, body: Mapping[str, Any]) -> dict[Key, Agreed]:
    layouts = [read_layout(layout) for layout in body["layouts"]]
    agreed = {}
    by_kind = zip(plan.kinds, body["of"], body["commons"], body["target_scales"], strict=True)
    for kind, place, common, target_scale in by_kind:
        scale = read_target_scale(plan.task, target_scale)
        if place is None:
            agreed[kind] = Agreed(tuple(map(int, body["inputs"] or OWN_COLUMNS)), target_scale=scale)
        else:
            inputs = (len(layouts[place].names),)
            agreed[kind] = Agreed(inputs, layouts[place], read_common(common), scale)
    return agreed


def read_target_scale(task: Task, scale: Sequence[float]) -> tuple[float, ...]:
    """DeployError where the task has no such scale."""
    try:
        task.check_scale(scale)
    except Impossible as error:
        raise DeployError("coordinator", f"sends {error}", "Install the same version everywhere.") from None
    return tuple(map(float, scale))


def _choose_layouts(
    plan: DeployedPlan, columns: Sequence[Column], facts: SiteFacts, body: dict[str, Any]
) -> tuple[list[Layout | None], list[dict[str, list[Any]]]]:
    """By kind of arm: its layout, None where each site has its own columns; and the columns that some site lacks.

    `body` lists each different layout once; most studies have few.
    """
    layouts: list[Layout | None] = []
    requests: list[dict[str, list[Any]]] = []
    distinct: list[Layout] = []
    for number, kind in enumerate(plan.kinds):
        arm = plan.study.arm(kind[0])
        if arm.preparation.schema == "own":
            plan.agreed[kind] = replace(plan.agreed[kind], inputs=OWN_COLUMNS)
            layouts.append(None)
            requests.append({"numbers": [], "categories": []})
            continue
        layout = layout_of(columns, [facts.facts(name, kind) for name in facts.contributors(arm)], arm.preparation)
        if layout not in distinct:
            distinct.append(layout)
        body["of"][number] = distinct.index(layout)
        layouts.append(layout)
        requests.append(_lacking(layout, columns, facts.present(kind)))
    body["layouts"] = [write_layout(layout) for layout in distinct]
    return layouts, requests


def _ask_for_fill_values(
    plan: DeployedPlan, requests: list[dict[str, list[Any]]], facts: SiteFacts, body: Mapping[str, Any], ask: Any
) -> Generator[Any, None, dict[str, list[FillValues]]]:
    """Values for columns that some site lacks, by contributor; empty where no site lacks any."""
    if not any(request["numbers"] or request["categories"] for request in requests):
        return {}

    def check(site: str, answer: Message) -> None:
        check_fill_values(
            answer.body["fill_values"], plan, requests, body["of"], body["layouts"], facts.train_rows(site)
        )

    answers = yield from ask(Message("fill_values", {**_layout_fields(body), "missing": requests}), check)
    return {
        site: [read_fill_values(payload) for payload in answer.body["fill_values"]] for site, answer in answers.items()
    }


def _fill_values(
    plan: DeployedPlan,
    layouts: Sequence[Layout | None],
    fill_values: Mapping[str, Sequence[FillValues]],
    facts: SiteFacts,
) -> list[Common | None]:
    commons: list[Common | None] = []
    for number, (kind, layout) in enumerate(zip(plan.kinds, layouts, strict=True)):
        if layout is None:
            commons.append(None)
            continue
        columns = len(layout.numeric)
        nothing = FillValues(np.zeros(columns), np.zeros(columns, dtype=np.int64), {})
        contributors = facts.contributors(plan.study.arm(kind[0]))
        commons.append(common_of([fill_values[name][number] if fill_values else nothing for name in contributors]))
    return commons


def _scales(
    plan: DeployedPlan, body: Mapping[str, Any], commons: list[Common | None], facts: SiteFacts, ask: Any
) -> Generator[Any, None, list[Common | None]]:
    arms = [plan.study.arm(name) for name, _ in plan.kinds]
    if not any(arm.preparation.scale == "federated" for arm in arms):
        return commons

    def check(site: str, answer: Message) -> None:
        rows = facts.train_rows(site)
        check_moments(
            answer.body["moments"], plan, body["of"], body["layouts"], rows, lambda kind: facts.trains(site, kind)
        )

    request = Message("moments", {**_layout_fields(body), "commons": _common_payloads(commons)})
    answers = yield from ask(request, check)
    moments: dict[str, list[Moments | None]] = {
        site: [None if payload is None else read_moments(payload) for payload in answer.body["moments"]]
        for site, answer in answers.items()
    }
    scaled: list[Common | None] = []
    for number, (arm, common) in enumerate(zip(arms, commons, strict=True)):
        parts = [moments[name][number] for name in facts.contributors(arm)]
        known = [part for part in parts if part is not None]
        scaled.append(replace(common, scale=common_scale(known)) if known and common is not None else common)
    return scaled


def _layout_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("run", "layouts", "of")}


def _lacking(layout: Layout, columns: Sequence[Column], present: Sequence[Sequence[bool]]) -> dict[str, list[Any]]:
    """Columns without a value in some site's training rows. Only these are asked about."""
    lacking = {column.name for i, column in enumerate(columns) if not all(row[i] for row in present)}
    return {
        "numbers": [place for place, column in enumerate(layout.numeric) if column.name in lacking],
        "categories": [name for name in layout.levels if name in lacking],
    }


def common_columns(columns_by_site: Mapping[str, Any]) -> tuple[list[Column], list[Notice]]:
    """One list for all, in the order of the first site; a column that a site lacks counts as missing there."""
    tables = {
        site: {c["name"]: read_column(c) for c in columns} for site, columns in columns_by_site.items() if columns
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


def read_payload(payload: Mapping[str, Any], unnamed: str = UNNAMED) -> Task:
    """StudyError where it is no task."""
    names = [entry["name"] or unnamed for entry in payload["names"]]
    return read_task({**payload["options"], "kind": payload["kind"], "names": names})


def common_task(ready: Answers) -> Task:
    """The same at every site. A name that one site withholds is known from another, or the run cannot begin."""
    payloads = {site: message.body["task"] for site, message in ready.items()}
    refuse_other_tasks(payloads)
    merged = merged_payload(payloads)
    if not all(entry["name"] for entry in merged["names"]):
        problem = "a class has too few rows to be named at any site"
        raise DeployError("target", problem, "Correct the target, or leave the rows of that class out.")
    return read_payload(merged)


def merged_payload(payloads: Mapping[str, Any]) -> Plain:
    """Of sites with the same task, with the names that any of them tells."""
    first = next(iter(payloads.values()))
    by_place = zip(*(payload["names"] for payload in payloads.values()), strict=True)
    names = [next((entry for entry in entries if entry["name"]), entries[0]) for entries in by_place]
    return {**first, "names": names}


def refuse_other_tasks(payloads: Mapping[str, Any]) -> None:
    """Disagreement, which names a hospital and says what is predicted there and what elsewhere. What the column of a
    number is called is each hospital's own, as it is for classes."""

    def problem(site: str, other: str) -> str:
        here, there = (read_payload(payloads[name]).words for name in (site, other))
        unnamed = "; the class that is not named is another one" if here == there else ""
        return f"it predicts {here}, and {other} predicts {there}{unnamed}"

    meant = {
        site: (
            payload["kind"],
            payload["options"],
            [entry["hash"] for entry in payload["names"] if read_payload(payload).answers != "number"],
        )
        for site, payload in payloads.items()
    }
    remedy = "Write the same in [data] of all site files: target, task, and `positive`, `classes` or `findings`."
    refuse_outlier(meant, problem, remedy)


def common_inputs(study: Study, ready: Answers) -> list[Any]:
    """The shape of images. Where each site has its own columns, their number is not asked for."""
    inputs = {site: message.body["inputs"] for site, message in ready.items()}
    if all(arm.preparation.schema == "own" for arm in study.trained_arms):
        images = next((site for site, shape in inputs.items() if shape is not None), None)
        if images is not None:
            problem = "has images where the study is about columns"
            raise disagreement({images: problem}, "Correct [data] in its site file.")
        return list(OWN_COLUMNS)
    shapes = {site: _listed(shape) for site, shape in inputs.items()}
    refuse_outlier(
        inputs,
        lambda site, other: f"its images are of another size ({shapes[site]}) than at {other} ({shapes[other]})",
        "Correct [data] in one of the site files (for tables: `positive`, `classes`).",
    )
    return list(next(iter(inputs.values())))


def _listed(values: Any) -> str:
    return ", ".join(map(str, values)) if values else "none"
