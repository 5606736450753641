"""What the parts of a secure sum agree on, and what they send each other. secure_sum.py has the protocol."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.privacy.secure_sum.masks import derive, pack
from wardround.privacy.validation import LEAST_SITES as LEAST_SITES

with needs("privacy", "a secure sum"):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

DISTRUST = "Find out who changed the messages before the site takes part again. Nothing was given away."


class Signer(Protocol):
    def sign(self, content: bytes) -> bytes: ...


class Verifier(Protocol):
    def verify(self, signature: bytes, content: bytes) -> bool: ...


class Commitments(Protocol):
    """What a site has said once. It must outlive the site's process, or a site that restarts can be asked twice."""

    def commit(self, kind: str, context: bytes, digest: bytes) -> bytes:
        """Keep the digest, unless one is kept for this kind and context. Returns the one that is kept."""


class InMemory:
    """Commitments that last as long as the process: for simulations and tests."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], bytes] = {}

    def commit(self, kind: str, context: bytes, digest: bytes) -> bytes:
        return self._kept.setdefault((kind, context), digest)


def default_threshold(sites: int) -> int:
    """Two thirds and one more: safe from a lying coordinator with less than a third of the sites on its side."""
    return 2 * sites // 3 + 1


@dataclass(frozen=True)
class Terms:
    """What all must agree on before a sum: which round of which run it is, who takes part, how many must remain.

    `question` is a hash of what the sites were sent to work on. Sites that were sent different models then have no
    common sum; else all but one could be sent a model that makes their updates zero (Pasquini et al., CCS 2022,
    arXiv:2111.07380).
    """

    context: bytes
    roster: tuple[str, ...]
    threshold: int
    question: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "roster", tuple(sorted(self.roster)))  # one order for all: it numbers the shares
        sites = len(self.roster)
        if len(set(self.roster)) < sites:
            raise SecureSumError("secure sum", "a site is twice in the roster", "Name each site once.")
        if sites < LEAST_SITES:
            problem = f"in a sum of {sites} sites nothing is hidden from the sites themselves"
            raise SecureSumError("secure sum", problem, f"Let at least {LEAST_SITES} sites take part in each round.")
        least = max(LEAST_SITES, sites // 2 + 1)
        if not least <= self.threshold <= sites:
            problem = f"a threshold of {self.threshold} of {sites} sites is not safe"
            remedy = f"Set it from {least} to {sites}, best to {default_threshold(sites)} or more."
            raise SecureSumError("secure sum", problem, remedy)

    @cached_property
    def digest(self) -> bytes:
        """In every key and under every signature, so that nothing of one sum is of use in another."""
        names = (name.encode() for name in self.roster)
        return digest(b"wardround secure sum 1", self.context, self.question, str(self.threshold).encode(), *names)


@dataclass(frozen=True)
class Advert:
    """A site's first word, under the signature that the others know it by."""

    site: str
    seal_key: bytes  # with which others agree on a key that seals shares
    mask_key: bytes  # with which others agree on a mask
    seed_hash: bytes  # of the seed of its own mask; a hash does not tell a secret of 256 bits
    # parts of the vector in which this site adds something: zeros hide nobody, so that others must know who adds none
    adds: tuple[str, ...] = ()
    signature: bytes = b""

    def signed(self, terms: Terms) -> bytes:
        adds = pack(*(part.encode() for part in self.adds))
        return pack(b"advert", terms.digest, self.site.encode(), self.seal_key, self.mask_key, self.seed_hash, adds)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        found = {name: value.hex() if isinstance(value, bytes) else value for name, value in vars(self).items()}
        return {**found, "adds": list(self.adds)}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Advert":
        try:
            seal, mask, seed, signature = (
                bytes.fromhex(plain[name]) for name in ("seal_key", "mask_key", "seed_hash", "signature")
            )
            return cls(str(plain["site"]), seal, mask, seed, tuple(map(str, plain["adds"])), signature)
        except (KeyError, TypeError, ValueError):
            raise _unreadable("an advert") from None


@dataclass(frozen=True)
class Reveal:
    """A site's shares of what the coordinator needs to undo the masks."""

    site: str
    seeds: Mapping[str, int] = field(repr=False)  # of those whose vectors are in the sum
    keys: Mapping[str, int] = field(repr=False)  # mask keys of those that shared, and whose vectors never came

    def plain(self) -> dict[str, str | dict[str, str]]:
        """For JSON, whose numbers are too short for shares."""
        seeds, keys = ({site: f"{share:x}" for site, share in kind.items()} for kind in (self.seeds, self.keys))
        return {"site": self.site, "seeds": seeds, "keys": keys}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Reveal":
        try:
            kinds = (plain[kind].items() for kind in ("seeds", "keys"))
            seeds, keys = ({str(site): int(share, 16) for site, share in kind} for kind in kinds)
            return cls(str(plain["site"]), seeds, keys)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise _unreadable("a reveal") from None


def by_site(where: str, adverts: Iterable[Advert]) -> dict[str, Advert]:
    found: dict[str, Advert] = {}
    for advert in adverts:
        if found.setdefault(advert.site, advert) is not advert:
            raise SecureSumError(where, f"there are two adverts of {advert.site}", DISTRUST)
    return found


def check_advert(where: str, terms: Terms, advert: Advert, verifiers: Mapping[str, Verifier]) -> None:
    known = advert.site in terms.roster
    if not known or not verifiers[advert.site].verify(advert.signature, advert.signed(terms)):
        problem = f"the keys in the name of {advert.site} are not signed by it for this sum"
        raise SecureSumError(where, problem, DISTRUST)


def agreed(terms: Terms, adverts: Mapping[str, Advert], sharers: Collection[str], survivors: Collection[str]) -> bytes:
    """What survivors sign: that all was the same for each of them, from the keys to who remains."""
    keys = digest(*(adverts[site].signed(terms) for site in sorted(adverts)))
    shared, remain = (digest(*(site.encode() for site in sorted(sites))) for sites in (sharers, survivors))
    return pack(b"confirm", terms.digest, keys, shared, remain)


def own_key(terms: Terms, seed: bytes) -> bytes:
    """Of the mask that a site alone adds."""
    return derive(seed, b"own mask", terms.digest)


def pair_key(terms: Terms, private: X25519PrivateKey, one: Advert, other: Advert) -> bytes:
    """Of the mask between two sites, from the first one's private mask key. The same from either side."""
    first, second = sorted((one, other), key=lambda advert: advert.site)
    secret = exchange(one.site, private, other.mask_key)
    return derive(secret, b"pair mask", terms.digest, first.mask_key, second.mask_key)


def exchange(where: str, private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # of another length, or one of the few keys with which every agreement is the same
        raise SecureSumError(where, "a public key of another site is not valid", DISTRUST) from None


def seed_hash(terms: Terms, site: str, seed: bytes) -> bytes:
    return digest(b"seed", terms.digest, site.encode(), seed)


def digest(*parts: bytes) -> bytes:
    return sha256(pack(*parts)).digest()


def too_few(where: str, terms: Terms, sites: int, did: str) -> SecureSumError:
    problem = f"{sites} of {len(terms.roster)} sites {did}, but a sum takes {terms.threshold}"
    return SecureSumError(
        where, problem, "The round is lost, and nothing of it is shown. Go on when more sites are there."
    )


def _unreadable(what: str) -> SecureSumError:
    return SecureSumError("secure sum", f"{what} cannot be read", "Install the same version of wardround everywhere.")
