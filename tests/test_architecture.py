"""The tree's promises: dependencies point one way, heavy things stay at the edge, and the documentation is complete."""

import ast
import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import wardround
from wardround.aggregation import RULES
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import WardroundError
from wardround.core.settings import settings_of
from wardround.data.partition import PARTITIONERS
from wardround.data.sources import SOURCES
from wardround.deployment import Policy, SiteFile
from wardround.models import MODELS
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import (
    AdaptiveClip,
    Contribution,
    Deployment,
    EmbeddingNoise,
    Evaluation,
    ExamplePrivacy,
    Explain,
    NoiseSchedule,
    Preparation,
    Screening,
    SecureSum,
    SitePrivacy,
    Start,
    StartFrom,
    Topology,
    Training,
    Uncertainty,
)
from wardround.tasks import METRIC_FACTS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wardround"
DOCS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}

# Each layer may import from those before it, and from itself. A module may stand higher than its package.
LAYERS = [
    ["core"],
    ["study"],
    ["tasks"],
    ["data", "models", "algorithms"],
    ["screening"],
    ["aggregation"],
    ["privacy", "adversaries"],
    ["training"],
    ["protocol"],
    ["engines", "evaluation", "uncertainty", "explain", "analyses"],
    ["runs", "bundles.sealed_files"],  # a study may start from a bundle, whose seal is checked before anything trains
    ["report"],
    ["attacks", "bundles", "tracking"],
    ["serving", "review"],
    # a run ends with the bundles and attacks that its study asks for
    ["runs.execute", "runs.interface", "runs.drafting"],
    ["deployment"],
    ["adaptation"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


# Functions above COMPLEXITY that are still to be split, and modules of folders that are still to be regrouped.
COMPLEXITY, LINES, MODULES = 15, 600, 16
STILL_COMPLEX: dict[str, int] = {}
STILL_CROWDED: dict[str, int] = {}
LONG_FOR_A_REASON: dict[str, str] = {  # file: why its lines belong together
    "protocol/catalogue.py": "every message of the protocol, as a reader of the protocol wants them",
    "report/sections/uncertainty.py": "one section with its tables, figures and sentences",
}


@cache
def sources() -> dict[str, ast.Module]:
    """Every source file, as `runs/plan.py`."""
    paths = sorted(SOURCE.rglob("*.py"))
    gc.disable()  # half a million nodes that stay: looking through them is three quarters of the time
    try:
        return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    finally:
        gc.freeze()
        gc.enable()


def level(module: str) -> int:
    """Of a module below `wardround`, such as `runs.plan`."""
    while module not in LEVEL:
        module = module.rpartition(".")[0]
    return LEVEL[module]


def imports(tree: ast.Module) -> set[str]:
    """Names of the wardround parts that a file imports while the program runs."""
    names: set[str] = set()
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "wardround":
            names |= {f"{node.module}.{alias.name}".removeprefix("wardround.") for alias in node.names}
    return names


def listed(offenders: Iterable[str]) -> str:
    return "\n  ".join(["", *sorted(offenders)])


def test_dependencies_point_one_way() -> None:
    wrong = [
        f"{path} imports {name}, which is above it"
        for path, tree in sources().items()
        if (module := path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")) != "__init__"
        for name in imports(tree)
        if level(name) > level(module)
    ]
    assert not wrong, listed(wrong)


def test_no_function_is_complex() -> None:
    from radon.complexity import cc_visit_ast

    complex_by_room: dict[str, list[str]] = {}
    for path, tree in sources().items():
        for block in cc_visit_ast(tree):
            for function in (block, *getattr(block, "closures", ())):
                if function.letter != "C" and function.complexity > COMPLEXITY:
                    offender = f"{path}:{function.lineno} {function.name} has {function.complexity}"
                    complex_by_room.setdefault(path.split("/")[0], []).append(offender)
    wrong = [
        offender
        for room, offenders in complex_by_room.items()
        if len(offenders) > STILL_COMPLEX.get(room, 0)
        for offender in offenders
    ]
    assert not wrong, listed(wrong)


def test_files_and_folders_stay_small() -> None:
    long = [
        f"{path} has {lines} lines"
        for path in sources()
        if (lines := len((SOURCE / path).read_text(encoding="utf-8").splitlines())) > LINES
        and path not in LONG_FOR_A_REASON
    ]
    folders = Counter(str(Path(path).parent) for path in sources() if not path.endswith("__init__.py"))
    crowded = [
        f"{folder} has {count} modules"
        for folder, count in folders.items()
        if count > max(MODULES, STILL_CROWDED.get(folder, 0))
    ]
    in_root = [
        f"{path} is in the root of the package" for path in sources() if "/" not in path and path != "__init__.py"
    ]
    wrong = [*long, *crowded, *in_root]
    assert not wrong, listed(wrong)


def test_no_module_name_occurs_twice_in_one_package() -> None:
    names: dict[tuple[str, str], list[str]] = {}
    for path in sources():
        if not path.endswith("__init__.py"):
            names.setdefault((path.split("/")[0], Path(path).stem), []).append(path)
    wrong = [" and ".join(paths) for paths in names.values() if len(paths) > 1]
    assert not wrong, listed(wrong)


def test_the_edge_needs_no_torch() -> None:
    code = "import sys, wardround, wardround.study.parser; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_help_needs_neither_the_study_nor_numpy() -> None:
    heavy = ("wardround.study.schema", "numpy", "pandas", "torch", "cryptography", "flwr")
    code = f"import sys, wardround.cli.main; found = set({heavy}) & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_exist_and_are_documented() -> None:
    for name in wardround.__all__:
        assert getattr(wardround, name) is not None
        assert f"`{name}" in DOCS["python.md"], f"{name} is not in docs/reference/python.md"


@pytest.mark.parametrize(
    "family",
    [SOURCES, PARTITIONERS, MODELS, ALGORITHMS, RULES],
    ids=["sources", "partitions", "models", "algorithms", "rules"],
)
def test_every_member_and_its_settings_are_in_the_reference(family: dict[str, object]) -> None:
    reference = DOCS["study-file.md"]
    for name, factory in family.items():
        assert f"`{name}`" in reference, f"{name} is not in docs/reference/study-file.md"
        for setting in settings_of(factory):
            assert f"`{setting}`" in reference, f"{name}: {setting} is not in docs/reference/study-file.md"


@pytest.mark.parametrize(
    "block",
    [
        Preparation,
        Preaggregation,
        Training,
        Evaluation,
        Deployment,
        ExamplePrivacy,
        AdaptiveClip,
        NoiseSchedule,
        SitePrivacy,
        SecureSum,
        Topology,
        EmbeddingNoise,
        Uncertainty,
        Screening,
        Contribution,
        Explain,
        Start,
        StartFrom,
    ],
)
def test_every_setting_of_the_study_is_in_the_reference(block: type) -> None:
    for setting in settings_of(block):
        assert f"`{setting}`" in DOCS["study-file.md"]


def test_every_key_of_a_site_file_is_in_the_reference() -> None:
    for key in {*settings_of(Policy), *settings_of(SiteFile)} - {"path"}:
        assert f"`{key}`" in DOCS["site-file.md"] or f"`[{key}]`" in DOCS["site-file.md"], key


def test_every_command_exit_code_check_and_metric_is_in_the_reference() -> None:
    from typer.main import get_command

    from wardround.cli.main import app

    commands = get_command(app)
    for verb in commands.commands:  # type: ignore[attr-defined]
        assert f"`wardround {verb}" in DOCS["commands.md"]
    for kind in WardroundError.__subclasses__():
        assert f"| {kind.exit_code} |" in DOCS["commands.md"], kind
    for metric in METRIC_FACTS:
        assert f"`{metric}`" in DOCS["results.md"]


TOPOLOGIES = ("flat", "regional", "vertical")


def deployment() -> dict[str, ast.Module]:
    return {path: tree for path, tree in sources().items() if path.startswith("deployment/")}


def called(tree: ast.Module) -> Counter[str]:
    """How often functions and methods of a name are called."""
    names = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return Counter(name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "") for name in names)


def test_topologies_are_composed_and_not_inherited() -> None:
    """One coordinator's loop; no topology's coordinator or wave is a special case of another's."""
    wrong = [
        f"{path}: {node.name} inherits from {ast.unparse(base)}"
        for path, tree in deployment().items()
        if any(name in path for name in ("_topology", "_rounds", "_coordinator", "block_wave", "coordinating/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).split("[")[0] not in ("Generic", "Protocol", "Struct", "SiteFacts")
    ]
    assert not wrong, listed(wrong)
    loops = [path for path, tree in deployment().items() if called(tree)["train_wave"]]
    assert loops == ["deployment/coordinating/coordinator.py"]


def test_one_loop_answers_for_every_topology() -> None:
    """Requests are opened, read and answered in one place, and answers are kept for repeats in one place."""
    for name in ("read_request", "keep_answer", "refuse_old", "check_own"):
        assert [path for path, tree in deployment().items() if called(tree)[name]] == ["deployment/site/answering.py"]
    handlers = {path.split("/")[1] for path, tree in deployment().items() if called(tree)["OpenRun"]}
    assert handlers == set(TOPOLOGIES)


def test_rounds_are_closed_and_recorded_in_one_place() -> None:
    """By the function that closes those of a simulation; region models are averaged as in a simulation."""
    imported = {path for path, tree in deployment().items() if "training.rounds.close" in imports(tree)}
    assert imported == {"deployment/coordinating/closing.py"}
    callers = {path.split("/")[1] for path, tree in deployment().items() if called(tree)["close_round"]}
    assert callers == set(TOPOLOGIES)
    written = [path for path, tree in deployment().items() if called(tree)["append_records"]]
    assert written == ["deployment/coordinating/coordinator.py"]
    of_regions = {name for tree in deployment().values() for name in imports(tree) if "algorithms.hierarchical" in name}
    constants = {"algorithms.hierarchical.WEIGHT", "algorithms.hierarchical.part_of"}
    assert of_regions == {"algorithms.hierarchical.aggregate_regions", *constants}


def test_bodies_of_messages_are_typed() -> None:
    wrong = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in deployment().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "body"
    ]
    assert not wrong, listed(wrong)
