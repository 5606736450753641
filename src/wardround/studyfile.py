"""From a TOML file, or the same content as a dict, to a `Study`. Errors name file, key and the nearest valid key."""

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wardround.errors import StudyError, suggest
from wardround.settings import Factory, parse, parse_settings, refuse_unknown, settings_of
from wardround.study import METRICS, Arm, Choice, Claim, Decay, Evaluation, Preparation, Stragglers, Study, Training
from wardround.sweep import NAME, Variant, flatten, set_path, variants


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


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(
            str(path), "no such file", "Give the path of a study file, or a name from `wardround studies`."
        ) from None
    except (IsADirectoryError, PermissionError) as error:
        raise StudyError(
            str(path), f"cannot be read ({error.strerror})", "Give the path of a readable study file."
        ) from None
    except UnicodeDecodeError as error:
        raise StudyError(str(path), f"is not UTF-8 text (byte {error.start})", "Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(str(path), f"is not valid TOML: {error}", "Correct the file at that line.") from None


def parse_study(
    raw: Mapping[str, Any],
    families: Families,
    where: str = "study",
    base: Path = Path(),
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Study:
    """Plain data to a study. `quick` applies the `[quick]` block; `changes` are dotted keys that win over all."""
    top = ("name", "question", "data", "sites", "model", "training", "evaluation", "arms", "claims", "quick")
    refuse_unknown(raw, top, where)
    if quick and isinstance(raw.get("claims"), list):
        # a smaller study says little about a published figure; whoever reads the verdict is told
        raw = {**raw, "claims": [_at_quick_size(claim) for claim in raw["claims"]]}
    tables = {
        key: deepcopy(dict(_table(raw, key, where))) for key in ("data", "sites", "model", "training", "evaluation")
    }
    if quick and "quick" not in raw:
        raise StudyError(
            f"{where}: quick", "missing", "This study has no [quick] block, so --quick has nothing to apply."
        )
    for path, value in {**(flatten(_table(raw, "quick", where)) if quick else {}), **(changes or {})}.items():
        section = path.split(".", 1)[0]
        if section not in tables or "." not in path:
            raise StudyError(f"{where}: {path}", "no such setting", suggest(section, tables, "Sections"))
        set_path(tables, path, value, where)

    sections = {
        "data": _Section("source", families.sources, common=Preparation),
        "sites": _Section("partition", families.partitioners, default="by-hospital"),
        "model": _Section("kind", families.models, default="logistic"),
    }
    resolved, source, prepared = _resolve(raw, tables, sections, where, base)  # before arms: errors name the base's key
    evaluation = Evaluation(
        **parse_settings(settings_of(Evaluation), tables["evaluation"], f"{where}: evaluation", base)
    )
    entries = raw.get("arms", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise StudyError(f"{where}: arms", "missing", "Add at least one [[arms]] table with `algorithm = ...`.")
    arms = tuple(
        _arm(variant, tables, sections, families, f"{where}: arms: {variant.name}", base)
        for entry in entries
        for variant in variants(entry, families.algorithms, _arm_kinds(entry, tables, sections), where)
    )
    study = Study(
        name=_name(raw.get("name"), f"{where}: name"),
        question=_text(raw.get("question", ""), f"{where}: question"),
        data=source,
        preparation=Preparation(**prepared),
        evaluation=evaluation,
        arms=arms,
        claims=parse(tuple[Claim, ...], raw.get("claims", []), f"{where}: claims", base),
        resolved=resolved,
    )
    _check_arms(study, where)
    return study


def _at_quick_size(claim: Any) -> Any:
    return {**claim, "text": f"{claim.get('text')} [here at the quick size]"} if isinstance(claim, Mapping) else claim


def _table(raw: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    table = raw.get(key, {})
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: {key}", f"expected a table, found {table!r}", f"Write it as [{key}].")
    return table


def _member(section: _Section, table: Mapping[str, Any], where: str, base: Path) -> tuple[Choice, dict[str, Any]]:
    """The named member with its options, and the values of the section's common keys."""
    name = table.get(section.tag, section.default)
    if name is None:
        raise StudyError(f"{where}: {section.tag}", "missing", suggest("", section.family, "Possible values"))
    if not isinstance(name, str) or name not in section.family:
        remedy = suggest(str(name), section.family, "Possible values")
        raise StudyError(f"{where}: {section.tag}", f"{name!r} is not known", remedy)
    own = settings_of(section.family[name])
    common = settings_of(section.common) if section.common else {}
    rest = {key: value for key, value in table.items() if key != section.tag}
    values = parse_settings({**common, **own}, rest, where, base)
    return Choice(name, {key: values[key] for key in own}), {key: values[key] for key in common}


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
    for key in ("data", "sites", "model"):
        section = sections[key]
        kinds[f"{key}.{section.tag}"] = str
        named = overrides.get(f"{key}.{section.tag}", tables[key].get(section.tag, section.default))
        for member in named if isinstance(named, list) else [named]:
            if isinstance(member, str) and member in section.family:
                collect(key, section.family[member])
    return kinds


def _arm(
    variant: Variant,
    tables: Mapping[str, Any],
    sections: Mapping[str, _Section],
    families: Families,
    where: str,
    base: Path,
) -> Arm:
    changed = {key: deepcopy(tables[key]) for key in ("data", "sites", "model", "training")}
    for key in ("data", "sites", "model"):
        tag = sections[key].tag
        replacement = variant.overrides.get(f"{key}.{tag}")
        if replacement is not None and replacement in sections[key].family:
            # another member: what the base says for the old one stays only where the new one knows the key
            known = settings_of(sections[key].family[replacement])
            changed[key] = {name: value for name, value in changed[key].items() if name in known}
    for path, value in variant.overrides.items():
        set_path(changed, path, value, where)
    algorithm = _member(
        _Section("algorithm", families.algorithms), {"algorithm": variant.algorithm, **variant.options}, where, base
    )
    return Arm(
        name=variant.name,
        family=variant.family,
        algorithm=algorithm[0],
        data=_member(sections["data"], changed["data"], f"{where}: data", base)[0],
        sites=_member(sections["sites"], changed["sites"], f"{where}: sites", base)[0],
        model=_member(sections["model"], changed["model"], f"{where}: model", base)[0],
        training=Training(**parse_settings(settings_of(Training), changed["training"], f"{where}: training", base)),
    )


def _check_arms(study: Study, where: str) -> None:
    names = [arm.name for arm in study.arms]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"{where}: arms", f"two arms are called {name!r}", "Give each arm its own `name`.")
    reference = study.evaluation.reference
    if reference is not None and reference not in names:
        remedy = suggest(reference, names, "Arms")
        raise StudyError(f"{where}: evaluation: reference", f"no arm is called {reference!r}", remedy)
    for number, claim in enumerate(study.claims):
        for name in (*claim.arms, *claim.against):
            if name not in names:
                raise StudyError(
                    f"{where}: claims[{number}]", f"no arm is called {name!r}", suggest(name, names, "Arms")
                )
        if not claim.arms or len(claim.arms) != len(claim.against) or claim.metric not in METRICS:
            remedy = f"List as many `arms` as `against`, at least one, and a metric among {', '.join(METRICS)}."
            raise StudyError(
                f"{where}: claims[{number}]", "the arms do not pair up, or the metric is not known", remedy
            )
    if study.evaluation.test_share + study.evaluation.validation_share >= 1:
        raise StudyError(
            f"{where}: evaluation", "test_share and validation_share leave no training rows", "Lower one of them."
        )


def _resolve(
    raw: Mapping[str, Any], tables: Mapping[str, Any], sections: Mapping[str, _Section], where: str, base: Path
) -> tuple[dict[str, Any], Choice, dict[str, Any]]:
    """The study as a file that reads back to the same hash, every default written out; its source and preparation."""
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
        "evaluation": asdict(Evaluation(**evaluation)),
        "arms": raw.get("arms"),
        "claims": raw.get("claims"),
    }
    return plain(document), source, prepared


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
        raise StudyError(where, f"{value!r} is not a usable name", "Use letters, digits, '.', '_' and '-'.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise StudyError(where, f"expected a text, found {value!r}", "Write it in quotes.")
    return value
