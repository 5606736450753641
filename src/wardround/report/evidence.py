"""All that a report may use: what stands in the run folder, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from wardround.core.errors import RunError
from wardround.evaluation.answer import main_arms, primary_figure, primary_word
from wardround.evaluation.comparisons.measures import plainly, recorded_task, unit_digits
from wardround.evaluation.comparisons.paired import topologies_of
from wardround.evaluation.outcome_results import content_of
from wardround.report.headline import Headline, headline_of
from wardround.runs.audit import changed_files, verify
from wardround.runs.folder import RunFolder
from wardround.study.schema import Deployment
from wardround.tasks import Task
from wardround.tasks.class_metrics import SMALLEST_GROUP

KNOWN_SCHEMA = 1
OFF_SCALE = 1000  # times the usual error
KNOWN_ATTACK = 1  # `schema` of attack.json
STAY = "predictions stay at their hospital"  # why something that needs rows is not in a report
NEEDED = {"arms", "seeds", "variants", "curves", "selection", "sites", "primary_metric", "answer"}
ROLES = ("training", "validation", "test")  # of rows
KINDS = ("sex", "age", "view")  # of groups, in the order in which they are named
ENVIRONMENT = {"time", "versions", "system", "processors", "python", "engine"}


def outcome_page(name: str) -> str:
    """The file with the report about an outcome that is not the study's first."""
    return f"report-{_in_file_name(name)}.html"


def site_page(name: str) -> str:
    """The file with one hospital's page."""
    return f"report-site-{_in_file_name(name)}.html"


def _in_file_name(name: str) -> str:
    """Names of columns and hospitals may hold anything."""
    return "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in name)


@dataclass(frozen=True)
class Evidence:
    results: Mapping[str, Any]
    study: Mapping[str, Any]  # study.toml
    environment: Mapping[str, Any]
    samples: Mapping[str, np.ndarray] = field(default_factory=dict)  # images that may be shown: images, site, caption
    attack: Mapping[str, Any] | None = None  # attack.json, where the run was attacked
    in_detail: bool = False  # only the arm that is shown in detail, and training alone beside it
    whole: Mapping[str, Any] | None = None  # results.json, where `results` are those of one of several outcomes
    # test images that are called wrongly and may be shown, with where the model looks, as `RunFolder.wrong_calls`
    wrong_calls: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def outcomes(self) -> Mapping[str, Any]:
        """By name the results of each, where the study has several outcomes."""
        return dict(self.results.get("outcomes", {}))

    @property
    def other_outcomes(self) -> list[str]:
        """Those that this report is not about."""
        return [name for name in self.outcomes if name != self.results["outcome"]]

    def of_outcome(self, name: str) -> "Evidence":
        """All that a report about another outcome may use."""
        whole = self.whole or self.results
        return replace(self, results={**content_of(whole, name), "outcomes": self.outcomes}, whole=whole)

    @cached_property
    def headline(self) -> Headline:
        """The figure that comparisons are about."""
        return headline_of(self.results)

    def headline_for(self, metric: str) -> Headline:
        """Another figure, in the units of this run."""
        return headline_of(self.results, metric)

    @cached_property
    def task(self) -> Task:
        """What is predicted."""
        return recorded_task(self.results)

    @cached_property
    def unit_digits(self) -> int:
        """Behind the point of figures in units."""
        return unit_digits(self.results["arms"])

    def in_units(self, value: float) -> str:
        """A number of the target's own kind, in a table."""
        return plainly(value, self.unit_digits)

    @property
    def unit(self) -> str:
        """Of a number that is predicted; empty where the study names none."""
        return self.task.report.unit

    @property
    def named_outcome(self) -> str:
        """A number's name with its unit, as an axis has it."""
        return self.task.report.named or self.task.names[0]

    @property
    def curve_headline(self) -> Headline:
        """What is known after every round: the AUC of findings, the accuracy of classes, the mean error of numbers."""
        curves = self.results["curves"].values()
        known = (name for name in self.task.round_metrics if any(f"test_{name}" in curve for curve in curves))
        return self.headline_for(next(known, self.task.curve))

    @cached_property
    def off_scale(self) -> list[str]:
        """Arms whose errors are so much larger than the others' that a figure with them would show nothing else."""
        metric = self.headline.measure.metric
        means = {name: mean for name in self.arms if (mean := self.figure(name)["mean"]) is not None}
        if metric.bounded or not metric.lower_is_better or not means:
            return []
        usual = median(means.values())
        return [name for name, mean in means.items() if mean > OFF_SCALE * usual > 0]

    @property
    def nearly(self) -> str:
        """How much of the last round's figure a model must have to be called converged: an error comes from above."""
        return "105 %" if self.curve_headline.sign < 0 else "95 %"

    @property
    def referral_headlines(self) -> tuple[Headline, Headline]:
        """What is followed as rows are referred: the task's first where that is the primary metric, else its second
        before it."""
        first, second = map(self.headline_for, self.task.referral_metrics)
        return (first, second) if self.headline.metric == first.metric else (second, first)

    @property
    def findings(self) -> list[str]:
        """Where a row may have several; none where it has one class."""
        return list(self.results.get("findings", []))

    @property
    def of_images(self) -> bool:
        """Rows are images or signals, or have findings: there are no columns to speak of, and curves matter more."""
        return bool(self.findings) or (self.results["sites"][0]["features"] is None and not self.deployed)

    @property
    def signals(self) -> dict[str, Any] | None:
        """Channels, rate and samples of the rows, where they are signals."""
        described: dict[str, Any] | None = self.results["sites"][0].get("signals") if self.results["sites"] else None
        return described

    @property
    def trained(self) -> bool:
        """False of a study that has analyses alone."""
        return bool(self.results["arms"])

    @cached_property
    def arms(self) -> dict[str, Any]:
        """Arms of the study as it stands in which all sites train: what comparisons are about.

        Where there is none, those in which some do.
        """
        return main_arms(self.results)

    def curve(self, arm: str, column: str) -> tuple[list[int], list[float]]:
        """Rounds and means over seeds, where there is one."""
        curves = self.results["curves"][arm]
        points = zip(curves["round"], curves.get(column, []), strict=False)
        known = [(number, value) for number, value in points if value is not None]
        return [number for number, _ in known], [value for _, value in known]

    def last(self, arm: str, column: str) -> float | None:
        values = self.curve(arm, column)[1]
        return values[-1] if values else None

    @cached_property
    def partial(self) -> dict[str, Any]:
        """Arms in which only some sites train."""
        return {name: arm for name, arm in self.results["arms"].items() if not arm["variant"] and arm["train_at"]}

    @cached_property
    def families(self) -> list[str]:
        return list(dict.fromkeys(arm["family"] for arm in self.results["arms"].values()))

    @cached_property
    def few_arms(self) -> list[str]:
        """One arm of each family, for figures in which all would be too many: the selected or the first. In detail:
        the arm that page one is about, and training alone."""
        if self.in_detail and self.trained:
            return list(dict.fromkeys([self.main_arm, *([self.local] if self.local else [])]))
        chosen: dict[str, str] = {}
        for name, arm in self.arms.items():
            if arm["family"] not in chosen or name.endswith("[selected]"):
                chosen[arm["family"]] = name
        return list(chosen.values())

    @cached_property
    def detailed(self) -> "Evidence":
        return replace(self, in_detail=True)

    @property
    def seeds(self) -> int:
        return len(self.results["seeds"])

    @property
    def reference(self) -> str | None:
        return self.study.get("evaluation", {}).get("reference") or None

    @cached_property
    def sites(self) -> list[str]:
        if not self.trained:
            return list(self.results["analysed_sites"])
        return list(dict.fromkeys(site for arm in self.arms.values() for site in arm["sites"]))

    @property
    def site_counts(self) -> dict[str, dict[str, Any]]:
        """Rows of each site by role and class, with the first seed."""
        return dict(self.results["sites"][0]["sites"])

    @property
    def variants(self) -> dict[str, Any]:
        """Without the study as it stands."""
        return {name: variant for name, variant in self.results["variants"].items() if name}

    @property
    def classes(self) -> list[str]:
        return list(next(iter(self.site_counts.values()))["classes"])

    @property
    def local(self) -> str | None:
        return next((name for name, arm in self.arms.items() if arm["algorithm"]["name"] == "local"), None)

    @property
    def federated(self) -> list[str]:
        return [name for name, arm in self.arms.items() if arm["algorithm"]["name"] not in ("local", "pooled")]

    @property
    def decided(self) -> bool:
        """Whether results.json has a decision: those of earlier versions have none."""
        return "decision" in self.results

    @property
    def decision(self) -> Mapping[str, Any]:
        """What page one says, with the values behind it."""
        return dict(self.results["decision"])

    @cached_property
    def event(self) -> str:
        """The second of two classes, in a sentence. A class that is called 1 says nothing, its column's name does."""
        decided = self.results.get("decision", {}).get("event")
        return str(decided) if decided is not None else self.classes[1]

    @cached_property
    def main_arm(self) -> str:
        """The one that is shown in detail: that of the decision; without one the reference where sites federate in it,
        else the first such arm that has figures. Not the best one: that would be chosen on test rows."""
        decided = self.results.get("decision", {}).get("arm")
        if decided in self.arms:
            return str(decided)
        if self.reference in self.federated or (self.reference in self.arms and not self.federated):
            return str(self.reference)
        known = [name for name in self.federated or self.arms if self.figure(name)["mean"] is not None]
        return next(iter(known or self.federated or self.arms))

    def figure(self, arm: str) -> dict[str, Any]:
        """An arm's primary figure: over all sites' test rows, or the mean over sites."""
        return primary_figure(self.results, arm)

    @cached_property
    def kinds(self) -> list[str]:
        """Of groups of patients, such as sex, of which any arm has figures."""
        kinds = dict.fromkeys(kind for arm in self.arms.values() for kind in arm["subgroups"] if arm["subgroups"][kind])
        return sorted(kinds, key=lambda kind: KINDS.index(kind) if kind in KINDS else len(KINDS))

    @property
    def own_models(self) -> list[str]:
        """Arms whose sites predict with models of their own, so that scores of two sites are not of one scale."""
        return [name for name, arm in self.arms.items() if arm.get("own_models")]

    @property
    def ranked_within(self) -> bool:
        """Whether the primary metric is the mean over sites, and not that of all rows."""
        return bool(self.results["primary_within_sites"])

    @property
    def primary_word(self) -> str:
        """The primary metric in a sentence about arms; about a site it is `headline.word`."""
        return primary_word(self.results)

    def topologies(self, kind: str) -> dict[str, dict[str, Any]]:
        """Arms with a topology of a kind, `hierarchical` or `vertical`, and what results.json has of it."""
        return topologies_of({"arms": self.arms}, kind)

    @cached_property
    def uncertainty(self) -> dict[str, dict[str, Any]]:
        """Arms whose uncertainty was measured, and what results.json has of it."""
        return {name: arm["uncertainty"] for name, arm in self.arms.items() if arm.get("uncertainty") is not None}

    @property
    def private_arms(self) -> Mapping[str, Any]:
        """What protects which arm, variants included. Nothing where no arm has [privacy]."""
        return (self.results.get("privacy") or {}).get("arms") or {}

    @property
    def protected_arms(self) -> dict[str, Any]:
        """Arms of the study as it stands that protect something, by name."""
        return {name: arm for name, arm in self.private_arms.items() if name in self.arms or name in self.partial}

    @property
    def synthetic(self) -> bool:
        return bool(self.results.get("synthetic"))

    @property
    def deployed(self) -> bool:
        """Across hospitals: predictions of rows are not in the folder."""
        return bool(self.results.get("deployed"))

    @property
    def shares_patients(self) -> bool:
        """Whether patients of test rows are among some site's training rows."""
        return any(shared["rows"] for sites in self.results["leakage"].values() for shared in sites.values())

    @cached_property
    def rates(self) -> list[float]:
        """Per cent of each site's rows that are of the positive class, where there are two classes and it is known."""
        if len(self.classes) != 2 or self.findings:
            return []
        counts = [(site["classes"][self.classes[1]], rows_of(site)) for site in self.site_counts.values()]
        return [100 * positive / rows for positive, rows in counts if positive is not None]

    @cached_property
    def deployment(self) -> Deployment:
        """What hospitals agreed on, in a run across them. What a study does not say has its default."""
        return replace(Deployment(), **self.study.get("deployment", {}))

    @property
    def smallest_group(self) -> int:
        """Test rows that a subgroup must have at a site to be told of."""
        return max(SMALLEST_GROUP, self.deployment.smallest_cell)

    @property
    def auc_error_bound(self) -> float:
        """By how much any arm's AUC over all sites may be wrong."""
        return max((arm.get("auc_error_bound") or 0.0 for arm in self.arms.values()), default=0.0)

    def tests(self, variant: str = "") -> list[dict[str, Any]]:
        """The arms of a variant against the reference, in the primary metric."""
        return self._primary("tests", variant)

    def benefit(self) -> list[dict[str, Any]]:
        """Each site in each arm against the same site training alone."""
        return self._primary("benefit", "")

    def _primary(self, key: str, variant: str) -> list[dict[str, Any]]:
        entries = [entry for entry in self.results[key] if entry["metric"] == self.headline.metric]
        return [entry for entry in entries if self.results["arms"][entry["arm"]]["variant"] == variant]

    def site_differences(self, arm: str, kind: str) -> list[dict[str, Any]]:
        """An arm against training alone (`alone`, the mean over sites only) or against the `reference`."""
        key = (arm, kind, self.headline.metric)
        return [e for e in self.results.get("site_differences", ()) if (e["arm"], e["kind"], e["metric"]) == key]

    def mean_difference(self, arm: str, kind: str) -> dict[str, Any] | None:
        """On average over sites."""
        return next((entry for entry in self.site_differences(arm, kind) if entry["site"] is None), None)


def rows_of(counts: Mapping[str, Any]) -> int:
    """All rows of a site, from its counts in `sites`. Rows of a class may be withheld, these are not."""
    return int(counts["train"] + counts["validation"] + counts["test"])


def described_target(evidence: Evidence, counts: Mapping[str, Any]) -> dict[str, str]:
    """What a site's counts say of outcomes that are numbers, as text by heading; empty text where it is withheld."""
    told = counts.get("target") or {}
    return {
        heading: "" if told.get(key) is None else evidence.in_units(told[key])
        for key, heading in evidence.task.report.target.items()
    }


def read_evidence(folder: RunFolder, checked: bool = False) -> Evidence:
    """Refused with a clear message where a part is missing or is not what the run made: a report stands on it.

    `checked` says that the predictions or summaries were looked at a moment ago.
    """
    if not folder.path.is_dir():
        raise RunError(str(folder.path), "no such folder", "Name a folder that `wardround run` has made.")
    if not folder.complete:
        unfinished = (folder.path / "study.toml").is_file()
        remedy = f"Finish it with `wardround resume {folder.path}`." if unfinished else "Name the folder of a run."
        raise RunError(str(folder.path), "is not a complete run: it has no results.json", remedy)
    results = read_results(folder)
    base = "summaries.jsonl" if results.get("deployed") else "predictions.parquet"
    if not results["arms"]:
        base = "results.json"
    if not (folder.path / base).is_file():
        problem = f"has no {base}, so that no figure of a report could be checked"
        raise RunError(str(folder.path), problem, "Run the study again with --again.")
    if not checked:
        _check_base(folder, results, base)
    document = folder.read_study()
    environment = folder.read_json("environment.json")
    if not isinstance(environment, dict) or not set(environment) >= ENVIRONMENT:
        raise RunError(str(folder.path / "environment.json"), "lacks what a run writes there", "Run the study again.")
    evidence = Evidence(results, document, environment, folder.samples(), read_attack(folder, results))
    evidence = replace(evidence, wrong_calls=folder.wrong_calls())
    return evidence.of_outcome(results["outcome"]) if evidence.outcomes else evidence


def read_results(folder: RunFolder) -> dict[str, Any]:
    """A `results.json` that this version can read."""
    results = folder.read_json("results.json")
    if not isinstance(results, dict) or results.get("schema_version") != KNOWN_SCHEMA or not set(results) >= NEEDED:
        problem = "was written by another version of wardround, or changed"
        raise RunError(str(folder.path / "results.json"), problem, "Run the study again with --again.")
    return results


def read_attack(folder: RunFolder, results: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `wardround attack` measured; refused where another version wrote it, or where it speaks of another study."""
    path = folder.path / "attack.json"
    if not path.is_file():
        return None
    attack, remedy = folder.read_json("attack.json"), f"Repeat `wardround attack {folder.path}`, or delete the file."
    if not isinstance(attack, dict) or attack.get("schema") != KNOWN_ATTACK or "passed" not in attack:
        raise RunError(str(path), "was written by another version of wardround, or changed", remedy)
    if (attack.get("study") or {}).get("hash") != results["study"]["hash"]:
        raise RunError(str(path), "is of another study", remedy)
    return attack


def _check_base(folder: RunFolder, results: Mapping[str, Any], base: str) -> None:
    if results["arms"]:
        _check_predicted(folder, results, base)
    log = folder.path / "audit.jsonl"
    if log.is_file() and verify(log).broken is None:
        for problem in changed_files(log, ("results.json", base)):
            raise RunError(str(folder.path), problem, "Run the study again with --again.")


def _check_predicted(folder: RunFolder, results: Mapping[str, Any], base: str) -> None:
    there = _summarised(folder) if results.get("deployed") else _predicted(folder)
    what = base.partition(".")[0]
    selected = {choice["arm"] for choice in results["selection"]}
    for arm in (arm for arm in results["arms"] if arm not in selected):
        lacking = [seed for seed in results["seeds"] if (arm, seed) not in there]
        if lacking:
            problem = f"has no {what} of {arm} with seed {lacking[0]}"
            raise RunError(str(folder.path / base), problem, "Run the study again with --again.")


def _predicted(folder: RunFolder) -> set[tuple[str, int]]:
    predictions = folder.predictions()
    known = {"arm", "seed"} <= set(predictions)
    pairs = predictions[["arm", "seed"]].drop_duplicates() if known else predictions.iloc[:0, :0]
    return set(pairs.itertuples(index=False, name=None))


def _summarised(folder: RunFolder) -> set[tuple[str, int]]:
    """Arms and seeds of which one site or more told something, if only that it has too few rows."""
    lines = folder.summaries()
    if not all(isinstance(line, dict) and {"arm", "seed", "site", "subset"} <= set(line) for line in lines):
        problem = "lacks what a run writes there"
        raise RunError(str(folder.path / "summaries.jsonl"), problem, "Run the study again with --again.")
    return {(line["arm"], line["seed"]) for line in lines if line["subset"] == "test"}
