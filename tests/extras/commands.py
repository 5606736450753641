"""Runs in an environment that has wardround and nothing of its tests: many commands in one process, told by JSON.

On standard input comes a list of commands, each a list of words; `*` stands for what it matches. On standard output go
their exit codes and what they showed, and the errors of modules that cannot be imported.
"""

import contextlib
import importlib
import io
import json
import sys
import traceback
from glob import glob
from pathlib import Path


def run(words: list[str]) -> dict[str, object]:
    from wardround.cli.main import main

    shown = io.StringIO()
    sys.argv = ["wardround", *(part for word in words for part in (sorted(glob(word)) or [word]))]
    code: object = 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            code = 1
            traceback.print_exc()
    return {"words": words, "code": code, "shown": shown.getvalue()}


def import_everything() -> dict[str, str]:
    """Of every module and public name that cannot be imported, the kind of error and its words."""
    import wardround

    folder = Path(str(wardround.__file__)).parent
    refused = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(("wardround", *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
    for name in wardround.__all__:
        try:
            getattr(wardround, name)
        except Exception as error:
            refused[f"wardround.{name}"] = f"{type(error).__name__}: {error}"
    return refused


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    done = [run(words) for words in asked["commands"]]
    found = {"done": done, "refused": import_everything() if asked["imports"] else None}
    sys.stdout.write(json.dumps(found))
