"""Parts of a card that not every bundle has: findings, images, parties, how sure it is. As plain data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from wardround.bundles.bundle import Bundle
from wardround.bundles.out_of_distribution import SHARE, OutOfDistribution
from wardround.bundles.uncertainty import Uncertainty
from wardround.core.notices import CODES, Notice, line_of, read_notice
from wardround.data.parties import IMAGE
from wardround.data.prepare import Recipe
from wardround.data.records import Column
from wardround.evaluation.calibration_curves import calibration
from wardround.evaluation.intervals import CONFIDENCE
from wardround.evaluation.metrics import SMALLEST_GROUP, metrics
from wardround.runs.spending import EACH_SITE
from wardround.study.schema import Arm, Study

Row = dict[str, Any]
ENSEMBLE = (
    "The study tells how sure an ensemble of its seeds' models is. This bundle is one of these models: what the report "
    "says of uncertainty is the ensemble's, and what is said here is of this model alone."
)


def findings_told(found: Mapping[str, Any], site: str) -> dict[str, Any]:
    """Of each finding, from an arm's entry in results.json: over all sites, and at this one."""
    return {
        name: {
            "positives": told["sites"].get(site, {}).get("positives"),
            "all_sites": told["metrics"].get("auc"),
            "this_site": told["sites"].get(site, {}).get("metrics", {}).get("auc"),
        }
        for name, told in found["findings"].items()
    }


def findings_of(
    bundle: Bundle, about: Mapping[str, Any], told: Mapping[str, Any], score: np.ndarray, label: np.ndarray
) -> list[Row] | None:
    """With how often each is called right at its threshold, on test rows of this site with this seed."""
    if not bundle.findings:
        return None
    called = bundle.predicted(score) == 1
    made = []
    for f, one in enumerate(about["findings"]):
        known, positive = label[:, f] >= 0, label[:, f] == 1
        made.append(
            {
                **one,
                "auc": told.get(one["name"], {}),
                "positives": int(positive.sum()),
                "sensitivity": None if about["private"] else share_of(called[positive, f]),
                "specificity": None if about["private"] else share_of(~called[known & ~positive, f]),
            }
        )
    return made


def share_of(hits: np.ndarray) -> dict[str, Any] | None:
    """With its interval (Wilson, JASA 1927); None where there are too few rows to speak of."""
    n = len(hits)
    if n < SMALLEST_GROUP:
        return None
    p, z = float(hits.mean()), float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)))
    return {"value": p, "interval": [max(0.0, middle - half), min(1.0, middle + half)], "rows": n}


def own_figures(score: np.ndarray, label: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    """Of these rows alone, where the run's results are of another model."""
    found = metrics(label, score)
    return {name: {"mean": None if np.isnan(found[name]) else float(found[name])} for name in names}


def takes(bundle: Bundle) -> dict[str, Any]:
    """What a row is made of."""
    images, parts = bundle.inputs.images, bundle.inputs.parts
    held = bundle.inputs.columns or {}
    scale = {
        "none": "pixels count from 0 to 1 as they are",
        "site": "pixels are brought to the scale of this site's training images",
        "image": "each image is brought to one mean and one contrast by itself",
    }
    return {
        "image": None
        if images is None
        else {"pixels": images.shape[1], "scale": scale[images.scale], "clahe": images.clahe},
        "parties": [
            {
                "name": part.party,
                "holds": ["the image" if name == IMAGE else name for name in held.get(part.party, ())],
                "may_be_absent": part.present is not None,
            }
            for part in parts
        ],
    }


def from_what(bundle: Bundle) -> str:
    """In words, for a sentence."""
    images, columns = bundle.inputs.images is not None, bool(bundle.recipe.columns)
    if images and columns:
        return "from an image and the columns listed below"
    return "from an image" if images else "from the columns listed below"


def sure_words(how: Uncertainty | None, asked: str | None = None) -> list[str]:
    """What each of the columns means, or why it is not there. `asked` is the method of the study, if it names one."""
    if how is None:
        return []
    lines = {
        "dropout": f"Interval: {how.passes} networks, each with other cells left out (Monte Carlo dropout), give a "
        "score each; the middle 90 % of them, and the score itself, lie between low and high.",
        "laplace": "Interval: weights of the last layer that fit the training rows of this site about as well "
        "(Laplace's approximation) give a score between low and high with a probability of 90 %.",
        "none": f"There is no interval: {how.why}.",
    }
    told = [lines[how.method]]
    if asked == "ensemble":
        told.insert(0, ENSEMBLE)
    if how.method != "none":
        told.append("An interval says how much the model itself wavers. It does not say that the truth lies within it.")
    if how.cuts is not None:
        alike = "" if how.cuts.values.shape[0] > 2 and how.cuts.values.ndim == 1 else ", of either answer alike"
        told.append(
            "Set: the answers that are not stranger than those of validation rows, and the call. In at least "
            f"{100 * (1 - how.cuts.alpha):.0f} % of rows that are drawn as these were{alike}, the right answer is in "
            "it. Several rows of one patient make that promise weaker."
        )
        few = int(np.isinf(how.cuts.values).sum())
        if few:
            told.append(f"For {few} answers there were too few validation rows: they stand in every set.")
    if how.referral is not None:
        told.append(
            f"Refer: of rows like the validation rows the {100 * how.referral.share:.0f} % that are least clear; every "
            "row whose call had to be added to its set; and every row that is far from the training rows, has a level, "
            "a gap or a value that training did not have, or has no score. The column why names each reason."
        )
    if how.unchosen:
        told.append(
            "There are no sets, and rows are referred only if they are far or unlike training in another way: "
            f"{how.unchosen}."
        )
    return told


def purpose(
    site: str, classes: Sequence[str], findings: bool = False, takes: str = "from the columns listed below"
) -> list[str]:
    if findings:
        what = f"To give each row a score for each of these findings: {', '.join(classes)}"
    elif len(classes) == 2:
        what = f"To give each row a score for {classes[1]!r} against {classes[0]!r}"
    else:
        what = f"To give each row a score for each of: {', '.join(classes)}"
    return [
        f"{what}, {takes}, for patients of {site} whose rows are recorded as its training rows were.",
        "To support a decision that a clinician takes, after a local check on recent rows.",
    ]


def not_for(site: str, synthetic: bool) -> list[str]:
    lines = [
        f"Other hospitals: preparation, threshold and calibration are those of {site}.",
        "Decisions without a person who can overrule them.",
        "Rows that are marked as far, or that have levels or gaps which training did not have, without a look at the "
        "patient.",
        "A medical product needs its own approval; this card is none.",
    ]
    return ["Patients: it was trained on rows that are made up.", *lines] if synthetic else lines


def gap_words(recipe: Recipe) -> list[str]:
    settings, layout = recipe.settings, recipe.layout
    if settings.missing == "drop":
        return ["Training used complete rows only: a row with a gap is given no score."]
    others = "" if settings.schema == "own" else ", or of other sites' where it has none"
    fill = {
        "mean": f"the mean of this site's training rows{others}",
        "median": f"the median of this site's training rows{others}",
        "range": "the middle of the column's public range",
    }[settings.missing]
    lines = []
    if layout.numeric:
        lines.append(f"A gap in a number is filled with {fill}.")
    if layout.levels:
        known = [name for name in layout.levels if name in recipe.fit.fill_level]
        empty = [name for name in layout.levels if name not in recipe.fit.fill_level]
        if known:
            lines.append(f"A gap in a category is filled with the commonest level: {', '.join(known)}.")
        if empty:
            lines.append(f"A gap in a category counts as none of its levels: {', '.join(empty)}.")
    if layout.indicators:
        lines.append(f"The model is told where a gap was: {', '.join(layout.indicators)}.")
    return lines


def level_words(recipe: Recipe) -> list[str]:
    if recipe.settings.categories == "codes":
        return ["Categories are used as the numbers that they are written as, also numbers that training did not have."]
    if not recipe.layout.levels:
        return []
    return ["A level that no training row had counts as none of the known levels, and the row is marked."]


def out_of_distribution_words(rule: OutOfDistribution, width: int, images: bool = False) -> list[str]:
    if rule.kind == "ranges":
        nothing = "No image is marked as far: what images usually look like would be read off patients."
        return [nothing] if images else ["A row is marked as far when a value lies outside its column's public range."]
    over = f"all {width} prepared numbers together"
    if images:
        beside = f", and the {width} prepared numbers of its columns" if width else ""
        over = f"the brightness of its image in 16 parts, its contrast, its grain, its dark and bright pixels{beside}"
    return [
        f"A row is marked as far when its distance from this site's training rows, over {over}, exceeds "
        f"{rule.cut:.3g}.",
        f"Of rows like the training rows, about {100 * (1 - SHARE):.0f} in 100 exceed it.",
    ]


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
    notices: tuple[Notice, ...]
    introduction: tuple[str, ...] = ()  # what must be known first, such as that its parts come from different places
    ranked_within: bool = False  # whether areas under curves over all sites are means of the sites' own
    adapter: Adapter | None = None  # None: all of the model comes from one training
    findings: Mapping[str, Any] = field(default_factory=dict)  # of each: AUC over all sites, at this site
    region: str | None = None  # whose own model it is; None: the model of all


@dataclass(frozen=True)
class Recipient:
    """The hospital that a card goes to. A simulation knows all hospitals' files; a card says nothing of others'."""

    site: str
    hospitals: frozenset[str]  # those of its rows, as the source names them
    columns: frozenset[str]  # of its own file
    is_single: bool  # there is no other site
    same_columns: bool  # all hospitals have them, so that none gives another one away


def notices_for(recipient: Recipient, notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """Those about this hospital or about all, that name no other and no column that its own file does not have."""
    own = {recipient.site, *recipient.hospitals}

    def may_know(notice: Notice) -> bool:
        if recipient.is_single:
            return True
        if notice.site not in ("", *own) or not own.issuperset(notice.other_sites) or CODES[notice.code].about_others:
            return False
        of_own_file = notice.site != "" or recipient.columns.issuperset({*notice.columns, *notice.per_column})
        return recipient.same_columns or of_own_file

    return tuple(filter(may_know, notices))


def ranked_within(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Areas under curves as means of the sites' own: scores of two sites' models cannot be ranked together."""
    return {name: arm["within_sites"][name] for name in ("auc", "pr_auc")}


def told_by(
    results: Mapping[str, Any],
    study: Study,
    arm: Arm,
    asked: str,
    seed: int,
    recipient: Recipient,
    trained: Mapping[str, int],
    region: str | None = None,
) -> Told:
    """From a run's results.json."""
    site = recipient.site
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
        notices=notices_for(recipient, map(read_notice, results["notices"])),
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
        "out_of_distribution": out_of_distribution_words(
            bundle.out_of_distribution, len(about["features"]), bundle.inputs.images is not None
        ),
        "limits": [
            *_limits(told, about),
            *([] if about["private"] else [*_few(classes, label), *map(line_of, told.notices)]),
        ],
        "hashes": dict(hashes),
    }


def _adapter(told: Adapter) -> dict[str, Any]:
    return {"epochs": told.epochs, "rows": told.rows, "result": list(told.result), "caution": told.caution}


def at_threshold(bundle: Bundle, score: np.ndarray, label: np.ndarray) -> dict[str, Any] | None:
    """On test rows of this site with this seed; None for more than two classes."""
    if bundle.threshold is None:
        return None
    called, positive = bundle.predicted(score) == 1, label == 1
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
        "written": column.own_name,
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
