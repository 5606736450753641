"""What parties tell each other, and what the coordinator sees of it: every message of a run is looked through."""

from collections.abc import Callable, Iterator
from hashlib import md5, sha1, sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import torch
from safetensors.torch import load

from tests.deployment.forging import forge
from tests.deployment.in_process_federation import body_of, key, kind_of, public
from tests.deployment.vertical_federation import Parties, document, federation, own_file, write
from tests.representatives import represented
from wardround.core.errors import DeployError, WardroundError
from wardround.data.records import Records, short_hash
from wardround.deployment.hospital import Hospital
from wardround.deployment.vertical import vertical_topology
from wardround.deployment.vertical.party_session import ROWS, PartySession
from wardround.deployment.vertical.party_training import PartyTrial, read_tensors, route
from wardround.deployment.vertical.patient_matching import as_bytes, as_tensor
from wardround.privacy.dp.noise import SecretStream
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.party_sealing import Channel
from wardround.protocol.tensors import pack

KNOWN_TO_CLINIC = [f"P{number:04}" for number in range(90)]
STRANGER = "S0001"  # whom the laboratory alone has
VALUES = {"age": 4242.125, "crp": 777.0625}  # of one patient each; exact in any precision


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Parties, list[bytes]]:
    """A finished run, and all that was sealed between the parties, as it was before."""
    folder = tmp_path_factory.mktemp("private")
    files = write(folder / "data", known=0.9)
    for party, (name, value) in zip(files, VALUES.items(), strict=True):
        table = pd.read_csv(files[party], dtype=str)
        table.loc[3, name] = str(value)
        table.to_csv(files[party], index=False)
    network = federation(document(files, deployment={"smallest_cell": 5}), folder, files)
    hidden: list[bytes] = []
    sealing = Channel.seal

    def watched(self: Channel, receiver: str, what: str, content: bytes) -> bytes:
        hidden.append(content)
        return sealing(self, receiver, what, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "seal", watched)
        network.run()
    return network, hidden


def carried(network: Parties) -> Iterator[tuple[str, bytes]]:
    for site, message, answer in network.transport.carried:
        yield f"{kind_of(message)} to {site}", message.head + message.tensors
        yield f"{kind_of(answer)} of {site}", answer.head + answer.tensors


def forms(name: str) -> Iterator[bytes]:
    """Every way in which an id could travel: as it is, or as a hash that whoever has a list of ids could look up."""
    yield name.encode()
    for digest in (md5, sha1, sha256):
        yield digest(name.encode(), usedforsecurity=False).digest()[:12]
        yield digest(name.encode(), usedforsecurity=False).hexdigest()[:16].encode()
    yield short_hash(name).encode()


def test_no_id_and_no_hash_of_one_is_in_a_message(run: tuple[Parties, list[bytes]]) -> None:
    everything = b"".join(content for _, content in carried(run[0]))
    for name in (*KNOWN_TO_CLINIC, STRANGER):
        for form in forms(name):
            assert form not in everything


def rows_of(network: Parties, party: str) -> Records:
    hospital = network.transport.sites[party].topology
    assert isinstance(hospital, Hospital)
    return hospital.rows()


def test_no_value_and_no_label_is_in_a_message(run: tuple[Parties, list[bytes]]) -> None:
    network, _ = run
    planted = [str(value).encode() for value in VALUES.values()]
    for party, name in zip(("clinic", "lab"), VALUES, strict=True):
        records = rows_of(network, party)
        assert isinstance(records.features, pd.DataFrame)
        column = records.features[name].to_numpy(dtype=float)[2:6]
        assert VALUES[name] in column
        planted += [column.astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")]
    labels = rows_of(network, "clinic").target
    planted += [labels.astype(kind)[:20].tobytes() for kind in ("<i8", "<i4", "u1", "<f4", "<f8")]
    for where, content in carried(network):
        for form in planted:
            assert form not in content, where


def test_embeddings_gradients_and_rows_are_in_no_message_as_they_are(run: tuple[Parties, list[bytes]]) -> None:
    """A safetensors file begins with 8 bytes of length and a header; what follows is numbers."""
    network, hidden = run
    assert len(hidden) == 1 + 2 * 8 + 1  # rows; two rounds of four blocks, both ways; the last embeddings
    everything = b"".join(content for _, content in carried(network))
    for content in hidden:
        numbers = content[8 + int.from_bytes(content[:8], "little") :]
        assert len(numbers) >= 16  # the last batch is one row of four numbers
        assert all(numbers[start : start + 16] not in everything for start in range(0, len(numbers) - 15, 64))


def test_what_is_said_in_the_open(run: tuple[Parties, list[bytes]]) -> None:
    """The whole of it: names that the study has, sizes, class names, figures of enough rows."""
    network, _ = run
    allowed = {
        "ready": {"columns", "inputs", "task", "visits", "voucher", "versions"},
        "matched": {"common"},
        "assigned": {"sizes", "unmatched", "described"},
        "shaped": {"shapes"},
        "agreed": {"waves"},
        "embedded": set[str](),
        "learned": {"losses"},
        "last_embedded": set[str](),
        "assessed": {"summaries", "figures", "without"},
        "goodbye": set[str](),
    }
    answers = [answer for _, _, answer in network.transport.carried]
    assert {kind_of(answer) for answer in answers} == set(allowed)
    for answer in answers:
        fields = set(body_of(answer)) - {"site", "head", "run", "wave", "round"}
        assert fields == allowed[kind_of(answer)]
    ready = {site: body_of(answer) for site, _, answer in network.transport.carried if kind_of(answer) == "ready"}
    assert ready["lab"]["task"] is None
    assert ready["lab"]["columns"] is None
    (dealt,) = [body_of(answer) for answer in answers if kind_of(answer) == "assigned"]
    assert set(dealt["described"]) <= {"train", "validation", "test", "classes", "age"}


def test_a_party_keeps_nothing_of_patients_whom_it_does_not_have(run: tuple[Parties, list[bytes]]) -> None:
    network, _ = run
    lab = set(own_file("lab", network.folder.path.parent / "data" / "lab.csv").load().ids.tolist())  # type: ignore[union-attr]
    unknown = [name for name in KNOWN_TO_CLINIC if name not in lab]
    assert unknown
    _assert_nowhere(network.folder.path.parent / "sites" / "lab", unknown)
    _assert_nowhere(network.folder.path.parent / "sites" / "clinic", [STRANGER])


def test_the_coordinator_keeps_nothing_of_anybody(run: tuple[Parties, list[bytes]]) -> None:
    network, _ = run
    _assert_nowhere(network.folder.path, [*KNOWN_TO_CLINIC, STRANGER])
    assert not list(network.folder.path.glob("models/**/*.safetensors")), "each party keeps its own part"


def _assert_nowhere(folder: Path, names: list[str]) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [name for name in names if any(form in content for form in forms(name))], path.name


def test_nothing_of_the_matching_is_left_when_the_run_is_over(run: tuple[Parties, list[bytes]]) -> None:
    for party in ("clinic", "lab"):
        left = {path.name for path in run[0].site_folder(party).iterdir()}
        assert not left & {"matching", "rows.safetensors", "secret"}
        assert not [name for name in left if name.startswith("wave-")]


def changing(network: Parties, kind: str, change: Any) -> None:
    """A coordinator that changes what it carries, and signs it as it should."""

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(answer) != kind:
            return answer
        body, tensors = body_of(answer), load(bytes(answer.tensors)) if answer.tensors else {}
        body, tensors = change(site, body, tensors)
        return forge(kind, body, site, tensors=tensors)

    network.transport.after = after


def flipped(site: str, body: dict[str, Any], tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return body, {name: leaf.clone().index_fill_(0, _last(leaf), 7) for name, leaf in tensors.items()}


def _last(leaf: Any) -> Any:
    return torch.tensor([len(leaf) - 1, len(leaf) - 2])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("embedded", "what lab sealed for this party cannot be opened"),
        ("learned", "what clinic sealed for this party cannot be opened"),
        pytest.param("assigned", "what clinic sealed for this party cannot be opened", marks=pytest.mark.slow),
        pytest.param("last_embedded", "what lab sealed for this party cannot be opened", marks=pytest.mark.slow),
    ],
)
def test_what_was_changed_on_its_way_is_refused(tmp_path: Path, kind: str, words: str) -> None:
    files = write(tmp_path / "data")
    network = federation(document(files), tmp_path, files)
    changing(network, kind, flipped)
    with pytest.raises(DeployError, match=words):
        network.run()


def test_a_coordinator_cannot_put_itself_between_two_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(tmp_path / "data")
    monkeypatch.setattr(vertical_topology, "vouched_key", lambda *given: b"")  # an honest one refuses such a key too
    network = federation(document(files), tmp_path, files)

    def own_key(site: str, body: dict[str, Any], tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        false = Channel(site, str(body["run"]), b"x" * 32, key("coordinator"), {})
        return {**body, "voucher": false.voucher()}, tensors

    changing(network, "ready", own_key)
    with pytest.raises(DeployError, match="is not vouched for by its kit"):
        network.run()


def test_a_channel_opens_what_belongs_there_and_nothing_else() -> None:
    peers = {name: public(name) for name in ("a", "b", "c")}
    ends = {name: Channel(name, "run-1", name.encode() * 32, key(name), peers) for name in peers}
    vouchers = {name: end.voucher() for name, end in ends.items()}
    for end in ends.values():
        end.meet(vouchers)
    sealed = ends["a"].seal("b", "gradients 0 1 2", b"numbers")
    assert ends["b"].open("a", "gradients 0 1 2", sealed) == b"numbers"
    assert ends["a"].seal("b", "gradients 0 1 2", b"numbers") != sealed
    for receiver, sender, what in (
        ("b", "a", "gradients 0 1 3"),
        ("b", "a", "embeddings 0 1 2"),
        ("b", "c", "gradients 0 1 2"),
        ("c", "a", "gradients 0 1 2"),
        ("a", "b", "gradients 0 1 2"),
    ):
        with pytest.raises(DeployError, match="cannot be opened"):
            ends[receiver].open(sender, what, sealed)
    for short in (b"", sealed[:11], sealed[:-1]):
        with pytest.raises(DeployError, match="cannot be opened"):
            ends["b"].open("a", "gradients 0 1 2", short)
    again = Channel("b", "run-1", b"b" * 32, key("b"), peers)  # after a restart, from the same secret
    again.meet(vouchers)
    assert again.open("a", "gradients 0 1 2", sealed) == b"numbers"
    with pytest.raises(DeployError, match="has agreed on no key with c"):
        Channel("b", "run-1", b"b" * 32, key("b"), peers).open("c", "x", sealed)
    other = Channel("b", "run-2", b"b" * 32, key("b"), peers)
    with pytest.raises(DeployError, match="is not vouched for"):
        other.meet(vouchers)


@pytest.mark.parametrize(
    ("kind", "body"),
    represented(
        [
            ("ready", {"voucher": None}),
            ("matched", {"common": "many"}),
            ("assigned", {"train": "all"}),
            ("assigned", {"train": [3], "described": 7}),
            ("shaped", {"shapes": [["wide"]]}),
            ("embedded", {}),
            ("learned", {"losses": {"0": None}}),
            ("learned", {"losses": {}}),
            ("assessed", {"without": [1]}),
        ],
        by=[("matched", {"common": "many"}), ("embedded", {}), ("learned", {"losses": {"0": None}})],
    ),
)
def test_answers_that_are_not_what_they_should_be_end_the_run_in_words(
    tmp_path: Path, kind: str, body: dict[str, Any]
) -> None:
    files = write(tmp_path / "data")
    network = federation(document(files), tmp_path, files)
    changing(network, kind, lambda site, answer_body, tensors: ({**answer_body, **body}, {}))
    with pytest.raises(WardroundError):
        network.run()


def session_of(network: Parties, party: str) -> PartySession:
    work = network.transport.sites[party].run
    assert work is not None
    assert isinstance(work.session, PartySession)
    return work.session


def asked_again(network: Parties, then: Callable[[str, Sealed], list[Sealed]], kind: str) -> list[str]:
    """Play `then` after the second message of this kind, and give the kinds of the laboratory's answers to it."""
    kinds: list[str] = []
    seen: list[Sealed] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if site == "lab" and kind_of(sealed) == kind:
            seen.append(sealed)
            if len(seen) == 2 or kind == "shape":
                for message in then(site, sealed):
                    network.restart_site("lab")  # what stands is on disk
                    kinds.append(kind_of(network.transport.sites["lab"].answer(message)))
        return answer

    network.transport.after = after
    network.run()
    return kinds


def test_a_step_is_taken_with_the_gradients_that_came_first(tmp_path: Path) -> None:
    """The noise of a step is always the same: of two answers to different gradients the difference would have none."""
    files = write(tmp_path / "data")
    parts = document(files)["topology"]
    noisy = document(files, topology={**parts, "embeddings": {"clip": 1.0, "noise": 2.0}})
    network = federation(noisy, tmp_path, files)

    def others(site: str, sealed: Sealed) -> list[Sealed]:
        assert body_of(sealed)["round"] == 1
        where, before = route("gradients", 0, 0, 0), load(bytes(sealed.tensors))["0"]
        first = session_of(network, "lab").channel.open("clinic", where, as_bytes(before))
        shape = read_tensors("clinic", first)[0].shape
        changed = [bytes(pack({"000000": torch.full(shape, value)})) for value in (0.0, 50.0)]
        holder = session_of(network, "clinic").channel
        again = [as_tensor(holder.seal(site, where, content)) for content in (*changed, first)]
        place = {name: value for name, value in body_of(sealed).items() if name in ("run", "wave", "round")}
        return [network.messenger.sealed(Message("embed", place, {"0": gradient}), site) for gradient in again]

    assert asked_again(network, others, "embed") == ["failed", "failed", "embedded"]
    embeddings = network.folder.read_json("results.json")["arms"]["split"]["topology"]["embeddings"]
    assert (embeddings["releases"], embeddings["covers"]) == (2, "all arms and seeds")


def test_rows_are_shared_out_once(tmp_path: Path) -> None:
    """With other rows in their place the first step would have the same noise on other patients."""
    files = write(tmp_path / "data")
    network = federation(document(files), tmp_path, files)

    def others(site: str, sealed: Sealed) -> list[Sealed]:
        first = session_of(network, "lab").channel.open("clinic", ROWS, as_bytes(load(bytes(sealed.tensors))[ROWS]))
        turned = bytes(pack({name: rows.flip(0) for name, rows in load(first).items()}))
        holder = session_of(network, "clinic").channel
        again = [as_tensor(holder.seal(site, ROWS, content)) for content in (turned, first)]
        body = {"run": network.messenger.run_name}
        return [network.messenger.sealed(Message("shape", body, {ROWS: row_tensor}), site) for row_tensor in again]

    assert asked_again(network, others, "shape") == ["failed", "shaped"]
    assert network.folder.complete


@pytest.mark.parametrize("smallest", [1, 20])
def test_few_rows_without_a_match_are_not_counted_in_the_open(tmp_path: Path, smallest: int) -> None:
    """The laboratory lacks some patients of the clinic, and of those who train fewer than 20."""
    files = write(tmp_path / "data", known=0.9)
    network = federation(document(files, deployment={"smallest_cell": smallest}), tmp_path, files)
    network.run()
    (dealt,) = [body_of(answer) for _, _, answer in network.transport.carried if kind_of(answer) == "assigned"]
    unmatched = network.folder.read_json("results.json")["arms"]["split"]["topology"]["matched"]["unmatched_train"]
    assert dealt["unmatched"] == unmatched
    assert unmatched is None if smallest == 20 else 0 < unmatched < 20


def test_whoever_has_not_the_secret_of_a_party_opens_nothing() -> None:
    """A carrier knows the run, the names, the routes and every voucher, and has a key of its own."""
    peers = {name: public(name) for name in ("a", "b")}
    ends = {name: Channel(name, "run-1", name.encode() * 32, key(name), peers) for name in peers}
    vouchers = {name: end.voucher() for name, end in ends.items()}
    ends["a"].meet(vouchers)
    sealed = ends["a"].seal("b", "embeddings 0 1 2", b"numbers")
    carrier = Channel("b", "run-1", b"c" * 32, key("c"), peers)
    carrier.meet(vouchers)
    with pytest.raises(DeployError, match="cannot be opened"):
        carrier.open("a", "embeddings 0 1 2", sealed)


def test_all_that_leaves_a_party_has_noise_that_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clip of 0.001 whatever leaves without it would be some hundred times as large. Streams: one for each of 8
    blocks, one for validation rows and one for test rows."""
    streams: list[tuple[bytes, str]] = []
    left: list[torch.Tensor] = []

    def drawn(key: bytes, purpose: str) -> SecretStream:
        streams.append((key, purpose))
        return SecretStream(key, purpose)

    sealing = Channel.seal

    def watched(self: Channel, receiver: str, what: str, content: bytes) -> bytes:
        if self.name == "lab":
            left.extend(load(content).values())
        return sealing(self, receiver, what, content)

    monkeypatch.setattr("wardround.deployment.vertical.party_training.SecretStream", drawn)
    monkeypatch.setattr(Channel, "seal", watched)
    files = write(tmp_path / "data")
    parts = document(files)["topology"]
    network = federation(
        document(files, topology={**parts, "embeddings": {"clip": 1e-3, "noise": 1.0}}), tmp_path, files
    )
    network.run()
    assert len(left) == 8 + 2
    assert all(0 < float(tensor.abs().max()) < 1e-2 for tensor in left)
    assert len(set(streams)) == len(streams) == 8 + 2


def test_noise_of_a_party_follows_from_its_secret_and_from_what_it_is_for() -> None:
    def first(secret: bytes = b"s" * 32, run: str = "run", arm: str = "arm", seed: int = 1, step: int = 0) -> float:
        at = PartyTrial.__new__(PartyTrial)
        at.session = cast(Any, SimpleNamespace(secret=secret, run=run))
        at.trial = cast(Any, SimpleNamespace(arm=arm, seed=seed))
        return float(at.stream(step, "noise on embeddings").normal(1, torch.float64))

    others = [first(b"t" * 32), first(run="other"), first(arm="other"), first(seed=2), first(step=1)]
    assert len({first(), *others}) == 6
    assert first() == first()
