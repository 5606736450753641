"""Studies and kits for the tests of a deployment."""

from pathlib import Path
from typing import Any

from wardround.deployment import SiteFile, provision
from wardround.runs.catalog import load_study
from wardround.study.schema import Study

SITES = ("north", "south", "east")


def study(**changes: Any) -> Study:
    """Two arms for hospitals that bring their own rows; `changes` are top-level tables of the file."""
    document: dict[str, Any] = {
        "name": "trial",
        "question": "Does it help?",
        "data": {"source": "at-sites"},
        "training": {"rounds": 10},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
    }
    return load_study({**document, **changes})[0]


def site_file(folder: Path, data: str = 'source = "heart"\nhospitals = ["va"]', policy: str = "") -> SiteFile:
    """A hospital's kit with made-up keys: for what does not look into them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ca.pem", "coordinator.pub", "site.key"):
        (folder / name).write_text("made up")
    (folder / "site.key").chmod(0o600)
    address = 'name = "north"\ncoordinator = "127.0.0.1:9090"\n'
    (folder / "site.toml").write_text(f"{address}[data]\n{data}\n[policy]\n{policy}\n")
    return SiteFile.load(folder / "site.toml")


def kits(out: Path, **changes: Any) -> Path:
    return provision(study(**changes), SITES, out)
