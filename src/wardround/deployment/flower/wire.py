"""Conversion of sealed messages to Flower's records and back. Nothing else in the package knows a record."""

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from wardround.core.errors import DeployError
from wardround.protocol.messages import Sealed

SMALL = 2**20  # bytes of tensors that travel beside the head; more go in chunks that can be resent one by one
FORM = "wardround.safetensors"


def to_record(sealed: Sealed) -> RecordDict:
    message = {"head": sealed.head, "signature": sealed.signature}
    if len(sealed.tensors) <= SMALL:
        return RecordDict({"message": ConfigRecord({**message, "tensors": sealed.tensors})})
    tensors = Array("uint8", (len(sealed.tensors),), FORM, sealed.tensors)
    return RecordDict({"message": ConfigRecord({**message}), "tensors": ArrayRecord({"tensors": tensors})})


def from_record(record: RecordDict) -> Sealed:
    """Refuses anything that is not a message."""
    message = record.config_records.get("message", ConfigRecord())
    head, signature, tensors = (message.get(name) for name in ("head", "signature", "tensors"))
    if tensors is None and "tensors" in record.array_records:
        array = record.array_records["tensors"].get("tensors")
        tensors = None if array is None else array.data
    if not (isinstance(head, bytes) and isinstance(tensors, bytes) and isinstance(signature, bytes)):
        raise DeployError("a message", "is not a message", "Install the same version of wardround everywhere.")
    return Sealed(head, tensors, signature)
