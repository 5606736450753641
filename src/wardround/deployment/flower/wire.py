"""Parts of large messages as protobuf has them on the wire, so that their bytes are neither parsed nor copied."""

from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview
MOST_FIELDS = 32  # of a call: the bytes of a part are one of them
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits at a time, the lowest first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def bytes_head(field: int, size: int) -> bytes:
    """What stands before the bytes of a field."""
    return varint(field << 3 | BYTES) + varint(size)


def cut_out(message: Buffer, field: int) -> tuple[bytes, slice]:
    """A message without a field of bytes, and where these are; ValueError if it cannot be read."""
    rest, content = bytearray(), slice(0, 0)
    for count, (number, start, inner, end) in enumerate(_fields(message)):
        if count >= MOST_FIELDS:
            raise ValueError("a call of too many fields")
        if number == field:
            content = slice(inner, end)
        else:
            rest += message[start:end]
    return bytes(rest), content


def _fields(message: Buffer) -> Iterator[tuple[int, int, int, int]]:
    """The number of each field, where it begins, where its content begins, and where it ends."""
    place = 0
    while place < len(message):
        start = place
        tag, place = read_varint(message, place)
        kind, inner = tag & 7, place
        if kind == VARINT:
            _, place = read_varint(message, place)
        elif kind == BYTES:
            size, inner = read_varint(message, place)
            place = inner + size
        elif kind in (FIXED64, FIXED32):
            place += 8 if kind == FIXED64 else 4
        else:
            raise ValueError("a call with a field of an unknown kind")
        if place > len(message):
            raise ValueError("a call that is cut off")
        yield tag >> 3, start, inner, place


def read_varint(message: Buffer, place: int) -> tuple[int, int]:
    """A number, and where it ends; ValueError where there is none."""
    number = 0
    for count, octet in enumerate(message[place : place + 10]):
        number |= (octet & 0x7F) << 7 * count
        if octet < 0x80:
            return number, place + count + 1
    raise ValueError("a number without an end")


def content_in(start: bytes, field: int) -> tuple[bytes, int, int] | None:
    """Of the beginning of a message: what stands before a field of bytes, where these begin, and how many they are."""
    place = 0
    while place < len(start):
        before = place
        tag, place = read_varint(start, place)
        if tag == field << 3 | BYTES:
            size, place = read_varint(start, place)
            return start[:before], place, size
        if tag & 7 != VARINT:
            return None
        _, place = read_varint(start, place)
    return None
