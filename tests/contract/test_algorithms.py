"""What every algorithm promises. A new one is tested here by standing in ALGORITHMS."""

import ast
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, replace
from inspect import getsource
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.small_federations import after, assert_same, each_round, parts_of, ragged_sites, trial
from wardround.algorithms import ALGORITHMS, Algorithm, Arrival
from wardround.algorithms.algorithm import Work
from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.engines.serial import SERIAL
from wardround.study.schema import Stragglers
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial

EVERY_ALGORITHM = pytest.mark.parametrize("name", ALGORITHMS)
PRECISIONS = pytest.mark.parametrize("precision", ["float32", "float64"])
BUSY: dict[str, Any] = {"share": 0.7, "stragglers": Stragglers(0.4, "drop"), "batch_size": 8, "lr": 0.3}
YARDSTICKS = {"local", "pooled"}  # not from a paper
MOST_LINES = 80  # with the facts that it declares


def a_trial(name: str, **options: Any) -> Trial:
    return trial(ALGORITHMS[name](), **{**BUSY, **options})


def watched(arm: Trial) -> tuple[Trial, list[State], list[State]]:
    """The trial, and lists that will hold every message down and every message up."""
    down: list[State] = []
    up: list[State] = []

    def broadcast(server: State, site: int) -> State:
        down.append(arm.algorithm.broadcast(server, site))
        return down[-1]

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        update, new_memory = arm.algorithm.finish(params, shared, memory, work)
        up.append(update)
        return update, new_memory

    return replace(arm, algorithm=replace(arm.algorithm, broadcast=broadcast, finish=finish)), down, up


@EVERY_ALGORITHM
def test_no_function_writes_into_what_it_is_given(name: str) -> None:
    arm = a_trial(name)
    facts: dict[str, Any] = {field.name: getattr(arm.algorithm, field.name) for field in fields(Algorithm)}
    guards = {key: guarded(fact) for key, fact in facts.items() if callable(fact)}
    assert len(guards) >= 7
    careful = after(replace(arm, algorithm=Algorithm(**{**facts, **guards})), 8)
    assert_same(careful, after(arm, 8))


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        before = deepcopy(arguments)
        result = function(*arguments)
        assert same(arguments, before), f"{function.__qualname__} has changed its arguments"
        return result

    return call


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Arrival):
        return (a.site, a.weight) == (b.site, b.weight) and same(a.update, b.update)
    return bool(a == b)


@EVERY_ALGORITHM
def test_a_round_leaves_the_runs_before_it_as_they_were(name: str) -> None:
    arm = a_trial(name)
    history = [start(arm)]
    copies = [deepcopy(history[0])]
    for run, _ in each_round(arm, 8):
        history.append(run)
        copies.append(deepcopy(run))
    for run, copy in zip(history, copies, strict=True):
        assert_same(run, copy)


@EVERY_ALGORITHM
def test_a_run_that_is_saved_and_loaded_carries_on_to_the_same_bits(name: str) -> None:
    arm = a_trial(name, sites=ragged_sites(dtype=torch.float32), precision="float32")
    uninterrupted = after(arm, 6)
    for interrupted in (0, 3):
        run = after(arm, interrupted)
        done, leaves = SERIAL.leaves(run)
        content = safetensors.torch.save({key: leaf.clone() for key, leaf in leaves.items()})
        loaded = SERIAL.restore([arm], done, safetensors.torch.load(content))
        assert_same(loaded, run)
        assert_same(after(arm, 6, loaded), uninterrupted)


@EVERY_ALGORITHM
def test_a_repeated_run_gives_the_same_bits(name: str) -> None:
    first, second = a_trial(name), a_trial(name)
    assert_same(after(first, 6), after(second, 6))
    records = [[record for _, record in each_round(arm, 6)] for arm in (first, second)]
    assert records[0] == records[1]


@EVERY_ALGORITHM
def test_state_is_plain_data(name: str) -> None:
    arm, down, up = watched(a_trial(name))
    for run in (start(arm), after(arm, 6)):
        states = [run.server, *(memory.algorithm for memory in run.memories.values()), *down, *up]
        for state in states:
            assert_plain(state)
    assert up


def assert_plain(state: State) -> None:
    assert type(state) is dict
    for part, leaves in state.items():
        assert type(part) is str
        assert "/" not in part
        assert part not in ("private", "buffers")  # under these names a saved run keeps the model's own
        assert type(leaves) is dict
        assert leaves  # an empty part would not survive being saved
        for leaf_name, leaf in leaves.items():
            assert type(leaf_name) is str
            assert type(leaf) is Tensor
            assert not leaf.requires_grad
    assert same(tree.unflatten(tree.flatten(state)), state)


@EVERY_ALGORITHM
@PRECISIONS
def test_precision_is_that_of_the_study(name: str, precision: str) -> None:
    dtype: torch.dtype = getattr(torch, precision)
    arm, down, up = watched(a_trial(name, sites=ragged_sites(dtype=dtype), precision=precision))
    run = after(arm, 6)
    trees = [*parts_of(run).values(), *(leaves for state in (*down, *up) for leaves in state.values())]
    dtypes = {leaf.dtype for leaves in trees for leaf in leaves.values() if leaf.is_floating_point()}
    assert dtypes == {dtype}


@EVERY_ALGORITHM
def test_what_travels_has_the_shapes_of_the_parameters(name: str) -> None:
    """Or is a single number each, as FedNova's count of steps."""
    arm, down, up = watched(a_trial(name, classes=3))
    after(arm, 6)
    shapes = {"weight": torch.Size((3, 3)), "bias": torch.Size((3,))}
    for state in (*down, *up):
        for part, leaves in state.items():
            actual_shapes = {leaf_name: leaf.shape for leaf_name, leaf in leaves.items()}
            assert actual_shapes == shapes or (part != "params" and set(actual_shapes.values()) == {torch.Size(())})


@EVERY_ALGORITHM
def test_the_record_counts_the_bytes_that_travel(name: str) -> None:
    arm, down, up = watched(a_trial(name))
    for _, record in each_round(arm, 3):
        if not arm.algorithm.pools:
            assert record.bytes_up == sum(tree.count_bytes(state) for state in up)
            each = {tree.count_bytes(state) for state in down}
            assert {record.bytes_down} == {size * (len(record.sites) + len(record.dropped)) for size in each}
        up.clear()


@EVERY_ALGORITHM
@pytest.mark.parametrize(("classes", "precision"), [(2, "float64"), (3, "float32")])
def test_it_learns(name: str, classes: int, precision: str) -> None:
    """On many sites and on a single one: the loss of the site's model on its own rows becomes smaller."""
    for sizes in ((17,), (5, 23, 8, 14)):
        sites = ragged_sites(classes, sizes, dtype=getattr(torch, precision))
        arm = a_trial(name, sites=sites, classes=classes, precision=precision, share=1.0, stragglers=None)
        before, now = loss_everywhere(arm, start(arm)), loss_everywhere(arm, after(arm, 6))
        assert now < before - 0.01


def loss_everywhere(arm: Trial, run: Run) -> float:
    losses = []
    for number, site in enumerate(arm.sites):
        params, buffers = site_model(arm, run, number)
        x, y = site.train.everything(arm.dtype)
        losses.append(float(arm.model.loss(params, buffers, x, y, None)[0]) * len(site.train))
    return sum(losses) / sum(len(site.train) for site in arm.sites)


@EVERY_ALGORITHM
def test_facts_are_declared_consistently(name: str) -> None:
    algorithm = ALGORITHMS[name]()
    arm, _, up = watched(a_trial(name))
    after(arm, 1)
    assert "sgd" in algorithm.sound_with
    assert algorithm.needs == ("mean" if algorithm.aggregate_each is None else "each")
    for update in up:
        assert algorithm.data_free <= update.keys()


@EVERY_ALGORITHM
def test_settings_that_the_server_holds_are_recorded(name: str) -> None:
    arm = a_trial(name)
    for run, record in each_round(arm, 2):
        held = run.server.get("settings", {})
        assert record.settings == {key: float(leaf) for key, leaf in held.items()}
        assert all(leaf.shape == torch.Size(()) for leaf in held.values())


@EVERY_ALGORITHM
def test_its_module_is_short_and_says_where_it_comes_from(name: str) -> None:
    module = sys.modules[ALGORITHMS[name].__module__]
    assert code_lines(getsource(module)) <= MOST_LINES
    assert module.__doc__
    assert name in YARDSTICKS or re.search(r"arXiv:\d{4}\.\d{5}", module.__doc__)


def code_lines(source: str) -> int:
    """Without blanks, comments and docstrings."""
    parsed = ast.parse(source)
    documents = set[int]()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documents |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in documents for n, line in lines)
