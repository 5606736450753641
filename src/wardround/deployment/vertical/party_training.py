"""A party's share of split training in one wave: block after block, kept as files after each of them.

A step is one block of batches of every trial of the wave. What a party holds after a step is on disk before its answer
leaves, and the answer is too. So a process that died goes on with the same numbers, and the same request gets the same
bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from wardround.core import tree
from wardround.core.errors import DeployError, SiteError
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.deployment.common.spool import is_finite
from wardround.deployment.common.update_checks import by_number
from wardround.deployment.vertical.party_session import STEP, PartySession
from wardround.deployment.vertical.patient_matching import as_bytes, as_tensor
from wardround.engines.serial import order_of
from wardround.engines.split.exchange import LabelHolder, Labelled, Own, Party, cut_of, parts_of, protection
from wardround.engines.split.split import blocks, threads_for
from wardround.privacy.dp.noise import SecretStream, site_key
from wardround.protocol.reading import bad_answer
from wardround.protocol.tensors import pack
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.training.optimisers import optimiser_for
from wardround.training.rounds import start
from wardround.training.trial import Trial

AGAIN = "Start the coordinator again."
BEGINNING = -1  # before the first step
OPTIMISER = "optimiser "  # how names of its state begin in a file
Block = list[tuple[dict[str, Own], Labelled]]


class SplitTrial:
    """One trial at one end, between two steps."""

    engine: Any = None  # while a round goes on

    def __init__(self, session: PartySession, trial: Trial) -> None:
        self.session, self.trial, self.site = session, trial, trial.sites[0]
        self.each, self.steps = session.plan.steps_of(trial)
        self.cut = cut_of(trial.model)
        run, own = start(trial), session.site
        trees = (run.server["params"], run.memories[self.site.name].buffers)
        of_parties, of_holder = zip(*(parts_of(self.cut, leaves) for leaves in trees), strict=True)
        self.params, self.buffers = of_holder if session.is_holder else (leaves[own] for leaves in of_parties)
        self._coming: tuple[int, Iterator[Block]] | None = None  # the step of the next block, and the round's blocks
        self._drawn: tuple[int, Block] | None = None  # the last block

    def block(self, step: int) -> Block:
        """Drawn in order. After a restart those before it in its round are drawn again."""
        if self._drawn is not None and self._drawn[0] == step:
            return self._drawn[1]
        if self._coming is None or self._coming[0] != step or step % self.each == 0:
            number, place = divmod(step, self.each)
            order = order_of(self.trial, self.site, number, self.trial.training.local_epochs)
            drawn = blocks(self.trial, self.site.train, number, order)
            for _ in range(place):
                next(drawn)
            self._coming = (step, drawn)
        block = next(self._coming[1])
        self._coming = (step + 1, self._coming[1])
        self._drawn = (step, block)
        return block

    def lr(self, step: int) -> float:
        return self.trial.training.lr_in(step // self.each)

    def first_params(self) -> Tree:
        return tree.for_convolutions({"params": self.params})["params"]

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        optimiser = {} if self.engine is None else self.engine.state
        apart = {f"{OPTIMISER}{name}": leaves for name, leaves in optimiser.items()}
        return {"params": self.params, "buffers": self.buffers, **apart}, {}

    def restore(self, step: int, parts: State, place: Mapping[str, Any]) -> None:
        self.params, self.buffers = parts.get("params", {}), parts.get("buffers", {})
        if self.is_in_round(step, place):
            self.engine = self.new_engine(step)
            optimiser = {n.removeprefix(OPTIMISER): leaves for n, leaves in parts.items() if n.startswith(OPTIMISER)}
            self.engine.state = optimiser or self.engine.state

    def is_in_round(self, step: int, place: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def new_engine(self, step: int) -> Any:
        raise NotImplementedError


class PartyTrial(SplitTrial):
    """At a party without labels."""

    engine: Party | None

    def embed(self, step: int) -> list[Tensor]:
        if step % self.each == 0:
            self.engine = self.new_engine(step)
        engine = self._running()
        engine.protect = protection(self.trial.topology.embeddings, self.stream(step, "noise on embeddings"))
        return engine.embed(self._own(step))

    def learn(self, step: int, gradients: Sequence[Tensor]) -> None:
        engine = self._running()
        engine.learn(gradients)
        self.params, self.buffers = engine.params, engine.buffers
        if (step + 1) % self.each == 0:
            self.params, self.engine = tree.settle({"params": self.params})["params"], None

    def check_gradients(self, gradients: Sequence[Tensor]) -> None:
        expected = [(len(own.x), self.cut.width) for own in self._running().waiting]
        check_shapes(self.session.holder, gradients, expected, self.trial.dtype)

    def stream(self, step: int, purpose: str) -> SecretStream:
        """Noise from the party's own secret: nobody else can take it off again."""
        key = site_key(self.session.secret, self.session.run, self.trial.arm, self.trial.seed, step)
        return SecretStream(key, purpose)

    def restore(self, step: int, parts: State, place: Mapping[str, Any]) -> None:
        super().restore(step, parts, place)
        if self.engine is not None:
            self.engine.waiting = self._own(step)

    def is_in_round(self, step: int, place: Mapping[str, Any]) -> bool:
        return step < self.steps

    def new_engine(self, step: int) -> Party:
        bottom = self.cut.bottoms[self.session.site]
        return Party(bottom, optimiser_for(self.trial.training), self.first_params(), self.buffers, self.lr(step))

    def _own(self, step: int) -> list[Own]:
        return [own[self.session.site] for own, _ in self.block(step)]

    def _running(self) -> Party:
        if self.engine is None:
            raise DeployError("coordinator", "asks for a block that is not due", AGAIN)
        return self.engine


class HolderTrial(SplitTrial):
    """At the party with the labels."""

    engine: LabelHolder | None

    def learn(self, step: int, embeddings: Mapping[str, list[Tensor]]) -> tuple[dict[str, list[Tensor]], float | None]:
        """The gradients for each party; the mean loss, where a round ends."""
        if step % self.each == 0:
            self.engine = self.new_engine(step)
        if self.engine is None:
            raise DeployError("coordinator", "asks for a block that is not due", AGAIN)
        block = [labelled for _, labelled in self.block(step)]
        gradients = self.engine.learn(block, embeddings)
        self.params, self.buffers = self.engine.params, self.engine.buffers
        if (step + 1) % self.each:
            return gradients, None
        loss = self.engine.loss / self.engine.steps
        if not math.isfinite(loss):
            raise not_finite(self.session.site, f"the loss of {self.trial.arm}")
        self.params, self.engine = tree.settle({"params": self.params})["params"], None
        return gradients, loss

    def check_embeddings(self, step: int, party: str, embeddings: Sequence[Tensor]) -> None:
        expected = [(len(labelled.y), self.cut.width) for _, labelled in self.block(step)]
        check_shapes(party, embeddings, expected, self.trial.dtype)

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        place = {} if self.engine is None else {"loss": self.engine.loss, "steps": self.engine.steps}
        return super().snapshot()[0], place

    def restore(self, step: int, parts: State, place: Mapping[str, Any]) -> None:
        super().restore(step, parts, place)
        if self.engine is not None:
            self.engine.loss, self.engine.steps = float(place["loss"]), int(place["steps"])

    def is_in_round(self, step: int, place: Mapping[str, Any]) -> bool:
        return "steps" in place

    def new_engine(self, step: int) -> LabelHolder:
        trial, training = self.trial, self.trial.training
        balanced = training.class_weights == "balanced"
        weights = trial.model.task.class_weights(self.site.train.labels).to(trial.dtype) if balanced else None
        optimiser, lr = optimiser_for(training), self.lr(step)
        return LabelHolder(trial.model, self.cut, optimiser, self.first_params(), self.buffers, lr, weights)


class Wave:
    """All trials of a wave at one end, after some step."""

    def __init__(self, session: PartySession, number: int) -> None:
        if not 0 <= number < len(session.waves):
            raise DeployError("coordinator", "asks for models that this study does not have", AGAIN)
        self.session, self.number, self.step = session, number, BEGINNING
        trial_type = HolderTrial if session.is_holder else PartyTrial
        self.trials: dict[int, Any] = {
            place: trial_type(session, session.plan.trial(session.study.arm(arm), seed))
            for place, (arm, seed) in enumerate(session.waves[number])
        }
        self.last = max(local.steps for local in self.trials.values())

    @classmethod
    def after(cls, session: PartySession, number: int, step: int, known: "Wave | None") -> "Wave":
        """As it stands after a step: as it is in memory, or from its file."""
        if known is not None and (known.number, known.step) == (number, step):
            return known
        wave = cls(session, number)
        if step > wave.last or step < BEGINNING:
            raise DeployError("coordinator", "asks for a block that this study does not have", AGAIN)
        if step > BEGINNING:
            wave._read(step)
        return wave

    def embed(self, step: int, tensors: Tree) -> Tree:
        """At a party: gradients of the step before, embeddings of this one."""
        self._learn_last(step, tensors)
        leaving: Tree = {}
        for place, local in self.trials.items():
            if step < local.steps:
                with torch_threads(threads_for(local.trial)):
                    embeddings = local.embed(step)
                leaving[str(place)] = self._sealed(self.session.holder, "embeddings", step, place, embeddings)
        self._write(step)
        return leaving

    def finish(self, step: int, tensors: Tree) -> None:
        """At a party: the last gradients. Models are what they are from now on."""
        if step != self.last:
            raise DeployError("coordinator", "ends a wave before its last block", AGAIN)
        self._learn_last(step, tensors)
        self._write(step)

    def _learn_last(self, step: int, tensors: Tree) -> None:
        contents = {
            place: self._open(self.session.holder, "gradients", step - 1, place, tensors, str(place))
            for place, local in self.trials.items()
            if 0 < step <= local.steps
        }
        read = {place: read_tensors(self.session.holder, content) for place, content in contents.items()}
        for place, gradients in read.items():
            self.trials[place].check_gradients(gradients)
        self._stand_by(step, contents.values())
        for place, gradients in read.items():
            local = self.trials[place]
            with torch_threads(threads_for(local.trial)):
                local.learn(step - 1, gradients)

    def learn(self, step: int, tensors: Tree) -> tuple[dict[int, float], Tree]:
        """At the holder: a step for each batch of the block; the losses of rounds that end with it."""
        losses: dict[int, float] = {}
        leaving: Tree = {}
        learning = [place for place, local in self.trials.items() if step < local.steps]
        contents = {
            (place, party): self._open(party, "embeddings", step, place, tensors, f"{place}/{party}")
            for place in learning
            for party in self.session.others
        }
        read = {(place, party): read_tensors(party, content) for (place, party), content in contents.items()}
        for (place, party), embeddings in read.items():
            self.trials[place].check_embeddings(step, party, embeddings)
        self._stand_by(step, contents.values())  # only now: what cannot be used binds nobody
        for place in learning:
            local = self.trials[place]
            with torch_threads(threads_for(local.trial)):
                gradients, loss = local.learn(step, {party: read[place, party] for party in self.session.others})
            for party, own in gradients.items():
                leaving[f"{place}/{party}"] = self._sealed(party, "gradients", step, place, own)
            if loss is not None:
                losses[place] = loss
        self._write(step)
        return losses, leaving

    def _sealed(self, receiver: str, what: str, step: int, place: int, tensors: Sequence[Tensor]) -> Tensor:
        if not all(map(is_finite, tensors)):
            raise not_finite(self.session.site, f"its {what} of {self.trials[place].trial.arm}")
        content = bytes(pack({f"{number:06}": tensor.cpu() for number, tensor in enumerate(tensors)}))
        return as_tensor(self.session.channel.seal(receiver, route(what, self.number, step, place), content))

    def _open(self, sender: str, what: str, step: int, place: int, tensors: Tree, name: str) -> bytes:
        if name not in tensors:
            raise DeployError("coordinator", f"leaves out what {sender} sent", AGAIN)
        return self.session.channel.open(sender, route(what, self.number, step, place), as_bytes(tensors[name]))

    def _stand_by(self, step: int, contents: Iterable[bytes]) -> None:
        """A step is made with the contents that came for it first, and no others: its noise is always the same, and the
        difference of two answers would be without it."""
        digest = sha256(b"".join(sha256(content).digest() for content in contents)).digest()
        self.session.stand_by(STEP, f"{self.number} {step}", digest)

    def _write(self, step: int) -> None:
        """The step before stays too, until the answer to this one is written."""
        leaves: Tree = {}
        places: dict[str, Any] = {}
        for place, local in self.trials.items():
            parts, places[str(place)] = local.snapshot()
            leaves |= {f"{place}/{name}": leaf for name, leaf in tree.flatten(parts).items()}
        write_leaves(self._path(step), leaves, {"trials": places})
        for path in self._path(step).parent.glob("state-*.safetensors"):
            if path not in (self._path(step), self._path(step - 1)):
                path.unlink()
        self.step = step

    def _read(self, step: int) -> None:
        path = self._path(step)
        if not path.is_file():
            problem = "what it held after the last block is gone, without which it cannot go on to the same model"
            raise DeployError(self.session.site, problem, "Restore the folder `state` from a backup, or begin anew.")
        leaves, metadata = read_leaves(path)
        own = by_number(leaves)
        for place, local in self.trials.items():
            local.restore(step, tree.unflatten(own.get(place, {})), metadata["trials"][str(place)])
        self.step = step

    def _path(self, step: int) -> Path:
        return self.session.folder / f"wave-{self.number:05}" / f"state-{step:06}.safetensors"


def route(what: str, wave: int, step: int, place: int) -> str:
    """Where a sealed message belongs: it can be opened nowhere else."""
    return f"{what} {wave} {step} {place}"


def read_tensors(sender: str, content: bytes) -> list[Tensor]:
    try:
        tensors = load(content)
    except SafetensorError:
        raise bad_answer(sender, "sent numbers that cannot be read", "Install the same version everywhere.") from None
    return [tensors[name] for name in sorted(tensors)]


def check_shapes(
    sender: str, tensors: Sequence[Tensor], expected: Sequence[tuple[int, ...]], dtype: torch.dtype
) -> None:
    if [(tuple(tensor.shape), tensor.dtype) for tensor in tensors] != [(shape, dtype) for shape in expected]:
        problem = "sent other numbers than this block has; its rows may be others"
        raise bad_answer(sender, problem, "Install the same version of wardround everywhere, and begin a new run.")
    if not all(map(is_finite, tensors)):
        raise not_finite(sender, "what it sent")


def not_finite(party: str, what: str) -> SiteError:
    problem = f"{what} has numbers that are not finite"
    return bad_answer(party, problem, "Lower the learning rate, or leave the arm out; then begin a new run.")
