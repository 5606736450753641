"""Mistakes of a deployment: memory, rounds, quorum, signatures, approvals, and what may leave a hospital."""

from tests.mutant import Mutant

BY_HAND = "tests/deploy/test_crashes_in_process.py"
PATIENTS = "tests/deploy/test_nothing_of_a_patient.py"
REFUSALS = "tests/deploy/test_refusals.py"

MUTANTS = (
    Mutant(
        "memory of an update that did not count stays in force",
        "deploy/store.py",
        "found = self.cached.get((wave, counted))",
        "found = next(reversed(self.cached.values()), None)",
        where=(BY_HAND,),
    ),
    Mutant(
        "a round that is over is trained again",
        "deploy/sitework.py",
        "session.store.refuse_old(wave, number)",
        "pass",
        where=(BY_HAND, "tests/deploy/test_store.py"),
    ),
    Mutant(
        "an answer to another question counts",
        "deploy/correspondence.py",
        "if not belongs(letter, asked):",
        "if False:",
        where=(BY_HAND,),
    ),
    Mutant(
        "a round closes without a quorum",
        "deploy/correspondence.py",
        "and len(there) >= self.quorum",
        "and bool(there)",
        where=(BY_HAND, REFUSALS),
    ),
    Mutant(
        "nobody looks at signatures",
        "engines/letters.py",
        "if not verifier.verify(sealed.signature, sealed.digest):",
        "if False:",
        where=("tests/deploy/test_letters.py", REFUSALS),
    ),
    Mutant(
        "tensors come in the order of the file",
        "engines/letters.py",
        "{name: found[name] for name in names if tensors}",
        "dict(sorted(found.items()))",
        where=("tests/deploy/test_letters.py",),
    ),
    Mutant(
        "an approval that is withdrawn still holds",
        "deploy/sitework.py",
        "self.gate.still_approved(self.session.study.hash)",
        "pass",
        where=(REFUSALS,),
    ),
    Mutant(
        "a value of one patient is lent",
        "deploy/written.py",
        "lent = with_enough(lent)",
        "pass",
        where=(PATIENTS, "tests/deploy/test_letters.py"),
    ),
    Mutant(
        "a class that one row has is named",
        "deploy/session.py",
        "None if hidden else name",
        "name",
        where=(PATIENTS,),
    ),
    Mutant(
        "figures of a few rows leave in every round",
        "evaluation/finding_summary.py",
        "    if patients_in(prediction.people) < max(smallest, 1):\n        return {}",
        "    if patients_in(prediction.people) < 1:\n        return {}",
        where=(PATIENTS,),
    ),
    Mutant(
        "what a cell holds is told to the coordinator",
        "deploy/sitework.py",
        "return UNREADABLE",
        "return error.problem",
        where=(PATIENTS, REFUSALS),
    ),
)
