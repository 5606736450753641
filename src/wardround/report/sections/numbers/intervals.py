"""How sure the models of a number are: prediction intervals and their coverage, the spread of passes, and referral."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.phrases import drawn_up_to
from wardround.report.render.figures import Drawing
from wardround.report.render.style import figure, legend, looks, name_rows, offset
from wardround.report.render.table import (
    CI,
    Table,
    count_text,
    limits,
    listed,
    make_table,
    percent,
    whole,
    without_empty,
)
from wardround.report.section import Section
from wardround.uncertainty.decision import DOUBT

MOST_ARMS = 12  # with marks of their own
MOST_SITES = 20
METHODS = {
    "none": "one prediction of each row",
    "dropout": "passes with dropout",
    "laplace": "passes by Laplace's approximation at the last layer",
    "swag": "networks drawn around the models of late rounds (SWAG)",
    "ensemble": "models of several seeds as an ensemble",
}
Summary = Mapping[str, Any]  # what results.json has of the uncertainty of an arm


def shown_arm(evidence: Evidence) -> str:
    """The one that sentences speak of first."""
    arms = evidence.uncertainty
    return evidence.main_arm if evidence.main_arm in arms else next(iter(arms))


def headlines(evidence: Evidence) -> tuple[Headline, Headline]:
    """What is followed as rows are referred."""
    first, second = evidence.task.referral_metrics
    return evidence.headline_for(first), evidence.headline_for(second)


def in_units(evidence: Evidence, value: float) -> str:
    return f"{evidence.in_units(value)} {evidence.unit}".rstrip()


def interval_sentences(evidence: Evidence) -> list[str]:
    if evidence.deployed:
        return [
            "How sure the model is, each hospital can know: a bundle that is made there has prediction intervals from "
            "the hospital's own validation rows. Nothing of that left it."
        ]
    arms, arm = evidence.uncertainty, shown_arm(evidence)
    summary = arms[arm]
    sentences = [
        _methods(arms),
        _coverage(evidence, arm, summary),
        _without_interval(arm, summary),
        _low_coverage(arm, summary),
        _spread(evidence, arms),
        _referred(evidence, arm, summary),
        _errors(arm, summary),
    ]
    return [sentence for sentence in sentences if sentence]


def _methods(arms: Mapping[str, Summary]) -> str:
    by_method = grouped(((summary["method"], summary["passes"]), name) for name, summary in arms.items())
    methods = [
        f"{listed(names)}: {METHODS[method] if method == 'none' else f'{passes} {METHODS[method]}'}"
        for (method, passes), names in by_method.items()
    ]
    return (
        f"What this stands on: {'; '.join(methods)}. All that was chosen was chosen on validation rows: intervals and "
        "cuts at each site on its own. All that is told here is of test rows."
    )


def _coverage(evidence: Evidence, arm: str, summary: Summary) -> str:
    intervals = summary["intervals"]
    covered, asked = intervals["coverage"], f"{100 * (1 - intervals['alpha']):g} %"
    if covered["mean"] is None:
        return ""
    interval = ""
    if covered["interval"] is not None:
        low, high = covered["interval"]
        interval = f"95 % CI {100 * low:.1f} to {100 * high:.1f}; "
    return (
        f"Prediction intervals: around each predicted {evidence.task.names[0]} lies an interval that should hold the "
        f"outcome in {asked} of rows, or a little more with few validation rows. In {arm}, "
        f"{100 * covered['mean']:.1f} % of test rows lie within theirs ({interval}{100 * intervals['expected']:.1f} % "
        f"are to be expected). An interval is {in_units(evidence, intervals['width'])} wide on average."
    )


def _without_interval(arm: str, summary: Summary) -> str:
    reasons = [f"{site}: {entry['why']}" for site, entry in summary["intervals"]["sites"].items() if entry["why"]]
    return f"No interval in {arm} at {'; at '.join(reasons)}." if reasons else ""


def _low_coverage(arm: str, summary: Summary) -> str:
    low = [
        f"{site} ({100 * entry['conformal_coverage']:.0f} %, expected {_percent_range(entry['expected'])} %)"
        for site, entry in summary["intervals"]["sites"].items()
        if entry["conformal_coverage"] is not None
        and entry["expected"][0] is not None
        and entry["conformal_coverage"] < entry["expected"][0]
    ]
    if not low:
        return ""
    return f"Below what chance explains in {arm}: {listed(low)}. There, test patients differ from validation patients."


def _spread(evidence: Evidence, arms: Mapping[str, Summary]) -> str:
    known = {name: summary["parts"]["epistemic"] for name, summary in arms.items()}
    parts = [f"{in_units(evidence, value)} in {name}" for name, value in known.items() if value is not None]
    if not parts:
        return ""
    return (
        f"Passes disagree about a row by {listed(parts)} (one standard deviation, on average over rows). That is how "
        "far more training rows could move a prediction, and not how far it is from the outcome: the interval is."
    )


def _referred(evidence: Evidence, arm: str, summary: Summary) -> str:
    if summary["referral"] is None:
        return (
            f"In {arm} all rows of a hospital have intervals of the same width, so that no row is less certain than "
            "another, and none is referred for it. Passes (dropout, laplace, swag, an ensemble) would tell them apart."
        )
    at = summary["referral"]["at"]
    by = "the width of its interval" if summary["method"] == "none" else "the disagreement of its passes"
    changes = [_change(headline, at["figures"][headline.metric]) for headline in headlines(evidence)]
    rest = f" On the rest, {'; '.join(filter(None, changes))}." if any(changes) else ""
    return (
        f"If a clinician takes over the least certain rows, by {by}: cuts for {100 * at['target']:.0f} % of validation "
        f"rows refer {100 * at['reasons'][DOUBT.code]:.0f} % of the test rows in {arm}.{rest} The model is no better "
        "for it: it is left with the easier rows."
    )


def _change(headline: Headline, entry: Mapping[str, Any]) -> str:
    before, after, difference = entry["all"]["mean"], entry["kept"]["mean"], entry["difference"]
    measure = headline.measure
    if before is None or after is None or difference["difference"] is None:
        return ""
    interval = ""
    if difference["interval"] is not None:
        low, high = difference["interval"]
        interval = (
            f", 95 % CI {measure.difference(low, with_unit=False)} to {measure.difference(high, with_unit=False)}"
        )
        interval += ", which chance can explain" if low <= 0 <= high else ""
    change = measure.difference(difference["difference"])
    return f"the {headline.word} goes from {headline.shown(before)} to {headline.text(after)} ({change}{interval})"


def _errors(arm: str, summary: Summary) -> str:
    correlation = summary["errors"]["correlation"] if summary["errors"] else None
    if correlation is None or correlation["mean"] is None:
        return ""
    value, (low, high) = correlation["mean"], correlation["interval"] or (None, None)
    interval = "" if low is None or high is None else f", 95 % CI {low:.2f} to {high:.2f}"
    clearly = value > 0 if low is None else low > 0
    words = "are farther from the outcome" if clearly else "are not clearly farther from the outcome"
    return (
        f"Is it uncertain where it is wrong? In {arm}, less certain predictions {words} than others (rank correlation "
        f"of uncertainty and absolute error {value:.2f}{interval}; 0 is none, 1 a perfect order)."
    )


def _percent_range(band: list[float | None]) -> str | None:
    low, high = band
    return None if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f}"


def interval_table(evidence: Evidence) -> Table | None:
    rows = []
    for name, summary in evidence.uncertainty.items():
        intervals, method = summary["intervals"], summary["method"]
        source = "one prediction" if method == "none" else f"{method}, {summary['passes']}"
        covered = intervals["coverage"]
        shares = [covered["mean"], *limits(covered["interval"]), intervals["expected"]]
        rows.append([name, source, *shares, intervals["width"], summary["parts"]["epistemic"]])
    if not rows:
        return None
    return without_empty(
        make_table(
            "intervals",
            "Prediction intervals",
            {
                "arm": None,
                "from passes": None,
                **dict.fromkeys(("hold the outcome, %", *CI, "expected, %"), percent),
                f"mean width{_of_unit(evidence)}": evidence.in_units,
                f"spread of passes{_of_unit(evidence)}": evidence.in_units,
            },
            rows,
            "Test rows of all sites that have an interval, each by the cut of its own site, with the 95 % CI. "
            "Expected: ceil((n + 1)(1 - alpha)) / (n + 1) with n validation rows at a site, on average over test rows. "
            "Spread: the standard deviation over passes.",
        )
    )


def intervals_at_sites_table(evidence: Evidence) -> Table | None:
    rows = [
        [
            name,
            site,
            *(None if entry[side] is None else whole(entry[side]) for side in ("validation", "test")),
            entry["coverage"]["mean"],
            *limits(entry["coverage"]["interval"]),
            _percent_range(entry["expected"]),
            entry["width"],
            None if summary["referral"] is None else summary["referral"]["at"]["sites"].get(site),
        ]
        for name, summary in evidence.uncertainty.items()
        for site, entry in summary["intervals"]["sites"].items()
    ]
    if not rows:
        return None
    return without_empty(
        make_table(
            "intervals-at-sites",
            "Prediction intervals at each site",
            {
                "arm": None,
                "site": None,
                **dict.fromkeys(("validation rows", "test rows"), count_text),
                **dict.fromkeys(("hold the outcome, %", *CI), percent),
                "expected, %": None,
                f"mean width{_of_unit(evidence)}": evidence.in_units,
                "referred, %": percent,
            },
            rows,
            "With the 95 % CI. Expected: where 99 of 100 runs would lie if validation and test patients were alike; a "
            "patient counts once. A site with too few validation rows has no interval.",
        )
    )


def number_referral_table(evidence: Evidence) -> Table | None:
    first, second = headlines(evidence)
    rows = []
    for name, summary in evidence.uncertainty.items():
        if summary["referral"] is not None:
            at = summary["referral"]["at"]
            entry, other = at["figures"][first.metric], at["figures"][second.metric]
            difference = entry["difference"]
            change = [difference["difference"], *limits(difference["interval"])]
            both = [entry["all"]["mean"], entry["kept"]["mean"], *change, other["all"]["mean"], other["kept"]["mean"]]
            rows.append([name, at["referred"], *both])
    if not rows:
        return None
    return make_table(
        "number-referral",
        "What is left when the least certain rows are referred",
        {
            "arm": None,
            "referred, %": percent,
            f"{first.above()} on all": first.shown,
            "on the rest": first.shown,
            **dict.fromkeys(("difference", *CI), first.difference),
            f"{second.above()} on all": second.shown,
            f"{second.above()} on rest": second.shown,
        },
        rows,
        "Referred: test rows above a cut that each site's validation rows have chosen. Difference: the rest less all "
        "rows, with the 95 % CI.",
    )


def _of_unit(evidence: Evidence) -> str:
    return f", {evidence.unit}" if evidence.unit else ""


def _drawn(evidence: Evidence) -> dict[str, Summary]:
    return dict(list(evidence.uncertainty.items())[:MOST_ARMS])


def interval_coverage(evidence: Evidence) -> Figure | None:
    """How often intervals hold the outcome at each site, beside where chance would put it, and how wide they are."""
    arms = _drawn(evidence)
    sites = list(dict.fromkeys(site for summary in arms.values() for site in summary["intervals"]["sites"]))
    if not arms or len(sites) > MOST_SITES:
        return None
    drawn = figure(1.3 + len(sites) * max(0.42, 0.14 * len(arms)))
    left, right = drawn.subplots(1, 2, sharey=True)
    for share in {100 * (1 - summary["intervals"]["alpha"]) for summary in arms.values()}:
        left.axvline(share, color="black", linewidth=0.8, linestyle="--", label="asked for")
    _draw_expected(left, arms, sites)
    for number, (name, summary) in enumerate(arms.items()):
        look = {"color": looks(evidence, name)["color"]}
        _draw_sites((left, right), name, summary, sites, look, offset(number, len(arms), 0.76))
    without = {
        site for summary in arms.values() for site, entry in summary["intervals"]["sites"].items() if entry["why"]
    }
    name_rows(left, [f"{site} (few rows)" if site in without else site for site in sites])
    left.set_xlabel("test rows within their interval, %")
    right.set_xlim(left=0)
    right.set_xlabel(f"mean width{_of_unit(evidence)}")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _draw_sites(
    panels: tuple[Any, Any], name: str, summary: Summary, sites: list[str], look: Mapping[str, Any], aside: float
) -> None:
    (left, right), label = panels, name
    for place, site in enumerate(sites):
        entry = summary["intervals"]["sites"].get(site)
        if entry is None or entry["coverage"]["mean"] is None:
            continue
        covered, y = entry["coverage"], place + aside
        if covered["interval"] is not None:
            left.plot([100 * end for end in covered["interval"]], [y, y], linewidth=1, **look)
        left.plot(100 * covered["mean"], y, "o", markersize=4.5, linestyle="none", label=label, **look)
        right.plot([0, entry["width"]], [y, y], linewidth=2.4, **look)
        label = "_"  # named once


def _draw_expected(axes: Any, arms: Mapping[str, Summary], sites: list[str]) -> None:
    """The bands of all arms at a site as one: mostly they have the same rows, and so the same band."""
    label = "expected in 99 of 100 runs"
    for place, site in enumerate(sites):
        entries = [summary["intervals"]["sites"].get(site) for summary in arms.values()]
        known = [entry["expected"] for entry in entries if entry is not None and entry["expected"][0] is not None]
        if known:
            low, high = min(band[0] for band in known), max(band[1] for band in known)
            axes.barh(place, 100 * (high - low), 0.86, left=100 * low, color="gainsboro", label=label, zorder=0)
            label = "_"


def number_referral(evidence: Evidence) -> Figure | None:
    arms = {name: summary["referral"] for name, summary in _drawn(evidence).items() if summary["referral"] is not None}
    if not arms:
        return None
    drawn = figure(3.2)
    panels = drawn.subplots(1, 2)
    for axes, headline in zip(panels, headlines(evidence), strict=True):
        for name, summary in arms.items():
            curve = summary["curve"]
            known = [(x, y) for x, y in zip(curve["share"], curve[headline.metric], strict=True) if y is not None]
            x, y = [100 * a for a, _ in known], [headline.scale * b for _, b in known]
            axes.plot(x, y, linewidth=1.4, label=name if axes is panels[0] else None, **looks(evidence, name))
        for share in {summary["at"]["target"] for summary in arms.values()}:
            axes.axvline(100 * share, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel="rows referred, %", ylabel=f"{headline.above()} on the rest")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def not_drawn(evidence: Evidence) -> list[str]:
    lines = drawn_up_to(MOST_ARMS, len(evidence.uncertainty), "Arms with their uncertainty")
    return [*lines, *drawn_up_to(MOST_SITES, len(evidence.sites), "Sites with their uncertainty")]


PAGE = """
<section id="intervals"><h2>How sure is it?</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("interval-coverage") }}{{ show("intervals") }}{{ draw("number-referral") }}{{ show("number-referral") }}
{% if "intervals-at-sites" in tables %}
{% call fold("Every arm at every site: coverage, width, referral") %}
{{ show("intervals-at-sites") }}{% endcall %}{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "intervals",
    "How sure?",
    {"sentences": interval_sentences},
    tables=(interval_table, intervals_at_sites_table, number_referral_table),
    figures={
        "interval-coverage": Drawing(
            "How often intervals hold the outcome, and how wide they are",
            "Each site's own test rows, by intervals from its own validation rows, with the 95 % CI. Grey: where 99 of "
            "100 runs would lie if both kinds of patients were alike.",
            interval_coverage,
            tall=True,
        ),
        "number-referral": Drawing(
            "Leaving the least certain rows to a clinician",
            "Test rows of all sites, the least certain first. Dotted: the share that the study asks for. Far to the "
            "right few rows are left.",
            number_referral,
        ),
    },
    remarks={"limits": not_drawn},
)
