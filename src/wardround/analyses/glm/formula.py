"""A formula from a study file: read, refused where it could run anything, and turned into a design matrix.

A study comes from another institution, and formulaic evaluates what looks like Python. So nothing is given to it before
its tokens have been read: only names of columns, the operators of formulas, and calls of the few functions below, which
mean the same at every site. Functions that read something off the rows (`scale`, `poly`, splines) would mean something
else at each site and are refused.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from wardround.analyses.agreement import SITE
from wardround.analyses.analysis import Agreed, Schema
from wardround.analyses.site_rows import SiteRows
from wardround.core.errors import StudyError, shown, suggest

FUNCTIONS: Mapping[str, Any] = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
}
CATEGORY, IDENTITY = "C", "I"
CONTRASTS = ("Treatment", "Sum")
KNOWN = (CATEGORY, IDENTITY, *CONTRASTS, *FUNCTIONS)
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
OPERATORS = set("~+-:*/^()")  # of a formula, alone or run together
LARGEST_NUMBER = 1e9
LONGEST, MOST_COLUMNS, MOST_POWER = 4000, 500, 4
REMEDY = f"Use names of columns, + - : * /, and the functions {', '.join(KNOWN)}."
INTERCEPT = "Intercept"


@dataclass(frozen=True)
class Formula:
    """What a formula names, read without evaluating anything."""

    text: str
    outcome: tuple[str, ...]  # names on its left side
    names: tuple[str, ...]  # of all columns
    categories: tuple[str, ...]  # columns within C()


def read_formula(text: str, where: str = "formula") -> Formula:
    """Both sides."""
    formula = _read(text, where)
    left, tilde, right = text.partition("~")
    if not tilde or "~" in right or not left.strip() or not right.strip():
        raise StudyError(where, "has no outcome on its left side", 'Write it as "outcome ~ one + other".')
    outcome = _read(left, where)
    if CATEGORY in _called(left) or len(outcome.names) != 1:
        raise StudyError(where, "its left side is not one outcome", 'Write it as "outcome ~ one + other".')
    return Formula(text, outcome.names, formula.names, formula.categories)


def read_expression(text: str, where: str) -> Formula:
    """One number of each row, such as `log(years)`."""
    if "~" in text or "+" in text or ":" in text or CATEGORY in _called(text):
        raise StudyError(where, "is not one number of each row", 'Write a column, or a function of it: "log(years)".')
    return _read(text, where)


def _read(text: str, where: str) -> Formula:
    if len(text) > LONGEST or not text.isprintable():
        raise StudyError(where, f"is longer than {LONGEST} characters, or is not one line of text", REMEDY)
    names: dict[str, None] = {}
    categories: dict[str, None] = {}
    previous, tokens = "", _tokens(text, where)
    _refuse_explosion(tokens, where)
    for kind, token in tokens:
        if kind == "name":
            names[token] = None
        elif kind == "python":
            for name, in_category in _names_within(token, where):
                names[name] = None
                if in_category:
                    categories[name] = None
        elif kind == "value":
            _refuse_value(token, previous, where)
        elif set(token) - OPERATORS:
            raise StudyError(where, f"{shown(token)} has no meaning here", REMEDY)
        previous = token
    return Formula(text, (), tuple(names), tuple(categories))


def _tokens(text: str, where: str) -> list[tuple[str, str]]:
    from formulaic.errors import FormulaicError
    from formulaic.parser.algos.tokenize import tokenize

    try:
        return [(token.kind.value, str(token)) for token in tokenize(text)]
    except (FormulaicError, ValueError, RecursionError):
        raise StudyError(where, "cannot be read as a formula", REMEDY) from None


def _refuse_explosion(tokens: Sequence[tuple[str, str]], where: str) -> None:
    """Products of sums have more terms than a machine could hold."""
    products = [token for kind, token in tokens if kind == "operator" and set(token) & set("*/:^")]
    names = len({token for kind, token in tokens if kind in ("name", "python")})
    grouped = any(token == "(" for _, token in tokens)
    stars = sum("*" in token or "/" in token for token in products)
    if stars > 10 or (grouped and (len(products) > 3 or (products and names > 30))):
        raise StudyError(where, "has too many products", "Write the interactions that you need, as a:b.")


def _refuse_value(token: str, previous: str, where: str) -> None:
    power = previous in ("**", "^")
    if not token.isdigit() or not (1 < int(token) <= MOST_POWER if power else token in ("0", "1")):
        problem = f"the number {shown(token)} has no meaning here"
        raise StudyError(where, problem, "Write 0 or 1 for the intercept, and (a + b)**2 for interactions.")


def _names_within(source: str, where: str) -> Iterator[tuple[str, bool]]:
    """Columns within a call, and whether they are taken as categories. Parsed, never run."""
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise StudyError(where, "has brackets around something that cannot be read", REMEDY) from None
    if isinstance(tree, ast.Call) and _name_of(tree.func) == CATEGORY:
        yield _category(tree, where), True
        return
    yield from ((name, False) for name in _numbers(tree, where))


def _category(call: ast.Call, where: str) -> str:
    first, others = next(iter(call.args), None), call.args[1:]
    contrasts = all(
        isinstance(other, ast.Call)
        and _name_of(other.func) in CONTRASTS
        and all(isinstance(constant, ast.Constant) for constant in (*other.args, *(k.value for k in other.keywords)))
        for other in others
    )
    if not isinstance(first, ast.Name) or call.keywords or len(others) > 1 or not contrasts:
        problem = "C() is given something that it cannot take"
        raise StudyError(where, problem, "Write C(column), or C(column, Treatment('reference level')).")
    return first.id


def _numbers(node: ast.expr, where: str) -> Iterator[str]:
    """The columns of an expression of numbers. StudyError at anything else."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and _is_number(node.value):
        return
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        yield from _numbers(node.operand, where)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
        left, right = list(_numbers(node.left, where)), list(_numbers(node.right, where))
        if isinstance(node.op, ast.Pow) and (right or not left):
            raise StudyError(where, "a power is not of a column to a number", "Write I(column ** 2).")
        yield from (*left, *right)
    elif isinstance(node, ast.Call) and _name_of(node.func) in (IDENTITY, *FUNCTIONS) and _is_plain(node):
        yield from _numbers(node.args[0], where)
    else:
        raise StudyError(where, f"calls Python, or a function that is not allowed: {_called_name(node)}", REMEDY)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _is_plain(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords


def _called_name(node: ast.expr) -> str:
    name = _name_of(node.func) if isinstance(node, ast.Call) else ""
    return shown(name or type(node).__name__.lower())


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _called(text: str) -> list[str]:
    return [name for name in KNOWN if f"{name}(" in text.replace(" ", "")]


def refuse_unknown_columns(names: Iterable[str], schema: Schema, where: str) -> None:
    for name in names:
        if name not in schema and name != SITE:
            raise StudyError(where, f"there is no column {shown(name)}", suggest(name, schema, "Columns"))


@dataclass(frozen=True, eq=False)
class Design:
    """What a site's rows are to a regression. `matrix` has an intercept first, where the formula has one."""

    matrix: np.ndarray
    outcome: np.ndarray
    offset: np.ndarray
    people: np.ndarray  # numbered from 0

    def by_patient(self, values: np.ndarray) -> np.ndarray:
        """Rows of values added up for each patient."""
        if self.people.max() + 1 == len(self.people):
            return values
        order = np.argsort(self.people, kind="stable")
        starts = np.flatnonzero(np.diff(self.people[order], prepend=-1))
        return np.asarray(np.add.reduceat(values[order], starts, axis=0))


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of the design, the same at every site: they follow from the formula and the agreed levels alone."""

    names: tuple[str, ...]
    terms: Mapping[str, tuple[int, ...]]  # columns of each term of the formula
    spec: Any  # formulaic's, with the levels of each category
    left: Any
    offset: Any

    @property
    def has_intercept(self) -> bool:
        return INTERCEPT in self.names


@lru_cache(maxsize=64)
def _layout(text: str, offset: str, key: tuple[Any, ...]) -> Layout:
    formulas = _both_sides(text), offset
    frame = _template(dict(key))
    with _quiet():
        left, right = (_materialised(side, frame) for side in formulas[0])
        own_offset = _materialised(f"0 + {offset}", frame).model_spec if offset else None
    spec = right.model_spec
    names = tuple(map(str, spec.column_names))
    terms = {str(term): tuple(places) for term, places in spec.term_indices.items()}
    return Layout(names, terms, spec, left.model_spec, own_offset)


def layout_of(formula: Formula, offset: Formula | None, agreed: Agreed, where: str) -> Layout:
    used = dict.fromkeys([*formula.names, *(offset.names if offset else ())])
    levels = {name: agreed.levels.get(name) for name in used}
    numeric = {name: name != SITE and agreed.schema[name].kind == "numeric" for name in used}
    key = tuple((name, (levels[name], numeric[name])) for name in used)
    layout = _layout(formula.text, offset.text if offset else "", key)
    if len(layout.names) > MOST_COLUMNS:
        problem = f"makes {len(layout.names)} columns, and {MOST_COLUMNS} are the most"
        raise StudyError(where, problem, "Use fewer categories or interactions.")
    if len(layout.left.column_names) != 1:
        problem = f"the outcome {formula.outcome[0]!r} is a category of several levels, and a regression needs a number"
        raise StudyError(where, problem, "Name an outcome of 0 and 1, or a number.")
    if not layout.names:
        raise StudyError(where, "has nothing on its right side", 'Write "outcome ~ 1" for an intercept alone.')
    return layout


def design_of(layout: Layout, agreed: Agreed, rows: SiteRows, used: Sequence[str]) -> Design:
    """StudyError where a function has no finite value in some row, as a logarithm of 0."""
    frame = pd.DataFrame(
        {name: _column(name, agreed, rows) for name in used}, index=pd.RangeIndex(len(rows)), copy=False
    )
    with _quiet():
        matrix = np.asarray(layout.spec.get_model_matrix(frame, context=FUNCTIONS), dtype=np.float64)
        outcome = np.asarray(layout.left.get_model_matrix(frame, context=FUNCTIONS), dtype=np.float64)[:, 0]
        offset = np.zeros(len(rows))
        if layout.offset is not None:
            offset = np.asarray(layout.offset.get_model_matrix(frame, context=FUNCTIONS), dtype=np.float64)[:, 0]
    for values, names in ((matrix, layout.names), (outcome[:, None], ("the outcome",)), (offset[:, None], ("offset",))):
        bad = ~np.isfinite(values).all(axis=0)
        if bad.any():
            problem = f"{shown(names[int(np.flatnonzero(bad)[0])])} is no finite number in some rows of {rows.site}"
            remedy = "A logarithm needs values above 0: use log1p, or another column."
            raise StudyError("formula", problem, remedy)
    return Design(np.asfortranarray(matrix), outcome, offset, np.unique(rows.people, return_inverse=True)[1])


def _both_sides(text: str) -> tuple[str, str]:
    left, _, right = text.partition("~")
    return f"0 + {left}", right


def _materialised(side: str, frame: pd.DataFrame) -> Any:
    from formulaic import Formula as Formulaic

    return Formulaic(side).get_model_matrix(frame, context=FUNCTIONS, na_action="ignore", output="numpy")


def _template(key: Mapping[str, tuple[tuple[str, ...] | None, bool]]) -> pd.DataFrame:
    """A few rows that have every level: from them formulaic learns the columns, at every site the same."""
    rows = max([2, *(len(levels) for levels, _ in key.values() if levels)])
    columns: dict[str, pd.Series[Any]] = {}
    for name, (levels, numeric) in key.items():
        if levels is None:
            columns[name] = pd.Series(np.linspace(1.0, 2.0, rows))
        else:
            cycle = pd.Series([levels[place % len(levels)] for place in range(rows)], dtype=object)
            columns[name] = _as_numbers(cycle) if numeric else cycle
    return pd.DataFrame(columns, index=pd.RangeIndex(rows))


def _as_numbers(values: pd.Series) -> pd.Series:
    numbers = values.astype(float)
    return numbers.astype("int64") if (numbers == numbers.round()).all() else numbers


def _column(name: str, agreed: Agreed, rows: SiteRows) -> Any:
    if name == SITE:
        return np.full(len(rows), rows.site, dtype=object)
    values = rows.frame[name]
    if agreed.schema[name].kind == "categorical":
        return values.to_numpy(dtype=object)
    numbers = values.to_numpy(dtype=np.float64)
    levels = agreed.levels.get(name)
    whole = levels is not None and all(float(level).is_integer() for level in levels)
    return numbers.astype(np.int64) if whole else numbers


class _quiet(warnings.catch_warnings):
    """Without the warnings of logarithms of 0, which become errors of the study."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        self._errors = np.seterr(all="ignore")

    def __exit__(self, *details: Any) -> None:
        np.seterr(**self._errors)
        super().__exit__(*details)
