"""Approaches to training together, side by side: what each gives and costs, and which one to use for what.

Shown where a study's arms differ in kind: who exchanges with whom, or what protects patients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from wardround.evaluation.comparisons.compare import interval_words
from wardround.evaluation.comparisons.differences import GAINS, is_clear
from wardround.report.arms import exchange_kind, patient_epsilon
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, figure
from wardround.report.render.table import Format, Table, decimals, listed, make_table, one_decimal
from wardround.report.section import Section

BOUNDS = {"pooled": "all rows at one place (a bound)", "local": "every site alone"}
MOST_ARMS = 14  # that can be told apart in a figure
ATTACK = "attack: AUC (0.5: a guess)"


@dataclass(frozen=True)
class Approach:
    """An arm in the terms of the comparison. What is not known is None."""

    arm: str
    kind: str
    how: str
    headline: Mapping[str, Any] | None  # mean and interval; None: sites' own models have no common scale
    within: Mapping[str, Any] | None  # the same as a mean over sites, where some arm has such models
    f1: Mapping[str, Any]
    error: float | None  # of calibration
    megabytes: float
    seconds: float
    epsilon: float | None
    attack: Mapping[str, Any] | None  # mean and interval of the AUC of telling who was trained on


def approaches_of(evidence: Evidence) -> list[Approach]:
    return [_approach(evidence, name, arm) for name, arm in evidence.arms.items()]


def _approach(evidence: Evidence, name: str, arm: Mapping[str, Any]) -> Approach:
    metric, apart = evidence.headline.metric, evidence.ranked_within and name in evidence.own_models
    attack = ((evidence.attack or {}).get("membership") or {}).get(name, {}).get("threshold") or {}
    beyond = (arm.get("topology") or {}).get("cost", {}).get("region_global") or {}
    auc = attack.get("auc")
    return Approach(
        arm=name,
        kind=exchange_kind(arm),
        how=_how(evidence, name, arm),
        headline=None if apart else arm["metrics"][metric],
        within=arm["within_sites"][metric] if evidence.ranked_within else None,
        f1=arm["metrics"]["f1"],
        error=((arm.get("uncertainty") or {}).get("calibration") or {}).get("ece"),
        megabytes=(arm["cost"]["bytes"] + beyond.get("bytes_down", 0.0) + beyond.get("bytes_up", 0.0)) / 1e6,
        seconds=arm["cost"]["seconds"],
        epsilon=patient_epsilon(evidence, name),
        attack=None if auc is None else {"mean": auc, "interval": attack.get("interval")},
    )


def _how(evidence: Evidence, name: str, arm: Mapping[str, Any]) -> str:
    algorithm = arm["algorithm"]["name"]
    if algorithm in BOUNDS:
        return BOUNDS[algorithm]
    kinds = {"vertical": "parties with different columns", "hierarchical": f"{algorithm} in regions"}
    parts = [kinds.get(exchange_kind(arm), str(algorithm))]
    if patient_epsilon(evidence, name) is not None:
        parts.append("noise for every patient")
    if evidence.private_arms.get(name, {}).get("secure_sum") is not None:
        parts.append("secure sum")
    method = (arm.get("uncertainty") or {}).get("method", "none")
    if method != "none":
        parts.append(f"uncertainty by {method}")
    return ", ".join(parts)


def approach_table(evidence: Evidence) -> Table:
    headline, rows = evidence.headline, []
    for approach in approaches_of(evidence):
        figures = _figure(approach.headline, headline.shown)
        figures += _figure(approach.within, headline.shown) if evidence.ranked_within else []
        figures += [*_figure(approach.f1, decimals), approach.error, approach.megabytes, approach.seconds]
        rows.append([approach.arm, approach.how, *figures, approach.epsilon, *_figure(approach.attack, decimals)])
    within = {f"{headline.word} in sites": headline.shown, "95 % CI in sites": None} if evidence.ranked_within else {}
    return make_table(
        "ways",
        "Ways to train together, side by side",
        {
            "arm": None,
            "how": None,
            headline.above(): headline.shown,
            f"95 % CI of {headline.word}": None,
            **within,
            "F1": decimals,
            "95 % CI of F1": None,
            "calibration error": decimals,
            **dict.fromkeys(("MB", "seconds", "epsilon"), one_decimal),
            "attack: AUC": decimals,
            "95 % CI of attack": None,
        },
        rows,
        "Calibration error: how far scores are from what happens, on average, before any "
        "correction. MB: tensors sent and received with one seed, on all links. Seconds: of training on this machine, "
        "arm after arm; the first one also warms it up. Attack: telling from losses who was trained on; 0.5 is a "
        "guess.",
    )


def _figure(figure: Mapping[str, Any] | None, shown: Format) -> list[Any]:
    if figure is None:
        return [None, None]
    return [figure["mean"], " to ".join(map(shown, figure["interval"])) if figure.get("interval") else None]


def approach_sentences(evidence: Evidence) -> list[str]:
    """Which one should we use? Only what the figures of this run bear out."""
    approaches = {approach.arm: approach for approach in approaches_of(evidence)}
    sentences = [
        _bounds(evidence, approaches),
        _flat(evidence, approaches),
        _private(evidence, approaches),
        _vertical(evidence),
        _hierarchical(evidence),
        _attacks(approaches),
        _caution(evidence),
    ]
    return [sentence for sentence in sentences if sentence]


def _bounds(evidence: Evidence, approaches: Mapping[str, Approach]) -> str | None:
    bounds = {approach.kind: approach.within or approach.headline for approach in approaches.values()}
    low, high = ((bounds.get(kind) or {}).get("mean") for kind in ("local", "pooled"))
    if low is None or high is None:
        return None
    word = f"{evidence.headline.word}{' within sites' if evidence.ranked_within else ''}"
    return (
        f"The room between training alone and pooling all rows: {word} {evidence.headline.text(low)} to "
        f"{evidence.headline.text(high)}. A way that costs more than it gains within that room is not worth it."
    )


def _flat(evidence: Evidence, approaches: Mapping[str, Approach]) -> str | None:
    """Among plain approaches with one coordinator, the better, or the simpler where chance explains the difference."""
    plain = [name for name, each in approaches.items() if each.kind == "flat" and each.epsilon is None]
    tests = {test["arm"]: test for test in evidence.tests() if test["arm"] in plain}
    if evidence.reference not in plain or not tests:
        return None
    clear = [name for name, test in tests.items() if is_clear(test)]
    if not clear:
        return (
            f"Same kind of rows at every hospital, no further demands: {evidence.reference} will do. "
            f"{listed(list(tests))} {'is' if len(tests) == 1 else 'are'} not told apart from it."
        )
    better = [name for name in clear if tests[name]["verdict"] == GAINS]
    best = max(better, key=lambda name: abs(tests[name]["difference"])) if better else str(evidence.reference)
    return f"Same kind of rows at every hospital, no further demands: {best} is the best of {listed(plain)}."


def _private(evidence: Evidence, approaches: Mapping[str, Approach]) -> str | None:
    parts = [
        f"{name} spends epsilon {each.epsilon:.1f} and {_against_reference(evidence, name)}"
        for name, each in approaches.items()
        if each.epsilon is not None and each.kind not in BOUNDS
    ]
    if not parts:
        return None
    simulated = "" if evidence.deployed else " (what it would cost: a simulation's noise promises nothing)"
    return f"A promise to every patient{simulated}: {'; '.join(parts)}. No other way here promises a patient anything."


def _vertical(evidence: Evidence) -> str | None:
    arms = evidence.topologies("vertical")
    if not arms:
        return None
    parts = [f"{name} {_against_reference(evidence, name)}" for name in arms]
    bound = next((name for name, arm in evidence.arms.items() if exchange_kind(arm) == "pooled"), None)
    fair = "It trains on all sites' rows of common patients at once, which the others do not"
    if bound is not None:
        means = {name: evidence.figure(name)["mean"] for name in (bound, *arms)}
        each = [f"{n} {'not known' if m is None else evidence.headline.text(m)}" for n, m in means.items()]
        fair += f"; set beside pooled rows, {evidence.headline.word} is: {', '.join(each)}"
    noisy = [name for name, topology in arms.items() if topology["embeddings"] is not None]
    promise = f" with noise in {listed(noisy)} (see Topology)" if noisy else ", without any promise"
    return (
        "The same patients with different columns at different places: no other way can use those columns. "
        f"{'; '.join(parts)}. {fair}. Embeddings and gradients of single patients travel{promise}."
    )


def _hierarchical(evidence: Evidence) -> str | None:
    parts = []
    for name, topology in evidence.topologies("hierarchical").items():
        links = (topology["cost"][link] for link in ("region_global", "flat"))
        top, flat = (link["bytes_down"] + link["bytes_up"] for link in links)
        less = f"its coordinator of all carries {top / flat:.0%} of the bytes of a flat one" if flat else ""
        parts.append(f"{name} {_against_reference(evidence, name)}, and {less}" if less else name)
    return f"Regions that do not want one coordinator to see every hospital: {'; '.join(parts)}." if parts else None


def _attacks(approaches: Mapping[str, Approach]) -> str | None:
    known = {approach.arm: approach.attack for approach in approaches.values() if approach.attack is not None}
    if not known:
        return None
    exposed = [arm for arm, attack in known.items() if attack["interval"] and attack["interval"][0] > 0.5]
    if not exposed:
        return (
            f"That somebody was trained on was not shown by an attack on losses in {listed(list(known))}. Another "
            "attack may succeed."
        )
    safe = [arm for arm in known if arm not in exposed]
    rest = f"; in {listed(safe)} this was not shown" if safe else ""
    return f"Who was trained on can be told from losses better than by guessing in {listed(exposed)}{rest}."


def _caution(evidence: Evidence) -> str:
    seeds = "one seed" if evidence.seeds == 1 else f"{evidence.seeds} seeds"
    what = "synthetic data" if evidence.synthetic else "one set of data"
    return f"This is {what} with {seeds}: a reason to try the same study on rows of your own, not to skip that."


def _against_reference(evidence: Evidence, arm: str) -> str:
    test = next((test for test in evidence.tests() if test["arm"] == arm), None)
    if arm == evidence.reference:
        return "is the reference"
    if test is None or test["difference"] is None:
        return "was not compared"
    within = " within sites" if test.get("within_sites") else ""
    interval = "" if test["interval"] is None else f", {interval_words(test, evidence.headline.measure)}"
    verdict = "" if is_clear(test) else "; chance can explain it"
    amount = evidence.headline.measure.difference(test["difference"])
    return f"changes {evidence.headline.word}{within} by {amount} against {test['reference']}{interval}{verdict}"


def approach_bars(evidence: Evidence) -> Figure | None:
    """A panel for each figure; arms from above to below in the study's order."""
    approaches, headline = approaches_of(evidence), evidence.headline
    if len(approaches) > MOST_ARMS:
        return None
    word, within = f"{headline.word}{headline.unit}", f"{headline.word} in sites"
    bars = [
        {
            word: _scaled(approach.headline, headline.scale),
            within: _scaled(approach.within, headline.scale),
            "F1": approach.f1,
            "calibration error": {"mean": approach.error},
            "MB sent and received": {"mean": approach.megabytes},
            "seconds": {"mean": approach.seconds},
            "epsilon (no bar: no promise)": {"mean": approach.epsilon},
            ATTACK: approach.attack or {"mean": None},
        }
        for approach in approaches
    ]
    panels = {title: [arm[title] for arm in bars] for title in bars[0]}
    shown = {title: arms for title, arms in panels.items() if any(bar["mean"] is not None for bar in arms)}
    coin = headline.scale * headline.measure.metric.guess
    begins = {word: coin, within: coin, ATTACK: 0.5}
    lines = -(-len(shown) // 2)
    drawn = figure(lines * (0.55 + 0.2 * len(approaches)))
    axes = drawn.subplots(lines, 2, squeeze=False).flatten()
    for place, (title, arms) in enumerate(shown.items()):
        axes[place].set_title(title, fontsize=9)
        _panel(axes[place], arms, begins.get(title, 0.0))
        names = [approach.arm if place % 2 == 0 else "" for approach in approaches]
        axes[place].set_yticks(range(len(names)), names)
        axes[place].set_ylim(len(names) - 0.5, -0.5)
    for empty in axes[len(shown) :]:
        empty.axis("off")
    return drawn


def _panel(axes: Any, bars: list[Mapping[str, Any]], begin: float) -> None:
    """A bar is as long as what it stands for: from `begin`, which is nothing or a guess."""
    known = {place: bar for place, bar in enumerate(bars) if bar["mean"] is not None}
    lengths = [bar["mean"] - begin for bar in known.values()]
    axes.barh(list(known), lengths, left=begin, color=COLOURS[0], alpha=0.55, height=0.7)
    for place, bar in known.items():
        if bar.get("interval"):
            axes.plot(bar["interval"], [place, place], color="black", linewidth=1.2)
    ends = [value for bar in known.values() for value in (bar.get("interval") or [bar["mean"]])]
    if begin and min(ends) < begin:  # worse than a guess
        axes.axvline(begin, color="grey", linewidth=0.8)


def _scaled(figure: Mapping[str, Any] | None, scale: float) -> Mapping[str, Any]:
    if figure is None or figure["mean"] is None:
        return {"mean": None}
    limits = [scale * limit for limit in figure["interval"]] if figure.get("interval") else None
    return {"mean": scale * figure["mean"], "interval": limits}


PAGE = """
<section id="ways"><h2>Which one should we use?</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("ways") }}{{ show("ways") }}
</section>"""
SECTION = Section(
    PAGE,
    "ways",
    "Which one?",
    {"sentences": approach_sentences},
    tables=(approach_table,),
    figures={
        "ways": Drawing(
            "Ways to train together, side by side",
            "Bars with 95 % CI where there is one. Those of an AUC begin at one half, which is a guess.",
            approach_bars,
            tall=True,
        )
    },
)
