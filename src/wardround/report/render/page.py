"""The page of a report, put together from the sections' own templates."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from wardround.report.evidence import Evidence
from wardround.report.phrases import SYNTHETIC
from wardround.report.render.page_table import on_page
from wardround.report.render.table import Table
from wardround.report.section import Section

MACROS = '{% from "macros.html" import show, draw, fold with context %}'


def render_page(
    evidence: Evidence, sections: Mapping[str, Section], tables: Mapping[str, Table], svgs: Mapping[str, str]
) -> str:
    pages = {name: f"{MACROS}{section.page}" for name, section in sections.items()}
    jinja = _templates(evidence, pages)

    def part(name: str) -> Markup:
        """A section's HTML; nothing where it does not apply."""
        if name not in sections:
            return Markup()
        values = {key: make(evidence) for key, make in sections[name].values.items()}
        return Markup(jinja.get_template(name).render(values))

    jinja.globals.update(
        tables=tables,
        svgs=svgs,
        drawings={name: figure for section in sections.values() for name, figure in section.figures.items()},
        part=part,
    )
    first, *others = [name for name, section in sections.items() if section.anchor]
    return jinja.get_template("page.html").render(
        first=first,
        others=others,
        sections=sections,
        toml=tomli_w.dumps(without_places(evidence.study)),
    )


def render_site(evidence: Evidence, page: Any, named: str, alarms: Sequence[str]) -> str:
    """The page of one hospital by itself."""
    return _templates(evidence, {}).get_template("site.html").render(page=page, named=named, alarms=alarms)


def _templates(evidence: Evidence, pages: Mapping[str, str]) -> Environment:
    names = ("page.html", "site.html", "header.html", "macros.html", "front.html", "tables.html")
    templates = {name: _text(name) for name in names}
    jinja = Environment(
        loader=DictLoader({**pages, **templates}), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    script = _text("report.js")
    jinja.globals.update(
        evidence=evidence,
        study=evidence.study,
        results=evidence.results,
        environment=evidence.environment,
        synthetic=SYNTHETIC if evidence.synthetic else "",
        style=Markup(_text("report.css")),  # quotes in it are none of HTML
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",  # no other script may run
        on_page=on_page,
    )
    return jinja


PLACES = ("files", "path", "run", "bundle", "weights")  # keys of a study whose values are paths


def without_places(value: Any, key: str = "") -> Any:
    """A study without the folders of its files: a page travels, and where a hospital keeps its data does not."""
    if isinstance(value, Mapping):
        below = key if key == "files" else ""
        return {name: without_places(item, below or name) for name, item in value.items()}
    if isinstance(value, list):
        return [without_places(item, key) for item in value]
    return Path(value).name if isinstance(value, str) and key.rpartition(".")[2] in PLACES else value


def _text(name: str) -> str:
    return files("wardround.report.render").joinpath("templates", name).read_text(encoding="utf-8")
