"""A mistake on purpose: a function that is replaced by a wrong one, and the tests that must notice."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import FunctionType
from typing import Any

Mistake = Callable[..., Any]  # takes the function as it was, then the arguments of a call

ACTIVE: list[Callable[..., Any]] = []


@dataclass(frozen=True)
class Mutant:
    name: str  # of the mistake
    target: Any  # a function, or a method, property or classmethod read from its class
    mistake: Mistake
    fact: str  # which the tests hold and the mistake breaks
    tests: tuple[str, ...]  # node ids below tests/, without parameters


def function_of(target: Any) -> FunctionType:
    """The function behind a method, a property or a cache."""
    if isinstance(target, property):
        target = target.fget
    elif isinstance(target, cached_property):
        target = target.func
    function = getattr(target, "__func__", getattr(target, "__wrapped__", target))
    if not isinstance(function, FunctionType) or function.__closure__ is not None:
        raise TypeError(f"{target!r} cannot be replaced: name a function of a module or a method of a class")
    return function


def apply(mutant: Mutant) -> None:
    """For the rest of this process. The code is exchanged inside the function, so that every reference to it changes:
    names imported from its module, entries of registries, methods."""
    function = function_of(mutant.target)
    original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    original.__annotations__ = function.__annotations__
    ACTIVE[:] = [partial(mutant.mistake, original)]
    function.__code__ = _call_active.__code__
    function.__defaults__ = function.__kwdefaults__ = None
    function.__dict__["__wrapped__"] = original  # its signature stays readable


def _call_active(*args: Any, **kwargs: Any) -> Any:
    from tests.mutants.mutant import ACTIVE  # the globals are those of the replaced function

    return ACTIVE[0](*args, **kwargs)


def returns(value: Any) -> Mistake:
    return lambda original, *args, **kwargs: value


def with_part(**parts: Callable[..., Any]) -> Mistake:
    """Of a factory of a frozen dataclass: the functions named are wrong. Each takes the right one first."""

    def mistake(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        instance = original(*args, **kwargs)
        return replace(instance, **{name: partial(wrong, getattr(instance, name)) for name, wrong in parts.items()})

    return mistake


def with_field(**fields: Any) -> Mistake:
    """Of a function that returns a frozen dataclass: the fields named have other values."""
    return lambda original, *args, **kwargs: replace(original(*args, **kwargs), **fields)
