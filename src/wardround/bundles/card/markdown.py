"""A card as Markdown, for a clinician and a compliance officer. All of it comes from the card's data."""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from wardround.privacy.dp.epsilons import format_epsilon
from wardround.tasks import METRIC_FACTS

FOLDER = "bundles/card"
UNKNOWN = "not known"
SHARE = "sensitivity"  # a metric between 0 and 1, as most are


def render(card: Mapping[str, Any]) -> str:
    # names are made plain one by one: this is no HTML, which autoescape is for
    jinja = Environment(
        loader=FunctionLoader(_template),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    jinja.globals |= {"unknown": UNKNOWN}
    jinja.filters |= {
        "plain": plain,
        "estimate": _estimate,
        "coverage": _coverage,
        "epsilon": lambda value: format_epsilon(value, ".3f"),
        "general": "{:g}".format,
        "whole": "{:,}".format,
    }
    text = jinja.get_template("card").render(card)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _template(name: str) -> str:
    """`card`, parts that it has in common, or the part for a form of answer."""
    return files("wardround").joinpath(f"{FOLDER}/{name}.md.jinja").read_text(encoding="utf-8")


def plain(text: Any) -> str:
    """A name from somebody's file, so that it can break neither a table nor a page."""
    escaped = " ".join(str(text).split())
    for mark in ("\\", "|", "`", "<", "*", "_", "["):
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def _estimate(figure: Mapping[str, Any] | None, metric: str = SHARE, in_units: bool = False) -> str:
    """`metric` says where an interval is cut off. Numbers in units of their own have so many digits that four
    count."""
    value = figure.get("mean", figure.get("value")) if figure else None
    if figure is None or value is None:
        return UNKNOWN
    form = ".4g" if in_units else ".3f"
    if not figure.get("interval"):
        return f"{value:{form}}"
    low, high = METRIC_FACTS[metric].within(figure["interval"]) if metric else figure["interval"]
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def _coverage(coverage: float | Mapping[str, float | None] | None) -> str:
    """Of findings the mean, and how far they are apart."""
    if not isinstance(coverage, Mapping):
        return UNKNOWN if coverage is None else f"{coverage:.3f}"
    known = [share for share in coverage.values() if share is not None]
    return f"{sum(known) / len(known):.3f} ({min(known):.3f} to {max(known):.3f} by finding)" if known else UNKNOWN
