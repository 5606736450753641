"""One run as a hospital sees it: the study that it approved, its own rows, and what the sites agreed on.

What patients pay for a round is looked up before training and charged before anything leaves. The ledger is the site's
own and outlives every run. A repeated request is charged once and answered with the same bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import State
from wardround.data.agreement import LEAST, compute_fill_values, moments, own_fill
from wardround.data.checks.before_training import refuse_errors
from wardround.data.checks.label_direction import associations
from wardround.data.records import SPLIT_PARTS, Records, class_hash
from wardround.data.serialization import read_layout
from wardround.deployment.common.deployable import is_private
from wardround.deployment.common.deployed_plan import Key, in_agreed_columns, own_plan
from wardround.deployment.common.schema_agreement import (
    agreed_of,
    column_parts,
    direction_payload,
    read_columns,
    read_common,
    task_payload,
    write_facts,
    write_fill_values,
    write_moments,
)
from wardround.deployment.common.secure_sum_site import Commitments
from wardround.deployment.common.site_counts import own_counts, without_counts
from wardround.deployment.common.site_store import Store
from wardround.deployment.common.spool import Shape
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.flat.explanation_parts import conducted
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_draw import SiteDraw
from wardround.deployment.governance.gate import Gate
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.site.session import FlatRun, agreement_of, read_session, restored, write_session
from wardround.privacy.disclosure.target_sums import own_target_sums
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.dp.noise import SecretStream, site_key
from wardround.privacy.dp.protection import Streams
from wardround.protocol.catalogue import (
    Agreement,
    AskFacts,
    AskFillValues,
    AskMoments,
    ColumnFillValues,
    ColumnMoments,
    Columns,
    FactsAnswer,
    FillValuesAnswer,
    Hello,
    MomentsAnswer,
    Prepare,
    Prepared,
    Ready,
    TaskPart,
)
from wardround.runs.environment import versions
from wardround.runs.ledger import Entry, Ledger, charges_of
from wardround.runs.spending import LEDGER
from wardround.study.parser import Families
from wardround.training.local import Memory
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, structs, to_builtins


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


class Session:
    def __init__(self, site: str, folder: Path, gate: Gate, families: Families, records: Records, hello: Hello) -> None:
        self.site, self.folder, self.families, self.records = site, folder, families, records
        self.run, self.sites = hello.run, hello.sites
        self.study, self.gate = gate.study(hello.study, self.sites), gate
        self.plan = own_plan(self.study, families, site, self.sites, records)
        refuse_errors(self.plan.own_notices())
        gate.enough(min((len(self.plan.own_split(key).train) for key in self.plan.row_sets), default=len(records)))
        self.store, self.secret = Store(folder), RunSecret(folder)
        self.draw = SiteDraw(self.study, site, self.sites, folder.parent / "draws.jsonl")
        self.ledger, self.commitments = Ledger(folder.parent / LEDGER), Commitments(folder / "commitments.jsonl")
        self.kept = FlatRun(hello=hello)
        self.waves: list[tuple[tuple[str, int], ...]] = []
        # of models, by arm, seed and whether they are final
        self.broadcast_shapes: dict[tuple[str, int, bool], dict[str, Shape]] = {}

    @classmethod
    def restore(cls, site: str, folder: Path, gate: Gate, families: Families, load: Callable[[], Records]) -> "Session":
        known = read_session(folder)
        flat = known if isinstance(known, FlatRun) else None
        return restored(site, flat, lambda hello: cls(site, folder, gate, families, load(), hello))

    def recall(self, kept: FlatRun) -> None:
        """What other sites agreed on does not hold for these."""
        if kept.hello.sites != self.sites:
            return
        if isinstance(kept.columns, list | None):
            self._use(kept.columns)
        self.kept.analyses, self.kept.begun_analyses = dict(kept.analyses), list(kept.begun_analyses)
        if kept.prepare is not None:
            self._agree(kept.prepare)

    def ready(self) -> Ready:
        """What other sites need in order to check that all mean the same."""
        records = self.records
        shares_columns = records.is_table and not self.keeps_columns
        return Ready(
            **self.kept.hello.place,
            columns=column_parts(records.columns) if shares_columns else None,
            inputs=None if records.is_table else list(records.features.shape[1:]),
            task=own_task(records, self.run),
            versions=versions(),
        )

    @property
    def keeps_columns(self) -> bool:
        """Whether no arm needs to know this site's columns."""
        arms = self.study.trained_arms
        return bool(arms) and all(arm.preparation.schema == "own" for arm in arms)

    def is_analysis(self, wave: int) -> bool:
        """Analyses count as waves after those of training."""
        return 0 <= wave - len(self.waves) < len(conducted(self.study))

    def analysis_at(self, wave: int) -> int:
        if not self.is_analysis(wave):
            raise DeployError("coordinator", "asks for an analysis that this study does not have", "Start it again.")
        return wave - len(self.waves)

    @property
    def companions(self) -> list[str]:
        """The sites whose work is added up with this one's: all, or those of its region."""
        return list(self.plan.within) or self.sites

    def own_secret(self) -> bytes:
        """Drawn before its first use, and never twice in a run."""
        used = bool(self.commitments.known) or any(entry.run == self.run for entry in self.ledger.entries())
        return self.secret.draw(used)

    def streams(self, trial: Trial, number: int) -> Streams:
        """Sampling and noise of a private trial in a round."""
        key = site_key(self.own_secret(), self.run, trial.arm, trial.seed, number)
        return lambda purpose: SecretStream(key, purpose)

    def private_requests(
        self,
        trials: Mapping[int, Trial],
        epochs_by_trial: Mapping[int, int],
        number: int,
        shared: Mapping[int, State],
        memories: Mapping[int, Memory],
    ) -> dict[int, PrivateRequest]:
        """The private work of a round, by trial. Refused if it would take the spending of this site's patients, over
        all studies, beyond the budget; a repeated request with another model is refused too, because the same noise on
        two gradients would show their difference."""
        if not any(trials[n].privacy.example for n in epochs_by_trial):
            return {}
        entries = self.ledger.entries()
        known = {entry.place: entry for entry in entries}
        requests: dict[int, PrivateRequest] = {}
        for n, epochs in epochs_by_trial.items():
            trial, site_number = trials[n], _number(trials[n], self.site)
            example, charge = trial.privacy.example, trial.charge(site_number, epochs, number)
            if example is None or charge is None:
                continue
            entry = Entry(
                run=self.run,
                study=self.study.hash,
                study_name=self.study.name,
                site=self.site,
                patients=self.plan.cohort_of(self.study.arms[0]).fingerprint,
                arm=trial.arm,
                seed=trial.seed,
                round=number + 1,
                rate=charge.rate,
                noise=charge.noise,
                steps=charge.steps,
                delta=example.delta,
                question=work_hash(shared.get(n, {}), memories[n], number, epochs),
                guarantee=True,
            )
            before = known.get(entry.place)
            if before is not None and before.question != entry.question:
                problem = "asks again for a round that was answered, with another model"
                remedy = "Begin a new run: two answers would cost what was charged for one."
                raise DeployError("coordinator", problem, remedy)
            requests[n] = PrivateRequest(trial, site_number, epochs, entry, before)
        new = [request.entry for request in requests.values() if request.known is None]
        _refuse_beyond(self.gate.budget(), entries, new)
        return requests

    def facts(self, request: AskFacts) -> FactsAnswer:
        self._use(request.columns)
        write_session(self)
        row_sets = []
        for key in self.plan.row_sets:
            facts = None if self.keeps_columns else self.plan.own_facts(key)
            split = self.plan.own_split(key)
            sizes = {part: len(getattr(split, part)) for part in SPLIT_PARTS}
            written = None if facts is None else write_facts(facts)
            row_sets.append({**sizes, "facts": written, "target": self._target_sums(key)})
        first = self.plan.row_sets[0]
        cohort = self.plan.cohort_of(self.study.arm(first[0]))
        described = own_counts(self.plan.own_split(first), cohort, self.study.deployment.smallest_cell)
        if is_private(self.study):
            described = without_counts(described)
        content = {"sets": row_sets, "described": described, "directions": self._directions(first)}
        return convert({**request.place, **content}, FactsAnswer)

    def _target_sums(self, key: Key) -> list[float]:
        cohort, train = self.plan.cohort_of(self.study.arm(key[0])), self.plan.own_split(key).train
        return own_target_sums(cohort, train, self.study.deployment.smallest_cell)

    def _directions(self, key: Key) -> dict[str, Any]:
        """Shows inverted labels. Empty where patients have differential privacy, and of a number where sites have."""
        noisy_sites = any(arm.privacy.site is not None for arm in self.study.trained_arms)
        hidden = is_private(self.study) or (noisy_sites and self.records.task.answers == "number")
        if hidden or not self.study.deployment.compare_labels:
            return {}
        split, cohort = self.plan.own_split(key), self.plan.cohort_of(self.study.arm(key[0]))
        directions = associations(cohort, np.concatenate([split.train, split.validation]))
        return direction_payload(directions, self.keeps_columns)

    def _use(self, columns: Columns | None) -> None:
        if self.kept.columns == columns:
            return
        known = read_columns(columns)
        agreed = in_agreed_columns(self.records, known) if known else self.records
        self.plan = own_plan(self.study, self.families, self.site, self.sites, agreed)
        self.kept.columns = columns

    def fill_values(self, request: AskFillValues) -> FillValuesAnswer:
        """Only for the requested columns, which some site never recorded."""
        layouts = [read_layout(to_builtins(layout)) for layout in request.layouts]
        fill_values: list[ColumnFillValues] = []
        for kind, place, missing in zip(self.plan.kinds, request.of, request.missing, strict=True):
            if place is None:
                fill_values.append(ColumnFillValues(fill=[], counts=[], levels={}))
                continue
            arm = self.study.arm(kind[0])
            train = self.plan.own_split(kind).train
            own = compute_fill_values(self.plan.cohort_of(arm).table, train, layouts[place], arm.preparation)
            fill_values.append(write_fill_values(own, missing.numbers, missing.categories))
        return FillValuesAnswer(**request.place, fill_values=fill_values)

    def moments(self, request: AskMoments) -> MomentsAnswer:
        """Sums over training rows, for a common scale."""
        layouts = [read_layout(to_builtins(layout)) for layout in request.layouts]
        summed: list[ColumnMoments | None] = []
        for kind, place, common in zip(self.plan.kinds, request.of, request.commons, strict=True):
            arm = self.study.arm(kind[0])
            if arm.preparation.scale != "federated" or place is None or common is None:
                summed.append(None)
                continue
            table, train = self.plan.cohort_of(arm).table, self.plan.own_split(kind).train
            own = compute_fill_values(table, train, layouts[place], arm.preparation)
            lent = own_fill(own, read_common(common))
            summed.append(write_moments(moments(table, train, layouts[place], lent)))
        return MomentsAnswer(**request.place, moments=summed)

    def prepare(self, request: Prepare) -> Prepared:
        self.catch_up(agreement_of(request))
        return Prepared(**request.place, waves=len(self.waves))

    def catch_up(self, agreement: Agreement) -> None:
        self._agree(agreement)
        write_session(self)

    def _agree(self, agreement: Agreement) -> None:
        """On failure everything stays as it was."""
        before = structs.replace(self.kept), self.plan, self.plan.agreed, self.waves
        try:
            self._use(agreement.columns)
            self.plan.agreed = agreed_of(self.plan, agreement)
            self.plan.group_seed = self.draw.seed(agreement.draw)
            self.plan.refuse_unsound_arms()
            self.waves = self.plan.waves()
            self.kept.prepare = agreement
            self.broadcast_shapes.clear()
        except Exception:
            self.kept, self.plan, self.plan.agreed, self.waves = before
            raise


def _number(trial: Trial, site: str) -> int:
    return [member.name for member in trial.sites].index(site)


def own_task(records: Records, run: str) -> TaskPart:
    """The name of a class of few rows may be a typing error and is withheld; others only see whether they have it
    too. Findings are those that the site file lists, whether or not a row has them."""
    task = records.task
    few = np.zeros(len(task.names), dtype=bool)
    if task.classes:
        counts = np.bincount(records.target, minlength=len(task.classes))
        few = (counts > 0) & (counts < LEAST)
    names = zip(task.names, few.tolist(), strict=True)
    hashed = [{"name": None if few else name, "hash": class_hash(run, name)} for name, few in names]
    return convert(task_payload(task, hashed), TaskPart)


def _refuse_beyond(budget: float | None, entries: list[Entry], new: list[Entry]) -> None:
    if budget is None or not new:
        return
    together = [*charges_of(entries), *(Charge(entry.rate, entry.noise, entry.steps) for entry in new)]
    if epsilon(together, min(entry.delta for entry in [*entries, *new])) > budget:
        limit = f"an epsilon of {budget:g} over all studies (most_total_epsilon)"
        raise Refused(Refusal(f"its patients' privacy budget is spent: another round would exceed {limit}"))


def work_hash(shared: State, memory: Memory, round_number: int, epochs: int) -> str:
    """Hash of everything that a site's gradients depend on, except its rows and its secret."""
    digest = sha256(f"{round_number} {epochs}".encode())
    for part in (tree.flatten(shared), memory.leaves()):
        digest.update(leaves_hash(part))
    return digest.hexdigest()
