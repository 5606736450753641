"""The results over all sites: arms, differences, sweeps, training curves, calibration and groups of patients."""

from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.answer import primary_figure
from wardround.report.arms import swept_values
from wardround.report.evidence import Evidence
from wardround.report.headline import HEADLINES
from wardround.report.phrases import ranking_sentence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, DASHES, MARKERS, WIDTH, bar, figure, legend, looks, name_rows
from wardround.report.render.table import (
    Format,
    Table,
    decimals,
    listed,
    make_table,
    mean_sd,
    one_decimal,
    share_limits,
    without_empty,
)
from wardround.report.section import Section, compact

METRICS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "brier": "Brier",
}


OF_FINDINGS = {"pr_auc": "PR-AUC", "f1": "F1", "sensitivity": "sensitivity", "specificity": "specificity"}


OF_FINDINGS |= {"ppv": "PPV", "npv": "NPV", "brier": "Brier", "accuracy": "accuracy"}


def arm_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    others = OF_FINDINGS if evidence.findings else {k: v for k, v in METRICS.items() if k != headline.metric}
    rows = []
    for name, arm in evidence.arms.items():
        found = evidence.figure(name)
        figures = [arm["metrics"][metric]["mean"] for metric in others]
        if evidence.ranked_within:
            figures.insert(0, arm["metrics"][headline.metric]["mean"])
        kilobytes = arm["cost"]["bytes"] / 1000
        rows.append([name, found["mean"], found["sd"], *share_limits(found["interval"]), *figures, kilobytes])
    shown = headline.shown
    columns: dict[str, Format | None] = {"arm": None, headline.above(evidence.primary_word): shown}
    columns |= {"SD": shown, "from": shown, "to": shown}
    columns |= {headline.above(f"{headline.word} over all rows"): shown} if evidence.ranked_within else {}
    columns |= dict.fromkeys(others.values(), decimals) | {"KB": one_decimal}
    seeds = f"Means over {evidence.seeds} seeds" if evidence.seeds != 1 else "One seed,"
    note = f"{seeds} on all sites' test rows; the 95 % CI is that of the {evidence.primary_word}, by itself."
    if evidence.findings:
        note += " Every figure is the mean over findings."
    if evidence.ranked_within:
        note += f" {ranking_sentence(evidence)}"
    if evidence.deployed:
        note += (
            " From sites' counts and sums, over the sites that may tell them. AUC is from histograms of their scores "
            f"and may be off by up to {evidence.auc_error_bound:.3f}."
        )
    return compact(evidence, make_table("arms", "All arms", columns, rows, note))


def variant_table(evidence: Evidence) -> Table | None:
    variants = list(evidence.variants)
    if not variants:
        return None
    arms = evidence.results["arms"]

    def of(name: str) -> list[Any]:
        found = evidence.figure(name) if name in arms else {"mean": None, "sd": None}
        return [found["mean"], found["sd"]]

    rows = [[name, *of(name), *(x for v in variants for x in of(f"{name}@{v}"))] for name in evidence.arms]
    headline, shown = evidence.headline, evidence.headline.shown
    columns: dict[str, Format | None] = {"arm": None, headline.above("as it stands"): shown, "SD": shown}
    for variant in variants:
        columns |= {headline.above(variant): shown, f"SD, {variant}": shown}
    note = " ".join(f"{name}: {variant['text']}." for name, variant in evidence.variants.items())
    return make_table("variants", f"{headline.title} in the variants of the study", columns, rows, note)


def calibration_table(evidence: Evidence) -> Table:
    rows = []
    for name, arm in evidence.arms.items():
        if arm["calibration"] and arm["calibration"]["slope"]:
            slope, intercept = arm["calibration"]["slope"], arm["calibration"]["intercept"]
            brier = arm["metrics"]["brier"]["mean"]
            rows.append([name, slope["value"], *slope["interval"], intercept["value"], *intercept["interval"], brier])
    columns: dict[str, Format | None] = {"arm": None, "slope": decimals, "from": decimals, "to": decimals}
    columns |= {"intercept": decimals, "from ": decimals, "to ": decimals, "Brier": decimals}
    note = "A slope of 1 and an intercept of 0 are calibrated; a slope below 1 means scores that are too extreme."
    return make_table("calibration", "Calibration", columns, rows, note)


def subgroup_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    others = {"auc": "AUC"} if headline.metric != "auc" else {"pr_auc": "PR-AUC"}
    others |= {"sensitivity": "sensitivity", "specificity": "specificity"}
    others = {metric: word for metric, word in others.items() if metric != headline.metric}
    rows: list[list[Any]] = []
    for name in evidence.few_arms:
        for kind in evidence.kinds:
            for group, found in evidence.arms[name]["subgroups"].get(kind, {}).items():
                figures = found.get("metrics")
                if figures is None:
                    rows.append([name, f"{kind}: {group}", *[None] * (4 + len(others))])
                    continue
                main = figures[headline.metric]
                means = [figures[metric]["mean"] for metric in others]
                rows.append(
                    [name, f"{kind}: {group}", found["rows"], main["mean"], *share_limits(main["interval"]), *means]
                )
    shown = headline.shown
    columns: dict[str, Format | None] = {"arm": None, "group": None, "rows": one_decimal, headline.above(): shown}
    columns |= {"from": shown, "to": shown, **dict.fromkeys(others.values(), decimals)}
    note = "Rows: mean test rows per seed. A group with fewer than 10 is suppressed."
    if evidence.deployed:
        note = f"Rows: mean test rows per seed, at the sites at which the group has {evidence.smallest_group} or more."
    return compact(evidence, make_table("subgroups", groups_title(evidence), columns, rows, note))


def sweep_table(evidence: Evidence) -> Table | None:
    rows = []
    for family, (setting, values) in swept_values(evidence).items():
        for value, name in values.items():
            arm = evidence.arms[name]
            converged = arm["convergence"]
            figures = mean_sd(evidence.figure(name))
            rounds = [converged["rounds_to_95_percent"]["mean"], converged["rounds_to_95_percent"]["sd"]]
            rows.append([family, f"{setting} {value:g}", *figures, *rounds, converged["mean_change"]])
    headline, shown = evidence.headline, evidence.headline.shown
    columns: dict[str, Format | None] = {"arm": None, "value": None, headline.above(): shown, "SD": shown}
    columns |= {"rounds to 95 %": one_decimal, "SD ": one_decimal, "weight change per round": decimals}
    return compact(evidence, make_table("sweep", "The swept setting", columns, rows))


def selection_table(evidence: Evidence) -> Table:
    rows = []
    for choice in evidence.results["selection"]:
        chosen = list(choice["chosen"].values())
        for name, score in choice["scores"].items():
            rows.append([choice["arm"], name, score, chosen.count(name)])
    columns = {"arm": None, "value": None, "score": decimals, "seeds that chose it": str}
    selection = evidence.study.get("selection", {})
    where = (
        f"at {selection.get('site')}, with models trained without it, on patients whom nobody else trains on or tests"
        if selection.get("on") == "site"
        else "on validation rows"
    )
    metric = next((choice["metric"] for choice in evidence.results["selection"]), evidence.headline.metric)
    note = f"Mean {HEADLINES[metric].word} {where}. Ties go to the first value. Test rows had no say."
    return make_table("selection", "How the value was selected", columns, rows, note)


def groups_title(evidence: Evidence) -> str:
    return f"By {listed(evidence.kinds)}" if evidence.kinds else "By group"


SIDES = ("training", "validation", "test")


def last(evidence: Evidence, arm: str, column: str) -> float | None:
    """What a curve ends with."""
    values = evidence.curve(arm, column)[1]
    return values[-1] if values else None


def sides_table(evidence: Evidence) -> Table | None:
    """Training, validation and test rows after the last round: a model that fits the first alone is overfitted."""
    headline = evidence.curve_headline
    if not any(last(evidence, arm, f"training_{headline.metric}") is not None for arm in evidence.arms):
        return None
    rows = []
    for name in evidence.arms:
        figures = [last(evidence, name, f"{side}_{figure}") for figure in (headline.metric, "loss") for side in SIDES]
        rows.append([name, *figures])
    columns: dict[str, Format | None] = {"arm": None}
    columns |= {headline.above(f"{side} {headline.word}"): headline.shown for side in SIDES}
    columns |= {f"{side} loss": decimals for side in SIDES}
    note = "After the last round, over all sites' rows together."
    if evidence.findings:
        note += " Loss without the weights that training gave to findings."
    made = make_table("sides", "On training, validation and test rows", columns, rows, note)
    return without_empty(made)


def overall(evidence: Evidence) -> Figure:
    """Every arm's primary metric with its interval; variants beside the study as it stands."""
    headline = evidence.headline
    arms = list(evidence.arms)
    variants = ["", *evidence.variants]
    drawn = figure(1.0 + 0.14 * len(arms) * max(len(variants), 2))
    axes = drawn.subplots()
    for v, variant in enumerate(variants):
        offset = (v - (len(variants) - 1) / 2) * 0.24
        for place, arm in enumerate(arms):
            entry = evidence.results["arms"].get(f"{arm}@{variant}" if variant else arm)
            if entry is not None:
                label = (variant or "as it stands") if place == 0 and len(variants) > 1 else None
                colour = looks(evidence, arm)["color"]
                mark = MARKERS[v % len(MARKERS)]
                found = primary_figure(evidence.results, f"{arm}@{variant}" if variant else arm)
                bar(axes, found, place + offset, headline.scale, colour, mark, label, v)
    name_rows(axes, arms)
    axes.set_xlabel(f"{evidence.primary_word}, on all sites' test rows{headline.unit}, with 95 % CI")
    if len(variants) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.9 / (len(arms) + 1)), ncols=len(variants))
    return drawn


def differences(evidence: Evidence) -> Figure | None:
    """Paired differences from the reference, with the intervals that verdicts follow from."""
    tests = [test for test in evidence.tests() if test["interval"] is not None]
    if not tests:
        return None
    drawn, scale = figure(0.9 + 0.26 * len(tests)), evidence.headline.difference_scale
    axes = drawn.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for place, test in enumerate(tests):
        low, high = (scale * limit for limit in test["interval"])
        colour = looks(evidence, test["arm"])["color"]
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axes.plot(scale * test["difference"], place, "o", color=colour, markersize=5)
    name_rows(axes, [test["arm"] for test in tests])
    what = f"{evidence.headline.difference_unit}{evidence.primary_word}"
    axes.set_xlabel(f"{what} more than {tests[0]['reference']}, with corrected 95 % CI")
    return drawn


def calibration(evidence: Evidence) -> Figure | None:
    """Reliability diagram: what was predicted against what happened."""
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm]["calibration"]]
    if not arms:
        return None
    drawn = figure(3.9, 5.4)
    axes = drawn.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for number, arm in enumerate(arms):
        bins = evidence.arms[arm]["calibration"]["bins"]
        scores, shares = [b["score"] for b in bins], [b["positive"] for b in bins]
        style = {**looks(evidence, arm), "linestyle": "-"}
        axes.plot(scores, shares, marker=MARKERS[number % len(MARKERS)], markersize=4, linewidth=1, label=arm, **style)
    axes.set_xlabel("mean score")
    axes.set_ylabel(f"share with {evidence.classes[1]}")
    axes.set_aspect("equal")
    legend(drawn, loc="outside right center")
    return drawn


def decision_curve(evidence: Evidence) -> Figure | None:
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm]["decision_curve"]]
    if not arms:
        return None
    drawn = figure(3.4)
    axes = drawn.subplots()
    for arm in arms:
        curve = evidence.arms[arm]["decision_curve"]
        axes.plot(
            curve["threshold"], curve["net_benefit"], linewidth=1.4, label=arm, color=looks(evidence, arm)["color"]
        )
    curve = evidence.arms[arms[0]]["decision_curve"]
    axes.plot(curve["threshold"], curve["treat_all"], color="grey", linestyle="--", label="act on all")
    axes.axhline(0, color="grey", linestyle=":", label="act on none")
    top = max(max(evidence.arms[arm]["decision_curve"]["net_benefit"]) for arm in arms)
    axes.set_ylim(-0.12 * top, 1.1 * top)
    axes.set_xlabel("threshold: the risk from which one would act")
    axes.set_ylabel("net benefit")
    legend(drawn, loc="outside right center")
    return drawn


def subgroups(evidence: Evidence) -> Figure | None:
    arms, kinds, headline = evidence.few_arms, evidence.kinds, evidence.headline
    if not kinds:
        return None
    drawn = figure(3.2)
    groups = {kind: list(evidence.arms[arms[0]]["subgroups"].get(kind, {})) for kind in kinds}
    grid = drawn.subplots(
        1, len(kinds), sharey=True, squeeze=False, width_ratios=[max(2, len(groups[kind])) for kind in kinds]
    )[0]
    for axes, kind in zip(grid, kinds, strict=True):
        names = groups[kind]
        for number, arm in enumerate(arms):
            offset = (number - (len(arms) - 1) / 2) * 0.7 / len(arms)
            for place, group in enumerate(names):
                found = evidence.arms[arm]["subgroups"].get(kind, {}).get(group, {}).get("metrics")
                if found:
                    label = arm if place == 0 and kind == kinds[0] else None
                    colour, scale = looks(evidence, arm)["color"], headline.scale
                    bar(
                        axes,
                        found[headline.metric],
                        place + offset,
                        scale,
                        colour,
                        label=label,
                        upright=True,
                        thin=True,
                    )
        axes.set_xticks(range(len(names)), names)
        axes.set_title(kind, fontsize=9)
        axes.grid(visible=False, axis="x")
    grid[0].set_ylabel(f"{headline.word}{headline.unit}")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def sweep(evidence: Evidence) -> Figure | None:
    """An ablation: the figure, rounds and weight change against the swept value."""
    swept = swept_values(evidence)
    if not swept:
        return None
    family, (setting, values) = next(iter(swept.items()))
    drawn = figure(2.7)
    left, middle, right = drawn.subplots(1, 3)
    entries = [evidence.arms[name] for name in values.values()]
    places = range(len(values))
    colour = COLOURS[evidence.families.index(family) % len(COLOURS)]
    headline = evidence.headline
    for place, name in zip(places, values.values(), strict=True):
        bar(left, evidence.figure(name), place, headline.scale, colour, upright=True)
    left.set_ylabel(f"{evidence.primary_word}{headline.unit}")
    rounds = [entry["convergence"]["rounds_to_95_percent"]["mean"] for entry in entries]
    middle.plot(places, [np.nan if r is None else r for r in rounds], "o-", color=colour)
    middle.set_ylabel("rounds to 95 % of final")
    changes = [entry["convergence"]["mean_change"] for entry in entries]
    right.plot(places, [np.nan if c is None else c for c in changes], "o-", color=colour)
    right.set_ylabel("weight change per round")
    for axes in (left, middle, right):
        axes.set_xticks(places, [f"{value:g}" for value in values])
        axes.set_xlabel(setting)
    return drawn


def curve(evidence: Evidence, column: str, label: str, log: bool = False) -> Figure | None:
    """Means over seeds: a column for each data set, a row for each share of stragglers, a line for each arm."""
    if evidence.of_images:
        return None  # `plots_curves` has more of them
    arms = evidence.arms
    points = {name: evidence.curve(name, column) for name in arms}
    if not any(values for _, values in points.values()):
        return None
    data = {name: _data_title(evidence, name) for name in arms}
    late = {name: _straggler_title(arm) for name, arm in arms.items()}
    lines = {name: _line_title(evidence, name) for name in arms}
    columns, rows, titles = (list(dict.fromkeys(part.values())) for part in (data, late, lines))
    size = (max(WIDTH, 3.1 * len(columns)), 0.6 + max(2.9, 2.2 * len(rows)) + 0.16 * len(titles))
    drawn = figure(size[1], size[0])
    grid = drawn.subplots(len(rows), len(columns), sharex=True, sharey=column == "test_accuracy", squeeze=False)
    handles: dict[str, Any] = {}
    for name in arms:
        axes = grid[rows.index(late[name])][columns.index(data[name])]
        number = titles.index(lines[name])
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        if lines[name] == name:
            style = looks(evidence, name)
        # an arm that diverged at once has no number to draw, but keeps its place in the legend
        (handles[lines[name]],) = axes.plot(*points[name], linewidth=1.4, **style)
    for i, row in enumerate(rows):
        grid[i][0].set_ylabel(f"{row}\n{label}" if row else label)
    for j, title in enumerate(columns):
        grid[0][j].set_title(title if len(columns) > 1 else "", fontsize=9)
        grid[-1][j].set_xlabel("round")
    if log and all(value > 0 for _, values in points.values() for value in values):
        for axes in grid.flat:
            axes.set_yscale("log")
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(titles)))
    return drawn


def _data_title(evidence: Evidence, name: str) -> str:
    """What is different about this arm's data."""
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


def _values(evidence: Evidence) -> dict[str, Any]:
    return {"sentences": [test["sentence"] for test in evidence.tests()], "groups_title": groups_title(evidence)}


PAGE = """
<section id="results"><h2>Results</h2>
{{ show("arms") }}{{ draw("primary-metric") }}{{ show("variants") }}{{ draw("differences") }}
{% if sentences %}<h3>In words</h3>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>{% endif %}
{% if "sweep" in tables %}<h3>The swept setting</h3>{{ show("sweep") }}{{ draw("sweep") }}{{ show("selection") }}
{% endif %}
{{ part("grid") }}
<h3>Training</h3>
{{ draw("test-accuracy") }}{{ draw("test-loss") }}{{ draw("weight-change") }}
{{ draw("curves") }}{{ draw("losses") }}{{ draw("movement") }}{{ show("sides") }}
{% if "calibration" in tables or "calibration" in svgs %}<h3>Calibration and use</h3>
{% if evidence.deployed %}<p>Slope and intercept need rows, and predictions stay at their hospital.</p>{% endif %}
{{ show("calibration") }}{{ draw("calibration") }}{{ draw("decision-curve") }}{% endif %}
{% if "subgroups" in tables %}<h3>{{ groups_title }}</h3>{{ draw("subgroups") }}{{ show("subgroups") }}{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "results",
    "Results",
    _values,
    tables=(
        arm_table,
        variant_table,
        calibration_table,
        subgroup_table,
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
        "calibration": Drawing(
            "Calibration",
            "Tenths of all test rows by score. On the diagonal, scores mean what they say.",
            calibration,
            deployed="Tenths of all test rows by score, from the sites' histograms: a cell's rows are taken as evenly "
            "spread around their mean. On the diagonal, scores mean what they say.",
        ),
        "decision-curve": Drawing(
            "Decision curve",
            "Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody.",
            decision_curve,
            deployed="Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody. "
            "From the sites' histograms: in a cell that was merged for its few rows, they are taken as evenly spread.",
        ),
        "subgroups": Drawing(
            "{Metric} by {groups}",
            "Groups with fewer than 10 test rows are suppressed.",
            subgroups,
            deployed="Over the sites at which a group has test rows enough to be told of.",
        ),
        "sweep": Drawing(
            "The swept setting",
            "{Metric} with its 95 % interval, rounds to 95 % of the final {metric} (on validation rows where there are "
            "any, else on test rows), and mean weight change per round.",
            sweep,
        ),
        "test-accuracy": Drawing(
            "Accuracy over rounds",
            "Mean over seeds, for people to look at: nothing was chosen by it.",
            partial(curve, column="test_accuracy", label="test accuracy"),
        ),
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
