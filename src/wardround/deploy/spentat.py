"""Where ledgers are: in a run folder, at a hospital, or by themselves."""

from pathlib import Path
from typing import get_args

from wardround.artifacts.folder import RunFolder
from wardround.artifacts.ledger import Part
from wardround.artifacts.spending import LEDGER, check_ledger
from wardround.errors import RunError, StudyError, suggest


def ledgers_of(place: Path) -> list[Path]:
    """A run folder's, a folder of runs', a site file's, or the file itself."""
    if place.is_dir():
        runs = [place] if (place / "results.json").is_file() else [file.parent for file in place.glob("*/results.json")]
        for run in runs:
            check_ledger(RunFolder(run))
        found = [place / LEDGER] if (place / LEDGER).is_file() else sorted(place.glob(f"*/{LEDGER}"))
        if found or (place / "results.json").is_file():
            return found
        raise RunError(str(place), f"has no {LEDGER}", "Name a run folder, a folder of runs, or a site file.")
    if place.suffix == ".toml" and place.is_file():
        from wardround.deploy.sitefile import SiteFile

        ledger = SiteFile.load(place).state / LEDGER
        return [ledger] if ledger.is_file() else []
    if not place.is_file():
        raise RunError(str(place), "no such file or folder", "Name a run folder, a site file or a ledger.")
    return [place]


def parts_of(text: str) -> list[Part]:
    known = get_args(Part)
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            raise StudyError("--by", f"{word!r} is nothing that a ledger is divided by", suggest(word, known, "Words"))
    return [part for part in known if part in wanted]
