"""`adversaries` of results.json: who was bad, what it cost the honest sites, and whether backdoors work.

Figures of a study with adversaries are those of its honest sites: sites that are bad in no arm, so that every arm is
measured at the same ones. What an attack costs is the difference from the same arm without adversaries, paired over
seeds. Test rows are never poisoned, at bad sites neither: their patients' figures are told apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from wardround.core.notices.code import few
from wardround.evaluation.comparisons.differences import correct
from wardround.evaluation.comparisons.paired import MEAN, compare_predictions
from wardround.evaluation.intervals import Resampling, summarise_metrics
from wardround.evaluation.scores import Scores
from wardround.evaluation.under_attack.backdoor import describe_backdoors
from wardround.study.robustness.adversary_validation import bad_in, bad_sites, reaches_others, twin_of
from wardround.study.schema import Adversary, Arm, Study

Tables = Mapping[str, pd.DataFrame | None]
MOST_NAMED = 8


def honest_tables(study: Study, predictions: pd.DataFrame, others: Tables) -> tuple[pd.DataFrame, Tables]:
    """All tables without the rows of bad sites, which are in a table of their own.

    What validation rows choose is chosen without bad sites too: where labels are inverted, validation labels would be.
    """
    bad = bad_sites(study)
    if not bad:
        return predictions, others
    honest = {kind: table if table is None else _without(table, bad) for kind, table in others.items()}
    return _without(predictions, bad), {**honest, "at_bad_sites": predictions[predictions["site"].isin(bad)]}


def _without(table: pd.DataFrame, bad: Sequence[str]) -> pd.DataFrame:
    return table[~table["site"].isin(bad)].reset_index(drop=True)


def describe_adversaries(
    content: Mapping[str, Any],
    study: Study,
    scores: Scores,
    predictions: pd.DataFrame,
    at_bad_sites: pd.DataFrame,
    triggered: pd.DataFrame | None,
    thresholds: pd.DataFrame | None,
    sites: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """`scores` and `predictions` are those of honest sites; `thresholds` those of all arms."""
    fixed, task = scores.fixed, scores.task
    bad_scores = Scores.of(at_bad_sites, scores.groups, thresholds, fixed, task)
    attacked = [arm for arm in study.arms if reaches_others(arm) and arm.name in content["arms"]]
    twins = {arm.name: twin_of(study, arm) for arm in attacked}
    known = {name: twin.name for name, twin in twins.items() if twin is not None}
    damage = _damage(study, scores, predictions, thresholds, known)
    by_backdoor = {} if triggered is None else _by_backdoor(triggered, scores, thresholds)
    return {
        "sentence": _sentence(study, attacked, len(scores.sites)),
        "sites": list(bad_sites(study)),
        "arms": {
            arm.name: {
                "attack": attack_words(arm),
                "adversaries": [_described(known) for known in arm.adversaries],
                "base": (twins[arm.name] or arm).name.partition("@")[0],
                "twin": twin.name if (twin := twins[arm.name]) is not None else None,
                "bad": len(bad_in(arm)),
                "sites": _count(arm, sites),
                "damage": damage.get(arm.name, {}),
                "at_bad_sites": _at_bad_sites(study, arm, bad_scores),
                "backdoors": describe_backdoors(study, arm, scores, by_backdoor),
            }
            for arm in attacked
        },
    }


def _by_backdoor(triggered: pd.DataFrame, scores: Scores, thresholds: pd.DataFrame | None) -> dict[str, Scores]:
    """Of honest sites; `triggered` is without bad sites already, as all tables are."""
    return {
        str(name): Scores.of(part.drop(columns="backdoor"), scores.groups, thresholds, scores.fixed, scores.task)
        for name, part in triggered.groupby("backdoor", sort=False)
    }


def _damage(
    study: Study,
    scores: Scores,
    predictions: pd.DataFrame,
    thresholds: pd.DataFrame | None,
    twins: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """By arm, then metric: at each honest site (one family of an arm), and on average over them (by itself)."""
    if not twins:
        return {}
    clean = [predictions[predictions["arm"] == twin].assign(arm=name) for name, twin in twins.items()]
    own = _thresholds_of(thresholds, twins)
    others = Scores.of(pd.concat(clean, ignore_index=True), scores.groups, own, scores.fixed, scores.task)
    places = {name: [MEAN, *(site for site in scores.by_site[name] if site in others.by_site[name])] for name in twins}
    damage: dict[str, dict[str, Any]] = {}
    for name, place, comparison in compare_predictions(study, places, scores, others):
        for metric, entry in comparison.difference.items():
            of_metric = damage.setdefault(name, {}).setdefault(metric, {"mean": None, "sites": {}})
            if place == MEAN:
                of_metric["mean"] = {**entry, "site": None}
            else:
                of_metric["sites"][place] = entry
    for by_metric in damage.values():
        for of_metric in by_metric.values():
            correct([of_metric["mean"]])
            correct(list(of_metric["sites"].values()))
    return damage


def _thresholds_of(thresholds: pd.DataFrame | None, twins: Mapping[str, str]) -> pd.DataFrame | None:
    """Those of the twins, under the names of the arms that they are compared with."""
    if thresholds is None:
        return None
    arms = thresholds.index.get_level_values("arm")
    return pd.concat([thresholds[arms == twin].rename(index={twin: name}, level="arm") for name, twin in twins.items()])


def _sentence(study: Study, attacked: Sequence[Arm], honest: int) -> str:
    """What must be known before any figure is read."""
    attacks, bad = list(dict.fromkeys(map(attack_words, attacked))), list(bad_sites(study))
    other = f"the other {honest} hospitals" if honest > 1 else "the other hospital"
    return (
        f"This study simulates adversaries: {few(bad, MOST_NAMED)} {'is' if len(bad) == 1 else 'are'} bad in "
        f"{len(attacked)} of {len(study.arms)} ways of training ({few(attacks, MOST_NAMED)}). All figures are those of "
        f"{other}, on rows that nobody has changed."
    )


def attack_words(arm: Arm) -> str:
    """What is done to an arm, without who does it: `sign-flip (strength 10)`."""
    return " and ".join(dict.fromkeys(_words(known) for known in arm.adversaries))


def _words(adversary: Adversary) -> str:
    options = adversary.kind.options
    told = [f"strength {options['strength']:g}"] if isinstance(options.get("strength"), float | int) else []
    told += [f"share {options['share']:g}"] if options.get("share", 1) != 1 else []
    if adversary.from_round > 1:
        told.append(f"from round {adversary.from_round}")
    return f"{adversary.kind.name} ({', '.join(told)})" if told else adversary.kind.name


def _described(adversary: Adversary) -> dict[str, Any]:
    return {
        "kind": adversary.kind.name,
        "sites": list(adversary.sites),
        "from_round": adversary.from_round,
        "poisons": adversary.kind.facts.poisons,
        "settings": {name: _plain(value) for name, value in adversary.kind.options.items()},
    }


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value


def _count(arm: Arm, sites: Sequence[Mapping[str, Any]]) -> int | None:
    """Sites that train in the arm."""
    known = next((described["sites"] for described in sites if arm.name in described["arms"]), None)
    return len(arm.train_at) or (None if known is None else len(known))


def _at_bad_sites(study: Study, arm: Arm, scores: Scores) -> dict[str, Any]:
    """The primary metric at sites that are bad in some arm, on test rows as they are."""
    resampling, metric = Resampling.of(study.evaluation_of(arm)), study.evaluation.metric
    return {
        site: summarise_metrics(scores.metric_names, figures, resampling, [metric])[metric]
        for site, figures in scores.by_site.get(arm.name, {}).items()
    }
