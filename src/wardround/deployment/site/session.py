"""What a session is: one run as a site, a party or a region keeps it in a file, so that a restarted process goes on in
the middle of a round without another greeting.

The file holds messages of the coordinator, typed as they came, and little else. All sessions are greeted and restored
alike; what else a topology knows of a run is in its own session.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.protocol.catalogue import (
    PROTOCOL,
    Agree,
    AgreedAnalysis,
    Agreement,
    Columns,
    Hello,
    ListOfSizes,
    Prepare,
    Stage,
    Voucher,
)
from wardround.protocol.messages import Version
from wardround.protocol.text import plain_text
from wardround.protocol.values import Hash, Name, Part, Place, Sites, TaskJson
from wardround.runs.folder import write_atomically

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import UNSET, UnsetType

FILE = "session.json"


class Kept(Part, tag_field="topology"):
    """What came, and is known again after a restart."""

    hello: Hello


class FlatRun(Kept, tag="flat"):
    columns: Columns | UnsetType | None = UNSET  # None: images, or columns that nobody needs to know
    prepare: Agreement | None = None
    # by the number of the analysis: what was agreed on last, and those of which a step was answered
    analyses: dict[Place, AgreedAnalysis] = msgspec.field(default_factory=dict)
    begun_analyses: list[Place] = msgspec.field(default_factory=list)


class PartyRun(Kept, tag="vertical"):
    rows: Hash  # fingerprint of the rows with which the run began
    vouchers: dict[Name, Voucher] | None = None
    rosters: dict[Stage, Sites] | None = None
    assigned: bool = False
    agree: Agree | None = None


class RegionRun(Kept, tag="regional"):
    task: TaskJson | None = None
    columns: Columns | None = None
    split_sizes: dict[Name, ListOfSizes] | None = None
    prepare: Agreement | None = None


class SessionFile(Part):
    protocol: int
    session: FlatRun | PartyRun | RegionRun


K = TypeVar("K", bound=Kept)


class Session(Protocol[K]):
    """Of any topology."""

    folder: Path
    kept: K

    def recall(self, kept: K) -> None:
        """Go on from what the file held."""


S = TypeVar("S", bound=Session[Any])


def read_session(folder: Path) -> FlatRun | PartyRun | RegionRun | None:
    """None where nothing is known of a run. DeployError where the file cannot be relied on."""
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise DeployError(str(path), problem, "Let the user that runs wardround read it.") from None
    try:
        version = msgspec.json.decode(content, type=Version).protocol
        if version != PROTOCOL:
            problem = f"was written with version {version} of the protocol, and this machine has version {PROTOCOL}"
            raise DeployError(str(path), problem, "Let the coordinator begin a new run, or install that version again.")
        return msgspec.json.decode(content, type=SessionFile).session
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = f"is damaged ({plain_text(str(error))})"
        remedy = "Bring it back from a backup, or let the coordinator begin a new run."
        raise DeployError(str(path), problem, remedy) from None


def write_session(session: Session[Any]) -> None:
    session.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(session.folder / FILE, msgspec.json.encode(SessionFile(protocol=PROTOCOL, session=session.kept)))


def greeted(session: S) -> S:
    """A process that dies from now on goes on. What was agreed in this run stands until it is agreed anew."""
    known = read_session(session.folder)
    if isinstance(known, type(session.kept)):
        session.recall(known)
    write_session(session)
    return session


def restored(site: str, known: K | None, make: Callable[[Hello], S]) -> S:
    """`make` makes the session as it is when it is greeted."""
    if known is None:
        remedy = "Start the coordinator again: it greets every site first."
        raise DeployError(site, "it knows nothing of this run", remedy)
    session = make(known.hello)
    session.recall(known)
    return session


def agreement_of(prepare: Prepare) -> Agreement:
    return msgspec.convert(prepare, Agreement, from_attributes=True)
