"""What is installed decides what works: with no extra, and with each alone, in environments made of links."""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from tests.extras.environments import (
    EXTRAS,
    ROOT,
    installed_with,
    is_here,
    make_environment,
    required,
    requirements,
    top_level_names,
)
from tests.extras.scenario import done_in, every_check, every_help, says_what_to_install, step, wrong
from wardround.cli import rendering as render
from wardround.core import extras
from wardround.core.errors import MachineError
from wardround.core.extras import examine_extras, load, missing_extra, needs
from wardround.runs.catalog import shipped_studies

SOURCE = ROOT / "src" / "wardround"
FEW = frozenset({"heart-fedprox", "heart-private", "heart-deployed"})
EVERY = frozenset(shipped_studies())
FLOWER = SOURCE / "deployment" / "flower"  # its __init__ refuses before anything below it is imported


@cache
def modules_with(extra: str | None) -> frozenset[str]:
    """Names that can be imported with wardround and this extra."""
    module_names = (name for package in installed_with(requirements(extra)) for name in top_level_names(package))
    return frozenset(name.split(".")[0] for name in module_names)


def told(call: ast.expr, function: str, count: int) -> list[str]:
    """The first words that a call of this function is given; nothing where it is another call, or no words."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != function:
        return []
    words = [
        argument.value
        for argument in call.args[:count]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    return words if len(words) == count else []


def foreign_imports(node: ast.AST, extra: str | None = None) -> Iterator[tuple[int, str, str | None]]:
    """Line, module and the extra around it, of every import that a plain install does not have."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.With):
        extra = next(iter(told(node.items[0].context_expr, "needs", 1)), extra)
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module]
    elif isinstance(node, ast.Call) and (given := told(node, "load", 2)):
        names, extra = given[:1], given[1]
    for name in names:
        top = name.split(".")[0]
        if top != "wardround" and top not in sys.stdlib_module_names and top not in modules_with(None):
            yield getattr(node, "lineno", 0), top, extra
    for child in ast.iter_child_nodes(node):
        yield from foreign_imports(child, extra)


def test_an_import_of_an_extra_says_which_extra() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        around = "deploy" if FLOWER in path.parents else None
        for line, module, extra in foreign_imports(ast.parse(path.read_text(encoding="utf-8")), around):
            where = f"{path.relative_to(SOURCE)}:{line}: {module}"
            if extra is None:
                wrong.append(f"{where} comes with no plain install: import it within `needs(...)`")
            elif is_here(extra) and module not in modules_with(extra):
                wrong.append(f"{where} does not come with the extra {extra!r}")
    assert not wrong, "\n".join(wrong)


def test_the_rule_finds_an_import_without_its_extra() -> None:
    text = """
def f():
    import fastapi
    with needs("privacy", "x"):
        import fastapi
    load("onnx", "onnx", "x")
"""
    expected_imports = [(3, "fastapi", None), (5, "fastapi", "privacy"), (6, "onnx", "onnx")]
    assert list(foreign_imports(ast.parse(text))) == expected_imports


def plainly(report: dict[str, Any], extra: str | None) -> None:
    """Modules that cannot be imported say which extra they need; the public names can always be imported."""
    for name, error in report["refused"].items():
        outcome = {"code": MachineError.exit_code, "shown": error}
        assert error.startswith("MachineError: "), f"{name}: {error}"
        assert says_what_to_install(extra, outcome), f"{name}: {error}"
        assert name.split(".")[1] in {"deployment", "privacy", "protocol", "serving", "tracking"}, f"{name}: {error}"


@pytest.mark.parametrize("studies", [FEW, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["few", "every"])
def test_a_plain_install_checks_every_study_that_needs_no_extra(studies: frozenset[str], tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", None)
    checks = [case for case in every_check() if case.words[1] in studies]
    run = step("run heart-fedprox --quick --set training.rounds=1 --no-report")
    steps = [*every_help(), *checks, run]
    report = done_in(python, tmp_path, steps, imports=True)
    assert not wrong(None, steps, report["done"])
    assert (tmp_path / "runs").is_dir()
    plainly(report, None)


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_alone_works_or_names_the_one_that_is_missing(extra: str, tmp_path: Path) -> None:
    if not is_here(extra):
        pytest.skip(f"the extra {extra!r} is not installed, and not part of `all`")
    python = make_environment(tmp_path / "environment", extra)
    check = next(entry for entry in every_check() if "heart-deployed-private" in entry.words)
    steps = [*every_help(), check, step("doctor --json")]
    report = done_in(python, tmp_path, steps)
    assert not wrong(extra, steps, report["done"])
    listed = {entry["name"]: entry["installed"] for entry in json.loads(report["done"][-1]["shown"])["extras"]}
    assert listed == {name: is_here(name) and modules_with(name) <= modules_with(extra) for name in EXTRAS}


def test_every_extra_has_a_purpose_and_stands_in_the_documentation() -> None:
    assert sorted(extras.EXTRAS) == EXTRAS
    text = (ROOT / "docs" / "reference" / "extras.md").read_text(encoding="utf-8")
    for name, purpose in extras.EXTRAS.items():
        assert f"| `{name}` |" in text
        assert f"pip install 'wardround[{name}]'" in text
        assert purpose


def test_doctor_says_what_each_extra_is_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "installed", lambda package: None if package == "onnxruntime" else "1.0")
    monkeypatch.setattr(extras, "requires", lambda _: required())  # as pyproject.toml has it now
    examined_extras = {extra.name: extra for extra in examine_extras()}
    assert examined_extras["onnx"].missing == ("onnxruntime",)
    assert [extra.name for extra in examined_extras.values() if not extra.installed] == ["onnx"]
    render.show_machine([], list(examined_extras.values()), {})
    shown = capsys.readouterr().out
    assert "Run `pip install 'wardround[onnx]'`." in shown
    for name, purpose in extras.EXTRAS.items():
        assert f" {name} " in shown
        assert purpose.split(":")[0].split(",")[0] in shown  # a long line is broken


def test_doctor_knows_no_extra_where_wardround_itself_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", nothing)
    assert not any(extra.installed for extra in examine_extras())


def test_a_missing_package_is_an_error_that_names_the_extra() -> None:
    with pytest.raises(MachineError) as caught, needs("onnx", "here", instead="do without"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == (
        "here: needs the extra 'onnx': no_such_package is not installed\n"
        "  Run `pip install 'wardround[onnx]'`, or do without."
    )
    with pytest.raises(MachineError, match="numpy cannot be imported"), needs("onnx", "here"):
        from numpy import no_such_name  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(MachineError, match=r"needs the extra 'serve': no_such_package is not installed"):
        load("no_such_package.below", "serve", "here")
    assert load("json", "serve", "here") is json
    assert missing_extra("deploy", "here", "why").exit_code == 7


def test_a_mistake_of_wardround_itself_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ImportError, match="no_such_name"), needs("onnx", "here"):
        from wardround.core.tree import no_such_name  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"wardround\.no_such_part"):
        load("wardround.no_such_part", "onnx", "here")
