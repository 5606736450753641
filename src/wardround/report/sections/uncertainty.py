"""How sure the models are: calibration, prediction sets, referral, and images that they should not know."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.phrases import drawn_up_to
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    COLOURS,
    figure,
    heat,
    legend,
    looks,
    name_rows,
    offset,
    single_axes,
    small_panels,
)
from wardround.report.render.table import (
    CI,
    FEWEST,
    Table,
    count_text,
    decimals,
    limits,
    listed,
    make_table,
    percent,
    points,
    whole,
    without_empty,
)
from wardround.report.section import Section
from wardround.uncertainty.decision import DOUBT, NO_ANSWER_FITS, PREDICTION_ADDED
from wardround.uncertainty.referral import LEAST_ROWS

MOST_ARMS = 12  # with a panel or a mark of their own
MOST_SITES = 20
METHODS = {
    "none": "one score of each row",
    "dropout": "passes with dropout",
    "laplace": "passes by Laplace's approximation at the last layer",
    "swag": "networks drawn around the models of late rounds (SWAG)",
    "ensemble": "models of several seeds as an ensemble",
}
SHIFTED = {
    "inverted": "inverted images",
    "noise": "images of noise",
    "upside down": "images upside down",
    "limb": "drawn limbs",
}
MEASURES = {"total": "entropy of the score", "epistemic": "disagreement of passes", "spread": "spread of passes"}
NOTICED = (  # how unfamiliar images fare by the AUC of telling them from usual ones: from, below
    ("are noticed in", 0.8, 1.01),
    ("are sometimes noticed in", 0.6, 0.8),
    ("are not noticed in", 0.4, 0.6),
    ("are taken with more certainty than the usual ones in", -0.01, 0.4),
)
CALIBRATION = dict.fromkeys(("scores off by, points", "with temperature", "by chance"), percent)
OFF = "Scores off by: mean distance of score and share in tenths of the rows (ECE), in points of a hundred. "
Summary = Mapping[str, Any]  # what results.json has of the uncertainty of an arm


def shown_arm(evidence: Evidence) -> str:
    """The one that sentences speak of first: the main arm, or one that has several passes."""
    arms = evidence.uncertainty
    if evidence.main_arm in arms:
        return evidence.main_arm
    return next((name for name, summary in arms.items() if summary["method"] != "none"), next(iter(arms)))


def has_cuts(summary: Summary, site: str) -> bool:
    """Whether a bundle for the site would have sets and a cut for referral; from fewer rows it chooses none."""
    rows = summary["calibration"]["sites"][site]["validation"]
    return rows is not None and rows >= LEAST_ROWS


def uncertainty_sentences(evidence: Evidence) -> list[str]:
    arms = evidence.uncertainty
    if evidence.deployed and evidence.study.get("uncertainty"):
        return [
            "How sure the model is, each hospital can know: a bundle that is made there has a temperature, sets of "
            "answers and a cut for referral from the hospital's own validation rows. Nothing of that left it."
        ]
    arm = shown_arm(evidence)
    sentences = [
        _methods(arms),
        _calibrated(arm, arms),
        _sets(evidence, arm, arms[arm]),
        _referred(evidence, arm, arms[arm]),
        _without_cuts(arm, arms[arm]),
        _others(evidence, arm),
        _errors(arm, arms[arm]["errors"]),
        *_unfamiliar(arms),
    ]
    return [sentence for sentence in sentences if sentence]


def _methods(arms: Mapping[str, Summary]) -> str:
    by_method = grouped(((summary["method"], summary["passes"]), name) for name, summary in arms.items())
    methods = [
        f"{listed(names)}: {METHODS[method] if method == 'none' else f'{passes} {METHODS[method]}'}"
        for (method, passes), names in by_method.items()
    ]
    return (
        f"What this stands on: {'; '.join(methods)}. All that was chosen was chosen on validation rows: temperatures, "
        "sets and cuts at each site on its own. All that is told here is of test rows."
    )


def _calibrated(arm: str, arms: Mapping[str, Summary]) -> str:
    calibration = arms[arm]["calibration"]
    before, after, chance = (100 * value for value in _calibration(calibration))
    sites = calibration["sites"]
    text = (
        f"Does a score come true? In {arm}, scores are off by {before:.1f} points on average. With as many rows, "
        f"scores that are exactly right would be off by {chance:.1f} by chance."
    )
    unfitted = [site for site, entry in sites.items() if entry["temperature"] is None]
    moved = sum(entry["changed"] > 0 for entry in sites.values())
    if moved:
        where = (
            f"{moved} of {len(sites)} sites" if moved < len(sites) else "each site" if len(sites) > 1 else "the site"
        )
        text += f" With a temperature at {where} it is {after:.1f}."
    elif len(unfitted) < len(sites):
        text += " That another temperature than 1 would be better is shown at no site, so none was used."
    worse = [
        site
        for site, entry in sites.items()
        if entry["temperature"] is not None and entry["ece_after"] > entry["ece"] + entry["by_chance"] / 2
    ]
    if worse:
        text += f" At {listed(worse)} the temperature made it worse: its validation rows were not like its test rows."
    if unfitted:
        text += f" {listed(unfitted)} had too few validation patients for one."
    return text


def _sets(evidence: Evidence, arm: str, summary: Summary) -> str:
    sets = summary["sets"]
    positive = sets["coverage_positive"]
    have = "have the finding" if evidence.findings else f"are of class {evidence.classes[1]}"
    among = "" if positive is None else f" ({100 * positive:.0f} % among those who {have})"
    text = (
        "Sets of answers: each row gets all answers that its score does not rule out, and its call, so that "
        f"{100 * (1 - sets['alpha']):.0f} % of sets or more should hold the right one. In {arm}, "
        f"{100 * sets['coverage']:.1f} % do{among}. One answer is left in {100 * sets['single']:.0f} % of sets, and "
        f"that is the call; several in {100 * sets['multiple']:.0f} %: there the score alone does not settle it."
    )
    added = sets["prediction_added"] + sets["empty"]
    if added:
        text += (
            f" In {100 * added:.1f} % of sets the score would have ruled out the call itself; it was added, and the "
            "row is referred."
        )
    if sets["no_cut"]:
        least = math.ceil(1 / sets["alpha"] - 1 - 1e-9)
        of_what = "site by site, finding by finding, label by label" if evidence.findings else "site by site, by label"
        text += (
            f" In {100 * sets['no_cut']:.0f} % of all cases ({of_what}) fewer "
            f"than {least} validation rows had the label, so that it could never be ruled out."
        )
    low = _low_coverage(summary)
    if low:
        text += (
            f" Below what chance explains, before calls were added: {listed(low)}. There, test patients differ from "
            "validation patients."
        )
    return text


def _low_coverage(summary: Summary) -> list[str]:
    sites = []
    for site, entry in summary["sets"]["sites"].items():
        (low, high), coverage = entry["expected"], entry["conformal_coverage"]
        if has_cuts(summary, site) and low is not None and coverage is not None and coverage < low:
            sites.append(f"{site} ({100 * coverage:.0f} %, expected {_percent_range(low, high)} %)")
    return sites


def _referred(evidence: Evidence, arm: str, summary: Summary) -> str:
    at = summary["referral"]["at"]
    changes = [_change(headline, at["figures"][headline.metric]) for headline in evidence.referral_headlines]
    added = ""
    if at["reasons"][PREDICTION_ADDED.code] or at["reasons"][NO_ANSWER_FITS.code]:
        added = f"; with rows whose call had to be added to its set it is {100 * at['referred']:.0f} %"
    rest = f" On the rest, {'; '.join(filter(None, changes))}." if any(changes) else ""
    return (
        f"If a clinician takes over the least clear rows: cuts for {100 * at['target']:.0f} % of validation rows "
        f"refer {100 * at['reasons'][DOUBT.code]:.0f} % of the test rows in {arm}{added}.{rest} The model is no "
        "better for it: it is left with the easier rows."
    )


def _change(headline: Headline, entry: Mapping[str, Any]) -> str:
    before, after, difference = entry["all"]["mean"], entry["kept"]["mean"], entry["difference"]
    if before is None or after is None or difference["difference"] is None:
        return ""
    measure, numbers = headline.measure, f"{headline.shown(before)} to {headline.text(after)}"
    interval = ""
    if difference["interval"] is not None:
        low, high = difference["interval"]
        interval = (
            f", 95 % CI {measure.difference(low, with_unit=False)} to {measure.difference(high, with_unit=False)}"
        )
        interval += ", which chance can explain" if low <= 0 <= high else ""
    return f"{headline.word} goes from {numbers} ({measure.difference(difference['difference'])}{interval})"


def _without_cuts(arm: str, summary: Summary) -> str:
    few = [site for site in summary["calibration"]["sites"] if not has_cuts(summary, site)]
    if not few:
        return ""
    one, many = ("", "a bundle made there has", "refers", "its"), (" each", "bundles made there have", "refer", "their")
    each, bundles, refer, their = one if len(few) == 1 else many
    return (
        f"In {arm}, {listed(few)} had fewer than {LEAST_ROWS} validation rows{each}: {bundles} no sets, and {refer} "
        "only rows that are far or unlike training in another way. The figures over all sites have "
        f"{their} rows in them, by cuts that stand on very little; the table of sites leaves them out."
    )


def _others(evidence: Evidence, arm: str) -> str:
    metric, word = evidence.referral_headlines[0].metric, evidence.referral_headlines[0].word
    by_verdict = grouped(
        (summary["referral"]["at"]["figures"][metric]["difference"]["verdict"], name)
        for name, summary in evidence.uncertainty.items()
        if name != arm
    )
    verbs = {"gains": "rises", "loses": "falls", "no evidence": "does not clearly change"}
    parts = [
        f"in {listed(by_verdict[verdict])} {word} {verb}" for verdict, verb in verbs.items() if verdict in by_verdict
    ]
    return f"The same elsewhere: {'; '.join(parts)}." if parts else ""


def _errors(arm: str, errors: Mapping[str, Any]) -> str:
    if errors["hits"] is None or errors["errors"] is None:
        return ""
    than, auc = "higher" if errors["errors"] > errors["hits"] else "not higher", errors["auc"]
    text = (
        f"Is it uncertain where it is wrong? In {arm} doubt is {than} on wrong calls than on right ones: "
        f"{errors['errors']:.3f} and {errors['hits']:.3f} bits, where 1 is a coin that is tossed."
    )
    if auc["mean"] is not None:
        interval = ""
        if auc["interval"] is not None:
            interval = f", 95 % CI {auc['interval'][0]:.2f} to {auc['interval'][1]:.2f}"
        text += f" Of a wrong and a right call it points at the wrong one in {100 * auc['mean']:.0f} of 100 pairs"
        text += f" (AUC {auc['mean']:.2f}{interval})."
    return text


def _unfamiliar(arms: Mapping[str, Summary]) -> list[str]:
    """Which changed images are noticed, measure by measure. None of these is chosen here: on which one a hospital
    relies has to be settled before it sees such images."""
    known = {name: summary["shifted"] for name, summary in arms.items() if summary["shifted"]}
    if not known:
        return []
    sentences = [
        "Does it notice images that are no radiographs of this kind? The same test images were inverted, turned upside "
        "down, or replaced by noise or by a drawn limb. In a model that notices, uncertainty is higher on these."
    ]
    for measure, text in MEASURES.items():
        kinds = grouped(
            (kind, (name, figures[measure]))
            for name, shifted in known.items()
            for kind, figures in shifted.items()
            if figures[measure] is not None
        )
        if kinds:
            parts = [f"{SHIFTED.get(kind, kind)} {_noticed(dict(values))}" for kind, values in kinds.items()]
            sentences.append(f"By the {text}: {'; '.join(parts)}.")
    return sentences


def _noticed(values: Mapping[str, float]) -> str:
    """`are noticed in fedavg (0.98), are not noticed in local (0.55)`."""
    parts = []
    for verdict, low, high in NOTICED:
        names = [f"{name} ({value:.2f})" for name, value in values.items() if low <= round(value, 2) < high]
        if names:
            parts.append(f"{verdict} {listed(names)}")
    return ", ".join(parts)


def uncertainty_table(evidence: Evidence) -> Table:
    rows = []
    for name, summary in evidence.uncertainty.items():
        sets, method = summary["sets"], summary["method"]
        shares = [sets["coverage"], _among_positive(sets), sets["single"], sets["multiple"]]
        added = None if sets["empty"] is None else sets["prediction_added"] + sets["empty"]
        source = "one score" if method == "none" else f"{method}, {summary['passes']}"
        rows.append([name, source, *_calibration(summary["calibration"]), *shares, added])
    columns = ("sets hold, %", _positive_column(evidence), "one answer, %", "several, %", "call added, %")
    return without_empty(
        make_table(
            "uncertainty",
            "Whether scores come true, and sets of answers",
            {"arm": None, "from": None, **CALIBRATION, **dict.fromkeys(columns, percent)},
            rows,
            f"{OFF}By chance: what scores that are exactly right would show with so few rows. Sets: per cent of test "
            "rows "
            "whose set holds the right answer; all sites together, by each site's own cuts. Call added: the score "
            "would "
            "have ruled out the call itself; such rows are referred.",
        )
    )


def referral_table(evidence: Evidence) -> Table:
    (headline, second), rows = evidence.referral_headlines, []
    for name, summary in evidence.uncertainty.items():
        at, errors = summary["referral"]["at"], summary["errors"]
        entry, other = at["figures"][headline.metric], at["figures"][second.metric]
        difference, auc = entry["difference"], errors["auc"]
        change = [
            entry["all"]["mean"],
            entry["kept"]["mean"],
            difference["difference"],
            *limits(difference["interval"]),
        ]
        others = [other["all"]["mean"], other["kept"]["mean"], errors["hits"], errors["errors"]]
        rows.append([name, at["referred"], *change, *others, auc["mean"], *limits(auc["interval"])])
    doubt_columns = ("doubt when right", "when wrong", "AUC of telling wrong", "from ", "to ")
    note = (
        "Referred: test rows above a cut that each site's validation rows have chosen, and those whose call had to be "
        "added to its set. Points: the rest less all rows, "
        f"with the 95 % CI.{headline.point} Doubt in bits; AUC of telling wrong calls from right ones by doubt. "
        "Scores are means over passes, so that figures on all rows may differ a little from those above."
    )
    if evidence.own_models:
        note += (
            f" AUC is the mean of the sites' own in every arm, because in {listed(evidence.own_models)} sites predict "
            "with models of their own."
        )
    return make_table(
        "referral",
        "What is left when the least clear rows are referred, and whether doubt points at errors",
        {
            "arm": None,
            "referred, %": percent,
            headline.above(f"{headline.word} on all"): headline.shown,
            headline.above("on the rest"): headline.shown,
            **dict.fromkeys(("points", *CI), points),
            **dict.fromkeys((f"{second.above()} on all", f"{second.above()} on rest"), second.shown),
            **dict.fromkeys(doubt_columns, decimals),
        },
        rows,
        note,
    )


def uncertainty_at_sites_table(evidence: Evidence) -> Table:
    rows = []
    for name, summary in evidence.uncertainty.items():
        for site, entry in summary["calibration"]["sites"].items():
            sets = summary["sets"]["sites"][site]
            shares = [_among_positive(sets), sets["single"], summary["referral"]["at"]["sites"].get(site)]
            at_cuts = [sets["coverage"], sets["conformal_coverage"], _percent_range(*sets["expected"]), *shares]
            counts = [None if count is None else whole(count) for count in (entry["validation"], entry["test"])]
            calibration = [entry["temperature"], *_calibration(entry)]
            usable = has_cuts(summary, site)
            rows.append([name, site, *counts, *calibration, *(at_cuts if usable else [None] * len(at_cuts))])
    shares_of = (_positive_column(evidence), "one answer, %", "referred, %")
    return without_empty(
        make_table(
            "uncertainty-at-sites",
            "How sure it is at each site",
            {
                "arm": None,
                "site": None,
                **dict.fromkeys(("validation rows", "test rows"), count_text),
                "temperature": "{:.2f}".format,
                **CALIBRATION,
                **dict.fromkeys(("sets hold, %", "by cuts alone, %"), percent),
                "expected, %": None,
                **dict.fromkeys(shares_of, percent),
            },
            rows,
            f"{OFF}Temperature: above 1 the model was too sure of itself. By cuts alone: before calls were added to "
            "sets "
            "that lacked them. Expected of that: where 99 of 100 runs would lie if validation and test patients were "
            "alike; a patient counts once."
            f" Sets and referral are left out where a site has fewer than {LEAST_ROWS} validation rows, as its "
            "bundle does.",
        )
    )


def uncertainty_of_findings_table(evidence: Evidence) -> Table | None:
    if not evidence.uncertainty or not evidence.findings:
        return None
    arm = shown_arm(evidence)
    summary, rows = evidence.uncertainty[arm], []
    for finding, calibration in summary["calibration"]["findings"].items():
        sets, errors = summary["sets"]["findings"][finding], summary["errors"]["findings"][finding]
        shares = [sets["coverage"], _among_positive(sets), sets["single"]]
        positives = evidence.arms[arm]["findings"][finding]["positives"]
        small = positives is None or 0 < positives < FEWEST
        doubt = [None] * 3 if small else [errors["hits"], errors["errors"], errors["auc"]["mean"]]
        parts = [summary["parts"]["findings"][finding][name] for name in ("total", "epistemic")]
        rows.append([finding, *_calibration(calibration), *shares, *doubt, *parts])
    shares_of = ("sets hold, %", _positive_column(evidence), "one answer, %")
    in_bits = ("doubt when right", "when wrong", "AUC of telling wrong", "total, bits", "epistemic")
    return without_empty(
        make_table(
            "uncertainty-of-findings",
            f"How sure {arm} is of each finding",
            {"finding": None, **CALIBRATION, **dict.fromkeys(shares_of, percent), **dict.fromkeys(in_bits, decimals)},
            rows,
            f"All sites' test rows. Withheld where fewer than {FEWEST} of them have the finding.",
        )
    )


def unfamiliar_image_table(evidence: Evidence) -> Table:
    rows = [
        [name, kind, figures["images"], *(figures[measure] for measure in MEASURES)]
        for name, summary in evidence.uncertainty.items()
        for kind, figures in (summary["shifted"] or {}).items()
    ]
    by_measure = dict.fromkeys((f"by {text}" for text in MEASURES.values()), decimals)
    return without_empty(
        make_table(
            "strange-images",
            "Images that the model should not know",
            {"arm": None, "images": None, "how many": str, **by_measure},
            rows,
            "AUC of telling changed test images from the same images unchanged, with the first seed: 1 is always, "
            "0.5 a "
            "coin; below 0.5 the model is surer of the changed ones.",
        )
    )


def _percent_range(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f}"


def _calibration(entry: Mapping[str, Any]) -> list[Any]:
    return [entry["ece"], entry["ece_after"], entry["by_chance"]]


def _among_positive(sets: Mapping[str, Any]) -> float | None:
    """Of those who have the finding, unless they are so few that the share would point at one of them."""
    return None if not sets["positives"] or sets["positives"] < FEWEST else sets["coverage_positive"]


def _positive_column(evidence: Evidence) -> str:
    if evidence.findings:
        return "of those with it, %"
    return f"of {evidence.classes[1]}, %" if len(evidence.classes) == 2 else "of the ill, %"


def _drawn(evidence: Evidence) -> dict[str, Summary]:
    return dict(list(evidence.uncertainty.items())[:MOST_ARMS])


def reliability(evidence: Evidence) -> Figure | None:
    curves = {name: summary["calibration"]["reliability"] for name, summary in _drawn(evidence).items()}
    if not curves:
        return None
    tenths = [tenth for curve in curves.values() for kind in curve.values() for tenth in kind]
    top = 1.05 * max(max(tenth["score"], tenth["positive"]) for tenth in tenths)
    columns = min(len(curves), 4)
    drawn, panels = small_panels(len(curves), columns, 1.65 if columns > 2 else 2.6, below=0.72)
    kinds = {"before": ("as the model says it", COLOURS[1], "s"), "after": ("with temperature", COLOURS[0], "o")}
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        axes.plot([0, top], [0, top], color="grey", linewidth=0.8)
        for kind, (title, colour, marker) in kinds.items():
            x, y = ([tenth[key] for tenth in curve[kind]] for key in ("score", "positive"))
            axes.plot(x, y, marker=marker, markersize=3.5, linewidth=1, color=colour, label=title)
        axes.set(xlim=(0, top), ylim=(0, top))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            axis.set_major_formatter("{x:g}")
        axes.set_title(name, fontsize=8, pad=3)
    width, height = drawn.get_size_inches()
    drawn.text(0.5, 0.27 / height, "mean score of a tenth of the rows", ha="center", va="bottom", fontsize=9)
    drawn.text(0.04 / width, 0.5, "share in which it came true", rotation=90, ha="left", va="center", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="lower center", ncols=2, fontsize=8, borderpad=0)
    return drawn


def coverage(evidence: Evidence) -> Figure | None:
    """How often conformal sets hold the right answer at each site, beside where chance would put it. What the call adds
    to them is left out: chance says nothing of it. A site with so few
    validation rows that its bundle would have no sets has a hollow mark."""
    arms = _drawn(evidence)
    sites = list(dict.fromkeys(site for summary in arms.values() for site in summary["sets"]["sites"]))
    if not arms or len(sites) > MOST_SITES:
        return None
    drawn, axes = single_axes(1.2 + len(sites) * max(0.42, 0.14 * len(arms)))
    for share in {100 * (1 - summary["sets"]["alpha"]) for summary in arms.values()}:
        axes.axvline(share, color="black", linewidth=0.8, linestyle="--", label="asked for")
    _draw_expected(axes, arms, sites)
    for number, name in enumerate(arms):
        colour, aside = looks(evidence, name)["color"], offset(number, len(arms), 0.76)
        _draw_coverage(axes, name, arms[name], sites, colour, aside)
    few = {site for summary in arms.values() for site in summary["sets"]["sites"] if not has_cuts(summary, site)}
    name_rows(axes, [f"{site} (few rows)" if site in few else site for site in sites])
    axes.set_xlabel("test rows whose right answer lies within its cut, %")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _draw_expected(axes: Any, arms: Mapping[str, Summary], sites: list[str]) -> None:
    """The bands of all arms at a site as one: mostly they have the same rows, and so the same band."""
    for place, site in enumerate(sites):
        usable = [summary for summary in arms.values() if site in summary["sets"]["sites"] and has_cuts(summary, site)]
        bands = [summary["sets"]["sites"][site]["expected"] for summary in usable]
        known = [band for band in bands if band[0] is not None]
        if known:
            low, high = min(low for low, _ in known), max(high for _, high in known)
            label = "expected in 99 of 100 runs" if place == 0 else None
            axes.barh(place, 100 * (high - low), 0.86, left=100 * low, color="gainsboro", label=label, zorder=0)


def _draw_coverage(axes: Any, name: str, summary: Summary, sites: list[str], colour: str, aside: float) -> None:
    covered = {site: entry["conformal_coverage"] for site, entry in summary["sets"]["sites"].items()}
    for place, site in enumerate(sites):
        if covered.get(site) is not None:
            inside, label = colour if has_cuts(summary, site) else "white", name if place == 0 else None
            look = {"color": colour, "markerfacecolor": inside, "markersize": 4.5, "linestyle": "none"}
            axes.plot(100 * covered[site], place + aside, "o", label=label, **look)


def referral(evidence: Evidence) -> Figure | None:
    arms = {name: summary["referral"] for name, summary in _drawn(evidence).items()}
    if not arms:
        return None
    drawn = figure(3.2)
    panels = drawn.subplots(1, 2)
    for axes, headline in zip(panels, evidence.referral_headlines, strict=True):
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


def doubt(evidence: Evidence) -> Figure | None:
    """Doubt on right and on wrong calls, and how well it tells them apart."""
    errors = {name: summary["errors"] for name, summary in _drawn(evidence).items()}
    arms = {name: e for name, e in errors.items() if e["errors"] is not None and e["hits"] is not None}
    if not arms:
        return None
    drawn = figure(1.2 + 0.26 * len(arms))
    left, right = drawn.subplots(1, 2, sharey=True)
    kinds = {"hits": ("o", "right calls"), "errors": ("X", "wrong calls")}
    for place, (name, entry) in enumerate(arms.items()):
        colour, auc = looks(evidence, name)["color"], entry["auc"]
        left.plot([entry["hits"], entry["errors"]], [place, place], color="lightgrey", linewidth=2, zorder=1)
        for kind, (marker, title) in kinds.items():
            label = title if place == 0 else None
            left.plot(entry[kind], place, marker, color=colour, markersize=6, label=label, linestyle="none")
        if auc["interval"] is not None:
            right.plot(auc["interval"], [place, place], color=colour, linewidth=1.4)
        if auc["mean"] is not None:
            right.plot(auc["mean"], place, "o", color=colour, markersize=5)
    right.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
    name_rows(left, list(arms))
    left.set_xlabel("mean doubt, bits")
    right.set_xlabel("AUC of telling wrong calls from right ones")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def unfamiliar_images(evidence: Evidence) -> Figure | None:
    shifted = {name: summary["shifted"] for name, summary in _drawn(evidence).items()}
    arms = {name: kinds for name, kinds in shifted.items() if kinds is not None}
    if not arms:
        return None
    kinds = list(next(iter(arms.values())))
    figures = {m: np.array([[arm[kind][m] for kind in kinds] for arm in arms.values()], dtype=float) for m in MEASURES}
    shown = {measure: values for measure, values in figures.items() if not np.isnan(values).all()}
    drawn = figure(1.3 + 0.3 * len(arms))
    panels = np.atleast_1d(drawn.subplots(1, len(shown), sharey=True))
    for axes, (measure, values) in zip(panels, shown.items(), strict=True):
        image = heat(axes, values, "{:.2f}".format, list(arms), kinds)
        image.set_clim(0, 1)
        for text, value in zip(axes.texts, values.flat, strict=True):
            text.set_color("white" if value < 0.5 else "black")  # of the whole scale, not of this panel's
        axes.set_title(f"by {MEASURES[measure]}", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    return drawn


def not_drawn(evidence: Evidence) -> list[str]:
    lines = drawn_up_to(MOST_ARMS, len(evidence.uncertainty), "Arms with their uncertainty")
    return [*lines, *drawn_up_to(MOST_SITES, len(evidence.sites), "Sites with their uncertainty")]


PAGE = """
<section id="sure"><h2>How sure is it?</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("reliability") }}{{ draw("coverage") }}{{ show("uncertainty") }}{{ draw("referral") }}{{ show("referral") }}
{{ draw("doubt") }}{{ draw("strange-images") }}
{% if "strange-images" in tables %}
{% call fold("The same as a table") %}{{ show("strange-images") }}{% endcall %}{% endif %}
{% if "uncertainty-at-sites" in tables %}
{% call fold("Every arm at every site: temperature, calibration, sets, referral") %}
{{ show("uncertainty-at-sites") }}{% endcall %}{% endif %}
{% if "uncertainty-of-findings" in tables %}
{% call fold("Each finding") %}{{ show("uncertainty-of-findings") }}{% endcall %}{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "sure",
    "How sure?",
    {"sentences": uncertainty_sentences},
    tables=(
        uncertainty_table,
        referral_table,
        uncertainty_at_sites_table,
        uncertainty_of_findings_table,
        unfamiliar_image_table,
    ),
    figures={
        "reliability": Drawing(
            "Whether scores come true, before and after temperatures",
            "Tenths of all test rows by score; of findings, all of them together. On the diagonal, scores mean what "
            "they say.",
            reliability,
            tall=True,
        ),
        "coverage": Drawing(
            "How often sets hold the right answer",
            "Each site's own test rows, by cuts from its own validation rows. Grey: where 99 of 100 runs would lie if "
            "both kinds of patients were alike. Calls that were added to sets are left out.",
            coverage,
            tall=True,
        ),
        "referral": Drawing(
            "Leaving the least clear rows to a clinician",
            "Test rows of all sites in the order of doubt. Dotted: the share that the study asks for. Far to the right "
            "few rows are left, and an AUC says little.",
            referral,
        ),
        "doubt": Drawing(
            "Doubt on right and on wrong calls",
            "One bit is a coin that is tossed. On the right, 0.5 means that doubt tells nothing; with 95 % CI.",
            doubt,
        ),
        "strange-images": Drawing(
            "Images that the model should not know",
            "AUC of telling changed test images from the same images unchanged. 1 is always, 0.5 a coin; below it, the "
            "model is surer of the changed ones.",
            unfamiliar_images,
        ),
    },
    remarks={"limits": not_drawn},
)
