"""The page for readers: one file with everything in it, that asks for nothing and sends nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

TEMPLATE, STYLE, SCRIPT = "reading_list.html", "reading_list.css", "reading_list.js"


def page_of(content: Mapping[str, Any]) -> str:
    """Its policy allows this script and no other, pictures that are in the page, and no connection."""
    folder = files("wardround.review")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in (STYLE, SCRIPT))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # what closes an element, or begins a comment, must not stand in the middle of a script
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = folder.joinpath(TEMPLATE).read_text(encoding="utf-8")
    for mark, text in (("{{allowed}}", allowed), ("{{style}}", style), ("{{data}}", data), ("{{script}}", script)):
        page = page.replace(mark, text, 1)
    return page
