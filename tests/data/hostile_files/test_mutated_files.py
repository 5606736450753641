"""3,000 mutated files: each is read, or refused with one clear error; none hangs, fills the memory or leaves a trace.

A sample runs with every `make test`, the rest with `make test-all`. A failure names the number of its mutation.
"""

import inspect
import io
import json
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from PIL import Image

import wardround
from tests.bundles.image_runs import radiographs
from tests.bundles.untrained_bundles import write_bundle
from tests.cli.test_commands import write_hospitals
from tests.data.hostile_files.file_mutations import Tried, mutated_bytes, mutated_data
from tests.radiographs import a_study, source_of
from wardround.bundles import Registry, load_bundle
from wardround.bundles.sealed_files import ABOUT, PREPARATION, WEIGHTS, as_text, seal
from wardround.core.seeds import generator
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.sources.csv.hospital_files import csv
from wardround.report import build
from wardround.runs.audit import AuditLog, changed_files, file_hash, verify

KINDS = {"study": 700, "csv": 500, "images": 500, "npz": 300, "bundle": 600, "run": 400}
assert sum(KINDS.values()) == 3000
SAMPLE = {"study": 90, "csv": 90, "images": 40, "npz": 60, "bundle": 90, "run": 16}  # with every `make test`


def numbers(kind: str) -> list[Any]:
    rest = range(SAMPLE[kind], KINDS[kind], 200)
    return [
        pytest.param(range(SAMPLE[kind]), id="sample"),
        *(
            pytest.param(range(begin, min(begin + 200, KINDS[kind])), id=f"from-{begin}", marks=pytest.mark.slow)
            for begin in rest
        ),
    ]


STUDY = """name = "mutated"
question = "What happens?"
[data]
source = "heart"
missing = "median"
[sites]
partition = "by-hospital"
[model]
kind = "mlp"
hidden = [4, 4]
[training]
rounds = 2
lr = 0.1
lr_decay = { kind = "step", factor = 0.5, every = 2 }
[privacy.example]
noise = 1.1
clip = 1.0
[evaluation]
seeds = { first = 1, count = 2 }
[[arms]]
name = "a"
algorithm = "fedprox"
mu = [0.1, 1]
[[arms]]
algorithm = "scaffold"
"training.momentum" = 0.5
[[variants]]
name = "v"
"training.rounds" = 3
[quick]
training.rounds = 1
"""
BOMBS = {
    "deep list": "a = " + "[" * 100_000 + "]" * 100_000,
    "deep table": "a = " + "{a=" * 50_000 + "1" + "}" * 50_000,
    "long dotted key": "a." * 200_000 + "a = 1",
    "long quoted key": '"a b".' * 50_000 + "a = 1",
    "long table name": "[" + "a." * 100_000 + "a]",
    "many keys": "".join(f"k{i} = 1\n" for i in range(60_000)),
    "many tables": "".join(f"[t{i}]\n" for i in range(60_000)),
    "huge number": "a = " + "9" * 500_000,
    "huge hexadecimal number": "a = 0x" + "f" * 500_000,
    "huge text": f'name = "{"x" * 900_000}"',
    "huge file": "#" + "x" * 3_000_000,
    "huge sweep": STUDY.replace("mu = [0.1, 1]", "".join(f'"training.k{i}" = {list(range(99))}\n' for i in range(9))),
    "large sweep": STUDY.replace("mu = [0.1, 1]", f"mu = {list(range(1, 2000))}"),
    "many arms": STUDY + '[[arms]]\nalgorithm = "fedavg"\n' * 12_000,
    "odd date": "a = 0000-00-00",
    "not UTF-8": "name = '\udcff'",
    "nothing": "",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_study_file_that_is_a_bomb_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.toml"
    path.write_bytes(BOMBS[name].encode("utf-8", "surrogateescape"))
    tried = Tried()
    assert not tried.call(name, lambda: wardround.load_study(path))
    tried.check()


@pytest.mark.parametrize("chosen", numbers("study"))
def test_mutated_study_files(chosen: range, tmp_path: Path) -> None:
    tried, path = Tried(), tmp_path / "study.toml"
    plain = tomllib.loads(STUDY)
    for number in chosen:
        rng = generator(number, "mutated study")
        if number % 2:
            path.write_bytes(mutated_bytes(STUDY.encode(), rng))
            tried.call(f"text {number}", lambda: wardround.load_study(path))
        else:
            data = mutated_data(plain, rng)
            tried.call(f"data {number}", lambda data=data: wardround.load_study(data))  # type: ignore[misc]
            tried.call(f"quick {number}", lambda data=data: wardround.load_study(data, quick=True))  # type: ignore[misc]
        if number % 10 == 0:
            small = {**plain, "data": mutated_data(plain["data"], rng), "sites": mutated_data(plain["sites"], rng)}
            tried.call(
                f"plan {number}",
                lambda small=small: wardround.load_plan(*wardround.load_study(small)),  # type: ignore[misc]
            )
    tried.check()


@pytest.mark.parametrize("chosen", numbers("csv"))
def test_mutated_csv_files(chosen: range, tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    content, bundle = (tmp_path / "north.csv").read_bytes(), load_bundle(write_bundle(tmp_path / "b"))
    rows = b"age,crp,sodium\n" + b"".join(b"%d,%d.5,NA\n" % (i, i) for i in range(30))
    path, out = tmp_path / "m.csv", tmp_path / "out"
    out.mkdir()
    files = {"north": path, "south": tmp_path / "south.csv"}
    tried = Tried()
    for number in chosen:
        rng = generator(number, "mutated CSV")
        if number % 3:
            path.write_bytes(mutated_bytes(content, rng))
            tried.call(f"source {number}", lambda: csv(files, "died", types={"admitted": "date"}).load(), out)
        else:
            path.write_bytes(mutated_bytes(rows, rng))
            tried.call(f"predict {number}", lambda: wardround.predict_file(bundle, path, out / "o.csv"), out)
            (out / "o.csv").unlink(missing_ok=True)
    tried.check()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, rows: bytes) -> bytes:
    """With right checksums, whatever it says of itself."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*part) for part in parts)


def dicom(folder: Path, deflated: bool = False, side: int = 12) -> bytes:
    pydicom = pytest.importorskip("pydicom")
    meta, syntaxes = pydicom.dataset.FileMetaDataset(), pydicom.uid
    meta.TransferSyntaxUID = syntaxes.DeflatedExplicitVRLittleEndian if deflated else syntaxes.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.DigitalXRayImageStorageForPresentation
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    data = pydicom.dataset.Dataset()
    data.file_meta, data.SOPClassUID, data.SOPInstanceUID = meta, meta.MediaStorageSOPClassUID, "1.2.3"
    data.PatientID, data.PatientAge, data.PatientSex, data.ViewPosition = "7", "050Y", "F", "PA"
    data.Rows, data.Columns, data.SamplesPerPixel, data.PhotometricInterpretation = side, 10, 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 12, 11, 0
    data.WindowCenter, data.WindowWidth = 50, 100
    data.PixelData = np.arange(120, dtype="<u2").tobytes()
    data.save_as(folder / "made.dcm", enforce_file_format=True)
    return (folder / "made.dcm").read_bytes()


def deflated_bomb(folder: Path) -> bytes:
    """A DICOM file with a private element of 1 GB of zeros, which take a megabyte."""
    small = dicom(folder, deflated=True)
    start = 144 + struct.unpack("<I", small[140:144])[0]  # after the preamble and the file's meta information
    packer = zlib.compressobj(9, wbits=-15)
    element = b"\xe1\x7f\x10\x00OB\0\0" + struct.pack("<I", 1_000_000_000)
    parts = [packer.compress(zlib.decompress(small[start:], wbits=-15) + element)]
    parts += [packer.compress(bytes(1_000_000)) for _ in range(1000)]
    return small[:start] + b"".join(parts) + packer.flush()


@pytest.fixture(scope="module")
def image_bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pictured")
    study = a_study(arms=[{"name": "local", "algorithm": "fedavg"}], training={"rounds": 1})
    sources = source_of(radiographs())
    run = wardround.run_study(study, folder / "runs", sources=sources, workers=1).folder
    bundle_folder = wardround.make_bundle(run, arm="local", site="hospital-0", out=folder / "b", sources=sources)
    return load_bundle(bundle_folder)


def test_images_that_are_bombs_links_or_no_images(image_bundle: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    (tmp_path / "secret.png").write_bytes(png(4, 4, bytes(20)))
    tried = Tried()
    contents: dict[str, bytes] = {
        "bomb": png(30_000, 30_000, bytes(30_001 * 3_000)),
        "larger than it is": png(50_000, 50_000, b"\0\0\0"),
        "as large as can be": png(2**31 - 1, 2**31 - 1, b"\0"),
        "no size": png(0, 0, b""),
        "text bomb": b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
        + png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200_000_000), 9))
        + png_chunk(b"IDAT", zlib.compress(bytes(20)))
        + png_chunk(b"IEND", b""),
    }
    for name, content in contents.items():
        (folder / "a.png").write_bytes(content)
        tried.call(name, lambda: wardround.predict_file(image_bundle, folder, out / "o.csv"), out)
    (folder / "a.png").unlink()
    file_bytes = dicom(tmp_path)
    of_size = b"\x28\x00\x10\x00US\x02\x00", b"\x28\x00\x11\x00US\x02\x00"  # the elements Rows and Columns
    for tag in of_size:
        place = file_bytes.index(tag) + len(tag)
        file_bytes = file_bytes[:place] + b"\xff\xff" + file_bytes[place + 2 :]
    (folder / "a.dcm").write_bytes(file_bytes)
    tried.call("large DICOM", lambda: wardround.predict_file(image_bundle, folder, out / "o.csv"), out)
    (folder / "a.dcm").unlink()
    links = {"loop": folder / "loop.png", "nowhere": folder / "gone.png", "device": Path("/dev/zero"), "up": tmp_path}
    for name, target in links.items():
        link = folder / ("loop.png" if name == "loop" else f"{name}.png")
        link.symlink_to(target)
        tried.call(f"below: {name}", lambda: wardround.predict_file(image_bundle, folder, out / "o.csv"), out)
        tried.call(name, lambda link=link: wardround.predict_file(image_bundle, link, out / "o.csv"), out)  # type: ignore[misc]
        link.unlink()
    for name in ("../secret.png", str(tmp_path / "secret.png"), "/etc/passwd", "a\0b.png", ".", "", "~/x.png"):
        (folder / "list.csv").write_text(f'image,age\n"{name}",3\n')
        tried.call(
            f"listed {name!r}", lambda: wardround.predict_file(image_bundle, folder / "list.csv", out / "o.csv"), out
        )
    # the first without its text; links to folders are followed, once each
    assert set(tried.read) <= {"text bomb", "below: up", "up"}
    tried.check()


@pytest.mark.slow
def test_a_dicom_file_that_is_compressed_as_a_whole_is_not_decompressed(image_bundle: Any, tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(deflated_bomb(tmp_path))
    tried = Tried()
    tried.call("bomb", lambda: wardround.predict_file(image_bundle, tmp_path / "a.dcm", tmp_path / "o.csv"), tmp_path)
    tried.check()


@pytest.mark.parametrize("chosen", numbers("images"))
def test_mutated_images(chosen: range, image_bundle: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    pixels, contents = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)), {}
    for kind in ("png", "jpeg", "gif", "tiff", "bmp"):
        buffer = io.BytesIO()
        pixels.save(buffer, kind)
        contents[f"a.{kind}"] = buffer.getvalue()
    contents["a.dcm"] = contents["b.dcm"] = dicom(tmp_path)
    table = b"image,age,sex,view\na.png,50,M,PA\n"
    names, tried = list(contents), Tried()
    for number in chosen:
        rng = generator(number, "mutated image")
        name = names[number % len(names)]
        path = folder / name
        path.write_bytes(mutated_bytes(contents[name], rng))
        tried.call(f"{name} {number}", lambda path=path: wardround.predict_file(image_bundle, path, out / "o.csv"), out)  # type: ignore[misc]
        (out / "o.csv").unlink(missing_ok=True)
        if number % 5 == 0:
            (folder / "a.png").write_bytes(contents["a.png"])
            (folder / "list.csv").write_bytes(mutated_bytes(table, rng))
            tried.call(
                f"list {number}", lambda: wardround.predict_file(image_bundle, folder / "list.csv", out / "o.csv"), out
            )
            (out / "o.csv").unlink(missing_ok=True)
        rmtree(folder)
        folder.mkdir()
    tried.check()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zeros() -> bytes:
    """1.2 GB of black images in a megabyte, made without having them in memory."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("train_images.npy", "w", force_zip64=True) as file,
    ):
        file.write(header((3, 20_000, 20_000)))
        for _ in range(1200):
            file.write(bytes(1_000_000))
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape: tuple[int, ...], descr: str = "|u1", order: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": order, "shape": shape})
    return buffer.getvalue()


GOOD_NPZ: dict[str, np.ndarray] = {
    **{f"{side}_images": np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8) for side in ("train", "val", "test")},
    **{f"{side}_labels": np.eye(4, 2, dtype=np.int64) for side in ("train", "val", "test")},
    **{f"{side}_age": np.array([50, 60, 70, 80]) for side in ("train", "val", "test")},
    "label_names": np.array(["Hernia", "Mass"]),
}
MEMBERS = {f"{name}.npy": npy(array) for name, array in GOOD_NPZ.items()}
NPZ_BOMBS: dict[str, Callable[[], bytes]] = {
    "zeros": zeros,
    "wide labels": lambda: zipped({**MEMBERS, "train_labels.npy": header((4, 40_000_000)) + bytes(160_000_000)}),
    "many tiny images": lambda: zipped({**MEMBERS, "train_images.npy": header((50_000_000, 1, 1)) + bytes(50_000_000)}),
    "larger than it is": lambda: zipped({"train_images.npy": header((10**9, 10**6, 10**6))}),
    "more than a number can hold": lambda: zipped({"train_images.npy": header((2**40, 2**40, 2**40))}),
    "negative": lambda: zipped({"train_images.npy": header((-1, 8, 8))}),
    "objects": lambda: zipped({"train_images.npy": npy(np.array([{"a": 1}], dtype=object))}),
    "floats": lambda: npz(**{**GOOD_NPZ, "train_images": np.zeros((4, 8, 8))}),
    "complex labels": lambda: npz(**{**GOOD_NPZ, "train_labels": np.zeros((4, 2), dtype=complex)}),
    "dates as ages": lambda: npz(**{**GOOD_NPZ, "train_age": np.zeros(4, dtype="datetime64[s]")}),
    "records": lambda: npz(**{**GOOD_NPZ, "train_age": np.zeros(4, dtype=[("a", "i4"), ("b", "f8")])}),
    "paths": lambda: zipped({"../../train_images.npy": npy(np.zeros((1, 8, 8), np.uint8)), "/etc/x.npy": b"x"}),
    "twice": lambda: zipped({"train_images.npy": npy(np.zeros((1, 8, 8), np.uint8))})[:-1] + b"x",
    "many members": lambda: zipped({f"m{i}.npy": b"" for i in range(5_000)}),
    "columns first": lambda: zipped({"train_images.npy": header((4, 8, 8), order=True) + bytes(256)}),
    "odd type": lambda: zipped({"train_images.npy": header((4, 8, 8), descr="|V0")}),
    "code in the header": lambda: zipped(
        {"train_images.npy": b"\x93NUMPY\x01\x00\x40\x00__import__('os').abort()" + b" " * 40}
    ),
    "no zip": lambda: b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "zeros" else n for n in NPZ_BOMBS])
def test_archives_that_are_bombs_or_hold_other_things(name: str, image_bundle: Any, tmp_path: Path) -> None:
    path, out, cache = tmp_path / "a.npz", tmp_path / "out", tmp_path / "cache"
    path.write_bytes(NPZ_BOMBS[name]())
    out.mkdir()
    tried = Tried()
    source = chest_xray(path, size=8, findings=("Hernia",), cache=cache)
    assert not tried.call(f"source: {name}", source.load, out)
    tried.call(f"predict: {name}", lambda: wardround.predict_file(image_bundle, path, out / "o.csv"), out)
    tried.check()


@pytest.mark.parametrize("chosen", numbers("npz"))
def test_mutated_archives(chosen: range, image_bundle: Any, tmp_path: Path) -> None:
    path, out, cache = tmp_path / "a.npz", tmp_path / "out", tmp_path / "cache"
    out.mkdir()
    whole, tried = npz(**GOOD_NPZ), Tried()
    for number in chosen:
        rng = generator(number, "mutated archive")
        if number % 2:
            path.write_bytes(mutated_bytes(whole, rng))
        else:
            name = list(MEMBERS)[int(rng.integers(0, len(MEMBERS)))]
            path.write_bytes(zipped({**MEMBERS, name: mutated_bytes(MEMBERS[name], rng)}))
        source = chest_xray(path, size=8, findings=("Hernia",), cache=cache)
        tried.call(f"source {number}", source.load, out)
        tried.call(f"predict {number}", lambda: wardround.predict_file(image_bundle, path, out / "o.csv"), out)
        (out / "o.csv").unlink(missing_ok=True)
    tried.check()


@pytest.mark.parametrize("chosen", numbers("bundle"))
def test_mutated_bundles_with_valid_hashes(chosen: range, tmp_path: Path) -> None:
    """As somebody makes them who can compute hashes."""
    original = write_bundle(
        tmp_path / "original", kind="mlp", options={"hidden": [3]}, calibration={"slope": 1.0, "intercept": 0.0}
    )
    table = pd.DataFrame({"age": [1.0, None], "crp": [2.0, 3.0], "sodium": ["3", "NA"]})
    about = json.loads((original / ABOUT).read_bytes())
    files = {name: (original / name).read_bytes() for name in about["files"]}
    plain = {name: json.loads(files[name]) for name in files if name.endswith(".json")}
    folder, tried = tmp_path / "mutated", Tried()

    def use() -> None:
        bundle = load_bundle(folder)
        wardround.predict_table(bundle, table)

    for number in chosen:
        rng = generator(number, "mutated bundle")
        rmtree(folder, ignore_errors=True)
        copytree(original, folder)
        changed, description = dict(files), about
        which = number % 4
        try:
            if which == 0:
                description = mutated_data(about, rng)
            elif which == 1:
                name = PREPARATION if number % 8 < 4 else list(plain)[int(rng.integers(0, len(plain)))]
                changed[name] = as_text(mutated_data(plain[name], rng))
            elif which == 2:
                changed[WEIGHTS] = mutated_bytes(files[WEIGHTS], rng)
            else:
                name = list(files)[int(rng.integers(0, len(files)))]
                changed[name] = mutated_bytes(files[name], rng)
            sealed = seal(description, changed)
        except (AttributeError, TypeError, ValueError):  # a mutation that JSON, or the seal, cannot hold
            continue
        for name, content in changed.items():
            (folder / name).write_bytes(content)
        (folder / ABOUT).write_bytes(sealed)
        tried.call(f"{which} {number}", use, folder)
        if number % 10 == 0:
            registry = tmp_path / f"registry-{number}"
            tried.call(f"registry {number}", lambda registry=registry: Registry(registry).add(folder))  # type: ignore[misc]
    tried.check()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and one that stopped."""
    folder = tmp_path_factory.mktemp("finished")
    study = write_hospitals(folder)
    small = {"training.rounds": 2, "evaluation.seeds": {"first": 1, "count": 2}}
    whole = wardround.run_study(study, folder / "runs", changes=small, workers=1).folder

    def stop(progress: Any) -> None:
        if progress.done == progress.total // 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wardround.run_study(study, folder / "stopped", changes=small, workers=1, engine="serial", progress=stop)
    return whole, next((folder / "stopped").iterdir())


def log_anew(folder: Path) -> None:
    """As somebody writes the log who wants the changed files to look like those of the run."""
    path = folder / "audit.jsonl"
    path.unlink()
    names = ("results.json", "predictions.parquet", "records.parquet")
    AuditLog(path).add("run finished", files={n: file_hash(folder / n) for n in names if (folder / n).is_file()})


@pytest.mark.parametrize("chosen", numbers("run"))
def test_mutated_run_folders(
    chosen: range, finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = finished
    monkeypatch.setattr(build, "draw_all", lambda *_: {})  # figures take seconds: the next test draws them
    monkeypatch.setattr(build, "_build", inspect.unwrap(build._build))  # what was changed may contradict itself
    results, environment = (json.loads((whole / n).read_bytes()) for n in ("results.json", "environment.json"))
    study = tomllib.loads((whole / "study.toml").read_text())
    folder, tried = tmp_path / "run", Tried()
    for number in chosen:
        rng = generator(number, "mutated run")
        rmtree(folder, ignore_errors=True)
        if number % 4 == 3:
            copytree(stopped, folder)
            not_so = (".lock", "study.toml")  # a study that asks for a million rounds would be trained
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in not_so]
            path = files[int(rng.integers(0, len(files)))]
            path.write_bytes(mutated_bytes(path.read_bytes(), rng))
            name = f"{number} {path.name}"
            tried.call(f"resume {name}", lambda: wardround.resume_study(folder, workers=1))
            continue
        copytree(whole, folder)
        if number % 4 == 0:
            changed = mutated_data(results, rng)
            (folder / "results.json").write_text(json.dumps(changed))
            log_anew(folder)
            name = f"{number} results.json"
        elif number % 4 == 1:
            other = ("environment.json", environment) if number % 8 == 1 else ("study.toml", study)
            text = mutated_data(other[1], rng)
            try:
                content = tomli_w.dumps(text) if other[0] == "study.toml" else json.dumps(text)
            except (AttributeError, TypeError, ValueError):
                continue
            (folder / other[0]).write_bytes(content.encode("utf-8", "surrogatepass"))
            name = f"{number} {other[0]}"
        else:
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
            path = files[int(rng.integers(0, len(files)))]
            path.write_bytes(mutated_bytes(path.read_bytes(), rng))
            name = f"{number} {path.name}"
            if path.name != "audit.jsonl" and number % 8 == 2:
                log_anew(folder)
        tried.call(f"report {name}", lambda: wardround.build_report(folder))
        tried.call(f"compare {name}", lambda: wardround.compare_runs([whole, folder]))
        tried.call(
            f"bundle {name}", lambda: wardround.make_bundle(folder, arm="fedprox", site="north", out=tmp_path / "b")
        )
        rmtree(tmp_path / "b", ignore_errors=True)
        tried.call(f"log {name}", lambda: (verify(folder / "audit.jsonl"), changed_files(folder / "audit.jsonl")))
        left = [str(leftover) for leftover in tmp_path.rglob("*.partial")]
        if left:
            tried.wrong.append(f"{name}: {left}")
    tried.check()


@pytest.mark.slow
def test_mutated_results_with_their_figures(finished: tuple[Path, Path], tmp_path: Path) -> None:
    whole, _ = finished
    results, tried, folder = json.loads((whole / "results.json").read_bytes()), Tried(), tmp_path / "run"
    for number in range(8):
        rmtree(folder, ignore_errors=True)
        copytree(whole, folder)
        (folder / "results.json").write_text(json.dumps(mutated_data(results, generator(number, "mutated figures"))))
        log_anew(folder)
        tried.call(f"report {number}", lambda: wardround.build_report(folder))
        assert not list(folder.rglob("*.partial"))
    assert not tried.wrong, "\n".join(tried.wrong)
