"""Differential privacy and secure sums: what is promised, what was spent, and what it cost."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from wardround.evaluation.comparisons.differences import is_clear
from wardround.privacy.dp.epsilons import from_json
from wardround.privacy.dp.exposure import exposure_text
from wardround.report.arms import SELECTED, YARDSTICKS
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, DASHES, MARKERS, bar, figure, legend, panel_grid, single_axes
from wardround.report.render.table import FEWEST, Table, counted, listed, make_table, percent, without_empty
from wardround.report.section import Section
from wardround.report.sections.privacy.private_arms import (
    Line,
    epsilon_lines,
    epsilon_number,
    epsilon_text,
    is_clipped,
    noisy_arms,
    setting_of,
    spent_epsilon,
    unclipped_arms,
    unprotected_arms,
)
from wardround.runs.spending import EACH_SITE

SEEDED = (
    "No guarantee: this was a simulation. Its noise and its draws of patients follow from the study's seed, so that "
    "whoever has the study file can take the noise away again. The figures below say what the same study would "
    "promise when it runs across hospitals, where noise comes from a secret of each site."
)
GUARANTEED = (
    "Guaranteed: noise and draws of patients came from a secret that each site drew from its operating system (for "
    "whole sites, the coordinator) and destroyed after the run."
)
ADJACENCY = "Epsilon: one patient more or less (add/remove); replace: one patient exchanged for another."
MANY = 0.05  # of the budget: a total that is further above the largest arm's is worth a sentence
MOST_PANELS = 12
MOST_NAMED = 16  # sites that a legend has room for
MOST_ARMS = 6
BINS_TOGETHER = 2  # bins of a histogram that are drawn as one
MODELS = (("first", "#0072B2", "-"), ("last", "#D55E00", "--"))
EPSILONS = ("epsilon", "epsilon_replace", "epsilon_rdp")


def protection_sentences(evidence: Evidence) -> list[str]:
    """What is protected from whom, arm by arm where arms differ; what nothing protects is said too."""
    noisy, protected = noisy_arms(evidence), evidence.protected_arms
    sentences = []
    if noisy:
        sentences.append(GUARANTEED if evidence.results["privacy"]["guarantee"] else SEEDED)
    sentences += _patients(noisy) + _sites(noisy) + _sums(protected) + _without(evidence) + _unclipped(evidence)
    sentences += _ends(protected)
    return [*sentences, *_total(evidence), *_conditions(noisy)] if noisy else sentences


def _patients(noisy: Mapping[str, Any]) -> list[str]:
    spent = {name: spent_epsilon(arm) for name, arm in noisy.items() if arm["example"]}
    known = {name: value for name, value in spent.items() if value is not None}
    if not known:
        return []
    deltas = [f"{delta:g}" for delta in sorted({noisy[name]["example"]["delta"] for name in known})]
    levels = ", ".join(f"{name} {epsilon_text(value)}" for name, value in known.items())
    return [
        "Across hospitals, patients are protected from everybody who sees what their hospital sends or the finished "
        "model, the coordinator and the other hospitals included: in every step the influence of a patient, with all "
        "rows, is cut to the clip and drowned in noise before anything leaves the hospital.",
        f"Epsilon that was spent (by the site that spent most; delta {listed(deltas)}): {levels}. "
        f"{_meaning(min(known.values()), max(known.values()))}",
    ]


def _meaning(smallest: float, largest: float) -> str:
    """By Bayes: odds change by a factor of e^epsilon at most, but for the small delta."""
    chance, highest = (_percent(1 / (1 + math.exp(-epsilon))) for epsilon in (smallest, largest))
    other = f"; with {epsilon_text(largest)}, {highest} sure" if largest > smallest else ""
    return (
        f"What {epsilon_text(smallest)} means: Whoever held it for even odds that a certain patient took part can be "
        f"at most {chance} sure after seeing everything, whatever else is known{other} (but for a chance of about "
        "delta). Below 1 is strong, up to about 8 is common practice, far above it the promise is on paper only."
    )


def _percent(chance: float) -> str:
    if chance < 0.995:
        return f"{100 * chance:.0f} %"
    return f"{100 * chance:.1f} %" if chance < 0.9995 else "all but 100 %"


def _sites(noisy: Mapping[str, Any]) -> list[str]:
    arms = {name: (arm["sites"].get(EACH_SITE) or {}).get("epsilon") for name, arm in noisy.items() if arm["site"]}
    if not arms:
        return []
    names = [name if value is None else f"{name} (epsilon {epsilon_text(value)})" for name, value in arms.items()]
    return [
        f"Whole hospitals are protected in {listed(names)}: the update of a site is clipped as one and the coordinator "
        "adds noise to the sum. That protects from whoever sees the models, not from the coordinator."
    ]


def _sums(protected: Mapping[str, Any]) -> list[str]:
    arms = [name for name, arm in protected.items() if arm["secure_sum"] and arm["federated"]]
    if not arms:
        return []
    return [
        f"Secure sum in {listed(arms)}: the coordinator learnt the sum of the sites' updates in each round, and the "
        "number of rows behind it, and no single site's update. The sum itself is not hidden."
    ]


def _without(evidence: Evidence) -> list[str]:
    unprotected = unprotected_arms(evidence)
    federated = [name for name in unprotected if name in evidence.federated]
    if not federated or not noisy_arms(evidence):
        return []
    alone = [name for name in unprotected if name not in federated]
    also = f" So do figures of {listed(alone)}, which have no noise either." if alone else ""
    return [
        f"Without differential privacy: {listed(federated)}. Such an arm tells what the others hide of the same "
        f"patients; it is there to compare with, in a simulation.{also}"
    ]


def _unclipped(evidence: Evidence) -> list[str]:
    arms = unclipped_arms(evidence)
    if not arms:
        return []
    return [
        f"Without a clip: {listed(arms)}. One patient can move such a model as far as it likes, so that no noise hides "
        "anybody: epsilon is infinite, there and in every total that counts such an arm. It is there to compare with, "
        "in a simulation, and refused across hospitals."
    ]


def _ends(protected: Mapping[str, Any]) -> list[str]:
    sentences = []
    for name, arm in protected.items():
        if arm["stopped"]:
            sites = listed([f"{site} (from round {number} on)" for site, number in arm["stopped"].items()])
            sentences.append(f"{name}: stopped because the next round would have exceeded epsilon: {sites}.")
        if arm["failed_rounds"]:
            first = arm["failed_rounds"][0]
            which = f"the first is round {first['round']} with seed {first['seed']}: {first['why']}"
            sentences.append(
                f"{name}: {counted(len(arm['failed_rounds']), 'round')} without a secure sum; {which}. Such a round "
                "fails closed: nothing was revealed, and the model stayed as it was."
            )
    return sentences


def _total(evidence: Evidence) -> list[str]:
    privacy = evidence.results["privacy"]
    spent = {site: from_json(row["epsilon"]) or 0.0 for site, row in privacy["total"].items()}
    arms = [value for arm in noisy_arms(evidence).values() if (value := spent_epsilon(arm)) is not None]
    if not spent or not arms:
        return []
    covered = [exposure_text(privacy["exposure"])] if "exposure" in privacy else []
    site = max(spent, key=spent.__getitem__)
    if spent[site] <= (1 + MANY) * max(arms):
        return covered
    return [
        f"All arms and seeds used the same patients, and what they tell adds up: together epsilon "
        f"{epsilon_text(spent[site])} at {site}. An arm's own epsilon holds for whoever sees that arm's model and "
        "updates of one seed only. A hospital that means it runs one private arm with one seed.",
        *covered,
    ]


def _conditions(noisy: Mapping[str, Any]) -> list[str]:
    sentences = [
        "Two ways to count: add/remove compares the study with one without the patient (or site); replace compares it "
        "with one in which another takes the place, and is larger, mostly about twice. Targets are for add/remove.",
        "The numbers of rows and patients of each site are treated as public.",
    ]
    if any(arm["example"] for arm in noisy.values()):
        sentences.append(
            "Covered are patients whose rows train. Test and validation patients are not: metrics on their rows leave "
            "a site without noise."
        )
    return sentences


def cost_sentences(evidence: Evidence) -> list[str]:
    """What privacy cost, beside the arm without noise: for the answer."""
    compared = [(line, rival) for line in epsilon_lines(evidence) if (rival := _rival(evidence, line)) is not None]
    if not compared:
        return []
    line, rival = max(compared, key=lambda pair: (pair[0].unprotected == evidence.reference, len(pair[0].arms)))
    tests = {test["arm"]: test for test in evidence.tests() if test["reference"] == rival}
    parts = [
        f"epsilon {epsilon_text(spent)}: {_cost(evidence, tests.get(name), name, rival)}" for spent, name in line.arms
    ]
    alike = "" if line.unprotected == rival else ", which differs in more than that"
    if line.unprotected == rival and setting_of(evidence, line.arms[0][1]) != setting_of(evidence, rival):
        alike = ", which was trained with settings of its own"
    word, point, given = evidence.headline.word, evidence.headline.point, evidence.headline.difference_words
    tail = "" if evidence.results["privacy"]["guarantee"] else " Simulated noise: what it would cost, not a guarantee."
    return [
        f"What privacy cost in {word}, against {rival} without noise{alike}, {given} with 95 % CI, corrected for "
        f"all comparisons: {'; '.join(parts)}.{point}{_verdict(line, tests)}{tail}"
    ]


def _rival(evidence: Evidence, line: Line) -> str | None:
    """The arm without noise that a line is compared with: its like, or the reference where that has none."""
    reference = evidence.reference
    return line.unprotected or (reference if reference in unprotected_arms(evidence) else None)


def _cost(evidence: Evidence, test: Mapping[str, Any] | None, name: str, rival: str) -> str:
    measure = evidence.headline.measure
    if test is not None and test["difference"] is not None:
        limits = [measure.difference(limit, with_unit=False) for limit in test["interval"] or ()]
        interval = " to ".join(limits) or "one seed, no interval"
        return f"{measure.difference(test['difference'], with_unit=False)} ({interval})"
    own, other = evidence.figure(name)["mean"], evidence.figure(rival)["mean"]
    if own is None or other is None:
        return "no figures"
    return f"{measure.difference(own - other, with_unit=False)} (no interval: {rival} is not the reference)"


def _verdict(line: Line, tests: Mapping[str, Mapping[str, Any]]) -> str:
    known = {spent: tests[name] for spent, name in line.arms if name in tests and tests[name]["interval"] is not None}
    clear = [epsilon_text(spent) for spent, test in known.items() if is_clear(test)]
    if clear:
        return f" Chance does not explain epsilon {listed(clear)}."
    return " All of it may be chance." if known else ""


def privacy_limits(evidence: Evidence) -> list[str]:
    if not noisy_arms(evidence):
        return []
    lines = ["Differential privacy limits what is learnt of one patient. It does not hide what is true of all of them."]
    if not evidence.results["privacy"]["guarantee"]:
        lines.append("The noise of this run was simulated from a seed: no patient was protected by it.")
    lines.append(
        "Clip, learning rate and number of rounds are not paid for by any epsilon here. Whoever tried several on the "
        "same patients and kept the best has spent what all of them spent together."
    )
    return lines


def spent_lines(evidence: Evidence) -> list[str]:
    lines = []
    for name, arm in evidence.protected_arms.items():
        parts = [spent_text(arm, evidence.results["privacy"]["guarantee"])]
        if arm["secure_sum"] and arm["federated"]:
            parts.append("secure sum")
        parts += [f"{site} stopped in round {number}" for site, number in arm["stopped"].items()]
        if arm["failed_rounds"]:
            parts.append(f"{len(arm['failed_rounds'])} rounds without a sum")
        if any(parts):
            lines.append(f"{name}: {'; '.join(filter(None, parts))}")
    return lines


def spent_text(arm: Mapping[str, Any], guaranteed: bool) -> str:
    if not is_clipped(arm):
        return "not clipped: epsilon infinite"
    block, spent = arm["example"] or arm["site"], spent_epsilon(arm)
    if not block:
        return ""
    if spent is None:
        return "nothing was spent"
    unit = "a patient, the site that spent most" if arm["example"] else "a whole site"
    tail = "" if guaranteed else "; no guarantee: simulation"
    return f"epsilon {epsilon_text(spent)} spent (delta {block['delta']:g}, {unit}){tail}"


def _brief(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _rate(value: float) -> str:
    return f"{value:.4g}"


def protection_table(evidence: Evidence) -> Table:
    """Every arm, also those that nothing protects: that must be seen at a glance."""
    protected, rows = evidence.protected_arms, []
    families = {evidence.results["arms"][name]["family"] for name in protected}
    for name, arm in {**evidence.arms, **evidence.partial}.items():
        if name in protected:
            block = protected[name]["example"] or protected[name]["site"] or {}
            settings = [block.get(key) for key in ("epsilon", "delta", "clip")]
            spent = [spent_epsilon(protected[name], key) for key in EPSILONS]
            ends = [_sum(protected[name]), _ended(protected[name])]
            rows.append([name, _unit(protected[name]), *settings, *spent, *ends])
        elif not (name.endswith(SELECTED) and arm["family"] in families):
            secure_sum = None if arm["algorithm"]["name"] in YARDSTICKS else "no"
            rows.append([name, "nothing", *[None] * 6, secure_sum, None])
    return without_empty(
        make_table(
            "protection",
            "What protects each arm",
            {
                "arm": None,
                "differential privacy of": None,
                **dict.fromkeys(("epsilon at most", "delta", "clip"), _brief),
                **dict.fromkeys(("spent", "spent, replace", "by RDP"), epsilon_number),
                "secure sum": None,
                "cut short": None,
            },
            rows if protected else [],
            f"Spent: from the ledger, by the site that spent most, with the seed that cost most. {ADJACENCY} By RDP: "
            "the "
            "older way of counting (Rényi), add/remove, to compare with; it is looser.",
        )
    )


def _unit(arm: Mapping[str, Any]) -> str:
    example = arm["example"] or {}
    units = ["patients"] if example and is_clipped(arm) else []
    units += ["whole sites"] if arm["site"] else []
    more = (
        "adaptive clip" if example.get("adaptive") else "",
        "noise changes" if example.get("noise_schedule") else "",
    )
    return ", ".join([" and ".join(units) or "nothing", *filter(None, more)])


def _sum(arm: Mapping[str, Any]) -> str | None:
    if not arm["federated"]:
        return None  # there is no sum
    if not arm["secure_sum"]:
        return "no"
    threshold = arm["secure_sum"]["threshold"]
    return f"yes, of {threshold} or more" if threshold else "yes"


def _ended(arm: Mapping[str, Any]) -> str | None:
    parts = [f"{site} from round {number}" for site, number in arm["stopped"].items()]
    if arm["failed_rounds"]:
        parts.append(f"{len(arm['failed_rounds'])} rounds without a sum")
    return "; ".join(parts) or None


def spent_table(evidence: Evidence) -> Table:
    rows = []
    for name, arm in evidence.protected_arms.items():
        for site, spent in arm["sites"].items():
            last = spent.get("noise_last", spent["noise"])
            noise = [spent["noise"], None if last == spent["noise"] else last]
            counts = [spent[key] for key in ("rounds", "steps", "delta")]
            rows.append([name, site, spent["rate"], *noise, *counts, *_epsilons(spent)])
    return without_empty(
        make_table(
            "spent",
            "What each site spent",
            {
                "arm": None,
                "site": None,
                **dict.fromkeys(("sampling rate", "noise, clips", "in the last round"), _rate),
                "rounds": str,
                "steps": str,
                "delta": _brief,
                **dict.fromkeys(("epsilon", "replace", "by RDP"), epsilon_number),
            },
            rows,
            "From the ledger, of the seed that cost the site most. In each step a patient is drawn by a coin with the "
            f"sampling rate; noise is the standard deviation on the sum, in clips. {ADJACENCY}",
        )
    )


def _epsilons(spent: Mapping[str, Any]) -> list[Any]:
    return [from_json(spent.get(key)) for key in EPSILONS]


def total_table(evidence: Evidence) -> Table:
    rows = [
        [site, spent["rounds"], spent["steps"], spent["delta"], *_epsilons(spent)[:2]]
        for site, spent in evidence.results["privacy"]["total"].items()
        if site != EACH_SITE
    ]
    epsilons = dict.fromkeys(("epsilon", "replace"), epsilon_number)
    return make_table(
        "spent-in-all",
        "What the whole study spent",
        {"site": None, "rounds": str, "steps": str, "delta": _brief, **epsilons},
        rows,
        "Every arm, swept value, variant and seed that trained on the site's patients, together: what whoever sees "
        f"all models of this study may learn. {ADJACENCY}",
    )


def length_table(evidence: Evidence) -> Table:
    rows = [
        [name, site, f"{model} model", lengths["clip"], lengths["median"], lengths["clipped"]]
        for name, arm in evidence.protected_arms.items()
        for site, models in ((arm.get("lengths") or {}).get("sites") or {}).items()
        for model, lengths in models.items()
    ]
    return make_table(
        "gradient-lengths",
        "How long patients' gradients are",
        {
            "arm": None,
            "site": None,
            "of the": None,
            "clip": _rate,
            "median length, clips": _rate,
            "cut, %": percent,
        },
        rows,
        "With the first seed. Measured in a simulation only: these figures speak of patients and are not charged.",
    )


def budget(evidence: Evidence) -> Figure | None:
    arms = dict([(name, arm) for name, arm in noisy_arms(evidence).items() if arm["sites"]][:MOST_PANELS])
    if not arms:
        return None
    columns = min(3, len(arms))
    lines = -(-len(arms) // columns)
    sites = list(dict.fromkeys(site for arm in arms.values() for site in arm["sites"]))
    named = sites if len(sites) <= MOST_NAMED else []
    height = 0.75 + 0.19 * -(-len(named) // 4) + (2.6 if columns < 3 else 2.0) * lines
    drawn, panels = panel_grid(len(arms), columns, height)
    handles: dict[str, Any] = {}
    for place, (axes, (name, arm)) in enumerate(zip(panels.flat, arms.items(), strict=False)):
        _draw_budget(axes, arm, sites, handles)
        axes.set_title(name, fontsize=8.5)
        if place % columns == 0:
            axes.set_ylabel("epsilon spent")
        if place + columns >= len(arms):
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
    if named:
        shown = [handles[site] for site in named]
        drawn.legend(shown, named, loc="outside lower center", ncols=min(4, len(named)), fontsize=8)
    return drawn


def _draw_budget(axes: Any, arm: Mapping[str, Any], sites: list[str], handles: dict[str, Any]) -> None:
    for site, spent in arm["sites"].items():
        number = sites.index(site)
        rounds, epsilons = zip((0, 0.0), *spent["curve"], strict=True)
        look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        (handles[site],) = axes.plot(rounds, epsilons, linewidth=1.4, **look)
        if site in arm["stopped"]:
            axes.plot(rounds[-1], epsilons[-1], "X", color=look["color"], markersize=7)
    for target in {block["epsilon"] for block in (arm["example"], arm["site"]) if block}:
        axes.axhline(target, color="black", linewidth=1, linestyle=(0, (4, 2)))
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)


def gradient_lengths(evidence: Evidence) -> Figure | None:
    """Of all sites together: left before clipping, right after it, where all that was longer lies at the clip."""
    measured = {name: arm["lengths"] for name, arm in noisy_arms(evidence).items() if arm.get("lengths")}
    names = list(measured)[:MOST_ARMS]
    if not names:
        return None
    drawn = figure(0.95 + 1.45 * len(names))
    panels = drawn.subplots(len(names), 2, sharex=True, sharey="row", squeeze=False)
    reach: list[float] = []
    for row, name in zip(panels, names, strict=True):
        edges = np.asarray(measured[name]["bins"])[::BINS_TOGETHER]
        for model, colour, dash in MODELS:
            total = np.sum([models[model]["counts"] for models in measured[name]["sites"].values()], axis=0)
            before = total.reshape(-1, BINS_TOGETHER).sum(1)
            for axes, counts in zip(row, (before, clipped(before, edges)), strict=True):
                shown = np.where(counts < FEWEST, 0, counts)
                axes.stairs(shown, edges, color=colour, fill=True, alpha=0.18)
                axes.stairs(shown, edges, color=colour, linestyle=dash, linewidth=1.3, label=f"{model} model")
                filled = np.flatnonzero(shown)
                reach += [edges[filled[0]], edges[filled[-1] + 1]] if len(filled) else []
        for axes in row:
            axes.axvline(1, color="black", linewidth=1, linestyle=(0, (4, 2)))
            axes.set_xscale("log")
        row[0].set_ylabel("patients")
        row[0].set_title(f"{name}: before clipping", fontsize=8.5)
        row[1].set_title("after clipping", fontsize=8.5)
    low, high = (min(reach), max(reach)) if reach else (0.1, 10.0)
    for axes in panels[-1]:
        axes.set(xlim=(low / 1.3, max(high, 2.0) * 1.3), xlabel="length of a patient's gradient, in clips")
    drawn.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return drawn


def clipped(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What is longer than the clip, which is 1, ends up in the last bin below it."""
    below = int(np.searchsorted(edges, 1 - 1e-9))
    return np.concatenate([counts[: below - 1], [counts[below - 1 :].sum()], np.zeros_like(counts[below:])])


def cost_of_epsilon(evidence: Evidence) -> Figure | None:
    lines = epsilon_lines(evidence)
    spent = [epsilon for line in lines for epsilon, _ in line.arms]
    rivals = dict.fromkeys(line.unprotected for line in lines if line.unprotected)
    plain = [*rivals, *(n for n in unprotected_arms(evidence) if n == evidence.reference and n not in rivals)]
    if not lines or len(spent) + len(plain) < 2:
        return None
    drawn, axes = single_axes(3.1 + 0.19 * -(-(len(lines) + len(plain)) // 3))
    low, high = min(spent), max(spent)
    room = max(high / low, 3.0) ** (1 / 6)  # between what has an epsilon and what has none
    end = high * room * room
    for number, line in enumerate(lines):
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        _draw_line(evidence, axes, line, (colour, mark), (end / low) ** (0.012 * (number - (len(lines) - 1) / 2)), end)
    for number, name in enumerate(plain):
        place = end * (end / low) ** (0.012 * number)
        label = f"{name} (no noise)"
        bar(axes, evidence.figure(name), place, evidence.headline, "#555555", "d", label, upright=True)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = {tick: epsilon_text(tick) for tick in _apart(spent, (end / low) ** 0.05)}
    if plain:
        ticks[end] = "no noise"
        axes.axvline(high * room, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set(
        xlabel="epsilon spent, by the site that spent most (smaller: more privacy)",
        ylabel=f"test {evidence.headline.word}{evidence.headline.unit}",
    )
    legend(drawn, loc="outside lower center", ncols=3, fontsize=8)
    return drawn


def _draw_line(evidence: Evidence, axes: Any, line: Line, look: tuple[str, str], aside: float, end: float) -> None:
    """`aside` moves the line a little, so that intervals at one epsilon do not cover each other."""
    (colour, mark), scale = look, evidence.headline.scale
    points = {epsilon * aside: evidence.figure(name) for epsilon, name in line.arms}
    known = [(place, figures) for place, figures in points.items() if figures["mean"] is not None]
    axes.plot([p for p, _ in known], [scale * f["mean"] for _, f in known], color=colour, linewidth=1)
    for place, figures in known:
        label = line.title if place == known[0][0] else None
        bar(axes, figures, place, evidence.headline, colour, mark, label, upright=True)
    without = evidence.figure(line.unprotected)["mean"] if line.unprotected else None
    if known and without is not None:
        (place, last) = known[-1]
        means = [scale * last["mean"], scale * without]
        axes.plot([place, end], means, color=colour, linewidth=0.8, linestyle=":")


def _apart(values: list[float], least: float) -> list[float]:
    """Without those that would be written over the one before."""
    apart: list[float] = []
    for value in sorted(set(values)):
        if not apart or value / apart[-1] > least:
            apart.append(value)
    return apart


PAGE = """
{{ show("protection") }}{{ draw("epsilon-cost") }}{{ draw("epsilon-spent") }}{{ show("spent-in-all") }}
{% if "spent" in tables %}
{% call fold("Every arm at every site: noise, sampling rate, steps and epsilon") %}{{ show("spent") }}{% endcall %}
{% endif %}
{{ draw("gradient-lengths") }}
{% if "gradient-lengths" in tables %}
{% call fold("Lengths of gradients at each site, as a table") %}{{ show("gradient-lengths") }}{% endcall %}{% endif %}
"""
SECTION = Section(
    PAGE,
    tables=(protection_table, spent_table, total_table, length_table),
    figures={
        "epsilon-cost": Drawing(
            "{Metric} against epsilon",
            "On all sites' test rows, with 95 % CI. A line joins arms that differ in epsilon alone; right of "
            "the dotted line stand arms without noise.",
            cost_of_epsilon,
        ),
        "epsilon-spent": Drawing(
            "Budget spent in each round at each site",
            "From the ledger, with the seed that cost a site most; one patient more or less. Dashed: the epsilon that "
            "the study allows. A cross: the site stopped there, because its next round would have exceeded it.",
            budget,
            tall=True,
        ),
        "gradient-lengths": Drawing(
            "Lengths of patients' gradients before and after clipping",
            f"All sites together, first seed, in clips; the dashed line is the clip. Bars below {FEWEST} patients are "
            "withheld. A simulation can show this; in a run across hospitals nobody sees it.",
            gradient_lengths,
            tall=True,
        ),
    },
    remarks={"answer": cost_sentences, "privacy": protection_sentences, "limits": privacy_limits},
)
