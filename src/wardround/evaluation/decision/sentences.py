"""The sentences of a decision, made last and from values alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.core.notices.code import listed
from wardround.evaluation.comparisons.compare import why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, NO_EVIDENCE
from wardround.evaluation.comparisons.measures import Measure
from wardround.evaluation.decision.advice import MANY_SEEDS, best_case
from wardround.evaluation.decision.words import Subject, amounts, meaning, size, with_limits

MOST_NAMED = 12  # hospitals or ways of training in one sentence
Values = Mapping[str, Any]
ALONE = "each hospital alone"
WHY_NOT = {
    "nobody-together": "No way of training in this study has all hospitals train together",
    "nobody-alone": "In this study no hospital trains alone",
    "one-site": "There is one hospital in this study",
    "parties": "The hospitals of this study hold different columns of the same patients, and no reference was tried",
    "no-figures": "Training failed, or the test rows do not define the measure,",
}


def decision_sentences(content: Values, values: Values, measure: Measure) -> dict[str, str]:
    """`answer`, `size`, `hospitals`, `others`, `power` and `next`; empty where there is nothing to say."""
    subject = Subject(values["outcome"], values["event"], values["averaged"])
    one_run = len(content["seeds"]) == 1
    return {
        "answer": answer_sentence(values, one_run),
        "size": _size(values, measure, subject),
        "hospitals": _hospitals(values),
        "others": _others(values),
        "power": _power(values, measure),
        "next": _next(values, measure),
    }


def answer_sentence(values: Values, one_run: bool) -> str:
    better = f"predict {values['outcome']} better than {rival(values)}"
    if values["why_not"] is not None:
        why = WHY_NOT[values["why_not"]]
        return (
            f"Whether training together helps cannot be said. {why}{'' if why.endswith(',') else ','} so there is "
            "nothing to compare with."
        )
    means, tail = values["mean"], ", for the models of this one training run" if one_run else ""
    many = f", on average over {len(compared(values))} hospitals" if len(compared(values)) > 1 else ""
    if means["verdict"] == GAINS:
        return f"Yes: training together is shown to {better}{many}{tail}."
    if means["verdict"] == LOSES:
        return f"No: training together is shown to {better.replace('better', 'worse')}{many}{tail}."
    if means["verdict"] == NO_EVIDENCE:
        return f"Training together is not shown to {better.replace('better', 'better or worse')}{tail}."
    better = better.removeprefix("predict ")
    return f"Whether training together predicts {better} cannot be told from this run: {why_unknown(means)}."


def rival(values: Values) -> str:
    return f"with {values['alone']}, the study's reference" if values["parties"] else ALONE


def compared(values: Values) -> dict[str, Values]:
    """Hospitals with a result, by name."""
    entries = {site: own["comparison"] for site, own in values["sites"].items()}
    return {site: entry for site, entry in entries.items() if entry and entry["difference"] is not None}


def _size(values: Values, measure: Measure, subject: Subject) -> str:
    entry = values["mean"]
    if entry is None or entry["difference"] is None:
        return ""
    if entry["interval"] is not None and not any((entry["difference"], *entry["interval"])):
        return f"Every result is the same as {'' if values['parties'] else 'with '}{rival(values)}."
    amount, interval = with_limits(measure, entry)
    told = meaning(measure, subject, amount)
    over = [f"the {len(compared(values))} hospitals"] if len(compared(values)) > 1 else []
    over += [subject.averaged] if subject.averaged else []
    average = f", on average over {listed(over)}" if over else ""
    return f"{told[0].upper()}{told[1:]} than {'' if values['parties'] else 'with '}{rival(values)}{average}{interval}."


def _named(names: Sequence[str]) -> str:
    few = list(names[:MOST_NAMED])
    return listed([*few, f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else few)


def with_verdict(values: Values, verdict: str) -> list[str]:
    return [site for site, entry in compared(values).items() if entry["verdict"] == verdict]


def _hospitals(values: Values) -> str:
    known = compared(values)
    if len(known) < 2:
        return ""
    parts = [
        f"a {word} is shown at {_named(sites)}"
        for verdict, word in ((GAINS, "gain"), (LOSES, "loss"))
        if (sites := with_verdict(values, verdict))
    ]
    if not parts:
        text = f"At none of the {len(known)} hospitals, each taken by itself, is a gain or a loss shown"
    else:
        text = f"Taking each hospital by itself, {' and '.join(parts)}"
    lacking = [site for site in values["sites"] if site not in known]
    without = f" {_named(lacking)}: no result, because too few test patients of each kind define it." if lacking else ""
    return f"{text}.{without}"


def _others(values: Values) -> str:
    others = values["others"]
    if not others["compared"]:
        return ""
    one = others["compared"] == 1
    ways = "The other way of training together" if one else f"Of {others['compared']} other ways of training together,"
    parts = [
        f"{'' if one else f'{_named(names)} '}{'are' if len(names) > 1 else 'is'} shown to be {word}"
        for verdict, word in ((GAINS, "better"), (LOSES, "worse"))
        if (names := others[verdict])
    ]
    if not parts:
        return f"{ways} {'is not' if one else 'none is'} shown to be better or worse than {rival(values)}."
    named = f", {_named([*others[GAINS], *others[LOSES]])}," if one else ""
    return f"{ways}{named} {listed(parts)} than {rival(values)}."


def _power(values: Values, measure: Measure) -> str:
    found, needed, patients = values["detectable"], values["patients_needed"], values["patients"]
    if found is None:
        return (
            "" if values["mean"] is None else "What these data could have shown cannot be said: there is no interval."
        )
    share = f"{100 * values['power']:.0f} %"
    text = f"A true difference of {size(measure, found)} would be found by {share} of studies like this one."
    if found >= measure.metric.high - measure.metric.low:
        text = f"No difference, however large, would be found by {share} of studies like this one."
    if needed is None:
        return text
    runs = " and many more training runs" if values["few_seeds"] else ""
    important = size(measure, values["important_difference"]["value"])
    return (
        f"{text} To find {important}, the smallest difference taken to matter, takes about {rounded(needed)} patients"
        f"{runs}; this study has {patients:,}."
    )


def rounded(count: float) -> str:
    """To two digits: it is an estimate."""
    digits = len(str(int(count))) - 2
    return f"{round(count, -digits) if digits > 0 else max(1, round(count)):,.0f}"


def _missing(values: Values) -> str:
    if values["parties"]:
        return "Add to the study a reference: an arm in which the hospital with the outcome has its own columns alone."
    together, alone = (
        "in which all hospitals train together",
        'in which each hospital trains alone (algorithm = "local")',
    )
    lacking = {"nobody-together": together, "nobody-alone": alone}
    if values["why_not"] == "one-site":
        return "Invite other hospitals: with one there is nobody to train with."
    which = lacking.get(values["why_not"])
    needed = f"a way of training {which}" if which else f"one way of training {together}, and one {alone}"
    return f"Add to the study what the answer needs: {needed}, on the same patients."


def _next(values: Values, measure: Measure) -> str:
    by_code = {
        "compare": _missing,
        "repair": _repair,
        "more-seeds": _more_seeds,
        "adopt": _adopt,
        "stay-alone": _stay_alone,
        "collect": _collect,
    }
    code = values["next"]
    if code == "no-gain":
        return _no_gain(values, measure)
    if code == "repeat":
        return (
            "Repeat the study with other patients: the result is open, although there were enough of them to settle it."
        )
    return by_code[code](values)


def _repair(values: Values) -> str:
    where = f" in {_named(values['broken'])}" if values["broken"] else ""
    return f"Repair the training first{where}: see the notes below. Decide nothing from these figures."


def _more_seeds(values: Values) -> str:
    seeds = max(MANY_SEEDS, 2 * values["seeds"])
    so_many = "one run" if values["seeds"] == 1 else "so few"
    return (
        f"Repeat the study with more training runs (at least {seeds} seeds, each with a new split of the patients) "
        f"before deciding: {so_many} cannot tell how far the result depends on chance."
    )


def _adopt(values: Values) -> str:
    losing = with_verdict(values, LOSES)
    without = f" Not at {_named(losing)}: a loss is shown there, so keep its own model." if losing else ""
    return f"Train together, and check the shared model at each hospital before it is used.{without}"


def _stay_alone(values: Values) -> str:
    gaining = with_verdict(values, GAINS)
    besides = f" A gain is shown at {_named(gaining)}: look for partners of that kind." if gaining else ""
    return f"Let each hospital keep the model that it trains alone.{besides}"


def _no_gain(values: Values, measure: Measure) -> str:
    most = best_case(values["mean"])
    if not most:
        return "Stay alone, unless there are other reasons to train together: it changes nothing."
    (amount,) = amounts(measure, [-most if measure.metric.lower_is_better else most])
    important = size(measure, values["important_difference"]["value"])
    return (
        f"Stay alone, unless there are other reasons to train together: even the most that is left open, {amount}, is "
        f"below the {important} that would matter."
    )


def _collect(values: Values) -> str:
    needed = values["patients_needed"]
    many = f" (about {rounded(needed)} in all)" if needed is not None else ""
    return f"Decide nothing yet. Collect more patients{many}, or invite more hospitals, and repeat the study."
