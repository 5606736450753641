"""Tables of how sure models are: over all sites, at each of them, for each finding, and on strange images."""

from collections.abc import Sequence
from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.sure import MEASURES, has_cuts, how_made, shown_arm, with_uncertainty
from wardround.report.table import (
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
from wardround.report.tables_findings import is_small
from wardround.uncertainty.referral import LEAST_ROWS

CALIBRATION: dict[str, Format | None] = {
    "scores off by, points": percent,
    "with temperature": percent,
    "by chance": percent,
}
OFF = "Scores off by: mean distance of score and share in tenths of the rows (ECE), in points of a hundred. "


def sureness_table(evidence: Evidence) -> Table:
    """Calibration and sets of every arm."""
    rows = [
        [name, how_made(one), *_calibration(one["calibration"]), *_sets(one["sets"])]
        for name, one in with_uncertainty(evidence).items()
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
    for name, one in with_uncertainty(evidence).items():
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


def sure_sites_table(evidence: Evidence) -> Table:
    rows = []
    for name, one in with_uncertainty(evidence).items():
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


def sure_findings_table(evidence: Evidence) -> Table | None:
    """Of one arm."""
    told = with_uncertainty(evidence)
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


def strange_table(evidence: Evidence) -> Table:
    rows = [
        [name, kind, found["images"], *(found[measure] for measure in MEASURES)]
        for name, one in with_uncertainty(evidence).items()
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


def _sets(found: dict[str, Any]) -> list[Any]:
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
