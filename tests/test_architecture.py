"""The tree's promises: dependencies point one way, heavy things stay at the edge, and the documentation is complete."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wardround
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import WardroundError
from wardround.core.settings import settings_of
from wardround.data.checks.before_training import CHECKS
from wardround.data.partition import PARTITIONERS
from wardround.data.sources import SOURCES
from wardround.deployment.governance.policy import Policy
from wardround.deployment.provisioning.site_file import SiteFile
from wardround.models import MODELS
from wardround.study.schema import (
    METRICS,
    AdaptiveClip,
    Deployment,
    EmbeddingNoise,
    Evaluation,
    ExamplePrivacy,
    NoiseSchedule,
    Preparation,
    SecureSum,
    SitePrivacy,
    Topology,
    Training,
    Uncertainty,
)

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wardround"
DOCS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}

# Each layer may import from those before it, and from itself. A module may stand higher than its package.
LAYERS = [
    ["core"],
    ["study"],
    ["data", "models", "algorithms"],
    ["privacy"],
    ["training"],
    ["protocol"],
    ["engines", "evaluation", "uncertainty"],
    ["runs"],
    ["report"],
    ["attacks", "bundles"],
    ["serving"],
    ["runs.execute", "runs.estimate"],  # a run ends with the bundles and attacks that its study asks for
    ["deployment"],
    ["adaptation"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def level(module: str) -> int:
    """Of a module below `wardround`, such as `runs.plan`."""
    while module not in LEVEL:
        module = module.rpartition(".")[0]
    return LEVEL[module]


def imports(path: Path) -> set[str]:
    """Names of the wardround parts that a file imports while the program runs."""
    found: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "wardround":
            found |= {f"{node.module}.{alias.name}".removeprefix("wardround.") for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_one_way(path: Path) -> None:
    own = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    if own == "__init__":
        return
    wrong = {name for name in imports(path) if level(name) > level(own)}
    assert not wrong, f"{own} is below {wrong}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600


def test_the_edge_needs_no_torch() -> None:
    code = "import sys, wardround, wardround.study.parser; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_public_names_exist_and_are_documented() -> None:
    for name in wardround.__all__:
        assert getattr(wardround, name) is not None
        assert f"`{name}" in DOCS["python.md"], f"{name} is not in docs/reference/python.md"


@pytest.mark.parametrize(
    "family", [SOURCES, PARTITIONERS, MODELS, ALGORITHMS], ids=["sources", "partitions", "models", "algorithms"]
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
    for check in CHECKS:
        assert f"`{check}`" in DOCS["checks.md"]
    for metric in METRICS:
        assert f"`{metric}`" in DOCS["results.md"]
