"""The sentences of a report, each computed from the evidence."""

from collections.abc import Mapping
from typing import Any

from wardround.evaluation.comparisons.compare import in_words, interval_words, why_unknown
from wardround.evaluation.comparisons.differences import UNKNOWN, is_clear
from wardround.report.attacked import failed_words
from wardround.report.evidence import Evidence
from wardround.report.headline import headline_of
from wardround.report.table import listed
from wardround.report.words_participation import participation_words
from wardround.report.words_privacy import asked_words, cost_words
from wardround.study.schema import CHOSEN

SYNTHETIC = "Synthetic data: made by a program. No patient is behind any row, and nothing here is true of patients."
OF_COLUMNS = ("missing", "indicator", "categories", "least_level")  # settings that say nothing of images
UNLIKE = 20  # per cent by which disease rates must differ to be named as a reason


QUICK = "This is the study at its quick size (--quick): fewer rows or rounds than it needs to be believed."


def answer(evidence: Evidence) -> list[str]:
    """The answer that stands in results.json: the arms against the reference, federation against staying alone, classes
    that a model never predicts, and what was published.

    Before it one sentence where an audit failed, one where not all invited hospitals took part, and one where no
    patient is behind it all; after it what privacy cost.
    """
    return [
        sentence
        for sentence in (
            *failed_words(evidence),
            participation_words(evidence.results),
            SYNTHETIC if evidence.synthetic else None,
            QUICK if evidence.environment.get("quick") else None,
            *(sentence["text"] for sentence in evidence.results["answer"]),
            cost_words(evidence),
        )
        if sentence is not None
    ]


def best_single_words(evidence: Evidence) -> list[str]:
    """Which federated arm is at least as good as the best single-hospital model everywhere, or where and why not."""
    entries = evidence.results["best_single"]
    if not entries:
        return []
    arms = dict.fromkeys(entry["arm"] for entry in entries if not evidence.results["arms"][entry["arm"]]["variant"])
    everywhere = [arm for arm in arms if all(entry["as_good"] for entry in entries if entry["arm"] == arm)]
    if everywhere:
        return [
            f"At every hospital the mean over seeds is at least that of the best single model: {listed(everywhere)}."
        ]

    def worst(arm: str) -> float:
        found = [entry["difference"] for entry in entries if entry["arm"] == arm]
        return min(-1.0 if difference is None else evidence.headline.sign * difference for difference in found)

    closest = max(arms, key=worst)
    sentences = [
        "No federated arm has a mean over seeds that is at least that of the best single model at every hospital. The "
        f"closest is {closest}; beside each difference stands whether chance explains it."
    ]
    sizes = evidence.results["sites"][0]["sites"]
    headline = headline_of(entries[0])
    shared = evidence.reference if evidence.reference in arms else closest
    for arm in dict.fromkeys((closest, shared)):
        told = []
        for entry in (entry for entry in entries if entry["arm"] == arm and entry["difference"] is not None):
            rows = sizes[entry["site"]]["test"]
            patients = f"{entry['difference'] * rows:+.1f} of {rows} test rows, "
            if headline.metric != "accuracy" or evidence.findings:
                patients = ""  # only an accuracy counts them
            chance = {"gains": "a gain", "loses": "a loss"}.get(entry["verdict"], "within chance")
            amount = in_words(entry["difference"], headline.metric)
            told.append(f"{entry['site']} {amount} ({patients}{chance}; best: {entry['best']})")
        sentences.append(f"{arm}: {'; '.join(told)}.")
    rates = evidence.rates
    lowest, highest = (min(rates.values()), max(rates.values())) if rates else (0.0, 0.0)
    sentences.append(
        f"Likely reasons: the best single model is picked by its test {headline.word}, which no hospital could do "
        "beforehand"
        + (
            f"; and the share of {evidence.classes[1]} runs from {lowest:.0f} to {highest:.0f} % between hospitals, so "
            "that one shared model may not suit every one of them."
            if highest - lowest > UNLIKE
            else "."
        )
    )
    return sentences


def hospital_words(evidence: Evidence, site: str) -> list[str]:
    """Did federation help this hospital?"""
    entries = [entry for entry in evidence.benefit() if entry["site"] == site and entry["difference"] is not None]
    federated = [entry for entry in entries if entry["arm"] in evidence.federated]
    if not federated:
        why = f"has no {evidence.headline.word} on these test rows" if evidence.local else "is not in the study"
        return [f"Training alone {why}, so that it cannot be said whether joining helped."]
    arm = evidence.reference if evidence.reference in evidence.federated else federated[0]["arm"]
    entry = next((e for e in federated if e["arm"] == arm), federated[0])
    metric, word = evidence.headline.metric, evidence.headline.word
    amount = f"with {entry['arm']}, {in_words(entry['difference'], metric)} of {word} against training alone"
    if entry["verdict"] == UNKNOWN:
        sentences = [f"{amount[0].upper()}{amount[1:]}; {why_unknown(entry)}."]
    else:
        words = {"gains": "Joining helped", "loses": "Joining harmed"}
        told = words.get(entry["verdict"], "There is no evidence that joining helped or harmed")
        sentences = [f"{told}: {amount} ({interval_words(entry)})."]
    for other in (e for e in federated if is_clear(e) and e["arm"] != entry["arm"]):
        amount = in_words(other["difference"], metric)
        sentences.append(f"With {other['arm']} it {other['verdict']}: {amount} ({interval_words(other)}).")
    return sentences


def design(evidence: Evidence) -> dict[str, str]:
    study = evidence.study
    training, model, data = study["training"], dict(study["model"]), dict(study["data"])
    partition = dict(study["sites"])
    decay = training.get("lr_decay")
    steps = (
        f"{training['rounds']} rounds of {training['local_epochs']} local epochs, batches of {training['batch_size']}"
    )
    rate = f"learning rate {training['lr']:g}"
    if decay:
        rate += f", times {decay['factor']:g} every {decay['every']} rounds"
    evaluation = study["evaluation"]
    split = f"{100 * evaluation['test_share']:g} % of each site's patients for testing, stratified by "
    split += "finding" if evidence.findings else "class"
    given = evaluation.get("split") == "given"
    if given:
        split = "the one that the source comes with"
    if evaluation.get("validation_share"):
        split += f", {100 * evaluation['validation_share']:g} % for validation"
    return {
        **({"deployment": _deployment(evidence)} if evidence.deployed else {}),
        "data": _settings(data.pop("source"), data, OF_COLUMNS if evidence.of_images else ()),
        "sites": _settings(partition.pop("partition"), partition),
        "model": _settings(model.pop("kind"), model),
        "training": f"{steps}, {training['optimiser']}, {rate}{_extras(training)}",
        **({"privacy": asked_words(study["privacy"])} if study.get("privacy") else {}),
        "split": split,
        "seeds": f"{evidence.seeds}; a seed draws anew: {_drawn_anew(evaluation)}",
        "primary metric": f"{evidence.primary_word}{_threshold(evidence)}",
        "intervals": f"{evidence.results['interval']['method']}; they cover {evidence.results['interval']['covers']}. "
        f"Differences are corrected by {evidence.results['interval']['correction']}'s rule in a single step: arms, "
        "hospitals and their mean are one family in each metric and variant",
    }


def _drawn_anew(evaluation: Mapping[str, Any]) -> str:
    """A split that the source comes with is drawn by nobody."""
    given = evaluation.get("split") == "given"
    return listed([name for name in evaluation["vary"] if not (given and name == "split")] or ["nothing"])


def _threshold(evidence: Evidence) -> str:
    """From which score on the positive class of two is called, for the metrics that need a call."""
    calls = evidence.arms[evidence.main_arm].get("predicted_classes")
    fixed = evidence.study["evaluation"].get("threshold", CHOSEN)
    if evidence.findings or len(evidence.classes) != 2:
        return ""
    called = f"{evidence.classes[1]} is called from a score of"
    if fixed != CHOSEN:
        return f"; {called} {fixed:g} on, as the study says"
    if evidence.deployed:
        return (
            f"; each hospital calls {evidence.classes[1]} from the score on that its own validation rows have chosen "
            "(best sensitivity + specificity), from 0.5 on where it has too few of them or none"
        )
    if calls and calls["threshold"] and calls["threshold"]["chosen"]:
        return (
            f"; {called} {calls['threshold']['mean']:.2f} on ({evidence.main_arm}, mean over seeds), chosen on "
            "validation rows for the best sensitivity + specificity"
        )
    return f"; {called} 0.5 on, because there are too few validation rows to choose on, or none"


def groups_title(evidence: Evidence) -> str:
    return f"By {listed(evidence.kinds)}" if evidence.kinds else "By group"


def _deployment(evidence: Evidence) -> str:
    """Who had to take part in a round, and who did not."""
    agreed, count = evidence.deployment, len(evidence.results["sites"][0]["sites"])
    needed = "all of them" if agreed.quorum is None else f"{agreed.quorum} of them"
    closed = f"a round closed with the work of {needed}"
    if agreed.deadline is not None:
        closed += f", after {agreed.deadline:g} seconds if not all had answered"
    told = participation_words(evidence.results) or "All that were invited took part in every round that asked them."
    return f"across {count} hospitals, whose rows stayed where they are; {closed}. {told}"


def _extras(training: dict[str, Any]) -> str:
    """What images are often trained with."""
    told = ""
    if training.get("class_weights", "none") != "none":
        told += f", class weights {training['class_weights']}"
    if training.get("oversample"):
        told += f", oversampling {training['oversample']:g}"
    if training.get("augment"):
        told += (
            f", images changed at random ({', '.join(f'{k} {_plainly(v)}' for k, v in training['augment'].items())})"
        )
    return told


def _settings(name: str, options: dict[str, Any], without: tuple[str, ...] = ()) -> str:
    hidden = {"files", "path", *(["indicator"] if options.get("missing") == "drop" else []), *without}
    hidden |= {key for key, value in options.items() if value in ([], {})}  # nothing was said
    told = ", ".join(f"{key} {_plainly(value)}" for key, value in options.items() if key not in hidden)
    return f"{name} ({told})" if told else name


def _plainly(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plainly(item)}" for key, item in value.items())
    if isinstance(value, list):
        pairs = all(isinstance(item, list) for item in value)
        return " / ".join("-".join(map(str, item)) if pairs else _plainly(item) for item in value)
    return str(value)
