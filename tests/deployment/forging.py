"""Messages as somebody could write them by hand: any body under anybody's signature."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from safetensors.torch import load

from tests.deployment.in_process_federation import key
from wardround.core.tree import Tree
from wardround.protocol.catalogue import PROTOCOL
from wardround.protocol.messages import Sealed
from wardround.protocol.tensors import pack


def forge(
    kind: str, body: Mapping[str, Any], signer: str, site: str = "", tensors: Tree | bytes = b"", log: str = ""
) -> Sealed:
    """`site` is the receiver of a request, or the sender of an answer: the signer, unless it is given."""
    packed = tensors if isinstance(tensors, bytes) else pack(tensors)
    order = list(load(bytes(packed))) if isinstance(tensors, bytes) and packed else list(tensors or ())
    head = {"protocol": PROTOCOL, "kind": kind, "site": site or signer, "log": log, "body": body, "order": order}
    unsigned = Sealed(orjson.dumps(head), packed, b"")
    return Sealed(unsigned.head, packed, key(signer).sign(unsigned.digest))


def changed(sealed: Sealed, signer: str, change: Callable[[dict[str, Any], Tree], object], **head: Any) -> Sealed:
    """The same message with something else in it, and a signature that fits."""
    content = orjson.loads(sealed.head)
    loaded = load(bytes(sealed.tensors)) if sealed.tensors else {}
    tensors = {name: loaded[name] for name in content["order"]}
    body = json.loads(json.dumps(content["body"]))
    change(body, tensors)
    address = {"kind": content["kind"], "site": content["site"], "log": content["log"], **head}
    return forge(body=body, signer=signer, tensors=tensors, **address)
