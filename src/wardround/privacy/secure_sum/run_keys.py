"""Keys with which sites sign in the secure sums of one run.

Every site checks the signatures of all others, twice in each round. With the keys of the kits (P-384) that can take
longer than the masks. So a site makes a key for the run from its secret (Ed25519, checked in an eighth of the time),
the kit's key vouches for it once, and every site checks that once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from wardround.core.errors import SecureSumError
from wardround.core.extras import needs
from wardround.privacy.secure_sum.masks import derive, pack
from wardround.privacy.secure_sum.terms import DISTRUST, Signer, Verifier

with needs("privacy", "a secure sum"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


@dataclass(frozen=True)
class RunKey:
    private: Ed25519PrivateKey

    def sign(self, content: bytes) -> bytes:
        return self.private.sign(content)

    @property
    def public(self) -> "PublicRunKey":
        return PublicRunKey(self.private.public_key().public_bytes_raw())


@dataclass(frozen=True)
class PublicRunKey:
    content: bytes

    def verify(self, signature: bytes, content: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.content).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Voucher:
    """A site's key for a run, under the signature of its kit's key."""

    site: str
    key: bytes
    signature: bytes


def run_key(secret: bytes, run: bytes, site: str) -> RunKey:
    """Always the same, so that a site that restarts has it again."""
    return RunKey(Ed25519PrivateKey.from_private_bytes(derive(secret, b"run key", run, site.encode())))


def vouch(kit: Signer, key: RunKey, run: bytes, site: str) -> Voucher:
    return Voucher(site, key.public.content, kit.sign(_vouched(run, site, key.public.content)))


def check_vouchers(
    where: str, run: bytes, vouchers: list[Voucher], kits: Mapping[str, Verifier]
) -> dict[str, Verifier]:
    """The sites' keys for the run, by site; an error where a kit's key does not vouch for one."""
    for voucher in vouchers:
        kit = kits.get(voucher.site)
        if kit is None or not kit.verify(voucher.signature, _vouched(run, voucher.site, voucher.key)):
            problem = f"the key in the name of {voucher.site} is not vouched for by its kit"
            raise SecureSumError(where, problem, DISTRUST)
    if len({voucher.site for voucher in vouchers}) < len(vouchers):
        raise SecureSumError(where, "a site has two keys in one run", DISTRUST)
    return {voucher.site: PublicRunKey(voucher.key) for voucher in vouchers}


def _vouched(run: bytes, site: str, key: bytes) -> bytes:
    return pack(b"wardround run key", run, site.encode(), key)
