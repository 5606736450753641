"""What comes in during a round: updates as they arrive, in site order, added up plainly or under masks."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from wardround import tree
from wardround.algorithms.algorithm import Arrival, Work, setting
from wardround.data.site import Site
from wardround.errors import SecureSumError
from wardround.local import Memory, Outcome
from wardround.privacy.noise import Stream, with_noise
from wardround.privacy.protection import seeded_streams, site_noise
from wardround.privacy.vectors import Shapes, arrays_of, encoding_of, mean_of, shapes_of
from wardround.tree import State, Tree
from wardround.trial import Assignment, RoundRecord, Run, Trial, stopped


class Intake:
    """Holds one sum, or each update where the algorithm needs them."""

    def __init__(self, trial: Trial, run: Run, assignments: Sequence[Assignment]) -> None:
        self.trial, self.run, self.assignments, self.algorithm = trial, run, assignments, trial.algorithm
        self.arrivals: list[Arrival] = []
        self.sum: State | None = None
        self.mean: State | None = None  # where it came out of a secure sum
        self.memories: dict[str, Memory] = {}
        self.moved: Tree = {}
        self.weight = self.loss = self.norm = self.spread = 0.0
        self.names: list[str] = []
        self.epochs: dict[int, int] = {}  # that were trained, by the site's number
        self.bytes = 0
        self.failed = ""
        self.shapes: Shapes = {}

    @property
    def count(self) -> int:
        return len(self.names)

    def take(self, outcomes: Iterable[tuple[Assignment, Outcome]]) -> None:
        """All that a round's sites send."""
        if self.trial.privacy.secure_sum is not None:
            self._take_masked(outcomes)
            return
        for assignment, outcome in outcomes:
            self._note(assignment, outcome)
            self._add(assignment, outcome)

    def weight_of(self, assignment: Assignment) -> float:
        return weight_of(self.trial, assignment.site)

    def came(self, assignments: Iterable[Assignment], sent: int) -> None:
        """Work that was done elsewhere and comes as part of a sum. `sent` are the bytes that each sent."""
        for assignment in assignments:
            self.names.append(assignment.site.name)
            self.epochs[assignment.number] = assignment.epochs
            self.bytes += sent

    def _note(self, assignment: Assignment, outcome: Outcome) -> None:
        # only now: a dropped update leaves the old memory in force
        self.memories[assignment.site.name] = outcome.memory.settled()
        self.names.append(assignment.site.name)
        self.epochs[assignment.number] = assignment.epochs

    def _add(self, assignment: Assignment, outcome: Outcome) -> None:
        weight = self.weight_of(assignment)
        if self.algorithm.needs == "each":
            self.arrivals.append(Arrival(assignment.number, weight, outcome.update))
        else:
            weighted = tree.scale_state(outcome.update, weight)
            self.sum = weighted if self.sum is None else tree.add_into(self.sum, weighted)
        self.weight += weight
        self.loss += weight * float(outcome.loss)
        self.norm += weight * outcome.length
        self._spread(outcome.moved, weight)
        self.bytes += tree.count_bytes(outcome.update)

    def _take_masked(self, outcomes: Iterable[tuple[Assignment, Outcome]]) -> None:
        """The real protocol between the sites of the roster, those whose work is dropped included."""
        from wardround.privacy.simulated_sum import sum_securely

        secure = self.trial.privacy.secure_sum
        roster = [assignment.site.name for assignment in self.assignments]
        if secure is None or not roster:
            return
        encoding = encoding_of(secure, len(self.trial.sites))

        def vectors() -> Iterator[tuple[str, np.ndarray]]:
            for assignment, outcome in outcomes:
                self._note(assignment, outcome)
                self.shapes = self.shapes or shapes_of(outcome.update)
                encoded = encoding.encode(arrays_of(outcome.update), self.weight_of(assignment), assignment.site.name)
                self.bytes += encoded.nbytes
                yield assignment.site.name, encoded

        context = f"{self.trial.arm}\x1f{self.trial.seed}\x1f{self.run.round}".encode()
        try:
            self.total(*encoding.decode(sum_securely(vectors(), roster, context, secure.threshold)))
        except SecureSumError as error:
            self.fail(f"{error.where}: {error.problem}")

    def total(self, summed: np.ndarray, weight: float) -> None:
        """What a secure sum gave."""
        self.weight = weight
        self.mean = mean_of(summed, weight, self.shapes, self.trial.dtype)

    def fail(self, why: str) -> None:
        """The round comes to nothing: the model stays, and so does what sites remember."""
        self.failed, self.memories, self.names, self.mean, self.sum = why, {}, [], None, None

    def _spread(self, moved: Tree | None, weight: float) -> None:
        """Welford's running mean and spread: no update has to be kept, and nothing cancels."""
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
        if self.trial.privacy.site is not None and not self.failed:
            return self._aggregate_with_noise(server, noise)
        if not self.count:
            return server
        if self.algorithm.aggregate_each is not None:
            return self.algorithm.aggregate_each(server, self.arrivals)
        mean = tree.scale_state(self.sum or {}, 1 / self.weight) if self.mean is None else self.mean
        return self.algorithm.aggregate(server, mean, self.count / len(self.trial.sites))

    def _aggregate_with_noise(self, server: State, noise: Stream | None) -> State:
        """Noise on the sum of clipped updates, divided by the number of sites that is expected: the number that came
        would itself tell something. A round to which nobody came has noise as well."""
        trial, site = self.trial, self.trial.privacy.site
        if site is None:
            raise ValueError("noise is for studies with [privacy.site]")
        came = self.sum if self.mean is None else tree.scale_state(self.mean, self.weight)
        total = came or self._nothing(server)
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

    def _nothing(self, server: State) -> State:
        """The update of a site that did nothing: zeros of the right shapes."""
        algorithm, params = self.algorithm, server["params"]
        shared, kept, one = algorithm.broadcast(server, 0), algorithm.init_memory(params), setting(1.0, params)
        update, _ = algorithm.finish(algorithm.begin(shared, kept), shared, kept, Work(one, one, one, one))
        return {
            part: leaves if part in algorithm.data_free else tree.zeros_like(leaves) for part, leaves in update.items()
        }

    def _charged(self, number: int) -> list[str]:
        """Whose patients were trained on: where rows are pooled, those of every site."""
        trial = self.trial
        return [site.name for site in (trial.scored if trial.algorithm.pools else [trial.sites[number]])]

    def record(self, server: State, down: int) -> RoundRecord:
        trial, before = self.trial, self.run
        told = self.count and self.mean is None and trial.privacy.site is None
        charged = {name: trial.charge(n, epochs) for n, epochs in self.epochs.items() for name in self._charged(n)}
        site = trial.privacy.site
        loss = self.loss / self.weight if told else None
        return RoundRecord(
            round=before.round + 1,
            loss=None if trial.privacy.example is not None else loss,
            update_norm=self.norm / self.weight if told else None,
            divergence=max(self.spread / self.weight, 0.0) ** 0.5 if told and self.spread >= 0 else None,
            change=None if self.algorithm.personal else _distance(before.server["params"], server["params"]),
            sites=tuple(self.names),
            dropped=tuple(a.site.name for a in self.assignments if a.site.name not in self.names),
            bytes_down=down,
            bytes_up=self.bytes,
            settings={name: float(leaf) for name, leaf in server.get("settings", {}).items()},
            charges={name: (one.rate, one.noise, one.steps) for name, one in charged.items() if one is not None},
            site_charge=None
            if site is None
            else (trial.training.share, site_noise(site, trial.training.share, trial.training.rounds), 1),
            stopped=stopped(trial, before.round),
            failed=self.failed,
        )


def weight_of(trial: Trial, site: Site) -> float:
    """Privacy for whole sites holds for sites that weigh the same."""
    by_rows = trial.algorithm.weighting == "samples" and trial.privacy.site is None
    return float(len(site.train)) if by_rows else 1.0


def _distance(before: Tree, after: Tree) -> float:
    return float(tree.squared_norm(tree.sub(after, before)).sqrt())
