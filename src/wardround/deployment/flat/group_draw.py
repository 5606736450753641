"""How hospitals draw the groups of their secure sums together, so that nobody chooses who is with whom.

Each hospital commits to a random number by a signed hash. When it has seen the commitments of all, it tells its number.
The groups follow from all the numbers, so that one honest hospital is enough to make them random; whoever learns the
others' numbers first can only refuse to go on. A hospital draws once for a study with these hospitals, whatever the
run: groups that are drawn anew would show single updates by what sums differ in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from wardround.core.errors import DeployError
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import Commitment, Draw
from wardround.protocol.text import plain_text
from wardround.study.schema import Study

REMEDY = "Ask the coordinator why; nothing was given away."
NUMBER_BYTES = 32


def draws_groups(study: Study) -> bool:
    return any(arm.preaggregation.groups is not None and not arm.by_mean for arm in study.trained_arms)


@dataclass(frozen=True)
class Drawing:
    """The one draw of a study with these sites."""

    study: str  # hash
    sites: tuple[str, ...]

    @property
    def context(self) -> bytes:
        return _digest(b"wardround groups 1", self.study, *sorted(self.sites))

    def hash_of(self, site: str, number: str) -> str:
        return _digest(b"commitment", self.context.hex(), site, number).hex()

    def commit(self, site: str, number: str, signer: Signer) -> Commitment:
        commitment = self.hash_of(site, number)
        return Commitment(commitment=commitment, signature=signer.sign(self._signed(site, commitment)).hex())

    def check(self, commitments: Mapping[str, Commitment], keys: Mapping[str, Verifier]) -> None:
        """Whether these are the sites' own commitments, of all of them."""
        if set(commitments) != set(self.sites):
            raise DeployError("coordinator", "does not have the commitments of all hospitals, and of no other", REMEDY)
        for site, commitment in commitments.items():
            self.check_one(site, commitment, keys)

    def check_one(self, site: str, commitment: Commitment, keys: Mapping[str, Verifier]) -> None:
        signature, content = bytes.fromhex(_even(commitment.signature)), self._signed(site, commitment.commitment)
        if site not in keys or not keys[site].verify(signature, content):
            raise DeployError("coordinator", f"has a commitment that {plain_text(site)} has not signed", REMEDY)

    def digest(self, commitments: Mapping[str, Commitment]) -> bytes:
        """Of all commitments; signatures may differ from time to time."""
        parts = (part for site in sorted(commitments) for part in (site, commitments[site].commitment))
        return _digest(b"commitments", self.context.hex(), *parts)

    def seed(self, draw: Draw) -> int:
        """Of the groups. DeployError where a number is not the one that its site has committed to."""
        if not set(draw.numbers) == set(draw.commitments) == set(self.sites):
            raise DeployError("coordinator", "does not have the numbers of all hospitals, and of no other", REMEDY)
        for site, number in draw.numbers.items():
            if self.hash_of(site, number) != draw.commitments[site].commitment:
                raise DeployError("coordinator", f"has a number to which {plain_text(site)} has not committed", REMEDY)
        parts = (part for site in sorted(draw.numbers) for part in (site, draw.numbers[site]))
        return int.from_bytes(_digest(b"seed", self.context.hex(), *parts))

    def _signed(self, site: str, commitment: str) -> bytes:
        return _digest(b"signed commitment", self.context.hex(), site, commitment)


def drawn_seed(study: Study, sites: Sequence[str], draw: Draw | None) -> int | None:
    """None where a study has no groups."""
    if not draws_groups(study):
        return None
    if draw is None:
        raise DeployError("coordinator", "does not say how the groups of secure sums were drawn", REMEDY)
    return Drawing(study.hash, tuple(sites)).seed(draw)


def _digest(purpose: bytes, *parts: str) -> bytes:
    whole = sha256(purpose)
    for part in parts:
        encoded = part.encode()
        whole.update(len(encoded).to_bytes(8) + encoded)
    return whole.digest()


def _even(text: str) -> str:
    return text if len(text) % 2 == 0 else ""
