"""One run as a party sees it whose columns are its own and whose patients are others' too.

hello       which study, which run, which parties    ready          its key of the run; the task, if it has labels
match       messages of the matching                 matched        its own; the protocol is that of privacy/psi
assign      to the holder of the labels              assigned       who trains, validates and tests, sealed for each
shape       what the holder sealed for it            shaped         how many numbers it gives of a row
agree       what all give                            agreed
embed       gradients of the block before, sealed    embedded       embeddings of the next block, sealed for the holder
learn       to the holder: all embeddings            learned        gradients, sealed for each; a round's loss
embed_last  gradients of the last block              last_embedded  embeddings of validation and test rows, sealed
assess      to the holder: those embeddings          assessed       counts; predictions stay

A session is kept as files, so that a process that died goes on in the middle of a round without being greeted again.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.data.checks.before_training import refuse_errors
from wardround.data.records import SPLIT_PARTS, Records
from wardround.deployment.common.secure_sum_site import Commitments
from wardround.deployment.common.site_counts import own_counts
from wardround.deployment.common.site_store import Store
from wardround.deployment.flat.run_secret import RunSecret
from wardround.deployment.flat.site_session import Body, Gate, known_messages, own_task
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.deployment.vertical.party_plan import AssignedRows, own_vertical_plan, shapes_by_kind, without_names
from wardround.deployment.vertical.patient_matching import (
    PATIENTS,
    STAGES,
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
from wardround.protocol.messages import tensor_bytes
from wardround.protocol.party_sealing import Channel
from wardround.protocol.reading import read_request_task
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.environment import versions
from wardround.runs.folder import write_atomically
from wardround.study.parser import Families

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
        hello: Body,
        signer: Signer,
        peers: Mapping[str, Verifier],
    ) -> None:
        self.site, self.folder, self.gate, self.records = site, folder, gate, records
        self.run, self.sites = str(hello["run"]), [str(name) for name in hello["sites"]]
        self.study = gate.study(str(hello["study"]), self.sites)
        self.parties, self.holder = parties_of(self.study), holder_of(self.study)
        self._signer, self._peers = signer, peers
        self._refuse_strangers()
        self.ids = ids_of(site, records)
        self.plan = own_vertical_plan(self.study, families, site, records)
        if self.is_holder:
            refuse_errors(self.plan.own_notices())
        self.store = Store(folder)
        self.commitments = Commitments(folder / "commitments.jsonl")
        self.secret = RunSecret(folder).draw(used=(folder / "session.json").exists())
        self.channel = Channel(site, self.run, self.secret, signer, peers)
        rows = self.plan.cohort_of(self.study.arms[0]).fingerprint
        self.messages: dict[str, Any] = {"hello": dict(hello), "rows": rows}
        self.matchings: dict[str, Matching] = {}
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
        known = known_messages(folder)
        if known is None:
            problem = "it knows nothing of this run"
            raise DeployError(site, problem, "Start the coordinator again: it greets every site first.")
        session = cls(site, folder, gate, families, load(), known["hello"], signer, peers)
        session._recall(known)
        return session

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

    def greeted(self) -> None:
        """A process that dies from now on goes on. What was agreed in this run stands."""
        self._recall(known_messages(self.folder) or {})
        self._write()

    def ready(self) -> dict[str, Any]:
        return {
            "columns": None,
            "inputs": None,
            "task": own_task(self.records, self.run) if self.is_holder else None,
            "visits": self.has_visits,
            "voucher": self.channel.voucher(),
            "versions": versions(),
        }

    def match(self, body: Body, tensors: Tree) -> tuple[dict[str, Any], Tree]:
        if "vouchers" not in self.messages:
            self.channel.meet(body["vouchers"])
            self.messages |= {"vouchers": dict(body["vouchers"]), "rosters": self._rosters(body["rosters"])}
            self._write()
        elif not (self.folder / MATCHING / VISITS).exists():  # until visits are matched, who has any may be corrected
            self.messages["rosters"] = self._rosters(body["rosters"])
            self._write()
        stage, step = str(body["stage"]), int(body["round"])
        answers = self._matching(stage).answer(step, messages_in(tensors))
        common = self._matching(stage).common
        return {"common": None if common is None else len(common)}, as_tensors(answers)

    def assign(self, body: Body) -> tuple[dict[str, Any], Tree]:
        """Who trains, and who is validated and tested on. Every other party learns it of the patients that it has."""
        if not self.is_holder:
            raise DeployError("coordinator", "asks for labels where there are none", "Start the coordinator again.")
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
            sealed[party] = as_tensor(self.channel.seal(party, ROWS, tensor_bytes(content)))
        self.messages["assign"] = dict(body)
        self._write()
        first = self.plan.kinds[0]
        cohort = self.plan.cohort_of(self.study.arm(first[0]))
        described = own_counts(self.plan.assigned_split(first), cohort, self.study.deployment.smallest_cell)
        rows = [self.plan.assigned[kind].rows for kind in self.plan.kinds]
        sizes = [{part: len(own[part]) for part in SPLIT_PARTS} for own in rows]
        drawn = len(self.plan.splits(self.study.arm(first[0]), first[1])[0].train)
        unmatched = suppress_small_count(drawn - sizes[0]["train"], self.study.deployment.smallest_cell)
        return {"sizes": sizes, "unmatched": unmatched, "described": described}, sealed

    def shape(self, tensors: Tree) -> dict[str, Any]:
        if not self.is_holder:
            content = self.channel.open(self.holder, ROWS, as_bytes(tensors[ROWS]))
            self.stand_by(ROWS, "", sha256(content).digest())
            rows = load(content)
            self._take_rows(rows)
            write_leaves(self.folder / "rows.safetensors", rows, {})
        self._require_enough_rows()
        return {"shapes": [list(self.plan.own_shape(kind)) for kind in self.plan.kinds]}

    def _require_enough_rows(self) -> None:
        self.gate.enough(min(len(self.plan.assigned[kind].rows["train"]) for kind in self.plan.kinds))

    def agree(self, body: Body) -> dict[str, Any]:
        """Until the first block, what all give may be corrected: a party may have refused it, or told it wrongly."""
        before = self.messages.get("agree", body)
        differs = any(before.get(name) != body.get(name) for name in ("shapes", "task"))
        if differs and any(kind == STEP for kind, _ in self.commitments.known):
            problem = "says otherwise what all parties give than it did before"
            raise DeployError("coordinator", problem, "Begin a new run.")
        self._agree(body)
        self.messages["agree"] = dict(body)
        self._write()
        return {"waves": len(self.waves)}

    def _agree(self, body: Body) -> None:
        """Checked whole before anything of it is used."""
        shapes, task = body["shapes"], read_request_task(body["task"])
        own = [list(self.plan.own_shape(kind)) for kind in self.plan.kinds]
        if set(shapes) != set(self.parties) or any(len(given) != len(own) for given in shapes.values()):
            raise DeployError("coordinator", "does not say what every party gives", "Start the coordinator again.")
        if [list(shape) for shape in shapes[self.site]] != own:
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

    def _stage_of(self, party: str) -> str:
        return VISITS if party in self.messages["rosters"].get(VISITS, ()) else PATIENTS

    def _common(self, stage: str) -> Patients:
        common = self._matching(stage).common
        if common is None:
            raise DeployError("coordinator", "goes on before patients are matched", "Start the coordinator again.")
        return common

    def _matching(self, stage: str) -> Matching:
        if stage not in self.matchings:
            roster = self.messages["rosters"].get(stage, ())
            if stage not in STAGES or self.site not in roster:
                raise DeployError("coordinator", "asks for a matching that is not due", "Start the coordinator again.")
            terms = terms_of(self.study, self.run, stage, tuple(roster))
            if stage == VISITS:
                ids, rows = visit_ids(self.site, self.records, self._common(PATIENTS))
            else:
                ids, rows = self.ids, np.arange(len(self.ids), dtype=np.int64)
            folder, keys = self.folder / MATCHING / stage, (self.secret, self._signer, self._peers)
            self.matchings[stage] = Matching(self.site, terms, ids, rows, *keys, self.commitments, folder)
        return self.matchings[stage]

    def _rosters(self, proposed: Mapping[str, Any]) -> dict[str, list[str]]:
        """Who is matched with whom. All parties, and of visits those that have them, with the holder."""
        rosters = {str(stage): [str(party) for party in roster] for stage, roster in proposed.items()}
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

    def _recall(self, known: Body) -> None:
        """Restore the session from the files of a run; they are empty where it has just begun."""
        if known.get("rows", self.messages["rows"]) != self.messages["rows"]:
            problem = "its rows are not those with which the run began"
            raise DeployError(self.site, problem, "Bring the file back, or let the coordinator begin a new run.")
        for name in ("vouchers", "rosters", "assign", "agree"):
            if name in known:
                self.messages[name] = known[name]
        if "vouchers" in known:
            self.channel.meet(known["vouchers"])
        if "assign" in known:
            self.plan.assign_rows({party: self._numbers(party) for party in self.others})
        if (self.folder / "rows.safetensors").is_file():
            self._take_rows(read_leaves(self.folder / "rows.safetensors")[0])
        if "agree" in known:
            self._agree(known["agree"])

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "session.json", json.dumps(self.messages).encode())

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
