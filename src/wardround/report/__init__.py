"""Reports of finished runs: pages, figures, tables and comparisons, all from run folders alone."""

from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

if TYPE_CHECKING:
    from wardround.report.build import build_report as build_report
    from wardround.report.build import draw_figures as draw_figures
    from wardround.report.build import make_tables as make_tables
    from wardround.report.compare import compare_runs as compare_runs
    from wardround.report.evidence import Evidence as Evidence
    from wardround.report.evidence import read_evidence as read_evidence
    from wardround.report.pdf import write_pdf as write_pdf
    from wardround.report.render.table import write_tables as write_tables
    from wardround.report.sections import sections_of as sections_of
    from wardround.report.sections.answer import answer as answer
    from wardround.report.sections.answer import participation_sentence as participation_sentence
    from wardround.report.sections.design.settings import design as design

_HOMES = {
    "wardround.report.build": ("build_report", "draw_figures", "make_tables"),
    "wardround.report.compare": ("compare_runs",),
    "wardround.report.evidence": ("Evidence", "read_evidence"),
    "wardround.report.pdf": ("write_pdf",),
    "wardround.report.render.table": ("write_tables",),
    "wardround.report.sections": ("sections_of",),
    "wardround.report.sections.answer": ("answer", "participation_sentence"),
    "wardround.report.sections.design.settings": ("design",),
}
__all__ = [
    "Evidence",
    "answer",
    "build_report",
    "compare_runs",
    "design",
    "draw_figures",
    "make_tables",
    "participation_sentence",
    "read_evidence",
    "sections_of",
    "write_pdf",
    "write_tables",
]
__getattr__ = lazy(__name__, _HOMES)
