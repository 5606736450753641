"""Claims: published figures that a study is compared with. `evaluation/claims` judges them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from wardround.core.errors import StudyError, refuse_strangers, suggest
from wardround.core.settings import NonNegative

Statistic = Literal["mean", "sd", "spread", "lowest", "highest", "range"]
Comparison = Literal["difference", "ratio", "change"]
Formula = Literal[
    "sum",
    "mean",
    "sd",
    "lowest",
    "highest",
    "range",
    "gini",
    "ratio",
    "change",
    "t",
    "t_from_interval",
    "p_from_t",
    "interval_low",
    "interval_high",
]
TWO_SAMPLES = ("mean", "SD", "runs", "mean", "SD", "runs")
TAKES: dict[str, tuple[str, ...]] = {  # numbers that a formula takes, in this order; the others take any
    "ratio": ("figure", "other figure"),
    "change": ("before", "after"),
    "t": TWO_SAMPLES,
    "t_from_interval": ("lower limit", "upper limit", "runs", "runs"),
    "p_from_t": ("t", "runs", "runs"),
    "interval_low": TWO_SAMPLES,
    "interval_high": TWO_SAMPLES,
}
# whether a formula that divides can do so; `given` has no empty list
DIVISIBLE: dict[str, Callable[[Sequence[float]], bool]] = {
    "t": lambda values: values[1] + values[4] > 0,
    "t_from_interval": lambda values: values[1] > values[0],
    "sd": lambda values: len(values) > 1,
    "gini": lambda values: sum(values) != 0,
    "ratio": lambda values: values[-1] != 0,
    "change": lambda values: values[0] != 0,
}
MOST_ROUNDED = 10  # numbers of which every combination, rounded up or down, is tried


@dataclass(frozen=True)
class Quantity:
    """Something that a claim may be about, and what can be computed from it."""

    of: Literal["arms", "pair", "sites"]  # pair: of one arm and one that it is set against, as papers print tests
    statistics: tuple[Statistic, ...] = ("mean",)
    at_a_site: bool = False  # `site` may name one


METRIC = Quantity("arms", ("mean", "sd", "spread", "lowest", "highest", "range"), at_a_site=True)
AFTER_TRAINING = Quantity("arms")  # on training or validation rows
OF_PAIRS_OF_SITES = Quantity("sites", ("mean", "lowest", "highest", "range"))
OF_EACH_SITE = Quantity("sites", ("mean", "lowest", "highest", "range"), at_a_site=True)
OF_AN_ARM = Quantity("arms")
OF_TWO_SAMPLES = Quantity("pair")
QUANTITIES: dict[str, Quantity] = {  # besides metrics and what is measured after training
    "rows": Quantity("sites", at_a_site=True),
    "gini": Quantity("sites"),
    "js": OF_PAIRS_OF_SITES,
    "kl": OF_PAIRS_OF_SITES,
    "mmd": OF_PAIRS_OF_SITES,
    "age": OF_EACH_SITE,
    "prevalence": OF_EACH_SITE,
    "bytes": OF_AN_ARM,
    "seconds": OF_AN_ARM,
    "rounds": OF_AN_ARM,
    "weight_change": OF_AN_ARM,
    "t": OF_TWO_SAMPLES,
    "p_value": OF_TWO_SAMPLES,
    "interval_low": OF_TWO_SAMPLES,
    "interval_high": OF_TWO_SAMPLES,
}


@dataclass(frozen=True)
class Claim:
    """A published figure to compare ours with.

    `arms` and `against`: the mean of `metric` over arms, compared with that over `against` where it is given. `stated`
    are figures that the source gives for one and the same thing; `formula` is computed from what it gives in `given`.
    """

    text: str
    source: str
    published: float | None = None
    tolerance: NonNegative = 0.0  # how far ours may be from it and still count as reproduced
    arms: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    metric: str = "accuracy"
    stated: dict[str, float] = field(default_factory=dict)
    formula: tuple[Formula, ...] | Formula | None = None  # one for all lists in `given`, or one for each
    given: tuple[tuple[float, ...], ...] = ()
    rounded: NonNegative = 0.0  # by how much a figure in `given` may be off, because it is printed rounded
    no_verdict: str = ""  # why ours is set beside it and nothing is said of reproduction
    group: str = ""  # the subject under which a report shows it
    statistic: Statistic = "mean"  # mean and sd: over seeds; the others: over sites, or pairs of them
    compare: Comparison = "difference"  # with `against`; change: the ratio less one
    site: str = ""  # of one hospital

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """The formula of each list in `given`."""
        if self.formula is None:
            return ()
        return (self.formula,) * len(self.given) if isinstance(self.formula, str) else self.formula


def hashed(claim: Claim) -> dict[str, Any]:
    """As it enters a study's hash. Later fields are left out if unused, so that older studies keep their hash."""
    later = {"rounded": 0.0, "group": "", "statistic": "mean", "compare": "difference", "site": ""}
    return {key: value for key, value in asdict(claim).items() if key not in later or value != later[key]}


def check_claim(claim: Claim, arms: Sequence[str], known: Mapping[str, Quantity], where: str) -> None:
    """`arms` are the study's, `known` is all that a claim may be about."""
    refuse_strangers((*claim.arms, *claim.against), arms, where, "arm", "Arms")
    if claim.metric not in known:
        remedy = suggest(claim.metric, known, "Possible values")
        raise StudyError(f"{where}: metric", f"{claim.metric!r} is not known", remedy)
    if claim.against and len(claim.arms) != len(claim.against):
        problem = f"{len(claim.arms)} arms and {len(claim.against)} against"
        raise StudyError(where, problem, "List as many `arms` as `against`: they are compared pair by pair.")
    if claim.published is None and not claim.stated:
        raise StudyError(where, "says nothing that was published", "Add `published` or `stated`.")
    _check_quantity(claim, known[claim.metric], where)
    _check_formula(claim, where)


def _check_quantity(claim: Claim, quantity: Quantity, where: str) -> None:
    metric = claim.metric
    if quantity.of == "pair" and (len(claim.arms), len(claim.against)) != (1, 1):
        raise StudyError(where, f"{metric} is of two arms", "Name one arm in `arms` and one in `against`.")
    if quantity.of == "sites" and claim.against:
        raise StudyError(f"{where}: against", f"{metric} is of the sites, not of arms", "Leave `against` out.")
    if claim.statistic not in quantity.statistics:
        remedy = suggest(claim.statistic, quantity.statistics, "Possible values")
        raise StudyError(f"{where}: statistic", f"{metric} has no {claim.statistic!r}", remedy)
    if claim.compare != "difference" and (not claim.against or quantity.of == "pair"):
        problem = f"{claim.compare!r} compares the figures of `arms` with those of `against`"
        raise StudyError(f"{where}: compare", problem, "Name arms in `against`, or leave `compare` out.")
    if not claim.site:
        return
    if not quantity.at_a_site:
        raise StudyError(f"{where}: site", f"{metric} is not of one site", "Leave `site` out.")
    if claim.statistic not in ("mean", "sd"):
        problem = f"{claim.statistic!r} is over sites, and one is named"
        raise StudyError(f"{where}: site", problem, "Leave `site` or `statistic` out.")


def _check_formula(claim: Claim, where: str) -> None:
    if (claim.formula is None) != (not claim.given) or not all(claim.given):
        raise StudyError(where, "`formula` and `given` do not go together", "Write both, or neither.")
    if len(claim.formulas) != len(claim.given):
        problem = f"{len(claim.formulas)} formulas and {len(claim.given)} lists in `given`"
        raise StudyError(f"{where}: formula", problem, "Write one formula for all lists, or one for each.")
    for number, (formula, values) in enumerate(zip(claim.formulas, claim.given, strict=True)):
        _check_arguments(formula, values, f"{where}: given[{number}]")
    if claim.rounded and (not claim.given or max(map(len, claim.given)) > MOST_ROUNDED):
        remedy = f"Use it with lists of at most {MOST_ROUNDED} numbers, or leave it out."
        raise StudyError(f"{where}: rounded", "needs figures in `given`, and not too many", remedy)


def _check_arguments(formula: str, values: Sequence[float], where: str) -> None:
    names = TAKES.get(formula, ())
    order = f"Write in this order: {', '.join(names)}." if names else "Write two numbers at least."
    if names and len(values) != len(names):
        raise StudyError(where, f"{formula} takes {len(names)} numbers, found {len(values)}", order)
    least = {"SD": 0.0, "runs": 2.0}
    if names and any(value < least.get(name, value) for name, value in zip(names, values, strict=True)):
        raise StudyError(where, "an SD is negative, or a number of runs is below 2", order)
    if not DIVISIBLE.get(formula, bool)(values):
        raise StudyError(where, f"{formula} would divide by nothing", order)
