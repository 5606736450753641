"""Public names of a package, imported on first use: `wardround --help` waits for neither torch nor Flower.

if TYPE_CHECKING:
    from wardround.runs.execute import run_study as run_study

__all__ = ["run_study"]
__getattr__ = lazy(__name__, {"wardround.runs.execute": ("run_study",)})
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names live in `homes`: module -> names."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return __getattr__


@contextmanager
def imports_of_a_run() -> Iterator[None]:
    """Around the imports of torch and its like. Hardly any of their objects is ever garbage: the collector does not
    look through them while they are made, nor ever after."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()
