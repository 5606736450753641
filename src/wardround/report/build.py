"""`report.html`, one self-contained file, with `figures/` and `tables/` beside it: all from the run folder alone."""

from os import PathLike
from pathlib import Path

from jinja2 import UndefinedError

from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import RunError, as_path, shown, suggest
from wardround.report.evidence import Evidence, outcome_page, read_evidence, site_page
from wardround.report.render.figures import Counted, draw_all
from wardround.report.render.page import render_page, render_site
from wardround.report.render.table import Table, write_tables
from wardround.report.sections import remarks, sections_of
from wardround.report.sections.front.hospital_pages import hospital_page, named
from wardround.runs.folder import RunFolder, write_atomically
from wardround.runs.spending import check_ledger


def build_report(
    path: str | PathLike[str], workers: int = 1, site: str | None = None, progress: Counted | None = None
) -> Path:
    """Write the report of a complete run, or of its folder, and return its path. `workers` processes draw figures. With
    a `site`, that hospital's page alone, as a file beside the report. `progress` is called with the number of figures
    that are drawn, and of all."""
    folder = RunFolder(as_path(path, "run", RunError))
    with reporting_full_disk(folder.path, f"Make room, then: wardround report {folder.path}"), folder.checked_content():
        try:
            return _build(folder, workers, progress) if site is None else _build_site_page(folder, site)
        except UndefinedError:  # the page names something that a file lacks
            raise LookupError from None


def _build_site_page(folder: RunFolder, site: str) -> Path:
    evidence = read_evidence(folder)
    check_ledger(folder)
    if not evidence.decided:
        problem = "was made by an earlier version of wardround, without a page for each hospital"
        raise RunError(str(folder.path), problem, "Run the study again with --again.")
    if site not in evidence.sites:
        raise RunError(str(folder.path), f"has no hospital {shown(site)}", suggest(site, evidence.sites))
    page = render_site(evidence, hospital_page(evidence, site), named(evidence), remarks(evidence, "alarms"))
    target = folder.path / site_page(site)
    write_atomically(target, page.encode())
    return target


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
    sections = sections_of(evidence).values()
    tables = [make(evidence) for section in sections for make in section.tables]
    tables += [table for section in sections if section.every_table for table in section.every_table(evidence)]
    return {table.name: table for table in tables if table is not None and table.rows}
