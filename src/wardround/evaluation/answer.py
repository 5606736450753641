"""The answer of a study: sentences on its primary metric, each with the numbers that support it.

They are part of `results.json`, so that terminal, report and programs show the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.core.notices.code import listed
from wardround.evaluation.claims.verdicts import count_outcomes
from wardround.evaluation.comparisons.compare import interval_words, why_unknown
from wardround.evaluation.comparisons.differences import GAINS, LOSES, UNKNOWN, is_clear
from wardround.evaluation.comparisons.listing import grouped
from wardround.evaluation.comparisons.measures import Measure, measure_of
from wardround.evaluation.training_notices import OVERFITTED, PROBLEMS, UNFINISHED
from wardround.tasks import METRIC_FACTS

Content = Mapping[str, Any]
NUMBERS = (
    "arm",
    "reference",
    "against",
    "site",
    "metric",
    "difference",
    "interval",
    "p_value",
    "comparisons",
    "verdict",
)
IN_SENTENCES = {  # singular and plural
    "reproduced": ("is reproduced", "are reproduced"),
    "not reproduced": ("is not reproduced", "are not reproduced"),
    "contradicted by its source": ("is contradicted by its own source", "are contradicted by their own source"),
    "cannot be computed": ("cannot be computed", "cannot be computed"),
    "no verdict": ("is set beside ours without a verdict", "are set beside ours without a verdict"),
}


def answer(content: Content) -> list[dict[str, Any]]:
    """`about`, `text` and `numbers` of each sentence. `content` is a whole results.json except for the answer."""
    sentences = [
        _adversaries(content),
        _single_site(content),
        *_training_problems(content),
        _against_reference(content),
    ]
    sentences += [_against_alone(content), *_never_predicted(content)]
    if content["claims"]:
        sentences.append(_sentence("claims", claim_words(content["claims"]), [count_outcomes(content["claims"])]))
    return [sentence for sentence in sentences if sentence is not None]


def main_arms(content: Content) -> dict[str, Any]:
    """Arms of the main variant in which all sites train; if there is none, those in which some sites do."""
    main = {name: arm for name, arm in content["arms"].items() if not arm["variant"]}
    return {name: arm for name, arm in main.items() if arm["train_at"] is None} or main


def primary_figure(content: Content, arm: str) -> dict[str, Any]:
    """An arm's primary metric: over all sites' test rows, or the mean over sites where arms are compared that way."""
    place = "within_sites" if content["primary_within_sites"] else "metrics"
    return dict(content["arms"][arm][place][content["primary_metric"]])


def primary_word(content: Content) -> str:
    word = METRIC_FACTS[content["primary_metric"]].words
    return f"{word} within sites" if content["primary_within_sites"] else word


def _primary(content: Content) -> Measure:
    return measure_of(content, content["primary_metric"])


def _sentence(about: str, text: str, numbers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"about": about, "text": text, "numbers": [dict(entry) for entry in numbers]}


def _short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: entry[name] for name in NUMBERS if name in entry} for entry in entries]


def _adversaries(content: Content) -> dict[str, Any] | None:
    simulated = content.get("adversaries")
    if simulated is None:
        return None
    return _sentence(
        "adversaries", simulated["sentence"], [{"sites": simulated["sites"], "arms": list(simulated["arms"])}]
    )


def _single_site(content: Content) -> dict[str, Any] | None:
    sites = {site for arm in main_arms(content).values() for site in arm["sites"]}
    if len(sites) != 1:
        return None
    text = "There is one hospital, so that training together cannot be compared with training alone."
    return _sentence("sites", text, [{"sites": sorted(sites)}])


def _training_problems(content: Content) -> list[dict[str, Any]]:
    """Arms whose training failed with every seed: comparing them says nothing about the way of training."""
    sentences = []
    with_every_seed = [(notice["code"], notice.get("arm")) for notice in content["notices"] if "seeds" not in notice]
    for code in dict.fromkeys(code for code, _ in with_every_seed if code in (*PROBLEMS, UNFINISHED, OVERFITTED)):
        broken = [name for name in main_arms(content) if (code, name) in with_every_seed]
        if not broken:
            continue
        if code == UNFINISHED:
            text = (
                f"Training may have stopped too early in {listed(broken)}: with every seed the test loss is still "
                "above that of one answer for everybody. More rounds may change the results below."
            )
        elif code == OVERFITTED:
            text = (
                f"The models of {listed(broken)} fit their training rows and not the test rows: with every seed the "
                "test loss is above that of one answer for everybody. Fewer rounds or `weight_decay` may change the "
                "results below."
            )
        else:
            text = (
                f"Training went wrong in {listed(broken)}, with every seed: {PROBLEMS[code]}. The results of "
                f"{'this arm' if len(broken) == 1 else 'these arms'} below reflect that, not the way of training."
            )
        sentences.append(_sentence("training", text, [{"code": code, "arms": broken}]))
    return sentences


def _against_reference(content: Content) -> dict[str, Any]:
    metric, word, arms = content["primary_metric"], primary_word(content), main_arms(content)
    tests = [test for test in content["tests"] if test["metric"] == metric and test["arm"] in arms]
    known = [test for test in tests if test["difference"] is not None]
    if tests and not known:
        text = (
            f"Nothing can be compared in {word}: {tests[0]['reference']}, or every other arm, has none. Its training "
            "diverged, or its test rows do not define it."
        )
        return _sentence("reference", text, _short(tests))
    if not known:
        return _highest(content)
    decided = [test for test in known if test["verdict"] != UNKNOWN]
    if decided:
        return _sentence("reference", _decided_words(content, decided), _short(decided))
    largest = max(known, key=lambda test: abs(test["difference"]))
    text = (
        f"Nothing can be said about chance: the largest difference from {largest['reference']} is "
        f"{_primary(content).difference(largest['difference'])} of {word} ({largest['arm']}); {why_unknown(largest)}."
    )
    return _sentence("reference", text, _short(known))


def _decided_words(content: Content, decided: Sequence[Mapping[str, Any]]) -> str:
    measure, word = _primary(content), primary_word(content)
    word += " for the models of this one seed" if len(content["seeds"]) == 1 else ""
    clear = [test for test in decided if is_clear(test)]
    if clear:
        differences = "; ".join(
            f"{test['arm']} {'better' if test['verdict'] == GAINS else 'worse'} by "
            f"{measure.difference(abs(test['difference'])).lstrip('+')} ({measure.limits(test)})"
            for test in clear
        )
        return f"Against {clear[0]['reference']}, in {word}: {differences}{_corrected(clear[0])}."
    largest = max(decided, key=lambda test: abs(test["difference"]))
    return (
        f"No arm differs from {largest['reference']} in {word} by more than chance can explain; the largest difference "
        f"is {measure.difference(largest['difference'])} ({largest['arm']}, {interval_words(largest, measure)})."
    )


def _highest(content: Content) -> dict[str, Any]:
    """Without a reference nothing is compared; the best figure is only named."""
    metric, arms = content["primary_metric"], main_arms(content)
    known = {name: mean for name in arms if (mean := primary_figure(content, name)["mean"]) is not None}
    sign = -1 if METRIC_FACTS[metric].lower_is_better else 1
    best = max(known, key=lambda name: sign * known[name], default=None)
    why = "No arm was compared with a reference"
    if best is None:
        return _sentence("reference", f"{why}, and no arm has figures.", [])
    text = f"{why}; the {'lowest' if sign < 0 else 'highest'} {primary_word(content)} is "
    numbers = [{"arm": name, "metric": metric, "mean": mean} for name, mean in known.items()]
    return _sentence("reference", f"{text}{_primary(content).figure(known[best])} ({best}).", numbers)


def _against_alone(content: Content) -> dict[str, Any] | None:
    """The arm that the decision is about, at each hospital and on average over hospitals."""
    metric, measure = content["primary_metric"], _primary(content)
    word, benefit = measure.metric.words, _federated_benefit(content)
    entries = [entry for entry in benefit if entry["difference"] is not None]
    if not entries:
        return None
    arm = entries[0]["arm"]
    mean = _mean_over_sites(content, arm, metric) or entries[0]
    change = f"Against training alone, {arm} changed a hospital's {word} by {measure.difference(mean['difference'])}"
    if len(entries) > 1:
        change += f" on average over {len(entries)} hospitals"
    if mean["verdict"] != UNKNOWN:
        change += f" ({interval_words(mean, measure)})"
    text = f"{change}; {_site_verdicts(entries, measure)}."
    undefined = [entry["site"] for entry in benefit if entry["difference"] is None]
    if undefined:
        text += f" {listed(undefined)}: no result, because {word} is not defined on the test rows there."
    return _sentence("alone", text, _short([mean, *entries] if mean is not entries[0] else entries))


def _federated_benefit(content: Content) -> list[Mapping[str, Any]]:
    """Differences from training alone of the arm that the decision is about."""
    key = (content["decision"]["arm"], content["primary_metric"])
    return [entry for entry in content["benefit"] if (entry["arm"], entry["metric"]) == key]


def _mean_over_sites(content: Content, arm: str, metric: str) -> Mapping[str, Any] | None:
    for entry in content["site_differences"]:
        same = (entry["arm"], entry["metric"], entry["kind"], entry["site"]) == (arm, metric, "alone", None)
        if same and entry["difference"] is not None:
            return dict(entry)
    return None


def _site_verdicts(entries: Sequence[Mapping[str, Any]], measure: Measure) -> str:
    parts = []
    for verdict, verb in ((GAINS, "gained"), (LOSES, "lost")):
        sites = [f"{entry['site']} ({measure.limits(entry)})" for entry in entries if entry["verdict"] == verdict]
        if sites:
            parts.append(f"{listed(sites)} {verb}")
    if parts:
        return " and ".join(parts)
    if all(entry["verdict"] == UNKNOWN for entry in entries):
        return why_unknown(entries[0])
    return "for no single hospital is there evidence of a gain or a loss"


def _never_predicted(content: Content) -> list[dict[str, Any]]:
    """Models that never predict a class, with the accuracy of a constant prediction."""
    arms, classes, accuracy = main_arms(content), content["classes"], Measure.of("accuracy")
    never_by = {name: tuple((arm["predicted_classes"] or {}).get("never_predicted", ())) for name, arm in arms.items()}
    sentences = []
    for never, names in grouped((never, name) for name, never in never_by.items() if never).items():
        first = arms[names[0]]
        counts = first["predicted_classes"]
        missed = listed([classes[place] if place < len(classes) else f"class {place}" for place in never])
        text = (
            f"{listed(names)} never {'predicts' if len(names) == 1 else 'predict'} {missed}, which "
            f"{sum(counts['rows'][place] for place in never)} of {sum(counts['rows'])} test rows belong to (all seeds "
            f"together): compare the accuracy of {accuracy.figure(first['metrics']['accuracy']['mean'])} with "
            f"{accuracy.figure(counts['constant_accuracy'])}, that of predicting the most frequent class for "
            "everybody."
        )
        keys = ("rows", "predicted", "constant_accuracy")
        numbers = [{"arm": name, **{key: arms[name]["predicted_classes"][key] for key in keys}} for name in names]
        sentences.append(_sentence("predicted_classes", text, numbers))
    return sentences


def claim_words(claims: Sequence[Mapping[str, Any]]) -> str:
    counts = {outcome: count for outcome, count in count_outcomes(claims).items() if count}
    outcomes = [f"{count} {IN_SENTENCES[outcome][count > 1]}" for outcome, count in counts.items()]
    return f"Of {len(claims)} published claim{'s' if len(claims) > 1 else ''}, {listed(outcomes)}."


def _corrected(entry: Mapping[str, Any]) -> str:
    count = entry["comparisons"]
    return f"; 95 % CI, corrected for {count} comparisons" if count > 1 else "; 95 % CI"
