"""What differs between two bundles, topic by topic, in plain values."""

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
HEADLINE = ("auc", "accuracy")  # the first that is known
COVERED = {"id", "seal", "made", "files", "card", "name", "features"}  # follow from others, or have words of their own


@dataclass(frozen=True)
class Difference:
    """None stands where one of the two has nothing of the kind."""

    topic: str
    what: str
    a: Any
    b: Any


def differences(a: Bundle, b: Bundle) -> tuple[Difference, ...]:
    """Nothing for two bundles with one id. When they were made is no difference."""
    if a.id == b.id:
        return ()
    found = [
        *_between("origin", _origin(a), _origin(b)),
        *_between("training", _training(a), _training(b)),
        *_between("model", _model(a), _model(b)),
        *_between("columns", _columns(a), _columns(b)),
        *_between("preparation", asdict(a.recipe.settings), asdict(b.recipe.settings)),
        *_between("images and parties", write_inputs(a.inputs), write_inputs(b.inputs)),
        *_fitted(a.recipe, b.recipe),
        *_between("words", a.vocabulary, b.vocabulary),
        *_between("decision", _decision(a), _decision(b)),
        *_weights(a, b),
        *_between("figures", _figures(a), _figures(b)),
        *_between("privacy", _privacy(a), _privacy(b)),
        *_between("files", _files(a), _files(b)),
    ]
    return tuple(found) or tuple(_rest(a.about, b.about))


def headline(about: Mapping[str, Any]) -> tuple[str, float, tuple[float, float] | None] | None:
    """The figure by which a list shows a bundle, at its own site on test rows: its name, its mean, its interval."""
    of_site = _part(about, "card", "figures", "this_site")
    for name in HEADLINE:
        found = of_site.get(name) or {}
        if found.get("mean") is not None:
            interval = found.get("interval")
            return name, float(found["mean"]), None if not interval else (float(interval[0]), float(interval[1]))
    return None


def _between(topic: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what in dict.fromkeys((*a, *b)):
        if a.get(what) != b.get(what):
            yield Difference(topic, what, a.get(what), b.get(what))


def _origin(bundle: Bundle) -> dict[str, Any]:
    about = bundle.about
    study = about["study"]
    trained_as = about.get("trained_as")
    return {
        "study": study["name"],
        "study hash": study["hash"],
        "run": about.get("run"),
        "arm": about["arm"],
        "trained as": None if trained_as == about["arm"] else trained_as,  # what a selection chose
        "seed": about["seed"],
        "site": about["site"],
        "region": about.get("region"),
        "wardround": about.get("wardround"),
    }


def _training(bundle: Bundle) -> dict[str, Any]:
    told = _part(bundle.about, "card", "training")
    rows = {f"rows for {side}": count for side, count in _part(bundle.about, "rows").items()}
    sites = {f"training rows of {site}": "not told" if n is None else n for site, n in _part(told, "sites").items()}
    adapter = {f"adapter: {key}": _part(told, "adapter").get(key) for key in ("epochs", "rows")}
    return {**{key: told.get(key) for key in ("algorithm", "rounds", "simulated")}, **adapter, **rows, **sites}


def _model(bundle: Bundle) -> dict[str, Any]:
    told = bundle.about["model"]
    return {
        "kind": told["kind"],
        **told["options"],
        "inputs": told["shape"]["inputs"],
        "precision": bundle.about["precision"],
        "classes": list(bundle.classes),
    }


def _columns(bundle: Bundle) -> dict[str, Any]:
    levels, unrecorded = bundle.recipe.layout.levels, bundle.about.get("unrecorded") or ()
    return {
        column.name: _column(column, levels.get(column.name), column.name in unrecorded)
        for column in bundle.recipe.columns
    }


def _column(column: Column, levels: tuple[str, ...] | None, unrecorded: bool) -> dict[str, Any]:
    """Only what it has, so that a plain number is shown as that and no more."""
    told = {
        "kind": "date" if column.dates else column.kind,
        "written": column.header or None,
        "range": column.limits,
        "levels": levels,
        "words": dict(column.words) or None,
        "recorded at this site": False if unrecorded else None,
    }
    return {key: value for key, value in told.items() if value is not None}


def _fitted(a: Recipe, b: Recipe) -> Iterator[Difference]:
    """Which of the columns that both have are filled or scaled otherwise."""
    before, after = _fits(a), _fits(b)
    other = [name for name in before if name in after and before[name] != after[name]]
    if other:
        yield Difference("preparation", "filled or scaled otherwise", None, other)


def _fits(recipe: Recipe) -> dict[str, tuple[Any, ...]]:
    fit = recipe.fit
    numeric = zip(recipe.layout.numeric, fit.centre.tolist(), fit.spread.tolist(), strict=True)
    found: dict[str, tuple[Any, ...]] = {c.name: (fit.fill.get(c.name), *scaled) for c, *scaled in numeric}
    return found | {name: (fit.fill_level.get(name),) for name in recipe.layout.levels}


def _decision(bundle: Bundle) -> dict[str, Any]:
    fitted = bundle.calibration
    each = zip(bundle.classes, bundle.findings, strict=False)
    unsure = bundle.uncertainty
    return {
        **{f"threshold of {name}": one.threshold for name, one in each},
        "uncertainty by": None if unsure is None else unsure.method,
        "refers above": None if unsure is None or unsure.referral is None else unsure.cut(),
        "threshold": bundle.threshold,
        "calibration slope": None if fitted is None else fitted.slope,
        "calibration intercept": None if fitted is None else fitted.intercept,
        "out of distribution by": bundle.out_of_distribution.kind,
        "out of distribution beyond": bundle.out_of_distribution.cut
        if bundle.out_of_distribution.kind == "distance"
        else None,
    }


def _weights(a: Bundle, b: Bundle) -> Iterator[Difference]:
    """The length of each, and of what lies between them."""
    before, after = ({**bundle.params, **bundle.buffers} for bundle in (a, b))
    if {name: leaf.shape for name, leaf in before.items()} != {name: leaf.shape for name, leaf in after.items()}:
        yield Difference("weights", OTHER_SHAPES, _count(before), _count(after))
        return
    apart = _length({name: after[name].double() - leaf.double() for name, leaf in before.items()})
    if apart:
        yield Difference("weights", "length of all", _length(before), _length(after))
        yield Difference("weights", "length of the difference", None, apart)


def _count(leaves: Tree) -> str:
    return f"{sum(leaf.numel() for leaf in leaves.values()):,} numbers"


def _length(leaves: Tree) -> float:
    return math.sqrt(float(tree.squared_norm({name: leaf.double() for name, leaf in leaves.items()})))


def _figures(bundle: Bundle) -> dict[str, Any]:
    told = _part(bundle.about, "card", "figures")
    found: dict[str, Any] = {}
    for key, words in (("this_site", "this site"), ("all_sites", "all sites")):
        for metric, figure in _part(told, key).items():
            if figure and figure.get("mean") is not None:
                found[f"{metric}, {words}"] = {"mean": figure["mean"], "interval": figure.get("interval")}
    found["seeds"] = len(told["seeds"]) if told.get("seeds") else None
    return found


def _privacy(bundle: Bundle) -> dict[str, Any]:
    told = _part(bundle.about, "card", "privacy")
    words = (("each patient", "example"), ("each site", "site"), ("secure sum", "secure_sum"), ("spent", "spent"))
    return {"protected": bool(told), **{word: told.get(key) or None for word, key in words}}


def _files(bundle: Bundle) -> dict[str, Any]:
    return dict.fromkeys(bundle.about["files"], "there")


def _rest(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Ids differ, and none of the above: then it is in the words of the card or in something new."""
    other = [key for key in dict.fromkeys((*a, *b)) if key not in COVERED and a.get(key) != b.get(key)]
    yield Difference("other", "bundle.json" if other else "the card's words", None, other or None)


def _part(told: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A block inside blocks; empty where one of them is missing or null."""
    for key in keys:
        told = told.get(key) or {}
    return told
