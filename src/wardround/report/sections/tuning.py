"""Settings that were tried on validation rows: what was chosen, and how much it matters which one it is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, MARKERS, figure, legend, offset
from wardround.report.render.table import Table, make_table, one_decimal, percent
from wardround.report.section import Section

METHODS = {
    "random": "by chance",
    "successive-halving": "by chance; one in three went on for three times as many rounds",
    "bayesian": "each next one where a model of the scores so far expected most",
}


def tuning(evidence: Evidence) -> Mapping[str, Any]:
    content: Mapping[str, Any] = evidence.results["tuning"]
    return content


def scored_by(evidence: Evidence) -> Headline:
    return evidence.headline_for(tuning(evidence)["metric"])


def lines(evidence: Evidence) -> list[str]:
    content, metric = tuning(evidence), scored_by(evidence)
    spent = [of_seed for arm in content["arms"].values() for of_seed in arm["spent"].values()]
    trainings, trials = {own["trainings"] for own in spent}, {own["trials"] for own in spent}
    each = f"{_range(trials, str)} settings in {_range(trainings, '{:.3g}'.format)} trainings of full length"
    equal = "the same for every arm" if content["equal_budgets"] else "NOT the same for every arm"
    found = [
        f"For each arm and seed, {each} were tried ({METHODS[content['method']]}), and the one with the best "
        f"{metric.word} on the seed's validation rows was chosen. The records of the rounds confirm what was spent: "
        f"{equal}."
        if content["equal_budgets"]
        else f"For each arm and seed settings were tried, and what was spent on them was {equal}: a comparison of "
        "these arms may owe something to that.",
        "Test rows had no part in the choice. Each seed chose for itself and trained once more with its choice, so "
        "that the figures of this report are those of training with tuning, chance in the choice included.",
    ]
    return [*found, *(_flatness(name, arm, evidence) for name, arm in content["arms"].items())]


def _range(values: set[Any], shown: Any) -> str:
    low, high = min(values), max(values)
    return shown(low) if low == high else f"{shown(low)} to {shown(high)}"


def _flatness(name: str, arm: Mapping[str, Any], evidence: Evidence) -> str:
    metric, margin = scored_by(evidence), tuning(evidence)["near"]
    if arm["near_share"] is None:
        return f"{name}: no setting had a score, so that it trained as it is written."
    near = f"{metric.shown(margin)}{' points' if metric.unit else ''}"
    shape = "flat: it hardly matters which" if arm["near_share"] >= 0.5 else "narrow: the setting matters"
    return (
        f"{name}: {percent(arm['near_share'])} % of the settings that trained to the end came within {near} of the "
        f"best of their seed (the optimum is {shape}). These have {_extents(arm)}."
    )


def _extents(arm: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} {_extent(values)}" for key, values in arm["near_values"].items())


def _extent(values: Sequence[Any]) -> str:
    if len(values) == 2 and all(_is_number(value) for value in values):
        return f"{values[0]:g}" if values[0] == values[1] else f"from {values[0]:g} to {values[1]:g}"
    return " or ".join(map(_shown, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else str(value).lower() if isinstance(value, bool) else str(value)


def _setting(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in values.items())


def chosen_table(evidence: Evidence) -> Table:
    metric, rows = scored_by(evidence), []
    for name, arm in tuning(evidence)["arms"].items():
        seeds = list(arm["chosen"].values())
        counts: dict[str, int] = {}
        for own in seeds:
            counts[_setting(own["values"])] = counts.get(_setting(own["values"]), 0) + 1
        most = max(counts, key=counts.__getitem__)
        each = next(iter(arm["spent"].values()))
        kept = sum(own["trial"] == 0 for own in seeds)
        scores = [arm["mean_written"], arm["mean_chosen"], arm["near_share"]]
        rows.append([name, _setting(arm["written"]), most, counts[most], kept, *scores, each["trainings"]])
    return make_table(
        "tuning",
        "What was chosen",
        {
            "arm": None,
            "as written": None,
            "chosen most often": None,
            "seeds that chose it": str,
            "seeds that kept what is written": str,
            metric.above("validation, as written"): metric.shown,
            metric.above("validation, chosen"): metric.shown,
            "settings near the best, %": percent,
            "trainings spent": one_decimal,
        },
        rows,
        f"Mean {metric.word} over seeds, on validation rows. That of the choice is the best of several and so somewhat "
        "too good; the figures on test rows are not. The file results.json has the choice of each seed.",
    )


def trials_table(evidence: Evidence) -> Table:
    metric, rows = scored_by(evidence), []
    for name, arm in tuning(evidence)["arms"].items():
        chosen = {(int(seed), own["trial"]) for seed, own in arm["chosen"].items()}
        by_setting: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for trial in arm["trials"]:
            by_setting.setdefault((trial["trial"], _setting(trial["values"])), []).append(trial)
        for (number, setting), trials in sorted(by_setting.items()):
            scores = [trial["score"] for trial in trials if trial["score"] is not None]
            mean = sum(scores) / len(scores) if scores else None
            count = sum((trial["seed"], trial["trial"]) in chosen for trial in trials)
            reached = max(trial["rounds"] for trial in trials)
            rows.append([name, number, setting, len(trials), reached, mean, count])
    return make_table(
        "tuning-trials",
        "All settings that were tried",
        {
            "arm": None,
            "trial": str,
            "setting": None,
            "seeds": str,
            "rounds": str,
            metric.above("validation"): metric.shown,
            "seeds that chose it": str,
        },
        rows,
        "Trial 0 is the arm as the study has it. Rounds: of the seed in which it came furthest.",
    )


def against_values(evidence: Evidence) -> Figure | None:
    """A panel for each key, a point for each trial of each seed."""
    content, metric = tuning(evidence), scored_by(evidence)
    keys = [key for key in content["space"] if any(key in arm["keys"] for arm in content["arms"].values())]
    columns = min(3, len(keys))
    lines_of_panels = -(-len(keys) // columns)
    drawn = figure(0.9 + 2.5 * lines_of_panels)
    panels = drawn.subplots(lines_of_panels, columns, sharey=True, squeeze=False)
    for axes in panels.flat[len(keys) :]:
        axes.set_visible(False)
    for key, axes in zip(keys, panels.flat, strict=False):
        names = _names_of(content, key)
        having = [name for name, arm in content["arms"].items() if key in arm["keys"]]
        for place, name in enumerate(having):
            number = list(content["arms"]).index(name)
            shift = offset(place, len(having), 0.5) if names else 0.0
            label = name if key == content["arms"][name]["keys"][0] else None
            _draw_arm(axes, key, names, content["arms"][name], number, shift, metric, label)
        _scale(axes, content["space"][key], names)
        axes.set_xlabel(key)
    for line in panels:
        line[0].set_ylabel(f"validation {metric.word}{metric.unit}")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _scale(axes: Any, given: Any, names: Sequence[str]) -> None:
    """Listed values side by side; of bounds all of what could be drawn."""
    if names:
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif given.get("log"):
        axes.set_xscale("log")
        first, last = math.ceil(math.log10(given["low"])), math.floor(math.log10(given["high"]))
        ticks = [10.0**power for power in range(first, last + 1)] or [given["low"], given["high"]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=isinstance(given["low"], int)))


def _names_of(content: Mapping[str, Any], key: str) -> list[str]:
    """Of listed values: one place each, in the order of the list, then those that arms have beside it."""
    listed = content["space"][key]
    if isinstance(listed, Mapping):
        return []
    values = [*listed, *(arm["written"][key] for arm in content["arms"].values() if key in arm["keys"])]
    return list(dict.fromkeys(map(_shown, values)))


def _draw_arm(
    axes: Any,
    key: str,
    names: Sequence[str],
    arm: Mapping[str, Any],
    number: int,
    shift: float,
    metric: Headline,
    label: str | None,
) -> None:
    """Faint: trials. Strong with a black edge: each seed's choice. Small: trials that stopped early."""
    chosen = {(int(seed), own["trial"]) for seed, own in arm["chosen"].items()}
    style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "linestyle": "none"}
    kinds: dict[tuple[bool, bool], list[tuple[float, float]]] = {}
    for trial in arm["trials"]:
        if trial["score"] is not None:
            value = trial["values"][key]
            x = names.index(_shown(value)) + shift if names else value
            kind = ((trial["seed"], trial["trial"]) in chosen, trial["rounds"] == arm["rounds"])
            kinds.setdefault(kind, []).append((x, metric.scale * trial["score"]))
    for (is_chosen, whole), points in sorted(kinds.items()):
        size = (6.5 if is_chosen else 4.5) if whole else 2.5
        edge = {"markeredgecolor": "black", "markeredgewidth": 1.1} if is_chosen else {"markeredgewidth": 0.0}
        shown = f"{label}, chosen" if label and is_chosen else None
        x_values, y_values = zip(*points, strict=True)
        axes.plot(x_values, y_values, markersize=size, alpha=1.0 if is_chosen else 0.35, label=shown, **style, **edge)


PAGE = """
<section id="tuning"><h2>Choice of settings</h2>
{% for line in lines %}<p>{{ line }}</p>
{% endfor %}
{{ show("tuning") }}
{{ draw("tuning") }}
{% call fold("All settings that were tried") %}{{ show("tuning-trials") }}{% endcall %}
</section>
"""

SECTION = Section(
    PAGE,
    "tuning",
    "Choice of settings",
    values={"lines": lines},
    tables=(chosen_table, trials_table),
    figures={
        "tuning": Drawing(
            "Validation score of every setting that was tried",
            "Each point is one setting with one seed, drawn against the value of one key; the other keys differ too. "
            "With a black edge: what each seed chose. Small: trials that stopped early. Where points of many values "
            "are equally high, the optimum is flat.",
            against_values,
        )
    },
)
