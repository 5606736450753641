"""Mistakes of a deployment: memory, rounds, quorum, signatures, approvals, and what may leave a hospital."""

from tests.mutant import Mutant

BY_HAND = "tests/deployment/test_crashes_in_process.py"
PATIENTS = "tests/deployment/test_nothing_of_a_patient.py"
FINDINGS, SUMMARIES = "tests/evaluation/test_finding_summaries.py", "tests/evaluation/test_summaries.py"
REFUSALS = "tests/deployment/test_refusals.py"
DOOR, TRUST = "tests/deployment/test_door.py", "tests/deployment/test_trust.py"

MUTANTS = (
    Mutant(
        "memory of an update that did not count stays in force",
        "deployment/common/site_store.py",
        "found = self.cached.get((wave, counted))",
        "found = next(reversed(self.cached.values()), None)",
        where=(BY_HAND,),
    ),
    Mutant(
        "a round that is over is trained again",
        "deployment/flat/site_handler.py",
        "session.store.refuse_old(wave, number)",
        "pass",
        where=(BY_HAND, "tests/deployment/test_store.py"),
    ),
    Mutant(
        "an answer to another question counts",
        "deployment/common/messaging.py",
        "if not belongs(message, asked):",
        "if False:",
        where=(BY_HAND,),
    ),
    Mutant(
        "a round closes without a quorum",
        "deployment/common/messaging.py",
        "and len(there) >= self.quorum",
        "and bool(there)",
        where=(BY_HAND, REFUSALS),
    ),
    Mutant(
        "nobody looks at signatures",
        "protocol/messages.py",
        "if not verifier.verify(sealed.signature, sealed.digest):",
        "if False:",
        where=("tests/deployment/test_messages.py", REFUSALS),
    ),
    Mutant(
        "tensors come in the order of the file",
        "protocol/messages.py",
        "{name: found[name] for name in names if tensors}",
        "dict(sorted(found.items()))",
        where=("tests/deployment/test_messages.py",),
    ),
    Mutant(
        "an approval that is withdrawn still holds",
        "deployment/flat/site_handler.py",
        "self.gate.still_approved(self.session.study.hash)",
        "pass",
        where=(REFUSALS,),
    ),
    Mutant(
        "a value of one patient is lent",
        "deployment/common/agreement_serialization.py",
        "lent = with_enough(lent)",
        "pass",
        where=(PATIENTS, "tests/deployment/test_messages.py"),
    ),
    Mutant(
        "a class that one row has is named",
        "deployment/flat/site_session.py",
        "None if hidden else name",
        "name",
        where=(PATIENTS,),
    ),
    Mutant(
        "of a finding that few have it is told how many are called right",
        "evaluation/summaries/site_summary.py",
        "if finding and not by_class:",
        "if finding and not by_class and not small:",
        where=(FINDINGS,),
    ),
    Mutant(
        "images are counted for patients",
        "evaluation/summaries/site_summary.py",
        "return len(np.unique(people))",
        "return len(people)",
        where=(FINDINGS, SUMMARIES),
    ),
    Mutant(
        "a curve is of labels that a summary hides",
        "evaluation/summaries/finding_summary.py",
        "label, score, people = _without_few_open(prediction, smallest), prediction.score, prediction.people",
        "label, score, people = prediction.label, prediction.score, prediction.people",
        where=(FINDINGS,),
    ),
    Mutant(
        "counts of findings tell how few have several",
        "deployment/common/site_facts.py",
        "(any_finding, ~any_finding, several, *apart)",
        "(any_finding, ~any_finding, *apart)",
        where=(FINDINGS,),
    ),
    Mutant(
        "a site scores any second model that it is sent",
        "deployment/flat/site_training.py",
        'if arm.topology.kind != "hierarchical" or not trains or not alike:',
        "if not alike:",
        "does_not_have",
        where=("tests/deployment/test_regions_scored.py",),
    ),
    Mutant(
        "figures of a few rows leave in every round",
        "evaluation/summaries/finding_summary.py",
        "    if patients_in(prediction.people) < max(smallest, 1):\n        return {}",
        "    if patients_in(prediction.people) < 1:\n        return {}",
        where=(PATIENTS,),
    ),
    Mutant(
        "what a cell holds is told to the coordinator",
        "deployment/flat/site_handler.py",
        "return UNREADABLE",
        "return error.problem",
        where=(PATIENTS, REFUSALS),
    ),
    Mutant(
        "a key that nobody registered opens the door",
        "deployment/flower/link.py",
        "if not self.registered(key):",
        "if False:",
        where=(TRUST,),
    ),
    Mutant(
        "a signed head is good as often as one likes",
        "deployment/flower/link.py",
        "if number in used or signed <= newest - BEHIND:",
        "if False:",
        where=(TRUST,),
    ),
    Mutant(
        "the body of a stranger is read",
        "deployment/flower/connection.py",
        "self.dropping = not 0 < size <= SMALL",
        "self.dropping = False",
        where=(DOOR,),
    ),
    Mutant(
        "one address may have all connections",
        "deployment/flower/door.py",
        "if len(self.unknown.get(address, ())) >= self.limits.per_address:",
        "if False:",
        where=(DOOR,),
    ),
    Mutant(
        "a site trains whatever model it is sent",
        "deployment/flat/site_training.py",
        "check_sent(expected, known, needed)",
        "pass",
        where=(TRUST,),
    ),
)
