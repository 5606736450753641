"""Hospitals whose updates differ: who was named by which rule, and how updates went over the rounds."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, figure, legend, tell
from wardround.report.render.table import Table, make_table
from wardround.report.section import Section

OTHERS, MOST_ARMS = "0.6", 4
TICKS = [step * 10.0**power for power in range(-6, 7) for step in (1, 2, 5)]
WHAT = {
    "direction": "points away from the others'",
    "length": "many times as long, or as short, as the median",
    "turned": "turned against its own earlier ones",
    "copy": "equals another hospital's",
    "echo": "equals the last change of the shared model",
}
STATISTIC = {
    "direction": "mean cosine with the others'",
    "length": "length over the median",
    "turned": "cosine with its earlier ones",
    "copy": "sine of the angle to the other's",
    "echo": "sine of the angle to the change",
}


def screened(evidence: Evidence) -> Mapping[str, Any]:
    content: Mapping[str, Any] = evidence.results["screening"]
    return content


def lines(evidence: Evidence) -> Iterator[str]:
    content = screened(evidence)
    for name, arm in content["arms"].items():
        if arm["hidden_by"]:
            yield (
                f"{name}: nothing was compared. Under [privacy.{arm['hidden_by']}] nobody sees the update of one "
                "hospital."
            )
        elif arm["descriptive"]:
            yield (
                f"{name}: updates are drawn, and nobody is named: {arm['sites']} hospitals worked in a round, and "
                f"which of fewer than {content['least_sites']} is the odd one is too uncertain."
            )
        elif not arm["named"]:
            yield f"{name}: no hospital was named."
        else:
            yield f"{name}: {_named(arm)}."
    if any(arm["named"] for arm in content["arms"].values()):
        yield (
            "To differ is not to be at fault. A hospital may have inverted labels, a broken device or ill will; it may "
            "also have other patients than the rest. Ask it first, and compare the run with one without it."
        )
    yield (
        f"Of runs with honest hospitals as the generator `{content['generator']}` draws them, at most "
        f"{100 * content['level']:g} % name any. Hospitals that differ more than those are named more often."
    )


def _named(arm: Mapping[str, Any]) -> str:
    by_site: dict[str, set[int]] = {}
    for entry in arm["named"]:
        by_site.setdefault(entry["site"], set()).add(entry["seed"])
    left = "; it worked no more from then on" if any(entry["left_out"] for entry in arm["named"]) else ""
    people = {entry["site"]: entry for entry in arm["named"] if entry.get("decision")}
    decided = "".join(
        f"; {site} was {'kept' if entry['decision'] == 'keep' else 'dropped'} by {entry['decided_by']} "
        f"({entry['decided_at'][:10]})"
        for site, entry in people.items()
    )
    counts = [f"{site} (with {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'})" for site, seeds in by_site.items()]
    return f"updates of {', '.join(counts)} differ from the others'{left}{decided}"


def named_table(evidence: Evidence) -> Table | None:
    rows = [
        [
            name,
            entry["site"],
            entry["seed"],
            entry["round"],
            WHAT[entry["rule"]],
            STATISTIC[entry["rule"]],
            entry["value"],
            _limit(entry),
            entry["other"],
        ]
        for name, arm in screened(evidence)["arms"].items()
        for entry in arm["named"]
    ]
    if not rows:
        return None
    return make_table(
        "screening",
        "Hospitals whose updates differ",
        {
            "arm": None,
            "hospital": None,
            "seed": str,
            "round": str,
            "its update": None,
            "statistic": None,
            "value": "{:.3g}".format,
            "named at": None,
            "the other": None,
        },
        rows,
        "Each hospital once, by the first rule that applied to it. Statistics are over three rounds.",
    )


def _limit(entry: Mapping[str, Any]) -> str:
    if entry["rule"] == "length":
        return f"{entry['limit']:g} or more, {1 / entry['limit']:g} or less"
    return f"{entry['limit']:g} or less"


def over_rounds(evidence: Evidence) -> Figure | None:
    """A line of panels for each arm: length, direction."""
    arms = {name: arm for name, arm in screened(evidence)["arms"].items() if arm["rounds"]}
    shown = sorted(arms, key=lambda name: not arms[name]["named"])[:MOST_ARMS]
    if not shown:
        return None
    drawn = figure(0.7 + 2.3 * len(shown))
    panels = drawn.subplots(len(shown), 2, squeeze=False)
    for name, (left, right) in zip(shown, panels, strict=True):
        _draw_arm(arms[name], left, right)
        left.set_title(f"{name}, seed {arms[name]['seed']}", loc="left", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("round")
    if any(arms[name]["named"] for name in shown):
        legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _draw_arm(arm: Mapping[str, Any], left: Any, right: Any) -> None:
    named = list(dict.fromkeys(entry["site"] for entry in arm["named"] if entry["seed"] == arm["seed"]))
    for site in sorted(arm["rounds"], key=lambda site: site in named):  # named ones on top
        style: dict[str, Any] = {"color": OTHERS, "linewidth": 0.8}
        if site in named:
            style = {"color": COLOURS[named.index(site) % len(COLOURS)], "linewidth": 1.8, "marker": "o"}
        for axes, kind, label in ((left, "length", site if site in named else None), (right, "agreement", None)):
            values = np.array(arm["rounds"][site][kind], dtype=float)  # None is NaN
            (line,) = axes.plot(range(1, len(values) + 1), values, markersize=3, label=label, **style)
            tell(line, site)
    left.set_yscale("log")
    low, high = left.get_ylim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set_ylabel("length over the median")
    right.set_ylabel("mean cosine with the others'")
    right.axhline(0, color="0.3", linewidth=0.7)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def all_lines(evidence: Evidence) -> list[str]:
    return list(lines(evidence))


PAGE = """
<section id="screening"><h2>Hospitals whose updates differ</h2>
{% for line in lines %}<p>{{ line }}</p>
{% endfor %}
{% if tables["screening"] is defined %}{{ show("screening") }}{% endif %}
{{ draw("screening") }}
</section>
"""

SECTION = Section(
    PAGE,
    "screening",
    "Hospitals whose updates differ",
    values={"lines": all_lines},
    tables=(named_table,),
    figures={
        "screening": Drawing(
            "Updates of every hospital over the rounds",
            "Left: length of its update over the median of all. Right: mean cosine with each of the others' updates; "
            "below 0 it points away from them. Hospitals agree most in the first rounds; once the models have settled, "
            "updates of honest ones point away from each other too. In colour: hospitals that were named. Of several "
            "seeds, the first with which one was.",
            over_rounds,
        )
    },
)
