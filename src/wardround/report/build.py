"""`report.html`, one self-contained file, with `figures/` and `tables/` beside it: all from the run folder alone."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, StrictUndefined, UndefinedError

from wardround.core.atomic_files import reporting_full_disk
from wardround.core.errors import RunError, as_path
from wardround.report.attacked import attack_words, failed_words
from wardround.report.checklist import checklist
from wardround.report.citations import citations
from wardround.report.claims import subjects
from wardround.report.evidence import Evidence, read_evidence, rows_of
from wardround.report.figures import FIGURES, attack_figures, draw_all, left_out
from wardround.report.parties import party_words
from wardround.report.sure import sure_words
from wardround.report.table import few, write_tables
from wardround.report.tables import all_tables
from wardround.report.topology import topology_words
from wardround.report.ways import ways_words
from wardround.report.words import SYNTHETIC, answer, best_single_words, design, groups_title, hospital_words
from wardround.report.words_across import across_words
from wardround.report.words_findings import finding_words
from wardround.report.words_on_data import limits, privacy
from wardround.runs.folder import RunFolder, write_atomically
from wardround.runs.spending import check_ledger

MOST_SITES = 30  # with a paragraph of their own


def build_report(path: str | Path, workers: int = 1) -> Path:
    """Write the report of a complete run and return its path. Figures are drawn by `workers` processes."""
    folder = RunFolder(as_path(path, "run", RunError))
    with reporting_full_disk(folder.path, f"Make room, then: wardround report {folder.path}"), folder.as_written():
        try:
            return _build(folder, workers)
        except UndefinedError:  # the page names something that a file lacks
            raise LookupError from None


def _build(folder: RunFolder, workers: int) -> Path:
    evidence = read_evidence(folder)
    check_ledger(folder)
    figures = draw_all(evidence, folder.path / "figures", workers)
    tables = all_tables(evidence)
    write_tables(tables, folder.path / "tables")
    items = checklist(evidence)
    toml = tomli_w.dumps(without_places(evidence.study))
    page = _template("report.html").render(
        study=evidence.study,
        results=evidence.results,
        environment=evidence.environment,
        evidence=evidence,
        answer=answer(evidence),
        design=design(evidence),
        tables=tables,
        figures=figures,
        titles={name: drawing.title_for(evidence) for name, drawing in FIGURES.items()},
        captions={name: drawing.caption_for(evidence) for name, drawing in FIGURES.items()},
        tall={name for name, drawing in FIGURES.items() if drawing.tall},
        left_out=left_out(evidence, figures),
        finding_words=finding_words(evidence),
        groups_title=groups_title(evidence),
        sentences=[test["sentence"] for test in evidence.tests()],
        best_single=best_single_words(evidence),
        across=across_words(evidence),
        ways=ways_words(evidence),
        sure=sure_words(evidence),
        topology=[*topology_words(evidence), *party_words(evidence)],
        per_site={site: _about(evidence, site) for site in evidence.sites[:MOST_SITES]},
        subjects=subjects(evidence),
        privacy=privacy(evidence),
        failed=failed_words(evidence),
        attack=attack_words(evidence),
        attack_figures=attack_figures(folder.path / "figures") if evidence.attack else {},
        limits=limits(evidence),
        citations=citations(evidence),
        checklist=items,
        open_items=sum(item.open for item in items),
        toml=toml,
        style=_text("report.css"),
        synthetic=SYNTHETIC if evidence.synthetic else "",
    )
    target = folder.path / "report.html"
    write_atomically(target, page.encode())
    return target


def without_places(value: Any, key: str = "") -> Any:
    """A study without the folders of its files: a page travels, and where a hospital keeps its data does not."""
    if isinstance(value, Mapping):
        below = key if key == "files" else ""
        return {name: without_places(item, below or name) for name, item in value.items()}
    if isinstance(value, list):
        return [without_places(item, key) for item in value]
    return Path(value).name if isinstance(value, str) and key.rpartition(".")[2] in ("files", "path") else value


def _about(evidence: Evidence, site: str) -> Mapping[str, Any]:
    counts = evidence.results["sites"][0]["sites"].get(site)
    rows = ""
    if counts:
        classes = ", ".join(f"{name} {few(count)}" for name, count in counts["classes"].items())
        rows = f"{rows_of(counts)} rows ({classes}); {counts['train']} train, {counts['test']} test."
    return {"words": hospital_words(evidence, site), "rows": rows}


def _template(name: str) -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_text(name))


def _text(name: str) -> str:
    return files("wardround.report").joinpath("templates", name).read_text(encoding="utf-8")
