"""The page of what is supported: cells that say yes train, and the others are refused for the stated reason."""

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import cache

import pytest
import torch

from scripts.write_support_page import (
    NO_EFFECT,
    PAGE,
    PRIVACY_TITLES,
    YES,
    Cell,
    aggregating_rows,
    aggregation_rows,
    algorithm_rows,
    compressing_rows,
    compression_rows,
    general_reason,
    model_rows,
    page,
    plan_and_units,
    slow_rows,
    task_rows,
)
from tests.representatives import represented
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import WardroundError
from wardround.engines import ENGINES
from wardround.models import MODELS
from wardround.tasks import TASKS
from wardround.training.rounds import site_model


@cache
def printed() -> tuple[dict[tuple[str, str, str], str], dict[str, str]]:
    """The page's cells by section, row and column; and its reasons by number."""
    cells: dict[tuple[str, str, str], str] = {}
    section, columns = "", list[str]()
    text = PAGE.read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            section, columns = line.lstrip("# "), []
        elif line.startswith("| ---"):
            continue
        elif line.startswith("| "):
            name, *values = line.strip("| ").split(" | ")
            if not columns:
                columns = values
            else:
                rows = zip(columns, values, strict=True)
                cells |= {(section, name.strip("`"), column): value for column, value in rows}
    return cells, dict(re.findall(r"^(\d+)\. (.*)$", text, re.M))


def expect(cell: Cell, mark: str) -> None:
    """Trains where the page says that it is supported; is refused for the page's reason where not."""
    reasons = printed()[1]
    if mark not in (YES, NO_EFFECT):
        with pytest.raises(WardroundError) as refused:
            plan_and_units(cell)
        assert general_reason(cell, refused.value) == reasons[mark]
        return
    plan, units = plan_and_units(cell)
    [unit] = units
    assert unit.engine == cell.place or cell.place == "deployed"
    if cell.place == "deployed":  # trained by tests/deployment
        return
    engine, trials = ENGINES[unit.engine], unit.trials(plan)
    first = last = engine.start(trials)
    rounds = 0
    for last, records in engine.rounds(trials, first):  # noqa: B007
        rounds += 1
        assert not records[0].failed
    assert rounds == trials[0].training.rounds
    [run] = engine.runs(trials, last)
    params, _ = site_model(trials[0], run, 0)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in params.values())


def cells_of(section: str, row: str, cells: Mapping[str, Cell]) -> Iterator[tuple[Cell, str]]:
    marks = printed()[0]
    for column, cell in cells.items():
        yield cell, marks[section, row, column]


# every algorithm with one protection, and every protection with some algorithm
OFTEN = list(zip(ALGORITHMS, itertools.cycle(PRIVACY_TITLES), strict=False))


@pytest.mark.parametrize(("algorithm", "privacy"), represented(itertools.product(ALGORITHMS, PRIVACY_TITLES), by=OFTEN))
def test_each_combination_of_an_algorithm_trains_or_is_refused_as_the_page_says(algorithm: str, privacy: str) -> None:
    for cell, mark in cells_of(PRIVACY_TITLES[privacy], algorithm, algorithm_rows(privacy)[algorithm]):
        expect(cell, mark)


@pytest.mark.parametrize("row", represented(model_rows(), by=["logistic", "adapter", "joined", 'cnn, norm = "fedbn"']))
def test_each_combination_of_a_model_trains_or_is_refused_as_the_page_says(row: str) -> None:
    for cell, mark in cells_of("Models", row, model_rows()[row]):
        expect(cell, mark)


@pytest.mark.parametrize("algorithm", represented(slow_rows(), by=["fedadam", "scaffold", "local"]))
def test_each_algorithm_with_slow_hospitals_trains_or_is_refused_as_the_page_says(algorithm: str) -> None:
    for cell, mark in cells_of("Slow hospitals", algorithm, slow_rows()[algorithm]):
        expect(cell, mark)


@pytest.mark.parametrize("kind", represented(compression_rows(), by=["top-k"]))
def test_each_kind_of_compression_trains_or_is_refused_as_the_page_says(kind: str) -> None:
    for cell, mark in cells_of("Compression", kind, compression_rows()[kind]):
        expect(cell, mark)


@pytest.mark.parametrize("algorithm", represented(compressing_rows(), by=["scaffold", "clustered"]))
def test_each_algorithm_with_compression_trains_or_is_refused_as_the_page_says(algorithm: str) -> None:
    for cell, mark in cells_of("Compression by algorithm", algorithm, compressing_rows()[algorithm]):
        expect(cell, mark)


@pytest.mark.parametrize("rule", represented(aggregation_rows(), by=["median", "norm-bound", "fltrust"]))
def test_each_rule_trains_or_is_refused_as_the_page_says(rule: str) -> None:
    for cell, mark in cells_of("Aggregation", rule, aggregation_rows()[rule]):
        expect(cell, mark)


@pytest.mark.parametrize("algorithm", represented(aggregating_rows(), by=["scaffold", "fednova"]))
def test_each_algorithm_with_a_rule_trains_or_is_refused_as_the_page_says(algorithm: str) -> None:
    for cell, mark in cells_of("Aggregation by algorithm", algorithm, aggregating_rows()[algorithm]):
        expect(cell, mark)


@pytest.mark.parametrize(
    "row", represented(task_rows(), by=["multiclass", "regression", 'count, dispersion = "fitted"'])
)
def test_each_combination_of_a_task_trains_or_is_refused_as_the_page_says(row: str) -> None:
    for cell, mark in cells_of("Tasks", row, task_rows()[row]):
        expect(cell, mark)


def test_the_page_has_all_algorithms_and_models_and_no_others() -> None:
    cells, reasons = printed()
    rows = {(section, row) for section, row, _ in cells}
    assert rows == {(title, name) for title in PRIVACY_TITLES.values() for name in ALGORITHMS} | {
        *(("Models", row) for row in model_rows()),
        *(("Tasks", row) for row in task_rows()),
        *(("Slow hospitals", name) for name in slow_rows()),
        *(("Compression", kind) for kind in compression_rows()),
        *(("Compression by algorithm", name) for name in compressing_rows()),
        *(("Aggregation", rule) for rule in aggregation_rows()),
        *(("Aggregation by algorithm", name) for name in aggregating_rows()),
    }
    assert {row.split(",")[0] for row in task_rows()} == {*TASKS, "several outcomes"}
    assert {row.split(",")[0] for row in model_rows()} == set(MODELS)
    assert {mark for mark in cells.values() if mark not in (YES, NO_EFFECT)} == set(reasons)


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    """Written anew with scripts/write_support_page.py."""
    assert PAGE.read_text(encoding="utf-8") == page()
