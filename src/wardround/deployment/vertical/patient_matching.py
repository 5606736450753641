"""A party's part in finding the patients whom all parties have: the protocol of privacy/psi.py, message by message.

There are two stages. First patients are matched, by all parties. Then, where some party distinguishes visits of one
patient, the visits of those patients are matched, by these parties and the one with the labels.

All that came is kept as files, so that a process that died repeats the same steps and goes on.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from wardround.core.errors import DataError, DeployError
from wardround.core.tree import Tree
from wardround.data.records import Records
from wardround.privacy.psi.patient_ids import Patients
from wardround.privacy.psi.psi import Party, PsiMessage, Terms
from wardround.privacy.secure_sum.secure_sum import Commitments
from wardround.privacy.signatures import Signer, Verifier
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.study.schema import Study

PATIENTS: Final = "patients"
VISITS: Final = "visits"
STAGES = (PATIENTS, VISITS)


def terms_of(study: Study, run: str, stage: str, roster: tuple[str, ...]) -> Terms:
    """The same at every end, from public things. A run has a name of its own."""
    return Terms(f"{run} {stage}".encode(), roster, least_common=max(1, study.deployment.smallest_cell))


class Matching:
    """One party in one stage. `ids` are of its own rows, whose numbers are `rows`."""

    def __init__(
        self,
        party: str,
        terms: Terms,
        ids: list[str],
        rows: np.ndarray,
        secret: bytes,
        signer: Signer,
        peers: Mapping[str, Verifier],
        commitments: Commitments,
        folder: Path,
    ) -> None:
        self._party = Party(party, ids, terms, secret, signer, peers, commitments)
        self._name, self._rows, self._folder = party, rows, folder
        self._answers: list[list[bytes]] = []
        for path in sorted(folder.glob("*.safetensors")):
            self._answers.append(self._step(len(self._answers), messages_in(read_leaves(path)[0])))

    def answer(self, step: int, messages: list[bytes]) -> list[bytes]:
        """The same step again gets the same answer, whatever comes with it."""
        if step > len(self._answers):
            raise DeployError("coordinator", "leaves out a step of the matching", "Start the coordinator again.")
        if step == len(self._answers):
            answer = self._step(step, messages)
            write_leaves(self._folder / f"{step:03}.safetensors", as_tensors(messages), {})
            self._answers.append(answer)
        return self._answers[step]

    def _step(self, step: int, messages: list[bytes]) -> list[bytes]:
        if step == 0:
            return [message.encode() for message in self._party.start()]
        return [answer.encode() for message in messages for answer in self._party.take(PsiMessage.decode(message))]

    @property
    def common(self) -> Patients | None:
        """None until every party has confirmed the same. Row numbers are those of this party's own table."""
        common = self._party.aligned
        return None if common is None else replace(common, rows=self._rows[common.rows])


def ids_of(party: str, records: Records) -> list[str]:
    """As they stand in the party's own file."""
    ids = records.ids if records.ids is not None or records.is_table else records.patient
    if ids is None:
        problem = "its rows have no patient ids that others would know"
        raise DataError(party, problem, 'Use the source "csv-parties", with `patient`.')
    return [str(name) for name in ids.tolist()]


def visit_ids(party: str, records: Records, matched: Patients) -> tuple[list[str], np.ndarray]:
    """A name for each visit of a patient who is at all parties, and the row that it is about."""
    if records.visits is None:
        problem = "another party distinguishes visits of one patient, and this one does not"
        raise DataError(party, problem, "Name the column of visits at both (`visit`), or at neither.")
    rows, patients = matched.rows, matched.patient_of_each_row()
    names = [matched.ids[patient] for patient in patients.tolist()]
    visits = [str(visit) for visit in records.visits[rows].tolist()]
    return [f"{len(name)}:{name}:{visit}" for name, visit in zip(names, visits, strict=True)], rows


def number_of_each_row(common: Patients, rows: int) -> np.ndarray:
    """For each row of a party's table, the number of its patient or visit among those in common; -1 for others."""
    numbers = np.full(rows, -1, dtype=np.int64)
    numbers[common.rows] = common.patient_of_each_row()
    return numbers


def row_of_each_number(party: str, common: Patients) -> np.ndarray:
    """The other way, where there is one row for each."""
    if len(common.rows) > len(common):
        problem = "several rows are of one patient, and nothing says of which visit each of them is"
        raise DataError(party, problem, "Keep one row for each patient, or name the column of visits (`visit`).")
    return common.rows


def as_tensors(messages: list[bytes]) -> Tree:
    """How bytes travel in a message, whose tensors are not written as text."""
    return {f"{place:03}": as_tensor(message) for place, message in enumerate(messages)}


def as_tensor(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def messages_in(tensors: Tree) -> list[bytes]:
    return [as_bytes(tensors[name]) for name in sorted(tensors)]


def as_bytes(tensor: torch.Tensor) -> bytes:
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise DeployError("parties", "a message cannot be read", "Install the same version of wardround everywhere.")
    return tensor.numpy().tobytes()
