"""Inside a notebook: a progress bar, and figures that show themselves. Elsewhere nothing happens.

IPython is there wherever a notebook is, and is imported only then. Without widgets a bar is HTML that is replaced.
"""

import sys
import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any, Protocol

EVERY = 0.2  # seconds between two looks of the bar


class Step(Protocol):
    """What a run says of its progress."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def title(self) -> str: ...


def notebook_shell() -> Any:
    """IPython's shell in a kernel; None in a terminal, in a script and where there is no IPython."""
    shell = _shell()
    return shell if getattr(shell, "kernel", None) is not None else None


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def bar_in_notebook(progress: Callable[[Any], None] | None) -> Callable[[Any], None] | None:
    """What the caller wants to be told of progress; in a notebook a bar, unless he gives something."""
    if progress is not None or notebook_shell() is None:
        return progress
    return Bar()


class Bar:
    def __init__(self) -> None:
        self.began, self.last = time.monotonic(), 0.0
        self.handle: Any = None

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if self.handle is not None and now - self.last < EVERY and step.done < step.total:
            return
        self.last = now
        ipython: Any = import_module("IPython.display")
        shown = ipython.HTML(bar_html(step, now - self.began))
        if self.handle is None:
            self.handle = ipython.display(shown, display_id=True)
        else:
            self.handle.update(shown)


def bar_html(step: Step, seconds: float) -> str:
    share = step.done / step.total if step.total else 1.0
    done = step.done >= step.total
    text = f"{step.done:,} of {step.total:,} rounds, {_clock(seconds)}"
    if 0 < share < 1:
        text += f", about {_clock(seconds * (1 - share) / share)} left"
    title = "Trained" if done else f"Training {step.title}"
    return (
        f'<div style="color: inherit"><progress value="{step.done}" max="{max(step.total, 1)}" '
        f'style="width: 20em; vertical-align: middle"></progress> {escape(title)}: {escape(text)}</div>'
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def show_figures() -> None:
    """A figure that ends a cell is then shown as a picture, also where nobody has imported pyplot."""
    shell = _shell()
    if shell is not None:
        pylab: Any = import_module("IPython.core.pylabtools")
        pylab.select_figure_formats(shell, {"png"})
