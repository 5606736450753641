"""Keys from secrets, and masks from keys."""

from collections.abc import Sequence

import numpy as np

from wardround.core.extras import needs
from wardround.privacy.secure_sum.fixed_point import Whole

with needs("privacy", "a secure sum or matched patients"):
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import GCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

BLOCK = 16
CHUNK = 1 << 17  # bytes at a time: sum and mask stay in the processor's cache while all masks are added
ZEROS = bytes(CHUNK)
ELEMENT = np.dtype("<u8")  # the same masks on every machine


def pack(*parts: bytes) -> bytes:
    """One byte string from several, such that no other parts give the same."""
    return b"".join(piece for part in parts for piece in (len(part).to_bytes(8, "big"), part))


def derive(secret: bytes, *purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose (HKDF-SHA256, RFC 5869). It tells nothing of the secret, or of other keys."""
    return HKDF(SHA256(), 32, None, pack(*purpose)).derive(secret)


def keystream(key: bytes, length: int) -> bytes:
    """Random bytes from a key that is used for nothing else."""
    return _stream(key).update(bytes(length))


def add_masks(vector: Whole, plus: Sequence[bytes], minus: Sequence[bytes]) -> Whole:
    """Adds the masks of some keys to the vector and takes away those of others, in place, modulo 2**64.

    A mask is the key's AES-256-CTR keystream from counter 2 on, 8 bytes for each element.
    """
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    buffer = bytearray(CHUNK + BLOCK - 1)  # the cipher asks for this much room
    mask = np.frombuffer(buffer, ELEMENT, CHUNK // ELEMENT.itemsize)
    zeros = memoryview(ZEROS)
    for start in range(0, vector.size, mask.size):
        piece = vector[start : start + mask.size]
        here, part = zeros[: piece.nbytes], mask[: piece.size]
        for stream, combine in streams:
            stream.update_into(here, buffer)
            combine(piece, part, out=piece)
    return vector


def _stream(key: bytes) -> CipherContext:
    """Of a key that is used once, so that the nonce may be the same for all.

    GCM is CTR, counting from 2, with a checksum, which is not asked for here. OpenSSL has it with wider instructions
    than CTR alone, so that it takes three fifths of the time.
    """
    return Cipher(AES256(key), GCM(bytes(12))).encryptor()
