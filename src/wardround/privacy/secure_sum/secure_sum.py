"""A sum of the sites' updates of which the coordinator sees nothing but the sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (IACR ePrint
2017/281), with the consistency check against a coordinator that lies. Each two sites agree on a mask that one of them
adds and the other takes away, and each site adds a mask of its own. The secrets behind the masks are shared out, so
that `threshold` sites together can undo the masks of those that are gone. docs/explanation/secure-aggregation.md has
the threat model.

    advertise   each site signs two public keys and a hash of the seed of its own mask
    share       it splits its seed and its mask key, and seals a share for each other site that advertised
    mask        it opens what was sealed for it, and adds to its vector the masks with all that shared
    confirm     it signs who has sent a masked vector: the survivors
    reveal      having seen `threshold` such signatures, it gives its shares of the survivors' seeds and of the mask
                keys of those that shared and are gone; never both for one site

Three things go beyond the paper. The signature at `confirm` covers the keys and the senders of shares too, so that
sites that reveal agree on all that was before. Secrets put together from shares are compared with what their owners
signed. And a vector carries the sum of its elements, so that masks that do not cancel cannot pass for a result.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol

import numpy as np

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.privacy.secure_sum import shamir
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.masks import add_masks, derive, keystream, pack
from wardround.privacy.signatures import Signer, Verifier
from wardround.privacy.validation import LEAST_SITES

with needs("privacy", "a secure sum"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.poly1305 import Poly1305

DISTRUST = "Find out who changed the messages before the site takes part again. Nothing was disclosed."
NONCE = bytes(12)  # each key seals one message only
OTHER = {
    "roster": "another roster, threshold or question",
    "adverts": "other keys",
    "shares": "other shares",
    "vector": "another vector",
    "survivors": "other survivors",
}


class Commitments(Protocol):
    """What a site is bound to. It must outlive the site's process, or a site that restarts can be asked twice."""

    def commit(self, kind: str, context: bytes, digest: bytes) -> bytes:
        """Store the digest, unless there is one for this kind and context. Returns the stored one."""


class InMemory:
    """Commitments that last as long as the process: for simulations and tests."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, bytes], bytes] = {}

    def commit(self, kind: str, context: bytes, digest: bytes) -> bytes:
        return self._digests.setdefault((kind, context), digest)


def default_threshold(sites: int) -> int:
    """Two thirds and one more: safe from a lying coordinator with less than a third of the sites on its side."""
    return 2 * sites // 3 + 1


@dataclass(frozen=True)
class Terms:
    """What all must agree on before a sum: which round of which run it is, who takes part, how many must remain.

    `question` is a hash of the models that the sites received. Sites with different models then have no common sum;
    else all but one could receive a model that makes their updates zero (Pasquini et al., CCS 2022,
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
    """A site's public keys for one sum, signed."""

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
        fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in vars(self).items()}
        return {**fields, "adds": list(self.adds)}

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
    unique: dict[str, Advert] = {}
    for advert in adverts:
        if unique.setdefault(advert.site, advert) is not advert:
            raise SecureSumError(where, f"there are two adverts of {advert.site}", DISTRUST)
    return unique


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


def pair_key(terms: Terms, private: X25519PrivateKey, own: Advert, other: Advert) -> bytes:
    """Of the mask between two sites, from the private mask key of `own`. Both sites get the same."""
    first, second = sorted((own, other), key=lambda advert: advert.site)
    secret = exchange(own.site, private, other.mask_key)
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


class Member:
    """One site in one sum.

    All that is random comes from `secret` and the terms. So a site that died makes a new Member with the same secret
    and commitments, repeats `share` and `receive` with what it was sent, and goes on with the same bytes as before.
    (A signature may differ, if the signer draws at random.)
    """

    def __init__(
        self,
        name: str,
        terms: Terms,
        secret: bytes,
        signer: Signer,
        verifiers: Mapping[str, Verifier],
        commitments: Commitments,
        adds: Iterable[str] = (),
    ) -> None:
        """`adds` names the parts of the vector in which this site adds something; all others learn it."""
        if name not in terms.roster or not verifiers.keys() >= set(terms.roster) or len(secret) < 32:
            problem = "is not in the roster, or lacks the public key of another site or a secret of 32 bytes"
            raise SecureSumError(name, problem, "Make sure that all sites have kits of the same study.")
        self.name, self.terms = name, terms
        self._signer, self._verifiers, self._commitments = signer, verifiers, commitments
        self._commit("roster", terms.digest)
        own = derive(secret, b"member", terms.digest, name.encode())
        self._seal_key = X25519PrivateKey.from_private_bytes(derive(own, b"seal key"))
        self._mask_key = X25519PrivateKey.from_private_bytes(derive(own, b"mask key"))
        self._seed, self._draws, self._fingerprint = (derive(own, use) for use in (b"seed", b"draws", b"fingerprint"))
        seal, mask = (key.public_key().public_bytes_raw() for key in (self._seal_key, self._mask_key))
        self._advert = Advert(name, seal, mask, seed_hash(terms, name, self._seed), tuple(adds))
        self._adverts: dict[str, Advert] = {}
        self._sealing: dict[str, bytes] = {}  # secrets that it has in common with each other site
        self._shares: dict[str, tuple[int, int]] = {}  # of a site's seed and of its mask key, by site; own ones too

    def advertise(self) -> Advert:
        return replace(self._advert, signature=self._signer.sign(self._advert.signed(self.terms)))

    def share(self, adverts: Iterable[Advert]) -> dict[str, bytes]:
        """Shares of this site's secrets, sealed for each of the others that advertised."""
        known = by_site(self.name, adverts)
        if self.name not in known or replace(known[self.name], signature=b"") != self._advert:
            raise self._refusal("it is shown other keys than its own under its name")
        for advert in known.values():
            if advert.site != self.name:
                check_advert(self.name, self.terms, advert, self._verifiers)
        if len({key for advert in known.values() for key in (advert.seal_key, advert.mask_key)}) < 2 * len(known):
            raise self._refusal("two of the keys that it is shown are the same")
        self._enough(known, "advertised")
        self._commit("adverts", digest(*(known[site].signed(self.terms) for site in sorted(known))))
        others = [site for site in known if site != self.name]
        self._sealing = {site: exchange(self.name, self._seal_key, known[site].seal_key) for site in others}
        shares = self._split()
        self._adverts = known
        self._shares.setdefault(self.name, shares[self.name])  # those of others stay, if this is asked again
        return {site: self._seal(site, shares[site]) for site in others}

    def receive(self, sealed: Mapping[str, bytes]) -> None:
        """What others sealed for this site. Its vector will be masked against those that sent it."""
        if self.name in sealed or not sealed.keys() <= self._adverts.keys():
            raise self._refusal("shares come from sites whose keys it was not shown")
        self._enough([self.name, *sealed], "shared")
        shares = {site: self._open(site, content) for site, content in sealed.items()}
        self._commit("shares", digest(*(part for site in sorted(sealed) for part in (site.encode(), sealed[site]))))
        self._shares = {self.name: self._shares[self.name], **shares}

    def mask(self, vector: Whole) -> Whole:
        """The vector and the sum of its elements, under all masks: without the keys, nothing but noise.

        Another vector in the same round is refused, because the same masks on both would show their difference.
        """
        if vector.dtype != np.uint64 or vector.ndim != 1:
            raise ValueError("a vector of unsigned 64-bit numbers is masked, as Encoding.encode makes it")
        self._enough(self._shares, "shared")
        fingerprint = Poly1305(self._fingerprint)  # faster than a hash, and as good while its key is secret
        fingerprint.update(np.ascontiguousarray(vector).view(np.uint8).data)
        self._commit("vector", digest(fingerprint.finalize(), self._fingerprint))
        masked = np.empty(vector.size + 1, np.uint64)
        masked[:-1] = vector
        masked[-1] = vector.sum(dtype=np.uint64)
        others = [self._adverts[site] for site in self._shares if site != self.name]
        pairs = {other.site: pair_key(self.terms, self._mask_key, self._advert, other) for other in others}
        plus = [key for site, key in pairs.items() if self.name < site]
        minus = [key for site, key in pairs.items() if self.name > site]
        return add_masks(masked, [own_key(self.terms, self._seed), *plus], minus)

    def confirm(self, survivors: Iterable[str]) -> bytes:
        """A signature that these are the sites whose vectors are in the sum. One list in a round, and no other."""
        return self._signer.sign(self._agreed(list(survivors)))

    def reveal(self, survivors: Iterable[str], confirmations: Mapping[str, bytes]) -> Reveal:
        """One share for each site that shared, once enough survivors have signed that they were told the same."""
        remaining = list(survivors)
        content = self._agreed(remaining)
        if not confirmations.keys() <= set(remaining):
            raise self._refusal("signatures come from sites that are not among the survivors")
        self._enough(confirmations, "confirmed")
        others = sorted(confirmations.keys() - {self.name})
        for site in others[: self.terms.threshold - (self.name in confirmations)]:  # more of them would add nothing
            if not self._verifiers[site].verify(confirmations[site], content):
                raise self._refusal(f"{site} has not signed what this site was told")
        seeds = {site: seed for site, (seed, _) in self._shares.items() if site in remaining}
        return Reveal(self.name, seeds, {site: key for site, (_, key) in self._shares.items() if site not in remaining})

    def _agreed(self, survivors: list[str]) -> bytes:
        """What this site signs, having bound itself to it."""
        if len(set(survivors)) < len(survivors) or not {self.name} <= set(survivors) <= self._shares.keys():
            raise self._refusal("the survivors are not among those that shared, or leave it out itself")
        self._enough(survivors, "remain")
        content = agreed(self.terms, self._adverts, self._shares, survivors)
        self._commit("survivors", digest(content))
        return content

    def _split(self) -> dict[str, tuple[int, int]]:
        draws = shamir.coefficients(keystream(self._draws, 2 * (self.terms.threshold - 1) * shamir.DRAW_BYTES))
        secrets = (self._seed, self._mask_key.private_bytes_raw())
        seeds, keys = (
            shamir.split(int.from_bytes(secret, "big"), draws[first::2], len(self.terms.roster))
            for first, secret in enumerate(secrets)
        )
        return dict(zip(self.terms.roster, zip(seeds, keys, strict=True), strict=True))

    def _seal(self, receiver: str, shares: tuple[int, int]) -> bytes:
        content = b"".join(share.to_bytes(shamir.SHARE_BYTES, "big") for share in shares)
        route = pack(self.terms.digest, self.name.encode(), receiver.encode())
        return AESGCM(derive(self._sealing[receiver], b"seal", route)).encrypt(NONCE, content, route)

    def _open(self, sender: str, sealed: bytes) -> tuple[int, int]:
        route = pack(self.terms.digest, sender.encode(), self.name.encode())
        try:
            content = AESGCM(derive(self._sealing[sender], b"seal", route)).decrypt(NONCE, sealed, route)
        except InvalidTag:
            raise self._refusal(f"the shares from {sender} were changed, or are not for this sum") from None
        seed, key = content[: shamir.SHARE_BYTES], content[shamir.SHARE_BYTES :]
        return int.from_bytes(seed, "big"), int.from_bytes(key, "big")

    def _commit(self, kind: str, content_hash: bytes) -> None:
        if self._commitments.commit(kind, self.terms.context, content_hash) != content_hash:
            raise self._refusal(f"it is asked a second time in this round, with {OTHER[kind]}")

    def _enough(self, sites: Collection[str], did: str) -> None:
        if len(sites) < self.terms.threshold:
            raise too_few(self.name, self.terms, len(sites), did)

    def _refusal(self, problem: str) -> SecureSumError:
        return SecureSumError(self.name, problem, DISTRUST)


class Collector:
    """The coordinator in one sum. The caller makes sure that a message comes from the site that it names.

    Each stage ends when the caller asks for what comes out of it; with too few sites that is an error, and the caller
    may wait for more or give the round up. A message that is refused changes nothing. Masked vectors go into one
    running sum, so that memory does not grow with the number of sites.
    """

    def __init__(self, terms: Terms, verifiers: Mapping[str, Verifier]) -> None:
        self.terms, self._verifiers = terms, verifiers
        self._stage = "advertise"
        self._adverts: dict[str, Advert] = {}
        self._sealed: dict[str, Mapping[str, bytes]] = {}
        self._survivors: list[str] = []
        self._sum: Whole = np.empty(0, np.uint64)
        self._agreed = b""
        self._confirmations: dict[str, bytes] = {}
        self._reveals: dict[str, Reveal] = {}

    def take_advert(self, advert: Advert) -> None:
        self._expect("advertise", advert.site, self.terms.roster, self._adverts)
        check_advert("coordinator", self.terms, advert, self._verifiers)
        self._adverts[advert.site] = advert

    def adverts(self) -> list[Advert]:
        self._close("advertise", self._adverts, "share")
        return [self._adverts[site] for site in sorted(self._adverts)]

    def take_shares(self, site: str, sealed: Mapping[str, bytes]) -> None:
        self._expect("share", site, self._adverts, self._sealed)
        if sealed.keys() != self._adverts.keys() - {site}:
            raise self._refusal(site, "did not share with exactly those that advertised")
        self._sealed[site] = dict(sealed)

    def sealed(self) -> dict[str, dict[str, bytes]]:
        """For every site that shared: what the others sealed for it, by sender."""
        self._close("share", self._sealed, "mask")
        return {
            receiver: {site: sealed[receiver] for site, sealed in self._sealed.items() if site != receiver}
            for receiver in self._sealed
        }

    def take_masked(self, site: str, masked: Whole) -> None:
        self._expect("mask", site, self._sealed, self._survivors)
        if masked.dtype != np.uint64 or masked.ndim != 1 or (self._survivors and masked.size != self._sum.size):
            raise self._refusal(site, "sent a vector of another type or length")
        if self._survivors:
            self._sum += masked
        else:
            self._sum = masked.copy()
        self._survivors.append(site)

    def survivors(self) -> list[str]:
        self._close("mask", self._survivors, "confirm")
        self._agreed = agreed(self.terms, self._adverts, self._sealed, self._survivors)
        return sorted(self._survivors)

    def take_confirmation(self, site: str, signature: bytes) -> None:
        self._expect("confirm", site, self._survivors, self._confirmations)
        if not self._verifiers[site].verify(signature, self._agreed):
            raise self._refusal(site, "did not sign what it was told")
        self._confirmations[site] = signature

    def confirmations(self) -> dict[str, bytes]:
        """For every survivor, also one whose own signature is not among them."""
        self._close("confirm", self._confirmations, "reveal")
        return dict(self._confirmations)

    def take_reveal(self, reveal: Reveal) -> None:
        self._expect("reveal", reveal.site, self._survivors, self._reveals)
        if (
            reveal.seeds.keys() != set(self._survivors)
            or reveal.keys.keys() != self._sealed.keys() - reveal.seeds.keys()
        ):
            raise self._refusal(reveal.site, "did not reveal what it was asked for")
        self._reveals[reveal.site] = reveal

    def total(self) -> Whole:
        """The sum of the survivors' vectors, modulo 2**64."""
        if self._stage != "done":
            self._close("reveal", self._reveals, "reveal")
            add_masks(self._sum, *self._masks_left())
            self._stage = "done"
        total = self._sum[:-1]
        if total.sum(dtype=np.uint64) != self._sum[-1]:
            problem = "the masks do not cancel: a masked vector was changed, or is not of this round"
            raise SecureSumError("coordinator", problem, "The round is lost. See that messages are signed, and go on.")
        return total

    def _masks_left(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of the masks that are to be added to the sum, and to be taken away, to undo what is left in it."""
        plus: list[bytes] = []
        minus: list[bytes] = []
        for site in self._survivors:
            seed = self._secret(site, {reveal.site: reveal.seeds[site] for reveal in self._reveals.values()})
            if seed_hash(self.terms, site, seed) != self._adverts[site].seed_hash:
                raise self._wrong_shares(site)
            minus.append(own_key(self.terms, seed))
        for gone in self._sealed.keys() - set(self._survivors):
            secret = self._secret(gone, {reveal.site: reveal.keys[gone] for reveal in self._reveals.values()})
            key = X25519PrivateKey.from_private_bytes(secret)
            if key.public_key().public_bytes_raw() != self._adverts[gone].mask_key:
                raise self._wrong_shares(gone)
            for site in self._survivors:
                pair = pair_key(self.terms, key, self._adverts[gone], self._adverts[site])
                (minus if site < gone else plus).append(pair)  # the survivor added it if its name comes first
        return plus, minus

    def _secret(self, site: str, shares: Mapping[str, int]) -> bytes:
        holders = sorted(shares)[: self.terms.threshold]
        secret = shamir.combine({self.terms.roster.index(holder) + 1: shares[holder] for holder in holders})
        if secret >> 8 * shamir.SECRET_BYTES:
            raise self._wrong_shares(site)
        return secret.to_bytes(shamir.SECRET_BYTES, "big")

    def _expect(self, stage: str, site: str, among: Collection[str], already: Collection[str]) -> None:
        if self._stage != stage or site not in among or site in already:
            raise self._refusal(site, f"sent a message of the stage {stage!r} twice, too late, or uncalled for")

    def _close(self, stage: str, arrived: Collection[str], following: str) -> None:
        if self._stage == stage:
            if len(arrived) < self.terms.threshold:
                raise too_few("coordinator", self.terms, len(arrived), f"answered at the stage {stage!r}")
            self._stage = following

    def _refusal(self, site: str, problem: str) -> SecureSumError:
        return SecureSumError(site, problem, "It counts as gone in this round. Look into its log.")

    def _wrong_shares(self, site: str) -> SecureSumError:
        problem = f"the shares of {site}'s secret do not fit what it signed"
        return SecureSumError(
            "coordinator", problem, "The round is lost: a site broke the protocol. Look into their logs."
        )
