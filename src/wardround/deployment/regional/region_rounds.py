"""Rounds that a region had by itself: its report of them, how that is checked, and the average over regions.

The arithmetic is that of a simulation (`algorithms/hierarchical.py`): a region answers with its model and with the sum
of the weights of the updates that made it since the last average.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wardround.algorithms.hierarchical import WEIGHT, aggregate_regions, part_of
from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.tree import State, Tree
from wardround.deployment.common.answer_checks import is_close, require
from wardround.deployment.common.spool import Entry, Shape
from wardround.deployment.common.update_checks import NAMES
from wardround.deployment.common.waves import REGION_MODEL, TrialRecord, WaveState
from wardround.deployment.coordinating.closing import close_round
from wardround.deployment.flat.flat_rounds import ClosedRound
from wardround.privacy.dp.noise import Stream
from wardround.protocol.catalogue import RegionRound, RegionUpdate
from wardround.protocol.reading import REMEDY
from wardround.training.intake import weight_of
from wardround.training.local import Memory
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Run, Trial, assign

REPORTED = (
    "trial",
    "round",
    "loss",
    "update_norm",
    "compression_error",
    "sites",
    "dropped",
    "bytes_down",
    "bytes_up",
    "charges",
    "stopped",
    "failed",
    "epochs",
    "not_finite",
)


# -- at the region


def with_models(state: WaveState, trials: Sequence[Trial], models: Mapping[int, State]) -> WaveState:
    """The region's runs as they go on from the models of all that it was sent."""
    runs = []
    for number, (trial, run) in enumerate(zip(trials, state.runs, strict=True)):
        if trial.algorithm.federated and number in models:
            params = _as_known(models[number].get("params", {}), run.server["params"])
            run = replace(run, server={**run.server, "params": params})
        runs.append(run)
    return replace(state, runs=tuple(runs))


def own_for_sites(
    state: WaveState, trials: Sequence[Trial], models: Mapping[int, State], sites: Sequence[str]
) -> dict[str, Tree]:
    """The region's own models for each site, as the coordinator of all has kept them: those of the arms in which it
    trains. Sites that receive the same share one tree."""
    trees: dict[tuple[int, ...], Tree] = {}
    by_site = {}
    for site in sites:
        scores = tuple(
            n
            for n, trial in enumerate(trials)
            if REGION_MODEL in models.get(n, {}) and site in [member.name for member in trial.sites]
        )
        if scores not in trees:
            known = {n: _as_known(models[n][REGION_MODEL], state.runs[n].server["params"]) for n in scores}
            trees[scores] = {
                f"{n}/{REGION_MODEL}/{name}": leaf for n, model in known.items() for name, leaf in model.items()
            }
        by_site[site] = trees[scores]
    return by_site


def _as_known(params: Tree, known: Tree) -> Tree:
    if {name: leaf.shape for name, leaf in params.items()} != {name: leaf.shape for name, leaf in known.items()}:
        raise DeployError("coordinator", "sends a model that the study does not have", REMEDY)
    return {name: params[name] for name in known}


def region_records(trials: Sequence[Trial], closed: ClosedRound) -> list[dict[str, Any]]:
    """Records of a region's round for the coordinator of all, each with the weight of its updates."""
    records = []
    for record in closed.records:
        trial = trials[record.trial]
        came = [site for site in trial.sites if site.name in record.record.sites]
        weight = sum(weight_of(trial, site) for site in came)
        if trial.privacy.secure_sum is not None and came:
            weight = (closed.arrivals.sums or {})[record.trial][1]  # as the sum itself says
        told = record.to_json()
        records.append({**{name: told[name] for name in REPORTED}, "weight": float(weight)})
    return records


def span_answer(trials: Sequence[Trial], state: WaveState) -> tuple[dict[str, Any], Tree]:
    """A region's answer when its rounds are over. A model to which nothing was added need not travel."""
    weights: dict[int, float] = {}
    for record in state.span["rounds"]:
        weights[record["trial"]] = weights.get(record["trial"], 0.0) + record["weight"]
    reported = {n: {"weight": w} for n, w in weights.items() if _trains_here(trials[n])}
    tensors = {
        f"{n}/params/{name}": leaf
        for n in reported
        if weights[n] > 0
        for name, leaf in state.runs[n].server["params"].items()
    }
    return {"trials": reported, "rounds": list(state.span["rounds"]), "figures": state.span["figures"]}, tensors


def _trains_here(trial: Trial) -> bool:
    """Whether any site of the region has a say in an arm's shared model."""
    return trial.algorithm.federated and any(trial.is_near(number) for number in range(len(trial.sites)))


# -- at the coordinator of all


def model_shapes(trial: Trial) -> dict[str, Shape]:
    """Name, type and shape of every tensor of a region's model; none where sites train alone."""
    if not trial.algorithm.federated:
        return {}
    params, _ = trial.model.blank
    shared = {name: leaf for name, leaf in params.items() if not trial.model.is_private(name)}
    return {f"params/{name}": (NAMES[trial.dtype], tuple(leaf.shape)) for name, leaf in shared.items()}


def check_span(
    region: str, body: RegionUpdate, trials: Sequence[Trial], rounds: range, hospitals: Collection[str]
) -> None:
    """It comes from outside and goes into everybody's model and records."""
    weights = dict.fromkeys(range(len(trials)), 0.0)
    for number in body.trials:
        require(number < len(trials), "a model that the study does not have")
        regions = trials[number].algorithm.regions
        require(regions is not None and region in regions.names, "a model that it has no part in")
    places = [(record.trial, record.round) for record in body.rounds]
    require(len(set(places)) == len(places), "a round twice")
    for record in body.rounds:
        require(record.trial < len(trials) and record.round - 1 in rounds, "rounds that it was not asked for")
        _check_record(record, trials[record.trial], set(hospitals))
        weights[record.trial] += record.weight
    for number, trial in body.trials.items():
        require(is_close(trial.weight, weights[number]), "a weight that its rounds do not have")


def _check_record(record: RegionRound, trial: Trial, hospitals: Collection[str]) -> None:
    """Who worked in it, with the weight that was agreed for their rows."""
    sites, epochs = record.sites, record.epochs
    named = {*sites, *record.dropped, *record.stopped, *record.charges, *epochs, *record.not_finite}
    require(named <= set(hospitals), "hospitals of another region")
    require(len(set(sites)) == len(sites), "a hospital twice in a round")
    work = {a.site.name: a for a in assign(trial, record.round - 1) if a.counts}
    require(set(sites) <= set(work) and set(sites) <= set(epochs), "work that nobody was asked for")
    require(all(epochs[site] <= work[site].epochs for site in sites), "more epochs than were asked for")
    weight = sum(weight_of(trial, work[site].site) for site in sites)
    require(is_close(record.weight, weight), "a weight that its hospitals do not have")


def trials_with_model(body: RegionUpdate) -> list[int]:
    return [number for number, trial in body.trials.items() if trial.weight > 0]


def close_span(
    trials: Sequence[Trial],
    state: WaveState,
    entries: Mapping[str, Entry[RegionUpdate]],
    recipients: Collection[str],
    last: int,
    seconds: float,
) -> tuple[WaveState, list[TrialRecord]]:
    """Every trial's rounds until `last`, from what regions say of them, the last with the average of their models.
    `recipients` are the regions that received models."""
    runs = list(state.runs)
    records: list[TrialRecord] = []
    active = [number for number, trial in enumerate(trials) if trial.training.rounds > state.round]
    for number in active:
        trial, until = trials[number], min(last, trials[number].training.rounds)
        for round_number in range(state.round, until):
            place = number, round_number + 1
            reports = {
                region: report
                for region, entry in entries.items()
                for report in entry.body.rounds
                if (report.trial, report.round) == place
            }
            begins, merges = round_number == state.round, round_number == until - 1
            taken = RegionsTaken(number, trial, runs[number], reports, entries if merges else None, recipients, begins)
            runs[number], record = close_round(
                number,
                trial,
                runs[number],
                (),
                taken,
                {site: count for report in reports.values() for site, count in report.epochs.items()},
                seconds / len(active) / (until - state.round),
                [site for report in reports.values() for site in report.not_finite],
            )
            records.append(record)
    counted = {**state.counted, **dict.fromkeys(entries, state.round)}
    return replace(state, round=last, runs=tuple(runs), counted=counted), records


def own_of_region(trials: Sequence[Trial], state: WaveState, region: str, score: Collection[int]) -> Tree:
    """The region's own models of the trials `score`, as they were before the last average."""
    return {
        f"{number}/{REGION_MODEL}/{name}": leaf
        for number, (trial, run) in enumerate(zip(trials, state.runs, strict=True))
        if number in score and trial.algorithm.regions is not None and region in trial.algorithm.regions.names
        for name, leaf in run.server[part_of(region)].items()
    }


@dataclass(frozen=True)
class RegionsTaken:
    """What regions say of one round of a trial. The divergence of sites in different regions is not known."""

    number: int
    trial: Trial
    run: Run
    reports: Mapping[str, RegionRound]
    entries: Mapping[str, Entry[RegionUpdate]] | None  # their models, after the last round before the average
    recipients: Collection[str]
    begins: bool  # whether regions were sent models before it
    memories: Mapping[str, Memory] = field(default_factory=dict)  # these stay at the sites

    def aggregate(self, server: State, noise: Stream | None = None) -> State:
        regions = self.trial.algorithm.regions
        if regions is None or self.entries is None:
            return server
        before, models, weights = server["params"], {}, {}
        for region in regions.names:
            entry = self.entries.get(region)
            reported = None if entry is None else entry.body.trials.get(self.number)
            models[region], weights[region] = before, 0.0 if reported is None else reported.weight
            if entry is not None and weights[region] > 0:
                params = entry.update(self.number)["params"]
                models[region] = {name: params[name] for name in before}
        return aggregate_regions(server, models, weights, merges=True)

    def record(self, server: State, down: int) -> RoundRecord:
        reports, trial, secure = self.reports, self.trial, self.trial.privacy.secure_sum is not None
        return RoundRecord(
            arm=trial.arm,
            seed=trial.seed,
            round=self.run.round + 1,
            loss=_mean(
                {r: (n.weight, n.loss) for r, n in reports.items()}, secure or trial.privacy.example is not None
            ),
            update_norm=_mean({r: (n.weight, n.update_norm) for r, n in reports.items()}, secure),
            compression_error=_mean(
                {r: (n.weight, n.compression_error) for r, n in reports.items()}, trial.compression.kind == "none"
            ),
            bytes_down=sum(report.bytes_down for report in reports.values()),
            bytes_up=sum(report.bytes_up for report in reports.values()),
            settings={name: float(leaf) for name, leaf in server.get("settings", {}).items()},
            charges={site: charge for report in reports.values() for site, charge in report.charges.items()},
            failed="; ".join(f"{region}: {report.failed}" for region, report in reports.items() if report.failed),
            **self._participation(),
            **self._traffic(server),
        )

    def _participation(self) -> dict[str, Any]:
        """Which sites took part, dropped out or stopped, in the order of the trial's sites."""
        present = {site for report in self.reports.values() for site in report.sites}
        stopped = {site for report in self.reports.values() for site in report.stopped}
        names = [site.name for site in self.trial.sites]
        assigned = [assignment.site.name for assignment in assign(self.trial, self.run.round)]
        return {
            "sites": tuple(name for name in names if name in present),
            "dropped": tuple(name for name in assigned if name not in present),
            "stopped": tuple(name for name in names if name in stopped),
        }

    def _traffic(self, after: State) -> dict[str, Any]:
        """Messages and bytes between the regions and the coordinator, and how far their average moved the model."""
        regions, merges = self.trial.algorithm.regions, self.entries is not None
        if regions is None:
            return {"change": None, "region_messages": (0, 0), "region_bytes": (0, 0)}
        down = sum(name in self.recipients for name in regions.names) if self.begins else 0
        up = sum(float(after[WEIGHT][name]) > 0 for name in regions.names) if merges else 0
        size = tree.count_bytes({"params": after["params"]})
        moved = tree.sub(after["params"], self.run.server["params"])
        return {
            "change": float(tree.squared_norm(moved).sqrt()) if merges else None,
            "region_messages": (down, up),
            "region_bytes": (down * size, up * size),
        }


def _mean(values: Mapping[str, tuple[float, float | None]], hidden: bool) -> float | None:
    """Over the updates of all regions, from weight and value of each; NaN if a region with updates has no value."""
    weight = sum(own for own, _ in values.values())
    if hidden or not weight:
        return None
    parts = [(own, float("nan") if value is None else value) for own, value in values.values() if own > 0]
    return float(sum(own * value for own, value in parts) / weight)
