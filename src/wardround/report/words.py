"""The sentences of a report, each computed from the evidence."""

from typing import Any

from wardround.evaluation.compare import ALPHA, in_words
from wardround.report.attacked import failed_words
from wardround.report.claims import claim_words
from wardround.report.evidence import Evidence
from wardround.report.headline import headline_of
from wardround.report.table import listed
from wardround.report.words_participation import participation_words
from wardround.report.words_privacy import asked_words, cost_words

SYNTHETIC = "Synthetic data: made by a program. No patient is behind any row, and nothing here is true of patients."
OF_COLUMNS = ("missing", "indicator", "categories", "least_level")  # settings that say nothing of images
UNLIKE = 20  # per cent by which disease rates must differ to be named as a reason


QUICK = "This is the study at its quick size (--quick): fewer rows or rounds than it needs to be believed."


def answer(evidence: Evidence) -> list[str]:
    """Three sentences: the arms against the reference, federation against staying alone, and what was published.

    Before them one where an audit failed, one where not all invited hospitals took part, and one where no patient is
    behind it all; after them what privacy cost.
    """
    return [
        sentence
        for sentence in (
            *failed_words(evidence),
            participation_words(evidence.results),
            SYNTHETIC if evidence.synthetic else None,
            QUICK if evidence.environment.get("quick") else None,
            _against_reference(evidence),
            _against_alone(evidence),
            _claims(evidence) or _newcomers(evidence),
            cost_words(evidence),
        )
        if sentence is not None
    ]


def _against_reference(evidence: Evidence) -> str:
    headline = evidence.headline
    metric, word = headline.metric, headline.word
    tests = [test for test in evidence.tests() if test["difference"] is not None]
    if evidence.tests() and not tests:
        return f"{evidence.reference} or all the others diverged, so that nothing can be compared."
    tests = [test for test in tests if test["interval"] is not None] or tests
    if not tests:
        best = max(evidence.arms, key=lambda name: evidence.figure(name)["mean"] or 0)
        figure = evidence.figure(best)["mean"]
        shown = "no arm has figures" if figure is None else f"the highest {word} is {headline.told(figure)} ({best})"
        why = (
            "The study names no reference, so arms are not compared"
            if evidence.reference is None
            else f"No other arm has the rows and sites of {evidence.reference}, so nothing is compared with it"
        )
        return f"{why}; {shown}."
    if all(test["interval"] is None for test in tests):
        largest = max(tests, key=lambda test: abs(test["difference"]))
        return (
            f"{'With one seed' if evidence.seeds == 1 else 'With these seeds'} nothing can be said about chance: the "
            f"largest difference from {largest['reference']} is "
            f"{in_words(largest['difference'], metric)} of {word} ({largest['arm']})."
        )
    fixed = {"c": "", "b": " for these models of one seed (other patients' randomness alone)"}.get(
        tests[0]["method"][0], " on these fixed test rows (training's randomness alone)"
    )
    clear = [test for test in tests if test["p_value_holm"] is not None and test["p_value_holm"] <= ALPHA]
    if clear:
        found = "; ".join(
            f"{test['arm']} {in_words(test['difference'], metric)} "
            f"({' to '.join(in_words(limit, metric, False) for limit in test['interval'])})"
            for test in clear
        )
        return f"Against {clear[0]['reference']}, these arms differ in {word}{fixed}, after Holm's correction: {found}."
    largest = max(tests, key=lambda test: abs(test["difference"]))
    low, high = largest["interval"]
    alone = f" for this arm by itself: of {len(tests)} arms, one may look so by chance" if low > 0 or high < 0 else ""
    return (
        f"No arm differs from {largest['reference']} in {word}{fixed} by more than chance can explain; the largest "
        f"difference is {in_words(largest['difference'], metric)} ({largest['arm']}, 95 % interval "
        f"{in_words(low, metric, False)} to {in_words(high, metric, False)}{alone})."
    )


def _against_alone(evidence: Evidence) -> str | None:
    known = [entry for entry in evidence.benefit() if entry["difference"] is not None]
    compared = [name for name in evidence.federated if any(entry["arm"] == name for entry in known)]
    arm = next(iter(compared), None)  # the first that the study names
    entries = [entry for entry in known if entry["arm"] == arm]
    if not entries:
        return None
    mean = sum(entry["difference"] for entry in entries) / len(entries)
    gains, losses = ([e["site"] for e in entries if e["verdict"] == word] for word in ("gains", "loses"))
    told = []
    if gains:
        told.append(f"{listed(gains)} gained")
    if losses:
        told.append(f"{listed(losses)} lost")
    if told:
        verdict = f"{' and '.join(told)} (after Holm's correction for the number of sites)"
    elif all(entry["interval"] is None for entry in entries):
        verdict = f"{'one seed' if evidence.seeds == 1 else 'these seeds'} cannot tell whether that is chance"
    else:
        verdict = "for no single site is there evidence of a gain or a loss"
    count = f"{len(entries)} site{'s' if len(entries) > 1 else ''}"
    return (
        f"Against training alone, {arm} changed a site's {evidence.headline.word} by "
        f"{in_words(mean, evidence.headline.metric)} on average over {count}; {verdict}."
    )


def _claims(evidence: Evidence) -> str | None:
    claims = evidence.results["claims"]
    return claim_words(claims) if claims else None


def _newcomers(evidence: Evidence) -> str | None:
    """What a hospital that took no part would get, by how many trained."""
    entries = [e for e in evidence.results["by_number_of_sites"] if e["outside"] and e["outside"]["mean"] is not None]
    if len(entries) < 2:
        return None
    first, last = entries[0], entries[-1]
    headline = headline_of(first)
    return (
        f"A model has an {headline.word} of {headline.told(first['outside']['mean'])} on average at hospitals that "
        f"took no part when {first['sites']} hospital{'s' if first['sites'] > 1 else ''} trained it, and "
        f"{headline.told(last['outside']['mean'])} when {last['sites']} did."
    )


def best_single_words(evidence: Evidence) -> list[str]:
    """Which federated arm is at least as good as the best single-hospital model everywhere, or where and why not."""
    entries = evidence.results["best_single"]
    if not entries:
        return []
    arms = dict.fromkeys(entry["arm"] for entry in entries if not evidence.results["arms"][entry["arm"]]["variant"])
    everywhere = [arm for arm in arms if all(entry["as_good"] for entry in entries if entry["arm"] == arm)]
    if everywhere:
        return [
            f"At every hospital at least as good as the best single-hospital model, on average: {listed(everywhere)}."
        ]

    def worst(arm: str) -> float:
        found = [entry["difference"] for entry in entries if entry["arm"] == arm]
        return min(-1.0 if difference is None else difference for difference in found)

    closest = max(arms, key=worst)
    sentences = [
        "No federated arm is at least as good as the best single-hospital model at every hospital, on average over "
        f"seeds. The closest is {closest}."
    ]
    sizes = evidence.results["sites"][0]["sites"]
    headline = headline_of(entries[0])
    shared = evidence.reference if evidence.reference in arms else closest
    for arm in dict.fromkeys((closest, shared)):
        told = []
        for entry in (entry for entry in entries if entry["arm"] == arm and entry["difference"] is not None):
            rows = sizes[entry["site"]]["test"]
            patients = f"{entry['difference'] * rows:+.1f} of {rows} test patients, "
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
        why = "has no figures" if evidence.local else "is not in the study"
        return [f"Training alone {why}, so that it cannot be said whether joining helped."]
    arm = evidence.reference if evidence.reference in evidence.federated else federated[0]["arm"]
    entry = next((e for e in federated if e["arm"] == arm), federated[0])
    metric, word = evidence.headline.metric, evidence.headline.word
    sentences = []
    if entry["interval"] is None:
        why = "one seed gives no interval" if evidence.seeds == 1 else "there is no interval"
        sentences.append(
            f"With {entry['arm']}: {in_words(entry['difference'], metric)} against training alone; {why}, so that "
            "this may be chance."
        )
    else:
        low, high = (in_words(limit, metric, False) for limit in entry["interval"])
        words = {"gains": "Joining helped", "loses": f"Joining cost it {word}"}
        told = words.get(entry["verdict"], "There is no evidence that joining helped or harmed")
        sentences.append(
            f"{told}: with {entry['arm']}, {in_words(entry['difference'], metric)} of {word} against training "
            f"alone (95 % interval {low} to {high})."
        )
    clear = [e for e in federated if e["verdict"] in ("gains", "loses") and e["arm"] != entry["arm"]]
    for other in clear:
        sentences.append(f"With {other['arm']} it {other['verdict']}: {in_words(other['difference'], metric)}.")
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
    if evaluation.get("split") == "given":
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
        "seeds": f"{evidence.seeds}; a seed draws anew: {', '.join(evaluation['vary'])}",
        "intervals": f"{evidence.results['interval']['method']}; they cover {evidence.results['interval']['covers']}",
    }


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
