"""Federations in one process, seen as bytes: what is asked, what is answered, and how a run ends.

Everything that knows a class of the product is in this file. The suite sees messages of three byte strings, a folder
that holds all state, and the end of a run. A `Network` may be opened on a copy of such a folder and goes on from there.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import orjson

from tests.deployment import in_process_federation as together
from tests.deployment import regional_federation as regional
from tests.deployment import vertical_federation as parties
from tests.deployment.in_process_federation import ByHand, key
from tests.deployment.test_nothing_of_a_patient import IDENTITY, NUMBER, own_file, rows, write
from tests.time_limit import TooLong, time_limit
from wardround.data.sources import Source
from wardround.protocol.messages import Sealed
from wardround.runs.folder import RunFolder

Message = Sealed  # head (JSON), tensors (safetensors), signature
Answer = Callable[[str, Message, Message], Message | None]  # sender, question, honest answer -> what is sent instead
Question = Callable[[str, Message], None]
Place = tuple[str, Any]  # kind of a question, and its round
LIMIT = 20.0  # seconds for anything that a coordinator or a site does in this suite
HOSPITALS = ("north", "south", "west")
REGIONS = {"coast": ["north", "south"], "inland": ["west", "east"]}
DEADLINE = 1.0  # seconds, where the quorum lets somebody leave


def head_of(message: Message) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(message.head)
    return content


def body_of(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = head_of(message)["body"]
    return body


def kind_of(message: Message) -> str:
    return str(head_of(message)["kind"])


def place_of(question: Message) -> Place:
    return kind_of(question), body_of(question).get("round")


def signed(head: bytes, tensors: bytes, signer: str) -> Message:
    unsigned = Sealed(head, tensors, b"")
    return Sealed(head, tensors, key(signer).sign(unsigned.digest))


@dataclass(frozen=True)
class Ended:
    """How a run of the coordinator ended, and all that it showed on the way."""

    error: BaseException | None
    lines: tuple[str, ...]
    shown: frozenset[str]  # titles, and what each site was said to be doing
    seconds: float

    @property
    def texts(self) -> list[str]:
        return [*self.lines, *self.shown, "" if self.error is None else str(self.error)]


@dataclass
class Greeted:
    """A hospital that is greeted again in the same way answers in the same way. Only saves time."""

    work: Any
    greeting: dict[str, Any] = field(default_factory=dict)
    answered: Message | None = None

    def answer(self, question: Message) -> Message:
        if b'"kind":"hello"' not in question.head:
            answer: Message = self.work.answer(question)
            return answer
        asked = body_of(question)
        if self.answered is None or asked != self.greeting:
            self.greeting, self.answered = asked, self.work.answer(question)
        return self.answered


class Network:
    """One federation whose state is in `folder`."""

    hospitals: tuple[str, ...] = HOSPITALS
    asker: Mapping[str, str]  # whose key signs the questions to each who answers

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []  # what hospitals show on their own screens

    def transports(self) -> list[ByHand]:
        raise NotImplementedError

    def new_coordinator(self) -> Any:
        """As a process that is started on this folder; whoever answers lives on."""
        raise NotImplementedError

    def run(self, answer: Answer | None = None, question: Question | None = None) -> Ended:
        coordinator = self.new_coordinator()
        for transport in self.transports():
            transport.after = answer or (lambda sender, asked, answered: answered)
            transport.before = partial(_seen, question)
        lines: list[str] = []
        shown: set[str] = set()
        began, error = time.monotonic(), None
        try:
            with time_limit(LIMIT):
                for step in coordinator.run():
                    lines += [step.line] if step.line else []
                    shown |= {step.title, *step.sites.values()}
        except (Exception, TooLong) as raised:  # whatever it is: the suite judges it
            error = raised
        left = list(coordinator.messenger.lines)
        return Ended(error, (*lines, *left), frozenset(shown), time.monotonic() - began)

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def results(self) -> dict[str, Any]:
        content: dict[str, Any] = RunFolder(self.run_folder).read_json("results.json")
        return content

    def summaries(self) -> list[dict[str, Any]]:
        lines = (self.run_folder / "summaries.jsonl").read_text(encoding="utf-8").splitlines()
        return [orjson.loads(line) for line in lines]

    def carried(self) -> Iterator[Message]:
        """Everything that was asked and honestly answered since the coordinator was started; each is shown once."""
        for transport in self.transports():
            for _, asked, answered in transport.carried:
                yield from (asked, answered)
            transport.carried.clear()

    def answer(self, name: str, question: Message) -> Message:
        """What somebody answers to a question, whoever asks."""
        transport = next(transport for transport in self.transports() if name in transport.sites)
        return transport.sites[name].answer(Message(question.head, question.tensors, question.signature))

    def folder_of(self, name: str) -> Path:
        """Where somebody who answers keeps what it needs."""
        return self.folder / "sites" / name

    def asked_with(self, name: str) -> list[str]:
        """Who works when somebody is asked: a region asks its hospitals."""
        return [name]

    def reopen(self, name: str, remember: bool = True) -> None:
        """Whoever answers, as a process that is started on its folder. Without `remember` it is greeted in earnest."""
        raise NotImplementedError

    def _site(self, work: Any, remember: bool) -> Any:
        work.notice = self.notices.append
        return Greeted(work) if remember else work


def _seen(question: Question | None, sender: str, asked: Message) -> bool:
    if question is not None:
        question(sender, asked)
    return True


Open = Callable[[Path], Network]  # on a folder that may have anything in it already


def copied(opened: Open, snapshot: Path, to: Path) -> Network:
    copytree(snapshot, to)
    return opened(to)


class Flat(Network):
    """One coordinator, and all who answer it: hospitals, or parties with different columns of the same patients."""

    def __init__(self, folder: Path, network: together.Federation | parties.Parties) -> None:
        super().__init__(folder)
        self.network = network
        self.hospitals = tuple(network.transport.sites)
        self.asker = dict.fromkeys(self.hospitals, "coordinator")
        for name in self.hospitals:
            self.reopen(name)

    def transports(self) -> list[ByHand]:
        return [self.network.transport]

    def new_coordinator(self) -> Any:
        self.network = self.network.restart_coordinator()
        return self.network.coordinator

    def reopen(self, name: str, remember: bool = True) -> None:
        self.network.transport.sites[name] = self._site(self.network.open_site(name), remember)


class Regional(Network):
    """A coordinator of all, regions that answer it, and hospitals that answer their regions."""

    def __init__(self, folder: Path, document: Mapping[str, Any], sources: Mapping[str, Callable[[], Source]]) -> None:
        super().__init__(folder)
        self.network = regional.hierarchy(document, folder, sources)
        self.hospitals = tuple(sources)
        self.asker = dict.fromkeys(self.network.regions, "top")
        self.asker |= {
            site: f"{region} as coordinator" for region, sites in self.network.regions.items() for site in sites
        }
        for name in sources:
            self.reopen(name)

    def transports(self) -> list[ByHand]:
        return [self.network.transport, *self.network.transports.values()]

    def new_coordinator(self) -> Any:
        self.network.restart_top()
        return self.network.top

    def folder_of(self, name: str) -> Path:
        return self.folder / ("regions" if name in self.network.regions else "sites") / name

    def asked_with(self, name: str) -> list[str]:
        return [*self.network.regions.get(name, ()), name]

    def reopen(self, name: str, remember: bool = True) -> None:
        if name in self.network.regions:
            self.network.transport.sites[name] = self._site(self.network.open_region(name), remember=False)
            return
        transport = next(transport for transport in self.network.transports.values() if name in transport.sites)
        transport.sites[name] = self._site(self.network.open_site(name), remember)


# -- studies with planted values: in the first row of every file stands what must be found nowhere else


def planted_files(folder: Path, hospitals: Sequence[str] = HOSPITALS, count: int = 60) -> dict[str, Path]:
    """`west` never measured `lab`, so that it takes a fill value from the others."""
    folder.mkdir(parents=True, exist_ok=True)
    return {name: write(folder / f"{name}.csv", rows(name, count)) for name in hospitals}


def planted_sources(files: Mapping[str, Path]) -> dict[str, Callable[[], Source]]:
    return {name: partial(own_file, path) for name, path in files.items()}


def planted_study(quorum: int | None = None, **changes: Any) -> dict[str, Any]:
    """Short, and with every question that a coordinator asks without [privacy]. Without `quorum` all are needed."""
    deployment: dict[str, Any] = {"smallest_cell": 1}
    if quorum is not None:
        deployment |= {"quorum": quorum, "deadline": DEADLINE}
    return {
        "name": "planted",
        "data": {"source": "at-sites", "scale": "federated"},
        "model": {"kind": "logistic", "l2": 0.01},
        "training": {"rounds": 2, "local_epochs": 1, "batch_size": 16, "lr": 0.01},
        "evaluation": {"seeds": {"first": 1, "count": 1}, "validation_share": 0.15},
        "deployment": deployment,
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
        **changes,
    }


World = Callable[[Path, bool], Open]  # a folder for the hospitals' files, and whether the quorum lets somebody leave


def flat(data: Path, quorum: bool = False) -> Open:
    files, document = planted_files(data), planted_study(2 if quorum else None)
    return lambda folder: Flat(folder, together.federation(document, folder, planted_sources(files)))


def numbers(data: Path, quorum: bool = False) -> Open:
    """What is predicted is a number. The value that is planted is the largest of all: no sum may give it away."""
    files, task = planted_files(data), {"task": "regression"}
    document = planted_study(2 if quorum else None, model={"kind": "linear", "l2": 0.01})
    document["data"] |= task
    sources = {name: partial(own_file, path, target="marker", positive=None, **task) for name, path in files.items()}
    return lambda folder: Flat(folder, together.federation(document, folder, sources))


def secure(data: Path, quorum: bool = False) -> Open:
    """Updates are added up under masks."""
    files = planted_files(data, (*HOSPITALS, "east"))
    document = planted_study(3 if quorum else None, privacy={"secure_sum": {}}, arms=[{"algorithm": "fedavg"}])
    return lambda folder: Flat(folder, together.federation(document, folder, planted_sources(files)))


def in_regions(data: Path, quorum: bool = False) -> Open:
    files = planted_files(data, (*HOSPITALS, "east"))
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
    document = planted_study(1 if quorum else None, topology=topology)
    return lambda folder: Regional(folder, document, planted_sources(files))


def vertical(data: Path, quorum: bool = False) -> Open:
    """Nobody can be left out here, so that no quorum lets anybody leave."""
    files = parties.write(data)
    for name, path in files.items():
        head, first, *rest = path.read_text(encoding="utf-8").splitlines()
        if name == "clinic":
            first = ",".join([IDENTITY, str(NUMBER), *first.split(",")[2:]])
        rest = [line.replace("P0000,", f"{IDENTITY},") for line in rest]
        path.write_text("\n".join([head, first, *rest]) + "\n", encoding="utf-8")
    document = parties.document(files)
    return lambda folder: Flat(folder, parties.federation(document, folder, files))


def verified(message: Message, name: str) -> bool:
    return together.public(name).verify(message.signature, message.digest)
