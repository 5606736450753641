"""A study from a few options of a command: which data, how many sites, how unlike, which mu, how many rounds.

What a script for federated learning takes as flags becomes a study file, so that the next step is a study.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wardround.core.atomic_files import write_atomically
from wardround.core.errors import StudyError, suggest
from wardround.data.imaging.arrow_tables import is_data_set
from wardround.data.imaging.labels import is_table
from wardround.data.split_files.manifest import is_split, sites_at
from wardround.runs.catalog import families as known_families
from wardround.runs.catalog import load_study
from wardround.runs.drafting.study_text import plain_text
from wardround.runs.plan import load_plan
from wardround.study.facts import SourceFacts, facts_of
from wardround.study.parser import Families
from wardround.tasks import Task

HEADER = "# Written by `wardround simulate`. Every line may be changed; all keys: docs/reference/study-file.md"
SPLIT = "split-on-disk"  # the source that reads what `wardround data split` wrote
SITES = 10
ROWS_OF_SITE = 50  # fewer are not cut up further by `init`
IMAGE_TRAINING = {"batch_size": 32, "lr": 0.05}  # of the shipped study of a small network, fashion-dirichlet


@dataclass(frozen=True)
class Flags:
    data: str
    sites: int | None = None
    alpha: float | None = None
    mu: tuple[float, ...] = ()
    rounds: int | None = None
    seed: int | None = None


def data_of(data: str, known: Mapping[str, object] | None = None, base: Path | None = None) -> dict[str, Any]:
    """[data] of a study: a source by its name, or the one that reads this path. Paths begin at `base`."""
    from wardround.data.sources import SOURCES

    sources = SOURCES if known is None else known
    if data in sources:
        return {"source": data}
    path = Path(data)
    if not path.exists():
        raise StudyError(f"--data {data}", "no such file, folder or source", suggest(data, sources, "Sources"))
    written = str(path.absolute()) if base is None else os.path.relpath(path.absolute(), base.absolute())
    if is_split(path):
        return {"source": SPLIT, "path": written, **_declared(sites_at(path)[1].task)}
    if path.is_file() and is_table(path):
        problem = "is a table, and which column is predicted is not known"
        remedy = f"Run `wardround init {data} --target COLUMN`, then `wardround simulate study.toml`."
        raise StudyError(f"--data {data}", problem, remedy)
    return {"source": "hugging-face" if is_data_set(path) else "images", "path": written}


def _declared(task: Task) -> dict[str, Any]:
    """What the text of a study must say of the outcome."""
    if task.outcomes:
        numbers = {name: part.kind for name, part in task.outcomes.items() if part.answers == "number"}
        return {"outcomes": list(task.outcomes), **({"task": numbers} if numbers else {})}
    return {"task": task.kind} if task.answers == "number" else {}


def sites_of(sites: int | None, alpha: float | None) -> dict[str, Any]:
    """[sites] of a study, as far as it was said."""
    kind = {} if alpha is None else {"partition": "dirichlet", "alpha": alpha}
    return kind if sites is None else {**kind, "count": sites}


def study_of(flags: Flags, families: Families, base: Path | None = None) -> dict[str, Any]:
    """The content of a study file."""
    data = data_of(flags.data, families.sources, base)
    facts = facts_of(SourceFacts, families.sources[data["source"]], data)
    on_disk = data["source"] == SPLIT
    if on_disk and (flags.sites is not None or flags.alpha is not None):
        problem = "the split on disk has its sites already"
        raise StudyError("--sites, --alpha", problem, "Leave both out, or write another split: wardround data split.")
    images = facts.images or (on_disk and sites_at(Path(flags.data))[1].image is not None)
    sites = {"partition": "iid", "count": SITES, **sites_of(flags.sites, flags.alpha)}
    training = {"rounds": flags.rounds} if flags.rounds else {}
    return {
        "name": _name(flags.data) if "path" in data else data["source"],
        "question": "How good is one model that all sites train together?",
        "data": {**data, **({"scale": "ranges"} if images else {})},
        "sites": {"partition": "by-hospital"} if on_disk else sites,
        **({"model": {"kind": "cnn"}} if images else {}),
        "training": {**training, **(IMAGE_TRAINING if images else {})},
        "evaluation": {
            "seeds": {"first": 42 if flags.seed is None else flags.seed, "count": 1},
            **({"split": "given"} if on_disk else {}),
        },
        "arms": _arms(flags.mu),
    }


def is_images(path: Path) -> bool:
    """An .npz file, a folder or a split: what `init` and `simulate` take as it is."""
    return path.is_dir() or path.suffix.lower() == ".npz" or is_split(path)


def _name(path: str) -> str:
    """Of the run's folder: that of the data, in the letters that a study's name may have."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).absolute().name.split(".")[0]).lstrip("._-")
    return plain or "simulation"


def _arms(mu: Sequence[float]) -> list[dict[str, Any]]:
    """FedProx with mu 0 is FedAvg."""
    plain = [{"algorithm": "fedavg"}] if not mu or 0 in mu else []
    above = [value for value in mu if value]
    return [*plain, *([{"algorithm": "fedprox", "mu": above[0] if len(above) == 1 else above}] if above else [])]


def write_study(content: Mapping[str, Any], path: Path) -> Path:
    """One that was written so before is replaced; any other file is left alone."""
    try:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(HEADER):
            problem = "is there already, and `wardround simulate` did not write it"
            raise StudyError(str(path), problem, "Run that study by its name, or move it away.")
        write_atomically(path, f"{HEADER}\n{plain_text(content)}".encode())
    except OSError as error:
        raise StudyError(str(path), f"cannot be written ({error.strerror})", "Name another --output.") from None
    return path


IMAGES_HEADER = "# Written by `wardround init`; every line may be changed. All keys: docs/reference/study-file.md"


def init_images(data: Path, out: Path, force: bool = False) -> tuple[Path, list[str]]:
    """Write a study of images or of a split that asks whether training together helps, and say what it assumes. It has
    been checked as `wardround check` does it."""
    if out.is_dir() or (out.exists() and not force):
        raise StudyError(str(out), "is there already", "Give --force to replace it, or another --out.")
    families = known_families()
    content = study_of(Flags(str(data)), families, out.absolute().parent)
    content["question"] = "Is training together better than each site alone?"
    content["arms"] = [{"algorithm": "local"}, {"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.1}]
    path = out.absolute()
    plan = load_plan(*load_study({**content, "data": _from(content["data"], path.parent)}))
    records = plan.cohort_of(plan.study.arms[0]).records
    given = records.split is not None
    count = min(SITES, max(2, len(records) // ROWS_OF_SITE))
    several = len(records.hospitals) > 1
    content["sites"] = {"partition": "by-hospital"} if several else {"partition": "iid", "count": count}
    content["evaluation"] |= {"split": "given"} if given else {"test_share": 0.2, "validation_share": 0.1}
    try:
        write_atomically(path, f"{IMAGES_HEADER}\n{plain_text(content)}".encode())
    except OSError as error:
        raise StudyError(str(out), f"cannot be written ({error.strerror})", "Give another --out.") from None
    path.chmod(0o644)  # no patient's value is in it, and others may run it
    sites = content["sites"]
    drawn = f"the images are of one place: {sites.get('count')} sites are drawn from them by chance"
    named = f"{len(records.hospitals)} hospitals, as the data name them"
    return out, [
        f"{len(records)} images, {records.task.words}",
        drawn if sites["partition"] == "iid" else named,
        "the split that the data come with" if given else "a fifth of each site's images are for testing",
        "one seed: images train slowly. Raise `seeds` once a run has shown how long it takes",
    ]


def _from(data: Mapping[str, Any], base: Path) -> dict[str, Any]:
    return {**data, **({"path": str(base / data["path"])} if "path" in data else {})}
