"""What a user does with wardround, verb by verb, and which extra each step needs."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import typer

from tests.data.nih_folders import nih_folder
from tests.data.test_chest_xray_dicom import written
from tests.extras.environments import EXTRAS
from wardround.cli.main import app
from wardround.core.errors import MachineError
from wardround.runs.catalog import load_study, shipped_studies
from wardround.study.schema import Privacy, Study

SMALL = """name = "small"
[data]
source = "heart"
hospitals = ["cleveland", "hungarian", "switzerland"]
schema = "own"
[model]
kind = "adapter"
latent = 5
hidden = [7]
[training]
rounds = 2
local_epochs = 1
[evaluation]
validation_share = 0.2
seeds = { first = 5, count = 1 }
[[arms]]
algorithm = "fedavg"
[[arms]]
algorithm = "local"
"""
SECURE = SMALL.replace('"small"', '"secure"').replace('"fedavg"', '"fedavg"\nprivacy.secure_sum = "on"')
PARTIES = """name = "parties"
[data]
source = "chest-xray"
size = 32
phantoms = 400
[sites]
partition = "iid"
count = 2
[training]
rounds = 1
[topology.parties]
radiology = ["image"]
records = ["age", "sex", "view"]
[evaluation]
validation_share = 0.2
seeds = { first = 5, count = 1 }
[[arms]]
algorithm = "fedavg"
model = { kind = "cnn", channels = [2, 3], hidden = 8, kernel = 3, norm = "group" }
[[arms]]
algorithm = "split"
topology.kind = "vertical"
model = { kind = "joined", embedding = 3, hidden = 4 }
"""
HOSPITAL = 'name = "long-beach"\n[data]\nsource = "heart"\nhospitals = ["va"]\n'
BOTH = "deploy,privacy"  # no single extra
BAYESIAN = (
    "--set evaluation.validation_share=0.2 --set tuning.method=bayesian --set tuning.budget=3 "
    "--set tuning.space.training.lr=[0.01,0.02,0.05,0.1]"
)
WITH_SERVER = ("serve", "deploy")  # Flower brings FastAPI and uvicorn too
# studies whose data are not shipped: what is said of them depends on the machine
DATA_NOT_SHIPPED = {"cxr-nih", "fashion-byzantine", "fashion-dirichlet"}
QUICK = {  # so small that looking at them takes seconds
    "cxr-fedprox": ("--quick", "--set", "data.rows=600"),
    "cxr-private": ("--quick", "--set", "data.phantoms=600"),
    "five-ways": ("--quick", "--set", "data.phantoms=600"),
    "ecg-rhythms": ("--quick", "--set", "data.rows=200"),
    "fedprox-stragglers": ("--quick", "--set", "data.largest=60"),
    "heart-deployed": (),
    "heart-deployed-private": (),
}


@dataclass(frozen=True)
class Step:
    words: tuple[str, ...]
    works_with: frozenset[str] | None = None  # any of these extras; None: it needs none

    def works(self, extra: str | None) -> bool:
        return self.works_with is None or extra in self.works_with


def step(text: str, *extras: str) -> Step:
    return Step(tuple(text.split()), frozenset(extras) if extras else None)


def every_help() -> list[Step]:
    def below(command: click.Command, path: tuple[str, ...]) -> Iterator[Step]:
        yield Step((*path, "--help"))
        if isinstance(command, click.Group):
            for name, subcommand in command.commands.items():
                yield from below(subcommand, (*path, name))

    return list(below(typer.main.get_command(app), ()))


def needs_privacy(study: Study) -> bool:
    return any(arm.privacy != Privacy() for arm in study.arms)


def every_check() -> list[Step]:
    steps = []
    for name in shipped_studies():
        if name not in DATA_NOT_SHIPPED:
            words = ("check", name, *QUICK.get(name, ("--quick",)))
            steps.append(Step(words, frozenset({"privacy"}) if needs_privacy(load_study(name)[0]) else None))
    return steps


def every_verb(extra: str | None) -> list[Step]:
    """In an empty folder that `prepare` has filled. Files that one step makes are there for the next."""
    run, images = "runs/small-*", "runs/parties-*"
    steps = [
        step("doctor --json"),
        step("studies"),
        step("data list"),
        step("data describe heart"),
        step("data describe pictures"),
        step("data split heart-fedprox --out split"),
        step("run small.toml --out runs"),
        step("check small.toml --time"),
        step(f"resume {run}"),
        step(f"report {run}"),
        step(f"results {run}"),
        step(f"plots {run}"),
        step(f"log verify {run}"),
        step(f"attack {run} --arm fedavg --shadows 0"),
        step(f"bundle {run} --arm fedavg --site cleveland --out model"),
        step(f"bundle {run} --arm fedavg --site cleveland --out other --onnx", "onnx"),
        step("bundles add model --registry registry"),
        step("bundles list --registry registry"),
        step("bundles verify --registry registry"),
        step("predict model split/site-01.csv --out scores.csv"),
        step(f"share {run} --arm fedavg --out shared"),
        step("adapt shared hospital.toml --quick --repeats 1 --epochs 1 --out adapted"),
        step("run parties.toml --out runs --no-report"),
        step(f"report {images}"),
        step(f"compare {run} {images}"),
        step(f"bundle {images} --arm fedavg --site site-01 --out pictured"),
        step("predict pictured pictures/images_001/images --out pictures.csv"),
        step("predict pictured dicoms --out dicoms.csv", "imaging"),
        step("check cxr-fedprox --quick --set data.rows=600 --set model.kind=resnet", "imaging"),
        step(f"check small.toml {BAYESIAN}", "tuning"),
        step("privacy plan heart-private --quick", "privacy"),
        step("run heart-private --quick --set training.rounds=1 --out private --no-report", "privacy"),
        step("run secure.toml --out runs --no-report", "privacy", "deploy"),
        step("provision new heart-deployed --sites a,b,c --out kits", "deploy", "privacy"),
        step("demo", "deploy"),
        step("demo --private", BOTH),
    ]
    if extra != "deploy":  # with it, `demo` runs all three
        steps += [step(f"{verb} nowhere", "deploy") for verb in ("coordinate --kit here", "join", "region")]
    if extra not in WITH_SERVER:  # with it, `serve` would not end
        steps.append(step("serve model", *WITH_SERVER))
    return steps


def prepare(folder: Path) -> None:
    """Files that the steps name."""
    (folder / "small.toml").write_text(SMALL)
    (folder / "parties.toml").write_text(PARTIES)
    (folder / "secure.toml").write_text(SECURE)
    (folder / "hospital.toml").write_text(HOSPITAL)
    nih_folder(folder / "pictures")
    (folder / "dicoms").mkdir()
    written(folder / "dicoms" / "one.dcm", np.arange(1024, dtype=np.uint8).reshape(32, 32))


def done_in(python: Path, folder: Path, steps: Sequence[Step], imports: bool = False) -> dict[str, Any]:
    """All steps by one process of an environment, in this folder."""
    asked = json.dumps({"commands": [task.words for task in steps], "imports": imports})
    script = Path(__file__).with_name("commands.py")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(
        [str(python), str(script)],
        input=asked,
        cwd=folder,
        env=clean | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


def wrong(extra: str | None, steps: Sequence[Step], done: Sequence[dict[str, Any]]) -> list[str]:
    """Steps that neither do what was asked nor say in one line which extra they need."""
    problems = []
    for task, outcome in zip(steps, done, strict=True):
        expected = outcome["code"] == 0 if task.works(extra) else says_what_to_install(extra, outcome)
        if not expected or "Traceback" in outcome["shown"]:
            problems.append(f"{' '.join(task.words)}: exit code {outcome['code']}\n{outcome['shown'][-2000:]}")
    return problems


def says_what_to_install(extra: str | None, outcome: dict[str, Any]) -> bool:
    lines = outcome["shown"].splitlines()
    named = [name for name in EXTRAS if any(f"pip install 'wardround[{name}]'" in line for line in lines)]
    return outcome["code"] == MachineError.exit_code and len(named) == 1 and named[0] != extra
