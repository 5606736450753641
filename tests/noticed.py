"""Notices of a results.json or adapt.json, found by their fields."""

from collections.abc import Mapping
from typing import Any


def noticed(results: Mapping[str, Any], code: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        notice
        for notice in results["notices"]
        if notice["code"] == code and all(notice.get(name) == value for name, value in fields.items())
    ]
