"""Which answer belongs to which question. What comes late, or comes again, belongs to none and counts for nothing."""

from collections.abc import Mapping
from typing import Any

import orjson

from wardround.protocol.answers import REFUSALS
from wardround.protocol.messages import Message, Sealed

ANSWERS = {
    "hello": "ready",
    "facts": "facts",
    "lend": "lent",
    "moments": "moments",
    "prepare": "prepared",
    "keys": "advert",
    "shares": "shared",
    "train": "update",
    "confirm": "confirmed",
    "unmask": "revealed",
    "evaluate": "summary",
    "goodbye": "goodbye",
    # between parties with different features of the same patients
    "match": "matched",
    "deal": "dealt",
    "shape": "shaped",
    "agree": "agreed",
    "embed": "embedded",
    "learn": "learned",
    "show": "shown",
    "judge": "judged",
}
PLACE = ("run", "wave", "round")


def place_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a question is about; its answer says so too."""
    return {name: body[name] for name in PLACE if name in body}


def belongs(answer: Message, question: Sealed) -> bool:
    asked = orjson.loads(question.head)
    if answer.kind in REFUSALS and "run" not in answer.body:
        return True  # the site could not read what it was asked
    known = answer.kind in REFUSALS or answer.kind == ANSWERS[asked["kind"]]
    return known and place_of(answer.body) == place_of(asked["body"])
