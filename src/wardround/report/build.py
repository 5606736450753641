"""`report.html`, one self-contained file, with `figures/` and `tables/` beside it: all from the run folder alone."""

from pathlib import Path

from jinja2 import UndefinedError

from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import RunError, as_path
from wardround.report.evidence import Evidence, outcome_page, read_evidence
from wardround.report.render.figures import Counted, draw_all
from wardround.report.render.page import render_page
from wardround.report.render.table import Table, write_tables
from wardround.report.sections import sections_of
from wardround.runs.folder import RunFolder, write_atomically
from wardround.runs.spending import check_ledger


def build_report(path: str | Path, workers: int = 1, progress: Counted | None = None) -> Path:
    """Write the report of a complete run and return its path. Figures are drawn by `workers` processes.

    `progress` is called with the number of figures that are drawn, and of all.
    """
    folder = RunFolder(as_path(path, "run", RunError))
    with reporting_full_disk(folder.path, f"Make room, then: wardround report {folder.path}"), folder.checked_content():
        try:
            return _build(folder, workers, progress)
        except UndefinedError:  # the page names something that a file lacks
            raise LookupError from None


def _build(folder: RunFolder, workers: int, progress: Counted | None) -> Path:
    evidence = read_evidence(folder)
    check_ledger(folder)
    svgs = draw_figures(evidence, folder.path / "figures", workers, progress)
    tables = make_tables(evidence)
    write_tables(tables, folder.path / "tables")
    target = folder.path / "report.html"
    write_atomically(target, render_page(evidence, sections_of(evidence), tables, svgs).encode())
    for name in evidence.other_outcomes:
        _build_outcome(folder, evidence.of_outcome(name), name, workers, progress)
    return target


def _build_outcome(folder: RunFolder, evidence: Evidence, name: str, workers: int, progress: Counted | None) -> None:
    """A report of its own, with its figures and tables in folders of their own."""
    own = folder.path / outcome_page(name).removesuffix(".html")
    svgs, tables = draw_figures(evidence, own / "figures", workers, progress), make_tables(evidence)
    write_tables(tables, own / "tables")
    page = render_page(evidence, sections_of(evidence), tables, svgs)
    write_atomically(folder.path / outcome_page(name), page.encode())


def draw_figures(evidence: Evidence, folder: Path, workers: int = 1, progress: Counted | None = None) -> dict[str, str]:
    """Write all figures of a run as SVG and PNG; the SVGs by name, as elements of a page."""
    figures = {name: figure for section in sections_of(evidence).values() for name, figure in section.figures.items()}
    return draw_all(figures, evidence, folder, workers, progress)


def make_tables(evidence: Evidence) -> dict[str, Table]:
    tables = [make(evidence) for section in sections_of(evidence).values() for make in section.tables]
    return {table.name: table for table in tables if table is not None and table.rows}
