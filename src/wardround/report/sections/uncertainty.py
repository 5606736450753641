"""How sure the models are: calibration, prediction sets, referral, and images that they should not know."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from wardround.evaluation.comparisons.compare import in_words
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, figure, heat, legend, looks, name_rows, small_panels
from wardround.report.render.table import (
    FEWEST,
    Format,
    Table,
    count_text,
    decimals,
    limits,
    listed,
    make_table,
    percent,
    points,
    without_empty,
)
from wardround.report.section import Section
from wardround.report.sections.findings import is_small
from wardround.uncertainty.decision import DOUBT, NO_ANSWER_FITS, PREDICTION_ADDED
from wardround.uncertainty.referral import LEAST_ROWS

# AUC from which strange images are told from usual ones, below which they are not, and are even taken for clearer
NOTICED, UNNOTICED, SURER = 0.8, 0.6, 0.4


METHODS = {
    "none": "one score of each row",
    "dropout": "passes with dropout",
    "laplace": "passes by Laplace's approximation at the last layer",
    "ensemble": "models of several seeds as an ensemble",
}


SHIFTED = {
    "inverted": "inverted images",
    "noise": "images of noise",
    "upside down": "images upside down",
    "limb": "drawn limbs",
}


MEASURES = {"total": "entropy of the score", "epistemic": "disagreement of passes", "spread": "spread of passes"}


def shown_arm(evidence: Evidence) -> str:
    """The one that sentences speak of first: the main arm, or one that has several passes."""
    told = evidence.uncertainty
    if evidence.main_arm in told:
        return evidence.main_arm
    return next((name for name, one in told.items() if one["method"] != "none"), next(iter(told)))


def uncertainty_sentences(evidence: Evidence) -> list[str]:
    told = evidence.uncertainty
    if evidence.deployed and evidence.study.get("uncertainty"):
        return [
            "How sure the model is, each hospital can know: a bundle that is made there has a temperature, sets of "
            "answers and a cut for referral from the hospital's own validation rows. Nothing of that left it."
        ]
    if not told:
        return []
    arm = shown_arm(evidence)
    said = [_made(told), _calibrated(arm, told), _sets(evidence, arm, told[arm]), _referred(evidence, arm, told[arm])]
    said += [_without_cuts(arm, told[arm]), _others(evidence, arm, told), _errors(arm, told), *_strange(told)]
    return [sentence for sentence in said if sentence]


def has_cuts(told: dict[str, Any], site: str) -> bool:
    """Whether a bundle for the site would have sets and a cut for referral; from fewer rows it chooses none."""
    rows = told["calibration"]["sites"][site]["validation"]
    return rows is not None and rows >= LEAST_ROWS


def how_made(told: dict[str, Any]) -> str:
    """`dropout, 30`."""
    method = told["method"]
    return "one score" if method == "none" else f"{method}, {told['passes']}"


def _made(told: dict[str, dict[str, Any]]) -> str:
    by: dict[tuple[str, int], list[str]] = {}
    for name, one in told.items():
        by.setdefault((one["method"], one["passes"]), []).append(name)
    ways = [
        f"{listed(names)}: {METHODS[method] if method == 'none' else f'{passes} {METHODS[method]}'}"
        for (method, passes), names in by.items()
    ]
    return (
        f"What this stands on: {'; '.join(ways)}. All that was chosen was chosen on validation rows: temperatures, "
        "sets and cuts at each site on its own. All that is told here is of test rows."
    )


def _calibrated(arm: str, told: dict[str, dict[str, Any]]) -> str:
    found = told[arm]["calibration"]
    before, after, chance = (100 * found[name] for name in ("ece", "ece_after", "by_chance"))
    said = (
        f"Does a score come true? In {arm}, scores are off by {before:.1f} points on average. With as many rows, "
        f"scores that are exactly right would be off by {chance:.1f} by chance."
    )
    unfitted = [site for site, one in found["sites"].items() if one["temperature"] is None]
    sites, moved = len(found["sites"]), sum(one["changed"] > 0 for one in found["sites"].values())
    if moved:
        where = f"{moved} of {sites} sites" if moved < sites else "each site" if sites > 1 else "the site"
        said += f" With a temperature at {where} it is {after:.1f}."
    elif len(unfitted) < sites:
        said += " That another temperature than 1 would be better is shown at no site, so none was used."
    worse = [
        site
        for site, one in found["sites"].items()
        if one["temperature"] is not None and one["ece_after"] > one["ece"] + one["by_chance"] / 2
    ]
    if worse:
        said += f" At {listed(worse)} the temperature made it worse: its validation rows were not like its test rows."
    if unfitted:
        said += f" {listed(unfitted)} had too few validation patients for one."
    return said


def _sets(evidence: Evidence, arm: str, told: dict[str, Any]) -> str:
    found = told["sets"]
    asked, kept = 100 * (1 - found["alpha"]), 100 * found["coverage"]
    ill = found["coverage_positive"]
    among = "" if ill is None else f" ({100 * ill:.0f} % among those who {_have(evidence)})"
    said = (
        "Sets of answers: each row gets all answers that its score does not rule out, and its call, so that "
        f"{asked:.0f} % of sets or more should hold the right one. In {arm}, {kept:.1f} % do{among}. One answer is "
        f"left in {100 * found['single']:.0f} % of sets, and that is the call; several in "
        f"{100 * found['multiple']:.0f} %: there the score alone does not settle it."
    )
    added = found["prediction_added"] + found["empty"]
    if added:
        said += (
            f" In {100 * added:.1f} % of sets the score would have ruled out the call itself; it was added, and the "
            "row is referred."
        )
    if found["no_cut"]:
        least = math.ceil(1 / found["alpha"] - 1 - 1e-9)
        of_what = "site by site, finding by finding, label by label" if evidence.findings else "site by site, by label"
        said += (
            f" In {100 * found['no_cut']:.0f} % of all cases ({of_what}) fewer "
            f"than {least} validation rows had the label, so that it could never be ruled out."
        )
    low = {
        site: one
        for site, one in found["sites"].items()
        if has_cuts(told, site)
        and one["expected"][0] is not None
        and one["conformal_coverage"] is not None
        and one["conformal_coverage"] < one["expected"][0]
    }
    if low:
        where = [
            f"{site} ({100 * one['conformal_coverage']:.0f} %, expected {100 * one['expected'][0]:.0f} to "
            f"{100 * one['expected'][1]:.0f} %)"
            for site, one in low.items()
        ]
        said += (
            f" Below what chance explains, before calls were added: {listed(where)}. There, test patients differ from "
            "validation patients."
        )
    return said


def _have(evidence: Evidence) -> str:
    return "have the finding" if evidence.findings else f"are of class {evidence.classes[1]}"


def _referred(evidence: Evidence, arm: str, told: dict[str, Any]) -> str:
    at = told["referral"]["at"]
    figures = [_change(evidence, metric, at["figures"][metric]) for metric in _metrics(evidence)]
    changes = [text for text in figures if text]
    said = (
        f"If a clinician takes over the least clear rows: cuts for {100 * at['target']:.0f} % of validation rows "
        f"refer {100 * at['reasons'][DOUBT.code]:.0f} % of the test rows in {arm}"
    )
    if at["reasons"][PREDICTION_ADDED.code] or at["reasons"][NO_ANSWER_FITS.code]:
        said += f"; with rows whose call had to be added to its set it is {100 * at['referred']:.0f} %"
    said += "."
    if changes:
        said += f" On the rest, {'; '.join(changes)}."
    return f"{said} The model is no better for it: it is left with the easier rows."


def _without_cuts(arm: str, told: dict[str, Any]) -> str:
    few = [site for site in told["calibration"]["sites"] if not has_cuts(told, site)]
    if not few:
        return ""
    one = len(few) == 1
    return (
        f"In {arm}, {listed(few)} had fewer than {LEAST_ROWS} validation rows{'' if one else ' each'}: "
        f"{'a bundle made there has' if one else 'bundles made there have'} no sets, and "
        f"{'refers' if one else 'refer'} only rows that are far or unlike training in another way. The figures over "
        f"all sites have {'its' if one else 'their'} rows in them, by cuts that stand on very little; the table of "
        "sites leaves them out."
    )


def _metrics(evidence: Evidence) -> list[str]:
    first = evidence.referral_headline.metric
    return [first, *(name for name in ("auc", "accuracy") if name != first)]


def _change(evidence: Evidence, metric: str, entry: dict[str, Any]) -> str:
    before, after, difference = entry["all"]["mean"], entry["kept"]["mean"], entry["difference"]
    if before is None or after is None or difference["difference"] is None:
        return ""
    word = {"auc": "AUC", "accuracy": "accuracy"}[metric]
    numbers = f"{before:.3f} to {after:.3f}" if metric == "auc" else f"{100 * before:.1f} to {100 * after:.1f} %"
    limits = difference["interval"]
    between = ""
    if limits is not None:
        low, high = (in_words(limit, metric, False) for limit in limits)
        between = f", 95 % interval {low} to {high}"
        if limits[0] <= 0 <= limits[1]:
            between += ", which chance can explain"
    return f"{word} goes from {numbers} ({in_words(difference['difference'], metric)}{between})"


def _others(evidence: Evidence, arm: str, told: dict[str, dict[str, Any]]) -> str:
    """Whom referral helps, among the other arms."""
    metric = evidence.referral_headline.metric
    verdicts = {
        name: one["referral"]["at"]["figures"][metric]["difference"]["verdict"]
        for name, one in told.items()
        if name != arm
    }
    if not verdicts:
        return ""
    word = evidence.referral_headline.word
    parts = []
    for verdict, text in (("gains", "rises"), ("loses", "falls"), ("no evidence", "does not clearly change")):
        names = [name for name, found in verdicts.items() if found == verdict]
        if names:
            parts.append(f"in {listed(names)} {word} {text}")
    return f"The same elsewhere: {'; '.join(parts)}." if parts else ""


def _errors(arm: str, told: dict[str, dict[str, Any]]) -> str:
    found = told[arm]["errors"]
    if found["hits"] is None or found["errors"] is None:
        return ""
    than = "higher" if found["errors"] > found["hits"] else "not higher"
    auc = found["auc"]
    limits = "" if auc["interval"] is None else f", 95 % interval {auc['interval'][0]:.2f} to {auc['interval'][1]:.2f}"
    said = (
        f"Is it unsure where it is wrong? In {arm} doubt is {than} on wrong calls than on right ones: "
        f"{found['errors']:.3f} and {found['hits']:.3f} bits, where 1 is a coin that is tossed."
    )
    if auc["mean"] is not None:
        said += f" Of a wrong and a right call it points at the wrong one in {100 * auc['mean']:.0f} of 100 pairs"
        said += f" (AUC {auc['mean']:.2f}{limits})."
    return said


def _strange(told: dict[str, dict[str, Any]]) -> list[str]:
    """Which changed images are noticed, measure by measure. None of these is chosen here: on which one a hospital
    relies has to be settled before it sees such images."""
    known = {name: one["shifted"] for name, one in told.items() if one["shifted"]}
    if not known:
        return []
    made = [
        "Does it notice images that are no radiographs of this kind? The same test images were inverted, turned upside "
        "down, or replaced by noise or by a drawn limb. In a model that notices, uncertainty is higher on these."
    ]
    for measure, text in MEASURES.items():
        values = {
            (name, kind): found[measure]
            for name, shifted in known.items()
            for kind, found in shifted.items()
            if found[measure] is not None
        }
        if values:
            made.append(f"By the {text}: {'; '.join(_of_kinds(values))}.")
    return made


def _of_kinds(values: dict[tuple[str, str], float]) -> list[str]:
    """`inverted images are noticed in fedavg (0.98), not in local (0.55)`."""
    told = []
    for kind in dict.fromkeys(kind for _, kind in values):
        own = {name: value for (name, other), value in values.items() if other == kind}
        parts = []
        for said, low, high in (
            ("are noticed in", NOTICED, 1.01),
            ("are sometimes noticed in", UNNOTICED, NOTICED),
            ("are not noticed in", SURER, UNNOTICED),
            ("are taken with more certainty than the usual ones in", -0.01, SURER),
        ):
            names = [f"{name} ({value:.2f})" for name, value in own.items() if low <= round(value, 2) < high]
            if names:
                parts.append(f"{said} {listed(names)}")
        told.append(f"{SHIFTED.get(kind, kind)} {', '.join(parts)}")
    return told


CALIBRATION: dict[str, Format | None] = {
    "scores off by, points": percent,
    "with temperature": percent,
    "by chance": percent,
}


OFF = "Scores off by: mean distance of score and share in tenths of the rows (ECE), in points of a hundred. "


def uncertainty_table(evidence: Evidence) -> Table:
    """Calibration and sets of every arm."""
    rows = [
        [name, how_made(one), *_calibration(one["calibration"]), *_set_shares(one["sets"])]
        for name, one in evidence.uncertainty.items()
    ]
    columns: dict[str, Format | None] = {"arm": None, "from": None, **CALIBRATION, **_set_columns(evidence)}
    note = (
        f"{OFF}By chance: what scores that are exactly right would show with so few rows. Sets: per cent of test rows "
        "whose set holds the right answer; all sites together, by each site's own cuts. Call added: the score would "
        "have ruled out the call itself; such rows are referred."
    )
    return without_empty(make_table("sureness", "Whether scores come true, and sets of answers", columns, rows, note))


def referral_table(evidence: Evidence) -> Table:
    headline, rows = evidence.referral_headline, []
    for name, one in evidence.uncertainty.items():
        at, errors = one["referral"]["at"], one["errors"]
        entry = at["figures"][headline.metric]
        other = at["figures"]["accuracy" if headline.metric == "auc" else "auc"]
        rows.append(
            [
                name,
                at["referred"],
                entry["all"]["mean"],
                entry["kept"]["mean"],
                entry["difference"]["difference"],
                *limits(entry["difference"]["interval"]),
                other["all"]["mean"],
                other["kept"]["mean"],
                errors["hits"],
                errors["errors"],
                errors["auc"]["mean"],
                *limits(errors["auc"]["interval"]),
            ]
        )
    second, form = ("accuracy, %", percent) if headline.metric == "auc" else ("AUC", decimals)
    columns: dict[str, Format | None] = {"arm": None, "referred, %": percent}
    columns |= {
        headline.above(f"{headline.word} on all"): headline.shown,
        headline.above("on the rest"): headline.shown,
    }
    columns |= {"points": points, "from": points, "to": points, f"{second} on all": form, f"{second} on rest": form}
    columns |= {"doubt when right": decimals, "when wrong": decimals, "AUC of telling wrong": decimals}
    columns |= {"from ": decimals, "to ": decimals}
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
        columns,
        rows,
        note,
    )


def uncertainty_at_sites_table(evidence: Evidence) -> Table:
    rows = []
    for name, one in evidence.uncertainty.items():
        for site, found in one["calibration"]["sites"].items():
            sets, usable = one["sets"]["sites"][site], has_cuts(one, site)
            at_cuts = [
                sets["coverage"],
                sets["conformal_coverage"],
                _between(sets["expected"]),
                among_positive(sets),
                sets["single"],
                one["referral"]["at"]["sites"].get(site),
            ]
            rows.append(
                [
                    name,
                    site,
                    _whole(found["validation"]),
                    _whole(found["test"]),
                    found["temperature"],
                    *_calibration(found),
                    *(at_cuts if usable else [None] * len(at_cuts)),
                ]
            )
    columns: dict[str, Format | None] = {
        "arm": None,
        "site": None,
        "validation rows": count_text,
        "test rows": count_text,
    }
    columns |= {"temperature": _hundredths, **CALIBRATION, "sets hold, %": percent}
    columns |= {"by cuts alone, %": percent, "expected, %": None}
    columns |= {_among(evidence): percent, "one answer, %": percent, "referred, %": percent}
    note = (
        f"{OFF}Temperature: above 1 the model was too sure of itself. By cuts alone: before calls were added to sets "
        "that lacked them. Expected of that: where 99 of 100 runs would lie if validation and test patients were "
        "alike; a patient counts once."
        f" Sets and referral are left out where a site has fewer than {LEAST_ROWS} validation rows, as its bundle does."
    )
    return without_empty(make_table("sureness-at-sites", "How sure it is at each site", columns, rows, note))


def uncertainty_of_findings_table(evidence: Evidence) -> Table | None:
    """Of one arm."""
    told = evidence.uncertainty
    if not told or not evidence.findings:
        return None
    arm = shown_arm(evidence)
    one, rows = told[arm], []
    for finding, found in one["calibration"]["findings"].items():
        sets, errors = one["sets"]["findings"][finding], one["errors"]["findings"][finding]
        shares = [sets["coverage"], among_positive(sets), sets["single"]]
        small = is_small(evidence.arms[arm]["findings"][finding])
        doubt = [None] * 3 if small else [errors["hits"], errors["errors"], errors["auc"]["mean"]]
        rows.append([finding, *_calibration(found), *shares, *doubt, *_parts(one, finding)])
    columns: dict[str, Format | None] = {"finding": None, **CALIBRATION, "sets hold, %": percent}
    columns |= {_among(evidence): percent, "one answer, %": percent, "doubt when right": decimals}
    columns |= {
        "when wrong": decimals,
        "AUC of telling wrong": decimals,
        "total, bits": decimals,
        "epistemic": decimals,
    }
    title = f"How sure {arm} is of each finding"
    note = f"All sites' test rows. Withheld where fewer than {FEWEST} of them have the finding."
    return without_empty(make_table("sureness-of-findings", title, columns, rows, note))


def unfamiliar_image_table(evidence: Evidence) -> Table:
    rows = [
        [name, kind, found["images"], *(found[measure] for measure in MEASURES)]
        for name, one in evidence.uncertainty.items()
        for kind, found in (one["shifted"] or {}).items()
    ]
    columns: dict[str, Format | None] = {"arm": None, "images": None, "how many": str}
    columns |= dict.fromkeys((f"by {text}" for text in MEASURES.values()), decimals)
    note = (
        "AUC of telling changed test images from the same images unchanged, with the first seed: 1 is always, 0.5 a "
        "coin; below 0.5 the model is surer of the changed ones."
    )
    return without_empty(make_table("strange-images", "Images that the model should not know", columns, rows, note))


def _between(ends: Sequence[float | None]) -> str | None:
    low, high = ends
    return None if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f}"


def _hundredths(value: float) -> str:
    return f"{value:.2f}"


def _calibration(found: dict[str, Any]) -> list[Any]:
    return [found["ece"], found["ece_after"], found["by_chance"]]


def _set_shares(found: dict[str, Any]) -> list[Any]:
    return [found["coverage"], among_positive(found), found["single"], found["multiple"], _added(found)]


def _added(found: dict[str, Any]) -> float | None:
    return None if found["empty"] is None else found["prediction_added"] + found["empty"]


def among_positive(found: dict[str, Any]) -> float | None:
    """Of those who have the finding, unless they are so few that the share would point at one of them."""
    return None if not found["positives"] or found["positives"] < FEWEST else found["coverage_positive"]


def _set_columns(evidence: Evidence) -> dict[str, Format | None]:
    names = ("sets hold, %", _among(evidence), "one answer, %", "several, %", "call added, %")
    return dict.fromkeys(names, percent)


def _among(evidence: Evidence) -> str:
    if evidence.findings:
        return "of those with it, %"
    return f"of {evidence.classes[1]}, %" if len(evidence.classes) == 2 else "of the ill, %"


def _parts(one: dict[str, Any], finding: str) -> list[Any]:
    return [one["parts"]["findings"][finding][name] for name in ("total", "epistemic")]


def _whole(count: float | None) -> int | float | None:
    return int(count) if count is not None and float(count).is_integer() else count


MOST_ARMS = 12  # with a panel or a mark of their own


MOST_SITES = 20


def reliability(evidence: Evidence) -> Figure | None:
    """What was predicted against what happened, before and after temperatures: a panel for each arm."""
    told = dict(list(evidence.uncertainty.items())[:MOST_ARMS])
    if not told:
        return None
    points = [one["calibration"]["reliability"] for one in told.values()]
    top = 1.05 * max(max(p["score"], p["positive"]) for one in points for side in one.values() for p in side)
    across = min(len(told), 4)
    drawn, panels = small_panels(len(told), across, 1.65 if across > 2 else 2.6, below=0.72)
    kinds = {"before": ("as the model says it", COLOURS[1], "s"), "after": ("with temperature", COLOURS[0], "o")}
    for axes, (name, one) in zip(panels, told.items(), strict=True):
        axes.plot([0, top], [0, top], color="grey", linewidth=0.8)
        for kind, (title, colour, marker) in kinds.items():
            found = one["calibration"]["reliability"][kind]
            x, y = [p["score"] for p in found], [p["positive"] for p in found]
            axes.plot(x, y, marker=marker, markersize=3.5, linewidth=1, color=colour, label=title)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
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
    told = dict(list(evidence.uncertainty.items())[:MOST_ARMS])
    sites = list(dict.fromkeys(site for one in told.values() for site in one["sets"]["sites"]))
    if not told or len(sites) > MOST_SITES:
        return None
    drawn = figure(1.2 + len(sites) * max(0.42, 0.14 * len(told)))
    axes = drawn.subplots()
    asked = {100 * (1 - one["sets"]["alpha"]) for one in told.values()}
    for share in asked:
        axes.axvline(share, color="black", linewidth=0.8, linestyle="--", label="asked for")
    for place, site in enumerate(sites):
        low, high = _band(site, told)
        if low is not None and high is not None:
            label = "expected in 99 of 100 runs" if place == 0 else None
            axes.barh(place, 100 * (high - low), 0.86, left=100 * low, color="gainsboro", label=label, zorder=0)
    for number, (name, one) in enumerate(told.items()):
        offset = (number - (len(told) - 1) / 2) * 0.76 / len(told)
        for place, site in enumerate(sites):
            found = one["sets"]["sites"].get(site)
            if found is None or found["conformal_coverage"] is None:
                continue
            y, label, colour = place + offset, name if place == 0 else None, looks(evidence, name)["color"]
            inside = colour if has_cuts(one, site) else "white"
            shown = {"color": colour, "markerfacecolor": inside, "markersize": 4.5, "linestyle": "none"}
            axes.plot(100 * found["conformal_coverage"], y, "o", label=label, **shown)
    few = {site for one in told.values() for site in one["sets"]["sites"] if not has_cuts(one, site)}
    name_rows(axes, [f"{site} (few rows)" if site in few else site for site in sites])
    axes.set_xlabel("test rows whose right answer lies within its cut, %")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _band(site: str, told: dict[str, dict[str, Any]]) -> tuple[float | None, float | None]:
    """What is expected at a site of any arm: mostly they have the same rows, and so the same."""
    those = [one for one in told.values() if site in one["sets"]["sites"] and has_cuts(one, site)]
    known = [one["sets"]["sites"][site]["expected"] for one in those]
    known = [ends for ends in known if ends[0] is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else (None, None)


def referral(evidence: Evidence) -> Figure | None:
    """What a model is worth on the rows that it keeps, against the share that a clinician takes over."""
    told = dict(list(evidence.uncertainty.items())[:MOST_ARMS])
    if not told:
        return None
    drawn = figure(3.2)
    panels = drawn.subplots(1, 2)
    words = {"accuracy": ("accuracy, %", 100), "auc": ("AUC", 1)}
    first = evidence.referral_headline.metric
    order = [first, *(name for name in words if name != first)]
    for axes, metric in zip(panels, order, strict=True):
        word, scale = words[metric]
        for name, one in told.items():
            curve = one["referral"]["curve"]
            known = [(x, y) for x, y in zip(curve["share"], curve[metric], strict=True) if y is not None]
            x, y = [100 * a for a, _ in known], [scale * b for _, b in known]
            axes.plot(x, y, linewidth=1.4, label=name if axes is panels[0] else None, **looks(evidence, name))
        for share in {one["referral"]["at"]["target"] for one in told.values()}:
            axes.axvline(100 * share, color="grey", linewidth=0.8, linestyle=":")
        axes.set_xlabel("rows referred, %")
        axes.set_ylabel(f"{word} on the rest")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def doubt(evidence: Evidence) -> Figure | None:
    """Doubt on right and on wrong calls, and how well it tells them apart."""
    told = {
        name: one["errors"]
        for name, one in list(evidence.uncertainty.items())[:MOST_ARMS]
        if one["errors"]["errors"] is not None and one["errors"]["hits"] is not None
    }
    if not told:
        return None
    drawn = figure(1.2 + 0.26 * len(told))
    left, right = drawn.subplots(1, 2, sharey=True)
    for place, (name, found) in enumerate(told.items()):
        colour = looks(evidence, name)["color"]
        left.plot([found["hits"], found["errors"]], [place, place], color="lightgrey", linewidth=2, zorder=1)
        for kind, marker in (("hits", "o"), ("errors", "X")):
            title = {"hits": "right calls", "errors": "wrong calls"}[kind] if place == 0 else None
            left.plot(found[kind], place, marker, color=colour, markersize=6, label=title, linestyle="none")
        auc = found["auc"]
        if auc["mean"] is not None:
            if auc["interval"] is not None:
                right.plot(auc["interval"], [place, place], color=colour, linewidth=1.4)
            right.plot(auc["mean"], place, "o", color=colour, markersize=5)
    right.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
    name_rows(left, list(told))
    left.set_xlabel("mean doubt, bits")
    right.set_xlabel("AUC of telling wrong calls from right ones")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def strange(evidence: Evidence) -> Figure | None:
    """How well changed images are told from unchanged ones, by each measure."""
    told = {
        name: one["shifted"]
        for name, one in list(evidence.uncertainty.items())[:MOST_ARMS]
        if one["shifted"] is not None
    }
    if not told:
        return None
    kinds = list(next(iter(told.values())))
    shown = [
        name for name in MEASURES if any(found[name] is not None for one in told.values() for found in one.values())
    ]
    drawn = figure(1.3 + 0.3 * len(told))
    panels = np.atleast_1d(drawn.subplots(1, len(shown), sharey=True))
    for axes, measure in zip(panels, shown, strict=True):
        values = np.array([[_number(one[kind][measure]) for kind in kinds] for one in told.values()])
        image = heat(axes, values, lambda value: f"{value:.2f}", list(told), kinds)
        image.set_clim(0, 1)
        for text, value in zip(axes.texts, values.flat, strict=True):
            text.set_color("white" if value < 0.5 else "black")  # of the whole scale, not of this panel's
        axes.set_title(f"by {MEASURES[measure]}", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    return drawn


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _values(evidence: Evidence) -> dict[str, Any]:
    return {"sentences": uncertainty_sentences(evidence)}


PAGE = """
<section id="sure"><h2>How sure is it?</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("reliability") }}{{ draw("coverage") }}{{ show("sureness") }}{{ draw("referral") }}{{ show("referral") }}
{{ draw("doubt") }}{{ draw("strange-images") }}
{% if "strange-images" in tables %}
{% call fold("The same as a table") %}{{ show("strange-images") }}{% endcall %}{% endif %}
{% if "sureness-at-sites" in tables %}
{% call fold("Every arm at every site: temperature, calibration, sets, referral") %}
{{ show("sureness-at-sites") }}{% endcall %}{% endif %}
{% if "sureness-of-findings" in tables %}
{% call fold("Each finding") %}{{ show("sureness-of-findings") }}{% endcall %}{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "sure",
    "How sure?",
    _values,
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
            "One bit is a coin that is tossed. On the right, 0.5 means that doubt tells nothing; with 95 % intervals.",
            doubt,
        ),
        "strange-images": Drawing(
            "Images that the model should not know",
            "AUC of telling changed test images from the same images unchanged. 1 is always, 0.5 a coin; below it, the "
            "model is surer of the changed ones.",
            strange,
        ),
    },
)
