"""What a study may name, and how a study is loaded.

Members of other packages are found under the entry-point groups `wardround.models`, `wardround.sources`,
`wardround.algorithms` and `wardround.partitions` (`core.registry`).
"""

from collections.abc import Mapping
from importlib.resources import files
from os import PathLike
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, Unpack

from wardround.adversaries import ADVERSARIES
from wardround.aggregation import RULES
from wardround.algorithms import ALGORITHMS
from wardround.analyses import ANALYSES
from wardround.core.errors import StudyError, as_path, suggest
from wardround.core.registry import Members, Registry
from wardround.core.toml_files import parse_toml
from wardround.data.frames import with_frames
from wardround.data.partition import PARTITIONERS
from wardround.data.sources import SOURCES
from wardround.models import MODELS
from wardround.runs.continual.predecessor import read_predecessor
from wardround.study.facts import Optimiser
from wardround.study.parser import Families, parse_study, read_study_file
from wardround.study.schema import Arm, Privacy, Study, Topology, Training
from wardround.study.starting import with_digests
from wardround.study.tuning_validation import probes
from wardround.tasks import TASKS

SUFFIX = ".toml"


def families(**members: Unpack[Members]) -> Families:
    """What a study may name: shipped members, the caller's own, and those of installed packages."""
    return Families(
        sources=Registry("sources", SOURCES, members.get("sources")),
        partitioners=Registry("partitions", PARTITIONERS, members.get("partitions")),
        models=Registry("models", MODELS, members.get("models")),
        algorithms=Registry("algorithms", ALGORITHMS, members.get("algorithms")),
        analyses=ANALYSES,
        rules=RULES,
        tasks={kind: task.facts() for kind, task in TASKS.items()},
        adversaries=ADVERSARIES,
    )


def shipped_studies() -> dict[str, Path]:
    folder = Path(str(files("wardround").joinpath("studies")))
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def copy_study(name: str, out: Path) -> Path:
    """Copy a shipped study with its data files. Existing files are not overwritten."""
    shipped = shipped_studies()
    if name not in shipped:
        raise StudyError("--copy", f"no study {name!r} is shipped", suggest(name, shipped, "Shipped studies"))
    source, own = shipped[name], shipped[name].parent / "files" / name
    copies = {source: out / source.name}
    if own.is_dir():
        copies |= {path: out / "files" / name / path.name for path in sorted(own.iterdir()) if path.is_file()}
    for target in copies.values():
        if target.exists():
            raise StudyError(str(target), "is there already", "Give another --out, or move it away.")
    try:
        for path, target in copies.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    except OSError as error:
        raise StudyError(str(out), f"cannot be written ({error.strerror})", "Give another --out.") from None
    return out / source.name


def find_study(name_or_path: str | PathLike[str]) -> Path:
    """A path, the name of a shipped study, or a run, whose study it is."""
    shipped, path = shipped_studies(), as_path(name_or_path, "study")
    if str(path) in shipped:
        return shipped[str(path)]
    if (path / "study.toml").is_file():
        return path / "study.toml"
    if path.suffix != SUFFIX and not path.exists():
        raise StudyError(str(path), "no such study", suggest(str(path), shipped, "Shipped studies"))
    return path


def load_study(
    study: str | PathLike[str] | Mapping[str, Any] | Study,
    quick: bool = False,
    changes: Mapping[str, Any] | None = None,
    **members: Unpack[Members],
) -> tuple[Study, Families]:
    """The parsed study, and what it may name. No data are read, but for DataFrames in a dict.

    `study` is a shipped name, a path, a run, the same content as a dict, or a study that is parsed already.
    """
    known, tables = families(**members), members.get("tables")
    if isinstance(study, Study):
        if quick or changes:
            raise StudyError(f"study {study.name}", "is parsed already", "Give `quick` and `changes` to load_study.")
        parsed = study
    elif isinstance(study, Mapping):
        parsed = parse_study(with_frames(study, tables), known, "study", Path.cwd(), quick, changes)
    else:
        path = find_study(study)
        raw = with_frames(read_study_file(path), tables)
        parsed = parse_study(raw, known, path.name, path.parent.absolute(), quick, changes)
    for arm in (*parsed.trained_arms, *probes(parsed, known)):
        refuse_unsound(arm)
    seeds = list(parsed.evaluation.seeds)
    return with_digests(parsed, lambda start: read_predecessor(start, seeds).digest), known


def refuse_unsound(arm: Arm) -> None:
    algorithm = arm.algorithm.facts
    for used in optimisers_used(arm.training):
        if used not in algorithm.sound_with:
            allowed = ", ".join(sorted(algorithm.sound_with))
            raise StudyError(
                f"arms: {arm.name}: training",
                f"{arm.algorithm.name} is not sound with local {used}: it must know each step's weight",
                f"It works with: {allowed}. Override `training.optimiser` or `training.momentum` for this arm.",
            )
    refuse_unsplit(arm)
    if (arm.train_at or arm.held_out) and algorithm.personal:
        problem = f"{arm.algorithm.name} gives each site a model of its own, so a site that does not train has none"
        raise StudyError(f"arms: {arm.name}", problem, "Use an algorithm with one shared model, such as fedavg.")
    if arm.preparation.schema == "own" and algorithm.pools:
        problem = "rows with different columns cannot be pooled"
        raise StudyError(f"arms: {arm.name}", problem, 'Write `"data.schema" = "all"` or "common" in this arm.')
    if arm.preparation.schema == "own" and arm.preparation.scale == "federated":
        problem = '"federated" adds up columns over sites, and with schema = "own" each has its own'
        raise StudyError(f"arms: {arm.name}: data: scale", problem, 'Write scale = "per-site" or "ranges".')
    if arm.model.facts.check is not None:
        arm.model.facts.check(arm)
    if arm.data.options.get("columns") == "own" and arm.preparation.schema == "all":
        problem = (
            'with columns = "own" a name may stand for different things at two hospitals, and schema "all" joins them'
        )
        remedy = 'Write schema = "own" with model "adapter", or columns = "all".'
        raise StudyError(f"arms: {arm.name}: data: schema", problem, remedy)
    if arm.training.optimiser == "adam" and arm.training.momentum:
        raise StudyError(f"arms: {arm.name}: training: momentum", "adam has its own momentum", "Set momentum = 0.")


def refuse_unsplit(arm: Arm) -> None:
    """A vertical topology, the algorithm `split` and the model `joined` go together."""
    where, vertical = f"arms: {arm.name}", arm.topology.kind == "vertical"
    if vertical != arm.algorithm.facts.vertical:
        problem = (
            f"{arm.algorithm.name} averages models, and parties with different features have none to average"
            if vertical
            else 'split trains parties with different features, and the topology is not "vertical"'
        )
        remedy = 'Write algorithm = "split" and "topology.kind" = "vertical" in this arm, or neither.'
        raise StudyError(where, problem, remedy)
    if vertical and not arm.model.facts.in_parts:
        problem = f"{arm.model.name} is one network, and parties with different features need a part each"
        raise StudyError(f"{where}: model", problem, 'Use model "joined".')
    if not vertical:
        refuse_party_settings(arm, where)
        return
    labels = arm.topology.labels or next(iter(arm.topology.parties), "")
    if sum(bool(columns) or party == labels for party, columns in arm.topology.parties.items()) < 2:
        raise StudyError(f"{where}: topology: parties", "a vertical topology has two or more", "Name them.")
    if arm.privacy != Privacy():
        problem = "[privacy] protects updates of models, and here embeddings and their gradients travel"
        remedy = 'Turn it off in this arm ("privacy.example" = "off"); [topology.embeddings] is what there is.'
        raise StudyError(f"{where}: privacy", problem, remedy)
    training = arm.training
    if training.oversample:
        problem = "which rows are drawn more often would tell the other parties what the labels are"
        raise StudyError(f"{where}: training: oversample", problem, "Use `class_weights`, or leave it out.")
    if training.mix is not None:
        problem = "which rows are mixed, and by how much, would have to be told to the other parties"
        raise StudyError(f"{where}: training: mix", problem, "Leave it out.")
    for name, used in {
        "share": training.share < 1,
        "stragglers": training.stragglers is not None,
        "train_at": bool(arm.train_at),
    }.items():
        if used:
            problem = "every party is needed for every row, so that nobody can be left out"
            raise StudyError(f"{where}: {name}", problem, f"Leave `{name}` out of this arm.")


def refuse_party_settings(arm: Arm, where: str) -> None:
    for name in ("block", "embeddings", "known"):
        if getattr(arm.topology, name) != getattr(Topology(), name) and arm.topology.kind == "hierarchical":
            raise StudyError(f"{where}: topology: {name}", "is for parties that exchange embeddings", "Leave it out.")


def optimisers_used(training: Training) -> list[Optimiser]:
    used: dict[Optimiser, object] = {
        "adam": training.optimiser == "adam",
        "sgd": training.optimiser == "sgd",
        "momentum": training.momentum and training.optimiser == "sgd",
        "weight-decay": training.weight_decay,
    }
    return [name for name, applies in used.items() if applies]


def parse_change(text: str) -> tuple[str, Any]:
    """`training.rounds=5` as --set takes it: a dotted key and a TOML value; a bare word is a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise StudyError(
            f"--set {text}", "is not of the form key=value", "Write, for instance, --set training.rounds=5."
        )
    try:
        return key.strip(), parse_toml(f"value = {value}")["value"]
    except TOMLDecodeError:
        return key.strip(), value.strip()
