"""A page for each hospital, printable by itself: its patients, what joining changed for it, whether predictions mean
what they say there, groups of its patients, and what it is advised to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wardround.core.notices.code import listed
from wardround.evaluation.comparisons.compare import why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, is_clear
from wardround.evaluation.decision.words import Subject, meaning, size, with_limits
from wardround.report.evidence import Evidence, described_target, rows_of
from wardround.report.render.table import FEWEST, NONE, Format, Table, few, make_table, whole_number
from wardround.report.section import Section
from wardround.report.sections.front.board import events
from wardround.report.sections.front.forest import STAY, Forest, forest_of
from wardround.tasks.class_metrics import SMALLEST_CLASS

ADVICE = {
    "wait": "Wait. {of_all}",
    "take-part": "Take part: a gain is shown here. Check the shared model on recent patients before it is used.",
    "stay-alone": "Keep the model that is trained here alone: the shared one is shown to be worse here.",
    "with-the-others": "Take part and watch: a gain is shown on average over the hospitals, but not here by itself.",
    "undecided": "Decide nothing from this study alone: neither a gain nor a loss is shown here.",
    "no-result": "Nothing can be advised: there is no result here.",
}
SUPPRESSED = "too few"


@dataclass(frozen=True)
class HospitalPage:
    name: str
    heading: str  # the result in one line
    advice: str
    gain: list[str]
    forest: Forest | None
    patients: Table
    figures: Table | None
    calibration: list[str]
    bins: Table | None
    subgroups: Table | None
    others: list[str] = field(default_factory=list)
    no_groups: str = ""  # why none is shown


def hospital_pages(evidence: Evidence) -> list[HospitalPage]:
    return [hospital_page(evidence, site) for site in evidence.sites]


def hospital_page(evidence: Evidence, site: str) -> HospitalPage:
    own = evidence.decision["sites"].get(site) or {}
    entry = own.get("comparison")
    return HospitalPage(
        name=site,
        heading=_heading(evidence, entry),
        advice=ADVICE[own.get("advice", "no-result")].format(of_all=evidence.decision["sentences"]["next"]),
        gain=_gain(evidence, own),
        forest=_forest(evidence, site, entry),
        patients=_patients(evidence, site),
        figures=_figures(evidence, site),
        calibration=_calibration(evidence, own),
        bins=_bins(evidence, site, own),
        subgroups=_subgroups(evidence, site, own),
        others=_others(evidence, site),
        no_groups=_no_groups(evidence, own),
    )


def _heading(evidence: Evidence, entry: Mapping[str, Any] | None) -> str:
    if entry is None or entry["difference"] is None:
        return "no result"
    amount, interval = with_limits(evidence.headline.measure, entry)
    words = {GAINS: "a gain", LOSES: "a loss"}.get(entry["verdict"], "neither gain nor loss shown")
    counted = evidence.headline.measure.metric.counted
    return f"{words}: {amount}{f' in 1,000 {counted}' if counted else ''}{interval}"


def _gain(evidence: Evidence, own: Mapping[str, Any]) -> list[str]:
    entry, measure, decision = own.get("comparison"), evidence.headline.measure, evidence.decision
    if entry is None or entry["difference"] is None:
        why = f"{measure.metric.words} is not defined on this hospital's test rows"
        if entry is None:
            why = "no hospital trains alone in this study"
        return [f"It cannot be said whether joining helped here: {why}."]
    verdicts = {
        GAINS: "Joining helped here.",
        LOSES: "Joining harmed here.",
        "no evidence": "It is not shown that joining helped or harmed here.",
    }
    amount, interval = with_limits(measure, entry)
    told = meaning(measure, Subject(decision["outcome"], decision["event"]), amount)
    lines = [
        verdicts.get(entry["verdict"], f"It cannot be told whether joining helped here: {why_unknown(entry)}."),
        f"{told[0].upper()}{told[1:]} than with the model trained here alone{interval}.",
    ]
    if own["detectable"] is not None and not is_clear(entry):
        found = size(measure, own["detectable"])
        share = f"{100 * decision['power']:.0f} %"
        lines.append(f"A true difference of {found} would be found here by {share} of studies like this one.")
    return lines


def _forest(evidence: Evidence, site: str, entry: Mapping[str, Any] | None) -> Forest | None:
    if entry is None or entry["difference"] is None:
        return None
    entries = {site: entry} | (
        {"mean of the hospitals": evidence.decision["mean"]} if len(evidence.decision["sites"]) > 1 else {}
    )
    return forest_of(entries, {}, evidence.headline.measure, "mean of the hospitals")


def _patients(evidence: Evidence, site: str) -> Table:
    """Few patients of a class are not counted, and then none of the classes is: they would follow from the rest."""
    counts = evidence.site_counts.get(site)
    if counts is None:
        return make_table("", "", {"records": None, "number": str}, [])
    rows: list[list[Any]] = [["all", rows_of(counts)], ["for training", counts["train"]]]
    rows += [["for choosing thresholds (validation)", counts["validation"]]] if counts["validation"] else []
    rows.append(["for testing", counts["test"]])
    hidden = events(evidence, counts) == NONE
    words = _words_of_classes(evidence)
    rows += [[words.get(name, name), "withheld" if hidden else few(n)] for name, n in counts["classes"].items()]
    rows += [[heading, text] for heading, text in described_target(evidence, counts).items() if text]
    age = counts.get("age") if rows_of(counts) >= 2 * FEWEST else None
    if age and age.get("mean") is not None:
        rows.append(
            ["mean age", f"{age['mean']:.1f}" + (f" (SD {age['sd']:.1f})" if age.get("sd") is not None else "")]
        )
    return make_table("", "Its records, as split for the first training run", {"records": None, "number": str}, rows)


def _words_of_classes(evidence: Evidence) -> dict[str, str]:
    """Of two classes, what they mean: 0 and 1 say nothing."""
    if len(evidence.classes) != 2 or evidence.findings:
        return {}
    return dict(zip(evidence.classes, (f"without {evidence.event}", f"with {evidence.event}"), strict=True))


def _arms(evidence: Evidence) -> dict[str, str]:
    """Headings of the columns by arm."""
    decision = evidence.decision
    names = {decision["arm"]: "together", decision["alone"]: "alone"}
    return {arm: heading for arm, heading in names.items() if arm is not None}


def _figures(evidence: Evidence, site: str) -> Table | None:
    metrics = dict.fromkeys((evidence.headline.metric, *evidence.task.report.arms))
    columns: dict[str, Format | None] = {"measure": None, **dict.fromkeys(_arms(evidence).values(), str)}
    rows = []
    for metric in metrics:
        headline, cells = evidence.headline_for(metric), []
        for arm in _arms(evidence):
            figure = evidence.arms[arm]["sites"].get(site, {}).get(metric)
            known = figure is not None and figure["mean"] is not None
            cells.append(_with_interval(headline, figure) if figure is not None and known else None)
        rows.append([headline.word, *cells])
    rows = [row for row in rows if any(cell is not None for cell in row[1:])]
    return make_table("", "How well each model does on this hospital's test patients", columns, rows) if rows else None


def _with_interval(headline: Any, figure: Mapping[str, Any]) -> str:
    low, high = headline.limits(figure["interval"])
    interval = "" if low is None else f" ({headline.shown(low)}{STAY}to{STAY}{headline.shown(high)})"
    return f"{headline.text(figure['mean'])}{interval}"


def _calibration(evidence: Evidence, own: Mapping[str, Any]) -> list[str]:
    """Whether predictions mean what they say here, by the intervals of slope and intercept."""
    curves, lines = own.get("calibration") or {}, []
    for arm, heading in _arms(evidence).items():
        curve = curves.get(arm)
        if curve is None or not curve["slope"]:
            continue
        slope, intercept = curve["slope"], curve["intercept"]
        figures = [
            f"{name} {figure['value']:.2f}, 95 % CI {figure['interval'][0]:.2f} to {figure['interval'][1]:.2f}"
            for name, figure in (("calibration slope", slope), ("intercept", intercept))
        ]
        lines.append(f"Trained {heading}: {_calibrated(evidence, slope, intercept)} ({'; '.join(figures)}).")
    return [*lines, "Where predictions mean what they say, the slope is 1 and the intercept 0."] if lines else []


def _calibrated(evidence: Evidence, slope: Mapping[str, Any], intercept: Mapping[str, Any]) -> str:
    score = "predicted risks" if evidence.task.calibration == "logistic" else "predictions"
    wrong = []
    if evidence.task.calibration == "logistic" and not _holds(intercept, 0.0):
        wrong.append("too low" if intercept["value"] > 0 else "too high")
    if not _holds(slope, 1.0):
        wrong.append("too extreme" if slope["value"] < 1 else "too near the average")
    return f"{score} are {listed(wrong)}" if wrong else f"nothing shows that {score} are wrong"


def _holds(figure: Mapping[str, Any], value: float) -> bool:
    low, high = figure["interval"]
    return bool(low <= value <= high)


def _bins(evidence: Evidence, site: str, own: Mapping[str, Any]) -> Table | None:
    curve = (own.get("calibration") or {}).get(evidence.decision["arm"])
    if not curve or not curve["bins"]:
        return None
    if evidence.task.calibration == "linear":
        columns: dict[str, Format | None] = {
            "predicted": evidence.in_units,
            "observed": evidence.in_units,
            "records": str,
        }
        rows = [[part["score"], part["observed"], part["rows"]] for part in curve["bins"]]
    else:
        columns = {"predicted, %": _percent, "observed, %": _percent, "records": str}
        rows = [[part["score"], part["positive"], part["rows"]] for part in curve["bins"]]
    runs = "" if evidence.seeds == 1 else " Test records of all training runs."
    title = "Predicted and observed, trained together"
    return make_table("", title, columns, rows, f"In order of the prediction, in groups of about equal size.{runs}")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


def _subgroups(evidence: Evidence, site: str, own: Mapping[str, Any]) -> Table | None:
    headline, rows = evidence.headline, []
    for kind, groups in (own.get("subgroups") or {}).items():
        for value, group in groups.items():
            if "figures" not in group:
                rows.append([f"{kind}: {value}", None, *[SUPPRESSED for _ in _arms(evidence)]])
                continue
            cells = [
                SUPPRESSED if figure["mean"] is None else _with_interval(headline, figure)
                for figure in (group["figures"][arm] for arm in _arms(evidence))
            ]
            rows.append([f"{kind}: {value}", group["rows"], *cells])
    if all(count is None for _, count, *_ in rows):
        return None  # not one group is large enough
    columns: dict[str, Format | None] = {"group": None, "test records": whole_number}
    columns |= dict.fromkeys(_arms(evidence).values(), str)
    of_class = f" or {SMALLEST_CLASS} of a class" if evidence.task.answers == "class" else ""
    note = (
        f"{headline.title} with its 95 % CI, not corrected. Too few: fewer than {evidence.smallest_group} test records"
        f"{of_class} in every training run, or a group from which such a one would follow."
    )
    return make_table("", "Groups of its patients", columns, rows, note)


def _no_groups(evidence: Evidence, own: Mapping[str, Any]) -> str:
    kinds = own.get("subgroups") or {}
    if not kinds or any("figures" in group for groups in kinds.values() for group in groups.values()):
        return ""
    return f"Groups by {listed(list(kinds))} are not shown: each has too few test records here."


def _others(evidence: Evidence, site: str) -> list[str]:
    """Other ways of training together with a gain or a loss here."""
    lines = []
    for entry in evidence.benefit():
        same = entry["site"] == site and entry["arm"] != evidence.decision["arm"] and entry["arm"] in evidence.federated
        if same and is_clear(entry):
            amount, interval = with_limits(evidence.headline.measure, entry)
            verdict = "better" if entry["verdict"] == GAINS else "worse"
            lines.append(f"With {entry['arm']} it is {verdict} than alone: {amount}{interval}.")
    return lines


def named(evidence: Evidence) -> str:
    """What the columns stand for."""
    decision = evidence.decision
    alone = f"; “alone” is the arm {decision['alone']}" if decision["alone"] else ""
    return f"“Together” is the way of training (arm) called {decision['arm']}{alone}." if decision["arm"] else ""


PAGE = """
{% from "front.html" import hospital_article with context %}
<section id="hospital-pages"><h2>A page for each hospital</h2>
<p class="meta on-screen">Also as a file: wardround report RUN --site NAME.</p>
{% for page in pages %}
<details class="hospital"><summary><b>{{ page.name }}</b> · {{ page.heading }}</summary>
<p class="kind on-paper">{{ study.name }}: {{ results.study.question }}</p>
{{ hospital_article(page, named) }}</details>
{% endfor %}
</section>"""
SECTION = Section(PAGE, "hospital-pages", "Each hospital", {"pages": hospital_pages, "named": named})
