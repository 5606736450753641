"""Simulated adversaries: who was bad, what it cost the honest hospitals, and which way of training bore it."""

from collections.abc import Mapping
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    COLOURS,
    MARKERS,
    bar,
    figure,
    heat,
    numbered_style,
    offset,
    single_axes,
)
from wardround.report.render.table import CI, Table, limits, listed, make_table, percent
from wardround.report.section import Section

CLEAN = "nobody is bad"
MOST_PANELS, MOST_ROWS = 12, 30


def attacked(evidence: Evidence) -> dict[str, Mapping[str, Any]]:
    return dict(evidence.results["adversaries"]["arms"])


def mean_at_honest(evidence: Evidence, arm: str) -> dict[str, Any]:
    """The primary metric on average over honest hospitals."""
    return dict(evidence.results["arms"][arm]["within_sites"][evidence.headline.metric])


def damage_of(evidence: Evidence, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The difference from the same arm without adversaries, at each honest hospital and on average."""
    own = entry["damage"].get(evidence.headline.metric)
    return None if own is None else dict(own)


def who_table(evidence: Evidence) -> Table:
    rows = []
    for name, entry in attacked(evidence).items():
        for bad in entry["adversaries"]:
            settings = ", ".join(
                f"{key} {_shown(value)}" for key, value in bad["settings"].items() if value not in ([], {})
            )
            what = "training rows" if bad["poisons"] == "rows" else "updates"
            rows.append([name, bad["kind"], what, listed(bad["sites"]), settings, bad["from_round"]])
    columns = {"arm": None, "kind": None, "poisons": None, "bad hospitals": None, "settings": None, "from round": str}
    return make_table("adversaries", "Who was bad", columns, rows)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " and ".join(f"{key} = {_shown(own)}" for key, own in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def damage_table(evidence: Evidence) -> Table:
    headline, rows = evidence.headline, []
    for name, entry in attacked(evidence).items():
        damage, clean = damage_of(evidence, entry), entry["twin"]
        mean = None if damage is None else damage["mean"]
        bad_means = [own["mean"] for own in entry["at_bad_sites"].values() if own["mean"] is not None]
        rows.append(
            [
                name,
                entry["attack"],
                f"{entry['bad']} of {entry['sites']}",
                None if clean is None else mean_at_honest(evidence, clean)["mean"],
                mean_at_honest(evidence, name)["mean"],
                None if mean is None else mean["difference"],
                *limits(None if mean is None else mean["interval"]),
                "" if mean is None else mean["verdict"],
                sum(bad_means) / len(bad_means) if bad_means else None,
            ]
        )
    columns = {
        "arm": None,
        "attack": None,
        "bad": None,
        headline.above("honest model"): headline.shown,
        headline.above("under attack"): headline.shown,
        **dict.fromkeys((headline.points, *CI), headline.difference),
        "verdict": None,
        headline.above("at bad hospitals"): headline.shown,
    }
    return make_table(
        "adversaries-damage",
        f"{headline.title} under attack, on average over the honest hospitals",
        columns,
        rows,
        "The honest model is that of the same arm without adversaries; differences are paired over seeds, each "
        "interval by itself (95 %). At bad hospitals: the mean over all that are bad in some arm, on their test rows "
        f"as they are.{headline.point}",
    )


def hospital_damage_table(evidence: Evidence) -> Table | None:
    headline, rows = evidence.headline, []
    for name, entry in attacked(evidence).items():
        damage = damage_of(evidence, entry)
        for site, own in ({} if damage is None else damage["sites"]).items():
            rows.append([name, site, own["difference"], *limits(own["interval"]), own["verdict"]])
    columns = {
        "arm": None,
        "hospital": None,
        **dict.fromkeys((headline.points, *CI), headline.difference),
        "verdict": None,
    }
    return make_table(
        "adversaries-hospitals",
        f"What each honest hospital loses in {headline.word}",
        columns,
        rows,
        f"Against the same arm without adversaries. The hospitals of an arm are one family.{headline.point}",
    )


def backdoor_table(evidence: Evidence) -> Table | None:
    rows = [
        [
            name,
            known["target"],
            *((known[key] or {}).get("mean") for key in ("success", "without_trigger", "honest_model")),
        ]
        for name, entry in attacked(evidence).items()
        for known in entry["backdoors"]
    ]
    columns = {
        "arm": None,
        "called": None,
        "with the trigger, %": percent,
        "without it, %": percent,
        "with it, honest model, %": percent,
    }
    return make_table(
        "backdoors",
        "Do the backdoors work?",
        columns,
        rows,
        "Of the honest hospitals' test rows of other classes: how many are called the backdoor's class. What the "
        "trigger does to an honest model is not the backdoor's doing.",
    )


def bases(evidence: Evidence) -> list[str]:
    return list(dict.fromkeys(entry["base"] for entry in attacked(evidence).values()))


def attacks(evidence: Evidence) -> list[str]:
    return list(dict.fromkeys(entry["attack"] for entry in attacked(evidence).values()))


def strongest(evidence: Evidence, base: str, attack: str) -> str | None:
    """The arm of a way of training under an attack; where the number of bad hospitals differs, that with most."""
    same = {n: e for n, e in attacked(evidence).items() if (e["base"], e["attack"]) == (base, attack)}
    return max(same, key=lambda name: same[name]["bad"], default=None)


def attack_map(evidence: Evidence) -> Figure | None:
    """What is left of the primary metric: ways of training against attacks."""
    rows, columns, headline = bases(evidence), attacks(evidence), evidence.headline
    if len(rows) < 2 or len(columns) < 2 or len(rows) > MOST_ROWS:
        return None
    clean = {entry["base"]: entry["twin"] for entry in attacked(evidence).values() if entry["twin"] is not None}
    cells = [[clean.get(row), *(strongest(evidence, row, column) for column in columns)] for row in rows]
    means = [[None if arm is None else mean_at_honest(evidence, arm)["mean"] for arm in line] for line in cells]
    values = headline.scale * np.array(means, dtype=float)
    named = [fill(column, 14, break_long_words=False) for column in [CLEAN, *columns]]
    lines = max(column.count("\n") for column in named)
    drawn, axes = single_axes(0.8 + 0.3 * len(rows) + 0.14 * lines, 3.4 + min(5.0, 0.9 * len(named)))
    image = heat(
        axes,
        values,
        lambda value: headline.shown(value / headline.scale),
        rows,
        named,
        "cividis_r" if headline.sign < 0 else "cividis",
    )
    axes.set_xticks(range(len(named)), named, rotation=0, ha="center", fontsize=8)
    axes.axvline(0.5, color="white", linewidth=3)
    drawn.colorbar(image, ax=axes, label=f"test {headline.word}{headline.unit}")
    return drawn


def share_lines(evidence: Evidence) -> Figure | None:
    """The primary metric against the share of bad hospitals: a panel for each attack, a line for each arm."""
    panels = {attack: _lines(evidence, attack) for attack in attacks(evidence)}
    panels = {attack: lines for attack, lines in panels.items() if any(len(points) > 2 for points in lines.values())}
    if not panels or len(panels) > MOST_PANELS:
        return None
    columns = min(3, len(panels))
    height = -(-len(panels) // columns)
    drawn = figure(1.0 + 2.4 * height + 0.2 * -(-len(bases(evidence)) // 4))
    axes_of = drawn.subplots(height, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (attack, lines) in zip(axes_of.flat, panels.items(), strict=False):
        _draw_lines(evidence, axes, lines)
        axes.set_title(attack, fontsize=9)
    for axes in axes_of.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in axes_of[-1]:
        axes.set_xlabel("bad hospitals, %")
    for axes in axes_of[:, 0]:
        axes.set_ylabel(f"test {evidence.headline.word}{evidence.headline.unit}")
    handles, labels = axes_of[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8)
    return drawn


def _draw_lines(evidence: Evidence, axes: Any, lines: Mapping[str, Mapping[float, str]]) -> None:
    headline, names = evidence.headline, bases(evidence)
    for base, points in lines.items():
        number = names.index(base)
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        places = {share + offset(number, len(names), 1.6): arm for share, arm in points.items()}
        means = [mean_at_honest(evidence, arm)["mean"] for arm in places.values()]
        heights = [np.nan if mean is None else headline.scale * mean for mean in means]
        axes.plot(list(places), heights, linewidth=1, label=base, **numbered_style(number))
        for place, arm in places.items():
            bar(axes, mean_at_honest(evidence, arm), place, headline, colour, mark, upright=True, thin=True, told=arm)
    alone = None if evidence.local is None else mean_at_honest(evidence, evidence.local)["mean"]
    if alone is not None:
        axes.axhline(headline.scale * alone, color="#555555", linewidth=1, linestyle=":", label="each alone")


def _lines(evidence: Evidence, attack: str) -> dict[str, dict[float, str]]:
    """By way of training: the arm for each share of bad hospitals, in per cent; 0 is the honest one."""
    lines: dict[str, dict[float, str]] = {}
    for name, entry in attacked(evidence).items():
        if entry["attack"] == attack and entry["sites"]:
            points = lines.setdefault(entry["base"], {} if entry["twin"] is None else {0.0: entry["twin"]})
            points[100 * entry["bad"] / entry["sites"]] = name
    return {base: dict(sorted(points.items())) for base, points in lines.items()}


PAGE = """
<section id="adversaries"><h2>Simulated adversaries</h2>
<p>{{ evidence.results.adversaries.sentence }} A bad hospital's test rows are never changed: its patients are as ill as
before. Attackers that work together see the honest updates of a round before they send theirs, as the papers on these
attacks assume; what withstands them withstands weaker ones.</p>
{{ show("adversaries-damage") }}{{ draw("adversaries-map") }}{{ draw("adversaries-share") }}
{{ show("backdoors") }}
{% call fold("Who was bad, and what each honest hospital loses") %}
{{ show("adversaries") }}{{ show("adversaries-hospitals") }}
{% endcall %}
</section>
"""
SECTION = Section(
    PAGE,
    "adversaries",
    "Adversaries",
    tables=(damage_table, backdoor_table, who_table, hospital_damage_table),
    figures={
        "adversaries-map": Drawing(
            "Ways of training against attacks",
            "On average over the honest hospitals' test rows; bright is better. Where the number of bad hospitals "
            "differs: with most of them.",
            attack_map,
        ),
        "adversaries-share": Drawing(
            "How many bad hospitals can be borne",
            "On average over the honest hospitals' test rows, with 95 % CI. Marks that would cover each other stand "
            "side by side.",
            share_lines,
        ),
    },
)
