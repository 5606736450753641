"""The section "How sure is it?" in plain words. Its tables are in `tables_sure.py`, its figures in `plots_sure.py`."""

import math
from typing import Any

from wardround.evaluation.comparisons.compare import in_words
from wardround.report.evidence import Evidence
from wardround.report.table import listed
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


def with_uncertainty(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Arms of the study as it stands that tell how sure they are."""
    found = {name: arm.get("uncertainty") for name, arm in evidence.arms.items()}
    return {name: told for name, told in found.items() if told is not None}


def shown_arm(evidence: Evidence) -> str:
    """The one that sentences speak of first: the main arm, or one that has several passes."""
    told = with_uncertainty(evidence)
    if evidence.main_arm in told:
        return evidence.main_arm
    return next((name for name, one in told.items() if one["method"] != "none"), next(iter(told)))


def sure_words(evidence: Evidence) -> list[str]:
    told = with_uncertainty(evidence)
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
    sites, moved = len(found["sites"]), sum(one["moved"] > 0 for one in found["sites"].values())
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
        f"If a clinician takes over the least clear rows: cuts for {100 * at['asked']:.0f} % of validation rows "
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
