"""From a TOML file, or the same content as a dict, to a `Study`. Errors name file, key and the nearest valid key.

The blocks of a study file are the fields of `Arm` and `Study` (`schema.SECTIONS`, `ARM_BLOCKS`, `STUDY_BLOCKS`): a new
block is a new field there, and needs nothing here unless a default depends on other blocks.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.in_memory import InMemory
from wardround.core.settings import Factory, Setting, parse, parse_settings, refuse_unknown, settings_of, table_type
from wardround.core.toml_files import read_toml, refuse_unplain
from wardround.study.analyses import AnalysedRows, read_analyses
from wardround.study.claims import Claim
from wardround.study.facts import AdversaryFacts, AlgorithmFacts, ModelFacts, SourceFacts, TaskFacts, facts_of
from wardround.study.robustness.contribution import Contribution
from wardround.study.schema import (
    ARM_BLOCKS,
    SECTIONS,
    STUDY_BLOCKS,
    Adversary,
    Arm,
    Choice,
    Evaluation,
    Section,
    Selection,
    Study,
    Variant,
    Varied,
    in_variant,
)
from wardround.study.sweeps import NAME, Point, flatten, known_member, points, set_path, usable_name
from wardround.study.tuning import Tuning, flat_space
from wardround.study.tuning_validation import check_tuning
from wardround.study.validation import check_whole

TABLES = (*SECTIONS, *ARM_BLOCKS, *STUDY_BLOCKS)
ADVERSARIES = "adversaries"
TOP = ("name", "question", *TABLES, "arms", "variants", ADVERSARIES, "analyses", "claims", "quick")
Chooser = TypeVar("Chooser", Selection, Tuning, Contribution)
VARY = "evaluation.vary"  # the only key outside of an arm's blocks that a variant may change


@dataclass(frozen=True)
class Families:
    """What a study may name: factories by name."""

    sources: Mapping[str, Factory]
    partitioners: Mapping[str, Factory]
    models: Mapping[str, Factory]
    algorithms: Mapping[str, Factory]
    rules: Mapping[str, Factory]
    tasks: Mapping[str, TaskFacts]  # by kind of outcome
    adversaries: Mapping[str, Factory]
    analyses: Mapping[str, Factory] = field(default_factory=dict)

    def task_of(self, source: SourceFacts) -> TaskFacts:
        """That of the study's first outcome."""
        return self.tasks[next(iter(source.tasks.values()))]


def read_study_file(path: Path) -> dict[str, Any]:
    return read_toml(path, "Give the path of a study file, or a name from `wardround studies`.")


def parse_study(
    raw: Mapping[str, Any],
    families: Families,
    where: str = "study",
    base: Path = Path(),
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """Plain data to a study. `quick` applies the `[quick]` block; `changes` are dotted keys that win over all."""
    refuse_unplain(raw, where)
    refuse_unplain(changes or {}, where)
    if raw and not any(key in TOP for key in raw):  # its keys are perhaps patients' names
        raise StudyError(where, f"is no study: found {shown(raw)}", suggest("", TOP, "A study has"))
    refuse_unknown(raw, TOP, where)
    study = _Reader(families, base).study(raw, where, quick, changes or {})
    check_whole(study, where, families.task_of(study.data.facts))
    check_tuning(study, families, where)
    return study


@dataclass(frozen=True)
class _Reader:
    families: Families
    base: Path  # of relative paths

    def study(self, raw: Mapping[str, Any], where: str, quick: bool, changes: Mapping[str, Any]) -> Study:
        tables = self.tables(raw, where, quick, changes)
        raw = _with_size_in_claims(raw) if quick else raw
        entries = _entries(raw, "arms", where)
        tables["evaluation"] = with_seeds(tables, entries, self.model_facts(tables))
        # before arms, so that errors name the key of the study and not that of its first arm
        members, blocks, resolved, rows = self.resolve(raw, tables, where)
        analyses = read_analyses(_entries(raw, "analyses", where), rows, self.families.analyses, where)
        refuse_unlabelled(members["data"].facts, bool(entries), where)
        if not entries and not analyses:
            remedy = "Add at least one [[arms]] table with `algorithm = ...`, or an [[analyses]] table."
            raise StudyError(f"{where}: arms", "missing", remedy)
        adversaries = self.adversaries(raw, where)
        arms = self.arms(entries, tables, adversaries, Variant(""), where)
        variants = []
        for entry in _entries(raw, "variants", where):
            variant, changed = self.variant(entry, tables, f"{where}: variants")
            variants.append(variant)
            here = f"{where}: variants: {variant.name}"
            own = self.adversaries(entry, here) if ADVERSARIES in entry else adversaries
            arms += self.arms(entries, changed, own, variant, here)
        task = self.families.task_of(members["data"].facts)
        evaluation: Evaluation = replace(blocks["evaluation"], metric=blocks["evaluation"].metric or task.primary)
        refuse_strange_metric(evaluation.metric, task, f"{where}: evaluation: metric")
        resolved["evaluation"] |= {"metric": evaluation.metric}
        if evaluation.reference is None:
            evaluation = replace(evaluation, reference=training_alone(arms))
            resolved["evaluation"] |= {} if evaluation.reference is None else {"reference": evaluation.reference}
        return Study(
            **blocks
            | {
                "evaluation": evaluation,
                "selection": with_metric(blocks["selection"], evaluation, task, f"{where}: selection"),
                "tuning": with_metric(blocks["tuning"], evaluation, task, f"{where}: tuning"),
                "contribution": with_metric(blocks["contribution"], evaluation, task, f"{where}: contribution"),
            },
            name=_name(raw.get("name"), f"{where}: name"),
            question=_text(raw.get("question", ""), f"{where}: question"),
            data=members["data"],
            arms=tuple(arms),
            analyses=analyses,
            variants=tuple(variants),
            claims=parse(tuple[Claim, ...], raw.get("claims", []), f"{where}: claims", self.base),
            resolved=resolved,
            quick=quick,
        )

    def tables(
        self, raw: Mapping[str, Any], where: str, quick: bool, changes: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """The study's tables with `[quick]` and `changes` applied. A block that may be left out is there if it is
        written, even empty."""
        if quick and "quick" not in raw:
            raise StudyError(
                f"{where}: quick", "missing", "This study has no [quick] block, so --quick has nothing to apply."
            )
        blocks = ARM_BLOCKS | STUDY_BLOCKS
        tables = {
            key: deepcopy(dict(_table(raw, key, where)))
            for key in TABLES
            if key in raw or key in SECTIONS or blocks[key].default is not None
        }
        smaller = flatten(_table(raw, "quick", where)) if quick else {}
        overrides = {**self.without_replaced(smaller, changes, tables, where), **changes}
        self.apply(overrides, tables, TABLES, where, "Sections")
        if isinstance(tables.get("tuning", {}).get("space"), Mapping):
            # in one order, however the file is written: what a method draws next may depend on it
            tables["tuning"]["space"] = dict(sorted(flat_space(tables["tuning"]["space"]).items()))
        source = self.source_facts(tables)
        default = "linear" if len(source.tasks) > 1 else self.families.task_of(source).linear_model
        if default != SECTIONS["model"].default:
            tables["model"].setdefault(SECTIONS["model"].tag, default)
        return tables

    def apply(
        self, overrides: Mapping[str, Any], tables: dict[str, Any], known: tuple[str, ...], where: str, title: str
    ) -> None:
        """Dotted keys into tables. Settings of a member that is replaced by another are dropped."""
        for key, section in SECTIONS.items():
            tables[key] = self.for_member(tables[key], section, overrides.get(f"{key}.{section.tag}"))
        for path, value in overrides.items():
            block = path.split(".", 1)[0]
            if "." not in path or (block not in known and path not in known):
                raise StudyError(f"{where}: {path}", "no such setting", suggest(block, known, title))
            set_path(tables, path, value, where)

    def variant(
        self, entry: Mapping[str, Any], tables: Mapping[str, Any], where: str
    ) -> tuple[Variant, dict[str, Any]]:
        """The variant and the study's tables with its changes."""
        own = {key: value for key, value in entry.items() if key in settings_of(Variant)}
        if isinstance(own.get("name"), str) and NAME.fullmatch(own["name"]):
            where = f"{where}: {own['name']}"
        variant: Variant = parse(Variant, own, where, self.base)
        usable_name(variant.name, f"{where}: name")
        changed = deepcopy(dict(tables))
        overrides = flatten({key: value for key, value in entry.items() if key not in (*own, ADVERSARIES)})
        known = (*SECTIONS, *ARM_BLOCKS, VARY, *settings_of(Variant))
        self.apply(overrides, changed, known, where, "A variant may set")
        return variant, changed

    def arms(
        self,
        entries: list[Mapping[str, Any]],
        tables: Mapping[str, Any],
        adversaries: tuple[Adversary, ...],
        variant: Variant,
        where: str,
    ) -> list[Arm]:
        """`adversaries` are those of arms that name none themselves."""
        default = settings_of(Evaluation)["vary"].default
        vary = parse(tuple[Varied, ...], tables["evaluation"].get("vary", default), f"{where}: {VARY}", self.base)
        arms = []
        for entry in entries:
            plainly = {key: value for key, value in entry.items() if key != ADVERSARIES}
            for point in points(plainly, self.families.algorithms, self.override_types(plainly, tables), where):
                if not variant.arms or point.family in variant.arms:
                    here = f"{where}: arms: {point.name}"
                    bad = self.adversaries(entry, here) if ADVERSARIES in entry else adversaries
                    arms.append(self.arm(point, tables, variant.name, vary, bad, here))
        return arms

    def adversaries(self, table: Mapping[str, Any], where: str) -> tuple[Adversary, ...]:
        """Of a study, a variant or an arm: it replaces what stands above it, and an empty list leaves all honest."""
        return tuple(
            self.adversary(entry, f"{where}: {ADVERSARIES}[{number}]")
            for number, entry in enumerate(_entries(table, ADVERSARIES, where))
        )

    def adversary(self, entry: Mapping[str, Any], where: str) -> Adversary:
        kind = known_member(entry.get("kind"), self.families.adversaries, f"{where}: kind")
        factory, common = self.families.adversaries[kind], settings_of(Adversary)
        own = settings_of(factory)
        common.pop("kind")
        given = {key: value for key, value in entry.items() if key != "kind"}
        values = parse_settings({**common, **own}, given, where, self.base)
        options = {name: values[name] for name in own}
        choice = Choice(kind, options, facts_of(AdversaryFacts, factory, options))
        return Adversary(kind=choice, **{name: values[name] for name in common})

    def arm(
        self,
        point: Point,
        tables: Mapping[str, Any],
        variant: str,
        vary: tuple[Varied, ...],
        adversaries: tuple[Adversary, ...],
        where: str,
    ) -> Arm:
        known = (*SECTIONS, *ARM_BLOCKS)
        changed = {key: deepcopy(table) for key, table in tables.items() if key in known}
        self.apply(point.overrides, changed, known, where, "Sections")
        factory = self.families.algorithms[point.algorithm]
        options = parse_settings(settings_of(factory), point.options, where, self.base)
        members, common = self.members(changed, where)
        return Arm(
            **members,
            **common,
            **self.blocks(ARM_BLOCKS, changed, where),
            name=in_variant(point.name, variant),
            family=point.family,
            variant=variant,
            algorithm=Choice(point.algorithm, options, facts_of(AlgorithmFacts, factory, options)),
            vary=vary,
            adversaries=adversaries,
            train_at=parse(tuple[str, ...], point.train_at or (), f"{where}: train_at", self.base),
        )

    def members(self, tables: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The member that each section names, and the blocks whose keys stand in the same table."""
        members, common = {}, {}
        for key, section in SECTIONS.items():
            members[key], values = self.member(section, tables[key], f"{where}: {key}")
            if section.common is not None:
                common[section.common_field] = section.common(**values)
        return members, common

    def member(self, section: Section, table: Mapping[str, Any], where: str) -> tuple[Choice[Any], dict[str, Any]]:
        """The named member with its options, and the values of the section's common keys."""
        family: Mapping[str, Factory] = getattr(self.families, section.family)
        name = known_member(table.get(section.tag, section.default), family, f"{where}: {section.tag}")
        own, common = settings_of(family[name]), section.common_settings
        given = {key: value for key, value in table.items() if key != section.tag}
        given = given if section.common is None else _switched(section.common, given)
        values = parse_settings({**common, **own}, given, where, self.base)
        options = {key: values[key] for key in own}
        return Choice(name, options, facts_of(section.facts, family[name], options)), {k: values[k] for k in common}

    def blocks(self, known: Mapping[str, Setting], tables: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {
            name: parse(block.kind, _switched(block.kind, tables[name]), f"{where}: {name}", self.base)
            if name in tables
            else None
            for name, block in known.items()
        }

    def for_member(
        self, table: dict[str, Any], section: Section, replacement: Any, current: str | None = None
    ) -> dict[str, Any]:
        """The table for another member: only settings that the new member has too are kept.

        `current` is the old member, if the table does not name it.
        """
        family: Mapping[str, Factory] = getattr(self.families, section.family)
        if not isinstance(replacement, str) or replacement not in family:
            return table
        if replacement == table.get(section.tag, current or section.default):
            return table
        known = {**section.common_settings, **settings_of(family[replacement])}
        return {name: value for name, value in table.items() if name in known and _fits(known[name].kind, value)}

    def without_replaced(
        self, quick: Mapping[str, Any], changes: Mapping[str, Any], tables: Mapping[str, Any], where: str
    ) -> dict[str, Any]:
        """The quick block, without its settings of members that `changes` replace."""
        nested: dict[str, Any] = {}
        for path, value in quick.items():
            set_path(nested, path, value, where)
        for key, section in SECTIONS.items():
            if isinstance(nested.get(key), dict):
                named = tables[key].get(section.tag)
                nested[key] = self.for_member(nested[key], section, changes.get(f"{key}.{section.tag}"), named)
        return flatten(nested)

    def override_types(self, entry: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
        """The type of every dotted key that this arm may override, given which members it names."""
        overrides = flatten(entry)
        types = {key: kind for name, block in ARM_BLOCKS.items() for key, kind in _keys(name, block.kind).items()}
        for key, section in SECTIONS.items():
            types[f"{key}.{section.tag}"] = str
            family = getattr(self.families, section.family)
            named = overrides.get(f"{key}.{section.tag}", tables[key].get(section.tag, section.default))
            for member in named if isinstance(named, list) else [named]:
                if isinstance(member, str) and member in family:
                    types |= {f"{key}.{name}": known.kind for name, known in settings_of(family[member]).items()}
            types |= {} if section.common is None else _keys(key, section.common)
        return types

    def model_facts(self, tables: Mapping[str, Any]) -> ModelFacts:
        """Of the study's model, before its settings are checked."""
        kind = tables["model"].get(SECTIONS["model"].tag, SECTIONS["model"].default)
        known = isinstance(kind, str) and kind in self.families.models
        return facts_of(ModelFacts, self.families.models[kind], tables["model"]) if known else ModelFacts()

    def source_facts(self, tables: Mapping[str, Any]) -> SourceFacts:
        """Of the study's source, before its settings are checked."""
        name = tables["data"].get(SECTIONS["data"].tag)
        known = isinstance(name, str) and name in self.families.sources
        return facts_of(SourceFacts, self.families.sources[name], tables["data"]) if known else SourceFacts()

    def resolve(
        self, raw: Mapping[str, Any], tables: Mapping[str, Any], where: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], AnalysedRows]:
        """Members and blocks of the study itself, the study as a file that reads back to the same hash with defaults
        written out, and the rows that its analyses look at. A block that has a default as a whole is written where the
        study has it."""
        members, common = self.members(tables, where)
        arm_blocks = self.blocks(ARM_BLOCKS, tables, where)
        study_blocks = self.blocks(STUDY_BLOCKS, tables, where)
        document: dict[str, Any] = {"name": raw.get("name"), "question": raw.get("question", "")}
        for key, section in SECTIONS.items():
            if section.optional and not tables.get(key):
                continue
            shared = asdict(common[section.common_field]) if section.common is not None else {}
            document[key] = {section.tag: members[key].name, **members[key].options, **shared}
        for name, block in (ARM_BLOCKS | STUDY_BLOCKS).items():
            value = (arm_blocks | study_blocks)[name]
            if block.required or tables.get(name) or (block.default is None and name in tables):
                document[name] = asdict(value) or None
        document |= {name: raw.get(name) for name in ("arms", "variants", ADVERSARIES, "analyses", "claims")}
        rows = AnalysedRows(members["data"], common["preparation"], members["sites"], arm_blocks["privacy"])
        return members, study_blocks, {key: value for key, value in plain(document).items() if value != {}}, rows


def _keys(prefix: str, kind: Any) -> dict[str, Any]:
    """The type of every dotted key below a block. A table that may be left out is also switched by a word."""
    types: dict[str, Any] = {}
    for name, setting in settings_of(table_type(kind)).items():
        inner = table_type(setting.kind)
        types[f"{prefix}.{name}"] = setting.kind if inner is None else Literal["off", "on"]
        types |= {} if inner is None else _keys(f"{prefix}.{name}", setting.kind)
    return types


def _switched(kind: Any, table: Any) -> Any:
    """A table with "off" in place of one that it may leave out, and "on" in place of one without required keys."""
    known = settings_of(table_type(kind))
    if not isinstance(table, Mapping):
        return table
    switched = {}
    for name, value in table.items():
        inner = table_type(known[name].kind) if name in known else None
        if inner is None or known[name].default is not None:
            switched[name] = value
        elif value == "on" and not any(setting.required for setting in settings_of(inner).values()):
            switched[name] = {}
        elif value != "off":
            switched[name] = _switched(inner, value)
    return switched


def _with_size_in_claims(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A smaller study says little about a published figure, so the text of each claim says that it is smaller."""
    if not isinstance(raw.get("claims"), list):
        return raw
    claims = [
        {**claim, "text": f"{claim['text']} [here at the quick size]"}
        if isinstance(claim, Mapping) and isinstance(claim.get("text"), str)
        else claim
        for claim in raw["claims"]
    ]
    return {**raw, "claims": claims}


def _table(raw: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: {key}", f"expected a table, found {shown(table)}", f"Write it as [{key}].")
    return table


def _entries(raw: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    entries = raw.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise StudyError(f"{where}: {key}", f"expected tables, found {shown(entries)}", f"Write each as [[{key}]].")
    return entries


def _fits(kind: Any, value: Any) -> bool:
    """One key may mean two things: hospitals are names to one source and a number to another."""
    try:
        parse(kind, value, "")
    except StudyError:
        return False
    return True


def plain(value: Any) -> Any:
    """Only what TOML and JSON can hold. None is left out, because TOML has no null."""
    if type(value) in (str, int, float, bool):  # nearly all of what it is asked for
        return value
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, InMemory):
        return value.mark
    return str(value) if isinstance(value, Path) else value


def _name(value: Any, where: str) -> str:
    if value is None:
        raise StudyError(where, "missing", 'Add `name = "..."`: it names the run folder.')
    return usable_name(value, where)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise StudyError(where, f"expected a text, found {shown(value)}", "Write it in quotes.")
    return value


def with_seeds(tables: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], model: ModelFacts) -> dict[str, Any]:
    """[evaluation] with a number of seeds, where it names none: as many as the kind of model affords, so that an answer
    has intervals; one where patients or hospitals are protected, because each seed spends epsilon."""
    evaluation: dict[str, Any] = tables["evaluation"]
    seeds = evaluation.get("seeds", {})
    if not isinstance(seeds, Mapping) or "count" in seeds:
        return evaluation
    keys = {key for arm in arms for key in flatten(arm)} | set(flatten({"privacy": tables["privacy"]}))
    spends = any(key.startswith(("privacy.example", "privacy.site")) for key in keys)
    return {**evaluation, "seeds": {**seeds, "count": 1 if spends else model.seeds}}


def refuse_unlabelled(source: SourceFacts, has_arms: bool, where: str) -> None:
    """Arms predict something; analyses name what they are about themselves."""
    if has_arms and not source.labelled:
        remedy = 'Write `target = "..."` with the column to predict, or `outcomes = [...]` with several.'
        raise StudyError(f"{where}: data: target", "missing", remedy)


def with_metric(chooser: Chooser | None, evaluation: Evaluation, task: TaskFacts, where: str) -> Chooser | None:
    """A value is chosen by the primary metric, unless another one is named."""
    if chooser is None:
        return None
    metric = chooser.metric or evaluation.metric
    refuse_strange_metric(metric, task, f"{where}: metric")
    return replace(chooser, metric=metric)


def refuse_strange_metric(metric: str, task: TaskFacts, where: str) -> None:
    directed = [name for name in task.metrics if name not in task.undirected]
    if metric not in task.metrics:
        raise StudyError(
            where, f"{shown(metric)} is not a possible value", suggest(metric, directed, "Possible values")
        )
    if metric not in directed:
        problem = f"{metric} has its best value in between, so that no arm can be better by it"
        raise StudyError(where, problem, suggest("", directed, "Possible values"))


def training_alone(arms: Sequence[Arm]) -> str | None:
    """Each hospital alone, where the study has that arm. None where a variant is without it."""
    main = [arm for arm in arms if not arm.variant and arm.algorithm.facts.alone and not arm.train_at]
    if not main or main[0].name != main[0].family:
        return None
    names, variants = {arm.name for arm in arms}, {arm.variant for arm in arms}
    return main[0].name if all(in_variant(main[0].name, variant) in names for variant in variants) else None
