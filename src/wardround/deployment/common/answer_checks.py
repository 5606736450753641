"""Whether an answer fits its request and what was agreed, before it is stored.

`protocol/reading.py` has checked its form already. Each function here raises `Impossible` or DeployError; the
coordinator then refuses the answer and names its sender.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from wardround.core.errors import StudyError
from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.data.checks.clinical_names import SAME
from wardround.data.records import SPLIT_PARTS, Column, class_hash
from wardround.deployment.common.deployed_plan import DeployedPlan, Key, Subset, reported_subsets
from wardround.evaluation.regional import REGIONAL
from wardround.evaluation.summaries.summary_validation import Expected, check_curve, check_summary
from wardround.protocol.catalogue import (
    Agreed,
    ColumnFacts,
    ColumnFillValues,
    ColumnMoments,
    Curve,
    Described,
    FactsAnswer,
    Layout,
    MissingColumns,
    PartyReady,
    Prepared,
    Ready,
    RegionPrepared,
    RegionReady,
    SiteSummary,
    Sizes,
    TaskPart,
    TrialWork,
    Update,
)
from wardround.runs.plan import members_of
from wardround.study.schema import Privacy
from wardround.tasks import Task, read_task
from wardround.tasks.task import Impossible
from wardround.tasks.task import require as require
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins

Scored = Literal["test", "validation", "regional"]
CLOSE = 1e-6


def split_sizes(sizes: Sizes) -> dict[str, int]:
    return {part: getattr(sizes, part) for part in SPLIT_PARTS}


# -- before the first round


def check_ready(body: Ready | RegionReady | PartyReady, run: str) -> None:
    columns = body.columns or []
    names = [column.name for column in columns]
    require(len(set(names)) == len(names), "two columns of one name")
    require(not (columns and body.inputs), "columns and images")
    if body.task is not None:
        check_task(body.task, run)
    for column in columns:
        limits = column.limits
        require(limits is None or limits[0] < limits[1], f"limits of {column.name!r} that are none")


def check_task(part: TaskPart, run: str) -> None:
    """A task that this version knows, with options that it can have."""
    hashes = [entry.hash for entry in part.names]
    require(len(set(hashes)) == len(hashes), "two classes of one name")
    for entry in part.names:
        require(entry.name is None or entry.hash == class_hash(run, entry.name), "a class of another name")
    require(not {"kind", "names"} & set(part.options), "a task that says twice what it is")
    names = [entry.name or entry.hash for entry in part.names]
    try:
        read_task({**part.options, "kind": part.kind, "names": names})
    except StudyError as error:
        raise Impossible(f"a task that cannot be read ({error.where}: {error.problem})") from None


def check_facts(
    site: str, body: FactsAnswer, plan: DeployedPlan, columns: Sequence[Column], sites: Sequence[str]
) -> None:
    require(len(body.sets) == len(plan.row_sets), "other sets of rows than the study has")
    for key, row_set in zip(plan.row_sets, body.sets, strict=True):
        check_sizes(site, row_set, plan, key, sites)
        require((row_set.facts is None) == (not columns), "facts of columns that nobody asked for, or none")
        check_column_facts(row_set.facts, columns)
        plan.task.check_target_sums(row_set.target, row_set.train)
    check_described(body.described, body.sets[0], plan)
    check_directions(body.directions, columns, plan.task)


def check_sizes(site: str, sizes: Sizes, plan: DeployedPlan, key: Key, sites: Sequence[str]) -> None:
    arms = [arm for arm in plan.study.trained_arms if plan.first_with_rows[arm.name] == key[0]]
    own = [arm for arm in arms if site in members_of(arm, sites)]
    require(sizes.train > 0 or not own, "no training rows")
    bounds = [arm.privacy.secure_sum.most_rows for arm in own if arm.privacy.secure_sum is not None]
    require(all(sizes.train <= most for most in bounds), "more training rows than the study's most_rows")


def check_column_facts(facts: ColumnFacts | None, columns: Sequence[Column]) -> None:
    if facts is None:
        return
    for name, values in (("present", facts.present), ("gaps", facts.gaps), ("levels", facts.levels)):
        require(len(values) == len(columns), f"{name} of another number of columns")
    for column, levels in zip(columns, facts.levels, strict=True):
        require(len(set(levels)) == len(levels), "a level of a column twice")
        require(not levels or column.kind == "categorical", "levels of a column of numbers")


def check_described(described: Described, sizes: Sizes, plan: DeployedPlan) -> None:
    for subset, rows in split_sizes(sizes).items():
        require(split_sizes(described)[subset] == rows, f"two numbers of {subset} rows")
    check_classes(described, plan.task)


def check_classes(described: Described, task: Task) -> None:
    total, counts = sum(split_sizes(described).values()), described.classes
    require(set(counts) == set(task.counted), "counts of other classes")
    known = [count for count in counts.values() if count is not None]
    require(all(count <= total for count in known), "more rows of a class than there are")
    if task.classes:
        require(sum(known) == total if len(known) == len(counts) else sum(known) <= total, "classes that do not add up")


def check_directions(directions: Mapping[str, object], columns: Sequence[Column], task: Task) -> None:
    require(not directions or task.has_upper, "directions where there are no two classes")
    require(set(directions) <= {*(column.name for column in columns), *SAME}, "directions of columns that nobody has")


def check_fill_values(
    answers: Sequence[ColumnFillValues],
    plan: DeployedPlan,
    requests: Sequence[MissingColumns],
    layout_of_arm: Sequence[int | None],
    layouts: Sequence[Layout],
    rows: int,
) -> None:
    """`rows` are the most that one value can stand for."""
    require(len(answers) == len(plan.kinds), "values of another number of arms")
    for answer, request, layout in zip(answers, requests, layout_of_arm, strict=True):
        width = len(layouts[layout].numeric) if layout is not None and answer.fill else 0
        require(len(answer.fill) == len(answer.counts) == width, "values of another number of columns")
        require(all(count <= rows for count in answer.counts), "values of more rows than there are")
        require(set(answer.levels) <= set(request.categories), "counts of categories that nobody asked for")
        for counts in answer.levels.values():
            require(sum(counts.values()) <= rows, "categories of more rows than there are")


def check_moments(
    moments: Sequence[ColumnMoments | None],
    plan: DeployedPlan,
    layout_of_arm: Sequence[int | None],
    layouts: Sequence[Layout],
    rows: int,
    trains: Callable[[Key], bool] = lambda kind: True,
) -> None:
    """`trains` says whether any site has training rows in a kind of arm; in a region there may be none."""
    require(len(moments) == len(plan.kinds), "sums of another number of arms")
    for sums, layout, kind in zip(moments, layout_of_arm, plan.kinds, strict=True):
        federated = layout is not None and plan.study.arm(kind[0]).preparation.scale == "federated"
        require(federated or sums is None, "sums that nobody asked for")
        if sums is None:
            require(not federated or not trains(kind), "no sums")
            continue
        width = 0 if layout is None else len(layouts[layout].numeric)
        for values in (sums.count, sums.total, sums.squares):
            require(len(values) == width, "sums of another number of columns")
        for count, total, squares in zip(sums.count, sums.total, sums.squares, strict=True):
            require(count <= rows, "sums of more rows than there are")
            require(count > 0 or total == squares == 0, "sums of no rows")
            least = total * total / count if count else 0.0
            require(squares >= least * (1 - CLOSE) - CLOSE, "sums of squares that no numbers have")


def check_waves(body: Prepared | RegionPrepared | Agreed, waves: int) -> None:
    require(body.waves == waves, "another number of models than the study has")


# -- rounds


def check_update(body: Update, work: Mapping[int, int], trials: Sequence[Trial]) -> None:
    """One entry for each requested trial, no more epochs than requested, and no protected figure."""
    require(set(body.trials) == set(work), "updates of other models than it was asked for")
    for number, epochs in work.items():
        entry, privacy = body.trials[number], trials[number].privacy
        require(entry.epochs <= epochs, "more epochs than it was asked for")
        require(entry.finite or privacy.secure_sum is None, "no update where it belongs into a secure sum")
        if entry.finite:
            _check_protected(entry, privacy)
            told = trials[number].compression.kind != "none" and privacy.site is None
            require((entry.compression_error is not None) == told, "an error of compression, or none")


def _check_protected(entry: TrialWork, privacy: Privacy) -> None:
    hidden = privacy.secure_sum is not None or privacy.site is not None
    require((entry.length is None) == hidden, "the length of an update that is protected, or none")
    require((entry.loss is None) == (hidden or privacy.example is not None), "a loss that is protected, or none")
    require(not (hidden and entry.moved), "more of an update than it may tell")


def check_figures(
    site: str,
    figures: Mapping[int, Mapping[Subset, Curve]],
    requested: Collection[int],
    trials: Sequence[Trial],
    plan: DeployedPlan,
) -> None:
    """Figures for the curves, of the models to be scored and over the rows that were agreed."""
    for number, by_subset in figures.items():
        require(number in requested, "figures of a model that was not to be scored")
        for subset, curve in by_subset.items():
            rows, exact = rows_scored(site, subset, trials[number], plan)
            check_curve(to_builtins(curve), rows, exact, plan.task)


def rows_scored(site: str, subset: str, trial: Trial, plan: DeployedPlan) -> tuple[int, bool]:
    """The number of rows behind a site's figures, and whether it is exact: selection may use fewer validation rows,
    and a held-out site is scored on its training rows."""
    arm = plan.study.arm(trial.arm)
    sizes = plan.agreed[plan.alike[arm.name], plan.data_seed(arm, trial.seed)].split_sizes[site]
    if arm.held_out is not None:
        return sum(sizes.values()), False
    subset = "test" if subset == REGIONAL else subset
    return sizes[subset], subset == "test"


def check_summaries(
    site: str,
    summaries: Mapping[int, Mapping[Scored, SiteSummary]],
    trials: Sequence[Trial],
    plan: DeployedPlan,
    regional: Collection[int] = (),
) -> None:
    """Figures of the final models. `regional` are the trials for which the site also has its region's own model."""
    subsets = set(reported_subsets(plan.study))
    require(set(summaries) == set(range(len(trials))), "figures of other models than it was sent")
    for number, by_subset in summaries.items():
        trial = trials[number]
        requested = subsets | ({REGIONAL} if number in regional else set())
        require(set(by_subset) <= requested, "figures of rows that nobody asked for")
        scores = site in [member.name for member in trial.scored]
        require(not by_subset or scores, "figures of a model that it does not score")
        due = scores and plan.study.arm(trial.arm).held_out is None and rows_scored(site, "test", trial, plan)[0] > 0
        require("test" in by_subset or not due, "no figures of its test rows")
        for subset, summary in by_subset.items():
            rows, exact = rows_scored(site, subset, trial, plan)
            check_summary(to_builtins(summary), Expected(plan.task, rows, exact))


# -- weights


def dominant_sites(plan: DeployedPlan) -> list[Notice]:
    """For each site that alone has more than half of the weight in an average."""
    rows = {site: sizes["train"] for site, sizes in plan.agreed[plan.kinds[0]].split_sizes.items()}
    total = sum(rows.values())
    return [
        Notice("large-share-of-weight", "warning", site, counts={"share": own / total})
        for site, own in rows.items()
        if len(rows) > 1 and own > total / 2
    ]


def is_close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=CLOSE, abs_tol=CLOSE)
