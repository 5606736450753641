"""A study of parties with different features in plain words, for whoever must decide whether it may run there."""

from wardround.deploy.vertical_checks import holder_of, parties_of
from wardround.study import Study


def words_for_parties(study: Study) -> list[str]:
    parties, holder, cell = parties_of(study), holder_of(study), study.deployment.smallest_cell
    others = [party for party in parties if party != holder]
    groups = ", and of every group of parties how many they share" if len(parties) > 2 else ""
    return [
        f"Parties: {', '.join(parties)} hold different data about the same patients. {holder} has the labels.",
        *_columns(study),
        "Matching: patients are found by private set intersection. Each party learns which of its own patients all "
        "parties have and how many patients the others have, and nothing else of the others' patients. The coordinator "
        f"learns how many each party has and how many all have{groups}. Fewer than {max(1, cell)} in common end the "
        "run.",
        f"Leaves {_each(others)}, in each step of training: a few numbers (an embedding) for each patient of the step, "
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
        f"Waiting: every party is needed in every step. {_deadline(study)} Smallest cell: {cell} patients.",
    ]


def _columns(study: Study) -> list[str]:
    told = []
    for party in parties_of(study):
        used = list(dict.fromkeys(name for arm in study.trained_arms for name in arm.topology.parties[party]))
        what = "all columns of its file" if "*" in used else ", ".join(used) or "no columns, only the labels"
        told.append(f"Used at {party}: {what}.")
    return told


def _noise(study: Study) -> list[str]:
    told = []
    for arm in study.trained_arms:
        settings = arm.topology.embeddings
        if settings is not None:
            noise = f" and gets noise of {settings.noise:g} times that" if settings.noise else ", without noise"
            told.append(
                f"Embeddings in arm {arm.name}: each is cut to a length of {settings.clip:g}{noise}, from a secret of "
                "the party's own. That limits what one message tells of one patient; over many rounds it adds up."
            )
    plain = [arm.name for arm in study.trained_arms if arm.topology.embeddings is None]
    return [*told, f"Embeddings leave as they are, without noise, in: {_each(plain)}."] if plain else told


def _deadline(study: Study) -> str:
    seconds = study.deployment.deadline
    if seconds is None:
        return "The coordinator waits for them without limit."
    return f"Who does not answer within {seconds:g} seconds stops the run, which can be started again from there."


def _each(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names))
