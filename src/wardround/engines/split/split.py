"""Split learning in one process: the parties' exchange for one trial, message by message, as a deployment has it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wardround.core import seeds, tree
from wardround.core.threads import torch_threads
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
from wardround.privacy.dp.protection import seeded_streams
from wardround.training.optimisers import optimiser_for
from wardround.training.round_record import RoundRecord
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
    memories = {**run.memories, site.name: replace(run.memories[site.name], buffers=buffers)}
    after = replace(run, round=run.round + 1, server=tree.settle({**run.server, "params": params}), memories=memories)
    return after, RoundRecord(
        arm=trial.arm,
        seed=trial.seed,
        round=after.round,
        loss=holder.loss / holder.steps,
        sites=(site.name,),
        bytes_down=down,
        bytes_up=up,
        exchanges=exchanges,
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
