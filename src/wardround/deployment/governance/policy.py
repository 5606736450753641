"""What a hospital demands of a study. Its own process checks this before anything trains, and so does `approve`.

All functions are pure: policy, study and time come in, a refusal or None goes out. A refusal travels to the
coordinator, so it names limits and never a number of patients.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Literal, get_args

from wardround.analyses import ANALYSES
from wardround.core.errors import DeployError
from wardround.core.settings import Count, Positive
from wardround.deployment.regional.regions import companions
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.study.analyses import build_analysis
from wardround.study.explanations import conducted_explanations
from wardround.study.schema import Arm, Study

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)  # in the order of `datetime.weekday`
MIDNIGHT = time()


@dataclass(frozen=True)
class Policy:
    models: tuple[str, ...] = ()  # empty: any
    algorithms: tuple[str, ...] = ()  # empty: any
    analyses: tuple[str, ...] = ()  # kinds; empty: any
    site_figures: bool = True  # False: no analysis that shows what this hospital's rows say by themselves
    most_rounds: Count = 1000  # of each arm
    most_seeds: Count | None = None
    least_sites: Count = 2  # in the average of a round in which this site works
    least_rows: Count = 30  # training rows of this site
    smallest_cell: Count = 5
    rare_levels: bool = True  # False: a category that fewer rows have is not named to anybody
    secure_aggregation: bool = False  # True: required
    most_epsilon: Positive | None = None  # of each arm; a study without such privacy is refused
    most_total_epsilon: Positive | None = None  # over all studies, arms and seeds, by this site's ledger
    most_delta: Positive | None = None  # an epsilon at a larger delta promises little
    hours: str | None = None  # "18:00-06:00", local time
    days: tuple[Day, ...] = ()  # on which the hours begin; empty: any

    def __post_init__(self) -> None:
        opening_hours(self.hours)


@dataclass(frozen=True)
class Refusal:
    reason: str
    until: datetime | None = None  # only of opening hours: then it may be asked again


class Refused(Exception):
    """The site's own decision, sent to the coordinator and logged at both ends."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


def refusal_of_study(
    policy: Policy, study: Study, site: str, sites: Sequence[str], approvals: Collection[str]
) -> Refusal | None:
    """`sites` are all participants, `approvals` the hashes that this site approved. Approval comes first."""
    if study.hash not in approvals:
        how = "somebody there must read it and run `wardround approve`"
        return Refusal(f"study {study.name} ({study.hash[:12]}) is not approved at {site}; {how}")
    if site not in sites:
        return Refusal(f"{site} is not among the sites of this run")
    reasons = objections(policy, study, site, sites)
    return Refusal("; ".join(reasons)) if reasons else None


def objections(policy: Policy, study: Study, site: str, sites: Sequence[str] | None) -> list[str]:
    """Everything in the study that the policy forbids, approved or not. Without `sites` their number is not checked."""
    reasons = [
        *_not_listed("model", [arm.model.name for arm in study.trained_arms], policy.models),
        *_not_listed("algorithm", [arm.algorithm.name for arm in study.trained_arms], policy.algorithms),
    ]
    reasons += [
        f"arm {arm.name} wants all rows at one place, and no row leaves {site}"
        for arm in study.trained_arms
        if arm.algorithm.facts.pools and not arm.algorithm.facts.vertical
    ]
    reasons += _too_much_work(policy, study, site)
    if sites is not None:
        reasons += _too_few_sites(policy, study, site, list(dict.fromkeys(sites)))
    cell = study.deployment.smallest_cell
    if cell < policy.smallest_cell:
        reasons.append(f"smallest_cell is {cell}, and {site} shows no count below {policy.smallest_cell}")
    level = min((arm.preparation.least_level for arm in study.trained_arms), default=cell)
    if not policy.rare_levels and level < policy.smallest_cell:
        reasons.append(
            f"least_level is {level}, and {site} names no category of fewer than {policy.smallest_cell} rows"
        )
    return [*reasons, *_unprotected(policy, study, site), *_analyses(policy, study, site)]


def _too_much_work(policy: Policy, study: Study, site: str) -> list[str]:
    rounds = max((arm.training.rounds for arm in study.trained_arms), default=0)
    seeds = study.evaluation.seeds.count if study.trained_arms else 0
    limits = ((rounds, "rounds", policy.most_rounds), (seeds, "seeds", policy.most_seeds))
    return [
        f"{count} {what} are more than the {most} that {site} allows"
        for count, what, most in limits
        if most is not None and count > most
    ]


def _analyses(policy: Policy, study: Study, site: str) -> list[str]:
    explained = conducted_explanations(study)
    kinds = [chosen.kind for chosen in (*study.analyses, *explained)]
    reasons = _not_listed("analysis", kinds, policy.analyses)
    for chosen in explained:
        if not policy.site_figures and chosen.rows.privacy.secure_sum is None:
            reasons.append(f"{site} tells no figures of its own, and the {chosen.name} needs them")
    for chosen in study.analyses:
        if policy.secure_aggregation and chosen.rows.privacy.secure_sum is None:
            reasons.append(f"{site} requires secure aggregation, which analysis {chosen.name} does not have")
        if policy.most_epsilon is not None or policy.most_total_epsilon is not None:
            reasons.append(f"{site} requires differential privacy, which analysis {chosen.name} does not have")
        if not policy.site_figures and build_analysis(chosen, ANALYSES).tells_sites:
            reasons.append(f"{site} tells no figures of its own, and analysis {chosen.name} needs them")
    return reasons


def _unprotected(policy: Policy, study: Study, site: str) -> list[str]:
    """What the policy requires of arms whose work leaves the site."""
    reasons = []
    for arm in study.trained_arms:
        privacy = arm.privacy
        if not arm.algorithm.facts.federated:
            continue
        if policy.secure_aggregation and privacy.secure_sum is None:
            reasons.append(f"{site} requires secure aggregation, which arm {arm.name} does not have")
        if policy.most_epsilon is not None:
            limit = f"differential privacy with epsilon of at most {policy.most_epsilon:g}"
            if privacy.example is None:
                reasons.append(f"{site} requires {limit}, which arm {arm.name} does not have")
            elif privacy.example.promised > policy.most_epsilon:
                has = format_epsilon(privacy.example.promised)
                reasons.append(f"{site} requires {limit}, and arm {arm.name} has {has}")
        if policy.most_delta is not None and privacy.example is not None and privacy.example.delta > policy.most_delta:
            reasons.append(
                f"{site} allows a delta of at most {policy.most_delta:g}, and arm {arm.name} has a larger one"
            )
        if policy.most_total_epsilon is not None and privacy.example is None:
            reasons.append(f"{site} has a privacy budget, and arm {arm.name} has no [privacy.example] to keep to it")
        if privacy.example is not None and privacy.example.clip == "none":
            reasons.append(f"{site} takes part in no training without a clip, as arm {arm.name} is: no epsilon holds")
    return reasons


def refusal_of_rows(policy: Policy, training_rows: int) -> Refusal | None:
    if training_rows >= policy.least_rows:
        return None
    return Refusal(f"this site has fewer than {policy.least_rows} training rows, the least that its policy allows")


def closed(policy: Policy, now: datetime) -> Refusal | None:
    """`now` is local time. Hours that pass midnight belong to the day on which they begin."""
    hours = opening_hours(policy.hours)
    opens, closes = hours or (MIDNIGHT, MIDNIGHT)
    clock = now.replace(tzinfo=None)
    openings = []
    for offset in range(-1, 8):  # from yesterday, which may last till now, to the same day next week
        day = clock.date() + timedelta(days=offset)
        if policy.days and DAYS[day.weekday()] not in policy.days:
            continue
        begin = datetime.combine(day, opens)
        end = datetime.combine(day, closes) + timedelta(days=int(closes <= opens))
        if begin <= clock < end:
            return None
        openings.append(begin)
    until = min(opening for opening in openings if opening > clock).replace(tzinfo=now.tzinfo)
    when = " ".join(part for part in (policy.hours, ", ".join(policy.days)) if part)
    return Refusal(f"closed until {until:%Y-%m-%d %H:%M} local time (open {when})", until)


def opening_hours(text: str | None) -> tuple[time, time] | None:
    if text is None:
        return None
    where, remedy = "policy: hours", 'Write HH:MM-HH:MM, for instance "18:00-06:00"; midnight is 00:00.'
    times = text.split("-")
    try:
        if len(times) != 2 or any(len(clock) != 5 for clock in times):
            raise ValueError
        opens, closes = (datetime.strptime(clock, "%H:%M").time() for clock in times)
    except ValueError:
        raise DeployError(where, f"{text!r} are no hours of a day", remedy) from None
    if opens == closes:
        raise DeployError(where, f"{text!r} begin and end at once", f"{remedy} Leave `hours` out for all day.")
    return opens, closes


def _not_listed(what: str, used: Sequence[str], allowed: Sequence[str]) -> list[str]:
    if not allowed:
        return []
    return [
        f"{what} {name} is not among those allowed: {', '.join(allowed)}"
        for name in dict.fromkeys(used)
        if name not in allowed
    ]


def _too_few_sites(policy: Policy, study: Study, site: str, sites: Sequence[str]) -> list[str]:
    """In a region, only its own sites count: nobody else's work is averaged with it before it is seen."""
    needed = f"fewer than the {policy.least_sites} that {site} demands"
    near = companions(study, site, sites)
    if len(near or sites) < policy.least_sites:
        return [
            f"the number of sites that take part {'in its region ' if near else ''}is {len(near or sites)}, {needed}"
        ]
    quorum = study.deployment.quorum
    if quorum is not None and quorum < policy.least_sites:
        return [f"a round may close with a quorum of {quorum}, {needed}"]
    return [
        f"arm {arm.name} averages {count} in a round in which {site} works, {needed}"
        for arm in study.trained_arms
        if (count := _averaged(arm, site, sites, near)) is not None and count < policy.least_sites
    ]


def _averaged(arm: Arm, site: str, sites: Sequence[str], near: Sequence[str]) -> int | None:
    """The number of sites averaged in a round of the arm; None if no work of this site leaves it. In a region with
    sites `near`, the least number: all sites that are not drawn may belong to it."""
    members = [name for name in sites if (not arm.train_at or name in arm.train_at) and name != arm.held_out]
    if site not in members or not arm.algorithm.facts.federated:
        return None
    working = max(1, round(arm.training.share * len(members)))
    stragglers = arm.training.stragglers
    dropped = round(stragglers.share * working) if stragglers is not None and stragglers.policy == "drop" else 0
    if near:
        return max(1, len([name for name in members if name in near]) - (len(members) - working) - dropped)
    if arm.preaggregation.groups is not None and not arm.by_mean:  # of the smallest group: the others' sums are apart
        return max(1, len(members) // arm.preaggregation.groups - (len(members) - working) - dropped)
    return working - dropped
