"""Reading a message by its type: refused whole where it is none that this version knows."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from wardround.core.errors import DeployError, SiteError, StudyError
from wardround.core.extras import needs
from wardround.core.notices import Notice
from wardround.protocol.catalogue import ANSWERED_BY, REFUSALS, Body, Request
from wardround.protocol.messages import Message, Sealed, read_head
from wardround.protocol.text import is_plain, plain_text
from wardround.tasks import Task, read_task

with needs("deploy", "a study across hospitals"):
    import msgspec

Read = TypeVar("Read", bound=Body)
REMEDY = "Install the same version of wardround everywhere."
UNREADABLE = (msgspec.MsgspecError, RecursionError)  # the latter where it is nested as no message of ours is
FORMS = (  # msgspec's sentences about fields, as people without its vocabulary read them
    (re.compile(r"^Object contains unknown field (`[^`]*`)( - at `\$`)?"), r"nobody here knows its field \1"),
    (re.compile(r"^Object missing required field (`[^`]*`)( - at `\$`)?"), r"it lacks the field \1"),
)


def read_request(message: Message, kinds: Mapping[str, type[Request]]) -> Request:
    """DeployError where it is no request that this version knows."""
    expected = kinds.get(message.kind)
    problem = "it is of a kind that nobody knows"
    if expected is not None:
        try:
            return msgspec.json.decode(message.raw, type=expected)
        except UNREADABLE as error:
            problem = why(error)
    raise DeployError("coordinator", f"asks what cannot be read: {problem}; both need the same version", REMEDY)


def read_answer(site: str, message: Message, expected: type[Read]) -> Read:
    """SiteError, which names the site and the place, where it is no answer of this kind."""
    if message.kind != expected.kind:
        raise unusable(site, "it is of a kind that nobody asked for")
    try:
        body = msgspec.json.decode(message.raw, type=expected)
    except UNREADABLE as error:
        raise unusable(site, why(error)) from None
    if message.kind not in REFUSALS and not _names_are_plain(message.body):
        raise unusable(site, "a name in it has control characters")
    return body


def why(error: Exception) -> str:
    """What is wrong with a message, and where, without its content."""
    text = plain_text(str(error))
    for known, plainly in FORMS:
        text = known.sub(plainly, text)
    return text


def check_own(site: str, answer: Body) -> None:
    """DeployError where its receiver would refuse what this site is about to send."""
    try:
        msgspec.json.decode(msgspec.json.encode(answer), type=type(answer))
    except msgspec.ValidationError as error:
        problem = f"was about to send what nobody can read: {why(error)}"
        raise DeployError(site, problem, "Nothing was sent. This is a defect in wardround: please report it.") from None
    if not _names_are_plain(msgspec.to_builtins(answer, str_keys=True)):
        problem = "a name that it would have to send has control characters"
        raise DeployError(site, problem, "Correct the names of columns, classes and categories in its file.")


def bad_answer(site: str, problem: str, remedy: str) -> SiteError:
    return SiteError(Notice("site-answer-unusable", "warning", site, details={"problem": plain_text(problem)}), remedy)


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


PLACE = ("run", "wave", "round")


def place_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Run, wave and round of a request; its answer repeats them."""
    return {name: body[name] for name in PLACE if name in body}


def belongs(answer: Message, request: Sealed) -> bool:
    if answer.kind in REFUSALS and "run" not in answer.body:
        return True  # the site could not read the request
    asked = read_head(request.head, answer.site)
    known = answer.kind in REFUSALS or answer.kind == ANSWERED_BY[asked.kind]
    place = msgspec.json.decode(asked.body)
    return known and place_of(answer.body) == place_of(place)


def read_request_task(content: Mapping[str, Any]) -> Task:
    """DeployError where it is no task that this version knows."""
    try:
        return read_task(content)
    except StudyError as error:
        problem = f"asks for a task that cannot be read: {error.where}: {error.problem}"
        raise DeployError("coordinator", plain_text(problem), "Install the same version everywhere.") from None
