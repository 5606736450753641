"""Parties with different columns of the same patients, as files; and a study of them, deployed in one process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from tests.deployment.in_process_federation import ByHand, OpenGate, answering, key, public
from wardround.core.seeds import generator
from wardround.core.tree import Tree
from wardround.data.sources import SOURCES, Source
from wardround.deployment import Step
from wardround.deployment.common.messaging import Messenger
from wardround.deployment.coordinating.coordinator import Coordinator
from wardround.deployment.site.answering import SiteWork
from wardround.deployment.vertical.vertical_topology import coordinator_of_parties
from wardround.engines.serial import SERIAL
from wardround.engines.split.split import split_rounds
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan, load_plan
from wardround.study.schema import Study
from wardround.training.trial import Run, Trial

PATIENTS = 90
HEADS = {"clinic": "pid,age,bmi,ward,sick", "lab": "number,crp,lactate,kind", "heart": "pid,ef,rhythm"}
KEYS = {"lab": "number"}


def write(folder: Path, parties: tuple[str, ...] = ("clinic", "lab"), known: float = 1.0) -> dict[str, Path]:
    """A file for each party; the clinic's has the outcome. Others have a share of its patients, in another order."""
    rng = generator(3, "parties of a test")
    age, bmi, crp, lactate, ejection = rng.normal(0, 1, (5, PATIENTS))
    sick = age + crp + ejection + rng.normal(0, 0.7, PATIENTS) > 0
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    lines["clinic"] = [
        f"P{n:04},{60 + 12 * age[n]:.3f},{27 + 4 * bmi[n]:.3f},{'ab'[n % 2]},{'yes' if sick[n] else 'no'}"
        for n in range(PATIENTS)
    ]
    others: dict[str, Callable[[int], str]] = {
        "lab": lambda n: f"P{n:04},{5 + 2 * crp[n]:.3f},{'' if n % 7 == 0 else f'{2 + lactate[n]:.3f}'},{'xyz'[n % 3]}",
        "heart": lambda n: f"P{n:04},{55 + 9 * ejection[n]:.3f},{'sr' if n % 4 else 'af'}",
    }
    for party, line in others.items():
        has = [int(n) for n in rng.permutation(PATIENTS) if rng.random() <= known]
        lines[party] = [line(n) for n in has]
    lines["lab"].append("S0001,5.5,2.5,x")  # a patient whom nobody else has
    return {party: _file(folder / f"{party}.csv", HEADS[party], lines[party]) for party in parties}


def _file(path: Path, head: str, lines: list[str]) -> Path:
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


def document(files: Mapping[str, Path], **changes: Any) -> dict[str, Any]:
    """A short study of all columns. A table in `changes` is joined to the one that is there."""
    content: dict[str, Any] = {
        "name": "parties",
        "data": {
            "source": "csv-parties",
            "files": {party: str(path) for party, path in files.items()},
            "patient": "pid",
            "patients": {party: name for party, name in KEYS.items() if party in files},
            "target": "sick",
        },
        "topology": {"kind": "vertical", "parties": {party: ["*"] for party in files}},
        "model": {"kind": "joined", "embedding": 4, "hidden": 8},
        "training": {"rounds": 2, "local_epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.9},
        "evaluation": {"seeds": {"first": 1, "count": 1}, "validation_share": 0.15},
        "deployment": {"smallest_cell": 1},
        "arms": [{"algorithm": "split"}],
    }
    for name, value in changes.items():
        merged = isinstance(value, dict) and name in content
        content[name] = {**content[name], **value} if merged else value
    return content


def own_file(party: str, path: Path, **changes: Any) -> Source:
    """As a party's site file opens it."""
    target = {"target": "sick"} if party == "clinic" else {}
    return SOURCES["csv-parties"](**{"files": {party: path}, "patient": KEYS.get(party, "pid"), **target, **changes})


@dataclass
class Parties:
    folder: RunFolder
    transport: ByHand
    coordinator: Coordinator
    open_site: Callable[[str], SiteWork]
    steps: list[Step] = field(default_factory=list)

    @property
    def messenger(self) -> Messenger:
        return self.coordinator.messenger

    def run(self) -> RunFolder:
        for step in self.coordinator.run():
            self.steps.append(step)
        return self.folder

    def restart_site(self, name: str) -> None:
        """As if its process had died: what it knows is what its folder holds."""
        self.transport.sites[name] = self.open_site(name)

    def restart_coordinator(self) -> "Parties":
        old, transport = self.messenger, ByHand(self.transport.sites)
        arguments = (old.study, old.families, list(old.sites), old.folder, transport, old.signer, old.keys)
        return Parties(self.folder, transport, coordinator_of_parties(Messenger(*arguments)), self.open_site)

    def site_folder(self, site: str) -> Path:
        (own_folder,) = [path for path in (self.folder.path.parent / "sites" / site).iterdir() if path.is_dir()]
        return own_folder

    def part(self, site: str, arm: str, seed: int) -> Tree:
        return load_file(self.site_folder(site) / "models" / arm / f"seed-{seed}.safetensors")


def federation(
    content: Mapping[str, Any] | Study,
    folder: Path,
    files: Mapping[str, Path],
    gates: Mapping[str, OpenGate] | None = None,
    sources: Mapping[str, Callable[[], Source]] | None = None,
    notices: dict[str, list[str]] | None = None,
) -> Parties:
    study, families = load_study(content)
    opened = {party: partial(own_file, party, path) for party, path in files.items()} | dict(sources or {})
    keys = {party: public(party) for party in files}
    lines_by_site = {} if notices is None else notices

    def open_site(name: str) -> SiteWork:
        gate = (gates or {}).get(name) or OpenGate(study)
        state = folder / "sites" / name
        lines_by_site.setdefault(name, [])
        arguments = (families, opened[name]().load, public("coordinator"), lines_by_site[name].append, keys)
        return answering(name, state, gate, *arguments)

    transport = ByHand({name: open_site(name) for name in files})
    run_folder = RunFolder(folder / "run")
    ends = study, families, list(files), run_folder, transport, key("coordinator"), keys
    coordinator = coordinator_of_parties(Messenger(*ends))
    return Parties(run_folder, transport, coordinator, open_site)


def simulated(content: Mapping[str, Any]) -> tuple[Plan, dict[tuple[str, int], tuple[Trial, Run]]]:
    """All arms with all seeds on one machine, where all files are."""
    plan = load_plan(*load_study(content))
    runs = {}
    for arm in plan.study.arms:
        for seed in plan.study.evaluation.seeds:
            trial = plan.trial(arm, seed)
            run = SERIAL.start([trial])
            for after, _ in split_rounds([trial], run):
                run = after
            runs[arm.name, seed] = trial, run
    return plan, runs


def scores_by_row(rows: np.ndarray, score: np.ndarray) -> dict[int, float]:
    return {int(row): float(value) for row, value in zip(rows, score, strict=True)}
