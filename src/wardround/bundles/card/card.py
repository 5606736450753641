"""A bundle's card as plain data: every number in it comes from the run's files or is computed on its test rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wardround.bundles.bundle import Bundle
from wardround.bundles.card.card_parts import findings_of, findings_told, from_what, own_figures, sure_words, takes
from wardround.bundles.card.card_parts import share_of as share_of
from wardround.bundles.card.card_words import far_words, gap_words, level_words, not_for, purpose
from wardround.bundles.card.concerning import Whose, concerning
from wardround.data.records import Column
from wardround.evaluation.calibration_curves import calibration
from wardround.evaluation.metrics import SMALLEST_GROUP
from wardround.runs.spending import EACH_SITE
from wardround.study.schema import Arm, Study

FIGURES = ("auc", "accuracy", "sensitivity", "specificity", "ppv", "npv", "brier")
SHARED = "The hospitals that trained the shared part were"
REGIONAL = "This is the own model of region {}, as it was before the last average over regions."
FEW_ROWS = 100  # of training: a site with fewer is named among the limits


@dataclass(frozen=True)
class Adapter:
    """The second of two trainings: at one hospital alone, into a shared part that was trained without it."""

    epochs: int
    rows: int  # of this hospital, for training
    result: tuple[str, ...]  # against training alone, in words
    caution: str  # where it was worse; empty where it was not


@dataclass(frozen=True)
class Told:
    """What a run says of itself, as far as whoever makes the bundle knows it."""

    study: Study
    arm: Arm
    asked: str
    seed: int
    site: str
    trained: Mapping[str, int | None]  # training rows of each site whose rows the model has learnt from; None: not told
    seeds: tuple[int, ...]
    simulated: bool
    synthetic: bool
    overall: Mapping[str, Any] | None  # metrics over all sites; None: not told
    at_site: Mapping[str, Any] | None
    interval: Mapping[str, Any] | None  # confidence, method, covers; None: there are none
    privacy: Mapping[str, Any] | None  # what was promised and spent; None: nothing protects anybody
    subgroups: Mapping[str, Any]
    warnings: tuple[str, ...]
    introduction: tuple[str, ...] = ()  # what must be known first, such as that its parts come from different places
    ranked_within: bool = False  # whether areas under curves over all sites are means of the sites' own
    adapter: Adapter | None = None  # None: all of the model comes from one training
    findings: Mapping[str, Any] = field(default_factory=dict)  # of each: AUC over all sites, at this site
    region: str | None = None  # whose own model it is; None: the model of all


def ranked_within(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Areas under curves as means of the sites' own: scores of two sites' models cannot be ranked together."""
    return {name: arm["within_sites"][name] for name in ("auc", "pr_auc")}


def told_by(
    results: Mapping[str, Any],
    study: Study,
    arm: Arm,
    asked: str,
    seed: int,
    whose: Whose,
    trained: Mapping[str, int],
    region: str | None = None,
) -> Told:
    """From a run's results.json."""
    site = whose.site
    found = results["arms"][asked]
    overall = dict(found["metrics"])
    if found["own_models"]:  # scores of different models are not ranked against each other
        overall |= ranked_within(found)
    of_variant = results["variants"][arm.variant]
    return Told(
        study=study,
        arm=arm,
        asked=asked,
        seed=seed,
        site=site,
        trained=trained,
        seeds=tuple(results["seeds"]),
        simulated=not results["deployed"],
        synthetic=bool(results.get("synthetic")),
        overall=None if region is not None else {name: overall[name] for name in FIGURES},
        at_site=None if region is not None else {name: found["sites"][site][name] for name in FIGURES},
        interval=None
        if region is not None
        else {"confidence": results["interval"]["confidence"], **_without_text(of_variant)},
        privacy=_privacy(results.get("privacy"), arm.name, site),
        subgroups=found["subgroups"],
        warnings=concerning(results["warnings"], whose),
        introduction=() if region is None else (REGIONAL.format(region),),
        ranked_within=bool(found["own_models"]),
        findings={} if region is not None else findings_told(found, site),
        region=region,
    )


def _without_text(of_variant: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": of_variant["method"], "covers": of_variant["covers"]}


def _privacy(found: Mapping[str, Any] | None, arm: str, site: str) -> dict[str, Any] | None:
    if not found or arm not in found["arms"]:
        return None
    of_arm = found["arms"][arm]
    spent = of_arm["sites"].get(site) or {}
    whole = of_arm["sites"].get(EACH_SITE) or {}
    in_all = (found.get("total") or {}).get(site) or {}
    return {
        "guarantee": found["guarantee"],
        "example": of_arm["example"],
        "site": of_arm["site"],
        "secure_sum": of_arm["secure_sum"],
        "spent": {key: spent[key] for key in ("epsilon", "delta", "rounds") if key in spent} or None,
        "spent_on_sites": {key: whole[key] for key in ("epsilon", "delta", "rounds") if key in whole} or None,
        "spent_by_the_whole_run": {key: in_all[key] for key in ("epsilon", "delta") if key in in_all} or None,
    }


def card_of(
    told: Told,
    bundle: Bundle,
    about: Mapping[str, Any],
    score: np.ndarray,
    label: np.ndarray,
    hashes: Mapping[str, str],
    worth: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`score` and `label` are of this site's test rows with this seed. `worth` is what its uncertainty is worth on
    them."""
    classes, several = bundle.classes, bool(bundle.findings)
    at_site = told.at_site
    if told.region is not None and not about["private"]:
        at_site = own_figures(score, label, FIGURES)
    return {
        "title": f"{told.study.name}: {told.asked} at {told.site}",
        "question": told.study.question,
        "introduction": list(told.introduction),
        "origin": {name: about[name] for name in ("study", "run", "arm", "trained_as", "seed", "site", "wardround")},
        "predicts": {
            "classes": list(classes),
            "positive": classes[1] if len(classes) == 2 and not several else None,
            "findings": several,
        },
        "takes": takes(bundle),
        "intended_use": purpose(told.site, classes, several, from_what(bundle)),
        "not_intended": not_for(told.site, told.synthetic),
        "training": {
            "sites": dict(told.trained),
            "algorithm": told.arm.algorithm.name,
            "model": told.arm.model.name,
            "rounds": told.arm.training.rounds,
            "simulated": told.simulated,
            "this_site_trained": told.site in told.trained or told.adapter is not None,
            "rows_here": dict(about["rows"]),
            "adapter": None if told.adapter is None else _adapter(told.adapter),
        },
        "figures": {
            "seeds": list(told.seeds),
            "seed": told.seed,
            "interval": None if told.interval is None else dict(told.interval),
            "all_sites": told.overall,
            "this_site": at_site,
            "this_seed_only": told.region is not None,
            "findings": several,
            "auc_within_sites": told.ranked_within,
        },
        "threshold": about["threshold"],
        "at_threshold": None if about["private"] else at_threshold(bundle, score, label),
        "findings": findings_of(bundle, about, told.findings, score, label),
        "calibration": _calibration(bundle, about, score, label),
        "sure": {
            "words": sure_words(
                bundle.uncertainty, None if told.arm.uncertainty is None else told.arm.uncertainty.method
            ),
            "worth": None if worth is None else dict(worth),
        },
        "privacy": told.privacy,
        "columns": [_column(column, bundle, about["unrecorded"]) for column in bundle.recipe.columns],
        "gaps": gap_words(bundle.recipe),
        "unseen_levels": level_words(bundle.recipe),
        "far": far_words(bundle.far, len(about["features"]), bundle.inputs.images is not None),
        "limits": [*_limits(told, about), *([] if about["private"] else [*_few(classes, label), *told.warnings])],
        "hashes": dict(hashes),
    }


def _adapter(told: Adapter) -> dict[str, Any]:
    return {"epochs": told.epochs, "rows": told.rows, "result": list(told.result), "caution": told.caution}


def at_threshold(bundle: Bundle, score: np.ndarray, label: np.ndarray) -> dict[str, Any] | None:
    """On test rows of this site with this seed; None for more than two classes."""
    if bundle.threshold is None:
        return None
    called, positive = bundle.calls(score) == 1, label == 1
    return {
        "rows": len(label),
        "sensitivity": share_of(called[positive]),
        "specificity": share_of(~called[~positive]),
    }


def _calibration(bundle: Bundle, about: Mapping[str, Any], score: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    """Before and after, on test rows of this site with this seed."""
    fitted = about["calibration"]
    if about["private"] or len(bundle.classes) > 2 or bundle.findings:
        return {"fitted": None, "why_not": about["uncalibrated"], "before": None, "after": None}
    after = bundle.probabilities(score)
    return {
        "fitted": fitted,
        "why_not": about["uncalibrated"],
        "before": _measured(label, score),
        "after": None if after is None else _measured(label, after),
    }


def _measured(label: np.ndarray, score: np.ndarray) -> dict[str, Any] | None:
    if len(label) < SMALLEST_GROUP:
        return None
    found = calibration(label, score, np.arange(len(label)))
    brier = float(np.square(score.astype(np.float64) - label).mean())
    told = {} if found is None else {"slope": found["slope"], "intercept": found["intercept"]}
    return {"brier": brier, "rows": len(label), **told}


def _column(column: Column, bundle: Bundle, unrecorded: Sequence[str]) -> dict[str, Any]:
    layout = bundle.recipe.layout
    levels = layout.levels.get(column.name)
    return {
        "name": column.name,
        "written": column.written,
        "kind": "date" if column.dates else column.kind,
        "range": None if column.limits is None else list(column.limits),
        "levels": None if levels is None else list(levels),
        "indicator": column.name in layout.indicators,
        "recorded_here": column.name not in unrecorded,
    }


def _limits(told: Told, about: Mapping[str, Any]) -> list[str]:
    lines = [told.adapter.caution] if told.adapter is not None and told.adapter.caution else []
    if told.synthetic:
        lines.append("Some or all of the rows are made up.")
    if told.simulated:
        what, whom = ("All sites were", "no hospital was") if told.adapter is None else (SHARED, "none of them was")
        lines.append(f"{what} simulated on one machine from stored rows; {whom} asked during training.")
    if told.site not in told.trained and told.adapter is None:
        lines.append(f"{told.site} did not train: the model has seen none of its rows.")
    trained = told.trained if told.adapter is None else {**told.trained, told.site: told.adapter.rows}
    small = [f"{site} ({rows})" for site, rows in trained.items() if rows is not None and rows < FEW_ROWS]
    if small:
        lines.append(f"Sites with fewer than {FEW_ROWS} training rows: {', '.join(small)}.")
    if len(told.seeds) > 1:
        lines.append(
            f"Figures over seeds speak of {len(told.seeds)} trainings; this bundle is one of them (seed {told.seed})."
        )
    for groups in told.subgroups.values():
        few = [name for name, group in groups.items() if group.get("suppressed")]
        lines += [f"Too few test rows to say anything of: {name}." for name in few]
    if about["private"]:
        lines.append(
            "Threshold, calibration and the mark of far rows use nothing of the patients, and what checks found in the "
            f"rows is not repeated here: {_promise(told)}."
        )
    return lines


def _promise(told: Told) -> str:
    if told.adapter is None:
        return "the study promises each patient privacy"
    return (
        "so it is with every bundle of a study that protects patients. Its promise is to patients of the hospitals "
        f"that trained the shared part; patients of {told.site} are not protected by it"
    )


def _few(classes: Sequence[str], label: np.ndarray) -> list[str]:
    """A share of two patients has no useful interval, whatever the formula says."""
    counts = (label == 1).sum(axis=0) if label.ndim == 2 else np.bincount(label, minlength=len(classes))
    rare = [repr(name) for name, count in zip(classes, counts.tolist(), strict=True) if count < SMALLEST_GROUP]
    if not rare:
        return []
    verb = "have" if label.ndim == 2 else "are"
    return [
        f"Fewer than {SMALLEST_GROUP} test rows of this site, with this seed, {verb} {' or '.join(rare)}: what rests "
        "on them says little, also where its interval is narrow."
    ]
