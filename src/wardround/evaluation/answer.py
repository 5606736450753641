"""The answer of a study: sentences on its primary metric, each with the numbers that it stands on.

They stand in `results.json`, so that terminal, report and programs read one and the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.evaluation.claims.verdicts import count_outcomes
from wardround.evaluation.comparisons.compare import (
    WORDS,
    figure_words,
    in_words,
    interval_words,
    limit_words,
    why_unknown,
)
from wardround.evaluation.comparisons.differences import GAINS, LOSES, UNKNOWN, is_clear
from wardround.study.schema import LOWER_IS_BETTER

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
IN_SENTENCES = {  # of one claim, and of several
    "reproduced": ("is reproduced", "are reproduced"),
    "not reproduced": ("is not reproduced", "are not reproduced"),
    "contradicted by its source": ("is contradicted by its own source", "are contradicted by their own source"),
    "cannot be computed": ("cannot be computed", "cannot be computed"),
    "no verdict": ("is set beside ours without a verdict", "are set beside ours without a verdict"),
}


UNFINISHED = "unfinished"
PROBLEMS = {
    "constant": "all test rows get nearly the same score",
    "saturated": "the test loss is above that of one answer for everybody",
    "rising": "the training loss rose",
    "not moving": "the training loss hardly changed",
}


def answer(content: Content) -> list[dict[str, Any]]:
    """`about`, `text` and `numbers` of each sentence. `content` is a whole results.json but for this."""
    made = [_one_hospital(content), *_not_trained(content), _against_reference(content), _against_alone(content)]
    made += _never_called(content)
    made.append(_claims(content))
    return [sentence for sentence in made if sentence is not None]


def main_arms(content: Content) -> dict[str, Any]:
    """Arms of the study as it stands in which all sites train; where there is none, those in which some do."""
    main = {name: arm for name, arm in content["arms"].items() if not arm["variant"]}
    return {name: arm for name, arm in main.items() if arm["train_at"] is None} or main


def primary_figure(content: Content, arm: str) -> dict[str, Any]:
    """An arm's primary metric: over all sites' test rows, or the mean over sites where arms are compared so."""
    place = "within_sites" if content["primary_within_sites"] else "metrics"
    found: dict[str, Any] = content["arms"][arm][place][content["primary_metric"]]
    return found


def primary_word(content: Content) -> str:
    word: str = WORDS.get(content["primary_metric"], str(content["primary_metric"]))
    return f"{word} within sites" if content["primary_within_sites"] else word


def _sentence(about: str, text: str, numbers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"about": about, "text": text, "numbers": [dict(one) for one in numbers]}


def _short(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: entry[name] for name in NUMBERS if name in entry} for entry in entries]


def _one_hospital(content: Content) -> dict[str, Any] | None:
    sites = {site for arm in main_arms(content).values() for site in arm["sites"]}
    if len(sites) != 1:
        return None
    text = "There is one hospital, so that training together cannot be compared with training alone."
    return _sentence("sites", text, [{"sites": sorted(sites)}])


def _not_trained(content: Content) -> list[dict[str, Any] | None]:
    """Arms whose training went wrong with every seed: comparing them says nothing of the way of training."""
    made: list[dict[str, Any] | None] = []
    for rule, arms in content["training_problems"].items():
        broken = [name for name in main_arms(content) if arms.get(name) == len(content["seeds"])]
        if broken and rule == UNFINISHED:
            text = (
                f"Training may have stopped too early in {_listed(broken)}: with every seed the test loss is still "
                "above that of one answer for everybody. More rounds may change what is said below."
            )
            made.append(_sentence("training", text, [{"rule": rule, "arms": broken}]))
        elif broken:
            text = (
                f"Training went wrong in {_listed(broken)}, with every seed: {PROBLEMS[rule]}. What is said below of "
                f"{'this arm' if len(broken) == 1 else 'these arms'} is about that, not about the way of training."
            )
            made.append(_sentence("training", text, [{"rule": rule, "arms": broken}]))
    return made


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
    told = [test for test in known if test["verdict"] != UNKNOWN]
    largest = max(told or known, key=lambda test: abs(test["difference"]))
    amount = f"{in_words(largest['difference'], metric)} of {word} ({largest['arm']})"
    if not told:
        text = f"Nothing can be said about chance: the largest difference from {largest['reference']} is {amount}; "
        return _sentence("reference", f"{text}{why_unknown(largest)}.", _short(known))
    clear = [test for test in told if is_clear(test)]
    word += " for the models of this one seed" if len(content["seeds"]) == 1 else ""
    if clear:
        found = "; ".join(
            f"{test['arm']} {'better' if test['verdict'] == GAINS else 'worse'} by "
            f"{in_words(abs(test['difference']), metric).lstrip('+')} ({limit_words(test)})"
            for test in clear
        )
        text = f"Against {clear[0]['reference']}, in {word}: {found}{_corrected(clear[0])}."
        return _sentence("reference", text, _short(told))
    text = (
        f"No arm differs from {largest['reference']} in {word} by more than chance can explain; the largest difference "
        f"is {in_words(largest['difference'], metric)} ({largest['arm']}, {interval_words(largest)})."
    )
    return _sentence("reference", text, _short(told))


def _highest(content: Content) -> dict[str, Any]:
    """Without a reference nothing is compared, and the best figure is only named."""
    metric, arms = content["primary_metric"], main_arms(content)
    known = {name: mean for name in arms if (mean := primary_figure(content, name)["mean"]) is not None}
    sign = -1 if metric in LOWER_IS_BETTER else 1
    best = max(known, key=lambda name: sign * known[name], default=None)
    why = "No arm was compared with a reference"
    if best is None:
        return _sentence("reference", f"{why}, and no arm has figures.", [])
    text = f"{why}; the {'lowest' if sign < 0 else 'highest'} {primary_word(content)} is "
    numbers = [{"arm": name, "metric": metric, "mean": mean} for name, mean in known.items()]
    return _sentence("reference", f"{text}{figure_words(known[best], metric)} ({best}).", numbers)


def _against_alone(content: Content) -> dict[str, Any] | None:
    """The first federated arm that the study names, at each hospital and on average over them."""
    metric, arms = content["primary_metric"], main_arms(content)
    word = WORDS.get(metric, metric)
    known = [e for e in content["benefit"] if e["metric"] == metric and e["difference"] is not None]
    federated = [n for n, a in arms.items() if a["algorithm"]["name"] not in ("local", "pooled")]
    arm = next((name for name in federated if any(entry["arm"] == name for entry in known)), None)
    entries = [entry for entry in known if entry["arm"] == arm]
    if not entries:
        return None
    whole = [e for e in content["across_sites"] if (e["arm"], e["metric"], e["kind"]) == (arm, metric, "alone")]
    mean = next((e for e in whole if e["site"] is None and e["difference"] is not None), entries[0])
    changed = f"Against training alone, {arm} changed a hospital's {word} by {in_words(mean['difference'], metric)}"
    if len(entries) > 1:
        changed += f" on average over {len(entries)} hospitals"
    without = [e["site"] for e in content["benefit"] if (e["arm"], e["metric"]) == (arm, metric) and e not in entries]
    if mean["verdict"] != UNKNOWN:
        changed += f" ({interval_words(mean)})"
    parts = []
    for verdict, verb in ((GAINS, "gained"), (LOSES, "lost")):
        found = [f"{e['site']} ({limit_words(e)})" for e in entries if e["verdict"] == verdict]
        parts += [f"{_listed(found)} {verb}"] if found else []
    if parts:
        rest = f"{' and '.join(parts)}"
    elif all(entry["verdict"] == UNKNOWN for entry in entries):
        rest = why_unknown(entries[0])
    else:
        rest = "for no single hospital is there evidence of a gain or a loss"
    text = f"{changed}; {rest}."
    if without:
        text += f" {_listed(without)} cannot be told of: no {word} is defined on the test rows there."
    return _sentence("alone", text, _short([mean, *entries] if mean is not entries[0] else entries))


def _never_called(content: Content) -> list[dict[str, Any] | None]:
    """Models that never predict a class, beside what the constant answer would score."""
    arms, classes = main_arms(content), content["classes"]
    by_class: dict[tuple[int, ...], list[str]] = {}
    for name, arm in arms.items():
        if arm["calls"] and arm["calls"]["never"]:
            by_class.setdefault(tuple(arm["calls"]["never"]), []).append(name)
    made: list[dict[str, Any] | None] = []
    for never, names in by_class.items():
        first = arms[names[0]]
        missed = _listed([classes[place] if place < len(classes) else f"class {place}" for place in never])
        accuracy = first["metrics"]["accuracy"]["mean"]
        rows = sum(first["calls"]["rows"][place] for place in never)
        text = (
            f"{_listed(names)} never {'predicts' if len(names) == 1 else 'predict'} {missed}, which {rows} of "
            f"{sum(first['calls']['rows'])} test rows are (all seeds together): an accuracy of "
            f"{figure_words(accuracy, 'accuracy')} is what calling everybody the most frequent class gives too "
            f"({figure_words(first['calls']['constant'], 'accuracy')})."
        )
        numbers = [
            {"arm": name, **{key: arms[name]["calls"][key] for key in ("rows", "called", "constant")}} for name in names
        ]
        made.append(_sentence("calls", text, numbers))
    return made


def _claims(content: Content) -> dict[str, Any] | None:
    claims = content["claims"]
    return _sentence("claims", claim_words(claims), [dict(count_outcomes(claims))]) if claims else None


def claim_words(claims: Sequence[Mapping[str, Any]]) -> str:
    counts = {outcome: count for outcome, count in count_outcomes(claims).items() if count}
    found = [f"{count} {IN_SENTENCES[outcome][count > 1]}" for outcome, count in counts.items()]
    return f"Of {len(claims)} published claim{'s' if len(claims) > 1 else ''}, {_listed(found)}."


def _corrected(entry: Mapping[str, Any]) -> str:
    count = entry["comparisons"]
    return f"; 95 % CI, corrected for {count} comparisons" if count > 1 else "; 95 % CI"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
