"""What a study of parties with different features must be like to run across hospitals."""

from collections.abc import Sequence

from wardround.core.errors import StudyError
from wardround.data.parties import refuse_party_name
from wardround.study.schema import Arm, Study

PARTITION = "by-hospital"


def is_vertical(study: Study) -> bool:
    return any(arm.topology.kind == "vertical" for arm in study.trained_arms)


def parties_of(study: Study) -> tuple[str, ...]:
    """In the order of the study."""
    return tuple(study.arms[0].topology.parties)


def holder_of(study: Study) -> str:
    """The party with the labels."""
    topology = study.arms[0].topology
    return topology.labels or next(iter(topology.parties))


def refuse_undeployable_parties(study: Study, sites: Sequence[str]) -> None:
    """`sites` are the hospitals that take part, by name: each is a party."""
    first = study.arms[0]
    for party in parties_of(study):
        refuse_party_name(party)
    for arm in study.trained_arms:
        _refuse_other_parties(arm, study)
        _refuse_settings(arm, first)
    parties = parties_of(study)
    if set(sites) != set(parties):
        problem = f"the parties of the study are {', '.join(parties)}, and the sites {', '.join(sites)}"
        raise StudyError("topology: parties", problem, f"Name these sites: {','.join(parties)}.")
    if study.selection is not None and study.selection.on == "site":
        problem = "the labels are at one party, so that no other could be held out"
        raise StudyError("selection: on", problem, 'Write `on = "validation"`, or leave [selection] out.')
    quorum = study.deployment.quorum
    if quorum is not None and quorum != len(parties):
        problem = f"every party is needed in every step, and there are {len(parties)}"
        raise StudyError("deployment: quorum", problem, f"Write {len(parties)}, or leave it out.")


def _refuse_other_parties(arm: Arm, study: Study) -> None:
    where = f"arms: {arm.name}"
    if arm.topology.kind != "vertical":
        problem = (
            "averages models of hospitals with the same columns, and in other arms hospitals are parties with "
            "different ones: a site file cannot bring both kinds of rows"
        )
        raise StudyError(where, problem, "Deploy them as two studies, or leave this arm out.")
    holder = arm.topology.labels or next(iter(arm.topology.parties), "")
    if tuple(arm.topology.parties) != parties_of(study) or holder != holder_of(study):
        problem = f"has other parties than {study.arms[0].name}, or the labels are elsewhere"
        raise StudyError(f"{where}: topology", problem, "Give all arms the same parties, or simulate this one.")
    for party, columns in arm.topology.parties.items():
        if not columns and party != holder:
            problem = "gives nothing in this arm, and patients are matched once for all arms"
            raise StudyError(f"{where}: topology: parties: {party}", problem, "Leave this arm out, or simulate it.")


def _refuse_settings(arm: Arm, first: Arm) -> None:
    where, preparation = f"arms: {arm.name}", arm.preparation
    if arm.data != first.data:
        problem = f"has other data than {first.name}, and a party brings one file"
        raise StudyError(f"{where}: data", problem, "Leave this arm out.")
    if not arm.sites.facts.keeps_hospitals:
        problem = f"partition {arm.sites.name!r} moves rows between sites; here each party keeps its own"
        raise StudyError(f"{where}: sites: partition", problem, f'Write `partition = "{PARTITION}"` in [sites].')
    if preparation.missing == "drop":
        problem = "a row with a gap would have to be told to all parties, which would tell what is missing"
        raise StudyError(f"{where}: data: missing", problem, 'Write `missing = "median"` or "mean".')
    if preparation.not_recorded:
        problem = "is for hospitals with the same columns"
        raise StudyError(f"{where}: data: not_recorded", problem, "Leave the columns out of [topology.parties].")
    if arm.topology.known:
        problem = "is for simulations: here each party has the patients that it has"
        raise StudyError(f"{where}: topology: known", problem, "Leave it out.")
