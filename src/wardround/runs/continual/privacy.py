"""Privacy of a training and of those that it goes on from, composed by the accountant over the charges of all.

A patient of both pays for both. A patient of one of them pays for that one: the rest is computed from a model that does
not depend on the patient, or is not touched again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from wardround.core.errors import StudyError
from wardround.privacy.dp.accountant import Adjacency, Charge, epsilon
from wardround.privacy.dp.epsilons import to_json
from wardround.runs.continual.description import Charges, Generation
from wardround.runs.continual.earlier import Earlier, open_earlier, sharing, sharing_by_name
from wardround.runs.continual.predecessor import WHERE, Predecessor, read_predecessor
from wardround.runs.ledger import Entry, charges_of
from wardround.runs.plan import Plan, members_of
from wardround.runs.spending import EACH_SITE, POOLED
from wardround.study.schema import Arm, Study

MOST_WAYS = 64  # in which a patient may have been at earlier sites, that are accounted for one by one
Open = Callable[[Predecessor], Earlier | str]
Shares = Mapping[str, Sequence[str]]  # by site: sites of an earlier training whose patients it may have


def opener(plan: Plan) -> Open:
    """Each earlier run is opened once."""
    return cache(lambda predecessor: open_earlier(predecessor, plan))


def refuse_uncovered(plan: Plan) -> None:
    """Refuse an epsilon that would not hold, because the weights that training starts from know the same patients
    without any protection."""
    open_predecessor = opener(plan)
    for arm in plan.study.trained_arms:
        if (predecessor := plan.predecessor_of(arm)) is not None and is_private(arm):

            def shares(
                generation: Generation, last: bool, arm: Arm = arm, predecessor: Predecessor = predecessor
            ) -> Shares:
                return sharing(plan, arm, generation, _rows(open_predecessor(predecessor)) if last else None)

            _refuse_uncovered(arm, predecessor, shares)


def refuse_uncovered_hospitals(study: Study, sites: Sequence[str]) -> None:
    """The same before a study is deployed, where names are all that is known of the hospitals."""
    for arm in study.trained_arms:
        start = arm.start.start_from
        if start is not None and start.is_named and is_private(arm):
            members = members_of(arm, sites)

            def shares(generation: Generation, last: bool, arm: Arm = arm, members: Sequence[str] = members) -> Shares:
                return sharing_by_name(arm, members, generation)

            _refuse_uncovered(arm, read_predecessor(start, list(study.evaluation.seeds)), shares)


def is_private(arm: Arm) -> bool:
    return arm.privacy.example is not None or arm.privacy.site is not None


def _refuse_uncovered(arm: Arm, predecessor: Predecessor, shares: Callable[[Generation, bool], Shares]) -> None:
    where = f"arms: {arm.name}: {WHERE}: {predecessor.path}"
    for generations in _lineages(predecessor):
        if not generations:
            problem = "does not say whose rows it was trained on, so that this arm's epsilon may not hold for them"
            raise StudyError(where, problem, "Start from a run, or from a bundle that was made of one.")
        for number, generation in enumerate(generations):
            covered = generation.example if arm.privacy.example is not None else generation.site
            if not covered:
                _refuse_shared(arm, generation, shares(generation, number == 0), where)


def _refuse_shared(arm: Arm, generation: Generation, shares: Shares, where: str) -> None:
    sites = [site for site, others in shares.items() if others]
    if not sites:
        return
    unit = "patients" if arm.privacy.example is not None else "hospitals"
    problem = (
        f"{', '.join(sites)} may have {unit} on whom {generation.title} was trained without differential privacy: "
        "the weights already know them, and this arm's epsilon would not hold"
    )
    remedy = "Start from a run with [privacy], from one of other hospitals, or train from the beginning."
    raise StudyError(where, problem, remedy)


def _lineages(predecessor: Predecessor) -> list[tuple[Generation, ...]]:
    """The trainings behind each seed's model, without repeats."""
    lineages = (model.description.trained for model in predecessor.models.values())
    return list({repr(lineage): lineage for lineage in lineages}.values())


def _rows(earlier: Earlier | str) -> Earlier | None:
    return None if isinstance(earlier, str) else earlier


def composed_spending(plan: Plan, entries: Sequence[Entry], open_predecessor: Open) -> dict[str, Any]:
    """By arm that starts from a model, where that one's training or its own is private: what each site's patients paid
    for both, with the seed that cost them most."""
    composed = {}
    for arm in plan.study.arms:
        predecessor = plan.predecessor_of(arm)
        if predecessor is None:
            continue
        lineages = _lineages(predecessor)
        if is_private(arm) or any(g.example or g.site for lineage in lineages for g in lineage):
            own = [entry for entry in entries if entry.arm == arm.name]
            composed[arm.name] = _of_arm(plan, arm, predecessor, own, _rows(open_predecessor(predecessor)))
    return composed


def _of_arm(
    plan: Plan, arm: Arm, predecessor: Predecessor, entries: Sequence[Entry], earlier: Earlier | None
) -> dict[str, Any]:
    highest: dict[str, dict[str, Any]] = {}
    for seed, model in predecessor.models.items():
        lineage = model.description.trained
        shares = [sharing(plan, arm, g, earlier if number == 0 else None) for number, g in enumerate(lineage)]
        for site, row in _with_seed([e for e in entries if e.seed == seed], arm, lineage, shares).items():
            if site not in highest or _larger(row, highest[site]):
                highest[site] = {**row, "seed": seed}
    return {"rule": "accountant", "sites": {site: _plain(row) for site, row in highest.items()}}


def _with_seed(
    entries: Sequence[Entry], arm: Arm, lineage: Sequence[Generation], shares: Sequence[Shares]
) -> dict[str, dict[str, Any]]:
    delta, paid = _smallest_delta(entries, lineage), _paid(entries)
    rows: dict[str, dict[str, Any]] = {}
    if arm.privacy.example is not None or any(generation.example for generation in lineage):
        rows |= _patients(paid if arm.privacy.example is not None else None, lineage, shares, delta)
    if arm.privacy.site is not None or any(generation.site for generation in lineage):
        here = None if arm.privacy.site is None else paid.get(EACH_SITE, ())
        again = [(EACH_SITE,) if any(of_site.values()) else () for of_site in shares]
        rows[EACH_SITE] = _row(here, lineage, again, delta)
    return rows


def _smallest_delta(entries: Sequence[Entry], lineage: Sequence[Generation]) -> float:
    return min([entry.delta for entry in entries] + [g.delta for g in lineage if g.delta is not None])


def _paid(entries: Sequence[Entry]) -> dict[str, tuple[Charge, ...]]:
    sites = dict.fromkeys(entry.site for entry in entries)
    return {site: tuple(charges_of(entry for entry in entries if entry.site == site)) for site in sites}


def _patients(
    paid: Mapping[str, Sequence[Charge]] | None, lineage: Sequence[Generation], shares: Sequence[Shares], delta: float
) -> dict[str, dict[str, Any]]:
    """Of each site of this training and of those before. `paid` is None where nothing protects patients here."""
    rows: dict[str, dict[str, Any]] = {}
    for site in shares[0] if shares else ():
        here = None if paid is None else paid.get(site, paid.get(POOLED, ()))
        rows[site] = _row(here, lineage, [of_site[site] for of_site in shares], delta)
    for site in dict.fromkeys(site for generation in lineage for site in generation.sites):
        if site not in rows:  # its patients do not train again, as far as its name tells
            rows[site] = _row((), lineage, [(site,) if site in g.sites else () for g in lineage], delta)
    return rows


def _row(
    here: Sequence[Charge] | None, lineage: Sequence[Generation], shared: Sequence[Sequence[str]], delta: float
) -> dict[str, Any]:
    """`shared` has the sites of each earlier training whose patients are meant."""
    ways = [_ways(generation, sites) for generation, sites in zip(lineage, shared, strict=True)]
    named = {g.title: list(sites) for g, sites in zip(lineage, shared, strict=True) if sites}
    return {**_composed(here, ways, delta), "delta": delta, "earlier_sites": named}


def _ways(generation: Generation, sites: Sequence[str]) -> list[tuple[Charge, ...] | None]:
    """What a patient may have paid in an earlier training, by where the patient may have been. None: nothing hides the
    patient."""
    if not sites:
        return [()]
    if not (generation.site if EACH_SITE in sites else generation.example):
        return [None]
    charges = generation.charges
    return list(dict.fromkeys(_as_charges(charges.get(site, charges.get(POOLED, ()))) for site in sites))


def _as_charges(charges: Charges) -> tuple[Charge, ...]:
    return tuple(Charge(rate, noise, steps) for rate, noise, steps in charges)


def _composed(
    here: Sequence[Charge] | None, ways: Sequence[Sequence[Sequence[Charge] | None]], delta: float
) -> dict[str, float]:
    """Epsilons before, here and of both together; the most that any way of having been at earlier sites costs."""
    if math.prod(map(len, ways)) > MOST_WAYS:  # as if the patient had been everywhere, which costs no less
        ways = [[_together(way)] for way in ways]
    before = [_together(chosen) for chosen in product(*ways)]
    both = [_together((charges, here)) for charges in before]
    return {
        "before": max(_cost(charges, delta) for charges in before),
        "here": _cost(here, delta),
        "epsilon": max(_cost(charges, delta) for charges in both),
        "epsilon_replace": max(_cost(charges, delta, "replace") for charges in both),
    }


def _together(parts: Iterable[Sequence[Charge] | None]) -> list[Charge] | None:
    """None where any part hides nobody."""
    charges: list[Charge] = []
    for part in parts:
        if part is None:
            return None
        charges += part
    return charges


def _cost(charges: Sequence[Charge] | None, delta: float, adjacency: Adjacency = "add-remove") -> float:
    return math.inf if charges is None else epsilon(charges, delta, adjacency)


def _larger(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(row["epsilon"] > other["epsilon"])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = ("before", "here", "epsilon", "epsilon_replace")
    return {key: to_json(value) if key in numbers else value for key, value in row.items()}
