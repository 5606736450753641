"""`decision` of results.json: begun from the study and the test rows, concluded once all comparisons are corrected."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.evaluation.comparisons.benefit import alone_arm
from wardround.evaluation.comparisons.differences import GAINS, LOSES
from wardround.evaluation.comparisons.measures import measure_of
from wardround.evaluation.decision.advice import Situation, next_step, site_step
from wardround.evaluation.decision.candidate import candidate
from wardround.evaluation.decision.own_figures import own_figures
from wardround.evaluation.decision.power import (
    IMPORTANT_POINTS,
    IMPORTANT_SHARE,
    POWER,
    detectable,
    few_seeds,
    patients_needed,
)
from wardround.evaluation.decision.sentences import decision_sentences
from wardround.evaluation.decision.words import subject_of
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.summaries.merged_summaries import Scored
from wardround.evaluation.training_notices import OVERFITTED, PROBLEMS, UNFINISHED
from wardround.study.schema import Arm, Study
from wardround.tasks import METRIC_FACTS

ENTRY = (
    "metric",
    "difference",
    "sd",
    "interval",
    "p_value",
    "comparisons",
    "standard_error",
    "freedom",
    "seeds",
    "method",
    "verdict",
)


def begin_decision(
    study: Study, scores: Scored, origin: Mapping[str, Arm], sites: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What does not depend on any comparison: the arms, the words, and each hospital's own figures."""
    known = {name: arm for name, arm in origin.items() if name in scores.arms}
    chosen = candidate(study, known)
    words = {**_words(study, scores), **_counts(sites)}
    importance = {"value": study.evaluation.important_difference, "stated": True}
    begun: dict[str, Any] = {"arm": None, "chosen_by": None, "alone": None, "parties": False, "sites": {}}
    if chosen is not None:
        alone = alone_arm(study, chosen.arm, list(known))
        arms = [chosen.arm, *([] if alone is None else [alone.name])]
        resampling = Resampling.of(study.evaluation_of(known[chosen.arm]))
        begun = {
            "arm": chosen.arm,
            "chosen_by": chosen.rule,
            "alone": _alone(study, known[chosen.arm], alone),
            "parties": known[chosen.arm].topology.kind == "vertical",
            "sites": {
                site: own_figures(scores, site, arms, study.evaluation.metric, resampling)
                for site in scores.by_site[chosen.arm]
            },
        }
    return {**begun, **words, "important_difference": importance}


def _alone(study: Study, arm: Arm, alone: Arm | None) -> str | None:
    """What training together is compared with. Parties have patients in common: none of them is alone with its own, and
    the study says in its reference what it is to be compared with."""
    if arm.topology.kind == "vertical":
        reference = study.reference_of("")
        return None if reference == arm.name else reference
    return None if alone is None else alone.name


def _words(study: Study, scores: Scored) -> dict[str, str]:
    target = study.arms[0].data.options.get("target")
    return subject_of(scores.task, target if isinstance(target, str) else None)._asdict()


def _counts(sites: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Of all hospitals, with the first seed; None where they are not known."""
    if not sites:
        return {"rows": None, "patients": None}
    rows = sum(own["train"] + own["validation"] + own["test"] for own in sites[0]["sites"].values())
    patients = sites[0].get("patients")
    return {"rows": rows, "patients": rows if patients is None else patients}


def conclude_decision(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` is a whole results.json, with a decision that was begun and all comparisons corrected."""
    begun: dict[str, Any] = content["decision"]
    metric = content["primary_metric"]
    entries = _own_entries(content, begun)
    mean = _mean(content, begun)
    important = begun["important_difference"]
    if important["value"] is None:
        important = {"value": _usual_importance(content, begun), "stated": False}
    values = begun | {
        "metric": metric,
        "finding": None if mean is None else mean["verdict"],
        "why_not": None if mean is not None and mean["difference"] is not None else _why_not(begun, content, mean),
        "mean": None if mean is None else _shortened(mean),
        "broken": [name for name in (begun["arm"], begun["alone"]) if name in _broken(content)],
        "others": _others(content, begun),
        "important_difference": important,
        "power": POWER,
    }
    needed = None if mean is None else patients_needed(mean, important["value"], begun["patients"])
    values |= {"detectable": None if mean is None else detectable(mean), "patients_needed": needed}
    values |= {"few_seeds": mean is not None and few_seeds(mean), "seeds": len(content["seeds"])}
    values["next"] = next_step(_situation(values, len(content["seeds"])))
    values["sites"] = {site: own | _of_site(entries.get(site), values, mean) for site, own in begun["sites"].items()}
    return values | {"sentences": decision_sentences(content, values, measure_of(content, metric))}


def _own_entries(content: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    key = (begun["arm"], content["primary_metric"])
    return {entry["site"]: entry for entry in content["benefit"] if (entry["arm"], entry["metric"]) == key}


def _mean(content: Mapping[str, Any], begun: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Over hospitals; of parties, which share their patients, the comparison with the reference. None without one."""
    if begun["parties"]:
        key = (begun["arm"], content["primary_metric"])
        return next((test for test in content["tests"] if (test["arm"], test["metric"]) == key), None)
    for entry in content["site_differences"]:
        same = (entry["arm"], entry["metric"]) == (begun["arm"], content["primary_metric"])
        if same and entry["kind"] == "alone" and entry["site"] is None:
            return dict(entry)
    return None


def _why_not(begun: Mapping[str, Any], content: Mapping[str, Any], mean: Mapping[str, Any] | None) -> str:
    if mean is not None:
        return "no-figures"
    if begun["arm"] is None:
        return "nobody-together"
    if begun["parties"]:
        return "parties"
    if len(content["arms"][begun["arm"]]["sites"]) <= 1:
        return "one-site"
    return "nobody-alone" if begun["alone"] is None else "no-figures"


def _broken(content: Mapping[str, Any]) -> set[str]:
    """Arms whose training failed with every seed."""
    codes = (*PROBLEMS, UNFINISHED, OVERFITTED, "diverged")
    return {
        str(notice.get("arm")) for notice in content["notices"] if notice["code"] in codes and "seeds" not in notice
    }


def _others(content: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Of other ways of training together, on average over hospitals: those that are shown to gain or lose."""
    means = [
        entry
        for entry in content["site_differences"]
        if entry["kind"] == "alone" and entry["site"] is None and entry["metric"] == content["primary_metric"]
    ]
    arms = content["arms"]
    means = [
        entry
        for entry in means
        if entry["arm"] != begun["arm"]
        and not arms[entry["arm"]]["variant"]
        and arms[entry["arm"]]["algorithm"]["name"] != "pooled"
    ]
    return {
        "compared": len(means),
        **{name: [entry["arm"] for entry in means if entry["verdict"] == name] for name in (GAINS, LOSES)},
    }


def _usual_importance(content: Mapping[str, Any], begun: Mapping[str, Any]) -> float:
    """Where the study names none: two points of a rate or an area, and a twentieth of an error when alone."""
    metric = content["primary_metric"]
    if METRIC_FACTS[metric].in_points or METRIC_FACTS[metric].name == "r2":
        return IMPORTANT_POINTS
    arm = content["arms"].get(begun["alone"] or begun["arm"])
    figures = {} if arm is None else arm["within_sites"].get(metric) or arm["metrics"][metric]
    return float(IMPORTANT_SHARE * abs(figures.get("mean") or 1.0))


def _shortened(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ENTRY}


def _situation(values: Mapping[str, Any], seeds: int) -> Situation:
    important, needed, patients = (
        values["important_difference"]["value"],
        values["patients_needed"],
        values["patients"],
    )
    return Situation(
        compared=values["mean"] is not None,
        broken=bool(values["broken"]),
        seeds=seeds,
        few_seeds=bool(values["few_seeds"]),
        entry=values["mean"],
        important=important,
        needed=needed,
        patients=patients,
    )


def _of_site(
    entry: Mapping[str, Any] | None, values: Mapping[str, Any], mean: Mapping[str, Any] | None
) -> dict[str, Any]:
    if entry is None:
        return {"comparison": None, "detectable": None, "advice": "no-result"}
    return {
        "comparison": _shortened(entry),
        "detectable": detectable(entry),
        "advice": site_step(entry, values["next"], mean),
    }
