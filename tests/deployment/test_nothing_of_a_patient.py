"""Values that nobody could overlook are planted in the rows of a hospital. They are found nowhere but there."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment.hospital_files import at_sites, own, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from wardround.core.errors import DeployError
from wardround.core.seeds import generator
from wardround.data.sources import SOURCES, Source
from wardround.runs.audit import verify

SITES = ("north", "south", "west")
NAME, IDENTITY, NUMBER, TEXT = "Zbigniew Quxley", "PAT-7731-XQ", 9876543210.125, "allergic to quxline"
HEAD = ("patient", "name", "note", "age", "marker", "lab", "ward", "sick")


def rows(site: str, count: int = 60) -> list[list[str]]:
    """The first row is the one that must not be found; it is one of many, as the rows of a patient are."""
    rng = generator(17, "planted", site=site)
    lines = []
    for number in range(count):
        marker = NUMBER if number == 0 else rng.normal(10, 3)
        lab = "" if site == "west" else f"{rng.normal(5, 1):.4f}"  # so that it takes a fill value from the others
        sick = "yes" if rng.random() < 0.5 else "no"
        who = IDENTITY if number == 0 else f"P{site}{number:04}"
        name = NAME if number == 0 else f"Person {site} {number}"
        note = TEXT if number == 0 else f"note {number} of {site}"
        ward = str(rng.choice(["a", "b"]))
        lines.append([who, name, note, f"{rng.integers(20, 90)}", f"{marker:.3f}", lab, ward, sick])
    return lines


def write(path: Path, lines: list[list[str]]) -> Path:
    path.write_text("\n".join(",".join(line) for line in [list(HEAD), *lines]) + "\n", encoding="utf-8")
    return path


def own_file(path: Path, **changes: Any) -> Source:
    types = {"name": "id", "note": "ignore"}
    outcome = {"target": "sick", "positive": "yes", **changes}
    return SOURCES["csv"](files={path.stem: path}, patient="patient", types=types, **outcome)


def document(smallest: int = 5, **changes: Any) -> dict[str, Any]:
    return {
        "name": "planted",
        "data": {"source": "at-sites", "scale": "federated"},
        "training": {"rounds": 3, "local_epochs": 2, "batch_size": 16, "lr": 0.01},
        "evaluation": {"seeds": {"first": 1, "count": 2}, "validation_share": 0.15},
        "deployment": {"smallest_cell": smallest},
        "arms": [{"algorithm": name} for name in ("fedavg", "scaffold", "local")],
        **changes,
    }


def planted(folder: Path, content: dict[str, Any] | None = None, count: int = 60) -> Federation:
    (folder / "data").mkdir(parents=True)
    files = {site: write(folder / "data" / f"{site}.csv", rows(site, count)) for site in SITES}
    sources: dict[str, Callable[[], Source]] = {site: partial(own_file, path) for site, path in files.items()}
    return federation(content or document(), folder, sources)


def forms() -> Iterator[tuple[str, bytes]]:
    """Every way in which the planted values could be written."""
    for text in (NAME, IDENTITY, TEXT, "Quxley", "PAT-7731", "quxline", "9876543210"):
        yield text, text.encode()
        yield f"{text} in UTF-16", text.encode("utf-16-le")
    for kind in ("<f4", ">f4", "<f8", ">f8"):
        yield f"{NUMBER} as {kind}", np.array(NUMBER, dtype=kind).tobytes()
    yield f"{NUMBER} as a whole number", np.array(9876543210, dtype="<i8").tobytes()


def assert_clean(content: bytes, where: str) -> None:
    for what, form in forms():
        assert form not in content, f"{where}: {what}"
        assert form.lower() not in content.lower(), f"{where}: {what}"


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    planted(tmp_path)
    content = (tmp_path / "data" / "north.csv").read_bytes()
    matches = [what for what, form in forms() if form in content]
    assert matches == [NAME, IDENTITY, TEXT, "Quxley", "PAT-7731", "quxline", "9876543210"]
    records = own_file(tmp_path / "data" / "north.csv").load()
    assert "marker" in [column.name for column in records.columns]
    assert NUMBER in records.features["marker"].to_numpy()  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        assert_clean(np.array([1.0, NUMBER]).tobytes(), "here")


def test_nothing_of_a_patient_leaves_a_hospital(tmp_path: Path) -> None:
    network = planted(tmp_path)
    network.run()
    kinds = {kind_of(sealed) for _, sealed, _ in network.transport.carried}
    assert {"hello", "facts", "fill_values", "moments", "prepare", "train", "evaluate", "goodbye"} == kinds
    for site, asked, answer in network.transport.carried:
        for sealed in (asked, answer):
            assert_clean(sealed.head + sealed.tensors + sealed.signature, f"{kind_of(sealed)}, {site}")
    seen = 0
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            seen += 1
            assert_clean(path.read_bytes(), str(path))
    assert seen > 8
    for log in [tmp_path / "run" / "audit.jsonl", *(tmp_path / "sites" / site / "audit.jsonl" for site in SITES)]:
        assert verify(log).broken is None
        assert_clean(log.read_bytes(), str(log))


def test_no_message_holds_as_many_numbers_as_there_are_rows(tmp_path: Path) -> None:
    """Whatever they are: nothing that leaves has an entry for each row of a site, or for each that trains or tests."""
    network = planted(tmp_path, count=71)
    network.run()

    def lengths(value: Any) -> Iterator[int]:
        if isinstance(value, list):
            yield len(value)
        for part in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
            yield from lengths(part)

    sizes = {71, 71 - 14, 14, *range(40, 71)}
    for site, _, answer in network.transport.carried:
        shared_sizes = sizes & set(lengths(body_of(answer)))
        assert not shared_sizes, (site, kind_of(answer), shared_sizes)


def test_what_sites_lend_is_asked_for_and_is_of_many_rows(tmp_path: Path) -> None:
    network = planted(tmp_path)
    network.run()
    fill_values = [
        body_of(answer)["fill_values"][0]
        for _, _, answer in network.transport.carried
        if kind_of(answer) == "fill_values"
    ]
    assert len(fill_values) == len(SITES)
    for lent_values in fill_values:
        assert sum(count > 0 for count in lent_values["counts"]) <= 1  # of `lab`, which west lacks; of nothing else
        assert all(count == 0 or count >= 5 for count in lent_values["counts"])
        assert lent_values["levels"] == {}


BROKEN: dict[str, Callable[[list[str]], list[str]]] = {
    "a field too many": lambda row: [*row, NAME],
    "quotation marks": lambda row: [f'"{NAME}', *row[1:]],
    "a word for a number": lambda row: [*row[:4], NAME, *row[5:]],
    "not a number": lambda row: [*row[:4], f"{NUMBER}x", *row[5:]],
    "another class": lambda row: [*row[:-1], TEXT],
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_tells_no_value(what: str, tmp_path: Path) -> None:
    """It is broken where the planted values are. What the hospital itself is shown may be more."""
    network = planted(tmp_path)
    good = rows("south")
    write(tmp_path / "data" / "south.csv", [BROKEN[what](good[0]), *good[1:]])
    error_text = ""
    try:
        network.run()
    except DeployError as error:
        error_text = str(error)
    # one word among numbers is a text to some rules; then the run goes on, or the sites do not fit
    assert "south" in error_text or what in ("a word for a number", "not a number")
    assert_clean(error_text.encode() + "\n".join(network.lines).encode(), what)
    for _, asked, answer in network.transport.carried:
        assert_clean(asked.head + answer.head, what)
    for log in (tmp_path / "run" / "audit.jsonl", tmp_path / "sites" / "south" / "audit.jsonl"):
        assert_clean(log.read_bytes(), what)


@pytest.mark.parametrize("scale", ["per-site", "federated"])
def test_a_value_that_only_one_patient_has_is_not_lent(scale: str, tmp_path: Path) -> None:
    """north measured `lab` once, west never: west's gaps would be filled with that patient's value."""
    network = planted(tmp_path, document(data={"source": "at-sites", "scale": scale}))
    for site in ("north", "south"):
        once = [[*row[:4], "10.0", "", *row[6:]] for row in rows(site)]
        for number in range(3):  # rows of one patient; with one of the seeds they train
            once[number][0], once[number][5] = (IDENTITY, str(NUMBER)) if site == "north" else ("", "")
        write(tmp_path / "data" / f"{site}.csv", once)
    network.run()
    for site, asked, answer in network.transport.carried:
        for sealed in (asked, answer):
            assert_clean(sealed.head, f"{kind_of(sealed)}, {site}")


def test_a_level_that_only_one_patient_has_is_not_named(tmp_path: Path) -> None:
    """Where the study says so with `least_level`, on which a site's policy may insist."""
    network = planted(tmp_path, document(data={"source": "at-sites", "least_level": 5}))
    altered = [[*row[:6], "quxline" if number < 3 else row[6], row[7]] for number, row in enumerate(rows("north"))]
    write(tmp_path / "data" / "north.csv", [[IDENTITY if n < 3 else row[0], *row[1:]] for n, row in enumerate(altered)])
    network.run()
    for site, _, answer in network.transport.carried:
        assert b"quxline" not in answer.head, (site, kind_of(answer))


def counts_in(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Every number of rows that a summary tells, with the key that it stands under."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from counts_in(part, str(key))
    elif isinstance(value, list):
        for part in value:
            yield from counts_in(part, name)
    elif isinstance(value, int) and not isinstance(value, bool) and name in ("rows", "true_positive", "yes", "no"):
        yield name, value


@pytest.mark.parametrize("smallest", [5, 9])
def test_small_cells_do_not_leave(smallest: int, tmp_path: Path) -> None:
    network = planted(tmp_path, document(smallest), count=40)
    network.run()
    cells_seen = 0
    for site, _, answer in network.transport.carried:
        for name, count in counts_in(body_of(answer)):
            cells_seen += 1
            assert count == 0 or count >= smallest, (site, kind_of(answer), name, count)
        if kind_of(answer) == "summary":
            for sides in body_of(answer)["summaries"].values():
                assert set(sides) <= {"test"}  # nothing is selected, so that nobody needs validation rows
    assert cells_seen
    lines = [json.loads(line) for line in (tmp_path / "run" / "summaries.jsonl").read_text().splitlines()]
    assert all(count == 0 or count >= smallest for line in lines for _, count in counts_in(line))


def test_a_site_with_too_few_rows_tells_no_figures(tmp_path: Path) -> None:
    network = planted(tmp_path, document(50), count=40)
    network.run()
    for line in (tmp_path / "run" / "summaries.jsonl").read_text().splitlines():
        assert json.loads(line)["suppressed"]
        assert "metrics" not in json.loads(line)
    for _, _, answer in network.transport.carried:
        assert not body_of(answer).get("figures")


def test_a_class_that_few_rows_have_is_not_named(tmp_path: Path) -> None:
    """It may be a slip of the pen. Where another site has it in earnest, its name is known from there."""

    def rare() -> Source:
        records = own("cedar", 3)
        target = records.target.copy()
        target[np.flatnonzero(target == 2)[3:]] = 1
        return Source(lambda: replace(records, target=target))

    sources = {**at_sites(("alder", "birch"), 3), "cedar": rare}
    content = {**study(["fedavg"]), "data": {"source": "at-sites"}}
    network = federation(content, tmp_path, sources)
    network.run()
    ready = {
        site: body_of(answer)["task"]["names"]
        for site, _, answer in network.transport.carried
        if kind_of(answer) == "ready"
    }
    assert [entry["name"] for entry in ready["alder"]] == ["well", "ill", "worse"]
    assert [entry["name"] for entry in ready["cedar"]] == ["well", "ill", None]
    described = network.folder.read_json("results.json")["sites"][0]["sites"]
    assert list(described["cedar"]["classes"]) == ["well", "ill", "worse"]
