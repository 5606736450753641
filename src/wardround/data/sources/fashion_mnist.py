"""Fashion-MNIST: Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747. MIT licence.

Clothing instead of patients: a benchmark for image models that every machine may have. Never downloaded from here.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError, MachineError, StudyError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import Count, WholeNumber
from wardround.data.records import Records, Source
from wardround.study.facts import SourceFacts, declares

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PIXELS = 28  # of a row and of a column
PARTS = ("train", "t10k")

CITATION = "Xiao, Rasul, Vollgraf. Fashion-MNIST. 2017. arXiv:1708.07747"


@declares(SourceFacts(images=True, citation=CITATION))
def fashion_mnist(
    path: Path = Path("/usr/share/datasets/fashion-mnist"), rows: Count | None = None, seed: WholeNumber = 0
) -> Source:
    """The 60,000 training and 10,000 test images as one hospital; wardround makes its own split.

    `path` holds the four IDX files, with or without `.gz`; the default is where Debian's package puts them. `rows`
    keeps that many images, as equally over the classes as possible, chosen by `seed`.
    """

    def load() -> Records:
        (train_images, train_target), (test_images, test_target) = (_read_part(*files) for files in _find_files(path))
        images, target = np.concatenate([train_images, test_images]), np.concatenate([train_target, test_target])
        counts = {"training": len(train_target), "test": len(test_target)}
        notices = [Notice("parts-joined", "info", counts=counts)]
        if rows is not None:
            total = len(target)
            if rows > total:
                raise StudyError("data: rows", f"{rows} images wanted, {total} there", f"Write at most {total}.")
            chosen = balanced(target, rows, generator(seed, "fashion-mnist rows"))
            images, target = images[chosen], target[chosen]
            counts = {"images": rows, "of": total}
            notices.append(Notice("rows-chosen", "info", counts=counts, details={"by": "classes"}))
        return Records(
            features=images,
            target=target,
            classes=CLASSES,
            hospital=np.full(len(target), "fashion-mnist"),
            groups=pd.DataFrame(index=pd.RangeIndex(len(target))),
            notes=tuple(notices),
        )

    return Source(load)


def balanced(target: np.ndarray, count: int, draws: np.random.Generator) -> np.ndarray:
    """Row numbers of `count` rows, dealt like cards: one of each class, then a second of each, while a class lasts.

    So with one seed a smaller choice is always part of a larger one.
    """
    shuffled = draws.permutation(len(target))
    turn = np.empty(len(target), dtype=np.int64)
    for label in np.unique(target):
        members = np.flatnonzero(target[shuffled] == label)
        turn[members] = np.arange(len(members))
    order = np.lexsort((target[shuffled], turn))  # by turn, then by class
    return np.sort(shuffled[order[:count]])


def read_idx(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The items of an IDX file of unsigned bytes, each of this shape: `()` for labels. The first axis counts them."""
    data = _read_bytes(file)
    axes = 1 + len(shape)
    start = 4 + 4 * axes
    if len(data) < start:
        raise _damaged(file, f"has {len(data)} bytes, too few for an IDX header")
    magic = bytes((0, 0, 0x08, axes))  # 0x08: unsigned bytes
    if data[:4] != magic:
        raise _damaged(file, f"starts with {data[:4].hex()}, not with {magic.hex()} (IDX, bytes, {axes} dimensions)")
    count, *item = (int(length) for length in np.frombuffer(data, ">u4", count=axes, offset=4))
    if tuple(item) != shape:
        raise _damaged(file, f"its items are {' x '.join(map(str, item))} instead of {' x '.join(map(str, shape))}")
    expected = count * math.prod(shape)
    if len(data) - start != expected:
        raise _damaged(file, f"announces {count} items, {expected} bytes, but holds {len(data) - start} bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(count, *shape)


def _find_files(path: Path) -> list[tuple[Path, Path]]:
    """Images and labels of each part."""
    names = [(f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in PARTS]
    if missing := [name for pair in names for name in pair if not _file(path, name).is_file()]:
        raise MachineError(
            str(path),
            f"not there: {', '.join(f'{name}.gz' for name in missing)}",
            "Run `apt-get install dataset-fashion-mnist` as root (Debian), "
            "or set data.path to a folder with the four files of Fashion-MNIST.",
        )
    return [(_file(path, images), _file(path, labels)) for images, labels in names]


def _file(path: Path, name: str) -> Path:
    plain = path / name
    return plain if plain.is_file() else path / f"{name}.gz"


def _read_part(image_file: Path, label_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images with a channel axis, kept as bytes because floats would take four times the memory, and their classes."""
    images, labels = read_idx(image_file, (PIXELS, PIXELS)), read_idx(label_file, ())
    if len(images) != len(labels):
        raise _damaged(label_file, f"has {len(labels)} labels for the {len(images)} images of {image_file.name}")
    if unknown := int((labels >= len(CLASSES)).sum()):
        raise _damaged(label_file, f"{unknown} labels are above {len(CLASSES) - 1}")
    return images[:, np.newaxis], labels.astype(np.int64)


def _read_bytes(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except EOFError:
        raise _damaged(file, "is cut off: the compressed data have no end") from None
    except (gzip.BadGzipFile, zlib.error):
        raise _damaged(file, "cannot be decompressed") from None
    except OSError as error:
        raise DataError(str(file), f"cannot be read ({error.strerror})", "Check the file's permissions.") from None


def _damaged(file: Path, problem: str) -> DataError:
    return DataError(str(file), problem, "Fetch the file anew: it is damaged, or not the file that its name says.")
