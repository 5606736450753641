"""A study deployed and simulated, compared bit by bit: what is shared, what each site predicts with, what it keeps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.deployment import hospital_files as hospitals
from tests.deployment import number_hospitals
from tests.deployment import radiology_sites as radiology
from tests.deployment.in_process_federation import Federation, federation, kind_of, session_of
from tests.small_federations import assert_same_tree
from wardround.core import tree
from wardround.core.settings import Factory
from wardround.core.tree import Tree
from wardround.data.sources import Source
from wardround.engines import serial
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.checkpoint import read_leaves
from wardround.runs.plan import Plan, load_plan
from wardround.runs.prediction_tables import saved_leaves
from wardround.training.rounds import rounds, site_model, start
from wardround.training.trial import Run, Trial

Sources = Mapping[str, Callable[[], Source]]
KNOWN: dict[str, Factory] = {
    "wards": hospitals.wards,
    "dots": hospitals.all_dots,
    "radiographs": radiology.all_of_them,
    "numbers": number_hospitals.numbers,
}


@dataclass(frozen=True)
class Both:
    deployed: Federation
    plan: Plan
    memories: Mapping[str, Tree]  # of each site, as its file had it when the run was over: WAVE/TRIAL/...

    def site_folder(self, site: str) -> Path:
        (folder,) = [path for path in (self.deployed.folder.path.parent / "sites" / site).iterdir() if path.is_dir()]
        return folder


def deploy(
    document: Mapping[str, Any], folder: Path, sources: Sources | None = None, models: dict[str, Factory] | None = None
) -> Both:
    sources = hospitals.at_sites() if sources is None else sources
    network = federation(document, folder, sources, models=models, known_sources=KNOWN)
    memories: dict[str, Tree] = {}

    def look(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "evaluate":  # a wave is over; the next one's first message removes its memory
            memories[site] = {**memories.get(site, {}), **kept_memories(folder / "sites" / site)}
        return answer

    network.transport.after = look
    network.run()
    return Both(network, load_plan(*load_study(document, models=models, sources=KNOWN)), memories)


def kept_memories(state: Path) -> Tree:
    """As files hold them; one a wave at most, because what did not count was removed."""
    leaves: Tree = {}
    for path in sorted(state.glob("*/wave-*/memory-*.safetensors")):
        wave = int(path.parent.name.removeprefix("wave-"))
        assert not any(name.startswith(f"{wave}/") for name in leaves)
        leaves |= {f"{wave}/{name}": leaf for name, leaf in read_leaves(path)[0].items()}
    return leaves


def simulated(trial: Trial) -> Run:
    """All rounds on the reference engine."""
    run = start(trial)
    for after, _ in rounds(run, trial, serial.train_sites):
        run = after
    return run


def assert_parity(
    document: Mapping[str, Any], folder: Path, sources: Sources | None = None, models: dict[str, Factory] | None = None
) -> Both:
    both = deploy(document, folder, sources, models)
    waves = session_of(next(iter(both.deployed.transport.sites.values()))).waves
    places = {member: (w, n) for w, wave in enumerate(waves) for n, member in enumerate(wave)}
    for arm in both.plan.study.trained_arms:
        for seed in both.plan.study.evaluation.seeds:
            trial = both.plan.trial(arm, seed)
            run = simulated(trial)
            at = f"{arm.name}, seed {seed}"
            if arm.held_out is None:
                shared = saved_leaves(replace(run, memories={}))
                assert_same_tree(both.deployed.folder.load_model(arm.name, seed), shared, part=at)
            assert_sites_agree(both, trial, run, places[arm.name, seed], at)
    return both


def assert_sites_agree(both: Both, trial: Trial, run: Run, place: tuple[int, int], at: str) -> None:
    trainers = [site.name for site in trial.sites]
    for name in (site.name for site in trial.scored):
        stored = both.site_folder(name) / "models" / trial.arm / f"seed-{trial.seed}.safetensors"
        params, buffers = site_model(trial, run, trainers.index(name) if name in trainers else 0)
        posterior = {} if trial.algorithm.posterior is None else tree.flatten(trial.algorithm.posterior(run.server))
        assert_same_tree(load_file(stored), {**params, **buffers, **posterior}, part=f"{at}, model of {name}")
    for name in trainers:
        prefix = f"{place[0]}/{place[1]}/"
        memory = {n.removeprefix(prefix): leaf for n, leaf in both.memories[name].items() if n.startswith(prefix)}
        assert_same_tree(memory, run.memories[name].leaves(), part=f"{at}, memory of {name}")
