"""`results.json` as a pure function of saved predictions and records. Described in docs/reference/results.md.

Where predictions stay at their hospital, `deployed_results.py` computes the same from summaries of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.notices import with_texts
from wardround.core.processes import beside
from wardround.evaluation.answer import answer
from wardround.evaluation.claims.verdicts import judge
from wardround.evaluation.comparisons.benefit import (
    benefit,
    best_single,
    by_number_of_sites,
    compared_metrics,
    origin_of,
    site_differences,
    spread,
)
from wardround.evaluation.comparisons.compare import compare_arms, sentence
from wardround.evaluation.comparisons.differences import RULE, correct
from wardround.evaluation.comparisons.fairness import (
    describe_rates,
    describe_spread,
    group_gaps,
    spread_differences,
)
from wardround.evaluation.comparisons.listing import grouped
from wardround.evaluation.comparisons.measures import measure_of
from wardround.evaluation.comparisons.patients import by_patients, is_over_patients
from wardround.evaluation.comparisons.selection import choose, compose
from wardround.evaluation.decision.decision import begin_decision, conclude_decision
from wardround.evaluation.findings import describe_findings, left_out
from wardround.evaluation.hospitals.screening_results import describe_screening, is_screened, screening_notices
from wardround.evaluation.intervals import CONFIDENCE, Resampling, summarise_metrics
from wardround.evaluation.missing_party import describe_exchange, score_missing_party
from wardround.evaluation.participation.virtual_time import describe_time, never_counted, times_to_equal
from wardround.evaluation.regional import describe_regions, score_regions
from wardround.evaluation.scores import Scores, task_of, within_sites
from wardround.evaluation.summaries.merged_summaries import Scored, Summaries
from wardround.evaluation.thresholds import thresholds_of, untested
from wardround.evaluation.training_notices import diverged, perfect, training_notices
from wardround.evaluation.uncertainty.uncertainty_results import score_uncertainty
from wardround.evaluation.under_attack.damage import describe_adversaries
from wardround.screening import NONE_DECIDED, Decisions
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import KIND_OF_SETTING, Arm, Study, anonymous
from wardround.study.tuning import tuned_keys
from wardround.tasks import METRIC_FACTS, Task
from wardround.tasks.class_metrics import SMALLEST_GROUP, mean_or_none

SCHEMA_VERSION = 1
OF_TRAINING = ("loss", "change", "divergence")  # round by round
SCORED_ROWS = ("test", "validation", "training")


def results(
    study: Study,
    predictions: pd.DataFrame,
    groups: pd.DataFrame,
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]] = (),
    task: Task | None = None,
    choices: list[dict[str, Any]] | None = None,
    *,
    selection: pd.DataFrame | None = None,
    validation: pd.DataFrame | None = None,
    regional: pd.DataFrame | None = None,
    missing_party: pd.DataFrame | None = None,
    uncertainty: pd.DataFrame | None = None,
    triggered: pd.DataFrame | None = None,
    at_bad_sites: pd.DataFrame | None = None,
    workers: int = 1,
    decisions: Decisions = NONE_DECIDED,
) -> dict[str, Any]:
    """`groups` gives sex and age band of rows; `records` are the rounds as in `records.parquet`; `sites` describes each
    set of sites. Without a `task` the columns of predictions tell which classes or findings there are. The other tables
    are those of the run folder with the same names. `choices` are values of swept arms that were chosen already.
    `workers` processes compare arms and resample patients. `decisions` are those of people about sites that were named.
    """
    task = task_of(predictions) if task is None else task
    notices = [*diverged(predictions), *training_notices(records, predictions, task), *perfect(predictions, task)]
    notices += screening_notices(study, records, decisions)
    if choices is None:
        choices = choose(study, selection, task) if selection is not None else []
    predictions = compose(predictions, choices)
    if validation is not None:
        validation = untested(compose(validation, choices), predictions, groups)
    thresholds = thresholds_of(study.evaluation.threshold, validation, predictions, task)
    fixed = not isinstance(study.evaluation.threshold, str)
    scores = Scores.of(predictions, groups, thresholds, fixed, task)
    content = assemble(study, scores, choices, records, sites, decisions=decisions, workers=workers)
    content["notices"] = with_texts([*notices, *never_counted(content["arms"], len(content["seeds"]))])
    over_patients = {
        name
        for name, arm in origins(study, choices).items()
        if name in content["arms"] and is_over_patients(study.evaluation_of(arm), scores.seeds)
    }
    content = by_patients(content, scores, over_patients, workers)
    if regional is not None:
        content = score_regions(content, study, predictions, compose(regional, choices), groups, thresholds, task)
    if missing_party is not None:
        content = score_missing_party(
            content, study, predictions, compose(missing_party, choices), groups, thresholds, task
        )
    if uncertainty is not None:
        content = score_uncertainty(content, study, compose(uncertainty, choices), groups, task)
    if at_bad_sites is not None:
        content["adversaries"] = describe_adversaries(
            content, study, scores, predictions, at_bad_sites, triggered, thresholds, sites
        )
    return conclude(content)


def conclude(content: dict[str, Any]) -> dict[str, Any]:
    """Verdicts, once all standard errors are known, and the answer that follows from them.

    All differences in one metric between arms of one variant are one family: those from the reference, those at each
    hospital, and those of the mean over hospitals.
    """
    entries = (*content["tests"], *content["benefit"], *content["site_differences"])
    families = grouped(((content["arms"][entry["arm"]]["variant"], entry["metric"]), entry) for entry in entries)
    for family in (*families.values(), *_fairness_families(content)):
        correct(family)
    correct(content["best_single"])
    for test in content["tests"]:
        test["sentence"] = sentence(test, measure_of(content, test["metric"]))
    content["decision"] = conclude_decision(content)
    content["answer"] = answer(content)
    return content


def _fairness_families(content: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """The gaps of one measure under one arm; and how arms of a variant differ in one measure, between hospitals or
    between groups."""
    variant = {name: arm["variant"] for name, arm in content["arms"].items()}
    families = grouped(((entry["arm"], entry["measure"]), entry) for entry in content["group_gaps"])
    between = {
        key: grouped(((variant[entry["arm"]], entry["measure"]), entry) for entry in content[key])
        for key in ("spread_differences", "group_gap_differences")
    }
    return [*families.values(), *(family for of_key in between.values() for family in of_key.values())]


def origins(study: Study, choices: Sequence[Mapping[str, Any]]) -> dict[str, Arm]:
    """Every arm by its name; for a selected arm, the first of its family."""
    names = [*(arm.name for arm in study.arms), *(choice["arm"] for choice in choices)]
    return {name: origin_of(study, name) for name in names}


def assemble(
    study: Study,
    scores: Scored,
    choices: list[dict[str, Any]],
    records: pd.DataFrame,
    sites: Sequence[Mapping[str, Any]],
    deployed: bool = False,
    decisions: Decisions = NONE_DECIDED,
    workers: int = 1,
) -> dict[str, Any]:
    """`scores` includes the selected arms, `records` does not. With several `workers` arms are compared by another
    process while this one describes them."""
    origin = origins(study, choices)
    of_arm = {str(arm): part for arm, part in compose(records, choices).groupby("arm", sort=False)}
    resampling = {name: Resampling.of(study.evaluation_of(arm)) for name, arm in origin.items()}
    subgroups = _with_rates(_subgroups(scores, resampling), scores, resampling)
    selected = {choice["arm"] for choice in choices}
    primary = study.evaluation.metric
    by_variant = grouped((arm.variant, name) for name, arm in origin.items() if name in scores.arms)
    with beside(partial(_comparisons, study, scores, origin, list(by_variant.values())), workers > 1) as compared:
        arms = {
            name: _arm(study, arm, name in selected, name, scores, subgroups[name], of_arm[name])
            | {
                "topology": _topology(arm, of_arm[name], sites),
                "uncertainty": None,
                "model": None,
            }  # known to its caller
            | {"time": describe_time(study, arm, scores.task, of_arm[name], _sites_of(arm, sites))}
            for name, arm in origin.items()
            if name in scores.arms
        }
        comparisons = compared()
    main = Resampling.of(study.evaluation)
    return {
        "schema_version": SCHEMA_VERSION,
        "deployed": deployed,
        "task": scores.task.to_json(),
        "findings": list(scores.findings),
        "classes": list(next(iter(sites[0]["sites"].values()))["classes"]) if sites else [],
        "primary_metric": primary,
        "primary_within_sites": METRIC_FACTS[primary].ranked and ranks_within_sites(scores, origin),
        "study": {"name": study.name, "question": study.question, "hash": study.hash},
        "seeds": list(study.evaluation.seeds),
        "interval": {"confidence": CONFIDENCE, "method": main.method, "covers": main.covers, "correction": RULE},
        "variants": _variants(study, by_variant),
        "arms": arms,
        **comparisons,
        "by_number_of_sites": by_number_of_sites(study, scores, by_variant.get("", []), primary),
        "decision": begin_decision(study, scores, {name: origin[name] for name in arms}, sites),
        "curves": _curves(scores, of_arm, list(arms)),
        "time_to_equal": times_to_equal(
            scores.task, arms, of_arm, {name: Resampling.of(study.evaluation_of(origin[name])) for name in arms}
        ),
        "selection": choices,
        "claims": [judge(claim, study, scores, arms, sites) for claim in study.claims],
        "citations": _citations(study),
        **({"screening": describe_screening(study, records, decisions)} if is_screened(study) else {}),
    }


def _citations(study: Study) -> list[str]:
    """Of the algorithms, sources, partitions and models that the arms use, as each declares it."""
    arms = study.trained_arms
    used = [arm.algorithm.facts.citation for arm in arms] + [arm.data.facts.citation for arm in arms]
    used += [arm.aggregation.facts.citation for arm in arms if not arm.by_mean]
    used += [arm.sites.facts.citation for arm in arms] + [arm.model.facts.citation for arm in arms]
    return [citation for citation in dict.fromkeys(used) if citation]


def _arm(
    study: Study, arm: Arm, selected: bool, name: str, scores: Scored, subgroups: dict[str, Any], records: pd.DataFrame
) -> dict[str, Any]:
    resampling = Resampling.of(study.evaluation_of(arm))
    by_site = scores.by_site[name]
    described = describe_findings(scores, name, resampling)
    open_keys = arm.algorithm.options if selected else tuned_keys(study, arm)  # each seed has its own
    settings = {name: value for name, value in arm.algorithm.options.items() if name not in open_keys}
    algorithm = {"name": arm.algorithm.name, **settings}
    return {
        "family": arm.family,
        "variant": arm.variant,
        "algorithm": algorithm,
        "data": {"name": arm.data.name, **anonymous(arm.data.options)},
        "partition": {"name": arm.sites.name, **arm.sites.options},
        "stragglers": asdict(arm.training.stragglers) if arm.training.stragglers else None,
        "train_at": list(arm.train_at) or None,
        "metrics": summarise_metrics(scores.metric_names, scores.overall[name], resampling),
        "auc_error_bound": scores.auc_error_bound(name),
        "sites": {site: summarise_metrics(scores.metric_names, own, resampling) for site, own in by_site.items()},
        "own_models": has_own_models(arm),
        "within_sites": summarise_metrics(
            scores.metric_names,
            within_sites(by_site, len(scores.metric_names)),
            resampling,
            # models of their own are judged within sites by metrics that rank rows
            {*scores.task.over_sites, *_ranked(scores.task), study.evaluation.metric},
        ),
        "spread": spread(scores, name, study.evaluation.metric)
        | {"over_sites": describe_spread(scores, name, study.evaluation.metric, resampling)},
        "predicted_classes": describe_predicted_classes(scores, name),
        "subgroups": subgroups,
        "calibration": scores.calibration(name),
        "decision_curve": scores.decision_curve(name),
        "score_histogram": scores.score_histogram(name),
        "ranking": scores.ranking(name),
        "findings": described,
        "left_out": left_out(described),
        "convergence": _convergence(scores.task, records),
        "final": _final(scores.task, records),
        "cost": _cost(records),
        "compression": _compression(arm, records),
        **({} if arm.by_mean else {"aggregation": describe_rule(arm)}),
    }


def _ranked(task: Task) -> list[str]:
    return [metric.name for metric in task.metrics if metric.ranked]


def describe_predicted_classes(scores: Scored, arm: str) -> dict[str, Any] | None:
    """By class, in the order of the study's classes: test rows of it and rows predicted as it, in all seeds together.

    `constant` is the accuracy of predicting the most frequent class for every row. `threshold` is the threshold of the
    positive class of two, on average over seeds, and whether validation rows chose it in all of them. None for
    findings, which have thresholds and counts of their own, and where no site sends counts by class.
    """
    if scores.task.answers != "class":
        return None
    return _predicted_from_rows(scores, arm) if isinstance(scores, Scores) else _predicted_from_summaries(scores, arm)


def _predicted_from_rows(scores: Scores, arm: str) -> dict[str, Any] | None:
    places = scores.of_arm(arm)
    diverged = np.unique(scores.seed[places][np.isnan(scores.score[places]).reshape(len(places), -1).any(axis=1)])
    places = places[~np.isin(scores.seed[places], diverged)]
    if not len(places):
        return None
    binary, classes = scores.task.threshold_rule is not None, len(scores.task.names)
    pairs = scores.label[places] * classes + scores.predicted[places]
    confusion = np.bincount(pairs.astype(np.int64), minlength=classes**2).reshape(classes, classes).tolist()
    threshold = {"mean": float(scores.thresholds[places].mean()), "chosen": bool(scores.chosen[places].all())}
    rows, predicted = np.sum(confusion, axis=1).tolist(), np.sum(confusion, axis=0).tolist()
    return _predicted_classes(rows, predicted, threshold if binary else None, confusion)


def _predicted_from_summaries(scores: Summaries, arm: str) -> dict[str, Any] | None:
    """Of the sites that send counts by class. Each has a threshold of its own, which stays there."""
    summaries = [line for seed in scores.seeds for line in scores.at(arm, seed) if not line["diverged"]]
    sums = [line["sums"] for line in summaries if line.get("sums") is not None]
    counts = [of_site["confusion"] for of_site in sums if of_site["confusion"]]
    if not counts:
        return None
    of_classes = [
        [sum(of_site[c][name] for of_site in counts) for name in ("tp", "fp", "fn", "tn")]
        for c in range(len(counts[0]))
    ]
    rows, predicted = [tp + fn for tp, _, fn, _ in of_classes], [tp + fp for tp, fp, _, _ in of_classes]
    confusion = None  # of several classes each is counted against the rest
    if len(of_classes) == 1:  # two classes: the counts are those of the positive one
        tp, fp, fn, tn = of_classes[0]
        confusion = [[tn, fp], [fn, tp]]
        rows, predicted = [fp + tn, *rows], [fn + tn, *predicted]
    return _predicted_classes(rows, predicted, None, confusion)


def _predicted_classes(
    rows: list[int], predicted: list[int], threshold: dict[str, Any] | None, confusion: list[list[int]] | None
) -> dict[str, Any]:
    return {
        "rows": rows,
        "predicted": predicted,
        "confusion": confusion,
        "never_predicted": [number for number, count in enumerate(rows) if count and not predicted[number]],
        "constant_accuracy": max(rows) / sum(rows),
        "threshold": threshold,
    }


def _topology(arm: Arm, records: pd.DataFrame, sites: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if arm.topology.kind == "vertical":
        return describe_exchange(arm, records)
    federated = arm.algorithm.facts.federated
    return describe_regions(arm, records, sites) if arm.topology.kind == "hierarchical" and federated else None


def _sites_of(arm: Arm, sites: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The sites that train in an arm, as they were described."""
    known: Mapping[str, Any] = next((group["sites"] for group in sites if arm.name in group["arms"]), {})
    return {name: site for name, site in known.items() if not arm.train_at or name in arm.train_at}


def _comparisons(
    study: Study, scores: Scored, origin: Mapping[str, Arm], variants: Iterable[Sequence[str]]
) -> dict[str, list[dict[str, Any]]]:
    primary = study.evaluation.metric
    metrics = compared_metrics(scores.task, primary)
    keys = ("tests", "benefit", "site_differences", "best_single", "spread_differences")
    entries: dict[str, list[dict[str, Any]]] = {key: [] for key in (*keys, "group_gaps", "group_gap_differences")}
    for names in variants:
        entries["tests"] += _tests(study, scores, names, origin)
        entries["benefit"] += benefit(study, scores, names, metrics)
        entries["site_differences"] += site_differences(study, scores, names, metrics)
        entries["best_single"] += best_single(study, scores, names, primary)
        entries["spread_differences"] += spread_differences(study, scores, names, primary)
        for key, gaps in group_gaps(study, scores, names).items():
            entries[key] += gaps
    return entries


def ranks_within_sites(scores: Scored, origin: Mapping[str, Arm]) -> bool:
    """Whether metrics that rank rows are compared within sites, in every arm alike.

    Scores of models that differ from site to site are not on one scale, and an AUC over all rows rewards such a model
    for knowing the site. An AUC over all sites from histograms may be wrong by more than arms differ, and with several
    classes there is none.
    """
    own = any(has_own_models(arm) for name, arm in origin.items() if name in scores.arms)
    bounds = [scores.auc_error_bound(name) for name in scores.arms]
    return own or any(bounds) or all(bound is None for bound in bounds)


def _variants(study: Study, by_variant: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    text = {"": "the study as it stands"} | {variant.name: variant.text for variant in study.variants}
    described = {}
    for name in by_variant:
        arm = next(arm for arm in study.arms if arm.variant == name)
        resampling = Resampling.of(study.evaluation_of(arm))
        described[name] = {"text": text[name], "method": resampling.method, "covers": resampling.covers}
    return described


def _subgroups(scores: Scored, resampling: Mapping[str, Resampling]) -> dict[str, dict[str, Any]]:
    """Seeds in which a group has fewer test rows than SMALLEST_GROUP do not count; none left means suppressed."""
    described: dict[str, dict[str, Any]] = {arm: {} for arm in scores.arms}
    for kind, values, figures, rows in scores.subgroups():
        for a, arm in enumerate(scores.arms):
            described[arm][kind] = {}
            for v, value in enumerate(values):
                large = rows[a, :, v] >= SMALLEST_GROUP
                if large.any():
                    described[arm][kind][value] = {
                        "rows": float(rows[a, large, v].mean()),
                        "metrics": summarise_metrics(scores.metric_names, figures[a, large, v], resampling[arm]),
                    }
                elif rows[a, :, v].any():
                    described[arm][kind][value] = {"suppressed": True}
    return described


def _with_rates(
    described: dict[str, dict[str, Any]], scores: Scored, resampling: Mapping[str, Resampling]
) -> dict[str, dict[str, Any]]:
    """With the rates of each group that is described, where one class of two is predicted."""
    for kind in scores.group_rates():
        for (a, arm), (v, value) in product(enumerate(scores.arms), enumerate(kind.values)):
            if "metrics" in (entry := described[arm].get(kind.kind, {}).get(value, {})):
                entry["rates"] = describe_rates(kind.rates[a, :, v], resampling[arm])
    return described


def _tests(study: Study, scores: Scored, names: Sequence[str], origin: Mapping[str, Arm]) -> list[dict[str, Any]]:
    """Each arm of a variant on the reference's data against the reference, where all sites train in both."""
    reference = study.reference_of(origin[names[0]].variant)
    if reference is None or reference not in names:
        return []
    other = origin[reference]
    comparable = [name for name in names if name != reference and _rows_of(origin[name]) == _rows_of(other)]
    resampling, within = Resampling.of(study.evaluation_of(other)), ranks_within_sites(scores, origin)
    return compare_arms(scores, comparable, reference, resampling, within, study.evaluation.metric)


def has_own_models(arm: Arm) -> bool:
    """Whether sites predict with models that differ from site to site, in whole or in part."""
    algorithm = arm.algorithm.facts
    return algorithm.personal or (arm.model.facts.keeps_private and not algorithm.pools)


def _rows_of(arm: Arm) -> tuple[Any, ...]:
    """What must be alike for two arms to be compared: their rows, and who trains."""
    settings = {key: value for key, value in arm.data.options.items() if key not in arm.data.facts.same_rows}
    return arm.data.name, settings, arm.preparation.missing == "drop", arm.train_at


def _convergence(task: Task, records: pd.DataFrame) -> dict[str, Any]:
    """Rounds until 95 % of the last round's accuracy (for findings: AUC; of an error, 5 % above the last), on
    validation rows where there are any.

    Whatever the primary metric is: after each round only these are computed.
    """
    figure = next((name for name in task.round_metrics if f"test_{name}" in records), task.curve)
    validated = f"validation_{figure}" in records and records[f"validation_{figure}"].notna().any()
    subset = "validation" if validated else "test" if f"test_{figure}" in records else None
    needed = (
        np.array([])
        if subset is None
        else _rounds_needed(records, f"{subset}_{figure}", METRIC_FACTS[figure].lower_is_better)
    )
    final = records[records["round"] == records["round"].max()]
    change = records.groupby("round")["change"].mean()
    return {
        "measured_on": subset,
        "measured_by": figure,
        "rounds_to_95_percent": {
            "mean": float(needed.mean()) if len(needed) else None,
            "sd": float(needed.std(ddof=1)) if len(needed) > 1 else None,
        },
        "final_change": mean_or_none(final["change"]),
        "mean_change": mean_or_none(change),
        "final_divergence": mean_or_none(final["divergence"]),
        "final_update_norm": mean_or_none(final["update_norm"]),
    }


def _final(task: Task, records: pd.DataFrame) -> dict[str, float | None]:
    """Loss and accuracy, or the task's own `curve`, after the last round on other rows than test rows, where the study
    asks for them."""
    last = records[records["round"] == records["round"].max()]
    return {name: mean_or_none(last[name]) for name in task.after_training() if name in last}


def _curve_names(task: Task) -> list[str]:
    return [*(f"{rows}_{figure}" for rows in SCORED_ROWS for figure in task.curves()), *OF_TRAINING]


def _rounds_needed(records: pd.DataFrame, name: str, lower_is_better: bool) -> np.ndarray:
    """Of each seed that did not diverge."""
    curve = records.pivot(index="seed", columns="round", values=name)  # columns in order of rounds
    # rounds that were not evaluated are NaN: not reached
    last = curve.iloc[:, -1]
    reached = (curve.le(last / 0.95, axis=0) if lower_is_better else curve.ge(0.95 * last, axis=0)).to_numpy()
    return np.asarray(curve.columns.to_numpy()[reached.argmax(axis=1)][reached.any(axis=1)])


def _curves(
    scores: Scored, of_arm: Mapping[str, pd.DataFrame], arms: Sequence[str]
) -> dict[str, dict[str, list[float | None]]]:
    """Means over seeds, round by round; null where a round was not evaluated."""
    curves = {}
    for arm in arms:
        shown = [name for name in _curve_names(scores.task) if name in of_arm[arm]]
        means = of_arm[arm].groupby("round")[shown].mean()
        lines = {name: [None if np.isnan(v) else float(v) for v in means[name]] for name in shown}
        curves[arm] = {"round": means.index.tolist(), **lines}
    return curves


def describe_rule(arm: Arm) -> dict[str, Any]:
    """The rule with its settings, and what is done before it, where that is something."""
    default = asdict(Preaggregation())
    before = {name: value for name, value in asdict(arm.preaggregation).items() if value != default[name]}
    return {"rule": arm.aggregation.name, **arm.aggregation.options, **before}


def _compression(arm: Arm, records: pd.DataFrame) -> dict[str, Any] | None:
    """The kind with its own settings, and what it lost: the mean over rounds and seeds, where that may be told."""
    kind = arm.compression.kind
    if kind == "none" or not arm.algorithm.facts.federated:
        return None
    settings = {name: getattr(arm.compression, name) for name, has in KIND_OF_SETTING.items() if has == kind}
    error = mean_or_none(records["compression_error"]) if "compression_error" in records else None
    return {"kind": kind, **settings, "error": error}


def _cost(records: pd.DataFrame) -> dict[str, Any]:
    seeds = records["seed"].nunique()
    up, down, seconds = (float(np.sum(records[name])) / seeds for name in ("bytes_up", "bytes_down", "seconds"))
    rounds = int(records["round"].max())
    engines = records["engine"].dropna().unique().tolist()
    engine = engines[0] if len(engines) == 1 else None
    cost = {"rounds": rounds, "bytes": up + down, "bytes_up": up, "bytes_down": down, "seconds": seconds}
    updates = float(records["sites"].map(len).sum()) / seeds
    of_seeds = records.groupby("seed")["seconds"].sum()
    spread = {"fastest": float(of_seeds.min()), "median": float(of_seeds.median())}
    return {**cost, "seed_seconds": spread, "engine": engine, "updates": updates}
