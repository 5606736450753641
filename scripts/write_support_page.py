"""Write docs/reference/support.md: what works with what, found out by asking the program with small studies.

A cell of a table is one small study. It goes through the checks that `wardround run` or `wardround provision` make
before anything trains; a refusal's own reason becomes a footnote. tests/contract/test_support.py trains every cell that
is supported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wardround.aggregation import RULES
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import WardroundError
from wardround.data.records import Source
from wardround.data.sources.synthetic import synthetic
from wardround.deployment.common.deployable import refuse_undeployable
from wardround.models import MODELS
from wardround.runs.catalog import load_study
from wardround.runs.plan import Plan, load_plan
from wardround.runs.units import Unit, cut
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Count, Regression, Task, class_task, findings_task, outcomes_of
from wardround.training.compression import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "support.md"

PRIVACY: dict[str, dict[str, Any]] = {
    "none": {},
    "example": {"epsilon": 50.0, "delta": 1e-5, "clip": 1.0},
    "site": {"epsilon": 50.0, "delta": 1e-5, "clip": 1.0},
    "secure_sum": {},
}
PRIVACY_TITLES = {
    "none": "Without protection",
    "example": "Patient-level differential privacy: `[privacy.example]`",
    "site": "Site-level differential privacy: `[privacy.site]`",
    "secure_sum": "Secure sum: `[privacy.secure_sum]`",
}
SITES = tuple(f"site-{number:02}" for number in range(1, 7))
PARTIES = {"clinic": ["x01", "x02"], "laboratory": ["x03", "x04"]}
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "flat": {},
    "regional": {"kind": "hierarchical", "regions": {"north": list(SITES[:3]), "south": list(SITES[3:])}},
    "vertical": {"kind": "vertical", "parties": PARTIES},
    "parties": {"parties": PARTIES},  # one network that joins parties' columns, trained where all of them are
}
COLUMNS = [
    *((topology, place) for topology in ("flat", "regional") for place in ("serial", "stacked", "deployed")),
    ("vertical", "split"),
    ("vertical", "deployed"),
]
LARGE_MODELS = ("resnet", "densenet")
IMAGE_MODELS = ("cnn", "residual", *LARGE_MODELS)
SIGNAL_MODELS = ("cnn1d", "gru")
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [4]},
    "adapter": {"latent": 4, "hidden": [4]},
    "cnn": {"channels": [2, 2], "hidden": 4},
    "residual": {"widths": [4, 4]},
    "resnet": {"stem": "imagenet"},
    "densenet": {"stem": "imagenet"},
    "cnn1d": {"widths": [4, 4]},
    "gru": {"hidden": 4, "window": 20},
}
YES, NO_EFFECT = "yes", "(yes)"
RANGE = (0.0, 60.0)
# by the name of its row; numbers with their public range, which patient-level differential privacy needs
EXAMPLES: dict[str, Task] = {
    "binary": class_task(2),
    "multiclass": class_task(3),
    "multilabel": findings_task(3),
    "regression": Regression(("n",), range=RANGE),
    'regression, loss = "huber"': Regression(("n",), range=RANGE, loss="huber"),
    "regression, without a range": Regression(("n",)),
    "count": Count(("n",), range=RANGE),
    "count, dispersion = 0.5": Count(("n",), range=RANGE, dispersion=0.5),
    'count, dispersion = "fitted"': Count(("n",), range=RANGE, dispersion="fitted"),
    "count, without a range": Count(("n",)),
    "several outcomes": outcomes_of({"died": class_task(2), "n": Regression(("n",), range=RANGE)}, {}),
}


def _kinds(options: Mapping[str, Any]) -> SourceFacts:
    task = EXAMPLES[options["example"]]
    return SourceFacts(tasks={name: part.kind for name, part in (task.outcomes or {"": task}).items()})


@declares(_kinds)
def rows_of_task(example: str) -> Source:
    """The rows of `synthetic` with an outcome of this kind, made from their columns."""
    task = EXAMPLES[example]

    def load() -> Any:
        rows = synthetic(count=len(SITES), iid=True, features=4, classes=2, largest=60).load()
        return replace(rows, target=_target(task, np.asarray(rows.features)), classes=task.names, given_task=task)

    return Source(load)


def _target(task: Task, x: np.ndarray) -> np.ndarray:
    if task.outcomes:
        parts = [_target(part, x).reshape(len(x), -1) for part in task.outcomes.values()]
        return np.concatenate(parts, axis=1).astype(np.float64)
    score = x.sum(axis=1)  # of all columns, so that none of them tells the outcome by itself
    if task.reads == "numbers":
        return task.of_numbers(np.round(5 * np.exp(score[:, None] / 4)))
    if task.answers == "findings":
        return np.asarray(score[:, None] > 2 * x[:, : len(task.names)], dtype=np.int64)
    cuts = np.quantile(score, np.arange(1, len(task.names)) / len(task.names))
    return np.asarray(np.searchsorted(cuts, score))


TASK_TEXT = """With `fedavg` and the task's linear model; `vertical` with `split` and `joined`. Numbers have a declared
range unless the row says otherwise. Other algorithms train a task as they train classes:
`tests/contract/test_tasks.py` has each of them with each task in both engines."""

SLOW: dict[str, dict[str, Any]] = {
    "asynchronous": {"training.asynchronous.buffer": 3},
    "deadline": {"sites.speed.kind": "lognormal"},
    "late": {"sites.speed.kind": "lognormal", "training.late": "on"},
}
SLOW_COLUMNS: dict[str, dict[str, Any]] = {
    "asynchronous": {},
    "asynchronous: stacked": {"place": "stacked"},
    "asynchronous: deployed": {"place": "deployed"},
    "asynchronous: patient-level DP": {"privacy": "example"},
    "asynchronous: site-level DP": {"privacy": "site"},
    "asynchronous: secure sum": {"privacy": "secure_sum"},
    "deadline": {"slow": "deadline"},
    "late work used": {"slow": "late"},
    "late work used: deployed": {"slow": "late", "place": "deployed"},
}
SLOW_TEXT = """`training.asynchronous` with a buffer of 3, and rounds that close at a deadline, where late work is
dropped or used (`training.late`). See [Slow hospitals](../how-to/slow-hospitals.md)."""

AGGREGATION_TEXT = """`[aggregation]` with `fedavg`, `bad = 0` or a number as bound. See [Robust
aggregation](../explanation/robust-aggregation.md)."""

COMPRESSION_TEXT = """`[compression]` of updates, with `fedavg`; `vertical` with `split`. See [Compression of
updates](../explanation/compression.md)."""

HEAD = """# What is supported

Which algorithms and models work with which engine, protection and topology, in a simulation and in a deployment. This
page is generated: `python scripts/write_support_page.py` asks the program with a small study for each cell, and
`tests/contract/test_support.py` trains each cell that says *yes*.

* **serial**, **stacked** and **split** are the [engines](../explanation/engines.md) of a simulation. `--engine auto`,
  the default, chooses one; their results agree.
* **deployed** is a study across hospitals.
* **flat**: sites and one coordinator. **regional**: regions of sites, each with a coordinator of its own.
  **vertical**: parties with different columns of the same patients.
* **yes**: supported. **(yes)**: accepted without effect, because with this algorithm nothing is sent to a
  coordinator. A number: refused before anything trains, for the [reason](#reasons-of-refusals) of this number.

Settings may restrict this further: see the [study file](study-file.md) and [Privacy](../explanation/privacy.md).
"""


@dataclass(frozen=True)
class Cell:
    algorithm: str
    privacy: str  # a key of PRIVACY
    topology: str  # a key of TOPOLOGIES
    place: str  # an engine, or "deployed"
    model: str = ""  # a key of MODELS; empty: a model that suits the topology
    norm: str = ""  # normalisation layers of the model; empty: its default
    task: str = ""  # a key of EXAMPLES; empty: two classes
    compression: str = "none"  # a kind of [compression]
    slow: str = ""  # a key of SLOW: what is done about slow sites
    rule: str = "mean"  # of [aggregation]
    groups: int | None = None  # of hospitals with a secure sum each

    @property
    def study(self) -> dict[str, Any]:
        kind = self.model or ("joined" if self.topology == "vertical" else "linear" if self.task else "logistic")
        tables = {"source": "synthetic", "count": len(SITES), "iid": True, "features": 4, "classes": 2, "largest": 60}
        tables = {"source": "rows-of-task", "example": self.task} if self.task else tables
        data = {**tables, "scale": "none", "missing": "mean" if self.topology == "vertical" else "drop", "public": True}
        images = {"source": "phantom", "rows": 120, "size": 32, "scale": "image"}
        signals = {"source": "synthetic-ecg", "rows": 120, "seconds": 4, "rate": 50, "skew": 0, "scale": "record"}
        data = images if kind in IMAGE_MODELS else signals if kind in SIGNAL_MODELS else data
        dealt = kind in (*IMAGE_MODELS, *SIGNAL_MODELS)
        return {
            "name": "support",
            "data": {**data, **({"schema": "own"} if kind == "adapter" else {})},
            "sites": {"partition": "iid", "count": 3} if dealt else {"partition": "by-hospital"},
            "model": {"kind": kind, **SMALL.get(kind, {}), **({"norm": self.norm} if self.norm else {})},
            "training": {"rounds": 1 if kind in LARGE_MODELS else 2, "lr": 0.05, "batch_size": 16},
            "topology": TOPOLOGIES[self.topology],
            "privacy": {} if self.privacy == "none" else {self.privacy: PRIVACY[self.privacy]},
            **({} if self.compression == "none" else {"compression": {"kind": self.compression}}),
            **({} if self.rule == "mean" else {"aggregation": self.aggregation}),
            "evaluation": {"seeds": {"count": 1}},
            "deployment": {} if self.slow in ("", "asynchronous") else {"quorum": 3, "deadline": 60},
            "arms": [
                {
                    "algorithm": self.algorithm,
                    **SLOW.get(self.slow, {}),
                    **({"train_at": list(SITES[:-1])} if self.by_root else {}),
                }
            ],
        }

    @property
    def by_root(self) -> bool:
        """Whether the last site's rows are the coordinator's."""
        return bool(RULES[self.rule]().root)

    @property
    def aggregation(self) -> dict[str, Any]:
        """A rule that six sites are enough for."""
        return {
            "rule": self.rule,
            **({"bad": 0} if RULES[self.rule]().bad else {"bound": 1.0}),
            **({"root": SITES[-1]} if self.by_root else {}),
            **({} if self.groups is None else {"groups": self.groups}),
        }


def plan_and_units(cell: Cell) -> tuple[Plan, list[Unit]]:
    """What `wardround run` would do; WardroundError where it would refuse."""
    study, families = load_study(cell.study, sources={"rows-of-task": rows_of_task})
    if cell.place == "deployed":
        refuse_undeployable(study, list(PARTIES) if cell.topology == "vertical" else SITES)
    plan = load_plan(study, families)
    return plan, cut(plan, cell.place if cell.place in ("serial", "stacked") else "auto")


def answer(cell: Cell) -> str:
    """YES, NO_EFFECT, or the reason of the refusal."""
    try:
        plan, units = plan_and_units(cell)
    except WardroundError as error:
        return general_reason(cell, error)
    [trial] = units[0].trials(plan)
    if cell.slow and not trial.algorithm.federated:
        return NO_EFFECT
    protected = cell.privacy == "none" or getattr(trial.privacy, cell.privacy) is not None
    protected = protected and trial.compression.kind == cell.compression
    protected = protected and (cell.rule == "mean" or trial.algorithm.needs == "each" or trial.bound is not None)
    return YES if protected and (cell.topology != "regional" or trial.algorithm.regions is not None) else NO_EFFECT


def general_reason(cell: Cell, error: WardroundError) -> str:
    """A refusal without the names of the algorithm, the model and the rule, so that cells can share it."""
    reason = error.problem.removeprefix(f"{cell.algorithm}: ")
    reason = re.sub(rf"^{cell.algorithm}\b", "the algorithm", reason)
    reason = re.sub(rf"^{cell.model}\b", "the model", reason) if cell.model else reason
    reason = re.sub(rf"^{cell.rule}\b", "the rule", reason) if cell.rule != "mean" else reason
    return f"{reason[0].upper()}{reason[1:]}."


def algorithm_rows(privacy: str) -> dict[str, dict[str, Cell]]:
    """By algorithm, then by title of the column."""
    return {
        name: {f"{topology}: {place}": Cell(name, privacy, topology, place) for topology, place in COLUMNS}
        for name in ALGORITHMS
    }


COMPRESSION_COLUMNS: dict[str, dict[str, Any]] = {
    "serial": {},
    "stacked": {"place": "stacked"},
    "deployed": {"place": "deployed"},
    "regional": {"topology": "regional"},
    "regional, deployed": {"topology": "regional", "place": "deployed"},
    "vertical": {"algorithm": "split", "topology": "vertical", "place": "split"},
    "patient-level DP": {"privacy": "example"},
    "site-level DP": {"privacy": "site"},
    "secure sum": {"privacy": "secure_sum"},
}


def slow_rows() -> dict[str, dict[str, Cell]]:
    """By algorithm, then by title of the column."""
    return {
        name: {
            title: replace(Cell(name, "none", "flat", "serial", slow="asynchronous"), **changes)
            for title, changes in SLOW_COLUMNS.items()
        }
        for name in ALGORITHMS
    }


def compression_rows() -> dict[str, dict[str, Cell]]:
    """By kind, then by title of the column."""
    plain = {kind: Cell("fedavg", "none", "flat", "serial", compression=kind) for kind in KINDS}
    return {
        kind: {title: replace(cell, **changes) for title, changes in COMPRESSION_COLUMNS.items()}
        for kind, cell in plain.items()
    }


def compressing_rows() -> dict[str, dict[str, Cell]]:
    """By algorithm, then by kind."""
    return {
        name: {kind: Cell(name, "none", "flat", "serial", compression=kind) for kind in KINDS} for name in ALGORITHMS
    }


AGGREGATION_COLUMNS: dict[str, dict[str, Any]] = {
    "serial": {},
    "stacked": {"place": "stacked"},
    "deployed": {"place": "deployed"},
    "regional": {"topology": "regional"},
    "patient-level DP": {"privacy": "example"},
    "site-level DP": {"privacy": "site"},
    "secure sum": {"privacy": "secure_sum"},
    "secure sums of groups": {"privacy": "secure_sum", "groups": 2},
}


def aggregation_rows() -> dict[str, dict[str, Cell]]:
    """By rule, then by title of the column."""
    return {
        rule: {title: replace(Cell("fedavg", "none", "flat", "serial", rule=rule), **changes)
               for title, changes in AGGREGATION_COLUMNS.items()}
        for rule in RULES if rule != "mean"
    }  # fmt: skip


def aggregating_rows() -> dict[str, dict[str, Cell]]:
    """By algorithm. Which rule it is does not matter to an algorithm."""
    return {name: {"median": Cell(name, "none", "flat", "serial", rule="median")} for name in ALGORITHMS}


MODEL_COLUMNS: dict[str, dict[str, Any]] = {
    "serial engine": {},
    "stacked engine": {"place": "stacked"},
    "patient-level DP": {"privacy": "example"},
    "site-level DP": {"privacy": "site"},
    "secure sum": {"privacy": "secure_sum"},
    "vertical": {"algorithm": "split", "topology": "vertical", "place": "split"},
}


def model_rows() -> dict[str, dict[str, Cell]]:
    """By model with its normalisation layers, then by title of the column."""
    rows: dict[str, dict[str, Cell]] = {}
    for model in MODELS:
        topology = "parties" if model == "joined" else "flat"
        for norm in ("group", "batch", "fedbn") if model in IMAGE_MODELS else ("",):
            plain = Cell("fedavg", "none", topology, "serial", model, norm)
            cells = {title: replace(plain, **changes) for title, changes in MODEL_COLUMNS.items()}
            rows[f'{model}, norm = "{norm}"' if norm else model] = cells
    return rows


TASK_COLUMNS: dict[str, dict[str, Any]] = {
    "serial": {},
    "stacked": {"place": "stacked"},
    "deployed": {"place": "deployed"},
    "regional": {"topology": "regional"},
    "regional, deployed": {"topology": "regional", "place": "deployed"},
    "vertical": {"algorithm": "split", "topology": "vertical", "place": "split"},
    "vertical, deployed": {"algorithm": "split", "topology": "vertical", "place": "deployed"},
    "patient-level DP": {"privacy": "example"},
    "site-level DP": {"privacy": "site"},
    "secure sum": {"privacy": "secure_sum"},
}


def task_rows() -> dict[str, dict[str, Cell]]:
    """By example of a task, then by title of the column."""
    plain = {name: Cell("fedavg", "none", "flat", "serial", task=name) for name in EXAMPLES}
    return {
        name: {title: replace(cell, **changes) for title, changes in TASK_COLUMNS.items()}
        for name, cell in plain.items()
    }


def page() -> str:
    reasons: dict[str, int] = {}
    parts = [HEAD]
    for privacy, title in PRIVACY_TITLES.items():
        parts.append(f"## {title}\n\n{table('algorithm', algorithm_rows(privacy), reasons)}")
    parts.append(f"## Compression\n\n{COMPRESSION_TEXT}\n\n{table('kind', compression_rows(), reasons)}")
    parts.append(f"## Compression by algorithm\n\n{table('algorithm', compressing_rows(), reasons)}")
    parts.append(f"## Aggregation\n\n{AGGREGATION_TEXT}\n\n{table('rule', aggregation_rows(), reasons)}")
    parts.append(f"## Aggregation by algorithm\n\n{table('algorithm', aggregating_rows(), reasons)}")
    parts.append(f"## Tasks\n\n{TASK_TEXT}\n\n{table('task', task_rows(), reasons)}")
    parts.append(f"## Models\n\nWith `fedavg`; `vertical` with `split`.\n\n{table('model', model_rows(), reasons)}")
    parts.append(f"## Slow hospitals\n\n{SLOW_TEXT}\n\n{table('algorithm', slow_rows(), reasons)}")
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([*parts, "## Reasons of refusals\n", *notes]) + "\n"


def table(title: str, rows: dict[str, dict[str, Cell]], reasons: dict[str, int]) -> str:
    """A Markdown table. New reasons are numbered and added."""
    columns = next(iter(rows.values()))
    lines = [[title, *columns], ["---"] * (1 + len(columns))]
    for name, cells in rows.items():
        answers = [answer(cell) for cell in cells.values()]
        for text in answers:
            if text not in (YES, NO_EFFECT):
                reasons.setdefault(text, len(reasons) + 1)
        lines.append([f"`{name}`", *(str(reasons.get(text, text)) for text in answers)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
