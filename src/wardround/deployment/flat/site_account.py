"""What a site's patients pay for a round: looked up before training, charged before anything leaves.

The ledger is the site's own and outlives every run. A repeated request is charged once and answered with the same
bytes. A repeated request with another model is refused: the same noise on two gradients would show their difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.tree import State
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.runs.ledger import Entry, Ledger, charges_of
from wardround.training.local import Memory
from wardround.training.trial import Trial

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class PrivateRequest:
    """The requested work of one private trial in one round."""

    trial: Trial
    number: int  # of this site among the trial's
    epochs: int
    entry: Entry  # what it would cost
    known: Entry | None  # what it has cost, where it was answered before

    @property
    def again(self) -> int | None:
        """The epochs that were trained and charged, if the request was answered before. Exactly these are repeated,
        however long that takes."""
        return None if self.known is None else self.known.steps // self.trial.sampling(self.number).steps

    def cost(self, epochs: int) -> Entry:
        """Of this many epochs, which may be fewer than requested."""
        return replace(self.entry, steps=self.trial.sampling(self.number).steps * epochs)


def private_requests(
    ledger: Ledger,
    budget: float | None,
    place: Mapping[str, str],
    round_number: int,
    work: Mapping[int, tuple[Trial, int, int]],
    shared: Mapping[int, State],
    memories: Mapping[int, Memory],
) -> dict[int, PrivateRequest]:
    """Of the private trials in `work`, which has each trial with this site's number in it and its epochs.

    `place` are the fields of an entry that identify run, study, site and patients. Refused if the round would take the
    spending of this site's patients, over all studies, beyond `budget`.
    """
    entries = ledger.entries()
    known = {entry.place: entry for entry in entries}
    requests: dict[int, PrivateRequest] = {}
    for n, (trial, number, epochs) in work.items():
        example, charge = trial.privacy.example, trial.charge(number, epochs, round_number)
        if example is None or charge is None:
            continue
        entry = Entry(
            **place,
            arm=trial.arm,
            seed=trial.seed,
            round=round_number + 1,
            rate=charge.rate,
            noise=charge.noise,
            steps=charge.steps,
            delta=example.delta,
            question=request_hash(shared.get(n, {}), memories[n], round_number, epochs),
            guarantee=True,
        )
        before = known.get(entry.place)
        if before is not None and before.question != entry.question:
            problem = "asks again for a round that was answered, with another model"
            raise DeployError(
                "coordinator", problem, "Begin a new run: two answers would cost what was charged for one."
            )
        requests[n] = PrivateRequest(trial, number, epochs, entry, before)
    _refuse_beyond(budget, entries, [request.entry for request in requests.values() if request.known is None])
    return requests


def _refuse_beyond(budget: float | None, entries: list[Entry], new: list[Entry]) -> None:
    if budget is None or not new:
        return
    together = [*charges_of(entries), *(Charge(entry.rate, entry.noise, entry.steps) for entry in new)]
    if epsilon(together, min(entry.delta for entry in [*entries, *new])) > budget:
        limit = f"an epsilon of {budget:g} over all studies (most_total_epsilon)"
        raise Refused(Refusal(f"its patients' privacy budget is spent: another round would exceed {limit}"))


def request_hash(shared: State, memory: Memory, round_number: int, epochs: int) -> str:
    """Hash of everything that a site's gradients depend on, except its rows and its secret."""
    digest = sha256(f"{round_number} {epochs}".encode())
    for part in (tree.flatten(shared), memory.leaves()):
        digest.update(leaves_hash(part))
    return digest.hexdigest()
