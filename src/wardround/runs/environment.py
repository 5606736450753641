"""What a run ran on: versions, machine, revision of the source. No user name, host name or path."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wardround.core.extras import installed

PACKAGES = ("wardround", "torch", "numpy", "pandas", "scipy", "statsmodels", "pyarrow", "safetensors")


def describe_environment() -> dict[str, Any]:
    import torch

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": versions(),
        "revision": source_revision(),
    }


def versions() -> dict[str, str | None]:
    return {name: installed(name) for name in PACKAGES}


def source_revision() -> str | None:
    """The commit, if the package runs from a checkout of its own; '+' marks uncommitted changes."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "wardround").is_dir():
        return None
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (commit.stdout.strip() + ("+" if status.stdout.strip() else "")) or None
