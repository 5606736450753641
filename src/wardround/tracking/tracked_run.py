"""A complete run as trackers want it: settings, figures and curves by name, for each arm and each seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import RunError
from wardround.runs.folder import RunFolder
from wardround.runs.records import read_records
from wardround.study.sweeps import NAME
from wardround.training.round_record import RoundRecord

MEASURED = ("loss", "update_norm", "divergence", "change", "bytes_down", "bytes_up", "seconds")
# Paths, and words of single files, are in study.toml; as settings by which runs are compared they say nothing.
UNTOLD = ("data.files", "data.path", "data.patients", "data.labels")
ARTIFACTS = ("report.html", "results.json", "study.toml")

Curves = Mapping[str, Mapping[int, float]]  # by name, then by round


@dataclass(frozen=True)
class TrackedSeed:
    seed: int
    curves: Curves


@dataclass(frozen=True)
class TrackedArm:
    name: str
    params: Mapping[str, str]
    final: Mapping[str, float]  # means over seeds: of all rows, and of each site
    curves: Curves  # means over seeds
    seeds: tuple[TrackedSeed, ...]


@dataclass(frozen=True)
class TrackedRun:
    folder: Path
    name: str
    question: str
    answer: str
    tags: Mapping[str, str]
    began: datetime
    arms: tuple[TrackedArm, ...]
    artifacts: tuple[Path, ...] = field(default=())

    @property
    def id(self) -> str:
        """Another for each repetition of a run."""
        return f"{self.folder.resolve().name} {self.began.isoformat()}"


def read_run(path: Path) -> TrackedRun:
    folder = RunFolder(path)
    results, study = folder.read_json("results.json"), folder.read_study()
    environment = folder.read_json("environment.json")
    with folder.checked_content():
        began = datetime.fromisoformat(environment["time"])
        records: dict[str, dict[int, list[RoundRecord]]] = {}
        for record in read_records(path):
            records.setdefault(record.arm, {}).setdefault(record.seed, []).append(record)
        arms = tuple(
            _arm(name, content, study, records.get(name, {}), results["primary_metric"])
            for name, content in results["arms"].items()
        )
        tags = {
            "question": results["study"]["question"],
            "answer": " ".join(sentence["text"] for sentence in results["answer"]),
            "hash": results["study"]["hash"],
            "primary_metric": results["primary_metric"],
            "seeds": str(len(results["seeds"])),
            "deployed": str(results["deployed"]).lower(),
            "version": environment["versions"]["wardround"],
        }
        answer = tags["answer"]
        if not arms:
            raise RunError(str(path), "has no arm", "Run the study again with --again.")
    figures = sorted((path / "figures").glob("*.png")) if (path / "figures").is_dir() else []
    artifacts = [path / name for name in ARTIFACTS if (path / name).is_file()]
    return TrackedRun(
        path,
        results["study"]["name"],
        tags["question"],
        answer,
        tags,
        began,
        arms,
        (*artifacts, *figures),
    )


def _arm(
    name: str,
    content: Mapping[str, Any],
    study: Mapping[str, Any],
    by_seed: Mapping[int, list[RoundRecord]],
    primary: str,
) -> TrackedArm:
    seeds = tuple(TrackedSeed(seed, _curves(records)) for seed, records in sorted(by_seed.items()))
    return TrackedArm(name, _params(content, study), dict(_final(content, primary)), _mean(seeds), seeds)


def _params(content: Mapping[str, Any], study: Mapping[str, Any]) -> dict[str, str]:
    """Settings of the study, and of the arm over them."""
    named = (arm for arm in study["arms"] if arm.get("name", arm.get("algorithm")) == content["family"])
    own = {key: value for key, value in next(named, {}).items() if key not in ("name", "algorithm")}
    algorithm = dict(content["algorithm"] or {})
    own |= {"algorithm": algorithm.pop("name", ""), **algorithm}  # a swept value is the arm's own there
    shared = {key: value for key, value in study.items() if key not in ("name", "question", "arms", "claims", "quick")}
    flat = dict(_flat({**shared, "arm": own}))
    return {
        key: value for key, value in flat.items() if value and not any(f"{key}.".startswith(f"{u}.") for u in UNTOLD)
    }


def _flat(content: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{before}{key}", ", ".join(map(str, value))
        else:
            yield f"{before}{key}", str(value)


def _final(content: Mapping[str, Any], primary: str) -> Iterable[tuple[str, float]]:
    for metric, figure in content["metrics"].items():
        for part in ("mean", "sd"):
            if _is_number(figure[part]):
                yield metric if part == "mean" else f"{metric}_sd", float(figure[part])
    if _is_number((content.get("within_sites") or {}).get("mean")):
        yield f"{primary}_within_sites", float(content["within_sites"]["mean"])
    for site, figures in content["sites"].items():
        for metric, figure in figures.items():
            if isinstance(figure, Mapping) and _is_number(figure.get("mean")):
                yield f"sites/{plain(site)}/{metric}", float(figure["mean"])
    for name in ("rounds", "bytes", "bytes_up", "bytes_down", "seconds"):
        if _is_number(content["cost"].get(name)):
            yield f"cost/{name}", float(content["cost"][name])


def _curves(records: Iterable[RoundRecord]) -> Curves:
    curves: dict[str, dict[int, float]] = {}
    for record in records:
        values = {name: getattr(record, name) for name in MEASURED} | dict(record.figures)
        for name, value in values.items():
            if _is_number(value):
                curves.setdefault(plain(name), {})[record.round] = float(value)
    return curves


def _mean(seeds: Iterable[TrackedSeed]) -> Curves:
    """Of each round, over the seeds that have it."""
    values: dict[str, dict[int, list[float]]] = {}
    for seed in seeds:
        for name, curve in seed.curves.items():
            for number, value in curve.items():
                values.setdefault(name, {}).setdefault(number, []).append(value)
    return {name: {number: float(np.mean(v)) for number, v in curve.items()} for name, curve in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def plain(name: str) -> str:
    """As both trackers take a name: letters, digits, `.`, `_`, `-`."""
    return (
        name
        if NAME.fullmatch(name)
        else "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)
    )
