"""Time and participation: how long rounds took on the virtual clock, how stale work was, and who was left out."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import MARKERS, figure, legend, looks, on_top_of, single_axes, tell
from wardround.report.render.table import OTHER_CI, Table, listed, make_table, one_decimal, percent
from wardround.report.section import Section

KINDS = {"asynchronous": "asynchronous", "partial": "closes early", "synchronous": "waits for all"}
RARELY = 0.5  # of a hospital's fair share of the rounds


def timed(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    """What results.json has of the time of each arm that had any."""
    return {name: arm["time"] for name, arm in evidence.arms.items() if arm.get("time")}


def lines(evidence: Evidence) -> list[str]:
    found = [] if evidence.deployed else [_clock()]
    for entry in evidence.results["time_to_equal"]:
        if entry["arm"] in timed(evidence):
            found.append(_sooner(entry, evidence))
    for name, arm in timed(evidence).items():
        found += [line for line in (_stale(name, arm), _left_out(name, arm)) if line]
    return found


def _clock() -> str:
    return (
        "Time here is virtual: a hospital's work takes its training rows times epochs over its speed, as the study "
        "gives or draws it, and sending takes none. It says how arms compare, not how long a real federation takes."
    )


def _sooner(entry: Mapping[str, Any], evidence: Evidence) -> str:
    word, seeds = evidence.headline_for(entry["measured_by"]).word, entry["seeds"]
    goal = f"the {word} that {entry['reference']} has at its end"
    if not entry["reached"]:
        return f"{entry['arm']} did not reach {goal} with any of {seeds} seeds."
    ratio = entry["ratio"]
    how = f"{_shown(ratio)} times sooner" if ratio >= 1 else f"{_shown(1 / ratio)} times later"
    inside = ""
    if entry["interval"] is not None:
        inside = f" (95 % CI of the ratio {_shown(entry['interval'][0])} to {_shown(entry['interval'][1])})"
    missed = "" if entry["reached"] == seeds else f"; with {seeds - entry['reached']} of {seeds} seeds it never did"
    return f"{entry['arm']} reached {goal} {how} in virtual time than {entry['reference']}{inside}{missed}."


def _shown(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def _stale(name: str, arm: Mapping[str, Any]) -> str | None:
    staleness = arm["staleness"]
    if staleness is None or staleness["mean"] is None:
        return None
    dropped = staleness["dropped"]
    lost = f" {dropped} pieces of work were too stale and dropped." if dropped else ""
    return (
        f"{name}: work that counted had begun {staleness['mean']:.2g} updates earlier on average, "
        f"{staleness['largest']} at most.{lost}"
    )


def _left_out(name: str, arm: Mapping[str, Any]) -> str | None:
    """Who was in few rounds, and whether that has to do with what the hospitals are like."""
    shares = {site: own["share"] for site, own in arm["sites"].items()}
    if not shares or min(shares.values()) == max(shares.values()):
        return None
    mean = sum(shares.values()) / len(shares)
    rare = [site for site, share in shares.items() if share < RARELY * mean]
    often = (
        f"{name}: hospitals counted in {percent(min(shares.values()))} to {percent(max(shares.values()))} % of rounds"
    )
    who = f"; {listed(rare[:5])}{' and others' if len(rare) > 5 else ''} in less than half of the mean" if rare else ""
    return f"{often}{who}. {_relations(arm)}"


def _relations(arm: Mapping[str, Any]) -> str:
    parts = [
        _relation(what, arm["left_out"][key])
        for key, what in (("rows", "training rows"), ("prevalence", "prevalence"))
        if arm["left_out"][key] is not None
    ]
    if not parts:
        return "There are too few hospitals to say whether this has to do with their size or prevalence."
    return f"Rank correlation of taking part {' and '.join(parts)}."


def _relation(what: str, found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    p = "p < 0.001" if found["p"] < 0.001 else f"p = {found['p']:.2g}"
    few = f", of {found['sites']} hospitals only" if found["sites"] < 10 else ""
    return f"with {what}: {found['rho']:.2f} (95 % CI {low:.2f} to {high:.2f}, {p}{few})"


def time_table(evidence: Evidence) -> Table:
    sooner = {entry["arm"]: entry for entry in evidence.results["time_to_equal"]}
    rows = []
    for name, arm in timed(evidence).items():
        stale, entry = arm["staleness"] or {}, sooner.get(name) or {}
        interval = entry.get("interval") or [None, None]
        line = [name, KINDS[arm["kind"]], arm["updates"], arm["seconds"], stale.get("mean"), stale.get("largest")]
        rows.append([*line, _dropped(arm), entry.get("ratio"), *interval])
    return make_table(
        "time",
        "Time and staleness",
        {
            "arm": None,
            "rounds": None,
            "updates": "{:.0f}".format,
            "virtual time, s": "{:,.0f}".format,
            "staleness": one_decimal,
            "largest": str,
            "dropped work": one_decimal,
            "times sooner as good": _shown,
            OTHER_CI[0]: _shown,
            OTHER_CI[1]: _shown,
        },
        rows,
        "Means over seeds. Staleness: updates of the shared model since work began, on average over all work that "
        "counted. Sooner: the geometric mean over the seeds that reached it.",
    )


def _dropped(arm: Mapping[str, Any]) -> float:
    return float(sum(site["dropped"] for site in arm["sites"].values()))


def participation_table(evidence: Evidence) -> Table:
    arms = timed(evidence)
    rows = []
    for site in dict.fromkeys(site for arm in arms.values() for site in arm["sites"]):
        own = [arm["sites"].get(site) for arm in arms.values()]
        size = next(entry["rows"] for entry in own if entry is not None)
        cells = [(None, None) if entry is None else (entry["share"], entry["dropped"]) for entry in own]
        rows.append([site, size, *(value for cell in cells for value in cell)])
    columns: dict[str, Any] = {"hospital": None, "training rows": str}
    for name in arms:
        columns |= {f"{name}: rounds, %": percent, f"{name}: dropped": one_decimal}
    return make_table(
        "participation",
        "Who took part",
        columns,
        rows,
        "Rounds: the share of all rounds in which the hospital's work counted. Dropped: pieces of work that came too "
        "late to count, with each seed on average.",
    )


def over_time(evidence: Evidence, loss: bool = False) -> Figure | None:
    """A line for each arm over virtual time."""
    metric = evidence.curve_headline
    column = "test_loss" if loss else f"test_{metric.metric}"
    lines = {name: arm["curve"] for name, arm in timed(evidence).items() if column in (arm["curve"] or {})}
    if not lines:
        return None
    drawn, axes = single_axes(3.4)
    for number, (name, curve) in enumerate(lines.items()):
        known = [pair for pair in zip(curve["seconds"], curve[column], strict=True) if pair[1] is not None]
        if known:
            x, y = zip(*known, strict=True)
            scaled = [value * (1 if loss else metric.scale) for value in y]
            (line,) = axes.plot(x, scaled, label=name, **looks(evidence, name), **on_top_of(number, len(lines)))
            tell(line, f"{name}: {scaled[-1]:.4g} after {x[-1]:.4g} s")
    axes.set_xlabel("virtual time, seconds")
    axes.set_ylabel("test loss" if loss else f"test {metric.word}{metric.unit}")
    legend(drawn, loc="outside lower center", ncols=3)
    return drawn


def losses_over_time(evidence: Evidence) -> Figure | None:
    return over_time(evidence, loss=True)


def staleness_figure(evidence: Evidence) -> Figure | None:
    arms = {name: arm["staleness"]["histogram"] for name, arm in timed(evidence).items() if arm["staleness"]}
    arms = {name: counts for name, counts in arms.items() if sum(counts)}
    if not arms:
        return None
    drawn = figure(0.8 + 1.5 * len(arms))
    panels = drawn.subplots(len(arms), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, counts) in zip(panels, arms.items(), strict=True):
        shares = [100 * count / sum(counts) for count in counts]
        bars = axes.bar(range(len(counts)), shares, color=looks(evidence, name)["color"])
        for number, (mark, count) in enumerate(zip(bars, counts, strict=True)):
            tell(mark, f"{name}: {count} pieces of work were {number} updates old")
        axes.set_ylabel("% of work")
        axes.set_title(name, loc="left")
    panels[-1].set_xlabel("staleness: updates of the shared model since work began")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    return drawn


def participation_figure(evidence: Evidence) -> Figure | None:
    """A point for each hospital and arm: how large it is, and in how many rounds it counted."""
    arms = timed(evidence)
    if len({own["share"] for arm in arms.values() for own in arm["sites"].values()}) < 2:
        return None
    drawn, axes = single_axes(3.2)
    for name, arm in arms.items():
        style = {"color": looks(evidence, name)["color"], "marker": MARKERS[list(arms).index(name) % len(MARKERS)]}
        for number, (site, own) in enumerate(arm["sites"].items()):
            label = name if not number else None
            (point,) = axes.plot(own["rows"], 100 * own["share"], linestyle="none", alpha=0.7, label=label, **style)
            tell(point, f"{site}, {own['rows']} rows: in {percent(own['share'])} % of the rounds of {name}")
    sizes = [own["rows"] for arm in arms.values() for own in arm["sites"].values()]
    if max(sizes) > 10 * min(sizes) > 0:
        axes.set_xscale("log")
    axes.set_ylim(0, 105)
    axes.set_xlabel("training rows of the hospital")
    axes.set_ylabel("% of rounds in which it counted")
    legend(drawn, loc="outside lower center", ncols=3)
    return drawn


PAGE = """
<section id="time"><h2>Time and participation</h2>
{% for line in lines %}<p>{{ line }}</p>
{% endfor %}
{{ show("time") }}
{{ draw("metric-over-time") }}{{ draw("loss-over-time") }}
{{ draw("staleness") }}{{ draw("participation") }}
{% call fold("Who took part, hospital by hospital") %}{{ show("participation") }}{% endcall %}
</section>
"""

SECTION = Section(
    PAGE,
    "time",
    "Time and participation",
    values={"lines": lines},
    tables=(time_table, participation_table),
    figures={
        "metric-over-time": Drawing(
            "Test figure against virtual time",
            "Mean over seeds, of the model that was there at each moment. All arms on one clock: those that wait for "
            "every hospital, and those that do not.",
            over_time,
        ),
        "loss-over-time": Drawing("Test loss against virtual time", "Mean over seeds.", losses_over_time),
        "staleness": Drawing(
            "How stale work was when it counted",
            "All work of all rounds and seeds. 0: the shared model had not been updated since the work began.",
            staleness_figure,
        ),
        "participation": Drawing(
            "Size of a hospital and how often it counted",
            "Each point is one hospital in one arm, on average over seeds.",
            participation_figure,
        ),
    },
)
