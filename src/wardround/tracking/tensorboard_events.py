"""A run as event files, which TensorBoard shows: a folder for each arm, and one below it for each seed if wanted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wardround.core.atomic_files import new_folder
from wardround.core.extras import needs
from wardround.tracking.export import Exported, run_folder_name
from wardround.tracking.tracked_run import Curves, TrackedRun, plain

LONGEST_TEXT = 5000


def write(tracked: TrackedRun, out: str, each_seed: bool) -> Exported:
    """All of it or nothing: what is there already is refused."""
    with needs("tensorboard", "export --to tensorboard"):
        from tensorboardX import SummaryWriter

    target = Path(out) / run_folder_name(tracked)
    time = tracked.began.timestamp()
    with new_folder(target) as folder:

        def scalars(place: Path, curves: Curves, final: Mapping[str, float], params: Mapping[str, str]) -> None:
            with SummaryWriter(logdir=str(place), write_to_disk=True) as writer:
                for name, curve in curves.items():
                    for number, value in sorted(curve.items()):
                        writer.add_scalar(f"round/{name}", value, number, time)
                for name, value in final.items():
                    writer.add_scalar(f"final/{name}", value, 0, time)
                if params:
                    writer.add_text("settings", _table(params), 0, time)

        with SummaryWriter(logdir=str(folder), write_to_disk=True) as study:
            study.add_text("question", tracked.question, 0, time)
            study.add_text("answer", tracked.answer, 0, time)
            study.add_text("study", _table(tracked.tags), 0, time)
        for number, arm in enumerate(tracked.arms, 1):
            place = folder / f"{number:02} {plain(arm.name)}"
            scalars(place, arm.curves, arm.final, arm.params)
            for seed in arm.seeds if each_seed else ():
                scalars(place / f"seed-{seed.seed}", seed.curves, {}, {})
    return Exported(str(target), len(tracked.arms), True, f"tensorboard --logdir {out}")


def _table(entries: Mapping[str, Any]) -> str:
    """As Markdown, which TensorBoard renders."""
    rows = [f"| {key} | {str(value)[:LONGEST_TEXT].replace('|', '/')} |" for key, value in entries.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
