"""A folder of bundles, of which a hospital uses one version of each name.

DIR/audit.jsonl   every change, hash-chained; replaying it from the beginning gives what the registry holds
DIR/NAME/1, 2...  the bundles, each as it was added
DIR/.lock         one process changes it at a time

A bundle counts as soon as its line is in the log. Until then a folder `.adding-N` stands next to it. So what a dying
process left differs from what somebody put there by hand: the next `add` removes the first, and never the second.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

from wardround.bundles.bundle import MISFITS, Bundle, load_bundle
from wardround.bundles.registry.bundle_differences import headline
from wardround.bundles.sealed_files import ABOUT, SealedFileError, as_text, hashes_of, read_sealed
from wardround.core.errors import BundleError, as_path, shown, suggest
from wardround.runs.audit import BEGINNING, AuditLog, wrong_line
from wardround.runs.audit import verify as verify_log
from wardround.study.sweeps import NAME

LOG, LOCK, STAGING = "audit.jsonl", ".lock", ".adding-"
ADDED, PROMOTED, WITHDRAWN = "bundle added", "bundle promoted", "bundle withdrawn"
MOST_LETTERS = 150  # of a name, so that it can be that of a folder everywhere
PATIENCE = 60.0  # seconds that a process waits for another one


@dataclass(frozen=True)
class Version:
    """One bundle of the registry, as the log has it."""

    name: str
    version: int
    id: str
    added: str  # UTC
    files: Mapping[str, str]  # sha256 of each
    path: Path

    @property
    def label(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class Withdrawn:
    """A version that was in use and was taken out of use, when none has been promoted since."""

    version: int
    time: str  # UTC
    by: str | None
    reason: str | None

    def __str__(self) -> str:
        by = "" if self.by is None else f" by {self.by}"
        why = "no reason was given" if self.reason is None else self.reason
        return f"version {self.version} was withdrawn on {self.time[:10]} at {self.time[11:16]} UTC{by} ({why})"


@dataclass(frozen=True)
class Entry:
    """All versions under one name, and the one in use."""

    name: str
    versions: tuple[Version, ...]
    in_use: int | None = None
    withdrawn: Withdrawn | None = None

    @property
    def shown(self) -> Version:
        """The one in use; where none is, the newest."""
        return self.versions[(self.in_use or len(self.versions)) - 1]


def parse_name(text: str) -> tuple[str, int | None]:
    """NAME@VERSION as its two parts; the version is None where there is none."""
    name, at, number = text.partition("@")
    refuse_name(name)
    if at and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise BundleError(text, "names no version", f"Write {name}@1, or {name} for the one in use.")
    return name, int(number) if at else None


def default_name(about: Mapping[str, Any]) -> str:
    """The bundle's own, which says study, arm and site; in letters that can begin a path, and not too many."""
    plain = "".join(letter if NAME.fullmatch(f"a{letter}") else "-" for letter in str(about["name"]))
    return plain.lstrip("._-")[:MOST_LETTERS] or "bundle"


def refuse_name(name: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MOST_LETTERS or name == LOG:
        remedy = f"Use letters, digits, '.', '_' and '-', at most {MOST_LETTERS}, beginning with a letter or digit."
        raise BundleError(repr(name), "is not a name for a bundle", remedy)


def read_events(log: Path) -> list[dict[str, Any]]:
    """Of a log that is in order. An unfinished last line never happened; no log is no event."""
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BundleError(str(log), f"cannot be read ({error.strerror})", "Name another registry.") from None
    before, events = BEGINNING, []
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]):
        problem = wrong_line(line, number, before)
        if problem:
            raise _not_in_order(log, f"line {number + 1}: {problem}")
        events.append(json.loads(line))
        before = events[-1]["hash"]
    return events


def replay(events: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Entry]:
    """What a registry holds after these events, by name in alphabetical order."""
    entries: dict[str, Entry] = {}
    for event in events:
        if event["event"] not in (ADDED, PROMOTED, WITHDRAWN):
            continue
        try:
            entry = _after(entries, event, folder)
        except (AttributeError, KeyError, TypeError, ValueError, BundleError):
            problem = f"line {event['number'] + 1}: is not an event of a registry"
            raise _not_in_order(folder / LOG, problem) from None
        entries[entry.name] = entry
    return dict(sorted(entries.items()))


def _after(entries: Mapping[str, Entry], event: Mapping[str, Any], folder: Path) -> Entry:
    kind, detail = event["event"], event["detail"]
    name, number = detail["name"], detail["version"]
    if kind == ADDED:
        refuse_name(name)  # a forged one would lead out of the folder
        entry = entries.get(name, Entry(name, ()))
        if number != len(entry.versions) + 1:
            raise ValueError("versions are counted")
        version = Version(
            name, number, str(detail["bundle"]), event["time"], dict(detail["files"]), folder / name / str(number)
        )
        return replace(entry, versions=(*entry.versions, version))
    if not 1 <= number <= len(entries[name].versions):
        raise ValueError("there is no such version")
    if kind == PROMOTED:
        return replace(entries[name], in_use=number, withdrawn=None)
    withdrawn = Withdrawn(number, str(event["time"]), detail.get("by"), detail.get("reason"))
    return replace(entries[name], in_use=None, withdrawn=withdrawn)


def _not_in_order(log: Path, problem: str) -> BundleError:
    remedy = f"Look at it with `wardround bundles verify --registry {log.parent}`; a copy elsewhere may be whole."
    return BundleError(str(log), f"is not as it was written: {problem}", remedy)


@dataclass(frozen=True)
class Verified:
    """`leftovers` do no harm, and the next `add` removes them."""

    entries: int  # of the log
    head: str
    versions: int  # that were checked
    problems: tuple[str, ...]
    leftovers: tuple[str, ...]


class Registry:
    """`Registry("registry").add("made/heart")`, then `.promote("heart@1")`."""

    def __init__(self, path: str | Path, load: Callable[[Path], Bundle] = load_bundle) -> None:
        """`load` differs where bundles have models that are not wardround's own."""
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
        return self.load(self.unchanged(self.find(text)).path)

    def promoted(self, name: str) -> Version:
        """The one in use, if it is still as it was added."""
        entry = self._entry(name)
        if entry.in_use is None:
            raise self._none_in_use(entry)
        return self.unchanged(self._version(entry, entry.in_use))

    def _none_in_use(self, entry: Entry) -> BundleError:
        where, of_registry = str(self.path / entry.name), f"--registry {self.path}"
        if entry.withdrawn is None:
            remedy = f"Promote one: `wardround bundles promote {entry.name}@{len(entry.versions)} {of_registry}`."
            return BundleError(where, "none of its versions is in use", remedy)
        # it was withdrawn for a reason: the remedy does not suggest using it again
        problem = f"none of its versions is in use: {entry.withdrawn}"
        other = "" if len(entry.versions) == 1 else ", or promote another version"
        remedy = f"Ask whoever withdrew it{other}. `wardround bundles show {entry.name} {of_registry}` has its history."
        return BundleError(where, problem, remedy)

    def add(self, bundle: str | Path, name: str | None = None, by: str | None = None) -> Version:
        """Copy a bundle into the registry, as the next version of its name. It is not in use by that."""
        source = as_path(bundle, "bundle", BundleError)
        self.load(source)
        about, files = read_sealed(source)  # only bytes that match their hash are copied
        name = default_name(about) if name is None else name
        refuse_name(name)
        with self._locked():
            entries = self.entries()
            self._remove_leftovers(entries)
            self._refuse_similar(name, entries)
            versions = entries[name].versions if name in entries else ()
            for version in versions:
                if version.id == about["id"]:
                    problem = f"is there already, as {version.label}"
                    raise BundleError(str(source), problem, "Nothing needs to be added.")
            return self._copy({ABOUT: as_text(about), **files}, about["id"], name, len(versions) + 1, by)

    def promote(self, name: str, by: str | None = None, reason: str | None = None) -> Version:
        """From now on this version, NAME@VERSION, is the one in use. A bundle that was changed is refused."""
        named, number = parse_name(name)
        if number is None:
            remedy = f"Write {named}@1, or whichever it is: `wardround bundles list --registry {self.path}`."
            raise BundleError(name, "names no version", remedy)
        with self._locked(make=False):
            entry = self._entry(named)
            chosen = self.unchanged(self._version(entry, number))  # first, also where it is in use already
            if entry.in_use == number:
                raise BundleError(chosen.label, "is in use already", "Nothing needs to be done.")
            self.load(chosen.path)
            detail = {"name": named, "version": number, "bundle": chosen.id, "instead_of": entry.in_use}
            self._log(PROMOTED, **detail, by=by or _user(), reason=reason)
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
            self._log(WITHDRAWN, **detail, by=by or _user(), reason=reason)
        return chosen

    def verify(self, name: str | None = None, head: str | None = None) -> Verified:
        """Whether the log is in order and the folder holds exactly what it says; or one name, or one version."""
        if not self.path.is_dir():
            raise BundleError(str(self.path), "there is no such folder", "Name the folder of a registry.")
        if not self.log.is_file():
            problems = [f"{LOG} is missing"] if self._content() else []
            return Verified(0, BEGINNING, 0, tuple(problems), ())
        with self._locked(make=False) if os.access(self.path, os.W_OK) else nullcontext():
            audit = verify_log(self.log, head)
            if audit.broken:  # then it is unknown what the folder should hold
                return Verified(audit.entries, audit.head, 0, (f"{LOG}: {audit.broken}",), ())
            entries = self.entries()
            if name is None:
                versions = [version for entry in entries.values() for version in entry.versions]
                unlogged, leftovers = self._unlogged(entries)
            else:
                named, number = parse_name(name)
                entry, unlogged, leftovers = self._entry(named), [], []
                versions = list(entry.versions) if number is None else [self._version(entry, number)]
            problems = [problem for version in versions for problem in self._differences(version)]
        return Verified(audit.entries, audit.head, len(versions), (*problems, *unlogged), tuple(leftovers))

    def history(self, name: str) -> list[dict[str, Any]]:
        """The events of one name, oldest first."""
        return [
            {
                "time": event["time"],
                "event": event["event"],
                **{key: value for key, value in event["detail"].items() if key not in ("name", "files")},
            }
            for event in read_events(self.log)
            if event["detail"].get("name") == name
        ]

    def _log(self, event: str, **detail: Any) -> None:
        try:
            AuditLog(self.log).add(event, **detail)
        except OSError as error:
            raise _unwritable(self.log, error) from None

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

    def unchanged(self, version: Version) -> Version:
        """Refused where any file is not as it was added."""
        differences = self._differences(version)
        if differences:
            remedy = "Add the bundle anew from where it was made, as a new version."
            raise BundleError(version.label, f"is not as it was added: {'; '.join(differences)}", remedy)
        return version

    def is_as_added(self, version: Version) -> bool:
        return not self._differences(version)

    def _differences(self, version: Version) -> list[str]:
        if version.path.is_symlink() or not version.path.is_dir():
            return [f"{version.label} is missing"]
        try:
            about, files = read_sealed(version.path)
        except SealedFileError as error:
            return [f"{version.label}: {error.file} {error.problem}"]
        except BundleError as error:
            return [f"{version.label}: {error.problem}"]
        # a whole bundle that was put in its place is in order by itself, and not by the log
        hashes = hashes_of({ABOUT: as_text(about), **files})
        names = sorted({*hashes, *version.files})
        changed = [name for name in names if hashes.get(name) != version.files.get(name)]
        return [f"{version.label}: {name} is not the file that was added" for name in changed]

    def _unlogged(self, entries: Mapping[str, Entry]) -> tuple[list[str], list[str]]:
        """What somebody put there, and what an unfinished `add` left."""
        problems, leftovers = [], []
        for folder in self._content():
            if folder.is_symlink() or not folder.is_dir():
                problems.append(f"{folder.name} is not in the log")
                continue
            known, inside = _version_names(entries, folder.name), sorted(folder.iterdir())
            begun = {part.name.removeprefix(STAGING) for part in inside if part.name.startswith(STAGING)}
            for part in inside:
                if part.name.startswith(STAGING) or (part.name in begun and part.name not in known):
                    leftovers.append(f"{folder.name}/{part.name}")
                elif part.name not in known:
                    problems.append(f"{folder.name}/{part.name} is not in the log")
            if not inside and folder.name not in entries:
                leftovers.append(folder.name)
        return problems, leftovers

    def _content(self) -> list[Path]:
        return sorted(path for path in self.path.iterdir() if path.name not in (LOG, LOCK))

    def _copy(self, files: Mapping[str, bytes], bundle: str, name: str, number: int, by: str | None) -> Version:
        folder = self.path / name
        staging, target = folder / f"{STAGING}{number}", folder / str(number)
        for path in (folder, folder / ABOUT, target):
            if path.is_symlink() or (path != folder and path.exists()):
                problem = "is in the way, and is not in the log"
                raise BundleError(str(path), problem, "Move it elsewhere, or give the bundle another --name.")
        try:
            staged = staging / "bundle"
            staged.mkdir(parents=True)
            for file, content in files.items():
                _write_through(staged / file, content)
            os.rename(staged, target)
            self._log(ADDED, name=name, version=number, bundle=bundle, files=hashes_of(files), by=by or _user())
        except OSError as error:
            raise _unwritable(target, error) from None
        finally:
            self._remove_leftovers(self.entries())
        return self._version(self._entry(name), number)

    def _remove_leftovers(self, entries: Mapping[str, Entry]) -> None:
        for staging in self.path.glob(f"*/{STAGING}*"):
            folder, number = staging.parent, staging.name.removeprefix(STAGING)
            if folder.is_symlink():  # it leads out of the registry
                continue
            if number.isdecimal() and number not in _version_names(entries, folder.name):
                rmtree(folder / number, ignore_errors=True)
            rmtree(staging, ignore_errors=True)  # last: it marks the version next to it as a leftover
            if not any(folder.iterdir()):
                folder.rmdir()

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

    In a registry a bundle must be as it was added, also where the path leads to DIR/NAME/VERSION.
    """
    given = as_path(path, "bundle", BundleError)
    is_folder_of_bundle = (given / ABOUT).exists()
    if not is_folder_of_bundle and _is_registry(given):
        known = ", ".join(str(given / name) for name in Registry(given).entries())
        raise BundleError(str(given), "is a registry, not a bundle", f"Name one of its bundles: {known}.")
    for whole in dict.fromkeys((Path(os.path.abspath(given)), given.resolve())):  # a link may lead into a registry
        if whole.name.isdecimal() and _is_registry(whole.parent.parent):
            registry = Registry(whole.parent.parent)
            version = registry.unchanged(registry.find(f"{whole.parent.name}@{whole.name}"))
            if not (given.exists() and given.samefile(version.path)):
                raise BundleError(
                    str(given), "is not in the log of its registry", "Name a bundle that was added to it."
                )
            return given
    parent = Path(os.path.abspath(given)).parent if given.name in ("", ".", "..") else given.parent
    if _is_registry(parent) or (not is_folder_of_bundle and (parent / LOG).is_file()):
        name = Path(os.path.abspath(given)).name
        registry = Registry(parent)
        if parse_name(name)[1] is None:
            return registry.promoted(name).path
        return registry.unchanged(registry.find(name)).path
    return given  # `load_bundle` says what is wrong with it


def _is_registry(folder: Path) -> bool:
    """The folder of a run has a log too, and no bundle was ever added to it."""
    return (folder / LOG).is_file() and bool(Registry(folder).entries())


def _version_names(entries: Mapping[str, Entry], name: str) -> set[str]:
    return {str(version.version) for version in entries[name].versions} if name in entries else set()


def _unwritable(path: Path, error: OSError) -> BundleError:
    remedy = "Make room, or ask for the right to write there."
    return BundleError(str(path), f"cannot be written ({error.strerror})", remedy)


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


def listing(registry: Registry) -> tuple[dict[str, Any], ...]:
    """By name and version."""
    return tuple(
        _row(version, entry.in_use == version.version, registry.is_as_added(version))
        for entry in registry.entries().values()
        for version in entry.versions
    )


def details(registry: Registry, name: str) -> dict[str, Any]:
    """All about one bundle, which must be as it was added."""
    version = registry.unchanged(registry.find(name))
    about, _ = read_sealed(version.path)
    entry = registry.entries()[version.name]
    return {
        "name": version.name,
        "version": version.version,
        "versions": len(entry.versions),
        "in_use": entry.in_use,
        "added": version.added,
        "path": version.path,
        "files": dict(version.files),
        "history": registry.history(version.name),
        "bundle": about,
        "card": (version.path / "card.md").read_text(encoding="utf-8"),
    }


def _row(version: Version, in_use: bool, as_added: bool) -> dict[str, Any]:
    """What bundle.json holds is None where that file is not as it was added, or does not have it."""
    row = {
        "name": version.name,
        "version": version.version,
        "in_use": in_use,
        "id": version.id,
        "added": version.added,
        "as_added": as_added,  # every file
        **dict.fromkeys(("made", "study", "arm", "site", "seed", "metric", "mean", "interval")),
    }
    path = version.path / ABOUT
    content = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
    if sha256(content).hexdigest() != version.files.get(ABOUT):
        return {**row, "as_added": False}
    try:
        about = json.loads(content)
        figure = dict(zip(("metric", "mean", "interval"), headline(about) or (), strict=False))
        texts = {"made": about["made"], "study": about["study"]["name"], "arm": about["arm"], "site": about["site"]}
        if not all(isinstance(text, str) for text in texts.values()):
            return row
        return {**row, **texts, "seed": int(about["seed"]), **figure}
    except MISFITS:  # a bundle that another version let in must not hide the others
        return row
