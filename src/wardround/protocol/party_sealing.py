"""What parties send each other through the coordinator, sealed so that it can carry them and not read them.

Each party makes a key for the run from its secret (X25519, RFC 7748) and its kit's key vouches for it. Each two parties
agree on a secret, and every message has a key of its own, derived from it with what the message is (HKDF, AES-256-GCM).
A message that is moved to another place, or to another run, cannot be opened.
"""

import os
from collections.abc import Mapping
from typing import Any

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.privacy.secure_sum.masks import derive, pack
from wardround.privacy.signatures import Signer, Verifier

with needs("deploy", "a study across hospitals"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DISTRUST = "Find out who changed the messages before the party takes part again. Nothing was given away."
NONCE = 12  # bytes, drawn anew: a message that had to be made twice is never sealed alike


class Channel:
    """One party's end in one run."""

    def __init__(self, name: str, run: str, secret: bytes, signer: Signer, peers: Mapping[str, Verifier]) -> None:
        self.name, self.run, self._signer, self._peers = name, run, signer, peers
        self._private = X25519PrivateKey.from_private_bytes(derive(secret, b"channel", run.encode(), name.encode()))
        self._shared: dict[str, bytes] = {}

    def voucher(self) -> dict[str, str]:
        """Its public key, which the kit's key has signed, as plain data."""
        key = self._private.public_key().public_bytes_raw()
        return {"key": key.hex(), "signature": self._signer.sign(_vouched(self.run, self.name, key)).hex()}

    def meet(self, vouchers: Mapping[str, Mapping[str, Any]]) -> None:
        """The keys of the other parties. Refused where a kit's key does not vouch for one."""
        for party, voucher in vouchers.items():
            if party == self.name:
                continue
            key = vouched_key(self.run, party, voucher, self._peers)
            try:
                shared = b"" if key is None else self._private.exchange(key)
            except ValueError:  # one of the few keys with which every agreement is the same
                shared = b""
            if not shared:
                raise DeployError(self.name, f"the key in the name of {party} is not vouched for by its kit", DISTRUST)
            self._shared[party] = shared

    def seal(self, receiver: str, what: str, content: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        route = self._route(self.name, receiver, what)
        return nonce + AESGCM(self._key(receiver, route)).encrypt(nonce, content, route)

    def open(self, sender: str, what: str, sealed: bytes) -> bytes:
        route = self._route(sender, self.name, what)
        try:
            return AESGCM(self._key(sender, route)).decrypt(sealed[:NONCE], sealed[NONCE:], route)
        except (InvalidTag, ValueError):
            problem = f"what {sender} sealed for this party cannot be opened, or belongs to another place"
            raise DeployError(self.name, problem, DISTRUST) from None

    def _key(self, other: str, route: bytes) -> bytes:
        if other not in self._shared:
            raise DeployError(self.name, f"has agreed on no key with {other}", "Start the coordinator again.")
        return derive(self._shared[other], b"sealed between parties", route)

    def _route(self, sender: str, receiver: str, what: str) -> bytes:
        return pack(*(part.encode() for part in (self.run, sender, receiver, what)))


def vouched_key(
    run: str, party: str, voucher: Mapping[str, Any], peers: Mapping[str, Verifier]
) -> X25519PublicKey | None:
    """A party's key of the run; None where the key of its kit has not signed it."""
    try:
        key, signature = bytes.fromhex(voucher["key"]), bytes.fromhex(voucher["signature"])
        known = peers[party].verify(signature, _vouched(run, party, key))
        return X25519PublicKey.from_public_bytes(key) if known else None
    except (KeyError, TypeError, ValueError):
        return None


def _vouched(run: str, party: str, key: bytes) -> bytes:
    return pack(b"wardround key of a party", run.encode(), party.encode(), key)
