"""Every answer that a site, a region or a party may give, as a type: fields, kinds of values and limits.

`read_answer` refuses what is unknown, missing, of another kind or beyond a limit, before anybody looks at a value. What
an answer must be, given the question and the agreement, is checked in `deployment/common/answer_checks.py`.
JSON has no numbers that are not finite, so that every float here is one.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from wardround.core.errors import SiteError
from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.protocol import party_answers as of_party
from wardround.protocol import region_answers as of_region
from wardround.protocol import site_answers as of_site
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.text import is_plain, plain_text

with needs("deploy", "a study across hospitals"):
    import msgspec

REMEDY = "Install the same version of wardround everywhere."
Kinds = Mapping[str, type[of_site.AnswerBase]]
REFUSALS: Kinds = {"refused": of_site.Refused, "failed": of_site.Failed}
OF_SITES: Kinds = {
    **REFUSALS,
    "ready": of_site.Ready,
    "facts": of_site.Facts,
    "lent": of_site.Lent,
    "moments": of_site.Moments,
    "prepared": of_site.Prepared,
    "advert": of_site.Advert,
    "shared": of_site.Shared,
    "confirmed": of_site.Confirmed,
    "revealed": of_site.Revealed,
    "update": of_site.Update,
    "summary": of_site.Summary,
    "goodbye": of_site.Goodbye,
}
OF_REGIONS: Kinds = {
    **REFUSALS,
    "ready": of_region.RegionReady,
    "facts": of_region.RegionFacts,
    "lent": of_region.RegionLent,
    "moments": of_region.RegionMoments,
    "prepared": of_region.RegionPrepared,
    "update": of_region.RegionUpdate,
    "summary": of_region.RegionSummary,
    "goodbye": of_site.Goodbye,
}
OF_PARTIES: Kinds = {
    **REFUSALS,
    "ready": of_party.PartyReady,
    "matched": of_party.Matched,
    "dealt": of_party.Dealt,
    "shaped": of_party.Shaped,
    "agreed": of_party.Agreed,
    "embedded": of_party.Embedded,
    "learned": of_party.Learned,
    "shown": of_party.Shown,
    "assessed": of_party.PartySummary,
    "goodbye": of_site.Goodbye,
}


def read_answer(site: str, kind: str, body: Mapping[str, Any], kinds: Kinds) -> of_site.AnswerBase:
    """The answer as its type. SiteError, which names the site and the place, where it is not one."""
    expected = kinds.get(kind)
    if expected is None:
        raise unusable(site, "it is of a kind that nobody asked for")
    try:
        read: of_site.AnswerBase = msgspec.convert(body, expected)
    except msgspec.ValidationError as error:
        raise unusable(site, str(error)) from None
    if kind not in REFUSALS and not _names_are_plain(body):
        raise unusable(site, "a name in it has control characters")
    return read


def unusable(site: str, why: str) -> SiteError:
    return SiteError(Notice("site-answer-unusable", "warning", site, details={"reason": plain_text(why)}), REMEDY)


def _names_are_plain(value: Any) -> bool:
    """Keys and texts, wherever they stand: columns, classes, levels and hospitals are shown to people."""
    if isinstance(value, str):
        return is_plain(value)
    if isinstance(value, Mapping):
        return all(is_plain(key) and _names_are_plain(inner) for key, inner in value.items() if key != "left")
    if isinstance(value, list):
        return all(map(_names_are_plain, value))
    return True


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
    "assess": "assessed",
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
