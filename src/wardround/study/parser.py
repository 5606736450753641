"""From a TOML file, or the same content as a dict, to a `Study`. Errors name file, key and the nearest valid key."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.settings import Factory, parse, parse_settings, refuse_unknown, settings_of
from wardround.core.toml_files import read_toml, refuse_unplain
from wardround.study.claims import Claim
from wardround.study.defaults import training_alone, with_metric, with_seeds
from wardround.study.schema import (
    AdaptiveClip,
    Arm,
    Augmentation,
    Choice,
    Decay,
    Deployment,
    EmbeddingNoise,
    Evaluation,
    ExamplePrivacy,
    NoiseSchedule,
    Preparation,
    Privacy,
    SecureSum,
    Selection,
    SitePrivacy,
    Stragglers,
    Study,
    Topology,
    Training,
    Uncertainty,
    Variant,
    Varied,
    in_variant,
)
from wardround.study.sweeps import NAME, Point, flatten, points, set_path
from wardround.study.validation import check_whole

TABLES = ("data", "sites", "model", "training", "privacy", "topology", "uncertainty", "evaluation")
PROTECTIONS = {"example": ExamplePrivacy, "site": SitePrivacy, "secure_sum": SecureSum}
VARY = "evaluation.vary"  # the only key of [evaluation] that a variant may change


@dataclass(frozen=True)
class Families:
    """What a study may name. Plain dicts from name to factory."""

    sources: Mapping[str, Factory]
    partitioners: Mapping[str, Factory]
    models: Mapping[str, Factory]
    algorithms: Mapping[str, Factory]


@dataclass(frozen=True)
class _Section:
    """A table that names a member (`tag`) of a family; `common` are the keys that any member may stand beside."""

    tag: str
    family: Mapping[str, Factory]
    default: str | None = None
    common: type | None = None


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
    top = ("name", "question", *TABLES, "deployment", "arms", "variants", "selection", "claims", "quick")
    refuse_unplain(raw, where)
    refuse_unplain(changes or {}, where)
    if raw and not any(key in top for key in raw):  # its keys are perhaps patients' names
        raise StudyError(where, f"is no study: found {shown(raw)}", suggest("", top, "A study has"))
    refuse_unknown(raw, top, where)
    if quick and isinstance(raw.get("claims"), list):
        # a smaller study says little about a published figure; whoever reads the verdict is told
        raw = {**raw, "claims": [_at_quick_size(claim) for claim in raw["claims"]]}
    tables = {key: deepcopy(dict(_table(raw, key, where))) for key in TABLES}
    if "uncertainty" in raw and not tables["uncertainty"]:
        tables["uncertainty"] = {"method": Uncertainty().method}  # an empty table asks for it too
    if quick and "quick" not in raw:
        raise StudyError(
            f"{where}: quick", "missing", "This study has no [quick] block, so --quick has nothing to apply."
        )
    sections = {
        "data": _Section("source", families.sources, common=Preparation),
        "sites": _Section("partition", families.partitioners, default="by-hospital"),
        "model": _Section("kind", families.models, default="logistic"),
    }
    smaller = flatten(_table(raw, "quick", where)) if quick else {}
    wanted = {**_without_replaced(smaller, changes or {}, tables, sections, where), **(changes or {})}
    for key, family in sections.items():  # what the study says of another member does not hold for this one
        tables[key] = _for_member(tables[key], family, wanted.get(f"{key}.{family.tag}"))
    for path, value in wanted.items():
        section = path.split(".", 1)[0]
        if section not in tables or "." not in path:
            raise StudyError(f"{where}: {path}", "no such setting", suggest(section, tables, "Sections"))
        set_path(tables, path, value, where)

    kind = tables["model"].get(sections["model"].tag, sections["model"].default)
    factory = families.models[kind] if isinstance(kind, str) and kind in families.models else None
    tables["evaluation"] = with_seeds(tables, _entries(raw, "arms", where), factory)
    resolved, source = _resolve(raw, tables, sections, where, base)  # before arms: errors name the base's key
    evaluation = Evaluation(
        **parse_settings(settings_of(Evaluation), tables["evaluation"], f"{where}: evaluation", base)
    )
    if not _entries(raw, "arms", where):
        raise StudyError(f"{where}: arms", "missing", "Add at least one [[arms]] table with `algorithm = ...`.")
    arms = _arms(raw, tables, Variant(""), sections, families, where, base)
    variants = []
    for entry in _entries(raw, "variants", where):
        variant, changed = _variant(entry, tables, sections, f"{where}: variants", base)
        variants.append(variant)
        arms += _arms(raw, changed, variant, sections, families, where, base)
    if evaluation.reference is None:
        evaluation = replace(evaluation, reference=training_alone(arms))
        resolved["evaluation"] |= {} if evaluation.reference is None else {"reference": evaluation.reference}
    study = Study(
        name=_name(raw.get("name"), f"{where}: name"),
        question=_text(raw.get("question", ""), f"{where}: question"),
        data=source,
        evaluation=evaluation,
        deployment=parse(Deployment, _table(raw, "deployment", where), f"{where}: deployment", base),
        arms=tuple(arms),
        variants=tuple(variants),
        selection=with_metric(parse(Selection, raw["selection"], f"{where}: selection", base), evaluation)
        if "selection" in raw
        else None,
        claims=parse(tuple[Claim, ...], raw.get("claims", []), f"{where}: claims", base),
        resolved=resolved,
        quick=quick,
    )
    check_whole(study, where)
    return study


def _at_quick_size(claim: Any) -> Any:
    if not isinstance(claim, Mapping) or not isinstance(claim.get("text"), str):
        return claim  # wrong, which is said where claims are read
    return {**claim, "text": f"{claim['text']} [here at the quick size]"}


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


def _variant(
    entry: Mapping[str, Any], tables: Mapping[str, Any], sections: Mapping[str, _Section], where: str, base: Path
) -> tuple[Variant, dict[str, Any]]:
    """The variant and the study's tables with its changes."""
    own = {key: value for key, value in entry.items() if key in settings_of(Variant)}
    if isinstance(own.get("name"), str) and NAME.fullmatch(own["name"]):
        where = f"{where}: {own['name']}"
    variant: Variant = parse(Variant, own, where, base)
    _name(variant.name, f"{where}: name")
    changed = deepcopy(dict(tables))
    changes = flatten({key: value for key, value in entry.items() if key not in own})
    for key, family in sections.items():
        changed[key] = _for_member(changed[key], family, changes.get(f"{key}.{family.tag}"))
    for path, value in changes.items():
        section = path.split(".", 1)[0]
        if "." not in path or section not in TABLES or (section == "evaluation" and path != VARY):
            possible = [f"{name}. ..." for name in TABLES[:-1]] + [VARY, *settings_of(Variant)]
            raise StudyError(f"{where}: {path}", "no such setting", suggest(path, possible, "A variant may set"))
        set_path(changed, path, value, where)
    return variant, changed


def _arms(
    raw: Mapping[str, Any],
    tables: Mapping[str, Any],
    variant: Variant,
    sections: Mapping[str, _Section],
    families: Families,
    where: str,
    base: Path,
) -> list[Arm]:
    if variant.name:
        where = f"{where}: variants: {variant.name}"
    vary = parse(tuple[Varied, ...], tables["evaluation"].get("vary", Evaluation().vary), f"{where}: {VARY}", base)
    return [
        _arm(point, tables, sections, families, f"{where}: arms: {point.name}", base, variant.name, vary)
        for entry in _entries(raw, "arms", where)
        for point in points(entry, families.algorithms, _arm_kinds(entry, tables, sections), where)
        if not variant.arms or point.family in variant.arms
    ]


def _member(section: _Section, table: Mapping[str, Any], where: str, base: Path) -> tuple[Choice, dict[str, Any]]:
    """The named member with its options, and the values of the section's common keys."""
    name = table.get(section.tag, section.default)
    if name is None:
        raise StudyError(f"{where}: {section.tag}", "missing", suggest("", section.family, "Possible values"))
    if not isinstance(name, str) or name not in section.family:
        remedy = suggest(name, section.family, "Possible values")
        raise StudyError(f"{where}: {section.tag}", f"{shown(name)} is not known", remedy)
    own = settings_of(section.family[name])
    common = settings_of(section.common) if section.common else {}
    rest = {key: value for key, value in table.items() if key != section.tag}
    values = parse_settings({**common, **own}, rest, where, base)
    return Choice(name, {key: values[key] for key in own}), {key: values[key] for key in common}


def _for_member(
    table: dict[str, Any], section: _Section, replacement: Any, current: str | None = None
) -> dict[str, Any]:
    """The table for another member: what it says of the old one stays only where the new one could have said it.

    `current` is the old one, where the table does not name it.
    """
    if not isinstance(replacement, str) or replacement not in section.family:
        return table
    if replacement == table.get(section.tag, current or section.default):
        return table
    known = {**(settings_of(section.common) if section.common else {}), **settings_of(section.family[replacement])}
    return {name: value for name, value in table.items() if name in known and _fits(known[name].kind, value)}


def _fits(kind: Any, value: Any) -> bool:
    """One key may mean two things: hospitals are names to one source and a number to another."""
    try:
        parse(kind, value, "")
    except StudyError:
        return False
    return True


def _without_replaced(
    quick: Mapping[str, Any],
    changes: Mapping[str, Any],
    tables: Mapping[str, Any],
    sections: Mapping[str, _Section],
    where: str,
) -> dict[str, Any]:
    """The quick block, without what it says of a member in whose place `changes` put another."""
    nested: dict[str, Any] = {}
    for path, value in quick.items():
        set_path(nested, path, value, where)
    for key, section in sections.items():
        if isinstance(nested.get(key), dict):
            named = tables[key].get(section.tag)
            nested[key] = _for_member(nested[key], section, changes.get(f"{key}.{section.tag}"), named)
    return flatten(nested)


def _arm_kinds(entry: Mapping[str, Any], tables: Mapping[str, Any], sections: Mapping[str, _Section]) -> dict[str, Any]:
    """The type of every dotted key that this arm may override, given which members it names."""
    kinds: dict[str, Any] = {}
    overrides = flatten(entry)

    def collect(prefix: str, target: Any) -> None:
        for name, setting in settings_of(target).items():
            kinds[f"{prefix}.{name}"] = setting.kind

    collect("training", Training)
    collect("training.lr_decay", Decay)
    collect("training.stragglers", Stragglers)
    collect("training.augment", Augmentation)
    for name, block in PROTECTIONS.items():
        kinds[f"privacy.{name}"] = Literal["off", "on"] if name == "secure_sum" else Literal["off"]
        collect(f"privacy.{name}", block)
    collect("privacy.example.adaptive", AdaptiveClip)
    collect("privacy.example.noise_schedule", NoiseSchedule)
    collect("topology", Topology)
    collect("topology.embeddings", EmbeddingNoise)
    collect("uncertainty", Uncertainty)
    for key in ("data", "sites", "model"):
        section = sections[key]
        kinds[f"{key}.{section.tag}"] = str
        named = overrides.get(f"{key}.{section.tag}", tables[key].get(section.tag, section.default))
        for member in named if isinstance(named, list) else [named]:
            if isinstance(member, str) and member in section.family:
                collect(key, section.family[member])
        if section.common is not None:
            collect(key, section.common)
    return kinds


def _arm(
    point: Point,
    tables: Mapping[str, Any],
    sections: Mapping[str, _Section],
    families: Families,
    where: str,
    base: Path,
    variant: str,
    vary: tuple[Varied, ...],
) -> Arm:
    changed = {key: deepcopy(tables[key]) for key in TABLES if key != "evaluation"}
    for key in ("data", "sites", "model"):
        tag = sections[key].tag
        changed[key] = _for_member(changed[key], sections[key], point.overrides.get(f"{key}.{tag}"))
    for path, value in point.overrides.items():
        set_path(changed, path, value, where)
    algorithm = _member(
        _Section("algorithm", families.algorithms), {"algorithm": point.algorithm, **point.options}, where, base
    )
    source, prepared = _member(sections["data"], changed["data"], f"{where}: data", base)
    return Arm(
        name=in_variant(point.name, variant),
        family=point.family,
        variant=variant,
        algorithm=algorithm[0],
        data=source,
        preparation=Preparation(**prepared),
        sites=_member(sections["sites"], changed["sites"], f"{where}: sites", base)[0],
        model=_member(sections["model"], changed["model"], f"{where}: model", base)[0],
        training=Training(**parse_settings(settings_of(Training), changed["training"], f"{where}: training", base)),
        privacy=_privacy(changed["privacy"], f"{where}: privacy", base),
        topology=parse(Topology, changed["topology"], f"{where}: topology", base),
        uncertainty=parse(Uncertainty, changed["uncertainty"], f"{where}: uncertainty", base)
        if changed["uncertainty"]
        else None,
        vary=vary,
        train_at=parse(tuple[str, ...], point.train_at or (), f"{where}: train_at", base),
    )


def _privacy(table: Mapping[str, Any], where: str, base: Path) -> Privacy:
    """An arm turns off what the study has by writing "off" in its place, and a secure sum on by "on"."""
    wanted = {name: {} if (name, part) == ("secure_sum", "on") else part for name, part in table.items()}
    made: Privacy = parse(Privacy, {name: part for name, part in wanted.items() if part != "off"}, where, base)
    return made


def _resolve(
    raw: Mapping[str, Any], tables: Mapping[str, Any], sections: Mapping[str, _Section], where: str, base: Path
) -> tuple[dict[str, Any], Choice]:
    """The study as a file that reads back to the same hash, every default written out; and its source."""
    source, prepared = _member(sections["data"], tables["data"], f"{where}: data", base)
    members = {key: _member(sections[key], tables[key], f"{where}: {key}", base)[0] for key in ("sites", "model")}
    training = parse_settings(settings_of(Training), tables["training"], f"{where}: training", base)
    evaluation = parse_settings(settings_of(Evaluation), tables["evaluation"], f"{where}: evaluation", base)
    document = {
        "name": raw.get("name"),
        "question": raw.get("question", ""),
        "data": {"source": source.name, **source.options, **prepared},
        "sites": {"partition": members["sites"].name, **members["sites"].options},
        "model": {"kind": members["model"].name, **members["model"].options},
        "training": asdict(Training(**training)),
        "privacy": asdict(_privacy(tables["privacy"], f"{where}: privacy", base)) if tables["privacy"] else None,
        "topology": asdict(parse(Topology, tables["topology"], f"{where}: topology", base))
        if tables["topology"]
        else None,
        "uncertainty": asdict(parse(Uncertainty, tables["uncertainty"], f"{where}: uncertainty", base))
        if tables["uncertainty"]
        else None,
        "evaluation": asdict(Evaluation(**evaluation)),
        "deployment": raw.get("deployment"),
        "arms": raw.get("arms"),
        "variants": raw.get("variants"),
        "selection": raw.get("selection"),
        "claims": raw.get("claims"),
    }
    return plain(document), source


def plain(value: Any) -> Any:
    """Only what TOML and JSON can hold; what is None is left out, because TOML has no null."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _name(value: Any, where: str) -> str:
    if value is None:
        raise StudyError(where, "missing", 'Add `name = "..."`: it names the run folder.')
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise StudyError(where, f"{shown(value)} is not a usable name", "Use letters, digits, '.', '_' and '-'.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise StudyError(where, f"expected a text, found {shown(value)}", "Write it in quotes.")
    return value
