"""Ways to train together, side by side: what each gives and costs, and which one to use for what.

Shown where a study's arms differ in kind: who exchanges with whom, or what protects patients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from wardround.evaluation.comparisons.compare import in_words, interval_words
from wardround.evaluation.comparisons.differences import GAINS, is_clear
from wardround.report.arms import approaches_differ, exchange_kind, patient_epsilon
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, figure
from wardround.report.render.table import Format, Table, decimals, listed, make_table, one_decimal
from wardround.report.section import Section

BOUNDS = {"pooled": "all rows at one place (a bound)", "local": "every site alone"}


@dataclass(frozen=True)
class Way:
    """One arm in the words of the comparison. What is not known is None."""

    arm: str
    how: str
    headline: Mapping[str, Any] | None  # mean and interval; None: sites' own models have no common scale
    within: Mapping[str, Any] | None  # the same as a mean over sites, where some arm has such models
    f1: Mapping[str, Any]
    error: float | None  # of calibration
    bytes: float
    seconds: float
    epsilon: float | None
    attack: Mapping[str, Any] | None  # AUC and interval of telling who was trained on


def approaches_of(evidence: Evidence) -> list[Way]:
    """None where all arms train in the same way."""
    if not approaches_differ(evidence):
        return []
    return [_way(evidence, name, arm) for name, arm in evidence.arms.items()]


def _way(evidence: Evidence, name: str, arm: Mapping[str, Any]) -> Way:
    metric, apart = evidence.headline.metric, evidence.ranked_within and name in evidence.own_models
    attacked = ((evidence.attack or {}).get("membership") or {}).get(name, {}).get("threshold")
    unsure = arm.get("uncertainty") or {}
    topology = arm.get("topology") or {}
    beyond = topology.get("cost", {}).get("region_global") or {}
    return Way(
        arm=name,
        how=_how(evidence, name, arm),
        headline=None if apart else arm["metrics"][metric],
        within=arm["within_sites"][metric] if evidence.ranked_within else None,
        f1=arm["metrics"]["f1"],
        error=(unsure.get("calibration") or {}).get("ece"),
        bytes=arm["cost"]["bytes"] + beyond.get("bytes_down", 0.0) + beyond.get("bytes_up", 0.0),
        seconds=arm["cost"]["seconds"],
        epsilon=patient_epsilon(evidence, name),
        attack=attacked if attacked and attacked.get("auc") is not None else None,
    )


def _how(evidence: Evidence, name: str, arm: Mapping[str, Any]) -> str:
    algorithm = arm["algorithm"]["name"]
    if algorithm in BOUNDS:
        return BOUNDS[algorithm]
    parts = {"vertical": "parties with different columns", "hierarchical": f"{algorithm} in regions"}
    told = [parts.get(exchange_kind(arm), str(algorithm))]
    if patient_epsilon(evidence, name) is not None:
        told.append("noise for every patient")
    protected = evidence.protection(name)
    if protected.get("secure_sum") is not None:
        told.append("secure sum")
    method = (arm.get("uncertainty") or {}).get("method", "none")
    if method != "none":
        told.append(f"uncertainty by {method}")
    return ", ".join(told)


def approach_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    rows = []
    for way in approaches_of(evidence):
        figures = [*_figure(way.headline, headline.shown)]
        figures += _figure(way.within, headline.shown) if evidence.ranked_within else []
        figures += _figure(way.f1, decimals)
        attack = [None, None] if way.attack is None else [way.attack["auc"], _limits(way.attack)]
        rows.append([way.arm, way.how, *figures, way.error, way.bytes / 1e6, way.seconds, way.epsilon, *attack])
    columns: dict[str, Format | None] = {"arm": None, "how": None, headline.above(): headline.shown}
    columns |= {f"95 % of {headline.word}": None}
    if evidence.ranked_within:
        columns |= {f"{headline.word} in sites": headline.shown, "95 % in sites": None}
    columns |= {"F1": decimals, "95 % of F1": None}
    columns |= {"calibration error": decimals, "MB": one_decimal, "seconds": one_decimal, "epsilon": one_decimal}
    columns |= {"attack: AUC": decimals, "95 % of attack": None}
    note = (
        "Intervals are of 95 %. Calibration error: how far scores are from what happens, on average, before any "
        "correction. MB: tensors sent and received with one seed, on all links. Seconds: of training on this machine, "
        "arm after arm; the first one also warms it up. Attack: telling from losses who was trained on; 0.5 is a guess."
    )
    return make_table("ways", "Ways to train together, side by side", columns, rows, note)


def _figure(found: Mapping[str, Any] | None, shown: Format) -> list[Any]:
    return [None, None] if found is None else [found["mean"], _limits(found, shown)]


def _limits(found: Mapping[str, Any], shown: Format = decimals) -> str | None:
    return " to ".join(shown(limit) for limit in found["interval"]) if found.get("interval") else None


def approach_sentences(evidence: Evidence) -> list[str]:
    """Which one should we use? Only what the figures of this run bear out."""
    ways = {way.arm: way for way in approaches_of(evidence)}
    if not ways:
        return []
    said = [_bounds(evidence, ways), _flat(evidence, ways), _private(evidence, ways)]
    said += [_vertical(evidence, ways), _hierarchical(evidence, ways), _attacks(ways), _caution(evidence)]
    return [sentence for sentence in said if sentence]


def _bounds(evidence: Evidence, ways: Mapping[str, Way]) -> str | None:
    named = {arm: name for name, a in evidence.arms.items() if (arm := a["algorithm"]["name"]) in BOUNDS}
    if set(named) != set(BOUNDS):
        return None
    figures = [ways[named[kind]].within or ways[named[kind]].headline for kind in ("local", "pooled")]
    low, high = (None if one is None else one["mean"] for one in figures)
    if low is None or high is None:
        return None
    word = f"{evidence.headline.word}{' within sites' if evidence.ranked_within else ''}"
    return (
        f"The room between training alone and pooling all rows: {word} {evidence.headline.told(low)} to "
        f"{evidence.headline.told(high)}. A way that costs more than it gains within that room is not worth it."
    )


def _flat(evidence: Evidence, ways: Mapping[str, Way]) -> str | None:
    """Among plain ways with one coordinator, the better, or the simpler where chance explains the difference."""
    plain = [n for n in ways if exchange_kind(evidence.arms[n]) == "flat" and ways[n].epsilon is None]
    tests = {test["arm"]: test for test in evidence.tests() if test["arm"] in plain}
    if evidence.reference not in plain or not tests:
        return None
    clear = [name for name, test in tests.items() if is_clear(test)]
    if not clear:
        others = listed(list(tests))
        return (
            f"Same kind of rows at every hospital, no further demands: {evidence.reference} will do. {others} "
            f"{'is' if len(tests) == 1 else 'are'} not told apart from it."
        )
    better = [name for name in clear if tests[name]["verdict"] == GAINS]
    best = max(better, key=lambda name: abs(tests[name]["difference"])) if better else str(evidence.reference)
    return f"Same kind of rows at every hospital, no further demands: {best} is the best of {listed(plain)}."


def _private(evidence: Evidence, ways: Mapping[str, Way]) -> str | None:
    private = [
        way for way in ways.values() if way.epsilon is not None and exchange_kind(evidence.arms[way.arm]) not in BOUNDS
    ]
    if not private:
        return None
    told = [
        f"{way.arm} spends epsilon {way.epsilon:.1f} and {_against_reference(evidence, way.arm)}" for way in private
    ]
    kept = "" if evidence.deployed else " (what it would cost: a simulation's noise promises nothing)"
    return f"A promise to every patient{kept}: {'; '.join(told)}. No other way here promises a patient anything."


def _vertical(evidence: Evidence, ways: Mapping[str, Way]) -> str | None:
    found = [name for name in ways if exchange_kind(evidence.arms[name]) == "vertical"]
    if not found:
        return None
    told = [f"{name} {_against_reference(evidence, name)}" for name in found]
    bound = next((n for n, arm in evidence.arms.items() if arm["algorithm"]["name"] == "pooled"), None)
    fair = "It trains on all sites' rows of common patients at once, which the others do not"
    if bound is not None:
        means = [evidence.figure(name)["mean"] for name in (bound, *found)]
        shown = ["not known" if mean is None else evidence.headline.told(mean) for mean in means]
        each = ", ".join(f"{name} {figure}" for name, figure in zip((bound, *found), shown, strict=True))
        fair += f"; set beside pooled rows, {evidence.headline.word} is: {each}"
    noisy = [name for name in found if evidence.arms[name]["topology"]["embeddings"] is not None]
    promise = f" with noise in {listed(noisy)} (see Topology)" if noisy else ", without any promise"
    return (
        "The same patients with different columns at different places: no other way can use those columns. "
        f"{'; '.join(told)}. {fair}. Embeddings and gradients of single patients travel{promise}."
    )


def _hierarchical(evidence: Evidence, ways: Mapping[str, Way]) -> str | None:
    found = [name for name in ways if exchange_kind(evidence.arms[name]) == "hierarchical"]
    if not found:
        return None
    told = []
    for name in found:
        cost = evidence.arms[name]["topology"]["cost"]
        top, flat = (sum(cost[link][key] for key in ("bytes_down", "bytes_up")) for link in ("region_global", "flat"))
        less = f"its coordinator of all carries {top / flat:.0%} of the bytes of a flat one" if flat else ""
        told.append(f"{name} {_against_reference(evidence, name)}, and {less}" if less else name)
    return f"Regions that do not want one coordinator to see every hospital: {'; '.join(told)}."


def _attacks(ways: Mapping[str, Way]) -> str | None:
    known = {way.arm: way.attack for way in ways.values() if way.attack is not None}
    if not known:
        return None
    caught = [arm for arm, attack in known.items() if attack["interval"] and attack["interval"][0] > 0.5]
    if not caught:
        return (
            f"That somebody was trained on was not shown by an attack on losses in {listed(list(known))}. Another "
            "attack may succeed."
        )
    safe = [arm for arm in known if arm not in caught]
    rest = f"; in {listed(safe)} this was not shown" if safe else ""
    return f"Who was trained on can be told from losses better than by guessing in {listed(caught)}{rest}."


def _caution(evidence: Evidence) -> str:
    seeds = "one seed" if evidence.seeds == 1 else f"{evidence.seeds} seeds"
    what = "synthetic data" if evidence.synthetic else "one set of data"
    return f"This is {what} with {seeds}: a reason to try the same study on rows of your own, not to skip that."


def _against_reference(evidence: Evidence, arm: str) -> str:
    """In points, with an interval, where the study has a reference."""
    test = next((test for test in evidence.tests() if test["arm"] == arm), None)
    metric = evidence.headline.metric
    if arm == evidence.reference:
        return "is the reference"
    if test is None or test["difference"] is None:
        return "was not compared"
    within = " within sites" if test.get("within_sites") else ""
    said = "" if test["interval"] is None else f", {interval_words(test)}"
    verdict = "" if is_clear(test) else "; chance can explain it"
    of_test = in_words(test["difference"], metric)
    return f"changes {evidence.headline.word}{within} by {of_test} against {test['reference']}{said}{verdict}"


MOST = 14  # arms that can be told apart


ATTACK = "attack: AUC (0.5: a guess)"


def approach_bars(evidence: Evidence) -> Figure | None:
    """A panel for each figure; arms from above to below in the study's order."""
    ways = approaches_of(evidence)
    if not ways or len(ways) > MOST:
        return None
    word = f"{evidence.headline.word}{evidence.headline.unit}"
    scale = evidence.headline.scale
    ranked = 0.5 * scale if evidence.headline.metric == "auc" else 0.0  # a coin has an AUC of one half
    panels: dict[str, Callable[[Way], Mapping[str, Any] | None]] = {
        word: lambda way: _scaled(way.headline, scale),
        f"{evidence.headline.word} in sites": lambda way: _scaled(way.within, scale),
        "F1": lambda way: way.f1,
        "calibration error": lambda way: _plain(way.error),
        "MB sent and received": lambda way: _plain(way.bytes / 1e6),
        "seconds": lambda way: _plain(way.seconds),
        "epsilon (no bar: no promise)": lambda way: _plain(way.epsilon),
        ATTACK: lambda way: None if way.attack is None else _measured(way.attack),
    }
    begins = {word: ranked, f"{evidence.headline.word} in sites": ranked, ATTACK: 0.5}
    shown = {title: [read(way) for way in ways] for title, read in panels.items()}
    shown = {title: found for title, found in shown.items() if any(one is not None for one in found)}
    across = 2
    lines = -(-len(shown) // across)
    drawn = figure(lines * (0.55 + 0.2 * len(ways)))
    axes = drawn.subplots(lines, across, squeeze=False).flatten()
    for place, (title, found) in enumerate(shown.items()):
        _panel(axes[place], title, found, [way.arm for way in ways], begins.get(title, 0.0), named=place % across == 0)
    for empty in axes[len(shown) :]:
        empty.axis("off")
    return drawn


def _panel(
    axes: Any, title: str, found: list[Mapping[str, Any] | None], names: list[str], begin: float, named: bool
) -> None:
    """A bar is as long as what it stands for: from `begin`, which is nothing or a guess."""
    known = [(place, one) for place, one in enumerate(found) if one is not None and one["mean"] is not None]
    lengths = [one["mean"] - begin for _, one in known]
    axes.barh([place for place, _ in known], lengths, left=begin, color=COLOURS[0], alpha=0.55, height=0.7)
    for place, one in known:
        if one.get("interval"):
            axes.plot(one["interval"], [place, place], color="black", linewidth=1.2)
    ends = [value for _, one in known for value in (one.get("interval") or [one["mean"]])]
    if begin and min(ends) < begin:  # worse than a guess
        axes.axvline(begin, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(names)), names if named else [""] * len(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=9)


def _plain(value: float | None) -> Mapping[str, Any] | None:
    return None if value is None else {"mean": value}


def _measured(attack: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"mean": attack["auc"], "interval": attack.get("interval")}


def _scaled(found: Mapping[str, Any] | None, scale: float) -> Mapping[str, Any] | None:
    if found is None or found["mean"] is None:
        return None
    limits = [scale * limit for limit in found["interval"]] if found.get("interval") else None
    return {"mean": scale * found["mean"], "interval": limits}


def _values(evidence: Evidence) -> dict[str, Any]:
    return {"sentences": approach_sentences(evidence)}


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
    _values,
    tables=(approach_table,),
    figures={
        "ways": Drawing(
            "Ways to train together, side by side",
            "Bars with 95 % intervals where there are any. Those of an AUC begin at one half, which is a guess.",
            approach_bars,
            tall=True,
        )
    },
)
