"""A bundle's card as plain data: what it is, what it is for, how well it does, and its limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats

from wardround.bundles.bundle import Bundle, Event, events_of
from wardround.bundles.out_of_distribution import SHARE
from wardround.bundles.uncertainty import Uncertainty
from wardround.core.notices import CODES, Notice, line_of, read_notice
from wardround.data.parties import IMAGE
from wardround.data.prepare import Recipe
from wardround.data.records import Column
from wardround.evaluation.calibration_curves import calibration
from wardround.evaluation.intervals import CONFIDENCE
from wardround.runs.spending import EACH_SITE
from wardround.study.schema import Arm, Study
from wardround.tasks import METRIC_FACTS, Task
from wardround.tasks.answer import Answer
from wardround.tasks.class_metrics import SMALLEST_GROUP

ENSEMBLE = (
    "The study measures the uncertainty of an ensemble of its seeds' models. This bundle is one of these models: what "
    "the report says of uncertainty is the ensemble's, and what is said here is of this model alone."
)
SCALES = {
    "none": "pixels count from 0 to 1 as they are",
    "site": "pixels are brought to the scale of this site's training images",
    "image": "each image is brought to one mean and one contrast by itself",
}


def finding_figures(arm: Mapping[str, Any], site: str) -> dict[str, Any]:
    """Of each finding, from an arm's entry in results.json: over all sites, and at this one."""
    return {
        name: {
            "positives": finding["sites"].get(site, {}).get("positives"),
            "all_sites": finding["metrics"].get("auc"),
            "this_site": finding["sites"].get(site, {}).get("metrics", {}).get("auc"),
        }
        for name, finding in arm["findings"].items()
    }


def _findings(
    bundle: Bundle, about: Mapping[str, Any], figures: Mapping[str, Any], score: np.ndarray, label: np.ndarray
) -> list[dict[str, Any]] | None:
    """With sensitivity and specificity of each at its threshold, on test rows of this site with this seed."""
    if not about["findings"]:
        return None
    unknown = {"sensitivity": None, "specificity": None}
    return [
        {
            **finding,
            "auc": figures.get(finding["name"], {}),
            "positives": int((own_label == 1).sum()),
            **(unknown if about["private"] else _at(event, own_label, own_score)),
        }
        for finding, event, (own_label, own_score) in zip(
            about["findings"], bundle.events, events_of(bundle.task, label, score), strict=True
        )
    ]


def _at(event: Event, label: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """Sensitivity and specificity at the threshold."""
    predicted, positive = score.astype(np.float64) >= event.threshold, label == 1
    return {"sensitivity": share_of(predicted[positive]), "specificity": share_of(~predicted[~positive])}


def share_of(hits: np.ndarray) -> dict[str, Any] | None:
    """With its interval (Wilson, JASA 1927); None where there are too few rows."""
    n = len(hits)
    if n < SMALLEST_GROUP:
        return None
    p, z = float(hits.mean()), float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)))
    return {"value": p, "interval": [max(0.0, middle - half), min(1.0, middle + half)], "rows": n}


def _own_figures(task: Task, score: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    """Of these rows alone, where the run's results are of another model."""
    values = task.figures(label, score)
    return {name: {"mean": None if np.isnan(values[name]) else float(values[name])} for name in figures_of(task)}


def figures_of(task: Task) -> tuple[str, ...]:
    """Metrics of the card, in their order."""
    return task.answer.figures or task.metric_names


def _metric_texts(task: Task) -> dict[str, dict[str, Any]]:
    """How the card writes each metric."""
    texts = {}
    for name in figures_of(task):
        metric = METRIC_FACTS[name]
        better = " (lower is better)" if metric.lower_is_better else ""
        best = f" ({BEST[name]:g} is right)" if name in BEST else better
        unit = task.answer.unit if metric.shown == "units" else ""
        words = f"{WORDS.get(name, metric.words)}{', in ' if unit else ''}{unit}{best}"
        texts[name] = {"words": words, "in_units": metric.shown == "units"}
    return texts


def _inputs(bundle: Bundle) -> dict[str, Any]:
    """What a row is made of."""
    images = bundle.inputs.images
    return {
        "image": None
        if images is None
        else {"pixels": images.shape[1], "scale": SCALES[images.scale], "clahe": images.clahe},
        "signals": None if bundle.inputs.signals is None else bundle.inputs.signals.on_card(),
        "parties": [
            {
                "name": part.party,
                "holds": ["the image" if name == IMAGE else name for name in bundle.inputs.held_by(part.party)],
                "may_be_absent": part.present is not None,
            }
            for part in bundle.inputs.parts
        ],
    }


def uncertainty_text(answer: Answer, settings: Uncertainty | None, method: str | None = None) -> list[str]:
    """What each of the columns means, or why it is not there. `method` is the study's, if it names one."""
    if settings is None:
        return []
    if answer.bounded_by == "residuals":
        return _interval_text(answer, settings)
    lines = [ENSEMBLE] if method == "ensemble" else []
    by_method = {
        "dropout": f"Interval: {settings.passes} networks, each with other cells left out (Monte Carlo dropout), give "
        "a score each; the middle 90 % of them, and the score itself, lie between low and high.",
        "laplace": "Interval: weights of the last layer that fit the training rows of this site about as well "
        "(Laplace's approximation) give a score between low and high with a probability of 90 %.",
        "swag": f"Interval: {settings.passes} networks, drawn around the shared models of late rounds (SWAG), give a "
        "score each; the middle 90 % of them, and the score itself, lie between low and high.",
        "none": f"There is no interval: {settings.why}.",
    }
    lines.append(by_method[settings.method])
    if settings.method != "none":
        lines.append(
            "An interval says how much the model itself varies. It does not say that the truth lies within it."
        )
    lines += _set_text(answer, settings)
    if settings.referral is not None:
        lines.append(
            f"Referral: of rows like the validation rows the {100 * settings.referral.share:.0f} % with the greatest "
            "uncertainty; every row whose predicted class had to be added to its prediction set; and every row that is "
            "out of distribution, has a level, a gap or a value that training did not have, or has no score. The "
            "column why names each reason."
        )
    if settings.unchosen:
        lines.append(
            "There are no prediction sets, and rows are referred only if they are out of distribution or unlike "
            f"training in another way: {settings.unchosen}."
        )
    return lines


def _interval_text(answer: Answer, settings: Uncertainty) -> list[str]:
    """Of a number."""
    lines = [f"There is no interval: {settings.why}."]
    if settings.residuals is not None:
        lines = [
            f"Interval: in {100 * (1 - settings.residuals.alpha):.0f} % or more of rows that are drawn as the "
            f"{settings.residuals.rows:,} validation rows of this site were, the outcome lies between low and high "
            "(split conformal prediction, from the residuals of these rows). That holds on average over such sets of "
            "validation rows; with few of them, or several rows of one patient, it may be clearly less.",
            "An interval is about one patient's outcome, not about the mean of patients like this one. "
            f"{answer.widths}",
        ]
    refers = (
        "Referral: every row that is out of distribution, has a level, a gap or a value that training did not have, "
    )
    return [*lines, f"{refers}or has no prediction. The column why names each reason."]


def _set_text(answer: Answer, settings: Uncertainty) -> list[str]:
    if settings.cuts is None:
        return []
    values = settings.cuts.values
    alike = ", of either answer alike" if answer.events else ""
    lines = [
        "Prediction set: the answers that conform to those of validation rows, and the predicted class. In at least "
        f"{100 * (1 - settings.cuts.alpha):.0f} % of rows that are drawn as these were{alike}, the right answer is in "
        "it. Several rows of one patient make that promise weaker."
    ]
    few = int(np.isinf(values).sum())
    return [*lines, f"For {few} answers there were too few validation rows: they are in every set."] if few else lines


def purpose(bundle: Bundle, site: str) -> list[str]:
    images = bundle.inputs.images is not None
    source = "an image" if images else "the columns listed below" if bundle.inputs.signals is None else "signals"
    if images and bundle.recipe.columns:
        source = "an image and the columns listed below"
    return [
        f"To give each row {bundle.answer.purpose}, from {source}, for patients of {site} whose rows are recorded as "
        "its training rows were.",
        "To support a decision that a clinician takes, after a local check on recent rows.",
    ]


def not_for(answer: Answer, site: str, synthetic: bool) -> list[str]:
    own = f"preparation{' and ' if ' and ' not in answer.chosen else ', '}{answer.chosen}"
    lines = [
        f"Other hospitals: {own} are those of {site}.",
        "Decisions without a person who can overrule them.",
        "Rows that are marked as out of distribution, or that have levels or gaps which training did not have, without "
        "a look at the patient.",
        "A medical product needs its own approval; this card is none.",
    ]
    return ["Patients: it was trained on rows that are made up.", *lines] if synthetic else lines


def gap_text(recipe: Recipe) -> list[str]:
    settings, layout = recipe.settings, recipe.layout
    if settings.missing == "drop":
        return ["Training used complete rows only: a row with a gap is given no score."]
    others = "" if settings.schema == "own" else ", or of other sites' where it has none"
    fill = {
        "mean": f"the mean of this site's training rows{others}",
        "median": f"the median of this site's training rows{others}",
        "range": "the middle of the column's public range",
    }[settings.missing]
    filled = [name for name in layout.levels if name in recipe.fit.fill_level]
    unfilled = [name for name in layout.levels if name not in recipe.fit.fill_level]
    lines = {
        f"A gap in a number is filled with {fill}.": layout.numeric,
        f"A gap in a category is filled with the commonest level: {', '.join(filled)}.": filled,
        f"A gap in a category counts as none of its levels: {', '.join(unfilled)}.": unfilled,
        f"The model is given where a gap was: {', '.join(layout.indicators)}.": layout.indicators,
    }
    return [line for line, columns in lines.items() if columns]


def level_text(recipe: Recipe) -> list[str]:
    if recipe.settings.categories == "codes":
        return ["Categories are used as the numbers that they are written as, also numbers that training did not have."]
    if not recipe.layout.levels:
        return []
    return ["A level that no training row had counts as none of the known levels, and the row is marked."]


def out_of_distribution_text(bundle: Bundle, width: int) -> list[str]:
    rule, inputs, what = bundle.out_of_distribution, bundle.inputs, "recording" if bundle.inputs.signals else "image"
    if rule.kind == "ranges" and inputs.arrays is not None:
        return [f"No {what} is marked as out of distribution: what is usual of them would be read off patients."]
    if rule.kind == "ranges":
        return ["A row is marked as out of distribution when a value lies outside its column's public range."]
    over = f"all {width} prepared numbers together" if inputs.signals is None else inputs.signals.looked_at
    if inputs.images is not None:
        columns = f", and the {width} prepared numbers of its columns" if width else ""
        over = f"the brightness of its image in 16 parts, its contrast, its grain, its dark and bright pixels{columns}"
    return [
        f"A row is marked as out of distribution when its distance from this site's training rows, over {over}, "
        f"exceeds {rule.cut:.3g}.",
        f"Of rows like the training rows, about {100 * (1 - SHARE):.0f} in 100 exceed it.",
    ]


BEST = {"calibration_slope": 1, "calibration_intercept": 0, "calibration_ratio": 1}
WORDS = {"ppv": "positive predictive value", "npv": "negative predictive value"}
SHARED = "The hospitals that trained the shared part were"
REGIONAL = "This is the own model of region {}, as it was before the last average over regions."
ADAPTED = (
    "so it is with every bundle of a study that protects patients. Its promise is to patients of the hospitals that "
    "trained the shared part; patients of {} are not protected by it"
)
FEW_ROWS = 100  # of training: a site with fewer is named among the limits


@dataclass(frozen=True)
class Adapter:
    """The second of two trainings: at one hospital alone, into a shared part that was trained without it."""

    epochs: int
    rows: int  # of this hospital, for training
    result: tuple[str, ...]  # sentences that compare it with training alone
    caution: str  # where it was worse; empty where it was not


@dataclass(frozen=True)
class CardFacts:
    """A site's model in one arm with one seed, and what is known of its run where the bundle is made. Figures that are
    not known there are None."""

    study: Study
    arm: Arm
    requested_arm: str  # its name in the request, which may be that of a selection
    seed: int
    site: str
    trained: Mapping[str, int | None]  # training rows of each site that the model has learnt from
    seeds: tuple[int, ...]
    simulated: bool
    synthetic: bool
    overall: Mapping[str, Any] | None  # metrics over all sites
    at_site: Mapping[str, Any] | None
    interval: Mapping[str, Any] | None  # confidence, method, covers
    privacy: Mapping[str, Any] | None  # what was promised and spent; None: nothing is protected
    subgroups: Mapping[str, Any]
    notices: tuple[Notice, ...]
    introduction: tuple[str, ...] = ()  # what must be known first, such as that its parts come from different places
    ranked_within: bool = False  # whether areas under curves over all sites are means of the sites' own
    adapter: Adapter | None = None  # None: all of the model comes from one training
    findings: Mapping[str, Any] = field(default_factory=dict)  # of each: AUC over all sites, at this site
    region: str | None = None  # if it is the region's own model; None: the model of all
    outcome: str = ""  # which of the study's outcomes it is about; empty: it has one


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


def figures_over_sites(
    results: Mapping[str, Any], task: Task, arm: Arm, requested_arm: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """An arm's metrics over all sites in results.json, and what their intervals are."""
    figures, variant = results["arms"][requested_arm], results["variants"][arm.variant]
    values = dict(figures["metrics"])
    if figures["own_models"]:  # scores of two sites' models cannot be ranked together: the means of the sites' own
        values |= {metric.name: figures["within_sites"][metric.name] for metric in task.metrics if metric.ranked}
    kind = {"method": variant["method"], "covers": variant["covers"]}
    interval = {"confidence": results["interval"]["confidence"], **kind}
    return {name: values[name] for name in figures_of(task)}, interval


def promises_of(privacy: Mapping[str, Any] | None, arm: str) -> dict[str, Any] | None:
    """What `privacy` in results.json says that an arm protects; None: nothing."""
    if not privacy or arm not in privacy["arms"]:
        return None
    kinds = {kind: privacy["arms"][arm][kind] for kind in ("example", "site", "secure_sum")}
    return {"guarantee": privacy["guarantee"], **kinds}


def card_facts_of_run(
    results: Mapping[str, Any],
    task: Task,
    study: Study,
    arm: Arm,
    requested_arm: str,
    seed: int,
    recipient: Recipient,
    trained: Mapping[str, int],
    region: str | None = None,
    outcome: str = "",
) -> CardFacts:
    """From a run's results.json. Its figures are not those of a region's own model."""
    site = recipient.site
    figures = results["arms"][requested_arm]
    overall, interval = figures_over_sites(results, task, arm, requested_arm)
    facts = CardFacts(
        study=study,
        arm=arm,
        requested_arm=requested_arm,
        seed=seed,
        site=site,
        trained=trained,
        seeds=tuple(results["seeds"]),
        simulated=not results["deployed"],
        synthetic=bool(results.get("synthetic")),
        overall=overall,
        at_site={name: figures["sites"][site][name] for name in figures_of(task)},
        interval=interval,
        privacy=_privacy(results.get("privacy"), arm.name, site),
        subgroups=figures["subgroups"],
        notices=notices_for(recipient, map(read_notice, results["notices"])),
        ranked_within=bool(figures["own_models"]),
        findings=finding_figures(figures, site),
        outcome=outcome,
    )
    if region is None:
        return facts
    introduction = (REGIONAL.format(region),)
    return replace(
        facts, overall=None, at_site=None, interval=None, findings={}, introduction=introduction, region=region
    )


def _privacy(privacy: Mapping[str, Any] | None, arm: str, site: str) -> dict[str, Any] | None:
    promises = promises_of(privacy, arm)
    if privacy is None or promises is None:
        return None
    sites, total = privacy["arms"][arm]["sites"], privacy.get("total") or {}
    return {
        **promises,
        "spent": _spent(sites.get(site), "epsilon", "delta", "rounds"),
        "spent_on_sites": _spent(sites.get(EACH_SITE), "epsilon", "delta", "rounds"),
        "spent_by_the_whole_run": _spent(total.get(site), "epsilon", "delta"),
    }


def _spent(entry: Mapping[str, Any] | None, *keys: str) -> dict[str, Any] | None:
    return {key: entry[key] for key in keys if key in entry} or None if entry else None


def card_of(
    facts: CardFacts,
    bundle: Bundle,
    about: Mapping[str, Any],
    score: np.ndarray,
    label: np.ndarray,
    hashes: Mapping[str, str],
    evaluation: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`score` and `label` are of this site's test rows with this seed; `evaluation` is of its uncertainty on them."""
    answer, private = bundle.answer, about["private"]
    regional = facts.region is not None
    method = None if facts.arm.uncertainty is None else facts.arm.uncertainty.method
    return {
        "title": f"{facts.study.name}: {', '.join(filter(None, (facts.outcome, facts.requested_arm)))} at {facts.site}",
        "question": facts.study.question,
        "introduction": list(facts.introduction),
        "origin": {name: about[name] for name in ("study", "run", "arm", "trained_as", "seed", "site", "wardround")},
        "predicts": {**answer.described(), "form": answer.form},
        "takes": _inputs(bundle),
        "intended_use": purpose(bundle, facts.site),
        "not_intended": not_for(answer, facts.site, facts.synthetic),
        "training": {
            "sites": dict(facts.trained),
            "algorithm": facts.arm.algorithm.name,
            "model": facts.arm.model.name,
            "rounds": facts.arm.training.rounds,
            "simulated": facts.simulated,
            "this_site_trained": facts.site in facts.trained or facts.adapter is not None,
            "rows_here": dict(about["rows"]),
            "adapter": None if facts.adapter is None else asdict(facts.adapter),
        },
        "figures": {
            "seeds": list(facts.seeds),
            "seed": facts.seed,
            "interval": None if facts.interval is None else dict(facts.interval),
            "all_sites": facts.overall,
            "this_site": _own_figures(bundle.task, score, label) if regional and not private else facts.at_site,
            "this_seed_only": regional,
            "findings": answer.described()["findings"],
            "metrics": _metric_texts(bundle.task),
            "predicted_at": answer.predicted_at,
            "auc_within_sites": facts.ranked_within,
        },
        "threshold": about["threshold"],
        "at_threshold": None if private else at_threshold(bundle, about, score, label),
        "findings": _findings(bundle, about, facts.findings, score, label),
        "calibration": _calibration(bundle, about, score, label),
        "uncertainty": {
            "text": uncertainty_text(answer, bundle.uncertainty, method),
            "evaluation": None if evaluation is None else dict(evaluation),
        },
        "privacy": facts.privacy,
        "columns": [_column(column, bundle, about["unrecorded"]) for column in bundle.recipe.columns],
        "gaps": gap_text(bundle.recipe),
        "unseen_levels": level_text(bundle.recipe),
        "out_of_distribution": out_of_distribution_text(bundle, len(about["features"])),
        "limits": [
            *_limits(answer, facts, private),
            *_start(facts, about),
            *([] if private else [*_few(answer, label), *map(line_of, facts.notices)]),
        ],
        "hashes": dict(hashes),
    }


def at_threshold(
    bundle: Bundle, about: Mapping[str, Any], score: np.ndarray, label: np.ndarray
) -> dict[str, Any] | None:
    """On test rows of this site with this seed; None where a row has no one threshold."""
    if about["threshold"] is None:
        return None
    return {"rows": len(label), **_at(bundle.events[0], label, score)}


def _calibration(bundle: Bundle, about: Mapping[str, Any], score: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    """Before and after, on test rows of this site with this seed."""
    fitted = about["calibration"]
    names = [name for name in bundle.task.metric_names if name in BEST]
    if names and not about["private"]:
        own = _own_figures(bundle.task, score, label) if len(label) >= SMALLEST_GROUP else {}
        before = {"rows": len(label), **{name: own[name] for name in names}} if own else None
        return {"fitted": None, "why_not": about["uncalibrated"], "before": before, "after": None}
    if about["private"] or about["threshold"] is None:
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
    curve = calibration(label, score, np.arange(len(label)))
    brier = float(np.square(score.astype(np.float64) - label).mean())
    fit = {} if curve is None else {"slope": curve["slope"], "intercept": curve["intercept"]}
    return {"brier": brier, "rows": len(label), **fit}


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


def _limits(answer: Answer, facts: CardFacts, private: bool) -> list[str]:
    lines = [facts.adapter.caution] if facts.adapter is not None and facts.adapter.caution else []
    if facts.synthetic:
        lines.append("Some or all of the rows are made up.")
    lines += _limits_of_training(facts)
    if len(facts.seeds) > 1:
        lines.append(
            f"Figures over seeds are of {len(facts.seeds)} trainings; this bundle is one of them (seed {facts.seed})."
        )
    for groups in facts.subgroups.values():
        few = [name for name, group in groups.items() if group.get("suppressed")]
        lines += [f"Too few test rows to say anything of: {name}." for name in few]
    if private:
        promise = "the study promises each patient privacy" if facts.adapter is None else ADAPTED.format(facts.site)
        lines.append(
            f"{answer.not_chosen} and the mark of rows out of distribution use nothing of the patients, and what "
            f"checks noticed in the rows is not repeated here: {promise}."
        )
    return lines


def _start(facts: CardFacts, about: Mapping[str, Any]) -> list[str]:
    """Of a model whose training went on from another one."""
    source = facts.arm.start.start_from
    if source is None:
        return []
    sites = list(dict.fromkeys(site for training in about["trained"][1:] for site in training["sites"]))
    where = f", at {', '.join(sites)}" if sites else ""
    return [
        f"Training did not begin with random weights: it went on from a model that was trained before{where} (digest "
        f"{(source.digest or '')[:12]}). What it has learnt there is still in it; how well it still does there is not "
        "said here."
    ]


def _limits_of_training(facts: CardFacts) -> list[str]:
    lines, trained = [], dict(facts.trained)
    if facts.simulated:
        what, whom = ("All sites were", "no hospital was") if facts.adapter is None else (SHARED, "none of them was")
        lines.append(f"{what} simulated on one machine from stored rows; {whom} asked during training.")
    if facts.adapter is not None:
        trained[facts.site] = facts.adapter.rows
    elif facts.site not in trained:
        lines.append(f"{facts.site} did not train: the model has seen none of its rows.")
    small = [f"{site} ({rows})" for site, rows in trained.items() if rows is not None and rows < FEW_ROWS]
    if small:
        lines.append(f"Sites with fewer than {FEW_ROWS} training rows: {', '.join(small)}.")
    return lines


def _few(answer: Answer, label: np.ndarray) -> list[str]:
    """A share of two patients has no useful interval, whatever the formula says."""
    rare = [repr(name) for name, count in answer.counts(label).items() if count < SMALLEST_GROUP]
    if not rare:
        return []
    return [
        f"Fewer than {SMALLEST_GROUP} test rows of this site, with this seed, {answer.few} {' or '.join(rare)}: what "
        "rests on them says little, also where its interval is narrow."
    ]
