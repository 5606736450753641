"""Write docs/reference/api.md anew, from signatures and docstrings of the public names."""

import ast
import inspect
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

import wardround

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
HEAD = """# API

Every public name of `wardround`, from its signature and docstring. [Python](python.md) introduces them.
`scripts/write_api_page.py` writes this page.
"""
WIDTH = 100


def page() -> str:
    named = [(name, getattr(wardround, name)) for name in sorted(wardround.__all__, key=str.casefold)]
    functions = [_function(name, value) for name, value in named if not inspect.isclass(value)]
    classes = [_class(name, value) for name, value in named if inspect.isclass(value)]
    return "\n".join([HEAD, "## Functions\n", *functions, "## Classes\n", *classes]).rstrip() + "\n"


def _function(name: str, function: Any) -> str:
    return f"### `{name}`\n\n{_code(_signature(name, function))}\n{_text(name, function)}\n"


def _class(name: str, kind: type) -> str:
    parts = [f"### `{name}`\n", _text(name, kind), ""]
    if is_dataclass(kind):
        own = ", ".join(f"`{field.name}`" for field in fields(kind))
        parts += [f"Fields: {own}.\n"]
    for member, value in _members(kind):
        call = isinstance(value, (property, cached_property))
        function = (value.fget if isinstance(value, property) else value.func) if call else value
        title = f"`{name}.{member}`" if call else f"`{name}.{member}()`"
        code = "" if call else f"{_code(_signature(member, function))}\n"
        parts.append(f"#### {title}\n\n{code}{_text(f'{name}.{member}', function)}\n")
    return "\n".join(parts)


def _members(kind: type) -> list[tuple[str, Any]]:
    """Those that our own classes define, in the order of their definition."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("wardround."):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    wanted = (property, cached_property)
    return [(name, value) for name, value in found.items() if isinstance(value, wanted) or inspect.isfunction(value)]


def _signature(name: str, function: Any) -> str:
    """As it is written: no module names, and the same on every version of Python."""
    [tree] = ast.parse(dedent(inspect.getsource(function))).body
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"{name} is not a function")
    parts = _arguments(tree.args)
    returned = "" if tree.returns is None else f" -> {ast.unparse(tree.returns).strip(chr(39))}"
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n{''.join(f'    {part},{chr(10)}' for part in parts)}){returned}"


def _arguments(given: ast.arguments) -> list[str]:
    """One by one, as in a call."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = zip(positional, defaults, strict=True)
    parts = [_argument(argument, default) for argument, default in pairs if argument.arg != "self"]
    parts += ["*"] if given.kwonlyargs and given.vararg is None else []
    parts += [_argument(own, default) for own, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*parts, f"**{ast.unparse(given.kwarg)}"] if given.kwarg else parts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(name: str, value: Any) -> str:
    text = inspect.getdoc(value) if not inspect.isclass(value) else inspect.cleandoc(value.__doc__ or "")
    if not text:
        raise ValueError(f"{name} has no docstring")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
