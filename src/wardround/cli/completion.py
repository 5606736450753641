"""What a shell completes: shipped studies, study files, and folders of runs. Nothing heavy is imported."""

from importlib.resources import files
from pathlib import Path

MARK = "study.toml"  # a folder with it is a run's
USUAL = Path("runs")  # where runs are made


def complete_study(incomplete: str) -> list[str]:
    shipped = [path.stem for path in sorted(Path(str(files("wardround").joinpath("studies"))).glob("*.toml"))]
    return [name for name in shipped if name.startswith(incomplete)] + _paths(incomplete, ".toml")


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs in `runs` come first, whole, so that one step does where they usually are."""
    usual = [str(path) for path in _listed(USUAL) if (path / MARK).is_file() and str(path).startswith(incomplete)]
    return usual + [path for path in _paths(incomplete, "") if path.rstrip("/") not in usual]


def _paths(incomplete: str, suffix: str) -> list[str]:
    """Folders, and files that end so, none where there is no suffix."""
    folder, _, start = incomplete.rpartition("/")
    base = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".")
    prefix = f"{folder}/" if folder or incomplete.startswith("/") else ""
    fitting = [path for path in _listed(base) if path.name.startswith(start) and not path.name.startswith(".")]
    return [
        f"{prefix}{path.name}/" if path.is_dir() else f"{prefix}{path.name}"
        for path in fitting
        if path.is_dir() or (suffix and path.suffix == suffix)
    ]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
