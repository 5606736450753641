"""Trials on hospitals of the named generator."""

from typing import Any

import torch

from tests.small_federations import site
from wardround.algorithms import ALGORITHMS
from wardround.data.site import Site
from wardround.engines import serial
from wardround.models import MODELS, Shape
from wardround.screening import Evidence
from wardround.screening.clean_hospitals import clean_hospitals
from wardround.study.schema import Screening, Training
from wardround.tasks import class_task
from wardround.training.round_record import RoundRecord
from wardround.training.rounds import rounds, start
from wardround.training.trial import Trial


def clean_sites(seed: int, hospitals: int = 10, inverted: int = 0) -> tuple[Site, ...]:
    return tuple(
        site(f"site-{number + 1:02}", torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        for number, (x, y) in enumerate(clean_hospitals(seed, hospitals, inverted))
    )


def clean_trial(
    seed: int,
    hospitals: int = 10,
    inverted: int = 0,
    model: str = "logistic",
    algorithm: str = "fedavg",
    policy: Any = "notice",
    **training: Any,
) -> Trial:
    sites = clean_sites(seed, hospitals, inverted)
    shape = Shape((sites[0].train.x.shape[1],), class_task(2))
    settings: dict[str, Any] = {"rounds": 20, "batch_size": 32, "lr": 0.1, **training}
    built = MODELS[model]()(shape)
    known, screening = Training(**settings), Screening(policy)
    return Trial("arm", seed, ALGORITHMS[algorithm](), built, known, sites, sites, seed, seed, screening=screening)


def records_of(trial: Trial) -> list[RoundRecord]:
    return [record for _, record in rounds(start(trial), trial, serial.train_sites)]


def named_in(trial: Trial) -> dict[str, tuple[int, str]]:
    """Round and rule, by site."""
    return {
        name: (record.round, Evidence.of_numbers(numbers).rule)
        for record in records_of(trial)
        for name, numbers in record.named.items()
    }
