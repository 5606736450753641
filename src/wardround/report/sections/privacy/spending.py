"""Differential privacy and secure sums: what is promised, what was spent, and what it cost."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from wardround.evaluation.comparisons.compare import in_words
from wardround.evaluation.comparisons.differences import is_clear
from wardround.privacy.dp.epsilons import from_json
from wardround.privacy.dp.exposure import exposure_text
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, DASHES, MARKERS, bar, figure, legend
from wardround.report.render.table import FEWEST, Format, Table, listed, make_table, percent, without_empty
from wardround.report.section import Section
from wardround.report.sections.privacy.private_arms import (
    Line,
    epsilon_lines,
    epsilon_number,
    epsilon_text,
    is_clipped,
    noisy_arms,
    same_setting,
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


KEPT = (
    "Guaranteed: noise and draws of patients came from a secret that each site drew from its operating system (for "
    "whole sites, the coordinator) and destroyed after the run."
)


MANY = 0.05  # of the budget: a total that is further above the largest arm's is worth a sentence


def protection_sentences(evidence: Evidence) -> list[str]:
    """What is protected from whom, arm by arm where arms differ; what nothing protects is said too."""
    protected = evidence.protected_arms
    if not protected:
        return []
    noisy, told = noisy_arms(evidence), []
    if noisy:
        told.append(KEPT if evidence.results["privacy"]["guarantee"] else SEEDED)
    told += _patients(noisy) + _sites(noisy) + _sums(protected) + _without(evidence) + _unclipped(evidence)
    told += _ends(protected)
    if noisy:
        told += [*_in_all(evidence), *_conditions(noisy)]
    return told


def _patients(noisy: Mapping[str, Any]) -> list[str]:
    arms = {name: arm for name, arm in noisy.items() if arm["example"]}
    spent = {name: spent_epsilon(arm) for name, arm in arms.items()}
    known = {name: value for name, value in spent.items() if value is not None}
    if not known:
        return []
    deltas = sorted({arms[name]["example"]["delta"] for name in known})
    levels = ", ".join(f"{name} {epsilon_text(value)}" for name, value in known.items())
    return [
        "Across hospitals, patients are protected from everybody who sees what their hospital sends or the finished "
        "model, the coordinator and the other hospitals included: in every step the influence of a patient, with all "
        "rows, is cut to the clip and drowned in noise before anything leaves the hospital.",
        f"Epsilon that was spent (by the site that spent most; delta {listed([f'{delta:g}' for delta in deltas])}): "
        f"{levels}. {_meaning(min(known.values()), max(known.values()))}",
    ]


def _meaning(spent: float, most: float) -> str:
    """Of the smallest and the largest epsilon. By Bayes: odds change by a factor of e^epsilon at most, but for the
    small delta."""
    chance, highest = (1 / (1 + math.exp(-one)) for one in (spent, most))
    other = f"; with {epsilon_text(most)}, {_percent(highest)} sure" if most > spent else ""
    told = f"Whoever held it for even odds that a certain patient took part can be at most {_percent(chance)} sure"
    return (
        f"What {epsilon_text(spent)} means: {told} after seeing everything, whatever else is known{other} (but for a "
        "chance of about delta). Below 1 is strong, up to about 8 is common practice, far above it the promise is on "
        "paper only."
    )


def _percent(chance: float) -> str:
    if chance < 0.995:
        return f"{100 * chance:.0f} %"
    return f"{100 * chance:.1f} %" if chance < 0.9995 else "all but 100 %"


def _sites(noisy: Mapping[str, Any]) -> list[str]:
    arms = {name: (arm["sites"].get(EACH_SITE) or {}).get("epsilon") for name, arm in noisy.items() if arm["site"]}
    if not arms:
        return []
    told = listed(
        [name if value is None else f"{name} (epsilon {epsilon_text(value)})" for name, value in arms.items()]
    )
    return [
        f"Whole hospitals are protected in {told}: the update of a site is clipped as one and the coordinator "
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
    federated = [name for name in unprotected_arms(evidence) if name in evidence.federated]
    if not federated or not noisy_arms(evidence):
        return []
    alone = [name for name in unprotected_arms(evidence) if name not in evidence.federated]
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
    told = []
    for name, arm in protected.items():
        if arm["stopped"]:
            sites = listed([f"{site} (from round {number} on)" for site, number in arm["stopped"].items()])
            told.append(f"{name}: stopped because the next round would have exceeded epsilon: {sites}.")
        if arm["failed_rounds"]:
            count = len(arm["failed_rounds"])
            first = arm["failed_rounds"][0]
            which = f"the first is round {first['round']} with seed {first['seed']}: {first['why']}"
            told.append(f"{name}: {count} round{'s' if count > 1 else ''} without a secure sum; {which}.")
            told[-1] += " Such a round fails closed: nothing was revealed, and the model stayed as it was."
    return told


def _in_all(evidence: Evidence) -> list[str]:
    spent = {site: from_json(row["epsilon"]) or 0.0 for site, row in evidence.results["privacy"]["total"].items()}
    arms = [value for arm in noisy_arms(evidence).values() if (value := spent_epsilon(arm)) is not None]
    if not spent or not arms:
        return []
    site = max(spent, key=lambda name: spent[name])
    covered = (
        exposure_text(evidence.results["privacy"]["exposure"]) if "exposure" in evidence.results["privacy"] else ""
    )
    if spent[site] <= (1 + MANY) * max(arms):
        return [covered] if covered else []
    return [
        f"All arms and seeds used the same patients, and what they tell adds up: together epsilon "
        f"{epsilon_text(spent[site])} at {site}. An arm's own epsilon holds for whoever sees that arm's model and "
        "updates of one seed only. A hospital that means it runs one private arm with one seed.",
        *([covered] if covered else []),
    ]


def _conditions(noisy: Mapping[str, Any]) -> list[str]:
    told = [
        "Two ways to count: add/remove compares the study with one without the patient (or site); replace compares it "
        "with one in which another takes the place, and is larger, mostly about twice. Targets are for add/remove.",
        "The numbers of rows and patients of each site are treated as public.",
    ]
    if any(arm["example"] for arm in noisy.values()):
        told.append(
            "Covered are patients whose rows train. Test and validation patients are not: metrics on their rows leave "
            "a site without noise."
        )
    return told


def cost_sentences(evidence: Evidence) -> list[str]:
    """What privacy cost, beside the arm without noise: one sentence or two of the answer."""
    lines = epsilon_lines(evidence)
    told = [(line, against) for line in lines if (against := _against(evidence, line)) is not None]
    if not told:
        return []
    line, against = max(told, key=lambda pair: (pair[0].unprotected == evidence.reference, len(pair[0].arms)))
    tests = {test["arm"]: test for test in evidence.tests() if test["reference"] == against}
    parts = [
        f"epsilon {epsilon_text(spent)}: {_cost(evidence, tests.get(name), name, against)}" for spent, name in line.arms
    ]
    alike = "" if line.unprotected == against else ", which differs in more than that"
    if line.unprotected == against and not same_setting(evidence, line.arms[0][1], against):
        alike = ", which was trained with settings of its own"
    word, point = evidence.headline.word, evidence.headline.point
    tail = "" if evidence.results["privacy"]["guarantee"] else " Simulated noise: what it would cost, not a guarantee."
    return [
        f"What privacy cost in {word}, against {against} without noise{alike}, in points with 95 % CI, corrected for "
        f"all comparisons: {'; '.join(parts)}.{point}{_verdict(line, tests)}{tail}"
    ]


def _against(evidence: Evidence, line: Line) -> str | None:
    """The arm without noise that a line is compared with: its like, or the reference where that has none."""
    reference = evidence.reference
    return line.unprotected or (reference if reference in unprotected_arms(evidence) else None)


def _cost(evidence: Evidence, test: Mapping[str, Any] | None, name: str, against: str) -> str:
    metric = evidence.headline.metric
    if test is not None and test["difference"] is not None:
        limits = [in_words(limit, metric, False) for limit in test["interval"] or ()]
        return f"{in_words(test['difference'], metric, False)} ({' to '.join(limits) or 'one seed, no interval'})"
    mine, other = evidence.figure(name)["mean"], evidence.figure(against)["mean"]
    if mine is None or other is None:
        return "no figures"
    return f"{in_words(mine - other, metric, False)} (no interval: {against} is not the reference)"


def _verdict(line: Line, tests: Mapping[str, Mapping[str, Any]]) -> str:
    found = {spent: tests[name] for spent, name in line.arms if name in tests and tests[name]["interval"] is not None}
    if not found:
        return ""
    clear = [spent for spent, test in found.items() if is_clear(test)]
    if not clear:
        return " All of it may be chance."
    return f" Chance does not explain epsilon {listed([epsilon_text(spent) for spent in clear])}."


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
    """For the terminal: one line for each private arm."""
    tail = "" if (evidence.results.get("privacy") or {}).get("guarantee") else "; no guarantee: simulation"
    told = []
    for name, arm in evidence.protected_arms.items():
        spent = spent_epsilon(arm)
        parts = []
        if not is_clipped(arm):
            parts.append("not clipped: epsilon infinite")
        elif arm["example"] or arm["site"]:
            whose = "a patient, the site that spent most" if arm["example"] else "a whole site"
            delta = (arm["example"] or arm["site"])["delta"]
            amount = "nothing was spent" if spent is None else f"epsilon {epsilon_text(spent)} spent (delta {delta:g}"
            parts.append(amount if spent is None else f"{amount}, {whose}){tail}")
        if arm["secure_sum"] and arm["federated"]:
            parts.append("secure sum")
        parts += [f"{site} stopped in round {number}" for site, number in arm["stopped"].items()]
        if arm["failed_rounds"]:
            parts.append(f"{len(arm['failed_rounds'])} rounds without a sum")
        if parts:
            told.append(f"{name}: {'; '.join(parts)}")
    return told


ADJACENCY = "Epsilon: one patient more or less (add/remove); replace: one patient exchanged for another."


def brief(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def protection_table(evidence: Evidence) -> Table | None:
    """Every arm, also those that nothing protects: that must be seen at a glance."""
    protected = evidence.protected_arms
    if not protected:
        return None
    rows = []
    for name, arm in {**evidence.arms, **evidence.partial}.items():
        if name in protected:
            found = protected[name]
            asked = [_of(found["example"] or found["site"], key) for key in ("epsilon", "delta", "clip")]
            spent = [spent_epsilon(found, key) for key in ("epsilon", "epsilon_replace", "epsilon_rdp")]
            rows.append([name, _unit(found), *asked, *spent, _sum(found), _ended(found)])
        elif not (name.endswith("[selected]") and _protected_family(evidence, arm["family"])):
            rows.append([name, "nothing", *[None] * 6, _no_sum(evidence, name), None])
    columns: dict[str, Format | None] = {"arm": None, "differential privacy of": None, "epsilon at most": brief}
    columns |= {
        "delta": brief,
        "clip": brief,
        "spent": epsilon_number,
        "spent, replace": epsilon_number,
        "by RDP": epsilon_number,
    }
    columns |= {"secure sum": None, "cut short": None}
    note = (
        f"Spent: from the ledger, by the site that spent most, with the seed that cost most. {ADJACENCY} By RDP: the "
        "older way of counting (Rényi), add/remove, to compare with; it is looser."
    )
    return without_empty(make_table("protection", "What protects each arm", columns, rows, note))


def _of(block: Mapping[str, Any] | None, key: str) -> Any:
    return block[key] if block else None


def _unit(found: Mapping[str, Any]) -> str:
    units = [word for key, word in (("example", "patients"), ("site", "whole sites")) if found[key]]
    if not is_clipped(found):
        units.remove("patients")
    example = found["example"] or {}
    more = (
        "adaptive clip" if example.get("adaptive") else "",
        "noise changes" if example.get("noise_schedule") else "",
    )
    return ", ".join([" and ".join(units) or "nothing", *filter(None, more)])


def _sum(found: Mapping[str, Any]) -> str | None:
    if not found["federated"]:
        return None  # there is no sum
    if not found["secure_sum"]:
        return "no"
    threshold = found["secure_sum"]["threshold"]
    return f"yes, of {threshold} or more" if threshold else "yes"


def _no_sum(evidence: Evidence, name: str) -> str | None:
    algorithm = evidence.results["arms"][name]["algorithm"]["name"]
    return None if algorithm in ("local", "pooled") else "no"


def _ended(found: Mapping[str, Any]) -> str | None:
    told = [f"{site} from round {number}" for site, number in found["stopped"].items()]
    if found["failed_rounds"]:
        told.append(f"{len(found['failed_rounds'])} rounds without a sum")
    return "; ".join(told) or None


def _protected_family(evidence: Evidence, family: str) -> bool:
    return any(evidence.results["arms"][name]["family"] == family for name in evidence.protected_arms)


def spent_table(evidence: Evidence) -> Table | None:
    """Each arm at each site, as the ledger has it."""
    rows = [
        [
            name,
            site,
            found["rate"],
            *_noise(found),
            *(found[key] for key in ("rounds", "steps", "delta")),
            *_epsilons(found),
        ]
        for name, arm in evidence.protected_arms.items()
        for site, found in arm["sites"].items()
    ]
    columns: dict[str, Format | None] = {"arm": None, "site": None, "sampling rate": _rate, "noise, clips": _rate}
    columns |= {
        "in the last round": _rate,
        "rounds": str,
        "steps": str,
        "delta": brief,
        "epsilon": epsilon_number,
        "replace": epsilon_number,
        "by RDP": epsilon_number,
    }
    note = (
        "From the ledger, of the seed that cost the site most. In each step a patient is drawn by a coin with the "
        f"sampling rate; noise is the standard deviation on the sum, in clips. {ADJACENCY}"
    )
    return without_empty(make_table("spent", "What each site spent", columns, rows, note))


def _noise(found: Mapping[str, Any]) -> list[float | None]:
    """Of the first round, and of the last one where it differs."""
    first, last = found["noise"], found.get("noise_last", found["noise"])
    return [first, None if last == first else last]


def _epsilons(found: Mapping[str, Any]) -> list[Any]:
    return [from_json(found.get(key)) for key in ("epsilon", "epsilon_replace", "epsilon_rdp")]


def _rate(value: float) -> str:
    return f"{value:.4g}"


def total_table(evidence: Evidence) -> Table | None:
    total = (evidence.results.get("privacy") or {}).get("total", {})
    rows = [
        [site, found["rounds"], found["steps"], found["delta"], *_epsilons(found)[:2]]
        for site, found in total.items()
        if site != EACH_SITE
    ]
    columns: dict[str, Format | None] = {"site": None, "rounds": str, "steps": str, "delta": brief}
    columns |= {"epsilon": epsilon_number, "replace": epsilon_number}
    note = (
        "Every arm, swept value, variant and seed that trained on the site's patients, together: what whoever sees "
        f"all models of this study may learn. {ADJACENCY}"
    )
    return make_table("spent-in-all", "What the whole study spent", columns, rows, note)


def length_table(evidence: Evidence) -> Table | None:
    rows = []
    for name, arm in evidence.protected_arms.items():
        for site, models in ((arm.get("lengths") or {}).get("sites") or {}).items():
            for model, found in models.items():
                rows.append([name, site, f"{model} model", found["clip"], found["median"], found["clipped"]])
    columns: dict[str, Format | None] = {"arm": None, "site": None, "of the": None, "clip": _rate}
    columns |= {"median length, clips": _rate, "cut, %": percent}
    note = "With the first seed. Measured in a simulation only: these figures speak of patients and are not charged."
    return make_table("gradient-lengths", "How long patients' gradients are", columns, rows, note)


MOST_PANELS = 12


MOST_NAMED = 16  # sites that a legend has room for


MOST_ARMS = 6


TOGETHER = 2  # bins of a histogram that are drawn as one


FIRST, LAST = "#0072B2", "#D55E00"


def budget(evidence: Evidence) -> Figure | None:
    """Epsilon spent after each round, a line for each site, a panel for each arm; the target is a dashed line."""
    arms = {name: arm for name, arm in noisy_arms(evidence).items() if arm["sites"]}
    names = list(arms)[:MOST_PANELS]
    if not names:
        return None
    across = min(3, len(names))
    down = -(-len(names) // across)
    sites = list(dict.fromkeys(site for name in names for site in arms[name]["sites"]))
    named = sites if len(sites) <= MOST_NAMED else []
    drawn = figure(0.75 + 0.19 * -(-len(named) // 4) + (2.6 if across < 3 else 2.0) * down)
    grid = drawn.subplots(down, across, sharex=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, name in zip(grid.flat, names, strict=False):
        arm = arms[name]
        for site, found in arm["sites"].items():
            number = sites.index(site)
            rounds, spent = zip((0, 0.0), *found["curve"], strict=True)
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
            (handles[site],) = axes.plot(rounds, spent, linewidth=1.4, **look)
            if site in arm["stopped"]:
                axes.plot(rounds[-1], spent[-1], "X", color=look["color"], markersize=7)
        for target in {block["epsilon"] for block in (arm["example"], arm["site"]) if block}:
            axes.axhline(target, color="black", linewidth=1, linestyle=(0, (4, 2)))
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=8.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for place, axes in enumerate(grid.flat[: len(names)]):
        if place % across == 0:
            axes.set_ylabel("epsilon spent")
        if place + across >= len(names):
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
    if named:
        shown = [handles[site] for site in named]
        drawn.legend(shown, named, loc="outside lower center", ncols=min(4, len(named)), fontsize=8)
    return drawn


def gradient_lengths(evidence: Evidence) -> Figure | None:
    """Of all sites together: left before clipping, right after it, where all that was longer lies at the clip."""
    measured = {name: arm["lengths"] for name, arm in noisy_arms(evidence).items() if arm.get("lengths")}
    names = list(measured)[:MOST_ARMS]
    if not names:
        return None
    drawn = figure(0.95 + 1.45 * len(names))
    grid = drawn.subplots(len(names), 2, sharex=True, sharey="row", squeeze=False)
    reach: list[float] = []
    for row, name in zip(grid, names, strict=True):
        edges = np.asarray(measured[name]["bins"])[::TOGETHER]
        for model, colour, dash in (("first", FIRST, "-"), ("last", LAST, "--")):
            before = _counts(measured[name]["sites"], model)
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
    for axes in grid[-1]:
        axes.set_xlim(low / 1.3, max(high, 2.0) * 1.3)
        axes.set_xlabel("length of a patient's gradient, in clips")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return drawn


def _counts(sites: dict[str, Any], model: str) -> np.ndarray:
    """Over all sites, neighbouring bins together."""
    total = np.sum([found[model]["counts"] for found in sites.values()], axis=0)
    return np.asarray(total.reshape(-1, TOGETHER).sum(1))


def clipped(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What is longer than the clip, which is 1, ends up in the last bin below it."""
    below = int(np.searchsorted(edges, 1 - 1e-9))
    found = counts.copy()
    found[below - 1] += found[below:].sum()
    found[below:] = 0
    return found


def cost_of_epsilon(evidence: Evidence) -> Figure | None:
    """The headline figure against the epsilon that was spent; arms without noise stand apart, at the right end."""
    lines = epsilon_lines(evidence)
    if not lines:
        return None
    plain = list(dict.fromkeys(line.unprotected for line in lines if line.unprotected))
    others = [name for name in unprotected_arms(evidence) if name == evidence.reference and name not in plain]
    if sum(len(line.arms) for line in lines) + len(plain) + len(others) < 2:
        return None
    drawn = figure(3.1 + 0.19 * -(-(len(lines) + len(plain) + len(others)) // 3))
    axes = drawn.subplots()
    spent = [epsilon for line in lines for epsilon, _ in line.arms]
    low, high = min(spent), max(spent)
    room = max(high / low, 3.0) ** (1 / 6)  # between what has an epsilon and what has none
    end = high * room * room
    for number, line in enumerate(lines):
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        _draw_line(evidence, axes, line, (colour, mark), (end / low) ** (0.012 * (number - (len(lines) - 1) / 2)), end)
    for number, name in enumerate([*plain, *others]):
        place = end * (end / low) ** (0.012 * number)
        label = f"{name} (no noise)"
        bar(axes, evidence.figure(name), place, evidence.headline.scale, "#555555", "d", label, upright=True)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _apart(spent, (end / low) ** 0.05)
    axes.set_xticks([*ticks, *([end] if plain or others else [])])
    axes.set_xticklabels([*(epsilon_text(tick) for tick in ticks), *(["no noise"] if plain or others else [])])
    if plain or others:
        axes.axvline(high * room, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epsilon spent, by the site that spent most (smaller: more privacy)")
    axes.set_ylabel(f"test {evidence.headline.word}{evidence.headline.unit}")
    legend(drawn, loc="outside lower center", ncols=3, fontsize=8)
    return drawn


def _draw_line(evidence: Evidence, axes: Any, line: Line, look: tuple[str, str], aside: float, end: float) -> None:
    """`aside` moves the line a little, so that intervals at one epsilon do not cover each other."""
    (colour, mark), scale = look, evidence.headline.scale
    found = [(epsilon * aside, evidence.figure(name)) for epsilon, name in line.arms]
    known = [(place, figures) for place, figures in found if figures["mean"] is not None]
    axes.plot([p for p, _ in known], [scale * f["mean"] for _, f in known], color=colour, linewidth=1)
    for place, figures in known:
        label = line.title if place == known[0][0] else None
        bar(axes, figures, place, scale, colour, mark, label, upright=True)
    without = evidence.figure(line.unprotected)["mean"] if line.unprotected else None
    if known and without is not None:
        (place, last) = known[-1]
        means = [scale * last["mean"], scale * without]
        axes.plot([place, end], means, color=colour, linewidth=0.8, linestyle=":")


def _apart(values: list[float], least: float) -> list[float]:
    """Without those that would be written over the one before."""
    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or value / kept[-1] > least:
            kept.append(value)
    return kept


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
            "On all sites' test rows, with 95 % intervals. A line joins arms that differ in epsilon alone; right of "
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
