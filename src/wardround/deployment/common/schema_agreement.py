"""What sites agree on, as plain data for a message and back. Floats survive JSON to the last bit."""

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from wardround.core.errors import DeployError
from wardround.core.notices import Notice, line_of
from wardround.data.agreement import Common, Facts, Lent, Moments, common_of, common_scale, layout_of, with_enough
from wardround.data.checks.before_training import accepted, direction_notices, refuse_errors
from wardround.data.checks.label_direction import Association, opposites, uncompared
from wardround.data.clinical_names import SAME
from wardround.data.prepare import Layout
from wardround.data.records import SIDES, Column
from wardround.data.serialization import Plain, read_column, read_layout, write_column, write_layout
from wardround.deployment.common.answer_checks import check_facts, check_lent, check_moments, dominant_sites
from wardround.deployment.common.deployed_plan import Agreed, DeployedPlan, Key, coordinator_plan
from wardround.protocol.messages import Message
from wardround.runs.plan import members_of
from wardround.study.parser import Families
from wardround.study.schema import Arm, Study


def write_facts(facts: Facts) -> Plain:
    return {
        "present": list(facts.present),
        "gaps": list(facts.gaps),
        "levels": [list(levels) for levels in facts.levels],
    }


def read_facts(told: Mapping[str, Any]) -> Facts:
    levels = tuple(tuple(map(str, one)) for one in told["levels"])
    return Facts(tuple(map(bool, told["present"])), tuple(map(bool, told["gaps"])), levels)


def write_lent(lent: Lent, numbers: Sequence[int], categories: Sequence[str]) -> Plain:
    """Only of the columns that somebody asked for; nothing is said of the others."""
    lent = with_enough(lent)
    asked = np.zeros(len(lent.fill), dtype=bool)
    asked[list(numbers)] = True
    return {
        "fill": np.where(asked, lent.fill, 0.0).tolist(),
        "counts": np.where(asked, lent.counts, 0).tolist(),
        "levels": {name: dict(levels) for name, levels in lent.levels.items() if name in categories},
    }


def read_lent(told: Mapping[str, Any]) -> Lent:
    return Lent(np.array(told["fill"], dtype=float), np.array(told["counts"], dtype=np.int64), told["levels"])


def write_moments(moments: Moments) -> Plain:
    return {"count": moments.count.tolist(), "total": moments.total.tolist(), "squares": moments.squares.tolist()}


def read_moments(told: Mapping[str, Any]) -> Moments:
    count = np.array(told["count"], dtype=np.int64)
    return Moments(count, np.array(told["total"], dtype=float), np.array(told["squares"], dtype=float))


def write_common(common: Common) -> Plain:
    scale = None if common.scale is None else [part.tolist() for part in common.scale]
    return {"fill": common.fill.tolist(), "level": dict(common.level), "scale": scale}


def read_common(told: Mapping[str, Any]) -> Common:
    scale = told["scale"]
    return Common(
        np.array(told["fill"], dtype=float),
        dict(told["level"]),
        None if scale is None else (np.array(scale[0], dtype=float), np.array(scale[1], dtype=float)),
    )


HOW_TO_ACCEPT = (
    'If it is meant, accept it knowingly: `accept = ["{}"]` in [evaluation]; that is another study, which hospitals '
    "approve anew."
)


def direction_payload(found: Mapping[str, Association], only_public: bool) -> dict[str, list[float]]:
    return {
        name: [round(one.effect, 2), max(round(one.error, 3), 0.001)]
        for name, one in found.items()
        if name in SAME or not only_public
    }


def inverted_labels(study: Study, classes: Sequence[str], told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Refused, unless the study accepts it knowingly; then a warning."""
    by_site = {
        site: {str(name): _read_direction(one) for name, one in directions.items()} for site, directions in told.items()
    }
    notices = [Notice("label-not-compared", "warning", site) for site in uncompared(by_site) if any(by_site.values())]
    notices += accepted(direction_notices(opposites(by_site), classes), study.evaluation.accept)
    refuse_errors(notices, HOW_TO_ACCEPT)
    return list(map(line_of, notices))


def _read_direction(told: Sequence[float]) -> Association:
    """How many rows are behind it is not told."""
    effect, error = (float(number) for number in told)
    if not -0.5 <= effect <= 0.5 or not 0 < error < 1:
        raise ValueError("no direction of a column")
    return Association(effect, error, 0, 0)


Step = TypeVar("Step")
Answers = dict[str, Message]
OWN_COLUMNS = (1,)  # what stands for the shape of rows that only their site knows; no shared weight depends on it


class FactSource(Protocol):
    """The facts that somebody told: each site its own, or each region those of its sites together."""

    def contributors(self, arm: Arm) -> list[str]:
        """Whose training rows an arm is prepared by."""

    def facts(self, name: str, kind: Key) -> Facts: ...

    def present(self, kind: Key) -> list[Sequence[bool]]:
        """Of everybody who takes part: whether there is a value in each column."""

    def train_rows(self, name: str) -> int:
        """The most training rows that somebody has in any arm."""

    def trains(self, name: str, kind: Key) -> bool:
        """Whether somebody is asked for sums over training rows."""


@dataclass(frozen=True)
class SiteFacts:
    plan: DeployedPlan
    known: Mapping[str, Mapping[Key, Facts]]  # by site and set of rows

    def contributors(self, arm: Arm) -> list[str]:
        return members_of(arm, self.plan.sites)

    def facts(self, name: str, kind: Key) -> Facts:
        return self.known[name][self.plan.rows_of(kind)]

    def present(self, kind: Key) -> list[Sequence[bool]]:
        return [self.facts(name, kind).present for name in self.known]

    def train_rows(self, name: str) -> int:
        return most_train_rows(self.plan, [name])

    def trains(self, name: str, kind: Key) -> bool:
        return True


@dataclass(frozen=True)
class Federation:
    """What is known before the first round."""

    plan: DeployedPlan
    described: Mapping[str, Mapping[str, Any]]  # each site's own counts
    prepare: Message  # what every site is told
    warnings: tuple[str, ...]


def agree_on(study: Study, families: Families, ready: Answers, ask: Any, run: str) -> Generator[Any, None, Federation]:
    """`ready` are the sites' first answers, in the order of the sites; `ask` sends one message to all of them."""
    sites = list(ready)
    classes, findings = common_classes(ready), with_findings(ready)
    columns, warnings = common_columns({site: message.body["columns"] for site, message in ready.items()})
    inputs = None if columns else common_inputs(study, ready)
    plan = coordinator_plan(study, families, sites, classes, with_findings=findings)
    written = [write_column(column) for column in columns] or None

    def check(site: str, answer: Message) -> None:
        check_facts(site, answer.body, plan, columns, sites)

    told = yield from ask(Message("facts", {"run": run, "columns": written}), check)
    sets = {site: dict(zip(plan.row_sets, answer.body["sets"], strict=True)) for site, answer in told.items()}
    described = {site: answer.body["described"] for site, answer in told.items()}
    warnings += inverted_labels(study, classes, {site: answer.body["directions"] for site, answer in told.items()})
    for kind in plan.kinds:
        sides = {site: rows_by_side(sets[site][plan.rows_of(kind)]) for site in sites}
        plan.agreed[kind] = Agreed(tuple(inputs or ()), sides=sides)
    facts = {site: {key: _facts(one["facts"]) for key, one in told.items()} for site, told in sets.items()}
    prepare = yield from agree_on_layouts(plan, columns, inputs, SiteFacts(plan, facts), ask, run)
    return Federation(plan, described, prepare, (*warnings, *dominant_sites(plan)))


def agree_on_layouts(
    plan: DeployedPlan, columns: Sequence[Column], inputs: list[Any] | None, told: FactSource, ask: Any, run: str
) -> Generator[Any, None, Message]:
    """What everybody is told: the columns of each kind of arm, and what some have from others."""
    written = [write_column(column) for column in columns] or None
    body: dict[str, Any] = {"run": run, "columns": written, "layouts": [], "of": [None] * len(plan.kinds)}
    body["inputs"] = inputs
    commons: list[Any] = [None] * len(plan.kinds)
    if columns:
        yield from _layouts(plan, columns, told, body, commons, ask)
    body["commons"] = commons
    return Message("prepare", body)


def most_train_rows(plan: DeployedPlan, sites: Collection[str]) -> int:
    """That these sites have together in any arm."""
    return max(sum(agreed.sides[site]["train"] for site in sites) for agreed in plan.agreed.values())


def rows_by_side(told: Mapping[str, Any]) -> dict[str, int]:
    return {side: told[side] for side in SIDES}


def _facts(told: Any) -> Facts:
    """Of images there are none."""
    return Facts((), (), ()) if told is None else read_facts(told)


def write_federation(federation: Federation) -> dict[str, Any]:
    """As plain data, so that a run goes on without asking again."""
    plan = federation.plan
    return {
        "classes": list(plan.classes),
        "findings": plan.has_findings,
        "sides": [dict(plan.agreed[kind].sides) for kind in plan.kinds],
        "described": {site: dict(one) for site, one in federation.described.items()},
        "prepare": dict(federation.prepare.body),
        "warnings": list(federation.warnings),
    }


def read_federation(told: Mapping[str, Any], study: Study, families: Families, sites: Sequence[str]) -> Federation:
    plan = coordinator_plan(study, families, sites, told["classes"], with_findings=bool(told.get("findings")))
    body = told["prepare"]
    plan.agreed = {
        kind: replace(agreed, sides=sides)
        for (kind, agreed), sides in zip(agreed_of(plan, body).items(), told["sides"], strict=True)
    }
    return Federation(plan, told["described"], Message("prepare", body), tuple(told["warnings"]))


def agreed_of(plan: DeployedPlan, body: Mapping[str, Any]) -> dict[Key, Agreed]:
    """What a message `prepare` says of every kind of arm."""
    layouts = [read_layout(layout) for layout in body["layouts"]]
    found = {}
    for kind, place, common in zip(plan.kinds, body["of"], body["commons"], strict=True):
        if place is None:
            found[kind] = Agreed(tuple(map(int, body["inputs"] or OWN_COLUMNS)))
        else:
            found[kind] = Agreed((len(layouts[place].names),), layouts[place], read_common(common))
    return found


def _layouts(
    plan: DeployedPlan,
    columns: Sequence[Column],
    told: FactSource,
    body: dict[str, Any],
    commons: list[Any],
    ask: Any,
) -> Generator[Any, None, None]:
    """Fill in the plan, and what sites are told of it. Most studies have few different layouts."""
    layouts: list[Layout] = []
    asked: list[dict[str, list[Any]]] = []
    for number, kind in enumerate(plan.kinds):
        arm = plan.study.arm(kind[0])
        if arm.preparation.schema == "own":
            plan.agreed[kind] = replace(plan.agreed[kind], inputs=OWN_COLUMNS)
            asked.append({"numbers": [], "categories": []})
            continue
        layout = layout_of(columns, [told.facts(name, kind) for name in told.contributors(arm)], arm.preparation)
        if layout not in layouts:
            layouts.append(layout)
        body["of"][number] = layouts.index(layout)
        asked.append(_lacking(layout, columns, told.present(kind)))
    body["layouts"] = [write_layout(layout) for layout in layouts]
    lent: dict[str, list[Lent]] = {}
    if any(one["numbers"] or one["categories"] for one in asked):

        def check(site: str, answer: Message) -> None:
            check_lent(answer.body["lent"], plan, asked, body["of"], body["layouts"], told.train_rows(site))

        answers = yield from ask(Message("lend", {**_told(body), "asked": asked}), check)
        lent = {site: [read_lent(one) for one in answer.body["lent"]] for site, answer in answers.items()}
    found: list[Common | None] = []
    for number, kind in enumerate(plan.kinds):
        if body["of"][number] is None:
            found.append(None)
            continue
        layout = layouts[body["of"][number]]
        nothing = Lent(*_zeros(layout), {})
        contributors = told.contributors(plan.study.arm(kind[0]))
        found.append(common_of([lent[name][number] if lent else nothing for name in contributors]))
    found = yield from _scales(plan, body, found, told, ask)
    for number, kind in enumerate(plan.kinds):
        common = found[number]
        if common is None:
            continue
        layout = layouts[body["of"][number]]
        plan.agreed[kind] = replace(plan.agreed[kind], inputs=(len(layout.names),), layout=layout, common=common)
        commons[number] = write_common(common)


def _scales(
    plan: DeployedPlan, body: Mapping[str, Any], found: list[Common | None], told: FactSource, ask: Any
) -> Generator[Any, None, list[Common | None]]:
    arms = [plan.study.arm(name) for name, _ in plan.kinds]
    if not any(arm.preparation.scale == "federated" for arm in arms):
        return found
    commons = [None if one is None else write_common(one) for one in found]

    def check(site: str, answer: Message) -> None:
        rows = told.train_rows(site)
        check_moments(
            answer.body["moments"], plan, body["of"], body["layouts"], rows, lambda kind: told.trains(site, kind)
        )

    answers = yield from ask(Message("moments", {**_told(body), "commons": commons}), check)
    given: dict[str, list[Moments | None]] = {
        site: [None if one is None else read_moments(one) for one in answer.body["moments"]]
        for site, answer in answers.items()
    }
    scaled: list[Common | None] = []
    for number, (arm, common) in enumerate(zip(arms, found, strict=True)):
        parts = [given[name][number] for name in told.contributors(arm)]
        known = [part for part in parts if part is not None]
        scaled.append(replace(common, scale=common_scale(known)) if known and common is not None else common)
    return scaled


def _told(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("run", "layouts", "of")}


def _zeros(layout: Layout) -> tuple[Any, Any]:
    import numpy as np

    return np.zeros(len(layout.numeric)), np.zeros(len(layout.numeric), dtype=np.int64)


def _lacking(layout: Layout, columns: Sequence[Column], present: Sequence[Sequence[bool]]) -> dict[str, list[Any]]:
    """Columns that some site has no value of in its training rows: only of these anything is asked."""
    lacking = {column.name for i, column in enumerate(columns) if not all(one[i] for one in present)}
    return {
        "numbers": [place for place, column in enumerate(layout.numeric) if column.name in lacking],
        "categories": [name for name in layout.levels if name in lacking],
    }


def common_columns(told: Mapping[str, Any]) -> tuple[list[Column], list[str]]:
    """One list for all, in the order of the first site; a column that a site lacks counts as missing there."""
    tables = {site: {c["name"]: read_column(c) for c in columns} for site, columns in told.items() if columns}
    if not tables:
        return [], []
    if len(tables) < len(told):
        most = majority_site({site: bool(columns) for site, columns in told.items()})
        site = next(site for site in told if (site in tables) != (most in tables))
        has = f"has images where {most} has a table" if most in tables else f"has a table where {most} has images"
        raise DeployError(site, has, "Give all sites data of the same form.")
    found: list[Column] = []
    warnings = []
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        having = {site: table[name] for site, table in tables.items() if name in table}
        first_site = majority_site({site: column.kind for site, column in having.items()})
        first = having[first_site]
        for site, column in having.items():
            if column.kind != first.kind:
                problem = f"{name!r} is {column.kind} here and {first.kind} at {first_site}"
                remedy = "Declare its type under `types` in [data] of one of the site files."
                raise DeployError(site, problem, remedy)
        limits = next((column.limits for column in having.values() if column.limits), None)
        coded = all(column.coded for column in having.values())
        found.append(Column(name, first.kind, limits, coded, _levels(name, having)))
        lacking = [site for site in tables if site not in having]
        if lacking:
            warnings.append(f"{', '.join(lacking)}: {name!r} is not recorded, or has no value, and counts as missing")
    return found, warnings


def _levels(name: str, having: Mapping[str, Column]) -> tuple[str, ...] | None:
    """Those that are declared, which must be the same wherever they are."""
    declared = {site: column.levels for site, column in having.items() if column.levels is not None}
    for site, levels in declared.items():
        first = majority_site({one: sorted(others) for one, others in declared.items()})
        if set(levels) != set(declared[first]):
            problem = f"{name!r} has other declared levels here than at {first}"
            raise DeployError(site, problem, "Declare the same under `levels` in [data] of the site files.")
    return next(iter(declared.values()), None)


def majority_site(values: Mapping[str, Any]) -> str:
    """A site that says what most say, the first where as many say otherwise: one that differs must not decide."""
    said = [repr(value) for value in values.values()]
    return max(values, key=lambda site: said.count(repr(values[site])))


def with_findings(ready: Answers) -> bool:
    """Whether a row may have several findings, which must be so at every site or at none."""
    first = majority_site({site: _findings_at(message) for site, message in ready.items()})
    for site, message in ready.items():
        if _findings_at(message) != _findings_at(ready[first]):
            here, there = (_form(message), _form(ready[first]))
            problem = f"a row has {here} here, and {there} at {first}"
            raise DeployError(site, problem, "Give all sites labels of the same form: correct [data] in a site file.")
    return _findings_at(ready[first])


def _findings_at(message: Message) -> bool:
    return bool(message.body.get("findings", False))


def _form(message: Message) -> str:
    return "any number of findings" if _findings_at(message) else "one class"


def common_classes(ready: Answers) -> list[str]:
    """The same at every site. A name that one site withholds is known from another, or the run cannot begin."""
    findings = with_findings(ready)
    told = {site: message.body["classes"] for site, message in ready.items()}
    first = majority_site({site: [one["hash"] for one in classes] for site, classes in told.items()})
    for site, classes in told.items():
        if [one["hash"] for one in classes] != [one["hash"] for one in told[first]]:
            here, there = (_said([one["name"] or "one of too few rows" for one in told[s]]) for s in (site, first))
            if findings:
                problem = f"its rows have other findings ({here}) than at {first} ({there}), or in another order"
                raise DeployError(site, problem, "Write the same `findings` in [data] of both site files.")
            problem = f"its target has other classes ({here}) than at {first} ({there})"
            raise DeployError(site, problem, "Correct [data] in one of the site files (`positive`, `classes`).")
    names = []
    for place in range(len(told[first])):
        known = [classes[place]["name"] for classes in told.values() if classes[place]["name"]]
        if not known:
            problem = "a class has too few rows to be named at any site"
            raise DeployError("target", problem, "Correct the target, or leave the rows of that class out.")
        names.append(str(known[0]))
    return names


def _same(ready: Answers, name: str, problem: str) -> list[Any]:
    first = majority_site({site: message.body[name] for site, message in ready.items()})
    for site, message in ready.items():
        if message.body[name] != ready[first].body[name]:
            here, there = (_said(ready[one].body[name]) for one in (site, first))
            remedy = "Correct [data] in one of the site files (for tables: `positive`, `classes`)."
            raise DeployError(site, f"{problem} ({here}) than at {first} ({there})", remedy)
    return list(ready[first].body[name])


def common_inputs(study: Study, ready: Answers) -> list[Any]:
    """Of images; where each site has columns of its own, nobody asks how many."""
    if all(arm.preparation.schema == "own" for arm in study.trained_arms):
        images = next((site for site, message in ready.items() if message.body["inputs"] is not None), None)
        if images is not None:
            raise DeployError(images, "has images where the study is about columns", "Correct [data] in its site file.")
        return list(OWN_COLUMNS)
    return _same(ready, "inputs", "its images are of another size")


def _said(values: Any) -> str:
    return ", ".join(map(str, values)) if values else "none"
