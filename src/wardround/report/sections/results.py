"""The results over all sites: arms, differences, sweeps, training curves, calibration and groups of patients."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.answer import primary_figure
from wardround.report.arms import swept_values
from wardround.report.evidence import ROLES, Evidence
from wardround.report.phrases import histogram_sentence, ranking_sentence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    COLOURS,
    MARKERS,
    MOST_LABELLED,
    WIDTH,
    bar,
    difference_text,
    figure,
    label_ends,
    label_panels,
    legend,
    looks,
    name_rows,
    numbered_style,
    offset,
    on_top_of,
    single_axes,
    tell,
)
from wardround.report.render.table import (
    CI,
    FEWEST,
    OTHER_CI,
    Table,
    decimals,
    listed,
    make_table,
    mean_sd,
    one_decimal,
    percent,
    whole_number,
    without_empty,
)
from wardround.report.section import Section, compact
from wardround.tasks import METRIC_FACTS, TASKS
from wardround.tasks.class_metrics import SMALLEST_CLASS, SMALLEST_GROUP


def arm_table(evidence: Evidence) -> Table:
    headline, shown = evidence.headline, evidence.headline.shown
    others = [metric for metric in evidence.task.report.arms if metric != headline.metric]
    over_all_rows = {headline.metric: f"{headline.word} over all rows"} if evidence.ranked_within else {}
    rows = []
    for name, arm in evidence.arms.items():
        primary = evidence.figure(name)
        figures = [arm["metrics"][metric]["mean"] for metric in (*over_all_rows, *others)]
        kilobytes = arm["cost"]["bytes"] / 1000
        rows.append([name, *mean_sd(primary), *headline.limits(primary["interval"]), *figures, kilobytes])
    seeds = f"Means over {evidence.seeds} seeds" if evidence.seeds != 1 else "One seed,"
    note = f"{seeds} on all sites' test rows; the 95 % CI is that of the {evidence.primary_word}, by itself."
    if evidence.findings:
        note += " Every figure is the mean over findings."
    if evidence.ranked_within:
        note += f" {ranking_sentence(evidence)}"
    if evidence.deployed:
        note += f" From sites' counts and sums, over the sites that may tell them.{histogram_sentence(evidence)}"
    return compact(
        evidence,
        make_table(
            "arms",
            "All arms",
            {
                "arm": None,
                headline.above(evidence.primary_word): shown,
                **dict.fromkeys(("SD", *CI), shown),
                **dict.fromkeys(map(headline.above, over_all_rows.values()), shown),
                **dict(evidence.headline_for(metric).column for metric in others),
                "KB": one_decimal,
            },
            rows,
            note,
        ),
    )


def variant_table(evidence: Evidence) -> Table | None:
    variants, headline = list(evidence.variants), evidence.headline
    if not variants:
        return None

    def figures(name: str) -> list[Any]:
        return mean_sd(evidence.figure(name) if name in evidence.results["arms"] else None)

    rows = [[arm, *figures(arm), *(x for v in variants for x in figures(f"{arm}@{v}"))] for arm in evidence.arms]
    columns = [headline.above("as it stands"), "SD"]
    for variant in variants:
        columns += [headline.above(variant), f"SD, {variant}"]
    return make_table(
        "variants",
        f"{headline.title} in the variants of the study",
        {"arm": None, **dict.fromkeys(columns, headline.shown)},
        rows,
        " ".join(f"{name}: {variant['text']}." for name, variant in evidence.variants.items()),
    )


def calibration_table(evidence: Evidence) -> Table | None:
    """Of probabilities; numbers have a part of their own."""
    if evidence.task.calibration != "logistic":
        return None
    rows = []
    for name, arm in evidence.arms.items():
        if arm["calibration"] and arm["calibration"]["slope"]:
            slope, intercept = arm["calibration"]["slope"], arm["calibration"]["intercept"]
            brier = arm["metrics"]["brier"]["mean"]
            rows.append([name, slope["value"], *slope["interval"], intercept["value"], *intercept["interval"], brier])
    return make_table(
        "calibration",
        "Calibration",
        {"arm": None, **dict.fromkeys(("slope", *CI, "intercept", *OTHER_CI, "Brier"), decimals)},
        rows,
        "A slope of 1 and an intercept of 0 are calibrated; a slope below 1 means scores that are too extreme.",
    )


def subgroup_table(evidence: Evidence, all_arms: bool = False) -> Table | None:
    shown_arms = (evidence if all_arms else evidence.detailed).few_arms
    if all_arms and set(shown_arms) == set(evidence.detailed.few_arms):
        return None
    headline, shown = evidence.headline, evidence.headline.shown
    others = evidence.task.report.beside(headline.metric)
    rows: list[list[Any]] = []
    for name in shown_arms:
        for kind in evidence.kinds:
            for group, entry in evidence.arms[name]["subgroups"].get(kind, {}).items():
                figures: list[Any] = [None] * (4 + len(others))
                if entry.get("metrics") is not None:
                    main = entry["metrics"][headline.metric]
                    means = [entry["metrics"][metric]["mean"] for metric in others]
                    figures = [entry["rows"], main["mean"], *headline.limits(main["interval"]), *means]
                rows.append([name, f"{kind}: {group}", *figures])
    note = f"Rows: test rows of one seed, on average. A group with fewer than {SMALLEST_GROUP} is suppressed"
    if evidence.task.answers == "class":
        note += f"; where it has fewer than {SMALLEST_CLASS} of a class, so are the figures that depend on classes"
    note += "."
    if evidence.deployed:
        note = (
            f"Rows: test rows of one seed, on average, at sites where the group has {evidence.smallest_group} or more."
        )
    return compact(
        evidence,
        make_table(
            "subgroups-of-all-arms" if all_arms else "subgroups",
            f"{groups_title(evidence)}, every kind of arm" if all_arms else groups_title(evidence),
            {
                "arm": None,
                "group": None,
                "rows": whole_number,
                **dict.fromkeys((headline.above(), *CI), shown),
                **dict(evidence.headline_for(metric).column for metric in others),
            },
            rows,
            note,
        ),
    )


def groups_title(evidence: Evidence) -> str:
    return f"By {listed(evidence.kinds)}" if evidence.kinds else "By group"


def confusion_table(evidence: Evidence) -> Table | None:
    """Of the arm of page one and of training alone, at the threshold that was chosen. Not where few rows are of a
    class."""
    rows: list[list[Any]] = []
    for name in evidence.detailed.few_arms:
        counts = evidence.arms[name]["predicted_classes"] or {}
        table = counts.get("confusion")
        if table is None or any(0 < sum(line) < FEWEST for line in table):
            continue
        for label, line in zip(evidence.classes, table, strict=True):
            rows.append([name, label, *line, line[evidence.classes.index(label)] / sum(line) if sum(line) else None])
    columns = {f"predicted {label}": str for label in evidence.classes}
    return make_table(
        "predicted-classes",
        "Right and wrong predictions",
        {"arm": None, "is": None, **columns, "right, %": percent},
        rows,
        "Test rows of all seeds together, at the threshold that the section Design gives.",
    )


def sweep_table(evidence: Evidence) -> Table:
    rows = []
    for family, (setting, values) in swept_values(evidence).items():
        for value, name in values.items():
            converged = evidence.arms[name]["convergence"]
            figures = [*mean_sd(evidence.figure(name)), *mean_sd(converged["rounds_to_95_percent"])]
            rows.append([family, f"{setting} {value:g}", *figures, converged["mean_change"]])
    return compact(
        evidence,
        make_table(
            "sweep",
            "The swept setting",
            {
                "arm": None,
                "value": None,
                **dict.fromkeys((evidence.headline.above(), "SD"), evidence.headline.shown),
                **dict.fromkeys((f"rounds to {evidence.nearly}", "SD "), one_decimal),
                "weight change per round": decimals,
            },
            rows,
        ),
    )


def selection_table(evidence: Evidence) -> Table:
    rows = [
        [choice["arm"], name, score, list(choice["chosen"].values()).count(name)]
        for choice in evidence.results["selection"]
        for name, score in choice["scores"].items()
    ]
    selection = evidence.study.get("selection", {})
    where = "on validation rows"
    if selection.get("on") == "site":
        where = f"at {selection.get('site')}, with models trained without it"
        where += ", on patients whom nobody else trains on or tests"
    metric = next((choice["metric"] for choice in evidence.results["selection"]), evidence.headline.metric)
    return make_table(
        "selection",
        "How the value was selected",
        {"arm": None, "value": None, "score": decimals, "seeds that chose it": str},
        rows,
        f"Mean {evidence.headline_for(metric).word} {where}. Ties go to the first value. Test rows had no say.",
    )


def sides_table(evidence: Evidence) -> Table | None:
    """Training, validation and test rows after the last round: a model that fits the first alone is overfitted."""
    headline = evidence.curve_headline
    if all(evidence.last(arm, f"training_{headline.metric}") is None for arm in evidence.arms):
        return None
    curves = [f"{role}_{figure}" for figure in (headline.metric, "loss") for role in ROLES]
    rows = [[name, *(evidence.last(name, curve) for curve in curves)] for name in evidence.arms]
    note = "After the last round, over all sites' rows together."
    if evidence.findings:
        note += " Loss without the weights that training gave to findings."
    return without_empty(
        make_table(
            "sides",
            "On training, validation and test rows",
            {
                "arm": None,
                **{headline.above(f"{role} {headline.word}"): headline.shown for role in ROLES},
                **{f"{role} loss": decimals for role in ROLES},
            },
            rows,
            note,
        )
    )


def comparison_sentences(evidence: Evidence) -> list[str]:
    return [test["sentence"] for test in evidence.tests()]


def overall(evidence: Evidence) -> Figure:
    headline, arms, variants = evidence.headline, list(evidence.arms), ["", *evidence.variants]
    drawn, axes = single_axes(1.0 + 0.14 * len(arms) * max(len(variants), 2))
    for number, variant in enumerate(variants):
        for place, arm in enumerate(arms):
            name = f"{arm}@{variant}" if variant else arm
            if name in evidence.results["arms"] and name not in evidence.off_scale:
                label = (variant or "as it stands") if place == 0 and len(variants) > 1 else None
                colour, mark = looks(evidence, arm)["color"], MARKERS[number % len(MARKERS)]
                y = place + (number - (len(variants) - 1) / 2) * 0.24
                bar(axes, primary_figure(evidence.results, name), y, headline, colour, mark, label, number, told=name)
    name_rows(axes, arms)
    axes.set_xlabel(f"{evidence.primary_word}, on all sites' test rows{headline.unit}, with 95 % CI")
    if len(variants) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.9 / (len(arms) + 1)), ncols=len(variants))
    return drawn


def differences(evidence: Evidence) -> Figure | None:
    """Paired differences from the reference, with the intervals that verdicts follow from."""
    tests = [test for test in evidence.tests() if test["interval"] is not None]
    tests = [test for test in tests if test["arm"] not in evidence.off_scale]
    if not tests:
        return None
    scale = evidence.headline.difference_scale
    drawn, axes = single_axes(0.9 + 0.26 * len(tests))
    axes.axvline(0, color="black", linewidth=0.8)
    for place, test in enumerate(tests):
        colour = looks(evidence, test["arm"])["color"]
        axes.plot([scale * limit for limit in test["interval"]], [place, place], color=colour, linewidth=1.6)
        (mark,) = axes.plot(scale * test["difference"], place, "o", color=colour, markersize=5)
        tell(mark, f"{test['arm']}: {difference_text(evidence, test)}")
    name_rows(axes, [test["arm"] for test in tests])
    more = evidence.headline.more_than(evidence.primary_word, tests[0]["reference"])
    axes.set_xlabel(f"{more}, with corrected 95 % CI")
    return drawn


def subgroups(evidence: Evidence) -> Figure | None:
    arms, kinds, headline = evidence.few_arms, evidence.kinds, evidence.headline
    if not kinds:
        return None
    groups = {kind: list(evidence.arms[arms[0]]["subgroups"].get(kind, {})) for kind in kinds}
    widths = [max(2, len(names)) for names in groups.values()]
    drawn = figure(3.2)
    panels = drawn.subplots(1, len(kinds), sharey=True, squeeze=False, width_ratios=widths)[0]
    for axes, (kind, names) in zip(panels, groups.items(), strict=True):
        for number, arm in enumerate(arms):
            measured = evidence.arms[arm]["subgroups"].get(kind, {})
            known = [place for place, group in enumerate(names) if measured.get(group, {}).get("metrics")]
            for place in known:
                label = arm if place == 0 and kind == kinds[0] else None
                colour, x = looks(evidence, arm)["color"], place + offset(number, len(arms), 0.7)
                metric = measured[names[place]]["metrics"][headline.metric]
                told = f"{arm}, {names[place]}"
                bar(axes, metric, x, headline, colour, label=label, upright=True, thin=True, told=told)
        axes.set_xticks(range(len(names)), names)
        axes.set_title(kind, fontsize=9)
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel(f"{headline.word}{headline.unit}")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


LETTERS = 22  # below a panel of a third of the width


def sweep(evidence: Evidence) -> Figure | None:
    swept = swept_values(evidence)
    if not swept:
        return None
    family, (setting, values) = next(iter(swept.items()))
    drawn = figure(2.7)
    panels = drawn.subplots(1, 3)
    converged = [evidence.arms[name]["convergence"] for name in values.values()]
    colour, headline = COLOURS[evidence.families.index(family) % len(COLOURS)], evidence.headline
    for place, name in enumerate(values.values()):
        bar(panels[0], evidence.figure(name), place, headline, colour, upright=True, told=name)
    rounds = np.array([entry["rounds_to_95_percent"]["mean"] for entry in converged], dtype=float)
    changes = np.array([entry["mean_change"] for entry in converged], dtype=float)
    for axes, numbers in ((panels[1], rounds), (panels[2], changes)):
        for place, (name, number) in enumerate(zip(values.values(), numbers, strict=True)):
            (mark,) = axes.plot(place, number, "o", color=colour)  # values stand evenly: a line would be no slope
            tell(mark, f"{name}: {number:.3g}")
        axes.set_ylim(0, 1.1 * np.nanmax(numbers) if np.nansum(numbers) > 0 else None)
    labels = (
        f"{evidence.primary_word}{headline.unit}",
        f"rounds to {evidence.nearly} of final",
        "weight change per round",
    )
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        ticks = [f"{value:g}" for value in values]
        step = max(1, ceil(len(ticks) * (2 + max(map(len, ticks))) / LETTERS))  # of many values every so many is named
        axes.set_xticks(range(0, len(ticks), step), ticks[::step])
        axes.set(xlabel=setting, xlim=(-0.5, len(values) - 0.5))
    return drawn


def curve(evidence: Evidence, column: str, label: str, log: bool = False, shared: bool = False) -> Figure | None:
    """Means over seeds: a column for each data set, a row for each share of stragglers, a line for each arm."""
    points = {name: _points(evidence, name, column) for name in evidence.arms}
    numbers = list(chain.from_iterable(values for _, values in points.values()))
    if evidence.of_images or not numbers:
        return None  # images have more curves
    layout = {
        name: (_straggler_title(arm), _data_title(evidence, name), _line_title(evidence, name))
        for name, arm in evidence.arms.items()
    }
    rows, columns, lines = (list(dict.fromkeys(titles)) for titles in zip(*layout.values(), strict=True))
    height = 0.6 + max(2.9, 2.2 * len(rows)) + 0.16 * len(lines)
    drawn = figure(height, max(WIDTH, 3.1 * len(columns)))
    panels = drawn.subplots(len(rows), len(columns), sharex=True, sharey=shared, squeeze=False)
    handles = {}
    for name, (row, data, line) in layout.items():
        axes = panels[rows.index(row)][columns.index(data)]
        style = looks(evidence, name) if line == name else numbered_style(lines.index(line))
        # an arm that diverged at once has no number to draw, but keeps its place in the legend
        (handles[line],) = axes.plot(*points[name], **style, **on_top_of(lines.index(line), len(lines)))
        _tell_last(handles[line], f"{name}: {label}", *points[name])
    label_panels(panels, columns if len(columns) > 1 else [""], [f"{row}\n{label}" if row else label for row in rows])
    for axes in panels.flat if log and min(numbers) > 0 else ():
        axes.set_yscale("log")
    _name_lines(drawn, panels, handles)
    return drawn


def _tell_last(line: Any, what: str, rounds: Sequence[int], values: Sequence[float]) -> None:
    if values:
        tell(line, f"{what} {values[-1]:.4g} after round {rounds[-1]}")


def _name_lines(drawn: Figure, panels: np.ndarray, handles: Mapping[str, Any]) -> None:
    """At their ends where they are few, in one panel; else in a legend."""
    heights = {name: list(line.get_ydata()) for name, line in handles.items()}
    if panels.size == 1 and len(handles) <= MOST_LABELLED and all(heights.values()):
        label_ends(panels.flat[0], [(heights[name][-1], name, line.get_color()) for name, line in handles.items()])
    else:
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))


def _points(evidence: Evidence, arm: str, column: str) -> tuple[list[int], list[float]]:
    """None of an arm off the scale, which keeps its place in the legend."""
    return ([], []) if arm in evidence.off_scale else evidence.curve(arm, column)


def figure_curve(evidence: Evidence, metric: str) -> Figure | None:
    headline = evidence.headline_for(metric)
    facts = headline.measure.metric
    # per cent would be of no use beside a loss; units are said
    label = f"test {facts.column}{headline.unit if facts.in_units else ''}"
    return curve(evidence, f"test_{metric}", label, shared=facts.bounded)


def _data_title(evidence: Evidence, name: str) -> str:
    options = [arm["data"] for arm in evidence.arms.values()]
    common = {key for key, value in options[0].items() if all(other.get(key) == value for other in options)}
    changed = {key: value for key, value in evidence.arms[name]["data"].items() if key not in common}
    switched_on = [key for key, value in changed.items() if value is True]  # such as iid, which makes the rest moot
    described = [f"{key} {value}" for key, value in changed.items() if value is not False]
    return ", ".join(switched_on or described) or str(evidence.arms[name]["data"]["name"])


def _straggler_title(arm: dict[str, Any]) -> str:
    return f"{arm['stragglers']['share']:.0%} stragglers" if arm["stragglers"] else ""


def _line_title(evidence: Evidence, name: str) -> str:
    """The arm without what its panel already says."""
    arm = evidence.arms[name]
    if len({_data_title(evidence, other) for other in evidence.arms}) == 1 and not arm["stragglers"]:
        return name
    policy = f", {arm['stragglers']['policy']} late work" if arm["stragglers"] else ""
    mu = f" mu {arm['algorithm']['mu']:g}" if "mu" in arm["algorithm"] else ""
    return f"{arm['algorithm']['name']}{mu}{policy}"


# what tasks compute after each round beside the loss
ROUND_METRICS = {task.curve: METRIC_FACTS[task.curve] for task in TASKS.values()}
PAGE = """
<section id="results"><h2>Results</h2>
{{ show("arms") }}{{ draw("primary-metric") }}{{ show("variants") }}{{ draw("differences") }}
{% if sentences %}<h3>In words</h3>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>{% endif %}
{% if "sweep" in tables %}<h3>The swept setting</h3>{{ show("sweep") }}{{ draw("sweep") }}{{ show("selection") }}
{% endif %}
{{ part("grid") }}
<h3>Training</h3>
{{ draw("test-" ~ evidence.task.curve) }}{{ draw("test-loss") }}{{ draw("weight-change") }}
{{ draw("curves") }}{{ draw("losses") }}{{ draw("movement") }}{{ show("sides") }}
{% if evidence.task.answers == "class" %}<h3>Calibration, ranking and use</h3>
{% if evidence.deployed %}<p>Slope and intercept need rows, and predictions stay at their hospital.</p>{% endif %}
{{ show("calibration") }}{{ part("probabilities.calibration") }}{{ show("predicted-classes") }}{% endif %}
{{ part("numbers.residuals") }}
{% if "subgroups" in tables %}<h3>{{ groups_title }}</h3>{{ draw("subgroups") }}{{ show("subgroups") }}
{% if "subgroups-of-all-arms" in tables %}
{% call fold("The table with every kind of arm") %}{{ show("subgroups-of-all-arms") }}{% endcall %}{% endif %}
{% endif %}
{{ part("fairness.gaps") }}
</section>"""
SECTION = Section(
    PAGE,
    "results",
    "Results",
    {"sentences": comparison_sentences, "groups_title": groups_title},
    tables=(
        arm_table,
        variant_table,
        calibration_table,
        subgroup_table,
        partial(subgroup_table, all_arms=True),
        confusion_table,
        sweep_table,
        selection_table,
        sides_table,
    ),
    figures={
        "primary-metric": Drawing(
            "{Metric} of every arm",
            "Mean over seeds with its 95 % CI, by itself. Paler marks: variants of the study.",
            overall,
            one_seed="With its 95 % CI over patients, by itself. Paler marks: variants of the study.",
        ),
        "differences": Drawing(
            "Differences from the reference",
            "Paired difference with its 95 % CI, corrected for all comparisons of this report.{point}",
            differences,
            one_seed="Difference on the same test rows with its 95 % CI over patients, corrected for all comparisons "
            "of this report.{point}",
        ),
        "subgroups": Drawing(
            "{Metric} by {groups}",
            "Groups with fewer than 10 test rows are suppressed.",
            subgroups,
            deployed="Over the sites at which a group has test rows enough to be told of.",
            detailed=True,
        ),
        "sweep": Drawing(
            "The swept setting",
            "{Metric} with its 95 % CI, rounds to {nearly} of the final {metric} (on validation rows where there "
            "are any, else on test rows), and mean weight change per round.",
            sweep,
        ),
        **{
            f"test-{metric}": Drawing(
                f"{facts.column[0].upper()}{facts.column[1:]} over rounds",
                "Mean over seeds, for people to look at: nothing was chosen by it.",
                partial(figure_curve, metric=metric),
            )
            for metric, facts in ROUND_METRICS.items()
        },
        "test-loss": Drawing(
            "Loss over rounds", "Mean over seeds.", partial(curve, column="test_loss", label="test loss")
        ),
        "weight-change": Drawing(
            "Weight change per round",
            "Length of the shared model's change, mean over seeds. Arms with a model for each site have none.",
            partial(curve, column="change", label="weight change", log=True),
        ),
    },
)
