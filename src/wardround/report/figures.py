"""Figures of a run, drawn from its records. SVG for pages, PNG for everything else, in one colour-blind-safe style."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from wardround.study import Arm, Study

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "wardround",  # the same figure is the same file
}
SHOWN = {"test_accuracy": "test accuracy", "test_loss": "test loss"}


def draw_curves(study: Study, records: pd.DataFrame, folder: Path) -> list[Path]:
    """Accuracy and loss over rounds: a column for each data set, a row for each share of stragglers, a line per arm."""
    written = []
    for column, label in SHOWN.items():
        with mpl.rc_context(STYLE):
            figure = _facets(study, records, column, label)
            for suffix, options in ((".svg", {"metadata": {"Date": None}}), (".png", {"dpi": 120})):
                path = folder / f"{column.replace('_', '-')}{suffix}"
                path.parent.mkdir(exist_ok=True)
                figure.savefig(path, **options)
                written.append(path)
    return written


def _facets(study: Study, records: pd.DataFrame, column: str, label: str) -> Figure:
    columns = list(dict.fromkeys(_data_title(study, arm) for arm in study.arms))
    rows = list(dict.fromkeys(_straggler_title(arm) for arm in study.arms))
    lines = list(dict.fromkeys(_line_title(study, arm) for arm in study.arms))
    size = (max(7.5, 3.1 * len(columns)), 0.6 + max(2.9, 2.2 * len(rows)) + 0.16 * len(lines))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), sharex=True, sharey=column == "test_accuracy", squeeze=False)
    means = records.dropna(subset=[column]).groupby(["arm", "round"])[column].mean()
    handles: dict[str, Any] = {}
    for arm in study.arms:
        place = axes[rows.index(_straggler_title(arm))][columns.index(_data_title(study, arm))]
        number = lines.index(_line_title(study, arm))
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        # an arm that diverged at once has no number to draw, but keeps its place in the legend
        curve = means[arm.name] if arm.name in means.index else pd.Series(dtype=float)
        (handles[lines[number]],) = place.plot(curve.index, curve.to_numpy(), linewidth=1.4, **style)
    for i, row in enumerate(rows):
        axes[i][0].set_ylabel(f"{row}\n{label}" if row else label)
    for j, title in enumerate(columns):
        axes[0][j].set_title(title, fontsize=9)
        axes[-1][j].set_xlabel("round")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(lines)))
    return figure


def _data_title(study: Study, arm: Arm) -> str:
    """What is different about this arm's data."""
    changed = {name: value for name, value in arm.data.options.items() if value != _common(study).get(name)}
    switched_on = [name for name, value in changed.items() if value is True]  # such as iid, which makes the rest moot
    described = [f"{name} {value}" for name, value in changed.items() if value is not False]
    return ", ".join(switched_on or described) or arm.data.name


def _common(study: Study) -> Mapping[str, Any]:
    """Settings of the source that are the same for all arms."""
    options = [arm.data.options for arm in study.arms]
    return {name: value for name, value in options[0].items() if all(other.get(name) == value for other in options)}


def _straggler_title(arm: Arm) -> str:
    stragglers = arm.training.stragglers
    return "" if stragglers is None else f"{stragglers.share:.0%} stragglers"


def _line_title(study: Study, arm: Arm) -> str:
    """The arm without what its panel already says."""
    if len({_data_title(study, other) for other in study.arms}) == 1 and arm.training.stragglers is None:
        return arm.name
    policy = f", {arm.training.stragglers.policy} late work" if arm.training.stragglers else ""
    mu = f" mu {arm.algorithm.options['mu']:g}" if "mu" in arm.algorithm.options else ""
    return f"{arm.algorithm.name}{mu}{policy}"
