"""One run as a party sees it whose columns are its own and whose patients are others' too: it matches patients, learns
which of them train, and agrees on what every party gives.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

import numpy as np
import torch
from safetensors.torch import load

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.data.checks.before_training import refuse_errors
from wardround.data.records import SPLIT_PARTS, Records
from wardround.deployment.common.secure_sum_site import Commitments
from wardround.deployment.common.site_counts import own_counts
from wardround.deployment.common.site_store import Store
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_session import own_task
from wardround.deployment.governance.gate import Gate
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.site.answering import Reply
from wardround.deployment.site.session import FILE, PartyRun, read_session, restored, write_session
from wardround.deployment.vertical.party_plan import AssignedRows, own_vertical_plan, shapes_by_kind, without_names
from wardround.deployment.vertical.patient_matching import (
    PATIENTS,
    VISITS,
    Matching,
    as_bytes,
    as_tensor,
    as_tensors,
    ids_of,
    messages_in,
    number_of_each_row,
    row_of_each_number,
    terms_of,
    visit_ids,
)
from wardround.deployment.vertical.vertical_validation import holder_of, parties_of
from wardround.privacy.disclosure.small_cells import suppress_small_count
from wardround.privacy.psi.patient_ids import Patients
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import (
    Agree,
    Agreed,
    AskShape,
    Assign,
    Assigned,
    Hello,
    Match,
    Matched,
    PartyReady,
    Shaped,
    Stage,
    Voucher,
)
from wardround.protocol.party_sealing import Channel
from wardround.protocol.reading import read_request_task
from wardround.protocol.tensors import pack
from wardround.protocol.values import Sites
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.environment import versions
from wardround.study.parser import Families

with needs("deploy", "a study across hospitals"):
    from msgspec import convert, structs, to_builtins

ROWS = "rows"  # the place for which the assignment of rows is sealed
STEP = "step"  # the kind of commitment that a block of training is
MATCHING = "matching"  # folder with what came while patients were matched


class PartySession:
    def __init__(
        self,
        site: str,
        folder: Path,
        gate: Gate,
        families: Families,
        records: Records,
        hello: Hello,
        signer: Signer,
        peers: Mapping[str, Verifier],
    ) -> None:
        self.site, self.folder, self.gate, self.records = site, folder, gate, records
        self.run, self.sites = hello.run, hello.sites
        self.study = gate.study(hello.study, self.sites)
        self.parties, self.holder = parties_of(self.study), holder_of(self.study)
        self._signer, self._peers = signer, peers
        self._refuse_strangers()
        self.ids = ids_of(site, records)
        self.plan = own_vertical_plan(self.study, families, site, records)
        if self.is_holder:
            refuse_errors(self.plan.own_notices())
        self.store = Store(folder)
        self.commitments = Commitments(folder / "commitments.jsonl")
        self.secret = RunSecret(folder).draw(used=(folder / FILE).exists())
        self.channel = Channel(site, self.run, self.secret, signer, peers)
        rows = self.plan.cohort_of(self.study.arms[0]).fingerprint
        self.kept = PartyRun(hello=hello, rows=rows)
        self.matchings: dict[Stage, Matching] = {}
        self.waves: list[tuple[tuple[str, int], ...]] = []

    @classmethod
    def restore(
        cls,
        site: str,
        folder: Path,
        gate: Gate,
        families: Families,
        load: Callable[[], Records],
        signer: Signer,
        peers: Mapping[str, Verifier],
    ) -> "PartySession":
        known = read_session(folder)
        party = known if isinstance(known, PartyRun) else None
        return restored(site, party, lambda hello: cls(site, folder, gate, families, load(), hello, signer, peers))

    @property
    def is_holder(self) -> bool:
        return self.site == self.holder

    @property
    def others(self) -> tuple[str, ...]:
        """Parties without labels."""
        return tuple(party for party in self.parties if party != self.holder)

    @property
    def has_visits(self) -> bool:
        """Whether this party without labels has rows for visits of its patients."""
        return self.records.visits is not None and not self.is_holder

    def ready(self) -> PartyReady:
        return PartyReady(
            **self.kept.hello.place,
            columns=None,
            inputs=None,
            task=own_task(self.records, self.run) if self.is_holder else None,
            visits=self.has_visits,
            voucher=convert(self.channel.voucher(), Voucher),
            versions=versions(),
        )

    def match(self, request: Match, tensors: Tree) -> Reply:
        if self.kept.vouchers is None:
            self.channel.meet(to_builtins(request.vouchers))
            self.kept.vouchers, self.kept.rosters = request.vouchers, self._checked_rosters(request.rosters)
            write_session(self)
        elif not (self.folder / MATCHING / VISITS).exists():  # until visits are matched, who has any may be corrected
            self.kept.rosters = self._checked_rosters(request.rosters)
            write_session(self)
        answers = self._matching(request.stage).answer(request.round, messages_in(tensors))
        common = self._matching(request.stage).common
        return Reply(Matched(**request.place, common=None if common is None else len(common)), as_tensors(answers))

    def assign(self, request: Assign, tensors: Tree) -> Reply:
        """Who trains, and who is validated and tested on. Every other party learns it of the patients that it has."""
        numbers = {party: self._numbers(party) for party in self.others}
        by_kind = self.plan.assign_rows(numbers)
        self._require_enough_rows()
        sealed: Tree = {}
        for party in self.others:
            content = {
                f"{place}/{part}": torch.from_numpy(by_kind[kind][party][part])
                for place, kind in enumerate(self.plan.kinds)
                for part in SPLIT_PARTS
            }
            sealed[party] = as_tensor(self.channel.seal(party, ROWS, bytes(pack(content))))
        self.kept.assigned = True
        write_session(self)
        first = self.plan.kinds[0]
        cohort = self.plan.cohort_of(self.study.arm(first[0]))
        described = own_counts(self.plan.assigned_split(first), cohort, self.study.deployment.smallest_cell)
        rows = [self.plan.assigned[kind].rows for kind in self.plan.kinds]
        sizes = [{part: len(own[part]) for part in SPLIT_PARTS} for own in rows]
        drawn = len(self.plan.splits(self.study.arm(first[0]), first[1])[0].train)
        unmatched = suppress_small_count(drawn - sizes[0]["train"], self.study.deployment.smallest_cell)
        counts = {"sizes": sizes, "unmatched": unmatched, "described": described}
        return Reply(convert({**request.place, **counts}, Assigned), sealed)

    def shape(self, request: AskShape, tensors: Tree) -> Reply:
        if not self.is_holder:
            content = self.channel.open(self.holder, ROWS, as_bytes(tensors[ROWS]))
            self.stand_by(ROWS, "", sha256(content).digest())
            rows = load(content)
            self._take_rows(rows)
            write_leaves(self.folder / "rows.safetensors", rows, {})
        self._require_enough_rows()
        return Reply(Shaped(**request.place, shapes=self._own_shapes()))

    def _own_shapes(self) -> list[list[int]]:
        return [list(self.plan.own_shape(kind)) for kind in self.plan.kinds]

    def _require_enough_rows(self) -> None:
        self.gate.enough(min(len(self.plan.assigned[kind].rows["train"]) for kind in self.plan.kinds))

    def agree(self, request: Agree) -> Agreed:
        """Until the first block, what all give may be corrected: a party may have refused it, or told it wrongly."""
        before = self.kept.agree or request
        differs = (before.shapes, before.task) != (request.shapes, request.task)
        if differs and any(kind == STEP for kind, _ in self.commitments.known):
            problem = "says otherwise what all parties give than it did before"
            raise DeployError("coordinator", problem, "Begin a new run.")
        self._agree(request)
        self.kept.agree = request
        write_session(self)
        return Agreed(**request.place, waves=len(self.waves))

    def _agree(self, request: Agree) -> None:
        """Checked whole before anything of it is used."""
        shapes, task, own = request.shapes, read_request_task(request.task), self._own_shapes()
        if set(shapes) != set(self.parties) or any(len(given) != len(own) for given in shapes.values()):
            raise DeployError("coordinator", "does not say what every party gives", "Start the coordinator again.")
        if shapes[self.site] != own:
            raise DeployError("coordinator", "says otherwise what this party gives", "Start the coordinator again.")
        if self.is_holder and task.to_json() != without_names(self.plan.task):
            raise DeployError("coordinator", "says otherwise what is to be predicted", "Start the coordinator again.")
        self.waves = []
        if not self.is_holder:  # the network is of one size everywhere, and only the holder has its labels
            self.plan.expect(task)
        self.plan.agree(shapes_by_kind(self.study, self.plan.kinds, shapes))
        self.plan.refuse_unsound_arms()
        self.waves = self.plan.waves()

    def stand_by(self, kind: str, place: str, digest: bytes) -> None:
        """Bind this party to the first content for a place, on disk before anything follows. Another is refused."""
        if self.commitments.commit(kind, place.encode(), digest) != digest:
            problem = f"sends other numbers for a {kind} than before, and two answers would show more than one"
            if kind == ROWS:
                problem = "assigns rows otherwise than before, and two answers would show more than one"
            raise DeployError("coordinator", problem, "Ask the coordinator and the others why, and begin a new run.")

    def _numbers(self, party: str) -> np.ndarray:
        """For each row of the holder, the number by which another party knows it, or -1."""
        return number_of_each_row(self._common(self._stage_of(party)), len(self.records))

    def _stage_of(self, party: str) -> Stage:
        return VISITS if party in self._rosters.get(VISITS, ()) else PATIENTS

    def _common(self, stage: Stage) -> Patients:
        common = self._matching(stage).common
        if common is None:
            raise DeployError("coordinator", "goes on before patients are matched", "Start the coordinator again.")
        return common

    def _matching(self, stage: Stage) -> Matching:
        if stage not in self.matchings:
            roster = self._rosters.get(stage, [])
            if self.site not in roster:
                raise DeployError("coordinator", "asks for a matching that is not due", "Start the coordinator again.")
            terms = terms_of(self.study, self.run, stage, tuple(roster))
            if stage == VISITS:
                ids, rows = visit_ids(self.site, self.records, self._common(PATIENTS))
            else:
                ids, rows = self.ids, np.arange(len(self.ids), dtype=np.int64)
            folder, keys = self.folder / MATCHING / stage, (self.secret, self._signer, self._peers)
            self.matchings[stage] = Matching(self.site, terms, ids, rows, *keys, self.commitments, folder)
        return self.matchings[stage]

    @property
    def _rosters(self) -> dict[Stage, Sites]:
        return self.kept.rosters or {}

    def _checked_rosters(self, rosters: dict[Stage, Sites]) -> dict[Stage, Sites]:
        """Who is matched with whom. All parties, and of visits those that have them, with the holder."""
        visits = rosters.get(VISITS, [self.holder])
        wrong = set(rosters.get(PATIENTS, ())) != set(self.parties) or not set(visits) <= set(self.parties)
        if wrong or self.holder not in visits or (self.has_visits and self.site not in visits):
            problem = "wants patients to be matched between other parties than the study has"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was disclosed.")
        return rosters

    def _take_rows(self, rows: Tree) -> None:
        own = row_of_each_number(self.site, self._common(self._stage_of(self.site)))
        for place, kind in enumerate(self.plan.kinds):
            self.plan.assigned[kind] = AssignedRows(
                {part: own[rows[f"{place}/{part}"].numpy()] for part in SPLIT_PARTS}
            )

    def recall(self, kept: PartyRun) -> None:
        if kept.rows != self.kept.rows:
            problem = "its rows are not those with which the run began"
            raise DeployError(self.site, problem, "Bring the file back, or let the coordinator begin a new run.")
        self.kept = structs.replace(kept, hello=self.kept.hello)
        if kept.vouchers is not None:
            self.channel.meet(to_builtins(kept.vouchers))
        if kept.assigned:
            self.plan.assign_rows({party: self._numbers(party) for party in self.others})
        if (self.folder / "rows.safetensors").is_file():
            self._take_rows(read_leaves(self.folder / "rows.safetensors")[0])
        if kept.agree is not None:
            self._agree(kept.agree)

    def _refuse_strangers(self) -> None:
        if set(self.sites) != set(self.parties) or self.site not in self.parties:
            raise Refused(Refusal(f"the parties of the study are {', '.join(self.parties)}, and others take part"))
        unknown = [party for party in self.parties if party not in self._peers]
        if unknown:
            reason = f"this site has no public key of {', '.join(unknown)}, without which nothing is sealed for them"
            raise Refused(Refusal(reason))


def forget_matching(folder: Path) -> None:
    rmtree(folder / MATCHING, ignore_errors=True)
    (folder / "rows.safetensors").unlink(missing_ok=True)
