"""Training that went on from a trained model: which one, what was forgotten at its hospitals, and what both cost."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.evaluation.comparisons.listing import grouped
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, MARKERS, legend, name_rows, offset, single_axes
from wardround.report.render.table import CI, Table, count_text, limits, listed, make_table, whole, without_empty
from wardround.report.section import Section
from wardround.runs.spending import EACH_SITE

MEAN = "mean over the old hospitals"
VERDICTS = {"gains": "better now", "loses": "worse now", "no evidence": "no evidence of a difference"}
SCALES = {
    "per-site": "Each site's rows are scaled by its own, now as then.",
    "federated": "The scale is that of all sites' rows together: it was fitted anew on the sites of this study.",
    "ranges": "Columns are scaled by the same public ranges as then.",
    "image": "Each image is scaled by its own pixels, now as then.",
    "record": "Each recording is scaled by its own samples, now as then.",
    "none": "Nothing is scaled, now as then.",
}
MOST_DRAWN = 60  # rows of the figure
Start = Mapping[str, Any]  # what results.json has of one arm in `start_from`


def starts(evidence: Evidence) -> dict[str, Any]:
    return dict(evidence.results.get("start_from") or {})


def start_lines(content: Mapping[str, Start]) -> list[str]:
    """Where arms started: one sentence for each model, and one for the hospitals of both trainings."""
    by_model = grouped(
        (repr((start["digest"], start["both"], start["begin_anew"])), name) for name, start in content.items()
    )
    return [_started(arms, content[arms[0]]) for arms in by_model.values()]


def _started(arms: list[str], start: Start) -> str:
    old = list(dict.fromkeys(site for training in start["trained"] for site in training["sites"]))
    seeds = {int(own): then for own, then in start["seeds"].items()}
    same = all(own == then for own, then in seeds.items())
    which = (
        "with the same seed" if same else f"of its seed{'s' if len(set(seeds.values())) > 1 else ''} {_numbers(seeds)}"
    )
    whose = f", trained at {listed(old)}" if old else ", which does not say where it was trained"
    further = f", after {listed([t['run'] for t in start['trained'][1:]])}" if len(start["trained"]) > 1 else ""
    text = (
        f"{listed(arms)} started from the model of the {start['kind']} {start['name']}, arm {start['arm']}, {which}"
        f"{whose}{further} (digest {start['digest'][:12]}). {SCALES.get(start['scale'], '')}"
    ).rstrip()
    if start["both"]:
        text += f" In both trainings: {listed(start['both'])}, by their names."
    if start["begin_anew"]:
        text += (
            f" Other columns than then, so that its own part of the model began anew: {listed(start['begin_anew'])}."
        )
    return text


def _numbers(seeds: Mapping[int, int]) -> str:
    return listed([str(seed) for seed in dict.fromkeys(seeds.values())])


def forgetting_lines(content: Mapping[str, Start]) -> list[str]:
    """What was forgotten, arm by arm; or why that could not be measured."""
    lines = [start["forgetting"]["sentence"] for start in content.values() if start["forgetting"]]
    reasons = grouped((start["not_measured"], name) for name, start in content.items() if not start["forgetting"])
    lines += [
        f"Whether {listed(arms)} forgot anything at the old hospitals could not be measured: {reason}."
        for reason, arms in reasons.items()
    ]
    return [*lines, *_left_out(content), *_unmeasured(content)]


def _unmeasured(content: Mapping[str, Start]) -> list[str]:
    """Hospitals of trainings before the last one: only the last one's rows are looked at."""
    by_sites: dict[str, list[str]] = {}
    for name, start in content.items():
        if start["forgetting"]:
            earlier = dict.fromkeys(site for training in start["trained"][1:] for site in training["sites"])
            unknown = [site for site in earlier if site not in start["forgetting"]["sites"]]
            by_sites.setdefault(listed(unknown) if unknown else "", []).append(name)
    return [
        f"What {listed(arms)} forgot at {sites}, of trainings before that, was not measured."
        for sites, arms in by_sites.items()
        if sites
    ]


def _left_out(content: Mapping[str, Start]) -> list[str]:
    by_counts = grouped(
        (repr(start["forgetting"]["left_out"]), name)
        for name, start in content.items()
        if start["forgetting"] and start["forgetting"]["left_out"]
    )
    lines = []
    for arms in by_counts.values():
        rows = content[arms[0]]["forgetting"]["left_out"]
        counts = listed([f"{count_text(whole(count))} at {site}" for site, count in rows.items()])
        lines.append(
            f"Old test rows of patients on whom {listed(arms)} trained, or chose something, are left out: {counts}."
        )
    return lines


def composed_lines(content: Mapping[str, Start]) -> list[str]:
    """The privacy of both trainings, arm by arm."""
    lines = []
    for name, start in content.items():
        if not start["privacy"]:
            continue
        rows = start["privacy"]["sites"]
        site, most = max(rows.items(), key=lambda row: float(str(row[1]["epsilon"]).replace("infinite", "inf")))
        who = "hospitals as a whole" if site == EACH_SITE else f"patients of {site}"
        both = " together" if most["earlier_sites"] and most["here"] != 0 else ""
        lines.append(
            f"{name}: the training before and this one cost {who} most: epsilon {_epsilon(most['epsilon'])}{both} "
            f"({_epsilon(most['before'])} before, {_epsilon(most['here'])} here) at delta {most['delta']:g}. Sites of "
            "the same name count as the same patients."
        )
    return lines


def forgetting_table(evidence: Evidence) -> Table | None:
    headline, rows = evidence.headline, []
    for name, start in starts(evidence).items():
        if not start["forgetting"]:
            continue
        entries = {**start["forgetting"]["sites"], MEAN: start["forgetting"]["mean"]}
        for site, entry in entries.items():
            if entry is not None:
                difference = entry["difference"][headline.metric]
                means = [entry[model][headline.metric]["mean"] for model in ("old", "new")]
                verdict = VERDICTS.get(difference["verdict"], difference["verdict"])
                count = whole(entry["rows"]) if "rows" in entry else None
                rows.append(
                    [name, site, count, *means, difference["difference"], *limits(difference["interval"]), verdict]
                )
    if not rows:
        return None
    note = (
        f"{headline.title} on the test rows of the run that training started from, by its model and by the new one, "
        "with rows of patients on whom the new one was trained left out. Differences are paired, with their 95 % CI, "
        f"corrected for the number of hospitals.{headline.point}"
    )
    return without_empty(
        make_table(
            "forgetting",
            "The old hospitals, before and after",
            {
                "arm": None,
                "old hospital": None,
                "test rows": count_text,
                **dict.fromkeys((headline.above("old model"), headline.above("new model")), headline.shown),
                **dict.fromkeys((headline.points, *CI), headline.difference),
                "verdict": None,
            },
            rows,
            note,
        )
    )


def composed_table(evidence: Evidence) -> Table | None:
    rows: list[list[Any]] = []
    for name, start in starts(evidence).items():
        for site, row in (start["privacy"] or {"sites": {}})["sites"].items():
            earlier = "; ".join(f"{run}: {listed(sites)}" for run, sites in row["earlier_sites"].items()) or None
            epsilons = [row["before"], row["here"], row["epsilon"], row["epsilon_replace"]]
            rows.append([name, site, earlier, *epsilons, row["delta"]])
    if not rows:
        return None
    note = (
        "Of one patient, with the seed that cost most: in the trainings that the model comes from, in this one, and "
        "of all together, by the accountant. A patient pays in both where the site may have been there before: it has "
        "the same name, or too many rows are common, or nothing is known of its patients."
    )
    columns = dict.fromkeys(("epsilon before", "epsilon here", "together", "replace"), _epsilon)
    return make_table(
        "composed-privacy",
        "Privacy of the training before and of this one",
        {"arm": None, "site": None, "was there as": None, **columns, "delta": "{:g}".format},
        rows,
        note,
    )


def _epsilon(value: float | str) -> str:
    return format_epsilon(value, ".2f")


def forgetting_figure(evidence: Evidence) -> Figure | None:
    """The difference at each old hospital, with its interval; to the left of nothing it is forgotten."""
    headline = evidence.headline
    scored = {name: start["forgetting"] for name, start in starts(evidence).items() if start["forgetting"]}
    places = list(dict.fromkeys(site for forgotten in scored.values() for site in forgotten["sites"]))
    if not places or len(places) * len(scored) > MOST_DRAWN:
        return None
    drawn, axes = single_axes(1.1 + 0.3 * len(places) * max(1, len(scored) // 2))
    for number, (name, forgotten) in enumerate(scored.items()):
        for place, site in enumerate(places):
            entry = (forgotten["sites"].get(site) or {"difference": {}})["difference"].get(headline.metric)
            if entry is None or entry["difference"] is None:
                continue
            height = place + offset(number, len(scored), 0.7)
            colour, scale = COLOURS[number % len(COLOURS)], headline.difference_scale * headline.sign
            ends = [scale * limit for limit in entry["interval"] or ()]
            axes.plot(ends, [height] * len(ends), color=colour, linewidth=1.4)
            axes.plot(scale * entry["difference"], height, MARKERS[number % len(MARKERS)], color=colour, markersize=5)
        axes.plot([], [], MARKERS[number % len(MARKERS)], color=COLOURS[number % len(COLOURS)], label=name)
    axes.axvline(0, color="#555555", linewidth=0.8)
    name_rows(axes, places)
    which = "old less new" if headline.sign < 0 else "new less old"
    axes.set_xlabel(f"{which} model, {headline.amount_of(headline.word)}; better to the right")
    legend(drawn, loc="outside lower center", ncols=min(4, len(scored)))
    return drawn


def sentences(evidence: Evidence) -> list[str]:
    content = starts(evidence)
    return [*start_lines(content), *forgetting_lines(content), *composed_lines(content)]


def limit_lines(evidence: Evidence) -> list[str]:
    """For the limits of the report."""
    unknown = [name for name, start in starts(evidence).items() if not start["forgetting"]]
    if not unknown:
        return []
    return [f"What {listed(unknown)} forgot of the hospitals that the model was trained at before is not known."]


PAGE = """
<section id="forgetting"><h2>What was forgotten</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("forgetting") }}{{ show("forgetting") }}{{ show("composed-privacy") }}
</section>"""
SECTION = Section(
    PAGE,
    "forgetting",
    "Forgetting",
    {"sentences": sentences},
    tables=(forgetting_table, composed_table),
    figures={
        "forgetting": Drawing(
            "The old hospitals: the new model against the one that it started from",
            "Each old hospital's own test rows, {metric}; 95 % CI, corrected for the number of hospitals.",
            forgetting_figure,
        )
    },
    remarks={"limits": limit_lines},
)
