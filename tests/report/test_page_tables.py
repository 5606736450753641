"""How tables stand on a page, and what printing says where it cannot."""

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from wardround.core.errors import MachineError
from wardround.report import pdf, write_pdf
from wardround.report.render.page_table import LETTERS, on_page
from wardround.report.render.table import Table, decimals, make_table

FAKE = "#!/bin/sh\nfor option; do case $option in --print-to-pdf=*) target=${option#*=};; esac; done\n"


def wide(rows: int, columns: int, names: int = 1) -> Table:
    told = {f"name {place}": None for place in range(names)}
    numbers = {f"hospital-{place:02}": decimals for place in range(columns)}
    cells = [
        [*(f"row {row}" for _ in range(names)), *(row + place / 100 for place in range(columns))] for row in range(rows)
    ]
    return make_table("wide", "Wide", {**told, **numbers}, cells)


def test_few_lines_and_many_columns_are_turned_and_no_cell_is_lost() -> None:
    table = wide(3, 50)
    shown = on_page(table)
    assert list(shown.headings) == ["", "row 0", "row 1", "row 2"]
    assert [line[0] for line in shown.rows] == list(table.columns[1:])
    assert [[line[1 + row] for line in shown.rows] for row in range(3)] == [cells[1:] for cells in table.shown()]
    assert shown.parts == []


def test_what_fits_stays_as_it_is() -> None:
    shown = on_page(wide(3, 8))
    assert len(shown.rows) == 3
    assert shown.parts == []


@pytest.mark.parametrize("names", [1, 2])
def test_many_lines_and_columns_are_parted_for_paper_with_their_names(names: int) -> None:
    table = wide(60, 40, names)
    shown = on_page(table)
    assert shown.headings == table.columns
    parts = shown.parts
    assert len(parts) > 1
    assert [name for part in parts for name in part.headings[names:]] == list(table.columns[names:])
    for part in parts:
        assert list(part.headings[:names]) == list(table.columns[:names])
        assert len(part.rows) == 60
        assert sum(len("00.000") for _ in part.headings) < LETTERS


def test_lines_that_share_a_name_are_not_turned() -> None:
    table = wide(3, 50)
    same = Table(table.name, table.title, table.columns, [["row", *row[1:]] for row in table.rows], table.formats)
    assert len(on_page(same).rows) == 3


def test_the_policy_allows_the_script_by_its_hash_and_no_text_of_it_can_end_it() -> None:
    script = files("wardround.report.render").joinpath("templates", "report.js").read_text(encoding="utf-8")
    assert "</" not in script
    assert not re.search(r"innerHTML|eval\(|fetch|XMLHttp|localStorage", script)
    assert len(base64.b64encode(hashlib.sha256(script.encode()).digest())) == 44


def test_without_a_browser_printing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "which", lambda _: None)
    with pytest.raises(MachineError, match=r"needs Chromium or Chrome.*\s+Install it \(Debian: apt install chromium\)"):
        write_pdf(tmp_path / "report.html")
    assert not (tmp_path / "report.pdf").exists()


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("exit 3", "ended with code 3"),
        ("exit 0", "wrote no PDF"),
        ("echo no > $target", "wrote no PDF"),
        ("exec sleep 20", "did not end within 1 seconds"),
    ],
)
def test_a_browser_that_fails_leaves_the_earlier_pdf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    (tmp_path / "browser").write_text(FAKE + does, encoding="utf-8")
    (tmp_path / "browser").chmod(0o755)
    (tmp_path / "report.pdf").write_bytes(b"earlier")
    monkeypatch.setattr(pdf, "which", lambda _: str(tmp_path / "browser"))
    monkeypatch.setattr(pdf, "SECONDS", 1.0)
    with pytest.raises(MachineError, match=said):
        write_pdf(tmp_path / "report.html")
    assert (tmp_path / "report.pdf").read_bytes() == b"earlier"


def test_the_sandbox_is_left_only_for_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "browser").write_text(FAKE + 'printf "%%PDF-1.4 %s" "$*" > "$target"', encoding="utf-8")
    (tmp_path / "browser").chmod(0o755)
    monkeypatch.setattr(pdf, "which", lambda _: str(tmp_path / "browser"))
    for user, without in ((0, True), (1000, False)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        told = write_pdf(tmp_path / "report.html").read_text(encoding="utf-8")
        assert ("--no-sandbox" in told) is without
        assert "--headless" in told


def test_a_mean_and_its_spread_turn_into_one_line() -> None:
    sites = [f"hospital-{number:02}" for number in range(30)]
    columns = ["arm", *(name for site in sites for name in (site, f"SD, {site}"))]
    formats = dict.fromkeys(columns[1:], str)
    turned = on_page(
        make_table("t", "T", {"arm": None, **formats}, [["local", *range(60)], ["fedavg", *range(60, 120)]])
    )
    assert turned.headings == ["", "local", "SD, local", "fedavg", "SD, fedavg"]
    assert turned.rows[:2] == [[sites[0], "0", "1", "60", "61"], [sites[1], "2", "3", "62", "63"]]
    assert len(turned.rows) == 30
