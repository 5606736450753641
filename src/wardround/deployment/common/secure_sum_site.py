"""A site's part in secure sums: its participation in one round, and the commitments that it keeps."""

import json
import os
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path

import torch

from wardround.core import tree
from wardround.core.errors import DeployError, SecureSumError
from wardround.core.extras import needs
from wardround.core.tree import State, Tree
from wardround.deployment.common.secure_wave import Place, Summands, contributors, needed_answers, shortfall, terms_of
from wardround.deployment.common.spool import MASKED
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.governance.policy import Refusal, Refused
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.secure_sum import Advert, Member, Terms
from wardround.protocol.catalogue import AdvertPart, SealedShares, SumTerms
from wardround.protocol.text import plain_text
from wardround.runs.ledger import sync
from wardround.study.schema import Study

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins

WORK = "work"  # what a site added to a sum
REMEDY = "Ask the coordinator why; nothing was given away."


class Commitments:
    """Commitments in a file, one line each, on disk before any answer that depends on them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[tuple[str, str], str] = {}
        whole = path.read_bytes().rpartition(b"\n")[0] if path.is_file() else b""
        for line in whole.splitlines():  # an incomplete last line was never sent
            kind, context, digest = json.loads(line)
            self.known[kind, context] = digest
        self.size = len(whole) + 1 if whole else 0

    def commit(self, kind: str, context: bytes, digest: bytes) -> bytes:
        place = kind, context.hex()
        if place not in self.known:
            self._add([*place, digest.hex()])
            self.known[place] = digest.hex()
        return bytes.fromhex(self.known[place])

    def _add(self, line: list[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        first = not self.path.exists()
        with self.path.open("wb" if first else "r+b") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self.size = file.tell()
        if first:
            sync(self.path.parent)  # the file's name must be on disk too


class SumParticipant:
    """This site in the sum of one round. Every message repeats what was sent before, so that a site can go on from
    any of them after a crash; a message that contradicts an earlier one is refused."""

    def __init__(self, member: Member, commitments: Commitments) -> None:
        self.member, self.commitments = member, commitments
        self.adverts: list[AdvertPart] | None = None
        self.sealed: SealedShares | None = None
        self.shares: dict[str, bytes] = {}

    def follow(self, proposed: SumTerms) -> None:
        if proposed.adverts is not None and proposed.adverts != self.adverts:
            self.shares = self.member.share(Advert.read(to_builtins(advert)) for advert in proposed.adverts)
            self.adverts = proposed.adverts
        if proposed.sealed is not None and proposed.sealed != self.sealed:
            self.member.receive(read_bytes(proposed.sealed))
            self.sealed = proposed.sealed

    def masked(self, vector: Whole, has_work: bool) -> Tree:
        """Ready to be sent. Zeros of a site without work are no work that another sum could give away."""
        if has_work:
            self.commitments.commit(WORK, self.member.terms.context, sha256(vector.data).digest())
        return {MASKED: torch.from_numpy(self.member.mask(vector).view("int64"))}

    def refuse_other_sums(self, past_sums: Commitments, survivors: list[str]) -> None:
        """The same work may be added up again in another run only with the same sites: two different sums would show
        the difference. `past_sums` outlives runs. Noise from a run's secret makes the work of every run different."""
        work = self.commitments.known.get((WORK, self.member.terms.context.hex()))
        digest = sha256("\x1f".join(sorted(survivors)).encode()).digest()
        if work is not None and past_sums.commit("survivors", bytes.fromhex(work), digest) != digest:
            problem = "the same work was added up with other sites before, and two sums would show the difference"
            remedy = "Change the seed of the study, and let every site approve it anew."
            raise SecureSumError(self.member.name, problem, remedy)


def checked_terms(
    study: Study, site: str, sites: list[str], place: Place, summands: Summands, proposed: SumTerms
) -> Terms:
    """The coordinator's proposal, if it is what the approved study says; `sites` are those of the run."""
    roster, expected = proposed.roster, summands.expected
    needed = needed_answers(study, sites, summands)
    if strangers := sorted(set(roster) - set(expected)):
        names = plain_text(", ".join(strangers))
        problem = (
            f"asks for a sum with {names}, whose work is not in it: other groups were drawn, or others are at work"
        )
        raise DeployError("coordinator", problem, REMEDY)
    if site not in roster or len(roster) < needed:
        problem = f"asks for a sum of {len(roster)} sites, or without this one, where the study needs {needed}"
        raise DeployError("coordinator", problem, REMEDY)
    if set(proposed.models) != summands.keys:
        raise DeployError("coordinator", "does not say which models it sends", REMEDY)
    terms = terms_of(place, summands, roster, proposed.models)
    if proposed.threshold != terms.threshold:
        problem = f"asks for a sum of {proposed.threshold} sites, where the study needs {terms.threshold}"
        raise DeployError("coordinator", problem, REMEDY)
    return terms


def check_models(proposed: SumTerms, shared: Mapping[int, State]) -> None:
    """The models sent are those announced to all sites."""
    for n, state in shared.items():
        announced = proposed.models.get(str(n))
        if announced is not None and leaves_hash(tree.flatten(state)).hex() != announced:
            problem = "sends another model than it told all sites of"
            raise DeployError("coordinator", problem, REMEDY)


def check_survivors(study: Study, site: str, sites: list[str], summands: Summands, survivors: list[str]) -> None:
    """Checked before this site agrees to reveal the sum."""
    needed = needed_answers(study, sites, summands)
    if len(survivors) < needed:
        raise SecureSumError(site, f"{len(survivors)} sites remain, and the study needs {needed}", REMEDY)


def check_contributors(
    site: str, summands: Summands, adverts: Collection[AdvertPart], among: Collection[str], least: int
) -> None:
    """Whether enough of these sites contribute, by what each has signed, wherever this site contributes.

    `least` is this site's own `least_sites`.
    """
    adds = {advert.site: advert.adds for advert in adverts}
    problem = shortfall(summands, among, adds)
    if problem:
        raise SecureSumError(site, problem, REMEDY)
    for part in summands.parts:
        real = set(contributors(part.key, adds))
        if site in real and len(real & set(among)) < least:
            added = len(real & set(among))
            reason = f"{part.title} would add up {added} sites, fewer than the {least} that {site} demands"
            raise Refused(Refusal(reason))


def read_bytes(encoded: Mapping[str, str]) -> dict[str, bytes]:
    try:
        return {str(site): bytes.fromhex(content) for site, content in encoded.items()}
    except (AttributeError, TypeError, ValueError):
        raise DeployError("secure sum", "a message cannot be read", "Install the same version everywhere.") from None
