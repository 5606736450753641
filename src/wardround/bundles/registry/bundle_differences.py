"""The differences between two bundles, topic by topic, in plain values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wardround.bundles.bundle import Bundle
from wardround.bundles.inputs import write_inputs
from wardround.core import tree
from wardround.core.tree import Tree
from wardround.data.prepare import Recipe
from wardround.data.records import Column

OTHER_SHAPES = "other shapes"
HEADLINE = ("auc", "accuracy")  # the first that is known; of other tasks the first of all
COVERED = {
    "id",
    "seal",
    "made",
    "files",
    "card",
    "name",
    "features",
}  # follow from others, or have their own topic


@dataclass(frozen=True)
class Difference:
    """`a` or `b` is None where that bundle has nothing of the kind."""

    topic: str
    what: str
    a: Any
    b: Any


def differences(a: Bundle, b: Bundle) -> tuple[Difference, ...]:
    """None for two bundles with one id. The time when they were made does not count."""
    if a.id == b.id:
        return ()
    before, after = _topics(a), _topics(b)
    listed: list[Difference] = []
    for topic in before:
        listed += _between(topic, before[topic], after[topic])
        if topic == "images and parties":
            listed += _fitted(a.recipe, b.recipe)
        if topic == "decision":
            listed += _weights(a, b)
    return tuple(listed) or tuple(_rest(a.about, b.about))


def _topics(bundle: Bundle) -> dict[str, Mapping[str, Any]]:
    return {
        "origin": _origin(bundle.about),
        "training": _training(bundle.about),
        "model": _model(bundle),
        "columns": _columns(bundle),
        "preparation": asdict(bundle.recipe.settings),
        "images and parties": write_inputs(bundle.inputs),
        "words": bundle.vocabulary,
        "decision": _decision(bundle),
        "figures": _figures(bundle),
        "privacy": _privacy(bundle),
        "files": dict.fromkeys(bundle.about["files"], "there"),
    }


def headline(about: Mapping[str, Any]) -> tuple[str, float, tuple[float, float] | None] | None:
    """The figure by which a list shows a bundle, at its own site on test rows: its name, its mean, its interval."""
    known = _part(about, "card", "figures", "this_site")
    for name in (*HEADLINE, *known):
        figure = _part(known, name)
        if figure.get("mean") is not None:
            interval = figure.get("interval")
            return name, float(figure["mean"]), None if not interval else (float(interval[0]), float(interval[1]))
    return None


def _between(topic: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what in dict.fromkeys((*a, *b)):
        if a.get(what) != b.get(what):
            yield Difference(topic, what, a.get(what), b.get(what))


def _origin(about: Mapping[str, Any]) -> dict[str, Any]:
    trained_as = about.get("trained_as")
    return {
        "study": about["study"]["name"],
        "study hash": about["study"]["hash"],
        "run": about.get("run"),
        "arm": about["arm"],
        "trained as": None if trained_as == about["arm"] else trained_as,  # what a selection chose
        "seed": about["seed"],
        "site": about["site"],
        "region": about.get("region"),
        "wardround": about.get("wardround"),
    }


def _training(about: Mapping[str, Any]) -> dict[str, Any]:
    card = _part(about, "card", "training")
    rows = {f"rows for {subset}": count for subset, count in _part(about, "rows").items()}
    sites = {f"training rows of {site}": "not known" if n is None else n for site, n in _part(card, "sites").items()}
    adapter = {f"adapter: {key}": _part(card, "adapter").get(key) for key in ("epochs", "rows")}
    return {**{key: card.get(key) for key in ("algorithm", "rounds", "simulated")}, **adapter, **rows, **sites}


def _model(bundle: Bundle) -> dict[str, Any]:
    model = bundle.about["model"]
    return {
        "kind": model["kind"],
        **model["options"],
        "inputs": model["shape"]["inputs"],
        "precision": bundle.about["precision"],
        "task": bundle.task.kind,
        **{key: value for key, value in bundle.task.to_json().items() if key not in ("kind", "names")},
        "classes": list(bundle.classes),
        "target": None if bundle.classes else bundle.task.names[0],
        "target scale": list(bundle.scale) or None,
    }


def _columns(bundle: Bundle) -> dict[str, Any]:
    levels, unrecorded = bundle.recipe.layout.levels, bundle.about.get("unrecorded") or ()
    return {
        column.name: _column(column, levels.get(column.name), column.name in unrecorded)
        for column in bundle.recipe.columns
    }


def _column(column: Column, levels: tuple[str, ...] | None, unrecorded: bool) -> dict[str, Any]:
    """Only what it has, so that a plain number is shown as that and no more."""
    values = {
        "kind": "date" if column.dates else column.kind,
        "written": column.header or None,
        "range": column.limits,
        "levels": levels,
        "words": dict(column.words) or None,
        "recorded at this site": False if unrecorded else None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _fitted(a: Recipe, b: Recipe) -> Iterator[Difference]:
    """Which of the columns that both have are filled or scaled otherwise."""
    before, after = _fits(a), _fits(b)
    changed = [name for name in before if name in after and before[name] != after[name]]
    if changed:
        yield Difference("preparation", "filled or scaled otherwise", None, changed)


def _fits(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    fit = recipe.fit
    numeric = zip(recipe.layout.numeric, fit.centre.tolist(), fit.spread.tolist(), strict=True)
    fits: dict[str, tuple[Any, ...]] = {c.name: (fit.fill.get(c.name), *scaled) for c, *scaled in numeric}
    return fits | {name: (fit.fill_level.get(name),) for name in recipe.layout.levels}


def _decision(bundle: Bundle) -> dict[str, Any]:
    uncertainty, rule = bundle.uncertainty, bundle.out_of_distribution
    single = bundle.about["threshold"] is not None
    events = {name: event for name, event in zip(bundle.answer.events, bundle.events, strict=True) if not single}
    only = bundle.events[0] if single else None
    fitted = None if only is None else only.calibration
    return {
        **{f"threshold of {name}": event.threshold for name, event in events.items()},
        "uncertainty by": None if uncertainty is None else uncertainty.method,
        "refers above": None if uncertainty is None or uncertainty.referral is None else uncertainty.cut(),
        "interval within": None
        if uncertainty is None or uncertainty.residuals is None
        else uncertainty.residuals.value,
        "threshold": None if only is None else only.threshold,
        "calibration slope": None if fitted is None else fitted.slope,
        "calibration intercept": None if fitted is None else fitted.intercept,
        "out of distribution by": rule.kind,
        "out of distribution beyond": rule.cut if rule.kind == "distance" else None,
    }


def _weights(a: Bundle, b: Bundle) -> Iterator[Difference]:
    """The norm of each, and of their difference."""
    before, after = ({**bundle.params, **bundle.buffers} for bundle in (a, b))
    if {name: leaf.shape for name, leaf in before.items()} != {name: leaf.shape for name, leaf in after.items()}:
        yield Difference("weights", OTHER_SHAPES, _count(before), _count(after))
        return
    distance = _norm({name: after[name].double() - leaf.double() for name, leaf in before.items()})
    if distance:
        yield Difference("weights", "length of all", _norm(before), _norm(after))
        yield Difference("weights", "length of the difference", None, distance)


def _count(leaves: Tree) -> str:
    return f"{sum(leaf.numel() for leaf in leaves.values()):,} numbers"


def _norm(leaves: Tree) -> float:
    return math.sqrt(float(tree.squared_norm({name: leaf.double() for name, leaf in leaves.items()})))


def _figures(bundle: Bundle) -> dict[str, Any]:
    card = _part(bundle.about, "card", "figures")
    figures: dict[str, Any] = {
        f"{metric}, {key.replace('_', ' ')}": {"mean": figure["mean"], "interval": figure.get("interval")}
        for key in ("this_site", "all_sites")
        for metric, figure in _part(card, key).items()
        if figure and figure.get("mean") is not None
    }
    return figures | {"seeds": len(card["seeds"]) if card.get("seeds") else None}


def _privacy(bundle: Bundle) -> dict[str, Any]:
    card = _part(bundle.about, "card", "privacy")
    names = {"each patient": "example", "each site": "site", "secure sum": "secure_sum", "spent": "spent"}
    return {"protected": bool(card), **{name: card.get(key) or None for name, key in names.items()}}


def _rest(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Where ids differ and none of the above: the card's text, or something new."""
    other = [key for key in dict.fromkeys((*a, *b)) if key not in COVERED and a.get(key) != b.get(key)]
    yield Difference("other", "bundle.json" if other else "the card's text", None, other or None)


def _part(content: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A block inside blocks; empty where one of them is missing or null."""
    for key in keys:
        content = content.get(key) or {}
    return content
