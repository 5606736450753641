"""Generated files in every form that MedMNIST has, and the same images as folders. Images tell their labels."""

from pathlib import Path

import numpy as np
from PIL import Image

COUNTS = {"train": 20, "val": 6, "test": 8}
LAYOUTS = ("two", "eight", "fourteen", "ordinal")
CLASSES = {"two": 2, "eight": 8, "ordinal": 5}
SIZE = 28


def layout(name: str, times: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays as in MedMNIST's files: labels stand in a column, or in one for each of 14 findings."""
    rng = np.random.default_rng(seed)
    content: dict[str, np.ndarray] = {}
    for part, count in COUNTS.items():
        rows = count * times
        if name == "fourteen":
            labels = (rng.random((rows, 14)) < 0.4).astype(np.uint8)
            marks = labels
        else:
            labels = (np.arange(rows) % CLASSES[name]).astype(np.uint8)[:, None]
            marks = np.eye(CLASSES[name], dtype=np.uint8)[labels[:, 0]]
        shape = (rows, SIZE, SIZE, 3) if name in ("eight", "ordinal") else (rows, SIZE, SIZE)
        pixels = rng.integers(0, 120, shape)
        for place in range(marks.shape[1]):  # a bright line for each label
            pixels[:, 2 * place] += (100 * marks[:, place]).reshape(-1, *(1,) * (len(shape) - 2))
        content[f"{part}_images"], content[f"{part}_labels"] = pixels.astype(np.uint8), labels
    return content


def saved(path: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **content)  # type: ignore[arg-type]
    return path


def as_folder(folder: Path, content: dict[str, np.ndarray], suffix: str = ".png") -> Path:
    """PART/CLASS/NUMBER.png"""
    for part in COUNTS:
        for number, (pixels, label) in enumerate(
            zip(content[f"{part}_images"], content[f"{part}_labels"], strict=True)
        ):
            place = folder / part / str(label[0])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number:05}{suffix}", format="PNG")
    return folder


def as_table(folder: Path, content: dict[str, np.ndarray]) -> Path:
    """NUMBER.png, and a table with the class of each image or a column for each finding."""
    findings = content["train_labels"].shape[1]
    names = ["label"] if findings == 1 else list(map(str, range(findings)))
    (folder / "pictures").mkdir(parents=True)
    lines = [",".join(("image", "split", *names))]
    for part in COUNTS:
        for number, (pixels, labels) in enumerate(
            zip(content[f"{part}_images"], content[f"{part}_labels"], strict=True)
        ):
            Image.fromarray(pixels).save(folder / "pictures" / f"{part}-{number:05}.png")
            lines.append(",".join((f"{part}-{number:05}.png", part, *map(str, labels))))
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder
