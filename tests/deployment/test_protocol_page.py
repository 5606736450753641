"""The page of the protocol, and the table of what leaves a hospital, are what the catalogue declares."""

import pytest

from scripts import write_protocol_page as pages
from wardround.protocol.catalogue import REQUESTS
from wardround.protocol.values import MOST_SITES

STALE = "run: python scripts/write_protocol_page.py"


def test_pages_are_up_to_date() -> None:
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page(), STALE
    text = pages.HOSPITALS_PAGE.read_text(encoding="utf-8")
    assert text == pages.hospitals_page(text), STALE


def test_every_field_says_what_it_means_and_every_answer_of_a_hospital_what_leaves() -> None:
    assert list(pages.undescribed()) == []
    silent = [
        request.kind
        for request in REQUESTS
        if "site" in request.answers and not (request.answers["site"].leaves and request.answers["site"].when)
    ]
    assert silent == []


def test_the_page_has_every_message_with_its_limits() -> None:
    page = pages.page()
    for request in REQUESTS:
        assert f"\n## {request.kind}" in page
        assert all(f": `{answer.kind}`\n" in page for answer in request.answers.values())
    assert f"| `sites` | list ≤ {MOST_SITES:,} of text ≤ 500 | names of hospitals |" in page


@pytest.mark.slow
def test_bytes_in_the_table_are_those_of_the_demonstration() -> None:
    """Signatures differ by a few bytes, and versions of packages by their names."""
    known, now = pages.read_sizes(), pages.measure()
    assert known["answers"].keys() == now["answers"].keys()
    for kind, sizes in now["answers"].items():
        assert sizes == pytest.approx(known["answers"][kind], abs=40), kind
