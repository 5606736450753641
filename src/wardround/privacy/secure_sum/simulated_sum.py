"""The secure sum between sites that are simulated in one process: the same protocol, message by message."""

import os
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.secure_sum import Collector, InMemory, Member, Terms, default_threshold

with needs("privacy", "a secure sum"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class SimulatedKey:
    def __init__(self) -> None:
        private = Ed25519PrivateKey.generate()
        self.sign, self._public = private.sign, private.public_key()
        # What one simulated site has checked, the others need not: a signature is verified once, not once at each.
        self.verify = lru_cache(maxsize=8)(self._verify)

    def _verify(self, signature: bytes, content: bytes) -> bool:
        try:
            self._public.verify(signature, content)
        except InvalidSignature:
            return False
        return True


@cache  # a site keeps its key, as in a deployment
def simulated_key(site: str) -> SimulatedKey:
    return SimulatedKey()


def sum_securely(
    vectors: Iterable[tuple[str, Whole]], roster: Sequence[str], context: bytes, threshold: int | None = None
) -> Whole:
    """The sum of the vectors, modulo 2**64. They are taken one at a time, and none is kept.

    A site of the roster whose vector does not come is gone after it has shared its secrets. With fewer than `threshold`
    vectors there is no sum.
    """
    terms = Terms(context, tuple(roster), default_threshold(len(roster)) if threshold is None else threshold)
    keys = {site: simulated_key(site) for site in terms.roster}
    members = {site: Member(site, terms, os.urandom(32), keys[site], keys, InMemory()) for site in terms.roster}
    collector = Collector(terms, keys)
    for member in members.values():
        collector.take_advert(member.advertise())
    adverts = collector.adverts()
    for site, member in members.items():
        collector.take_shares(site, member.share(adverts))
    for site, sealed in collector.sealed().items():
        members[site].receive(sealed)
    for site, vector in vectors:
        if site not in members:
            raise SecureSumError(site, "is not in the roster of this round", "Name every site that may answer in it.")
        collector.take_masked(site, members[site].mask(vector))
    survivors = collector.survivors()
    for site in survivors:
        collector.take_confirmation(site, members[site].confirm(survivors))
    confirmations = collector.confirmations()
    for site in confirmations:
        collector.take_reveal(members[site].reveal(survivors, confirmations))
    return collector.total()
