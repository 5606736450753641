"""All mutations of an answer, or a sample of them; and the tests that every kind of federation has in common."""

from pathlib import Path

from tests.deployment.hostile.answer_mutations import (
    Given,
    Mutation,
    envelope,
    generated,
    replays,
    said_no,
    sample,
    tensor_changes,
)
from tests.deployment.hostile.byte_network import Place, body_of, kind_of
from tests.deployment.hostile.hostile_runs import Honest, Tried, WhereAllAreNeeded, WhereSomeMayLeave
from tests.deployment.hostile.impossible_values import HOSPITAL
from tests.deployment.hostile.impossible_values_by_topology import PARTY, REGION, SECURE

FAILED = next(one for one in said_no() if one.name.startswith("failed: on fire"))


def impossible(given: Given) -> list[Mutation]:
    """Of whatever answers: a region tells whom it has lost, a party has a key of its own."""
    body, kind = body_of(given.answer), kind_of(given.answer)
    tables = (REGION,) if "left" in body else (PARTY,) if "voucher" in body else (HOSPITAL, SECURE, PARTY)
    network = next((table[kind] for table in tables if kind in table), None)
    return [] if network is None else list(network(body, given.others))


def all_mutations(given: Given) -> dict[str, list[Mutation]]:
    return {
        "impossible": impossible(given),
        "tensors": tensor_changes(given.answer),
        "no": said_no(),
        "envelope": envelope(),
        "replays": replays(given),
        "generated": generated(given.answer),
    }


def chosen(given: Given, sizes: dict[str, int], seed: int = 0, cheap: bool = False) -> list[Mutation]:
    """So many of each sort. `cheap` are those that must be refused, so that no run goes on to its end."""
    selection = []
    for number, (sort, mutations) in enumerate(all_mutations(given).items()):
        few = [mutation for mutation in mutations if mutation.expect == "refused"] if cheap else mutations
        selection += sample(few, sizes.get(sort, 0), 100 * seed + number)
    return selection


SHORT = {"impossible": 3, "tensors": 2, "no": 1, "envelope": 2, "generated": 2}
LONG = {"impossible": 999, "tensors": 99, "no": 5, "envelope": 10, "replays": 4, "generated": 40}
ALL = {"impossible": 999, "tensors": 99, "no": 99, "envelope": 99, "replays": 99, "generated": 150}


GOODBYES = 3  # each is at the end of a whole run, and nothing depends on the answer


def in_turn(honest: Honest, sender: str, kinds: tuple[str, ...], tmp: Path, sizes: dict[str, int]) -> Tried:
    """Hostile answers to one question after another, in one run that is started again and again."""
    tried, before = Tried(), None
    for place in honest.places[sender]:
        if place[0] in kinds:
            here = WhereAllAreNeeded(honest, sender, place, tmp, before)
            mutations = chosen(honest.given(sender, place), sizes, cheap=True)
            here.try_all(mutations[:GOODBYES] if place[0] == "goodbye" else mutations)
            tried.join(here.tried)
            before = here
    if before is not None:
        before.tried = Tried()
        tried.join(before.finish())
    return tried


def where_all_are_needed(honest: Honest, sender: str, place: Place, tmp: Path, sizes: dict[str, int]) -> Tried:
    here = WhereAllAreNeeded(honest, sender, place, tmp)
    here.try_all(chosen(honest.given(sender, place), sizes, seed=1))
    return here.finish()


def where_some_may_leave(honest: Honest, sender: str, place: Place, tmp: Path, sizes: dict[str, int]) -> Tried:
    return WhereSomeMayLeave(honest, sender, place, tmp, FAILED).try_all(chosen(honest.given(sender, place), sizes))
