"""A round's updates, taken in site order and summed, in the clear or under masks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from wardround.algorithms.algorithm import ROOT, Algorithm, Arrival, Work, setting
from wardround.algorithms.hierarchical import active_regions
from wardround.algorithms.regions import Regions, traffic
from wardround.core import tree
from wardround.core.errors import SecureSumError
from wardround.core.tree import State, Tree
from wardround.data.site import Site
from wardround.privacy.dp.noise import Stream, with_noise
from wardround.privacy.dp.protection import seeded_streams, site_noise
from wardround.privacy.secure_sum.fixed_point import Shapes, arrays_of, encoding_of, mean_of, shapes_of
from wardround.privacy.secure_sum.groups import group_name
from wardround.screening import Seen
from wardround.study.schema import SecureSum, SitePrivacy
from wardround.training.local import Memory, Outcome
from wardround.training.round_record import Price, RoundRecord
from wardround.training.schedule import tolerance
from wardround.training.screen import seen_of
from wardround.training.trial import Assignment, Run, Trial, stopped


class Intake:
    """Holds one sum, or one per region, or each update if the algorithm needs them."""

    def __init__(self, trial: Trial, run: Run, assignments: Sequence[Assignment]) -> None:
        self.trial, self.run, self.assignments, self.algorithm = trial, run, assignments, trial.algorithm
        self.arrivals: list[Arrival] = []
        self.root: State | None = None  # the coordinator's own update
        self.sum: State | None = None
        self.mean: State | None = None  # where it came out of a secure sum
        self.regions = self.algorithm.regions
        count = 0 if self.regions is None else len(self.regions.names)
        self.region_sums: list[State | None] = [None] * count
        self.region_means: list[State | None] = [None] * count  # where they came out of secure sums
        self.region_weights = [0.0] * count
        self.memories: dict[str, Memory] = {}
        self.moved: Tree = {}
        self.weight = self.loss = self.norm = self.spread = self.error = 0.0
        self.names: list[str] = []
        self.epochs: dict[int, int] = {}  # that were trained, by the site's number
        self.bytes = 0
        self.failed = ""
        self.shapes: Shapes = {}
        self.seen: dict[int, Seen] = {}  # by the site's number, where updates are screened

    @property
    def count(self) -> int:
        return len(self.names)

    def take(self, outcomes: Iterable[tuple[Assignment, Outcome]]) -> None:
        """All that a round's sites send."""
        if (secure := self.trial.privacy.secure_sum) is not None:
            self._take_masked(outcomes, secure)
            return
        for assignment, outcome in outcomes:
            self._note(assignment, outcome)
            self._add(assignment, outcome)

    def weight_of(self, assignment: Assignment) -> float:
        return weight_of(self.trial, assignment.site)

    def came(self, assignments: Iterable[Assignment], size: int) -> None:
        """Work that was done elsewhere and arrives as part of a sum. `size` is each site's upload in bytes."""
        for assignment in assignments:
            self.names.append(assignment.site.name)
            self.epochs[assignment.number] = assignment.epochs
            self.bytes += size

    def _note(self, assignment: Assignment, outcome: Outcome) -> None:
        # only now: a dropped update leaves the old memory in force
        self.memories[assignment.site.name] = outcome.memory.settled()
        self.names.append(assignment.site.name)
        self.epochs[assignment.number] = assignment.epochs

    def _add(self, assignment: Assignment, outcome: Outcome) -> None:
        weight = self.weight_of(assignment)
        if self.trial.screening is not None:
            self.seen[assignment.number] = seen_of(self.trial, outcome.update)
        if self.algorithm.needs == "each":
            self.arrivals.append(Arrival(assignment.number, weight, outcome.update))
            if self.regions is not None:
                self.region_weights[self.regions.of_site[assignment.number]] += weight
        else:
            update = self._as_mixed(assignment, outcome.update)
            self._sum_up(assignment, update, weight * assignment.factor, weight)
        self.weight += weight
        self.loss += weight * float(outcome.loss)
        self.norm += weight * outcome.length
        self.error += weight * (float("nan") if outcome.error is None else outcome.error)
        self._spread(outcome.moved, weight)
        self.bytes += tree.count_bytes(outcome.leaving)

    def _as_mixed(self, assignment: Assignment, update: State) -> State:
        """Where the shared model is mixed with a site's: how far the site's model is from it now."""
        if not self.trial.training.mixes_models or assignment.started == self.run.round:
            return update
        began = self.run.shared(self.algorithm, assignment.number, assignment.started)["params"]
        return {**update, "params": tree.add(update["params"], tree.sub(began, self.run.server["params"]))}

    def _sum_up(self, assignment: Assignment, update: State, factor: float, weight: float) -> None:
        if self.regions is None:
            self.sum = tree.add_scaled_into(self.sum, update, factor)
            return
        region = self.regions.of_site[assignment.number]
        self.region_sums[region] = tree.add_scaled_into(self.region_sums[region], update, factor)
        self.region_weights[region] += weight

    def _take_masked(self, outcomes: Iterable[tuple[Assignment, Outcome]], secure: SecureSum) -> None:
        """The real protocol between the sites of the roster, including those whose work is dropped.

        Each region has a sum of its own; if one fails, the others are not affected. Outcomes come region by region.
        """
        if self.trial.groups:
            self._take_groups(outcomes, secure)
            return
        if self.regions is None:
            summed = self._masked_sum(outcomes, secure, self._summing())
            if summed is not None:
                self.total(*summed)
            return
        of_site = self.regions.of_site
        for region, part in groupby(outcomes, lambda pair: of_site[pair[0].number]):
            roster = [a.site.name for a in self.assignments if of_site[a.number] == region]
            if (summed := self._masked_sum(part, secure, roster, self.regions.names[region])) is not None:
                self.weight += summed[1]
                self.region_weights[region] = summed[1]
                self.region_means[region] = mean_of(*summed, self.shapes, self.trial.dtype)

    def _take_groups(self, outcomes: Iterable[tuple[Assignment, Outcome]], secure: SecureSum) -> None:
        """Each group has a sum of its own. Outcomes come group by group."""
        of_site, summing = self.trial.groups, set(self._summing())
        for group, part in groupby(outcomes, lambda pair: of_site[pair[0].number]):
            names = (a.site.name for a in self.assignments if of_site[a.number] == group)
            roster = [name for name in names if name in summing]
            if (summed := self._masked_sum(part, secure, roster, group_name(group))) is not None:
                self.total_of_group(group, *summed)
        came = set(self.names)
        self.names = [a.site.name for a in self.assignments if a.site.name in came]  # in the order of the sites

    def total_of_group(self, group: int, summed: np.ndarray, weight: float) -> None:
        """What the secure sum of a group gave: for a rule, one update."""
        self.weight += weight
        self.arrivals.append(Arrival(group, weight, mean_of(summed, weight, self.shapes, self.trial.dtype)))

    def _summing(self) -> list[str]:
        """Whose keys are in the sum: those of the round's sites, also where their work comes too late for it. Where
        late work counts, the sites of a sum are known when all of it has arrived."""
        summing = self.trial.roster(self.run.round).summing
        if summing is None:
            late = self.trial.roster(self.run.round).late
            return [a.site.name for a in self.assignments if a.counts or a.number not in late]
        return [self.trial.sites[number].name for number in summing]

    def _masked_sum(
        self, outcomes: Iterable[tuple[Assignment, Outcome]], secure: SecureSum, roster: Sequence[str], region: str = ""
    ) -> tuple[np.ndarray, float] | None:
        """The sum over the sites of a roster, with its weight; None if it failed, which is recorded."""
        from wardround.privacy.secure_sum.simulated_sum import sum_securely

        if not roster:
            return None
        encoding = encoding_of(secure, len(self.trial.sites))
        came: list[str] = []

        def vectors() -> Iterator[tuple[str, np.ndarray]]:
            for assignment, outcome in outcomes:
                self._note(assignment, outcome)
                came.append(assignment.site.name)
                self.shapes = self.shapes or shapes_of(outcome.update)
                update = outcome.update
                if assignment.factor != 1:
                    update = tree.scale_state(update, assignment.factor)
                encoded = encoding.encode(arrays_of(update), self.weight_of(assignment), assignment.site.name)
                self.bytes += encoded.nbytes
                yield assignment.site.name, encoded

        parts = [self.trial.arm, str(self.trial.seed), str(self.run.round), *([region] if region else [])]
        context = "\x1f".join(parts).encode()
        try:
            return encoding.decode(sum_securely(vectors(), roster, context, secure.threshold))
        except SecureSumError as error:
            if region:
                self.fail_part(region, f"{error.where}: {error.problem}", came)
            else:
                self.fail(f"{error.where}: {error.problem}")
            return None

    def fail_part(self, part: str, why: str, came: Sequence[str]) -> None:
        """The round of a region, or of a group, failed: its sites' memories stay as they are."""
        self.failed = "; ".join(text for text in (self.failed, f"{part}: {why}") if text)
        self.names = [name for name in self.names if name not in came]
        self.memories = {name: memory for name, memory in self.memories.items() if name not in came}

    def total(self, summed: np.ndarray, weight: float) -> None:
        """What a secure sum gave."""
        self.weight = weight
        self.mean = mean_of(summed, weight, self.shapes, self.trial.dtype)

    def fail(self, why: str) -> None:
        """The round failed: the model and the sites' memories stay as they are."""
        self.failed, self.memories, self.names, self.mean, self.sum = why, {}, [], None, None

    def _spread(self, moved: Tree | None, weight: float) -> None:
        """Welford's running mean and spread: no update has to be stored, and nothing cancels."""
        if moved is None:
            self.spread = float("nan")
            return
        part = weight / self.weight
        if not self.moved:
            self.moved = tree.clone(moved)
            return
        for name, mean in self.moved.items():
            away = moved[name] - mean
            self.spread += weight * (1 - part) * float(tree.squared_norm({name: away}))
            mean.add_(away, alpha=part)

    def aggregate(self, server: State, noise: Stream | None = None) -> State:
        """The coordinator's next state. `noise` is for whole sites; in a simulation it comes from the seed."""
        site = self.trial.privacy.site
        if site is not None and not self.failed:
            return self._aggregate_with_noise(server, site, noise)
        if self.algorithm.aggregate_regions is not None:
            # also without any update: regions are averaged when their rounds are over
            came = self._means_of_regions() if self.algorithm.needs == "mean" else self._updates_of_regions()
            return self.algorithm.aggregate_regions(server, came, self.region_weights, self.run.round)
        if not self.count:
            return server
        self.moved = {}  # its memory is needed now
        if self.algorithm.aggregate_each is not None:
            if len(self.arrivals) < self.algorithm.fewest:
                why = too_few(len(self.arrivals), self.algorithm)
                self.fail("; ".join(text for text in (self.failed, why) if text))
                return server
            root = [] if self.root is None else [Arrival(ROOT, 0.0, self.root)]
            return self.algorithm.aggregate_each(server, [*self.arrivals, *root])
        mean = tree.scale_within(self.sum or {}, 1 / self.weight) if self.mean is None else self.mean
        self.sum = None
        return self.algorithm.aggregate(server, mean, self.count / len(self.trial.sites))

    def _means_of_regions(self) -> Iterator[State | None]:
        """One after another. Each sum is freed when its mean is made, which matters for large models."""
        if self.trial.privacy.secure_sum is not None:
            yield from self.region_means
            return
        for region, weight in enumerate(self.region_weights):
            total, self.region_sums[region] = self.region_sums[region], None
            yield None if total is None else tree.scale_state(total, 1 / weight)

    def _updates_of_regions(self) -> list[list[Arrival] | None]:
        """None of a region where none came, or too few for the rule: its round has then failed."""
        updates: list[list[Arrival] | None] = []
        for region, name in enumerate(self.regions.names if self.regions is not None else ()):
            came = [a for a in self.arrivals if self.regions is not None and self.regions.of_site[a.site] == region]
            if 0 < len(came) < self.algorithm.fewest:
                sites = [self.trial.sites[arrival.site].name for arrival in came]
                self.fail_part(name, too_few(len(came), self.algorithm), sites)
                self.region_weights[region], came = 0.0, []
            updates.append(came or None)
        return updates

    def _aggregate_with_noise(self, server: State, site: SitePrivacy, noise: Stream | None) -> State:
        """Noise on the sum of clipped updates, divided by the expected number of sites: the actual number would itself
        reveal something. A round without any update gets noise as well."""
        trial = self.trial
        arrived = self.sum if self.mean is None else tree.scale_state(self.mean, self.weight)
        total = arrived or self._zero_update(server)
        stream = noise or seeded_streams(trial.batch_seed, self.run.round, "")("noise for sites")
        spread = site.clip * site_noise(site, trial.training.share, trial.training.rounds)
        expected = trial.training.share * len(trial.sites)
        noisy: State = {}
        for part, leaves in total.items():
            if part in self.algorithm.data_free:
                noisy[part] = tree.scale(leaves, 1 / max(self.count, 1))
            else:
                noisy[part] = tree.scale(with_noise(stream, leaves, spread), 1 / expected)
        return self.algorithm.aggregate(server, noisy, trial.training.share)

    def _zero_update(self, server: State) -> State:
        """The update of a site that did nothing: zeros of the right shapes."""
        algorithm, params = self.algorithm, server["params"]
        shared, memory, unit = algorithm.broadcast(server, 0), algorithm.init_memory(params), setting(1.0, params)
        update, _ = algorithm.finish(algorithm.begin(shared, memory), shared, memory, Work(unit, unit, unit, unit))
        return {
            part: leaves if part in algorithm.data_free else tree.zeros_like(leaves) for part, leaves in update.items()
        }

    def record(self, server: State, down: int) -> RoundRecord:
        trial, before = self.trial, self.run
        params = before.server.get("params", {}), server.get("params", {})
        loss, update_norm, divergence = self._statistics()
        if self.algorithm.pools:  # the rows were brought together instead
            down = self.bytes = 0
        record = RoundRecord(
            arm=trial.arm,
            seed=trial.seed,
            round=before.round + 1,
            loss=loss,
            update_norm=update_norm,
            divergence=divergence,
            change=None if self.algorithm.personal else float(tree.squared_norm(tree.sub(*params)).sqrt()),
            sites=tuple(self.names),
            dropped=tuple(a.site.name for a in self.assignments if not a.counts or a.site.name not in self.names),
            bytes_down=down,
            bytes_up=self.bytes,
            settings={name: float(leaf) for name, leaf in server.get("settings", {}).items()},
            charges=self._charges(),
            site_charge=self._site_charge(),
            stopped=stopped(trial, before.round),
            failed=self.failed,
            compression_error=self._compression_error(),
            time=trial.roster(before.round).time,
            staleness=self._staleness(),
        )
        if self.regions is None:
            return record
        return with_traffic(record, self.regions, int(active_regions(server)), tree.count_bytes({"params": params[1]}))

    def _statistics(self) -> tuple[float | None, float | None, float | None]:
        """Loss, length of updates and divergence over the sites; None where protection hides it."""
        privacy = self.trial.privacy
        if not self.count or privacy.secure_sum is not None or privacy.site is not None:
            return None, None, None
        loss = self.loss / self.weight if privacy.example is None else None
        divergence = max(self.spread / self.weight, 0.0) ** 0.5 if self.spread >= 0 else None
        return loss, self.norm / self.weight, divergence

    def _compression_error(self) -> float | None:
        """Of protected patients' updates it tells no more than the updates, which have their noise; of a protected site
        nothing is told."""
        trial = self.trial
        if trial.compression.kind == "none" or not self.count or trial.privacy.site is not None:
            return None
        return self.error / self.weight

    def _staleness(self) -> dict[str, int]:
        """Of each site whose work counted, where it may have begun with an earlier model."""
        if tolerance(self.trial.training) is None:
            return {}
        number = self.run.round
        return {a.site.name: number - a.started for a in self.assignments if a.counts and a.site.name in self.names}

    def _charges(self) -> dict[str, Price]:
        """By site. Where rows are pooled, patients of all sites were trained on."""
        trial = self.trial
        charges: dict[str, Price] = {}
        began = {a.number: a.started for a in self.assignments if a.counts}
        work = [(number, epochs, began[number]) for number, epochs in self.epochs.items()]
        if trial.schedule is not None:  # work that came too late was sent all the same
            work = [(a.number, a.epochs, a.started) for a in self.assignments if not a.counts] + work
        for number, epochs, started in work:
            charge = trial.charge(number, epochs, started)
            for site in trial.scored if trial.algorithm.pools else (trial.sites[number],):
                if charge is not None:
                    before = charges.get(site.name)
                    charges[site.name] = _more(before, (charge.rate, charge.noise, charge.steps))
        return charges

    def _site_charge(self) -> tuple[float, float, int] | None:
        site, training = self.trial.privacy.site, self.trial.training
        return None if site is None else (training.share, site_noise(site, training.share, training.rounds), 1)


def _more(before: Price | None, price: Price) -> Price:
    """What two pieces of work cost together, where one came too late: the less noise counts for both."""
    return price if before is None else (price[0], min(before[1], price[1]), before[2] + price[2])


def too_few(count: int, algorithm: Algorithm) -> str:
    return f"{count} {'update' if count == 1 else 'updates'} came, and the rule needs {algorithm.fewest}"


def weight_of(trial: Trial, site: Site) -> float:
    """Privacy for whole sites holds for sites that weigh the same."""
    by_rows = trial.algorithm.weighting == "samples" and trial.privacy.site is None
    return float(len(site.train)) if by_rows else 1.0


def with_traffic(record: RoundRecord, regions: Regions, active: int, size: int) -> RoundRecord:
    """The record of a round in regions: `active` had an update since the last average, a model has `size` bytes."""
    change = record.change if regions.merges(record.round - 1) else None
    messages, sizes = traffic(regions, record.round - 1, active, size)
    return replace(record, change=change, region_messages=messages, region_bytes=sizes)
