"""Extras: packages that only some verbs and studies need, and the one error that says which extra is missing.

    with needs("privacy", "a secure sum"):
        from cryptography.hazmat.primitives.hashes import SHA256

Every import of such a package is in a block like this (a test checks it), so that a plain install says in one line what
to install.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from types import ModuleType

from wardround.core.errors import MachineError

EXTRAS = {
    "deploy": "studies across hospitals: provision, coordinate, join, region, demo",
    "imaging": "DICOM files, CLAHE, and the models resnet and densenet",
    "mlflow": "a run in MLflow: export --to mlflow",
    "onnx": "a model as an ONNX file: bundle --onnx",
    "privacy": "differential privacy, secure sums, and patients matched between parties",
    "serve": "predictions over HTTP: serve",
    "signals": "WFDB records such as PhysioNet's ECGs",
    "tensorboard": "a run in TensorBoard: export --to tensorboard",
    "tuning": 'settings by [tuning] method = "bayesian"',
}


@dataclass(frozen=True)
class Extra:
    """One extra on this machine."""

    name: str
    purpose: str
    installed: bool
    missing: tuple[str, ...]  # packages of it that are not installed
    remedy: str


@contextmanager
def needs(extra: str, where: str, instead: str = "") -> Iterator[None]:
    """Around imports of an extra's packages. `instead` says what else a user can do, such as "leave `clahe` out"."""
    try:
        yield
    except ImportError as error:
        module = (error.name or "").split(".")[0]
        if module in ("", "wardround"):  # a mistake in wardround itself, which no installation cures
            raise
        state = "is not installed" if isinstance(error, ModuleNotFoundError) else "cannot be imported"
        raise missing_extra(extra, where, f"{module} {state}", instead) from error


def load(module: str, extra: str, where: str, instead: str = "") -> ModuleType:
    """A module by its name; the same error where it is missing."""
    with needs(extra, where, instead):
        return import_module(module)


def missing_extra(extra: str, where: str, reason: str, instead: str = "") -> MachineError:
    remedy = f"Run `{_install(extra)}`{f', or {instead}' if instead else ''}."
    return MachineError(where, f"needs the extra {extra!r}: {reason}", remedy)


def examine_extras() -> list[Extra]:
    """All extras: what each is for, and whether all of its packages are installed."""
    extras = []
    for name, purpose in EXTRAS.items():
        packages = packages_of(name)
        missing = tuple(package for package in packages if installed(package) is None)
        complete = bool(packages) and not missing
        extras.append(Extra(name, purpose, complete, missing, "" if complete else f"Run `{_install(name)}`."))
    return extras


def packages_of(extra: str = "") -> list[str]:
    """Distributions that an extra requires; without a name, those that wardround always requires."""
    packages = []
    for text in _requirements():
        requirement, _, marker = text.partition(";")
        condition = re.search(r"extra\s*==\s*[\"']([^\"']+)[\"']", marker)
        if (condition[1] if condition else "") == extra:
            packages.append(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0])
    return packages


def _requirements() -> list[str]:
    try:
        return requires("wardround") or []
    except PackageNotFoundError:  # run from its source without being installed
        return []


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _install(extra: str) -> str:
    return f"pip install 'wardround[{extra}]'"
