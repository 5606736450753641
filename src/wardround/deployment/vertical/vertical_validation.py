"""What a study of parties with different features must be like to run across hospitals."""

from collections.abc import Sequence

from wardround.core.errors import StudyError
from wardround.data.parties import refuse_party_name
from wardround.privacy.validation import Refusals, Rules, broken
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
    for party in parties_of(study):
        refuse_party_name(party)
    for where, problem, remedy in _refusals(study, sites):
        raise StudyError(where, problem, remedy)


def _refusals(study: Study, sites: Sequence[str]) -> Refusals:
    parties = parties_of(study)
    for arm in study.trained_arms:
        for key, problem, remedy in (*_other_parties(arm, study), *broken(_settings(arm, study.arms[0]))):
            yield f"arms: {arm.name}{key}", problem, remedy
    rules: Rules = [
        (
            set(sites) != set(parties),
            "topology: parties",
            f"the parties of the study are {', '.join(parties)}, and the sites {', '.join(sites)}",
            f"Name these sites: {','.join(parties)}.",
        ),
        (
            study.selection is not None and study.selection.on == "site",
            "selection: on",
            "the labels are at one party, so that no other could be held out",
            'Write `on = "validation"`, or leave [selection] out.',
        ),
        (
            study.deployment.quorum not in (None, len(parties)),
            "deployment: quorum",
            f"every party is needed in every step, and there are {len(parties)}",
            f"Write {len(parties)}, or leave it out.",
        ),
    ]
    yield from broken(rules)


def _other_parties(arm: Arm, study: Study) -> Refusals:
    if arm.topology.kind != "vertical":
        problem = (
            "averages models of hospitals with the same columns, and in other arms hospitals are parties with "
            "different ones: a site file cannot bring both kinds of rows"
        )
        yield "", problem, "Deploy them as two studies, or leave this arm out."
    holder = arm.topology.labels or next(iter(arm.topology.parties), "")
    if tuple(arm.topology.parties) != parties_of(study) or holder != holder_of(study):
        problem = f"has other parties than {study.arms[0].name}, or the labels are elsewhere"
        yield ": topology", problem, "Give all arms the same parties, or simulate this one."
    for party, columns in arm.topology.parties.items():
        if not columns and party != holder:
            problem = "gives nothing in this arm, and patients are matched once for all arms"
            yield f": topology: parties: {party}", problem, "Leave this arm out, or simulate it."


def _settings(arm: Arm, first: Arm) -> Rules:
    return [
        (
            arm.data != first.data,
            ": data",
            f"has other data than {first.name}, and a party brings one file",
            "Leave this arm out.",
        ),
        (
            not arm.sites.facts.keeps_hospitals,
            ": sites: partition",
            f"partition {arm.sites.name!r} moves rows between sites; here each party keeps its own",
            f'Write `partition = "{PARTITION}"` in [sites].',
        ),
        (
            arm.preparation.missing == "drop",
            ": data: missing",
            "all parties would have to drop a row with a gap, and so learn what is missing",
            'Write `missing = "median"` or "mean".',
        ),
        (
            bool(arm.preparation.not_recorded),
            ": data: not_recorded",
            "is for hospitals with the same columns",
            "Leave the columns out of [topology.parties].",
        ),
        (
            bool(arm.topology.known),
            ": topology: known",
            "is for simulations: here each party has the patients that it has",
            "Leave it out.",
        ),
    ]
