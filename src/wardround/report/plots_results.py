"""Figures of what came out: arms, differences, hospitals, calibration, sweeps. Each draws, or returns None."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.answer import primary_figure
from wardround.report.evidence import Evidence
from wardround.report.headline import Headline, headline_of
from wardround.report.style import COLOURS, MARKERS, bar, figure, legend, looks, name_rows

MOST_SITES = 12  # with a panel or a row of their own


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
    drawn, scale = figure(0.9 + 0.26 * len(tests)), _difference_scale(evidence)
    axes = drawn.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for place, test in enumerate(tests):
        low, high = (scale * limit for limit in test["interval"])
        colour = looks(evidence, test["arm"])["color"]
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axes.plot(scale * test["difference"], place, "o", color=colour, markersize=5)
    name_rows(axes, [test["arm"] for test in tests])
    axes.set_xlabel(
        f"{_units(evidence)}{evidence.primary_word} more than {tests[0]['reference']}, with corrected 95 % CI"
    )
    return drawn


def _difference_scale(evidence: Evidence) -> int:
    return 100 if evidence.headline.points == "points" else 1


def _units(evidence: Evidence) -> str:
    return "points of " if evidence.headline.points == "points" else ""


def hospitals(evidence: Evidence) -> Figure | None:
    """Each arm at each site."""
    headline = evidence.headline
    sites, arms = evidence.sites, list(evidence.arms)
    if not 1 < len(sites) <= MOST_SITES:
        return None
    columns = min(len(sites), 4)
    rows = -(-len(sites) // columns)
    drawn = figure(rows * (0.7 + 0.19 * len(arms)))
    grid = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(sites) :]:
        axes.set_visible(False)
    for axes, site in zip(grid.flat, sites, strict=False):
        for place, arm in enumerate(arms):
            found = evidence.arms[arm]["sites"].get(site)
            if found:
                bar(axes, found[headline.metric], place, headline.scale, looks(evidence, arm)["color"])
        axes.set_title(site, fontsize=9)
    name_rows(grid[0, 0], arms)
    for axes in grid.flat[max(0, len(sites) - columns) : len(sites)]:
        axes.tick_params(labelbottom=True)  # below the last panel of each column, whichever row it is in
    drawn.supxlabel(f"{headline.word} on the site's own test rows{headline.unit}, with 95 % CI", fontsize=9)
    return drawn


def benefit(evidence: Evidence) -> Figure | None:
    """What joining changed for each site, against training alone."""
    entries = {(e["arm"], e["site"]): e for e in evidence.benefit() if e["interval"] is not None}
    known = {arm for arm, _ in entries}
    arms = [arm for arm in evidence.few_arms if arm in evidence.federated and arm in known]
    if not arms:  # in a grid, training alone may stand beside other arms than the first
        arms = list(
            {evidence.arms[arm]["family"]: arm for arm in reversed(evidence.federated) if arm in known}.values()
        )
    if not entries or not arms or len(evidence.sites) > 20:
        return None
    scale = _difference_scale(evidence)
    drawn = figure(0.9 + len(evidence.sites) * max(0.4, 0.16 * len(arms)))
    axes = drawn.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for a, arm in enumerate(arms):
        offset = (a - (len(arms) - 1) / 2) * 0.75 / len(arms)
        for place, site in enumerate(evidence.sites):
            entry = entries.get((arm, site))
            if entry:
                low, high = (scale * limit for limit in entry["interval"])
                colour = looks(evidence, arm)["color"]
                axes.plot([low, high], [place + offset] * 2, color=colour, linewidth=1.4)
                label = arm if place == 0 else None
                axes.plot(scale * entry["difference"], place + offset, "o", color=colour, markersize=4, label=label)
    name_rows(axes, evidence.sites)
    axes.set_xlabel(f"{_units(evidence)}{evidence.headline.word} more than alone, with corrected 95 % CI")
    legend(drawn, loc="outside lower center", ncols=4)
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


def swept_values(evidence: Evidence) -> dict[str, tuple[str, dict[float, str]]]:
    """Families that differ in one number: the setting and, for each value, the arm."""
    found = {}
    for family in evidence.families:
        members = {
            name: arm["algorithm"]
            for name, arm in evidence.arms.items()
            if arm["family"] == family and not name.endswith("[selected]")
        }
        settings = {key for algorithm in members.values() for key in algorithm if key != "name"}
        changing = [key for key in sorted(settings) if len({repr(a.get(key)) for a in members.values()}) > 1]
        numbers = [a.get(changing[0]) for a in members.values()] if len(changing) == 1 else []
        if numbers and all(isinstance(number, int | float) for number in numbers) and len(set(numbers)) == len(members):
            found[family] = (changing[0], dict(sorted(zip(map(float, numbers), members, strict=True))))
    return found


def elsewhere(evidence: Evidence) -> Figure | None:
    """Where a model was trained against where it was tested."""
    arms = [name for name in evidence.partial if len(evidence.partial[name]["sites"]) <= MOST_SITES]
    if not arms:
        return None
    rows = {"+".join(evidence.partial[name]["train_at"]): evidence.partial[name]["sites"] for name in arms}
    drawn = figure(1.1 + 0.24 * len(rows))
    axes = drawn.subplots()
    sites, headline = evidence.sites, evidence.headline
    values = np.array([[_value(row.get(site), headline) for site in sites] for row in rows.values()])
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for i, trained in enumerate(rows):
        for j, site in enumerate(sites):
            inside = site in trained.split("+")
            if np.isnan(values[i, j]):
                continue  # a site with too few rows of one class
            text = headline.shown(values[i, j] / headline.scale) + (" ·" if inside else "")
            axes.text(
                j, i, text, ha="center", va="center", fontsize=8, color="black" if values[i, j] > middle else "white"
            )
    axes.set_xticks(range(len(sites)), sites)
    axes.set_yticks(range(len(rows)), [trained.replace("+", " + ") for trained in rows])
    axes.set_xlabel("tested at (· took part in training)")
    axes.set_ylabel("trained at")
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label=f"{headline.word}{headline.unit}")
    return drawn


def _value(figures: dict[str, Any] | None, headline: Headline) -> float:
    mean = figures[headline.metric]["mean"] if figures else None
    return float("nan") if mean is None else headline.scale * float(mean)


def number_of_sites(evidence: Evidence) -> Figure | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    drawn = figure(3.0, 5.6)
    axes = drawn.subplots()
    for number, (key, label) in enumerate((("inside", "sites that took part"), ("outside", "sites that did not"))):
        points = [(entry["sites"], entry[key]) for entry in entries if entry[key] and entry[key]["mean"] is not None]
        offset = (number - 0.5) * 0.08
        means = [headline.scale * p["mean"] for _, p in points]
        axes.plot([n + offset for n, _ in points], means, color=COLOURS[number], alpha=0.5)
        for place, (size, point) in enumerate(points):
            title = label if place == 0 else None
            colour, mark = COLOURS[number], MARKERS[number]
            bar(axes, point, size + offset, headline.scale, colour, mark, title, upright=True)
    axes.set_xticks(sorted({entry["sites"] for entry in entries}))
    axes.set_xlabel("hospitals that train together")
    axes.set_ylabel(f"mean {headline.word}{headline.unit}")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn
