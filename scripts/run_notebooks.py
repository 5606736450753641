"""Execute docs/notebooks/*.ipynb from their first cell to the last, and store what the cells show.

    python scripts/run_notebooks.py            # in place
    python scripts/run_notebooks.py --out DIR  # elsewhere; --only NAME for one of them

Each runs in a process and in an empty folder of its own, with IPython's shell and without a server. An error ends it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
KINDS = ("text/plain", "text/html", "image/png")  # of what a cell shows


def execute(path: Path, out: Path) -> None:
    """In the current folder, which the notebook may fill."""
    import matplotlib as mpl
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    mpl.use("agg")
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    values: list[dict[str, Any]] = []  # what ends a cell, in the forms in which a notebook shows it
    hook: Any = shell.displayhook
    hook.write_format_data = lambda data, metadata=None: values.append(data)
    hook.write_output_prompt = hook.finish_displayhook = lambda: None
    notebook = json.loads(path.read_text(encoding="utf-8"))
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        values.clear()
        with capture_output() as shown:
            result = shell.run_cell("".join(cell["source"]), store_history=True)
        if not result.success:
            sys.stderr.write(shown.stdout)
            result.raise_error()
        cell["execution_count"] = count
        streams = [{"output_type": "stream", "name": "stdout", "text": _lines(shown.stdout)}] if shown.stdout else []
        displayed = [_rich("display_data", rich.data) for rich in shown.outputs]
        ended = [{**_rich("execute_result", data), "execution_count": count} for data in values]
        cell["outputs"] = [*streams, *displayed, *ended]
    out.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _rich(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    shown = {form: data[form] if form == "image/png" else _lines(data[form]) for form in KINDS if form in data}
    return {"output_type": kind, "data": shown, "metadata": {}}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=NOTEBOOKS)
    parser.add_argument("--only")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here is not None:
        execute(given.here, given.out)
        return
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if given.only in (None, path.stem):
            with tempfile.TemporaryDirectory() as folder:
                again = [sys.executable, __file__, "--here", str(path), "--out", str(given.out.resolve() / path.name)]
                subprocess.run(again, check=True, cwd=folder, env={**os.environ, "IPYTHONDIR": folder})


if __name__ == "__main__":
    main()
