"""A study in plain language, for those who decide whether it may run at a hospital."""

from collections.abc import Iterable, Sequence

from wardround.core.notices.code import listed
from wardround.deployment.governance.analysis_words import analysis_lines, explanation_lines
from wardround.deployment.regional.regions import is_hierarchical, regions_of, span_of
from wardround.deployment.vertical.vertical_validation import holder_of, is_vertical, parties_of
from wardround.study.schema import Arm, Study
from wardround.tasks import TASKS

SUMS = "the sum of the number that is predicted and the sum of its squares (of a count: of counts and exposures)"
MOST_ARMS = 20  # named one by one; a longer list would hide what matters


def _regions(study: Study, sites: Sequence[str]) -> list[str]:
    """Empty without regions. If the hospitals are not known, a region's are named as in the study."""
    if not is_hierarchical(study):
        return []
    arm = next(arm for arm in study.trained_arms if arm.topology.kind == "hierarchical")
    regions = regions_of(study, sites) if sites else arm.topology.regions
    spans = sorted({span_of(arm) for arm in study.trained_arms if arm.topology.kind == "hierarchical"})
    each = "every round" if spans == [1] else f"every {' or '.join(map(str, spans))} rounds"
    named = "; ".join(f"{region} ({', '.join(members)})" for region, members in regions.items())
    private = any(arm.privacy.example is not None for arm in study.trained_arms)
    compared = "" if private or not study.deployment.compare_labels else "which way its columns go with the label, "
    return [
        f"Regions: hospitals form regions, each with a coordinator of its own: {named}. Your coordinator is that of "
        "your region, and where this text says the coordinator it is that one; a secure sum is over the hospitals of a "
        f"region. {each.capitalize()} a coordinator of all averages the regions' models. In the end each hospital is "
        "sent the last average and its region's own model before it, and scores both.",
        "Goes on from the region to the coordinator of all: the region's model and mean loss, and which columns, gaps, "
        "categories, means and sums its hospitals have together. By the name of each hospital go on its numbers of "
        f"rows, {compared}in which rounds it worked, and its figures on test rows, of the model of all and of its "
        "region's own; nothing else of a single hospital.",
    ]


def _parties(study: Study) -> list[str]:
    parties, holder, cell = parties_of(study), holder_of(study), study.deployment.smallest_cell
    others, seconds = [party for party in parties if party != holder], study.deployment.deadline
    waits = (
        "The coordinator waits for them without limit."
        if seconds is None
        else f"Who does not answer within {seconds:g} seconds stops the run, which can be started again from there."
    )
    groups = ", and of every group of parties how many they share" if len(parties) > 2 else ""
    return [
        f"Parties: {', '.join(parties)} hold different data about the same patients. {holder} has the labels.",
        *_columns(study),
        "Matching: patients are found by private set intersection. Each party learns which of its own patients all "
        "parties have and how many patients the others have, and nothing else of the others' patients. The coordinator "
        f"learns how many each party has and how many all have{groups}. Fewer than {max(1, cell)} in common end the "
        "run.",
        f"Leaves {_listed(others)}, in each step of training: an embedding (a few numbers) for each patient of it, "
        f"sealed for {holder}; the coordinator carries them and cannot read them. {holder} can: an embedding tells "
        "something of the values from which it was made, also of single patients.",
        *_noise(study),
        f"Leaves {holder}: which of the common patients train, validate and test, and the gradient of the loss by each "
        "embedding, sealed for the party that made it. Such gradients tell the parties something of the labels of "
        "these patients. [topology.embeddings] does nothing about that.",
        "Leaves every party, to the coordinator in the open: how many numbers it gives of a row, and how long its "
        f"messages are. {holder} also tells numbers of rows and of rows by class and age, the mean loss of each round, "
        "and at the end figures of its test rows (accuracy and the like, counts, histograms of scores), also as they "
        f"are without each other party. What counts fewer than {cell} patients is withheld.",
        "No differential privacy for patients and no secure aggregation: nothing is averaged here.",
        f"Stays: every row, every patient's number, every label, and each party's part of the model. Predictions stay "
        f"at {holder}. To predict for new patients later, both parts are needed, or the model does without a party.",
        f"Waiting: every party is needed in every step. {waits} Smallest cell: {cell} patients.",
    ]


def _columns(study: Study) -> list[str]:
    lines = []
    for party in parties_of(study):
        used = list(dict.fromkeys(name for arm in study.trained_arms for name in arm.topology.parties[party]))
        what = "all columns of its file" if "*" in used else ", ".join(used) or "no columns, only the labels"
        lines.append(f"Used at {party}: {what}.")
    return lines


def _noise(study: Study) -> list[str]:
    lines = []
    for arm in study.trained_arms:
        settings = arm.topology.embeddings
        if settings is not None:
            noise = f" and gets noise of {settings.noise:g} times that" if settings.noise else ", without noise"
            lines.append(
                f"Embeddings in arm {arm.name}: each is cut to a length of {settings.clip:g}{noise}, from a secret of "
                "the party's own. That limits what one message tells of one patient; over many rounds it adds up."
            )
    plain = [arm.name for arm in study.trained_arms if arm.topology.embeddings is None]
    return [*lines, f"Embeddings leave as they are, without noise, in: {_listed(plain)}."] if plain else lines


def in_plain_words(study: Study, sites: Sequence[str] = ()) -> list[str]:
    """One or two sentences for each thing that matters. `sites` are the hospitals, if they are known."""
    if is_vertical(study):
        lines = [*_training(study), *_parties(study)]
    else:
        hospitals = ", ".join(sites) if sites else "not named here; ask the coordinator"
        lines = [
            f"Hospitals: {hospitals}.",
            *_regions(study, sites),
            *(_training(study) if study.arms else []),
            *analysis_lines(study),
            *explanation_lines(study),
            *_protection(study),
            *(_leaving(study) if study.arms else []),
            *_staying(study),
            _quorum(study, sites),
        ]
    return [
        f"Study: {study.name}. {study.question}".strip(),
        *lines,
        f"Hash: {study.hash}. Compare it with the one that the coordinator tells you in another way.",
    ]


def _training(study: Study) -> list[str]:
    arms, seeds = study.trained_arms, study.evaluation.seeds.count
    names = [arm.name for arm in arms[:MOST_ARMS]]
    more = f" and {len(arms) - MOST_ARMS} more" if len(arms) > MOST_ARMS else ""
    rounds = sorted({arm.training.rounds for arm in arms})
    span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    lines = [
        f"Arms: {len(arms)} ways of training are compared: {', '.join(names)}{more}.",
        f"Models: {_listed(arm.model.name for arm in arms)}. "
        f"Algorithms: {_listed(arm.algorithm.name for arm in arms)}.",
        f"Work: each arm trains for {_count(span, 'round')}, with {_count(seeds, 'seed')}; that makes "
        f"{_count(seeds * sum(arm.training.rounds for arm in arms), 'round')} in all.",
    ]
    lines += _start(study)
    partial = dict.fromkeys(", ".join(arm.train_at) for arm in arms if arm.train_at)
    if partial:
        lines.append(f"In some arms only these hospitals train: {'; '.join(partial)}. The others are only tested.")
    if study.selection is not None:
        where = "validation rows" if study.selection.on == "validation" else f"rows of {study.selection.site}"
        lines.append(f"Selection: settings of {', '.join(study.selection.arms)} are chosen on {where}.")
    return lines


def _start(study: Study) -> list[str]:
    """Models that do not begin with random weights."""
    sources = {arm.name: arm.start.start_from for arm in study.trained_arms}
    by_digest: dict[str, list[str]] = {}
    for name, source in sources.items():
        if source is not None:
            by_digest.setdefault(source.digest or "not known yet", []).append(name)
    return [
        f"Start: the model of {_listed(arms)} does not begin with random weights. It was trained before, on patients "
        "of other hospitals, of earlier years, or on yours in an earlier study; ask the coordinator which. You are "
        f"sent it in the first round. Its hash: {digest}."
        for digest, arms in by_digest.items()
    ]


def _protection(study: Study) -> list[str]:
    """What [privacy] promises, to whom, and what it does not."""
    shared = [arm for arm in study.trained_arms if arm.algorithm.facts.federated]
    if not shared:
        return []
    masked = [arm for arm in shared if arm.privacy.secure_sum is not None]
    open_arms = [arm.name for arm in shared if arm.privacy.secure_sum is None]
    lines = _patients(study)
    if not any(arm.privacy.example for arm in shared):
        lines.append("No differential privacy for patients: what leaves can tell something about single patients.")
    for arm in shared:
        if arm.privacy.site is not None:
            lines.append(
                f"Privacy of whole hospitals in arm {arm.name}: epsilon {arm.privacy.site.epsilon:g}, delta "
                f"{arm.privacy.site.delta:g}. The coordinator adds the noise, to what it has received from hospitals."
            )
    if masked:
        lines.append(
            f"Secure aggregation in {_listed(arm.name for arm in masked)}: what leaves is under masks; the coordinator "
            "learns the sum over the hospitals of a round and no single hospital's part. More than two thirds of them, "
            "or as many as the study says, must remain to the end of a round; else it comes to nothing."
        )
    lines += _groups(masked)
    if open_arms:
        lines.append(
            f"No secure aggregation in {_listed(open_arms)}: the coordinator sees each hospital's part by itself."
        )
    return lines


def _groups(masked: Sequence[Arm]) -> list[str]:
    return [
        f"Groups in arm {arm.name}: hospitals form {arm.preaggregation.groups} groups, and the coordinator learns the "
        "sum of each, so that yours is hidden among those of its group alone. All hospitals draw the groups together, "
        "once for this study: each sends the hash of a random number, and then the number."
        for arm in masked
        if arm.preaggregation.groups is not None and not arm.by_mean
    ]


def _patients(study: Study) -> list[str]:
    private = {arm.name: arm.privacy.example for arm in study.trained_arms if arm.privacy.example is not None}
    if not private:
        return []
    seeds, lines = study.evaluation.seeds.count, []
    for name, example in private.items():
        changing = ""
        if example.noise_schedule is not None:
            changing = f" In the last round the noise is {example.noise_schedule.last:g} times that of the first one."
        lines.append(
            f"Privacy of patients in arm {name}: epsilon {example.epsilon:g}, delta {example.delta:g} with "
            "each seed, for one patient more or less. Your own machine limits each patient's part to "
            f"{example.longest:g} and adds the noise, from a secret of its own.{changing}"
        )
    epsilon = seeds * sum(example.epsilon for example in private.values())
    delta = seeds * sum(example.delta for example in private.values())
    lines.append(
        f"Together: {_count(len(private), 'arm')} with {_count(seeds, 'seed')} cost a patient of yours at most epsilon "
        f"{epsilon:g} at delta {delta:g}, if they are simply added up. Your ledger counts exactly, over all studies; "
        "`wardround join site.toml --check` says what this one would add, and `most_total_epsilon` in your policy "
        "stops work before patients have paid more."
    )
    again = " With several seeds a patient may train in one and be tested in another." if seeds > 1 else ""
    lines.append(
        "This is about patients whose rows train. Numbers of rows, names of columns and classes, and figures of "
        f"validation and test rows are told as they are.{again}"
    )
    return lines


def _leaving(study: Study) -> list[str]:
    shared = [arm for arm in study.trained_arms if arm.algorithm.facts.federated]
    lines = []
    if shared:
        noisy = all(arm.privacy.example for arm in shared)
        masked = all(arm.privacy.secure_sum for arm in shared)
        how = f"{', with noise' if noisy else ''}{', under masks' if masked else ''}"
        loss = "" if noisy or masked else ", and the loss"
        lines.append(
            f"Leaves the hospital, in each round: what training changed in the shared part of the model{how}; the "
            f"number of training rows and of steps{loss}."
        )
    lines += _compression(shared)
    groups = listed(["sex", "age", *study.evaluation.groups])
    figures = (
        "figures of its test rows (accuracy and the like, counts, histograms of scores) and numbers of rows by class, "
        f"{groups}"
    )
    if _predicts_number(study):
        figures = (
            "sums over its test rows (of errors, of what was predicted and observed, and of their squares), also of "
            f"groups of ten patients or more in the order of their predictions and of groups by {groups}"
        )
    at_the_end = (
        f"Leaves the hospital, at the end: {figures}. What counts fewer than "
        f"{study.deployment.smallest_cell} patients is withheld."
    )
    return [*lines, *_leaving_before_training(study), at_the_end]


def _compression(arms: Sequence[Arm]) -> list[str]:
    """It makes messages smaller and protects nobody, which is not what a reader would expect."""
    words = {
        "float16": "numbers of 16 bits",
        "top-k": "only the {share:.3g} % largest, the rest is added to the next update",
        "quantised": "numbers of {bits} bits, rounded at random",
    }
    known = [arm.compression for arm in arms if arm.compression.kind != "none"]
    texts = dict.fromkeys(words[own.kind].format(share=100 * own.share, bits=own.bits) for own in known)
    apart = "" if len(known) == len(arms) else f" in {_count(len(known), 'arm')}"
    return [f"Changes of the model are compressed{apart}: {'; '.join(texts)}. This hides nothing."] if known else []


def _leaving_before_training(study: Study) -> list[str]:
    arms = study.trained_arms
    own_columns = all(arm.preparation.schema == "own" for arm in arms)
    if own_columns:
        facts = (
            "names of classes and numbers of rows. Its columns, their categories and values stay, but for what the "
            "next line may say."
        )
    elif all(arm.preparation.public for arm in arms):
        facts = (
            "names of columns and classes, and numbers of rows. Ranges and categories are those that were declared; "
            "nothing is read off rows."
        )
    else:
        sums = ", its sum and sum of squares" if any(arm.preparation.scale == "federated" for arm in arms) else ""
        facts = (
            "names of columns and classes, numbers of rows, and of each column of the training rows whether there are "
            f"gaps, which categories occur and how often (rare ones too), its mean or median{sums}."
        )
    lines = [f"Leaves the hospital, before training: {facts}"]
    if _predicts_number(study):
        lines += _leaving_of_target(study)
    if study.deployment.compare_labels and not any(arm.privacy.example is not None for arm in arms):
        public = " that is on a public list of clinical names (age, blood pressure, ...)" if own_columns else ""
        lines.append(
            f"Leaves the hospital, before training: of each column{public}, that it is there and which way it goes "
            "with the label (of a number: whether it is above its middle), as an area under a curve with two digits, "
            "so that a hospital whose label means the opposite is found."
        )
    return lines


def _leaving_of_target(study: Study) -> list[str]:
    if any(arm.privacy.example is not None or arm.privacy.site is not None for arm in study.trained_arms):
        return ["Of the number that is predicted nothing leaves before training: its public range must be declared."]
    return [
        f"Leaves the hospital, before training: {SUMS}, over the training rows, unless its public range is declared "
        f"(`ranges` in [data]). With fewer than {study.deployment.smallest_cell} training patients nothing is told, "
        "and the hospital cannot take part without such a range."
    ]


def _predicts_number(study: Study) -> bool:
    return any(TASKS[kind].answers == "number" for kind in study.data.facts.tasks.values())


def _staying(study: Study) -> list[str]:
    lines = ["Stays at the hospital: every row, every prediction for a patient, and its site file."]
    if alone := _listed(arm.algorithm.name for arm in study.trained_arms if not arm.algorithm.facts.federated):
        lines.append(f"Stays at the hospital as well: the models that it trains alone ({alone}).")
    if any(arm.model.facts.own_columns for arm in study.trained_arms):
        heads = any(arm.model.options.get("head") == "private" for arm in study.trained_arms)
        lines.append(
            "Stays at the hospital as well: its adapter, the layer from its own columns to the shared part"
            f"{', and where the study says so its own last layer' if heads else ''}."
        )
    return lines


def _quorum(study: Study, sites: Sequence[str]) -> str:
    quorum, deadline = study.deployment.quorum, study.deployment.deadline
    cell = f"Smallest cell: {study.deployment.smallest_cell} patients."
    if is_hierarchical(study):
        few = "all its hospitals" if quorum is None else f"{quorum} of its hospitals, or all where it has fewer"
        top = "all regions" if quorum is None else f"{quorum} regions, or all where there are fewer"
        waits = (
            "Both wait without limit."
            if deadline is None
            else f"After {deadline:g} seconds a region goes on without the others; the coordinator of all waits as "
            "long for each round of a region, and once more."
        )
        return (
            f"Quorum: a region's round needs the work of {few}, an average over regions that of {top}. {waits} {cell}"
        )
    everybody = f"all {len(sites)} hospitals" if sites else "all hospitals"
    needed = everybody if quorum is None else f"at least {_count(quorum, 'hospital')}"
    waits = (
        "It waits for them without limit."
        if deadline is None
        else f"After {deadline:g} seconds it goes on without the others."
    )
    return f"Quorum: a round needs the work of {needed}. {waits} {_overlapping(study)}{cell}"


def _overlapping(study: Study) -> str:
    """Of arms whose rounds do not wait for all work."""
    said: list[str] = []
    for arm in study.trained_arms:
        asynchronous, late = arm.training.asynchronous, arm.training.late
        if not arm.algorithm.facts.federated:
            continue
        if asynchronous is not None:
            said.append(
                f"{arm.name} is asynchronous: its model is updated whenever the work of "
                f"{_count(asynchronous.buffer, 'hospital')} has arrived; the quorum is how many must stay. "
            )
        elif late is not None:
            said.append(f"In {arm.name} work that comes later is used in the next round. ")
    return "".join(said)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _count(number: int | str, what: str) -> str:
    return f"{number} {what}" if str(number) == "1" else f"{number} {what}s"
