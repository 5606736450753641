"""A folder of bundles, of which a hospital uses one version of each name.

DIR/audit.jsonl   every change, hash-chained; what the registry holds is what reading it from the beginning gives
DIR/NAME/1, 2...  the bundles, each as it was added
DIR/.lock         one process changes it at a time

A bundle counts from the moment its line stands in the log. Until then it has a companion `.adding-N`, by which what a
dying process left can be told from what somebody put there by hand: the first is removed by the next `add`, the second
never is.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

from wardround.bundles.bundle import Bundle, load_bundle
from wardround.bundles.registry.versions import (
    ADDED,
    LOG,
    PROMOTED,
    WITHDRAWN,
    Entry,
    Version,
    default_name,
    parse_name,
    read_events,
    refuse_name,
    replay,
)
from wardround.bundles.sealed_files import ABOUT, SealedFileError, as_text, read_sealed
from wardround.core.errors import BundleError, as_path, shown, suggest
from wardround.runs.audit import BEGINNING, AuditLog
from wardround.runs.audit import verify as verify_log

LOCK, STAGING = ".lock", ".adding-"
PATIENCE = 60.0  # seconds that a process waits for another one


@dataclass(frozen=True)
class Verified:
    """What was found: `problems` must not be, `leftovers` count for nothing and go with the next `add`."""

    entries: int  # of the log
    head: str
    versions: int  # that were looked at
    problems: tuple[str, ...]
    leftovers: tuple[str, ...]


class Registry:
    """`Registry("registry").add("made/heart")`, then `.promote("heart@1")`."""

    def __init__(self, path: str | Path, load: Callable[[Path], Bundle] = load_bundle) -> None:
        """`load` is another one where bundles have models that are not wardround's own."""
        self.path = as_path(path, "registry", BundleError)
        self.log = self.path / LOG
        self.load = load

    def entries(self) -> dict[str, Entry]:
        """By name, in alphabetical order."""
        return replay(read_events(self.log), self.path)

    def find(self, name: str) -> Version:
        """NAME@VERSION; or NAME, for the one in use or else the newest."""
        named, version = parse_name(name)
        return self._version(self._entry(named), version)

    def open(self, text: str) -> Bundle:
        """A bundle by NAME[@VERSION] or by the path of its folder, as it was added or made."""
        if "/" in text or (Path(text) / ABOUT).exists():
            return self.load(find_bundle(text))
        found = self.find(text)
        self.refuse_changed(found)
        return self.load(found.path)

    def promoted(self, name: str) -> Version:
        """The one in use, if it is still as it was added."""
        entry = self._entry(name)
        if entry.in_use is None:
            raise self._not_in_use(entry)
        found = self._version(entry, entry.in_use)
        self.refuse_changed(found)
        return found

    def _not_in_use(self, entry: Entry) -> BundleError:
        where, of_registry = str(self.path / entry.name), f"--registry {self.path}"
        if entry.withdrawn is None:
            remedy = f"Promote one: `wardround bundles promote {entry.name}@{len(entry.versions)} {of_registry}`."
            return BundleError(where, "none of its versions is in use", remedy)
        # it was withdrawn for a reason: nobody is told to put it back to use
        problem = f"none of its versions is in use: {entry.withdrawn}"
        other = "" if len(entry.versions) == 1 else ", or promote another version"
        remedy = f"Ask whoever withdrew it{other}. `wardround bundles show {entry.name} {of_registry}` has its history."
        return BundleError(where, problem, remedy)

    def add(self, bundle: str | Path, name: str | None = None, by: str | None = None) -> Version:
        """Copy a bundle into the registry, as the next version of its name. It is not in use by that."""
        source = as_path(bundle, "bundle", BundleError)
        self.load(source)
        about, files = read_sealed(source)  # every byte that is written is one that was compared with its hash
        name = default_name(about) if name is None else name
        refuse_name(name)
        with self._locked():
            entries = self.entries()
            self._remove_leftovers(entries)
            self._refuse_similar(name, entries)
            before = entries[name].versions if name in entries else ()
            for version in before:
                if version.id == about["id"]:
                    problem = f"is there already, as {version.label}"
                    raise BundleError(str(source), problem, "Nothing needs to be added.")
            return self._take({ABOUT: as_text(about), **files}, about["id"], name, len(before) + 1, by)

    def promote(self, name: str, by: str | None = None, reason: str | None = None) -> Version:
        """From now on this version, NAME@VERSION, is the one in use. A bundle that was changed is refused."""
        named, number = parse_name(name)
        if number is None:
            remedy = f"Write {named}@1, or whichever it is: `wardround bundles list --registry {self.path}`."
            raise BundleError(name, "says no version", remedy)
        with self._locked(make=False):
            entry = self._entry(named)
            chosen = self._version(entry, number)
            self.refuse_changed(chosen)  # first: that it is in use does not make it right
            if entry.in_use == number:
                raise BundleError(chosen.label, "is in use already", "Nothing needs to be done.")
            self.load(chosen.path)
            detail = {"name": named, "version": number, "bundle": chosen.id, "instead_of": entry.in_use}
            self._write(PROMOTED, **detail, by=by or _user(), reason=reason)
        return chosen

    def withdraw(self, name: str, by: str | None = None, reason: str | None = None) -> Version:
        """From now on no version of this name is in use; the one that was. It stays in the folder."""
        named, number = parse_name(name)
        with self._locked(make=False):
            entry = self._entry(named)
            if entry.in_use is None or number not in (None, entry.in_use):
                raise BundleError(name, "is not in use", "Nothing needs to be withdrawn.")
            chosen = self._version(entry, entry.in_use)
            detail = {"name": named, "version": chosen.version, "bundle": chosen.id}
            self._write(WITHDRAWN, **detail, by=by or _user(), reason=reason)
        return chosen

    def verify(self, name: str | None = None, head: str | None = None) -> Verified:
        """Whether the log is in order and the folder holds exactly what it says; or one name, or one version."""
        if not self.path.is_dir():
            raise BundleError(str(self.path), "there is no such folder", "Name the folder of a registry.")
        if not self.log.is_file():
            problems = [f"{LOG} is missing"] if self._things() else []
            return Verified(0, BEGINNING, 0, tuple(problems), ())
        with self._locked(make=False) if os.access(self.path, os.W_OK) else nullcontext():
            audit = verify_log(self.log, head)
            if audit.broken:  # what the folder should hold is not known
                return Verified(audit.entries, audit.head, 0, (f"{LOG}: {audit.broken}",), ())
            entries = self.entries()
            chosen = [version for entry in entries.values() for version in entry.versions]
            if name is not None:
                named, number = parse_name(name)
                versions = self._entry(named).versions
                chosen = list(versions) if number is None else [self._version(entries[named], number)]
            problems = [problem for version in chosen for problem in self._wrong_with(version)]
            leftovers: list[str] = []
            if name is None:
                extra, leftovers = self._not_in_the_log(entries)
                problems += extra
        return Verified(audit.entries, audit.head, len(chosen), tuple(problems), tuple(leftovers))

    def history(self, name: str) -> list[dict[str, Any]]:
        """The events of one name, oldest first."""
        events = [event for event in read_events(self.log) if event["detail"].get("name") == name]
        return [
            {
                "time": event["time"],
                "event": event["event"],
                **{key: value for key, value in event["detail"].items() if key not in ("name", "files")},
            }
            for event in events
        ]

    # ---- the log

    def _write(self, event: str, **detail: Any) -> None:
        try:
            AuditLog(self.log).add(event, **detail)
        except OSError as error:
            remedy = "Make room, or ask for the right to write there."
            raise BundleError(str(self.log), f"cannot be written ({error.strerror})", remedy) from None

    # ---- what is looked for

    def _entry(self, name: str) -> Entry:
        entries = self.entries()
        if name not in entries:
            remedy = suggest(name, entries, "In it") if entries else "It is empty: `wardround bundles add BUNDLE`."
            raise BundleError(str(self.path), f"has no bundle called {shown(name)}", remedy)
        return entries[name]

    def _version(self, entry: Entry, number: int | None) -> Version:
        if number is None:
            return entry.shown
        if not 1 <= number <= len(entry.versions):
            has = "version 1" if len(entry.versions) == 1 else f"versions 1 to {len(entry.versions)}"
            raise BundleError(f"{entry.name}@{number}", "there is no such version", f"{entry.name} has {has}.")
        return entry.versions[number - 1]

    def refuse_changed(self, version: Version) -> None:
        wrong = self._wrong_with(version)
        if wrong:
            remedy = "Add the bundle anew from where it was made, as a new version."
            raise BundleError(version.label, f"is not as it was added: {'; '.join(wrong)}", remedy)

    def is_as_added(self, version: Version) -> bool:
        """Every file of it."""
        return not self._wrong_with(version)

    def _wrong_with(self, version: Version) -> list[str]:
        if version.path.is_symlink() or not version.path.is_dir():
            return [f"{version.label} is missing"]
        try:
            about, files = read_sealed(version.path)
        except SealedFileError as error:
            return [f"{version.label}: {error.file} {error.problem}"]
        except BundleError as error:
            return [f"{version.label}: {error.problem}"]
        # a whole bundle that was put in its place is in order by itself, and not by the log
        found = _hashes({ABOUT: as_text(about), **files})
        names = sorted({*found, *version.files})
        changed = [name for name in names if found.get(name) != version.files.get(name)]
        return [f"{version.label}: {name} is not the file that was added" for name in changed]

    def _not_in_the_log(self, entries: Mapping[str, Entry]) -> tuple[list[str], list[str]]:
        """What somebody put there, and what an `add` left that did not end."""
        problems, leftovers = [], []
        for thing in self._things():
            if thing.is_symlink() or not thing.is_dir():
                problems.append(f"{thing.name} is not in the log")
                continue
            known = {str(version.version) for version in entries[thing.name].versions} if thing.name in entries else ()
            inside = sorted(thing.iterdir())
            begun = {part.name.removeprefix(STAGING) for part in inside if part.name.startswith(STAGING)}
            for part in inside:
                if part.name.startswith(STAGING) or (part.name in begun and part.name not in known):
                    leftovers.append(f"{thing.name}/{part.name}")
                elif part.name not in known:
                    problems.append(f"{thing.name}/{part.name} is not in the log")
            if not inside and thing.name not in entries:
                leftovers.append(thing.name)
        return problems, leftovers

    def _things(self) -> list[Path]:
        return sorted(thing for thing in self.path.iterdir() if thing.name not in (LOG, LOCK))

    # ---- changes

    def _take(self, files: Mapping[str, bytes], bundle: str, name: str, number: int, by: str | None) -> Version:
        folder = self.path / name
        staging, place = folder / f"{STAGING}{number}", folder / str(number)
        for thing in (folder, folder / ABOUT, place):
            if thing.is_symlink() or (thing != folder and thing.exists()):
                problem = "is in the way, and is not in the log"
                raise BundleError(str(thing), problem, "Move it elsewhere, or give the bundle another --name.")
        try:
            made = staging / "bundle"
            made.mkdir(parents=True)
            for file, content in files.items():
                _write_through(made / file, content)
            os.rename(made, place)
            self._write(ADDED, name=name, version=number, bundle=bundle, files=_hashes(files), by=by or _user())
        except OSError as error:
            problem = f"cannot be written ({error.strerror})"
            raise BundleError(str(place), problem, "Make room, or ask for the right to write there.") from None
        finally:
            self._remove_leftovers(self.entries())
        return self._version(self._entry(name), number)

    def _remove_leftovers(self, entries: Mapping[str, Entry]) -> None:
        for staging in self.path.glob(f"*/{STAGING}*"):
            if staging.parent.is_symlink():  # it leads to what is not ours
                continue
            number = staging.name.removeprefix(STAGING)
            name = staging.parent.name
            known = {str(version.version) for version in entries[name].versions} if name in entries else ()
            if number.isdecimal() and number not in known:
                rmtree(staging.parent / number, ignore_errors=True)
            rmtree(staging, ignore_errors=True)  # last: while it stands, the version beside it is a leftover
            if not any(staging.parent.iterdir()):
                staging.parent.rmdir()

    def _refuse_similar(self, name: str, entries: Mapping[str, Entry]) -> None:
        for other in entries:
            if other != name and other.lower() == name.lower():
                problem = f"differs from {other} by upper and lower case only"
                raise BundleError(name, problem, f"Use {other}, or a name that everybody can tell from it.")

    @contextmanager
    def _locked(self, make: bool = True) -> Iterator[None]:
        """The lock dies with its process, so a crash leaves nothing to clean up."""
        if not make and not self.path.is_dir():
            raise BundleError(str(self.path), "there is no such registry", "Name its folder with --registry.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise BundleError(str(self.path), f"cannot be written to ({error.strerror})", "Name another.") from None
        end = time.monotonic() + PATIENCE
        with lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        problem = "another process has been changing it for a minute"
                        raise BundleError(str(self.path), problem, "Wait until it ends, then try again.") from None
                    time.sleep(0.05)
            yield


def find_bundle(path: str | Path) -> Path:
    """The folder of a bundle: `path` itself; in a registry, of DIR/NAME the version in use, or DIR/NAME@VERSION.

    What is found in a registry is as it was added, or it is refused; also where the path leads to DIR/NAME/VERSION.
    """
    given = as_path(path, "bundle", BundleError)
    is_folder_of_bundle = (given / ABOUT).exists()
    if not is_folder_of_bundle and _is_registry(given):
        known = ", ".join(str(given / name) for name in Registry(given).entries())
        raise BundleError(str(given), "is a registry, not a bundle", f"Name one of its bundles: {known}.")
    for whole in dict.fromkeys((Path(os.path.abspath(given)), given.resolve())):  # a link may lead into a registry
        if whole.name.isdecimal() and _is_registry(whole.parent.parent):
            return _as_added(Registry(whole.parent.parent), f"{whole.parent.name}@{whole.name}", given)
    parent = Path(os.path.abspath(given)).parent if given.name in ("", ".", "..") else given.parent
    if _is_registry(parent) or (not is_folder_of_bundle and (parent / LOG).is_file()):
        name, number = parse_name(Path(os.path.abspath(given)).name)
        if number is None:
            return Registry(parent).promoted(name).path
        return _as_added(Registry(parent), f"{name}@{number}")
    return given  # whatever is wrong with it, `load_bundle` says so


def _is_registry(folder: Path) -> bool:
    """The folder of a run has a log too, and no bundle was ever added to it."""
    return (folder / LOG).is_file() and bool(Registry(folder).entries())


def _as_added(registry: Registry, name: str, given: Path | None = None) -> Path:
    found = registry.find(name)
    registry.refuse_changed(found)
    if given is not None and not (given.exists() and given.samefile(found.path)):
        raise BundleError(str(given), "is not in the log of its registry", "Name a bundle that was added to it.")
    return found.path if given is None else given


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(files[name]).hexdigest() for name in sorted(files)}


def _write_through(path: Path, content: bytes) -> None:
    """To the disk itself: the log must not name a bundle that a power cut has emptied."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "unknown"
