"""Ways to train together, side by side, as bars with intervals."""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.style import COLOURS, figure
from wardround.report.ways import Way, ways_of

MOST = 14  # arms that can be told apart
ATTACK = "attack: AUC (0.5: a guess)"


def ways_bars(evidence: Evidence) -> Figure | None:
    """A panel for each figure; arms from above to below in the study's order."""
    ways = ways_of(evidence)
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
