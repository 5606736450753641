"""The study file as one frozen, typed value. Parsed once, at the edge: nothing below sees a dict of settings.

    [data] [sites] [model] [aggregation] [training] [privacy] [compression] [topology] [uncertainty] [evaluation]
    [deployment]
    [[arms]] [[variants]] [[adversaries]] [selection] [tuning] [contribution] [explain] [[analyses]] [[claims]] [quick]

`[data]`, `[sites]`, `[model]`, `[aggregation]` and each arm name a member of a family (a source, a partitioner, a
model, a rule, an algorithm); that member's factory function says which further settings there are. Everything else is a
dataclass here, and every default stands in one of these two places.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, get_args, get_type_hints

from wardround.core.errors import StudyError, shown, suggest
from wardround.core.in_memory import InMemory
from wardround.core.settings import (
    Count,
    Factory,
    Fraction,
    NonNegative,
    Positive,
    Range,
    Setting,
    Share,
    WholeNumber,
    settings_of,
    table_type,
)
from wardround.study.analyses import StudyAnalysis
from wardround.study.claims import Claim, hashed
from wardround.study.explanations import Explain as Explain
from wardround.study.facts import (
    AdversaryFacts,
    AlgorithmFacts,
    Facts,
    ModelFacts,
    PartitionFacts,
    RuleFacts,
    SourceFacts,
)
from wardround.study.protection import AdaptiveClip as AdaptiveClip
from wardround.study.protection import ExamplePrivacy as ExamplePrivacy
from wardround.study.protection import NoiseSchedule as NoiseSchedule
from wardround.study.protection import Privacy as Privacy
from wardround.study.protection import SecureSum as SecureSum
from wardround.study.protection import SitePrivacy as SitePrivacy
from wardround.study.robustness.contribution import Contribution as Contribution
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.robustness.screening import Screening as Screening
from wardround.study.timing import Asynchronous, Late, Timing
from wardround.study.timing import Stragglers as Stragglers
from wardround.study.tuning import Tuning

CHOSEN = "chosen"  # thresholds: on validation rows
SELECTED = "selected"  # fedprox[selected]: in each seed the value that the selection chose
SECTION = "section"  # in the metadata of a field
FAMILIES = ("data", "sites", "model", "algorithm", "aggregation")  # parts of an arm that name a member
KIND_OF_SETTING = {"share": "top-k", "bits": "quantised"}  # of [compression]: which kind has it
NEWER = ("asynchronous", "late", "mix")  # settings of [training] that most studies leave out
Varied = Literal["partition", "split", "batches", "init"]


@dataclass(frozen=True)
class Choice(Generic[Facts]):
    """A member of a family with all its settings: `dirichlet` with alpha 0.1 and 10 sites."""

    name: str
    options: Mapping[str, Any]
    facts: Facts = field(compare=False, repr=False)  # what the member declares

    def build(self, family: Mapping[str, Factory]) -> Any:
        return family[self.name](**self.options)


@dataclass(frozen=True)
class Preparation:
    """How each site prepares its columns before training; fitted on training rows only."""

    missing: Literal["drop", "mean", "median", "range"] = "median"  # range: the middle of a column's public range
    indicator: bool = True  # a 0/1 column beside each column that has gaps at any site
    categories: Literal["one-hot", "codes"] = "one-hot"
    scale: Literal["per-site", "federated", "ranges", "image", "record", "none"] = (
        "per-site"  # columns, pixels, signals
    )
    least_level: Count = 1  # a level that fewer training rows have at a site is not told to the others
    public: bool = False  # nothing is read off rows: ranges and levels are those that are known of a column
    schema: Literal["all", "common", "own"] = "all"  # columns of any site, of every site, or of each site for itself
    not_recorded: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by hospital: what it has hardly any of

    @property
    def scales_pixels(self) -> bool:
        return self.scale not in ("ranges", "none")


@dataclass(frozen=True)
class Decay:
    """lr x factor after every `every` rounds, never below `minimum`."""

    factor: Share
    every: Count
    minimum: NonNegative = 0.0


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, drawn anew for each batch."""

    flip: Literal["none", "horizontal", "both"] = "none"
    rotate: Annotated[float, Range(low=0, high=180)] = 0.0  # degrees to either side, at most
    crop: Fraction = 0.0  # of the width and height, at most; what is left is stretched to the old size
    noise: NonNegative = 0.0  # SD of Gaussian noise on pixels that go from 0 to 1


@dataclass(frozen=True)
class RowMixing:
    """Training rows of a site mixed with each other, drawn anew for each batch."""

    kind: Literal["mixup", "smote"]
    alpha: Positive = 0.2  # of mixup: shares are drawn from Beta(alpha, alpha)
    neighbours: Count = 5  # of SMOTE


@dataclass(frozen=True)
class Training:
    rounds: Count = 30
    local_epochs: Count = 1
    batch_size: Count = 32
    lr: Positive = 0.1
    lr_decay: Decay | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    share: Share = 1.0  # of the sites, in each round
    stragglers: Stragglers | None = None
    asynchronous: Asynchronous | None = None
    late: Late | None = None  # what work is worth that is late for a deadline; None: nothing
    augment: Augmentation | None = None  # images only
    class_weights: Literal["none", "balanced"] = "none"  # in the loss, from each site's own training rows
    oversample: Annotated[float, Range(low=0, high=1)] = 0.0  # of rare classes or findings; 1: each as often as others
    mix: RowMixing | None = None  # of rows with each other; with "smote", only of those that oversampling repeats
    precision: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def lr_in(self, round_number: int) -> float:
        if self.lr_decay is None:
            return self.lr
        decayed = self.lr * self.lr_decay.factor ** (round_number // self.lr_decay.every)
        return max(decayed, min(self.lr, self.lr_decay.minimum))

    @property
    def mixes_models(self) -> bool:
        """Whether each site's model is mixed into the shared one, as FedAsync does it."""
        return self.asynchronous is not None and self.asynchronous.buffer == 1

    @property
    def alone(self) -> "Training":
        """Of sites that train without a coordinator: nobody waits for anybody."""
        return replace(self, share=1.0, stragglers=None, asynchronous=None, late=None)


@dataclass(frozen=True)
class Seeds:
    first: WholeNumber = 42
    count: Count = 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))


@dataclass(frozen=True)
class Evaluation:
    test_share: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] = 0.2
    validation_share: Fraction = 0.0
    seeds: Seeds = field(default_factory=Seeds)
    vary: tuple[Varied, ...] = ("partition", "split", "batches", "init")
    metric: str = ""  # the primary one: the answer, verdicts and figures are about it; by default the task's own
    # from which score on the positive class of two, or a finding, is called; "chosen": on validation rows
    threshold: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] | Literal["chosen"] = "chosen"
    reference: str | None = None  # the arm that the others are compared with; None: `local`, where there is one
    # the smallest difference in `metric` that would matter to patients; None: 0.02, of an error a twentieth
    important_difference: Positive | None = None
    accept: tuple[str, ...] = ()  # checks whose errors this study knowingly accepts; they become warnings
    every: WholeNumber = 1  # rounds between two evaluations; 0 = only after the last
    split: Literal["drawn", "given"] = "drawn"  # given: the split that the source comes with
    on_training: bool = False  # after the last round, loss and accuracy on training rows as well
    samples: WholeNumber = 0  # images of each site's training rows in the report; 0 where images must not travel
    attack: Literal["none", "membership"] = "none"  # at the end of a run, as `wardround attack` without shadow models
    groups: tuple[str, ...] = ()  # columns whose levels are groups of patients, beside sex and age
    bundles: tuple[str, ...] = ()  # sites for which a bundle of every arm is kept in the run's folder

    def seed_for(self, purpose: Varied, seed: int) -> int:
        """What a seed does not vary is drawn with the first seed."""
        return seed if purpose in self.vary else self.seeds.first


@dataclass(frozen=True)
class Deployment:
    """Agreements between hospitals when the study is deployed. A simulation uses quorum and deadline if sites have
    speeds."""

    quorum: Count | None = None  # sites without which a round does not close; None: all of them
    deadline: Positive | None = None  # seconds after which a round may close with a quorum; None: it waits
    smallest_cell: Count = 5  # what counts fewer patients than this does not leave its hospital
    compare_labels: bool = True  # sites tell which way clinical columns go with the label: an inverted one shows


@dataclass(frozen=True)
class Compression:
    """How updates become smaller before they leave their site (`training.compression`)."""

    kind: Literal["none", "float16", "top-k", "quantised"] = "none"
    share: Share = 0.01  # top-k: of the numbers of an update that are sent
    bits: Literal[2, 4, 8, 16] = 8  # quantised: of each number


@dataclass(frozen=True)
class EmbeddingNoise:
    """Protection of the embeddings that a party sends: their length is clipped, then they get noise."""

    clip: Positive
    noise: NonNegative = 0.0  # SD, in clips


@dataclass(frozen=True)
class Topology:
    """How sites, regions or parties are connected.

    flat: sites and one coordinator. hierarchical: sites, a coordinator of each region, one of all regions. vertical:
    parties that hold different features of the same patients.
    """

    kind: Literal["flat", "hierarchical", "vertical"] = "flat"
    regions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # hierarchical: sites, or patterns such as "a-*"
    regional_rounds: Count = 1  # of each region by itself, before all regions are averaged
    parties: dict[str, tuple[str, ...]] = field(default_factory=dict)  # vertical: columns of each; "image" is the image
    labels: str | None = None  # the party that knows the outcome; None: the first
    block: Count = 1  # batches whose embeddings travel together
    known: dict[str, Share] = field(default_factory=dict)  # in a simulation: the share of patients that a party has
    embeddings: EmbeddingNoise | None = None


@dataclass(frozen=True)
class Uncertainty:
    """How the uncertainty of predictions is estimated. Everything about it is chosen on validation rows."""

    # where several scores of one row come from
    method: Literal["none", "dropout", "laplace", "swag", "ensemble"] = "none"
    passes: Annotated[int, Range(low=2)] = 30  # of dropout, Laplace or SWAG; an ensemble has as many as there are seeds
    alpha: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] = 0.1  # so many sets may miss
    refer: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] = 0.2  # of rows, to a clinician


@dataclass(frozen=True)
class StartFrom:
    """A trained model with which training begins: that of an arm of a run, or that of a bundle."""

    run: Path | None = None
    arm: str | None = None
    seed: WholeNumber | None = None  # of the run; None: this study's seed where the run has it, else its first
    bundle: Path | None = None
    digest: str | None = None  # SHA-256 of the weights and of what decides their meaning; known once they were read

    @property
    def is_named(self) -> bool:
        """Whether the weights can be read here. A hospital knows their digest only: they are at the coordinator."""
        return self.run is not None or self.bundle is not None

    @property
    def where(self) -> str:
        return str(self.run if self.bundle is None else self.bundle)


@dataclass(frozen=True)
class Start:
    """The keys of [model] that every model has."""

    start_from: StartFrom | None = None


@dataclass(frozen=True)
class Adversary:
    """A simulated bad site, or several of one kind."""

    sites: tuple[str, ...]
    kind: Choice[AdversaryFacts]
    from_round: Count = 1


@dataclass(frozen=True)
class Section:
    """A table that names a member of a family under `tag`, and whose other keys are that member's settings."""

    family: str  # field of `Families`
    tag: str
    default: str | None = None
    common_field: str = ""  # the arm's block whose keys stand in this table too, whatever the member
    common: type | None = None
    facts: type = object
    optional: bool = False  # a study that leaves it out does without, and keeps the hash that it had before

    @property
    def common_settings(self) -> dict[str, Setting]:
        return settings_of(self.common) if self.common is not None else {}


@dataclass(frozen=True)
class Arm:
    """One way of training: what stands in the file, with its overrides and one point of its sweep filled in.

    Its fields declare the blocks of a study file that an arm may override: sections, and dataclasses. A block with a
    default as a whole does not count for the hash of studies that leave it out.
    """

    name: str  # fedprox[mu=0.05], or fedprox[mu=0.05]@disjoint in a variant
    family: str  # fedprox
    variant: str  # "" for the study as it stands
    algorithm: Choice[AlgorithmFacts]
    data: Choice[SourceFacts] = field(metadata={SECTION: Section("sources", "source", common_field="preparation")})
    preparation: Preparation
    sites: Choice[PartitionFacts] = field(
        metadata={SECTION: Section("partitioners", "partition", "by-hospital", common_field="timing")}
    )
    model: Choice[ModelFacts] = field(metadata={SECTION: Section("models", "kind", "logistic", common_field="start")})
    training: Training
    privacy: Privacy
    vary: tuple[Varied, ...]  # what a seed changes
    compression: Compression = field(default_factory=Compression)
    topology: Topology = field(default_factory=Topology)
    uncertainty: Uncertainty | None = None  # None: nothing beside scores
    train_at: tuple[str, ...] = ()  # the sites that train; the others are only scored. Empty: all train
    held_out: str | None = None  # selection only: the site on whose non-test rows this arm is scored
    start: Start = field(default_factory=Start)
    screening: Screening | None = None
    adversaries: tuple[Adversary, ...] = ()  # simulated; a study for hospitals has none
    timing: Timing = field(default_factory=Timing)
    aggregation: Choice[RuleFacts] = field(
        default=Choice("mean", {}, RuleFacts(is_mean=True, in_sums=True)),
        metadata={SECTION: Section("rules", "rule", "mean", common_field="preaggregation", optional=True)},
    )
    preaggregation: Preaggregation = field(default_factory=Preaggregation)

    @property
    def screened(self) -> Screening | None:
        """Where one coordinator sees each update: not of sites that train alone, nor within sums or under noise that
        hides sites."""
        shown = self.privacy.secure_sum is None and self.privacy.site is None and self.topology.kind == "flat"
        wanted = self.screening is not None and self.screening.policy != "off"
        return self.screening if wanted and shown and self.algorithm.facts.federated else None

    @property
    def by_mean(self) -> bool:
        """Whether updates are averaged as they come: nothing looks at single ones."""
        return self.aggregation.facts.is_mean or not self.algorithm.facts.federated

    @property
    def bounded_at_site(self) -> float | None:
        """The length to which each site shortens its own update: where the coordinator sees sums only, nobody else
        can."""
        sums = self.privacy.secure_sum is not None and self.preaggregation.groups is None
        return self.aggregation.facts.bound if sums and not self.by_mean else None


@dataclass(frozen=True)
class Variant:
    """The whole study once more with something changed, as a sensitivity analysis. Its arms are named ARM@VARIANT."""

    name: str
    text: str = ""
    arms: tuple[str, ...] = ()  # which of them; empty: all


@dataclass(frozen=True)
class Selection:
    """In each seed, the best value of a swept arm is chosen: on validation rows, or at a site that did not train.

    Never on test rows. The arm FAMILY[selected] then has, in each seed, the predictions of the value chosen.
    """

    arms: tuple[str, ...]  # swept families
    on: Literal["validation", "site"] = "validation"
    site: str | None = None
    metric: str | None = None  # None: the study's primary one


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    data: Choice[SourceFacts]
    evaluation: Evaluation
    arms: tuple[Arm, ...]
    variants: tuple[Variant, ...]
    claims: tuple[Claim, ...]
    resolved: Mapping[str, Any] = field(compare=False)  # the file again, every default filled in
    deployment: Deployment = field(default_factory=Deployment)
    selection: Selection | None = None
    tuning: Tuning | None = None
    contribution: Contribution | None = None
    explain: Explain | None = None
    analyses: tuple[StudyAnalysis, ...] = ()
    quick: bool = field(default=False, compare=False)  # at the study's own smaller size

    @cached_property
    def hash(self) -> str:
        """Names the run. Paths and the device are left out: every hospital computes the same hash."""
        content = {key: value for key, value in asdict(self).items() if key not in ("resolved", "quick")}
        if self.evaluation.attack == Evaluation().attack:
            del content["evaluation"]["attack"]
        if self.evaluation.important_difference is None:
            del content["evaluation"]["important_difference"]  # a study that leaves it out keeps its hash
        if not self.evaluation.groups:
            del content["evaluation"]["groups"]
        if self.tuning is None:
            del content["tuning"]
        if self.contribution is None:
            del content["contribution"]
        if self.explain is None:
            del content["explain"]
        del content["evaluation"]["bundles"]  # made of a run, they change nothing in it
        content["claims"] = [hashed(claim) for claim in self.claims]
        if not self.analyses:
            del content["analyses"]
        for choice in _members_of(content):
            del choice["facts"]  # the member's, not the study's
        for arm, described in zip(self.arms, content["arms"], strict=True):
            _leave_out_defaults(arm, described)
        return sha256(json.dumps(anonymous(content), sort_keys=True).encode()).hexdigest()

    @cached_property
    def selection_arms(self) -> tuple[Arm, ...]:
        """Arms that train only to choose a value: each value of the swept arms, without the held-out site."""
        if self.selection is None or self.selection.on != "site":
            return ()
        return tuple(
            replace(arm, name=f"{arm.name}?without={self.selection.site}", held_out=self.selection.site)
            for arm in self.arms
            if arm.family in self.selection.arms
        )

    @cached_property
    def trained_arms(self) -> tuple[Arm, ...]:
        return self.arms + self.selection_arms

    @cached_property
    def _by_name(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in self.trained_arms}

    def evaluation_of(self, arm: Arm) -> Evaluation:
        return replace(self.evaluation, vary=arm.vary)

    def reference_of(self, variant: str) -> str | None:
        reference = self.evaluation.reference
        return reference if reference is None else in_variant(reference, variant)

    def arm(self, name: str) -> Arm:
        if name in self._by_name:
            return self._by_name[name]
        raise StudyError(
            f"study {self.name}", f"has no arm {shown(name)}", suggest(name, [arm.name for arm in self.arms])
        )


def _sections() -> dict[str, Section]:
    hints = get_type_hints(Arm)
    sections = {}
    for part in fields(Arm):
        if SECTION in part.metadata:
            declared: Section = part.metadata[SECTION]
            common = hints[declared.common_field] if declared.common_field else None
            sections[part.name] = replace(declared, common=common, facts=get_args(hints[part.name])[0])
    return sections


def _blocks(target: type) -> dict[str, Setting]:
    return {name: known for name, known in settings_of(target).items() if table_type(known.kind) is not None}


SECTIONS = _sections()
ARM_BLOCKS = {
    name: block
    for name, block in _blocks(Arm).items()
    if name not in [declared.common_field for declared in SECTIONS.values()]
}
STUDY_BLOCKS = _blocks(Study)


def in_variant(arm: str, variant: str) -> str:
    return f"{arm.split('@')[0]}@{variant}" if variant else arm.split("@")[0]


def _members_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that a study names of the families."""
    analysed = [analysis["rows"] for analysis in content.get("analyses", ())]
    members = [content["data"], *(rows[kind] for rows in analysed for kind in ("data", "sites"))]
    members += [bad["kind"] for arm in content["arms"] for bad in arm["adversaries"]]
    return [*members, *(arm[kind] for arm in content["arms"] for kind in FAMILIES)]


def _leave_out_defaults(arm: Arm, described: dict[str, Any]) -> None:
    """The arm's blocks that are as they are in a study without them: a study from before keeps its hash."""
    for name, block in ARM_BLOCKS.items():
        if not block.required and getattr(arm, name) == block.default:
            del described[name]
    if arm.aggregation.facts.is_mean and arm.preaggregation == Preaggregation():
        del described["aggregation"], described["preaggregation"]
    if arm.timing == Timing():
        del described["timing"]
    if not arm.adversaries:
        del described["adversaries"]
    for name in NEWER:
        if getattr(arm.training, name) is None:
            del described["training"][name]
    described["start"] = _identity_of(arm.start)
    if described["start"] is None:
        del described["start"]


def _identity_of(start: Start) -> Any:
    """Which weights training begins with, wherever they are: their digest, once they were read."""
    source = start.start_from
    return source if source is None else source.digest or asdict(source)


def anonymous(value: Any) -> Any:
    """Plain data without the device, and with `a path` in place of each path. Rows in memory have no path that would
    keep two sets of them apart, so that their digest counts."""
    if isinstance(value, Mapping):
        return {key: anonymous(item) for key, item in value.items() if key != "device"}
    if isinstance(value, list | tuple):
        return [anonymous(item) for item in value]
    if isinstance(value, InMemory):
        return value.mark
    return "a path" if isinstance(value, Path) else value
