"""Who wrote a message: ECDSA over P-384, with the keys of the kits."""

from dataclasses import dataclass
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.core.extras import needs

with needs("deploy", "a study across hospitals"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

SIGNATURE = ec.ECDSA(SHA256())


@dataclass(frozen=True)
class Key:
    private: ec.EllipticCurvePrivateKey

    def sign(self, content: bytes) -> bytes:
        return self.private.sign(content, SIGNATURE)


@dataclass(frozen=True)
class PublicKey:
    public: ec.EllipticCurvePublicKey

    def verify(self, signature: bytes, content: bytes) -> bool:
        try:
            self.public.verify(signature, content, SIGNATURE)
        except InvalidSignature:
            return False
        return True


def read_key(path: Path) -> Key:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(path, error) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _unusable(path, TypeError())
    return Key(key)


def read_public_key(content: bytes, where: Path | str) -> PublicKey:
    try:
        key = load_pem_public_key(content)
    except ValueError as error:
        raise _unusable(where, error) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _unusable(where, TypeError())
    return PublicKey(key)


def _unusable(where: Path | str, error: Exception) -> DeployError:
    return DeployError(str(where), f"is not a usable key ({type(error).__name__})", "Use the kit as it was made.")
