"""Split learning in one process: the parties' exchange for one trial, message by message, as a deployment has it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wardround.core import seeds, tree
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.data.augment import augmenter
from wardround.data.site import Rows
from wardround.engines.engine import Engine
from wardround.engines.serial import SERIAL, order_of
from wardround.engines.split.exchange import (
    LabelHolder,
    Labelled,
    Own,
    Party,
    bytes_of,
    cut_of,
    parts_of,
    protection,
    whole_of,
)
from wardround.models.joined import MISSING, TOP, below, numbers_of, presence
from wardround.models.model import SMALL_MODEL
from wardround.privacy.dp.noise import Stream
from wardround.privacy.dp.protection import seeded_streams
from wardround.training.local import Memory
from wardround.training.optimisers import optimiser_for
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import close
from wardround.training.trial import Run, Trial


def split_rounds(trials: Sequence[Trial], run: Run) -> Iterator[tuple[Run, list[RoundRecord]]]:
    trial = trials[0]
    while run.round < trial.training.rounds:
        with torch_threads(threads_for(trial)):
            run, record = split_round(trial, run)
        yield run, [record]


def threads_for(trial: Trial) -> int:
    """Parties take turns, so a second thread would mostly wait unless a step is long. Deployed parties use this
    too: the last bit of a sum depends on it."""
    return 1 if trial.model.size < SMALL_MODEL else torch.get_num_threads()


def split_round(trial: Trial, run: Run) -> tuple[Run, RoundRecord]:
    model, site, training = trial.model, trial.sites[0], trial.training
    cut = cut_of(model)
    apart, held = parts_of(cut, tree.for_convolutions(run.server)["params"])
    buffers_of, own_buffers = parts_of(cut, run.memories[site.name].buffers)
    optimiser, lr = optimiser_for(training), training.lr_in(run.round)
    balanced = training.class_weights == "balanced"
    weights = model.task.class_weights(site.train.labels).to(trial.dtype) if balanced else None
    holder = LabelHolder(model, cut, optimiser, held, own_buffers, lr, weights)
    streams = {party: seeded_streams(trial.batch_seed, run.round, party) for party in apart}
    parties = {
        party: Party(
            cut.bottoms[party],
            optimiser,
            leaves,
            buffers_of[party],
            lr,
            protection(trial.topology.embeddings, streams[party]("noise on embeddings")),
        )
        for party, leaves in apart.items()
    }
    up = down = exchanges = 0
    for block in blocks(trial, site.train, run.round, order_of(trial, site, run.round, training.local_epochs)):
        embeddings = {name: party.embed([own[name] for own, _ in block]) for name, party in parties.items()}
        gradients = holder.learn([labelled for _, labelled in block], embeddings)
        for name, party in parties.items():
            party.learn(gradients[name])
        up, down, exchanges = up + bytes_of(embeddings), down + bytes_of(gradients), exchanges + 1
    params = whole_of({name: party.params for name, party in parties.items()}, holder.params)
    buffers = whole_of({name: party.buffers for name, party in parties.items()}, holder.buffers)
    memories = {site.name: replace(run.memories[site.name], buffers=buffers)}
    loss = holder.loss / holder.steps
    taken = Exchanged(trial, run.round + 1, loss, (site.name,), down, up, exchanges, params, memories)
    return close(run, trial, (), taken)


@dataclass(frozen=True)
class Exchanged:
    """A round of parties, as the round function takes it in. `params` are none where they stay with the parties."""

    trial: Trial
    round: int
    loss: float
    sites: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    exchanges: int
    params: Tree = field(default_factory=dict)
    memories: Mapping[str, Memory] = field(default_factory=dict)

    def aggregate(self, server: State, noise: Stream | None = None) -> State:
        return {**server, "params": self.params} if self.params else server

    def record(self, server: State, down: int) -> RoundRecord:
        return RoundRecord(
            arm=self.trial.arm,
            seed=self.trial.seed,
            round=self.round,
            loss=self.loss,
            sites=self.sites,
            bytes_down=self.bytes_down,
            bytes_up=self.bytes_up,
            exchanges=self.exchanges,
        )


def blocks(
    trial: Trial, rows: Rows, round_number: int, order: Sequence[Tensor]
) -> Iterator[list[tuple[dict[str, Own], Labelled]]]:
    """Each party's part of a round's batches. Order, masks and augmentation are drawn as for a whole network."""
    model, together = trial.model, trial.topology.block
    cut = cut_of(model)
    mask_rng = seeds.generator(trial.batch_seed, "dropout", round_number, trial.sites[0].name)
    change = augmenter(
        trial.training.augment, seeds.generator(trial.batch_seed, "augment", round_number, trial.sites[0].name)
    )
    for start in range(0, len(order), together):
        block = []
        for batch in order[start : start + together]:
            x, y = rows.take(batch, trial.dtype, change)
            masks = {name: mask.to(x.device) for name, mask in model.masks(mask_rng, len(batch), trial.dtype).items()}
            own = {part.party: Own(numbers_of(part, x), below(masks, f"{part.party}.")) for part in cut.parts}
            top = {name: mask for name, mask in masks.items() if name.startswith((TOP, MISSING))}
            held = None if cut.labels is None else own.pop(cut.labels)
            block.append((own, Labelled(y, held, presence(cut.parts, x), top)))
        yield block


SPLIT: Engine[Run] = replace(SERIAL, rounds=split_rounds)
