"""A page as PDF, printed by the Chromium that is installed: without a network, and without a trace of its profile."""

import os
import subprocess
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from wardround.core.errors import MachineError
from wardround.runs.folder import write_atomically

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 300.0  # a report of 50 hospitals takes some ten
REMEDY = "Install it (Debian: apt install chromium), or open the page in a browser and print it to a file."
OPTIONS = (
    "--headless",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",  # nobody listens there: the page asks for nothing, nor may the browser
    "--no-pdf-header-footer",
)


def write_pdf(page: Path) -> Path:
    """Print an HTML page of a report, beside it and under its name."""
    found = (which(name) for name in BROWSERS)
    browser = next((path for path in found if path is not None), None)
    target = page.with_suffix(".pdf")
    if browser is None:
        raise MachineError(str(target), f"needs Chromium or Chrome, and none of {', '.join(BROWSERS)} is here", REMEDY)
    with TemporaryDirectory(prefix="wardround-pdf-") as place:
        printed = Path(place, "page.pdf")
        problem = _print(browser, page, printed, Path(place))
        if problem is None and printed.is_file() and printed.read_bytes()[:5] == b"%PDF-":
            write_atomically(target, printed.read_bytes())
            return target
    raise MachineError(str(target), f"could not be printed: {browser} {problem or 'wrote no PDF'}", REMEDY)


def _print(browser: str, page: Path, target: Path, place: Path) -> str | None:
    """What went wrong, or None. As root Chromium refuses to start within its sandbox."""
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    profile = f"--user-data-dir={place / 'profile'}"
    command = [browser, *OPTIONS, *root, profile, f"--print-to-pdf={target}", page.resolve().as_uri()]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS:.0f} seconds"
    except OSError as error:
        return f"did not start: {error.strerror}"
    return None if done.returncode == 0 else f"ended with code {done.returncode}"
