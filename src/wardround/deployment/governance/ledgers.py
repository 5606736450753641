"""Finding ledgers: in a run folder, at a hospital, or by themselves."""

from pathlib import Path
from typing import Any, get_args

from wardround.core.errors import RunError, StudyError, suggest
from wardround.runs.folder import RunFolder
from wardround.runs.ledger import Part
from wardround.runs.spending import LEDGER, check_ledger


def ledgers_of(place: Path) -> list[Path]:
    """Of a run folder, a folder of runs, a site file, or the file itself."""
    if place.is_dir():
        for run in runs_of(place):
            check_ledger(RunFolder(run))
        ledgers = [place / LEDGER] if (place / LEDGER).is_file() else sorted(place.glob(f"*/{LEDGER}"))
        if ledgers or (place / "results.json").is_file():
            return ledgers
        raise RunError(str(place), f"has no {LEDGER}", "Name a run folder, a folder of runs, or a site file.")
    if place.suffix == ".toml" and place.is_file():
        from wardround.deployment.provisioning.site_file import SiteFile

        ledger = SiteFile.load(place).state / LEDGER
        return [ledger] if ledger.is_file() else []
    if not place.is_file():
        raise RunError(str(place), "no such file or folder", "Name a run folder, a site file or a ledger.")
    return [place]


def runs_of(place: Path) -> list[Path]:
    """A run folder, or the finished runs in a folder of them."""
    if (place / "results.json").is_file():
        return [place]
    return sorted(file.parent for file in place.glob("*/results.json")) if place.is_dir() else []


def exposure_of(run: Path) -> dict[str, Any] | None:
    """Whose exposure the run's total covers; None if nobody was charged."""
    exposure: dict[str, Any] | None = (RunFolder(run).read_json("results.json").get("privacy") or {}).get("exposure")
    return exposure


def starts_of(run: Path) -> dict[str, Any]:
    """Arms of the run that go on from a trained model, with the privacy of all trainings, where any protected it."""
    started: dict[str, Any] = RunFolder(run).read_json("results.json").get("start_from") or {}
    return {arm: start for arm, start in started.items() if start["privacy"] is not None}


def parts_of(text: str) -> list[Part]:
    known = get_args(Part)
    requested = [word.strip() for word in text.split(",") if word.strip()]
    for word in requested:
        if word not in known:
            raise StudyError("--by", f"{word!r} is nothing that a ledger is divided by", suggest(word, known, "Words"))
    return [part for part in known if part in requested]
