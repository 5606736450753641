"""Facts that members of the families declare about themselves, so that no other code lists their names.

An algorithm, a rule, a partition or an adversary carries its facts in the value that its factory returns. A model or a
source cannot be built before its data are known; its facts stand above its factory:

    @declares(ModelFacts(seeds=10))
    def small_net(width: Count = 16) -> ModelBuilder: ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from wardround.study.schema import Arm

Optimiser = Literal["sgd", "momentum", "weight-decay", "adam"]
ANY_OPTIMISER: frozenset[Optimiser] = frozenset({"sgd", "momentum", "weight-decay", "adam"})
NOT_DECLARED = "does not declare that it can train in regions"
ONE_MODEL = "does not declare that it can aggregate updates that began with different models"
NOT_DECLARED_ROBUST = "does not declare that it can do with another update than the mean"


@dataclass(frozen=True, kw_only=True)
class AlgorithmFacts:
    weighting: Literal["samples", "uniform"] = "samples"
    sound_with: frozenset[Optimiser] = ANY_OPTIMISER
    data_free: frozenset[str] = frozenset()  # parts of the update that do not depend on patients
    exact: frozenset[str] = frozenset()  # parts of the update that must arrive as they are: they are never compressed
    weighs_only: bool = False  # it needs each update to weigh it, and compares none with another
    needs_start_loss: bool = False
    needs_loss_from_zero: bool = False  # it takes powers or ratios of losses
    personal: bool = False  # sites predict with models of their own, so `broadcast` or `begin` differs between them
    federated: bool = True  # False: a baseline without coordinator, to which share and stragglers do not apply
    trains_own: bool = False  # sites train a model for themselves beside the shared one, from the same patients
    pools: bool = False  # one model of all rows at one place, or of all parties
    vertical: bool = False  # for parties that hold different columns of the same patients, and for nobody else
    adaptive_server: bool = False  # the coordinator's steps have other lengths than the mean update
    not_regional: str = NOT_DECLARED  # why it cannot train in regions, after its name; empty: it can
    # why it cannot use updates that began with earlier models, as asynchronous rounds and late work have them; empty:
    # it can
    not_asynchronous: str = ONE_MODEL
    not_robust: str = NOT_DECLARED_ROBUST  # why no rule but the mean can stand before it; empty: any can
    citation: str = ""

    @property
    def alone(self) -> bool:
        """Each site trains for itself."""
        return not self.federated and not self.pools


def none_bad(count: int) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class RuleFacts:
    """Of a rule by which updates become one."""

    most_bad: Callable[[int], int] = none_bad  # of so many updates, how many may be anything
    bad: int = 0  # how many it is asked to withstand
    is_mean: bool = False  # so that no single update is looked at
    in_sums: bool = False  # can be kept to where the coordinator sees a sum only
    bound: float | None = None  # of an update's length, if that is a number known beforehand
    keeps: bool = False  # something from round to round
    root: str = ""  # the site whose training rows are the coordinator's; empty: it needs none
    weighs: bool = False  # sites by their training rows, as the algorithm does; else each counts once
    citation: str = ""


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    overlapping: bool = False  # a row may be at several sites: in one's training rows and another's test rows
    complete: bool = True  # every row is placed
    keeps_hospitals: bool = False  # each hospital is one site, as in a deployment
    citation: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    seeds: int = 3  # of a study that names no number: what takes a minute or so
    keeps_private: bool = False  # a part of the weights never leaves its site
    own_columns: bool = False  # a private part from each site's own columns to what is shared
    in_parts: bool = False  # one part for each party that holds columns of its own
    check: Callable[["Arm"], None] | None = None  # refuses arms that it cannot train in
    citation: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    elsewhere: bool = False  # the rows are at the hospitals, so that nothing can be simulated
    # the kinds of what is predicted, by outcome; one outcome needs no name. Which classes there are its rows tell
    tasks: Mapping[str, str] = field(default_factory=lambda: {"": "binary"})
    labelled: bool = True  # False: no outcome is named, so that nothing can be trained
    same_rows: tuple[str, ...] = ()  # settings that change what is said of a row, and not which rows there are
    images: bool = False  # its rows are images
    citation: str = ""


@dataclass(frozen=True, kw_only=True)
class AdversaryFacts:
    poisons: Literal["rows", "updates"] = (
        "updates"  # what of a bad site is changed: its training rows, or what it sends
    )
    least_sites: int = 1  # bad sites that it takes
    target: str | None = None  # of a backdoor: the class that rows with its trigger are to be called
    remembers: bool = False  # it goes by what the site was sent in an earlier round
    citation: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What the text of a study must know of a kind of outcome."""

    primary: str  # metric
    metrics: tuple[str, ...]
    undirected: tuple[str, ...] = ()  # metrics whose best value lies in between, so that nothing is chosen by them
    linear_model: str = "linear"  # what a study without [model] trains
    after_training: tuple[str, ...] = ()  # figures on other rows than test rows
    has_classes: bool = True  # or findings: what `class_weights` and `oversample` are about


Facts = TypeVar("Facts", AlgorithmFacts, RuleFacts, PartitionFacts, ModelFacts, SourceFacts, AdversaryFacts)
Factory = TypeVar("Factory", bound=Callable[..., object])
Options = Mapping[str, Any]


def declares(facts: Facts | Callable[[Options], Facts]) -> Callable[[Factory], Factory]:
    """The facts of a model or a source, or a function that gives them for its settings."""

    def declare(factory: Factory) -> Factory:
        factory.facts = facts  # type: ignore[attr-defined]
        return factory

    return declare


def facts_of(kind: type[Facts], factory: Callable[..., Any], options: Options) -> Facts:
    """What a member with these settings declares; the defaults where it declares nothing."""
    if kind in (AlgorithmFacts, RuleFacts, PartitionFacts, AdversaryFacts):
        member = factory(**options)
        return kind(**{fact.name: getattr(member, fact.name) for fact in fields(kind)})
    declared: Any = getattr(factory, "facts", None) or kind()
    return declared if isinstance(declared, kind) else kind(**vars(declared(options)))
