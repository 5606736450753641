"""Write docs/pictures: reports as a browser shows them, for the README and the documentation.

    python scripts/make_pictures.py [NAME ...]

Runs the shipped study of four hospitals and that of the tutorial into a temporary folder, and takes pictures of their
reports with Chromium (the package `chromium` of Debian). No picture is larger than 300 KB.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import DOTALL, search
from shutil import which
from tempfile import TemporaryDirectory

from PIL import Image

import wardround

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 300_000
WIDTH = 1200  # of the window


@dataclass(frozen=True)
class Picture:
    """What a window of this height shows of a page."""

    page: Callable[[Path], Path]
    height: int


def run_heart_hospitals(folder: Path) -> Path:
    return wardround.build_report(_run_shipped(folder))


def page_of_a_hospital(folder: Path) -> Path:
    return wardround.build_report(_run_shipped(folder), site="hungarian")


@cache
def _run_shipped(folder: Path) -> Path:
    return wardround.run_study("heart-hospitals", folder / "runs").folder


def run_tutorial(folder: Path) -> Path:
    """Its three files and the study that `wardround init` writes for them."""
    tutorial = (ROOT / "docs" / "tutorial" / "first-study.md").read_text(encoding="utf-8")
    program = search(r"```python\n(.*?)```", tutorial, DOTALL)
    if program is None:
        raise SystemExit("the tutorial has no program that makes its files")
    (folder / "make_hospitals.py").write_text(program[1], encoding="utf-8")
    subprocess.run([sys.executable, "make_hospitals.py"], cwd=folder, check=True)
    files = [folder / f"{name}.csv" for name in ("north", "south", "east")]
    draft = wardround.init_study(files, "died", out=folder / "study.toml")
    return wardround.build_report(wardround.run_study(draft.path, folder / "runs").folder)


PICTURES_OF: dict[str, Picture] = {
    "page-one": Picture(run_heart_hospitals, 920),
    "first-study": Picture(run_tutorial, 920),
    "hospital": Picture(page_of_a_hospital, 1240),
}


def take(browser: str, page: Path, picture: Picture, target: Path) -> None:
    address = page.absolute().as_uri()
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=3000",
    ]
    command += [f"--window-size={WIDTH},{picture.height}", f"--screenshot={target}", address]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    _shrink(target)


def _shrink(path: Path) -> None:
    """Few colours are enough for text and lines."""
    with Image.open(path) as taken:
        picture: Image.Image = taken.convert("RGB")
    for colours in (256, 128, 64, 32):
        picture.quantize(colours).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")


def main(names: list[str]) -> None:
    browser = which("chromium") or which("chromium-browser")
    if browser is None:
        raise SystemExit("Chromium is not installed (in Debian: apt install chromium)")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as temporary:
        for name, picture in PICTURES_OF.items():
            if not names or name in names:
                target = PICTURES / f"{name}.png"
                take(browser, picture.page(Path(temporary)), picture, target)
                sys.stdout.write(f"{target.relative_to(ROOT)}: {target.stat().st_size // 1000} KB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
