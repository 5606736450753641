"""Every message of the protocol as a type: its kind, who sends it to whom, its fields and their limits.

A request goes from a coordinator to a site, to a region that answers for its hospitals, or to a party whose patients
other parties have too; each kind of request is answered by one kind of answer. What is unknown, missing, of another
type or beyond a limit is refused before anybody looks at a value (`protocol/reading.py`). What a message must be, given
the study and what was agreed, is checked by its receiver. Tensors travel beside the body (`protocol/messages.py`).

JSON has no numbers that are not finite, so that every float here is one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from wardround.core.extras import needs
from wardround.protocol.values import (
    MOST_CLASSES,
    MOST_COLUMNS,
    MOST_LEVELS,
    MOST_METRICS,
    MOST_ROWS,
    MOST_SITES,
    MOST_TRIALS,
    Bytes,
    Count,
    Counts,
    Epochs,
    ExactSum,
    Flags,
    Hash,
    Hex,
    Key,
    Left,
    Name,
    Part,
    Place,
    Positive,
    Remark,
    Shape,
    Share,
    Sites,
    Squares,
    Sums,
    TaskJson,
    Text,
    Totals,
    Values,
)

with needs("deploy", "a study across hospitals"):
    from msgspec import UNSET, Meta, UnsetType

PROTOCOL = 8  # both ends must speak the same one

End = Literal["site", "region", "party"]  # who answers a coordinator


class Body(Part):
    """What every message says in plain data."""

    kind: ClassVar[str]


class Answer(Body, kw_only=True):
    """To a coordinator. It repeats the run, the wave and the round of its request."""

    leaves: ClassVar[str] = ""  # what of a hospital leaves it with this answer, and what is withheld, for its people
    when: ClassVar[str] = ""  # how often

    run: Name
    wave: Place | None = None
    round: Place | None = None


class RegionAnswer(Answer, kw_only=True):
    """Of a region that answers for its hospitals: which of them left, and why."""

    left: Left


class Request(Body, kw_only=True):
    """From a coordinator. `answers` says who can be asked, and with what each of them answers."""

    answers: ClassVar[Mapping[End, type[Answer]]]

    run: Name

    @property
    def place(self) -> dict[str, Any]:
        """Run, wave and round; its answer repeats them."""
        return {name: getattr(self, name) for name in ("run", "wave", "round") if hasattr(self, name)}


# -- parts: columns, rows, what is predicted


class Column(Part):
    name: Name
    kind: Literal["numeric", "categorical"]
    limits: tuple[float, float] | None  # its public range, where the site has declared one
    coded: bool  # whether numbers stand for categories
    levels: Annotated[list[Name], Meta(max_length=MOST_LEVELS)] | None


class HashedName(Part):
    name: Name | None  # None: a class of too few rows to be named
    hash: Hash  # of the name, with the name of the run


class TaskPart(Part):
    """What a site predicts, as its task has it; `options` are checked by the task of this kind."""

    kind: Name
    names: Annotated[list[HashedName], Meta(min_length=1, max_length=MOST_CLASSES)]  # classes or findings
    options: TaskJson  # settings of the task


Columns = Annotated[list[Column], Meta(max_length=MOST_COLUMNS)]
Versions = Annotated[
    dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=80)] | None], Meta(max_length=40)
]


class ColumnFacts(Part):
    present: Flags
    gaps: Flags  # by column: whether a value is missing
    levels: Annotated[list[Annotated[list[Name], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)]


class Sizes(Part):
    train: Count  # training rows
    validation: Count  # validation rows
    test: Count  # test rows


class RowSet(Sizes):
    facts: ColumnFacts | None
    target: Sums  # of training rows, as the task names them; none where no scale is needed, or it is public


class Ages(Part):
    mean: float | None  # years
    sd: Positive | None  # years


class Described(Sizes):
    classes: Annotated[dict[Name, Count | None], Meta(max_length=MOST_CLASSES)]
    age: Ages | UnsetType = UNSET  # where the site knows it


Direction = tuple[Annotated[float, Meta(ge=-0.5, le=0.5)], Annotated[float, Meta(gt=0, lt=1)]]
Directions = Annotated[dict[Name, Direction], Meta(max_length=MOST_COLUMNS)]


class ColumnFillValues(Part):
    fill: Values
    counts: Counts  # by numeric column: values behind it
    levels: Annotated[
        dict[Name, Annotated[dict[Name, Count], Meta(max_length=MOST_LEVELS)]], Meta(max_length=MOST_COLUMNS)
    ]


class ColumnMoments(Part):
    count: Counts  # by numeric column: values
    total: Totals  # by numeric column: their sum
    squares: Squares


ListOfFillValues = Annotated[list[ColumnFillValues], Meta(max_length=MOST_TRIALS)]
ListOfMoments = Annotated[list[ColumnMoments | None], Meta(max_length=MOST_TRIALS)]
Levels = Annotated[list[Name], Meta(max_length=MOST_LEVELS)]


class Layout(Part):
    numeric: Columns  # columns of numbers, in the order of the model's inputs
    levels: Annotated[list[tuple[Name, Levels]], Meta(max_length=MOST_COLUMNS)]
    indicators: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]


class MissingColumns(Part):
    """Columns that some site never recorded."""

    numbers: Annotated[list[Place], Meta(max_length=MOST_COLUMNS)]  # places of numeric columns
    categories: Annotated[list[Name], Meta(max_length=MOST_COLUMNS)]  # names of columns


class Common(Part):
    """What sites have from each other."""

    fill: Values
    level: Annotated[dict[Name, Name], Meta(max_length=MOST_COLUMNS)]
    scale: tuple[Values, Values] | None  # mean and spread of each numeric column


Layouts = Annotated[list[Layout], Meta(max_length=MOST_TRIALS)]
LayoutOfArm = Annotated[list[Place | None], Meta(max_length=MOST_TRIALS)]  # by kind of arm
Commons = Annotated[list[Common | None], Meta(max_length=MOST_TRIALS)]


class Commitment(Part):
    """To a number that is not yet known."""

    commitment: Hash  # of the site's number, its name, the study and the sites
    signature: Hex  # with the key of its kit


class Draw(Part):
    """From which the groups of secure sums follow: what every site has committed to, and the numbers."""

    commitments: Annotated[dict[Name, Commitment], Meta(max_length=MOST_SITES)]  # of every site
    numbers: Annotated[dict[Name, Hash], Meta(max_length=MOST_SITES)]  # that they have committed to


class Agreement(Part):
    """What all agreed on; a site that was away receives it with its next request."""

    run: Name
    columns: Columns | None
    layouts: Layouts
    of: LayoutOfArm
    inputs: Shape | None
    commons: Commons
    target_scales: Annotated[list[Sums], Meta(max_length=MOST_TRIALS)]  # by kind of arm: of what is predicted
    draw: Draw | None = None  # where an arm has groups with a secure sum each


# -- parts: a secure sum


class AdvertPart(Part):
    site: Name
    seal_key: Hex  # with which others agree on a key that seals shares
    mask_key: Hex  # with which others agree on a mask
    seed_hash: Hex  # of the seed of its own mask
    adds: Annotated[list[Key], Meta(max_length=MOST_TRIALS)]  # models to which the site adds something
    signature: Hex


class RevealPart(Part):
    site: Name
    seeds: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]  # shares of the seeds of those whose vectors arrived
    keys: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


SealedShares = Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)]


class SumTerms(Part):
    """A secure sum as far as it has come."""

    roster: Sites  # who was asked
    threshold: Place  # sites that must remain
    models: Annotated[dict[Key, Hash], Meta(max_length=MOST_TRIALS)]  # hash of each model that is sent
    adverts: Annotated[list[AdvertPart], Meta(max_length=MOST_SITES)] | None = None  # keys of everybody
    sealed: SealedShares | None = None  # shares of the others' secrets, sealed for this site
    survivors: Sites | None = None  # whose vectors arrived
    confirmations: Annotated[dict[Name, Hex], Meta(max_length=MOST_SITES)] | None = None


# -- parts: figures of predictions, after a round and of the final models


Metrics = Annotated[dict[Name, float | None], Meta(max_length=MOST_METRICS)]  # None where one is not defined


class Curve(Part):
    """Figures of the last model on a site's rows."""

    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    figures: Metrics


class RegionCurve(Curve):
    auc_rows: Count | UnsetType = UNSET  # rows of hospitals that have an AUC


Subset = Literal["test", "validation"]
Figures = Annotated[dict[Place, dict[Subset, Curve]], Meta(max_length=MOST_TRIALS)]  # by the number of the trial
RegionFigures = Annotated[dict[Place, dict[Subset, RegionCurve]], Meta(max_length=MOST_TRIALS)]


class Cell(Part):
    low: Share  # least score
    high: Share  # greatest score
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: Positive


Cells = Annotated[list[Cell], Meta(max_length=100)]


class ResidualCell(Part):
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    score_sum: float
    label_sum: float  # sum of what was observed
    squares: Positive


class Confusion(Part):
    tp: Count  # true positive rows
    fp: Count  # false positive rows
    fn: Count  # false negative rows
    tn: Count  # true negative rows


class ClassSums(Part):
    right: Count  # rows predicted right
    brier: Positive  # sum of squared errors of the scores
    loss: Positive
    confusion: Annotated[list[Confusion], Meta(max_length=MOST_CLASSES)] | None  # by class


class GroupSummary(Part):
    """Either `suppressed` alone, or figures: all of them, or the number of rows where the model diverged."""

    suppressed: bool | UnsetType = UNSET  # too few patients: no figures
    rows: Annotated[int, Meta(ge=1, le=MOST_ROWS)] | UnsetType = UNSET
    diverged: bool | UnsetType = UNSET  # the model's numbers are not finite: no figures
    small_classes: Annotated[list[Place], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET
    terms: Annotated[list[float], Meta(max_length=MOST_METRICS)] | UnsetType = UNSET  # of numbers: sums over rows
    cells: Annotated[list[ResidualCell], Meta(max_length=100)] | UnsetType = UNSET  # of numbers, of all rows
    metrics: Metrics | UnsetType = UNSET  # by name
    sums: ClassSums | UnsetType | None = UNSET  # from which metrics follow
    histogram: tuple[Cells, Cells] | UnsetType | None = UNSET  # of the negative and the positive class
    chosen: bool | UnsetType = UNSET  # of a finding: whether its threshold was chosen on validation rows
    findings: Annotated[dict[Name, "GroupSummary"], Meta(max_length=MOST_CLASSES)] | UnsetType = UNSET  # by finding


class SiteSummary(GroupSummary):
    groups: (
        Annotated[dict[Name, Annotated[dict[Name, GroupSummary], Meta(max_length=1000)]], Meta(max_length=20)]
        | UnsetType
    ) = UNSET


Summaries = Annotated[
    dict[Place, dict[Literal["test", "validation", "regional"], SiteSummary]], Meta(max_length=MOST_TRIALS)
]


# -- parts: rounds


class TrialWork(Part):
    """`finite` is False where local work ended in numbers that are not: then no update of the trial is sent."""

    epochs: Epochs
    loss: float | None
    length: Positive | None  # how far the model moved; none where it is protected
    compression_error: Positive | None  # how much of the update was lost; none without compression
    moved: bool  # whether the update is how far the model moved
    finite: bool  # whether all numbers of the update are finite


class RegionColumn(Column):
    place: tuple[Place, Place]  # of the first hospital that has it, and among that hospital's columns


class KindFacts(Part):
    facts: ColumnFacts | None
    present: Flags
    trains: bool  # whether any of the hospitals trains in it
    # as the `target` of a set of rows, over all hospitals that train: numbers whose sum without rounding is meant
    target: Annotated[list[ExactSum], Meta(max_length=MOST_METRICS)]


class RegionTrial(Part):
    weight: Positive


class RegionRound(Part):
    trial: Place  # the number of the model
    round: Place
    loss: float | None
    update_norm: Positive | None  # mean length of the updates
    compression_error: Positive | None  # mean over the updates; none without compression
    sites: Sites
    dropped: Sites  # hospitals whose work was due and did not count
    bytes_down: Bytes  # sent to the hospitals
    bytes_up: Bytes  # received from them
    charges: Annotated[dict[Name, tuple[Share, Positive, Place]], Meta(max_length=MOST_SITES)]
    stopped: Sites  # hospitals that have spent their epsilon
    failed: Text  # why a secure sum came to nothing
    not_finite: Sites  # hospitals whose update was not finite
    epochs: Annotated[dict[Name, Epochs], Meta(max_length=MOST_SITES)]
    weight: Positive


class Voucher(Part):
    """A party's key of the run, signed with the key of its kit."""

    key: Hex  # public, of this run
    signature: Hex


Score = Annotated[list[Place], Meta(max_length=MOST_TRIALS)]  # trials whose model is scored
Counted = Annotated[int, Meta(ge=-1, le=MOST_TRIALS)]  # the last round in which the site's work counted
Shapes = Annotated[list[Shape], Meta(max_length=MOST_TRIALS)]
ListOfSizes = Annotated[list[Sizes], Meta(max_length=MOST_TRIALS)]
Stage = Literal["patients", "visits"]


# -- answers of anybody, to anything


class RefusedAnswer(Body):
    """What the site does not allow: a limit of its policy, never a count of patients. `until` says when it opens."""

    kind = "refused"

    reason: Text  # in words
    until: Annotated[str, Meta(max_length=64)] | None  # when the site opens again
    run: Name | None = None  # None where the request could not be read
    wave: Place | None = None
    round: Place | None = None


class FailedAnswer(Body):
    """What went wrong, in a notice without any value. The rest is shown at the site only."""

    kind = "failed"

    notice: Remark  # code and fields; no value of a patient
    run: Name | None = None
    wave: Place | None = None
    round: Place | None = None


# -- greeting


class Ready(Answer):
    """A site: its columns, and what it predicts."""

    kind = "ready"
    leaves = (
        "Names and types of columns, public limits that you declared for them, what is predicted (the task: its "
        "kind, its settings and the names of its classes or findings; of a class with fewer than five rows only a"
        " hash), versions of the packages."
    )
    when = "once a start"

    task: TaskPart
    versions: Versions
    columns: Columns | None
    inputs: Shape | None


class RegionReady(RegionAnswer):
    """Of the hospitals that are there: their columns together."""

    kind = "ready"

    task: TaskPart
    versions: Versions
    columns: Annotated[list[RegionColumn], Meta(max_length=MOST_COLUMNS)] | None
    inputs: Shape | None
    sites: Sites


class PartyReady(Answer):
    """A party: its key of the run, and what is predicted if it has the labels."""

    kind = "ready"

    task: TaskPart | None  # None where a party has no labels
    versions: Versions
    columns: None
    inputs: None
    visits: bool  # whether the party distinguishes visits of one patient
    voucher: Voucher  # its key of the run


class Hello(Request):
    """Which study, which run, which hospitals."""

    kind = "hello"
    answers: ClassVar = {"site": Ready, "region": RegionReady, "party": PartyReady}

    study: Hash  # hash of the study
    sites: Sites


# -- agreeing on columns


class FactsAnswer(Answer):
    kind = "facts"
    leaves = (
        "For each split: the numbers of training, validation and test rows, by which the coordinator checks every"
        " later figure; for each column whether there is any value, whether there are gaps, and **the names of "
        "the levels of categories that occur, rare ones too** unless the study sets `least_level` (on which "
        "`rare_levels = false` in your policy insists). Once: rows for training, validation and test, rows of "
        "each class, mean and SD of the age. A class below `smallest_cell` is withheld, a second one with it, and"
        " so are ages of fewer patients. Of each column with ten values or more in each of two classes (or above "
        "and below the middle of a number), which way it goes with the label (the area under its ROC curve less a"
        " half, two digits, and its error), unless the study has `compare_labels = false`. Where a number is "
        "predicted and its public range is not declared: for each split the number of training rows, the sum of "
        "that number and the sum of its squares (of a count: the sums of counts and of exposures), from which the"
        " scale of training follows. With fewer than `smallest_cell` training patients nothing is sent and your "
        "site leaves the run with that reason; with differential privacy a study without a declared range is "
        "refused. A region adds these up before it passes them on."
    )
    when = "once a run"

    sets: Annotated[list[RowSet], Meta(max_length=MOST_TRIALS)]
    described: Described
    directions: Directions


class RegionFacts(RegionAnswer):
    """Of training rows together, and the rows of each hospital; only `gone` where a hospital has left meanwhile."""

    kind = "facts"

    gone: Sites | None = None
    kinds: Annotated[list[KindFacts], Meta(max_length=MOST_TRIALS)] | None = None  # by kind of arm
    sets: Annotated[dict[Name, ListOfSizes], Meta(max_length=MOST_SITES)] | None = None
    described: Annotated[dict[Name, Described], Meta(max_length=MOST_SITES)] | None = None
    directions: Annotated[dict[Name, Directions], Meta(max_length=MOST_SITES)] | None = None


class AskFacts(Request):
    """The columns that all use."""

    kind = "facts"
    answers: ClassVar = {"site": FactsAnswer, "region": RegionFacts}

    columns: Columns | None
    task: TaskJson | None = None  # to a region, which needs it for its own plan


class FillValuesAnswer(Answer):
    kind = "fill_values"
    leaves = (
        "Of these columns only, and only from five values on: mean or median and the number of values; for "
        "categories how often each level occurs."
    )
    when = "once, only if needed"

    fill_values: ListOfFillValues


class RegionFillValues(RegionAnswer):
    kind = "fill_values"

    gone: Sites | None = None
    fill_values: ListOfFillValues | None = None


class AskFillValues(Request):
    """Columns that some hospital never recorded."""

    kind = "fill_values"
    answers: ClassVar = {"site": FillValuesAnswer, "region": RegionFillValues}

    layouts: Layouts
    of: LayoutOfArm
    missing: Annotated[list[MissingColumns], Meta(max_length=MOST_TRIALS)]  # by kind of arm: columns that are asked for


class MomentsAnswer(Answer):
    kind = "moments"
    leaves = "Number of training rows, sum and sum of squares of each numeric column with five values or more."
    when = 'once, only if a study has `scale = "federated"`'

    moments: ListOfMoments


class RegionMoments(RegionAnswer):
    kind = "moments"

    gone: Sites | None = None
    moments: ListOfMoments | None = None


class AskMoments(Request):
    """For a common scale."""

    kind = "moments"
    answers: ClassVar = {"site": MomentsAnswer, "region": RegionMoments}

    layouts: Layouts
    of: LayoutOfArm
    commons: Commons


class Committed(Answer):
    kind = "committed"
    leaves = "The hash of a random number, signed. Nothing of your rows."
    when = "once a run, if an arm has groups with a secure sum each"

    commitment: Commitment  # to the site's number


class Commit(Request):
    """To a random number, before anybody's is known."""

    kind = "commit"
    answers: ClassVar = {"site": Committed}


class Opened(Answer):
    kind = "opened"
    leaves = (
        "The random number. From the numbers of all hospitals it follows who is in a group with whom, so that nobody "
        "can choose it. Nothing of your rows."
    )
    when = "once a run, if an arm has groups with a secure sum each"

    number: Hash  # that it has committed to


class Open(Request):
    """The number, now that all are committed."""

    kind = "open"
    answers: ClassVar = {"site": Opened}

    commitments: Annotated[dict[Name, Commitment], Meta(max_length=MOST_SITES)]  # of every site, its own too


class Prepared(Answer):
    kind = "prepared"
    leaves = "Nothing of yours."
    when = "once a start"

    waves: Place


class RegionPrepared(RegionAnswer):
    kind = "prepared"

    waves: Place


class Prepare(Request):
    """What was agreed."""

    kind = "prepare"
    answers: ClassVar = {"site": Prepared, "region": RegionPrepared}

    columns: Columns | None
    layouts: Layouts
    of: LayoutOfArm
    inputs: Shape | None
    commons: Commons
    target_scales: Annotated[list[Sums], Meta(max_length=MOST_TRIALS)]
    draw: Draw | None = None  # where an arm has groups with a secure sum each


# -- rounds


class Advert(Answer):
    """The site's keys of this round."""

    kind = "advert"
    leaves = (
        "Public keys of this round, signed, and the arms to which your site adds something in it (none where it "
        "has spent its epsilon). Nothing of your rows."
    )
    when = "every round of arms with a secure sum"

    advert: AdvertPart  # the site's keys of this round


class Keys(Request):
    """Who is in a secure sum."""

    kind = "keys"
    answers: ClassVar = {"site": Advert}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Shared(Answer):
    """Shares of the site's secrets, each sealed for one other site."""

    kind = "shared"
    leaves = "Shares of the secrets behind your site's keys, each sealed for one other hospital. Nothing of your rows."
    when = "every round of arms with a secure sum"

    shares: SealedShares  # by site: sealed for it


class Shares(Request):
    """Everybody's keys."""

    kind = "shares"
    answers: ClassVar = {"site": Shared}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Update(Answer):
    """Updates, or one masked vector; figures of the models that were sent."""

    kind = "update"
    leaves = (
        "For each arm and seed: **the update, as large as the shared model** (smaller with "
        "[`[compression]`](../explanation/compression.md), with how much of it was lost), the mean training loss, how "
        "far the model moved, epochs done. An update with numbers that are not finite is not sent: only that it was "
        "so. With differential privacy the update has noise and no loss goes with it; in a secure sum it is under "
        "masks, twice as large, and neither loss nor length goes with it. For the curves: number of test and "
        "validation rows, loss and accuracy (of a number: mean absolute error) of the last model on them, unless "
        "there are fewer rows than `smallest_cell`."
    )
    when = "every round"

    trials: Annotated[dict[Place, TrialWork], Meta(max_length=MOST_TRIALS)]
    figures: Figures


class Train(Request):
    """Models, and whether the site's last update counted."""

    kind = "train"
    answers: ClassVar = {"site": Update}

    wave: Place
    round: Place
    score: Score
    counted: Counted
    work: Annotated[dict[Place, Epochs], Meta(max_length=MOST_TRIALS)]  # epochs, by the number of the trial
    seconds: Positive | None  # time for training; none without limit
    sum: SumTerms | None = None
    prepare: Agreement | None = None


class RegionUpdate(RegionAnswer):
    """The region's models, and what each has in weight."""

    kind = "update"

    trials: Annotated[dict[Place, RegionTrial], Meta(max_length=MOST_TRIALS)]
    rounds: Annotated[list[RegionRound], Meta(max_length=MOST_TRIALS)]  # of the region by itself
    figures: RegionFigures


class TrainRegion(Request):
    """Models of all, for the rounds that the region has by itself before the next average."""

    kind = "train"
    answers: ClassVar = {"region": RegionUpdate}

    wave: Place
    round: Place
    score: Score
    prepare: Agreement | None = None


class Confirmed(Answer):
    """The site's signature under the list of survivors."""

    kind = "confirmed"
    leaves = "A signature that these hospitals are in the sum. Nothing of your rows."
    when = "every round of arms with a secure sum"

    signature: Hex


class Confirm(Request):
    """Who has sent a masked vector."""

    kind = "confirm"
    answers: ClassVar = {"site": Confirmed}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


class Revealed(Answer):
    """The site's shares of what undoes the masks of the sum."""

    kind = "revealed"
    leaves = "Shares of what undoes the masks of the sum. Nothing of your rows."
    when = "every round of arms with a secure sum"

    reveal: RevealPart  # the site's shares


class Unmask(Request):
    """Those signatures."""

    kind = "unmask"
    answers: ClassVar = {"site": Revealed}

    wave: Place
    round: Place
    sum: SumTerms
    prepare: Agreement | None = None


# -- analyses: exact figures from sums


class AgreedAnalysis(Part):
    """What holds at all hospitals: the columns that an analysis reads, their levels, who takes part."""

    columns: Columns  # that the analysis reads
    levels: Annotated[dict[Name, Levels], Meta(max_length=MOST_COLUMNS)]  # by column
    sites: Sites  # that take part


class Surveyed(Answer):
    """Whether the site takes part in an analysis; if so, the columns that it reads and their levels."""

    kind = "surveyed"
    leaves = (
        "Of the columns that the analysis reads: their names and types, public limits that you declared, and **the "
        "names of the levels of categories that occur**: those that are declared, and others from `smallest_cell` "
        "patients on. A site of which fewer patients would count says that alone."
    )
    when = "once for each analysis"

    broken: Name | None  # the rule of disclosure that keeps it out; none: it takes part
    columns: Columns  # that the analysis reads; none where it is kept out
    levels: Annotated[dict[Name, Levels], Meta(max_length=MOST_COLUMNS)]  # by column


class AskSurvey(Request):
    """An analysis of the study, before its first step."""

    kind = "survey"
    answers: ClassVar = {"site": Surveyed}

    analysis: Place  # its number in the study


class Admitted(Answer):
    """Whether every rule of disclosure is kept by what the site would release."""

    kind = "admitted"
    leaves = "The name of the rule that keeps your site out, or that none does. Nothing of your rows."
    when = "once for each analysis, again where a hospital was left out"

    broken: Name | None  # the rule that keeps it out
    rules: Annotated[list[Name], Meta(max_length=100)]  # that were asked


class AskAdmission(Request):
    """What was agreed on for an analysis."""

    kind = "admission"
    answers: ClassVar = {"site": Admitted}

    analysis: Place  # its number in the study
    agreed: AgreedAnalysis  # levels and sites of the analysis, as all of them know them
    masked: bool  # whether the coordinator is to know the sum alone


class StepSums(Answer):
    """Sums over the site's rows, or one masked vector."""

    kind = "step_sums"
    leaves = (
        "**Sums over the rows that count**: for a regression their number and that of patients, the sum of each column "
        "of the design, their cross products, and in each step the likelihood, its gradient and its curvature, as "
        "many numbers as columns and pairs of columns; for the explanation of a model, of your test rows, their number "
        "and that of patients, sums of losses and of their rises by column with squares, and sums of changes of scores "
        "in each bin of a column. In a secure sum they are under masks, six times as large."
    )
    when = "every step of an analysis, mostly five to ten; once for each explained arm, after the last round"


class Analyse(Request):
    """A step of an analysis: a few arrays, such as coefficients."""

    kind = "analyse"
    answers: ClassVar = {"site": StepSums}

    wave: Place
    round: Place  # the number of the step
    analysis: Place  # its number in the study
    step: Name  # what it asks for
    sum: SumTerms | None = None
    prepare: Agreement | None = None


# -- figures at the end of a wave


class Summary(Answer):
    """Counts and figures; predictions stay at the site."""

    kind = "summary"
    leaves = (
        "For each arm and seed, of your test rows (and validation rows, where a value is selected by them): "
        "metrics, counts, histograms of scores by class; of a number sums over rows, and the same sums for groups"
        " of ten patients or more in the order of their predictions; the same for groups by sex, age and the study's"
        " `groups`. [What is"
        " withheld](../reference/results.md#summariesjsonl)."
    )
    when = "once for each wave of arms"

    summaries: Summaries
    figures: Figures


class RegionSummary(RegionAnswer):
    """Those of each hospital; predictions stay there."""

    kind = "summary"

    summaries: Annotated[dict[Name, Summaries], Meta(max_length=MOST_SITES)]
    figures: RegionFigures


class Evaluate(Request):
    """Final models."""

    kind = "evaluate"
    answers: ClassVar = {"site": Summary, "region": RegionSummary}

    wave: Place
    counted: Counted
    score: Score
    prepare: Agreement | None = None


# -- parties with different features of the same patients


class Matched(Answer):
    """Its own messages of the matching."""

    kind = "matched"

    common: Count | None  # patients or visits in common; none as long as that is open


class Match(Request):
    """Messages of the matching that wait for this party."""

    kind = "match"
    answers: ClassVar = {"party": Matched}

    wave: Place
    round: Place
    stage: Stage  # what is matched
    vouchers: Annotated[dict[Name, Voucher], Meta(max_length=MOST_SITES)]  # keys of all parties
    rosters: dict[Stage, Sites]  # who is matched with whom


class Assigned(Answer):
    """Rows of each party, sealed for it."""

    kind = "assigned"

    sizes: ListOfSizes  # rows for training, validation and test
    unmatched: Count | None  # training rows whose patient some party lacks; none where they are few
    described: Described


class Assign(Request):
    """To the holder of the labels: who trains, validates and tests?"""

    kind = "assign"
    answers: ClassVar = {"party": Assigned}


class Shaped(Answer):
    """How many numbers the party gives of a row."""

    kind = "shaped"

    shapes: Shapes


class AskShape(Request):
    """What the holder sealed for this party."""

    kind = "shape"
    answers: ClassVar = {"party": Shaped}


class Agreed(Answer):
    kind = "agreed"

    waves: Place


class Agree(Request):
    """What all parties give."""

    kind = "agree"
    answers: ClassVar = {"party": Agreed}

    shapes: Annotated[dict[Name, Shapes], Meta(max_length=MOST_SITES)]
    task: TaskJson


class Embedded(Answer):
    """Embeddings of the next block, sealed for the party with the labels."""

    kind = "embedded"


class Embed(Request):
    """Gradients of the block before, sealed for this party."""

    kind = "embed"
    answers: ClassVar = {"party": Embedded}

    wave: Place
    round: Place


class Learned(Answer):
    """Gradients, sealed for each party; the loss of a round that ends."""

    kind = "learned"

    losses: Annotated[dict[Place, float], Meta(max_length=MOST_TRIALS)]  # mean loss of each model whose round ends


class Learn(Request):
    """To the holder of the labels: all embeddings of a block."""

    kind = "learn"
    answers: ClassVar = {"party": Learned}

    wave: Place
    round: Place


class LastEmbedded(Answer):
    """Embeddings of validation and test rows, sealed for the party with the labels."""

    kind = "last_embedded"


class EmbedLast(Request):
    """Gradients of the last block."""

    kind = "embed_last"
    answers: ClassVar = {"party": LastEmbedded}

    wave: Place
    round: Place


class Assessed(Answer):
    """Counts and figures, and the same once more for each other party as if it had been missing."""

    kind = "assessed"

    summaries: Summaries
    figures: Figures
    without: Annotated[
        dict[Place, Annotated[dict[Name, SiteSummary], Meta(max_length=MOST_SITES)]], Meta(max_length=MOST_TRIALS)
    ]


class Assess(Request):
    """To the holder of the labels: those embeddings."""

    kind = "assess"
    answers: ClassVar = {"party": Assessed}

    wave: Place
    round: Place


# -- the end


class GoodbyeAnswer(Answer):
    kind = "goodbye"
    leaves = "Nothing of yours."
    when = "at the end"


class Goodbye(Request):
    """The run is over, or given up, and why."""

    kind = "goodbye"
    answers: ClassVar = {"site": GoodbyeAnswer, "region": GoodbyeAnswer, "party": GoodbyeAnswer}

    results: Hex  # hash of the results; empty where there are none
    why: Text | None = None  # why the run is given up


# -- all of them

REQUESTS: tuple[type[Request], ...] = tuple(Request.__subclasses__())
REFUSALS: dict[str, type[Body]] = {"refused": RefusedAnswer, "failed": FailedAnswer}
ANSWERED_BY = {request.kind: answer.kind for request in REQUESTS for answer in request.answers.values()}


def requests_to(end: End) -> dict[str, type[Request]]:
    """By kind, what a coordinator may ask this end."""
    return {request.kind: request for request in REQUESTS if end in request.answers}


def answers_of(end: End) -> dict[str, type[Body]]:
    """By kind, what this end may answer."""
    return REFUSALS | {
        request.answers[end].kind: request.answers[end] for request in REQUESTS if end in request.answers
    }
